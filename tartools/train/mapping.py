"""`stream_map`: a function applied to the samples of shards, in threads, processes, or on a Ray cluster."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from tartools.errors import byte_size, shown
from tartools.run.engines import Answer, Processes, collect_results, results
from tartools.samples.account import Account
from tartools.storage.expand import expand
from tartools.storage.pool import Engine, Threads, call_in_window
from tartools.storage.url import Name, names_of
from tartools.tables.table import Table
from tartools.train.fieldchooser import Decode, FieldChooser, Fields
from tartools.train.mapwork import MapSource, MapWork, make_chunks, sources_of_urls
from tartools.train.ranks import this_rank
from tartools.train.slices import shard_identity
from tartools.train.states import StateError, check_state, is_count, is_list, make_state

ENGINES = ("threads", "processes", "ray")
CHUNKS_PER_WORKER = 2  # chunks for each worker that are under way, unless the caller says how many


def stream_map(
    function: Callable[[Any], Any],
    source: Name | Iterable[Name] | Table,
    *,
    engine: Literal["threads", "processes", "ray"] = "threads",
    workers: int | None = None,
    ordered: bool = True,
    fields: Fields = None,
    decode: Decode = None,
    chunk_size: int | str | None = None,
    prefetch: int | None = None,
    retries: int = 3,
    address: str | None = None,
    cpus: float = 1,
) -> StreamMap:
    """Return a dataset of the results of *function* for the samples of *source*: preprocessing here or elsewhere.

        def small(sample):
            picture, label = sample
            return augment(picture), int(label)

        data = tartools.train.stream_map(small, "train-{000..147}.tar", engine="ray", fields="jpg cls", decode="rgb8")
        for batch in torch.utils.data.DataLoader(data, batch_size=64): ...

    *source*: names of shards and tables, with braces and wildcards, or a `tartools.Table`. *function* gets a sample: a
    dict with `__key__`, `__url__` and fields, with *fields* a tuple of these; *decode*: name of a decoder, a function,
    or a dict of these. It returns one result, perhaps a list or tuple; None, for nothing; or an iterator of results.

    Work goes out in chunks of about *chunk_size* bytes: runs of samples of a shard, or rows of a table (default: 8 MB,
    and of shards in stores 32 MB, because a store is asked for up to 8 MB more to find where a chunk begins). A shard
    that is compressed, or comes from a command or a server without ranges, is one chunk. The results of a chunk are
    handed out when all of them are there. So no result comes twice and none is missing if a worker is lost: its chunk
    is done again, up to *retries* times. *ordered* keeps the order of the samples; else chunks come as they are ready.

    The engine "threads" calls *function* in this process; "processes" in processes that are spawned, which need a
    function that can be pickled, and import the main program; "ray" in tasks that request *cpus* cores each, on the
    cluster at *address* (default: `RAY_ADDRESS`, else one on this machine), whose nodes need tartools. *workers* is how
    many chunks are worked on at a time (default: the cores of this machine, or of the cluster).

    Each iteration is an epoch, and starts and ends the workers. Ranks (of torch.distributed, or RANK and WORLD_SIZE)
    share the chunks. In workers of a DataLoader it raises RuntimeError. `state_dict` has the next result, if *ordered*.

    Holds: the results of *prefetch* chunks (default: 2 for each worker), pickled unless they come from threads.
    Raises: what *function* raises, with a note that names sample and shard, and what reading raises, after the results
    before it; RuntimeError with the chunk if its workers were lost each time; TypeError if the function can't be
    pickled; StorageError if a name can't be expanded or the cluster can't be reached; UsageError without Ray, for stdin
    and fifos; ValueError and TypeError for arguments that don't fit.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine is one of {', '.join(map(repr, ENGINES))}, not {engine!r}")
    if address is not None and engine != "ray":
        raise ValueError("address requires engine='ray'")
    for name, number, min_value in (("workers", workers, 1), ("prefetch", prefetch, 1), ("retries", retries, 0)):
        if number is not None and number < min_value:
            raise ValueError(f"{name} is {min_value} or more, not {number}")
    size = byte_size(chunk_size) if isinstance(chunk_size, str) else chunk_size
    if size is not None and size < 1:
        raise ValueError(f"chunk_size is 1 byte or more, not {chunk_size}")
    options = {"engine": engine, "workers": workers, "retries": retries, "address": address, "cpus": cpus}
    return StreamMap(function, source, FieldChooser(fields, decode), options, ordered, prefetch, size)


@contextmanager
def _start_engine(
    engine: str, work: MapWork, workers: int | None, retries: int, address: str | None, cpus: float
) -> Iterator[tuple[Engine[Any, Answer], int]]:
    """For the body of `with`: give (an engine that calls *work*, number of calls that run at a time).

    At the end of the body a connection to Ray that was opened here is closed. `call_in_window` stops the engine.
    *engine*: "threads", "processes" or "ray". *workers*: calls at a time; None: one for each core of this machine, with
    Ray for each *cpus* cores of the cluster. *retries*: more tries of an item whose worker was lost (not of threads);
    *address*, *cpus*: of the engine "ray", as `connect_cluster` and `limit_cores` take them. The engine gives, for each
    item, a list of the results of *work*, or their pickles in bytes: `engines.results` reads both.
    Raises: TypeError if *work* can't be pickled; UsageError without Ray; StorageError if the cluster can't be reached.
    """
    if engine == "ray":
        from tartools.run import ray as cluster

        with cluster.connect_cluster(address) as ray:
            cpus = cluster.limit_cores(ray, cpus, Account())
            workers = workers or cluster.count_slots(ray, cpus)
            yield cluster.make_packing_engine(ray, work, workers, cpus, retries), workers
        return
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if engine == "processes":
        yield Processes(work, workers, retries), workers
    else:
        stopped = threading.Event()
        yield Threads(workers, lambda item: collect_results(work, item, stopped.is_set), stopped.set), workers


