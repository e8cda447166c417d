"""Functions for `stream_map` that other processes can import at little cost."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Sample = dict[str, Any]


def mixed(sample: Sample) -> Any:
    """Return nothing, one result or several, by the number in the key."""
    key, number = sample["__key__"], int(sample["__key__"][-4:])
    if number % 5 == 3:
        return None
    if number % 5 == 4:
        return (part for part in (f"{key} first", None, (key, sample["__url__"])))
    return [key, sample.get("jpg")]


def expected(samples: list[Sample]) -> list[Any]:
    """Return what `mixed` makes of *samples*."""
    found: list[Any] = []
    for made in map(mixed, samples):
        found += [one for one in (made if isinstance(made, Iterator) else [made]) if one is not None]
    return found


def gated(gate: str, sample: Sample) -> Any:
    """Do as `mixed`; note each call, and wait in the middle of parts while *gate* is locked."""
    number = int(sample["__key__"][-4:])
    with Path(f"{gate}-calls").open("a") as calls:
        calls.write(f"{sample['__key__']}\n")
    if number % 8 == 4:
        Path(f"{gate}-at-{os.getpid()}").touch()
        with Path(gate).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    return mixed(sample)


def failing(how: str, sample: Sample) -> Any:
    """Fail in one of many ways at sample 0007."""
    if not sample["__key__"].endswith("0007"):
        return sample["__key__"]
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "result":
        return lambda: sample
    if how == "exit":
        sys.exit(3)
    if how == "strange":
        raise StrangeError(1, 2)
    raise ValueError("no such colour")


class StrangeError(Exception):
    """Can't be unpickled, as many exceptions of libraries."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")
