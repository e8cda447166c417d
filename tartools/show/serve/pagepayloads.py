"""Payloads for the browser: types of our choosing, ranges, thumbnails, heat maps, and a cache of these."""

from __future__ import annotations

import io
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

from tartools.errors import TarToolsError, how_to_install, printable
from tartools.samples import decoding
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import (
    BY_SUFFIX,
    CONTENT_TYPES,
    MAGIC_BYTES,
    NUMBER_SUFFIXES,
    OTHER,
    PICTURE,
    SOUND,
    TEXTS,
    VIDEO,
    suffix_of,
    type_of_file,
)
from tartools.samples.kinds.arrays import ARRAY_LIMIT, array_header
from tartools.samples.kinds.sounds import read_sound
from tartools.samples.payloads import MAX_ERROR_CHARS
from tartools.samples.videos import reduced_frame
from tartools.tar import Member

CACHE_BYTES = 64 << 20  # bytes of thumbnails that are kept
MAX_DECODERS = 4  # thumbnails that are made at once
MIN_SIDE, MAX_SIDE = 16, 2048  # pixels of a thumbnail
JPEG_QUALITY = 85
HEATMAP_SIDE = 512  # pixels, at most
BINARY_TYPE = "application/octet-stream"


class NoPictureError(Exception):
    """A payload has no picture; the message says why."""


def kind_of_name(field: str) -> str:
    """Return the kind of the payloads of *field*, by its suffix, without the suffix of a codec.

    It is one of picture, sound, video, array, json, number, text and other.

    >>> [kind_of_name(name) for name in ("seg.png", "wav", "json", "cls", "txt", "npy.gz", "bin")]
    ['picture', 'sound', 'json', 'number', 'text', 'array', 'other']
    """
    suffix = suffix_of(split_codec(field)[0] or field)
    if suffix in BY_SUFFIX and BY_SUFFIX[suffix].kind != OTHER:
        return BY_SUFFIX[suffix].kind
    if suffix in ("json", "jsonl"):
        return "json"
    if suffix in NUMBER_SUFFIXES:
        return "number"
    return "text" if suffix in TEXTS else "other"


def content_type(head: bytes) -> str:
    """Return the Content-Type for a payload that begins with *head*: of its picture, sound or video; else of any bytes.

    The latter, application/octet-stream, is also returned for formats without an entry in CONTENT_TYPES, such as TIFF.

    >>> content_type(b"GIF89a"), content_type(b"<svg onload=alert(1)>"), content_type(b"<html>")
    ('image/gif', 'application/octet-stream', 'application/octet-stream')
    """
    file_type = type_of_file(head)
    if file_type is None or file_type.kind not in (PICTURE, SOUND, VIDEO) or not file_type.suffixes:
        return BINARY_TYPE
    return CONTENT_TYPES.get(file_type.suffixes[0], BINARY_TYPE)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (begin, end) of the header Range of a request for *size* bytes; None if all of them are to be sent.

    The end is exclusive, and at most *size*. None without the header, and for several ranges or another form, so that
    these are ignored. Raises: ValueError if the range has no byte (RFC 9110, 14.1.2).

    >>> byte_range("bytes=2-4", 10), byte_range("bytes=7-", 10), byte_range("bytes=-3", 10), byte_range(None, 10)
    ((2, 5), (7, 10), (7, 10), None)
    """
    match = re.fullmatch(r"bytes=([0-9]{0,18})-([0-9]{0,18})", header or "")
    if match is None or not (match[1] or match[2]):
        return None  # also for several ranges: a server may ignore the header
    if not match[1]:
        begin, end = max(0, size - int(match[2])), size
    else:
        begin, end = int(match[1]), min(size, int(match[2]) + 1) if match[2] else size
    if begin >= end:
        raise ValueError("the range has no byte")
    return begin, end


class Picture(NamedTuple):
    """An encoded picture, *data* of this Content-Type *type*."""

    type: str
    data: bytes


class PictureCache:
    """Thumbnails, waveforms and heat maps: `get` returns one, and makes it unless it is kept. Threads may share it.

    At most 4 are made at a time (MAX_DECODERS); others wait. Up to 64 MiB are kept (CACHE_BYTES), the last ones used.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Picture] = OrderedDict()  # least recently used first
        self._bytes = 0
        self._lock = threading.Lock()
        self._turns = threading.BoundedSemaphore(MAX_DECODERS)

    def get(self, name: tuple[object, ...], make: Callable[[], Picture]) -> Picture:
        """Return the picture *name*, made by `make()` if it is not kept. Raises: the errors of *make*.

        *name*: a tuple by which the picture is found again. Two threads that ask for it at once may both make it.
        """
        with self._lock:
            picture = self._kept.get(name)
            if picture is not None:
                self._kept.move_to_end(name)
                return picture
        with self._turns:
            picture = make()
        with self._lock:
            if name not in self._kept:
                self._kept[name] = picture
                self._bytes += len(picture.data)
                while self._bytes > CACHE_BYTES:
                    self._bytes -= len(self._kept.popitem(last=False)[1].data)
        return picture


