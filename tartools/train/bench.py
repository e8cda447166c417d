"""What tarbench measures: passes over samples as training makes them, by torch's DataLoader and datasets users have."""

from __future__ import annotations

import resource
import signal
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tartools.errors import SampleError, TarToolsError, several
from tartools.samples.filetypes import PICTURES, suffix_of
from tartools.storage import openfiles
from tartools.tables.table import Table
from tartools.tar import split_path
from tartools.train.fieldchooser import KEY, URL, FieldChooser
from tartools.train.loading import as_it_is
from tartools.train.objects import ObjectDataset
from tartools.train.payloaddecoding import PictureDecoder
from tartools.train.sampler import StatefulSampler
from tartools.train.samplestream import samples
from tartools.train.tabledataset import TableDataset
from tartools.train.zips import ZipDataset

CROP = 224  # pixels
MOST = 2  # times as long as a row is measured it may take, with what starts workers
COLD = 0.01  # of the pages of files that may still be cached in a cold run
DECODED = ("npy", "json", "jsn")  # besides pictures
SHUFFLES: dict[str, bool | str] = {"in order": False, "blocks": "blocks", "shuffled": True}

clock = time.perf_counter


class BenchRow(NamedTuple):
    """What is measured: *samples* in a *form* at *urls*, in an *order*, with *workers*, in batches of *batch*.

    *files* are the local files, which are dropped from the page cache if the row is *cold*. It takes about *seconds*,
    or so many *passes* if they are given.
    """

    form: str
    urls: list[str]
    files: list[str]
    samples: int
    order: str
    workers: int
    batch: int
    seconds: float
    passes: int | None
    cold: bool


class BatchNote(NamedTuple):
    """What a batch was: its *keys*, the *size* of its payloads; seconds *read*, *decoded*, *collated*."""

    keys: list[str]
    size: int
    read: float
    decoded: float
    collated: float


