"""`loader`: a DataLoader over a table, whose batches cross from workers in one buffer, and which can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from tartools import storage
from tartools.errors import TarToolsError, several, shown
from tartools.storage.url import Name
from tartools.train.fieldchooser import Decode, Fields, Size
from tartools.train.sampler import StatefulSampler, log
from tartools.train.sending import GUARD, check_guarded, check_sendable, start_method
from tartools.train.sharedmemory import ReceivedBuffer, SentBuffer, SharedBuffers, keep_freed_memory
from tartools.train.tabledataset import TableBatch, TableDataset, TableSource

ENDED = "DataLoader worker (pid"  # how torch begins to say that a worker was killed, or has ended
NAMED = 8  # rows and shards in a message


def loader(
    source: TableSource | TableDataset,
    batch_size: int,
    *,
    table: Name | None = None,
    cache: str | None = None,
    fields: Fields = None,
    decode: Decode = None,
    transform: Any = None,
    resize: Size = None,
    shuffle: bool | str = True,
    seed: int = 0,
    block: int | str = "4MB",
    weights: Any = None,
    drop_last: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    **options: Any,
) -> Loader:
    """Return a DataLoader over *source*: a TableDataset, or what TableDataset takes. Most people want this.

        data = tartools.train.loader("train.parquet", 64, fields=("jpg;png", "cls"), decode="torchrgb8", num_workers=4)
        data.load_state_dict(torch.load("loader.pt"))  # in mid-epoch, with any number of ranks and workers
        for pictures, labels in data: ...

    In a script, put this below `if __name__ == "__main__":`, because Python from 3.14 on, and macOS, import the
    script in each worker; define functions that workers call (*transform*, *collate_fn*) by `def`, not by `lambda`.

    *table*, *cache*, *fields*, *decode*, *transform* and *resize* are those of TableDataset, *shuffle*, *seed*,
    *block*, *weights*, *drop_last*, *rank* and *world_size* those of `StatefulSampler`, and *options* those of
    DataLoader (`num_workers`, `pin_memory`, ...).

    With *decode* or *transform*, batches are collated as DataLoader does; with *collate_fn*, by this function of a list
    of samples, in the worker. Else payloads are bytes, and a batch is `TableBatch`, which are iterated over, or taken
    by number: from workers they come in one buffer of shared memory, and are sliced when they are used.
    """
    given = (fields, decode, transform, resize)
    if not isinstance(source, TableDataset):
        data = TableDataset(source, *given, table=table, cache=cache)
    elif (*given, table, cache) == (None,) * 6:
        data = source
    else:
        raise ValueError("this is a TableDataset: give fields, decode, transform, resize, table and cache to it")
    sampler = StatefulSampler(data, seed, shuffle, block, batch_size, rank, world_size, weights, drop_last)
    return Loader(data, sampler, collate_fn, **options)


class Loader(DataLoader[Any]):
    """A DataLoader over a TableDataset by a `StatefulSampler`. Its state is by batches that were handed out."""

    def __init__(
        self,
        data: TableDataset,
        sampler: StatefulSampler,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        **options: Any,
    ) -> None:
        self._sampler = sampler
        self._data = data
        self._handed: int | None = None  # batches of the iteration that is under way
        if collate_fn is None and data.chooser.raw:
            super().__init__(_TableBatches(data), batch_sampler=sampler, collate_fn=_as_it_is, **options)
        else:
            super().__init__(data, batch_sampler=sampler, collate_fn=collate_fn, **options)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of this epoch, from where a state was made if one was loaded.

        Raises: what reading raises, with URL and byte, also for what a worker met.
        """
        method = start_method(self.multiprocessing_context) if self.num_workers else ""
        if method not in ("", "fork"):
            check_guarded()
            check_sendable("collate_fn", [self.collate_fn])
            check_sendable("worker_init_fn", [self.worker_init_fn])
        self._handed = 0
        before = self._data.chooser.by_pillow
        buffers: dict[int, torch.Tensor] = {}  # held, so that they are mapped once
        keep_freed_memory()
        batches: Any = None
        try:
            batches = super().__iter__()
            for batch in batches:
                if isinstance(batch, TarToolsError):
                    raise batch
                if isinstance(batch, TableBatch) and isinstance(batch.bulk.data, ReceivedBuffer):
                    buffers.setdefault(batch.bulk.data.buffer.data_ptr(), batch.bulk.data.buffer)
                self._handed += 1
                yield batch
                del batch  # its buffer is free, unless the caller has kept it
        except (ConnectionError, EOFError, RuntimeError) as error:
            torchs = isinstance(error, RuntimeError)
            if not self.num_workers or (torchs and not str(error).startswith(ENDED)):
                raise
            what = str(error) if torchs else "a worker has ended, or was killed, before its batch was received"
            what = " ".join(what.split()).rstrip(".")
            if method != "fork" and not self._handed and not _killed(batches):
                what += f" (perhaps as it began, with an error of its own, which is above: {GUARD.format(method)})"
            raise RuntimeError(what + self._under_way(self._handed)) from error
        finally:
            del batches  # an exception holds this frame, and this the workers
        self._handed = None
        if refused := self._data.chooser.by_pillow - before:
            told = several(refused, "JPEG")
            log.warning("Pillow decoded %s that simplejpeg refuses: tarcheck --decode names them", told)
        if cached := storage.cached():
            log.info("%s", cached)

    def _under_way(self, handed: int) -> str:
        """Say of which rows and shards batches were asked for, but not handed out yet."""
        batches = self._sampler.under_way(handed)
        if not batches:
            return ""
        table, rows = self._data.table, [row for batch in batches for row in batch]
        numbers, begins, _ = table.places()
        names = [shown(url) for url in table.shards()]
        urls = [names[number] for number in dict.fromkeys(numbers[rows].tolist())]
        what = f"; {several(len(batches), 'batch', 'batches')} under way, from {_some(urls)}; the next one has rows "
        return f"{what}{_some(batches[0])}, and begins at byte {begins[rows[0]]} of {urls[0]}"

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration is of."""
        return self._sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration be of *epoch*."""
        self._sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the whole world is: after the batches that this loader has handed out, on each rank."""
        return self._sampler.state_dict(self._handed)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where *state* was made. Raises: ValueError if it is that of another order."""
        self._sampler.load_state_dict(state)
        self._handed = None


