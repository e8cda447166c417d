"""Slices of shards and tables, assigned to workers of ranks, so that each sample has one reader.

Every worker finds out alone, and all come to the same answer: it follows from the names of the shards, the number of
workers, and the bytes of the shards. Shards are dealt whole where there are many. Where there are few, plain shards and
tables are cut: a cut lies where a sample seems to begin (`tar.rescan`), and whoever reads the slice before checks that.
`SliceReader` makes dicts of slices, as webdataset has them. Workers need no torch for it.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from contextlib import closing
from hashlib import file_digest
from typing import Any

from tartools import storage
from tartools.errors import StorageError, TarFormatError, TarToolsError, UsageError
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.lastdot import cut_at_last_dot
from tartools.samples.sample import DICT_KEY, DICT_URL, field_name
from tartools.shards.reading import Reading, ShardStream, shard_batches
from tartools.storage import seekable
from tartools.storage.objects import object_at
from tartools.storage.objects.ranges import RangedInput
from tartools.storage.streams import Input
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.tablesamples import row_batches
from tartools.tar import compression
from tartools.tar.fullheader import FullHeader, read_full_header
from tartools.tar.header import BLOCK
from tartools.tar.keys import field_offset
from tartools.tar.member import MIN_VIEW_BYTES, Chunk, Member, read_range
from tartools.tar.rescan import HEADER_READ_BYTES, MAX_CUT_SEARCH_BYTES, Boundary, Read, find_boundary
from tartools.train.cursor import Position, ShardSlice
from tartools.train.fieldchooser import RESERVED_PREFIX, as_dict
from tartools.train.ranks import ReaderId

SHARDS_PER_WORKER = 8  # shards for each worker; if there are so many, none is cut
MEMBERS_BEHIND_CUT = 1000  # members behind a cut that are looked at
BYTES_BEHIND_CUT = 4 << 20  # bytes of an object behind a cut that are looked at
GLOBAL_PAX_TYPE = b"g"  # type flag of a header that governs all members behind it


def shard_identity(url: str) -> str:
    """Return a fingerprint of a local shard or table; "" for a remote one.

    It is the size in bytes of a local shard, as text, the SHA-256 of the bytes of a local table, in hex, and "" for a
    URL that is no regular local file. The time of a file does not count, because each host may have a copy. Raises:
    StorageError if a table can't be read.
    """
    size = storage.plain_size(url)
    if size is None or not schema.is_table(url):
        return "" if size is None else str(size)
    with seekable.open_as_file(url) as file:
        return file_digest(file, "sha256").hexdigest()


def assign(slices: Sequence[ShardSlice], reader: ReaderId) -> list[ShardSlice]:
    """Return the slices that *reader* reads, in the order of *slices*.

    If there are SHARDS_PER_WORKER times as many slices as readers, or more, they are dealt as they are, by turns; else
    cut, so that all readers get equally many; but a slice with `skip` is never cut. All readers call this with the same
    *slices*: then each part of these has one reader. A cut slice is a fraction, whose bytes `resolve_slice` finds.
    """
    # Every reader computes this alone, without a word to the others, so it depends on nothing but the arguments.
    # - Many slices: whole ones, by turns. Readers differ by one of them, which is at most an eighth of their share.
    # - Few: each is cut into so many that their total is a multiple of the readers. 3 slices for 4 readers: each is cut
    #   into 4, and each reader gets 3 of the 12. Then a slice is only a fraction; `resolve_slice` finds its bytes when
    #   it is opened. A shard that can't be cut (compressed, a pipe) turns out to be all in its first slice, and the
    #   other slices are empty: so first slices go to different readers.
    # - A slice with *skip* is the rest of one in which a run stopped, and whose next sample is only known by its number
    #   (a compressed shard): whoever reads it counts from its begin, so it stays whole.
    number, readers = reader
    if len(slices) >= SHARDS_PER_WORKER * readers:
        return [*slices[number::readers]]
    count = readers // math.gcd(len(slices), readers)
    return [
        piece
        for at, shard_slice in enumerate(slices)
        for n, piece in enumerate([shard_slice] if shard_slice.skip else shard_slice.cut_into(count))
        # slices of a shard go to readers one after the other, but turned by *at*, the number of the shard
        if (at * count + (n + at) % count) % readers == number
    ]


def estimate_share(urls: Sequence[str], sizes: Sequence[int], slices: Sequence[ShardSlice]) -> float:
    """Return about how many bytes *slices* have of the shards *urls*, which have *sizes* bytes.

    Slices refer to *urls* and *sizes* by the number of their shard. They are whole shards or fractions of them: `begin`
    and `end` do not count. A shard that can't be cut (`can_cut_shard`) counts in full as its first slice, and as
    nothing in the others. Raises: StorageError if a local file that is cut can't be read.
    """
    total = 0.0
    for piece in slices:
        url, size = urls[piece.shard], sizes[piece.shard]
        if piece.slices > 1 and not can_cut_shard(url):
            total += size if piece.number == 0 else 0
        else:
            total += size / piece.slices
    return total


def can_cut_shard(url: str) -> bool:
    """True if the shard *url* can be cut into slices: not compressed, and no global pax header at its begin.

    A table always can. For a URL that is no regular local file, only its name is looked at: whether its suffix is that
    of a compression.
    Raises: StorageError if a local file can't be read.
    """
    if storage.plain_size(url) is None:
        return compression.split_packed(Url(url).name)[1] is None
    if schema.is_table(url):
        return True
    with closing(seekable.open_as_file(url)) as file:
        return can_cut_file(url, file)


def resolve_slice(url: str, piece: ShardSlice) -> ShardSlice | None:
    """Return *piece*, a fraction of the shard *url*, as a range of bytes, or of rows of a table; None if it is empty.

    A range of bytes, or a piece that is all of a shard, is returned unchanged; all of a table becomes the range of its
    rows. The result has `slices` 1. If the shard can't be cut, because it is compressed, begins with a global pax
    header, is a pipe, or on a server without ranges, its first piece becomes all of it, and the others are empty.
    Raises: StorageError if the shard can't be read.
    """
    if piece.begin == piece.end:
        return None
    if schema.is_table(url):
        return _resolve_rows(url, piece)
    all_of_shard = piece._replace(slices=1) if piece.number == 0 else None
    if piece.slices == 1 or not storage.is_seekable(url):
        return all_of_shard
    with closing(seekable.open_as_file(url)) as file:
        if not can_cut_file(url, file):
            return all_of_shard
        size = file.seek(0, io.SEEK_END)
        begin, until = (_cut_of_slice(file, size, piece, number) for number in (piece.number, piece.number + 1))
    if begin is None or (until is not None and until.offset <= begin.offset):
        return None
    resolved = ShardSlice(piece.shard, begin=begin.offset)
    return (
        resolved
        if until is None
        else resolved._replace(end=until.offset, key=until.key.decode(errors="surrogateescape"))
    )


def can_cut_file(url: str, file: io.BufferedReader) -> bool:
    """True if parts of the shard *url*, opened as *file* by `seekable.open_as_file`, can be read: it is not compressed.

    False also if it begins with a global pax header, or is a copy of an object whose server has no ranges. The position
    of *file* changes.
    """
    if storage.is_stored_object(url) and isinstance(file.raw, io.FileIO):  # a copy, because the server has no ranges
        return False
    file.seek(0)
    head = file.read(BLOCK)
    return compression.codec_of(head) is None and head[156:157] != GLOBAL_PAX_TYPE


def _resolve_rows(url: str, piece: ShardSlice) -> ShardSlice | None:
    """Return *piece*, a fraction of the table *url*, as a range of rows, with `rows` True; None if it has no row.

    Raises: StorageError if the table can't be read.
    """
    from tartools.tables import source

    with source.open_table(url) as table:
        begin, end = (_slice_begin(piece, table.rows, number) for number in (piece.number, piece.number + 1))
    return ShardSlice(piece.shard, begin=begin, end=end, rows=True) if end > begin else None


def _slice_begin(piece: ShardSlice, size: int, number: int) -> int:
    """Return where slice *number* of *piece* would begin if all were equal, in a shard of *size* bytes or rows.

    *number*: among the slices of the shard, up to `piece.slices`, which gives the end.
    """
    end = size if piece.end is None else piece.end
    return piece.begin + (end - piece.begin) * number // piece.slices


def _cut_of_slice(file: io.BufferedReader, size: int, piece: ShardSlice, number: int) -> Boundary | None:
    """Return the `Boundary` (byte, key of sample) where slice *number* of *piece* begins; None at the end of *file*.

    A sample seems to begin there, at the estimated begin of the slice or soon after it (see `_search_cut`), but not
    behind the end of *piece*, which is the cut for `piece.slices`. Slice 0 begins where *piece* does, with the key b"".
    *size*: bytes of the file.
    """
    if number == 0:
        return Boundary(piece.begin, b"")
    if number == piece.slices:
        return piece.boundary
    cut = _search_cut(file, size, _slice_begin(piece, size, number))
    return piece.boundary if piece.end is not None and (cut is None or cut.offset > piece.end) else cut


def _search_cut(file: io.BufferedReader, size: int, start: int) -> Boundary | None:
    """Return a `Boundary` from byte *start* of *file* on: (byte where a sample seems to begin, its key); None if none.

    Not the first one: two members or more behind *start* are passed over. The same *start* gives the same one. *size*:
    bytes of the file. Samples inside of payloads that are archives themselves are passed over, as far as they are
    recognised. The position of *file* changes.
    """

    def read(count: int, offset: int) -> bytes:
        file.seek(offset)
        return file.read(count)

    max_bytes = size if isinstance(file.raw, io.FileIO) else BYTES_BEHIND_CUT
    while start < size:
        cut = find_boundary(read, start)
        if cut is None:
            start += MAX_CUT_SEARCH_BYTES
            continue
        end = _inner_archive_end(read, cut.offset, max_bytes, size)
        if end is None:
            return cut
        start = end
    return None


def _inner_archive_end(read: Read, position: int, max_bytes: int, size: int) -> int | None:
    """Return the end of an archive inside a payload, if the member at *position* is in one; None if it is in the shard.

    It is inside if the archive ends, by zero blocks, before the shard does, of *size* bytes; the end is a byte in or
    right behind these blocks. None also if it does not end in the next MEMBERS_BEHIND_CUT members, or *max_bytes*
    bytes, or a header before that is damaged or a global one. `read(count, offset)` returns bytes of the shard.
    """
    last = position + max_bytes
    for _ in range(MEMBERS_BEHIND_CUT):
        data = read(HEADER_READ_BYTES, position)
        if not data[:BLOCK].strip(b"\0"):
            nonzero = data.lstrip(b"\0")
            return (
                position + len(data) - len(nonzero)
                if nonzero
                else position + BLOCK
                if _has_data(read, position)
                else None
            )
        try:
            header = read_full_header(memoryview(data), 0, {})
        except TarFormatError:
            return None  # damage: whoever reads it says so
        if not isinstance(header, FullHeader):
            return None
        position += header.end
        if position >= min(last, size):
            return None
    return None


def _has_data(read: Read, position: int) -> bool:
    """True if bytes other than zero follow, by `read(count, offset)`, from byte *position* on."""
    while data := read(MAX_CUT_SEARCH_BYTES, position):
        if data.strip(b"\0"):
            return True
        position += len(data)
    return False


NumberedSlices = Callable[[int], ShardSlice | None]  # gives the slice that is read n-th, None behind the last


def by_number(pieces: Sequence[ShardSlice]) -> NumberedSlices:
    """Return a function: n -> item n of *pieces*, from 0; None behind the last."""
    return lambda number: pieces[number] if number < len(pieces) else None


class SliceReader:
    """Iterates over the samples, as dicts, of the slices `slice_at(0)`, `slice_at(1)`, ... until one is None.

    It can be iterated over once; `position`, called between two samples, tells the position of the next one.

    *urls*: the URLs of the shards, whose indexes are the shard numbers in slices
    *start*: where to begin, None for the first sample
    *needed*: fields to read, others are None; None for all
    `on_error(error)`: called with the TarToolsError or OSError of a slice that can't be read; True to go on with the
        next one, else the iteration ends. None: the error is raised
    *last_dot*: keys end at the last dot of names, dots before it become underscores: a.2.jpg has the key a_2;
        a table is a UsageError then
    """

    def __init__(
        self,
        urls: Sequence[str],
        slice_at: NumberedSlices,
        start: Position | None = None,
        needed: Set[str] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        last_dot: bool = False,
    ) -> None:
        self._on_error = on_error
        self._last_dot = last_dot
        self._urls = urls
        self._slice_at = slice_at
        self._needed = needed
        self._number, self._rest = start or Position()
        self._current: ShardSlice | None = None
        self._plain = False  # whether reading can begin at any byte of the shard
        self._count = 0  # samples of the slice that were had
        self._batch: Batch | None = None
        self._first = 0  # number of the first sample of the batch among those of the slice
        self._begun = self._iterate()

    def position(self) -> Position:
        """Return the position of the next sample, from which another reader can start."""
        current, batch = self._current, self._batch
        if not self._count or current is None or batch is None:
            return Position(self._number, self._rest)
        bounds = batch.bounds() if self._plain else None
        if current.rows:
            remainder = current._replace(begin=current.begin + self._count)
        elif bounds is not None:
            remainder = current._replace(begin=bounds[self._count - self._first], skip=0)
        else:
            remainder = current._replace(skip=current.skip + self._count)
        return Position(self._number, remainder)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._begun

    def _iterate(self) -> Iterator[dict[str, Any]]:
        """Yield the samples of all slices, and keep `_number`, `_rest` and the other values for `position` current.

        A TarToolsError or OSError of a slice goes to `on_error`, which decides whether the next one is read; without
        it, it is raised.
        """
        account = Account()
        while (piece := self._rest or self._slice_at(self._number)) is not None:
            self._rest = piece
            try:
                yield from self._samples(self._urls[piece.shard], piece, account)
            except (TarToolsError, OSError) as error:
                if self._on_error is None:
                    raise
                if not self._on_error(error):
                    return
            self._number, self._rest, self._current, self._count, self._batch = self._number + 1, None, None, 0, None

    def _samples(self, url: str, piece: ShardSlice, account: Account) -> Iterator[dict[str, Any]]:
        """Yield the samples of the slice *piece* of the shard *url* as dicts, without the first `piece.skip`.

        Sets `_current`, `_batch`, `_first` and `_count` for `position`. Raises: the errors of `resolve_slice`,
        `_batches`, `dicts` and `Account.check`.
        """
        self._current = resolved = resolve_slice(url, piece)
        if resolved is None:
            return
        with closing(self._batches(url, resolved, account)) as batches:
            first = -resolved.skip
            for batch in batches:
                self._batch, self._first = batch, first
                skip, first = max(-first, 0), first + len(batch)
                for sample in dicts(batch, skip, self._needed) if first > 0 else ():
                    self._count += 1
                    yield sample
        account.check()

    def _batches(self, url: str, resolved: ShardSlice, account: Account) -> Generator[Batch, None, None]:
        """Yield the batches of *resolved*, a slice of the shard *url* with its bytes or rows.

        Sets `_plain`: True if reading can begin at any sample of the shard; not for rows, nor if keys end at the last
        dot. *account*: counts bytes read. Raises: UsageError if keys end at the last dot, and *url* is a table,
        SampleError if two names of a sample get one key by it; StorageError and TarFormatError if the shard can't be
        read or is damaged.
        """
        begin = resolved.begin
        if resolved.rows:
            if self._last_dot:
                raise UsageError(
                    "dots='last' is for shards, and this is a table: name the shards that it lists", url=url
                )
            yield from row_batches(url, range(begin, resolved.end or 0), account)
            return
        if begin and not Url(url).is_local:
            stream: Input = RangedInput(object_at(url), begin)
        else:
            stream = ShardStream(url, account)
            if begin:
                stream.start_at(begin)
        is_rest = self._rest is not None and self._rest.begin > 0
        for number, batch in enumerate(_slice_batches(url, stream, resolved, account, is_rest)):
            if self._last_dot:  # several samples may come of one that the reader finds: they are counted
                yield from cut_at_last_dot(batch)
                continue
            if not number:
                self._plain = begin > 0 or _is_plain(url, stream, batch)
            yield batch


def _is_plain(url: str, stream: Input, batch: Batch) -> bool:
    """True if reading can begin at any sample of the shard *url*; *batch* is the first one of its *stream*.

    It is so for a tar that is not compressed, in a file or an object (whose server is not asked whether it has ranges);
    not for a table. False also for an object whose first sample does not begin at byte 0, and for a file with a global
    pax header at its begin. Raises: StorageError if a local file can't be read.
    """
    if not storage.is_seekable(url) or not isinstance(stream, ShardStream) or stream.compressed:
        return False
    if batch.shards[0] != url:  # that of a table
        return False
    bounds = batch.bounds()
    begins_shard = bounds is not None and bounds[0] == 0
    if begins_shard or not Url(url).is_local:
        return begins_shard
    with closing(seekable.open_as_file(url)) as file:  # the first header is not that of a sample
        return can_cut_file(url, file)


def _slice_batches(url: str, stream: Input, resolved: ShardSlice, account: Account, is_rest: bool) -> Iterator[Batch]:
    """Yield the batches of the slice *resolved* of the shard *url*, whose *stream* is at `begin`.

    *is_rest*: True if the slice is the unread rest of one, so that there may be no sample in it.
    Raises: TarFormatError for damage; StorageError if the shard can't be read, and if the cut at the end of the slice
    was wrong: no sample begins there, the one before it has the same key, or (unless *is_rest*) there is none before.
    """
    begin, cut = resolved.begin, resolved.boundary
    until = None if cut is None else cut.offset
    last = b""
    try:
        for batch in shard_batches(url, account, Reading(), stream, begin=begin, until=until):
            yield batch
            last = batch.keys[-1]
    except TarFormatError as error:
        if until is None or error.offset != until:
            raise
        raise _wrong_cut_error(url, until) from error
    if cut is not None and last in ((cut.key,) if is_rest else (b"", cut.key)):
        raise _wrong_cut_error(url, cut.offset)


def _wrong_cut_error(url: str, offset: int) -> StorageError:
    """Return the error that no sample begins at byte *offset* of the shard *url*, where it was cut."""
    return StorageError(
        "no sample begins here, though it looks like it (an archive in a payload?), so workers can't share this shard: "
        "train from its table, which tarindex makes",
        url=url,
        offset=offset,
    )


_names: dict[bytes, str] = {}  # fields that were seen, by their bytes


def _field_name(field: bytes, member: Member) -> str:
    """Return the name of *field* (bytes), of *member*, as text in lower case.

    For a name that begins with two underscores it is `DICT_KEY`, so that `dicts` refuses it as one that occurs twice.
    The name is cached by *field*, for up to 1,000 fields.
    """
    name = field_name(Member._make(member)).lower()
    if name.startswith(RESERVED_PREFIX):
        name = DICT_KEY
    if len(_names) < 1000:
        _names[field] = name
    return name


def dicts(batch: Batch, first: int = 0, needed: Set[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the samples of *batch* from number *first* on as dicts: `__key__`, `__url__`, payloads (bytes) by field.

    Names of fields are in lower case. *needed*: fields to read, others are None; None for all. Raises: SampleError if
    two fields to be read have one name, or differ only in case, or if the name of any field begins with two
    underscores; StorageError if a file has changed.
    """
    cached_name = _names.get
    for number, (raw_key, url, members) in enumerate(batch.member_lists(first), first):
        begin = field_offset(raw_key)
        sample: dict[str, Any] = {DICT_KEY: raw_key.decode("utf-8", "surrogateescape"), DICT_URL: url}
        for member in members:
            path, source, _, data, size, _ = member
            field = path[begin:]
            name = cached_name(field) or _field_name(field, member)
            if name in sample:
                as_dict(batch[number], needed)  # raises, if it is wanted
            if needed is not None and name not in needed:
                sample[name] = None
            elif size < MIN_VIEW_BYTES and type(source) is Chunk:
                sample[name] = bytes(source[data : data + size])
            else:
                sample[name] = read_range(source, data, data + size)
        yield sample
