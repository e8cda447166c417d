"""Calls Python functions on many samples (`map_samples`) and many shards (`map_shards`).

Nothing here forks or changes signal handlers. Functions are called in the caller's thread, in threads, in an executor
that the caller passes, or on a Ray cluster.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor
from contextlib import closing, contextmanager
from functools import partial
from typing import Literal, TypeVar

from tartools import storage
from tartools.errors import StorageError, shown
from tartools.run.engines import CallerEngine, ExecutorEngine
from tartools.samples.account import Account
from tartools.samples.sample import Sample, Value, build
from tartools.shards.reading import Reading, Strictness, chain_shards, close_at_end, read_samples
from tartools.shards.writing import Destination, write_samples
from tartools.storage.expand import expand
from tartools.storage.pool import Engine, Threads, call_in_window
from tartools.storage.url import Name, name_of, names_of

Source = TypeVar("Source")
Item = TypeVar("Item")
Result = TypeVar("Result")
Made = Sample | Mapping[str, Value]
OfSample = Callable[[Sample], Made | Iterable[Made] | None]
OnError = Callable[[Sample, Exception], Made | Iterable[Made] | None]
OfShard = Callable[[Source, str], object]

SAMPLES_PER_WORKER = 4  # samples for each worker that are under way, or done and waiting for those before them
MAX_THREADS, MAX_EXTRA_THREADS = 32, 4  # threads; more threads than cores: what a ThreadPoolExecutor has
DEFAULT_EXECUTOR_WORKERS = 16  # assumed workers of an executor that does not say how many it has
MAX_OUTPUTS_NAMED = 3  # outputs named in a message


def map_samples(
    function: OfSample,
    inputs: Name | Iterable[Name],
    output: Name,
    *,
    workers: int | Executor = 1,
    on_error: OnError | None = None,
    force: bool = False,
    gzip: bool = False,
    lax: bool = False,
    skip_special: bool = False,
) -> int:
    """Write the results of *function* for the samples of *inputs* to the shard *output*; return its number of samples.

        def flipped(sample):
            picture = ImageOps.mirror(Image.open(sample.open("jpg")))
            return {"__key__": sample.key, "jpg": picture, "cls": sample["cls"]}

        tartools.map_samples(flipped, "train-{000..147}.tar", "flipped.tar", workers=4)

    *function* gets a sample and returns None (nothing is written for it), a sample, a mapping as for `TarWriter.write`,
    or an iterable of these, for example a generator. *inputs*: shards and tables, with braces and wildcards. *output*:
    a path or URL, which appears when it is complete, compressed if its suffix says so; *force* replaces it, *gzip*
    compresses it by gzip. An empty list of inputs gives an empty shard. *lax*: accept shards without an end-of-archive
    block. *skip_special*: say nothing of links and devices, which are left out.

    If *function* raises an exception, nothing is written, and `map_samples` raises it. With *on_error*, that is called
    in its place, with the sample and the exception, in the caller's thread: it returns what is written instead, as
    *function* does, and None leaves the sample out; results before the exception are dropped. It may note the failure,
    or raise. It is not called for errors of an executor (BrokenExecutor, CancelledError), which are raised.

        failed = {}
        tartools.map_samples(flipped, "in-000.tar", "b.tar", on_error=lambda sample, e: failed.update({sample.key: e}))

    *workers* is the number of threads that call *function*; with 1 it is called in the caller's thread, and Ctrl-C ends
    a call. Threads help if calls wait, or compute in C (Pillow, NumPy). Pure Python needs processes: pass a
    `concurrent.futures.ProcessPoolExecutor`, or any other executor, which stays open.

    Order: input order, with any *workers*. Holds: 4 samples a worker and their results; with 1 worker and without
    *on_error* one sample and one of its results.
    Raises: what *function* raises, with a note that names the sample, when the calls under way in threads have ended;
    TypeError if it returns something else, SampleError for a mapping that is no sample, which *on_error* also gets;
    ValueError for *workers* below 1; what `read` and `TarWriter` raise. Nothing is written then.
    """
    if isinstance(workers, int) and workers < 1:
        raise ValueError(f"workers must be 1 or more, not {workers}")
    patterns, output = names_of(inputs), name_of(output)
    urls = expand(patterns) if patterns else []
    storage.check_output(output, force, urls)
    account = Account()
    samples = read_samples(urls, account, Reading(Strictness(lax, skip_special)))
    write_samples(_map_results(function, samples, workers, on_error), Destination(output, force, gzip), account)
    return account.samples_out


def map_shards(
    function: OfShard[Source],
    pairs: Iterable[tuple[Source, str | os.PathLike[str]]],
    *,
    engine: Literal["local", "ray"] = "local",
    workers: int | Executor | None = None,
    redo: bool = False,
    address: str | None = None,
    cpus: float = 1,
) -> list[str]:
    """Call `function(input, output)` for each of *pairs* whose output is missing; return these outputs.

        def work(shard, output):
            tartools.map_samples(flipped, shard, output)

        tartools.map_shards(work, [(f"in-{n:03d}.tar", f"out-{n:03d}.tar") for n in range(148)], engine="ray")

    A call that was interrupted, or in which some shards failed, is repeated as it is, and does what is missing. This
    requires outputs that appear whole or not at all, as those of all tartools do. If *function* writes in place, what a
    killed run leaves counts as done; a directory never does. *redo* calls it for existing outputs too; it must replace
    them (`force=True`). Outputs are paths or URLs, taken literally and passed to *function* as strings; inputs may
    be anything.

    The engine "local" calls *function* in *workers* threads (default: as many as a `ThreadPoolExecutor` has), with 1
    in the caller's, or in an executor of the caller's. The engine "ray" submits a Ray task for each pair, which
    requests *cpus* cores (0, or more than the largest node has: all of that), up to *workers* at a time and never more
    than 1,000, to the cluster at *address* (default: `RAY_ADDRESS`, else one on this machine). Ray pickles *function*,
    and retries when it loses a worker or a node; every node needs tartools.

    Order: that of *pairs*, in the returned list; calls are made in no certain order.
    Raises, when all others are done: ExceptionGroup of what *function*, the executor or Ray raised, each with a note
    that names the output; for an output that *function* did not write, a StorageError is in it. Before any call:
    ValueError for arguments that do not fit, or two pairs with one output; StorageError if the existence of an output
    can't be determined, or if the cluster can't be reached; UsageError without Ray. After Ctrl-C no call begins, and
    those under way in threads are waited for; Ray tasks are cancelled.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine must be 'local' or 'ray', not {engine!r}")
    if engine == "local" and address is not None:
        raise ValueError("address requires engine='ray'")
    if isinstance(workers, int) and workers < 1:
        raise ValueError(f"workers must be 1 or more, not {workers}")
    if engine == "ray" and isinstance(workers, Executor):
        raise ValueError("an executor requires engine='local'")
    todo = _pairs_to_do([(source, os.fspath(output)) for source, output in pairs], redo)
    failed: dict[str, Exception] = {}
    if todo:
        with _open_engine(function, redo, len(todo), engine, workers, address, cpus) as (calls, window):
            _note_failures(call_in_window(todo, calls, window, ordered=False), failed)
    if failed:
        names = [shown(output) for _, output in todo if output in failed]
        listed = ", ".join(names[:MAX_OUTPUTS_NAMED]) + (", ..." if len(names) > MAX_OUTPUTS_NAMED else "")
        errors = {id(failed[output]): failed[output] for _, output in todo if output in failed}  # a broken pool has one
        raise ExceptionGroup(f"{len(failed)} of {len(todo)} shards failed: {listed}", list(errors.values()))
    return [output for _, output in todo]