class _TableBatches(Dataset[Any]):
    """Batches of *data* as `TableBatch`; in a worker, in shared memory, and with errors as values."""

    def __init__(self, data: TableDataset) -> None:
        self.data = data
        self._buffers = SharedBuffers()

    def __len__(self) -> int:
        return len(self.data)

    def __getitems__(self, rows: list[int]) -> TableBatch | list[Any] | TarToolsError:
        if get_worker_info() is None:
            return self.data.batch(rows)
        try:
            return self._shared(rows)
        except TarToolsError as error:
            return error

    def _shared(self, rows: list[int]) -> TableBatch | list[Any]:
        taken: list[torch.Tensor] = []

        def buffer_of(size: int) -> memoryview:
            taken.append(self._buffers.take(size))
            buffer: Any = taken[-1].numpy()
            return memoryview(buffer)[:size]

        try:
            found = self.data.batch(rows, buffer_of)
        except BaseException:
            _free(taken)
            raise
        if isinstance(found, TableBatch):
            found.bulk.data = SentBuffer(taken.pop())
            used, places = torch.unique(torch.from_numpy(found.bulk.shards), return_inverse=True)
            found.bulk.urls = [found.bulk.urls[number] for number in used.tolist()]
            found.bulk.shards = places.numpy()
        _free(taken)
        return found


def _killed(batches: Any) -> bool:
    """Tell whether a signal has ended one of the workers that make *batches*."""
    workers = getattr(batches, "_workers", ())
    for worker in workers:
        worker.join(1)
    return any((worker.exitcode or 0) < 0 for worker in workers)


def _some(values: list[Any]) -> str:
    """Return the first of *values* as text, and how many more there are."""
    more = f" and {len(values) - NAMED} more" * (len(values) > NAMED)
    return ", ".join(map(str, values[:NAMED])) + more


def _free(buffers: list[torch.Tensor]) -> None:
    """Give back *buffers* in which no batch is."""
    for buffer in buffers:
        buffer[-1] = 0


def _as_it_is(batch: Any) -> Any:
    return batch
