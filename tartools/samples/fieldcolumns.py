"""`FieldColumn`: one field of many samples. `Combination`: samples with the same fields, with a column for each.

`Batch.combinations` returns them. Members are grouped by the ends of their paths, after the key.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import chain, repeat
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from tartools.samples.sample import Sample, decode_name
from tartools.tar import BLOCK, ContiguousGroups, Member, read_range
from tartools.tar.keys import field_from_ending
from tartools.tar.member import MIN_VIEW_BYTES, Chunk

if TYPE_CHECKING:
    from array import array

Item = TypeVar("Item")

MAX_SAMPLE_DISTANCE_BYTES = 1 << 13  # bytes; payloads in a file that are this close on average are read at once


class Combination:
    """The samples of a batch that have the same fields in the same order.

    `numbers`: their indexes in the batch. `keys`: their keys. `fields`: names of the fields.
    `columns`: a `FieldColumn` for each field.
    """

    __slots__ = ("columns", "fields", "keys", "numbers")

    def __init__(self, numbers: Sequence[int], keys: Sequence[bytes], columns: Sequence[FieldColumn]) -> None:
        self.numbers, self.keys, self.columns = numbers, keys, columns
        self.fields = tuple([column.name for column in columns])

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def has_repeated_field(self) -> bool:
        """True if each of the samples has two or more members for one field, in the same case."""
        return len(set(self.fields)) < len(self.fields)


class FieldColumn:
    """One field of the samples of a `Combination`, with an item for each sample.

    *name*: of the field; "" for members without a field. *members*: one for each sample.
    *buffer*: reads their payloads, if they are in one file; None: they are read one by one.
    *offsets*: of the payloads in the shard, if they can't be computed from the members.
    """

    def __init__(
        self,
        name: str,
        members: Sequence[Member] = (),
        buffer: FileBuffer | None = None,
        offsets: Sequence[int] | None = None,
    ) -> None:
        self.name = name
        self._members = members
        self._buffer = buffer
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def members(self) -> Sequence[Member]:
        """The member of each sample, possibly as plain tuples with the items of `Member`."""
        return self._members

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes of the payloads, in bytes."""
        return list(map(itemgetter(4), self._members))

    @property
    def padding(self) -> int:
        """The bytes of padding after the payloads of all samples, their sum."""
        return sum([-size % BLOCK for size in self.sizes])

    def offsets(self) -> Sequence[int]:
        """Return the offset in the shard of each payload. Only right if `Batch.bounds` of the batch is not None."""
        if self._offsets is not None:
            return self._offsets
        # a member may be in an older buffer than the others: see `ContiguousGroups`
        return [data + source.base if type(source) is Chunk else data for _, source, _, data, *_ in self._members]

    def append_to(self, offsets: array[int], sizes: array[int]) -> None:
        """Append the offset of each payload in the shard to *offsets*, and its size to *sizes*: two arrays of int64."""
        offsets.extend(self.offsets())
        sizes.extend(self.sizes)

    def payloads(self, max_bytes: int | None = None) -> list[bytes | bytearray]:
        """Return the payload of each sample, in order, or its first *max_bytes* bytes; None: all of it.

        Raises: StorageError if a file has changed.
        """
        sizes = self.sizes
        if max_bytes is not None and max(sizes) > max_bytes:
            sizes = [max_bytes if size > max_bytes else size for size in sizes]
        return self._read(sizes)

    def _read(self, sizes: Sequence[int]) -> list[bytes | bytearray]:
        """Return the first bytes of each payload: `sizes[n]` bytes of payload n."""
        if self._buffer is not None:
            return self._buffer.read(list(map(itemgetter(3), self.members)), sizes)
        return [
            source[at : at + n] if n < MIN_VIEW_BYTES and type(source) is Chunk else read_range(source, at, at + n)
            for (_, source, _, at, _, _), n in zip(self.members, sizes, strict=True)
        ]

    def value_counts(self, max_bytes: int) -> dict[str, int] | None:
        """Return text -> count: how often each payload of at most *max_bytes* bytes occurs, without a final newline.

        Larger payloads are not counted. Bytes that are not UTF-8 are surrogate escapes. Payloads of a field such as
        cls.gz are decompressed first; one that is damaged, or has more than *max_bytes* bytes then, stays as it is.
        Values of table rows are from the table's column of the field: the result is None if it has none, and nulls are
        not counted. Raises: StorageError if a file has changed, or a payload needs too much memory to be decompressed.
        """
        from tartools.samples.encoding import split_codec

        payloads = self.payloads(max_bytes)
        if max(self.sizes) > max_bytes:
            payloads = [payload for payload, size in zip(payloads, self.sizes, strict=True) if size <= max_bytes]
        counted: Iterable[tuple[bytes, int]] = Counter(map(bytes, payloads)).items()
        if split_codec(self.name)[1] is not None:
            counted = ((self._unpack(payload, max_bytes), count) for payload, count in counted)
        counts: dict[str, int] = {}
        for content, count in counted:
            value = content.decode("utf-8", "surrogateescape").removesuffix("\n")
            counts[value] = counts.get(value, 0) + count
        return counts

    def _unpack(self, payload: bytes, max_bytes: int) -> bytes:
        """Return *payload* decompressed; unchanged if it is damaged, or has more than *max_bytes* bytes then."""
        from tartools.samples.payloads import unpack

        with suppress(ValueError):
            content = unpack(self.name, payload)
            if len(content) <= max_bytes:
                return content
        return payload

    def picture_facts(self, measure: Callable[[Member], tuple[Any, ...]]) -> Sequence[tuple[Any, ...] | None] | None:
        """Return the result of `measure(member)` for each member: a tuple like (width, height, format, mode, fault).

        Samples that are rows of a table are not measured: an item is None if the table has no facts of a picture, and
        the result is None if it has no columns for them.
        """
        return self.facts((), measure)

    def facts(
        self, names: Sequence[str], measure: Callable[[Member], tuple[Any, ...]]
    ) -> Sequence[tuple[Any, ...] | None] | None:
        """Return the result of `measure(member)` for each member, a tuple of the facts *names*, such as "seconds".

        Samples that are rows of a table are not measured: the result is from its columns then, None without these, and
        an item is None if all its facts are null.
        """
        return [measure(Member._make(member)) for member in self.members]


