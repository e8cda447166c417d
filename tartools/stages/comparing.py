"""Comparing two data sets: the digest of a data set, and the changes between the sorted records of two.

Keys pair their samples. If a key occurs several times, the first sample with it in A is compared with the first in B,
and so on. In the digest of a data set the order of the samples does not count. Begin reading at `find_changes`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import compress, count, islice, repeat, tee
from typing import Any, NamedTuple

from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import decode_name
from tartools.samples.sortkeys import text_bytes
from tartools.shards.delivery import Selection
from tartools.shards.passes import Pass
from tartools.shards.reading import Reading, count_samples
from tartools.shards.workers import ShardTask, gather, outputs
from tartools.stages.combinations import digest_columns
from tartools.stages.externalsort import POSITION_SHIFT, presort_blocks, resolve_positions, unpack_blocks
from tartools.storage.checks import changed_error
from tartools.tar.groups import Need

POSITION_SIZE = 8  # bytes of a number
PAYLOAD_DIGEST_BYTES = 16  # bytes of the digest of a payload in a record
DATASET_DIGEST_BYTES = 32  # bytes of the digest of a data set, and of all that it is made of


class DiffSide(NamedTuple):
    """One of the two inputs that tardiff compares: the first (A) or the second (B).

    `urls`: its shards and tables. `reading`: how they are read. `max_workers`: up to so many workers read them.
    `counts`: gets the number of samples of each task of `gather`; complete at the end of `contents`.
    """

    urls: Sequence[str]
    reading: Reading
    max_workers: int
    counts: list[int]

    def contents(self, account: Account) -> Iterator[bytes]:
        """Yield a record for each sample, sorted in blocks only: encoded key, position in 8 bytes, content.

        `presort_blocks` sorts 16,384 or more records at a time; the caller sorts all. The position is the number of
        the task << POSITION_SHIFT (40), plus the number of samples before in the task: `resolve_positions` makes
        positions in the input of them, with `counts`. The content has the names of the fields and a digest of each
        payload: see `content_records`. Counts the samples in *account*, as read and written.
        Raises: TarFormatError and StorageError for a damaged or changed input; the errors of `account.check`, at its
        end.
        """

        def work(task: ShardTask[int]) -> Iterator[bytes]:
            begin = task.number << POSITION_SHIFT
            positions = count(begin)
            batches = count_samples(task.batches, account, written=True)
            yield from presort_blocks(content_records(batch, positions) for batch in batches)
            task.result = next(positions) - begin

        tasks = gather(self.urls, account, self.reading, work, max_workers=self.max_workers)
        yield from unpack_blocks(outputs(tasks, self.counts))
        account.check()


def digest(urls: Sequence[str], account: Account, reading: Reading, max_workers: int) -> int:
    """Return the digest of the data set *urls*: the sum of its samples' digests (`digest_of_batch`) modulo 2**256.

    The order of samples does not count. `account`: counts them, as read and written. `reading`: how they are read.
    `max_workers`: up to so many workers read. Raises: TarFormatError and StorageError for a damaged or changed input;
    the errors of `account.check`.
    """

    def work(task: ShardTask[int]) -> Iterable[bytes]:
        task.result = sum(map(digest_of_batch, count_samples(task.batches, account, written=True)))
        return ()

    with closing(gather(urls, account, reading, work, max_workers=max_workers, remote=True)) as tasks:
        total = sum(task.result for task in tasks)
    account.check()
    return total % (1 << 8 * DATASET_DIGEST_BYTES)


def write_selected(run: Pass[Any], counts: Sequence[int], selected: Iterator[bytes]) -> None:
    """Write the samples of *run* that *selected* names to its first output, all other samples to its second, if any.

    `counts`: number of samples of each task. `selected`: sorted records of 8 bytes (task number << POSITION_SHIFT plus
    position in the task, big-endian) and the key itself, not encoded. Raises: StorageError if the input has changed
    since it was compared: a selected sample has another key than its record, or the number of samples is not the sum of
    *counts*; the errors of `run.select`.
    """
    run.snapshot.samples = sum(counts)
    places, keys = tee(selected)
    numbers = (int.from_bytes(record[:POSITION_SIZE], "big") for record in places)
    selection = Selection(resolve_positions(numbers, counts))
    selected_keys = (record[POSITION_SIZE:] for record in keys)

    def flags(batch_keys: Sequence[bytes]) -> list[bool]:
        chosen = selection.flags(batch_keys)
        if list(compress(batch_keys, chosen)) != list(islice(selected_keys, sum(chosen))):
            raise changed_error(run.urls[0])
        return chosen

    run.select(lambda batch: flags(batch.keys), flags, run.reading.with_need(Need.PLACES))


def content_records(batch: Batch, positions: Iterator[int]) -> list[bytes]:
    """Return a record for each sample of *batch*, with the next of *positions*; records sort by key and position.

    The samples take positions in the order of the batch; in the list, samples with the same fields are together.
    A record is the key, as `sortkeys.text_bytes` encodes it, the position in 8 bytes, and the content: the size of the
    list of names, this list, and a BLAKE2b digest of 16 bytes for each payload, in the order of the names. The list has
    the names of the fields, sorted, each after its own size. Sizes are 8 bytes, big-endian, as the position; the size
    of the list counts the sizes in it.
    """
    records: list[bytes] = []
    places = [position.to_bytes(POSITION_SIZE, "big") for position in islice(positions, len(batch))]
    for same in batch.combinations():
        fields, columns = digest_columns(same, PAYLOAD_DIGEST_BYTES)
        names = b"".join(len(field).to_bytes(POSITION_SIZE, "big") + field for field in fields)
        head = len(names).to_bytes(POSITION_SIZE, "big") + names
        positions_of_rows = map(places.__getitem__, same.numbers)
        records += map(b"".join, zip(map(text_bytes, same.keys), positions_of_rows, repeat(head), *columns))
    return records


def digest_of_batch(batch: Batch) -> int:
    """Return the sum of the digests of the samples of *batch*, each as a big-endian number of 32 bytes.

    The digest of a sample is the BLAKE2b digest, of 32 bytes, of its key, then for each field its name and the BLAKE2b
    digest, of 32 bytes, of its payload, in the order of `digest_columns`. Before the key, and before each name, is its
    length as 8 bytes, big-endian.
    """
    from tartools.samples.digests import blake2b

    total = 0
    for same in batch.combinations():
        fields, columns = digest_columns(same, DATASET_DIGEST_BYTES)
        parts: list[Iterable[bytes]] = [[len(key).to_bytes(POSITION_SIZE, "big") + key for key in same.keys]]
        for field, column in zip(fields, columns, strict=True):
            parts += [repeat(len(field).to_bytes(POSITION_SIZE, "big") + field), column]
        samples = map(b"".join, zip(*parts))  # noqa: B905
        total += sum(
            int.from_bytes(blake2b(sample, digest_size=DATASET_DIGEST_BYTES).digest(), "big") for sample in samples
        )
    return total


# ---- changes ----


NO_POSITION = b"\xff" * POSITION_SIZE  # in place of a position
EQUAL, ADDED, REMOVED, CHANGED, REORDERED = "equal", "added", "removed", "changed", "reordered"
REPEATED_COUNTERS = "repeated_a", "repeated_b"  # samples whose key an earlier sample of the same side has


class Change(NamedTuple):
    """The result of comparing two samples with one key, or one without a partner, of the inputs A (first) and B.

    `kind`: EQUAL, ADDED (only in B), REMOVED (only in A), CHANGED or REORDERED.
    `key`: as `sortkeys.text_bytes` encodes it.
    `before`, `position`: position in A and in B, 8 bytes, copied from the records; b"" where the input does not have
    the sample; REORDERED has no `before`.
    `fields`: of CHANGED, names of the changed fields, as `changed_fields` returns them: one that only A has begins with
    -, one that only B has with +; else ().
    """

    kind: str
    key: bytes
    before: bytes = b""
    position: bytes = b""
    fields: tuple[str, ...] = ()


def _parse_records(
    records: Iterable[bytes], counts: Counter[str], repeated: str
) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield (encoded key, position, content) of each of *records*, the sorted content records of one input.

    Adds 1 to `counts[repeated]` for each sample that has the key of the sample before it, when it is yielded.
    """
    last = b""
    for record in records:
        end = record.index(b"\0\0") + 2
        key = record[:end]
        if key == last:
            counts[repeated] += 1
        last = key
        yield key, record[end : end + POSITION_SIZE], record[end + POSITION_SIZE :]


