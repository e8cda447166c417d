"""Streams as files of Python."""

from __future__ import annotations

import pytest

from tartools.storage.streams import stream_file


class InPieces:
    """A stream that fills a part of the room that it is given, through a slice of it."""

    file = None

    def __init__(self, data: bytes) -> None:
        self._left = data

    def readinto(self, view: memoryview, /) -> int:
        part = view[:2]
        count = min(len(part), len(self._left))
        part[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def cancel(self) -> bool:
        return False

    def close(self) -> None:
        pass


@pytest.mark.parametrize("size", [-1, 3, 100])
def test_what_a_stream_puts_into_a_part_of_its_room_is_read(size: int) -> None:
    """`read` of a raw file brings a bytearray, and a part of that is a copy: with Python 3.14, zeros were read."""
    with stream_file(InPieces(b"abcdefg"), "x") as file:
        assert file.read(size) == b"abcdefg"[: size if size >= 0 else None]
