"""Shared memory in which batches cross from workers: used again, because fresh pages take ten times as long to fill."""

from __future__ import annotations

from typing import Any

import torch

KEPT = 31 << 20  # bytes; glibc looks at blocks up to 32 MiB
SPARE = 4  # a room is larger than its first batch by this part of it, for larger ones to come


def keep_freed_memory() -> None:
    """Have the C library keep memory that is freed, up to 62 MiB of it, for the next batch.

    glibc gives all above 128 KiB back at once, and filling fresh pages takes four times as long as copying payloads
    into pages that are there. It keeps twice the size of the largest block that was ever freed.
    """
    bytearray(KEPT)  # its pages are never touched


class Rooms:
    """The rooms of a worker. The last byte of each says whether the training process still has a batch in it."""

    def __init__(self) -> None:
        self._rooms: list[torch.Tensor] = []

    def take(self, size: int) -> torch.Tensor:
        """Return a room for *size* bytes, and one more, which is 1 from now on."""
        free = [room for room in self._rooms if not room[-1]]
        found = next((room for room in free if len(room) > size), None)
        if found is None:
            gone = free[:1]  # too small: made anew
            self._rooms = [room for room in self._rooms if not any(room is other for other in gone)]
            storage: Any = torch.empty(0, dtype=torch.uint8).untyped_storage()
            storage = storage._new_shared(size + size // SPARE + 1, device="cpu")
            found = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._rooms.append(found)
        found[-1] = 1
        return found


class Lease:
    """A batch in *room*, in the training process. When it is dropped, the worker may use the room again."""

    def __init__(self, room: torch.Tensor) -> None:
        self.room = room
        self._bytes: Any = room.numpy()

    def view(self) -> memoryview:
        """Return the bytes."""
        return memoryview(self._bytes)

    def __del__(self) -> None:
        self._bytes[-1] = 0


class Sent:
    """A batch in *room*, in the worker: a `Lease` once it is received, so that nobody has to look at it to drop it."""

    def __init__(self, room: torch.Tensor) -> None:
        self.room = room

    def __reduce__(self) -> tuple[Any, ...]:
        return Lease, (self.room,)
