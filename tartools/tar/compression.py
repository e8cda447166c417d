"""Compressed streams: recognised by magic number when read, chosen by suffix when written.

A codec is an entry of one table; its library is imported when a stream needs it.
"""

import io
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from tartools.errors import StorageError, TarFormatError, TarToolsError, TruncatedError
from tartools.storage.streams import Sink, Stream, chunks, skip

MAX_GZIP_NAME_BYTES = 1 << 16  # bytes of a name or comment in a gzip header; a longer one is taken for damage
COMPRESSED_READ_BYTES = 1 << 18  # compressed bytes a read
MEMORY_MESSAGES = ("allocat", "not enough memory", "unable to create")  # in what decompressors say of too little memory
MAX_DECOMPRESSED_STEP = 1 << 17  # most decompressed bytes a call: some libraries are slower the more they may return


# What the libraries' incremental ones have in common: the interfaces of `bz2.BZ2Decompressor` and `bz2.BZ2Compressor`.
Decompressor = Any
Compressor = Any


class Codec(NamedTuple):
    """A compression format, and how it is recognized, read and written.

    `name`: such as "gzip".
    `magic`: byte strings; compressed data begin with one of them.
    `suffixes`: of the names of compressed archives, with the dot: ".tar.gz", ".tgz".
    `decompressor()`, `compressor()`: import the library, and return a new object for one stream of data, with the
    methods of `bz2.BZ2Decompressor` or `bz2.BZ2Compressor`.
    `padded`: True if zeros may follow each compressed stream, as gzip on tapes has them.
    `can_start(data)`: True if *data*, the first bytes of a stream, are enough to start the decompressor.
    """

    name: str
    magic: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    decompressor: Callable[[], Decompressor]
    compressor: Callable[[], Compressor]
    padded: bool = False
    can_start: Callable[[bytes], bool] = bool


def _make_factory(module: str, name: str, **options: Any) -> Callable[[], Any]:
    """Return a function without arguments that imports *module*, and returns its *name* called with *options*.

    *name*: a class or function of *module*. The import is made at the call, because start-up must not pay for it.
    """

    def make() -> Any:
        """Import the module, and return the new object."""
        __import__(module)
        return getattr(sys.modules[module], name)(**options)

    return make


def _make_gzip_reader() -> Decompressor:
    """Return a new decompressor for one gzip stream, by isal, with the methods of `bz2.BZ2Decompressor`."""
    from isal import igzip_lib

    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _has_gzip_header(data: bytes) -> bool:
    """True if *data*, the first bytes of a stream, have a whole gzip header (RFC 1952, 2.3).

    isal loses its position in a partial one. A header whose name or comment does not end within 64 KiB counts as whole;
    decompressing it then reports the damage.
    """
    if len(data) < 10:
        return False
    flags, at = data[3], 10
    if flags & 4:  # FEXTRA
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):  # FNAME, FCOMMENT: up to a zero
        if flags & flag and at <= len(data):
            end = data.find(0, at)
            at = end + 1 if end >= 0 else at + MAX_GZIP_NAME_BYTES
    at += flags & 2  # FHCRC, two bytes
    return at <= len(data)


def _import_zstd() -> Any:
    """Import the module for zstd, and return it: `compression.zstd` from Python 3.14 on, before that its backport.

    Raises: ImportError without either.
    """
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        from backports import zstd
    return zstd


def _make_zstd_writer() -> Compressor:
    """Return a new compressor for zstd, of level 1 and with a checksum, with the methods of `bz2.BZ2Compressor`."""
    # with a checksum, as zstd(1), to detect damage; level 1 is twice as fast as 3, and no larger than gzip -6
    parameter = _import_zstd().CompressionParameter
    return _import_zstd().ZstdCompressor(options={parameter.checksum_flag: 1, parameter.compression_level: 1})


class _Lz4Writer:
    """A compressor for lz4 with the methods of `bz2.BZ2Compressor`; the first call of either begins the frame."""

    def __init__(self) -> None:
        from lz4 import frame

        self._lz4 = frame.LZ4FrameCompressor(content_checksum=True)
        self._begun = False

    def compress(self, data: bytes | bytearray | memoryview, /) -> bytes:
        """Compress *data*; return the output that is ready, which may be empty."""
        begin = b"" if self._begun else self._lz4.begin()
        self._begun = True
        return begin + bytes(self._lz4.compress(data))

    def flush(self) -> bytes:
        """Return the rest of the output, and the end of the frame."""
        return self.compress(b"") + bytes(self._lz4.flush())


