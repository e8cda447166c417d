"""From Python values to payloads."""

from __future__ import annotations

import io
from typing import Any

NUMBERS = frozenset(("cls", "cls2", "id", "index", "inx"))  # as webdataset and Hugging Face's datasets decode them


def encode(field: str, value: object) -> bytes:
    """Return *value* as the payload of *field*.

    The last part of *field* decides first: json takes any JSON value. Otherwise bytes are stored unchanged, text as
    UTF-8, numbers as decimal digits, and PIL images in the format that the last part of *field* names (jpg, png, ...).

    Raises: TypeError, naming the field, for any other value, and for NaN in JSON; UnicodeEncodeError for a lone
    surrogate.
    """
    kind = field.rpartition(".")[2].lower()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if kind == "json":
        import json

        try:
            return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            raise
        except (TypeError, ValueError) as error:  # ValueError: NaN, infinity, or a value that holds itself
            raise TypeError(f"field {field!r}: {error}") from None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (int, float)):
        return str(value).encode()
    if type(value).__module__.startswith("PIL."):
        return encode_picture(field, kind, value)
    raise TypeError(f"field {field!r}: cannot write a {type(value).__name__}; give bytes, str, a number or a PIL image")


def encode_picture(field: str, kind: str, picture: object, **options: Any) -> bytes:
    """Return a PIL image as a file in the format with suffix *kind*, with Pillow's *options* for that.

    Raises: TypeError if Pillow cannot write that.
    """
    from PIL import Image

    formats = Image.registered_extensions()
    if "." + kind not in formats or not isinstance(picture, Image.Image):
        raise TypeError(f"field {field!r}: Pillow writes no picture format with the suffix {kind!r}")
    file = io.BytesIO()
    picture.save(file, formats["." + kind], **options)
    return file.getvalue()
