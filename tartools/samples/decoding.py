"""Decode pictures: any format and mode to RGB, rotated as EXIF says, and no larger than they are shown.

Also read just the header of a picture, find out whether one is broken, and say in words why it is. A picture is broken
if Pillow can't decode all of it; of an animation, its first frame. Whatever shows or counts pictures asks here;
training asks `pixels`.

A payload is what somebody made: it may be a file of another format than its suffix says, or a small one of very many
pixels.
"""

import math
import re
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, cast

from tartools.errors import TarToolsError, how_to_install, printable
from tartools.samples.filetypes import BY_SUFFIX, suffix_of
from tartools.samples.payloads import MAX_ERROR_CHARS
from tartools.tar import Member

if TYPE_CHECKING:
    from PIL.Image import Image

JPEG_MAGIC = b"\xff\xd8\xff"
DEEP_GREY_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of more than 8 bits, all grey
NO_AVERAGE = ("1", "P", "PA", *DEEP_GREY_MODES)  # modes whose values cannot be averaged to resize a picture
BACKGROUND_GREY = (128, 128, 128)  # background of transparent pictures: black and white are visible on it
STRICT_REFUSAL = "strict decoders refuse it: "
MAX_PIXELS = 89_478_485  # of a picture that is decoded: 256 MiB of RGB; above it Pillow warns by default
MAX_PILLOW_PIXELS = 2 * MAX_PIXELS  # of a picture that Pillow opens by default
JPEGS = frozenset(BY_SUFFIX["jpg"].suffixes)
PILLOW_MESSAGES = {  # beginnings of Pillow's messages -> what they mean
    "image file is truncated": "truncated: the data end before the picture is complete",
    "Truncated File Read": "truncated: the data end before the picture is complete",
    "broken data stream": "its data are damaged",
    "unrecognized data stream": "its data are damaged",
}


class PictureHeader(NamedTuple):
    """The header of a picture: *form* ("JPEG"), stored size in pixels, *mode* in Pillow, and *orientation* (1 to 8)."""

    form: str
    width: int
    height: int
    mode: str
    orientation: int = 1


class PictureState(NamedTuple):
    """The state of a picture: `header`, None if it can't be read; `broken`: why it is broken, None if it is not.

    Both are None for a WebP or ICO with more pixels than Pillow opens (178,956,970).
    `decoded`: True if its pixels were decoded, too, or the attempt failed; else only the header was read.
    """

    header: PictureHeader | None
    broken: str | None
    decoded: bool


def picture_header(member: Member) -> PictureHeader:
    """Return the header of the picture *member* without decoding it; its orientation is not read, and is 1.

    Raises: any exception that Pillow raises for a header that is damaged or of no known format; TarToolsError if the
    payload can't be read.
    """
    with _open_member(member, pixels=False) as opened:
        return header_of(opened)


def picture_state(
    member: Member, decode: bool = False, strict: bool = False, with_orientation: bool = False
) -> PictureState:
    """Return the state of the picture *member*. Its orientation is read only *with_orientation*, and is 1 without.

    With *decode*, all of it is decoded, of an animation the first frame, unless it would have more than 89,478,485
    pixels in memory. If also *strict*, a JPEG is decoded by simplejpeg, if that is installed, and by Pillow only if
    simplejpeg refuses it: if Pillow accepts it then, it is broken for a reason that begins with `STRICT_REFUSAL`.

    Holds: the decoded picture, and if *strict* its payload; an eighth of width and height of a JPEG, unless it is
    progressive. Raises: TarToolsError if the payload can't be read.
    """
    from PIL.Image import DecompressionBombError

    header, fits = None, False
    try:
        with _open_member(member, pixels=decode) as opened:
            header = header_of(opened, with_orientation)
            fits = decode and set_decoding_size(opened, 1)
            if fits:
                refused = refusal_of_jpeg(member.read()) if strict and opened.format == "JPEG" else None
                if refused != "":
                    opened.load()
                if refused:
                    return PictureState(header, printable(STRICT_REFUSAL + refused)[:MAX_ERROR_CHARS], True)
    except (TarToolsError, MemoryError):
        raise
    except DecompressionBombError:  # WebP's own guard
        return PictureState(header, None, False)
    except Exception as error:  # each format has its own
        return PictureState(header, reason_of_error(error) if member.size else "it is empty", fits)
    return PictureState(header, None, fits)