def find_changes(records_a: Iterator[bytes], records_b: Iterator[bytes], counts: Counter[str]) -> Iterator[Change]:
    """Compare the first input (A) and the second input (B) of tardiff; yield their `Change`s, sorted by key.

    *records_a*, *records_b*: their content records, sorted. The first sample of a key in A is compared with the first
    in B, and so on: each pair gives one change, EQUAL or CHANGED, and each sample without a partner one, ADDED or
    REMOVED. Adds to *counts*, under REPEATED_COUNTERS, how many samples of each input have the key of an earlier one;
    complete at the end.
    """
    of_a, of_b = (
        _parse_records(side, counts, name) for side, name in zip((records_a, records_b), REPEATED_COUNTERS, strict=True)
    )
    record_a, record_b = next(of_a, None), next(of_b, None)
    while record_a is not None or record_b is not None:
        if record_b is not None and (record_a is None or record_b[0] < record_a[0]):
            yield Change(ADDED, record_b[0], position=record_b[1])
            record_b = next(of_b, None)
        elif record_a is not None and (record_b is None or record_a[0] < record_b[0]):
            yield Change(REMOVED, record_a[0], before=record_a[1])
            record_a = next(of_a, None)
        elif record_a is not None and record_b is not None:
            if record_a[2] == record_b[2]:
                yield Change(EQUAL, record_a[0], record_a[1], record_b[1])
            else:
                yield Change(CHANGED, record_a[0], record_a[1], record_b[1], changed_fields(record_a[2], record_b[2]))
            record_a, record_b = next(of_a, None), next(of_b, None)


