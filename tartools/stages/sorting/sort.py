"""Sort samples in bounded memory.

Three passes. The first makes a record of some dozen bytes for each sample: its sort key, and where its bytes are, in
the plain local file that it was read from or in a scratch file that it is copied to. The second sorts the records, in
runs that are merged if they do not fit into memory. The third gathers the samples in sort order: small ones are read
together, a MiB at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.samples.sortkeys import Order, decoder
from tartools.stages.sorting.externalsort import external_sort
from tartools.stages.sorting.joining import choose_equal_values, join, join_equal_keys
from tartools.stages.sorting.records import Entry, unpacked
from tartools.stages.sorting.samplefiles import OPEN_FILES, SampleFiles

MEMORY = 256 << 20  # bytes
SMALL = 1 << 20  # bytes of samples in a batch
FILES = OPEN_FILES // 2  # files that one batch is read from, so that each is opened only once
GATHERED = 1 << 16  # bytes; smaller samples are gathered in memory, larger ones copied from the file that holds them


def sorted_batches(
    index: Iterable[bytes],
    order: Order,
    account: Account,
    files: SampleFiles,
    *,
    memory: int = MEMORY,
    tmpdir: str | None = None,
) -> Iterator[Batch]:
    """Yield the samples of *index*, whose bytes are in *files*, sorted by *order*. The sort is stable.

    By `__key__`, all members of one key become one sample. A batch never holds two samples with the same key.
    The whole *index* is read before the first batch is yielded.

    Holds: *memory* bytes of records, beyond that unnamed files in *tmpdir*; 128 open files; two batches of 1 MiB.
    Raises: SampleError if a joined sample has a field twice; StorageError if a file has changed meanwhile; what
    *index* raises.
    """
    records = external_sort(index, memory, tmpdir)
    arrange = join_equal_keys if order.by_key else choose_equal_values
    last = None
    for batch in gather(arrange(unpacked(records, decoder(order)), order, account), order, account, files):
        if last is not None:
            yield last
        last = batch
    if last is not None and last.groups is None:  # parse it now, before the files are checked
        sample = last[0]
        last = Batch.of(sample.with_members(sample.members))
    if last is not None:
        yield last
    files.check()


def gather(found: Iterable[list[Entry]], order: Order, account: Account, files: SampleFiles) -> Iterator[Batch]:
    """Yield samples, given the entries of their parts: small samples in batches read into memory, others alone.

    Holds: 1 MiB, and up to 16 MiB of a joined sample.
    """
    small: list[Entry] = []
    size = turns = 0
    last_key, last_shard, last_flags = b"", -1, 0
    for parts in found:
        _, key, start, end, shard, flags = entry = parts[0]
        alone = len(parts) > 1 or end - start > GATHERED
        full = size >= SMALL or turns == FILES
        if small and (alone or full or key == last_key):  # the writer checks keys from batch to batch
            yield files.gather(small)
            small, size, turns, last_shard = [], 0, 0, -1
        if alone:
            yield Batch.of(files.sample(entry) if len(parts) == 1 else join(parts, order, account, files))
            continue
        if shard != last_shard or flags != last_flags:
            turns += 1
        small.append(entry)
        size += end - start
        last_key, last_shard, last_flags = key, shard, flags
    if small:
        yield files.gather(small)
