"""Many URLs to samples, and samples to shards.

`read_samples` and `read_shard` read; `write_samples` writes one shard, `write_shards` many. What only copies samples
takes them as the reader finds them, a batch at a time: `read_batches`, `write_batches`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tartools import compression, storage, tar
from tartools.account import Account
from tartools.errors import printable, shown
from tartools.sample import Batch, Sample
from tartools.shardwriter import ShardWriter, shard_writer
from tartools.storage.interrupts import signals_wait
from tartools.storage.scratch import scratch_file
from tartools.streams import Input, Stream
from tartools.tar import Loose, Run, Special

if TYPE_CHECKING:
    from tartools.storage.forked import Forked

Item = TypeVar("Item")


class Reading(NamedTuple):
    """How shards are read: leniently (*lax*), leaving out special members in silence (*skip_special*).

    With *ranges*, samples of plain local files are ranges of those files and hold no memory; *listed* says whether
    their members are found along with them, and not only when they are asked for.
    Large members of what is no plain local file go to temporary files in *tmpdir* (default `$TMPDIR`, else /tmp).
    With *forks*, a child process decompresses: for commands only.
    """

    lax: bool = False
    skip_special: bool = False
    ranges: bool = False
    listed: bool = True
    tmpdir: str | None = None
    forks: bool = False


def read_samples(
    urls: Sequence[str], account: Account | None = None, reading: Reading | None = None
) -> Iterator[Sample]:
    """Return the samples of the shards *urls*, one shard after the other.

    All local files are looked at before this returns; each shard is opened when its turn comes. A sample is passed
    on when the header that ends it has been read and is sound.

    Order: that of *urls*, and of each archive. Holds: one sample, one read buffer of 1 MiB.
    Raises: TarFormatError, StorageError, with URL and byte offset, after the samples before the damage.
    """
    return one_by_one(read_each(urls, account or Account(), reading or Reading()))


def one_by_one(sources: Iterable[Iterator[Item]]) -> Iterator[Item]:
    """Yield what is in each of *sources* in turn; closing this closes the one it is at."""
    for source in sources:
        yield from source


def read_each(urls: Sequence[str], account: Account, reading: Reading) -> Iterator[Iterator[Sample]]:
    """Return, as `read_samples`, an iterator of the samples of each shard, one shard at a time."""
    announce(urls, account)
    return (read_shard(url, account, reading) for url in urls)


def read_batches(urls: Sequence[str], account: Account, reading: Reading) -> Iterator[Batch]:
    """Return the samples of the shards *urls* in batches, as `read_samples`; whoever takes them counts them."""
    announce(urls, account)
    return one_by_one(shard_batches(url, account, reading) for url in urls)


def counted(batches: Iterable[Batch], account: Account) -> Iterator[Batch]:
    """Yield *batches*, and count their samples as read."""
    with closing_upstream(batches):
        for batch in batches:
            account.samples_in += len(batch)
            yield batch


def each(batches: Iterable[Batch], account: Account) -> Iterator[Sample]:
    """Yield the samples of *batches*, and count them as read."""
    for batch in batches:
        for sample in batch:
            account.samples_in += 1
            yield sample


def announce(urls: Sequence[str], account: Account) -> None:
    """Look at all of *urls* that can be looked at, and tell *account* what is to come. Raises: StorageError."""
    account.expected = storage.check_inputs(urls)
    account.shards = len(urls)


def read_shard(url: str, account: Account, reading: Reading, stream: Input | None = None) -> Iterator[Sample]:
    """Yield the samples of the shard *url*, whose tar stream is *stream* if it has been opened already.

    As `read_samples`, for one shard. Closes the stream, at the end or when the iterator is dropped.
    """
    with closing(shard_batches(url, account, reading, stream)) as batches:
        yield from each(batches, account)


def shard_batches(
    url: str,
    account: Account,
    reading: Reading,
    stream: Input | None = None,
    *,
    begin: int = 0,
    until: int | None = None,
) -> Generator[Batch, None, None]:
    """Yield the samples of one shard in batches, as `read_shard`; whoever takes them counts them.

    Of a plain file, those from byte *begin* on, and up to *until*, where one has to begin.
    """
    with closing(stream or ShardStream(url, account, reading.forks)) as opened:
        scratch = partial(scratch_file, reading.tmpdir)
        if begin:
            opened.skip(begin)
            account.bytes_in -= begin
            account.unpacked -= begin
        for part in tar.read_members(
            opened,
            url=url,
            scratch=scratch,
            ranges=reading.ranges,
            listed=reading.listed,
            lax=reading.lax,
            begin=begin,
            until=until,
        ):
            if isinstance(part, (Run, Loose)):
                yield Batch(part, url)
            elif isinstance(part, Special):
                _tell(part, url, account, reading)
    if until is None:
        account.shards_done += 1


def _tell(found: Special, url: str, account: Account, reading: Reading) -> None:
    """Tell *account* of what is in the shard *url* and no part of a sample."""
    if found.kind == "missing end":
        account.warn(f"{shown(url)}: ends without an end-of-archive block, taken for whole because of --lax")
    elif found.silent:
        account.directories += 1
    elif not reading.skip_special:
        account.special(f"{shown(url)}: {printable(found.name)}", found.kind)


class ShardStream:
    """The tar stream of the shard *url*: opened, counted by *account*, decompressed; with *forks*, in a child process.

    *forked* is what reads it in a child or may come to do so, where there is such a thing.

    Raises: StorageError when it can't be opened.
    """

    def __init__(self, url: str, account: Account, forks: bool = False) -> None:
        self._input: Input | None = storage.open_read(url)
        self.forked: Forked | None = None
        try:
            counted = _Counted(self._input, account)
            stream = compression.decompressed(counted, url)
        except BaseException:
            self._input.close()
            raise
        fileno = getattr(self._input, "fileno", None)  # what is remote is no descriptor
        if forks and stream.file is None and fileno is not None:
            from tartools.storage.forked import Forked  # most inputs are plain files

            worth = partial(compression.is_compressed, stream)
            stream = self.forked = Forked(stream, counted, fileno(), url, account, worth)
        self._stream: Stream | None = stream
        self._account = account
        self.file, self.start = stream.file, stream.start

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        assert self._stream is not None
        count = self._stream.readinto(view)
        self._account.unpacked += count
        return count

    def skip(self, count: int, /) -> None:
        """Pass *count* bytes by."""
        assert self._stream is not None
        self._stream.skip(count)
        self._account.unpacked += count

    def cancel(self) -> bool:
        """Make another thread's `readinto` return soon; tell whether that is possible."""
        return self._input is None or self._input.cancel()

    def close(self) -> None:
        """Stop reading. What is in memory stays there; where else it can be found is known no more."""
        if self.forked is not None:
            self.forked.close()  # first, or a command that writes on would get no SIGPIPE
        if self._input is not None:
            self._input.close()
        self.file = self._input = self._stream = self.forked = None  # samples keep this, and nothing more