class ArrayColumn(FieldColumn):
    """One field of samples that the reader returned as arrays, the `UniformGroups` of *groups*.

    *number*: index of the field in these. *buffer*: reads the payloads, if they are in a file.
    """

    def __init__(self, groups: ContiguousGroups, number: int, buffer: FileBuffer | None = None) -> None:
        assert groups.uniform is not None
        super().__init__(decode_name(field_from_ending(groups.uniform.endings[number])), (), buffer)
        self._groups, self._uniform, self._number = groups, groups.uniform, number

    @property
    def members(self) -> Sequence[Member]:
        """The member of each sample, as a plain tuple with the items of `Member`."""
        return self._uniform.members(self._groups.source, self._groups.keys)[self._number :: self._uniform.width]

    @cached_property
    def sizes(self) -> list[int]:
        """The sizes of the payloads, in bytes."""
        return self._uniform.sizes[:, self._number].tolist()  # type: ignore[no-any-return]

    @property
    def padding(self) -> int:
        """The bytes of padding after the payloads of all samples, their sum."""
        return int((-self._uniform.sizes[:, self._number] % BLOCK).sum())

    def offsets(self) -> Sequence[int]:
        """Return the offset in the shard of each payload."""
        return self._shard_offsets().tolist()  # type: ignore[no-any-return]

    def append_to(self, offsets: array[int], sizes: array[int]) -> None:
        """Append the offset of each payload in the shard to *offsets*, and its size to *sizes*: two arrays of int64."""
        offsets.frombytes(self._shard_offsets().tobytes())
        sizes.frombytes(self._uniform.sizes[:, self._number].tobytes())

    def _read(self, sizes: Sequence[int]) -> list[bytes | bytearray]:
        """Return the first bytes of each payload: `sizes[n]` bytes of payload n."""
        places = (self._uniform.begins[:, self._number] + BLOCK).tolist()
        if self._buffer is not None:
            return self._buffer.read(places, sizes)
        source: Any = self._groups.source
        return [source[at : at + size] for at, size in zip(places, sizes, strict=True)]

    def _shard_offsets(self) -> Any:
        """Return the offset in the shard of each payload, as an array of int64."""
        source = self._groups.source
        return self._uniform.begins[:, self._number] + (BLOCK + (source.base if isinstance(source, Chunk) else 0))