def simplejpeg_hint(fields: Iterable[str]) -> str | None:
    """Return advice to install simplejpeg if it is not installed, and one of *fields* holds JPEGs; None otherwise."""
    from importlib.util import find_spec

    if not JPEGS.isdisjoint(map(suffix_of, fields)) and not find_spec("simplejpeg"):
        install = how_to_install("simplejpeg")
        return f"simplejpeg finds more damage inside JPEGs than Pillow does, and is not installed: {install}"
    return None


def picture_facts(
    member: Member, decode: bool = False
) -> tuple[int | None, int | None, str | None, str | None, str | None]:
    """Return (width, height, format, mode, fault) of the picture *member*; fault is why it is broken, or None.

    The first four are None if the header can't be read; all five, for a WebP or ICO with more pixels than Pillow opens.
    With *decode*, all of it is decoded, unless it would have more than 89,478,485 pixels in memory; a JPEG by
    simplejpeg, if that is installed, as `picture_state` does if strict.
    Raises: TarToolsError if the payload can't be read.
    """
    header, broken, _ = picture_state(member, decode, strict=True)
    if header is None:
        return None, None, None, None, broken
    return header.width, header.height, header.form, header.mode, broken


class Likeness(NamedTuple):
    """The look of a picture, to find copies: difference *hash* (64 bits), mean *colours* (48 bytes), size in pixels."""

    hash: int
    colours: bytes
    width: int
    height: int


def likeness_or_none(member: Member) -> Likeness | None:
    """Return the `Likeness` of the picture *member*; None if it is broken or has too many pixels.

    Raises: TarToolsError if the payload can't be read.
    """
    try:
        return likeness(member)
    except (TarToolsError, MemoryError):
        raise
    except Exception:  # each format has its own
        return None


def likeness(member: Member) -> Likeness:
    """Return the `Likeness` of the picture *member*, as it is stored: it is not rotated as EXIF says.

    Pillow converts the picture to grey ("L") and resizes it to 9 by 8 pixels (Lanczos). Row by row, from the top left,
    a bit of the hash is 1 if a pixel is darker than its right neighbour; the first bit is the highest. `colours` are
    the means of red, green and blue in 4 by 4 parts of the picture, row by row; transparent parts are grey then, and
    values of more than 8 bits are scaled. Of an animation it is the first frame.

    Holds: the decoded picture, three times. Raises: Pillow's errors for damage; TooLargeError above 89,478,485 pixels;
    TarToolsError if the payload can't be read.
    """
    from PIL import Image

    with _open_member(member) as opened:
        size = opened.size
        pixels = math.prod(size)
        if pixels > MAX_PIXELS:
            raise too_large_error(pixels)
        grey = opened.convert("L").resize((9, 8), Image.Resampling.LANCZOS).tobytes()
        means = blend_on_grey(convert_colours(opened)).resize((4, 4), Image.Resampling.BOX).tobytes()
    bits = (grey[9 * row + x] < grey[9 * row + x + 1] for row in range(8) for x in range(8))
    return Likeness(sum(bit << 63 - number for number, bit in enumerate(bits)), means, *size)


def decode_reduced(member: Member, width: int, height: int) -> "Image":
    """Return the picture *member* as RGB, reduced to at most *width* by *height* pixels; its proportions stay.

    A smaller picture keeps its size. It is rotated as EXIF says. Transparent parts get a grey background, values of
    more than 8 bits are scaled from the lowest to the highest, and of an animation the first frame is returned.

    Holds: the decoded picture, twice; for JPEG, unless it is progressive, some four times what is returned.
    Raises: Pillow's errors for damage; TooLargeError if it would have more than 89,478,485 pixels in memory;
    TarToolsError if the payload can't be read.
    """
    from PIL import Image

    from tartools.samples.orientation import turn_upright

    with _open_member(member) as opened:
        pixels = math.prod(opened.size)
        if not set_decoding_size(opened, max(width, height)):
            raise too_large_error(pixels)
        opened.load()
        turn_upright(opened)
        picture = convert_colours(opened) if opened.mode in NO_AVERAGE or "transparency" in opened.info else opened
        picture.thumbnail((width, height), Image.Resampling.BICUBIC)
        picture = convert_colours(picture)  # the rest of the conversion, now of few pixels
    return blend_on_grey(picture)


