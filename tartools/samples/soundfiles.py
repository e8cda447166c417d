"""Open sounds by soundfile, and find truncated WAV and Ogg files: libsndfile decodes the rest without an error.

Sources: Multimedia Programming Interface 1.0 and EBU Tech 3306 (RIFF, RF64); RFC 3533 (Ogg pages).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from tartools.errors import TarToolsError

if TYPE_CHECKING:
    import soundfile

NO_LENGTH = "its header does not say how long it is"
MAX_FRAMES = 1 << 62  # libsndfile says more if a file does not say how many it has
# A writer to a pipe can't know the size: 0, the largest 32-bit numbers, and near them (sox: 0x7ffff000 and its frames).
MIN_STREAM_BYTES = 0x7FFF0000
_RIFF_CHUNK = struct.Struct("<4sI")
# capture pattern, version, flags, granule, serial, sequence, checksum, segments
_OGG_PAGE = struct.Struct("<4sBBqIIIB")
_LAST_PAGE_FLAG = 4
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def has_known_length(sound: soundfile.SoundFile) -> bool:
    """True if the file of *sound* says how many frames it has; False for a FLAC file that was written to a pipe."""
    return bool(sound.frames < MAX_FRAMES)


class _FailureRecorder:
    """A *file* for libsndfile, whose callbacks would print an exception on stderr and go on without it.

    `failure`: the error of a read, after which the file seems to end; None if there was none.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.failure: TarToolsError | None = None
        self.seek, self.tell = file.seek, file.tell

    def readinto(self, buffer: memoryview) -> int:
        """Read bytes into *buffer*; return their number, 0 at the end of the file and from a failure on."""
        if self.failure is None:
            try:
                return int(self._file.readinto(buffer))  # type: ignore[attr-defined]
            except TarToolsError as error:
                self.failure = error
        return 0


@contextmanager
def open_by_soundfile(file: IO[bytes]) -> Iterator[soundfile.SoundFile]:
    """Open the sound in *file*, which can seek, by soundfile, and close it at the end of the block.

    Raises: the TarToolsError of a read of *file*, at the end of the block or in place of an error that follows from it;
    soundfile's errors for damage; ModuleNotFoundError without soundfile.
    """
    import soundfile

    recorder = _FailureRecorder(file)
    try:
        with soundfile.SoundFile(recorder) as sound:
            yield sound
    except Exception:
        if recorder.failure is not None:
            raise recorder.failure from None
        raise
    if recorder.failure is not None:
        raise recorder.failure


def truncation(file: IO[bytes], size: int) -> str:
    """Return the damage of the sound *file* of *size* bytes in words; "" if it is complete, or neither WAV nor Ogg.

    The first damage counts. *file* is at its begin, and is left there. Holds: a page of Ogg, 64 KiB.
    """
    head = file.read(4)
    file.seek(0)
    try:
        if head in (b"RIFF", b"RF64"):
            return _truncation_of_wav(file, size)
        return _truncation_of_ogg(file) if head == b"OggS" else ""
    finally:
        file.seek(0)


def _truncation_of_wav(file: IO[bytes], size: int) -> str:
    """Return the damage of the WAV *file* of *size* bytes; "" if there is none.

    Damage is a chunk of samples that is missing, longer than the rest of the file, or at the very end without a byte
    after its head. Without a chunk ds64, too great a length is no damage from 0x7fff0000 on: a writer to a pipe puts it
    there; nor is a length of 0 if bytes follow.
    """
    position, data_bytes = 12, None
    while position + _RIFF_CHUNK.size <= size:
        file.seek(position)
        kind, length = _RIFF_CHUNK.unpack(file.read(_RIFF_CHUNK.size))
        position += _RIFF_CHUNK.size
        if kind == b"ds64":  # the sizes of RF64, whose chunk of samples says 0xffffffff
            data_bytes = int.from_bytes(file.read(16)[8:16], "little")
        if kind == b"data":
            remaining = size - position
            if length == 0xFFFFFFFF and data_bytes is not None:
                length = data_bytes
            if length > remaining and (length < MIN_STREAM_BYTES or data_bytes is not None):
                return f"it is truncated: it has {remaining:,} bytes of samples instead of {length:,}"
            return "" if remaining else "it has no samples"
        position += length + length % 2
    return "it is truncated: it has no samples"


def _truncation_of_ogg(file: IO[bytes]) -> str:
    """Return the damage of the Ogg *file*; "" if there is none.

    Damage is a page that is cut, missing or has a wrong checksum, bytes between pages, and a stream without its last
    page.
    """
    position = 0
    open_streams: set[int] = set()
    sequences: dict[int, int] = {}  # serial number of a stream -> number of its next page
    while head := file.read(_OGG_PAGE.size):
        if len(head) < _OGG_PAGE.size:
            return f"it is truncated: it ends inside a page, at byte {position}"
        mark, _, flags, _, serial, sequence, checksum, segments = _OGG_PAGE.unpack(head)
        if mark != b"OggS":
            return f"it is damaged: no page begins at byte {position}"
        lengths = file.read(segments)
        payload = file.read(sum(lengths))
        if len(lengths) < segments or len(payload) < sum(lengths):
            return f"it is truncated: it ends inside a page, at byte {position}"
        if page_checksum(head[:22] + bytes(4) + head[26:] + lengths + payload) != checksum:
            return f"it is damaged: the checksum of the page at byte {position} does not match"
        if sequence != sequences.get(serial, sequence):
            return f"it is damaged: pages are missing before byte {position}"
        sequences[serial] = sequence + 1
        position += len(head) + len(lengths) + len(payload)
        if flags & _LAST_PAGE_FLAG:
            open_streams.discard(serial)
            del sequences[serial]  # another stream may have the same number
        else:
            open_streams.add(serial)
    return "it is truncated: its last page is missing" if open_streams else ""


def page_checksum(page: bytes) -> int:
    """Return the checksum of an Ogg *page* whose checksum field is 0 (RFC 3533, 6): CRC-32, unreflected, from 0.

    zlib has the reflected one: bits are reversed before and after it.
    """
    reflected = zlib.crc32(page.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int.from_bytes(reflected.to_bytes(4, "little").translate(_REVERSED_BITS), "big")
