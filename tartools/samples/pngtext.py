"""Text and colour profiles of PNG pictures that are too large for Pillow, which then refuses the whole picture.

Programs store workflows and prompts in a picture (ComfyUI, web interfaces of Stable Diffusion), scanners and Blender
large profiles. The pixels are sound, so that these chunks are left out before Pillow opens the picture. Its limits are
module globals, which are the user's: they are not changed here.

Source: PNG specification (third edition), 5.3 (chunks) and 11.3 (iCCP, tEXt, zTXt, iTXt).
"""

import io
import struct
from typing import IO, NamedTuple

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
MAX_CHUNK_BYTES = 1 << 20  # of a decompressed text or profile: Pillow's PngImagePlugin.MAX_TEXT_CHUNK
MAX_TEXT_BYTES = 64 << 20  # of all text: Pillow's MAX_TEXT_MEMORY
TEXT_KINDS = (b"tEXt", b"zTXt", b"iTXt")
_PNG_CHUNK = struct.Struct(">I4s")
_CRC_BYTES = 4


class LargeText(NamedTuple):
    """The texts and colour profiles for which Pillow refuses a PNG.

    `chunks`: (begin, end) of their chunks in the file, in order.
    `description`: "a text of more than 1 MiB" or "a colour profile of more than 1 MiB", for the first of them; "more
    than 64 MiB of text" if all texts are among them.
    """

    chunks: list[tuple[int, int]]
    description: str


def find_large_text(file: IO[bytes], with_pixels: bool = True) -> LargeText | None:
    """Return the chunks for which Pillow refuses the PNG *file*; None if there are none, or it is no PNG.

    They are compressed texts and profiles that unpack to over 1 MiB, and all texts if the other ones have over 64 MiB.
    Without *with_pixels*, only the chunks before the pixels count. Leaves *file* at its begin.
    """
    file.seek(0)
    try:
        if file.read(len(PNG_SIGNATURE)) != PNG_SIGNATURE:
            return None
        return _find(file, with_pixels)
    finally:
        file.seek(0)


def _find(file: IO[bytes], with_pixels: bool) -> LargeText | None:
    """Return the chunks for which Pillow refuses the PNG *file*, which is at its first chunk; None if there are none.

    Without *with_pixels*, only the chunks before the pixels count. Leaves *file* anywhere.
    """
    texts: list[tuple[int, int]] = []
    large: list[tuple[int, int]] = []
    descriptions: list[str] = []
    text_bytes, begin = 0, len(PNG_SIGNATURE)
    while len(head := file.read(_PNG_CHUNK.size)) == _PNG_CHUNK.size:
        length, kind = _PNG_CHUNK.unpack(head)
        end = begin + _PNG_CHUNK.size + length + _CRC_BYTES
        if kind == b"IEND" or (kind == b"IDAT" and not with_pixels):
            break
        if kind in TEXT_KINDS or kind == b"iCCP":
            text, is_compressed = _text_of_chunk(kind, file.read(length) if text_bytes <= MAX_TEXT_BYTES else b"")
            size = _unpacked_size(text) if is_compressed else len(text)
            if is_compressed and size > MAX_CHUNK_BYTES:
                large.append((begin, end))
                descriptions.append("a colour profile" if kind == b"iCCP" else "a text")
            elif kind != b"iCCP":
                texts.append((begin, end))
                text_bytes += size
        begin = end
        file.seek(begin)
    if text_bytes > MAX_TEXT_BYTES:
        return LargeText(sorted(large + texts), f"more than {MAX_TEXT_BYTES >> 20} MiB of text")
    return LargeText(large, f"{descriptions[0]} of more than {MAX_CHUNK_BYTES >> 20} MiB") if large else None


def _text_of_chunk(kind: bytes, payload: bytes) -> tuple[bytes, bool]:
    """Return (text or profile as stored, without keyword or name; True if it is compressed) of a PNG chunk.

    *kind*: the type of the chunk: one of `TEXT_KINDS`, or b"iCCP". A *payload* that is cut gives b"" or a part of it.
    """
    value = payload.partition(b"\0")[2]
    if kind == b"iTXt":  # a flag, the method, the language and the translated keyword
        return value[2:].split(b"\0", 2)[-1], value[:1] == b"\1"
    return (value, False) if kind == b"tEXt" else (value[1:], True)


def _unpacked_size(compressed: bytes) -> int:
    """Return the size in bytes of *compressed*, zlib data, unpacked; `MAX_CHUNK_BYTES` + 1 stands for any larger size.

    Truncated data count as far as they go; other damaged data as 0, since Pillow takes them for an empty text.
    """
    import zlib

    unpacker = zlib.decompressobj()
    try:
        size = len(unpacker.decompress(compressed, MAX_CHUNK_BYTES))
    except zlib.error:
        return 0
    return size + bool(unpacker.unconsumed_tail)


def find_late_exif(file: IO[bytes]) -> bytes | None:
    """Return the EXIF data of the PNG *file* (chunk eXIf), also behind the pixels, which are not read.

    None if it has none, or more than 1 MiB; shorter if *file* is truncated there. Only the first eXIf counts. The
    position of *file* does not change. Holds: these data.
    """
    position, begin = file.tell(), len(PNG_SIGNATURE)
    try:
        file.seek(begin)
        while len(head := file.read(_PNG_CHUNK.size)) == _PNG_CHUNK.size:
            length, kind = _PNG_CHUNK.unpack(head)
            if kind == b"eXIf":
                return file.read(length) if length <= MAX_CHUNK_BYTES else None
            if kind == b"IEND":
                break
            begin += _PNG_CHUNK.size + length + _CRC_BYTES
            file.seek(begin)
        return None
    finally:
        file.seek(position)


def remove_large_text(file: IO[bytes], with_pixels: bool = True) -> IO[bytes]:
    """Return *file*, or if it is a PNG with texts or a profile that Pillow refuses, a copy in memory without these.

    A chunk is refused if it is compressed and unpacks to over 1 MiB (`MAX_CHUNK_BYTES`). If all other text has over
    64 MiB (`MAX_TEXT_BYTES`), no text chunk is copied. *with_pixels*: True to look at chunks behind the pixels too. The
    result, *file* or the copy, is at its begin.
    """
    large = find_large_text(file, with_pixels)
    if large is None:
        return file
    data = memoryview(file.read())
    parts, position = [], 0
    for begin, end in large.chunks:
        parts.append(data[position:begin])
        position = end
    return io.BytesIO(b"".join([*parts, data[position:]]))
