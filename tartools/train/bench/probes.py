"""What the bytes of samples take alone: the same ranges, in the same order, with as many requests at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing

from tartools.storage import files
from tartools.storage.probing import Prober
from tartools.storage.url import Url
from tartools.train.bench.forms import Form, Row

PIECE = 1 << 20  # bytes

clock = time.perf_counter


def probed(row: Row, form: Form, prepare: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds a sample until the first byte of its ranges, and for the rest of them.

    Each is measured for up to half of the seconds of *row*; *prepare* is called before. Raises: StorageError.
    """
    found = []
    with closing(Prober(row.at_once, form.kept)) as prober:
        if not all(Url(url).is_local for url in row.urls) or row.at_once > 1:  # connections are made once
            some: list[int] = next(iter(form.order(row)), [])
            prober.first(form.ranges(some))
            form.read(some)
        for read in (prober.first, prober.whole):
            prepare()
            taken, count = 0.0, 0
            for numbers in form.order(row):
                ranges = form.ranges(numbers)
                begun = clock()
                read(ranges)
                taken += clock() - begun
                count += len(numbers)
                if not row.passes and taken >= row.seconds / 2:
                    break
            found.append(taken / max(count, 1))
    return found[0], max(0.0, found[1] - found[0])


def probed_stream(row: Row, _: object, prepare: Callable[[], None]) -> tuple[float, float]:
    """Return what `probed` does, for shards that are read from their begin to their end."""
    found = []
    for most in (1, None):
        prepare()
        taken, part = 0.0, 0.0
        for number, url in enumerate(row.urls, 1):
            begun = clock()
            share = _read(url, most)
            taken += clock() - begun
            part = (number - 1 + share) / len(row.urls)
            if not row.passes and taken >= row.seconds / 2:
                break
        found.append(taken / max(part * row.samples, 1))
    return found[0], max(0.0, found[1] - found[0])


def _read(url: str, most: int | None) -> float:
    """Read the file or object *url*, or up to *most* bytes of it; return which share was read, all for one byte."""
    with files.reading(url) as file:
        if most is not None:
            file.read(most)
            return 1.0
        while file.read1(PIECE):
            pass
    return 1.0
