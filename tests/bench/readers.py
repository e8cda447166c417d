"""What a Python program does to all samples of an archive, with one library or another.

    python -P tests/bench/readers.py NAME FILE

Prints the number of samples and of the bytes in their field cls.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

EPOCHS = 4  # of `batches`


def counted(found: Iterable[Any]) -> tuple[int, int]:
    """Go through the samples."""
    samples = size = 0
    for sample in found:
        samples += 1
        size += len(sample["cls"])
    return samples, size


def tartools(path: str) -> tuple[int, int]:
    """Read with this package."""
    import tartools

    return counted(tartools.read(path))


def stream(path: str) -> tuple[int, int]:
    """Read as training does: each sample as a dict with all of its fields."""
    from tartools.train import samples as read

    return counted(read(path))


def batches(path: str, fields: str | None = None) -> tuple[int, int]:
    """Read the samples of a table in batches of 64, in an order drawn by lot; with *fields*, count bytes of these.

    `EPOCHS` times, so that it takes longer than the import of torch, whose time is taken off, varies.
    """
    import random

    from tartools.train import TableDataset

    data = TableDataset(path, fields)
    rows = random.Random(1).sample(range(len(data)), len(data))
    samples = size = 0
    for first in [*range(0, len(rows), 64)] * EPOCHS:
        for sample in data.batch(rows[first : first + 64]):
            samples += 1
            size += len(sample["cls"]) if fields is None else sum(map(len, sample))
    return samples, size


def one_set(path: str) -> tuple[int, int]:
    """Read in batches the field that is in the first set of a joined table, and in the table of that set alone."""
    return batches(path, "txt")


def tarfile(path: str) -> tuple[int, int]:
    """Read with Python's tarfile, which knows no samples: those that have the field are counted."""
    import tarfile

    samples = size = 0
    with tarfile.open(path, "r|") as archive:
        for info in archive:
            archive.members.clear()  # type: ignore[attr-defined]  # it keeps all of them otherwise
            if info.name.endswith(".cls"):
                file = archive.extractfile(info)
                assert file is not None
                samples += 1
                size += len(file.read())
    return samples, size


def webdataset(path: str) -> tuple[int, int]:
    """Read with webdataset, without decoders."""
    import webdataset  # type: ignore[import-untyped]

    return counted(webdataset.WebDataset(path, shardshuffle=False))


def select(path: str) -> tuple[int, int]:
    """Read with webdataset the samples of the classes below 100."""
    import webdataset

    return counted(webdataset.WebDataset(path, shardshuffle=False).select(lambda sample: int(sample["cls"]) < 100))


def mix(path: str) -> tuple[int, int]:
    """Read with webdataset's RandomMix the first two shards s-* in the folder *path*, until one of them ends."""
    import webdataset
    from webdataset.mix import RandomMix  # type: ignore[import-untyped]

    sources = [webdataset.WebDataset(str(shard), shardshuffle=False) for shard in sorted(Path(path).glob("s-*"))[:2]]
    return counted(RandomMix(sources, [0.7, 0.3]))


def files(path: str) -> tuple[int, int]:
    """Open and read the small files that *path* lists: what there is to do for anybody who opens many shards."""
    number = size = 0
    for name in Path(path).read_text().splitlines():
        file = os.open(name, os.O_RDONLY)
        os.fstat(file)
        size += len(os.read(file, 1 << 20))
        os.close(file)
        number += 1
    return number, size


def first(path: str) -> tuple[int, int]:
    """Open a table for training, and take its first sample; the numbers are of shards and of samples."""
    from tartools.train import TableDataset

    data = TableDataset(path)
    return len(data.table.shards()), len([data[0]["cls"]])


def first_of_webdataset(path: str) -> tuple[int, int]:
    """Take the first sample of the shards that *path* lists, for training."""
    import torch.utils.data  # noqa: F401
    import webdataset

    shards = Path(path).read_text().split()
    return len(shards), len([next(iter(webdataset.WebDataset(shards, shardshuffle=False)))["cls"]])


def boto3(key: str) -> tuple[int, int]:
    """Read the object *key* of the bucket `bucket` with boto3 alone; the numbers are of reads and of bytes."""
    import boto3

    body = boto3.client("s3").get_object(Bucket="bucket", Key=key)["Body"]
    reads = size = 0
    while data := body.read(1 << 20):
        reads += 1
        size += len(data)
    return reads, size


if __name__ == "__main__":
    every = (
        tartools,
        stream,
        batches,
        one_set,
        tarfile,
        webdataset,
        select,
        mix,
        files,
        first,
        first_of_webdataset,
        boto3,
    )
    readers = {each.__name__: each for each in every}
    print(*readers[sys.argv[1]](sys.argv[2]))  # noqa: T201
