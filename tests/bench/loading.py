"""Samples a second that a training process gets: `tartools.train.loader` beside webdataset and bare reads.

    python -m tests.bench.loading A.tar B.tar

Each line is run in turn, three times in a process of its own, on a quiet machine; printed are the medians, for at most
10 s each, bytes only. "pread" reads one payload a sample at places that are known, in a loop: nothing is checked or
kept. Archives are those of `tests.bench.data`; files should be in the page cache.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LIMIT = 10.0  # seconds
ROUNDS = 3
BATCHES = {"A": 64, "B": 256}


def ours(table: str, shuffle: str | None, workers: int, batch: int) -> Iterator[int]:
    """Yield how many samples each batch has, after looking at each."""
    from tartools.train import loader

    for samples in loader(table, batch, shuffle=shuffle, num_workers=workers):
        yield sum("cls" in sample for sample in samples)


def webdataset(shard: str, workers: int, batch: int) -> Iterator[int]:
    import webdataset as wds
    from torch.utils.data import DataLoader

    data = wds.WebDataset(shard, shardshuffle=False, empty_check=False).batched(batch, collation_fn=list)
    for samples in DataLoader(data, batch_size=None, num_workers=workers):
        yield len(samples)


def pread(table: str, shuffle: bool) -> Iterator[int]:
    import numpy as np

    import tartools

    found = tartools.Table(table)
    payload = found.arrow.column("__members__").combine_chunks().field(0)
    begins, sizes = (payload.field(n).to_numpy() for n in (0, 1))
    rows = np.random.default_rng(1).permutation(len(found)) if shuffle else np.arange(len(found))
    file = os.open(found.shards()[0], os.O_RDONLY)
    for part in np.array_split(rows, len(rows) // 64):
        for begin, size in zip(begins[part].tolist(), sizes[part].tolist(), strict=True):
            os.pread(file, size, begin)
        yield len(part)


LINES: dict[str, Callable[[str, str, int], Iterator[int]]] = {
    "loader, in order": lambda _, table, batch: ours(table, None, 0, batch),
    "loader, global": lambda _, table, batch: ours(table, "global", 0, batch),
    "loader, global, 2 workers": lambda _, table, batch: ours(table, "global", 2, batch),
    "pread, global": lambda _, table, batch: pread(table, True),
    "webdataset": lambda shard, _, batch: webdataset(shard, 0, batch),
    "webdataset, 2 workers": lambda shard, _, batch: webdataset(f"{{{shard},{shard}}}", 2, batch),
}


def measured(line: str, shard: str, table: str) -> float:
    """Return samples a second, from the first batch on."""
    warnings.simplefilter("ignore")
    batches = LINES[line](shard, table, BATCHES.get(Path(shard).stem, 64))
    next(batches)
    begun, count = time.perf_counter(), 0
    for found in batches:
        count += found
        if time.perf_counter() - begun > LIMIT:
            break
    return count / (time.perf_counter() - begun)


def run(arguments: list[str]) -> str:
    """Return what a process of this module prints."""
    line: list[Any] = [sys.executable, "-m", "tests.bench.loading", *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def main() -> None:
    if sys.argv[1] in LINES:
        print(measured(*sys.argv[1:]))  # noqa: T201
        return
    for name in ("litdata", "streaming", "webshart"):
        if find_spec(name) is None:
            print(f"{name} is not installed, and left out")  # noqa: T201
    with tempfile.TemporaryDirectory() as folder:
        for shard in sys.argv[1:]:
            table = f"{folder}/{Path(shard).stem}.parquet"
            subprocess.run(["tarindex", shard, "-o", table], check=True)
            rounds = [{line: float(run([line, shard, table])) for line in LINES} for _ in range(ROUNDS)]
            for line in LINES:
                print(f"{shard}: {line:28} {statistics.median(one[line] for one in rounds):10,.0f} samples/s")  # noqa: T201
    print("load:", *os.getloadavg())  # noqa: T201


if __name__ == "__main__":
    main()
