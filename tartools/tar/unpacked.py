"""Compressed files that are no archives, such as tables of text: decompressed if they begin with a magic number."""

from __future__ import annotations

import io
from typing import cast

from tartools import storage
from tartools.storage.streams import BUFFER, Stream, stream_file
from tartools.tar.codecs import MAGIC, Codec, codec_of
from tartools.tar.compression import Decompressed


def opened(url: str) -> io.BufferedReader:
    """Return the bytes of *url* as a file, decompressed. Raises: as `compression.decompressed`, where it is read."""
    file = stream_file(storage.open_read(url), url)
    codec = codec_of(file.peek(MAGIC)[:MAGIC])
    return file if codec is None else io.BufferedReader(_Unpacked(file, codec, url), BUFFER)


def seekable(url: str) -> io.BufferedReader:
    """Return the bytes of *url* as a file that can seek: a copy, if they are compressed. Raises: as `opened`."""
    from tartools.storage import seekable

    file = seekable.seekable(url)
    codec = codec_of(file.peek(MAGIC)[:MAGIC])
    if codec is None:
        return file
    with file:
        return seekable.copied(Decompressed(cast(Stream, file), codec, url))


class _Unpacked(io.RawIOBase):
    """A compressed *file* as a raw file; closing it closes *file*."""

    def __init__(self, file: io.BufferedReader, codec: Codec, url: str) -> None:
        self._file, self._stream = file, Decompressed(cast(Stream, file), codec, url)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        return self._stream.readinto(memoryview(buffer))

    def close(self) -> None:
        self._file.close()
        super().close()
