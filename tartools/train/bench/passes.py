"""Passes over samples as training makes them, through torch's DataLoader, with counts and times."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tartools.errors import SampleError, TarToolsError, several
from tartools.samples.pictures import SUFFIXES
from tartools.storage import pagecache
from tartools.train.bench.forms import FORMS, Form, Row, sizes
from tartools.train.bench.probes import probed, probed_stream
from tartools.train.fields import KEY, URL, Chooser
from tartools.train.pictures import PictureDecoder
from tartools.train.stream import samples

CROP = 224  # pixels
MOST = 2  # times as long as a row is measured it may take, with what starts workers
AHEAD = 2  # batches that DataLoader asks each worker for in advance
DECODED = ("npy", "json", "jsn")  # besides pictures

clock = time.perf_counter


class Note(NamedTuple):
    """What a batch was: the *keys* of its samples, the *size* of their payloads, and what it took.

    *process* made it, which has taken *cpu* seconds of processor time so far. *read*, *decoded* and *collated* are
    seconds. Without keys it says that a worker is ready.
    """

    keys: list[str]
    size: int
    process: int
    cpu: float
    read: float = 0.0
    decoded: float = 0.0
    collated: float = 0.0


class Broken(NamedTuple):
    """A sample of the shard *url* that can't be decoded, and *what* is wrong, with its key."""

    url: str
    what: str


def ready() -> Note:
    """Return the note of a worker that has started."""
    return Note([], 0, os.getpid(), time.process_time())


class Maker:
    """Makes batches of samples as training wants them: decoded, and pictures cropped to one size."""

    def __init__(self) -> None:
        self._chooser = Chooser(decode=[PictureDecoder("rgb8", SUFFIXES), _kept])

    def batch(self, found: list[dict[str, Any]], read: float) -> tuple[dict[str, Any], Note] | Broken:
        """Return a batch of the samples *found*, which took *read* seconds, and its note."""
        begun, decoded = clock(), []
        for sample in found:
            try:
                decoded.append(self._chooser(sample))
            except TarToolsError as error:
                return Broken(str(sample[URL]), error.message)
        ended = clock()
        made = collated(decoded)
        keys = [sample[KEY] for sample in found]
        cpu = time.process_time()
        return made, Note(keys, sizes(found), os.getpid(), cpu, read, ended - begun, clock() - ended)


def _kept(field: str, data: bytes) -> bytes | None:
    """Leave what is neither picture nor array nor JSON as it is: a class may be a number or a word."""
    return None if field.rpartition(".")[2].lower() in DECODED else data


def collated(decoded: list[dict[str, Any]]) -> dict[str, Any]:
    """Return *decoded* samples as a batch: pictures in one tensor, all 224 x 224 at the top left; others in lists."""
    made: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in decoded for name in sample):
        values: list[Any] = [sample.get(name) for sample in decoded]
        if all(isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8 for value in values):
            room = np.zeros((len(values), CROP, CROP, values[0].shape[2]), np.uint8)
            for place, value in zip(room, values, strict=True):
                part = value[:CROP, :CROP, : place.shape[2]]
                place[: part.shape[0], : part.shape[1], : part.shape[2]] = part
            made[name] = torch.from_numpy(room)
        else:
            made[name] = values
    return made


class ByNumber(Dataset[Any]):
    """The batches of *form*; a list of -1 stands for none."""

    def __init__(self, form: Form, maker: Maker) -> None:
        self._form, self._maker = form, maker

    def __getitems__(self, numbers: list[int]) -> Any:
        if numbers[0] < 0:
            return ready()
        begun = clock()
        try:
            found = self._form.read(numbers)
        except TarToolsError as error:  # a worker could not raise it as it is
            return error
        return self._maker.batch(found, clock() - begun)


class Streamed(IterableDataset[Any]):
    """The batches of the samples of shards, as they come."""

    def __init__(self, row: Row, maker: Maker) -> None:
        self._source, self._maker, self._size = samples(row.urls), maker, row.batch

    def __iter__(self) -> Iterator[Any]:
        if torch.utils.data.get_worker_info() is not None:
            for _ in range(AHEAD):
                yield ready()
        found: list[dict[str, Any]] = []
        begun = clock()
        try:
            for sample in self._source:
                found.append(sample)
                if len(found) == self._size:
                    yield self._maker.batch(found, clock() - begun)
                    found, begun = [], clock()
        except TarToolsError as error:
            yield error
            return
        if found:
            yield self._maker.batch(found, clock() - begun)


class Numbers:
    """Batches of numbers for *row*, and before them as many empty ones as DataLoader asks for in advance."""

    def __init__(self, row: Row, form: Form) -> None:
        self._row, self._order = row, form.order(row)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(AHEAD * self._row.workers):
            yield [-1]
        yield from self._order


class Total:
    """What the passes of a row add up to."""

    def __init__(self) -> None:
        self.given = self.passes = 0
        self.samples = self.size = 0  # of these, what was timed
        self.seconds = self.cpu = self.read = self.decoded = self.collated = 0.0
        self.cached = 0.0  # the most of the files that was in the page cache when a pass began

    def add(self, note: Note) -> None:
        """Count a batch."""
        self.samples += len(note.keys)
        self.size += note.size
        self.read += note.read
        self.decoded += note.decoded
        self.collated += note.collated


