"""Samples to a shard, which appears under its name when it is complete."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from tartools import storage, tar
from tartools.errors import SampleError, StorageError, UsageError, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.shards.reading import close_at_end
from tartools.storage.interrupts import defer_signals
from tartools.storage.local import OpenOutput
from tartools.storage.outputformats import PARQUET_SUFFIX, SHARD_FORMAT, check_format, is_table_name
from tartools.storage.url import Url
from tartools.tar.compression import CODECS, Codec, CompressedSink, split_packed, split_suffix

if TYPE_CHECKING:
    from tartools.tables.tablewriter import RowBatch, TableWriter

NO_LIST = "a table can only refer to existing samples, but this would create new ones"


Batches: TypeAlias = "Batch | RowBatch"  # adjacent samples, or rows of a table that list them
BatchWriter: TypeAlias = "SampleWriter | TableWriter"  # what writes an output, a shard or a table


class Destination(NamedTuple):
    """A sink of samples that is not open yet.

    `url`: the shard or table. `force`: replace an existing file or object. `gzip`: compress with gzip; `url` must have
    a suffix of gzip then, or none.
    `begin(destination)`: opens it and returns its writer; by default that of a shard.
    `sums`: gets the checksum of the output once it has appeared; None: no checksum is computed.
    """

    url: str
    force: bool = False
    gzip: bool = False
    begin: Callable[["Destination"], BatchWriter] | None = None
    sums: Any = None  # OutputSums; a name in quotes would be compiled at the start

    def writer(self) -> BatchWriter:
        """Open the output, and return its writer: the result of `begin`, by default a `SampleWriter`.

        Raises: the errors of `begin`, by default of `SampleWriter`: StorageError if it exists (unless `force`) or can't
        be written; UsageError for its name.
        """
        return (self.begin or SampleWriter)(self)


class SampleWriter:
    """Writes one shard: samples, then the end of the archive. It appears under its name at `commit`, and not before.

    But stdout, a fifo, a device and a command (`pipe:`) get the bytes at once.
    To be called: `write` or `write_batch` for the samples, then `commit`; or `abort` after an error.
    Refuses a sample with the key of the one before it, since a reader would take the two for one; within a batch keys
    are not compared. `samples`: number of samples so far. `size`, `bytes_written`: bytes of the tar so far, before
    compression. `output`: the open output.

    Raises StorageError if the destination exists (unless `destination.force`; for an object, at `commit`) or can't be
    written; UsageError for a terminal, if its suffix contradicts `destination.gzip` or means another format, such as a
    table, or if `destination.sums` can't list it.
    """

    def __init__(self, destination: Destination) -> None:
        url = self.url = destination.url
        check_shard_name(url)
        codec = codec_for(url, destination.gzip)
        compressor = codec.compressor() if codec else None
        if destination.sums:
            destination.sums.check_output(url)
        self.output = storage.open_write(url, destination.force)  # `storage.sync` takes it
        self._hashed = destination.sums.hash_sink(url, self.output.sink) if destination.sums else None
        sink = self._hashed or self.output.sink
        self._compressed = CompressedSink(sink, compressor) if compressor else None
        self._writer = tar.Writer(self._compressed or sink)
        self._last = Sample(b"")
        self._broken = False  # a write failed halfway
        self._finished = False
        self.samples = 0

    @property
    def size(self) -> int:
        """Bytes of the tar so far, before compression; its end counts once `finish` has written it."""
        return self._writer.size

    bytes_written = size

    def write(self, sample: Sample) -> None:
        """Add *sample*. Raises: SampleError if it has the key of the sample before it; StorageError.

        Two samples of one key are fine if one has a single member whose path is the key: readers don't join these.
        """
        self._check_key(sample)
        self._last = sample
        self._broken = True
        sample.write_to(self._writer)
        self._broken = False
        self.samples += 1

    def write_batch(self, batch: Any, first: int, last: int) -> None:
        """Add samples *first* to *last* (exclusive) of *batch*, a `Batch` whose adjacent keys differ; at least one.

        Raises SampleError if sample *first* has the key of the sample written before it, with the exception that
        `write` names; StorageError.
        """
        self._check_key(batch[first])  # the others differ: the reader would have joined them
        self._last = batch[last - 1]
        self._broken = True
        batch.write_to(self._writer, first, last)
        self._broken = False
        self.samples += last - first

    def _check_key(self, sample: Sample) -> None:
        last = self._last
        if sample.raw_key == last.raw_key and self.samples and sample.grouped and last.grouped:
            where = " and ".join(dict.fromkeys(shown(s.shard) for s in (last, sample) if s.shard))
            help = f" (from {where}); --rekey of tarcat and tarmix gives new keys, tarsort joins them" if where else ""
            raise SampleError(
                f"two samples with the key {sample.key!r} side by side, which readers would take for one{help}"
            )

    def flush(self) -> None:
        """Write the samples that wait in memory, and drop the buffers that they were read into.

        Of the last sample only key, shard and longest path are kept, to compare it with the next one. Raises:
        StorageError; then `finish` and `commit` raise, too.
        """
        self._broken = True
        self._writer.flush()
        self._broken = False
        last = self._last
        longest = max((member.path for member in last.members), key=len, default=last.raw_key)
        self._last = Sample(last.raw_key, (tar.Member(longest, b"", 0, 0, 0),), last.shard)

    def finish(self) -> None:
        """Write the end of the archive; only `commit` or `abort` may follow.

        Raises StorageError, also if an earlier `write` failed, since the archive is incomplete then.
        """
        if self._broken:
            raise StorageError("the archive is incomplete, because an earlier write failed", url=self.url)
        self._writer.end()
        if self._compressed:
            self._compressed.finish()
        self._finished = True

    def commit(self) -> None:
        """Write the end of the archive, unless `finish` has, and let the shard appear under its name.

        Then its checksum is added to `destination.sums`. Raises StorageError, also if an earlier `write` failed, or if
        the destination exists by now (unless `destination.force`).
        """
        if not self._finished:
            self.finish()
        self.output.commit()
        if self._hashed:
            self._hashed.record()

    def abort(self, *, flush: bool = True) -> None:
        """Drop the shard, unless it was committed: no end of archive is written any more, and no file appears.

        What has gone to stdout, a fifo, a device or a command stays. With *flush*, whole samples that are buffered for
        the first three are written, too, unless a write failed or `finish` was called; that may wait for a reader.
        Raises: StorageError if it fails.
        """
        try:
            if flush and isinstance(self.output, OpenOutput) and not self._broken and not self._finished:
                self._writer.flush()
        finally:
            self.output.abort()


def split_output(url: str) -> tuple[str, str]:
    """Return (*url* without its suffix, the suffix) for a shard or table: ("a", ".tar.gz"), ("a", ".parquet").

    (*url*, "") for any other name.
    """
    return (url[: -len(PARQUET_SUFFIX)], url[-len(PARQUET_SUFFIX) :]) if is_table_name(url) else split_suffix(url)


def codec_for(url: str, gzip: bool) -> Codec | None:
    """Return the codec for an output named *url*: gzip if *gzip* is set, else by its suffix; None for a plain tar.

    None, too, for a name without a suffix, or with one that means nothing. A command has no suffix: `pipe:gzip > a.tgz`
    is given plain bytes, or gzip's if *gzip* is set.

    Raises UsageError if *gzip* is set and the name has a suffix of a shard or table that is not one of gzip's, also
    .tar; for the name of another format, such as .zip; and, unless *gzip* is set, for a name such as a.gz, which lacks
    .tar.
    """
    name = "" if Url(url).scheme == "pipe" else Url(url).name
    check_format(url, SHARD_FORMAT)
    suffix = split_output(name)[1].lower()
    if gzip and suffix not in ("", *CODECS[0].suffixes):
        raise UsageError(f"-z writes gzip, but this name ends in {suffix}", url=url)
    bare = split_packed(name)[0]
    if not suffix and not gzip and bare != name:
        raise UsageError(f"a tar is compressed if its name ends in .tar{name[len(bare) :]}", url=url)
    return CODECS[0] if gzip else next((codec for codec in CODECS if suffix in codec.suffixes), None)


def check_shard_name(url: str, unless: str = "") -> None:
    """Raise UsageError if *url*, an output for new samples, is the name of a table, which can't list them.

    `unless`: advice for the message; "": to name a shard, or to use tar2parquet.
    """
    if is_table_name(url):
        help = f" ({unless})" if unless else "; name a shard, such as .tar, or use tar2parquet"
        raise UsageError(f"{NO_LIST}{help}", url=url)


@contextmanager
def shard_writer(destination: Destination) -> Iterator[BatchWriter]:
    """Open *destination* for the body of `with`, and give its writer; commit at a normal end, abort otherwise.

    It aborts, too, if the commit fails. Raises: the errors of `Destination.writer` and of the commit. An error while
    it aborts becomes a note of the first error.
    """
    writer: BatchWriter | None = None
    try:
        with defer_signals():
            writer = destination.writer()
        yield writer
        writer.commit()
    except BaseException as error:
        try:
            if writer is not None:
                writer.abort(flush=isinstance(error, Exception))  # after a signal, do not wait for a reader
        except Exception as second:
            error.add_note(f"then, while dropping the output: {second}")
        raise


def write_samples(samples: Iterable[Sample], destination: Destination, account: Account) -> None:
    """Write *samples*, in order, to the shard *destination*, which appears when it is complete.

    *samples* is closed at the end, if it can be. `account`: counts samples as written, at the end also bytes, before
    compression; its `check` is called before the commit. Raises what *samples* and that check raise; StorageError;
    UsageError for the name of *destination*; SampleError for two adjacent samples with one key.
    """
    with close_at_end(samples), shard_writer(destination) as found:
        writer = cast(SampleWriter, found)  # tables are written in batches
        for sample in samples:
            writer.write(sample)
            account.samples_out += 1
        account.check()
    account.bytes_out += writer.bytes_written


def write_batches(batches: Iterable[Batches], destination: Destination, account: Account) -> None:
    """Write all samples of *batches*, in order, to *destination*, which appears when it is complete.

    `batches`: of samples, or of rows if the destination is made for rows; closed at the end, if it can be. `account`:
    counts samples as written, at the end also bytes (`bytes_written` of the writer); its `check` is called before the
    commit. Raises what *batches* and that check raise; StorageError; UsageError for the name of *destination*;
    SampleError if a batch of samples begins with the key of the sample before it.
    """
    with close_at_end(batches), shard_writer(destination) as writer:
        for batch in batches:
            writer.write_batch(batch, 0, len(batch))
            account.samples_out += len(batch)
        account.check()
    account.bytes_out += writer.bytes_written