class FileBuffer:
    """Reads payloads in bytes *begin* to *end* of *file*, for all columns of a batch.

    The first read of payloads that are close together, on average one or more in 8 KiB of these bytes, takes all the
    bytes, and later reads use them; until then, payloads that are less close are read one by one. Holds: these bytes,
    once read.
    """

    def __init__(self, file: io.FileIO, begin: int, end: int) -> None:
        self._file, self._begin, self._end = file, begin, end
        self._bytes: bytes | None = None

    def read(self, places: Sequence[int], sizes: Sequence[int]) -> list[bytes | bytearray]:
        """Return the payloads that begin at *places* of the file, of these *sizes* in bytes.

        Raises: StorageError if the file has changed, which is not found out once its bytes are held.
        """
        begin = self._begin
        if self._bytes is None:
            if self._end - begin > MAX_SAMPLE_DISTANCE_BYTES * len(places):
                return [read_range(self._file, at, at + size) for at, size in zip(places, sizes, strict=True)]
            self._bytes = read_range(self._file, begin, self._end)
        return [self._bytes[at - begin : at - begin + size] for at, size in zip(places, sizes, strict=True)]


def group_samples(samples: Iterable[Sample]) -> list[Combination]:
    """Return *samples*, at least one, grouped by their fields, in order of appearance of the groups."""
    keys, firsts, members = [], [], list[Member]()
    for sample in samples:
        keys.append(sample.raw_key)
        firsts.append(len(members))
        members += sample.members
    return group_members(keys, members, firsts)


def group_members(
    keys: Sequence[bytes],
    members: Sequence[Member],
    firsts: Sequence[int],
    buffer: FileBuffer | None = None,
    begin: int | None = None,
) -> list[Combination]:
    """Return the samples *keys*, at least one, grouped by their fields, in order of appearance of the groups.

    *members*: of all samples; those of sample n begin at index `firsts[n]`. *buffer*: reads the payloads, if all are in
    one file. *begin*: offset in its shard of a sample that is alone, if known; the offsets of its payloads follow from
    it.
    """
    if len(keys) == 1:  # large samples come one by one
        length = len(keys[0])
        places: Iterable[list[int] | None] = repeat(None) if begin is None else _lone_offsets(members, begin)
        lone = [
            FieldColumn(decode_name(field_from_ending(member[0][length:])), [member], buffer, at)
            for member, at in zip(members, places, strict=False)
        ]
        return [Combination(range(1), keys, lone)]
    width = len(members) // len(keys)
    if width and list(firsts) == list(range(0, len(members), width)):  # usually: then no loop over samples
        columns = [members[number::width] for number in range(width)]
        endings = [column[0][0][len(keys[0]) :] for column in columns]
        if all(
            list(map(itemgetter(0), column)) == list(map(add, keys, repeat(ending)))
            for ending, column in zip(endings, columns, strict=True)
        ):
            fields = [
                FieldColumn(decode_name(field_from_ending(ending)), column, buffer)
                for ending, column in zip(endings, columns, strict=True)
            ]
            return [Combination(range(len(keys)), keys, fields)]
    groups: dict[tuple[bytes, ...], list[int]] = {}
    for number, (key, first, last) in enumerate(zip(keys, firsts, [*firsts[1:], len(members)], strict=True)):
        length = len(key)
        groups.setdefault(tuple([member[0][length:] for member in members[first:last]]), []).append(number)
    return [
        Combination(
            numbers,
            [keys[number] for number in numbers],
            [
                FieldColumn(
                    decode_name(field_from_ending(ending)), [members[firsts[number] + at] for number in numbers], buffer
                )
                for at, ending in enumerate(field_endings)
            ],
        )
        for field_endings, numbers in groups.items()
    ]


def _lone_offsets(members: Iterable[Member], begin: int) -> Iterator[list[int]]:
    """Yield [offset of its payload in the shard] for each of *members*, which are adjacent.

    *begin*: the byte of the shard at which the first one begins.
    """
    for member in members:
        yield [begin + (member.data - member.start if member.head is None else len(member.head))]
        begin += member.stored_size


def merge_in_order(values: Sequence[Sequence[Item]], combinations: Sequence[Combination]) -> Sequence[Item]:
    """Return *values* as one list in the order of the samples in the batch; of one combination, its list itself.

    *values*: a list for each of *combinations*, with an item for each sample. *combinations*: all of the batch.
    """
    if len(combinations) == 1:
        return values[0]
    numbers = chain.from_iterable(same.numbers for same in combinations)
    numbered = zip(numbers, chain.from_iterable(values), strict=True)
    return [value for _, value in sorted(numbered, key=itemgetter(0))]
