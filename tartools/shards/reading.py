"""Many URLs to samples.

`read_samples` yields samples one by one. What only copies samples takes them in the batches that the reader finds:
`read_batches`. `ShardStream` is the tar stream of one shard.
"""

import io
from collections.abc import Generator, Iterable, Iterator, Sequence, Sized
from contextlib import closing, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tartools import storage, tar
from tartools.errors import StorageError, TarFormatError, TarToolsError, is_command, option, printable, shown
from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.storage.outputformats import PARQUET_MAGIC
from tartools.storage.split import SplitInput, archive_of, split_part_advice
from tartools.storage.streams import Input, Stream, check_input_file, skip
from tartools.tar import ContiguousGroups, Need, Parsed, ScatteredGroup, Special
from tartools.tar.compression import DecompressedStream, StoredBytes, decompress_stream
from tartools.tar.groups import FOREIGN_PREFIX, MACOS_METADATA

if TYPE_CHECKING:
    from tartools.shards.forks import ForkedStream
    from tartools.storage.checksums import HashedInput, ListedSums

COMPRESSED_HINT = "is compressed, so it can't be read in parts; tarcat a.tgz -o a.tar unpacks a shard"
Item = TypeVar("Item")
SizedBatch = TypeVar("SizedBatch", bound=Sized)


class Strictness(NamedTuple):
    """The faults of shards that the user accepts.

    `lax`: a shard may lack its end-of-archive block, with a warning. `skip_special`: links, devices and sparse
    members are skipped silently.
    """

    lax: bool = False
    skip_special: bool = False


class ShardPolicy(NamedTuple):
    """How a caller handles shards that are unusual.

    `ignore_repeated_keys`: no warning if a key returns later in a shard, because the caller joins its samples.
    `reject_compressed`: a compressed shard is a StorageError.
    `samples_only`: a TarFormatError is raised for a table, and for a shard with other members than samples, without an
    end of archive, with samples behind it, or with a header whose prefix field has other data. Directories, volume
    labels, and members that `Strictness.skip_special` skips, are no error; with both flags, neither is a missing end.
    """

    ignore_repeated_keys: bool = False
    reject_compressed: bool = False
    samples_only: bool = False


class Reading(NamedTuple):
    """How shards and tables are read.

    `strictness`: the faults that the user accepts.
    `need`: how much of each sample the caller uses: Need.PLACES, FIELDS or PAYLOADS; less is read if it needs less.
    `tmpdir`: folder of temporary files, for large members of compressed or remote shards (None: `$TMPDIR`, else /tmp).
    `columns`: unless empty, samples that a table lists come as `tables.listed.ListedBatch`: with those of these columns
    that the table has, and read when they are asked for.
    `policy`: how the caller handles unusual shards.
    `sources`: number of data sets read at once; each keeps so many times fewer files open, and reads less ahead.
    `uniform`: samples with the same fields may come as `UniformGroups`: arrays in place of members.
    `sums`: a `ListedSums` with which the checksums of the stored bytes of shards are compared: each shard is read from
    end to end, and a difference is added to `sums.mismatches`; a table is a StorageError. None: nothing is compared.
    `last_dot`: keys end at the last dot of names, not at the first: see `samples.lastdot`. It needs payloads.
    """

    strictness: Strictness = Strictness()
    need: Need = Need.PAYLOADS
    tmpdir: str | None = None
    columns: Sequence[str] = ()
    policy: ShardPolicy = ShardPolicy()
    sources: int = 1
    uniform: bool = False
    sums: Any = None  # ListedSums; a name in quotes would be compiled at the start
    last_dot: bool = False

    def with_need(self, need: Need, columns: Sequence[str] | None = None) -> "Reading":
        """Return a copy with another *need*, and with other *columns* if they are given."""
        return self._replace(need=need, columns=self.columns if columns is None else columns)


class TableFile(NamedTuple):
    """The content of an input that is a table, no tar. *copy*: a file with its bytes; None: read its URL again."""

    copy: io.BufferedReader | None


ShardContent = Parsed | TableFile


