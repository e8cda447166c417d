"""Several outputs of one command: that they can be written, and are not the same."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from tartools import storage
from tartools.errors import UsageError
from tartools.storage.url import Url


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
            if same_file(taken, url) and url != "/dev/null":
                raise UsageError(f"{other} and {option} are one file", url=url)
        seen[option] = url


def same_file(one: str, other: str) -> bool:
    """Tell whether both outputs are one file, or one object."""
    both = Url(one), Url(other)
    if all(url.is_local for url in both):
        return os.path.realpath(both[0].removeprefix("file:")) == os.path.realpath(both[1].removeprefix("file:"))
    return both[0] == both[1]