class LooseFiles(Dataset[Any]):
    """Files or objects below a prefix, by number; those of one key, side by side, are a sample."""

    def __init__(self, prefix: str) -> None:
        self._objects = ObjectDataset(prefix)
        self._samples: list[tuple[str, str, dict[str, int]]] = []  # key, URL of the first, number of each field
        for number, (url, _) in enumerate(self._objects.objects):
            path = url.removeprefix(prefix).encode("utf-8", "surrogateescape")
            key, field = (part.decode("utf-8", "surrogateescape") for part in split_path(path))
            if not self._samples or self._samples[-1][0] != key:
                self._samples.append((key, url, {}))
            self._samples[-1][2][field.lower()] = number

    def __len__(self) -> int:
        return len(self._samples)

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples *numbers*."""
        wanted = [self._samples[number] for number in numbers]
        found = self._objects.items([entry for _, _, fields in wanted for entry in fields.values()])
        return [{KEY: key, URL: url, **{field: next(found) for field in fields}} for key, url, fields in wanted]


class ByNumber(Dataset[Any]):
    """The batches of a dataset, each with its note; or the error that it met, which no worker could raise as it is."""

    def __init__(self, dataset: Any, chooser: FieldChooser) -> None:
        self._dataset, self._chooser = dataset, chooser

    def __getitems__(self, numbers: list[int]) -> Any:
        return batch_of(lambda: self._dataset.__getitems__(numbers), self._chooser)


class ByShard(IterableDataset[Any]):
    """The batches of the samples of shards as they come, as `ByNumber` has them."""

    def __init__(self, row: BenchRow, chooser: FieldChooser) -> None:
        self._source, self._size, self._chooser = samples(row.urls), row.batch, chooser

    def __iter__(self) -> Iterator[Any]:
        source = iter(self._source)
        while (batch := batch_of(lambda: [*islice(source, self._size)], self._chooser)) is not None:
            yield batch


def _kept(field: str, data: bytes) -> bytes | None:
    """Leave what is neither picture nor array nor JSON as it is: a class may be a number or a word."""
    return None if suffix_of(field) in DECODED else data


def batch_of(read: Callable[[], list[dict[str, Any]]], decode: FieldChooser) -> Any:
    """Return a batch of what *read* reads, and its note; the error of one that is broken; None without samples."""
    begun = clock()
    try:
        found = read()
    except TarToolsError as error:
        return error
    had, decoded = clock(), []
    for sample in found:
        try:
            decoded.append(decode(sample))
        except TarToolsError as error:
            return SampleError(error.message, url=str(sample[URL]))
    ended = clock()
    made = collated(decoded)
    size = sum(len(value) for sample in found for name, value in sample.items() if name[:2] != "__")
    note = BatchNote([sample[KEY] for sample in found], size, had - begun, ended - had, clock() - ended)
    return (made, note) if found else None


def collated(decoded: list[dict[str, Any]]) -> dict[str, Any]:
    """Return *decoded* samples as a batch: pictures in one tensor, all 224 x 224 at the top left; others in lists."""
    made: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in decoded for name in sample):
        values = made[name] = [sample.get(name) for sample in decoded]
        if all(isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8 for value in values):
            room = np.zeros((len(values), CROP, CROP, values[0].shape[2]), np.uint8)
            for place, value in zip(room, values, strict=True):
                part = value[:CROP, :CROP, : place.shape[2]]
                place[: part.shape[0], : part.shape[1], : part.shape[2]] = part
            made[name] = torch.from_numpy(room)
    return made


def bench_dataset(form: str, urls: Sequence[str]) -> Any:
    """Return the samples of *urls*, which are kept in this *form*, by number."""
    if form == "loose":
        return LooseFiles(*urls)
    return ZipDataset(urls) if form == "zip" else TableDataset(Table(*urls))


def measured(row: BenchRow) -> dict[str, Any]:
    """Return what passes over the samples of *row* took, until its time is over, or as many as it wants.

    With counts and rates; and, without workers, the seconds a sample by what they were spent for.

    Raises: SampleError if a complete pass does not have each sample once, or a sample can't be decoded; what reading
    raises.
    """
    warnings.simplefilter("ignore")  # of torch, about what users of it choose
    torch.set_num_threads(1)
    Image.init()
    chooser = FieldChooser(decode=[PictureDecoder("rgb8", PICTURES), _kept])  # pictures to RGB, arrays, JSON
    cached = _drop(row)
    begun = clock()
    how, count = _batches(row, chooser)
    listed, begun = clock() - begun, clock()
    timed, seconds, cpu = np.zeros(5), 0.0, 0.0  # of these: samples, bytes; seconds read, decoded, collated
    given = passes = 0
    while count and (
        passes < row.passes if row.passes else seconds < row.seconds and clock() - begun < MOST * row.seconds
    ):
        cached = max(cached, _drop(row))
        used = _processor_seconds()
        with closing(_notes(how, row.workers)) as notes:
            came, some, took = _pass(row, notes, count, row.seconds - seconds)
        cpu += _processor_seconds() - used
        timed, seconds, given, passes = timed + some, seconds + took, given + came, passes + (came == count)
    some_of, size, *spent = timed.tolist()
    parts = [listed / max(count, 1), *(part / (some_of or 1) for part in spent)]
    return {
        "cache": ("cold" if row.cold and cached <= COLD else "warm") if row.files else None,
        "samples": given,
        "passes": passes,
        "run_seconds": seconds,
        "samples_per_second": some_of / (seconds or 1),
        "bytes_per_second": size / (seconds or 1),
        "cpu_seconds": cpu / (given or 1),
        "parts": None if row.workers else dict(zip(("list", "read", "decode", "collate"), parts, strict=True)),
    }


def _drop(row: BenchRow) -> float:
    """Drop the files of a cold *row* from the page cache; return which share of them is still there."""
    if row.cold:
        openfiles.drop(row.files)
    return openfiles.share_cached(row.files) if row.cold else 1.0


def _batches(row: BenchRow, chooser: FieldChooser) -> tuple[dict[str, Any], int]:
    """Return what DataLoader takes for the batches of *row*, and how many samples a pass has."""
    if row.form == "tar":
        return {"dataset": ByShard(row, chooser), "batch_size": None}, row.samples
    dataset = bench_dataset(row.form, row.urls)
    count = min(row.samples, len(dataset))
    ordered = dataset if row.form == "table" else range(count)
    order = StatefulSampler(ordered, 1, SHUFFLES[row.order], batch_size=row.batch, rank=0, world_size=1)
    return {"dataset": ByNumber(dataset, chooser), "batch_sampler": order, "collate_fn": as_it_is}, count


def _notes(how: dict[str, Any], workers: int) -> Generator[BatchNote, None, None]:
    """Yield the note of each batch of a pass; the workers of DataLoader end with it. Raises: the error of one."""
    found = iter(DataLoader(**how, num_workers=workers, worker_init_fn=_leave_signals))
    try:
        for item in found:
            if isinstance(item, TarToolsError):
                raise item
            yield item[1]
    finally:
        if workers:
            found._shutdown_workers()  # type: ignore[attr-defined]


def _leave_signals(_worker: int) -> None:
    """Leave it to the process that started this worker to end it at a signal of the terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _pass(row: BenchRow, notes: Iterator[BatchNote], count: int, most: float) -> tuple[int, Any, float]:
    """Make one pass over *count* samples, or the part of it that *most* seconds allow.

    Return how many samples came; of those that were timed the samples, bytes, and seconds of parts; and the seconds.
    With workers the clock begins when as many batches have come as there are workers, which have started then.
    """
    keys, given, timed, seconds = set[str](), 0, np.zeros(5), 0.0
    starting = row.workers if count > 2 * row.workers * row.batch else 0
    begun = clock()
    for note in notes:
        given += len(note.keys)
        keys.update(note.keys)
        if starting:
            starting -= 1
            begun = clock()
            continue
        timed += (len(note.keys), *note[1:])
        seconds = clock() - begun
        if given >= count or (not row.passes and seconds >= most):
            break
    if given > count or (row.files and len(keys) < given):  # keys of our copies are different
        raise SampleError(f"{several(given, 'sample')} of {count:,} came, with {len(keys):,} keys: some came twice")
    if given < count and (row.passes or seconds < most):
        raise SampleError(f"only {several(given, 'sample')} of {count:,} came")
    return given, timed, seconds


def _processor_seconds() -> float:
    """Return what this process and its workers that have ended have taken."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)
