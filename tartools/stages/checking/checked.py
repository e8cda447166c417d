"""Read all of a data set to check it: sound shards as other commands do, and the others header by header."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby, islice

from tartools import storage
from tartools.errors import StorageError, TarFormatError, TruncatedError
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, ShardErrors, ShardStream, shard_batches
from tartools.shards.workers import ShardTask, Tasks, gather
from tartools.stages.checking.across import Repeated, combination_number, compare_keys, group_repeated_keys
from tartools.stages.checking.codes import SPECIAL_CODES, Place, Trouble
from tartools.stages.checking.listedrows import TableRows
from tartools.stages.checking.samples import (
    Rows,
    check_samples,
    empty_summary,
    rows_of_batch,
    rows_of_samples,
)
from tartools.stages.checking.walk import MemberGroup, Walk
from tartools.stages.externalsort import records_of, sorted_blocks
from tartools.stages.summary import Summary
from tartools.storage.checks import probe
from tartools.storage.local import identity
from tartools.storage.names import split_part_advice
from tartools.storage.scratch import Copy, scratch_file
from tartools.storage.streams import chunks
from tartools.tables.schema import PARQUET_MAGIC, is_table

SAMPLES_IN_LOOK = 256  # samples behind damage that are looked at together
Findings = tuple[dict[int, Summary], set[int], dict[int, Trouble]]  # of a worker: by shard; shards not sound; missing


@dataclass
class InputsToCheck:
    """The inputs of a check, shards and tables *urls*, by number. Inputs that can be read only once are copied.

    *tables*: inputs whose places are row numbers, not bytes. *missing*: the reason for each input that can't be opened.
    *walked*: inputs that are not sound, which are read header by header.
    """

    urls: Sequence[str]
    reading: Reading
    tables: dict[int, TableRows] = field(default_factory=dict)
    missing: dict[int, Trouble] = field(default_factory=dict)
    copies: dict[int, Copy] = field(default_factory=dict)
    walked: set[int] = field(default_factory=set)  # those that are not sound

    @property
    def count(self) -> int:
        """The number of shards, with the shards that tables list."""
        listed: set[str] = set()
        return len(self.urls) - len(self.tables) + len(listed.union(*(table.shards for table in self.tables.values())))

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(map(identity, self.urls))

    def add_table(self, number: int) -> None:
        """Note that input *number* is a table."""
        self.walked.discard(number)
        self.tables[number] = TableRows(self.urls[number], number, self._named, self.reading.tmpdir)

    def shard_place(self, number: int, byte: int) -> tuple[str, int]:
        """Translate a place in input *number* to (shard URL, byte); *byte* is a row number in a table, -1 no place."""
        if number in self.tables and byte >= 0:
            return self.tables[number].place(byte)
        return self.urls[number], byte

    def stream(self, number: int, account: Account) -> ShardStream:
        """Return the tar stream of shard *number*."""
        url = self.urls[number]
        if number not in self.copies and not storage.is_repeatable(url):
            self.copies[number] = Copy(storage.open_read(url), url, self.reading.tmpdir, lambda _: None)
        copy = self.copies.get(number)
        return ShardStream(url, account, False, copy.open() if copy else None)

    def read(self, number: int) -> Iterator[Trouble | Rows]:
        """Yield the samples of input *number*, and findings about it, in order. Raises: StorageError."""
        if number in self.missing:
            yield self.missing[number]
        elif number in self.tables:
            yield from self.tables[number].read()
        elif number in self.walked:
            advice = split_part_advice(self.urls[number])
            if advice:  # its damage is where it was cut
                yield Trouble("split-part", -1, "", advice)
            for separate, run in groupby(self._walk(number), separate_item):
                if isinstance(separate, Trouble):
                    if not advice or separate.code in SPECIAL_CODES.values():
                        yield separate
                    continue
                while groups := [group for group in islice(run, SAMPLES_IN_LOOK) if isinstance(group, MemberGroup)]:
                    samples = [Sample(group.key, tuple(group.members), self.urls[number]) for group in groups]
                    rows = rows_of_samples(samples, number, [group.byte for group in groups])
                    yield rows._replace(doubtful=groups[0].doubtful, walked=True, lost=groups[0].lost)
        else:
            quiet = Account(lambda _: None)
            stream = self.stream(number, quiet)
            with closing(shard_batches(self.urls[number], quiet, self.reading, stream)) as batches:
                for batch in batches:
                    sound = rows_of_batch(batch, number)
                    assert sound is not None
                    yield sound
                quiet.check()

    def _walk(self, number: int) -> Iterator[Trouble | MemberGroup]:
        """Yield the member groups of shard *number*, and findings about it; first about its compressed data.

        Data that can be decompressed are copied. There are no findings about special members that are to be skipped.
        """
        reading, damage = self.reading, None
        with closing(self.stream(number, Account(lambda _: None))) as stream:
            file = stream.file
            if file is None or stream.start:
                file = scratch_file(reading.tmpdir)  # closed when no sample is in it any more
                damage = copy_and_check(stream, file)
            if damage is not None:
                yield damage
            for item in Walk(file, reading.lax, damage is None):
                if not (isinstance(item, Trouble) and reading.skip_special and item.code in SPECIAL_CODES.values()):
                    yield item


def inputs_to_check(urls: Sequence[str], reading: Reading) -> InputsToCheck:
    """Return the inputs *urls*, with tables and missing inputs recorded. Raises: StorageError."""
    inputs = InputsToCheck(urls, reading)
    for number, url in enumerate(urls):
        try:
            storage.check_inputs([url])
            if is_table(url):
                inputs.add_table(number)
        except StorageError as error:
            if not storage.is_missing(error):
                raise
            inputs.missing[number] = missing_shard(error.message)
    storage.check_inputs([url for number, url in enumerate(urls) if number not in inputs.missing])
    return inputs


def separate_item(item: Trouble | MemberGroup) -> Trouble | MemberGroup | None:
    """Return *item* of a shard if it is handled alone; None for a group without damage beside it, to be batched."""
    return item if isinstance(item, Trouble) or item.doubtful or item.lost else None


def missing_shard(why: str) -> Trouble:
    """Return the finding that a shard is missing."""
    return Trouble("missing-shard", -1, "", why)


def copy_and_check(stream: ShardStream, file: io.FileIO) -> Trouble | None:
    """Copy *stream* to *file*; return the damage of its compressed data, None if there is none."""
    try:
        for chunk in chunks(stream):
            file.write(chunk)
    except TarFormatError as error:
        code = "cut-compressed" if isinstance(error, TruncatedError) else "bad-compressed"
        if error.message.startswith("the bytes after"):
            code = "garbage-after-compressed"
        return Trouble(code, error.offset or 0, "", error.message)
    return None


class Checking:
    """Checks all samples of *shards*, in up to *max_workers* workers.

    After `repeats`, *summary* has all findings. Holds: the findings in the shards that are being read.
    """

    def __init__(self, shards: InputsToCheck, account: Account, decode: bool, max_workers: int) -> None:
        self.shards = shards
        self.account = account
        self.decode = decode
        self.max_workers = max_workers
        self.summary = empty_summary()
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, Summary] = {}  # what was found in the shard that is being read; of a worker, in its task
        self._here = True  # not in a worker
        self._numbers = {url: number for number, url in enumerate(shards.urls)}

    def repeats(self, sort: Callable[[Iterator[bytes]], Iterator[bytes]]) -> Iterator[Repeated]:
        """Read all samples, *sort* records of their keys, and yield samples that share one: see `across.compare_keys`.

        Raises: StorageError if a server fails, or none of the shards is there.
        """
        records = sort(self._records())
        first = next(records, None)  # now all have been read
        if first is None:
            return
        numbers = {combination_number(combination): combination for combination in self.summary.combinations}
        dead = frozenset(2 * number for number in self.shards.walked)
        groups = group_repeated_keys(chain([first], records), numbers, dead)
        yield from compare_keys(groups, self.summary, self.shards.shard_place)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The bytes of the samples of each shard that has some, with its number."""
        return sorted(self._sizes.items())

    def _records(self) -> Iterator[bytes]:
        """Yield a record of the key of each sample; at the end *summary* has the findings about them."""
        urls, tables, missing = self.shards.urls, self.shards.tables, self.shards.missing
        reading = self.shards.reading._replace(odd=ShardErrors(self._is_odd, self._is_absent))
        plain = [number for number in range(len(urls)) if number not in tables and number not in missing]
        repeatable = [urls[number] for number in plain if storage.is_repeatable(urls[number])]
        if repeatable:
            tasks = gather(repeatable, self.account, reading, self._work, max_workers=self.max_workers, remote=True)
            yield from records_of(self._collect(tasks))
        for number in plain:
            if not storage.is_repeatable(urls[number]):
                stream = self.shards.stream(number, self.account)
                if stream.is_table():
                    stream.close()
                    raise StorageError(
                        "is a table: its rows are compared only if it is named as a file", url=urls[number]
                    )
                yield from chain.from_iterable(
                    self._records_of(shard_batches(urls[number], self.account, reading, stream))
                )
        self._fold()
        for number in sorted(self.shards.walked):
            if (
                storage.is_far(urls[number]) and probe(urls[number]).first == PARQUET_MAGIC
            ):  # a table that has another name
                self.shards.add_table(number)
        for number in [*sorted(self.shards.walked), *tables, *sorted(missing)]:
            if len(missing) == len(urls):
                raise StorageError(missing[number].what, url=urls[number])
            yield from self._read_again(number)
        for number in plain:
            if number not in self._sizes and number not in missing and number not in tables:
                self.summary.note("no-samples", Place(number, 0, ""))

    def _is_odd(self, url: str, is_read_whole: bool) -> bool:
        """Note that the reader does not accept shard *url*; return whether it may stop reading it."""
        if not (is_read_whole or self._here):
            return False
        self.shards.walked.add(self._numbers[url])
        return True

    def _is_absent(self, url: str, why: str) -> None:
        self.shards.missing[self._numbers[url]] = missing_shard(why)

    def _fold(self) -> None:
        """Add the findings about the shards that have been read; shards that are not sound come later."""
        for number, part in self._parts.items():
            if number not in self.shards.walked:
                self._add(number, part)
        self._parts.clear()

    def _add(self, number: int, part: Summary) -> None:
        if part.samples or part.findings:
            self._sizes[number] = part.stored
        self.summary.add(part)

    def _part(self, number: int) -> Summary:
        """Return the summary of shard *number*: the last shard that was begun, or the next."""
        if number not in self._parts:
            if self._here:
                self._fold()
            self._parts[number] = empty_summary()
        return self._parts[number]

    def _work(self, task: ShardTask[Findings]) -> Iterator[bytes]:
        """Yield blocks of records of *task*; its result are the findings of a worker, for `_collect`."""
        if task.in_worker:
            self._here, self._parts = False, {}
        yield from sorted_blocks(self._records_of(task.batches))
        task.result = (self._parts, self.shards.walked, self.shards.missing) if task.in_worker else ({}, set(), {})

    def _collect(self, tasks: Tasks[Findings]) -> Generator[bytes, None, None]:
        with closing(tasks):
            for task in tasks:
                yield from task.output
                parts, walked, missing = task.result
                self.shards.walked.update(walked)
                self.shards.missing.update(missing)
                for number, part in parts.items():
                    self._part(number).add(part)

    def _records_of(self, batches: Iterator[Batch]) -> Iterator[Iterator[bytes]]:
        """Yield the records of each of *batches*, after its findings were added to the summary."""
        for batch in batches:
            rows = rows_of_batch(batch, self._numbers[batch.shard])
            if rows is None:
                self.shards.walked.add(self._numbers[batch.shard])  # it is read again
            else:
                yield check_samples(rows, self._part(rows.shard), self.decode)

    def _read_again(self, number: int) -> Iterator[bytes]:
        """Yield the records of an input that is not a sound shard; add its findings to the summary."""
        part = empty_summary()
        for item in self.shards.read(number):
            if isinstance(item, Rows):
                yield from check_samples(item, part, self.decode)
            elif item.code:
                part.note(item.code, Place(number, item.byte, item.key, item.what))
        if number in self.shards.walked:
            self._add(number, part)
        else:
            self.summary.add(part)
