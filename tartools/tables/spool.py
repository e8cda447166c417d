"""Rows of shards that are being indexed, in a temporary file until all fields and types are known."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tartools.errors import SampleError
from tartools.storage.scratch import reread, scratch_file
from tartools.tables import schema, unified


class Spool:
    """The rows of shards, whose *versions* are known by URL; *names* are those of the columns of values.

    Holds: one block; disk: about 60 bytes a sample.
    """

    def __init__(
        self, names: Sequence[str], versions: Mapping[str, str], shards: unified.ShardNumbers, tmpdir: str | None = None
    ) -> None:
        self._names = names
        self._numbers = {url: shards.number(url, version) for url, version in versions.items()}
        self._file = scratch_file(tmpdir)
        self._fields: dict[bytes, None] = {}
        self._types: list[Any] = [None] * len(names)
        self.rows = 0

    def add(self, block: bytes) -> None:
        """Add the rows of *block*: see `rows.blocks`. Raises: SampleError for a key that is not UTF-8."""
        shard, keys, _, _, columns, facts = marshal.loads(block)  # noqa: S302  # from our own process
        for key in keys:
            try:
                key.decode()
            except UnicodeDecodeError:
                raise SampleError(f"the key {key!r} is not UTF-8, which tables need", url=shard) from None
        self._fields.update(dict.fromkeys(columns))
        for number, values in enumerate(zip(*facts, strict=True)):
            self._types[number] = widest(self._types[number], values)
        self.rows += len(keys)
        self._file.write(len(block).to_bytes(8, "big") + block)

    @property
    def schema(self) -> Any:
        """The unified schema of the rows that were added."""
        pa = schema.arrow()
        fields = [field.decode("utf-8", "replace") for field in list(self._fields)[: schema.MOST_FIELDS]]
        return pa.schema(
            [
                (schema.SHARD, pa.int32()),
                (schema.INDEX, pa.uint64()),
                (schema.KEY, pa.string()),
                (schema.BEGIN, pa.uint64()),
                (schema.END, pa.uint64()),
                (schema.MEMBERS, pa.struct([(field, unified.place_type()) for field in fields])),
                *((name, kind or pa.string()) for name, kind in zip(self._names, self._types, strict=True)),
            ]
        )

    def batches(self) -> Iterator[Any]:
        """Yield the rows in unified record batches, in the order in which they were added."""
        import numpy as np

        pa = schema.arrow()
        whole = self.schema
        fields = list(self._fields)[: schema.MOST_FIELDS]
        types = [whole.field(name).type for name in self._names]
        index, end, before = 0, 0, ""
        for block in self._blocks():
            shard, keys, begins, ends, columns, facts = marshal.loads(block)  # noqa: S302  # from our own process
            count = len(keys)
            begin, stop = (np.frombuffer(column, np.int64) for column in (begins, ends))
            numbered = _numbered(begin, stop, *((index, end) if shard == before else (0, 0)))
            places = [_places(columns.get(field), count) for field in fields]
            values = zip(*facts, strict=True) if facts else ()
            members = whole.field(schema.MEMBERS).type
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(count, self._numbers[shard], np.int32)),
                    pa.array(numbered),
                    pa.array([key.decode() for key in keys], pa.string()),
                    pa.array(begin.astype(np.uint64)),
                    pa.array(stop.astype(np.uint64)),
                    pa.StructArray.from_arrays(places, fields=list(members))
                    if fields
                    else pa.array([{}] * count, members),
                    *(_typed(column, kind) for column, kind in zip(values, types, strict=True)),
                ],
                schema=whole,
            )
            index, end, before = int(numbered[-1]) + 1, int(stop[-1]), shard

    def _blocks(self) -> Iterator[bytes]:
        with reread(self._file) as file:
            while length := file.read(8):
                yield file.read(int.from_bytes(length, "big"))


def _numbered(begins: Any, ends: Any, first: int, end: int) -> Any:
    """Return the numbers of samples in their shard; *first* is that of the next one, if it begins behind byte *end*.

    They begin anew where a sample does not come behind the one before: there the shard was named once more.
    """
    import numpy as np

    number = np.arange(first, first + len(begins), dtype=np.int64)
    for again in np.flatnonzero(begins < np.concatenate(([end], ends[:-1]))):
        number[again:] = np.arange(len(begins) - again)
    return number.astype(np.uint64)


def _places(found: tuple[bytes, bytes] | None, count: int) -> Any:
    """Return the column of offset and size of one field; null where a sample lacks it."""
    import numpy as np

    pa = schema.arrow()
    if found is None:
        return pa.nulls(count, unified.place_type())
    offsets, sizes = (np.frombuffer(column, np.int64) for column in found)
    absent = offsets < 0
    return pa.StructArray.from_arrays(
        [pa.array(offsets.astype(np.uint64), mask=absent), pa.array(sizes.astype(np.uint64), mask=absent)],
        ["offset", "size"],
        mask=pa.array(absent),
    )


def widest(known: Any, values: Iterable[object]) -> Any:
    """Return the type of a column with *values* that had the type *known* so far (None: only nulls)."""
    pa = schema.arrow()
    try:
        kind = pa.array(values).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return pa.string()
    if pa.types.is_null(kind):
        return known
    if known is None or known == kind:
        return kind
    numbers = (pa.int64(), pa.float64())
    return pa.float64() if known in numbers and kind in numbers else pa.string()


def _typed(values: Sequence[object], kind: Any) -> Any:
    """Return *values* as a column of type *kind*; what is no text goes into a column of strings as JSON."""
    pa = schema.arrow()
    if pa.types.is_string(kind):
        values = [None if value is None else unified.text_of(value) for value in values]
    if pa.types.is_floating(kind):  # pyarrow refuses whole numbers that a double can't hold exactly
        values = [None if value is None else float(value) for value in values]  # type: ignore[arg-type]
    return pa.array(values, kind)
