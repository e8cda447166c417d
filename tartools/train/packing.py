"""`pack`: a dataset to shards and their table. Run again, it makes what is missing."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence, Sized
from typing import Any, cast

from torch import Generator
from torch.utils.data import DataLoader

from tartools import storage, tar
from tartools.errors import StorageError, TarToolsError, UsageError, byte_size, shown
from tartools.samples.account import Account
from tartools.samples.sample import Sample, raw_bytes
from tartools.samples.sortkeys import shuffled
from tartools.shards.listing import TableDestination, row_batches
from tartools.shards.numbering import Numbering, existing_shards, parse_numbering
from tartools.shards.reading import Reading, read_batches
from tartools.shards.writing import Destination, ShardWriter, shard_writer, write_batches
from tartools.storage.names.numbers import has_number
from tartools.storage.url import Name, name_of
from tartools.storage.versions import version_of
from tartools.tables import schema
from tartools.tables.inputs import Inputs
from tartools.tables.rows import Block
from tartools.tables.spool import Spool
from tartools.tables.table import Table
from tartools.tables.unified import ShardNumbers
from tartools.tar.compression import codec_for
from tartools.train.encoding import KEEP, Encoded

BATCH = 16  # samples that cross from a worker at once

log = logging.getLogger("tartools.train")


def pack(
    dataset: Any,
    output: Name,
    max_size: int | str = "1GB",
    max_count: int | None = None,
    workers: int = 0,
    seed: int | None = None,
    encode: str = KEEP,
) -> str:
    """Write the samples of *dataset* to shards, and a table of them; return the URL of the table.

        table = tartools.train.pack(ImageFolder("photos"), "s3://bucket/photos", max_size="256MB", workers=4, seed=1)
        data = tartools.train.TableDataset(table, fields=("jpg;png", "cls"), decode="pil")

    *dataset* has a length and items by number: dicts, or pairs of a picture and its label. Where it lists files, as
    torchvision's `ImageFolder` does in `samples`, and *encode* is "keep", the files are stored as they are, and
    transforms are not applied. Otherwise pictures (PIL) are stored as *encode* says, "jpg" or "webp" with quality 95,
    or "png", which is also what "keep" stands for. Arrays and tensors become npy, text and other numbers txt, whole
    numbers cls, dicts and lists json. In a dict, the names are the fields; one that does not say what its value is gets
    that as a suffix. Item 41 has the key 000000041.

    *output* is a prefix or pattern, as for tarsplit: "photos" gives `photos-000000.tar`, ... and `photos.parquet`. A
    shard has up to *max_size* bytes and *max_count* samples; one sample that is larger has a shard of its own.

    Order: that of the dataset, or with *seed* a permutation of it, which depends on seed and length only. The same
    items give the same bytes, with any number of *workers*, which are those of a DataLoader.

    A shard appears under its name when it is complete, and the table at the end. Shards that are there are kept, after
    a look: their first and last samples have to be those that would be written, and their ends where they would be.
    So a run that was killed is just started again.

    Holds: 32 samples a worker, 8 bytes an item, 60 bytes a sample; what the store's upload holds. It needs no temporary
    files, but for the rows of the table.
    Raises: SampleError for an item that can't be read or written; StorageError, also if other shards, or a table of
    another number of samples, are there.
    """
    output = name_of(output)
    names = parse_numbering(output, gzip=False)
    if codec_for(names.name(0), False) is not None:
        raise UsageError("samples of compressed shards can't be read alone: name .tar", url=output)
    schema.check_installed()
    packing = _Packing(Encoded(dataset, encode), names, max_size, max_count, workers, seed)
    table = table_of(output, names)
    check_table(table, len(packing.order))
    inputs = packing.run()
    write_batches(row_batches(inputs), TableDestination(table, True, lambda: inputs), Account())
    return table


def table_of(output: str, names: Numbering) -> str:
    """Return the URL of the table of the shards *output*."""
    base = names.prefix if has_number(output) else names.prefix.removesuffix("-")
    if not base or base.endswith("/"):
        return f"{base}samples.parquet"
    return base.rstrip("-_.") + ".parquet"


def check_table(url: str, count: int) -> None:
    """Raise StorageError if the table *url* exists and has another number of rows than *count*."""
    if storage.exists(url) and (found := len(Table(url))) != count:
        raise StorageError(f"is a table of {found} samples, and the dataset has {count}: give another OUTPUT", url=url)


class _Packing:
    """One run of `pack`: *order* has the numbers of items as they are written."""

    def __init__(
        self,
        encoded: Encoded,
        names: Numbering,
        max_size: int | str,
        max_count: int | None,
        workers: int,
        seed: int | None,
    ) -> None:
        count = len(cast(Sized, encoded))
        if not count:
            raise ValueError("the dataset is empty")
        if max_count is not None and max_count < 1:
            raise ValueError(f"max_count is at least 1, not {max_count}")
        self.order: Sequence[int] = range(count) if seed is None else sorted(range(count), key=shuffled(seed))
        self._encoded = encoded
        self._names = names
        self._room = tar.room_in(byte_size(max_size) if isinstance(max_size, str) else max_size)
        self._most = max_count
        self._stream = _Stream(encoded, self.order, workers)

    def run(self) -> Inputs:
        """Write all shards that are not there; return the rows of all. Raises: StorageError if there are others."""
        shards = ShardNumbers()
        spool = Spool((), {}, shards)
        old = existing_shards(self._names)
        position = number = 0
        with contextlib.closing(self._stream):
            while position < len(self.order):
                url = self._names.name(number)
                there = number in old or storage.exists(url)
                block = self._checked(url, position) if there else self._written(url, position)
                log.info("%s: %s, %d samples", shown(url), "is there" if there else "written", len(block))
                spool.know(url, version_of(url))
                spool.add(block.packed())
                position += len(block)
                number += 1
        if left := [name for n, name in sorted(old.items()) if n >= number]:
            raise StorageError("is there, and is none of these shards: remove it, or give another OUTPUT", url=left[0])
        return Inputs([spool], shards)

    def _is_full(self, count: int, size: int, sample: Sample) -> bool:
        """Tell whether a shard with *count* samples of *size* bytes has no room for *sample*."""
        return count > 0 and (count == self._most or size + sample.size > self._room)

    def _written(self, url: str, position: int) -> Block:
        """Write the shard *url*, of the samples from *position* on; return its rows."""
        block = Block(url)
        with shard_writer(Destination(url)) as found:
            writer = cast(ShardWriter, found)
            while position + len(block) < len(self.order):
                sample = self._stream.at(position + len(block))
                if self._is_full(len(block), writer.size, sample):
                    break
                block.add_sample(sample, writer.size)
                writer.write(sample)
        return block

    def _checked(self, url: str, position: int) -> Block:
        """Return the rows of the shard *url*, which is there. Raises: StorageError if it is another one."""
        block = Block(url)
        ends: list[Sample] = []
        for batch in read_batches([url], Account(), Reading(plain=True)):
            block.add(batch)
            ends = [ends[0] if ends else batch[0].own(), batch[len(batch) - 1].own()]
        other = StorageError("holds other samples than it would now: remove it, or give another OUTPUT", url=url)
        count = len(block)
        if not count or position + count > len(self.order) or (self._most is not None and count > self._most):
            raise other
        for sample, place in zip(ends, (position, position + count - 1), strict=True):
            if raw_bytes(sample.members) != raw_bytes(_sound(self._encoded[self.order[place]]).members):
                raise other
        size = block.ends[-1]
        full = position + count == len(self.order) or self._is_full(
            count, size, _sound(self._encoded[self.order[position + count]])
        )
        if not full or (count > 1 and size > self._room):
            raise other
        return block


class _Stream:
    """The samples of *encoded* in their *order*, read ahead by workers."""

    def __init__(self, encoded: Encoded, order: Sequence[int], workers: int) -> None:
        self._encoded = encoded
        self._order = order
        self._workers = workers
        self._found: Iterator[Sample] = iter(())
        self._position = -1
        self._sample = Sample(b"")

    def at(self, position: int) -> Sample:
        """Return the sample at *position*: the one that was given last, or the next, or another, which takes longer."""
        if position != self._position:
            if position != self._position + 1 or position == 0:
                self._found = self._begun(position)
            self._sample = next(self._found)
            self._position = position
        return self._sample

    def close(self) -> None:
        """End the workers."""
        self._found = iter(())

    def _begun(self, position: int) -> Iterator[Sample]:
        wanted = self._order[position:]
        if not self._workers:
            return (_sound(self._encoded[index]) for index in wanted)
        batches = DataLoader(
            self._encoded,
            BATCH,
            sampler=wanted,
            num_workers=self._workers,
            collate_fn=list,
            generator=Generator(),  # or it would draw from the caller's
        )
        return (_sound(item) for batch in batches for item in batch)


def _sound(item: Sample | TarToolsError) -> Sample:
    """Return *item*, or raise it if it is a failure."""
    if isinstance(item, TarToolsError):
        raise item
    return item
