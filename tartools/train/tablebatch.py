"""`TableBatch`: a batch of samples in one buffer, sliced when they are used."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import repeat
from operator import getitem
from typing import Any

from tartools.tables.bulk import Bulk
from tartools.train.fieldchooser import HAVE, KEY, URL, FieldChooser
from tartools.train.sharedmemory import ReceivedBuffer


class TableBatch:
    """The samples of *bulk* as *chooser* makes them, one after the other or by number.

    Holds: the buffer; each sample that is made has copies of its payloads.
    """

    def __init__(self, bulk: Bulk, chooser: FieldChooser) -> None:
        self.bulk = bulk
        self.chooser = chooser

    def __len__(self) -> int:
        return len(self.bulk)

    def __repr__(self) -> str:
        return f"<TableBatch: {len(self)} with {' '.join(self.bulk.fields)}>"

    def __getitem__(self, index: int) -> Any:
        """Return sample *index*. Raises: IndexError."""
        number = range(len(self))[index]
        bulk = self.bulk
        some = slice(number, number + 1)
        part = replace(
            bulk,
            names=bulk.names[some],
            keys=bulk.keys[some],
            offsets=bulk.offsets[:, some],
            sizes=bulk.sizes[:, some],
            columns=bulk.columns and {n: column[some] for n, column in bulk.columns.items()},
            shards=bulk.shards[some],
        )
        return next(iter(TableBatch(part, self.chooser)))

    def __iter__(self) -> Iterator[Any]:
        chooser = self.chooser
        if not chooser.raw:
            return map(chooser, self._dicts())
        if chooser.fields is None:
            return self._dicts()
        return self._tuples() or map(chooser, self._dicts())

    def _tuples(self) -> Iterator[tuple[Any, ...]] | None:
        """Return the tuples of chosen fields; None if a sample lacks one."""
        columns = []
        for names in self.chooser.fields or ():
            column = self._column(names)
            if column is None:
                return None
            columns.append(column)
        return zip(*columns, strict=True) if columns else None

    def _column(self, names: list[str]) -> Iterable[Any] | None:
        """Return what the samples have of the first of *names* that they have; None if one has none of them."""
        bulk = self.bulk
        if names[0] in (KEY, URL):
            return self._keys() if names[0] == KEY else self._urls()
        known = [bulk.fields.index(name.lower()) for name in names if name.lower() in bulk.fields]
        if not known:
            return None
        lacking = bulk.offsets[known] < 0
        if lacking.all(axis=0).any():
            return None
        if not lacking[0].any():
            return self._payloads(known[0])
        columns = zip(*map(self._payloads, known), strict=True)
        return map(getitem, columns, lacking.argmin(axis=0).tolist())  # the first that each has

    def _dicts(self) -> Iterator[dict[str, Any]]:
        """Return the samples as dicts of the fields that are needed."""
        bulk = self.bulk
        needed = self.chooser.needed
        which = [n for n, name in enumerate(bulk.fields) if needed is None or name in needed]
        fields = [bulk.fields[n] for n in which]
        if bulk.uniform:
            columns: list[Iterable[Any]] = list(map(self._payloads, which))
            if needed is not None and not needed <= {*fields, KEY, URL}:
                fields.append(HAVE)
                columns.append(repeat((bulk.whole or (bulk.fields,))[0]))
            values = zip(self._keys(), self._urls(), *columns, strict=False)
            return map(dict, map(zip, repeat((KEY, URL, *fields)), values))
        return self._varied(which)

    def _varied(self, which: list[int]) -> Iterator[dict[str, Any]]:
        """Yield the samples as dicts of the fields *which*, in the order of the archive."""
        bulk = self.bulk
        columns = zip(*map(self._payloads, which), strict=True) if which else repeat(())
        orders = bulk.offsets[which].argsort(axis=0).T.tolist()
        places = bulk.offsets[which].T.tolist()
        needed = self.chooser.needed
        names, offsets = bulk.whole or (bulk.fields, bulk.offsets)
        samples = zip(self._keys(), self._urls(), columns, orders, places, strict=False)
        for number, (key, url, values, order, at) in enumerate(samples):
            found: dict[str, Any] = {KEY: key, URL: url}
            found |= {bulk.fields[which[n]]: values[n] for n in order if at[n] >= 0}
            if needed is not None and not needed <= found.keys():
                found[HAVE] = [name for name, offset in zip(names, offsets[:, number], strict=True) if offset >= 0]
            yield found

    def _keys(self) -> list[str]:
        names, width = self.bulk.names.tobytes(), self.bulk.names.shape[1]
        begins = range(0, len(names), width)
        lengths = self.bulk.keys.tolist()
        return [
            str(names[at : at + size], "utf-8", "surrogateescape") for at, size in zip(begins, lengths, strict=True)
        ]

    def _urls(self) -> list[str]:
        return list(map(self.bulk.urls.__getitem__, self.bulk.shards.tolist()))

    def _payloads(self, field: int) -> Iterable[bytes]:
        """Return the payloads of a field, of each sample; what is not there is empty.

        They are copied one by one, so that who drops each sample has the next one in the same memory.
        """
        bulk = self.bulk
        if bulk.columns is not None:
            return bulk.columns[field]
        begins = bulk.offsets[field]
        ends = begins + bulk.sizes[field]
        spans = map(slice, begins.tolist(), ends.tolist())
        if isinstance(bulk.data, bytes):
            return map(bulk.data.__getitem__, spans)
        data = bulk.data.view() if isinstance(bulk.data, ReceivedBuffer) else memoryview(bulk.data)
        return map(bytes, map(data.__getitem__, spans))
