"""Which pictures are decoded, up to which size, and how they become arrays, wherever that is done.

A payload is what somebody made: it may be a file of another format than its suffix says, or a small one of very many
pixels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from tartools.errors import SampleError

if TYPE_CHECKING:
    from PIL.Image import Image

# formats that Pillow decodes itself, the usual ones first; for others (EPS) it would run a program
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "TGA", "ICO", "AVIF")
MOST = 89_478_485  # pixels of a picture that is decoded, as Pillow advises: 256 MiB of RGB
BAND = 1 << 20  # pixels that are converted at once
# colours of a JPEG, and Pillow's mode that is wanted, between which both libraries convert alike
SAME = {
    *(("YCbCr", "RGB"), ("YCbCr", "RGBA"), ("RGB", "RGB"), ("RGB", "RGBA")),
    *(("Gray", "L"), ("Gray", "RGB"), ("Gray", "RGBA")),
}

Refused = Callable[[], object] | None


class TooLargeError(Exception):
    """A picture that has too many pixels to be decoded; it may be sound."""


def too_large(pixels: int) -> TooLargeError:
    """Return the failure of a picture of so many *pixels*."""
    return TooLargeError(f"its size ({pixels} pixels) exceeds the limit of {MOST} pixels")


def opened(file: IO[bytes]) -> Image:
    """Return the picture in *file*, of one of `FORMATS`, whose pixels are not decoded yet."""
    from PIL import Image

    return Image.open(file, formats=FORMATS)


def refusal(data: bytes) -> str | None:
    """Return why simplejpeg refuses the JPEG *data*, "" if it decodes all of it; None if it is not installed.

    It refuses what is damaged, where Pillow fills in what it can't decode, and a few odd pictures that are sound.
    Holds: the decoded picture, an eighth of width and height.
    """
    try:
        import simplejpeg

        kind = simplejpeg.decode_jpeg_header(data)[2]
        simplejpeg.decode_jpeg(data, "CMYK" if kind in ("CMYK", "YCCK") else "GRAY", min_height=1, min_width=1)
    except ImportError:
        return None
    except ValueError as error:
        return str(error)
    return ""


def picture(data: bytes, mode: str, refused: Refused = None) -> Image:
    """Return the picture *data* in Pillow's *mode*: "L", "RGB" or "RGBA". Holds: the decoded picture, twice.

    A JPEG is decoded by simplejpeg, if that is installed, to the same bytes as by Pillow, in a third of the time; what
    it refuses goes to Pillow, and *refused* is called.

    Raises: SampleError if it is none of `FORMATS`, or has more than `MOST` pixels; what Pillow raises for damage.
    """
    from PIL import Image

    with _checked(data) as found:
        decoded = _by_simplejpeg(data, mode, None, refused)
        if decoded is None:
            return found.convert(mode)
        made = Image.fromarray(decoded)
        made.info = found.info.copy()
        return made


def array(
    data: bytes,
    mode: str,
    *,
    first: bool = False,
    floats: bool = False,
    least: Callable[[int, int], tuple[int, int]] | None = None,
    refused: Refused = None,
) -> Any:
    """Return the picture *data* in Pillow's *mode* as an array: height, width, and channels unless that is "L".

    If *first*, channels are first. If *floats*, values are from 0 to 1, in 32 bits; else bytes. With *least*, a JPEG
    may be decoded at a half, a quarter or an eighth, to at least the height and width that this says of those it has.
    Holds: the decoded picture, and the array. Raises: as `picture`, whose *refused* this takes.
    """
    decoded = _by_simplejpeg(data, mode, least, refused)
    if decoded is None:
        with _checked(data) as found:
            found.load()
            return _arranged(found, found.size, mode, first, floats)
    if not first and not floats:
        return decoded
    return _arranged(decoded, decoded.shape[1::-1], mode, first, floats)


def _arranged(found: Any, size: tuple[int, int], mode: str, first: bool, floats: bool) -> Any:
    """Return what was *found*, a picture of Pillow of this *size*, or an array, as `array` does."""
    import numpy as np

    width, height = size
    channels = () if mode == "L" else (len(mode),)
    shape = (*channels, height, width) if first else (height, width, *channels)
    made = np.empty(shape, np.float32 if floats else np.uint8)
    rows = np.moveaxis(made, 0, -1) if first and channels else made
    step = max(BAND // width, 1)
    for top in range(0, height, step):
        if isinstance(found, np.ndarray):
            values = found[top : top + step]
        else:
            band = found if step >= height else found.crop((0, top, width, min(top + step, height)))
            values = np.asarray(band.convert(mode))
        if floats:
            np.divide(values, np.float32(255), out=rows[top : top + step], dtype=np.float32)
        else:
            rows[top : top + step] = values
    return made


def _by_simplejpeg(
    data: bytes, mode: str, least: Callable[[int, int], tuple[int, int]] | None, refused: Refused
) -> Any:
    """Return the JPEG *data* as an array; None if it is none, or if Pillow has to decode it.

    Pillow's grey of colours, and its colours of CMYK, are others than those of libjpeg. Raises: as `_checked`.
    """
    if not data.startswith(b"\xff\xd8\xff"):
        return None
    try:
        import simplejpeg
    except ImportError:
        return None
    try:
        height, width, kind, _ = simplejpeg.decode_jpeg_header(data)
        if (kind, mode) not in SAME:
            return None
        _check_size(height * width)
        scale: dict[str, int] = {}
        if least is not None:
            low, wide = least(height, width)
            scale = {"min_height": low, "min_width": wide, "min_factor": 2}
        made = simplejpeg.decode_jpeg(data, "GRAY" if mode == "L" else mode, **scale)
        return made[..., 0] if mode == "L" else made
    except ValueError:
        if refused is not None:
            refused()
        return None


def _check_size(pixels: int) -> None:
    """Raise SampleError if a picture of so many *pixels* is not to be decoded."""
    from PIL import Image

    most = Image.MAX_IMAGE_PIXELS
    if most is not None and pixels > most:
        what = f"this picture has {pixels:,} pixels, and {most:,} are allowed"
        raise SampleError(f"{what} (PIL.Image.MAX_IMAGE_PIXELS sets that)")


@contextmanager
def _checked(data: bytes) -> Iterator[Image]:
    """Give the picture *data*, opened, but not decoded. Raises: as `picture`."""
    from PIL import UnidentifiedImageError

    try:
        found = opened(io.BytesIO(data))
    except UnidentifiedImageError:
        raise SampleError(
            f"this is not a picture that is decoded here ({', '.join(FORMATS)}); for another format, or for other "
            'data, give a function of your own: decode=[handle_extension("jpg", function)]'
        ) from None
    with found:
        _check_size(math.prod(found.size))
        yield found
