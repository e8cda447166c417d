"""Samples to a series of shards for each part of a data set, all written side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import NamedTuple

from tartools.samples.account import Account
from tartools.shards.reading import closing_upstream
from tartools.shards.series import Series
from tartools.shards.writing import Batches

HELD = 64 << 20  # bytes that are added to shards, then all are written: each shard holds some of them in memory
HELD_ROWS = 1 << 21  # the same for rows of tables


class Run(NamedTuple):
    """Samples *first* to *last* (exclusive) of *batch*, which go to *part*; *weight* is what they take in memory."""

    part: str
    batch: Batches
    first: int
    last: int
    weight: int


def write_parts(
    runs: Iterable[Run], begin: Callable[[str], Series], most: int, account: Account
) -> Iterator[tuple[str, str]]:
    """Write *runs*; yield the part and the URL of each shard once it is complete and has its name.

    `begin(part)` gives what writes the shards of a part. The last shards of all parts are written to their ends before
    the first of these appears.

    Order: in each part that of *runs*. Holds: a file for each part, and samples that weigh up to *most*.
    Raises what *runs* and `begin` raise, StorageError and SampleError. Shards that were yielded stay, no other does.
    """
    parts: dict[str, Series] = {}
    held = 0
    with ExitStack() as stack:
        stack.enter_context(closing_upstream(runs))
        for part, batch, first, last, weight in runs:
            series = parts.get(part)
            if series is None:
                series = parts[part] = begin(part)
                stack.callback(series.abort)
            for url in series.write(batch, first, last):
                yield part, url
            held += weight
            if held > most:
                for each in parts.values():
                    each.flush()
                held = 0
        account.check()
        for series in parts.values():
            series.finish()
        for part, series in parts.items():
            if series.writer is not None:
                yield part, series.complete(series.writer)


def allow_open_files(count: int) -> None:
    """Let this process have *count* open files, or as many as the system lets it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
