"""Collect the rows of samples, and write them as a Parquet file."""

from __future__ import annotations

import json
import marshal
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tartools import storage
from tartools.errors import SampleError, StorageError
from tartools.storage.scratch import reread, scratch_file
from tartools.storage.versions import version_of
from tartools.tables import schema


class Rows:
    """The rows of a table in a temporary file, until the fields and the types of all are known.

    *names* are those of the columns of values, *urls* the shards, which must not change from now on.
    Holds: one block; disk: about 60 bytes a sample.
    Raises: StorageError without pyarrow, or if a shard can't be read in parts.
    """

    def __init__(self, names: Sequence[str], urls: Sequence[str], tmpdir: str | None = None) -> None:
        schema.check_installed()
        self._names = names
        self._versions = {url: version_of(url) for url in urls}
        self._folder = ""
        self._file = scratch_file(tmpdir)
        self._fields: dict[bytes, None] = {}
        self._types: list[Any] = [None] * len(names)
        self.samples = 0

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
        self.samples += len(keys)
        self._file.write(len(block).to_bytes(8, "big") + block)

    def write(self, url: str, force: bool) -> None:
        """Write the table *url*. Raises: StorageError, also if a shard has changed."""
        pa = schema.arrow()
        for shard, version in self._versions.items():
            if version_of(shard) != version:
                raise StorageError("changed while it was read", url=shard)
        self._folder = schema.folder_of(url)
        fields = list(self._fields)[: schema.MOST_FIELDS]
        types = [kind or pa.string() for kind in self._types]
        with storage.writing(url, force) as sink:
            whole = self._schema(fields, types)
            with pa.parquet.ParquetWriter(
                pa.PythonFile(sink, "w"),
                whole,
                compression="zstd",
                write_statistics=[schema.SHARD, *self._names],
                write_page_checksum=True,
            ) as writer:
                for rows in self._row_groups(fields, types, whole):
                    writer.write_table(rows, row_group_size=schema.ROW_GROUP)

    def _schema(self, fields: Sequence[bytes], types: Sequence[Any]) -> Any:
        pa = schema.arrow()
        place = pa.struct([("offset", pa.uint64()), ("size", pa.uint64())])
        return pa.schema(
            [
                (schema.SHARD, pa.dictionary(pa.int32(), pa.string())),
                (schema.VERSION, pa.dictionary(pa.int32(), pa.string())),
                (schema.INDEX, pa.uint64()),
                (schema.KEY, pa.string()),
                (schema.BEGIN, pa.uint64()),
                (schema.END, pa.uint64()),
                (schema.MEMBERS, pa.struct([(field.decode("utf-8", "replace"), place) for field in fields])),
                *zip(self._names, types, strict=True),
            ]
        )

    def _row_groups(self, fields: Sequence[bytes], types: Sequence[Any], whole: Any) -> Iterator[Any]:
        """Yield tables of at least as many rows as a row group has, but for the last."""
        pa = schema.arrow()
        held, count = [], 0
        for batch in self._batches(fields, types, whole):
            held.append(batch)
            count += len(batch)
            if count >= schema.ROW_GROUP:
                yield pa.Table.from_batches(held, whole)
                held, count = [], 0
        if held:
            yield pa.Table.from_batches(held, whole)

    def _batches(self, fields: Sequence[bytes], types: Sequence[Any], whole: Any) -> Iterator[Any]:
        """Yield the blocks as record batches."""
        import numpy as np

        pa = schema.arrow()
        index, end, before = 0, 0, ""
        names = [schema.relative(url, self._folder) for url in self._versions]
        versions = list(self._versions.values())
        numbers = {url: number for number, url in enumerate(self._versions)}
        for block in self._blocks():
            shard, keys, begins, ends, columns, facts = marshal.loads(block)  # noqa: S302  # from our own process
            count = len(keys)
            begin = np.frombuffer(begins, np.int64)
            numbered = _numbered(begin, np.frombuffer(ends, np.int64), *((index, end) if shard == before else (0, 0)))
            which = pa.array(np.full(count, numbers[shard], np.int32))
            places = [_places(columns.get(field), count) for field in fields]
            values = zip(*facts, strict=True) if facts else ()
            yield pa.RecordBatch.from_arrays(
                [
                    pa.DictionaryArray.from_arrays(which, pa.array(names)),
                    pa.DictionaryArray.from_arrays(which, pa.array(versions)),
                    pa.array(numbered),
                    pa.array([key.decode() for key in keys], pa.string()),
                    pa.array(begin.astype(np.uint64)),
                    pa.array(np.frombuffer(ends, np.int64).astype(np.uint64)),
                    pa.StructArray.from_arrays(places, fields=list(whole.field(schema.MEMBERS).type))
                    if fields
                    else pa.array([{}] * count, whole.field(schema.MEMBERS).type),
                    *(_typed(column, kind) for column, kind in zip(values, types, strict=True)),
                ],
                schema=whole,
            )
            index, end, before = int(numbered[-1]) + 1, int(np.frombuffer(ends, np.int64)[-1]), shard

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
        return pa.nulls(count, pa.struct([("offset", pa.uint64()), ("size", pa.uint64())]))
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
        values = [
            value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values
        ]
    if pa.types.is_floating(kind):  # pyarrow refuses whole numbers that a double can't hold exactly
        values = [None if value is None else float(value) for value in values]  # type: ignore[arg-type]
    return pa.array(values, kind)
