"""Shared memory in which batches cross from workers: used again, because fresh pages take ten times as long to fill.

A batch of a table is read into a buffer, and stays there until it is dropped. The lists of a stream are put into one as
they are sent, if their payloads are large, and are plain lists with payloads of their own once they are received.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate, pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import get_worker_info

KEPT = 31 << 20  # bytes; glibc looks at blocks up to 32 MiB
SPARE = 4  # a buffer is larger than its first batch by this part of it, for larger ones to come
LARGE = 1 << 12  # bytes of a payload in a list that does not go through the pipe
SHARED = "/dev/shm"  # noqa: S108
WORTH = 1 << 16  # bytes of the large payloads of a batch for which a buffer is taken


def keep_freed_memory() -> None:
    """Have the C library keep memory that is freed, up to 62 MiB of it, for the next batch.

    glibc gives all above 128 KiB back at once, and filling fresh pages takes four times as long as copying payloads
    into pages that are there. It keeps twice the size of the largest block that was ever freed.
    """
    bytearray(KEPT)  # its pages are never touched


class SharedBuffers:
    """The buffers of a worker. The last byte of each says whether the training process still has a batch in it."""

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []

    def take(self, size: int) -> torch.Tensor:
        """Return a buffer of *size* bytes or more, and one more, which is 1 from now on."""
        free = [buffer for buffer in self._buffers if not buffer[-1]]
        found = next((buffer for buffer in free if len(buffer) > size), None)
        if found is None:
            gone = free[:1]  # too small: made anew
            self._buffers = [buffer for buffer in self._buffers if not any(buffer is other for other in gone)]
            storage: Any = torch.empty(0, dtype=torch.uint8).untyped_storage()
            storage = storage._new_shared(size + size // SPARE + 1, device="cpu")
            found = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._buffers.append(found)
        found[-1] = 1
        return found


class ReceivedBuffer:
    """A batch in *buffer*, in the training process. When it is dropped, the worker may use the buffer again."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer
        self._bytes: Any = buffer.numpy()

    def view(self) -> memoryview:
        """Return the bytes."""
        return memoryview(self._bytes)

    def __del__(self) -> None:
        self._bytes[-1] = 0


class SentBuffer:
    """A batch in *buffer*, in the worker: once received it is a `ReceivedBuffer`, which nobody has to look at."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self.buffer = buffer

    def __reduce__(self) -> tuple[Any, ...]:
        return ReceivedBuffer, (self.buffer,)


class SentList(list[Any]):
    """A list that a worker gives to torch's DataLoader. The training process gets a plain list with the same items."""

    def __copy__(self) -> SentList:  # torch converts arrays in a copy
        return SentList(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)


def with_sent_lists(item: Any) -> Any:
    """Return *item* with its outer lists as `SentList`: itself, or those in a tuple or dict, which torch copies."""
    if type(item) is list:
        return SentList(item)
    if type(item) is tuple:
        return tuple([SentList(each) if type(each) is list else each for each in item])
    if type(item) is dict:
        return {name: SentList(each) if type(each) is list else each for name, each in item.items()}
    return item


class _InBuffer:
    """Stands for a payload that is in the buffer."""


_buffers = SharedBuffers()  # of this worker, for lists


def _crossing(batch: SentList) -> tuple[Any, ...]:
    """Return what pickles *batch* for a queue of multiprocessing; other pickles and copies have the items."""
    payloads: list[bytes] = []

    def taken(value: bytes) -> Any:
        if len(value) < LARGE:
            return value
        payloads.append(value)
        return _InBuffer

    frame = _mapped([*batch], bytes, taken)
    ends = [*accumulate(map(len, payloads))]
    if not ends or ends[-1] < WORTH or not _fits(ends[-1]):
        return batch.__reduce__()
    buffer = _buffers.take(ends[-1])
    view = memoryview(buffer.numpy())  # type: ignore[arg-type]
    for end, payload in zip(ends, payloads, strict=True):
        view[end - len(payload) : end] = payload
    return _together, (frame, ends, buffer)


def _fits(size: int) -> bool:
    """Tell whether all workers may take two more buffers of *size*: in a container shared memory may be 64 MB."""
    worker = get_worker_info()
    try:
        system = os.statvfs(SHARED)
    except OSError:  # not a file system here
        return True
    return system.f_bavail * system.f_frsize >= 2 * size * (worker.num_workers if worker else 1)


def _together(frame: list[Any], ends: list[int], buffer: torch.Tensor) -> Any:
    """Return the batch *frame* with its payloads from *buffer*, which its worker uses again."""
    view = memoryview(buffer.numpy())  # type: ignore[arg-type]
    payloads = (bytes(view[begin:end]) for begin, end in pairwise([0, *ends]))
    batch = _mapped(frame, type, lambda value: next(payloads) if value is _InBuffer else value)
    buffer[-1] = 0
    return batch


def _mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return *value* with function(x) in the place of all x of *kind* in its lists, tuples and dicts."""
    if type(value) is kind:
        return function(value)
    if type(value) is list:
        return [_mapped(item, kind, function) for item in value]
    if type(value) is tuple:
        return tuple([_mapped(item, kind, function) for item in value])
    if type(value) is dict:
        return {name: _mapped(item, kind, function) for name, item in value.items()}
    return value


ForkingPickler.register(SentList, _crossing)
