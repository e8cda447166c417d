"""Samples to a series of shards for each part of a data set, all written side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress

from tartools.samples.account import Account
from tartools.shards.reading import closing_upstream
from tartools.shards.series import Series
from tartools.shards.writing import Batches

HELD = 64 << 20  # bytes that are added to shards, then all are written: each shard holds some of them in memory


def deliver_labels(
    labelled: Iterable[tuple[Batches, Sequence[str]]], begin: Callable[[str], Series], account: Account
) -> Iterator[tuple[str, str]]:
    """Write samples to the parts that are their labels; yield part and URL of each shard once it has its name.

    `begin(part)` gives what writes the shards of a part. The last shards of all parts are written to their ends before
    the first of these appears.

    Order: in each part that of the input. Holds: a file for each part, and 64 MiB of samples.
    Raises what *labelled* and `begin` raise, StorageError and SampleError. Shards that were yielded stay, no other
    does.
    """
    parts: dict[str, Series] = {}
    held = 0
    with ExitStack() as stack:
        stack.enter_context(closing_upstream(labelled))
        for batch, labels in labelled:
            for part, some, first, last in batch.apart(labels):
                series = parts.get(part)
                if series is None:
                    series = parts[part] = begin(part)
                    stack.callback(series.abort)
                for url in series.write(some, first, last):
                    yield part, url
                held += some.weight(first, last)
                if held > HELD:
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
