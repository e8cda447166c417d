"""What the index of tarsort costs a sample, without samples: records are made, sorted, told apart, as by key.

    python -m tests.bench.index 1000000 20000000

Prints, for each number of samples: microseconds a sample, and the peak of resident memory in MB.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator

from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sortkeys import Order, make_key_encoder
from tartools.samples.values import parse_column
from tartools.stages.externalsort import external_sort
from tartools.stages.samplefiles import SampleFiles
from tartools.stages.sortrecords import join_equal_keys, unpack_samples
from tartools.stages.sortsamples import DEFAULT_SORT_MEMORY, index_records
from tartools.tar import ContiguousGroups, Member

IN_A_RUN = 700  # samples
SIZE = 1536  # bytes of each


def batches(count: int, file: io.FileIO) -> Iterator[Batch]:
    """Yield *count* samples of one member, which would lie in *file*; their keys are in no order."""
    for first in range(0, count, IN_A_RUN):
        numbers = range(first, min(first + IN_A_RUN, count))
        keys = [b"%09d" % (n * 7_368_787 % 1_000_000_007) for n in numbers]
        starts = [SIZE * n for n in (*numbers, numbers.stop)]
        members = [Member(key + b".txt", file, at, at + 512, 1000) for key, at in zip(keys, starts, strict=False)]
        yield Batch(ContiguousGroups(file, keys, starts, members, list(range(len(keys)))), file.name)


def microseconds(count: int) -> float:
    """Return what *count* samples take, each. Raises: AssertionError if one is lost or out of order."""
    order = Order(parse_column("__key__"))
    assert make_key_encoder(order) is not None
    with tempfile.NamedTemporaryFile() as some, io.FileIO(some.name) as file:
        begun = time.perf_counter()
        files = SampleFiles(None)
        records = external_sort(index_records(batches(count, file), order, files), DEFAULT_SORT_MEMORY, None)
        found, last = 0, b""
        for parts in join_equal_keys(unpack_samples(records), order, Account()):
            assert parts[0].key > last
            found, last = found + 1, parts[0].key
        assert found == count
        return (time.perf_counter() - begun) / count * 1e6


def main() -> None:
    """Measure each of the numbers on the command line, in a process of its own."""
    for number in sys.argv[1:]:
        if len(sys.argv) > 2:
            os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-m", "tests.bench.index", number])
            continue
        import resource

        each = microseconds(int(number))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"{int(number):,} samples: {each:.2f} µs a sample, {peak:.0f} MB")  # noqa: T201


if __name__ == "__main__":
    main()
