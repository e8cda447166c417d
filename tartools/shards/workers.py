"""Tasks over shards: forked workers read shards, and parts of large shards, side by side.

For commands that make something small of every sample. The input is planned as tasks, in order: a part of a large plain
file, which is cut where a group of members seems to begin, or several small shards. A few workers run ahead, each does
one task, and this process takes their output and results in order.

    plan      task 0      task 1      task 2      task 3    ...
    workers   done        failed      running     running
    parent    takes it    kills 2 and 3, and reads from the first byte of task 1 to the end of the input: one last task

A worker fails if its task needs more than its part, or the parent: there is damage, a group goes on behind the cut (so
the cut was wrong), something has to be reported, the output is too large, or the system killed the worker. Then nothing
of it counts: no output, no count, no message. The parent has taken no later task either, so reading on from there gives
the output, messages and counts of one process, only later. A failure of a server is passed on instead, since the parent
would meet it too. A task that no worker may do, such as a stream, is done by the parent in its turn.
"""

import io
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import IO, Any, Generic, NamedTuple, TypeVar

from tartools import storage
from tartools.errors import StorageError
from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.samples.batch import Batch
from tartools.shards.forks import MAX_FORKS, Fork, can_fork, write_all
from tartools.shards.reading import (
    Reading,
    ShardStream,
    chain_shards,
    check_shards,
    close_at_end,
    make_key_detector,
    shard_batches,
)
from tartools.storage.outputformats import PARQUET_MAGIC
from tartools.storage.streams import FileVersion, changed_input_error
from tartools.tar import compression, reader, runs
from tartools.tar.rescan import Boundary, find_boundary

PART_BYTES = 32 << 20  # bytes of a part of a shard; for an input of less than two, no worker is started
# bytes; a file above this has larger parts, since each fork takes 10 ms, and is worth an import
LARGE_FILE_BYTES = 256 << 20
MAX_OUTPUT_BYTES = 64 << 20  # bytes of output that a worker holds
OUTPUT_READ_BYTES = 1 << 20  # bytes of output that are read at a time
MAX_OUTPUTS_IN_WRITE = 64  # outputs that are written at a time
MAX_REMOTE_SHARDS = 4  # most remote shards that one worker reads

Result = TypeVar("Result")


class ShardPart(NamedTuple):
    """A part of a shard for one task: bytes *begin* up to the boundary *cut* of *url*; None: up to its end.

    *number*: index of the input. `version`: that of the file when it was cut up; None: it was not, nothing is compared.
    """

    number: int
    url: str
    begin: int = 0
    cut: Boundary | None = None
    version: FileVersion | None = None


class TaskPlan(NamedTuple):
    """A task not yet started. *parts*: a part of a large shard, whole shards, or the end of a shard and all after it.

    *number*: its index among the tasks. `forkable`: True if a worker may do it, False if only this process may.
    """

    number: int
    parts: Sequence[ShardPart]
    forkable: bool


class ShardTask(Generic[Result]):
    """A task: its number and inputs, then the output and result that its work gives.

    `number`: its place among the tasks, from 0 on.
    `parts`: the shards and parts of shards that it reads.
    `in_worker`: True in a worker, False in the process that gathers.
    `batches`: for the work, batches of all samples. They are read once: either here, or shard by shard from `shards`.
    `shards`: iterator of (part, iterator of its batches) for each of `parts`.
    `output`: chunks of bytes from the work; the consumer takes all of them before `result`.
    `result`: set by the work before its output ends; None if it has none. Pickled if the work is done by a worker.
    """

    def __init__(
        self,
        number: int,
        parts: Sequence[ShardPart],
        read: Callable[[ShardPart], Iterator[Batch]],
        *,
        in_worker: bool = False,
    ) -> None:
        self.number = number
        self.parts = parts
        self.in_worker = in_worker
        self.shards = ((part, read(part)) for part in parts)
        self.batches = chain_shards(batches for _, batches in self.shards)
        self.output: Iterator[bytes] = iter(())
        self.result: Result = None  # type: ignore[assignment]  # until the work sets it


Tasks = Generator[ShardTask[Result], None, None]
Work = Callable[[ShardTask[Result]], Iterable[bytes]]  # returns the output of a task, and sets its result


