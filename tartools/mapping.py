"""Functions of Python programs over many samples and many shards: tarproc and tarjob, without commands.

Nothing here forks or touches signals. What runs beside the caller runs in threads, in an executor that the caller
brings, or on a Ray cluster.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import closing, contextmanager
from itertools import islice
from typing import Literal, ParamSpec, TypeVar

from tartools import shards, storage
from tartools.account import Account
from tartools.errors import StorageError, shown
from tartools.sample import Sample, Value, build

Source = TypeVar("Source")
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Made = Sample | Mapping[str, Value]
OfSample = Callable[[Sample], Made | Iterable[Made] | None]
OfShard = Callable[[Source, str], object]

WINDOW = 4  # samples for each worker that are under way, or done and wait for those before them
UNKNOWN = 16  # workers that an executor is taken to have which does not say how many
NAMED = 3  # outputs that a message names


def map_samples(
    function: OfSample,
    inputs: str | Sequence[str],
    output: str,
    *,
    workers: int | Executor = 1,
    force: bool = False,
    gzip: bool = False,
    lax: bool = False,
    skip_special: bool = False,
) -> int:
    """Write what *function* makes of each sample of *inputs* to the shard *output*; return how many samples that are.

        def flipped(sample):
            picture = ImageOps.mirror(Image.open(sample.open("jpg")))
            return {"__key__": sample.key, "jpg": picture, "cls": sample["cls"]}

        tartools.map_samples(flipped, "train-{000..147}.tar", "flipped.tar", workers=4)

    *function* gets a sample and returns None (nothing is written for it), a sample, a mapping as `TarWriter.write`
    takes it, or an iterable of these, be it a generator. *inputs* are as in `read`, *output* as in `TarWriter`: it
    appears when it is complete. Of an empty list of inputs an empty shard is made.

    *workers* is how many threads call *function*; with 1 the caller's own does, and Ctrl-C ends a call. Threads gain
    where calls wait, or compute in C (Pillow, NumPy). What is pure Python gains in processes: give a
    `concurrent.futures.ProcessPoolExecutor`, or any other executor, which stays open.

    Order: input order, with any *workers*. Holds: 4 samples a worker and what is made of them; with 1 worker, one
    sample at a time and one of what is made of it.
    Raises: what *function* raises, with a note that names the sample, when the calls under way in threads have ended;
    TypeError if it returns something else; what `read` and `TarWriter` raise. Nothing is written then.
    """
    patterns = [inputs] if isinstance(inputs, str) else list(inputs)
    urls = storage.expand(patterns) if patterns else []
    storage.check_output(output, force, urls)
    account = Account()
    samples = shards.read_samples(urls, account, shards.Reading(lax, skip_special))
    shards.write_samples(_mapped(function, samples, workers), output, account, force=force, gzip=gzip)
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
    """Call `function(input, output)` for each of *pairs* whose output is not there; return the outputs that it made.

        def work(shard, output):
            tartools.map_samples(flipped, shard, output)

        tartools.map_shards(work, [(f"in-{n:03d}.tar", f"out-{n:03d}.tar") for n in range(148)], engine="ray")

    A call that was interrupted, or in which some shards failed, is made again as it is, and does what is missing. This
    holds for outputs that appear whole or not at all, as those of all tartools do. Of a *function* that writes in
    place, what a killed run leaves looks done; a directory never does. *redo* calls it for outputs that are there too;
    it has to replace them (`force=True`). Outputs are paths and URLs, as they are, and strings for *function*; inputs
    are whatever it takes.

    The engine "local" calls *function* in so many threads as *workers* says, by default those that a
    `ThreadPoolExecutor` takes, with 1 in the caller's, or in an executor of the caller's. The engine "ray" has a task
    of Ray's for each pair, which asks for *cpus* cores, up to *workers* at a time and never more than 1,000, on the
    cluster at *address* (default: `RAY_ADDRESS`, else one on this machine). Ray pickles *function*, and tries again
    when it loses a worker or a node; every node needs tartools.

    Order: that of *pairs*, in what is returned; calls are made in no certain order.
    Raises, when all others are done: ExceptionGroup of what *function* raised, each with a note that names the output.
    Before that: ValueError for arguments that do not fit; StorageError if nobody can tell which outputs are there, or
    if the cluster can't be reached; UsageError without Ray. After Ctrl-C no call is begun, and those under way in
    threads are waited for; tasks of Ray's are cancelled.
    """
    if engine not in ("local", "ray"):
        raise ValueError(f"engine is 'local' or 'ray', not {engine!r}")
    if engine == "local" and address is not None:
        raise ValueError("an address is for the engine 'ray'")
    if isinstance(workers, int) and workers < 1:
        raise ValueError(f"workers is 1 or more, not {workers}")
    todo = _missing([(source, os.fspath(output)) for source, output in pairs], redo)
    if engine == "local":
        failed = _here(function, todo, redo, workers)
    elif isinstance(workers, Executor):
        raise ValueError("an executor is for the engine 'local'")
    else:
        failed = _on_ray(function, todo, redo, workers, address, cpus)
    if failed:
        _complain([(output, failed[output]) for _, output in todo if output in failed], len(todo))
    return [output for _, output in todo]


# ---- samples ----


def _mapped(function: OfSample, samples: Iterator[Sample], workers: int | Executor) -> Iterator[Sample]:
    """Yield what *function* makes of *samples*, in their order."""
    with shards.closing_upstream(samples):
        if workers == 1:
            yield from shards.one_by_one(_made(function, sample) for sample in samples)
            return
        with _crew(workers) as executor:
            # Samples are not copied out of the read buffers: those under way lie side by side, in few of them.
            window = WINDOW * getattr(executor, "_max_workers", UNKNOWN)
            waiting: deque[Future[list[Sample]]] = deque()
            try:
                for sample in samples:
                    waiting.append(executor.submit(_all_made, function, sample))
                    if len(waiting) == window:
                        yield from waiting.popleft().result()
                while waiting:
                    yield from waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def _made(function: OfSample, sample: Sample) -> Iterator[Sample]:
    """Yield what *function* makes of *sample*. Raises: what it raises, with a note; TypeError."""
    try:
        made = function(sample)
        alone = isinstance(made, (Sample, Mapping)) or not isinstance(made, Iterable)
        for one in () if made is None else (made,) if alone else made:
            if isinstance(one, Sample):
                yield one
            elif isinstance(one, Mapping):
                yield build(one)
            else:
                raise TypeError(
                    f"the function gave a {type(one).__name__}: "
                    "it is to return None, a sample, a mapping with '__key__', or an iterable of these"
                )
    except Exception as error:
        error.add_note(f"this was the sample {sample.key!r} of {shown(sample.shard)}")
        raise


def _all_made(function: OfSample, sample: Sample) -> list[Sample]:
    """Return what `_made` yields: this can be sent to another process."""
    return list(_made(function, sample))


# ---- shards ----


def _missing(pairs: list[tuple[Source, str]], redo: bool) -> list[tuple[Source, str]]:
    """Return those of *pairs* whose output is not there, or all with *redo*. Raises: ValueError; StorageError."""
    outputs: set[str] = set()
    for _, output in pairs:
        if output in outputs:
            raise ValueError(f"two of the pairs have the output {shown(output)!r}")
        outputs.add(output)
    there = set() if redo else storage.those_there([output for _, output in pairs])
    return [pair for pair in pairs if pair[1] not in there or storage.is_directory(pair[1])]


def _make(function: OfShard[Source], source: Source, output: str, redo: bool) -> None:
    """Have *function* make *output* of *source*, unless somebody has: a try whose worker was lost at its end.

    Raises: what it raises; StorageError if the output is not there then.
    """
    if not redo and storage.is_there(output) and not storage.is_directory(output):  # such a thing does not appear whole
        return
    function(source, output)
    if not storage.is_there(output):  # looked at where it was made: network file systems tell others late
        raise StorageError("the function has returned, but has not written this", url=output)


def _here(
    function: OfShard[Source], todo: list[tuple[Source, str]], redo: bool, workers: int | Executor | None
) -> dict[str, Exception]:
    """Have *function* do all of *todo* on this machine; return by output how it failed."""
    failed: dict[str, Exception] = {}
    futures: dict[str, Future[None]] = {}
    with _crew(workers) as executor:
        try:
            for source, output in todo:
                try:
                    futures[output] = executor.submit(_make, function, source, output, redo)
                except Exception as error:  # a pool that broke meanwhile
                    failed[output] = error
            for output, future in futures.items():
                try:
                    future.result()
                except Exception as error:
                    failed[output] = error
        finally:
            for future in futures.values():
                future.cancel()
    return failed


def _on_ray(
    function: OfShard[Source],
    todo: list[tuple[Source, str]],
    redo: bool,
    workers: int | None,
    address: str | None,
    cpus: float,
) -> dict[str, Exception]:
    """Have *function* do all of *todo* on the cluster at *address*; return by output how it failed."""
    if not todo:
        return {}
    from tartools import cluster

    folder = os.getcwd()

    def work(source: Source, output: str) -> None:  # with its function it is sent to each worker once
        cluster.heed_interrupts()
        cluster.enter(folder, output)
        _make(function, source, output, redo)

    pairs = ((output, (source, output)) for source, output in todo)
    with cluster.connected(address) as ray:
        cpus = cluster.fitting(ray, cpus, Account())
        with closing(cluster.mapped(ray, work, pairs, cpus, workers)) as done:
            return {output: result for output, result, _ in done if isinstance(result, Exception)}


def _complain(failed: list[tuple[str, Exception]], of: int) -> None:
    """Raise the ExceptionGroup for what *failed*, with what it was for, *of* so many."""
    for output, error in failed:
        error.add_note(f"this was for {shown(output)}")
    names = ", ".join(shown(output) for output, _ in islice(failed, NAMED)) + (", ..." if len(failed) > NAMED else "")
    errors = {id(error): error for _, error in failed}  # all calls of a pool that broke have the same
    raise ExceptionGroup(f"{len(failed)} of {of} shards failed: {names}", list(errors.values()))


# ---- who calls ----


class _Caller(Executor):
    """Calls what is submitted at once, in the thread of whoever submits it: a signal ends that."""

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Return what has been done already."""
        future: Future[Result] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def _crew(workers: int | Executor | None) -> Iterator[Executor]:
    """Give an executor: the caller's own, or one of so many threads, which have ended when the block has."""
    if isinstance(workers, Executor):
        yield workers
    elif workers == 1:
        yield _Caller()
    else:
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(workers, "tartools") as pool:
            yield pool