class _Counted:
    """A stream whose bytes are counted."""

    def __init__(self, stream: Stream, account: Account) -> None:
        self.file, self.start = stream.file, stream.start
        self._stream = stream
        self._account = account
        self.ended = False

    def readinto(self, view: memoryview, /) -> int:
        count = self._stream.readinto(view)
        self._account.bytes_in += count
        self.ended = not count
        return count

    def skip(self, count: int, /) -> None:
        self._stream.skip(count)
        self._account.bytes_in += count


def write_samples(
    samples: Iterable[Sample],
    url: str,
    account: Account | None = None,
    *,
    force: bool = False,
    gzip: bool = False,
) -> None:
    """Write *samples* to the shard *url*, in order.

    Holds: what `tar.Writer` holds. Raises: what *samples* raises; StorageError; SampleError.
    """
    account = account or Account()
    with closing_upstream(samples), shard_writer(url, force=force, gzip=gzip) as writer:
        for sample in samples:
            writer.write(sample)
            account.samples_out += 1
        account.bytes_out += writer.size


def write_batches(
    batches: Iterable[Batch], url: str, account: Account, *, force: bool = False, gzip: bool = False
) -> None:
    """Write all samples of *batches* to the shard *url*, as `write_samples` does."""
    with closing_upstream(batches), shard_writer(url, force=force, gzip=gzip) as writer:
        for batch in batches:
            writer.write_batch(batch, 0, len(batch))
            account.samples_out += len(batch)
        account.bytes_out += writer.size


@contextmanager
def closing_upstream(samples: Iterable[object]) -> Iterator[None]:
    """Close the stages that *samples* come from when the block ends, so that nothing of theirs is left running."""
    try:
        yield
    finally:
        close = getattr(samples, "close", None)
        if close:
            close()


def write_shards(
    batches: Iterable[Batch],
    name: Callable[[int], str],
    account: Account,
    *,
    counts: Callable[[int], int | None],
    size: int | None,
    start: int = 0,
    most: int | None = None,
    force: bool = False,
    gzip: bool = False,
) -> Iterator[tuple[int, str]]:
    """Yield (number, URL) of each shard of the samples of *batches* once it is complete and has its name.

    The k-th shard, number *start* + k, is called `name(start + k)`. It closes when it has `counts(k)` samples, and
    before a sample with which its tar, end included, would be larger than *size* bytes; a sample that alone is
    larger gets a shard of its own. After *most* shards no more samples are asked for. No shard is empty.

    Order: input order. Holds: one batch.
    Raises: what *batches* raises, StorageError, SampleError; shards already yielded stay, the one begun does not.
    """
    writer: ShardWriter | None = None
    done = 0

    def complete(full: ShardWriter) -> tuple[int, str]:
        nonlocal writer, done
        full.commit()
        account.bytes_out += full.size
        writer, done = None, done + 1
        return start + done - 1, full.url

    with closing_upstream(batches):
        try:
            for batch in batches if most != 0 else ():
                first = 0
                while first < len(batch):
                    share = _share(batch, first, writer, size, counts(done))
                    if writer is not None and not share:
                        yield complete(writer)
                        if done == most:  # the sample that did not fit has been read
                            account.samples_in += 1
                            account.left_out += 1
                            return
                        continue
                    if writer is None:
                        with signals_wait():
                            writer = ShardWriter(name(start + done), force=force, gzip=gzip)
                    account.samples_in += share
                    writer.write_batch(batch, first, first + share)
                    account.samples_out += share
                    first += share
                    if writer.samples == counts(done):
                        yield complete(writer)
                        if done == most:
                            return
            if writer is not None:
                yield complete(writer)
        finally:
            if writer is not None:
                writer.abort()


def _share(batch: Batch, first: int, writer: ShardWriter | None, size: int | None, count: int | None) -> int:
    """Return how many samples of *batch*, from number *first* on, go to the shard of *writer*, or to a new one.

    0 if it has to be closed before the first of them.
    """
    share = len(batch) - first
    if size:
        room = tar.room_in(size) - (writer.size if writer else 0)
        share = min(share, max(batch.fitting(first, room), 0 if writer else 1))
    if count is not None:
        share = min(share, count - (writer.samples if writer else 0))
    return share
