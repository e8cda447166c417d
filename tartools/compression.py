"""Compressed tar streams: recognised by magic number when read, chosen by suffix when written.

One table; a codec is one entry. Libraries are imported when a stream of that kind is met.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from tartools.errors import TarFormatError, TruncatedError, UsageError
from tartools.storage.names import split_query
from tartools.streams import Sink, Stream

READ = 1 << 18  # compressed bytes a read
STEP = 1 << 17  # bytes that a decompressor gives at most at a time; some are slower the more they may give


class Decompressor(Protocol):
    """What the libraries' incremental decompressors have in common (that of `bz2.BZ2Decompressor`)."""

    @property
    def eof(self) -> bool: ...  # noqa: D102
    @property
    def needs_input(self) -> bool: ...  # noqa: D102
    @property
    def unused_data(self) -> bytes: ...  # noqa: D102
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...  # noqa: D102


class Compressor(Protocol):
    """What the libraries' incremental compressors have in common."""

    def compress(self, data: bytes | bytearray | memoryview, /) -> bytes: ...  # noqa: D102
    def flush(self) -> bytes: ...  # noqa: D102


class Codec(NamedTuple):
    """One kind of compression."""

    name: str
    magic: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    decompressor: Callable[[], Decompressor]
    compressor: Callable[[], Compressor]
    padded: bool = False  # zeros may follow the compressed data (gzip on tapes)


def _gzip_reader() -> Decompressor:
    from isal import igzip_lib

    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _gzip_writer() -> Compressor:
    from isal import isal_zlib

    return isal_zlib.compressobj(level=2, wbits=31)  # the header holds no time: same input, same bytes


def _bzip2_reader() -> Decompressor:
    import bz2

    return bz2.BZ2Decompressor()


def _bzip2_writer() -> Compressor:
    import bz2

    return bz2.BZ2Compressor()


def _xz_reader() -> Decompressor:
    import lzma

    return lzma.LZMADecompressor()


def _xz_writer() -> Compressor:
    import lzma

    return lzma.LZMACompressor()


def _zstd_reader() -> Decompressor:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        from backports import zstd
    return zstd.ZstdDecompressor()  # type: ignore[no-any-return,unused-ignore]


def _zstd_writer() -> Compressor:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        from backports import zstd
    # with a checksum, as zstd(1) does: damage is found; level 1 is twice as fast as 3; no larger than gzip -6
    parameter = zstd.CompressionParameter
    return zstd.ZstdCompressor(options={parameter.checksum_flag: 1, parameter.compression_level: 1})  # type: ignore[no-any-return,unused-ignore]


def _lz4_reader() -> Decompressor:
    from lz4 import frame

    return frame.LZ4FrameDecompressor()  # type: ignore[no-any-return,unused-ignore]


class _Lz4Writer:
    """lz4's compressor, which wants to be told when to begin."""

    def __init__(self) -> None:
        from lz4 import frame

        self._lz4 = frame.LZ4FrameCompressor(content_checksum=True)
        self._begun = False

    def compress(self, data: bytes | bytearray | memoryview, /) -> bytes:
        begin = b"" if self._begun else self._lz4.begin()
        self._begun = True
        return begin + bytes(self._lz4.compress(data))

    def flush(self) -> bytes:
        return self.compress(b"") + bytes(self._lz4.flush())


# RFC 1952; bzip2's stream header with that of a block or of the end; xz file format 2.1.1; RFC 8878 3.1, which has
# frames to skip; lz4 frame format.
_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))
_BZIP2 = tuple(b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90"))
CODECS = (
    Codec("gzip", (b"\x1f\x8b\x08",), (".tgz", ".tar.gz"), _gzip_reader, _gzip_writer, padded=True),
    Codec("bzip2", _BZIP2, (".tar.bz2",), _bzip2_reader, _bzip2_writer),
    Codec("xz", (b"\xfd7zXZ\0",), (".tar.xz",), _xz_reader, _xz_writer, padded=True),
    Codec("zstd", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), (".tar.zst",), _zstd_reader, _zstd_writer),
    Codec("lz4", (b"\x04\x22\x4d\x18",), (".tar.lz4",), _lz4_reader, _Lz4Writer),
)
SUFFIXES = (*(suffix for codec in CODECS for suffix in codec.suffixes), ".tar")
MAGIC = 10  # bytes; the longest of them


def codec_of(head: bytes) -> Codec | None:
    """Return the codec whose magic number *head* begins with."""
    for codec in CODECS:
        if head.startswith(codec.magic):
            return codec
    return None


def split_suffix(url: str) -> tuple[str, str]:
    """Return *url* without its tar suffix, and that.

    >>> split_suffix("a/train.tar.zst"), split_suffix("b")
    (('a/train', '.tar.zst'), ('b', ''))
    """
    for suffix in SUFFIXES:
        if url.lower().endswith(suffix):
            return url[: -len(suffix)], url[-len(suffix) :]
    return url, ""


def codec_for(url: str, gzip: bool) -> Codec | None:
    """Return the codec for an output named *url*; with *gzip* it must be gzip.

    A command has no suffix: `pipe:gzip > a.tgz` gets what it is to compress.

    Raises: UsageError if the name says otherwise.
    """
    suffix = "" if url.startswith("pipe:") else split_suffix(split_query(url)[0])[1].lower()
    if gzip and suffix not in ("", *CODECS[0].suffixes):
        raise UsageError(f"-z writes gzip, and this name ends in {suffix}", url=url)
    return CODECS[0] if gzip else next((codec for codec in CODECS if suffix in codec.suffixes), None)