# ---- samples ----


def _map_results(
    function: OfSample, samples: Iterator[Sample], workers: int | Executor, on_error: OnError | None
) -> Iterator[Sample]:
    """Yield the samples that *function* returns for each of *samples*, in their order.

    *workers*: number of threads, or an executor. *on_error*: called for a sample on which *function* fails, or for
    which it returns something else; its results are yielded in place. Raises: these errors of *function* (TypeError for
    a wrong result) without *on_error*; the errors of *on_error*; BrokenExecutor and CancelledError of an executor; the
    errors of reading *samples*, which is closed at the end.
    """
    with close_at_end(samples):
        if workers == 1 and on_error is None:
            yield from chain_shards(_call_function(function, sample) for sample in samples)
            return
        # No copies (`own`): the samples under way are adjacent, so they keep few read buffers alive.
        threads = (
            getattr(workers, "_max_workers", DEFAULT_EXECUTOR_WORKERS) if isinstance(workers, Executor) else workers
        )
        engine = _make_engine(partial(_call_for_list, function), workers)
        with closing(call_in_window(samples, engine, SAMPLES_PER_WORKER * threads)) as answers:
            for sample, answer in answers:
                try:
                    results = answer()
                except Exception as error:
                    if on_error is None or isinstance(error, BrokenExecutor | CancelledError):  # not of this sample
                        raise
                    results = _call_for_list(partial(_call_on_error, on_error, error), sample)
                yield from results


def _call_on_error(on_error: OnError, error: Exception, sample: Sample) -> Made | Iterable[Made] | None:
    """Return `on_error(sample, error)`; the order of arguments lets `partial` make a function of a sample of it."""
    return on_error(sample, error)


def _call_function(function: OfSample, sample: Sample) -> Iterator[Sample]:
    """Call *function* for *sample*; yield the samples that it returns: none, one, or several.

    Mappings are built into samples. Raises: errors of *function* and of `build`, and TypeError if it returns anything
    else, with a note that names the sample.
    """
    try:
        returned = function(sample)
        is_single = isinstance(returned, (Sample, Mapping)) or not isinstance(returned, Iterable)
        for result in () if returned is None else (returned,) if is_single else returned:
            if isinstance(result, Sample):
                yield result
            elif isinstance(result, Mapping):
                yield build(result)
            else:
                raise TypeError(
                    f"the function returned {type(result).__name__}: "
                    "it must return None, a sample, a mapping with '__key__', or an iterable of these"
                )
    except Exception as error:
        error.add_note(f"in sample {sample.key!r} of {shown(sample.shard)}")
        raise