# RFC 1952; bzip2's stream header followed by that of a block or of the end; xz file format 2.1.1; RFC 8878, 3.1 (zstd,
# with skippable frames); lz4 frame format.
_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))
_BZIP2 = tuple(b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90"))
# gzip's header holds no time: same input, same bytes
_GZIP_WRITER = _make_factory("isal.isal_zlib", "compressobj", level=2, wbits=31)
_BZ2 = _make_factory("bz2", "BZ2Decompressor"), _make_factory("bz2", "BZ2Compressor")
_XZ = _make_factory("lzma", "LZMADecompressor"), _make_factory("lzma", "LZMACompressor")
_LZ4_READER = _make_factory("lz4.frame", "LZ4FrameDecompressor")
CODECS = (
    Codec("gzip", (b"\x1f\x8b\x08",), (".tgz", ".tar.gz"), _make_gzip_reader, _GZIP_WRITER, True, _has_gzip_header),
    Codec("bzip2", _BZIP2, (".tar.bz2",), *_BZ2),
    Codec("xz", (b"\xfd7zXZ\0",), (".tar.xz",), *_XZ, True),
    Codec(
        "zstd",
        (b"\x28\xb5\x2f\xfd", *_SKIPPABLE),
        (".tar.zst",),
        lambda: _import_zstd().ZstdDecompressor(),
        _make_zstd_writer,
    ),
    Codec("lz4", (b"\x04\x22\x4d\x18",), (".tar.lz4",), _LZ4_READER, _Lz4Writer),
)
SHARD_SUFFIXES = (*(suffix for codec in CODECS for suffix in codec.suffixes), ".tar")
MAX_COMPRESSION_MAGIC_BYTES = 10  # bytes of the longest magic number


def zstd_window(head: bytes) -> int:
    """Return the window in bytes that decompressing a zstd frame needs (RFC 8878, 3.1.1.1).

    *head*: the first bytes of the frame, not a skippable one; the magic number is not looked at. 0 if they are fewer
    than 6, or state no window (a frame of one segment).

    >>> zstd_window(bytes.fromhex("28b52ffd0090")) >> 20
    256
    """
    if len(head) < 6 or head[4] & 0x20:  # of a single segment: all of the frame is the window
        return 0
    base = 1 << (10 + (head[5] >> 3))
    return base + (base >> 3) * (head[5] & 7)


def codec_of(head: bytes) -> Codec | None:
    """Return the codec with whose magic number *head* begins; None if there is none."""
    for codec in CODECS:
        if head.startswith(codec.magic):
            return codec
    return None


def split_suffix(name: str) -> tuple[str, str]:
    """Return (*name* without its suffix as a shard, that suffix as written); the suffix is "" for any other name.

    The suffixes, in upper or lower case: .tar, .tgz, .tar.gz, .tar.bz2, .tar.xz, .tar.zst, .tar.lz4.

    >>> split_suffix("a/train.tar.zst"), split_suffix("b")
    (('a/train', '.tar.zst'), ('b', ''))
    """
    for suffix in SHARD_SUFFIXES:
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], name[-len(suffix) :]
    return name, ""


def split_packed(name: str) -> tuple[str, Codec | None]:
    """Return (*name* without the suffix of a codec such as ".gz", that codec), or (*name*, None) without such a suffix.

    The suffixes, in upper or lower case: .gz, .bz2, .xz, .zst, .lz4.
    *name*: of a file that is no archive; for archives there is `split_suffix`.

    >>> split_packed("a.tsv"), split_packed("a.tsv.GZ")[0]
    (('a.tsv', None), 'a.tsv')
    """
    for codec in CODECS:
        suffix = codec.suffixes[-1].removeprefix(".tar")
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], codec
    return name, None


