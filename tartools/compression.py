"""Compressed tar streams: recognised by magic number when read, chosen by suffix when written."""

from __future__ import annotations

import io
import os

from tartools.codec import CODECS, MAGIC, SUFFIXES, Codec, Compressor, Decompressor, codec_of
from tartools.errors import TarFormatError, TruncatedError, UsageError
from tartools.storage.names import split_query
from tartools.streams import Sink, Stream

READ = 1 << 18  # compressed bytes a read
STEP = 1 << 17  # bytes that a decompressor gives at most at a time; some are slower the more they may give


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
        self._fresh = True  # nothing was given to it
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
            while self._fresh and not self._codec.begins(self._input) and self._read():
                pass
            self._fresh = False
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
        """Read some bytes behind those of the input; return how many."""
        count = self._stream.readinto(self._room)
        self._input += bytes(self._room[:count])
        self._offset += count
        return count

    def _next_stream(self) -> None:
        """Begin the compressed stream that follows, if one does."""
        codec = self._codec
        while True:
            if codec.padded:
                self._input = self._input.lstrip(b"\0")
            if len(self._input) >= MAGIC or not self._read():
                break
        if not self._input:
            self._decompressor = None
        elif self._input.startswith(codec.magic):
            self._decompressor, self._fresh = codec.decompressor(), True
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
