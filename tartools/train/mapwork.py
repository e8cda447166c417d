"""The work of `stream_map` for workers: `MapWork` once, then slices of shards and tables, of about equal size."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from tartools.errors import StorageError, UsageError, shown
from tartools.samples.sample import DICT_KEY, DICT_URL
from tartools.storage import is_repeatable, is_seekable, is_stored_object
from tartools.storage.checks import probe
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tables.table import Table
from tartools.tar import compression
from tartools.train.cursor import ShardSlice
from tartools.train.fieldchooser import FieldChooser, as_dict
from tartools.train.slices import SliceReader, by_number

CHUNK_BYTES = 8_000_000  # bytes of a chunk
MIN_SAMPLE_BYTES = 1024  # bytes of a sample: header and payload
MIN_REMOTE_CHUNK_BYTES = (
    32_000_000  # of a shard in a store: each cut takes several requests, and up to 8 MB that are read twice
)

MapSource = str | Table  # a shard, or a table


class MapChunk(NamedTuple):
    """A part of a source, the unit of work of `stream_map`; its `str` names it: "a.tar: chunk 2 of 9".

    For rows of a table it is like "the table: rows 0 to 99".
    `slice`: the part; its `shard` is the number of the source
    `name`: of the source, for messages
    `version`: of the shard when it was probed; None for a table, for a shard without byte ranges, and if it has none
    """

    slice: ShardSlice
    name: str
    version: str | None = None

    def __str__(self) -> str:
        _, number, slices, begin, end, *_ = self.slice
        return f"{self.name}: rows {begin} to {end - 1}" if end else f"{self.name}: chunk {number + 1} of {slices}"


def sources_of_urls(urls: Sequence[str]) -> list[MapSource]:
    """Return *urls* as sources, in this order: a `Table` for each URL of a table, and shards as they are.

    Raises: UsageError for stdin, fifos and devices, which can be read only once; StorageError for a local file or a
    table that can't be read. Shards on servers are not looked at.
    """
    for url in urls:
        if not is_repeatable(url) and Url(url).scheme != "pipe":
            raise UsageError("workers can't share this, since it can be read only once: copy it to a file", url=url)
    return [Table(url) if schema.is_table(url) else url for url in urls]


def make_chunks(names: Sequence[str], sources: Sequence[MapSource], size: int | None) -> Iterator[MapChunk]:
    """Yield the chunks of *sources*, whose *names* are for messages, in order.

    *size*: bytes of a chunk, about; None: CHUNK_BYTES, of remote shards MIN_REMOTE_CHUNK_BYTES. A shard that can't be
    cut is one chunk: what is compressed, a command, a server without ranges. Raises: StorageError, when its turn comes.
    """
    for number, (name, source) in enumerate(zip(names, sources, strict=True)):
        if isinstance(source, Table):
            for piece in _cut_rows(source, number, size or CHUNK_BYTES):
                yield MapChunk(piece, name)
        else:
            version, slices = _probe_shard(
                source, size or (MIN_REMOTE_CHUNK_BYTES if is_stored_object(source) else CHUNK_BYTES)
            )
            for piece in ShardSlice(number).cut_into(slices):
                yield MapChunk(piece, name, version)


def _probe_shard(url: str, size: int) -> tuple[str | None, int]:
    """Return (version, slices): the version of the shard *url*, or None, and its number of slices of *size* bytes.

    The number is rounded up; *size* counts as 1024 (MIN_SAMPLE_BYTES) if it is less. A shard that can't be cut is 1
    slice: one without byte ranges, without a version, compressed, or a Parquet file. Raises: StorageError if it can't
    be read.
    """
    if not is_seekable(url):
        return None, 1
    version, first = probe(url)
    if version is None or first == b"PAR1" or compression.codec_of(first):
        return version, 1
    return version, -(-int(version.split()[0]) // max(size, MIN_SAMPLE_BYTES)) or 1


def _cut_rows(table: Table, number: int, size: int) -> Iterator[ShardSlice]:
    """Yield slices of rows of *table*, source *number*, in order, whose samples have about *size* bytes together.

    A slice begins at each row in which the bytes of all rows so far pass a multiple of *size*. Nothing if the table has
    no rows.
    """
    import numpy as np

    before = np.cumsum(table.sizes())
    total = int(before[-1]) if len(before) else 0
    cuts = np.unique([0, *before.searchsorted(range(size, total, size), "right").tolist(), len(table)]).tolist()
    return (ShardSlice(number, begin=begin, end=end, rows=True) for begin, end in pairwise(cuts))


@dataclass
class MapWork:
    """Calls `function` for the samples of chunks.

    `function`: gets what `chooser` makes of a sample
    `sources`: shards and tables, by the number that chunks name
    `chooser`: chooses and decodes the fields
    """

    function: Callable[[Any], Any]
    sources: Sequence[MapSource]
    chooser: FieldChooser

    def __call__(self, chunk: MapChunk) -> Generator[Any, None, None]:
        """Yield the results of the function for the samples of *chunk*, in order: each item if it returns an iterator.

        A result that is None, or such an item, is left out. Raises: errors of the function and of the chooser, with a
        note that names sample and shard, SystemExit, too; errors of reading.
        """
        for sample in self._samples(chunk):
            key, url = sample[DICT_KEY], sample[DICT_URL]
            try:
                results = self.function(self.chooser(sample))
                for result in results if isinstance(results, Iterator) else (results,):
                    if result is not None:
                        yield result
            except (Exception, SystemExit) as error:
                error.add_note(f"in sample {key!r} of {shown(url)}")
                raise

    def _samples(self, chunk: MapChunk) -> Iterator[dict[str, Any]]:
        """Return an iterator of the samples of *chunk*, as dicts of `as_dict`; fields that are not needed are None.

        Raises: StorageError if the shard was replaced since it was probed, or if it, or the table, can't be read;
        TarFormatError for damage and SampleError as of `as_dict`, perhaps from the iterator.
        """
        part, source, needed = chunk.slice, self.sources[chunk.slice.shard], self.chooser.needed
        if isinstance(source, Table):
            return (as_dict(sample, needed) for sample in source[part.begin : part.end])
        if chunk.version is not None and probe(source).version != chunk.version:
            raise StorageError("was replaced since the epoch began", url=source)
        return iter(SliceReader([source], by_number([part._replace(shard=0)]), needed=needed))