def read_samples(
    urls: Sequence[str], account: Account | None = None, reading: Reading | None = None
) -> Iterator[Sample]:
    """Return an iterator over the samples of the shards and tables *urls*, one after the other.

    `urls`: without braces and wildcards: see `expand`. `account`: counts samples as read, and gets warnings; None: a
    new one. `reading`: how they are read; None: `Reading()`.
    All local files are checked before this returns; each shard is opened when its turn comes. A sample is yielded once
    the header that ends it has been read and is sound.

    Order: that of *urls*, and of each archive. Holds one sample and one read buffer of 1 MiB.
    Raises TarFormatError and StorageError, with URL and byte offset, after the samples before the damage.
    """
    account = account or Account()
    return iterate_samples(read_batches(urls, account, reading or Reading()), account)


def chain_shards(shards: Iterable[Iterator[Item]]) -> Iterator[Item]:
    """Yield the items of each of *shards* (iterators), one after the other; closing this closes the current one."""
    for shard in shards:
        yield from shard


def read_batches(urls: Sequence[str], account: Account, reading: Reading) -> Iterator[Batch]:
    """Return the samples of the shards and tables *urls* in batches, one after the other. The consumer counts them.

    *account*: counts the bytes, and gets reports of members that are no samples. *reading*: how they are read.
    All local files are checked before this returns (`check_shards`); each shard is opened when its turn comes. Raises
    TarFormatError and StorageError, after the samples before the damage.
    """
    check_shards(urls, account)
    return chain_shards(shard_batches(url, account, reading) for url in urls)


def count_samples(batches: Iterable[SizedBatch], account: Account, *, written: bool = False) -> Iterator[SizedBatch]:
    """Yield *batches*, of samples or of rows that list them; count their samples in *account* as read.

    With *written*, count them as written, too.
    """
    with close_at_end(batches):
        for batch in batches:
            account.samples_in += len(batch)
            account.samples_out += len(batch) if written else 0
            yield batch


def iterate_samples(batches: Iterable[Batch], account: Account) -> Iterator[Sample]:
    """Yield the samples of *batches* one by one, and count each as read in *account*."""
    with close_at_end(batches):
        for batch in batches:
            for sample in batch:
                account.samples_in += 1
                yield sample


@contextmanager
def close_at_end(samples: Iterable[object]) -> Iterator[None]:
    """Call `samples.close`, if it exists, after the body of `with`, however it ends: a generator closes its sources."""
    try:
        yield
    finally:
        close = getattr(samples, "close", None)
        if close:
            close()


def check_shards(urls: Sequence[str], account: Account) -> int | None:
    """Check *urls* as far as that is possible without reading; return their total size in bytes, None if unknown.

    It is None unless all are regular local files, or archives split into them. Sets the expected bytes and shards in
    the progress of *account*, unless they are set. Raises StorageError for a local file or a scheme that can't be
    read; UsageError for a URL that names no input or has a password, and for stdin that is named twice or a terminal.
    """
    size = storage.check_inputs(urls)
    progress = account.progress
    if progress.shards is None:
        progress.shards, progress.expected = len(urls), size
    return size


def shard_batches(
    url: str,
    account: Account,
    reading: Reading,
    stream: Input | None = None,
    *,
    begin: int = 0,
    until: int | None = None,
    detector: RepeatedKeyDetector | None = None,
) -> Generator[Batch, None, None]:
    """Yield the samples of the shard or table *url* in batches; the consumer counts them.

    `account`: gets reports of members that are no samples; at the end `shards_done` grows, unless *until* is given.
    `stream`: its open stream; None: it is opened now. It is closed at the end, or when the generator is closed.
    `begin`, `until`: read a part of a plain file: *stream* stands at byte *begin*, and reading stops at byte *until*,
    where a sample must begin (None: at the end).
    `detector`: detects repeated keys among the first samples; None: a new detector, which warns of them in *account*.
    Raises: TarFormatError; StorageError, also at the first batch of a compressed shard if the policy says
    `reject_compressed`, or if there is damage and a file has changed.
    """
    with closing(stream or ShardStream(url, account, sums=reading.sums)) as opened:
        try:
            for batch in batches_of(read_parts(url, opened, reading, begin, until), url, account, reading, detector):
                if reading.policy.reject_compressed and isinstance(opened, ShardStream) and opened.compressed:
                    raise StorageError(COMPRESSED_HINT, url=url)
                yield batch
        except TarFormatError as error:
            explain_damage(error, url, opened)
            raise
    if until is None:
        account.shards_done += 1


