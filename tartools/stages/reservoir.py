"""Reservoir sampling: draw a given number of samples, each with the same probability; equal seed, equal result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tartools.samples.account import Account
from tartools.samples.sample import Sample


def draw(samples: Iterable[Sample], count: int, seed: int, account: Account) -> Iterator[Sample]:
    """Yield *count* of *samples* at random, without repetition; all of them if there are fewer. Leave out the others.

    Order: input order. Holds: *count* samples, owned; the first is yielded when the input has ended.
    Vitter, "Random Sampling with a Reservoir" (ACM TOMS 11, 1985), algorithm R.
    """
    import random  # takes 10 ms, so import it only when needed

    chance = random.Random(seed)
    held: list[tuple[int, Sample]] = []
    for number, sample in enumerate(samples):
        if len(held) < count:
            held.append((number, sample.own()))
            continue
        account.left_out += 1
        slot = chance.randrange(number + 1)
        if slot < count:
            held[slot] = number, sample.own()
    for _, sample in sorted(held, key=lambda item: item[0]):
        yield sample
