"""What a call in another process returns: its results, and the error that ended it, in one message.

Messages are made by our own workers, of what the caller's function returned, so unpickling them is safe.
"""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

Item = TypeVar("Item")
Work = Callable[[Item], Generator[Any, None, None]]  # called for an item, it yields the results
Answer = list[Any] | bytes  # results as they are, or a message


class Failure:
    """The last of the results of a call: the *error* that ended it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def held(work: Work[Item], item: Item, stopped: Callable[[], object]) -> list[Any]:
    """Return what *work* yields for *item*; no more once it is *stopped*."""
    found: list[Any] = []
    if stopped():
        return found
    try:
        for one in work(item):
            found.append(one)
            if stopped():
                break
    except (Exception, SystemExit) as error:
        found.append(Failure(error))
    return found


def packed(work: Work[Item], item: Item, pickler: Callable[[io.BytesIO], pickle.Pickler]) -> bytes:
    """Return what *work* yields for *item* as a message: pickles by *pickler*, one behind the other.

    What can't be pickled is raised in *work*, which may say what it was made of.
    """
    message, end = io.BytesIO(), 0
    found = work(item)
    try:
        for one in found:
            try:
                pickler(message).dump(one)
            except Exception as error:
                error.add_note(f"a result of type {type(one).__name__} can't be sent from a worker")
                found.throw(error)
            end = message.tell()
    except (Exception, SystemExit) as error:
        message.truncate(end)
        message.seek(end)
        pickle.dump(Failure(portable(error)), message)
    return message.getvalue()


def results(answer: Answer) -> Iterator[Any]:
    """Yield the results in *answer*, of `held` or `packed`. Raises: the error that ended the call, after them."""
    for one in answer if isinstance(answer, list) else _unpacked(answer):
        if isinstance(one, Failure):
            raise one.error
        yield one


def _unpacked(message: bytes) -> Iterator[Any]:
    file = io.BytesIO(message)
    while file.tell() < len(message):
        yield pickle.load(file)  # noqa: S301  # our own message


def portable(error: BaseException) -> BaseException:
    """Return *error*, or an error that says the same if it can't be pickled, with its traceback as a note."""
    text = "".join(traceback.format_exception(error)).rstrip()
    found = error
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  # our own
    except Exception:
        found = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            found.add_note(note)
    found.add_note(f"in a worker:\n{text}")
    return found
