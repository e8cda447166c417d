"""The size of a picture, from its header. Nothing is decoded."""

from __future__ import annotations

import re
import warnings

from tartools.errors import TarToolsError, printable
from tartools.show.decoding import FORMATS
from tartools.tar import Member

WIDTH = 100  # characters of what is wrong


def measured(member: Member) -> tuple[str, int, int, str]:
    """Return format, width and height of the picture *member*; if it can't be read, why, as the last of four.

    Raises: StorageError if the file that it is in has become shorter.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings(), member.open() as file:
            warnings.simplefilter("ignore")  # of large ones, which are no danger as long as nobody decodes them
            with Image.open(file, formats=FORMATS) as opened:
                return str(opened.format), opened.width, opened.height, ""
    except TarToolsError:
        raise
    except UnidentifiedImageError:
        return "", 0, 0, "it is empty" if not member.size else "its first bytes are those of no picture"
    except Exception as error:  # each format has its own
        why = re.sub(r" <.*>$", "", str(error))  # Pillow names our file object, which tells nobody anything
        return "", 0, 0, printable(why)[:WIDTH] or "it ends too early"
