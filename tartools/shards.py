"""Many URLs to samples, and samples to shards.

`read_samples` and `read_shard` read; `write_samples` writes one shard, `write_shards` many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import NamedTuple

from tartools import compression, storage, tar
from tartools.account import Account
from tartools.errors import SampleError, StorageError, UsageError, printable, shown
from tartools.sample import Sample, group
from tartools.storage.interrupts import signals_wait
from tartools.storage.scratch import scratch_file
from tartools.streams import Input, Stream
from tartools.tar import Special


class Reading(NamedTuple):
    """How shards are read: leniently (*lax*), leaving out special members in silence (*skip_special*).

    With *ranges*, samples of plain local files are ranges of those files and hold no memory. Large members of other
    inputs go to temporary files in *tmpdir* (default `$TMPDIR`, else /tmp).
    """

    lax: bool = False
    skip_special: bool = False
    ranges: bool = False
    tmpdir: str | None = None


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


def one_by_one(sources: Iterable[Iterator[Sample]]) -> Iterator[Sample]:
    """Yield the samples of each of *sources* in turn; closing this closes the one it is at."""
    for samples in sources:
        yield from samples


def read_each(urls: Sequence[str], account: Account, reading: Reading) -> Iterator[Iterator[Sample]]:
    """Return, as `read_samples`, an iterator of the samples of each shard, one shard at a time."""
    announce(urls, account)
    return (read_shard(url, account, reading) for url in urls)


def announce(urls: Sequence[str], account: Account) -> None:
    """Look at all of *urls* that can be looked at, and tell *account* what is to come. Raises: StorageError."""
    account.expected = storage.check_inputs(urls)
    account.shards = len(urls)


def read_shard(url: str, account: Account, reading: Reading, stream: Input | None = None) -> Iterator[Sample]:
    """Yield the samples of the shard *url*, whose tar stream is *stream* if it has been opened already.

    As `read_samples`, for one shard. Closes the stream, at the end or when the iterator is dropped.
    """

    def special(found: Special) -> None:
        if found.kind == "missing end":
            account.warn(f"{shown(url)}: ends without an end-of-archive block, taken for whole because of --lax")
        elif found.silent:
            account.directories += 1
        elif not reading.skip_special:
            account.special(f"{shown(url)}: {printable(found.name)}", found.kind)

    with closing(stream or ShardStream(url, account)) as opened:
        scratch = partial(scratch_file, reading.tmpdir)
        members = tar.read_members(opened, url=url, scratch=scratch, ranges=reading.ranges, lax=reading.lax)
        for sample in group(members, url, scratch, special):
            account.samples_in += 1
            yield sample
    account.shards_done += 1


class ShardStream:
    """The tar stream of the shard *url*: opened, counted by *account*, decompressed.

    Raises: StorageError when it can't be opened.
    """

    def __init__(self, url: str, account: Account) -> None:
        self._input = storage.open_read(url)
        try:
            stream = compression.decompressed(_Counted(self._input, account), url)
        except BaseException:
            self._input.close()
            raise
        self.file, self.start = stream.file, stream.start
        self.readinto = stream.readinto
        self.skip = stream.skip

    def cancel(self) -> bool:
        """Make another thread's `readinto` return soon; tell whether that is possible."""
        return self._input.cancel()

    def close(self) -> None:
        """Stop reading."""
        self._input.close()


class _Counted:
    """A stream whose bytes are counted."""

    def __init__(self, stream: Stream, account: Account) -> None:
        self.file, self.start = stream.file, stream.start
        self._stream = stream
        self._account = account

    def readinto(self, view: memoryview, /) -> int:
        count = self._stream.readinto(view)
        self._account.bytes_in += count
        return count

    def skip(self, count: int, /) -> None:
        self._stream.skip(count)
        self._account.bytes_in += count


