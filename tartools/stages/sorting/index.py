"""The index: one pass over the input makes a record for each sample."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice

from tartools.errors import SampleError
from tartools.samples.sample import Batch, Sample
from tartools.samples.sortkeys import Order, encoder, key_encoder
from tartools.stages.sorting.externalsort import TURN, pack_blocks
from tartools.stages.sorting.joining import distinct_members, has_duplicates
from tartools.stages.sorting.records import IMPLIED, LOCATION, LONE, POSITION, POSITIONED
from tartools.stages.sorting.samplefiles import Identities, PartMember, SampleFiles


def index_records(batches: Iterable[Batch], order: Order, files: SampleFiles, position: int = 0) -> Iterator[bytes]:
    """Yield a record for each sample of *batches*, in input order; the first has number *position*.

    Samples in plain local files stay there; *files* copies all others to its scratch file.
    Raises: SampleError if a value is missing or not of its kind, or if a sample has a field twice.
    """
    encode, encode_key = encoder(order), key_encoder(order)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    for batch in batches:
        groups, location = batch.groups, files.location_of(batch)
        members = groups.members if groups is not None else None
        if (
            groups is None
            or members is None
            or location is None
            or encode_key is None
            or (order.by_key and has_duplicates(members))
        ):
            for sample in batch:
                yield record(sample, position, encode(sample, position), order, files)
                position += 1
            continue
        shard, shift = location
        starts, ends = groups.starts, islice(groups.starts, 1, None)
        for key, start, end, first in zip(groups.keys, starts, ends, groups.firsts, strict=False):
            flags = implied if len(members[first][0]) > len(key) else implied | LONE
            sort_key = encode_key(key, position, batch.shard)
            if implied:
                yield sort_key + POSITIONED.pack(position, start + shift, end + shift, shard, 0, flags)
            else:
                packed = LOCATION.pack(start + shift, end + shift, shard, len(key), flags)
                yield sort_key + position.to_bytes(POSITION, "big") + key + packed
            position += 1


def index_blocks(
    batches: Iterable[Batch], order: Order, files: SampleFiles, turn: int, apart: bool
) -> Generator[bytes, None, Identities]:
    """Yield the records of one slice of the input in blocks; slice *turn* sorts after all slices before it.

    Returns the identities of the files that hold the samples.
    Raises: SampleError as `index_records` does. Also if a sample has to be copied while this runs *apart*, in a worker
    process, whose scratch file would end with it.
    """
    copied = files.copied
    yield from pack_blocks(index_records(batches, order, files, turn << TURN))
    if apart and files.copied > copied:
        raise SampleError("some samples are not in plain local files")
    return files.identities


def record(sample: Sample, position: int, sort_key: bytes, order: Order, files: SampleFiles) -> bytes:
    """Return the record of *sample*, copying its bytes where necessary. Raises: SampleError if it has a field twice."""
    if order.by_key and has_duplicates(sample.members):
        members = [PartMember(0, sample.shard, member) for member in sample.members]
        sample = sample.with_members(each.member for each in distinct_members(sample.key, members, order))
    start, end, shard, flags = files.store(sample)
    implied = IMPLIED if order.by_key and order.kind == "text" else 0
    flags |= implied if sample.grouped else implied | LONE
    key = b"" if implied else sample.raw_key
    return sort_key + position.to_bytes(POSITION, "big") + key + LOCATION.pack(start, end, shard, len(key), flags)