def explain_damage(error: TarFormatError, url: str, stream: Input) -> None:
    """Add to the message of *error*, of reading *stream*, where in an archive of several parts the damage is.

    *url*: of the shard. Only for an archive that was split, whose parts are read as one input; for a part that was
    named alone: advice to name all parts. Raises: StorageError if *stream* is a `ShardStream` of a file that has
    changed: what looks like damage may be two versions of it.
    """
    if isinstance(stream, ShardStream):
        stream.check()
    if name_part := getattr(stream, "name_part", None):
        name_part(error)
    if advice := split_part_advice(url):
        error.message = f"{error.message} ({advice})"


def _require_samples_only(url: str, reading: Reading) -> None:
    """Raise TarFormatError for *url* if `reading.policy.samples_only`: called where something else was found in it."""
    if reading.policy.samples_only:
        raise TarFormatError("not only samples and an end", url=url)


def read_parts(
    url: str, stream: Input, reading: Reading, begin: int = 0, until: int | None = None
) -> Iterator[ShardContent]:
    """Return the contents of *stream*, the bytes of *url*: one `TableFile`, or the parts of a tar archive in order.

    Parts are groups of members (samples), special members, and `tar.ARCHIVE_END`: see `tar.read_members`. A table is
    seen if *stream* is a `ShardStream`; it is closed then. *begin*, *until*: bytes of a plain file where *stream*
    stands and reading ends. Raises, now or later: TarFormatError; StorageError, also for a table with `reading.sums`.
    """
    if isinstance(stream, ShardStream) and stream.is_table():
        if reading.sums is not None:
            raise StorageError("checksums of a table's shards are not compared; name the shards themselves", url=url)
        from tartools.storage.scratch import copy_to_scratch  # of most inputs none is made

        table = TableFile(None if storage.is_seekable(url) else copy_to_scratch(stream))
        stream.close()
        return iter([table])

    def scratch() -> io.FileIO:
        from tartools.storage.scratch import scratch_file  # only for large members

        return scratch_file(reading.tmpdir)

    return tar.read_members(
        stream,
        url=url,
        scratch=scratch,
        need=reading.need,
        uniform=reading.uniform,
        lax=reading.strictness.lax,
        begin=begin,
        until=until,
    )


def make_key_detector(url: str, account: Account, reading: Reading) -> RepeatedKeyDetector:
    """Return a new detector of keys that return later in the shard *url*; it warns of them in *account*.

    It does nothing if the policy of *reading* ignores repeated keys.
    """
    detector = RepeatedKeyDetector(lambda key: account.record_returning_key(key, url))
    if reading.policy.ignore_repeated_keys:
        detector.remaining = 0
    return detector


