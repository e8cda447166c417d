"""Read all of a data set to check it: sound shards as other commands do, and the others header by header."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain

from tartools import storage
from tartools.errors import StorageError, TarFormatError, TruncatedError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards.reading import OddShards, Reading, ShardStream, shard_batches
from tartools.shards.workers import gather
from tartools.stages.checking.across import Repeated, combination_number, compare_keys, repeated
from tartools.stages.checking.codes import SPECIAL, Place
from tartools.stages.checking.listedrows import TableRows, WrongRows
from tartools.stages.checking.samples import (
    Decode,
    Rows,
    look_at_samples,
    nothing_found,
    rows_of_lists,
    samples_listed_by,
)
from tartools.stages.checking.walk import MemberGroup, Trouble, Walk
from tartools.stages.combinations import text
from tartools.stages.externalsort import records_of, sorted_blocks
from tartools.stages.summary import Summary
from tartools.storage.local import identity
from tartools.storage.scratch import Copy, scratch_file
from tartools.storage.streams import chunks
from tartools.tables.schema import is_table

TOGETHER = 256  # groups behind damage that are looked at together


@dataclass
class CheckedShards:
    """The shards and tables *urls*, and what is known of them. Those that can be read only once are copied.

    Of *tables*, by number, the places of samples are rows, not bytes. Those *missing* are not there: why, by number.
    """

    urls: Sequence[str]
    reading: Reading
    tables: Mapping[int, TableRows]
    missing: dict[int, str]
    copies: dict[int, Copy] = field(default_factory=dict)
    walked: set[int] = field(default_factory=set)  # those that are not sound

    @property
    def count(self) -> int:
        """How many shards there are, with those that tables list."""
        listed: set[str] = set()
        return len(self.urls) - len(self.tables) + len(listed.union(*(table.shards for table in self.tables.values())))

    def where(self, number: int, byte: int) -> tuple[str, int]:
        """Return the shard, and the byte of it, that *byte* of input *number* stands for; -1 is none."""
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

    def walk(self, number: int) -> Iterator[Trouble | MemberGroup]:
        """Yield what is in shard *number*, and what is wrong with it; first with its compressed data.

        What can be decompressed is copied. Special members that are to be skipped are not wrong.
        """
        reading, wrong = self.reading, None
        with closing(self.stream(number, Account(lambda _: None))) as stream:
            file = stream.file
            if file is None or stream.start:
                file = scratch_file(reading.tmpdir)  # closed when no sample is in it any more
                wrong = copy_and_check(stream, file)
            if wrong is not None:
                yield wrong
            for found in Walk(file, reading.lax, wrong is None):
                if not (isinstance(found, Trouble) and reading.skip_special and found.code in SPECIAL.values()):
                    yield found


def checked_shards(urls: Sequence[str], reading: Reading) -> CheckedShards:
    """Return *urls*, and which of them are tables, and which are not there. Raises: StorageError."""
    missing: dict[int, str] = {}
    listing: list[int] = []
    for number, url in enumerate(urls):
        try:
            storage.check_inputs([url])
            if is_table(url):
                listing.append(number)
        except StorageError as error:
            if not storage.is_missing(error):
                raise
            missing[number] = error.message
    storage.check_inputs([url for number, url in enumerate(urls) if number not in missing])
    others = {identity(url) for number, url in enumerate(urls) if number not in listing} if listing else ()
    tables = {number: TableRows(urls[number], others, reading.tmpdir) for number in listing}
    return CheckedShards(urls, reading, tables, missing)


def copy_and_check(stream: ShardStream, file: io.FileIO) -> Trouble | None:
    """Copy *stream* to *file*; return what is wrong with it, if it is compressed."""
    try:
        for chunk in chunks(stream):
            file.write(chunk)
    except TarFormatError as error:
        code = "cut-compressed" if isinstance(error, TruncatedError) else "bad-compressed"
        if error.message.startswith("the bytes after"):
            code = "garbage-after-compressed"
        return Trouble(code, error.offset or 0, b"", error.message)
    return None


class Checking:
    """Looks at all samples of *shards*, in up to *most* workers.

    After `repeats`, *summary* has what was found. Holds: what was found in the shards that are being read.
    """

    def __init__(self, shards: CheckedShards, account: Account, decode: Decode | None, most: int) -> None:
        self.shards = shards
        self.account = account
        self.decode = decode
        self.most = most
        self.summary = nothing_found()
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, Summary] = {}  # of the shards that are being read
        self._odd = shards.walked
        self._here = True  # not in a worker
        self._numbers = {url: number for number, url in enumerate(shards.urls)}

    def repeats(self, sort: Callable[[Iterator[bytes]], Iterator[bytes]]) -> Iterator[Repeated]:
        """Read all samples, *sort* records of their keys, and yield those that share one: see `across.compare_keys`.

        Raises: StorageError if a server fails, or none of the shards is there.
        """
        records = sort(self._records())
        first = next(records, None)  # now all have been read
        if first is None:
            return
        numbers = {combination_number(each): each for each in self.summary.combinations}
        dead = frozenset(2 * number for number in self.shards.walked)
        groups = repeated(chain([first], records), numbers, dead)
        yield from compare_keys(groups, self.summary, self.shards.where)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The bytes of the samples of each shard that has some, with its number."""
        return sorted(self._sizes.items())

    def _records(self) -> Iterator[bytes]:
        """Yield a record of the key of each sample; then *summary* has what was found in them."""
        urls, tables, missing = self.shards.urls, self.shards.tables, self.shards.missing
        reading = self.shards.reading._replace(odd=OddShards(self._is_odd, self._is_absent))
        plain = [number for number in range(len(urls)) if number not in tables and number not in missing]
        many = [number for number in plain if storage.is_repeatable(urls[number])]
        if many:
            yield from records_of(self._gathered([urls[number] for number in many], reading))
        for number in plain:
            if number not in many:  # it can be read only once
                stream = self.shards.stream(number, self.account)
                batches = shard_batches(urls[number], self.account, reading, stream)
                yield from chain.from_iterable(self._records_of(batches, self._parts))
        self._fold(len(urls))
        for number in sorted(self._odd):
            part = nothing_found()
            yield from self._walked(number, part)
            self._add(number, part)
        for number in tables:
            yield from self._listed(number)
        for number in plain:
            if number not in self._sizes and number not in missing:
                self.summary.note("no-samples", Place(number, 0, ""))
        for number, why in sorted(missing.items()):
            if len(missing) == len(urls):
                raise StorageError(why, url=urls[number])
            self.summary.note("missing-shard", Place(number, -1, "", why))

    def _is_odd(self, url: str, whole: bool) -> bool:
        """Note that the reader does not accept shard *url*; return whether it may stop reading it."""
        if not (whole or self._here):
            return False
        self._odd.add(self._numbers[url])
        return True

    def _is_absent(self, url: str, why: str) -> None:
        self.shards.missing[self._numbers[url]] = why

    def _fold(self, upto: int) -> None:
        """Add what was found in the shards before *upto*, which have been read; those that are not sound come later."""
        for number in sorted(number for number in self._parts if number < upto):
            part = self._parts.pop(number)
            if number not in self._odd:
                self._add(number, part)

    def _add(self, number: int, part: Summary) -> None:
        if part.samples or part.findings:
            self._sizes[number] = part.stored
        self.summary.add(part)

    def _gathered(self, urls: Sequence[str], reading: Reading) -> Generator[bytes, None, None]:
        """Yield blocks of records of the shards *urls*, by workers where that pays."""

        def collect(result: tuple[dict[int, Summary], set[int], dict[int, str]]) -> None:
            parts, odd, missing = result
            self._odd.update(odd)
            self.shards.missing.update(missing)
            for number, part in parts.items():
                self._fold(number)
                self._parts.setdefault(number, nothing_found()).add(part)

        def work(
            batches: Iterator[Batch], _number: int, forked: bool
        ) -> Generator[bytes, None, tuple[dict[int, Summary], set[int], dict[int, str]]]:
            self._here = not forked
            found: dict[int, Summary] = {} if forked else self._parts
            yield from sorted_blocks(self._records_of(batches, found))
            return found if forked else {}, self._odd, self.shards.missing

        yield from gather(urls, self.account, reading, work, collect, most=self.most, remote=True)

    def _records_of(self, batches: Iterator[Batch], found: dict[int, Summary]) -> Iterator[Iterator[bytes]]:
        """Yield the records of each of *batches*; add what is wrong with them to *found*."""
        for batch in batches:
            number = self._numbers[batch.shard]
            rows = samples_listed_by(batch, number)
            if rows is None:
                self._odd.add(number)  # it is read again
                continue
            if number not in found:
                if self._here:
                    self._fold(number)
                found[number] = nothing_found()
            yield look_at_samples(rows, found[number], self.decode)

    def _walked(self, number: int, summary: Summary) -> Iterator[bytes]:
        """Yield the records of a shard that is not sound; add to *summary* what is wrong with it."""
        held: list[MemberGroup] = []
        for found in self.shards.walk(number):
            if isinstance(found, Trouble):
                summary.note(found.code, Place(number, found.byte, text(found.key), found.what))
                continue
            if held and (found.doubtful or held[-1].doubtful or len(held) == TOGETHER):
                yield from look_at_samples(rows_from(number, held), summary, self.decode)
                held = []
            if found.members:
                held.append(found)
        if held:
            yield from look_at_samples(rows_from(number, held), summary, self.decode)

    def _listed(self, number: int) -> Iterator[bytes]:
        """Yield the records of the samples that a table lists; add what is wrong with them and the table."""
        for found in self.shards.tables[number].read():
            if isinstance(found, WrongRows):
                if found.code:
                    self.summary.note(found.code, Place(number, -1, found.key, found.what))
                continue
            row, batch = found
            rows = samples_listed_by(batch, number, row)
            assert rows is not None
            yield from look_at_samples(rows, self.summary, self.decode)


def rows_from(number: int, groups: Sequence[MemberGroup]) -> Rows:
    """Return *groups* of shard *number*, all of them doubtful or none, as rows."""
    keys, begins, members = zip(*((group.key, group.byte, group.members) for group in groups), strict=True)
    rows = rows_of_lists(number, keys, begins, members)
    stored = members[-1][-1].end - begins[0]
    return rows._replace(stored=stored, doubtful=groups[0].doubtful, walked=True)