def decompressed(stream: Stream, url: str) -> Stream:
    """Return the tar stream in *stream*, decompressed if its first bytes are a magic number.

    Raises while it is read: TruncatedError and TarFormatError with *url* and the byte offset in the compressed file.
    """
    if stream.file is None:
        return _Unknown(stream, url)
    codec = codec_of(os.pread(stream.file.fileno(), MAGIC, stream.start))
    return stream if codec is None else _Decompressed(stream, codec, url)


def is_compressed(stream: Stream) -> bool:
    """Tell whether *stream*, which `decompressed` returned, has turned out to be compressed."""
    return isinstance(stream._known if isinstance(stream, _Unknown) else stream, _Decompressed)


def read_head(stream: Stream) -> bytes:
    """Return the first bytes of *stream*, as many as the longest magic number has."""
    head = bytearray(MAGIC)
    have = 0
    while have < MAGIC and (count := stream.readinto(memoryview(head)[have:])):
        have += count
    return bytes(head[:have])


class _Unknown:
    """A stream that shows at its first read what it is; before that nobody waits for it."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, url: str) -> None:
        self._stream = stream
        self._url = url
        self._known: Stream | None = None

    def readinto(self, view: memoryview, /) -> int:
        if self._known is None:
            head = read_head(self._stream)
            codec = codec_of(head)
            pushed = _Pushed(self._stream, head)
            self._known = pushed if codec is None else _Decompressed(pushed, codec, self._url)
        return self._known.readinto(view)

    def skip(self, count: int, /) -> None:
        raise AssertionError("only files are skipped in")


class _Pushed:
    """A stream with bytes that were read already before it."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, head: bytes) -> None:
        self._stream = stream
        self._head = head

    def readinto(self, view: memoryview, /) -> int:
        if self._head:
            count = min(len(view), len(self._head))
            view[:count], self._head = self._head[:count], self._head[count:]
            return count
        return self._stream.readinto(view)

    def skip(self, count: int, /) -> None:
        raise AssertionError("only files are skipped in")


class _Decompressed:
    """A stream decompressed, over any number of compressed streams one behind the other.

    What it gives before it fails does not depend on how much its reader has room for.
    """

    file: io.FileIO | None = None
    start = 0

    def __init__(self, stream: Stream, codec: Codec, url: str) -> None:
        self._stream = stream
        self._codec = codec
        self._url = url
        self._decompressor: Decompressor | None = codec.decompressor()
        self._room = memoryview(bytearray(READ))
        self._input = b""  # read and not yet given to the decompressor
        self._offset = 0  # in the compressed file, of the end of _input
        self._output = memoryview(b"")  # decompressed and not yet given to the reader

    def readinto(self, view: memoryview, /) -> int:
        output = self._output or self._decompress()
        count = min(len(view), len(output))
        view[:count] = output[:count]
        self._output = output[count:]
        return count

    def skip(self, count: int, /) -> None:
        raise AssertionError("only files are skipped in")

    def _decompress(self) -> memoryview:
        """Return what comes next; nothing at the end."""
        while self._decompressor is not None:
            decompressor = self._decompressor
            if decompressor.eof:
                self._input = decompressor.unused_data or b""  # lz4 says None
                self._next_stream()
                continue
            if decompressor.needs_input and not self._input and not self._read():
                raise TruncatedError(
                    f"the {self._codec.name} data ends before its end", url=self._url, offset=self._offset
                )
            data, self._input = self._input, b""
            try:
                output = decompressor.decompress(data, STEP)
            except Exception as error:  # each library has its own
                raise self._damaged(len(data), error) from error
            if output:
                return memoryview(output)
        return memoryview(b"")

    def _read(self) -> int:
        count = self._stream.readinto(self._room)
        self._input = bytes(self._room[:count])
        self._offset += count
        return count

    def _next_stream(self) -> None:
        """Begin the compressed stream that follows, if one does."""
        codec = self._codec
        while len(self._input) < MAGIC or (codec.padded and not self._input.strip(b"\0")):
            have = self._input if self._input.strip(b"\0") or not codec.padded else b""
            if not self._read():
                self._input = have
                break
            self._input = have + self._input
        if not self._input:
            self._decompressor = None
        elif self._input.startswith(codec.magic):
            self._decompressor = codec.decompressor()
        else:
            raise TarFormatError(
                f"what follows the end of the {codec.name} data is no {codec.name} data",
                url=self._url,
                offset=self._offset - len(self._input),
            )

    def _damaged(self, count: int, error: Exception) -> TarFormatError:
        return TarFormatError(
            f"{self._codec.name} data is damaged in the {count} bytes from here on: {error}",
            url=self._url,
            offset=self._offset - count,
        )


class CompressedSink:
    """Writes compressed to *sink*; complete after `finish`."""

    def __init__(self, sink: Sink, compressor: Compressor) -> None:
        self._sink = sink
        self._compressor = compressor

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        """Compress *data*, and write what comes out."""
        if output := self._compressor.compress(data):
            self._sink.write(output)

    def finish(self) -> None:
        """Write the end of the compressed data."""
        self._sink.write(self._compressor.flush())
