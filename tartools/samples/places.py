"""Where samples that were read, and the payloads of their members, are in the shard."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import pairwise

from tartools.errors import SampleError
from tartools.samples.sample import Batch, Sample, field_name
from tartools.tar import Member
from tartools.tar.member import Chunk


def begin_of(sample: Sample, batch: Batch, number: int) -> int:
    """Return the byte of the shard at which *sample*, number *number* of *batch*, begins.

    Raises: SampleError if it is not in one piece there.
    """
    if batch.groups is not None:
        source = batch.groups.source
        return batch.groups.starts[number] + (source.base if isinstance(source, Chunk) else 0)
    if batch.offset is not None:
        return batch.offset
    members = sample.members
    file = members[0].source
    together = all(a.source is b.source and a.end == b.start for a, b in pairwise(members))
    if together and isinstance(file, io.FileIO) and not file.writable():
        return members[0].start
    raise SampleError(
        f"sample {sample.key!r}, with {field_name(members[0])!r}, is not in one piece with its own headers, so a "
        "table can't say where it is; tarcat makes a copy that a table can list",
        url=sample.shard,
    )


def payloads_of(sample: Sample, begin: int) -> Iterator[tuple[Member, int]]:
    """Yield each member of *sample*, which is in the shard from byte *begin* on, and the byte where its payload is."""
    for member in sample.members:
        yield member, begin + (member.data - member.start if member.head is None else len(member.head))
        begin += member.stored
