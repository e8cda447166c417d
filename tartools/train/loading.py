"""`loader`: a DataLoader that can be resumed; over a table, its batches cross from workers in one buffer."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tartools import storage
from tartools.errors import TarToolsError, several, shown
from tartools.storage.url import Name
from tartools.tables.table import Table
from tartools.train import frameworks
from tartools.train.collation import field_names, with_explanation
from tartools.train.epochorder import is_schedule
from tartools.train.fieldchooser import Classes, Decode, Fields, Size
from tartools.train.sampler import SamplerIteration, StatefulSampler, datasets_in, log
from tartools.train.sending import MAIN_GUARD_HINT, check_guarded, check_sendable
from tartools.train.sharedmemory import SentBuffer, SharedBuffers, keep_freed_memory
from tartools.train.tabledataset import Columns, TableBatch, TableDataset, TableSource
from tartools.train.workererrors import WorkerInit

WORKER_DIED = "DataLoader worker (pid"  # how torch begins to say that a worker was killed, or has ended
WORKER_RAISED = "Caught "  # and what was raised in a worker
MAX_PLACES_IN_MESSAGE = 8  # rows and shards in a message


def loader(
    source: TableSource | Dataset[Any],
    batch_size: int,
    *,
    table: Name | None = None,
    cache: str | None = None,
    columns: Columns = None,
    fields: Fields = None,
    decode: Decode = None,
    transform: Any = None,
    resize: Size = None,
    classes: Classes = None,
    missing: str | None = "error",
    exif: bool = False,
    shuffle: bool | str = True,
    seed: int = 0,
    block: int | str = "4MB",
    weights: Any = None,
    length: int | None = None,
    replacement: bool = False,
    per_batch: bool = False,
    bucket: Any = None,
    max_cost: tuple[Any, float] | None = None,
    drop_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    **options: Any,
) -> Loader:
    """Return a DataLoader over *source*: a table, shards, or a dataset. Most users need only this.

        data = tartools.train.loader("train.parquet", 64, fields=("jpg;png", "cls"), decode="torchrgb8", num_workers=4)
        data.load_state_dict(torch.load("loader.pt"))  # in mid-epoch, with any number of ranks and workers
        for pictures, labels in data: ...

    In a script, put this below `if __name__ == "__main__":`, and define functions that workers call by `def`.

    *table*: URL at which the table of shards is kept. *cache*: "FOLDER:SIZE", for what is read of remote shards.
    *fields*: names of fields, for tuples; None: dicts. *columns*: columns of the table that are fields, too. *decode*:
    name of a decoder, or a function, or a dict of these by field. *transform*: a function of the result, or one for
    each field. *resize*: pixels of the shorter side of pictures, (height, width), or a `Resize`; *exif*: True turns
    them as their EXIF data say. *classes*: names that become numbers. *missing*: for a sample without a field: "error",
    "skip" to leave it out, or None as the value. *shuffle*: True, False, or "blocks" of about *block* bytes; *seed*,
    *weights*, *length*, *replacement*, *per_batch*, *bucket*, *max_cost*, *drop_last*, *rank*, *world_size*: the order,
    as of `StatefulSampler`. *collate_fn* and *options*: those of DataLoader. For a dataset leave out *table* to *exif*.
    Where payloads of a table stay bytes (no *decode*, *transform*, *classes*, *collate_fn*), a batch is a `TableBatch`,
    or a list if it can't be read into one. More: docs/training/fields.md; a program: docs/training/pytorch.md.

    Raises: ValueError if there are no samples, and for arguments that don't fit; TypeError if *batch_size* is no whole
    number, or *options* have a sampler; what TableDataset and StatefulSampler raise.
    """
    arguments = {"fields": fields, "decode": decode, "transform": transform, "resize": resize, "classes": classes}
    arguments |= {"exif": exif or None}
    arguments |= {"table": table, "cache": cache, "columns": columns}
    check_loader_options(batch_size, options)
    mixing: dict[str, Any] = {"length": length, "replacement": replacement, "per_batch": per_batch}
    mixing |= {"weights": weights, "bucket": bucket, "max_cost": max_cost, "drop_last": drop_last}
    data = dataset_of(source, arguments, missing, shuffle, mixing)
    sampler = StatefulSampler(data, seed, shuffle, block, batch_size, rank, world_size, **mixing)
    return Loader(data, sampler, collate_fn, **options)


def check_loader_options(batch_size: Any, options: dict[str, Any]) -> None:
    """Raise TypeError unless *batch_size* is a whole number, and if *options* (of DataLoader) have a sampler.

    That is "sampler" or "batch_sampler" with a value other than None. True and False are no whole numbers.
    """
    if isinstance(batch_size, bool) or not isinstance(batch_size, int):
        raise TypeError(f"batch_size is how many samples a batch has, not {batch_size!r}")
    if samplers := [name for name in ("sampler", "batch_sampler") if options.get(name) is not None]:
        raise TypeError(
            f"loader makes its own sampler, which its state belongs to, and takes no {samplers[0]}: give it shuffle, "
            "weights, length, bucket or max_cost, or a torch.utils.data.Subset of the samples; or write "
            f"torch.utils.data.DataLoader(tartools.train.TableDataset(...), {samplers[0]}=...)"
        )


def dataset_of(
    source: Any, arguments: dict[str, Any], missing: str | None, shuffle: bool | str, mixing: dict[str, Any]
) -> Any:
    """Return *source* as a dataset: itself if it is one, else a `TableDataset` over it.

    `arguments`: arguments of TableDataset by name, None where not given; `missing`: that argument of it
    `shuffle`, `mixing`: arguments of `StatefulSampler`, `mixing` by name; some need a table
    Raises: ValueError if there are no samples; if *source* is a dataset, for a *missing* other than "error" and for any
    of `arguments`; if it is no `TableDataset`, for "blocks", and for columns, patterns and schedules in `mixing`. What
    TableDataset raises.
    """
    if is_dataset(source):
        if missing != "error":
            raise ValueError(f"missing is for tables and shards: this is a {type(source).__name__} already")
        data = source
    else:
        data = TableDataset(source, missing=missing, **arguments)
    if not len(data):
        raise ValueError("there are no samples: the table, the shards or the dataset are empty")
    if data is not source:
        return data
    kind = type(source).__name__
    if wrong := [name for name, value in arguments.items() if value is not None]:
        raise ValueError(f"give {' and '.join(wrong)} to the dataset: this is a {kind} already")
    if not isinstance(source, TableDataset):
        cost = mixing["max_cost"]
        mixing_names = mixing | {"max_cost": cost[0] if isinstance(cost, (tuple, list)) and cost else None}
        names = [name for name, value in mixing_names.items() if isinstance(value, (str, dict)) or is_schedule(value)]
        for feature in ["shuffle='blocks'"] * (shuffle == "blocks") + [f"{name} by name" for name in names]:
            raise ValueError(f"{feature} needs a table: this is a {kind}")
    return source


def is_dataset(source: Any) -> bool:
    """True if *source* is a dataset: has `__len__` and `__getitem__`, but is no Sequence, path or `Table`.

    Texts, lists and tuples are of the class Sequence, and count as names of shards.
    """
    names = isinstance(source, (Sequence, os.PathLike, Table))
    return hasattr(source, "__getitem__") and hasattr(source, "__len__") and not names


class Loader(DataLoader[Any]):
    """A DataLoader over the dataset *data*, in the order of *sampler*. *options*: arguments of DataLoader.

    Iterate over it once for each epoch. *collate_fn*: makes a batch of a list of samples; None: torch's default, with
    its errors explained (`FieldCollation`), or for a `TableDataset` whose payloads stay bytes a `TableBatch`, or a list
    of samples if it can't be read into one. The state (`state_dict`, `load_state_dict`) counts the batches that it has
    yielded, not those that workers have read ahead.
    """

    use_stateful_dataloader = True  # accelerate saves the state of such

    def __init__(
        self,
        data: Any,
        sampler: StatefulSampler,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        self._sampler = sampler
        self._data = data
        options["worker_init_fn"] = WorkerInit(options.get("worker_init_fn"))
        if collate_fn is None and isinstance(data, TableDataset) and data.chooser.raw:
            super().__init__(_TableBatches(data), batch_sampler=sampler, collate_fn=keep_batch, **options)
        else:
            function = with_explanation(collate_fn, field_names(data))
            super().__init__(data, batch_sampler=sampler, collate_fn=function, **options)
        # torch's own would be a SequentialSampler, in whose place Ray and Lightning put a DistributedSampler
        object.__setattr__(self, "sampler", sampler.sampler)
        self._is_prepared = False  # by accelerate

    def __getattr__(self, name: str) -> Any:
        """Answer accelerate's question whether it prepared this loader: True, so that it takes it as it is.

        From then on iterations yield batches on accelerate's device. Raises: AttributeError for any other name.
        """
        if name != frameworks.PREPARED_ATTRIBUTE:
            raise AttributeError(f"'Loader' object has no attribute {name!r}")
        # accelerate asks this in `prepare` alone, and returns the loader if it is true
        self._is_prepared = True
        return True

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of the next epoch, of the one that was set, or the rest of the epoch of a loaded state.

        An iteration that is left after a batch ends its epoch, too. Raises: what reading and collate_fn raise, also in
        a worker; RuntimeError for a worker that has ended, for StopIteration, and in a worker that imports the main
        program; TypeError for a function that can't be sent to spawned workers.
        """
        if self._is_prepared:
            return frameworks.iterate_for_accelerate(self, self._batches(), self._is_at_end)
        return self._batches()

    def with_collation(self, collate_fn: Callable[[list[Any]], Any]) -> Loader:
        """Return a loader with the data, order and worker options of this one that makes batches by *collate_fn*.

        Batches of that loader are not pinned. Both count on in one order: iterate over one of them.
        """
        names = ["num_workers", "timeout", "multiprocessing_context", "generator", "prefetch_factor"]
        names += ["persistent_workers", "in_order"]
        values = {name: getattr(self, name, None) for name in names}
        options = {name: value for name, value in values.items() if value is not None}
        function = getattr(self.worker_init_fn, "function", None)
        return Loader(self._data, self._sampler, collate_fn, worker_init_fn=function, **options)

    @property
    def running(self) -> SamplerIteration | None:
        """The iteration of the sampler that was begun last.

        None before the first one, and after `load_state_dict`, or `set_epoch` with another epoch.
        """
        return self._sampler.running

    @property
    def samples_in_batch(self) -> int:
        """The batch size: the number of samples in each batch but the last ones of an epoch; 1 if the sampler has none.

        With `bucket=` or `max_cost=` of `loader` batches have at most as many.
        """
        return self._sampler.batch_size or 1

    def rank_and_size(self) -> tuple[int, int]:
        """Return (rank, number of ranks) that this loader reads for: as given, or as of `this_rank`.

        Raises: ValueError for a bad RANK or WORLD_SIZE in the environment.
        """
        return self._sampler.rank_and_size()

    def _is_at_end(self) -> bool:
        """True if no batch of the running iteration remains to be yielded; False without one."""
        return self._sampler.running is not None and not self._sampler.running.remaining

    def _batches(self) -> Iterator[Any]:
        """Yield the batches of the next epoch; after `load_state_dict` the remaining ones of its epoch.

        Raises: what reading and collate_fn raise, also in a worker; RuntimeError for StopIteration, for a worker that
        has ended (with the rows under way), and in a worker that imports the main program; TypeError for a function
        that can't be sent to spawned workers.
        """
        started_by: Any = self.multiprocessing_context or multiprocessing
        method = started_by.get_start_method() if self.num_workers else ""
        if method not in ("", "fork"):
            check_guarded()
            check_sendable("collate_fn", [self.collate_fn])
            check_sendable("worker_init_fn", [getattr(self.worker_init_fn, "function", self.worker_init_fn)])
        if isinstance(self._data, TableDataset):
            self._data.warn_of_returning_key()
        before = _by_pillow(self._data)
        buffers: dict[int, torch.Tensor] = {}  # held, so that they are mapped once
        keep_freed_memory()
        batches: Any = None
        try:
            batches = self._begin_iteration()
            running = cast(SamplerIteration, self._sampler.running)
            for batch in batches:
                if isinstance(batch, TarToolsError):
                    raise batch
                if self.num_workers and isinstance(batch, TableBatch):
                    tensor = batch.bulk.data.obj.base
                    buffers[tensor.data_ptr()] = tensor
                running.consumed += 1
                yield batch
                del batch  # its buffer is free, unless the caller has kept it
        except (ConnectionError, EOFError, RuntimeError) as error:
            torchs = isinstance(error, RuntimeError)
            if (
                not self.num_workers
                or str(error).startswith(WORKER_RAISED)
                or (torchs and not str(error).startswith(WORKER_DIED))
            ):
                raise
            message = str(error) if torchs else "a worker has ended, or was killed, before its batch was received"
            message = " ".join(message.split()).rstrip(".")
            begun = self._sampler.running
            if method != "fork" and not (begun and begun.consumed) and not _is_killed(batches):
                hint = MAIN_GUARD_HINT.format(method)
                message += f" (perhaps as it began, with an error of its own, which is above: {hint})"
            raise RuntimeError(message + self._describe_pending(begun.pending() if begun else [])) from error
        finally:
            del batches  # an exception holds this frame, and this the workers
        running.end_if_over()
        if not running.ended:
            raise RuntimeError("a dataset or collate_fn raised StopIteration: this is not the end of the epoch")
        if refused := _by_pillow(self._data) - before:
            count_text = several(refused, "JPEG")
            log.warning("Pillow decoded %s that simplejpeg refuses: tarcheck --decode names them", count_text)
        if cached := storage.cache_report():
            log.info("%s", cached)

    def _begin_iteration(self) -> Iterator[Any]:
        """Return the iterator of DataLoader over the next epoch, for which this loader counts consumed batches."""
        # torch calls `iter(sampler)` in here and nowhere else, and takes no argument that could say so
        self._sampler.loader_counts = True
        try:
            return super().__iter__()
        finally:
            self._sampler.loader_counts = False

    def _describe_pending(self, batches: list[Any]) -> str:
        """Return the end of an error message: rows and shards of *batches*, which were requested but not yielded.

        *batches*: lists of row numbers. Named are up to 8 rows of the first one, and up to 8 shards of all; for a
        dataset without a table up to 8 items of the first one. "" if there are no batches.
        """
        if not batches:
            return ""
        message = f"; {several(len(batches), 'batch', 'batches')} under way"
        if not isinstance(self._data, TableDataset):
            return f"{message}; the next one has items {_first_values(batches[0])}"
        table, rows = self._data.table, [row for batch in batches for row in batch]
        numbers, begins, _ = table.places()
        names = [shown(url) for url in table.shards()]
        urls = [names[number] for number in dict.fromkeys(numbers[rows].tolist())]
        first = f"the next one has rows {_first_values(batches[0])}, and begins at byte {begins[rows[0]]} of {urls[0]}"
        return f"{message}, from {_first_values(urls)}; {first}"

    @property
    def epoch(self) -> int:
        """The number of the current epoch; once an iteration over it has ended, the number of the next one."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Make *epoch* the epoch of the next iteration: from its begin, or from a loaded state of the same epoch."""
        self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return a state for all ranks: the place after as many batches, on each rank, as this loader has yielded.

        Raises: ValueError with workers and `in_order=False`: of batches that come as they are ready nobody knows which
        are left.
        """
        if self.num_workers and not getattr(self, "in_order", True):  # torch 2.6
            raise ValueError("batches delivered out of order can't be resumed: use in_order=True")
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration resume from *state*, and replace seed and epoch of this loader by the state's.

        Raises: StateError if it is of other data or another order, or no state of a loader.
        """
        self._sampler.load_state_dict(state)


