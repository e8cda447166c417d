"""The values in pages of Parquet files, one by one: of large pages only pieces are held.

Source: Apache Parquet, parquet.thrift, Encodings.md and README.md (headers, levels, checksums of pages); Apache Thrift,
thrift-compact-protocol.md.
"""

from __future__ import annotations

import io
import os
import zlib
from array import array
from collections.abc import Iterator
from itertools import islice, repeat
from typing import Any, NamedTuple

from tartools.errors import TarFormatError, TarToolsError
from tartools.formats import snappy
from tartools.formats.thrift import parsed, unsigned
from tartools.storage.scratch import scratch_file
from tartools.tables import schema
from tartools.tar.codecs import MAGIC, codec_of
from tartools.tar.compression import STEP, Decompressed, Pushed, first_bytes

WHOLE = 8 << 20  # bytes of a page, or of a dictionary, up to which it is held
SNAPPY = 160 << 20  # bytes of a page, with and without compression, up to which it is held if Snappy makes it
SMALLER = 0.9  # times: in pieces, such data are decompressed at 5 to 50 MB/s, and pictures at 1,500
HEADER, LONGEST_HEADER = 1 << 12, 16 << 20  # bytes of the header of a page: of most, and of one with long values

MOST_BITS = 32  # of a number in a dictionary
PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY = 0, 2, 3, 8
DATA, DICTIONARY, DATA_2 = 0, 2, 3  # kinds of pages
ABOUT = {DATA: 5, DICTIONARY: 7, DATA_2: 8}  # what is in the header for them
WRONG = (LookupError, TypeError, ValueError, AttributeError, OverflowError)  # what a damaged header leads to


class Chunk(NamedTuple):
    """A column of a row group: so many *values* in the bytes *begin* to *end*; *level* is that of what is not null."""

    begin: int
    end: int
    values: int
    codec: str
    level: int


def values(file: io.BufferedReader, chunk: Chunk, piece: int) -> Iterator[bytes | None]:
    """Yield the values of *chunk*, None for a null. *piece* bytes of the file are read at once.

    Holds: a value; some pieces; a page and a dictionary of up to 8 MiB each, twice. Disk: a larger dictionary.
    Raises: TarFormatError, for the checksum of a page when all its values were given; WRONG for other damage.
    """
    source = _Pieces(file, chunk.begin, chunk.end, piece)
    words: _Dictionary | None = None
    left = chunk.values
    try:
        while left > 0:
            page = _Page(source, chunk)
            if page.kind == DICTIONARY and words is None:
                words = _Dictionary(page.size > WHOLE)
                for word in islice(page.plain(), page.count):
                    words.add(word)
            elif page.kind in (DATA, DATA_2):
                yield from page.values(words)
                left -= page.count
            page.finish()
            del page  # before the next one is read
        if left < 0:
            raise TarFormatError("a page has too many values")
    finally:
        if words is not None:
            words.close()


class _Pieces:
    """The bytes *begin* to *end* of *file*, of which *piece* are read at once."""

    def __init__(self, file: io.BufferedReader, begin: int, end: int, piece: int) -> None:
        self._file, self._at, self._end, self._piece = file, begin, end, piece
        self._held = b""

    def header(self) -> dict[int, Any]:
        """Return the header of a page, and pass it."""
        for most in (HEADER, LONGEST_HEADER):
            while len(self._held) < most and (more := self._more()):
                self._held += more
            try:
                found, end = parsed(self._held, 0)
            except IndexError:
                continue
            self._held = self._held[end:]
            return found
        raise TarFormatError("ends in the header of a page")

    def page(self, size: int, crc: int | None) -> Iterator[bytes]:
        """Yield the next *size* bytes. Raises: TarFormatError if they end, or *crc* is not theirs."""
        found = 0
        while size:
            data = self._held or self._more()
            if not data:
                raise TarFormatError("ends in a page")
            data, self._held = data[:size], data[size:]
            size -= len(data)
            if crc is not None:
                found = zlib.crc32(data, found)
            yield data
        if crc is not None and found != crc & 0xFFFFFFFF:
            raise TarFormatError("the checksum of a page differs")

    def _more(self) -> bytes:
        self._file.seek(self._at)  # others read the file, too
        data = self._file.read(min(self._piece, self._end - self._at))
        self._at += len(data)
        return data


