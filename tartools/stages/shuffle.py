"""Stages that change the order by chance: repeatable chance, for equal seed and input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tartools.account import Account
from tartools.sample import Sample


def shuffled(urls: Sequence[str], seed: int) -> list[str]:
    """Return *urls* in a random order that *seed* decides."""
    import random  # costs 10 ms, which most runs need not pay

    order = list(urls)
    random.Random(seed).shuffle(order)
    return order


def buffered(samples: Iterable[Sample], held: int, seed: int, account: Account) -> Iterator[Sample]:
    """Yield all *samples* in an order that is random within a window of *held*.

    Holds: *held* samples, owned. Those still held when nobody asks for more are left out.
    """
    import random

    chance = random.Random(seed)
    window: list[Sample] = []
    try:
        for sample in samples:
            window.append(sample.own())
            if len(window) > held:
                place = chance.randrange(len(window))
                window[place], window[-1] = window[-1], window[place]
                yield window.pop()
        chance.shuffle(window)
        while window:
            yield window.pop()
    finally:
        account.left_out += len(window)


def interleaved(sources: Iterable[Iterator[Sample]], most: int) -> Iterator[Sample]:
    """Yield one sample of each of *most* open *sources* in turn; the next source takes the place of one that ended.

    Holds: *most* sources.
    """
    waiting = iter(sources)
    running: list[Iterator[Sample]] = []
    place = 0
    while True:
        while len(running) < most and (fresh := next(waiting, None)) is not None:
            running.append(fresh)
        if not running:
            return
        place %= len(running)
        sample = next(running[place], None)
        if sample is None:
            fresh = next(waiting, None)
            running[place : place + 1] = [] if fresh is None else [fresh]
        else:
            yield sample
            place += 1
