"""What is given to a worker process that is no fork, and how a program has to be written for that."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterable
from multiprocessing import context
from types import FunctionType
from typing import Any

GUARD = 'workers that are started by {} import the program: put what it runs below `if __name__ == "__main__":`'


def check_sent(what: str, functions: Iterable[Any]) -> None:
    """Raise TypeError, which says *what* it is, if one of *functions* can't be pickled for a worker that is started."""
    if context.get_spawning_popen() is not None:
        check_sendable(what, functions)


def check_sendable(what: str, functions: Iterable[Any]) -> None:
    """Raise TypeError, which says *what* it is, if one of *functions* is a lambda, or inside another function."""
    for function in functions:
        if isinstance(function, FunctionType):
            try:
                pickle.dumps(function)
            except Exception:  # each kind has its own
                name = function.__qualname__
                raise TypeError(
                    f"{what} can't be sent to workers: {name} is a lambda, or inside another function; define it by "
                    "def at the top of a module, or have workers forked (multiprocessing_context='fork')"
                ) from None


def start_method(given: Any) -> str:
    """Return how workers are started: by the context *given* to a DataLoader, or else as Python does."""
    return str((given or multiprocessing).get_start_method())


def check_guarded() -> None:
    """Raise RuntimeError if the program starts workers while it is imported by one."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):  # as multiprocessing finds it out
        raise RuntimeError(GUARD.format(multiprocessing.get_start_method(allow_none=True) or "this start method"))
