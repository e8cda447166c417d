"""Samples side by side with one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tartools.errors import SampleError
from tartools.samples.sample import Sample


def distinct(samples: Iterable[Sample]) -> Iterator[Sample]:
    """Yield *samples*. Raises: SampleError if two side by side have one key, which readers would take for one."""
    last: bytes | None = None
    for sample in samples:
        if sample.raw_key == last and sample.grouped:
            raise SampleError(
                f"two samples with the key {sample.key!r} side by side, which readers would take for one: "
                "--rekey of tarcat gives new keys, tarsort joins them",
                url=sample.shard,
            )
        last = sample.raw_key if sample.grouped else None
        yield sample