def decompress_stream(stored: "StoredBytes", url: str) -> Stream:
    """Return a stream of the bytes in *stored*, decompressed if they begin with the magic number of a codec.

    The first bytes are read now, and kept in `stored.head`; the position of an open file stays.
    Raises, while the stream is read: TruncatedError and TarFormatError, with *url* and the byte offset in the
    compressed data. Raises, now or then: the errors of reading *stored*; StorageError if there is too little memory, or
    zstd data needs a window above 128 MiB. Raises, now: OSError if an open file can't be read.
    """
    stream: Stream = stored
    if stored.file is not None:
        stored.head = head_of(stored.file, stored.start)
    else:
        stored.head = first_bytes(stored, MAX_COMPRESSION_MAGIC_BYTES)
        stream = PrependedStream(stored, stored.head)
    codec = codec_of(stored.head)
    return stream if codec is None else DecompressedStream(stream, codec, url)


def decompress(codec: Codec, data: bytes, max_bytes: int) -> bytes:
    """Return *data*, one or more compressed streams of *codec*, decompressed.

    Raises: TarFormatError if *data* is empty, damaged, not of this codec or followed by other bytes, or gives more than
    *max_bytes* bytes; its subclass TruncatedError if it is truncated; StorageError if there is too little memory, or
    zstd data needs a window above 128 MiB.
    """
    if not data.startswith(codec.magic):
        raise TarFormatError(f"it does not begin as {codec.name} data")
    parts, size = [], 0
    for chunk in chunks(DecompressedStream(PrependedStream(None, data), codec, "")):
        size += len(chunk)
        if size > max_bytes:
            raise TarFormatError(f"it has more than {max_bytes:,} bytes when decompressed")
        parts.append(bytes(chunk))
    return b"".join(parts)


def head_of(file: io.FileIO, start: int = 0) -> bytes:
    """Return the first 10 bytes of *file* from offset *start* on, enough for `codec_of`; fewer if it ends before.

    The position of *file* does not change. Raises: OSError.
    """
    return os.pread(file.fileno(), MAX_COMPRESSION_MAGIC_BYTES, start)


def first_bytes(stream: Stream, count: int) -> bytes:
    """Read and return the next *count* bytes of *stream*; fewer if it ends before. Raises: the errors of *stream*."""
    head = bytearray(count)
    have = 0
    while have < count and (received := stream.readinto(memoryview(head)[have:])):
        have += received
    return bytes(head[:have])


