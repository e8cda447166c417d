"""Archives made by hand, block by block, and payloads as files: pictures, arrays, sounds."""

from __future__ import annotations

import io
import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BLOCK = 512
END = bytes(2 * BLOCK)
USTAR, GNU, V7 = b"ustar\x0000", b"ustar  \0", bytes(8)


def header(
    name: bytes,
    size: int = 0,
    kind: bytes = b"0",
    *,
    magic: bytes = USTAR,
    prefix: bytes = b"",
    link: bytes = b"",
    size_field: bytes | None = None,
    mtime: bytes = b"13627467000\0",
    mode: bytes = b"0000640\0",
    tail: bytes = b"",
    signed: bool = False,
) -> bytes:
    """Return one header block with the right checksum; *tail* lies from byte 345 on (then there is no *prefix*)."""
    block = bytearray(BLOCK)
    block[:100] = name.ljust(100, b"\0")
    block[100:124] = mode + b"0002322\0" + b"0001000\0"
    block[124:136] = b"%011o\0" % size if size_field is None else size_field
    block[136:148] = mtime
    block[156:157] = kind
    block[157:257] = link.ljust(100, b"\0")
    block[257:265] = magic
    block[345:500] = (tail or prefix).ljust(155, b"\0")
    return sealed(block, signed=signed)


def sealed(block: bytes | bytearray, *, signed: bool = False) -> bytes:
    """Return *block* with the checksum it should have, over signed bytes if old Suns wrote it."""
    block = bytearray(block)
    block[148:156] = b" " * 8
    total = sum(b - 256 if signed and b > 127 else b for b in block)
    block[148:156] = b"%06o\0 " % total
    return bytes(block)


def data(payload: bytes) -> bytes:
    """Return *payload* padded to whole blocks."""
    return payload + bytes(-len(payload) % BLOCK)


def entry(name: bytes, payload: bytes = b"", kind: bytes = b"0", *, magic: bytes = USTAR, prefix: bytes = b"") -> bytes:
    """Return one member: header and payload."""
    return header(name, len(payload), kind, magic=magic, prefix=prefix) + data(payload)


def pax(*records: tuple[bytes, bytes], kind: bytes = b"x") -> bytes:
    """Return a pax extended header (`kind=b"g"`: a global one) of *records*."""
    lines = b""
    for keyword, value in records:
        length = len(keyword) + len(value) + 3
        while length != len(b"%d %b=%b\n" % (length, keyword, value)):
            length += 1
        lines += b"%d %b=%b\n" % (length, keyword, value)
    return entry(b"PaxHeaders/x", lines, kind)


def long(name: bytes, kind: bytes = b"L") -> bytes:
    """Return a GNU extended header that gives the next member the name (K: link) *name*."""
    return entry(b"././@LongLink", name + b"\0", kind, magic=GNU)


def base256(number: int, width: int = 12) -> bytes:
    """Return *number* as GNU tar writes what octal digits can't hold."""
    value = number.to_bytes(width, "big", signed=True)
    return bytes([value[0] | 0x80]) + value[1:]


class Trickle:
    """A stream that gives *step* bytes at a time, as pipes may."""

    file: io.FileIO | None = None
    start = 0

    def __init__(self, content: bytes, step: int = 1 << 30) -> None:
        self.content = content
        self.step = step
        self.position = 0

    def readinto(self, view: memoryview, /) -> int:
        part = self.content[self.position : self.position + min(len(view), self.step)]
        view[: len(part)] = part
        self.position += len(part)
        return len(part)


class FileStream:
    """A regular file as a stream, from byte *start* on, that gives *step* bytes at a time."""

    def __init__(self, path: Path, start: int = 0, step: int = 1 << 30) -> None:
        self.file: io.FileIO | None = io.FileIO(str(path))
        self.start = start
        self.step = step
        os.lseek(self.file.fileno(), start, os.SEEK_SET)

    def readinto(self, view: memoryview, /) -> int:
        assert self.file is not None
        return self.file.readinto(view[: self.step]) or 0

    def skip(self, count: int, /) -> None:
        assert self.file is not None
        os.lseek(self.file.fileno(), count, os.SEEK_CUR)


@contextmanager
def file_stream(path: Path, content: bytes, start: int = 0, step: int = 1 << 30) -> Iterator[FileStream]:
    """Give *content* as the file *path*, opened at byte *start*; closed at the end of the block."""
    path.write_bytes(content)
    stream = FileStream(path, start, step)
    assert stream.file is not None
    with stream.file:
        yield stream


def encoded(picture: Any, form: str = "PNG", **options: Any) -> bytes:
    """Return *picture*, of Pillow, as a file of this format."""
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def picture(form: str = "PNG", width: int = 50, height: int = 37, mode: str = "RGB") -> bytes:
    """Return a black picture as a file of this format."""
    from PIL import Image

    return encoded(Image.new(mode, (width, height)), form)


def photograph(seed: int, width: int = 80, height: int = 60) -> Any:
    """Return a picture like no other, of shapes at all scales, with some noise: it compresses like a photograph."""
    import numpy as np
    from PIL import Image

    chance = np.random.default_rng(seed)
    scene = np.zeros((height, width, 3))
    for scale in (4, 16, 64):
        rough = Image.fromarray(chance.integers(0, 256, (scale, scale, 3), "uint8"))
        scene += np.asarray(rough.resize((width, height), Image.Resampling.BICUBIC), "float64") / 3
    scene += chance.normal(0, 6, scene.shape)
    return Image.fromarray(scene.clip(0, 255).astype("uint8"))


def ended_early(jpeg: bytes) -> bytes:
    """Return *jpeg* with a mark of its end in the middle, as an error of two bytes makes it; Pillow does not tell."""
    middle = len(jpeg) // 2
    return jpeg[:middle] + b"\xff\xd9" + jpeg[middle + 2 :]


def npy(values: Any, kind: str | None = None, **options: Any) -> bytes:
    """Return an array of *values* as numpy writes it."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.asarray(values, kind), **options)
    return file.getvalue()


def wav(frames: int, channels: int = 1) -> bytes:
    """Return so many *frames* of silence, of 16 bits, 8,000 a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(2)
        opened.setframerate(8000)
        opened.writeframes(bytes(2 * channels * frames))
    return file.getvalue()
