"""Shared memory in which batches cross from workers: used again, because fresh pages take ten times as long to fill.

A batch of a table is read into a buffer, and stays there until it is dropped. The lists of a stream are put into one as
they are sent, if their payloads are large, and are plain lists with payloads of their own once they are received.
"""

from __future__ import annotations

import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pickle import HIGHEST_PROTOCOL
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import torch
from torch.utils.data import get_worker_info

MAX_KEPT_BYTES = 31 << 20  # bytes; glibc looks at blocks up to 32 MiB
SPARE_PART = 4  # a buffer is larger than its first batch by this part of it, for larger ones to come
SHARED_MEMORY_FOLDER = "/dev/shm"  # noqa: S108
MIN_BUFFER_BYTES = 1 << 16  # bytes of a batch of lists for which a buffer is taken


def keep_freed_memory() -> None:
    """Have the C library keep memory that is freed, up to twice MAX_KEPT_BYTES of it, for the next batch.

    glibc gives all above 128 KiB back at once, and filling fresh pages takes four times as long as copying payloads
    into pages that are there. It keeps twice the size of the largest block that was ever freed.
    """
    bytearray(MAX_KEPT_BYTES)  # its pages are never touched


class SharedBuffers:
    """The buffers of a worker in shared memory, used again for later batches: `take` returns one.

    The last byte of each is 1 from `take` until the training process has freed the batch in it; 0: it is free.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, size: int) -> torch.Tensor:
        """Return a uint8 tensor in shared memory of more than *size* bytes: a free one, else a new one.

        Its last byte, which is not for the caller, is 1 until the training process frees the buffer. A new buffer is
        made a quarter larger than *size*, and replaces one that is free and too small, if there is one.
        """
        free = [candidate for candidate in self._buffers if not candidate[-1]]
        buffer = next((candidate for candidate in free if len(candidate) > size), None)
        if buffer is None:
            too_small = free[:1]  # too small: made anew
            self._buffers = [
                candidate for candidate in self._buffers if not any(candidate is small for small in too_small)
            ]
            storage: Any = torch.empty(0, dtype=torch.uint8).untyped_storage()
            storage = storage._new_shared(size + size // SPARE_PART + 1, device="cpu")
            buffer = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._buffers.append(buffer)
        buffer[-1] = 1
        return buffer


class SentBuffer:
    """A batch in *buffer*, a uint8 tensor in shared memory, that a worker sends: it unpickles as a memoryview.

    In the training process that is `received_bytes(buffer)`: a view of all bytes of the buffer, without a copy.
    """

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return received_bytes, (self.buffer,)


def received_bytes(buffer: torch.Tensor) -> memoryview:
    """Return all bytes of *buffer*, which has a batch at its begin, as a memoryview, in the training process.

    The worker uses the buffer again once the view and all that is made from it without a copy are freed.
    """
    array, last = buffer.numpy(), buffer[-1:].numpy()
    finalize(array, _mark_free, last, os.getpid()).atexit = False
    return memoryview(array)  # type: ignore[arg-type]


def _mark_free(last: Any, process: int) -> None:
    """Clear *last*, the last byte of a buffer as an array, so that the worker uses it again; only in *process* (a pid).

    In forks of that process it does nothing.
    """
    if os.getpid() == process:
        last[:] = 0


class SentList(list[Any]):
    """A list that a worker gives to torch's DataLoader. The training process gets a plain list with the same items."""

    def __copy__(self) -> SentList:  # torch converts arrays in a copy
        return SentList(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)


def with_sent_lists(item: Any) -> Any:
    """Return *item* with lists as `SentList`: itself, or lists that are items of a tuple or values of a dict.

    The tuple or dict is then a new one. Deeper lists stay, since torch copies only these levels; so do subclasses of
    list, tuple and dict, and anything else.
    """
    if type(item) is list:
        return SentList(item)
    if type(item) is tuple:
        return tuple([SentList(value) if type(value) is list else value for value in item])
    if type(item) is dict:
        return {name: SentList(value) if type(value) is list else value for name, value in item.items()}
    return item


_buffers = SharedBuffers()  # of this worker, for lists


def _reduce_list(batch: SentList) -> tuple[Any, ...]:
    """Return (function, arguments) by which queues pickle the list *batch*, and make it in the training process.

    The pickle of a batch of MIN_BUFFER_BYTES or more is in shared memory, if that has space.
    """
    parts: list[bytes] = []  # a payload of 64 KiB or more is one of them, and is not copied for it
    ForkingPickler(SimpleNamespace(write=parts.append), HIGHEST_PROTOCOL).dump([*batch])
    size = sum(map(len, parts))
    if size < MIN_BUFFER_BYTES or not _has_space(size):
        return pickle.loads, (b"".join(parts),)
    buffer = _buffers.take(size)
    view, at = memoryview(buffer.numpy()), 0  # type: ignore[arg-type]
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    return _load_list, (buffer, size)


def _load_list(buffer: torch.Tensor, size: int) -> Any:
    """Return the batch that is pickled in the first *size* bytes of *buffer*; free the buffer for its worker."""
    batch = pickle.loads(memoryview(buffer.numpy())[:size])  # type: ignore[arg-type]  # noqa: S301
    buffer[-1] = 0
    return batch


def _has_space(size: int) -> bool:
    """True if shared memory has space for two more buffers of *size* bytes a worker: a container may have 64 MB.

    True also if its size can't be found out, because there is no SHARED_MEMORY_FOLDER.
    """
    worker = get_worker_info()
    try:
        system = os.statvfs(SHARED_MEMORY_FOLDER)
    except OSError:  # not a file system here
        return True
    return system.f_bavail * system.f_frsize >= 2 * size * (worker.num_workers if worker else 1)


ForkingPickler.register(SentList, _reduce_list)
