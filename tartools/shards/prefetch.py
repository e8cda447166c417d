"""Several shards read at once, by threads: in order, by reading ahead, or as their samples come. For commands only."""

from __future__ import annotations

import io
import os
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from queue import SimpleQueue

from tartools.errors import TarFormatError
from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.samples.batch import Batch
from tartools.shards.reading import (
    Reading,
    ShardContent,
    ShardStream,
    batches_of,
    explain_damage,
    make_key_detector,
    read_parts,
    shard_batches,
)
from tartools.storage.pool import Threads
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import Input, chunks

BUFFERED_PARTS = 4  # that wait, for each shard that is read, each of up to 1 MiB
JOIN_SECONDS = 10.0  # seconds for a thread to end; one that waits for stdin ends with the process
MAX_AWAITED_BYTES = 4 << 20  # bytes that wait in memory once the parser has come


def read_ahead(
    urls: Sequence[str], account: Account, reading: Reading, max_shards: int, memory: int
) -> Generator[Iterator[Batch], None, None]:
    """Yield, for each of *urls* in order, an iterator of its batches, while threads read up to *max_shards* shards.

    Plain local files and tables are only opened ahead, not read. `reading`: how shards are read. `account`: counts the
    bytes, and gets reports of members that are no samples; the consumer counts the samples.
    `memory`: bytes of shards read ahead that are held in all; bytes beyond go to unlinked files in `reading.tmpdir`. 4
    MiB of the shard being parsed are held, too.
    What opening or reading a shard raises, its iterator raises when its turn comes. Raises: StorageError at the
    beginning if `reading.tmpdir` is set and can't hold files. Take or close all iterators. Closing the generator before
    its end ends the threads, but for one whose read can't be interrupted.
    """
    if reading.tmpdir is not None:
        scratch_file(reading.tmpdir).close()  # to fail now, not in the middle
    memory = max(memory // max(max_shards - 1, 1), 1)
    # `ahead` has the shards that have not been yielded; `busy` all that threads still read, so also one that is being
    # parsed. Threads are limited by `busy`, shards (and memory) by `ahead`, but one shard is opened if none is ahead.
    waiting = iter(urls)
    ahead: deque[ShardAhead] = deque()
    busy: list[ShardAhead] = []
    try:
        while True:
            busy = [shard for shard in busy if shard.is_running]
            while not ahead or (len(busy) < max_shards and len(ahead) < max_shards):
                if (url := next(waiting, None)) is None:
                    break
                ahead.append(ShardAhead(url, account, memory, reading))
                busy.append(ahead[-1])
            if not ahead:
                return
            yield _batches(ahead.popleft(), account, reading)
    except BaseException:  # after a normal end, the shards that are still being parsed are closed by their parsers
        for shard in busy:  # all, before waiting for any
            shard.cancel()
        for shard in busy:
            shard.close()
        raise


def _batches(shard: ShardAhead, account: Account, reading: Reading) -> Iterator[Batch]:
    """Yield the samples of *shard* in batches, then close it, also after an error.

    *reading*: how they are read. *account*: gets reports of members that are no samples. Raises: the errors of opening
    and reading the shard.
    """
    yield from shard_batches(shard.url, account, reading, shard.wait_for_stream())


def merge_shards(urls: Sequence[str], account: Account, reading: Reading, window: int) -> Generator[Batch, None, None]:
    """Yield batches of the shards *urls* as threads read them, up to *window* shards at a time.

    Shards begin in the order of *urls*, and their batches mix; the samples of one shard keep their order. The consumer
    counts them; *account* gets bytes and reports. Closing it ends the threads, unless a read can't be interrupted.
    Holds: 4 MiB times *window*. Raises, and ends: TarFormatError, StorageError, after the samples before the damage.
    """
    item: SimpleQueue[tuple[int, ShardContent | BaseException | None]] = SimpleQueue()  # at a shard's end its failure
    room = threading.Semaphore(window * BUFFERED_PARTS)
    streams: dict[int, ShardStream] = {}  # that are open
    unwanted = threading.Event()

    def parse(number: int) -> None:
        if unwanted.is_set():
            return
        failure = None
        try:
            with closing(ShardStream(urls[number], account, sums=reading.sums)) as stream:
                streams[number] = stream
                if unwanted.is_set():  # it was opened too late to be cancelled below
                    stream.cancel()
                try:
                    for part in read_parts(urls[number], stream, reading):
                        room.acquire()
                        if unwanted.is_set():
                            break
                        item.put((number, part))
                except TarFormatError as error:
                    explain_damage(error, urls[number], stream)
                    raise
        except BaseException as error:
            failure = error
        streams.pop(number, None)
        item.put((number, failure))

    threads = Threads(window, parse)
    firsts: dict[int, RepeatedKeyDetector] = {}
    try:
        for number, url in enumerate(urls):
            firsts[number] = make_key_detector(url, account, reading)
            threads.submit(number)
        while firsts:
            number, part = item.get()
            if isinstance(part, BaseException):
                raise part
            if part is None:
                account.shards_done += 1
                del firsts[number]
            else:
                room.release()
                yield from batches_of([part], urls[number], account, reading, firsts[number])
    finally:
        unwanted.set()
        threads.close()
        room.release(window)  # a thread that waits ends then
        ending = [stream.cancel() for stream in list(streams.values())]
        if all(ending):
            threads.stop(JOIN_SECONDS)


class ShardAhead(Input):
    """The bytes of the shard *url*, decompressed, read by a thread that starts at once; the consumer takes them later.

    The consumer calls `wait_for_stream`, reads the stream that it returns, and closes that; or only calls `close`.
    `account`: counts the bytes read.
    `memory`: bytes held until the consumer comes; further ones go to an unlinked file in `reading.tmpdir`. A plain file
    or a table is only opened, and left to the consumer. `reading.sums`: the checksums to compare.
    `is_running`: True until it is closed, or found to be a plain file or a table, which no thread reads.
    """

    def __init__(self, url: str, account: Account, memory: int, reading: Reading) -> None:
        self.url = url
        self._sums = reading.sums
        self.is_running = True  # until it is closed, or found to be what no thread needs to read
        self._account = account
        self._buffer = SpillBuffer(memory, reading.tmpdir)
        self._changed = threading.Condition()
        self._stream: ShardStream | None = None  # once it is open
        self._failure: BaseException | None = None
        self._ended = self._unwanted = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for_stream(self) -> Input:
        """Wait for the first bytes or the end; return the stream to read: this, or of a plain file or table its own.

        If opening the shard failed, the first read raises that.
        """
        with self._changed:
            self._buffer.awaited = True
            self._changed.wait_for(lambda: self._ended or self._buffer.size)
        return self if self.is_running or self._stream is None else self._stream

    def readinto(self, view: memoryview, /) -> int:
        """Wait for bytes, and move up to `len(view)` of them into *view*; return their number, 0 at the end.

        Raises: the error of the thread in opening or reading the shard, after the bytes before it.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._buffer.size)
            count = self._buffer.readinto(view)
            if not count and self._failure is not None:
                raise self._failure
            self._changed.notify_all()
            return count

    def name_part(self, error: TarFormatError) -> None:
        """Add to the message of *error* the part in which it is, if the archive was split, and is not compressed.

        The thread has read ahead, so that of compressed data the part is not known, unless decompression fails.
        """
        if self._stream is not None and not self._stream.compressed:
            self._stream.name_part(error)

    def cancel(self) -> bool:
        """Ask the thread to end; return True if it has ended or will soon, False if its read can't be interrupted."""
        with self._changed:
            self._unwanted = True
            self._changed.notify_all()
            stream = self._stream
        return self._ended or stream is None or stream.cancel()

    def close(self) -> None:
        """Stop reading: cancel, wait up to 10 s for the thread if it will end, and close the shard if it has ended."""
        self.is_running = False
        if self.cancel():
            self._thread.join(JOIN_SECONDS)
        if self._ended and self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        try:
            stream = ShardStream(self.url, self._account, sums=self._sums)
            with self._changed:
                self._stream = stream
                unwanted = self._unwanted
            if unwanted:  # `cancel` came before there was a stream
                stream.cancel()
            self._read(stream)
        except BaseException as error:
            self._failure = error
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read(self, stream: ShardStream) -> None:
        """Read *stream* into the buffer until its end or `cancel`, and close it.

        A plain file or a table is left open and unread, and `is_running` becomes False. Raises: StorageError;
        TarFormatError for damaged compressed data.
        """
        if stream.file is not None or stream.is_table():
            self.is_running = False
            return
        with closing(stream):
            for chunk in chunks(stream):  # of many small ones the threads would only wait for each other
                with self._changed:
                    self._changed.wait_for(lambda: self._unwanted or not self._buffer.is_full)
                    if self._unwanted:
                        return
                    self._buffer.append(bytes(chunk))
                    self._changed.notify_all()


class SpillBuffer:
    """A queue of bytes: up to *memory* bytes in memory, further ones in an unlinked scratch file in *folder*.

    `awaited`: set to True by the consumer once it reads. From then on the queue is full (`is_full`) at 4 MiB, and
    `append` keeps bytes in memory as soon as the consumer has read all of the file. It has no lock: threads that share
    it bring their own. `append` never waits or refuses: its caller waits while `is_full`.
    """

    def __init__(self, memory: int, folder: str | None) -> None:
        self.awaited = False
        self._memory = memory
        self._folder = folder
        self._chunks: deque[memoryview] = deque()
        self._held = 0  # bytes in these chunks
        self._file: io.FileIO | None = None
        self._written = self._read = 0  # bytes of the file

    @property
    def size(self) -> int:
        """Bytes in the queue, in memory and in the file."""
        return self._held + self._written - self._read

    @property
    def is_full(self) -> bool:
        """True if the consumer reads and 4 MiB are waiting: the thread that appends should wait."""
        return self.awaited and self.size >= MAX_AWAITED_BYTES

    def append(self, chunk: bytes) -> None:
        """Add *chunk* at the end. Raises StorageError if the scratch file can't be written."""
        if self._written == self._read and (self.awaited or self._held + len(chunk) <= self._memory):
            self._chunks.append(memoryview(chunk))
            self._held += len(chunk)
            return
        if self._file is None:
            self._file = scratch_file(self._folder)
        self._file.write(chunk)
        self._written += len(chunk)

    def readinto(self, view: memoryview, /) -> int:
        """Move up to `len(view)` bytes from the front of the queue into *view*; return their number, 0 if empty.

        It may be less than there is: bytes in memory and in the file are not mixed in one call.
        """
        count = 0
        while self._chunks and count < len(view):
            chunk = self._chunks.popleft()
            size = chunk[: len(view) - count]
            view[count : count + len(size)] = size
            count += len(size)
            if len(size) < len(chunk):
                self._chunks.appendleft(chunk[len(size) :])
        self._held -= count
        if not count and self._file is not None:
            count = os.preadv(self._file.fileno(), [view[: self._written - self._read]], self._read)
            self._read += count
        return count