class RestartError(Exception):
    """Raised where a worker can't do its task: the parent process then reads on from the beginning of that task."""


def gather(
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    work: Work[Result],
    *,
    max_workers: int,
    remote: bool = False,
    plain: bool = False,
) -> Tasks[Result]:
    """Yield the tasks of *work* over the samples of *urls*, in order. Take the output of each, then its result.

    `work(task)`: reads the samples of the task, counts them in *account*, returns an iterator of output bytes, and sets
    `task.result`. In a worker it may raise RestartError. `reading`: how shards are read. `max_workers`: limit of
    workers (15 at most); below 2, this process does all as one task. `remote`: they read remote shards, too: only for
    work without output. `plain`: they read no compressed shards. Close the generator: it kills the workers.

    Holds 1 MiB, and each worker up to 64 MiB of output. Raises, before it returns: StorageError and UsageError, as
    `check_shards`. Later: TarFormatError and StorageError, after the samples before the damage; what *work* raises.
    """
    size = check_shards(urls, account)
    if max_workers > 1 and urls and (storage.plain_size(urls[0]) or 0) > LARGE_FILE_BYTES:
        _import_numpy(urls[0])
    max_workers = min(max_workers, MAX_FORKS - 1)  # one more waits to be gathered
    plans = plan_tasks(urls, size, max_workers, remote=remote, plain=plain, uncut=reading.sums is not None)
    return _Gathering(urls, account, reading, work, max_workers, share_memory=remote and len(urls) > 1).run(plans)


def gather_here(batches: Iterator[Batch], work: Work[Result]) -> Tasks[Result]:
    """Yield one task with all samples, *batches*, on which this process calls `work(task)`; then drop the output left.

    `work(task)`: returns an iterator of output bytes, and sets `task.result` before its end. The URL in `parts` is "".
    """
    task: ShardTask[Result] = ShardTask(0, [ShardPart(0, "")], lambda _: batches)
    task.output = iter(work(task))
    with close_at_end(task.output):
        yield task
        _take_all(task.output)


def outputs(tasks: Tasks[Result], results: list[Result] | None = None) -> Generator[bytes, None, None]:
    """Yield the output of all *tasks* in order; append their results to *results*, if given. Closes *tasks*."""
    with closing(tasks):
        for task in tasks:
            yield from task.output
            if results is not None:
                results.append(task.result)


def _import_numpy(url: str) -> None:
    """Import numpy, before workers are forked, if the shard *url* is a plain file of small members: they need it."""
    with closing(storage.open_read(url)) as stream:
        if stream.file is not None and reader.is_dense(stream.file, 0):
            runs.import_numpy()


# ---- the plan ----


def plan_tasks(
    urls: Sequence[str], total_size: int | None, max_workers: int, *, remote: bool, plain: bool, uncut: bool = False
) -> Iterator[TaskPlan]:
    """Yield the plans of the tasks that together read *urls*, in order.

    `total_size`: bytes of all inputs, None if unknown. There is one task, for this process, if the input is known to be
    smaller than 64 MiB, *max_workers* is below 2, or no process can be forked. *remote*: workers may read remote shards
    if there are two *urls* or more. *plain*: they read no compressed ones. *uncut*: none is cut. Raises: StorageError.
    """
    if max_workers < 2 or not can_fork() or (total_size is not None and total_size < 2 * PART_BYTES):
        yield TaskPlan(0, [ShardPart(number, url) for number, url in enumerate(urls)], False)
        return
    shares = _share_out(urls, max_workers, remote=remote, plain=plain, uncut=uncut)
    yield from (TaskPlan(number, parts, forkable) for number, (parts, forkable) in enumerate(shares))


