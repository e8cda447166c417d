"""The extents in shards of the rows of a table; samples are read and compared with their rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any
from zlib import crc32

from tartools.errors import ChangedError, NotFoundError, StorageError, TarFormatError, TarToolsError, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.storage import is_missing
from tartools.storage.streams import Stream, size_in_version
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tar import ContiguousGroups, Parsed, ScatteredGroup
from tartools.tar.compression import Pushed

UPDATE_ADVICE = "tarindex --update makes the table again"
MOVED = "its shards are named relative to its folder: keep them together, or make it again: tarindex"
MAX_OFFSET = (1 << 63) - 1  # bytes of a shard
ROWS_ONE_BY_ONE = 64  # rows that are read one by one behind damage, before the next are read together again
UNKNOWN_KEY = 0  # in place of the sum of the key, for a row that has none


@dataclass
class Extents:
    """Extents of rows of the table: numpy arrays of shard numbers (int32), and of begins and ends (int64).

    *keys* is None if keys are not compared. Row numbers in the table begin with *first* and ascend by one,
    unless *rows* has the row numbers.
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
        """Return the offsets at which the samples begin, then the end of the last one, once they are joined."""
        import numpy as np

        return np.concatenate(([0], (self.ends - self.begins).cumsum()))

    def runs(self) -> Any:
        """Return the indexes at which runs of adjacent rows begin; the first one is 0."""
        import numpy as np

        is_begin = (self.begins[1:] != self.ends[:-1]) | (self.numbers[1:] != self.numbers[:-1])
        return np.append(0, np.flatnonzero(is_begin) + 1)

    def windows(self, max_bytes: int) -> Iterator[Extents]:
        """Split the rows into parts with up to *max_bytes* bytes of samples; a larger sample is a part of its own."""
        bounds, low = self.bounds(), 0
        while low < len(self):
            high = max(int(bounds.searchsorted(bounds[low] + max_bytes, "right")) - 1, low + 1)
            yield self.part(low, high)
            low = high

    def part(self, low: int, high: int) -> Extents:
        """Return the extents of rows *low* to *high* (exclusive)."""
        return Extents(
            self.first + low,
            self.numbers[low:high],
            self.begins[low:high],
            self.ends[low:high],
            None if self.keys is None else self.keys[low:high],
            None if self.rows is None else self.rows[low:high],
        )

    def take(self, numbers: Sequence[int]) -> Extents:
        """Return the extents of the rows with these indexes."""
        import numpy as np

        indexes = np.array(numbers, np.int64)
        keys = None if self.keys is None else [self.keys[number] for number in numbers]
        rows = self.first + indexes if self.rows is None else self.rows[indexes]
        return Extents(self.first, self.numbers[indexes], self.begins[indexes], self.ends[indexes], keys, rows)

    def place(self, index: int) -> tuple[int, int, int]:
        """Return shard number, begin and end of the row *index*."""
        return int(self.numbers[index]), int(self.begins[index]), int(self.ends[index])


def runs_of_equal(values: Any) -> Iterator[tuple[int, int]]:
    """Return (begin, end) of each run of equal *values*, an array."""
    import numpy as np

    return pairwise([0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)])


class RowError(StorageError):
    """A sample differs from its row."""


class KnownShards:
    """Shards by number: *urls*, *versions* (None if unknown), *sizes* in bytes, *is_remote* (on a server).

    An unknown size is the largest possible one. *named_relative*: True for a shard whose name is relative to the folder
    of a table or to the current directory.
    """

    def __init__(self) -> None:
        self.urls: list[Url] = []
        self.versions: list[str | None] = []
        self.sizes: list[int] = []
        self.is_remote: list[bool] = []
        self.named_relative: list[bool] = []
        self._numbers: dict[tuple[str, str | None], int] = {}

    def number(self, name: str, version: str | None, relative: bool = False) -> int:
        """Return the number of the shard with the URL *name* in this *version*; the next one if it is new."""
        number = self._numbers.setdefault((name, version), len(self.urls))
        if number == len(self.urls):
            url = Url(name)
            self.urls.append(url)
            self.versions.append(version)
            size = size_in_version(version)
            self.sizes.append(MAX_OFFSET if size is None else size)
            self.is_remote.append(not url.is_local or bool(url.read_command))
            self.named_relative.append(relative or not (url.scheme or url.startswith("/")))
        return number

    def shard(self, number: int) -> tuple[str, str | None]:
        """Return URL and version of the shard *number*."""
        return self.urls[number], self.versions[number]


