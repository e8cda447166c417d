"""How tarcheck --fix writes what can be saved: shard by shard, in the order of the data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from tartools import storage
from tartools.commands._check import Shards
from tartools.errors import UsageError, printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.shards.numbering import parse_numbering
from tartools.shards.reading import shard_batches
from tartools.shards.writing import Destination, ShardWriter, Writer, shard_writer
from tartools.stages.checking.fixing import Fixing, Verdict
from tartools.stages.checking.found import Summary
from tartools.stages.checking.samples import look, rows_of
from tartools.stages.checking.walk import Group, Trouble, walk
from tartools.storage.scratch import scratch_file
from tartools.tar import Writer as TarWriter
from tartools.tar.compression import is_table_name

if TYPE_CHECKING:
    from tartools.stages.checking.samples import Decode

NUMBER = re.compile(r"(?<!%)%0?\d*d|\{shard(?::0?\d*d?)?\}")


def destinations(output: str, force: bool, shards: Sequence[str], inputs: Sequence[str]) -> list[Destination]:
    """Return where the fixed shards go: all to one, or each to its own if *output* is a pattern with a number.

    Raises: UsageError; StorageError if an output exists, or is an input.
    """
    if output == "-":
        raise UsageError("-o takes a file or a URL: the findings go to stdout")
    if is_table_name(output):
        raise UsageError("--fix writes new shards, which a table can't list; name a shard, such as .tar", url=output)
    names = [output]
    if NUMBER.search(output):
        numbering = parse_numbering(output, False)
        names = [numbering.name(number) for number in range(len(shards))]
    for name in names:
        storage.check_output(name, force, inputs)
    return [Destination(name, force) for name in names]


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
        """Write all. An output appears when it is complete; one for all shards, after the last of them."""
        if len(self._places) == 1:
            with shard_writer(self._places[0]) as writer:
                for number in range(len(self._shards.urls)):
                    self._write(number, writer)
                self._end()
                self._account.check()
            self._account.bytes_out += writer.written
            return
        for number, place in enumerate(self._places):
            with shard_writer(place) as writer:
                self._write(number, writer)
                self._account.check()
            self._account.bytes_out += writer.written
        self._end()

    def _end(self) -> None:
        for key in self._fixing.left():
            self._account.omit(f"sample {key!r} is not written: its members changed meanwhile")

    def _write(self, number: int, writer: Writer) -> None:
        """Write what can be saved of shard *number*."""
        assert isinstance(writer, ShardWriter)
        if number in self._shards.walked:
            self._write_walked(number, writer)
            return
        url, quiet = self._shards.urls[number], Account(lambda _: None)
        stream = self._shards.stream(number, quiet)
        with closing(shard_batches(url, quiet, self._shards.reading, stream)) as batches:
            for batch in batches:
                self._account.samples_in += len(batch)
                if self._is_sound(batch, number):
                    writer.write_batch(batch, 0, len(batch))
                    self._account.samples_out += len(batch)
                    continue
                rows = rows_of(batch, number)
                assert rows is not None
                for sample, byte in zip(batch, rows.begins, strict=True):
                    self._take(sample, (number, byte), self._fixing.of(sample, (number, byte), self._kept), writer)
            quiet.check()

    def _is_sound(self, batch: Batch, number: int) -> bool:
        """Tell whether all samples of *batch* can be written as they are: one look at all of them."""
        rows = rows_of(batch, number)
        if rows is None or self._fixing.is_about(number, rows.begins[-1]):
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

    def _take_group(self, group: Group, number: int, writer: ShardWriter) -> None:
        """Write the sample that *group* is, if it can be saved."""
        sample = Sample(group.key, tuple(group.members), self._shards.urls[number])
        place = (number, group.byte)
        self._account.samples_in += 1
        verdict = self._fixing.of(sample, place, self._kept, group.lost, doubtful=group.doubtful)
        if group.doubtful and verdict.sample is not None:
            fields = printable(" ".join(verdict.sample.fields))
            self._account.warn(f"{self._at(place)}: sample {sample.key!r} lies beside damage; written with {fields}")
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
        return f"{shown(self._shards.urls[place[0]])}: at byte {place[1]}"

    def _kept(self, sample: Sample) -> Sample:
        """Return *sample* in a scratch file."""
        if self._scratch is None:
            self._file = scratch_file(self._shards.reading.tmpdir)
            self._scratch = TarWriter(self._file)
        begin = self._scratch.size
        self._scratch.add(sample.members)
        self._scratch.flush()
        return Sample.at(sample.raw_key, self._file, begin, self._scratch.size, sample.shard)
