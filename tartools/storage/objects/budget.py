"""The memory that all open objects of this process share for what they read ahead."""

from __future__ import annotations

import os
import threading

BUDGET = 256 << 20  # bytes


class Budget:
    """A limit of memory, in bytes, that the open objects share."""

    def __init__(self, free: int) -> None:
        self._lock = threading.Lock()
        self._free = free

    def take(self, count: int) -> bool:
        """Take *count* bytes; tell whether so many were free."""
        with self._lock:
            enough = self._free >= count
            self._free -= count * enough
            return enough

    def give(self, count: int) -> None:
        """Give *count* bytes back."""
        with self._lock:
            self._free += count


budget = Budget(BUDGET)
os.register_at_fork(after_in_child=lambda: budget.__init__(BUDGET))  # type: ignore[misc]  # the parent holds what was taken