def changed_fields(content_a: bytes, content_b: bytes) -> tuple[str, ...]:
    """Return the names of the fields that differ between *content_a* and *content_b*, of two records, sorted.

    A content is the part of a record after the position. -name is only in *content_a*, +name only in *content_b*; a
    name without a sign has different payloads, or another number of them. Signs do not count in the order.
    """
    a, b = digests_by_field(content_a), digests_by_field(content_b)
    unlike = (field for field in sorted({*a, *b}) if a.get(field) != b.get(field))
    return tuple(
        [("" if field in a and field in b else "-" if field in a else "+") + decode_name(field) for field in unlike]
    )


def digests_by_field(content: bytes) -> dict[bytes, list[bytes]]:
    """Return field -> digests of its payloads, from the *content* of a record: several if a sample has the field twice.

    The content is the part of the record after the position.
    """
    end = POSITION_SIZE + int.from_bytes(content[:POSITION_SIZE], "big")
    digests: dict[bytes, list[bytes]] = {}
    start, at = POSITION_SIZE, end
    while start < end:
        stop = start + POSITION_SIZE + int.from_bytes(content[start : start + POSITION_SIZE], "big")
        digests.setdefault(content[start + POSITION_SIZE : stop], []).append(content[at : at + PAYLOAD_DIGEST_BYTES])
        start, at = stop, at + PAYLOAD_DIGEST_BYTES
    return digests


def find_reordered(pairs: Iterable[bytes], sort: Callable[[Iterable[bytes]], Iterator[bytes]]) -> Iterator[Change]:
    """Yield a REORDERED change for each sample with another predecessor in the second input (B) than in the first (A).

    *pairs*: records of the samples that both inputs have: position in A and position in B, 8 bytes each, and the key;
    other samples do not count. The first sample of an input has no predecessor: it, too, is compared. One moved sample
    gives up to three changes. `sort(records)`: yields any number of records sorted; called twice. Order: by position in
    B. A change has its `key` and `position` (in B), copied from the record; its `before` is b"".
    """

    # Two sorts: the first, by position in A, puts each sample beside its predecessor in A; the second, by position in
    # B, beside its predecessor in B. Where the two differ, the sample was moved; so one moved sample gives up to three.
    def after() -> Iterator[bytes]:
        last = NO_POSITION
        for pair in sort(pairs):
            yield pair[POSITION_SIZE : 2 * POSITION_SIZE] + last + pair[2 * POSITION_SIZE :]
            last = pair[POSITION_SIZE : 2 * POSITION_SIZE]

    last = NO_POSITION
    for record in sort(after()):
        if record[POSITION_SIZE : 2 * POSITION_SIZE] != last:
            yield Change(REORDERED, record[2 * POSITION_SIZE :], position=record[:POSITION_SIZE])
        last = record[:POSITION_SIZE]
