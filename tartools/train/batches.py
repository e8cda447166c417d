"""`Samples`: a batch of samples in one buffer, sliced when they are used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tartools.tables.bulk import Bulk
from tartools.train.fields import KEY, URL, Chooser
from tartools.train.rooms import Lease


class Samples:
    """The samples of *bulk* as *chooser* makes them, one after the other or by number.

    Holds: the buffer; each sample that is made has copies of its payloads.
    """

    def __init__(self, bulk: Bulk, chooser: Chooser) -> None:
        self.bulk = bulk
        self.chooser = chooser

    def __len__(self) -> int:
        return len(self.bulk)

    def __repr__(self) -> str:
        return f"<Samples: {len(self)} with {' '.join(self.bulk.fields)}>"

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
        return next(iter(Samples(part, self.chooser)))

    def __iter__(self) -> Iterator[Any]:
        chooser = self.chooser
        if chooser.raw:
            found = self._tuples()
            if found is not None:
                return found
        return map(chooser, self._dicts())

    def _tuples(self) -> Iterator[tuple[Any, ...]] | None:
        """Return the tuples of chosen fields; None if a sample lacks one."""
        columns = []
        for names in self.chooser.fields or ():
            column = self._column(names)
            if column is None:
                return None
            columns.append(column)
        return zip(*columns, strict=True) if columns else None

    def _column(self, names: list[str]) -> list[Any] | None:
        """Return what the samples have of the first of *names* that they have; None if one has none of them."""
        bulk = self.bulk
        if names[0] in (KEY, URL):
            return self._keys() if names[0] == KEY else self._urls()
        known = [bulk.fields.index(name.lower()) for name in names if name.lower() in bulk.fields]
        if not known:
            return None
        columns = [self._payloads(n) for n in known[:1]]
        lacking = bulk.offsets[known[0]] < 0
        for other in known[1:]:
            if not lacking.any():
                break
            columns.append(self._payloads(other))
            lacking &= bulk.offsets[other] < 0
        if lacking.any():
            return None
        if len(columns) == 1:
            return columns[0]
        absent = (bulk.offsets[known[: len(columns)]] < 0).argmin(axis=0).tolist()  # the first that each has
        return [columns[n][number] for number, n in enumerate(absent)]

    def _dicts(self) -> Iterator[dict[str, Any]]:
        """Yield the samples as dicts of the fields that are needed."""
        bulk = self.bulk
        needed = self.chooser.needed
        which = [n for n, name in enumerate(bulk.fields) if needed is None or name in needed]
        fields = [bulk.fields[n] for n in which]
        if bulk.uniform:
            names = [KEY, URL, *fields]
            columns = [self._payloads(n) for n in which]
            return (
                dict(zip(names, values, strict=True))
                for values in zip(self._keys(), self._urls(), *columns, strict=True)
            )
        return self._varied(which)

    def _varied(self, which: list[int]) -> Iterator[dict[str, Any]]:
        """Yield the samples as dicts of the fields *which*, in the order of the archive."""
        bulk = self.bulk
        columns = {n: self._payloads(n) for n in which}
        for number, (key, url) in enumerate(zip(self._keys(), self._urls(), strict=True)):
            found: dict[str, Any] = {KEY: key, URL: url}
            for offset, n in sorted((bulk.offsets[n, number], n) for n in which):
                if offset >= 0:
                    found[bulk.fields[n]] = columns[n][number]
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

    def _payloads(self, field: int) -> list[bytes]:
        """Return the payloads of a field, of each sample; what is not there is empty."""
        bulk = self.bulk
        if bulk.columns is not None:
            return bulk.columns[field]
        begins, sizes = bulk.offsets[field], bulk.sizes[field]
        pairs = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        if isinstance(bulk.data, bytes):
            return [bulk.data[begin:end] for begin, end in pairs]
        data = bulk.data.view() if isinstance(bulk.data, Lease) else memoryview(bulk.data)
        return [bytes(data[begin:end]) for begin, end in pairs]
