"""Snappy data a piece at a time: libraries decompress a block only as a whole.

Source: google/snappy, format_description.txt.
"""

from __future__ import annotations

from collections.abc import Iterator

from tartools.errors import TarFormatError

WINDOW = 1 << 20  # bytes that a copy may reach back; writers copy within 64 KiB
HELD = 4 << 20  # bytes that are made before they are handed on
LONGEST = 5  # bytes of a size or a tag


def decompressed(pieces: Iterator[bytes]) -> Iterator[bytes]:
    r"""Yield the data of the Snappy block in *pieces*, none of which is empty, in pieces.

    Holds: 5 MiB, and one of *pieces*. Raises: TarFormatError if it is damaged, or copies from more than 1 MiB before.

    >>> list(decompressed(iter([b"\7\0a", b"\x16\1\0"])))
    [b'aaaaaaa']
    """
    left, data = _begun(pieces)
    at, more, made = 0, True, bytearray()
    while left:
        while more and len(data) - at < LONGEST:
            piece = next(pieces, b"")
            data, at, more = data[at:] + piece, 0, bool(piece)
        count, back, at = _element(data, at)
        if count > left or back > len(made):
            raise _damaged()
        left -= count
        if back:
            begin = len(made) - back
            made += made[begin : begin + count] if back >= count else (made[begin:] * (count // back + 1))[:count]
        else:
            while at + count > len(data):
                made += data[at:]
                count -= len(data) - at
                data, at = next(pieces, b""), 0
                if not data:
                    raise _damaged()
                if len(made) >= HELD:
                    yield _taken(made)
            made += data[at : at + count]
            at += count
        if len(made) >= HELD:
            yield _taken(made)
    if at < len(data) or next(pieces, b""):
        raise _damaged()
    if made:
        yield bytes(made)


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the element whose tag is at byte *at* of *data*: bytes, how far back they are copied from, and its end.

    Those of a literal, which are copied from nowhere (0), follow. Raises: TarFormatError.
    """
    tag = data[at] if at < len(data) else 0
    kind, count, at = tag & 3, (tag >> 2) + 1, at + 1
    if kind == 1:
        count, size, back = (count - 1 & 7) + 4, 1, tag >> 5 << 8
    else:
        size, back = (max(count - 60, 0), 0) if kind == 0 else (2 if kind == 2 else 4, 0)
    end = at + size
    if end > len(data):
        raise _damaged()
    number = int.from_bytes(data[at:end], "little")
    if kind == 0:
        return number + 1 if size else count, 0, end
    if not back | number:
        raise _damaged()
    return count, back | number, end


def _begun(pieces: Iterator[bytes]) -> tuple[int, bytes]:
    """Return the size when decompressed, and the first bytes behind it."""
    data = next(pieces, b"")
    size = shift = at = 0
    while shift < 7 * LONGEST:
        if at == len(data):
            piece = next(pieces, b"")
            if not piece:
                break
            data += piece
        size |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return size, data[at:]
    raise _damaged()


def _taken(made: bytearray) -> bytes:
    """Return all of *made* but the window, which stays there."""
    data = bytes(memoryview(made)[:-WINDOW])
    del made[:-WINDOW]
    return data


def _damaged() -> TarFormatError:
    return TarFormatError("damaged Snappy data")
