"""Measure how fast your data can be read for training.

Reads the first samples and measures how fast training gets them, with PyTorch's DataLoader: from loose files, from a
zip file, from a tar shard in order, and by a table of the shard in order, in shuffled blocks, and shuffled as a whole.
Prints which format to take and with how many workers; then samples and bytes a second, processor time, where the time
goes, what limits each row, and what to do. Needs tartools[train].

SHARD may also be a table, a zip file, a folder of files, or a prefix of objects, which ends in a slash. Of local data,
copies in all forms are made in a folder below --tmpdir, which is removed at the end: use a directory of the file system
that you want to know about. They take 4 times the bytes that are read. Data on a server are read as they are, and
nothing is written there; forms that this leaves out are named.

Each row takes about --seconds, or as long as --passes take. Complete passes are checked: each sample has to come
exactly once. Batches have --batch samples: pictures are decoded to RGB, and cropped or filled to 224 x 224 at their top
left, in one tensor. Orders are shuffled with a fixed seed. Workers are those of DataLoader; the time to start them does
not count.

Parts of the time are those of one process without workers, in seconds a sample:

  list          to list the objects, or to read the table, or the list of a
                zip file, once, shared by all samples
  read          to open, request and read the bytes, and make samples of them
  decode        pictures, arrays (npy) and JSON; other payloads stay bytes
  collate       samples to a batch

--cold drops the files from the page cache before each pass; without it they are in it. If more than 1 % stays there,
because the file system does not drop it, the row is called warm. A disk or a host may still hold the bytes in a cache
of its own.

--json prints one object:

  source, samples,
  bytes, fields      what was measured; bytes of payloads
  batch, seconds,
  passes, cores      how; null without --passes
  others             the share of the processors that other programs used
                     meanwhile; null if that is not known
  left_out           of each form that was left out: form, why
  rows               of each: name, form, order, workers, cache (cold, warm, or
                     null for servers), samples (all that came), passes
                     (complete), run_seconds, samples_per_second,
                     bytes_per_second, cpu_seconds (a sample), parts (seconds
                     a sample; null with workers), limit (the largest part, or
                     processors), says
  answer             which format, how many workers
  says               what to do

Examples:
  Find out whether to pack a folder of pictures:
    tarbench photos/
  From the disk, without the page cache, with 0, 2 and 8 workers:
    tarbench --cold --tmpdir /data --workers '0 2 8' train.parquet
  Read a bucket as it is:
    tarbench s3://bucket/photos/
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.errors import StorageError, byte_size, how_to_install
from tartools.samples.account import Account
from tartools.shards.reading import Reading
from tartools.storage.expand import expand

SAMPLES, BYTES = 1000, 256 << 20


def worker_list(text: str) -> str:
    """Return the numbers of workers in *text*, and 0, which tells where the time goes. Raises: ValueError."""
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and len(word) < 4 for word in words):
        raise ValueError(f"not a list of numbers: {text!r}; write '0 2 4'")
    return " ".join(map(str, sorted({0, *map(int, words)})))


class Data(cli.Group):
    """What to measure."""

    count: Annotated[int, Option("-c --count N", "Take the first N samples.", minimum=1)] = SAMPLES
    size: Annotated[int, Option("--bytes BYTES", "Take at most so many bytes.", parser=byte_size, default="256M")] = (
        BYTES
    )
    tmpdir: cli.TmpDir = None


class Ways(cli.Group):
    """How to measure."""

    workers: Annotated[
        str | None,
        Option(
            "--workers LIST",
            "Numbers of workers, in quotes: '0 2 4'.",
            parser=worker_list,
            default="0, and one per core up to 4",
        ),
    ] = None
    batch: Annotated[int, Option("--batch N", "Samples of a batch.", minimum=1)] = 32
    seconds: Annotated[float, Option("--seconds SECONDS", "How long each row is measured.", minimum=0.01)] = 0.5
    passes: Annotated[
        int | None, Option("--passes N", "Measure each row for N passes, however long they take.", minimum=1)
    ] = None
    cold: Annotated[bool, Option("--cold", "Drop the files from the page cache before each pass.")] = False
    dry_run: Annotated[bool, Option("--dry-run", "Only print which rows would be measured.")] = False


class Result(cli.Group):
    """What to print."""

    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False


@cli.command(__doc__)
def tarbench(account: Account, source: cli.Inputs, data: Data, ways: Ways, result: Result) -> None:
    """Run the command."""
    check_installed()
    urls = expand(*source.named)
    with bench_folder(data.tmpdir) as folder:
        from tartools.commands import _bench
        from tartools.show import benchreport

        facts = _bench.facts_of(urls, account, Reading(source.lax, source.skip_special), (data, ways), folder)
        account.check()
    print_facts(facts, result.json, benchreport)


def check_installed() -> None:
    """Raise StorageError if what training needs is not installed."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "pyarrow") if find_spec(name) is None]
    if missing:
        raise StorageError(f"this needs {' and '.join(missing)}: {how_to_install(*missing)}")


@contextmanager
def bench_folder(tmpdir: str | None) -> Iterator[Path]:
    """Give a new folder, and remove it at the end."""
    from tartools.storage import scratch

    folder = Path(scratch.private_directory(tmpdir))
    try:
        yield folder
    finally:
        scratch.remove(os.fsencode(folder))
