"""Rows of a table as places in shards; the samples there, if they are what the rows say."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from zlib import crc32

from tartools.errors import ChangedError, NotFoundError, StorageError, TarFormatError, TarToolsError, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.storage import is_missing
from tartools.storage.streams import Stream, size_in_version
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tar import ContiguousGroups, Parsed, ScatteredGroup, padded
from tartools.tar.compression import Pushed

ADVICE = "tarindex --update makes the table again"
MOVED = "its shards are named relative to its folder: keep them together, or make it again: tarindex"
MOST = (1 << 63) - 1  # bytes of a shard
ALONE = 64  # rows that are read one by one behind damage, before the next are read together again
UNKNOWN_KEY = 0  # in place of the sum of the key, for a row that has none


@dataclass
class Piece:
    """Rows of the table, as columns: numpy arrays of the number of the shard (int32), and of begin and end (int64).

    *keys* is None if they are not to be compared. The first is row *first* of the table, and the others follow it,
    unless *rows* has the number of each.
    """

    first: int
    numbers: Any
    begins: Any
    ends: Any
    keys: list[bytes] | None = None
    rows: Any = None

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def size(self) -> int:
        """The bytes of all samples."""
        return int((self.ends - self.begins).sum())

    def bounds(self) -> Any:
        """Return where the samples begin and the last one ends, if they come one after the other."""
        import numpy as np

        return np.concatenate(([0], (self.ends - self.begins).cumsum()))

    def runs(self) -> Any:
        """Return the indexes of the rows that do not begin where the one before them ends, the first of them 0."""
        import numpy as np

        apart = (self.begins[1:] != self.ends[:-1]) | (self.numbers[1:] != self.numbers[:-1])
        return np.append(0, np.flatnonzero(apart) + 1)

    def windows(self, most: int) -> Iterator[Piece]:
        """Yield these rows in parts whose samples have *most* bytes together, or that are one row."""
        bounds, low = self.bounds(), 0
        while low < len(self):
            high = max(int(bounds.searchsorted(bounds[low] + most, "right")) - 1, low + 1)
            yield self.part(low, high)
            low = high

    def part(self, low: int, high: int) -> Piece:
        """Return rows *low* to *high* of these."""
        return Piece(
            self.first + low,
            self.numbers[low:high],
            self.begins[low:high],
            self.ends[low:high],
            None if self.keys is None else self.keys[low:high],
            None if self.rows is None else self.rows[low:high],
        )

    def taken(self, numbers: Sequence[int]) -> Piece:
        """Return the rows *numbers* of these."""
        import numpy as np

        some = np.array(numbers, np.int64)
        keys = None if self.keys is None else [self.keys[number] for number in numbers]
        rows = self.first + some if self.rows is None else self.rows[some]
        return Piece(self.first, self.numbers[some], self.begins[some], self.ends[some], keys, rows)

    def place(self, index: int) -> tuple[int, int, int]:
        """Return shard, begin and end of row *index* of these."""
        return int(self.numbers[index]), int(self.begins[index]), int(self.ends[index])


def runs_of_equal(values: Any) -> Iterator[tuple[int, int]]:
    """Return where each run of equal *values*, an array, begins, and where it ends, in pairs."""
    import numpy as np

    return pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)])


class RowError(StorageError):
    """A sample is not as its row says."""


class KnownShards:
    """Shards by number: *urls*, *versions* (None if not known), *sizes* in bytes, and which are *far*, on servers.

    A size that is not known is that of the largest shard. Those that are *relative* are named so, to the folder of a
    table or to the current directory.
    """

    def __init__(self) -> None:
        self.urls: list[Url] = []
        self.versions: list[str | None] = []
        self.sizes: list[int] = []
        self.far: list[bool] = []
        self.relative: list[bool] = []
        self._numbers: dict[tuple[str, str | None], int] = {}

    def number(self, name: str, version: str | None, relative: bool = False) -> int:
        """Return the number of the shard with the URL *name* in this *version*; the next one if it is new."""
        number = self._numbers.setdefault((name, version), len(self.urls))
        if number == len(self.urls):
            url = Url(name)
            self.urls.append(url)
            self.versions.append(version)
            size = size_in_version(version)
            self.sizes.append(MOST if size is None else size)
            self.far.append(not url.is_local or bool(url.read_command))
            self.relative.append(relative or not (url.scheme or url.startswith("/")))
        return number

    def shard(self, number: int) -> tuple[str, str | None]:
        """Return URL and version of the shard *number*."""
        return self.urls[number], self.versions[number]


class Listing:
    """The shards that the table *url* names; they are among *shards*, if these are given."""

    def __init__(self, url: str, shards: KnownShards | None = None) -> None:
        self.table = url
        self.shards = shards or KnownShards()
        self.urls, self.versions, self.far = self.shards.urls, self.shards.versions, self.shards.far
        self._folder = schema.folder_of(url)
        self._numbers: dict[tuple[str, str | None], int] = {}  # by the name in the table

    def piece(self, rows: Any, first: int, keyed: bool = True) -> Piece:
        """Return the record batch *rows*, which begins with row *first*; with keys if it has them and *keyed*.

        Raises: StorageError for values of no use.
        """
        import numpy as np

        column = {name: rows.column(name) for name in rows.schema.names}
        begins, ends = (self._places(column[name], name, first) for name in (schema.BEGIN, schema.END))
        numbers = self._shards(column[schema.SHARD], column.get(schema.VERSION), first)
        texts = column.get(schema.KEY) if keyed else None
        keys = None if texts is None or texts.null_count else raw_keys(texts, first, self.table)
        found = Piece(first, numbers, begins, ends, keys)
        sizes = np.array(self.shards.sizes)[numbers]
        for wrong in np.flatnonzero((begins < 0) | (begins >= ends) | (ends > sizes))[:1].tolist():
            _, begin, end = found.place(wrong)
            size = int(sizes[wrong])
            what = f"the sample cannot begin at {begin} and end at {end}"
            raise self.failure(found, wrong, what + f" of a shard of {size} bytes" * (begin < end and end > size))
        if schema.MEMBERS in column:
            self._check_members(column[schema.MEMBERS], found)
        return found

    def _check_members(self, column: Any, found: Piece) -> None:
        """Raise StorageError if a member of a sample is not between its begin and end, as the row says them."""
        import numpy as np

        what = f"rows {found.first} to {found.first + len(found) - 1}: not all {schema.MEMBERS} are numbers"
        for place in column.flatten() if schema.arrow().types.is_struct(column.type) else ():
            if not schema.is_place(place.type):
                continue
            with schema.unfit(what, self.table):
                (offsets, has_offset), (sizes, has_size) = map(whole_numbers, place.flatten())
            too_far = has_size & ((sizes < 0) | (sizes > found.ends - offsets))
            outside = has_offset & ((offsets <= found.begins) | too_far)
            for wrong in np.flatnonzero(outside)[:1].tolist():
                _, begin, end = found.place(wrong)
                raise self.failure(found, wrong, f"not all members of the sample are in bytes {begin} to {end}")

    def _places(self, column: Any, name: str, first: int) -> Any:
        """Return the column *name* of begins or ends as an array of int64."""
        pa = schema.arrow()
        if column.null_count:
            row = first + column.is_null().to_pylist().index(True)
            raise StorageError(f"row {row}: {name} is null", url=self.table)
        with schema.unfit(f"row {first}: {name} is {column.type}, which is not a place in a shard", self.table):
            try:
                return whole_numbers(column)[0]
            except pa.ArrowException:
                for row, value in enumerate(column, first):
                    what = f"row {row}: {name} is {str(value)[:40]}, which is not a place in a shard"
                    with schema.unfit(what, self.table):
                        value.cast(pa.int64())
                raise

    def _shards(self, column: Any, version: Any, first: int) -> Any:
        """Return the numbers of the shards that *column* names, in their versions."""
        import numpy as np

        with schema.unfit(f"row {first}: this or a later one has no name of a shard", self.table):
            found, names = _encoded(column)
            which, versions = _encoded(version) if version is not None else (np.zeros_like(found), [])
        pairs, begins, inverse = np.unique(found * (len(versions) + 1) + which, return_index=True, return_inverse=True)
        numbers = np.empty(len(pairs), np.int32)
        for n in np.argsort(begins).tolist():
            name, version = divmod(int(pairs[n]), len(versions) + 1)
            numbers[n] = self._number(
                names[name - 1] if name else None, versions[version - 1] if version else None, first + int(begins[n])
            )
        return numbers[inverse]

    def _number(self, name: object, version: object, row: int) -> int:
        if not isinstance(name, str) or not name or "\0" in name:
            raise StorageError(f"row {row}: {schema.SHARD} is not the name of a shard", url=self.table)
        if not isinstance(version, str | None):
            raise StorageError(f"row {row}: {schema.VERSION} is not text", url=self.table)
        number = self._numbers.get((name, version))
        if number is None:
            try:
                url = schema.resolved(name, self._folder)
            except TarToolsError as error:
                raise StorageError(f"row {row}: {error.message}", url=self.table) from None
            number = self._numbers[name, version] = self.shards.number(url, version, url != name)
        return number

    def failure(self, rows: Piece, index: int, what: str | TarToolsError) -> RowError:
        """Return the failure of the sample that row *index* of *rows* is about: *what*, or the error of its shard."""
        number, begin, _ = rows.place(index)
        row = rows.first + index if rows.rows is None else rows.rows[index]
        message = what if isinstance(what, str) else what.message
        place = f"row {row} of {shown(self.table)}{self._advice(number, what)}"
        return RowError(f"{message} ({place})", url=self.urls[number], offset=begin)

    def _advice(self, number: int, what: str | TarToolsError) -> str:
        """Return what to do about a failure of the shard *number*: "" if a new table would fail in the same way."""
        if isinstance(what, StorageError) and is_missing(what) and self.shards.relative[number]:
            return f"; {MOVED}"
        changed = not isinstance(what, StorageError) or isinstance(what, ChangedError | NotFoundError)
        return f"; {ADVICE}" if changed else ""


def _encoded(column: Any) -> tuple[Any, list[object]]:
    """Return the values of *column* as numbers from 1 on, 0 for null, and what they stand for."""
    import numpy as np

    pa = schema.arrow()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    numbers, known = _numbers(encoded.indices)
    return np.where(known, numbers.astype(np.int64) + 1, 0), encoded.dictionary.to_pylist()


def raw_keys(column: Any, first: int, url: str) -> list[Any]:
    """Return the keys in *column*, which begins with row *first* of the table *url*, as bytes; None for null.

    Raises: StorageError if they are not text.
    """
    with schema.unfit(f"row {first}: {schema.KEY} is not text", url):
        return schema.raw(column).to_pylist()  # type: ignore[no-any-return]


def whole_numbers(column: Any) -> tuple[Any, Any]:
    """Return *column* as an array of int64, and which are not null. Raises: ArrowException if that can't be."""
    import numpy as np

    pa = schema.arrow()
    if pa.types.is_integer(column.type):  # `cast` takes 0.05 s to import
        found, known = _numbers(column)
        if found.dtype.kind == "i" or found.max(initial=0) <= MOST:
            return found.astype(np.int64, copy=False), known
    return _numbers(column.cast(pa.int64()))