class _TableBatches(Dataset[Any]):
    """A dataset of batches of *data*: `__getitems__(rows)` returns the batch of a list of row numbers.

    It is a `TableBatch`, or a list of samples where that can't be made. In a worker of its loader the payloads of a
    `TableBatch` are in shared memory, as a `SentBuffer` (after sending, a memoryview), and a TarToolsError is returned
    as a value. The length is the number of rows.
    """

    def __init__(self, data: TableDataset) -> None:
        self.data = data
        self._buffers = SharedBuffers()

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: list[int]) -> TableBatch | list[Any] | TarToolsError:
        """Return the batch of *rows*; in a worker of this dataset's loader a TarToolsError as a value.

        Raises: what reading raises; in such a worker no TarToolsError.
        """
        worker = get_worker_info()
        # in a worker of another loader, nobody receives our buffers
        if worker is None or worker.dataset is not self:
            return self.data.batch(rows)
        try:
            return self._read_shared(rows)
        except TarToolsError as error:
            return error

    def _read_shared(self, rows: list[int]) -> TableBatch | list[Any]:
        """Return the batch of *rows*, its payloads in a `SentBuffer`; a list of samples if they can't be read into one.

        Raises: what reading raises; the shared buffer is free then, and if a list is returned.
        """
        buffers: list[torch.Tensor] = []

        def buffer_of(size: int) -> memoryview:
            """Return *size* bytes of a shared buffer, which is kept in `buffers`."""
            buffers.append(self._buffers.take(size))
            buffer: Any = buffers[-1].numpy()
            return memoryview(buffer)[:size]

        try:
            batch = self.data.batch(rows, buffer_of)
            if isinstance(batch, TableBatch):
                batch.bulk.data = SentBuffer(buffers.pop())
            return batch
        finally:
            for unused in buffers:
                unused[-1] = 0