def blend_on_grey(picture: "Image") -> "Image":
    """Return *picture*, RGB, grey or RGBA, as RGB, with grey in place of transparent parts."""
    from PIL import Image

    if picture.mode != "RGBA":
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    ground = Image.new("RGB", picture.size, BACKGROUND_GREY)
    ground.paste(picture, mask=picture.getchannel("A"))
    return ground


@contextmanager
def _open_member(member: Member, pixels: bool = True) -> "Iterator[Image]":
    """Open the picture *member* by Pillow for the body of `with`, undecoded; without *pixels*, for its header only.

    In the body, no warnings are shown. The picture and its file are closed at the end. Raises: UnidentifiedImageError
    if it is in none of `PICTURE_FORMATS`; what Pillow raises for damage.
    """
    from tartools.samples.pictureformats import open_picture

    with member.open() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata
        with open_picture(file, pixels) as picture:
            yield picture


def header_of(picture: "Image", with_orientation: bool = False) -> PictureHeader:
    """Return the header of the open *picture*. Its orientation is read only *with_orientation*, and is 1 without."""
    if not with_orientation:
        return PictureHeader(str(picture.format), picture.width, picture.height, picture.mode)
    from tartools.samples.orientation import orientation_of

    orientation = orientation_of(picture)
    return PictureHeader(str(picture.format), picture.width, picture.height, picture.mode, orientation)


def set_decoding_size(picture: "Image", side: int) -> bool:
    """Prepare the open *picture* to be decoded at *side* by *side* pixels or more; return False if it has too many.

    A JPEG will be decoded at a half, a quarter or an eighth of its size, if that is enough; all others, and smaller
    ones, at their own. Too many are more than `MAX_PIXELS` in memory; a progressive JPEG takes memory for all its
    pixels. True if it has not too many.
    """
    pixels = math.prod(picture.size)
    picture.draft(None, (side, side))
    return (pixels if "progressive" in picture.info else math.prod(picture.size)) <= MAX_PIXELS


def convert_colours(picture: "Image") -> "Image":
    """Return *picture* as RGB, or as RGBA if parts may be transparent; of 1 bit, or over 8 bits of grey, as grey ("L").

    Over 8 bits are scaled from the lowest value to the highest; if these are equal or not finite, they are cut to 0 to
    255.
    """
    if picture.mode in DEEP_GREY_MODES:
        picture = picture.convert("F")
        picture.info.pop("transparency", None)  # a value that scaling would change
        low, high = cast("tuple[float, float]", picture.getextrema())
        if math.isfinite(low) and math.isfinite(high) and high > low:
            scale = 255 / (high - low)
            picture = picture.point(lambda value: value * scale - low * scale)
        return picture.convert("L")
    if picture.mode == "1":
        return picture.convert("L")
    return picture.convert("RGBA" if picture.has_transparency_data else "RGB")


def reason_of_error(error: Exception) -> str:
    """Return why Pillow raised *error* for a bad picture, on one line of at most 100 characters.

    It is the message of *error*, or plainer words for a file of no known format, truncated or damaged data; its class
    if it has no message.
    """
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return "its first bytes do not match any picture format"
    text = re.sub(r" <.*>$", "", str(error)) or type(error).__name__
    return printable(next((plain for start, plain in PILLOW_MESSAGES.items() if text.startswith(start)), text))[
        :MAX_ERROR_CHARS
    ]


class TooLargeError(Exception):
    """A picture that has too many pixels to be decoded; it may be sound."""


def too_large_error(pixels: int) -> TooLargeError:
    """Return the error for a picture of *pixels* pixels, more than are decoded."""
    return TooLargeError(f"its size ({pixels} pixels) exceeds the limit of {MAX_PIXELS} pixels")


def refusal_of_jpeg(data: bytes) -> str | None:
    """Return why simplejpeg refuses the JPEG *data*, "" if it decodes all of it; None if it is not installed.

    None also if it can't be loaded. It refuses damaged pictures, of which Pillow fills in the missing parts, and a few
    unusual ones that are sound.
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