def make_thumbnail(member: Member, side: int) -> Picture:
    """Return the picture or video *member* as a JPEG of at most *side* by *side* pixels, turned as EXIF says.

    A video gives its first frame. A smaller picture keeps its size.
    Raises: NoPictureError if it is neither, is broken, would have over 89,478,485 pixels in memory, or is a video
    without PyAV here; TarToolsError if it can't be read.
    """
    with member.open() as file:
        head = file.read(MAGIC_BYTES)
    file_type = type_of_file(head)
    is_video = file_type is not None and file_type.kind == VIDEO
    try:
        return _encoded_picture(video_still(member, side) if is_video else decoding.decode_reduced(member, side, side))
    except (TarToolsError, MemoryError, NoPictureError):
        raise
    except Exception as error:  # each format has its own
        why = printable(str(error))[:MAX_ERROR_CHARS] if is_video else decoding.reason_of_error(error)
        raise NoPictureError(f"a broken {'video' if is_video else 'picture'}: {why}") from None


def _encoded_picture(picture: object) -> Picture:
    """Return *picture*, of Pillow, in RGB or grey, as a JPEG: a `Picture`."""
    data = io.BytesIO()
    picture.save(data, "JPEG", quality=JPEG_QUALITY)  # type: ignore[attr-defined]
    return Picture("image/jpeg", data.getvalue())


def video_still(member: Member, side: int) -> object:
    """Return the first frame of the video *member*, in Pillow's form, of at most *side* by *side* pixels.

    A smaller frame keeps its size. Raises: NoPictureError if there is none, or without PyAV; PyAV's errors for damage;
    TarToolsError if the member can't be read.
    """
    if find_spec("av") is None:
        raise NoPictureError(f"a still of a video needs PyAV: {how_to_install('av')}")
    picture = reduced_frame(member, side, side)
    if picture is None:
        raise NoPictureError("the video has no frame")
    return picture


def waveform_picture(member: Member, side: int) -> Picture:
    """Return the waveform of the sound *member* as a transparent PNG of *side* by *side* / 4 pixels, in grey.

    It is at least 4 pixels high. Each part of the sound is 2 pixels wide, and as high as its peak, relative to the
    loudest part; silence is a thin line. If the sound has fewer frames than parts, the right side stays empty. Raises:
    NoPictureError if it is not WAV, FLAC or Ogg, can't be decoded, or soundfile is not installed; TarToolsError if it
    can't be read.
    """
    from PIL import Image, ImageDraw

    try:
        _, peaks = read_sound(member, side // 2)
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # the library does not document all its exceptions
        raise NoPictureError(f"a broken sound: {printable(str(error))[:MAX_ERROR_CHARS]}") from None
    height = max(side // 4, 4)
    picture = Image.new("RGBA", (side, height))
    draw = ImageDraw.Draw(picture)
    for column, peak in enumerate(peaks):
        half = max(0.5, peak * (height - 2) / 2)
        draw.line([(2 * column, height / 2 - half), (2 * column, height / 2 + half)], fill=(128, 128, 128, 255))
    data = io.BytesIO()
    picture.save(data, "PNG")
    return Picture("image/png", data.getvalue())


def heatmap(member: Member) -> Picture:
    """Return the first plane of the array *member* as a PNG, from its lowest value (black) to its highest (white).

    Values that are not finite are black, and all are if they are equal. Only values that are drawn count. It has up to
    512 by 512 pixels (HEATMAP_SIDE): of a larger plane every nth row and every mth column. The plane has index 0 in all
    dimensions but the last two; if the last three are pixels, [height, width, 1 to 4] with height and width above 4, it
    is their first channel. Raises: NoPictureError if the array is broken or empty, or has fewer than two dimensions,
    other values than booleans and real numbers, or more than 16 MiB (ARRAY_LIMIT); TarToolsError if it can't be read.
    """
    import numpy as np
    from PIL import Image

    try:
        with member.open() as file:
            shape, dtype = array_header(file)
            if len(shape) < 2 or dtype.kind not in "biuf" or member.size > ARRAY_LIMIT or 0 in shape:
                raise NoPictureError("no array of numbers with two dimensions or more, up to 16 MiB")
        with member.open() as file:
            values = np.load(file, allow_pickle=False)
    except (TarToolsError, MemoryError, NoPictureError):
        raise
    except Exception:  # numpy does not document all of them
        raise NoPictureError("a broken array") from None
    while values.ndim > 2:
        is_pixels = values.ndim == 3 and values.shape[2] <= 4 < min(values.shape[:2])
        values = values[..., 0] if is_pixels else values[0]
    values = values[:: -(-values.shape[0] // HEATMAP_SIDE), :: -(-values.shape[1] // HEATMAP_SIDE)].astype(np.float64)
    finite = np.isfinite(values)
    low, high = (values[finite].min(), values[finite].max()) if finite.any() else (0.0, 0.0)
    scaled = np.where(finite, (values - low) / ((high - low) or 1.0) * 255, 0)
    data = io.BytesIO()
    Image.fromarray(scaled.astype(np.uint8)).save(data, "PNG")
    return Picture("image/png", data.getvalue())
