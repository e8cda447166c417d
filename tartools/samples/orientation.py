"""The orientation of a picture: how EXIF or XMP say that its stored pixels are to be turned to be upright.

Cameras store what the sensor saw, and a number from 1 to 8 (tag 0x0112): 1 is upright, 3 upside down, 6 and 8 lie on a
side; even numbers below 5, and 5 and 7, are mirrored. From 5 on, width and height change places.

Source: CIPA DC-008 (Exif 2.32), 4.6.4, Orientation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tartools.samples.pngtext import find_late_exif

if TYPE_CHECKING:
    from PIL.Image import Image

ORIENTATION_TAG = 0x0112
MAX_ORIENTATION, FIRST_SIDEWAYS = 8, 5  # from 5 on, width and height change places


def orientation_of(picture: Image) -> int:
    """Return the orientation, 1 to 8, of the open *picture*, whose pixels need not be decoded; 1 if it has none.

    1 also for metadata that can't be read, and for TIFF, which Pillow turns itself when it decodes it.
    """
    from PIL import Image as Images

    if picture.format == "TIFF":
        return 1
    try:
        orientation = Images.Image.getexif(picture).get(ORIENTATION_TAG)  # PNG's own one would decode the pixels
        if orientation is None and picture.format == "PNG":
            exif = Images.Exif()
            exif.load(find_late_exif(picture.fp) or b"")  # type: ignore[attr-defined]
            orientation = exif.get(ORIENTATION_TAG)
    except MemoryError:
        raise
    except Exception:  # cameras write all kinds of metadata; the pixels are fine
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= MAX_ORIENTATION else 1


def upright_size(width: int, height: int, orientation: int) -> tuple[int, int]:
    """Return (width, height) of a picture of stored *width* and *height* once it is turned.

    >>> upright_size(4000, 3000, 6), upright_size(4000, 3000, 3)
    ((3000, 4000), (4000, 3000))
    """
    return (height, width) if orientation >= FIRST_SIDEWAYS else (width, height)


def turn_upright(picture: Image) -> None:
    """Turn *picture*, in place, as its metadata say; it is upright by them, too, then.

    If they can't be read, it stays as it is. Raises no error but MemoryError, even if the pixels can't be decoded.
    """
    from PIL import ImageOps

    try:
        ImageOps.exif_transpose(picture, in_place=True)
    except MemoryError:
        raise
    except Exception:  # noqa: S110  # cameras write all kinds of metadata; the pixels are fine
        pass


def turn_array(pixels: Any, orientation: int) -> Any:
    """Return *pixels*, shaped (height, width) or (height, width, channels), turned upright, as a contiguous array.

    *orientation*: from 1 to 8, as stored; for 1 the array *pixels* itself is returned.
    """
    import numpy as np

    if orientation == 1:
        return pixels
    if orientation >= FIRST_SIDEWAYS:
        pixels = pixels.swapaxes(0, 1)
    axes = {2: (1,), 3: (0, 1), 4: (0,), 5: (), 6: (1,), 7: (0, 1), 8: (0,)}[orientation]
    return np.ascontiguousarray(np.flip(pixels, axes))