class Listing:
    """The shards that the table *url* names; new ones are added to *shards*, if given."""

    def __init__(self, url: str, shards: KnownShards | None = None) -> None:
        self.table = url
        self.shards = shards or KnownShards()
        self.urls, self.versions, self.is_remote = self.shards.urls, self.shards.versions, self.shards.is_remote
        self._folder = schema.folder_of(url)
        self._numbers: dict[tuple[str, str | None], int] = {}  # by the name in the table

    def extents(self, rows: Any, first: int, keyed: bool = True) -> Extents:
        """Return the extents of the record batch *rows*, which begins with row *first*; if *keyed*, with keys.

        Raises: StorageError for invalid values.
        """
        import numpy as np

        column = {name: rows.column(name) for name in rows.schema.names}
        begins, ends = (self._places(column[name], name, first) for name in (schema.BEGIN_COLUMN, schema.END_COLUMN))
        numbers = self._shards(column[schema.SHARD_COLUMN], column.get(schema.VERSION_COLUMN), first)
        texts = column.get(schema.KEY_COLUMN) if keyed else None
        keys = None if texts is None or texts.null_count else raw_keys(texts, first, self.table)
        extents = Extents(first, numbers, begins, ends, keys)
        sizes = np.array(self.shards.sizes)[numbers]
        for wrong in np.flatnonzero((begins < 0) | (begins >= ends) | (ends > sizes))[:1].tolist():
            _, begin, end = extents.place(wrong)
            size = int(sizes[wrong])
            message = f"the sample cannot begin at {begin} and end at {end}"
            raise self.failure(extents, wrong, message + f" of a shard of {size} bytes" * (begin < end and end > size))
        if schema.MEMBERS_COLUMN in column:
            self._check_members(column[schema.MEMBERS_COLUMN], extents)
        return extents

    def _check_members(self, column: Any, extents: Extents) -> None:
        """Raise StorageError if a member is outside the extent of its sample in the row."""
        import numpy as np

        message = (
            f"rows {extents.first} to {extents.first + len(extents) - 1}: not all {schema.MEMBERS_COLUMN} are numbers"
        )
        for place in column.flatten() if schema.arrow().types.is_struct(column.type) else ():
            if not schema.is_place(place.type):
                continue
            with schema.value_errors(message, self.table):
                (offsets, has_offset), (sizes, has_size) = map(whole_numbers, place.flatten())
            too_far = has_size & ((sizes < 0) | (sizes > extents.ends - offsets))
            outside = has_offset & ((offsets <= extents.begins) | too_far)
            for wrong in np.flatnonzero(outside)[:1].tolist():
                _, begin, end = extents.place(wrong)
                raise self.failure(extents, wrong, f"not all members of the sample are in bytes {begin} to {end}")

    def _places(self, column: Any, name: str, first: int) -> Any:
        """Return the column *name* of begins or ends as an array of int64."""
        pa = schema.arrow()
        if column.null_count:
            row = first + column.is_null().to_pylist().index(True)
            raise StorageError(f"row {row}: {name} is null", url=self.table)
        with schema.value_errors(f"row {first}: {name} is {column.type}, which is not a place in a shard", self.table):
            try:
                return whole_numbers(column)[0]
            except pa.ArrowException:
                for row, value in enumerate(column, first):
                    message = f"row {row}: {name} is {str(value)[:40]}, which is not a place in a shard"
                    with schema.value_errors(message, self.table):
                        value.cast(pa.int64())
                raise

    def _shards(self, column: Any, version: Any, first: int) -> Any:
        """Return the number of the shard, in its version, of each row."""
        import numpy as np

        with schema.value_errors(f"row {first}: this or a later one has no name of a shard", self.table):
            name_codes, names = _dictionary_codes(column)
            version_codes, versions = (
                _dictionary_codes(version) if version is not None else (np.zeros_like(name_codes), [])
            )
        pairs, begins, inverse = np.unique(
            name_codes * (len(versions) + 1) + version_codes, return_index=True, return_inverse=True
        )
        numbers = np.empty(len(pairs), np.int32)
        for n in np.argsort(begins).tolist():
            name, version = divmod(int(pairs[n]), len(versions) + 1)
            numbers[n] = self._number(
                names[name - 1] if name else None, versions[version - 1] if version else None, first + int(begins[n])
            )
        return numbers[inverse]

    def _number(self, name: object, version: object, row: int) -> int:
        if not isinstance(name, str) or not name or "\0" in name:
            raise StorageError(f"row {row}: {schema.SHARD_COLUMN} is not the name of a shard", url=self.table)
        if not isinstance(version, str | None):
            raise StorageError(f"row {row}: {schema.VERSION_COLUMN} is not text", url=self.table)
        number = self._numbers.get((name, version))
        if number is None:
            try:
                url = schema.resolve(name, self._folder)
            except TarToolsError as error:
                raise StorageError(f"row {row}: {error.message}", url=self.table) from None
            number = self._numbers[name, version] = self.shards.number(url, version, url != name)
        return number

    def failure(self, rows: Extents, index: int, cause: str | TarToolsError) -> RowError:
        """Return the error for the sample of row *index* of *rows*: the message *cause*, or the error of its shard."""
        number, begin, _ = rows.place(index)
        row = rows.first + index if rows.rows is None else rows.rows[index]
        message = cause if isinstance(cause, str) else cause.message
        place = f"row {row} of {shown(self.table)}{self._advice(number, cause)}"
        return RowError(f"{message} ({place})", url=self.urls[number], offset=begin)

    def _advice(self, number: int, cause: str | TarToolsError) -> str:
        """Return advice about an error of the shard *number*: "" if a new table would fail in the same way."""
        if isinstance(cause, StorageError) and is_missing(cause) and self.shards.named_relative[number]:
            return f"; {MOVED}"
        changed = not isinstance(cause, StorageError) or isinstance(cause, ChangedError | NotFoundError)
        return f"; {UPDATE_ADVICE}" if changed else ""


