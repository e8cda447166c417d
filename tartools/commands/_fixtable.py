"""How tarcheck --fix -o OUT.parquet lists the samples that are sound, in place of copying them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import pairwise

from tartools import storage
from tartools.commands._check import Shards
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.shards import listing
from tartools.shards.reading import COMPRESSED
from tartools.shards.writing import Destination, Writer, shard_writer
from tartools.stages.checking.samples import Rows
from tartools.storage.versions import Look
from tartools.tables import schema
from tartools.tables.inputs import Inputs, Part, TablePart
from tartools.tables.rows import BLOCK, Block
from tartools.tables.spool import Spool
from tartools.tables.unified import ShardNumbers
from tartools.tables.writing import RowBatch
from tartools.tar.codecs import CODECS

CHANGED = "its members are apart, or one of them would have to be left out, and a table can't list that"


def plain_shards(shards: Shards, numbers: Sequence[int]) -> list[str]:
    """Return the shards among the inputs *numbers* that are there: those that a new table lists by itself."""
    return [shards.urls[n] for n in numbers if n not in shards.tables and n not in shards.missing]


def looks(urls: Sequence[str]) -> dict[str, Look]:
    """Return what *urls* are now, but for objects that are not there."""
    try:
        return listing.looks(urls)
    except StorageError as error:
        if not storage.is_missing(error) or error.url not in urls:
            raise
        return looks([url for url in urls if url != error.url])


def check_listable(shards: Shards) -> None:
    """Raise UsageError if a table can't list samples of one of *shards*: stdin, a command, a compressed shard."""
    schema.check_installed()
    urls = plain_shards(shards, range(len(shards.urls)))
    listing.check_stored(urls)
    for url, found in looks(urls).items():
        if any(found.first.startswith(magic[:4]) for codec in CODECS for magic in codec.magic):  # all that was read
            raise UsageError(COMPRESSED, url=url)


class TableOut:
    """Lists samples of the inputs *numbers* of *shards*: `write` makes a table of those that were added.

    Holds: 8 bytes for each sample, if tables are among the inputs; disk: about 60 bytes for each of a shard.
    """

    def __init__(self, shards: Shards, numbers: Sequence[int], account: Account) -> None:
        self._shards = shards
        self._account = account
        self._urls = plain_shards(shards, numbers)
        names = ShardNumbers()
        parts: list[Part] = []
        self._first: dict[int, int] = {}  # tables -> the number of their first row among all
        rows = 0
        for number in numbers:
            if number in shards.tables:
                part = TablePart(shards.urls[number], names)
                self._first[number] = rows
                parts.append(part)
                rows += part.rows
        self._versions = {url: found.known(url) for url, found in looks(self._urls).items()}
        self._spool = Spool((), self._versions, names, shards.reading.tmpdir)
        self._parts: list[Part] = [*parts, self._spool]
        self._names = names
        self._next = rows  # the number of the next row of a shard
        self._positions = array("q")  # of rows among those of all inputs, if there are tables
        self._block: Block | None = None

    def takes(self, batch: Batch) -> bool:
        """Tell whether the keys of *batch* are text."""
        try:
            b"\n".join(batch.keys).decode()
        except UnicodeDecodeError:
            return False
        return True

    def batch(self, batch: Batch, number: int, rows: Rows) -> None:
        """List *batch*, the samples *rows* of input *number*."""
        if number in self._first:
            first = self._first[number] + rows.begins[0]
            self._positions.extend(range(first, first + len(batch)))
            return
        self._of(batch.shard).add(batch)
        self._count(len(batch))

    def sample(self, sample: Sample, place: tuple[int, int], changed: bool) -> str:
        """List *sample* of *place*; return why a table can't, empty if it can."""
        if changed:
            return CHANGED
        number, byte = place
        if number in self._first:
            self._positions.append(self._first[number] + byte)
            return ""
        try:
            sample.raw_key.decode()
        except UnicodeDecodeError:
            return "its key is not UTF-8, which tables need"
        if number in self._shards.walked and not in_one_piece(sample):
            return "it is not in one piece with its own headers, so a table can't say where it is"
        self._of(self._shards.urls[number]).add_sample(sample, byte)
        self._count(1)
        return ""

    def _of(self, url: str) -> Block:
        """Return the block that the next rows of the shard *url* go to."""
        if self._block is not None and (self._block.shard != url or len(self._block) >= BLOCK):
            self._flush()
        if self._block is None:
            self._block = Block(url)
        return self._block

    def _flush(self) -> None:
        if self._block is not None:
            self._spool.add(self._block.packed())
            self._block = None

    def _count(self, count: int) -> None:
        """Note that *count* rows of shards were added."""
        if self._first:
            self._positions.extend(range(self._next, self._next + count))
        self._next += count

    def write(self, place: Destination) -> Writer:
        """Write the table *place*. Raises: StorageError, also if a shard has changed since this was made."""
        self._flush()
        for url, now in looks(self._urls).items():
            if now.version != self._versions.get(url):
                raise StorageError("changed while it was read", url=url)
        inputs = Inputs(self._parts, self._names)
        batches = (
            listing.rows_at(inputs, self._positions, self._shards.reading.tmpdir)
            if self._first
            else map(RowBatch, self._spool.batches())
        )
        with shard_writer(listing.TableDestination(place.url, place.force, inputs)) as writer:
            for batch in batches:
                writer.write_batch(batch, 0, len(batch))
            self._account.check()
        return writer


def in_one_piece(sample: Sample) -> bool:
    """Tell whether the members of *sample*, which are in one file, follow each other there, with their own headers."""
    members = sample.members
    return all(each.head is None for each in members) and all(a.end == b.start for a, b in pairwise(members))