class _Stream:
    """Pieces of bytes as a stream."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held = pieces, memoryview(b"")

    def readinto(self, view: memoryview, /) -> int:
        held = self._held or memoryview(next(self._pieces, b""))
        count = min(len(view), len(held))
        view[:count], self._held = held[:count], held[count:]
        return count


class _Data:
    """Bytes that come in *pieces* and are read in order; *had* is how many were."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held, self._at = pieces, b"", 0
        self.had = 0

    def read(self, count: int) -> bytes:
        """Return the next *count* bytes. Raises: ValueError if there are fewer."""
        self.had += count
        end = self._at + count
        if end <= len(self._held):
            data, self._at = self._held[self._at : end], end
            return data
        parts = [self._held[self._at :]]
        left = count - len(parts[0])
        while left:
            self._held = next(self._pieces, b"")
            if not self._held:
                raise ValueError("it ends in a value")
            self._at = min(left, len(self._held))
            left -= self._at
            parts.append(self._held[: self._at])
        return b"".join(parts)

    def rest(self) -> Iterator[bytes]:
        """Yield the bytes that were not read, in pieces."""
        held, self._held = self._held[self._at :], b""
        self._at = 0
        if held:
            self.had += len(held)
            yield held
        for piece in self._pieces:
            self.had += len(piece)
            yield piece


class _Page:
    """The next page in *source*. Its values are read once, and then `finish` passes it."""

    def __init__(self, source: _Pieces, chunk: Chunk) -> None:
        header = source.header()
        self.kind, self.size, size = header[1], header[2], header[3]
        self._packed = source.page(size, header.get(4))
        self._about = header[ABOUT[self.kind]] if self.kind in ABOUT else {}
        self.count: int = self._about.get(1, 0)
        if min(self.size, size, self.count) < 0:
            raise ValueError("a size below 0")
        self._level, self._levels = chunk.level, b""
        pieces, codec = self._packed, chunk.codec
        if self.kind == DATA_2:  # its levels are never compressed
            levels = _Data(pieces)
            self._levels = levels.read(self._about[5] + self._about[6])[self._about[6] :]
            self.size -= levels.had
            size -= levels.had
            pieces, codec = levels.rest(), codec if self._about.get(7, True) else ""
        self._data = _Data(_unpacked(pieces, codec, self.size, size))
        if self.kind == DATA and self._level:
            if self._about[3] != RLE:
                raise ValueError(f"levels of the encoding {self._about[3]}")
            self._levels = self._sized()

    def values(self, words: _Dictionary | None) -> Iterator[bytes | None]:
        """Yield the values of a page of data; *words* are those of the dictionary."""
        width = self._level.bit_length()
        levels = islice(_numbers(self._levels, width), self.count) if width else repeat(0, self.count)
        encoding, count = self._about[2 if self.kind == DATA else 4], 0
        if encoding == PLAIN:
            found = self.plain()
        elif encoding in (PLAIN_DICTIONARY, RLE_DICTIONARY) and words is not None:
            found = self._of(words)
        else:
            raise ValueError(f"values of the encoding {encoding}")
        for level in levels:
            count += 1
            if level < self._level:
                yield None
                continue
            value = next(found, None)
            if value is None:
                raise ValueError("it ends in its values")
            yield value
        if count < self.count:
            raise ValueError("it ends in its levels")

    def plain(self) -> Iterator[bytes]:
        """Yield values as they are stored, without an end."""
        while True:
            yield self._sized()

    def _sized(self) -> bytes:
        size = int.from_bytes(self._data.read(4), "little")
        if size > self.size:
            raise ValueError("it ends in a value")
        return self._data.read(size)

    def _of(self, words: _Dictionary) -> Iterator[bytes]:
        """Yield the words whose numbers are stored; none without a number."""
        data = b"".join(self._data.rest())
        if data and data[0] > MOST_BITS:
            raise ValueError(f"numbers of {data[0]} bits")
        return map(words.word, _numbers(data[1:], data[0])) if data else iter(())

    def finish(self) -> None:
        """Pass the page. Raises: ValueError if it has not its size; TarFormatError if its checksum differs."""
        if self.kind in ABOUT:
            had = self._data.had
            if had != self.size or any(self._data.rest()):
                raise ValueError(f"values of {had:,} bytes, in {self.size:,}")
        for _ in self._packed:
            pass


