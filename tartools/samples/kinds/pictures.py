"""Pictures: described by their header, decoded by Pillow.

Faults that readers refuse; columns of size, format and mode.
"""

from __future__ import annotations

from collections.abc import Iterator

from tartools.samples.filetypes import PICTURE, PICTURES, is_picture
from tartools.samples.kinds.kind import BROKEN, Description, Finding, PayloadKind
from tartools.tar import Member

STORED_PICTURE_FACTS = 5  # of the facts below, that come first; the others are the sides as EXIF turns the picture
PICTURE_FACTS = (
    ("width", "int64"),
    ("height", "int64"),
    ("format", "string"),
    ("mode", "string"),
    ("broken", "string"),
    ("upright_width", "int64"),
    ("upright_height", "int64"),
)


def describe_picture(member: Member, _head: bytes, decode: bool) -> Description:
    """Return format, size and mode of the picture *member* in words, or why it is broken.

    "JPEG 640x480 RGB", of the kind PICTURE; "a broken picture: it is empty", of the kind `BROKEN`. With *decode*, all
    of it is decoded to find out, unless it would have more than 89,478,485 pixels in memory; else only its header is
    read. The kind is "" for a WebP or ICO with more pixels than Pillow opens (178,956,970). Raises: TarToolsError if
    the payload can't be read.
    """
    from tartools.samples import decoding

    header, why, _ = decoding.picture_state(member, decode)
    if header is None and why is None:
        return Description("a picture with too many pixels to be decoded")
    if header is None or why is not None:
        return Description(f"a broken picture: {why}", kind=BROKEN)
    return Description(f"{header.form} {header.width}x{header.height} {header.mode}", kind=PICTURE)


def measure_picture(member: Member, decode: bool) -> tuple[object, ...]:
    """Return the values of `PICTURE_FACTS` of the picture *member*; its pixels are decoded only with *decode*.

    They are not if they would be more than 89,478,485 in memory. A JPEG is decoded by simplejpeg, if that is installed:
    "broken" has its reason to refuse one, even if Pillow accepts it.
    All but "broken" are None if its header can't be read; "broken" too, for a WebP or ICO with more pixels than Pillow
    opens. Raises: TarToolsError if the payload can't be read.
    """
    from tartools.samples import decoding

    header, broken, _ = decoding.picture_state(member, decode, strict=True, with_orientation=True)
    if header is None:
        return None, None, None, None, broken, None, None
    from tartools.samples.orientation import upright_size

    form, width, height, mode, orientation = header
    return width, height, form, mode, broken, *upright_size(width, height, orientation)


def check_picture(member: Member) -> Iterator[Finding]:
    """Yield findings, (code, reason), about the picture *member*, which is decoded: damage, too many pixels, text.

    Codes: "broken-picture" or "damaged-picture" (only simplejpeg refuses it), then nothing else; "" first if it is too
    large to be decoded; "large-picture" above 89,478,485 pixels, "huge-picture" above twice as many, with its size as
    the reason ("" for a WebP or ICO, whose header is not read then); "large-png-text" for texts or a colour profile
    that Pillow refuses. Raises: TarToolsError if the payload can't be read.
    """
    from tartools.samples import decoding
    from tartools.samples.pngtext import find_large_text

    header, broken, decoded = decoding.picture_state(member, decode=True, strict=True)
    if broken is not None:
        yield "damaged-picture" if broken.startswith(decoding.STRICT_REFUSAL) else PICTURE_KIND.code, broken
        return
    if not decoded:
        yield "", ""
    pixels = header.width * header.height if header else decoding.MAX_PILLOW_PIXELS + 1
    if pixels > decoding.MAX_PILLOW_PIXELS:
        yield "huge-picture", f"{header.width}x{header.height}" if header else ""
    elif header and pixels > decoding.MAX_PIXELS:
        yield "large-picture", f"{header.width}x{header.height}"
    with member.open() as file:
        large = find_large_text(file)
    if large is not None:
        yield "large-png-text", large.description


PICTURE_KIND = PayloadKind(
    name=PICTURE,
    code="broken-picture",
    recognize=is_picture,
    describe=describe_picture,
    checks=dict.fromkeys(PICTURES, check_picture),
    is_media=True,
    facts=PICTURE_FACTS,
    measure=measure_picture,
)
