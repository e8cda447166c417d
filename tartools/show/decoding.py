"""A picture as pixels to look at: any format and mode as RGB, the right way up, and no larger than it is shown.

Or just what its header says; and what is wrong with it, in words.
"""

from __future__ import annotations

import math
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from tartools.errors import printable
from tartools.tar import Member

if TYPE_CHECKING:
    from PIL.Image import Image

# what Pillow decodes by itself, the usual first; for others (EPS) it would run a program
FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM", "WEBP", "TIFF", "JPEG2000", "TGA", "ICO", "AVIF")
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of more than 8 bits, all of them grey
NO_AVERAGE = ("1", "P", "PA", *DEEP)  # modes whose values, or those between them, are not what is seen
GREY = (128, 128, 128)  # behind what is transparent: both black and white are seen on it
MESSAGE = 100  # characters of what is wrong


class Heading(NamedTuple):
    """What the header of a picture says: its *form* ("JPEG"), its size in pixels, its *mode* as Pillow has it."""

    form: str
    width: int
    height: int
    mode: str


def heading(member: Member, *, any_size: bool = False) -> Heading:
    """Return what the header of the picture *member* says. Nothing is decoded. Raises: as `decoded`.

    *any_size* takes away Pillow's limit, for a process in which nothing is decoded at all.
    """
    from PIL import Image

    if any_size:
        Image.MAX_IMAGE_PIXELS = None
    with member.open() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large ones, which are no danger as long as nobody decodes them
        with Image.open(file, formats=FORMATS) as opened:
            return Heading(str(opened.format), opened.width, opened.height, opened.mode)


def decoded(member: Member, width: int, height: int) -> Image:
    """Return the picture *member* as RGB, made smaller where it is larger than *width* by *height* pixels.

    It is turned as EXIF says. Transparent parts are over grey, more than 8 bits are shown from the lowest value to
    the highest, and what moves is shown by its first frame.

    Holds: the picture as it is decoded, twice; of JPEG, unless it is progressive, some four times what is returned.
    Raises: what Pillow raises, which can be any exception, for a damaged picture, one that is cut, and one of more
    than Pillow's `MAX_IMAGE_PIXELS`.
    """
    from PIL import Image

    with member.open() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata
        with Image.open(file, formats=FORMATS) as opened:
            most = Image.MAX_IMAGE_PIXELS  # of which Pillow only warns, and filters of warnings hold for all threads
            if most and opened.width * opened.height > most:
                raise Image.DecompressionBombError(
                    f"its size ({opened.width * opened.height} pixels) exceeds the limit of {most} pixels"
                )
            side = max(width, height)
            opened.draft(None, (side, side))  # JPEG can be decoded at a half, a quarter, an eighth
            opened.load()
            turn(opened)
            picture = in_colour(opened) if opened.mode in NO_AVERAGE or "transparency" in opened.info else opened
            picture.thumbnail((width, height), Image.Resampling.LANCZOS)
            picture = in_colour(picture)  # what is left to do, of few pixels
    if picture.mode == "RGB":
        return picture
    ground = Image.new("RGB", picture.size, GREY)
    ground.paste(picture, mask=picture.getchannel("A"))
    return ground


def turn(picture: Image) -> None:
    """Turn *picture* as its EXIF data say, if they can be read."""
    from PIL import ImageOps

    with suppress(Exception):  # metadata of all kinds of cameras; the pixels are sound
        ImageOps.exif_transpose(picture, in_place=True)


def in_colour(picture: Image) -> Image:
    """Return *picture* as RGB, or as RGBA if some of it may be transparent; black and white as grey."""
    if picture.mode in DEEP:
        picture = picture.convert("F")
        picture.info.pop("transparency", None)  # a value that is then another
        low, high = cast("tuple[float, float]", picture.getextrema())
        if math.isfinite(low) and math.isfinite(high) and high > low:
            scale = 255 / (high - low)
            picture = picture.point(lambda value: value * scale - low * scale)
        return picture.convert("L")
    if picture.mode == "1":
        return picture.convert("L")
    return picture.convert("RGBA" if picture.has_transparency_data else "RGB")


def reason(error: Exception) -> str:
    """Return what Pillow says is wrong with a picture, on one line, without the name of our file object."""
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "its first bytes are those of no picture"
    return printable(re.sub(r" <.*>$", "", str(error)) or type(error).__name__)[:MESSAGE]
