"""Compressed tar streams: recognised by magic number when read, chosen by suffix when written."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

from tartools import storage
from tartools.errors import StorageError, TarFormatError, TarToolsError, TruncatedError, UsageError
from tartools.storage.streams import Sink, Stream
from tartools.storage.url import Url
from tartools.tar.codecs import (
    CODECS,
    MAGIC,
    SUFFIXES,
    Codec,
    Compressor,
    Decompressor,
    codec_of,
    is_shortage,
    zstd_window,
)

READ = 1 << 18  # compressed bytes a read
PARQUET = b"PAR1"  # the first bytes of a table
TABLE = ".parquet"  # the suffix of an output that is one
STEP = 1 << 17  # most decompressed bytes a call: some libraries are slower the more they may return


def split_suffix(url: str) -> tuple[str, str]:
    """Return *url* without its tar suffix, and the suffix.

    >>> split_suffix("a/train.tar.zst"), split_suffix("b")
    (('a/train', '.tar.zst'), ('b', ''))
    """
    for suffix in SUFFIXES:
        if url.lower().endswith(suffix):
            return url[: -len(suffix)], url[-len(suffix) :]
    return url, ""


def is_table_name(url: str) -> bool:
    """Tell whether the output *url* is to be a table that lists samples, not a shard that holds them.

    >>> is_table_name("s3://b/good.parquet"), is_table_name("pipe:cat > good.parquet")
    (True, False)
    """
    return TABLE in url.lower() and Url(url).scheme != "pipe" and Url(url).name.lower().endswith(TABLE)


def split_output(url: str) -> tuple[str, str]:
    """Return the output *url* without its suffix, and the suffix: that of a shard or of a table."""
    return (url[: -len(TABLE)], url[-len(TABLE) :]) if is_table_name(url) else split_suffix(url)


def is_table(url: str) -> bool:
    """Tell whether *url* is a table, by its first bytes; stdin, commands and fifos are not looked into: False.

    On a server, where a look costs a request, only what has the name of a table can be one. Raises: StorageError.
    """
    url = Url(url)
    if storage.plain_size(url) is None and not (is_table_name(url) and storage.is_far(url)):
        return False
    from tartools.storage.version import look

    return look(url).first == PARQUET


def check_suffix(name: str) -> None:
    """Raise UsageError if the output *name* is that of a zip file, which would hold a tar archive."""
    if name.lower().endswith(".zip"):
        raise UsageError("not the name of a shard: tar shards are .tar, .tgz, .tar.zst ..., not .zip", url=name)


def codec_for(url: str, gzip: bool) -> Codec | None:
    """Return the codec for an output named *url*: by its suffix, or gzip if *gzip* is set.

    A command has no suffix: `pipe:gzip > a.tgz` is given plain bytes.

    Raises UsageError if *gzip* is set and the suffix is that of another codec or of a table, or if it is .zip.
    """
    name = "" if Url(url).scheme == "pipe" else Url(url).name
    check_suffix(name)
    suffix = split_output(name)[1].lower()
    if gzip and suffix not in ("", *CODECS[0].suffixes):
        raise UsageError(f"-z writes gzip, but this name ends in {suffix}", url=url)
    return CODECS[0] if gzip else next((codec for codec in CODECS if suffix in codec.suffixes), None)


def split_packed(name: str) -> tuple[str, Codec | None]:
    """Return the *name* of a file that is no archive without the suffix of a codec, and that codec.

    >>> split_packed("a.tsv"), split_packed("a.tsv.GZ")[0]
    (('a.tsv', None), 'a.tsv')
    """
    for codec in CODECS:
        suffix = codec.suffixes[-1].removeprefix(".tar")
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], codec
    return name, None


def check_bare(url: str, kind: str) -> None:
    """Raise UsageError if *url* has the suffix of a codec: it names a file of a *kind* that is compressed inside."""
    name = Url(url).name
    if Url(url).scheme != "pipe" and (bare := split_packed(name)[0]) != name:
        raise UsageError(f"a {kind} file is compressed inside: call it {bare}, not {name}")


@contextmanager
def writing(url: str, force: bool = False) -> Iterator[Sink]:
    """Give a sink as `storage.writing` does, which compresses if *url* has the suffix of a codec: .gz, .zst ..."""
    codec = None if Url(url).scheme == "pipe" else split_packed(Url(url).name)[1]
    with storage.writing(url, force) as sink:
        if codec is None:
            yield sink
        else:
            packed = CompressedSink(sink, codec.compressor())
            yield packed
            packed.finish()


def decompressed(stream: Stream, url: str) -> Stream:
    """Return the tar stream in *stream*: decompressed if it begins with a codec's magic number, else as it is.

    Reading it raises TruncatedError and TarFormatError, with *url* and the byte offset in the compressed file, and
    StorageError if there is too little memory.
    """
    if stream.file is None:
        return _Unrecognized(stream, url)
    codec = codec_of(head_of(stream.file, stream.start))
    return stream if codec is None else Decompressed(stream, codec, url)


def is_compressed(head: bytes) -> bool:
    """Return whether a file with the first bytes *head* is compressed: whether they begin with a magic number."""
    return codec_of(head) is not None


def head_of(file: io.FileIO, start: int = 0) -> bytes:
    """Return the bytes of *file* from *start* on that `is_compressed` looks at. The position does not change."""
    return os.pread(file.fileno(), MAGIC, start)


def first_bytes(stream: Stream, count: int) -> bytes:
    """Return the next *count* bytes of *stream*; fewer at its end."""
    head = bytearray(count)
    have = 0
    while have < count and (more := stream.readinto(memoryview(head)[have:])):
        have += more
    return bytes(head[:have])


class _Unrecognized:
    """A stream that cannot be looked into before it is read: its first read recognizes the codec."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._recognized: Stream | None = None

    def readinto(self, view: memoryview, /) -> int:
        if self._recognized is None:
            self._recognized = self._recognize()
        return self._recognized.readinto(view)

    def _recognize(self) -> Stream:
        """Read as many bytes as the longest magic number has; return the stream, with them before the rest."""
        first = first_bytes(self._stream, MAGIC)
        codec, whole = codec_of(first), Pushed(self._stream, first)
        return whole if codec is None else Decompressed(whole, codec, self._url)