class StoredBytes:
    """The bytes of a shard as they are stored, compressed or not: a stream that counts them.

    `count`: bytes read or skipped so far. `ended`: True if the last read found the end.
    `head`: the first bytes, as many as `codec_of` needs; b"" before `decompress_stream` has read them.
    `file`, `start`: the plain file, None for another stream, and the byte of it at which the stream begins.
    """

    def __init__(self, stream: Stream) -> None:
        self.file, self.start = stream.file, stream.start
        self._stream = stream
        self.count = 0
        self.head = b""
        self.ended = False  # the last `readinto` returned 0

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` stored bytes into *view*; return their number, 0 at the end."""
        count = self._stream.readinto(view)
        self.count += count
        self.ended = not count
        return count

    def skip(self, count: int, /) -> None:
        """Skip *count* bytes, which count as read; `file` must not be None. `ended` stays."""
        skip(self._stream, count)
        self.count += count


class PrependedStream(Stream):
    """A stream of the bytes *head*, and then of *stream*: for first bytes that were read to detect the format.

    *stream*: None if nothing follows *head*.
    """

    def __init__(self, stream: Stream | None, head: bytes | memoryview) -> None:
        self._stream = stream
        self._head = head

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes into *view*; return their number, 0 at the end."""
        if self._head:
            count = min(len(view), len(self._head))
            view[:count], self._head = self._head[:count], self._head[count:]
            return count
        return self._stream.readinto(view) if self._stream is not None else 0


class DecompressedStream(Stream):
    """The decompressed bytes of *stream*, which has one or more compressed streams of *codec*, one after the other.

    The caller has found the magic number of *codec* at the begin of *stream*. If the codec is `padded`, zeros may
    follow each compressed stream. *url*: the name for messages. When damage is found, the bytes of all calls of the
    library that succeeded, at most 128 KiB each, are returned first, however small the reader's buffer is.
    Raises: StorageError if there is too little memory.
    """

    def __init__(self, stream: Stream, codec: Codec, url: str) -> None:
        self._stream = stream
        self._codec = codec
        self._url = url
        self._decompressor: Decompressor | None = self._new_decompressor()
        self._fresh = True  # the decompressor has had no input yet
        self._head = b""  # the first bytes of the compressed stream
        self._buffer = memoryview(bytearray(COMPRESSED_READ_BYTES))
        self._input = b""  # read, not yet decompressed
        self._offset = 0  # in the compressed file, of the end of _input
        self._output = memoryview(b"")  # decompressed, not yet returned

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` decompressed bytes into *view*; return their number, 0 at the end.

        Raises: TruncatedError; TarFormatError for damage, or bytes behind the end that are not of this codec;
        StorageError for too little memory, or a zstd window above 128 MiB; the errors of reading the stream.
        """
        output = self._output or self._decompress()
        count = min(len(view), len(output))
        view[:count] = output[:count]
        self._output = output[count:]
        return count

    def _decompress(self) -> memoryview:
        """Return the next decompressed bytes, at most 128 KiB; empty at the end.

        Raises: TruncatedError; TarFormatError for damage, or bytes behind the end that are not of this codec;
        StorageError for too little memory, or a zstd window above 128 MiB; the errors of reading the stream.
        """
        while self._decompressor is not None:
            decompressor = self._decompressor
            if decompressor.eof:
                self._input = decompressor.unused_data or b""  # lz4 says None
                self._next_stream()
                continue
            # a new decompressor gets its first input only once that has a whole header
            while self._fresh and not self._codec.can_start(self._input) and self._read():
                pass
            if self._fresh:
                self._fresh, self._head = False, self._input[:MAX_COMPRESSION_MAGIC_BYTES]
            if decompressor.needs_input and not self._input and not self._read():
                raise TruncatedError(
                    f"the {self._codec.name} data ends before its end", url=self._url, offset=self._offset
                )
            data, self._input = self._input, b""
            try:
                output = decompressor.decompress(data, MAX_DECOMPRESSED_STEP)
            except Exception as error:  # each library has its own
                raise self._failure(len(data), error) from error
            if output:
                return memoryview(output)
        return memoryview(b"")

    def _read(self) -> int:
        """Append the next stored bytes of the stream to the input buffer; return their number, 0 at the end."""
        count = self._stream.readinto(self._buffer)
        self._input += bytes(self._buffer[:count])
        self._offset += count
        return count

    def _next_stream(self) -> None:
        """Start a decompressor for the compressed stream that follows; set it to None at the end of the input.

        Zeros before the stream are passed over if the codec is `padded`. Raises: TarFormatError if bytes follow that
        are not of this codec; StorageError if there is too little memory; the errors of reading the stream.
        """
        codec = self._codec
        while True:
            if codec.padded:
                self._input = self._input.lstrip(b"\0")
            if len(self._input) >= MAX_COMPRESSION_MAGIC_BYTES or not self._read():
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
        """Return a new decompressor.

        Raises: StorageError if there is too little memory; TarFormatError for any other error of the library.
        """
        try:
            return self._codec.decompressor()
        except Exception as error:
            raise self._failure(0, error) from error

    def _failure(self, count: int, error: Exception) -> TarToolsError:
        """Return the error to raise for *error*, an exception of the library.

        It is a StorageError for too little memory or a window that is too large, else a TarFormatError.
        *count*: bytes of input in the call that failed; they end at the byte `_offset` of the compressed file.
        """
        name = self._codec.name
        if isinstance(error, MemoryError) or any(word in str(error).lower() for word in MEMORY_MESSAGES):
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
    """A sink that compresses its data by *compressor* and writes them to *sink*.

    Call `write` any number of times, then `finish` once: only then are the data complete. *sink* is not closed.
    """

    def __init__(self, sink: Sink, compressor: Compressor) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        """Compress *data*, and write the output that is ready, if there is any. Raises: the errors of the sink."""
        if output := self._compressor.compress(data):
            self._sink.write(output)

    def finish(self) -> None:
        """Write the rest and the end of the compressed data. Raises: the errors of the sink."""
        self._sink.write(self._compressor.flush())
