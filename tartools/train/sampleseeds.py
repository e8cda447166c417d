"""Seeds of random transforms: they follow from seed, epoch and sample, whoever reads the sample, and when.

A transform asks for one by the name of a parameter: `seed`, a whole number, or `rng`, a numpy Generator of it. A sample
is named by its key and the last part of its shard's URL, so that data that were moved get the same seeds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any, NamedTuple

from tartools.errors import UsageError
from tartools.samples.sample import DICT_KEY, DICT_URL
from tartools.train.ranks import SharedNumbers

SEED_PARAMETERS = ("seed", "rng")
MAX_SEED = (1 << 63) - 1


class SampleSeeds(NamedTuple):
    """The seeds of all samples in one epoch of a run with *seed*; *repetition*: of the data in that epoch, from 0.

    `of` returns the seed of a sample.
    """

    seed: int
    epoch: int
    repetition: int = 0

    def of(self, url: str, key: str) -> int:
        """Return the seed of the sample *key* of the shard *url*, from 0 to 2**63 - 1.

        Only the part of *url* after its last slash counts.

        >>> SampleSeeds(7, 0).of("s3://b/a.tar", "n01") == SampleSeeds(7, 0).of("a.tar", "n01")
        True
        """
        text = f"{self.seed & MAX_SEED} {self.epoch} {self.repetition} {url.rpartition('/')[2]} {key}"
        return int.from_bytes(blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()) & MAX_SEED


class SharedSeeds(SharedNumbers):
    """The seeds of all samples in the current epoch: `begin` sets it in this process, `of` is also for its workers.

    At first, the seed and the epoch are 0.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def begin(self, seed: int | None, epoch: int) -> None:
        """Make *epoch* the current one, of a run with *seed*; None: keep the seed."""
        self.numbers[1] = epoch
        if seed is not None:
            self.numbers[0] = seed & MAX_SEED

    def of(self, url: str, key: str) -> int:
        """Return the seed of the sample *key* of the shard *url* in the current epoch, from 0 to 2**63 - 1.

        Only the part of *url* after its last slash counts.
        """
        return SampleSeeds(*self.numbers).of(url, key)


def seed_parameter(function: Any) -> str | None:
    """Return the parameter by which *function* asks for a seed, "seed" or "rng"; None if it does not ask.

    If both ask, it is "seed". A parameter of that name with a default other than None does not ask, nor does one that
    is positional only; nor does a function whose signature can't be found out.
    """
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # such as many of C
        return None
    for name in SEED_PARAMETERS:
        parameter = parameters.get(name)
        by_name = parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if parameter is not None and by_name and parameter.default in (parameter.empty, None):
            return name
    return None


def call_with_seed(function: Callable[..., Any], parameter: str | None, seed: int, *values: Any) -> Any:
    """Return the result of *function* for *values*, and for *seed* by keyword if it has a *parameter* for it.

    *parameter*: "seed", which gets the number; "rng", which gets a numpy Generator of it; None: no seed is passed.
    """
    if parameter is None:
        return function(*values)
    if parameter == "seed":
        return function(*values, seed=seed)
    import numpy as np

    return function(*values, rng=np.random.default_rng(seed))


class CurrentSample:
    """The sample that a stream's stages work on now, for functions that ask for its seed; unknown at first.

    *seeds*: the seeds of the epoch. `note` and `forget` wrap the samples between stages, `bind_seed` the functions in
    stages.
    """

    def __init__(self, seeds: SampleSeeds) -> None:
        self._seeds = seeds
        self._sample: tuple[str, str] | None = None

    def note(self, samples: Iterable[Any]) -> Iterator[Any]:
        """Yield *samples*; each is the current one until the next is asked for.

        At a sample that is no dict with a key, such as a tuple, the current sample becomes unknown.
        """
        for sample in samples:
            is_known = isinstance(sample, dict) and DICT_KEY in sample
            self._sample = (str(sample.get(DICT_URL)), str(sample[DICT_KEY])) if is_known else None
            yield sample

    def forget(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield *items* of a stage that may hold samples; at each the current sample becomes unknown."""
        for item in items:
            self._sample = None
            yield item

    def bind_seed(self, function: Any) -> Any:
        """Return *function* as a function that gets the seed of the current sample, if it asks for one; else unchanged.

        The new function takes arguments by position only, and raises UsageError while the current sample is unknown.
        """
        parameter = seed_parameter(function)
        if parameter is None:
            return function

        def call(*values: Any) -> Any:
            """Call the function with the seed of the current sample. Raises: UsageError if there is none."""
            if self._sample is None:
                raise UsageError(
                    f"{function!r} asks for {parameter}, and of which sample this is, is not known behind a stage that "
                    "holds samples, or behind a shuffle of tuples: put its stage before that one"
                )
            return call_with_seed(function, parameter, self._seeds.of(*self._sample), *values)

        return call