def _numbers(column: Any) -> tuple[Any, Any]:
    """Return *column*, of whole numbers, as an array, and which are not null; what stands for null is any number.

    `to_numpy` and `fill_null` of pyarrow import pandas where it is installed, which takes 0.2 s.
    """
    import numpy as np

    bits, numbers = column.buffers()
    bare = column.from_buffers(column.type, len(column), [None, numbers], offset=column.offset)
    if bits is None:
        return np.from_dlpack(bare), np.True_
    first, last = column.offset // 8, (column.offset + len(column) + 7) // 8
    known = np.unpackbits(np.frombuffer(bits, np.uint8, last - first, first), bitorder="little").astype(bool)
    return np.from_dlpack(bare), known[column.offset % 8 :][: len(column)]


def key_sums(keys: Sequence[bytes]) -> Any:
    """Return four bytes for each of *keys*: so rows are compared with keys in shards, and keys are not held.

    Of 4 billion pairs of different keys one is alike.
    """
    import numpy as np

    return np.fromiter(map(crc32, keys), np.uint32, len(keys))


class Checker:
    """Reads samples that *listing* has the shards of; *read* is `tar.read_members` with its options.

    Headers, keys, and where samples begin and end are compared with the rows.
    """

    def __init__(self, listing: Listing, account: Account, read: Callable[..., Iterator[Parsed]]) -> None:
        self.listing = listing
        self._account = account
        self._read = read

    def in_memory(self, rows: Piece, data: bytes | memoryview) -> Iterator[Batch]:
        """Yield the samples of *rows*, which are in *data* one after the other."""
        bounds: list[int] = rows.bounds().tolist()
        view = memoryview(data)
        return self.samples(rows, bounds, lambda index: Pushed(None, view[bounds[index] :]))

    def samples(self, rows: Piece, bounds: list[int], stream_of: Callable[[int], Stream]) -> Iterator[Batch]:
        """Yield the samples of *rows*, which begin and end at *bounds* of a file or of other bytes.

        `stream_of(n)` has these bytes from row n of them on.
        """
        at = 0
        while at < len(rows):
            low = yield from self._together(rows, at, bounds, stream_of)
            at = min(low + ALONE, len(rows))
            yield from self._one_by_one(rows, range(low, at), bounds, stream_of)  # equal keys side by side, or damage

    def _together(
        self, rows: Piece, at: int, bounds: list[int], stream_of: Callable[[int], Stream]
    ) -> Generator[Batch, None, int]:
        """Yield the samples of *rows* from *at* on, up to the first that is not as its row says; return its number."""
        with suppress(TarFormatError):  # who reads this sample alone finds out what is wrong
            for part in self._read(stream_of(at), url=self.listing.table, begin=bounds[at], until=bounds[-1]):
                found = rows_in_part(part, rows, at, bounds)
                if not found:
                    break
                self._count(bounds[at + found] - bounds[at])
                batch = Batch(part, self._urls(rows, at, at + found))  # type: ignore[arg-type]
                at += found
                yield batch
        return at

    def _one_by_one(
        self, rows: Piece, indexes: range, bounds: list[int], stream_of: Callable[[int], Stream]
    ) -> Iterator[Batch]:
        """Yield the samples *indexes* of *rows*. Raises: StorageError for one that is not as its row says."""
        for index in indexes:
            begin, end = bounds[index : index + 2]
            try:
                parts = [*self._read(stream_of(index), url=self.listing.table, begin=begin, until=end)]
            except TarFormatError as error:
                raise self.listing.failure(rows, index, error.message) from error
            row = replace(rows.part(index, index + 1), keys=None)
            if len(parts) != 1 or rows_in_part(parts[0], row, 0, [begin, end]) != 1:
                raise self.listing.failure(rows, index, "this is not one sample")
            batch = Batch(parts[0], self._urls(rows, index, index + 1))  # type: ignore[arg-type]
            if rows.keys is not None and batch.keys[0] != rows.keys[index]:
                what = "the key of the sample there is {!r}, not {!r}"
                keys = (key.decode("utf-8", "replace") for key in (batch.keys[0], rows.keys[index]))
                raise self.listing.failure(rows, index, what.format(*keys))
            self._count(end - begin)
            yield batch

    def _urls(self, rows: Piece, low: int, high: int) -> str | list[str]:
        """Return the URL of the shard of rows *low* to *high*, or those of each if they differ."""
        if high == low + 1:
            return self.listing.urls[int(rows.numbers[low])]
        numbers: list[int] = rows.numbers[low:high].tolist()
        if len(set(numbers)) == 1:
            return self.listing.urls[numbers[0]]
        return [self.listing.urls[number] for number in numbers]

    def _count(self, size: int) -> None:
        self._account.bytes_in += size
        self._account.unpacked += size


def rows_in_part(part: Parsed, rows: Piece, at: int, bounds: list[int]) -> int:
    """Return how many samples *part* has, if they are those of *rows* from *at* on, which begin at *bounds*; else 0."""
    if isinstance(part, ContiguousGroups):
        keys, starts, base = part.keys, part.starts, getattr(part.source, "base", 0)
    elif isinstance(part, ScatteredGroup) and part.offset is not None:
        keys, base = [part.key], 0
        starts = [
            part.offset,
            part.offset + sum(data - start + padded(size) for _, _, start, data, size, _ in part.members),
        ]
    else:
        return 0
    upto = at + len(keys)
    if upto > len(rows) or bounds[at : upto + 1] != ([start + base for start in starts] if base else starts):
        return 0
    return len(keys) if rows.keys is None or rows.keys[at:upto] == keys else 0