class _Dictionary:
    """The words of a dictionary: in memory, or in a temporary file if it is *large*."""

    def __init__(self, large: bool) -> None:
        self._words: list[bytes] = []
        self._ends = array("Q", [0])
        self._file = scratch_file() if large else None

    def add(self, word: bytes) -> None:
        """Add a word, whose number is how many there were."""
        if self._file is None:
            self._words.append(word)
        else:
            self._file.write(word)
            self._ends.append(self._ends[-1] + len(word))

    def word(self, number: int) -> bytes:
        """Return the word *number*. Raises: IndexError."""
        if self._file is None:
            return self._words[number]
        begin, end = self._ends[number], self._ends[number + 1]
        return os.pread(self._file.fileno(), end - begin, begin)

    def close(self) -> None:
        """Drop the words."""
        if self._file is not None:
            self._file.close()


def _unpacked(pieces: Iterator[bytes], codec: str, size: int, packed: int) -> Iterator[bytes]:
    """Yield the *size* bytes that *pieces*, of *packed* bytes, are when decompressed. Raises: TarFormatError."""
    if not codec:
        yield from pieces
    elif size <= WHOLE or (codec == "snappy" and packed <= SMALLER * size and packed + size <= SNAPPY):
        yield _unpacked_at_once(pieces, codec, size, packed)
    elif codec == "snappy":
        yield from snappy.decompressed(pieces)
    else:
        stream = _Stream(pieces)
        head = first_bytes(stream, MAGIC)
        known = codec_of(head)
        if known is None or known.name != codec:
            raise TarFormatError(f"damaged {codec} data")
        data = Decompressed(Pushed(stream, head), known, "")
        room = memoryview(bytearray(STEP))
        while count := _received(data, room, codec):
            yield bytes(room[:count])


def _unpacked_at_once(pieces: Iterator[bytes], codec: str, size: int, packed: int) -> bytes:
    data, at, pa = bytearray(packed), 0, schema.arrow()
    for piece in pieces:
        data[at : at + len(piece)] = piece
        at += len(piece)
    try:
        return pa.Codec(codec).decompress(data, size, asbytes=True) if size else b""
    except (pa.ArrowException, OSError) as error:
        raise TarFormatError(f"damaged {codec} data") from error


def _received(data: Decompressed, room: memoryview, codec: str) -> int:
    try:
        return data.readinto(room)
    except TarToolsError as error:
        if error.url:  # of the file, which could not be read
            raise
        raise TarFormatError(f"{codec} data that can't be decompressed ({error.message})") from error


def _numbers(data: bytes, width: int) -> Iterator[int]:
    """Yield the numbers of *width* bits in *data*: runs of one, and groups of eight."""
    at, mask = 0, (1 << width) - 1
    while at < len(data):
        head, at = unsigned(data, at)
        if not head & 1:
            end = at + (width + 7) // 8
            yield from repeat(int.from_bytes(data[at:end], "little"), head >> 1)
        elif width:
            end = at + (head >> 1) * width
            for begin in range(at, min(end, len(data)), width):
                word = int.from_bytes(data[begin : begin + width], "little")
                for shift in range(0, 8 * width, width):
                    yield word >> shift & mask
        else:
            end = at
            yield from repeat(0, (head >> 1) * 8)
        at = end
