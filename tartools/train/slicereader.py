"""`SliceReader`: slices of shards and tables to dicts, as webdataset makes them. Workers need no torch for it."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

from tartools.errors import StorageError, TarFormatError, TarToolsError
from tartools.samples.account import Account
from tartools.samples.sample import Batch, field_name
from tartools.shards.reading import Reading, shard_batches
from tartools.shards.stream import ShardStream
from tartools.storage import is_repeatable, seekable
from tartools.storage.url import Url
from tartools.tables.tablesamples import row_batches
from tartools.tar.member import VIEWED, Chunk, Member, read_range
from tartools.train import slices
from tartools.train.fieldchooser import HAVE, KEY, OWN, URL, as_dict
from tartools.train.slices import ShardSlice

NumberedSlices = Callable[[int], ShardSlice | None]  # gives the slice that is read n-th, None behind the last


class Position(NamedTuple):
    """Where a reader is: at slice *number*, of which *rest* is left; None if it has had nothing of it."""

    number: int = 0
    rest: ShardSlice | None = None

    @classmethod
    def of(cls, number: int, rest: Sequence[Any] | None) -> Position:
        """Return the position with these items, from JSON."""
        return cls(number, None if rest is None else ShardSlice(*rest))


def numbered(pieces: Sequence[ShardSlice]) -> NumberedSlices:
    """Return what gives *pieces* by their number."""
    return lambda number: pieces[number] if number < len(pieces) else None


class SliceReader:
    """An iterator of the samples of the slices that *numbered* gives, from *start* on; `position` is where it is.

    With *wanted*, only these fields are read. `failed(error)` tells whether to go on behind a slice that can't be read.
    """

    def __init__(
        self,
        urls: Sequence[str],
        numbered: NumberedSlices,
        start: Position | None = None,
        wanted: Set[str] | None = None,
        failed: Callable[[Exception], object] | None = None,
    ) -> None:
        self._failed = failed
        self._urls = urls
        self._numbered = numbered
        self._wanted = wanted
        self._number, self._rest = start or Position()
        self._found: ShardSlice | None = None
        self._plain = False  # whether reading can begin at any byte of the shard
        self._count = 0  # samples of the slice that were had
        self._batch: Batch | None = None
        self._first = 0  # number of the first sample of the batch among those of the slice
        self._begun = self._iterated()

    def position(self) -> Position:
        """Return where this is."""
        found, batch = self._found, self._batch
        if not self._count or found is None or batch is None:
            return Position(self._number, self._rest)
        number, groups = self._count - self._first, batch.groups
        if found.rows:
            rest = found._replace(begin=found.begin + self._count)
        elif self._plain and batch.offset is not None:
            rest = found._replace(begin=batch.offset, skip=number)
        elif self._plain and groups is not None and isinstance(groups.source, (io.FileIO, Chunk)):
            base = 0 if isinstance(groups.source, io.FileIO) else groups.source.base
            rest = found._replace(begin=base + groups.starts[number], skip=0)
        else:
            rest = found._replace(skip=found.skip + self._count)
        return Position(self._number, rest)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._begun

    def _iterated(self) -> Iterator[dict[str, Any]]:
        account = Account()
        while (piece := self._rest or self._numbered(self._number)) is not None:
            self._rest = piece
            try:
                yield from self._samples(self._urls[piece.shard], piece, account)
            except (TarToolsError, OSError) as error:
                if self._failed is None:
                    raise
                if not self._failed(error):
                    return
            self._number, self._rest, self._found, self._count, self._batch = self._number + 1, None, None, 0, None

    def _samples(self, url: str, piece: ShardSlice, account: Account) -> Iterator[dict[str, Any]]:
        """Yield the samples of the slice *piece* of the shard *url*."""
        self._found = found = slices.found_in(url, piece)
        if found is None:
            return
        with closing(self._batches(url, found, account)) as batches:
            first = -found.skip
            for batch in batches:
                self._batch, self._first = batch, first
                skip, first = max(-first, 0), first + len(batch)
                for sample in dicts(batch, skip, self._wanted) if first > 0 else ():
                    self._count += 1
                    yield sample
        account.check()

    def _batches(self, url: str, found: ShardSlice, account: Account) -> Generator[Batch, None, None]:
        """Yield the batches of the slice *found* of the shard *url*."""
        begin = found.begin
        if found.rows:
            yield from row_batches(url, range(begin, found.end or 0), account)
            return
        stream = ShardStream(url, account) if not begin or Url(url).is_local else _Ranged(url, begin)
        if begin and isinstance(stream, ShardStream):
            stream.start_at(begin)
        going_on = self._rest is not None and self._rest.begin > 0
        for number, batch in enumerate(_slice_batches(url, stream, found, account, going_on)):
            if not number:
                self._plain = begin > 0 or _is_plain(url, stream, batch)
            yield batch


def _is_plain(url: str, stream: ShardStream | _Ranged, batch: Batch) -> bool:
    """Tell whether reading can begin at any byte of the shard *url*, whose *stream* gave *batch* first."""
    if not is_repeatable(url) or Url(url).read_command or not isinstance(stream, ShardStream):
        return False
    if stream.compressed or batch.shards[0] != url:  # that of a table
        return False
    begin = batch.offset
    if batch.groups is not None:
        begin = batch.groups.starts[0]
        begin += batch.groups.source.base if isinstance(batch.groups.source, Chunk) else 0
    if begin == 0 or not Url(url).is_local:
        return begin == 0
    with closing(seekable.reading(url)) as file:  # the first header is not that of a sample
        return slices.can_be_cut(url, file)


def _slice_batches(
    url: str, stream: ShardStream | _Ranged, found: ShardSlice, account: Account, going_on: bool
) -> Iterator[Batch]:
    """Yield the samples of the slice *found* of the shard *url*, whose *stream* is at its begin.

    If this is *going_on* behind a sample, there may be none. Raises: TarFormatError, also if none begins at its end.
    """
    begin, cut = found.begin, found.cut
    until = None if cut is None else cut.offset
    last = b""
    try:
        for batch in shard_batches(url, account, Reading(), stream, begin=begin, until=until):
            yield batch
            last = batch.keys[-1]
    except TarFormatError as error:
        if until is None or error.offset != until:
            raise
        raise _wrong_cut(url, until) from error
    if cut is not None and last in ((cut.key,) if going_on else (b"", cut.key)):
        raise _wrong_cut(url, cut.offset)


def _wrong_cut(url: str, offset: int) -> StorageError:
    return StorageError(
        "no sample begins here, though it looks like it (an archive in a payload?), so workers can't share this shard: "
        "train from its table, which tarindex makes",
        url=url,
        offset=offset,
    )


class _Ranged:
    """The bytes of the object *url* from *begin* on, as a stream."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, url: str, begin: int) -> None:
        self._file = seekable.reading(url)
        self._file.seek(begin)

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        return self._file.readinto1(view)

    def cancel(self) -> bool:
        """No other thread reads this."""
        return False

    def close(self) -> None:
        """Stop reading."""
        self._file.close()