@contextmanager
def _close_at_exit(reference: list[Any]) -> Iterator[None]:
    """Close a generator if the program ends in the body of `with`, while threads can still run: a context manager.

    `reference[0]`: a weak reference to the generator.
    """

    def close() -> None:
        generator = reference[0]()
        if generator is not None:
            with suppress(ValueError):  # it runs, in a thread that ends with the program
                generator.close()

    atexit.register(close)
    try:
        yield
    finally:
        atexit.unregister(close)


class StreamMap(IterableDataset[Any]):
    """The dataset that `stream_map` returns: each iteration yields the results of an epoch, by workers of its own.

    They end with the iteration: when it is at its end, is closed, or nothing refers to its iterator.

    *source*: shards and tables, or a `Table`; *chooser*: makes of a sample the argument of *function*
    *options*: engine, workers, retries, address and cpus of the engine, by name; *ordered*: in the order of the samples
    *prefetch*: chunks under way, None: 2 a worker; *size*: bytes of a chunk, None: the default
    Raises: ValueError without shards; UsageError for stdin and fifos; StorageError for a name that can't be expanded,
    and a local file or a table that can't be read.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        source: Name | Iterable[Name] | Table,
        chooser: FieldChooser,
        options: dict[str, Any],
        ordered: bool,
        prefetch: int | None,
        size: int | None,
    ) -> None:
        self._sources: list[MapSource]
        if isinstance(source, Table):
            self._names, self._sources = ["the table"], [source]
        else:
            urls = expand(names) if (names := [*filter(None, names_of(source))]) else []
            self._names, self._sources = [*map(shown, urls)], sources_of_urls(urls)
        if not self._sources:
            raise ValueError("there are no shards to read")
        self._function, self._chooser, self._options = function, chooser, options
        self._ordered, self._prefetch, self._size = ordered, prefetch, size
        self._next = self._start = (0, 0)  # chunk, and result in it

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, or resume a loaded state; return an iterator of this rank's results.

        The workers start when its first result is asked for.
        Raises: RuntimeError in workers of a DataLoader.
        """
        if get_worker_info() is not None:
            raise RuntimeError("stream_map has workers of its own: give num_workers=0 to this DataLoader")
        self._next, self._start = self._start, (0, 0)
        reference: list[Any] = []
        generator = self._yield_results(*self._next, reference)
        reference.append(weakref.ref(generator))
        return generator

    def _yield_results(self, first: int, consumed: int, reference: list[Any]) -> Generator[Any, None, None]:
        """Yield the results of this rank from its chunk number *first* on, without the first *consumed* of that chunk.

        *reference*: a list with a weak reference to this generator, by which it is closed if the program ends. Keeps
        the position of `state_dict` current; at the end that is the begin of an epoch. Raises: see `stream_map`.
        """
        rank, world = this_rank()
        pieces = islice(make_chunks(self._names, self._sources, self._size), rank + first * world, None, world)
        work = MapWork(self._function, self._sources, self._chooser)
        with (
            _start_engine(work=work, **self._options) as (engine, workers),
            _close_at_exit(reference),
            closing(
                call_in_window(pieces, engine, self._prefetch or CHUNKS_PER_WORKER * workers, ordered=self._ordered)
            ) as answers,
        ):
            for chunk, (_, answer) in enumerate(answers, first):
                for number, result in enumerate(results(answer())):
                    if number >= consumed:
                        self._next = chunk, number + 1
                        yield result
                self._next, consumed = (chunk + 1, 0), 0
        self._next = 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return a state with the position of the next result of this rank in the latest iteration.

        Before an iteration, and at the end of one, it is the begin of an epoch; after `load_state_dict` the loaded one.
        Raises: ValueError unless *ordered*; StorageError if a table can't be read.
        """
        if not self._ordered:
            raise ValueError("results delivered out of order can't be resumed: use ordered=True")
        return make_state({"data": self._fingerprint(), "next": self._next})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration resume from *state*; the function is called again for one chunk at most.

        It must return as many results as before. Raises: StateError if the state is malformed, or belongs to other
        shards or ranks, or another chunk size, and without *ordered*; StorageError if a table can't be read.
        """
        checks = {"data": is_count, "next": lambda value: is_list(value, is_count, is_count)}
        check_state(state, "a stream_map", checks)
        if state["data"] != self._fingerprint():
            raise StateError("this is the state of other shards, another size of chunks, or other ranks")
        first, consumed = state["next"]
        self._start = self._next = first, consumed

    def _fingerprint(self) -> int:
        """Return the CRC-32 of sources, chunk size, rank, number of ranks and *ordered*: a state of others is refused.

        A table counts by its digest, a shard by its URL and, if it is local, its size in bytes.
        """
        sources = [
            source.digest() if isinstance(source, Table) else (str(source), shard_identity(source))
            for source in self._sources
        ]
        return zlib.crc32(repr((sources, self._size, *this_rank(), self._ordered)).encode())
