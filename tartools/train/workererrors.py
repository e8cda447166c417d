"""Batches and exceptions that can't be pickled: a worker sends an error in their place, which names sample and field.

A worker of a DataLoader pickles what it has made in a thread. Where that fails, Python prints a traceback and goes on,
and the training process waits for this batch for ever. So our datasets replace, in workers alone, the pickler that
multiprocessing's queues use: if a result can't be pickled, it sends torch's `ExceptionWrapper` in its place.
Processes of `stream_map` import this without torch.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import queues
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

from tartools.errors import shown
from tartools.samples.sample import DICT_KEY, DICT_URL

MAX_NOTED_VALUES = 4096
# values of these types are always pickled, and are not noted
PLAIN_TYPES = frozenset({bool, int, float, complex, str, bytes, bytearray, type(None)})
ARRAY_TYPES = frozenset({"Tensor", "ndarray"})
PICKLE_HINT = "return tensors, arrays, numbers or texts, or make them in collate_fn, which workers call"


class NotedValue(NamedTuple):
    """The origin of a value that perhaps can't be pickled; `str` gives it in words: "a.tar: sample 'n01', field 'jpg'".

    `kind`: class of the value
    `url`, `key`: shard and key of its sample; the key is "" if the sample has none
    `field`: its field; None if it is all of the sample
    """

    kind: type
    url: str
    key: str
    field: str | None

    def __str__(self) -> str:
        sample = f"{shown(self.url)}: sample {self.key!r}" if self.key else shown(self.url)
        return sample if self.field is None else f"{sample}, field {self.field!r}"


_values: dict[int, NotedValue] = {}  # by id
_guarded: bool = False  # whether this process is a worker with our pickler


def guard_worker() -> bool:
    """Have results that can't be pickled sent as errors, if this process is a worker of a DataLoader; True if it is."""
    global _guarded  # noqa: PLW0603
    if _guarded:
        return True
    if multiprocessing.parent_process() is None:  # no worker: said at once, since each sample asks
        return False
    from torch.utils.data import get_worker_info

    if get_worker_info() is not None:
        queues._ForkingPickler = ResultPickler  # type: ignore[attr-defined]
        _guarded = True
    return _guarded


def note_result(result: Any, sample: Mapping[str, Any], fields: Sequence[str] = ()) -> None:
    """In a worker, remember shard and key of *sample* for the values in *result* that perhaps can't be pickled.

    These are the values of a dict, or the items of a tuple as long as *fields*, their names; else *result* itself.
    `describe_unpicklable` looks them up, by their `id`; the last 4096 (MAX_NOTED_VALUES) are kept. Does nothing unless
    `guard_worker` was called in this worker.
    """
    if not _guarded:  # all samples come here
        return
    url, key = str(sample.get(DICT_URL)), str(sample.get(DICT_KEY, ""))
    values: Iterable[tuple[str | None, Any]] = [(None, result)]
    if isinstance(result, dict):
        values = result.items()
    elif isinstance(result, tuple) and len(result) == len(fields):
        values = zip(fields, result, strict=True)
    for field, value in values:
        if type(value) not in PLAIN_TYPES and type(value).__name__ not in ARRAY_TYPES:
            if len(_values) >= MAX_NOTED_VALUES:
                _values.pop(next(iter(_values)))
            _values.pop(id(value), None)  # so that it is the youngest
            _values[id(value)] = NotedValue(type(value), url, key, field)


class WorkerInit:
    """The worker_init_fn of our loaders: has results that can't be pickled sent as errors, then calls *function*.

    Call it in the worker, with its number. *function*: the user's worker_init_fn; None if there is none.
    """

    def __init__(self, function: Callable[[int], object] | None) -> None:
        self.function = function

    def __call__(self, worker: int) -> None:
        """Call `guard_worker`, and the user's function with *worker*, the number of this worker."""
        guard_worker()
        if self.function is not None:
            self.function(worker)


