"""Parts of a data set that have their shares of the samples of each value, exactly to one sample.

Of the samples with one value, ordered by the hashes of their keys, the first part gets the first ones. So the sets
depend on the keys and values alone, not on order or sharding.

Samples are records in two sorts: by value and hash, which gives each its part, and then by position again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import groupby, islice

from tartools.errors import SampleError
from tartools.samples import shares
from tartools.samples.sortkeys import text_bytes
from tartools.stages.sorting.externalsort import NUMBER, Spool, external_sort

MEMORY = 32 << 20  # bytes of records, three times


def entry(value: str, key: bytes) -> bytes:
    """Return what sorts a sample by *value*, and then by the hash of *key*."""
    number = shares.number_of(key).to_bytes(NUMBER, "big")
    return text_bytes(value.encode("utf-8", "surrogatepass")) + number + text_bytes(key)


def record(entry: bytes, position: int) -> bytes:
    """Return the record of the sample with this *entry* and *position* in the input."""
    return entry + position.to_bytes(NUMBER, "big")


class StratifiedPlan:
    """To which of *parts* each sample of a data set goes, given a *record* of each; reads them all.

    `counts` has the samples of each part. Holds: 100 MiB; the others are in unnamed files in *tmpdir*.
    """

    def __init__(self, records: Iterable[bytes], parts: Sequence[shares.Part], tmpdir: str | None) -> None:
        self._parts = parts
        self._tmpdir = tmpdir
        self.counts = Counter({part.name: 0 for part in parts})
        self._assigned = external_sort(self._assign(external_sort(records, MEMORY, tmpdir)), MEMORY, tmpdir)
        self._next = next(self._assigned, None)

    def _assign(self, records: Iterator[bytes]) -> Iterator[bytes]:
        """Yield the position of each of *records*, sorted by value and hash, a digest of its entry, and its part."""
        for _, same in groupby(records, lambda found: found[: found.index(b"\0\0")]):
            spool = Spool(MEMORY, self._tmpdir)
            count = 0
            for found in same:
                count += 1
                spool.add(found[-NUMBER:] + _digest(found[:-NUMBER]))
            ranked = iter(spool)
            for number, share in enumerate(shares.apportioned(count, self._parts)):
                self.counts[self._parts[number].name] += share
                for found in islice(ranked, share):
                    yield found + number.to_bytes(NUMBER, "big")

    def take(self, entries: Iterable[bytes]) -> list[str]:
        """Return the parts of the next samples, which have *entries*. Raises: SampleError if the input has changed."""
        parts = []
        for each in entries:
            found, self._next = self._next, next(self._assigned, None)
            if found is None or found[NUMBER : 2 * NUMBER] != _digest(each):
                raise changed()
            parts.append(self._part(found))
        return parts

    def rest(self) -> Iterator[str]:
        """Yield the parts of all samples, in the order of the input."""
        while (found := self._next) is not None:
            self._next = next(self._assigned, None)
            yield self._part(found)

    def _part(self, found: bytes) -> str:
        return self._parts[int.from_bytes(found[2 * NUMBER :], "big")].name

    def end(self) -> None:
        """Raise SampleError if there were more samples when the records were made."""
        if self._next is not None:
            raise changed()


def changed() -> SampleError:
    """Return the failure of an input that has other samples when it is read again."""
    return SampleError("the input has changed: keys or values are not those that it had when they were counted")


def _digest(entry: bytes) -> bytes:
    return blake2b(entry, digest_size=NUMBER).digest()
