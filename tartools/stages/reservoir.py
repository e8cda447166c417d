"""An even sample of all there is: each as likely as any other, by repeatable chance."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tartools.account import Account
from tartools.sample import Sample


def drawn(samples: Iterable[Sample], count: int, seed: int, account: Account) -> Iterator[Sample]:
    """Yield *count* of *samples*, or all there are, drawn by *seed*, none of them twice; leave out the others.

    Order: that of the input. Holds: *count* samples, owned; nothing is yielded before the input has ended.
    Vitter, "Random Sampling with a Reservoir" (ACM TOMS 11, 1985), algorithm R.
    """
    import random  # costs 10 ms, which most runs need not pay

    chance = random.Random(seed)
    held: list[tuple[int, Sample]] = []
    for number, sample in enumerate(samples):
        if len(held) < count:
            held.append((number, sample.own()))
            continue
        account.left_out += 1
        place = chance.randrange(number + 1)
        if place < count:
            held[place] = number, sample.own()
    for _, sample in sorted(held, key=lambda item: item[0]):
        yield sample