_names: dict[bytes, str] = {}  # fields that were seen, by their bytes


def _name(field: bytes, member: Member) -> str:
    """Return the name of *field* in a dict; it is remembered. For one that can't be there it is that of the key."""
    name = field_name(Member._make(member)).lower()
    if name.startswith(OWN):
        name = KEY
    if len(_names) < 1000:
        _names[field] = name
    return name


def dicts(batch: Batch, first: int = 0, wanted: Set[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the samples of *batch* from number *first* on as `fields.as_dict` does; if given, only fields *wanted*."""
    groups = batch.groups
    if groups is None or groups.members is None:
        for number in range(first, len(batch)):
            yield as_dict(batch[number])
        return
    shards, members, firsts = batch.shards, groups.members, [*groups.firsts, len(groups.members)]
    known, url = _names.get, shards[0]
    for number, (low, high) in enumerate(pairwise(firsts[first:]), first):
        key = groups.keys[number]
        if len(shards) > 1:
            url = shards[number]
        behind = len(key) + 1
        sample: dict[str, Any] = {KEY: key.decode("utf-8", "surrogateescape"), URL: url}
        for member in members[low:high]:
            path, source, _, data, size, _ = member
            field = path[behind:]
            name = known(field) or _name(field, member)
            if name in sample:
                as_dict(batch[number])  # raises
            if wanted is not None and name not in wanted:
                continue
            if size < VIEWED and type(source) is Chunk:
                sample[name] = bytes(source[data : data + size])
            else:
                sample[name] = read_range(source, data, data + size)
        if wanted is not None and not wanted <= sample.keys():
            sample[HAVE] = batch[number].fields
        yield sample