class ResultPickler(ForkingPickler):
    """Pickles results of a worker, and an error in the place of one that can't be pickled.

    `guard_worker` puts it in the place of the pickler of multiprocessing's queues, which call `dumps`.
    """

    @classmethod
    def dumps(cls, obj: Any, protocol: int | None = None) -> Any:
        """Return the pickle of *obj*, (number, batch); if it can't be pickled, the pickle of (number, error).

        Raises: the error of pickle if *obj* is no pair.
        """
        try:
            return ForkingPickler.dumps(obj, protocol)
        except Exception as error:  # each class has its own
            if not isinstance(obj, tuple) or len(obj) != 2:
                raise
            return ForkingPickler.dumps(replace_by_error(obj, error), protocol)


def replace_by_error(message: tuple[Any, Any], error: Exception) -> tuple[Any, Any]:
    """Return *message*, (number, batch) of a worker, with torch's ExceptionWrapper about *error* in place of the batch.

    In a worker of torchdata the batch is (batch, worker, state): there it becomes (ExceptionWrapper, worker, None).
    """
    target = getattr(multiprocessing.current_process(), "_target", None)
    number, batch = message
    if getattr(target, "__module__", "").startswith("torchdata"):  # whose workers send their states along
        batch, worker, _ = batch
        return number, (make_error_wrapper(batch, error), worker, None)
    return number, make_error_wrapper(batch, error)


def make_error_wrapper(batch: Any, error: Exception) -> Any:
    """Return torch's ExceptionWrapper that says why *batch*, a result or an exception, can't be pickled: *error*.

    In the training process it raises TypeError for a result; for an exception (itself an ExceptionWrapper) RuntimeError
    with its traceback.
    """
    from torch._utils import ExceptionWrapper
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    where = f"in DataLoader worker process {worker.id if worker else 0}"
    if isinstance(batch, ExceptionWrapper):
        name = getattr(batch.exc_type, "__qualname__", str(batch.exc_type))
        kind: type[Exception] = RuntimeError
        text = f"{batch.exc_msg.rstrip()}\n({name} can't be sent from a worker: define it at the top of a module)"
    else:
        kind = TypeError
        problem = f"{describe_unpicklable(batch)} can't be pickled, so the worker can't send it: {error}"
        text = f"TypeError: {problem}; {PICKLE_HINT}"
    wrapper: Any = ExceptionWrapper((kind, kind(), None), where)  # type: ignore[no-untyped-call]
    wrapper.exc_msg = text
    return wrapper


def describe_unpicklable(batch: Any) -> str:
    """Return sample and field, or the place in *batch*, of the innermost value that can't be pickled, and its class.

    "a.tar: sample 'n01', field 'x', lock of _thread"; "a batch, item 3, lock of _thread" if the sample is not known.
    """
    sample: Any = "a batch"
    place: list[str] = []
    value = batch
    while True:
        noted = _values.get(id(value))
        if noted is not None and noted.kind is type(value):
            sample, place = noted, []
        elif isinstance(value, Mapping) and DICT_KEY in value:
            sample, place = NotedValue(dict, str(value.get(DICT_URL, "")), str(value[DICT_KEY]), None), []
        if (part := find_unpicklable(value)) is None:
            kind = getattr(value, "__qualname__", None) or type(value).__qualname__
            return ", ".join([str(sample), *place, f"{kind} of {value.__class__.__module__}"])
        name, value = part
        place.append(f"item {name}" if isinstance(name, int) else f"field {name!r}")


def find_unpicklable(value: Any) -> tuple[Any, Any] | None:
    """Return (key or index, item) of the first item of *value* that can't be pickled; None if there is none.

    Looks into mappings, lists and tuples; other values have no items.
    """
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    else:
        return None
    return next((item for item in items if not can_pickle(item[1])), None)


def can_pickle(value: Any) -> bool:
    """True if *value* can be pickled by multiprocessing's pickler."""
    try:
        ForkingPickler.dumps(value)
    except Exception:  # each class has its own
        return False
    return True