def _dictionary_codes(column: Any) -> tuple[Any, list[object]]:
    """Return a code for each value of *column*, from 1 on, 0 for null; and the distinct values by code."""
    import numpy as np

    pa = schema.arrow()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    numbers, valid = _numbers(encoded.indices)
    return np.where(valid, numbers.astype(np.int64) + 1, 0), encoded.dictionary.to_pylist()


def raw_keys(column: Any, first: int, url: str) -> list[Any]:
    """Return the keys in *column*, which begins with row *first* of the table *url*, as bytes; None for null.

    Raises: StorageError if they are not text.
    """
    with schema.value_errors(f"row {first}: {schema.KEY_COLUMN} is not text", url):
        return schema.as_bytes(column).to_pylist()  # type: ignore[no-any-return]


def whole_numbers(column: Any) -> tuple[Any, Any]:
    """Return *column* as an array of int64, and a mask: True if not null. Raises: ArrowException for other values."""
    import numpy as np

    pa = schema.arrow()
    if pa.types.is_integer(column.type):  # `cast` takes 0.05 s to import
        numbers, valid = _numbers(column)
        if numbers.dtype.kind == "i" or numbers.max(initial=0) <= MAX_OFFSET:
            return numbers.astype(np.int64, copy=False), valid
    return _numbers(column.cast(pa.int64()))


def _numbers(column: Any) -> tuple[Any, Any]:
    """Return *column*, of whole numbers, as an array, and a mask: True if not null. A null is any number in the array.

    `to_numpy` and `fill_null` of pyarrow import pandas where it is installed, which takes 0.2 s.
    """
    import numpy as np

    bits, numbers = column.buffers()
    without_nulls = column.from_buffers(column.type, len(column), [None, numbers], offset=column.offset)
    if bits is None:
        return np.from_dlpack(without_nulls), np.True_
    first, last = column.offset // 8, (column.offset + len(column) + 7) // 8
    valid = np.unpackbits(np.frombuffer(bits, np.uint8, last - first, first), bitorder="little").astype(bool)
    return np.from_dlpack(without_nulls), valid[column.offset % 8 :][: len(column)]


def key_checksums(keys: Sequence[bytes]) -> Any:
    """Return a CRC-32 of each of *keys*, to compare rows with keys in shards without keys in memory.

    One of 4 billion pairs of different keys has equal checksums.
    """
    import numpy as np

    return np.fromiter(map(crc32, keys), np.uint32, len(keys))


