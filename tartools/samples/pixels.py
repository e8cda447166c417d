"""Decode pictures for training: to the mode, type and layout that a decoder names, and turned only if it is asked for.

A JPEG is decoded by simplejpeg, if that is installed, to the same bytes as by Pillow, in a third of the time.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tartools.errors import SampleError
from tartools.samples.decoding import DEEP_GREY_MODES, JPEG_MAGIC
from tartools.samples.orientation import FIRST_SIDEWAYS, orientation_of, turn_array, turn_upright
from tartools.samples.pictureformats import PICTURE_FORMATS, open_picture

if TYPE_CHECKING:
    from PIL.Image import Image

BITS_PER_SAMPLE = 258  # a tag of TIFF
BAND_PIXELS = 1 << 20  # pixels that are converted at once
# colours of a JPEG, and Pillow's mode that is wanted, between which both libraries convert alike
SAME = {
    *(("YCbCr", "RGB"), ("YCbCr", "RGBA"), ("RGB", "RGB"), ("RGB", "RGBA")),
    *(("Gray", "L"), ("Gray", "RGB"), ("Gray", "RGBA")),
}

OnRefusal = Callable[[], object] | None
MinSize = Callable[[int, int], tuple[int, int]] | None


def decode_picture(data: bytes, mode: str, on_refusal: OnRefusal = None, upright: bool = False) -> Image:
    """Return the picture *data* in Pillow's *mode*: "L", "RGB" or "RGBA". Holds: the decoded picture, twice.

    *upright*: it is turned as its metadata say, and has no orientation then; else it is as it is stored (but for TIFF,
    which Pillow always turns).

    A JPEG is decoded by simplejpeg, if that is installed, to the same bytes as by Pillow, in a third of the time; what
    it refuses goes to Pillow, and `on_refusal()` is called, so that the caller can count such pictures.

    Raises: SampleError if it is in none of `PICTURE_FORMATS`, has more than `PIL.Image.MAX_IMAGE_PIXELS` pixels, or
    more than 8 bits of grey; what Pillow raises for damage, and for some pictures with more than twice these pixels.
    """
    from PIL import Image

    with _open_checked(data) as opened:
        require_8_bits(opened)
        decoded = _decode_by_simplejpeg(data, mode, None, on_refusal)
        picture = opened.convert(mode) if decoded is None else Image.fromarray(decoded)
        if decoded is not None:
            picture.info = opened.info.copy()
        if upright:
            turn_upright(picture)
        return picture


def decode_to_array(
    data: bytes,
    mode: str,
    *,
    first: bool = False,
    floats: bool = False,
    min_size: MinSize = None,
    on_refusal: OnRefusal = None,
    upright: bool = False,
) -> Any:
    """Return the picture *data* in Pillow's *mode* as an array: height, width, and channels unless *mode* is "L".

    If *first*, channels are first. If *floats*, values are from 0 to 1, in 32 bits, also those of 16 bits of grey; else
    uint8. With *min_size*, a JPEG may be decoded at a half, a quarter or an eighth; `min_size(height, width)` returns
    the least height and width. `on_refusal()` is called if simplejpeg refuses a JPEG, which Pillow decodes then.
    *upright*: it is turned as its metadata say (a TIFF is always); `min_size` gets and returns sides of the turned
    picture. Holds: the decoded picture, and the array. Raises: SampleError for another format, too many pixels, or more
    than 8 bits of grey, with *floats* more than 16; what Pillow raises for damage or far too many pixels.
    """
    orientation = stored_orientation(data) if upright else 1
    if min_size is not None and orientation >= FIRST_SIDEWAYS:
        min_size = _with_sides_swapped(min_size)
    decoded = _decode_by_simplejpeg(data, mode, min_size, on_refusal)
    if decoded is None:
        with _open_checked(data) as opened:
            opened.load()
            if upright:
                turn_upright(opened)
            if floats and is_16_bit_grey(opened):
                return _to_fractions(opened, mode, first)
            require_8_bits(opened)
            return _arrange_axes(opened, opened.size, mode, first, floats)
    decoded = turn_array(decoded, orientation)
    if not first and not floats:
        return decoded
    return _arrange_axes(decoded, decoded.shape[1::-1], mode, first, floats)


def stored_orientation(data: bytes) -> int:
    """Return the orientation, 1 to 8, of the picture *data*; 1 if it says none that can be read, and for TIFF.

    Raises: SampleError if it is in none of `PICTURE_FORMATS` or has too many pixels; what Pillow raises for damage or
    far too many pixels.
    """
    with _open_checked(data) as opened:
        return orientation_of(opened)


def _with_sides_swapped(min_size: Callable[[int, int], tuple[int, int]]) -> Callable[[int, int], tuple[int, int]]:
    """Return a function like *min_size* that gets and returns the sides of a stored picture that lies on a side."""

    def swapped(height: int, width: int) -> tuple[int, int]:
        """Return the least (height, width) to decode at, as stored; *height*, *width*: of the stored picture."""
        low, wide = min_size(width, height)
        return wide, low

    return swapped


def stored_picture(data: bytes, upright: bool = False) -> Image:
    """Return the picture *data* in the mode in which Pillow opens it: indexes of a palette, all bits of 16-bit grey.

    *upright*: it is turned as its metadata say (a TIFF is always).

    A PNG of 2 or 4 bits of grey has its values, to 3 or to 15, which Pillow spreads over 8 bits.
    Raises: SampleError if it is in none of `PICTURE_FORMATS`, has more than `PIL.Image.MAX_IMAGE_PIXELS` pixels, or is
    a PNG or TIFF with colours, or grey with alpha, of more than 8 bits, of which Pillow keeps 8 (no error in other
    formats); what Pillow raises for damage or far too many pixels.
    """
    with _open_checked(data) as opened:
        bits, colour_type = data[24:26] if opened.format == "PNG" else (8, 0)
        samples = opened.tag_v2.get(BITS_PER_SAMPLE, ()) if hasattr(opened, "tag_v2") else ()
        if (bits == 16 and colour_type != 0) or (len(samples) > 1 and max(samples) > 8):
            raise SampleError(
                "this picture has colours of 16 bits, and Pillow decodes 8 of them: give a function of your own for "
                "'raw', such as one that calls cv2.imdecode(..., cv2.IMREAD_UNCHANGED)"
            )
        opened.load()
        if upright:
            turn_upright(opened)
        if colour_type == 0 and bits in (2, 4):
            step = 255 // ((1 << bits) - 1)
            return opened.point([value // step for value in range(256)])
        return opened.copy()


def is_16_bit_grey(picture: Image) -> bool:
    """True if *picture*, as Pillow opened it, has 16 bits of grey; a PPM, or a PNG before Pillow 11.3, has mode "I"."""
    return picture.mode.startswith("I;16") or (picture.mode == "I" and picture.format in ("PNG", "PPM"))


def has_16_bit_grey(data: bytes) -> bool:
    """True if the picture *data* has 16 bits of grey; False for data that begin as a JPEG, which are not opened.

    Raises: SampleError if it is in none of `PICTURE_FORMATS` or has too many pixels; what Pillow raises for damage or
    far too many pixels.
    """
    if data.startswith(JPEG_MAGIC):
        return False
    with _open_checked(data) as opened:
        return is_16_bit_grey(opened)


def require_8_bits(picture: Image) -> None:
    """Raise SampleError if *picture* has more than 8 bits of grey, which Pillow would clip."""
    if picture.mode in DEEP_GREY_MODES:
        bits, floats = (16, ", and 'l' or 'torchl' gives them from 0 to 1") if is_16_bit_grey(picture) else (32, "")
        raise SampleError(
            f"this picture has {bits} bits a pixel, and this decoder 8: 'raw' or 'torchraw' gives its values{floats}"
        )


def _to_fractions(picture: Image, mode: str, first: bool) -> Any:
    """Return *picture*, of 16 bits of grey, as float32 array from 0 to 1 in *mode*; with *first*, channels first.

    *mode*: "L" (height by width), "RGB" (three equal channels) or "RGBA" (these and an alpha of 1).
    """
    import numpy as np

    plane = np.asarray(picture).astype(np.float32) / np.float32(65535)
    if mode == "L":
        return plane
    planes = [plane] * 3 + [np.ones_like(plane)] * (mode == "RGBA")
    return np.stack(planes, 0 if first else -1)


def _arrange_axes(image: Any, size: tuple[int, int], mode: str, first: bool, floats: bool) -> Any:
    """Return *image* (Pillow's, or an array) of *size* (width, height) as a new array: height, width, channels.

    *mode*: "L", without channels, "RGB" or "RGBA"; Pillow's image is converted to it, an array has it already. With
    *first*, channels are first. *floats*: float32 from 0 to 1; else uint8.
    """
    import numpy as np

    width, height = size
    channels = () if mode == "L" else (len(mode),)
    shape = (*channels, height, width) if first else (height, width, *channels)
    result = np.empty(shape, np.float32 if floats else np.uint8)
    rows = np.moveaxis(result, 0, -1) if first and channels else result
    # in bands, so that no second copy of a large picture is held while it is converted
    step = max(BAND_PIXELS // width, 1)
    for top in range(0, height, step):
        if isinstance(image, np.ndarray):
            values = image[top : top + step]
        else:
            band = image if step >= height else image.crop((0, top, width, min(top + step, height)))
            values = np.asarray(band.convert(mode))
        if floats:
            np.divide(values, np.float32(255), out=rows[top : top + step], dtype=np.float32)
        else:
            rows[top : top + step] = values
    return result


def _decode_by_simplejpeg(data: bytes, mode: str, min_size: MinSize, on_refusal: OnRefusal) -> Any:
    """Return the JPEG *data* in *mode* as uint8, height by width (by channels); None if Pillow has to decode it.

    It has to if *data* are no JPEG, if simplejpeg refuses them or is not installed, or if its pixels would differ: grey
    made of colours, CMYK. `min_size(height, width)`: the least size to decode at; None: full. `on_refusal()`: called if
    simplejpeg refuses it. Raises: SampleError for too many pixels.
    """
    if not data.startswith(JPEG_MAGIC):
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
        if min_size is not None:
            low, wide = min_size(height, width)
            scale = {"min_height": low, "min_width": wide, "min_factor": 2}
        pixels = simplejpeg.decode_jpeg(data, "GRAY" if mode == "L" else mode, **scale)
        return pixels[..., 0] if mode == "L" else pixels
    except ValueError:
        if on_refusal is not None:
            on_refusal()
        return None


def _check_size(pixels: int) -> None:
    """Raise SampleError if *pixels*, a number, is above PIL.Image.MAX_IMAGE_PIXELS (None: no limit)."""
    from PIL import Image

    max_pixels = Image.MAX_IMAGE_PIXELS
    if max_pixels is not None and pixels > max_pixels:
        message = f"this picture has {pixels:,} pixels, and {max_pixels:,} are allowed"
        raise SampleError(f"{message} (PIL.Image.MAX_IMAGE_PIXELS sets that)")


@contextmanager
def _open_checked(data: bytes) -> Iterator[Image]:
    """Open the picture *data*, whose pixels are not decoded yet, for the body of `with`; close it at the end.

    Raises: SampleError for another format or more than `PIL.Image.MAX_IMAGE_PIXELS` pixels; what Pillow raises for
    damage, and for some pictures with more than twice these pixels.
    """
    from PIL import UnidentifiedImageError

    try:
        opened = open_picture(io.BytesIO(data))
    except UnidentifiedImageError:
        raise SampleError(
            f"this is not a picture that is decoded here ({', '.join(PICTURE_FORMATS)}); for another format, "
            'or for other data, give a function of your own: decode=[handle_extension("jpg", function)]'
        ) from None
    with opened:
        _check_size(math.prod(opened.size))
        yield opened
