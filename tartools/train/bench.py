"""The measurements of tarbench: passes over samples by torch's DataLoader, with the datasets for training."""

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
from tartools.samples.sample import DICT_KEY, DICT_URL
from tartools.storage import openfiles
from tartools.tables.table import Table
from tartools.tar import split_path
from tartools.train.fieldchooser import FieldChooser
from tartools.train.loading import keep_batch
from tartools.train.objects import ObjectDataset
from tartools.train.payloaddecoding import PictureDecoder
from tartools.train.sampler import StatefulSampler
from tartools.train.samplestream import samples
from tartools.train.tabledataset import TableDataset
from tartools.train.zips import ZipDataset

CROP_PIXELS = 224  # pixels
MAX_TIME_RATIO = 2  # times as long as a row is measured it may take, with what starts workers
MAX_CACHED_SHARE = 0.01  # of the pages of files that may still be cached in a cold run
DECODED_SUFFIXES = ("npy", "json", "jsn")  # besides pictures
SHUFFLE_MODES: dict[str, bool | str] = {"in order": False, "blocks": "blocks", "shuffled": True}

clock = time.perf_counter


class BenchRow(NamedTuple):
    """One measurement of tarbench: how samples are stored, ordered and read.

    `form`: how they are stored: "tar", "table", "zip" or "loose" (files below a prefix)
    `urls`: the shards or zip files, or the one table or prefix
    `files`: local files with the data, for the page cache; [] if none
    `samples`: number of samples of a pass
    `order`: "in order", "blocks" or "shuffled", a key of `SHUFFLE_MODES`
    `workers`: worker processes of the DataLoader; 0: none
    `batch`: samples a batch
    `seconds`: time that the measurement takes, about
    `passes`: complete passes to make instead; None: as many as `seconds` allow
    `cold`: True if `files` are dropped from the page cache before each pass
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
    """Facts about a batch that was read.

    `keys`: keys of its samples
    `size`: bytes of their payloads
    `read_seconds`, `decode_seconds`, `collate_seconds`: times that it took to read, decode and collate them
    """

    keys: list[str]
    size: int
    read_seconds: float
    decode_seconds: float
    collate_seconds: float


class LooseFiles(Dataset[Any]):
    """Samples from the files or objects below *prefix*; adjacent files with one key are one sample.

    Samples are numbered from 0 on, in the order of the URLs. `__getitems__(numbers)` returns a list of samples, as
    dicts, in the order of *numbers*; there is no `dataset[number]`. A key is the path behind *prefix* up to the first
    dot of the base name; without such a dot all of it, and the field is "". Of two files with one key and field, the
    later counts. Raises: StorageError if the prefix can't be listed, or nothing is there.
    """

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
        """Return the samples *numbers*, in this order, as dicts: `__key__`, `__url__`, payloads by field.

        Payloads are bytes, fields in lower case; `__url__` is the URL of the first file of the sample. Raises:
        IndexError; StorageError if a file or object can't be read, or has changed since it was listed.
        """
        selected = [self._samples[number] for number in numbers]
        payloads = self._objects.items([entry for _, _, fields in selected for entry in fields.values()])
        return [
            {DICT_KEY: key, DICT_URL: url, **{field: next(payloads) for field in fields}}
            for key, url, fields in selected
        ]


class NumberedBatches(Dataset[Any]):
    """A dataset of batches of *dataset*: `__getitems__(numbers)` returns the pair (batch, `BatchNote`).

    *numbers*: of the samples of the batch. *chooser* decodes each sample. If reading or decoding fails, the
    TarToolsError is returned in place of the pair: workers can't raise it unchanged. There is no `dataset[number]`.
    """

    def __init__(self, dataset: Any, chooser: FieldChooser) -> None:
        self._dataset, self._chooser = dataset, chooser

    def __getitems__(self, numbers: list[int]) -> Any:
        return make_batch(lambda: self._dataset.__getitems__(numbers), self._chooser)


class ShardBatches(IterableDataset[Any]):
    """Batches of the shards of *row*, in stored order: pairs (batch, `BatchNote`), or errors in their place.

    Iterate over it once for each pass; a worker of DataLoader gets its share of the samples. A batch has `row.batch`
    samples, the last one perhaps fewer. *chooser* decodes each sample. An error, a TarToolsError, is a value, because
    workers can't raise it unchanged; after one of reading there is no further batch.
    """

    def __init__(self, row: BenchRow, chooser: FieldChooser) -> None:
        self._source, self._size, self._chooser = samples(row.urls), row.batch, chooser

    def __iter__(self) -> Iterator[Any]:
        source = iter(self._source)
        while (batch := make_batch(lambda: [*islice(source, self._size)], self._chooser)) is not None:
            yield batch


def _keep_undecoded(field: str, data: bytes) -> bytes | None:
    """Return the payload *data* undecoded; None for the suffixes npy, json and jsn: a later decoder decodes these.

    Pictures never come here: the decoder before this one takes them.
    """
    return None if suffix_of(field) in DECODED_SUFFIXES else data


def make_batch(read: Callable[[], list[dict[str, Any]]], decode: FieldChooser) -> Any:
    """Return (batch, `BatchNote`) of the samples that `read()` returns, decoded and collated; None if there are none.

    *decode*: called with each sample, a dict with `__key__` and `__url__`. The batch is that of `collate`. A
    TarToolsError of reading or decoding is returned, not raised; one of decoding as a SampleError with the URL of the
    sample.
    """
    begun = clock()
    try:
        samples = read()
    except TarToolsError as error:
        return error
    after_read, decoded = clock(), []
    for sample in samples:
        try:
            decoded.append(decode(sample))
        except TarToolsError as error:
            return SampleError(error.message, url=str(sample[DICT_URL]))
    ended = clock()
    batch = collate(decoded)
    size = sum(len(value) for sample in samples for name, value in sample.items() if name[:2] != "__")
    note = BatchNote(
        [sample[DICT_KEY] for sample in samples], size, after_read - begun, ended - after_read, clock() - ended
    )
    return (batch, note) if samples else None


def collate(decoded: list[dict[str, Any]]) -> dict[str, Any]:
    """Return *decoded* samples as a batch: a dict with the values of each field, `__key__` and `__url__` included.

    Where all samples have pictures in a field (uint8 arrays [height, width, channels]), its value is one uint8 tensor
    [samples, 224, 224, channels of the first]: each is cut from the top left, smaller ones filled up with 0. Other
    values are lists, with None for absent fields.
    """
    batch: dict[str, Any] = {}
    for name in dict.fromkeys(name for sample in decoded for name in sample):
        values = batch[name] = [sample.get(name) for sample in decoded]
        if all(isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8 for value in values):
            room = np.zeros((len(values), CROP_PIXELS, CROP_PIXELS, values[0].shape[2]), np.uint8)
            for place, value in zip(room, values, strict=True):
                part = value[:CROP_PIXELS, :CROP_PIXELS, : place.shape[2]]
                place[: part.shape[0], : part.shape[1], : part.shape[2]] = part
            batch[name] = torch.from_numpy(room)
    return batch


def bench_dataset(form: str, urls: Sequence[str]) -> Any:
    """Return a dataset of the samples of *urls*: `len()`, and `__getitems__(numbers)`, which returns them as dicts.

    A dict has `__key__`, `__url__`, and payloads by field, as bytes.
    *form*: "loose" (*urls* is one prefix of files or objects; it has no `dataset[number]`), "zip" (zip files); any
    other: *urls* is one table. Raises: TarToolsError if *urls* can't be listed or opened.
    """
    if form == "loose":
        return LooseFiles(*urls)
    return ZipDataset(urls) if form == "zip" else TableDataset(Table(*urls))


def measure_row(row: BenchRow) -> dict[str, Any]:
    """Measure passes over the samples of *row*, for its time or its number of passes; return the results by name.

    "cache": "cold" if the pages of the files were dropped before each pass and at most 1 % stayed, else "warm", None
    without local files; "samples" read, and complete "passes"; "run_seconds", without the start of workers;
    "samples_per_second" and "bytes_per_second" of the batches that came in these; "cpu_seconds" a sample, of this
    process and its workers;
    "parts": without workers, a dict of the seconds a sample to "list", "read", "decode" and "collate", else None.
    Also limits torch in this process to one thread, and silences warnings.

    Raises: SampleError if a pass has too many samples, a complete one too few, a key comes twice in a pass (if
    `row.files`), or a sample can't be decoded; what reading raises.
    """
    warnings.simplefilter("ignore")  # of torch, about what users of it choose
    torch.set_num_threads(1)
    Image.init()
    chooser = FieldChooser(decode=[PictureDecoder("rgb8", PICTURES), _keep_undecoded])  # pictures to RGB, arrays, JSON
    cached = _drop_cached_pages(row)
    begun = clock()
    arguments, count = _loader_arguments(row, chooser)
    listed, begun = clock() - begun, clock()
    timed, seconds, cpu = np.zeros(5), 0.0, 0.0  # of these: samples, bytes; seconds read, decoded, collated
    count_read = passes = 0
    while count and (
        passes < row.passes if row.passes else seconds < row.seconds and clock() - begun < MAX_TIME_RATIO * row.seconds
    ):
        cached = max(cached, _drop_cached_pages(row))
        used = _processor_seconds()
        with closing(_iterate_notes(arguments, row.workers)) as notes:
            came, batch_facts, took = _measure_pass(row, notes, count, row.seconds - seconds)
        cpu += _processor_seconds() - used
        timed, seconds, count_read, passes = (
            timed + batch_facts,
            seconds + took,
            count_read + came,
            passes + (came == count),
        )
    timed_samples, size, *spent = timed.tolist()
    parts = [listed / max(count, 1), *(part / (timed_samples or 1) for part in spent)]
    return {
        "cache": ("cold" if row.cold and cached <= MAX_CACHED_SHARE else "warm") if row.files else None,
        "samples": count_read,
        "passes": passes,
        "run_seconds": seconds,
        "samples_per_second": timed_samples / (seconds or 1),
        "bytes_per_second": size / (seconds or 1),
        "cpu_seconds": cpu / (count_read or 1),
        "parts": None if row.workers else dict(zip(("list", "read", "decode", "collate"), parts, strict=True)),
    }


def _drop_cached_pages(row: BenchRow) -> float:
    """Drop the files of *row* from the page cache if `row.cold`; return the share of their pages that is still cached.

    The share is from 0.0 to 1.0, without files 0.0; for a row that is not cold, nothing is dropped, and it is 1.0.
    Raises: OSError if a file can't be opened.
    """
    if row.cold:
        openfiles.drop(row.files)
    return openfiles.share_cached(row.files) if row.cold else 1.0


def _loader_arguments(row: BenchRow, chooser: FieldChooser) -> tuple[dict[str, Any], int]:
    """Return (arguments of DataLoader by name for the batches of *row*, number of samples of a pass).

    *chooser* decodes the samples. An item of the DataLoader is a pair (batch, `BatchNote`), or a TarToolsError. The
    number is `row.samples`, or that of the dataset if it has fewer; for "tar", whose `row.order` is not used, always
    `row.samples`. Raises: TarToolsError if the data can't be listed or opened.
    """
    if row.form == "tar":
        return {"dataset": ShardBatches(row, chooser), "batch_size": None}, row.samples
    dataset = bench_dataset(row.form, row.urls)
    count = min(row.samples, len(dataset))
    ordered = dataset if row.form == "table" else range(count)
    order = StatefulSampler(ordered, 1, SHUFFLE_MODES[row.order], batch_size=row.batch, rank=0, world_size=1)
    return {"dataset": NumberedBatches(dataset, chooser), "batch_sampler": order, "collate_fn": keep_batch}, count


def _iterate_notes(arguments: dict[str, Any], workers: int) -> Generator[BatchNote, None, None]:
    """Yield the `BatchNote` of each batch of a pass. The worker processes end when this generator ends or is closed.

    *arguments*: of DataLoader, by name. *workers*: number of its worker processes; 0: none. Raises: the error that came
    in place of a batch.
    """
    iterator = iter(DataLoader(**arguments, num_workers=workers, worker_init_fn=_ignore_signals))
    try:
        for item in iterator:
            if isinstance(item, TarToolsError):
                raise item
            yield item[1]
    finally:
        if workers:
            iterator._shutdown_workers()  # type: ignore[attr-defined]


def _ignore_signals(_worker: int) -> None:
    """Ignore SIGINT and SIGHUP in a worker of DataLoader: the process that started it ends it."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _measure_pass(row: BenchRow, notes: Iterator[BatchNote], count: int, max_seconds: float) -> tuple[int, Any, float]:
    """Make one pass over *count* samples; unless `row.passes` is set, only as far as *max_seconds* seconds allow.

    *notes*: of the batches of the pass, taken one by one. Returns (samples read, sums, seconds): the sums, over batches
    that were timed, are an array of samples, bytes, and seconds to read, decode and collate; the seconds are the time
    that these batches took to come. All batches are timed; but with workers, if *count* is more than two batches for
    each, the first ones, as many as workers, are not: workers start meanwhile. Raises: SampleError if more samples than
    *count* came, a key came twice (checked if `row.files`), or *notes* ended too early.
    """
    keys, count_read, timed, seconds = set[str](), 0, np.zeros(5), 0.0
    starting = row.workers if count > 2 * row.workers * row.batch else 0
    begun = clock()
    for note in notes:
        count_read += len(note.keys)
        keys.update(note.keys)
        if starting:
            starting -= 1
            begun = clock()
            continue
        timed += (len(note.keys), *note[1:])
        seconds = clock() - begun
        if count_read >= count or (not row.passes and seconds >= max_seconds):
            break
    if count_read > count or (row.files and len(keys) < count_read):  # keys of our copies are different
        raise SampleError(
            f"{several(count_read, 'sample')} of {count:,} came, with {len(keys):,} keys: some came twice"
        )
    if count_read < count and (row.passes or seconds < max_seconds):
        raise SampleError(f"only {several(count_read, 'sample')} of {count:,} came")
    return count_read, timed, seconds


def _processor_seconds() -> float:
    """Return the processor seconds, user and system, of this process and of its ended children, since they began."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)