def batches_of(
    parts: Iterable[ShardContent],
    url: str,
    account: Account,
    reading: Reading,
    detector: RepeatedKeyDetector | None = None,
) -> Iterator[Batch]:
    """Yield the samples of the shard *url*, in batches; *parts* are the contents that `read_parts` found in it.

    Members that are no samples (directories, devices ...) are counted in *account*, or reported as omissions, or
    skipped if `reading.strictness` says so; a missing end is warned of. `reading.policy.samples_only` makes most of
    these a TarFormatError: see `ShardPolicy`. If *url* is a table, the samples of its rows are yielded. *detector*:
    detects repeated keys of these samples, up to the archive's end; None: a new one, which warns of them in *account*.
    Raises: the errors of *parts* and of a table; SampleError as `cut_at_last_dot` if `reading.last_dot`.
    """
    if reading.last_dot:
        from tartools.samples.lastdot import cut_at_last_dot

    detector = detector or make_key_detector(url, account, reading)
    shard = archive_of(url)
    after_end = False
    for part in parts:
        if isinstance(part, (ContiguousGroups, ScatteredGroup)):
            if after_end:
                _require_samples_only(url, reading)
            for batch in cut_at_last_dot(Batch(part, shard)) if reading.last_dot else (Batch(part, shard),):
                if detector.remaining:
                    detector.add(batch.keys)
                yield batch
        elif part is tar.ARCHIVE_END:
            detector.remaining = 0  # in another archive that follows, keys may be the same again
            after_end = True
        elif isinstance(part, Special):
            _report(part, url, account, reading)
        elif isinstance(part, TableFile):
            from tartools.storage import seekable
            from tartools.tables import tablesamples as tables  # imports pyarrow

            _require_samples_only(url, reading)
            options = reading.need, reading.tmpdir, reading.columns, reading.sources
            batches = tables.table_batches(url, part.copy or seekable.open_as_file(url), account, *options)
            if reading.last_dot:
                batches = chain.from_iterable(map(cut_at_last_dot, batches))
            yield from batches


def _report(special: Special, url: str, account: Account, reading: Reading) -> None:
    if special.kind == FOREIGN_PREFIX:
        _require_samples_only(url, reading)
        return
    if not special.silent and not reading.strictness.skip_special:
        _require_samples_only(url, reading)
    if special.kind == "missing end":
        account.warn(f"{shown(url)}: ends without an end-of-archive block, accepted because of {option('lax')}")
    elif special.silent:
        account.directories += 1
    elif special.kind == MACOS_METADATA:
        account.macos_metadata += 1
    elif not reading.strictness.skip_special:
        account.report_special(f"{shown(url)}: {printable(special.name)}", special.kind)


# ---- one shard: opened, counted, decompressed, and in commands read by a forked process ----