def measured(row: Row) -> dict[str, Any]:
    """Return what *row* takes: counts, rates, and seconds a sample by what they were spent for.

    Complete passes give each sample exactly once, or this is a failure. The last pass ends when the time is over.
    Raises: SampleError for a sample that can't be decoded; what reading raises.
    """
    torch.set_num_threads(1)
    total = Total()
    _prepare(row, total)
    begun = clock()
    made: Any
    if row.form == "tar":
        made, count = Streamed(row, Maker()), row.samples
    else:
        made = FORMS[row.form](row)
        count = made.count
    listed = clock() - begun
    alone = (0.0, 0.0)
    if row.probed:
        probe: Callable[..., tuple[float, float]] = probed_stream if row.form == "tar" else probed
        alone = probe(row, made, lambda: _prepare(row, total))
    begun = clock()
    while count and (
        total.passes < row.passes
        if row.passes
        else total.seconds < row.seconds and clock() - begun < MOST * row.seconds
    ):
        _prepare(row, total)
        _pass(row, made, total, count)
    taken = total.samples or 1
    return {
        "samples": total.given,
        "passes": total.passes,
        "seconds": total.seconds,
        "samples_per_second": total.samples / (total.seconds or 1),
        "bytes_per_second": total.size / (total.seconds or 1),
        "cpu_seconds": total.cpu / taken,
        "cached": total.cached if row.files else None,
        "parts": _parts(listed / max(count, 1), alone, total) if row.probed else None,
    }


def _parts(listed: float, alone: tuple[float, float], total: Total) -> dict[str, float]:
    """Return the parts of the time of a sample: what the bytes took *alone* is no more than what samples took."""
    taken = total.samples or 1
    read = total.read / taken
    first = min(alone[0], read)
    transfer = min(alone[1], read - first)
    return {
        "list": listed,
        "first_byte": first,
        "transfer": transfer,
        "tar": read - first - transfer,
        "decode": total.decoded / taken,
        "collate": total.collated / taken,
    }


def _prepare(row: Row, total: Total) -> None:
    """Drop the files of *row* from the page cache if that is wanted, and note how much of them is there."""
    if row.cold:
        pagecache.drop(row.files)
        total.cached = max(total.cached, pagecache.cached(row.files))


def _pass(row: Row, made: Any, total: Total, count: int) -> None:
    """Make one pass over the samples, of which there are *count*, or the part of it for which there is time."""
    options: dict[str, Any] = {"num_workers": row.workers}
    if row.workers:
        options["prefetch_factor"] = AHEAD
    if row.form == "tar":
        loader: Any = DataLoader(made, batch_size=None, **options)
    else:
        loader = DataLoader(ByNumber(made, Maker()), batch_sampler=Numbers(row, made), collate_fn=_as_it_is, **options)
    skipped = row.workers if count > 2 * row.workers * row.batch else 0  # batches, until all workers are under way
    keys: set[str] = set()
    given = 0
    before: dict[int, float] = {}  # processor time of each worker
    timer = _Timer(total, before) if not row.workers else None
    found = iter(loader)
    with closing(_Ending(found)):
        for item in found:
            note = _sound(item)
            given += len(note.keys)
            keys.update(note.keys)
            if timer is not None:
                timer.add(note)
            else:
                before[note.process] = note.cpu
                skipped -= bool(note.keys)
                if skipped <= 0:
                    timer = _Timer(total, before)
            late = not row.passes and timer is not None and total.seconds + timer.seconds >= row.seconds
            if late or given >= count:
                break
    if timer is not None:
        timer.stop()
    if given > count or (row.files and len(keys) < given):  # keys of our copies are different
        raise SampleError(f"{several(given, 'sample')} of {count:,} came, with {len(keys):,} keys: some came twice")
    if given < count and (row.passes or total.seconds < row.seconds):
        raise SampleError(f"only {several(given, 'sample')} of {count:,} came")
    total.given += given
    total.passes += given == count


class _Timer:
    """Adds what comes to *total*, from now on. Workers have taken processor time *before*."""

    def __init__(self, total: Total, before: dict[int, float]) -> None:
        self._total = total
        self._begun, self._cpu = clock(), time.process_time()
        self._before, self._after = before, dict(before)  # processor time of each worker

    def add(self, note: Note) -> None:
        """Count a batch, or a worker that has started."""
        self._before.setdefault(note.process, note.cpu)  # has only started
        self._after[note.process] = note.cpu
        self._total.add(note)

    @property
    def seconds(self) -> float:
        """The seconds since it began."""
        return clock() - self._begun

    def stop(self) -> None:
        """Add the time and the processor time."""
        self._total.seconds += self.seconds
        others = self._after.keys() - {os.getpid()}
        workers = (self._after[process] - self._before[process] for process in others)
        self._total.cpu += time.process_time() - self._cpu + sum(workers)


class _Ending:
    """Ends the workers of the iterator *found* of a DataLoader."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def close(self) -> None:
        """Wait for the workers to end."""
        end = getattr(self._found, "_shutdown_workers", None)
        if end is not None:
            end()


def _sound(item: Any) -> Note:
    """Return the note of *item*. Raises: SampleError for what can't be decoded; the error that *item* is."""
    if isinstance(item, TarToolsError):
        raise item
    if isinstance(item, Broken):
        raise SampleError(item.what, url=item.url)
    note: Note = item if isinstance(item, Note) else item[1]
    return note


def _as_it_is(item: Any) -> Any:
    return item
