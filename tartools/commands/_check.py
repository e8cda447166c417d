"""How tarcheck reads a data set: sound shards as other commands do, and the others header by header."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools import storage
from tartools.errors import StorageError, TarFormatError, TruncatedError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards.gathering import gather
from tartools.shards.reading import OddShards, Reading, shard_batches
from tartools.shards.stream import ShardStream
from tartools.stages.checking.found import Place, Summary
from tartools.stages.checking.keys import combination_number
from tartools.stages.checking.samples import Decode, Rows, look, rows_of
from tartools.stages.checking.walk import MemberGroup, Trouble, walk
from tartools.stages.sorting.externalsort import pack_blocks, records_of
from tartools.storage.copies import Copy
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import chunks

if TYPE_CHECKING:
    from tartools.commands._checktable import TableRows

SORTED = 1 << 14  # records that a worker sorts together
TOGETHER = 256  # groups behind damage that are looked at together
CHUNK = 1 << 20  # bytes


class Opened(NamedTuple):
    """The tar of a shard as a *file*, and what is *wrong* with the compressed data that it comes from."""

    file: io.FileIO
    wrong: Trouble | None


class CheckedShards:
    """The shards and tables *urls*, and what is known of them. Those that can be read only once are copied.

    Of *tables*, by number, the places of samples are rows, not bytes. Those *missing* are not there: why, by number.
    """

    def __init__(
        self, urls: Sequence[str], reading: Reading, tables: Mapping[int, TableRows], missing: dict[int, str]
    ) -> None:
        self.urls = urls
        self.reading = reading
        self.tables = tables
        self.missing = missing
        self.copies: dict[int, Copy] = {}
        self.walked: set[int] = set()  # those that are not sound

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
            self.copies[number] = Copy(url, self.reading.tmpdir, lambda _: None)
        copy = self.copies.get(number)
        return ShardStream(url, account, False, copy.open() if copy else None)

    @contextmanager
    def opened(self, number: int) -> Iterator[Opened]:
        """Give the tar of shard *number* as a file; what can be decompressed is copied."""
        quiet = Account(lambda _: None)
        with closing(self.stream(number, quiet)) as stream:
            if stream.file is not None and not stream.start:
                yield Opened(stream.file, None)
                return
            file = scratch_file(self.reading.tmpdir)  # closed when no sample is in it any more
            wrong = copied(stream, file)
            yield Opened(file, wrong)


def copied(stream: ShardStream, file: io.FileIO) -> Trouble | None:
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
    """Looks at all samples of *shards*.

    After `records`, *summary* has what was found. Holds: what was found in the shards that are being read.
    """

    def __init__(self, shards: CheckedShards, account: Account, decode: Decode | None, most: int) -> None:
        self.shards = shards
        self.account = account
        self.decode = decode
        self.most = most
        self.summary = Summary()
        self._sizes: dict[int, int] = {}
        self._parts: dict[int, Summary] = {}  # of the shards that are being read
        self._odd = shards.walked
        self._here = True  # not in a worker

    def records(self) -> Iterator[bytes]:
        """Yield a record of the key of each sample; see `keys`. Then *summary* is complete.

        Raises: StorageError if a server fails, or none of the shards is there.
        """
        urls, tables = self.shards.urls, self.shards.tables
        numbers = {url: number for number, url in enumerate(urls)}
        plain = [number for number in range(len(urls)) if number not in tables and number not in self.shards.missing]
        many = [urls[number] for number in plain if storage.is_repeatable(urls[number])]
        once = [number for number in plain if urls[number] not in {*many}]

        def odd(url: str, whole: bool) -> bool:
            if not (whole or self._here):
                return False
            self._odd.add(numbers[url])
            return True

        def absent(url: str, why: str) -> None:
            self.shards.missing[numbers[url]] = why

        reading = self.shards.reading._replace(odd=OddShards(odd, absent))
        if many:
            yield from records_of(self._gathered(many, numbers, reading))
        for number in once:
            yield from records_of(self._alone(number, reading))
        self._fold(len(urls))
        for number in sorted(self._odd):
            part = Summary()
            yield from self._walked(number, part)
            self._add(number, part)
        for number in tables:
            yield from self._listed(number)
        for number in plain:
            if number not in self._sizes and number not in self.shards.missing:
                self.summary.note("no-samples", Place(number, 0, ""))
        for number, why in sorted(self.shards.missing.items()):
            if len(self.shards.missing) == len(urls):
                raise StorageError(why, url=urls[number])
            self.summary.note("missing-shard", Place(number, -1, "", why))

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The bytes of the samples of each shard that has some, with its number."""
        return sorted(self._sizes.items())

    def _fold(self, upto: int) -> None:
        """Add what was found in the shards before *upto*, which have been read; those that are not sound come later."""
        for number in sorted(number for number in self._parts if number < upto):
            part = self._parts.pop(number)
            if number not in self._odd:
                self._add(number, part)

    def _add(self, number: int, part: Summary) -> None:
        if part.samples or part.findings:
            self._sizes[number] = part.bytes
        self.summary.add(part)

    def _gathered(self, urls: Sequence[str], numbers: dict[str, int], reading: Reading) -> Generator[bytes, None, None]:
        def collect(result: tuple[dict[str, Any], list[int], dict[str, str]]) -> None:
            parts, odd, missing = result
            self._odd.update(odd)
            self.shards.missing.update((int(number), why) for number, why in missing.items())
            for number, part in parts.items():
                self._fold(int(number))
                self._parts.setdefault(int(number), Summary()).add(Summary.from_dict(part))

        def work(
            batches: Iterator[Batch], _number: int, forked: bool
        ) -> Generator[bytes, None, tuple[dict[str, Any], list[int], dict[str, str]]]:
            self._here = not forked
            found: dict[int, Summary] = {} if forked else self._parts
            yield from self._blocks(batches, numbers, found)
            parts = {str(number): part.as_dict() for number, part in found.items()} if forked else {}
            return parts, sorted(self._odd), {str(number): why for number, why in self.shards.missing.items()}

        yield from gather(urls, self.account, reading, work, collect, most=self.most, remote=True)

    def _alone(self, number: int, reading: Reading) -> Generator[bytes, None, None]:
        """Yield the records of a shard that can be read only once."""
        url = self.shards.urls[number]
        stream = self.shards.stream(number, self.account)
        batches = shard_batches(url, self.account, reading, stream)
        yield from self._blocks(batches, {url: number}, self._parts)

    def _blocks(
        self, batches: Iterator[Batch], numbers: dict[str, int], found: dict[int, Summary]
    ) -> Generator[bytes, None, None]:
        """Yield blocks of the records of *batches*; add what is wrong with them to *found*."""
        held: list[bytes] = []
        for batch in batches:
            number = numbers[batch.shard]
            rows = rows_of(batch, number)
            if rows is None:
                self._odd.add(number)  # it is read again
                continue
            if number not in found:
                if self._here:
                    self._fold(number)
                found[number] = Summary()
            held += look(rows, found[number], self.decode)
            if len(held) >= SORTED:
                held.sort()
                yield from pack_blocks(held)
                held = []
        held.sort()
        yield from pack_blocks(held)

    def _walked(self, number: int, summary: Summary) -> Iterator[bytes]:
        """Yield the records of a shard that is not sound; add to *summary* what is wrong with it."""
        with self.shards.opened(number) as (file, wrong):
            if wrong is not None:
                summary.note(wrong.code, Place(number, wrong.byte, "", wrong.what))
            held: list[MemberGroup] = []
            reading = self.shards.reading
            for found in walk(file, reading.lax, wrong is None):
                if isinstance(found, Trouble):
                    if not (reading.skip_special and found.code in ("link", "device", "sparse", "volume")):
                        key = found.key.decode("utf-8", "surrogateescape")
                        summary.note(found.code, Place(number, found.byte, key, found.what))
                    continue
                if held and (found.doubtful or held[-1].doubtful or len(held) == TOGETHER):
                    yield from look(rows_from(number, held), summary, self.decode)
                    held = []
                if found.members:
                    held.append(found)
            if held:
                yield from look(rows_from(number, held), summary, self.decode)

    def _listed(self, number: int) -> Iterator[bytes]:
        """Yield the records of the samples that a table lists; add what is wrong with them and the table."""
        from tartools.commands._checktable import Wrong, rows_in

        for found in self.shards.tables[number].read():
            if isinstance(found, Wrong):
                if found.code:
                    self.summary.note(found.code, Place(number, -1, found.key, found.what))
                continue
            row, batch = found
            yield from look(rows_in(batch, number, row), self.summary, self.decode)


def rows_from(number: int, groups: Sequence[MemberGroup]) -> Rows:
    """Return *groups* of shard *number*, all of them doubtful or none, as rows."""
    members = [member for group in groups for member in group.members]
    firsts = [0]
    for group in groups[:-1]:
        firsts.append(firsts[-1] + len(group.members))
    begins = [group.byte for group in groups]
    keys = [group.key for group in groups]
    return Rows(number, keys, begins, members, firsts, members[-1].end, groups[0].doubtful, walked=True)


def combination_numbers(summary: Summary) -> dict[bytes, str]:
    """Return the combinations of fields in *summary* by the numbers that records have."""
    return {combination_number(each): each for each in summary.combinations}
