"""What is wrong with samples that were shown: broken pictures and sounds, and fields that most samples have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import islice

from tartools.errors import printable, several
from tartools.samples.sample import Sample

LISTED = 20  # keys
MOST = 1000  # different combinations of fields; with more, lacking fields are not told


class Flaws:
    """Counts of samples, and the first keys of those that are broken or lack a field. Holds: these keys."""

    def __init__(self) -> None:
        self._samples = 0
        self._broken = 0
        self._broken_keys: list[str] = []
        self._alike: dict[frozenset[str], list[tuple[int, str]]] = {}  # fields -> numbers and keys of the first samples
        self._counts: dict[frozenset[str], int] = {}

    def note(self, sample: Sample, broken: bool) -> None:
        """Count *sample*, which may be *broken*."""
        self._samples += 1
        self._broken += broken
        if broken and len(self._broken_keys) < LISTED:
            self._broken_keys.append(sample.key)
        fields = frozenset(sample.fields)
        if fields in self._counts or len(self._counts) <= MOST:
            self._counts[fields] = self._counts.get(fields, 0) + 1
            known = self._alike.setdefault(fields, [])
            if len(known) < LISTED:
                known.append((self._samples, sample.key))

    def lines(self) -> Iterator[str]:
        """Yield a line about the broken samples, and one for each field that most samples have and others lack."""
        if self._broken:
            yield self._line("broken", self._broken, self._broken_keys)
        if len(self._counts) > MOST:
            return
        for name in sorted(set[str]().union(*self._counts)):
            lacking = sum(count for fields, count in self._counts.items() if name not in fields)
            if lacking and 2 * lacking < self._samples:
                keys = merge(*(keys for fields, keys in self._alike.items() if name not in fields))
                yield self._line(f"without {name or '-'}", lacking, [key for _, key in islice(keys, LISTED)])

    def _line(self, what: str, count: int, keys: Sequence[str]) -> str:
        more = f", and {count - len(keys):,} more" if count > len(keys) else ""
        listed = ", ".join(printable(key) for key in keys)
        return f"{what}: {count:,} of {several(self._samples, 'sample')}: {listed}{more}"