def _share_out(
    urls: Sequence[str], max_workers: int, *, remote: bool, plain: bool, uncut: bool
) -> Iterator[tuple[list[ShardPart], bool]]:
    """Yield (parts, forkable) for each task, in order: its parts, and True if a worker may do it.

    `cut_up` divides files over 32 MiB, unless *uncut*; adjacent smaller shards are put together until they have 32 MiB.
    An input that no worker may read, such as a stream, is a task alone. *max_workers*: number of workers that remote
    shards, up to four put together, should keep busy. *remote*, *plain*: as `plan_tasks` says.
    """
    # assumed for a remote shard, whose size is unknown: a request takes time
    remote_size = -(-PART_BYTES // min(MAX_REMOTE_SHARDS, -(-len(urls) // max_workers)))
    part_size = (4 if remote else 2) * PART_BYTES  # of a large file; its output must be less than MAX_OUTPUT_BYTES
    small: list[ShardPart] = []
    small_bytes = 0
    for number, url in enumerate(urls):
        is_remote = remote and len(urls) > 1 and storage.is_stored_object(url)
        size = remote_size if is_remote else storage.plain_size(url)
        if size is not None and plain and is_compressed_file(url):
            size = None
        if size is not None and size <= PART_BYTES:
            small.append(ShardPart(number, url))
            small_bytes += size
        if small and (small_bytes >= PART_BYTES or small[-1].number != number):
            yield small, True
            small, small_bytes = [], 0
        if size is None:
            yield [ShardPart(number, url)], False
        elif size > PART_BYTES and uncut:
            yield [ShardPart(number, url)], True
        elif size > PART_BYTES:
            yield from cut_up(number, url, part_size if size > LARGE_FILE_BYTES else PART_BYTES)
    if small:
        yield small, True


def cut_up(number: int, url: str, part_size: int) -> Iterator[tuple[list[ShardPart], bool]]:
    """Yield (parts, forkable) for each task that reads the large local file *url*, input *number*: one part each.

    All but the last have *part_size* bytes or more; the last is all the rest if no boundary is found. A compressed
    file, a table, no regular file: one part, no worker. Raises: StorageError if it can't be opened.
    """
    with closing(storage.open_read(url)) as stream:
        file = stream.file
        head = b"" if file is None else compression.head_of(file)
        if file is None or compression.codec_of(head) or head.startswith(PARQUET_MAGIC):
            yield [ShardPart(number, url)], False
            return
        version = FileVersion.of(file)
        begin, size = 0, os.fstat(file.fileno()).st_size
        read = partial(os.pread, file.fileno())
        while begin + 2 * part_size < size and (cut := find_boundary(read, begin + part_size)):
            yield [ShardPart(number, url, begin, cut, version)], True
            begin = cut.offset
        yield [ShardPart(number, url, begin, None, version)], True


def is_compressed_file(url: str) -> bool:
    """True if *url*, which is opened, is a regular file that begins with the magic of a codec. Raises: StorageError."""
    with closing(storage.open_read(url)) as stream:
        return stream.file is not None and compression.codec_of(compression.head_of(stream.file)) is not None


def remaining_plan(plan: TaskPlan, urls: Sequence[str]) -> TaskPlan:
    """Return a plan of one task that does *plan* and all tasks after it: from its first byte to the end of *urls*.

    The last part of *plan*, which may end inside a shard, is read to the end of that. Not for a worker.
    """
    *parts, last = plan.parts
    following = (ShardPart(number, url) for number, url in enumerate(urls[last.number + 1 :], last.number + 1))
    return TaskPlan(plan.number, [*parts, last._replace(cut=None), *following], False)


# ---- the process that gathers ----


class _Gathering(Generic[Result]):
    """One run of `gather`: starts workers, takes their output in order, and does the remaining work in this process.

    `urls`, `reading`: the inputs, and how they are read. `work(task)`: makes the output and result of a task.
    `account`: gets counts and reports. `max_workers`: the most workers at a time, beside the one whose output is taken.
    `share_memory`: they share the memory limit of remote reading.
    """

    def __init__(
        self,
        urls: Sequence[str],
        account: Account,
        reading: Reading,
        work: Work[Result],
        max_workers: int,
        *,
        share_memory: bool,
    ) -> None:
        self._urls = urls
        self._account = account
        self._reading = reading
        self._work = work
        self._max_workers = max_workers
        self._share_memory = share_memory  # among the workers, which read remote shards
        self._started: deque[tuple[TaskPlan, Fork | None]] = deque()
        self._first: RepeatedKeyDetector | None = None  # of the shard whose part was gathered last

    def run(self, plans: Iterator[TaskPlan]) -> Tasks[Result]:
        """Yield the tasks of *plans* in order; once a worker has failed or can't start, the rest as one, done here."""
        try:
            for plan, worker in self._start_ahead(plans):
                if not plan.forkable:
                    yield from self._do_task_here(plan)
                elif worker is None or not (yield from self._take_over(plan, worker)):
                    self._kill_workers()
                    yield from self._do_task_here(remaining_plan(plan, self._urls))
                    return
        finally:
            self._kill_workers()

    def _start_ahead(self, plans: Iterator[TaskPlan]) -> Iterator[tuple[TaskPlan, Fork | None]]:
        """Yield (plan, worker) for each of *plans*, None if this process has to do it; starts later workers ahead."""
        while True:
            while len(self._started) <= self._max_workers and (plan := next(plans, None)):
                self._started.append((plan, self._start(plan)))
            if not self._started:
                return
            yield self._started.popleft()

    def _start(self, plan: TaskPlan) -> Fork | None:
        """Start a worker that does *plan*, and return it; None if no worker may or can do it."""
        if not plan.forkable or not can_fork():
            return None
        try:
            return Fork(lambda pipe: self._run_worker(plan, pipe))
        except OSError:  # too many processes or open files
            return None

    def _kill_workers(self) -> None:
        """Kill the workers whose output has not been taken, and forget their tasks."""
        while self._started:
            _, worker = self._started.pop()
            if worker is not None:
                worker.close()

    def _do_task_here(self, plan: TaskPlan) -> Iterator[ShardTask[Result]]:
        """Do the task of *plan* in this process: yield it, and then take the output that the consumer has left."""
        task: ShardTask[Result] = ShardTask(plan.number, plan.parts, partial(self._read, first_of=self._detector_for))
        task.output = iter(self._work(task))
        with close_at_end(task.output):
            yield task
            _take_all(task.output)

    def _take_over(self, plan: TaskPlan, worker: Fork) -> Generator[ShardTask[Result], None, bool]:
        """Yield the task of *plan* with the output of *worker*; return False, with none yielded, if it failed.

        Raises: StorageError that the worker met at a server; the task's output raises it if the worker is killed later.
        """
        with closing(worker), io.BufferedReader(worker.pipe, OUTPUT_READ_BYTES) as file:
            header = _read_header(file)
            if header is None:
                return False
            if "failure" in header:
                raise StorageError(header["failure"], url=header["url"], offset=header["offset"])
            task: ShardTask[Result] = ShardTask(plan.number, plan.parts, lambda _: iter(()))
            task.output, task.result = self._receive(plan, header, file), header["result"]
            yield task
            _take_all(task.output)
            return True

    def _receive(self, plan: TaskPlan, header: dict[str, Any], file: IO[bytes]) -> Iterator[bytes]:
        """Yield the output that a worker sends for the task of *plan*; then add its counts and keys to ours.

        *file*: its pipe, behind the *header*. Raises: StorageError if the worker was killed.
        """
        for size in header["sizes"]:
            output = file.read(size)
            if len(output) < size:
                raise StorageError(
                    "the process that reads this was killed (there may be too little memory)", url=plan.parts[0].url
                )
            yield output
        self._account.add(header["counts"])
        for part, (keys, ended) in zip(plan.parts, header["keys"], strict=True):
            first = self._detector_for(part)
            first.add(keys)
            if ended:
                first.remaining = 0

    def _detector_for(self, part: ShardPart) -> RepeatedKeyDetector:
        """Return the detector of repeated keys for the shard of *part*, which has the keys of its earlier parts."""
        if self._first is None or not part.begin:
            self._first = make_key_detector(part.url, self._account, self._reading)
        return self._first

    def _read(self, part: ShardPart, first_of: Callable[[ShardPart], RepeatedKeyDetector]) -> Iterator[Batch]:
        return read_part(part, self._account, self._reading, first_of)

    # ---- what follows runs in a worker ----

    def _run_worker(self, plan: TaskPlan, pipe: int) -> None:
        """Do *plan*; write to *pipe* the size of a pickled header as a line, the header, and the chunks of the output.

        `_read_header` says what the header has. Raises, so that the parent does the task: what the work raises, but a
        failure of a server is sent as header; RestartError if something has to be reported, or for over 64 MiB.
        """
        reports: list[str] = []
        self._account.reset(reports.append)
        if self._share_memory:
            storage.share_memory(self._max_workers + 1)
        listed_keys: list[_ListedKeys] = []

        def listed(_part: ShardPart) -> RepeatedKeyDetector:
            listed_keys.append(_ListedKeys(self._reading.policy.ignore_repeated_keys))
            return listed_keys[-1]

        read = partial(self._read, first_of=listed)
        task: ShardTask[Result] = ShardTask(plan.number, plan.parts, read, in_worker=True)
        output: list[bytes] = []
        try:
            output = _collect_output(self._work(task))
        except StorageError as error:
            if reports or not storage.is_stored_object(error.url):
                raise
            header: dict[str, object] = {"failure": error.message, "url": error.url, "offset": error.offset}
        else:
            header = {"result": task.result, "counts": self._account.counts(), "sizes": list(map(len, output))}
            header["keys"] = [(part_keys.keys, not part_keys.remaining) for part_keys in listed_keys]
        if reports:
            raise RestartError
        import pickle  # 4 ms, of which most runs have no need

        pickled = pickle.dumps(header, pickle.HIGHEST_PROTOCOL)
        write_all(pipe, memoryview(b"%d\n" % len(pickled) + pickled))
        for first in range(0, len(output), MAX_OUTPUTS_IN_WRITE):  # all of them joined would be held twice
            write_all(pipe, memoryview(b"".join(output[first : first + MAX_OUTPUTS_IN_WRITE])))


def _take_all(output: Iterator[bytes]) -> None:
    """Take and drop the remaining *output*, so that the work that makes it runs to its end."""
    for _ in output:
        pass


def _read_header(file: IO[bytes]) -> dict[str, Any] | None:
    """Return the header that a worker writes first to its pipe, read from *file*; None if it failed or was killed.

    It has "result", "counts" (`Account.counts`), "sizes" (bytes of each output) and "keys", for each part (first keys,
    True if no later ones are to be compared); or, after a failure of a server, "failure" (message), "url" and "offset".
    """
    import pickle

    size = file.readline()
    pickled = file.read(int(size)) if size.endswith(b"\n") else b""
    header: dict[str, Any] = pickle.loads(pickled) if pickled and len(pickled) == int(size) else {}  # noqa: S301  # a fork
    return header or None


def _collect_output(output: Iterable[bytes]) -> list[bytes]:
    """Return the chunks of *output*. Raises: RestartError if they have more than `MAX_OUTPUT_BYTES` in all."""
    chunks: list[bytes] = []
    size = 0
    for chunk in output:
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_OUTPUT_BYTES:
            raise RestartError
    return chunks


class _ListedKeys(RepeatedKeyDetector):
    """A `RepeatedKeyDetector` for a worker: lists the first *keys* of a part of a shard, which the parent compares.

    *joins_repeats*: True if the caller joins samples of one key: repeated keys are not reported, and none are listed.
    """

    __slots__ = ("keys",)

    def __init__(self, joins_repeats: bool) -> None:
        super().__init__(lambda _: None)
        self.keys: list[bytes] = []
        self.remaining *= not joins_repeats

    def add(self, keys: Sequence[bytes]) -> None:
        """List *keys*, up to the first 10,000 of the part; none once `remaining` is 0."""
        self.keys += keys[: self.remaining]
        self.remaining -= min(self.remaining, len(keys))


def read_part(
    part: ShardPart, account: Account, reading: Reading, first_of: Callable[[ShardPart], RepeatedKeyDetector]
) -> Iterator[Batch]:
    """Yield the samples of *part* in batches; the caller counts them. `first_of(part)`: its detector of repeated keys.

    *account* gets reports. Raises: RestartError if the boundary at the end of the part was wrong: the last sample
    continues behind it, or there is none; StorageError if the file has changed since it was cut; what reading raises.
    """
    _, url, begin, cut, version = part
    stream = ShardStream(url, account, sums=reading.sums)
    last = b""
    if version is not None and (stream.file is None or FileVersion.of(stream.file) != version):
        stream.close()
        raise changed_input_error(url)
    if begin:
        stream.start_at(begin)
    until = cut and cut.offset
    detector = first_of(part)
    with closing(shard_batches(url, account, reading, stream, begin=begin, until=until, detector=detector)) as batches:
        for batch in batches:
            yield batch
            last = b"" if cut is None else batch.keys[-1]
    account.check()
    if cut is not None and last in (b"", cut.key):
        raise RestartError
