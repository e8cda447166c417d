"""The toolbox for Python programs: samples read and written as the commands do it.

Nothing here forks or changes signals, and only remote URLs need threads. The one exception is the command of a `pipe:`
URL.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal, overload

from tartools import storage
from tartools.errors import StorageError, byte_size
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.lastdot import is_last_dot
from tartools.samples.sample import Sample, Value, build
from tartools.shards.numbering import check_numbered, existing_shards, parse_numbering, replace_set
from tartools.shards.reading import Reading, Strictness, close_at_end, read_batches
from tartools.shards.series import Limits, Series
from tartools.shards.writing import Destination, SampleWriter, check_shard_name, codec_for
from tartools.storage.expand import expand
from tartools.storage.outputs import ClosedByBlock, Pending
from tartools.storage.url import Name, name_of, names_of

if TYPE_CHECKING:
    from tartools.storage.checksums import ListedSums, OutputSums
    from tartools.storage.seekable import WritableFile

ABORT_JOIN_SECONDS = 2.0  # seconds that an abort waits for a thread that writes
_processes = [object()]  # the last one stands for this process; os.getpid for each sample would cost 5 %
os.register_at_fork(after_in_child=lambda: _processes.append(object()))


def read(
    urls: Name | Iterable[Name],
    *,
    lax: bool = False,
    skip_special: bool = False,
    dots: Literal["first", "last"] = "first",
    check_sums: Name | None = None,
) -> Iterator[Sample]:
    """Return an iterator over the samples of one or many shards.

        for sample in tartools.read("train-{000..147}.tar"):
            sample.key, sample["jpg"]  # str, bytes

    *urls* are paths (also `pathlib.Path`) and URLs as on the command line: braces and wildcards are expanded, `-` is
    stdin; of a table, the samples of its rows are read. An empty list has no samples. Before this returns, all local
    files are checked: StorageError for a missing one, and for a wildcard without a match; UsageError for stdin that is
    named twice or a terminal, and for a URL with a password. Dropping the iterator closes what it has open.
    An iterator that has begun raises RuntimeError in another process, such as a fork: let each worker call `read`.

    Order: that of the names, and of each archive. Holds: one sample, one read buffer of 1 MiB. A sample that you keep
    keeps its buffer: keep `sample.own()` instead.
    Raises StorageError and TarFormatError, with URL and byte offset, after the samples before the damage. Links,
    devices and sparse members are skipped, with a warning of the first and at the end of how many more, unless
    *skip_special*. *lax* accepts a shard
    without an end-of-archive block, with a warning.
    *check_sums*: a list of checksums, as sha256sum writes it: StorageError is raised at once if the list can't be read
    or lacks a shard, after the samples of a shard that is not as listed, and for a table when it is read.
    With *dots* "last", keys end at the last dot of names, and their other dots become underscores: img.2023.01.jpg is
    the field jpg of img_2023_01, not 2023.01.jpg of img. Raises SampleError if two adjacent names with the same text
    before their first dot would get one key so (x.a.b.jpg, x.a_b.jpg); ValueError for other *dots*.
    """
    patterns = names_of(urls)
    expanded = expand(patterns) if patterns else []
    reading, account = Reading(Strictness(lax, skip_special), last_dot=is_last_dot(dots)), Account()
    if check_sums is None:
        return _samples_of_one_process(read_batches(expanded, account, reading), account)
    from tartools.storage.checksums import ListedSums

    sums = ListedSums(name_of(check_sums))
    sums.require(expanded)
    batches = read_batches(expanded, account, reading._replace(sums=sums))
    return _samples_of_one_process(_compare_sums(batches, sums), account)


def _compare_sums(batches: Iterator[Batch], sums: ListedSums) -> Iterator[Batch]:
    """Yield *batches*; raise ChecksumError after the batches of the first shard whose checksum differs from *sums*.

    *batches*: of a `Reading` with the same *sums*, so that the reader adds differences to `sums.mismatches`.
    """
    with close_at_end(batches):
        for batch in batches:
            sums.check()
            yield batch
        sums.check()


def _samples_of_one_process(batches: Iterator[Batch], account: Account) -> Iterator[Sample]:
    """Yield the samples of *batches* one by one, in the process that takes the first of them.

    At the end *account* reports the special members after the first. Raises RuntimeError in another process, such as a
    fork: two processes would share the position in the file, and each would get parts of samples.
    """
    process = _processes[-1]
    with close_at_end(batches):
        for batch in batches:
            for sample in batch:
                yield sample
                if process is not _processes[-1]:
                    raise RuntimeError(
                        "this iterator was begun in another process, which reads on from the same files: "
                        "call tartools.read in each process"
                    )
    account.report_more_specials()


def write(
    samples: Iterable[Sample | Mapping[str, Value]],
    url: Name,
    *,
    force: bool = False,
    gzip: bool = False,
    sums: Name | None = None,
) -> None:
    """Write *samples*, which were read or are mappings of `__key__` and fields to values, to the shard *url*.

    It appears when it is complete; after an error, of *samples* too, it does not. `force`: replace existing files;
    `gzip`: compress it; `sums`: file for its SHA-256, as sha256sum writes it. A value is bytes, text, a number, or what
    the suffix of its field can hold: see `TarWriter.write`.
    Raises: StorageError if *url* or *sums* exists (unless *force*) or can't be written; UsageError if *url* has a
    number such as `%06d`, the suffix of a table or another format, or, with *gzip*, any suffix but those of gzip, or if
    *sums* is stdout or *url* itself, or is given for a command; the errors of `TarWriter.write` for a sample.

        tartools.write((s for s in tartools.read("train-000.tar") if s["cls"] == b"3"), "threes.tar")
    """
    with TarWriter(url, force=force, gzip=gzip, sums=sums) as writer:
        for sample in samples:
            writer.write(sample)


@overload
def open(url: Name, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
@overload
def open(url: Name, mode: Literal["wb"], *, force: bool = False) -> WritableFile: ...
def open(url: Name, mode: str = "rb", *, force: bool = False) -> io.BufferedReader | WritableFile:
    """Return *url*, local or remote, as a Python file: to read ("rb") or to write ("wb").

        with tartools.open("s3://bucket/model.pt", "wb") as file:
            torch.save(model.state_dict(), file)
        with tartools.open("s3://bucket/model.pt", "rb") as file:
            state = torch.load(file)

    The bytes are as stored: nothing is compressed or decompressed.
    Reading: buffered; files, and objects of stores and servers that have ranges, seek, and only what is read is
    fetched. From a server without ranges or ETags all of it is copied to a temporary file first. `pipe:`, stdin, fifos,
    and URLs that a command reads (hdfs:, ftp:) do not seek.
    Writing: no seeking; *url* appears at `close`, or when the `with` block ends normally. Anything else leaves nothing.
    Stdout, fifos, devices and commands get the bytes at once. *force*: replace an existing file or object; with "rb" it
    is ignored. A wrapper around the file, like `io.TextIOWrapper`, needs this file's own `with`, since the wrapper's
    closes in any case.

    Holds, for an object: 8 ranges of 8 MiB when it is read from end to end; the parts under way, 5 of 16 MiB, when it
    is written.
    Raises StorageError, with URL and byte, also if *url* exists (unless *force*); UsageError, to write, for a number
    such as `%06d` in *url*, or a terminal; ValueError for another *mode*.
    """
    from tartools.storage import seekable

    if mode == "rb":
        return seekable.open_as_file(name_of(url))
    if mode == "wb":
        return seekable.WritableFile(name_of(url), force=force)
    raise ValueError(f"mode is 'rb' or 'wb', not {mode!r}")


class _OutputWriter(ClosedByBlock):
    """The base of `TarWriter` and `ShardWriter`: one output, for several threads, of the process that opened it.

    `url`: for messages. `begin()`: called at once; returns the object that writes samples, commits and aborts. `sums`:
    the list of checksums, which is written after the commit; None for no list.
    """

    def __init__(
        self, url: str, begin: Callable[[], SampleWriter | _ShardSequence], sums: OutputSums | None = None
    ) -> None:
        from threading import RLock  # not needed to read

        self._sums = sums

        self._url = url
        self._lock = RLock()  # a signal handler may close what the same thread writes
        self._calls: list[None] = []  # one for each `write` under way; a list, since its methods are atomic
        self._pending = Pending(self, begin)

    def write(self, sample: Sample | Mapping[str, Value]) -> None:
        """Add a sample: one that was read, or a mapping of `__key__` and fields to values.

        Values: bytes, str, numbers, also of numpy and torch; PIL images, and arrays as pictures, as the field's suffix
        says; what json, npy, npz (a dict of arrays), mp (msgpack), ten (one array or a list, webdataset's tenbin) and
        pth (torch.save) can hold, for fields of these suffixes. All but bytes are compressed for one such as `txt.gz`.
        Raises TypeError naming the field for another value; ModuleNotFoundError without the package that encodes it;
        SampleError if it has no `__key__` or no field, for a key or field that would not read back, two fields that
        differ only in case, or the key of the sample before; StorageError if it can't be written (if it was begun,
        `close` fails, too); ValueError after `close` or `abort`; RuntimeError in another process.
        """
        self._pending.check_process()  # in a fork, nobody may be left who would release the lock
        self._calls.append(None)
        try:
            built = sample if isinstance(sample, Sample) else build(sample)
            with self._lock:
                self._pending.writer.write(built)
        finally:
            self._calls.pop()

    def close(self) -> None:
        """Write the end of the output, and let it appear under its name; then write the list of checksums, if any.

        Does nothing the second time, or after `abort`. Raises: StorageError if it can't be written, or if a `write` is
        under way (of another thread, and does not end while this waits for it; or one that a signal interrupted). What
        has not appeared is dropped then; if only the list can't be written, the output stays. RuntimeError in another
        process.
        """
        self._pending.check_process()
        if not self._pending.is_open:
            return
        with self._lock:
            if self._calls and self._pending.is_open:
                self._pending.abort()
                raise StorageError("closed while a thread was writing a sample, so it is dropped", url=self._url)
            self._pending.commit()
            if self._sums is not None:
                self._sums.write()

    def abort(self) -> None:
        """Drop outputs that have not appeared under their names. After `close`, or in another process, none is dropped.

        Waits up to 2 s for a thread that is writing, then drops them in any case. What went to stdout stays.
        """
        locked = self._pending.is_ours and self._lock.acquire(timeout=ABORT_JOIN_SECONDS)
        try:
            self._pending.abort()
        finally:
            if locked:
                self._lock.release()


class TarWriter(_OutputWriter):
    """Writes samples to the shard *url*, compressed as its suffix (or *gzip*) says.

        with tartools.TarWriter("a.tar") as writer:
            writer.write({"__key__": "n01", "png": picture, "cls": 3, "json": {"who": "me"}})

    The file appears under its name at `close`, or when the `with` block ends normally. Anything else (an exception,
    garbage collection, the end of the program) leaves nothing behind. Stdout, fifos, devices and commands get the bytes
    at once.

    Several threads may write: each sample is written whole, in the order of the calls. A writer belongs to the process
    that opened it: in another process, such as a fork, `write` and `close` raise RuntimeError, and nothing is written.

    *sums*: file for the SHA-256 of the shard, as sha256sum writes it.

    Raises StorageError if *url* or *sums* exists (unless *force*) or can't be written; UsageError if *url* has a number
    such as `%06d`, the suffix of a table or another format, or, with *gzip*, any suffix but those of gzip, or if *sums*
    is stdout or *url* itself, or is given for a command.
    """

    def __init__(self, url: Name, *, force: bool = False, gzip: bool = False, sums: Name | None = None) -> None:
        url = name_of(url)
        storage.check_output(url, force, ())  # otherwise a store would only report it at the end
        listed = _output_sums(sums, force)
        super().__init__(url, lambda: SampleWriter(Destination(url, force, gzip, sums=listed)), listed)


def _output_sums(url: Name | None, force: bool) -> OutputSums | None:
    """Return the list of checksums to write to *url*; None if *url* is None.

    Raises: StorageError if *url* exists (unless *force*) or can't be written by its name; UsageError for stdout, an
    empty name, a number such as %06d in it, or the suffix of another format.
    """
    if url is None:
        return None
    from tartools.storage.checksums import OutputSums

    sums = OutputSums(name_of(url), force)
    sums.check()
    return sums


class ShardWriter(_OutputWriter):
    """Writes samples to numbered shards, as `tarsplit` names them: "train" gives train-000000.tar, train-000001.tar ...

        with tartools.ShardWriter("s3://bucket/made-%06d.tar", max_size="256MB") as writer:
            for number in range(1000):
                writer.write({"__key__": f"{number:04d}", "npy": numpy.zeros((3, 4)), "cls": number % 10})
        writer.shards  # their URLs

    *pattern*: a prefix, or a name with `%06d` or `{shard:06d}` for the number, which counts from 0. A shard has up to
    *max_count* samples and *max_size* bytes (a number, or a text like "256MB"; None: any number), its end included,
    before compression; one sample that is larger has a shard of its own. *gzip*: compress the shards. Values, threads
    and processes are as for `TarWriter`.

    Each shard appears under its name when it is complete and on the disk, while later ones are written, and all have
    appeared after `close`, or when the `with` block has ended normally. After anything else those that have appeared
    stay, and are in `shards`, and the others leave nothing. Without samples there are no shards. *sums*: file for the
    SHA-256 of all shards, as sha256sum writes it, which appears after the last of them.

    Holds: up to four full local shards, open until they are on the disk. *force*: replace existing shards, and remove
    at the end those with a number behind the last one, with warnings; without samples all stay, with warnings.
    Raises StorageError if a shard of such a name, with any number, or *sums* exists (unless *force*), or if a server
    fails; OSError for a folder that can't be read; UsageError for a *pattern* with several numbers, for the suffix of a
    table or another format, and, with *gzip*, for any suffix but those of gzip; ValueError for limits below 1, and for
    a text that is no number of bytes. With *sums* and a command, the first `write` raises UsageError.
    """

    def __init__(
        self,
        pattern: Name,
        max_count: int | None = None,
        max_size: int | str | None = "1GB",
        *,
        force: bool = False,
        gzip: bool = False,
        sums: Name | None = None,
    ) -> None:
        pattern = name_of(pattern)
        size = byte_size(max_size) if isinstance(max_size, str) else max_size
        for name, limit in (("max_count", max_count), ("max_size", size)):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is 1 or more, not {limit}")
        shards = self.shards = list[str]()
        names = parse_numbering(pattern, gzip)
        codec_for(names.name(0), gzip)
        check_shard_name(names.name(0))
        old = existing_shards(names)
        check_numbered(names, 0, old, (), force)

        def remove_old(account: Account) -> None:
            if force:
                replace_set(names, range(len(shards)), None, old, account)

        limits = Limits(lambda _: max_count, size)
        listed = _output_sums(sums, force)

        def shard(k: int) -> Destination:
            return Destination(names.name(k), force, gzip, sums=listed)

        super().__init__(pattern, partial(_ShardSequence, shard, limits, shards, remove_old), listed)


class _ShardSequence:
    """Numbered shards, written as one output for `_OutputWriter`: with the methods `write`, `commit` and `abort`.

    `destination(k)`: returns the sink of shard k, from 0 on. `limits`: of each shard. `shards`: a list that gets the
    URL of each shard once it has appeared. `on_end(account)`: called by `commit` after the last one has, also if there
    is none; its reports become Python warnings.
    """

    def __init__(
        self,
        destination: Callable[[int], Destination],
        limits: Limits,
        shards: list[str],
        on_end: Callable[[Account], object],
    ) -> None:
        self._account = Account()
        self._series = Series(destination, limits, self._account)
        self._shards, self._ended = shards, on_end

    def write(self, sample: Sample) -> None:
        self._shards.extend(self._series.write(Batch.from_sample(sample), 0, 1))

    def commit(self) -> None:
        self._series.finish()
        self._shards.extend(self._series.complete())
        self.abort()  # ends the threads
        self._ended(self._account)

    def abort(self) -> None:
        self._series.abort()
