"""Which pictures are decoded, up to which size, and how they become arrays, wherever that is done.

A payload is what somebody made: it may be a file of another format than its suffix says, or a small one of very many
pixels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any

from tartools.errors import SampleError

if TYPE_CHECKING:
    from PIL.Image import Image

# formats that Pillow decodes itself, the usual ones first; for others (EPS) it would run a program
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "TGA", "ICO", "AVIF")
MOST = 89_478_485  # pixels of a picture that is decoded, as Pillow advises: 256 MiB of RGB
BAND = 1 << 20  # pixels that are converted at once


class TooLargeError(Exception):
    """A picture that has too many pixels to be decoded; it may be sound."""


def too_large(pixels: int) -> TooLargeError:
    """Return the failure of a picture of so many *pixels*."""
    return TooLargeError(f"its size ({pixels} pixels) exceeds the limit of {MOST} pixels")


def opened(file: IO[bytes]) -> Image:
    """Return the picture in *file*, of one of `FORMATS`, whose pixels are not decoded yet."""
    from PIL import Image

    return Image.open(file, formats=FORMATS)


def picture(data: bytes, mode: str) -> Image:
    """Return the picture *data* in Pillow's *mode*: "L", "RGB" or "RGBA". Holds: the decoded picture, twice.

    Raises: SampleError if it is none of `FORMATS`, or has more than `MOST` pixels; what Pillow raises for damage.
    """
    with _loaded(data) as found:
        return found.convert(mode)


def array(data: bytes, mode: str, *, first: bool = False, floats: bool = False) -> Any:
    """Return the picture *data* in Pillow's *mode* as an array: height, width, and channels unless that is "L".

    If *first*, channels are first. If *floats*, values are from 0 to 1, in 32 bits; else bytes. Holds: the decoded
    picture, and the array. Raises: as `picture`.
    """
    import numpy as np

    with _loaded(data) as found:
        width, height = found.size
        channels = () if mode == "L" else (len(mode),)
        shape = (*channels, height, width) if first else (height, width, *channels)
        made = np.empty(shape, np.float32 if floats else np.uint8)
        rows = np.moveaxis(made, 0, -1) if first and channels else made
        step = max(BAND // width, 1)
        for top in range(0, height, step):
            band = found if step >= height else found.crop((0, top, width, min(top + step, height)))
            values = np.asarray(band.convert(mode))
            if floats:
                np.divide(values, np.float32(255), out=rows[top : top + step], dtype=np.float32)
            else:
                rows[top : top + step] = values
    return made


@contextmanager
def _loaded(data: bytes) -> Iterator[Image]:
    """Give the picture *data*, decoded. Raises: as `picture`."""
    from PIL import Image, UnidentifiedImageError

    try:
        found = opened(io.BytesIO(data))
    except UnidentifiedImageError:
        raise SampleError(
            f"this is not a picture that is decoded here ({', '.join(FORMATS)}); for another format, or for other "
            'data, give a function of your own: decode=[handle_extension("jpg", function)]'
        ) from None
    with found:
        most = Image.MAX_IMAGE_PIXELS
        if most is not None and math.prod(found.size) > most:
            what = f"this picture has {math.prod(found.size):,} pixels, and {most:,} are allowed"
            raise SampleError(f"{what} (PIL.Image.MAX_IMAGE_PIXELS sets that)")
        found.load()
        yield found