class Pushed:
    """A stream with its first bytes, which were already read, put back."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, head: bytes) -> None:
        self._stream = stream
        self._head = head

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        if self._head:
            count = min(len(view), len(self._head))
            view[:count], self._head = self._head[:count], self._head[count:]
            return count
        return self._stream.readinto(view)


class Decompressed:
    """A stream decompressed: one compressed stream or several, one after the other.

    The bytes it returns before it raises do not depend on the size of the reader's buffer.
    """

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, codec: Codec, url: str) -> None:
        self._stream = stream
        self._codec = codec
        self._url = url
        self._decompressor: Decompressor | None = self._new_decompressor()
        self._fresh = True  # the decompressor has had no input yet
        self._head = b""  # the first bytes of the compressed stream
        self._buffer = memoryview(bytearray(READ))
        self._input = b""  # read, not yet decompressed
        self._offset = 0  # in the compressed file, of the end of _input
        self._output = memoryview(b"")  # decompressed, not yet returned

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` decompressed bytes; 0 at the end. Raises: see `decompressed`."""
        output = self._output or self._decompress()
        count = min(len(view), len(output))
        view[:count] = output[:count]
        self._output = output[count:]
        return count

    def _decompress(self) -> memoryview:
        """Return the next bytes, at most STEP; none at the end."""
        while self._decompressor is not None:
            decompressor = self._decompressor
            if decompressor.eof:
                self._input = decompressor.unused_data or b""  # lz4 says None
                self._next_stream()
                continue
            while self._fresh and not self._codec.begins(self._input) and self._read():
                pass
            if self._fresh:
                self._fresh, self._head = False, self._input[:MAGIC]
            if decompressor.needs_input and not self._input and not self._read():
                raise TruncatedError(
                    f"the {self._codec.name} data ends before its end", url=self._url, offset=self._offset
                )
            data, self._input = self._input, b""
            try:
                output = decompressor.decompress(data, STEP)
            except Exception as error:  # each library has its own
                raise self._failure(len(data), error) from error
            if output:
                return memoryview(output)
        return memoryview(b"")

    def _read(self) -> int:
        """Append some bytes to the input; return how many."""
        count = self._stream.readinto(self._buffer)
        self._input += bytes(self._buffer[:count])
        self._offset += count
        return count

    def _next_stream(self) -> None:
        """Start the compressed stream that follows, if one does."""
        codec = self._codec
        while True:
            if codec.padded:
                self._input = self._input.lstrip(b"\0")
            if len(self._input) >= MAGIC or not self._read():
                break
        if not self._input:
            self._decompressor = None
        elif self._input.startswith(codec.magic):
            self._decompressor, self._fresh = self._new_decompressor(), True
        else:
            raise TarFormatError(
                f"the bytes after the end of the {codec.name} data are not {codec.name} data",
                url=self._url,
                offset=self._offset - len(self._input),
            )

    def _new_decompressor(self) -> Decompressor:
        try:
            return self._codec.decompressor()
        except Exception as error:
            raise self._failure(0, error) from error

    def _failure(self, count: int, error: Exception) -> TarToolsError:
        """Return what *error*, which decompressing the last *count* bytes raised, says to a user."""
        name = self._codec.name
        if is_shortage(error):
            return StorageError(f"there is too little memory to decompress its {name} data", url=self._url)
        if name == "zstd" and "too much memory" in str(error):
            window = zstd_window(self._head)
            needs = f"a window of {window >> 20} MiB" if window else "a window"
            return StorageError(
                f"its zstd data needs {needs}, and 128 MiB are allowed: read it as 'pipe:zstd -dc --long=31 FILE'",
                url=self._url,
            )
        return TarFormatError(
            f"damaged {self._codec.name} data in the next {count} bytes: {error}",
            url=self._url,
            offset=self._offset - count,
        )


class CompressedSink:
    """Compresses what is written and writes that to *sink*; complete after `finish`."""

    def __init__(self, sink: Sink, compressor: Compressor) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        """Compress *data*, and write the output so far."""
        if output := self._compressor.compress(data):
            self._sink.write(output)

    def finish(self) -> None:
        """Write the end of the compressed data."""
        self._sink.write(self._compressor.flush())