def _by_pillow(data: Any) -> int:
    """Return the number of JPEGs that simplejpeg refused and Pillow decoded for *data*, and for datasets in it.

    Datasets in it are the parts of torch's Subset, ConcatDataset or StackDataset. 0 for other decoders.
    """
    mine: int = data.chooser.by_pillow if hasattr(data, "chooser") else 0
    return mine + sum(map(_by_pillow, datasets_in(data)))


def _is_killed(batches: Any) -> bool:
    """True if a signal ended a worker of the iterator *batches* of DataLoader; waits up to a second for each to end."""
    workers = getattr(batches, "_workers", ())
    for worker in workers:
        worker.join(1)
    return any((worker.exitcode or 0) < 0 for worker in workers)


def _first_values(values: list[Any]) -> str:
    """Return the first 8 (MAX_PLACES_IN_MESSAGE) of *values* as text, "1, 2, 3", with " and N more" for the others."""
    suffix = f" and {len(values) - MAX_PLACES_IN_MESSAGE} more" * (len(values) > MAX_PLACES_IN_MESSAGE)
    return ", ".join(map(str, values[:MAX_PLACES_IN_MESSAGE])) + suffix


def keep_batch(batch: Any) -> Any:
    """Return *batch* unchanged: a collate_fn for batches that are made as a whole."""
    return batch
