"""To which part of a data set each sample goes: by a hash of its key, or by the value of a field."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NoReturn

from tartools.errors import SampleError
from tartools.samples import shares
from tartools.samples.answers import texts
from tartools.samples.listed import keys_of
from tartools.samples.sample import Batch
from tartools.samples.values import Column, field_list

MOST = 1000  # values, each of which has an output that is open


class ByKey:
    """Parts by the hash of the key: the sets depend on the keys alone."""

    def __init__(self, parts: Sequence[shares.Part]) -> None:
        self._names = [part.name for part in parts]
        self._ends = shares.ends(parts)

    def parts(self, batch: Batch) -> list[str]:
        """Return the part of each of the next samples, those of *batch*."""
        return self.of_keys(keys_of(batch))

    def of_keys(self, keys: Sequence[bytes]) -> list[str]:
        """Return the part of each of *keys*."""
        names, ends, number_of = self._names, self._ends, shares.number_of
        return [names[bisect_right(ends, number_of(key))] for key in keys]


class Values:
    """The values of *column*, as text."""

    def __init__(self, column: Column) -> None:
        self._column = column

    def of(self, batch: Batch) -> list[str]:
        """Return the value of each sample of *batch*: see `answers.texts`.

        Raises: SampleError, naming the first sample that has none.
        """
        found = texts(batch, self._column)
        if None in found:
            sample = batch[found.index(None)]
            if batch.columns is not None and batch.columns.values(self._column.name) is not None:
                raise SampleError(f"sample {sample.key!r} has no value in {self._column.name}", url=batch.columns.url)
            raise SampleError(
                f"sample {sample.key!r} has no {self._column.name} (its fields: {field_list(sample.fields)}); "
                f"tarfilter --fields-present {self._column.choices[0]} leaves out such samples",
                url=sample.shard,
            )
        return found  # type: ignore[return-value]


class ByValue:
    """Parts by the value of a field, which is their name. `check(value)` raises ValueError if it can't be a name."""

    def __init__(self, column: Column, check: Callable[[str], None]) -> None:
        self._name = column.name
        self._values = Values(column)
        self._check = check
        self._known: dict[str, str] = {}  # one string for each value

    def parts(self, batch: Batch) -> list[str]:
        """Return the part of each of the next samples, those of *batch*.

        Raises: SampleError, naming the sample, for a value that can't be a name, or is one too many.
        """
        values = self._values.of(batch)
        known = self._known
        for value in dict.fromkeys(values):
            if value not in known:
                try:
                    self._check(value)
                except ValueError as error:
                    self._fail(batch, values.index(value), f"{value[:100]!r} {error}")
                if len(known) == MOST:
                    self._fail(batch, values.index(value), f"{value!r} is one more than {MOST} values, the most there "
                               "may be, because each has an output that is open")  # fmt: skip
                known[value] = value
        return [known[value] for value in values]

    def _fail(self, batch: Batch, number: int, why: str) -> NoReturn:
        sample = batch[number]
        raise SampleError(f"sample {sample.key!r}: its {self._name} can't name an output: {why}", url=sample.shard)
