"""Open pictures of the formats that are decoded here, of any size and with any text in them."""

from __future__ import annotations

import struct
from contextlib import suppress
from importlib import import_module
from typing import IO, TYPE_CHECKING

from tartools.samples.filetypes import MAGIC_BYTES
from tartools.samples.pngtext import remove_large_text

if TYPE_CHECKING:
    from PIL.Image import Image

# Formats that Pillow decodes itself, the usual ones first -> its module; for others (EPS) it would run a program
PICTURE_FORMATS = {
    "JPEG": "JpegImagePlugin",
    "PNG": "PngImagePlugin",
    "GIF": "GifImagePlugin",
    "BMP": "BmpImagePlugin",
    "PPM": "PpmImagePlugin",
    "WEBP": "WebPImagePlugin",
    "TIFF": "TiffImagePlugin",
    "JPEG2000": "Jpeg2KImagePlugin",
    "TGA": "TgaImagePlugin",
    "ICO": "IcoImagePlugin",
    "AVIF": "AvifImagePlugin",
}


def open_picture(file: IO[bytes], with_pixels: bool = True) -> Image:
    """Open the picture in *file*, in one of `PICTURE_FORMATS`, from its begin; its pixels are not decoded yet.

    *file* must stay open while the picture is used. It may have any number of pixels, unlike for `PIL.Image.open`,
    whose limit is a global of the user's process: the caller that decodes it has to look at its size. Pillow itself
    refuses only pictures of a few formats, such as ICO, with more than twice this limit. A PNG comes without the texts
    and colour profiles for which Pillow refuses it.

    *with_pixels*: True if they will be decoded: then text after the pixels is checked too.

    Raises: UnidentifiedImageError if it is in none of these formats, in one that this Pillow was built without, or has
    a damaged header; DecompressionBombError for a picture that Pillow refuses so; other errors of Pillow for damage.
    """
    from PIL import Image, UnidentifiedImageError

    file = remove_large_text(file, with_pixels)
    prefix = file.read(MAGIC_BYTES)
    for form, module in PICTURE_FORMATS.items():
        if form not in Image.OPEN:
            import_module(f"PIL.{module}")  # one by one: Image.init() imports all 45 formats in 0.1 s
        if form not in Image.OPEN:
            continue  # Pillow was built without it
        factory, accepts = Image.OPEN[form]
        accepted = not accepts or accepts(prefix)
        if accepted and not isinstance(accepted, str):  # a string is why Pillow does not read it
            file.seek(0)
            with suppress(SyntaxError, IndexError, TypeError, struct.error):  # it is in another format
                return factory(file, "")
    raise UnidentifiedImageError("cannot identify image file")
