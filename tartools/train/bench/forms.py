"""The ways to keep samples, and the order in which they are read: one class for each, by number."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tartools.storage.contents import content_of
from tartools.storage.objects.fetch import requests_at_once
from tartools.storage.probing import Range
from tartools.tables.fetching import spans
from tartools.tables.places import Piece
from tartools.tables.table import Table
from tartools.tar import split_path
from tartools.train.fields import KEY, URL
from tartools.train.objects import Objects
from tartools.train.order import Order
from tartools.train.table import TableDataset
from tartools.train.zips import ZipDataset

BLOCKS = 32  # runs of neighbours at least that "blocks" makes
LEAST, MOST = 1 << 16, 4 << 20  # bytes of such a run


class Row(NamedTuple):
    """What is measured: samples in a *form* at *urls*, in an *order*.

    *at_once* is how many requests are made side by side, *samples* how many are read of those that there are.
    *files* are the local files, which are dropped from the page cache if the row is *cold*. It takes about *seconds*,
    or so many *passes* if they are not 0.
    """

    form: str
    urls: list[str]
    order: str | None
    workers: int
    at_once: int
    batch: int
    samples: int
    seconds: float
    passes: int
    cold: bool
    files: list[str]
    probed: bool


class Form:
    """Samples by number: *count* of them. `read` gives samples as dicts, `ranges` the bytes that this needs."""

    count: int
    kept: Sequence[str] = ()  # URLs of files that stay open

    def __init__(self, row: Row) -> None:
        raise NotImplementedError

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples *numbers*."""
        raise NotImplementedError

    def ranges(self, numbers: Sequence[int]) -> list[Range]:
        """Return the ranges that the samples *numbers* are read with."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.count

    def order(self, row: Row) -> Order:
        """Return the order of *row*: batches of numbers, other ones in each epoch."""
        return Order(self, 1, row.order, batch_size=row.batch, rank=0, world=1)


class Loose(Form):
    """Files or objects below a prefix; those of one key are a sample."""

    def __init__(self, row: Row) -> None:
        (prefix,) = row.urls
        self._objects = Objects(prefix)
        self._alone = row.at_once == 1
        self._keys: list[str] = []
        self._samples: list[list[tuple[int, str]]] = []  # number of an object, and its field
        last = None
        for number, (url, _) in enumerate(self._objects.objects):
            key, field = split_path(url.removeprefix(prefix).encode("utf-8", "surrogateescape"))
            if key != last:
                self._keys.append(key.decode("utf-8", "surrogateescape"))
                self._samples.append([])
            self._samples[-1].append((number, field.decode("utf-8", "surrogateescape").lower()))
            last = key
        self.count = min(row.samples, len(self._samples))

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples *numbers*: with one request after the other, or many side by side."""
        wanted = [self._samples[number] for number in numbers]
        entries = [number for parts in wanted for number, _ in parts]
        listing = self._objects.objects
        if self._alone:
            found: Iterator[bytes] = (content_of(listing.entry(number)) for number in entries)
        else:
            found = self._objects.items(entries)
        return [
            {KEY: self._keys[sample], URL: listing[parts[0][0]][0], **{field: next(found) for _, field in parts}}
            for sample, parts in zip(numbers, wanted, strict=True)
        ]

    def ranges(self, numbers: Sequence[int]) -> list[Range]:
        """Return the objects of the samples *numbers*."""
        entries = [self._objects.objects.entry(part) for number in numbers for part, _ in self._samples[number]]
        return [Range(entry.url, 0, entry.size or 0, f"{entry.size} {entry.version}") for entry in entries]


class Zipped(Form):
    """A zip file."""

    def __init__(self, row: Row) -> None:
        self._data = ZipDataset(row.urls)
        self.count = min(row.samples, len(self._data))
        self.kept = row.urls

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples *numbers*, each with one request."""
        return self._data.__getitems__(numbers)

    def ranges(self, numbers: Sequence[int]) -> list[Range]:
        """Return the bytes of the samples *numbers*."""
        return [Range(*self._data.span(number)) for number in numbers]


class Tabled(Form):
    """A table, and the shards that it lists."""

    def __init__(self, row: Row) -> None:
        (url,) = row.urls
        self._data = TableDataset(Table(url))
        self.count = len(self._data)
        numbers, self._begins, self._ends = self._data.table.places()
        self._numbers = numbers
        self._versions = self._data.table.versions()
        self._urls = self._data.table.shards()
        self._far = not all(map(os.path.exists, self._urls))
        self.kept = self._urls

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples *numbers*; those near each other are read together."""
        return self._data.__getitems__(numbers)

    def ranges(self, numbers: Sequence[int]) -> list[Range]:
        """Return the bytes of the samples *numbers*: of objects joined, as requests are."""
        rows = list(numbers)
        piece = Piece(0, self._numbers[rows], self._begins[rows], self._ends[rows])
        if self._far:
            places = [(span.number, span.begin, span.end) for span in spans(piece, requests_at_once())]
        else:
            places = [piece.place(number) for number in range(len(rows))]
        return [Range(self._urls[n], begin, end, self._versions[n] or "") for n, begin, end in places]

    def order(self, row: Row) -> Order:
        """Return the order of *row*; runs of neighbours are shorter for few samples."""
        size = int((self._ends - self._begins).sum())
        block = max(LEAST, min(MOST, size // BLOCKS))
        return Order(self._data, 1, row.order, block, row.batch, 0, 1)


FORMS: dict[str, type[Form]] = {"loose": Loose, "zip": Zipped, "table": Tabled}


def sizes(samples: Sequence[dict[str, Any]]) -> int:
    """Return the bytes of the payloads of *samples*."""
    return sum(len(value) for sample in samples for name, value in sample.items() if name[:2] != "__")
