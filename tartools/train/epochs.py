"""The number of the epoch, which the worker processes of a loader have to agree on without asking each other."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from glob import glob
from typing import Any

PREFIX = "tartools-epochs-"
KEPT = 64  # iterators that are remembered


class Epochs:
    """Counts epochs: each `iter` of a loader gets the next number, the same one in all of its workers.

    torch starts workers anew in each epoch, as copies of a dataset that has never been used, and tells them a number
    that is theirs alone: the seed of the iterator. A small temporary file says which epoch belongs to which seed; it is
    removed with the object, or by a later process, if this one is killed. A copy on another machine, which has no such
    file, counts for itself.
    """

    def __init__(self, first: int = 0) -> None:
        self._calls = 0  # of `take` in this process: workers that persist have the same seed in each epoch
        self._local = first
        self._claimed = ""
        file, self._path = tempfile.mkstemp(dir=_folder(os.getpid()))
        with os.fdopen(file, "w") as opened:
            json.dump([first, {}, ""], opened)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def __deepcopy__(self, _memo: Any) -> Epochs:
        return Epochs(self._exchange(None, None, False))

    def set(self, epoch: int) -> None:
        """Let the next epoch be number *epoch*."""
        self._exchange(None, epoch, False)

    def take(self, epoch: int | None = None) -> int:
        """Return the number of the epoch that begins, *epoch* if it is given; the one after it is next."""
        self._calls += 1
        return self._exchange(self._key(), epoch, True)

    def claim(self, name: str) -> bool:
        """Tell whether the epoch that was taken last is the first that asks for *name*, in this worker or another."""
        claim = f"{name} {self._key() or (os.getpid(), self._calls)}"
        with self._known() as state:
            if state is None:
                claimed, self._claimed = self._claimed, claim
            else:
                claimed = state[2]
                state[2] = claimed if claimed.startswith(f"{name} ") else claim
        return not claimed.startswith(f"{name} ") or claimed == claim

    @property
    def in_workers(self) -> bool:
        """Whether a worker process has taken an epoch."""
        with self._known() as state:
            return state is not None and bool(state[1])

    def _key(self) -> str | None:
        """Return what the workers of one iteration have in common; None outside of them."""
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        return None if worker is None else f"{worker.seed - worker.id} {self._calls}"

    def _exchange(self, key: str | None, epoch: int | None, taken: bool) -> int:
        """Return the epoch of *key*, or else *epoch*, or else the next; note that, and count on if it is *taken*."""
        with self._known() as state:
            if state is None:
                found = self._local if epoch is None else epoch
                self._local = found + taken
                return found
            following, known, _ = state
            found = int(following if epoch is None else epoch)
            if epoch is None and key in known:
                found = int(known[key])
            if taken and known.get(key) != found:
                following = found + 1
            elif not taken:
                following = found
            if key is not None:
                known = dict([*((k, v) for k, v in known.items() if k != key), (key, found)][-KEPT:])
            state[:2] = following, known
        return found

    @contextmanager
    def _known(self) -> Iterator[list[Any] | None]:
        """Give what the file says, which may be changed: the next epoch, those of iterations, the claim; else None."""
        if not os.path.exists(self._path):
            yield None
            return
        with open(self._path, "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state: list[Any] = json.load(file)
            yield state
            file.seek(0)
            json.dump(state, file)
            file.truncate()


@cache
def _folder(owner: int) -> str:
    """Return the folder of the process *owner*, this one, after removing those of processes that were killed.

    It is locked as long as the process, or a fork of it, lives.
    """
    for found in glob(os.path.join(tempfile.gettempdir(), f"{PREFIX}*")):
        with suppress(OSError):  # that of another user, or of a process that lives
            os.close(_locked(found, shutil.rmtree))
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX)
        try:
            _locked(path, os.stat)
        except (BlockingIOError, FileNotFoundError):  # another process has just found it, and removes it
            continue
        except OSError:  # a file system without locks: nobody gets one, so nobody removes the folder
            pass
        atexit.register(_remove_all, path, owner)
        return path


def _locked(path: str, then: Callable[[str], object]) -> int:
    """Lock the folder *path*, call *then* for it, and return its descriptor. Raises: OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        then(path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _remove_all(path: str, owner: int) -> None:
    """Remove the folder *path*, in the process that made it."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)


def _remove(path: str, owner: int) -> None:
    """Remove the file *path*, in the process that made it."""
    if os.getpid() == owner:
        with suppress(FileNotFoundError):
            os.remove(path)
