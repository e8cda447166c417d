"""Compressed files that are no archives, such as tables of text: by magic number when read, by suffix when written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from tartools import storage
from tartools.storage.scratch import copy_to_scratch
from tartools.storage.streams import Input, Sink, Stream, stream_file
from tartools.storage.url import Url
from tartools.tar.compression import (
    MAX_COMPRESSION_MAGIC_BYTES,
    CompressedSink,
    DecompressedStream,
    codec_of,
    split_packed,
)


def open_packed(url: str) -> io.BufferedReader:
    """Open *url* and return its bytes as a file, decompressed if they begin as compressed data.

    Raises: StorageError if it can't be opened or read. Closing the file closes the input. Reading raises TruncatedError
    or TarFormatError if compressed data are damaged.
    """
    file = stream_file(storage.open_read(url), url)
    codec = codec_of(file.peek(MAX_COMPRESSION_MAGIC_BYTES)[:MAX_COMPRESSION_MAGIC_BYTES])
    if codec is None:
        return file
    return stream_file(cast(Input, DecompressedStream(cast(Stream, file), codec, url)), url, file.close)


def open_seekable_packed(url: str) -> io.BufferedReader:
    """Open *url* and return its bytes as a file that can seek; if they are compressed, as a decompressed scratch file.

    The caller closes it, which deletes the scratch file. Raises: TruncatedError or TarFormatError if compressed data
    are damaged; StorageError.
    """
    from tartools.storage import seekable

    file = seekable.open_seekable(url)
    codec = codec_of(file.peek(MAX_COMPRESSION_MAGIC_BYTES)[:MAX_COMPRESSION_MAGIC_BYTES])
    if codec is None:
        return file
    with file:
        return copy_to_scratch(DecompressedStream(cast(Stream, file), codec, url))


@contextmanager
def open_packed_sink(url: str, force: bool = False) -> Iterator[Sink]:
    """Yield a sink that writes *url*, compressed if its name ends as a codec says (.gz ...).

    A command (pipe:) gets the data uncompressed. The output appears at the end of the block; if that raises, it is
    dropped. *force*: replace an output that exists. Raises: StorageError if it exists without *force* (for an object at
    the end of the block), or can't be written; UsageError if it is a terminal or names no object.
    """
    codec = None if Url(url).scheme == "pipe" else split_packed(Url(url).name)[1]
    with storage.open_sink(url, force) as sink:
        if codec is None:
            yield sink
        else:
            packed = CompressedSink(sink, codec.compressor())
            yield packed
            packed.finish()