def _call_for_list(function: OfSample, sample: Sample) -> list[Sample]:
    """Return the samples that *function* returns for *sample*, in a list, which can be sent to another process.

    Raises: errors of *function* and of `build`, and TypeError if it returns anything else than samples, mappings or
    None, with a note that names the sample.
    """
    return list(_call_function(function, sample))


# ---- shards ----


def _pairs_to_do(pairs: list[tuple[Source, str]], redo: bool) -> list[tuple[Source, str]]:
    """Return the *pairs* (input, output) whose output is missing or a directory; all with *redo*.

    Raises: ValueError for two pairs with one output; StorageError if the existence of an output can't be determined.
    """
    outputs: set[str] = set()
    for _, output in pairs:
        if output in outputs:
            raise ValueError(f"two of the pairs have the output {shown(output)!r}")
        outputs.add(output)
    from tartools.storage.listing import find_existing

    existing_outputs = set() if redo else find_existing([output for _, output in pairs])
    return [pair for pair in pairs if pair[1] not in existing_outputs or storage.is_directory(pair[1])]


def _make_output(function: OfShard[Source], redo: bool, pair: tuple[Source, str]) -> None:
    """Call *function* for *pair*, (input, output), unless the output exists, is no directory, and *redo* is False.

    It may exist because Ray retries a call whose worker was lost at its end.
    Raises: errors of *function*; StorageError if the output is missing afterwards, or if its existence can't be
    determined.
    """
    source, output = pair
    if not redo and storage.exists(output) and not storage.is_directory(output):  # which does not appear whole
        return
    function(source, output)
    if not storage.exists(output):  # checked where it was made: other nodes may see it late
        raise StorageError("the function returned without writing this output", url=output)


@contextmanager
def _open_engine(
    function: OfShard[Source],
    redo: bool,
    count: int,
    engine: str,
    workers: int | Executor | None,
    address: str | None,
    cpus: float,
) -> Iterator[tuple[Engine[tuple[Source, str], None], int]]:
    """For the body of `with`: (an engine that calls *function* for pairs, number of pairs to submit at a time).

    A pair whose output exists by then, and is no directory, is left out, unless *redo*. *count*: number of pairs.
    *engine*: "local" or "ray". *workers*: threads (1: the caller's, None: the default number), or an executor; on Ray
    tasks at a time, up to 1,000, which None stands for. *address*, *cpus*: of the Ray cluster, and cores that a task
    requests, as for `limit_cores`. A connection to Ray that was opened here is closed at the end of the body.
    Raises: UsageError without Ray; StorageError if the cluster can't be reached.
    """
    make = partial(_make_output, function, redo)
    if engine == "local":
        yield _make_engine(make, workers), count
        return
    from tartools.run import ray as cluster

    folder = os.getcwd()

    def work_on_node(pair: tuple[Source, str]) -> None:  # Ray sends it, with *function*, to each worker once
        """Make the output of *pair* in a Ray task, in our folder if the node has it.

        Raises: errors of *function*; StorageError if the node does not have our folder, and the output is relative to
        it, or if the output is missing afterwards.
        """
        cluster.prepare_worker(folder, pair[1])
        make(pair)

    with cluster.connect_cluster(address) as ray:
        assert not isinstance(workers, Executor)
        cpus = cluster.limit_cores(ray, cpus, Account())
        yield (
            cluster.RayTasks(ray, work_on_node, cpus),
            min(workers or cluster.MAX_TASKS_IN_FLIGHT, cluster.MAX_TASKS_IN_FLIGHT),
        )


def _note_failures(
    calls: Generator[tuple[tuple[Source, str], Callable[[], None]], None, None], failed: dict[str, Exception]
) -> None:
    """Wait for all *calls*; put their errors into *failed*, by output, with a note that names the output.

    *calls*: yields ((input, output), a function that waits for the result, or raises the error); closed at the end.
    """
    with closing(calls):
        for (_, output), result in calls:
            try:
                result()
            except Exception as error:
                error.add_note(f"in the call for {shown(output)}")
                failed[output] = error


# ---- engines ----


def _make_engine(work: Callable[[Item], Result], workers: int | Executor | None) -> Engine[Item, Result]:
    """Return an engine that calls *work*: in the executor *workers*, or in this number of threads.

    1: the caller's own thread. None: as many threads as a ThreadPoolExecutor has.
    """
    if isinstance(workers, Executor):
        return ExecutorEngine(workers, work)
    if workers == 1:
        return CallerEngine(work)
    return Threads(workers or min(MAX_THREADS, (os.cpu_count() or 1) + MAX_EXTRA_THREADS), work)
