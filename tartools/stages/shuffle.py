"""Random order: the shuffle buffer and the reservoir sample; and interleaving of shards.

Equal seed and input give an equal result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from tartools.samples.account import Account
from tartools.samples.sample import Sample

Item = TypeVar("Item")  # a sample, or what stands for one


def shuffle_buffer(samples: Iterable[Item], size: int, seed: int, account: Account) -> Iterator[Item]:
    """Yield *samples* in random order: from a buffer of *size* samples a random one leaves for each that comes in.

    The first leaves when sample *size* + 1 comes in; at the end of the input all leave, in random order. With *size* 0
    the order stays. `seed`: equal seeds and inputs give equal orders. Holds: *size* samples, and the new one; the
    caller copies samples that are views of a read buffer before (`Sample.own`). Samples in the buffer when the consumer
    stops, or *samples* raises, are counted as left out in *account*.
    """
    import random

    chance = random.Random(seed)
    buffer: list[Item] = []
    try:
        for sample in samples:
            buffer.append(sample)
            if len(buffer) > size:
                chosen = chance.randrange(len(buffer))
                buffer[chosen], buffer[-1] = buffer[-1], buffer[chosen]
                yield buffer.pop()
        chance.shuffle(buffer)
        while buffer:
            yield buffer.pop()
    finally:
        account.left_out += len(buffer)


def interleave(shards: Iterable[Iterator[Item]], max_open: int) -> Iterator[Item]:
    """Yield one sample from each of *max_open* open *shards* in turn; the next shard replaces one that has ended.

    `shards`: yields an iterator of samples for each shard; the next is taken when fewer than *max_open* (at least 1)
    are open. All samples of all shards are yielded. Holds: *max_open* open shards, which are not closed here.
    """
    waiting = iter(shards)
    opened: list[Iterator[Item]] = []
    turn = 0
    while True:
        while len(opened) < max_open and (fresh := next(waiting, None)) is not None:
            opened.append(fresh)
        if not opened:
            return
        turn %= len(opened)
        sample = next(opened[turn], None)
        if sample is None:
            fresh = next(waiting, None)
            opened[turn : turn + 1] = [] if fresh is None else [fresh]
        else:
            yield sample
            turn += 1


def draw_samples(samples: Iterable[Sample], count: int, seed: int, account: Account) -> Iterator[Sample]:
    """Yield *count* of *samples*, drawn at random by *seed* without repetition; all if there are fewer.

    Samples that are not drawn are counted as left out in *account*. Order: that of the input. Holds: *count* samples,
    copied; the first is yielded when the input has ended.

    Vitter, "Random Sampling with a Reservoir" (ACM TOMS 11, 1985), algorithm R.
    """
    import random  # takes 10 ms, so import it only when needed

    chance = random.Random(seed)
    reservoir: list[tuple[int, Sample]] = []
    for number, sample in enumerate(samples):
        if len(reservoir) < count:
            reservoir.append((number, sample.own()))
            continue
        account.left_out += 1
        slot = chance.randrange(number + 1)
        if slot < count:
            reservoir[slot] = number, sample.own()
    for _, sample in sorted(reservoir, key=lambda item: item[0]):
        yield sample
