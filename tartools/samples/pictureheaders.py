"""Headers of ordinary JPEG and PNG pictures, read without Pillow: format, size and mode.

Pillow takes 40 ms to import, more than Python to start, and ten times as long for a header. Both formats are a list of
parts that say how long they are:

    JPEG    FFD8 | FFE0 length ... | FFDB length ... | FFC0 length, size, layers | FFC4 ... | FFDA length ... | pixels
    PNG     signature | length IHDR size, depth, colours CRC | length gAMA ... CRC | length IDAT | pixels

`plain_header` knows only parts of which each version of Pillow thinks alike, and returns None for everything else:
damage, EXIF, padding, colour profiles of PNG, rare kinds. Then Pillow is asked, which decides what is broken, and why.

Source: ITU-T T.81, B.1 and B.2; PNG specification (third edition), 5.3 and 11.2; Pillow's JpegImagePlugin and
PngImagePlugin.
"""

import zlib
from typing import NamedTuple

HEADER_BYTES = 1 << 14  # of a picture that are read; a longer header is Pillow's
# ---- JPEG ----
JPEG_MAGIC = b"\xff\xd8\xff"
FRAMES = (0xC0, 0xC1, 0xC2)  # baseline, extended, progressive: the usual ones
SCAN, QUANTIZATION, APP0, APP2, PHOTOSHOP, ADOBE = 0xDA, 0xDB, 0xE0, 0xE2, 0xED, 0xEE
# Huffman tables, restart interval, comment, and application segments of which Pillow parses none
SKIPPED_SEGMENTS = frozenset((0xC4, 0xDD, 0xFE, *range(0xE3, 0xF0))) - {PHOTOSHOP, ADOBE}
FRAME_BYTES, LAYER_BYTES = 6, 3  # of a frame header before the layers, and of each of these
JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}  # by the number of layers
TABLE_BYTES = {0: 65, 1: 129}  # of a quantization table with its first byte, whose high half is the precision
# ---- PNG ----
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_MODES = {  # (bits, colours) -> mode
    **{(bits, 0): "L" for bits in (2, 4, 8)},
    **{(bits, 3): "P" for bits in (1, 2, 4, 8)},
    **{(bits, 6): "RGBA" for bits in (8, 16)},
    **{(bits, 2): "RGB" for bits in (8, 16)},
    (1, 0): "1",
    (16, 0): "I;16",
    (8, 4): "LA",
    (16, 4): "RGBA",
}
IHDR_BYTES = 13
# chunks before the pixels, with their lengths: -1 is any
PLAIN_CHUNKS = {
    b"gAMA": 4,
    b"sRGB": 1,
    b"pHYs": 9,
    b"cHRM": 32,
    b"tIME": 7,
    b"PLTE": -1,
    b"bKGD": -1,
    b"sBIT": -1,
    b"tEXt": -1,
}


class PictureHeader(NamedTuple):
    """The header of a picture: *form* ("JPEG"), stored size in pixels, *mode* in Pillow, and *orientation* (1 to 8)."""

    form: str
    width: int
    height: int
    mode: str
    orientation: int = 1


def plain_header(head: bytes, with_orientation: bool = False) -> PictureHeader | None:
    """Return the header of the ordinary JPEG or PNG that begins with *head*; None if Pillow has to be asked.

    *head*: the first `HEADER_BYTES`. *with_orientation*: the orientation is asked for, which a PNG may have anywhere.
    """
    if head.startswith(JPEG_MAGIC):
        return _jpeg_header(head)
    if head.startswith(PNG_SIGNATURE) and not with_orientation:
        return _png_header(head)
    return None


def _jpeg_header(head: bytes) -> PictureHeader | None:
    """Return the header of the JPEG that begins with *head*; None if it is not an ordinary one, without EXIF."""
    header, position = None, 2
    while position + 4 <= len(head) and head[position] == 0xFF:
        marker, begin = head[position + 1], position + 4
        position = end = position + 2 + int.from_bytes(head[position + 2 : begin], "big")
        if end < begin or end > len(head):
            return None
        if marker == SCAN:
            return header
        if marker in FRAMES and header is None:
            header = _frame_header(head[begin:end])
            if header is None:
                return None
        elif not _is_plain_segment(marker, head[begin:end]):
            return None
    return None


def _frame_header(segment: bytes) -> PictureHeader | None:
    """Return the header in *segment*, the frame header of a JPEG; None if it is not an ordinary one."""
    if len(segment) < FRAME_BYTES:
        return None
    bits, layers = segment[0], segment[5]
    height, width = int.from_bytes(segment[1:3], "big"), int.from_bytes(segment[3:5], "big")
    if bits != 8 or layers not in JPEG_MODES or len(segment) != FRAME_BYTES + LAYER_BYTES * layers:
        return None
    return PictureHeader("JPEG", width, height, JPEG_MODES[layers]) if width and height else None


def _is_plain_segment(marker: int, segment: bytes) -> bool:
    """True if each version of Pillow accepts *segment*, of this *marker*, and it does not change what the header is."""
    if marker == QUANTIZATION:
        while segment:
            size = TABLE_BYTES.get(segment[0] >> 4, 0)
            if not size or len(segment) < size:
                return False
            segment = segment[size:]
        return True
    if marker == APP0:
        return not segment.startswith(b"JFIF") or len(segment) >= 14
    if marker == APP2:
        return segment.startswith(b"ICC_PROFILE\0") and len(segment) > 14  # not MPF: several pictures
    if marker == ADOBE:
        return not segment.startswith(b"Adobe") or len(segment) >= 12
    return marker in SKIPPED_SEGMENTS


def _png_header(head: bytes) -> PictureHeader | None:
    """Return the header of the PNG that begins with *head*; None if it is not an ordinary one."""
    header, position = None, len(PNG_SIGNATURE)
    while position + 8 <= len(head):
        length, kind = int.from_bytes(head[position : position + 4], "big"), head[position + 4 : position + 8]
        if kind == b"IDAT":
            return header
        begin, end = position + 8, position + 8 + length
        position = end + 4
        if position > len(head) or int.from_bytes(head[end:position], "big") != zlib.crc32(head[begin - 4 : end]):
            return None
        if header is None:
            header = _ihdr_header(head[begin:end]) if kind == b"IHDR" else None
            if header is None:
                return None
        elif PLAIN_CHUNKS.get(kind) not in (-1, length):
            return None
    return None


def _ihdr_header(payload: bytes) -> PictureHeader | None:
    """Return the header in the *payload* of the chunk IHDR of a PNG; None if it is not an ordinary one."""
    if len(payload) != IHDR_BYTES:
        return None
    width, height = int.from_bytes(payload[:4], "big"), int.from_bytes(payload[4:8], "big")
    bits, colours, compression, filtering, interlace = payload[8:]
    mode = PNG_MODES.get((bits, colours))
    if mode is None or not width or not height or compression or filtering or interlace > 1:
        return None
    return PictureHeader("PNG", width, height, mode)
