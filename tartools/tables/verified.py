"""The reader of samples that rows list: reads them from their shards, and compares each with its row.

Local shards, and those on servers, are read in their own ways (`localshards`, `remote`); both give `SampleBytes`: some
rows, and streams of the bytes of their samples. Here these are parsed and verified: headers and their checksums, one
key, begin and end of each sample. As many samples as one call of the parser returns are compared at once. At the first
that differs, samples are read one by one, which says what is wrong with which row; then together again.

The parts of a sample of a joined table are put one after the other in memory. There they are the sample that a copy
would have, and are parsed and verified like any other; besides, each part has to begin where a member does. Large
samples, and those that differ from their rows, are read part by part, so that an error names the shard of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from tartools import tar
from tartools.errors import StorageError, TarFormatError
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.storage.scratch import scratch_file
from tartools.tables.bulk import Bulk, GetBuffer, JoinParts, bulk_from_buffer, bulk_from_files, join_parts
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import Extents, SampleBytes, merge_parts, runs_of_equal
from tartools.tables.localshards import LocalShards
from tartools.tar import ContiguousGroups, Parsed, ScatteredGroup
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.tables.remote import RemoteShards

# bytes; payloads of samples that are larger, on average, are read one by one and not copied again
MAX_COPIED_PAYLOAD = 1 << 14
# bytes; a larger sample with parts in several sets of local shards is not put together in memory
MAX_JOINED_SAMPLE_BYTES = 1 << 20
MAX_REMOTE_JOINED_BYTES = 1 << 24  # bytes; the same if a set is on a server, where many requests run in parallel
MIXED_WINDOW_BYTES = 1 << 22  # bytes of samples with local and remote parts that are put together at once
ROWS_ONE_BY_ONE = 64  # rows that are read one by one behind damage, before the next are read together again


class VerifiedReader:
    """Reads the samples of rows from the shards of *catalog*, and compares them with the rows; `bulk` compares no keys.

    `samples` raises StorageError for a sample that differs from its row. *account*: counts the bytes of samples that
    `samples` yields. *need*: the parts of a sample that the caller uses. *tmpdir*: folder of scratch files for large
    members; None: the system's.
    *sources*: the number of readers at work at once, which share the limits of open files and memory.
    Several threads may read.
    """

    def __init__(
        self,
        catalog: ShardCatalog,
        account: Account,
        *,
        need: Need = Need.PAYLOADS,
        tmpdir: str | None = None,
        sources: int = 1,
    ) -> None:
        self.catalog = catalog
        self._account = account
        self._sources = sources
        self._parse: Callable[..., Iterator[Parsed]] = partial(
            tar.read_members, need=need, scratch=lambda: scratch_file(tmpdir)
        )
        # members are compared with the begins of parts
        self._parse_joined = partial(self._parse, need=need if need.lists_members else Need.PAYLOADS)
        self._local = LocalShards(catalog, need.leaves_payloads, sources)
        self._remote: RemoteShards | None = None

    def close(self) -> None:
        """Stop all requests to servers; local files stay open."""
        if self._remote is not None:
            self._remote.close()

    def check(self) -> None:
        """Raise StorageError if a local shard that is still open has changed since it was opened.

        Shards that were closed because too many were open were compared then.
        """
        self._local.open_files.check()

    def samples(self, rows: Extents) -> Iterator[Batch]:
        """Yield the samples of *rows*, at least one, in batches, in order.

        Raises: StorageError if a shard can't be read or has changed, or a sample differs from its row.
        """
        import numpy as np

        if rows.others:
            yield from self._joined_samples(rows)
            return
        is_remote = np.array(self.catalog.is_remote)[rows.numbers]
        for low, high in runs_of_equal(is_remote):
            shards = self._servers() if is_remote[low] else self._local
            with closing(shards.read(rows.part(low, high))) as reads:
                for read in reads:
                    yield from self._verify(read)

    def bulk(self, rows: Extents, get_buffer: GetBuffer | None, fields: Collection[str] | None) -> Bulk | None:
        """Return the samples of *rows*, at least one, as a `Bulk`, without its `urls`; their keys are not compared.

        `get_buffer(size)`: returns the buffer for payloads, or for all bytes; None: into columns or new memory.
        *fields*: the ones to read, in lower case, of local samples of 16 KiB or more on average, in up to 64 shards;
        others are read whole; None: all. Returns None if only `samples` can read them, or raise their error, such as
        for unusual or damaged headers, a truncated local shard, a member without a field, two keys or a field twice in
        a sample, local and remote shards at once, or more than 128 MiB from servers (less with several *sources*).
        Raises: StorageError if a shard has changed, or can't be read.
        """
        if rows.others:
            parts, samples, sets = rows.parts_and_sets()
            join = partial(join_parts, count=len(rows), samples=samples, sets=sets)
            return self._bulk(parts, get_buffer, fields, join)
        return self._bulk(rows, get_buffer, fields, None)

    def _bulk(
        self, rows: Extents, get_buffer: GetBuffer | None, fields: Collection[str] | None, join: JoinParts | None
    ) -> Bulk | None:
        """Return the members in the extents of *rows* as a `Bulk`, after *join* if they are parts of samples.

        *join*: None if each row is a whole sample. `get_buffer(size)`: returns the buffer for payloads, or for all
        bytes; None: into columns or new memory. *fields*: the ones to read, in lower case, of local samples of 16 KiB
        or more on average, in up to 64 shards; others are read whole; None: all. Returns None if only `samples` can
        read them, or raise their error, such as for an unusual header, a truncated shard, or local and remote shards at
        once. Raises: StorageError if a shard has changed, or can't be read.
        """
        import numpy as np

        is_remote, sizes = np.array(self.catalog.is_remote)[rows.numbers], rows.ends - rows.begins
        if is_remote.any() and not is_remote.all():
            return None
        if (
            not is_remote.any()
            and sizes.mean() >= MAX_COPIED_PAYLOAD
            and len(set(rows.numbers.tolist())) <= self._local.max_shards
        ):
            open_shards = self._local.open_shards(rows, 0, len(rows))
            return bulk_from_files(open_shards, rows.begins, rows.ends, get_buffer, fields, join)
        shards = self._servers() if is_remote.any() else self._local
        data = shards.read_all(rows, None if get_buffer is None else get_buffer(int(sizes.sum())))
        return None if data is None else bulk_from_buffer(data, sizes, join)

    def _joined_samples(self, rows: Extents) -> Iterator[Batch]:
        """Yield the samples of *rows*, at least one, with parts in several sets of shards, each joined, in batches.

        Raises: StorageError if a shard can't be read or has changed, or a sample differs from its row.
        """
        limit = MAX_REMOTE_JOINED_BYTES if any(self.catalog.is_remote) else MAX_JOINED_SAMPLE_BYTES
        large = rows.sizes > limit
        for low, high in runs_of_equal(large):
            part = rows.part(low, high)
            if large[low]:
                yield from self._read_parts_alone(part)
                continue
            with closing(self._read_joined(part)) as reads:
                for read in reads:
                    yield from self._verify(read)

    def _read_joined(self, rows: Extents) -> Generator[SampleBytes, None, None]:
        """Yield the bytes of the samples of *rows*: of each sample all parts, in local and remote shards, joined.

        *rows*: samples of up to 16 MiB (MAX_REMOTE_JOINED_BYTES). Raises: StorageError, with the row, if a shard can't
        be read, has another version than in the table, or is truncated; without it if a local one changes meanwhile.
        """
        import numpy as np

        remote = np.array([*self.catalog.is_remote, False])  # the last is for -1, the number of an absent part
        remote_masks = [remote[set_extents.numbers] & (set_extents.ends > 0) for set_extents in (rows, *rows.others)]
        local_masks = [~remote[set_extents.numbers] & (set_extents.ends > 0) for set_extents in (rows, *rows.others)]
        if not any(mask.any() for mask in remote_masks):
            yield from self._local.read(rows)
            return
        if not any(mask.any() for mask in local_masks):
            yield from self._servers().read(rows)
            return
        remote_rows, local_rows, low = rows.with_parts(remote_masks), rows.with_parts(local_masks), 0
        with closing(self._servers().read(remote_rows)) as reads:
            for read in reads:  # which are requested ahead; local parts are read as they are needed
                assert read.data is not None  # these samples are small
                offset = 0
                for window in rows.part(low, low + len(read.rows)).windows(MIXED_WINDOW_BYTES):
                    high = low + len(window)
                    remote_size = remote_rows.part(low, high).size
                    local_window = local_rows.part(low, high)
                    data = self._local.read_all(local_window, None)
                    if data is None:
                        raise self._local.truncated_error(local_window)
                    parts = window.parts
                    received = read.data[offset : offset + remote_size]
                    joined = merge_parts(remote[parts.numbers], parts.sizes, memoryview(data), received)
                    yield SampleBytes.in_memory(window, joined)
                    low, offset = high, offset + remote_size

    def _read_parts_alone(self, rows: Extents) -> Iterator[Batch]:
        """Yield the samples of *rows*, each as a batch, reading each part by itself: the slow path.

        So an error names the wrong part. Raises: StorageError, with the shard of the part, if a part can't be read,
        differs from its row, has another key than the first part, or is a member without a field.
        """
        for index in range(len(rows)):
            sets = [set_extents for set_extents in rows.part(index, index + 1).sets if set_extents.ends[0]]
            samples = [sample.own() for set_extents in sets for batch in self.samples(set_extents) for sample in batch]
            first = samples[0]
            for set_extents, sample in zip(sets, samples, strict=True):
                if sample.raw_key != first.raw_key:
                    message = f"the key of the sample there is {sample.key!r}, and in the first set {first.key!r}"
                    raise self.catalog.failure(set_extents, 0, message)
                if not sample.grouped:
                    message = f"sample {sample.key!r} is a member without a field, which can't be joined"
                    raise self.catalog.failure(set_extents, 0, message)
            yield Batch.from_sample(first.with_members(chain.from_iterable(sample.members for sample in samples)))

    def _servers(self) -> RemoteShards:
        if self._remote is None:
            from tartools.tables.remote import RemoteShards

            self._remote = RemoteShards(self.catalog, self._sources)
        return self._remote

    def _verify(self, read: SampleBytes) -> Iterator[Batch]:
        """Parse the samples of *read*, and yield them in batches, in order.

        Raises: StorageError, with the row, for one that differs from its row, or a server's error in a stream; without
        it if a local shard changes meanwhile.
        """
        at = 0
        try:
            while at < len(read.rows):
                low = yield from self._read_matching(read, at)
                at = min(low + ROWS_ONE_BY_ONE, len(read.rows))
                if read.rows.others:
                    yield from self._read_parts_alone(read.rows.part(low, at))
                else:
                    yield from self._read_each(read, range(low, at))  # equal keys side by side, or damage
        except StorageError as error:
            if not read.is_streamed or error.offset == int(read.rows.begins[0]):  # it names the row
                raise
            raise self.catalog.failure(read.rows, 0, error) from error

    def _read_matching(self, read: SampleBytes, at: int) -> Generator[Batch, None, int]:
        """Yield the samples of *read* from index *at* on, in batches, up to the first batch with one that differs.

        A batch is what one call of the parser returns; a sample differs from its row, or is damaged. Returns the index
        of the first row of that batch, or the number of rows if there is none: the caller reads these rows one by one.
        """
        rows, bounds = read.rows, read.bounds
        parse = self._parse_joined if rows.others else self._parse
        with suppress(TarFormatError):  # who reads this sample alone finds out what is wrong
            for part in parse(read.stream(at), url=self.catalog.table, begin=bounds[at], until=bounds[-1]):
                batch = self._batch(part, rows, at)
                if batch is None or not are_listed(batch, rows, at, bounds):
                    break
                self._count(bounds[at + len(batch)] - bounds[at])
                at += len(batch)
                yield batch
        return at

    def _read_each(self, read: SampleBytes, indexes: range) -> Iterator[Batch]:
        """Yield the samples at *indexes* of *read*, each as a batch.

        Raises: StorageError, with the row, for one that is damaged or differs from its row; the errors of its streams.
        """
        rows = read.rows
        for index in indexes:
            begin, end = read.bounds[index : index + 2]
            try:
                parts = [*self._parse(read.stream(index), url=self.catalog.table, begin=begin, until=end)]
            except TarFormatError as error:
                raise self.catalog.failure(rows, index, error.message) from error
            row = replace(rows.part(index, index + 1), keys=None)
            batch = self._batch(parts[0], row, 0) if len(parts) == 1 else None
            if batch is None or not are_listed(batch, row, 0, [begin, end]):
                raise self.catalog.failure(rows, index, "this is not one sample")
            if rows.keys is not None and batch.keys[0] != rows.keys[index]:
                message = "the key of the sample there is {!r}, not {!r}"
                keys = (key.decode("utf-8", "replace") for key in (batch.keys[0], rows.keys[index]))
                raise self.catalog.failure(rows, index, message.format(*keys))
            self._count(end - begin)
            yield batch

    def _batch(self, part: Parsed, rows: Extents, at: int) -> Batch | None:
        """Return the groups of *part* as a batch, with the shards of the rows from index *at* on.

        *part*: an item that the tar reader yields. None if it has no samples, such as a `Special`.
        """
        if not isinstance(part, ContiguousGroups | ScatteredGroup):
            return None
        count = len(part.keys) if isinstance(part, ContiguousGroups) else 1
        return Batch(part, self._urls(rows, at, min(at + count, len(rows))))

    def _urls(self, rows: Extents, low: int, high: int) -> str | list[str]:
        """Return the URL of the shard of rows *low* to *high* (exclusive) of *rows*; if they differ, one for each row.

        In a joined table these are the shards of the first set.
        """
        if high == low + 1:
            return self.catalog.urls[int(rows.numbers[low])]
        numbers: list[int] = rows.numbers[low:high].tolist()
        if len(set(numbers)) == 1:
            return self.catalog.urls[numbers[0]]
        return [self.catalog.urls[number] for number in numbers]

    def _count(self, size: int) -> None:
        self._account.bytes_in += size
        self._account.unpacked += size


def are_listed(batch: Batch, rows: Extents, at: int, bounds: list[int]) -> bool:
    """True if *batch* is the samples that *rows* list from index *at* on: at the right places, with the keys of *rows*.

    Without keys in *rows*, places are enough. False if it has more samples than rows follow.
    *bounds*: offsets at which the samples of all *rows* begin, then the end of the last one. In samples of a joined
    table a member has to begin where each part does.
    """
    end = at + len(batch)
    if end > len(rows) or batch.bounds() != bounds[at : end + 1]:
        return False
    if rows.others and not have_members_at(batch, bounds[at] + rows.part(at, end).parts.bounds()[:-1]):
        return False
    return rows.keys is None or rows.keys[at:end] == batch.keys


def have_members_at(batch: Batch, offsets: Any) -> bool:
    """True if a member of *batch* begins at each of *offsets*, in the shard or stream that its `bounds` refer to.

    *offsets*: array of distinct offsets in bytes.
    """
    import numpy as np

    return bool(np.isin(offsets, batch.member_begins(), assume_unique=True).all())
