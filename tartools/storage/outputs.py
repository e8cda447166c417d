"""Outputs held by a Python program: they appear at `close`, and never by garbage collection."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tartools.storage.interrupts import defer_signals
from tartools.storage.streams import Completable

Writer = TypeVar("Writer", bound=Completable)


class Pending(Generic[Writer]):
    """Holds an open writer that is aborted unless it is committed before its *owner* is garbage-collected.

    `writer` is the open writer, to write to; end by `commit` or `abort`. *begin*: called at once, without arguments; it
    opens and returns the writer, and a signal that comes meanwhile is handled after it. The writer is also aborted at
    the end of the program. It belongs to the process that made it. In a fork of that process it is never written,
    flushed or committed.
    """

    def __init__(self, owner: object, begin: Callable[[], Writer]) -> None:
        with defer_signals():
            self._process = os.getpid()
            self._writer = begin()
            self._finalizer = weakref.finalize(owner, _abort, self._writer, self._process)

    @property
    def is_open(self) -> bool:
        """True until the writer is committed or aborted."""
        return self._finalizer.alive

    @property
    def is_ours(self) -> bool:
        """True in the process that made the writer; False in its forks."""
        return os.getpid() == self._process

    @property
    def writer(self) -> Writer:
        """The open writer. Raises: ValueError after `commit` and `abort`; RuntimeError in another process."""
        if not self.is_open:
            raise ValueError("writing to a closed output")
        self.check_process()
        return self._writer

    def check_process(self) -> None:
        """Raise RuntimeError if the writer is open, and was made by another process."""
        if self.is_open and not self.is_ours:
            raise RuntimeError(
                "this output belongs to the process that opened it: another one, such as a fork of it, "
                "can neither write nor close it"
            )

    def commit(self) -> None:
        """Commit the writer, or abort it if that fails. Does nothing the second time, or after `abort`.

        Raises: the errors of the writer's `commit`; RuntimeError in another process.
        """
        if not self.is_open:
            return
        self.check_process()
        try:
            self._writer.commit()
        except BaseException:
            self.abort()
            raise
        self._finalizer.detach()

    def abort(self) -> None:
        """Abort the writer; in another process only close its files there. Does nothing after `commit` or `abort`."""
        if not self.is_open:
            return
        self._finalizer()
        if not self.is_ours:
            del self._writer  # its files are closed when nobody uses them


def _abort(writer: Completable, process: int) -> None:
    """Abort *writer* if this is the process with pid *process*: a fork would flush the parent's buffers again."""
    if os.getpid() == process:
        writer.abort()


class ClosedByBlock:
    """A base class of context managers that have `close` and `abort`.

    It calls `close` after a normal end of the block, else `abort`.
    """

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self: Any, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Call `close` after a normal end of the block, `abort` after an exception, which is raised further."""
        if kind is None:
            self.close()
        else:
            self.abort()
