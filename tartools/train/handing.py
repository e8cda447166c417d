"""`Handed`: a batch of a stream that crosses from a worker with its large payloads in one buffer."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate, pairwise
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import get_worker_info

from tartools.train.rooms import Rooms

LARGE = 1 << 12  # bytes of a payload that does not go through the pipe
SHARED = "/dev/shm"  # noqa: S108
WORTH = 1 << 16  # bytes of the large payloads of a batch for which a buffer is taken


class Handed(list[Any]):
    """A list that a worker gives to torch's DataLoader. The training process gets a plain list with the same items."""

    def __copy__(self) -> Handed:  # torch converts arrays in a copy
        return Handed(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)


def handed(item: Any) -> Any:
    """Return *item* with its outer lists as `Handed`: itself, or those in a tuple or dict, which torch copies."""
    if type(item) is list:
        return Handed(item)
    if type(item) is tuple:
        return tuple([Handed(each) if type(each) is list else each for each in item])
    if type(item) is dict:
        return {name: Handed(each) if type(each) is list else each for name, each in item.items()}
    return item


class _Payload:
    """Stands for a payload that is in the buffer."""


_rooms = Rooms()  # of this worker


def _crossing(batch: Handed) -> tuple[Any, ...]:
    """Return what pickles *batch* for a queue of multiprocessing; other pickles and copies have the items."""
    payloads: list[bytes] = []

    def taken(value: bytes) -> Any:
        if len(value) < LARGE:
            return value
        payloads.append(value)
        return _Payload

    frame = _mapped([*batch], bytes, taken)
    ends = [*accumulate(map(len, payloads))]
    if not ends or ends[-1] < WORTH or not _fits(ends[-1]):
        return batch.__reduce__()
    room = _rooms.take(ends[-1])
    view = memoryview(room.numpy())  # type: ignore[arg-type]
    for end, payload in zip(ends, payloads, strict=True):
        view[end - len(payload) : end] = payload
    return _together, (frame, ends, room)


def _fits(size: int) -> bool:
    """Tell whether all workers may take two more rooms of *size*: in a container shared memory may be 64 MB."""
    worker = get_worker_info()
    try:
        system = os.statvfs(SHARED)
    except OSError:  # not a file system here
        return True
    return system.f_bavail * system.f_frsize >= 2 * size * (worker.num_workers if worker else 1)


def _together(frame: list[Any], ends: list[int], room: torch.Tensor) -> Any:
    """Return the batch *frame* with its payloads from *room*, which its worker uses again."""
    view = memoryview(room.numpy())  # type: ignore[arg-type]
    payloads = (bytes(view[begin:end]) for begin, end in pairwise([0, *ends]))
    batch = _mapped(frame, type, lambda value: next(payloads) if value is _Payload else value)
    room[-1] = 0
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


ForkingPickler.register(Handed, _crossing)
