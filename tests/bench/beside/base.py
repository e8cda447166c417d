"""What a library is to the measurements: how it is found, prepared, iterated and resumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

SEED = 7
BUFFER = 1000  # samples of a shuffle buffer


class Reading(NamedTuple):
    """Shards to read, and how. *place* is a folder for an index or for the samples in another format."""

    urls: list[str]
    place: Path
    batch: int
    shuffle: bool = False
    decoded: bool = False
    go_on: bool = False  # after damage, if the library has such an option
    half: int = 0  # samples before a state is saved

    @property
    def main(self) -> str:
        """The field that is decoded, or is compared."""
        return "jpg" if self.place.name.startswith("photos") else "txt"

    @property
    def remote(self) -> bool:
        return self.urls[0].startswith("http")


class Library:
    """A loader. Samples are mappings of fields to values, or batches of pictures if they are decoded."""

    name: ClassVar[str] = ""
    package: ClassVar[str] = ""
    about: ClassVar[str] = "tar"  # the format that it reads, for the table
    imports: ClassVar[tuple[str, ...]] = ()
    lacks: ClassVar[dict[str, str]] = {}  # by row: why there is none
    goes_on: ClassVar[str] = ""  # the option that goes on after damage

    def __init__(self) -> None:
        self.state: Callable[[], Any] = lambda: None  # of the last `batches`, after the batch that came last

    def load(self) -> None:
        """Import what takes seconds."""
        for name in self.imports:
            import_module(name)

    def prepare(self, reading: Reading) -> None:
        """Make the index or the format that the library needs."""

    def batches(self, reading: Reading, state: Any = None) -> Iterable[Sequence[Any]]:
        """Yield batches of one epoch; the rest of it after *state*."""
        raise NotImplementedError

    def getter(self, reading: Reading) -> tuple[int, Callable[[int], Any]]:
        """Return the number of samples, and a function that reads one by its index."""
        raise NotImplementedError

    def close(self) -> None:
        """End processes of the library."""


def grouped(samples: Iterable[Any], count: int) -> Iterator[list[Any]]:
    """Yield lists of *count* samples, the last one shorter."""
    found = iter(samples)
    while batch := list(islice(found, count)):
        yield batch


def by_key(members: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield samples of adjacent *members*, as WebDataset's convention has it: the key ends at the first dot."""
    key, sample = "", dict[str, Any]()
    for name, value in members:
        folder, slash, base = name.rpartition("/")
        stem, _, field = base.partition(".")
        if key != (folder + slash + stem):
            if sample:
                yield sample
            key, sample = folder + slash + stem, {}
        sample[field] = value
    if sample:
        yield sample


def as_bytes(value: Any) -> bytes:
    """Return the payload of a field, decoded or not."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if hasattr(value, "open"):  # a lazy range of a shard
        with value.open() as file:
            return bytes(file.read())
    if hasattr(value, "tobytes") and value.ndim:
        return bytes(value.tobytes())
    return str(value).encode()


def links(reading: Reading) -> Path:
    """Return *place* with links to the shards, for libraries that take a folder. Missing shards are left missing."""
    reading.place.mkdir(parents=True, exist_ok=True)
    for url in reading.urls:
        link = reading.place / os.path.basename(url)
        if not link.is_symlink():
            link.symlink_to(url)
    return reading.place
