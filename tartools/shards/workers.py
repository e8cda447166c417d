"""Shards, and parts of large shards, that several worker processes read at once.

For commands that make something small of every sample. A large plain file is cut where a group of members seems to
begin. The worker that reads the part before a cut checks it, and returns its result only if all of its part is as it
should be. If not (damage, a link, a wrong cut), this process reads everything from the begin of that part on: so output
and messages are the same as with one process.
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
from tartools.shards.reading import Reading, ShardStream, check_shards, first_keys, shard_batches
from tartools.storage.streams import FileVersion, changed
from tartools.tables import schema
from tartools.tar import compression, reader, runs
from tartools.tar.rescan import Cut, find_cut

DEFAULT_WORKERS = 4  # by default; more would wait for this process, which gathers what they make
PART_BYTES = 32 << 20  # bytes of a part of a shard; for an input of less than two, no worker is started
MUCH = 256 << 20  # bytes; a file above this has larger parts, since each fork takes 10 ms, and is worth an import
MOST_OUTPUT = 64 << 20  # bytes of output that a worker holds
OUTPUT_READ_BYTES = 1 << 20  # bytes of output that are read at a time
OUTPUTS_WRITTEN_AT_ONCE = 64  # outputs that are written at a time
MAX_REMOTE_SHARDS = 4  # most remote shards that one worker reads

Result = TypeVar("Result")
Work = Callable[[Iterator[Batch], int, bool], Generator[bytes, None, Result]]  # samples, number of task, is it a fork


class ShardPart(NamedTuple):
    """Bytes *begin* up to *cut* of the shard *url*, input *number*; *version*: the version of its file."""

    number: int
    url: str
    begin: int = 0
    cut: Cut | None = None
    version: FileVersion | None = None


class ShardTask(NamedTuple):
    """A unit of work: a part of a large shard, or several small shards. Only if *forkable* by a worker."""

    parts: list[ShardPart]
    forkable: bool


def gather(
    urls: Sequence[str],
    account: Account,
    reading: Reading,
    work: Work[Result],
    collect: Callable[[Result], object],
    *,
    max_workers: int,
    remote: bool = False,
    plain: bool = False,
) -> Generator[bytes, None, None]:
    """Yield the outputs of *work* for the samples of *urls*, in order; call *collect* with each of its results.

    All local files are checked before this returns a generator. There are up to *max_workers* workers at a time. With
    *remote*, they read remote shards too: only for work that yields nothing. With *plain*, they do not read compressed
    shards.

    *work* is called for each task: with its samples, which it counts in *account*, its number from 0 on, and whether
    this is in a worker. There its result is pickled, and if it raises anything but a failure of a server, it is
    called again in this process.

    Holds 1 MiB, and each worker up to 64 MiB of output. Raises what `read_samples` raises.
    """
    size = check_shards(urls, account)
    if max_workers > 1 and urls and (storage.plain_size(urls[0]) or 0) > MUCH:
        _import_numpy(urls[0])
    return _Gathering(urls, account, reading, work, max_workers, remote, plain).run(size, collect)


def _import_numpy(url: str) -> None:
    """Import numpy, so that not each worker does, if the shard *url* is of small members."""
    with closing(storage.open_read(url)) as stream:
        if stream.file is not None and reader.is_dense(stream.file, 0):
            runs.imported()


def without_output(work: Callable[[Iterator[Batch]], Result]) -> Work[Result]:
    """Adapt *work*, which has a result but no outputs, for `gather`; `to_the_end` runs that generator."""

    def found(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, Result]:
        yield from ()
        return work(batches)

    return found


def drain(outputs: Generator[bytes, None, None]) -> None:
    """Run the generator *outputs*, which yields nothing, to its end, so that the results are collected."""
    with closing(outputs):
        for _ in outputs:
            pass


class _UnexpectedError(Exception):
    """Something in a part needs the process that gathers: it will read the part again."""


class _Gathering(Generic[Result]):
    """Does *work* on the samples of *urls*, by workers where that is possible: see `gather`.

    Remembers the tasks that were started and are not gathered yet.
    """

    def __init__(
        self,
        urls: Sequence[str],
        account: Account,
        reading: Reading,
        work: Work[Result],
        max_workers: int,
        remote: bool,
        plain: bool,
    ) -> None:
        self._urls = urls
        self._account = account
        self._reading = reading
        self._work = work
        self._most = min(max_workers, MAX_FORKS - 1)  # one more waits to be gathered
        self._remote = remote and len(urls) > 1
        self._plain = plain
        self._part = (4 if remote else 2) * PART_BYTES  # of a large file; output must be less than MOST_OUTPUT
        self._started: deque[tuple[int, ShardTask, Fork | None]] = deque()
        self._first: RepeatedKeyDetector | None = None  # of the shard whose part was gathered last

    def run(self, size: int | None, collect: Callable[[Result], object]) -> Generator[bytes, None, None]:
        """Do all tasks, in order; yield their outputs and *collect* their results. *size*: bytes of all shards."""
        numbered = enumerate(self._tasks(size if self._most > 1 and can_fork() else 0))
        try:
            while True:
                while len(self._started) <= self._most and (started := next(numbered, None)):
                    self._started.append((*started, self._start(*started)))
                if not self._started:
                    return
                number, task, worker = self._started.popleft()
                if worker is not None:
                    with closing(worker), io.BufferedReader(worker.pipe, OUTPUT_READ_BYTES) as file:
                        header = _header(file)
                        if header is not None:
                            collect((yield from self._gathered(header, file, task.parts)))
                            continue
                parts = task.parts
                if task.forkable:
                    self._close()
                    numbered = enumerate(())
                    next_number = parts[-1].number + 1  # all of the shard that they end in, and the shards that follow
                    following = (ShardPart(n, url) for n, url in enumerate(self._urls[next_number:], next_number))
                    parts = [parts[0]._replace(cut=None), *parts[1:], *following]
                batches = _batches(parts, self._account, self._reading, self._first_keys)
                collect((yield from self._work(batches, number, False)))
        finally:
            self._close()

    def _tasks(self, size: int | None) -> Iterator[ShardTask]:
        """Yield the tasks that the input is shared out to, in order: only one if *size*, its bytes, is too small."""
        urls = self._urls
        if size is not None and size < 2 * PART_BYTES:
            yield ShardTask([ShardPart(number, url) for number, url in enumerate(urls)], False)
            return
        remote_size = -(
            -PART_BYTES // min(MAX_REMOTE_SHARDS, -(-len(urls) // self._most))
        )  # assumed, since a request takes time
        small: list[ShardPart] = []
        small_bytes = 0
        for number, url in enumerate(urls):
            size = remote_size if self._remote and storage.is_far(url) else storage.plain_size(url)
            if size is not None and self._plain and is_compressed_file(url):
                size = None
            if size is not None and size <= PART_BYTES:
                small.append(ShardPart(number, url))
                small_bytes += size
            if small and (small_bytes >= PART_BYTES or small[-1].number != number):
                yield ShardTask(small, True)
                small, small_bytes = [], 0
            if size is None:
                yield ShardTask([ShardPart(number, url)], False)
            elif size > PART_BYTES:
                yield from cut_up(number, url, self._part if size > MUCH else PART_BYTES)
        if small:
            yield ShardTask(small, True)

    def _close(self) -> None:
        """Kill the workers whose results are not wanted."""
        while self._started:
            *_, worker = self._started.pop()
            if worker is not None:
                worker.close()

    def _start(self, number: int, task: ShardTask) -> Fork | None:
        """Return the worker that does *task*; None if this process has to."""
        if not task.forkable or not can_fork():
            return None
        try:
            return Fork(lambda pipe: self._run_worker(number, task, pipe))
        except OSError:  # too many processes or open files
            return None

    def _first_keys(self, part: ShardPart) -> RepeatedKeyDetector:
        """Return the detector of repeated keys of the shard of *part*; the parts before it have been gathered."""
        if self._first is None or not part.begin:
            self._first = first_keys(part.url, self._account, self._reading)
        return self._first

    def _gathered(
        self, header: dict[str, Any], file: IO[bytes], parts: list[ShardPart]
    ) -> Generator[bytes, None, Result]:
        """Yield the output that follows *header* in *file*; return the result. Raises the worker's StorageError.

        The worker has read *parts*.
        """
        if "failure" in header:
            raise StorageError(header["failure"], url=header["url"], offset=header["offset"])
        for size in header["sizes"]:
            output = file.read(size)
            if len(output) < size:
                raise StorageError(
                    "the process that reads this was killed (there may be too little memory)", url=parts[0].url
                )
            yield output
        self._account.add(header["counts"])
        for part, (keys, ended) in zip(parts, header["keys"], strict=True):
            first = self._first_keys(part)
            first.add(keys)
            if ended:
                first.left = 0
        result: Result = header["result"]
        return result

    # ---- what follows runs in a worker ----

    def _run_worker(self, number: int, task: ShardTask, pipe: int) -> None:
        """Do *task*, and write to *pipe* the size of a header, it, and the outputs.

        Raises if this process can't do it.
        """
        reports: list[str] = []
        self._account.reset(reports.append)
        if self._remote:
            storage.share_memory(self._most + 1)
        listed_keys: list[_ListedKeys] = []

        def listed(_part: ShardPart) -> RepeatedKeyDetector:
            listed_keys.append(_ListedKeys(self._reading.torn))
            return listed_keys[-1]

        batches = _batches(task.parts, self._account, self._reading._replace(forks=False), listed)
        outputs: list[bytes] = []
        try:
            result = _run(self._work(batches, number, True), outputs)
        except StorageError as error:
            if reports or not storage.is_far(error.url):
                raise
            header: dict[str, object] = {"failure": error.message, "url": error.url, "offset": error.offset}
        else:
            sizes = list(map(len, outputs))
            header = {"result": result, "counts": self._account.counts(), "sizes": sizes}
            header["keys"] = [(part_keys.keys, not part_keys.left) for part_keys in listed_keys]
        if reports:
            raise _UnexpectedError
        import pickle  # 4 ms, of which most runs have no need

        pickled = pickle.dumps(header, pickle.HIGHEST_PROTOCOL)
        write_all(pipe, memoryview(b"%d\n" % len(pickled) + pickled))
        for first in range(0, len(outputs), OUTPUTS_WRITTEN_AT_ONCE):  # all of them joined would be held twice
            write_all(pipe, memoryview(b"".join(outputs[first : first + OUTPUTS_WRITTEN_AT_ONCE])))


def _header(file: IO[bytes]) -> dict[str, Any] | None:
    """Return the header that a worker sends first; None if it gave up or was killed."""
    import pickle

    size = file.readline()
    pickled = file.read(int(size)) if size.endswith(b"\n") else b""
    header: dict[str, Any] = pickle.loads(pickled) if pickled and len(pickled) == int(size) else {}  # noqa: S301  # a fork
    return header or None


def _run(work: Generator[bytes, None, Result], outputs: list[bytes]) -> Result:
    """Return the result of *work*; add its outputs to *outputs*. Raises: _UnexpectedError if these are too large."""
    size = 0
    while True:
        try:
            outputs.append(next(work))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        size += len(outputs[-1])
        if size > MOST_OUTPUT:
            raise _UnexpectedError


class _ListedKeys(RepeatedKeyDetector):
    """The first *keys* of a part: only the process that gathers can compare them with the parts before.

    None are listed if keys that come back are no news, because samples are *joined*.
    """

    __slots__ = ("keys",)

    def __init__(self, joined: bool) -> None:
        super().__init__(lambda _: None)
        self.keys: list[bytes] = []
        self.left *= not joined

    def add(self, keys: Sequence[bytes]) -> None:
        """List *keys*, up to the first 10,000 of the part."""
        self.keys += keys[: self.left]
        self.left -= min(self.left, len(keys))


def _batches(
    parts: Iterable[ShardPart], account: Account, reading: Reading, first_of: Callable[[ShardPart], RepeatedKeyDetector]
) -> Iterator[Batch]:
    """Yield the samples of *parts*; *first_of* returns the detector of repeated keys for each.

    Raises _UnexpectedError if the last sample of one goes on behind its cut.
    """
    for part in parts:
        _, url, begin, cut, version = part
        stream = ShardStream(url, account, reading.forks)
        last = b""
        if version is not None and (stream.file is None or FileVersion.of(stream.file) != version):
            stream.close()
            raise changed(url)
        if begin:
            stream.start_at(begin)
        until = cut and cut.offset
        first = first_of(part)
        with closing(shard_batches(url, account, reading, stream, begin=begin, until=until, first=first)) as batches:
            for batch in batches:
                yield batch
                last = b"" if cut is None else batch.keys[-1]
        account.check()
        if cut is not None and last in (b"", cut.key):
            raise _UnexpectedError


def cut_up(number: int, url: str, part: int) -> Iterator[ShardTask]:
    """Yield a task for each *part* bytes of the large file *url*, and only one if it is compressed."""
    with closing(storage.open_read(url)) as stream:
        file = stream.file
        head = b"" if file is None else compression.head_of(file)
        if file is None or compression.codec_of(head) or head.startswith(schema.PARQUET_MAGIC):
            yield ShardTask([ShardPart(number, url)], False)
            return
        version = FileVersion.of(file)
        begin, size = 0, os.fstat(file.fileno()).st_size
        while begin + 2 * part < size and (cut := find_cut(partial(os.pread, file.fileno()), begin + part)):
            yield ShardTask([ShardPart(number, url, begin, cut, version)], True)
            begin = cut.offset
        yield ShardTask([ShardPart(number, url, begin, None, version)], True)


def is_compressed_file(url: str) -> bool:
    """Return whether the local file *url* is compressed."""
    with closing(storage.open_read(url)) as stream:
        return stream.file is not None and compression.codec_of(compression.head_of(stream.file)) is not None
