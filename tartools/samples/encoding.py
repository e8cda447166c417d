"""From Python values to payloads."""

from __future__ import annotations

import io
import os
from functools import lru_cache
from typing import Any

from tartools.samples.filetypes import suffix_of
from tartools.tar import split_path
from tartools.tar.compression import Codec, split_packed


def encode(field: str, value: object) -> bytes:
    """Return *value* as the payload of *field*.

    Bytes are stored unchanged. Otherwise the last part of *field* decides first: json takes any JSON value, and gz,
    bz2, xz, zst and lz4 compress what the part before them says. Text is UTF-8, numbers are decimal digits, and PIL
    images are in the format that the last part of *field* names (jpg, png, ...).

    Raises: TypeError, naming the field, for any other value, and for NaN in JSON; UnicodeEncodeError for a lone
    surrogate.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    inner, codec = unpacked(field)
    if codec is not None:
        return _compressed(codec, encode(inner, value))
    kind = suffix_of(inner)
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


def text_payload(field: str | bytes, text: bytes) -> bytes:
    r"""Return *text* as the payload of *field*, or of the member with that path: compressed if a field ends in gz etc.

    >>> text_payload("txt", b"a"), text_payload(b"n01.txt.gz", b"a")[:3], text_payload(b"GZ", b"no field")
    (b'a', b'\x1f\x8b\x08', b'no field')
    """
    codec = unpacked(field if isinstance(field, str) else os.fsdecode(split_path(field)[1]))[1]
    return text if codec is None else _compressed(codec, text)


@lru_cache(1000)
def unpacked(field: str) -> tuple[str, Codec | None]:
    """Return *field* without the suffix of a codec, and that codec."""
    inner, codec = split_packed(f".{field}")
    return inner[1:], codec


def _compressed(codec: Codec, data: bytes) -> bytes:
    compressor = codec.compressor()
    return compressor.compress(data) + compressor.flush()


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