class ShardWriter:
    """Writes one shard to *url*: samples, then at `commit` the end of the archive; only then has it its name.

    Refuses two samples of one key side by side, which a reader would take for one.

    Raises: StorageError, UsageError.
    """

    def __init__(self, url: str, *, force: bool = False, gzip: bool = False) -> None:
        codec = compression.codec_for(url, gzip)
        self.url = url
        compressor = codec.compressor() if codec else None
        self._output = storage.open_write(url, force)
        self._compressed = compression.CompressedSink(self._output.sink, compressor) if compressor else None
        self._writer = tar.Writer(self._compressed or self._output.sink)
        self._last = Sample(b"")
        self._broken = False  # a write failed half way
        self.samples = 0

    @property
    def size(self) -> int:
        """Bytes of the tar so far, before compression and without its end."""
        return self._writer.size

    def write(self, sample: Sample) -> None:
        """Add *sample*. Raises: SampleError if its key is that of the sample before it."""
        last, self._last = self._last, sample
        if sample.raw_key == last.raw_key and self.samples and sample.grouped and last.grouped:
            where = " and ".join(dict.fromkeys(shown(s.shard) for s in (last, sample) if s.shard))
            help = f" (from {where}); tarcat --rekey gives new keys, tarsort joins them" if where else ""
            raise SampleError(
                f"two samples with the key {sample.key!r} side by side, which readers would take for one{help}"
            )
        self._broken = True
        sample.write_to(self._writer)
        self._broken = False
        self.samples += 1

    def commit(self) -> None:
        """Write the end of the archive, and let the shard appear under its name.

        Raises: StorageError, also if a `write` failed before: what follows it is no archive any more.
        """
        if self._broken:
            raise StorageError("an earlier write failed, so this is no whole archive", url=self.url)
        self._writer.end()
        if self._compressed:
            self._compressed.finish()
        self._output.commit()

    def abort(self) -> None:
        """Give up: no end is written and no file appears. Whole samples that went to stdout stay there."""
        try:
            if self._output.streaming and not self._broken:
                self._writer.flush()
        finally:
            self._output.abort()


@contextmanager
def shard_writer(url: str, *, force: bool = False, gzip: bool = False) -> Iterator[ShardWriter]:
    """Give a `ShardWriter` that commits when the block ends normally, and aborts when it doesn't."""
    writer: ShardWriter | None = None
    try:
        with signals_wait():
            writer = ShardWriter(url, force=force, gzip=gzip)
        yield writer
        writer.commit()
    except BaseException as error:
        try:
            if writer is not None:
                writer.abort()
        except Exception as second:
            error.add_note(f"then, while giving up: {second}")
        raise


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
    samples: Iterable[Sample],
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
    """Yield (number, URL) of each shard once it is complete and has its name.

    The k-th shard, number *start* + k, is called `name(start + k)`. It closes when it has `counts(k)` samples, and
    before a sample with which its tar, end included, would be larger than *size* bytes; a sample that alone is
    larger gets a shard of its own. After *most* shards no more samples are asked for. No shard is empty.

    Order: input order. Holds: one sample.
    Raises: what *samples* raises, StorageError, SampleError; shards already yielded stay, the one begun does not.
    """
    writer: ShardWriter | None = None
    done = 0

    def complete(full: ShardWriter) -> tuple[int, str]:
        nonlocal writer, done
        full.commit()
        account.bytes_out += full.size
        writer, done = None, done + 1
        return start + done - 1, full.url

    with closing_upstream(samples):
        try:
            for sample in samples if most != 0 else ():
                if writer is not None and size and tar.archive_size(writer.size + sample.size) > size:
                    yield complete(writer)
                    if done == most:
                        account.left_out += 1
                        return
                if writer is None:
                    with signals_wait():
                        writer = ShardWriter(name(start + done), force=force, gzip=gzip)
                writer.write(sample)
                account.samples_out += 1
                if writer.samples == counts(done):
                    yield complete(writer)
                    if done == most:
                        return
            if writer is not None:
                yield complete(writer)
        finally:
            if writer is not None:
                writer.abort()


def even_counts(urls: Sequence[str], shards: int, reading: Reading) -> Callable[[int], int]:
    """Return how many samples each of *shards* shards gets, so that they differ by at most one; reads all inputs.

    Raises: UsageError for an input that can't be read twice; SampleError if there are too few samples.
    """
    for url in urls:
        if not storage.is_repeatable(url):
            raise UsageError("--shards reads the inputs twice, which this one does not allow", url=url)
    counting = Account(lambda _: None)
    total = sum(1 for _ in read_samples(urls, counting, Reading(reading.lax, reading.skip_special, ranges=True)))
    if total < shards:
        raise SampleError(f"{total} samples are too few for {shards} shards")
    return lambda k: total // shards + (k < total % shards)