class ShardStream:
    """The tar stream of the shard *url*, decompressed. The only place that counts the bytes read, in *account*.

    `open_input`: an open input to read in place of *url*. `sums`: the list with which its checksum is compared, once it
    has been read to its end; a difference is added to `sums.mismatches`; None: no checksum. In a command, a forked
    process decompresses a large shard. Until it is closed, *account* watches that a file does not change.
    To be called: `is_table` first, if it may be one; `readinto` or `skip`; `close` in any case.
    `compressed`: True once a compression was found. `file`, `start`: the open plain file of an uncompressed shard, and
    the byte in it where the stream begins; `file` is None for other inputs.

    Raises StorageError if the shard can't be opened.
    """

    compressed = False  # as far as something was read

    def __init__(
        self, url: str, account: Account, open_input: Input | None = None, sums: "ListedSums | None" = None
    ) -> None:
        self._input: Input | None = open_input or storage.open_read(url)
        self._parts = self._input if type(self._input) is SplitInput else None  # isinstance of a protocol is slow
        self._sums = sums
        self._hashed: HashedInput | None = None
        if sums is not None and self._parts is not None:
            self._parts.compare_with(sums)
        elif sums is not None:
            self._hashed = sums.hash_input(url, self._input)
            self._input = self._hashed or self._input
        self._stored: StoredBytes | None = StoredBytes(self._input)
        self._url = url
        self._account = account
        self._counted = 0  # of the stored bytes
        self._ended = False  # the stream was read to its end, where its input has checked itself
        self._stream: Stream | None = None  # the bytes of the tar, once the first bytes tell what the shard is
        self._forked: ForkedStream | None = None
        self.file: io.FileIO | None = None
        self.start = 0
        if self._input.file is not None:  # which can be looked into without waiting
            try:
                stream = self._tar_stream()
            except BaseException:
                self._input.close()
                raise
            self.file, self.start = stream.file, stream.start
        self._failure: TarToolsError | None = None  # it was closed before its end, and had changed
        account.watched.append(self.check)

    def _tar_stream(self) -> Stream:
        """Return the stream of the bytes of the tar; the first call detects the compression, and may prepare a fork."""
        if self._stream is not None:
            return self._stream
        assert self._stored is not None
        self._stream = decompress_stream(self._stored, self._url)
        self.compressed = type(self._stream) is DecompressedStream
        fileno = getattr(self._input, "fileno", None)  # remote objects have no descriptor
        if self.compressed and fileno is not None and is_command():
            from tartools.shards.forks import ForkedStream  # most inputs are plain files

            self._stream = self._forked = ForkedStream(self._stream, self._stored, fileno(), self._url)
        return self._stream

    def is_table(self) -> bool:
        """True if the input is a Parquet table and no tar; then `readinto` returns its bytes as they are.

        To be called before anything was read. Raises: StorageError if the input can't be read; TarFormatError for
        damage.
        """
        self._tar_stream()
        assert self._stored is not None
        return self._stored.head.startswith(PARQUET_MAGIC)

    @property
    def is_framed(self) -> bool:
        """False if a server does not state the length of the input, so that a truncated one can't be detected."""
        return bool(getattr(self._input, "is_framed", True))

    def start_at(self, begin: int) -> None:
        """Move to byte *begin* of a plain file that has not been read yet. Bytes before it do not count as read."""
        assert self._input is not None
        skip(self._input, begin)

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes of the tar into *view*, and count them; return their number, 0 at the end.

        Raises: StorageError if the input can't be read; TarFormatError if its compressed data are damaged.
        """
        try:
            count = (self._stream or self._tar_stream()).readinto(view)
        except TarFormatError as error:  # of compressed data: its byte is one of the stored bytes
            self.name_part(error, error.offset)
            raise
        self._count(count)
        self._ended = not count
        if self._ended and self._sums is not None and self._hashed is not None:
            self._hashed.drain()
            self._sums.compare(self._url, self._hashed.checksum)
        return count

    def name_part(self, error: TarFormatError, offset: int | None = None) -> None:
        """Add to the message of *error*, of reading this shard, the part in which it is, if the archive was split.

        *offset*: byte of the joined parts as stored; None: that of the error, or, if the shard is compressed, the last
        one that was read. Only the first call adds something.
        """
        if self._parts is not None:
            place = self._parts.describe(error.offset if offset is None and not self.compressed else offset)
            error.message = f"{error.message} ({place})"
            self._parts = None

    def part_place(self, byte: int) -> str:
        """Return a phrase with the part that has *byte* of the tar, such as "byte 7 of x.tar.partab".

        "" unless the shard is an archive that was split, uncompressed; "" after `name_part`, too.
        """
        return "" if self._parts is None or self.compressed else self._parts.describe(byte)

    def check(self) -> None:
        """Raise StorageError if the shard is a file that has changed; after `close`, if that found such a change."""
        if self._failure is not None:
            raise self._failure
        if self._input is not None:
            check_input_file(self._input.file)

    def skip(self, count: int, /) -> None:
        """Skip *count* bytes of a plain file, which count as read."""
        skip(self._tar_stream(), count)
        self._count(count)

    def _count(self, unpacked: int) -> None:
        assert self._stored is not None
        stored = self._stored.count
        self._account.bytes_in += stored - self._counted
        self._account.unpacked += unpacked
        self._counted = stored

    def cancel(self) -> bool:
        """Make another thread's `readinto` return soon; return False if its read can't be interrupted."""
        opened = self._input
        return opened is None or opened.cancel()

    def close(self) -> None:
        """Stop reading. Views of the read bytes stay valid; `file` is None from now on.

        If the stream was not read to its end and the file has changed, `check` raises that from now on, and the account
        keeps watching it. Otherwise the account watches it no more.
        """
        if self._forked is not None:
            self._forked.close()  # before the input, or a command that writes on would get no SIGPIPE
        if self._input is not None:
            try:
                if not self._ended:
                    self.check()
                self._account.watched.remove(self.check)
            except TarToolsError as error:
                self._failure = error
            self._input.close()
        self.file = self._input = self._stored = self._stream = self._forked = None  # all that samples keep is this
