"""How tarcheck --fix writes what can be saved: shard by shard, in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tartools import storage
from tartools.commands._check import CheckedShards
from tartools.errors import UsageError, printable, several, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.shards.numbering import parse_numbering
from tartools.shards.reading import shard_batches
from tartools.shards.writing import Destination, ShardWriter, check_shard_name, shard_writer
from tartools.stages.checking.fixing import Fixing, Verdict
from tartools.stages.checking.found import Summary
from tartools.stages.checking.samples import Rows, look, rows_of
from tartools.stages.checking.walk import MemberGroup, Trouble, walk
from tartools.storage.names import has_number
from tartools.storage.scratch import scratch_file
from tartools.tar import Writer as TarWriter

if TYPE_CHECKING:
    from tartools.stages.checking.samples import Decode


def destinations(output: str, force: bool, shards: CheckedShards) -> list[Destination]:
    """Return where the fixed shards go: all to one, or each to its own if *output* is a pattern with a number.

    Raises: UsageError; StorageError if an output exists, or is an input.
    """
    if output == "-":
        raise UsageError("-o takes a file or a URL: the findings go to stdout")
    names = [output]
    if has_number(output):
        numbering = parse_numbering(output, False)
        names = [numbering.name(number) for number in range(len(shards.urls))]
    for name in names:
        check_shard_name(name)
        storage.check_output(name, force, shards.urls, single=False)
    return [Destination(name, force) for name in names]


class Fix:
    """Writes the samples of *shards* that *fixing* lets pass to *places*; tells *account* of all others."""

    def __init__(
        self,
        shards: CheckedShards,
        fixing: Fixing,
        places: Sequence[Destination],
        account: Account,
        decode: Decode | None,
    ) -> None:
        self._shards = shards
        self._fixing = fixing
        self._places = places
        self._account = account
        self._decode = decode
        self._scratch: TarWriter | None = None

    def run(self) -> None:
        """Write all. An output appears when it is complete; one for all shards, after the last of them.

        Raises: StorageError if an output is a shard that a table lists.
        """
        count = len(self._shards.urls)
        listed = [url for table in self._shards.tables.values() for url in table.urls]
        for place in self._places:
            storage.check_output(place.url, True, listed, single=False)
        if len(self._places) == 1:
            self._write_to(self._places[0], range(count))
        else:
            for number, place in enumerate(self._places):
                if number in self._shards.missing:
                    self._omit_missing(number)
                else:
                    self._write_to(place, [number])

    def _write_to(self, place: Destination, numbers: Sequence[int]) -> None:
        """Write what can be saved of the inputs *numbers* to *place*."""
        last = numbers[-1] == len(self._shards.urls) - 1
        with shard_writer(place) as writer:
            assert isinstance(writer, ShardWriter)
            for number in numbers:
                self._write(number, writer)
            for key in self._fixing.left() if last else ():  # samples whose other members have not come
                self._account.omit(f"sample {key!r} is not written: its members changed meanwhile")
            self._account.check()
        self._account.bytes_out += writer.written

    def _omit_missing(self, number: int) -> None:
        self._account.omit(f"{shown(self._shards.urls[number])}: {printable(self._shards.missing[number])}")

    def _write(self, number: int, writer: ShardWriter) -> None:
        """Write what can be saved of input *number*."""
        if number in self._shards.missing:
            self._omit_missing(number)
        elif number in self._shards.walked:
            self._write_walked(number, writer)
        elif number in self._shards.tables:
            self._write_batches(self._listed(number), number, writer)
        else:
            url, quiet = self._shards.urls[number], Account(lambda _: None)
            stream = self._shards.stream(number, quiet)
            with closing(shard_batches(url, quiet, self._shards.reading, stream)) as batches:
                self._write_batches(((batch, rows_of(batch, number)) for batch in batches), number, writer)
                quiet.check()

    def _listed(self, number: int) -> Iterator[tuple[Batch, Rows]]:
        """Yield the samples of a table; report the rows that do not fit their shards."""
        from tartools.commands._checktable import Wrong, rows_in

        for found in self._shards.tables[number].read():
            if isinstance(found, Wrong):
                self._account.samples_in += found.rows
                self._account.dropped += found.rows
                many = f"{several(found.rows, 'row')} not written: " if found.rows else ""
                self._account.omit(f"{shown(self._shards.urls[number])}: {many}{printable(found.what)}")
            else:
                row, batch = found
                yield batch, rows_in(batch, number, row)

    def _write_batches(self, batches: Iterable[tuple[Batch, Rows | None]], number: int, writer: ShardWriter) -> None:
        """Write what can be saved of *batches* of input *number*."""
        for batch, rows in batches:
            assert rows is not None
            self._account.samples_in += len(batch)
            if self._is_sound(rows):
                writer.write_batch(batch, 0, len(batch))
                self._account.samples_out += len(batch)
                continue
            for sample, byte in zip(batch, rows.begins, strict=True):
                self._take(sample, (number, byte), self._fixing.of(sample, (number, byte), self._kept), writer)

    def _is_sound(self, rows: Rows) -> bool:
        """Tell whether all samples *rows* can be written as they are: one look at all of them."""
        if self._fixing.is_about(rows.shard, rows.begins[-1]):
            return False
        summary = Summary()
        for _ in look(rows, summary, self._decode):
            pass
        return self._fixing.is_sound(summary)

    def _write_walked(self, number: int, writer: ShardWriter) -> None:
        """Write what can be saved of a shard that is not sound."""
        url, reading = self._shards.urls[number], self._shards.reading
        with self._shards.opened(number) as (file, wrong):
            if wrong is not None:
                self._account.omit(f"{shown(url)}: at byte {wrong.byte}: {printable(wrong.what)}")
            for found in walk(file, reading.lax, wrong is None):
                if isinstance(found, Trouble):
                    special = found.code in ("link", "device", "sparse", "volume")
                    if found.code != "archive-after-end" and not (special and reading.skip_special):
                        what = f"{found.code}{f' ({found.what})' if found.what else ''}"
                        self._account.omit(f"{shown(url)}: at byte {found.byte}: not written: {printable(what)}")
                    continue
                self._take_group(found, number, writer)

    def _take_group(self, group: MemberGroup, number: int, writer: ShardWriter) -> None:
        """Write the sample that *group* is, if it can be saved."""
        sample = Sample(group.key, tuple(group.members), self._shards.urls[number])
        place = (number, group.byte)
        self._account.samples_in += 1
        verdict = self._fixing.of(sample, place, self._kept, group.lost, doubtful=group.doubtful)
        if group.doubtful and verdict.sample is not None:
            fields = printable(" ".join(verdict.sample.fields))
            self._account.warn(f"{self._at(place)}: sample {sample.key!r} lies next to damage; written with {fields}")
        self._take(sample, place, verdict, writer)

    def _take(self, sample: Sample, place: tuple[int, int], verdict: Verdict, writer: ShardWriter) -> None:
        """Do what *verdict* says of *sample*."""
        if verdict.sample is not None:
            writer.write(verdict.sample)
            self._account.samples_out += 1
        elif verdict.joined:
            self._account.joined += 1
        elif verdict.left:
            self._account.left_out += 1
        else:
            self._account.dropped += 1
            self._account.omit(f"{self._at(place)}: sample {sample.key!r} is not written: {printable(verdict.why)}")

    def _at(self, place: tuple[int, int]) -> str:
        shard, byte = self._shards.where(*place)
        return f"{shown(shard)}: at byte {byte}"

    def _kept(self, sample: Sample) -> Sample:
        """Return *sample* in a scratch file."""
        if self._scratch is None:
            self._file = scratch_file(self._shards.reading.tmpdir)
            self._scratch = TarWriter(self._file)
        begin = self._scratch.size
        self._scratch.add(sample.members)
        self._scratch.flush()
        return Sample.at(sample.raw_key, self._file, begin, self._scratch.size, sample.shard)
