"""Rows of shards that are being indexed, in a temporary file until all fields and types are known."""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tartools.errors import SampleError
from tartools.storage.scratch import reread, scratch_file
from tartools.tables import kinds, schema, unified
from tartools.tables.rows import ABSENT, Fact


class RowSpool:
    """The rows of shards, whose *versions* are known by URL.

    *facts* are columns of values that they have in any case, before others that blocks bring.
    Holds: one block; disk: about 60 bytes a sample.
    """

    def __init__(
        self,
        facts: Sequence[Fact],
        versions: Mapping[str, str],
        shards: unified.ShardNumbers,
        tmpdir: str | None = None,
    ) -> None:
        self._shards = shards
        self._numbers = {url: shards.number(url, version) for url, version in versions.items()}
        self._file = scratch_file(tmpdir)
        self._fields: dict[bytes, None] = {}
        self._kinds: dict[Fact, kinds.Kind] = {(name, kind): kind or None for name, kind in facts}
        self.rows = 0
        self.counts: dict[str, int] = {}  # of rows, by URL

    def know(self, url: str, version: str) -> None:
        """Add the shard *url*, of this *version*."""
        self._numbers[url] = self._shards.number(url, version)

    def add(self, block: bytes) -> None:
        """Add the rows of *block*: see `rows.blocks`. Raises: SampleError for a key that is not UTF-8."""
        shard, keys, _, _, columns, facts = marshal.loads(block)  # noqa: S302  # from our own process
        for key in keys:
            try:
                key.decode()
            except UnicodeDecodeError:
                raise SampleError(f"the key {key!r} is not UTF-8, which tables need", url=shard) from None
        self._fields.update(dict.fromkeys(columns))
        for fact, values in facts.items():
            self._kinds[fact] = fact[1] or kinds.wider(self._kinds.get(fact), kinds.kind_of(values))
        self.rows += len(keys)
        self.counts[shard] = self.counts.get(shard, 0) + len(keys)
        self._file.write(len(block).to_bytes(8, "big") + block)

    @property
    def schema(self) -> Any:
        """The unified schema of the rows that were added. Raises: SampleError if two columns would have one name."""
        pa = schema.arrow()
        names = [name for name, _ in self._kinds]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise SampleError(f"two columns would have the name {twice!r}")
        fields = [field.decode("utf-8", "replace") for field in list(self._fields)[: schema.MOST_FIELDS]]
        return pa.schema(
            [
                (schema.SHARD, pa.int32()),
                (schema.INDEX, pa.uint64()),
                (schema.KEY, pa.string()),
                (schema.BEGIN, pa.uint64()),
                (schema.END, pa.uint64()),
                *unified.members_column(fields),
                *((name, kinds.arrow_type(kind)) for (name, _), kind in self._kinds.items()),
            ]
        )

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows in unified record batches, in the order in which they were added; only *columns*, if given."""
        import numpy as np

        pa = schema.arrow()
        whole = self.schema
        fields = list(self._fields)[: schema.MOST_FIELDS]
        types = {fact: whole.field(fact[0]).type for fact in self._kinds}
        index, end, before = 0, 0, ""
        for block in self._blocks():
            shard, keys, begins, ends, found, facts = marshal.loads(block)  # noqa: S302  # from our own process
            count = len(keys)
            begin, stop = (np.frombuffer(column, np.int64) for column in (begins, ends))
            numbered = _numbered(begin, stop, *((index, end) if shard == before else (0, 0)))
            places = [_places(found.get(field), count) for field in fields]
            members = (
                [pa.StructArray.from_arrays(places, fields=list(whole.field(schema.MEMBERS).type))] if fields else []
            )
            made = pa.RecordBatch.from_arrays(
                [
                    pa.array(np.full(count, self._numbers[shard], np.int32)),
                    pa.array(numbered),
                    pa.array([key.decode() for key in keys], pa.string()),
                    pa.array(begin.astype(np.uint64)),
                    pa.array(stop.astype(np.uint64)),
                    *members,
                    *(kinds.column(facts.get(fact) or [None] * count, type_) for fact, type_ in types.items()),
                ],
                schema=whole,
            )
            yield made if columns is None else made.select([name for name in whole.names if name in columns])
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
    """Return the column of offset and size of one field; null where a sample lacks it.

    Where a sample has the field twice, both of them are null.
    """
    import numpy as np

    pa = schema.arrow()
    if found is None:
        return pa.nulls(count, unified.place_type())
    offsets, sizes = (np.frombuffer(column, np.int64) for column in found)
    unknown = offsets < 0
    return pa.StructArray.from_arrays(
        [pa.array(offsets.astype(np.uint64), mask=unknown), pa.array(sizes.astype(np.uint64), mask=unknown)],
        ["offset", "size"],
        mask=pa.array(offsets == ABSENT),
    )