class Checker:
    """Reads samples from the shards of *listing* and checks them; *read* is `tar.read_members` with its options.

    Headers, keys and extents of samples are compared with the rows.
    """

    def __init__(self, listing: Listing, account: Account, read: Callable[..., Iterator[Parsed]]) -> None:
        self.listing = listing
        self._account = account
        self._read = read

    def in_memory(self, rows: Extents, data: bytes | memoryview) -> Iterator[Batch]:
        """Yield the samples of *rows*, which are joined in *data*."""
        bounds: list[int] = rows.bounds().tolist()
        view = memoryview(data)
        return self.samples(rows, bounds, lambda index: Pushed(None, view[bounds[index] :]))

    def samples(self, rows: Extents, bounds: list[int], stream_of: Callable[[int], Stream]) -> Iterator[Batch]:
        """Yield the samples of *rows*, which begin and end at the offsets *bounds* of a file or buffer.

        `stream_of(n)` returns a stream that begins with row n of *rows*.
        """
        at = 0
        while at < len(rows):
            low = yield from self._many_at_once(rows, at, bounds, stream_of)
            at = min(low + ROWS_ONE_BY_ONE, len(rows))
            yield from self._one_by_one(rows, range(low, at), bounds, stream_of)  # equal keys side by side, or damage

    def _many_at_once(
        self, rows: Extents, at: int, bounds: list[int], stream_of: Callable[[int], Stream]
    ) -> Generator[Batch, None, int]:
        """Yield the samples of *rows* from *at* on, up to the first that differs from its row; return its index."""
        with suppress(TarFormatError):  # who reads this sample alone finds out what is wrong
            for part in self._read(stream_of(at), url=self.listing.table, begin=bounds[at], until=bounds[-1]):
                batch = self._batch(part, rows, at)
                if batch is None or not are_listed(batch, rows, at, bounds):
                    break
                self._count(bounds[at + len(batch)] - bounds[at])
                at += len(batch)
                yield batch
        return at

    def _one_by_one(
        self, rows: Extents, indexes: range, bounds: list[int], stream_of: Callable[[int], Stream]
    ) -> Iterator[Batch]:
        """Yield the samples *indexes* of *rows*. Raises: StorageError for a sample that differs from its row."""
        for index in indexes:
            begin, end = bounds[index : index + 2]
            try:
                parts = [*self._read(stream_of(index), url=self.listing.table, begin=begin, until=end)]
            except TarFormatError as error:
                raise self.listing.failure(rows, index, error.message) from error
            row = replace(rows.part(index, index + 1), keys=None)
            batch = self._batch(parts[0], row, 0) if len(parts) == 1 else None
            if batch is None or not are_listed(batch, row, 0, [begin, end]):
                raise self.listing.failure(rows, index, "this is not one sample")
            if rows.keys is not None and batch.keys[0] != rows.keys[index]:
                message = "the key of the sample there is {!r}, not {!r}"
                keys = (key.decode("utf-8", "replace") for key in (batch.keys[0], rows.keys[index]))
                raise self.listing.failure(rows, index, message.format(*keys))
            self._count(end - begin)
            yield batch

    def _batch(self, part: Parsed, rows: Extents, at: int) -> Batch | None:
        """Return the samples of *part*, which should be those of *rows* from *at* on; None if it has none."""
        if not isinstance(part, ContiguousGroups | ScatteredGroup):
            return None
        count = len(part.keys) if isinstance(part, ContiguousGroups) else 1
        return Batch(part, self._urls(rows, at, min(at + count, len(rows))))

    def _urls(self, rows: Extents, low: int, high: int) -> str | list[str]:
        """Return the URL of the shard of rows *low* to *high*; if they differ, a list with the URL of each row."""
        if high == low + 1:
            return self.listing.urls[int(rows.numbers[low])]
        numbers: list[int] = rows.numbers[low:high].tolist()
        if len(set(numbers)) == 1:
            return self.listing.urls[numbers[0]]
        return [self.listing.urls[number] for number in numbers]

    def _count(self, size: int) -> None:
        self._account.bytes_in += size
        self._account.unpacked += size


def are_listed(batch: Batch, rows: Extents, at: int, bounds: list[int]) -> bool:
    """True if the samples of *batch* are those of *rows* from *at* on, which begin at *bounds*."""
    end = at + len(batch)
    is_there = end <= len(rows) and batch.bounds() == bounds[at : end + 1]
    return is_there and (rows.keys is None or rows.keys[at:end] == batch.keys)
