"""How tarcheck --fix writes what can be saved: shard by shard, in the order of the data set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from tartools import storage
from tartools.commands._check import Shards
from tartools.errors import UsageError, printable, several, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.shards.numbering import parse_numbering
from tartools.shards.reading import shard_batches
from tartools.shards.writing import Destination, ShardWriter, shard_writer
from tartools.stages.checking.fixing import Fixing, Verdict
from tartools.stages.checking.found import Summary
from tartools.stages.checking.samples import Rows, look, rows_of
from tartools.stages.checking.walk import Group, Trouble, walk
from tartools.storage.names.numbers import has_number
from tartools.storage.scratch import scratch_file
from tartools.tar import Writer as TarWriter
from tartools.tar.compression import is_table_name

if TYPE_CHECKING:
    from tartools.stages.checking.samples import Decode


def destinations(output: str, force: bool, shards: Shards) -> list[Destination]:
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
        storage.check_output(name, force, shards.urls, single=False)
    if is_table_name(output):
        from tartools.commands._fixtable import check_listable

        check_listable(shards)
    return [Destination(name, force) for name in names]


class Out(Protocol):
    """Where samples go."""

    def takes(self, batch: Batch) -> bool:
        """Tell whether *batch*, sound samples, can go there as it is."""
        ...

    def batch(self, batch: Batch, number: int, rows: Rows) -> None:
        """Add *batch*, the samples *rows* of input *number*."""
        ...

    def sample(self, sample: Sample, place: tuple[int, int], changed: bool) -> str:
        """Add *sample* of *place*, which may have been *changed*; return why that is not possible, empty if it is."""
        ...


class ShardOut:
    """Writes samples to a shard by *writer*."""

    def __init__(self, writer: ShardWriter) -> None:
        self._writer = writer

    def takes(self, _batch: Batch) -> bool:
        """Always."""
        return True

    def batch(self, batch: Batch, _number: int, _rows: Rows) -> None:
        """Write *batch*."""
        self._writer.write_batch(batch, 0, len(batch))

    def sample(self, sample: Sample, _place: tuple[int, int], _changed: bool) -> str:
        """Write *sample*."""
        self._writer.write(sample)
        return ""


class Fix:
    """Writes the samples of *shards* that *fixing* lets pass to *places*; tells *account* of all others."""

    def __init__(
        self, shards: Shards, fixing: Fixing, places: Sequence[Destination], account: Account, decode: Decode | None
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
        if is_table_name(place.url):
            from tartools.commands._fixtable import TableOut

            table = TableOut(self._shards, numbers, self._account)
            for number in numbers:
                self._write(number, table)
            self._end(last)
            writer = table.write(place)
        else:
            with shard_writer(place) as writer:
                assert isinstance(writer, ShardWriter)
                for number in numbers:
                    self._write(number, ShardOut(writer))
                self._end(last)
        self._account.bytes_out += writer.written

    def _end(self, last: bool) -> None:
        """Check what was read; report samples whose other members have not come, after the *last* output."""
        for key in self._fixing.left() if last else ():
            self._account.omit(f"sample {key!r} is not written: its members changed meanwhile")
        self._account.check()

    def _omit_missing(self, number: int) -> None:
        self._account.omit(f"{shown(self._shards.urls[number])}: {printable(self._shards.missing[number])}")

    def _write(self, number: int, out: Out) -> None:
        """Write what can be saved of input *number*."""
        if number in self._shards.missing:
            self._omit_missing(number)
        elif number in self._shards.walked:
            self._write_walked(number, out)
        elif number in self._shards.tables:
            self._write_batches(self._listed(number), number, out)
        else:
            url, quiet = self._shards.urls[number], Account(lambda _: None)
            stream = self._shards.stream(number, quiet)
            with closing(shard_batches(url, quiet, self._shards.reading, stream)) as batches:
                self._write_batches(((batch, rows_of(batch, number)) for batch in batches), number, out)
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

    def _write_batches(self, batches: Iterable[tuple[Batch, Rows | None]], number: int, out: Out) -> None:
        """Write what can be saved of *batches* of input *number*."""
        for batch, rows in batches:
            assert rows is not None
            self._account.samples_in += len(batch)
            if self._is_sound(rows) and out.takes(batch):
                out.batch(batch, number, rows)
                self._account.samples_out += len(batch)
                continue
            for sample, byte in zip(batch, rows.begins, strict=True):
                self._take(sample, (number, byte), self._fixing.of(sample, (number, byte), self._kept), out)

    def _is_sound(self, rows: Rows) -> bool:
        """Tell whether all samples *rows* can be written as they are: one look at all of them."""
        if self._fixing.is_about(rows.shard, rows.begins[-1]):
            return False
        summary = Summary()
        for _ in look(rows, summary, self._decode):
            pass
        return self._fixing.is_sound(summary)

    def _write_walked(self, number: int, out: Out) -> None:
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
                self._take_group(found, number, out)

    def _take_group(self, group: Group, number: int, out: Out) -> None:
        """Write the sample that *group* is, if it can be saved."""
        sample = Sample(group.key, tuple(group.members), self._shards.urls[number])
        place = (number, group.byte)
        self._account.samples_in += 1
        verdict = self._fixing.of(sample, place, self._kept, group.lost, doubtful=group.doubtful)
        if group.doubtful and verdict.sample is not None:
            fields = printable(" ".join(verdict.sample.fields))
            self._account.warn(f"{self._at(place)}: sample {sample.key!r} lies next to damage; written with {fields}")
        self._take(sample, place, verdict, out)

    def _take(self, sample: Sample, place: tuple[int, int], verdict: Verdict, out: Out) -> None:
        """Do what *verdict* says of *sample*."""
        why = verdict.why
        if verdict.sample is not None:
            why = out.sample(verdict.sample, place, verdict.sample is not sample)
        if verdict.sample is not None and not why:
            self._account.samples_out += 1
        elif verdict.joined:
            self._account.joined += 1
        elif verdict.left:
            self._account.left_out += 1
        else:
            self._account.dropped += 1
            self._account.omit(f"{self._at(place)}: sample {sample.key!r} is not written: {printable(why)}")

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
