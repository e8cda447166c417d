"""Checks of functions for worker processes, and of programs that spawn workers."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Iterable
from multiprocessing import context
from types import FunctionType
from typing import Any

from tartools.storage.objects.cache import cache_of

MAIN_GUARD_HINT = (
    'workers started by {} import the program: put the code that it runs below `if __name__ == "__main__":`'
)


def check_sent(option: str, functions: Iterable[Any]) -> None:
    """Raise TypeError if one of *functions* can't be pickled, and they are being pickled for a worker.

    Does nothing unless a worker is being spawned now. *option*: name of the argument that has them, for the message.
    """
    if context.get_spawning_popen() is not None:
        check_sendable(option, functions)


def check_sendable(option: str, functions: Iterable[Any]) -> None:
    """Raise TypeError if one of *functions* can't be pickled: a lambda, or a function inside another one.

    *option*: name of the argument that has them, for the message. Only functions made by def or lambda are checked,
    no methods and no other callable objects.
    """
    for function in functions:
        if isinstance(function, FunctionType):
            try:
                pickle.dumps(function)
            except Exception:  # each kind has its own
                name = function.__qualname__
                raise TypeError(
                    f"{option} can't be sent to workers: {name} is a lambda, or inside another function; define it by "
                    "def at the top of a module, or have workers forked (multiprocessing_context='fork')"
                ) from None


def check_guarded() -> None:
    """Raise RuntimeError if this is a worker that imports the main program, which would start workers in turn."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):  # as multiprocessing finds it out
        raise RuntimeError(
            MAIN_GUARD_HINT.format(multiprocessing.get_start_method(allow_none=True) or "this start method")
        )


class CacheSetting:
    """The argument `cache=` of datasets, as "/nvme/cache:500GB"; sets `TARTOOLS_CACHE` to it in this process.

    It does so again in each process that unpickles it, such as a worker. `cache`: the text. None changes nothing.
    Raises: UsageError if it is not FOLDER:SIZE.
    """

    def __init__(self, cache: str | None) -> None:
        if cache is not None:
            cache_of(cache)
        self.__setstate__({"cache": cache})

    def __setstate__(self, state: dict[str, str | None]) -> None:
        self.cache = state["cache"]
        if self.cache is not None:
            os.environ["TARTOOLS_CACHE"] = self.cache
