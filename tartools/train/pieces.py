"""Shards and tables in pieces of about equal size, and what a worker does with a piece.

A worker gets `Work` once, and then pieces, which are a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tartools.errors import StorageError, UsageError, shown
from tartools.storage import is_far, is_repeatable
from tartools.storage.url import Url
from tartools.storage.version import look
from tartools.tables.table import Table
from tartools.tar import compression
from tartools.train.dealing import Part
from tartools.train.fields import KEY, URL, Chooser, as_dict
from tartools.train.reader import Reader

SIZE = 8_000_000  # bytes of a piece
FAR = 32_000_000  # of a shard in a store: each cut takes several requests, and up to 8 MB that are read twice

Source = str | Table  # a shard, or a table


class Piece(NamedTuple):
    """Piece *number* of so many *pieces* of source number *source*; *name* is how messages call it.

    Of a table these are rows *begin* to *end*. A shard has this *version*; None if it has none.
    """

    source: int
    number: int
    pieces: int
    name: str
    version: str | None = None
    begin: int = 0
    end: int = 0

    def __str__(self) -> str:
        rows = f" (rows {self.begin} to {self.end - 1})" if self.end else ""
        return f"{self.name}: part {self.number + 1} of {self.pieces}{rows}"


def sources_of(urls: Sequence[str]) -> list[Source]:
    """Return the shards and tables *urls*. Raises: UsageError for stdin and fifos; StorageError."""
    for url in urls:
        if not is_repeatable(url) and Url(url).scheme != "pipe":
            raise UsageError("workers can't share this, since it can be read only once: copy it to a file", url=url)
    return [Table(url) if compression.is_table(url) else url for url in urls]


def pieces_of(names: Sequence[str], sources: Sequence[Source], size: int | None) -> Iterator[Piece]:
    """Yield the pieces of *sources*, which have these *names*, in order, each of about *size* bytes if it is given.

    A shard that can't be cut is one piece: what is compressed, a command, a server without ranges.
    Raises: StorageError, when its turn comes.
    """
    for number, (name, source) in enumerate(zip(names, sources, strict=True)):
        first = Piece(number, 0, 1, name)
        if isinstance(source, Table):
            yield from _of_table(first, source, size or SIZE)
        else:
            yield from _of_shard(first, source, size or (FAR if is_far(source) else SIZE))


def _of_shard(whole: Piece, url: str, size: int) -> Iterator[Piece]:
    pieces, version = 1, None
    if is_repeatable(url) and not Url(url).read_command:
        version, first = look(url)
        if version is not None and first != b"PAR1" and not compression.is_compressed(first):
            pieces = -(-int(version.split()[0]) // size) or 1
    return (whole._replace(number=n, pieces=pieces, version=version) for n in range(pieces))


def _of_table(whole: Piece, table: Table, size: int) -> Iterator[Piece]:
    import numpy as np

    _, begins, ends = table.places()
    before = np.cumsum(ends - begins)
    total = int(before[-1]) if len(before) else 0
    cuts = np.unique([0, *before.searchsorted(range(size, total, size), "right").tolist(), len(table)]).tolist()
    for n, (begin, end) in enumerate(pairwise(cuts)):
        yield whole._replace(number=n, pieces=len(cuts) - 1, begin=begin, end=end)


class Work:
    """Calls *function* for the samples of pieces of *sources*, which are chosen and decoded as `Chooser` does."""

    def __init__(self, function: Callable[[Any], Any], sources: Sequence[Source], chooser: Chooser) -> None:
        self._function = function
        self._sources = sources
        self._chooser = chooser

    def __call__(self, piece: Piece) -> Generator[Any, None, None]:
        """Yield what the function makes of the samples of *piece*: of each nothing for None, or what it iterates over.

        Raises: what it raises, and what reading raises, with notes that name sample and piece.
        """
        for sample in self._samples(piece):
            key, url = sample[KEY], sample[URL]
            try:
                made = self._function(self._chooser(sample))
                for one in made if isinstance(made, Iterator) else (made,):
                    if one is not None:
                        yield one
            except (Exception, SystemExit) as error:
                error.add_note(f"in sample {key!r} of {shown(url)}")
                raise

    def _samples(self, piece: Piece) -> Iterator[dict[str, Any]]:
        source, wanted = self._sources[piece.source], self._chooser.needed
        if isinstance(source, Table):
            return (as_dict(sample, wanted) for sample in source[piece.begin : piece.end])
        if piece.version is not None and look(source).version != piece.version:
            raise StorageError("was replaced since the epoch began", url=source)
        part = Part(0, piece.number, piece.pieces)
        return iter(Reader([source], lambda n: None if n else part, wanted=wanted))
