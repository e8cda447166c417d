"""Several outputs of one command: that they can be written, and are not the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tartools import storage
from tartools.errors import UsageError
from tartools.storage.local import identity


def check(given: Mapping[str, str | None], force: bool, inputs: Sequence[str]) -> None:
    """Check the outputs *given*, by option, before anything is read.

    Raises: UsageError if two are one file, unless that is /dev/null; as `check_output`.
    """
    seen: dict[str, str] = {}
    for option, url in given.items():
        if url is None:
            continue
        storage.check_output(url, force, inputs)
        for other, taken in seen.items():
            if identity(taken) == identity(url) and url != "/dev/null":
                raise UsageError(f"{other} and {option} are one file", url=url)
        seen[option] = url
