"""What tarbench measures, in a process of its own: `python -m tartools.train.bench`.

A line of JSON on stdin is a `BenchRow`; a line on stdout says what came of it, or which error ended it. What is
measured are passes over the samples as training makes them, through torch's DataLoader and the datasets that users
have.
"""

from __future__ import annotations

import json
import resource
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tartools import storage
from tartools.errors import SampleError, TarToolsError, several
from tartools.samples.filetypes import PICTURES, suffix_of
from tartools.shards.forks import write_all
from tartools.storage import openfiles
from tartools.storage.streams import stream_file
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
DECODED = ("npy", "json", "jsn")  # besides pictures

clock = time.perf_counter


class BenchRow(NamedTuple):
    """What is measured: *samples* in a *form* at *urls*, in an *order*, in batches of *batch*.

    *files* are the local files, which are dropped from the page cache if the row is *cold*. It takes about *seconds*,
    or so many *passes* if they are not 0.
    """

    form: str
    urls: list[str]
    order: str | None
    workers: int
    batch: int
    samples: int
    seconds: float
    passes: int
    cold: bool
    files: list[str]


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

    def __init__(self, dataset: Any) -> None:
        self._dataset, self._chooser = dataset, chooser()

    def __getitems__(self, numbers: list[int]) -> Any:
        return batch_of(lambda: self._dataset.__getitems__(numbers), self._chooser)


class ByShard(IterableDataset[Any]):
    """The batches of the samples of shards as they come, as `ByNumber` has them."""

    def __init__(self, row: BenchRow) -> None:
        self._source, self._size, self._chooser = samples(row.urls), row.batch, chooser()

    def __iter__(self) -> Iterator[Any]:
        source = iter(self._source)
        while (batch := batch_of(lambda: [*islice(source, self._size)], self._chooser)) is not None:
            yield batch


def chooser() -> FieldChooser:
    """Return what decodes samples as training wants them: pictures to RGB, arrays, JSON."""
    return FieldChooser(decode=[PictureDecoder("rgb8", PICTURES), _kept])


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


class MeasuredPasses:
    """Passes over the samples of a *row*, and what they add up to."""

    def __init__(self, row: BenchRow) -> None:
        self._row = row
        self.given = self.passes = 0
        self.timed = np.zeros(5)  # of these: samples, bytes; seconds read, decoded, collated
        self.seconds = self.cpu = 0.0
        self.cached = 0.0  # the most of the files that was in the page cache when a pass began
        self._drop()
        begun = clock()
        if row.form == "tar":
            self.count, self._order = row.samples, None
            self._dataset: Any = ByShard(row)
        else:
            dataset = _dataset(row)
            self.count = min(row.samples, len(dataset))
            ordered = dataset if row.form == "table" else range(self.count)
            shuffle = row.order or False
            self._order = StatefulSampler(ordered, 1, shuffle, batch_size=row.batch, rank=0, world_size=1)
            self._dataset = ByNumber(dataset)
        self.listed = clock() - begun

    def run(self) -> None:
        """Make passes until the time is over, or as many as the row wants.

        A complete one gives each sample exactly once, or this is a failure. Raises: SampleError for a sample that can't
        be decoded; what reading raises.
        """
        row, begun = self._row, clock()
        while self.count and (
            self.passes < row.passes
            if row.passes
            else self.seconds < row.seconds and clock() - begun < MOST * row.seconds
        ):
            self._drop()
            used = _processor_seconds()
            given = self._pass()
            self.cpu += _processor_seconds() - used
            self.given += given
            self.passes += given == self.count

    def _drop(self) -> None:
        """Drop the files from the page cache if that is wanted, and note how much of them is there."""
        if self._row.cold:
            openfiles.drop(self._row.files)
            self.cached = max(self.cached, openfiles.share_cached(self._row.files))

    def _pass(self) -> int:
        """Make one pass, or the part of it for which there is time; return how many samples came.

        With workers the clock begins when as many batches have come as there are workers, which have started then.
        """
        row, keys, given = self._row, set[str](), 0
        starting = row.workers if self.count > 2 * row.workers * row.batch else 0
        before, begun = self.seconds, clock()
        for note in self._notes():
            given += len(note.keys)
            keys.update(note.keys)
            if starting:
                starting -= 1
                begun = clock()
                continue
            self.timed += (len(note.keys), *note[1:])
            self.seconds = before + clock() - begun
            if given >= self.count or (not row.passes and self.seconds >= row.seconds):
                break
        if given > self.count or (row.files and len(keys) < given):  # keys of our copies are different
            raise SampleError(
                f"{several(given, 'sample')} of {self.count:,} came, with {len(keys):,} keys: some came twice"
            )
        if given < self.count and (row.passes or self.seconds < row.seconds):
            raise SampleError(f"only {several(given, 'sample')} of {self.count:,} came")
        return given

    def _notes(self) -> Iterator[BatchNote]:
        """Yield the note of each batch of a pass; the workers of DataLoader end with it. Raises: the error of one."""
        how: dict[str, Any] = {"batch_size": None}
        if self._order is not None:
            how = {"batch_sampler": self._order, "collate_fn": as_it_is}
        found = iter(DataLoader(self._dataset, num_workers=self._row.workers, **how))
        try:
            for item in found:
                if isinstance(item, TarToolsError):
                    raise item
                yield item[1]
        finally:
            if self._row.workers:
                found._shutdown_workers()  # type: ignore[attr-defined]

    def facts(self) -> dict[str, Any]:
        """Return counts, rates, and, without workers, the seconds a sample by what they were spent for."""
        samples, size, *seconds = self.timed.tolist()
        each = [self.listed / max(self.count, 1), *(some / (samples or 1) for some in seconds)]
        parts = dict(zip(("list", "read", "decode", "collate"), each, strict=True))
        return {
            "samples": self.given,
            "passes": self.passes,
            "run_seconds": self.seconds,
            "samples_per_second": samples / (self.seconds or 1),
            "bytes_per_second": size / (self.seconds or 1),
            "cpu_seconds": self.cpu / (self.given or 1),
            "cached": self.cached if self._row.files else None,
            "parts": None if self._row.workers else parts,
        }


def _dataset(row: BenchRow) -> Any:
    if row.form == "loose":
        return LooseFiles(*row.urls)
    return ZipDataset(row.urls) if row.form == "zip" else TableDataset(Table(*row.urls))


def _processor_seconds() -> float:
    """Return what this process and its workers that have ended have taken."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def measured_row(row: BenchRow) -> dict[str, Any]:
    """Return what *row* takes, see `MeasuredPasses.facts`; or the error that ended it."""
    try:
        passes = MeasuredPasses(row)
        passes.run()
        return passes.facts()
    except TarToolsError as error:
        kind = type(error).__name__
        return {"error": kind, "message": error.message, "url": error.url, "offset": error.offset}
    except Exception:
        return {"bug": traceback.format_exc()}


def answers(lines: Iterable[str | bytes]) -> None:
    """Write to stdout what came of the row of each of *lines*."""
    for line in lines:
        try:
            write_all(1, memoryview(json.dumps(measured_row(BenchRow(**json.loads(line)))).encode() + b"\n"))
        except BrokenPipeError:  # tarbench was killed
            return


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of torch, about what users of it choose
    torch.set_num_threads(1)
    import_module("pyarrow.parquet")  # so that its time is not that of a row
    Image.init()
    with stream_file(storage.open_read("-"), "-") as stdin:
        answers(stdin)
