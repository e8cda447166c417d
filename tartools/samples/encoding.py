"""Encoding of Python values as payloads."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tartools.errors import how_to_install
from tartools.samples.filetypes import suffix_of
from tartools.tar import split_path
from tartools.tar.compression import Codec, split_packed


def encode(field: str, value: object) -> bytes:
    """Return *value* as the payload of *field*.

    Bytes are stored unchanged. Otherwise the last part of *field* decides first: with gz, bz2, xz, zst or lz4, the
    value is encoded for the field without that part, and compressed; with a suffix of `ENCODERS`, it is written in that
    format. Then tensors count as arrays, and arrays without a dimension as numbers. Text is UTF-8, surrogate escapes
    the bytes that they stand for; a number or bool is its `str` (b"0.5", b"True"); PIL images and arrays are pictures
    in the format that the last part of *field* names (jpg, png, ...).

    Raises: TypeError, naming the field, for any other value, one that the format does not have, and NaN or infinity in
    JSON; UnicodeEncodeError for a lone surrogate that is no escape, in JSON and MessagePack for any;
    ModuleNotFoundError without the package that writes the format.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    inner, codec = split_codec(field)
    if codec is not None:
        return _compress_payload(codec, encode(inner, value))
    kind = suffix_of(inner)
    try:
        if kind in ENCODERS:
            return ENCODERS[kind](value)
        value = to_python(value)
    except UnicodeEncodeError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:  # each format has its own
        raise TypeError(f"field {field!r}: {error}") from None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (int, float)):
        return str(value).encode()
    if hasattr(value, "__array_interface__") or type(value).__module__.startswith("PIL."):
        return encode_picture(field, kind, value)
    if hasattr(value, "read"):
        raise TypeError(f"field {field!r}: cannot write a file, {type(value).__name__}; give its bytes: value.read()")
    raise TypeError(
        f"field {field!r}: cannot write values of type {type(value).__name__}; give bytes, str, a number, an array or "
        f"a PIL image, or name a field whose suffix takes it: {', '.join(ENCODERS)}"
    )


def to_python(value: Any) -> Any:
    """Return a tensor as an array, an array without a dimension as a Python value, and anything else unchanged.

    A tensor without a dimension and a number of numpy become Python values, too. Raises: TypeError for a tensor of
    numbers that numpy does not have, such as bfloat16.
    """
    value = _tensor_to_array(value)
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _tensor_to_array(value: Any) -> Any:
    """Return a torch tensor as a numpy array on the CPU, without gradient; anything else unchanged.

    Raises: TypeError for a tensor of numbers that numpy does not have, such as bfloat16.
    """
    return value.detach().cpu().numpy() if hasattr(value, "cpu") else value  # files have `detach` too


def _to_plain(value: Any) -> Any:
    """Return *value*, an array or tensor that an encoder of JSON or MessagePack has met, as numbers and lists.

    Raises: TypeError for any other value.
    """
    plain = to_python(value)
    if hasattr(plain, "tolist"):
        return plain.tolist()
    if plain is value:
        raise TypeError(f"cannot write values of type {type(value).__name__}")
    return plain


def _encode_json(value: object) -> bytes:
    """Return *value* as JSON in UTF-8; arrays are lists.

    Raises: TypeError for a value that JSON does not have; ValueError for NaN and infinity; UnicodeEncodeError for a
    lone surrogate.
    """
    import json

    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_to_plain).encode()


def _encode_msgpack(value: object) -> bytes:
    """Return *value* as MessagePack; arrays are lists.

    Raises: ModuleNotFoundError without msgpack; TypeError for a value that the format does not have; ValueError for one
    that is nested too deeply; UnicodeEncodeError for a lone surrogate.
    """
    packed: bytes = _import_optional("msgpack").packb(value, default=_to_plain)
    return packed


def _encode_npy(value: object) -> bytes:
    """Return *value*, an array or numbers, as a .npy file.

    Raises: ValueError for objects, which would be pickled, and for rows of different lengths; TypeError for a tensor of
    numbers that numpy does not have.
    """
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.asarray(_tensor_to_array(value)), allow_pickle=False)
    return file.getvalue()


def _encode_npz(value: object) -> bytes:
    """Return *value*, arrays by name or one array, as a compressed .npz file.

    One array gets the name `arr_0`. Raises: TypeError for an array of objects, and a tensor of numbers that numpy does
    not have; ValueError for rows of different lengths.
    """
    from zipfile import ZIP_DEFLATED, ZipFile

    import numpy as np

    values = value if isinstance(value, Mapping) else {"arr_0": value}
    arrays: dict[str, Any] = {name: np.asarray(_tensor_to_array(array)) for name, array in values.items()}
    if objects := [name for name, array in arrays.items() if array.dtype.hasobject]:
        raise TypeError(f"{objects[0]!r} is an array of objects, which would be pickled")
    file = io.BytesIO()
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:  # np.savez loses an array with the name of a parameter of it
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return file.getvalue()


def _encode_tenbin(value: object) -> bytes:
    """Return *value*, one array or a list of them, in the format of webdataset's tenbin.

    A number becomes an array of one item. Raises: ModuleNotFoundError without webdataset; ValueError for an
    array of a type that the format does not have, and for rows of different lengths; TypeError for a tensor of numbers
    that numpy does not have.
    """
    import numpy as np

    arrays = map(np.asarray, map(_tensor_to_array, value if isinstance(value, (list, tuple)) else [value]))
    native = [np.ascontiguousarray(array, array.dtype.newbyteorder("=")) for array in arrays]
    return bytes(_import_optional("webdataset.tenbin").encode_buffer(native))


def _encode_torch(value: object) -> bytes:
    """Return *value* as `torch.save` writes it.

    Raises: ModuleNotFoundError without torch; for a value that can't be pickled mostly TypeError, but AttributeError
    for a local function or class before Python 3.14, and errors of the value's own class.
    """
    from pickle import PickleError

    file = io.BytesIO()
    try:
        _import_optional("torch").save(value, file)  # for users with tensors; nothing in this package reads it
    except PickleError as error:
        raise TypeError(str(error)) from None
    return file.getvalue()


def _import_optional(name: str) -> Any:
    """Import and return the optional module *name*.

    Raises: ModuleNotFoundError, with a hint how to install it, if it is not there.
    """
    from importlib import import_module

    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(f"writing this needs {name}: {how_to_install(name)}", name=name) from None


ENCODERS: dict[str, Callable[[object], bytes]] = {  # suffix -> what writes a value so
    **dict.fromkeys(("json", "jsn"), _encode_json),
    "npy": _encode_npy,
    "npz": _encode_npz,
    **dict.fromkeys(("mp", "msg"), _encode_msgpack),
    **dict.fromkeys(("ten", "tb"), _encode_tenbin),
    "pth": _encode_torch,
}


def text_payload(field: str | bytes, text: bytes) -> bytes:
    r"""Return *text* as the payload of *field*: compressed if that ends in gz, bz2, xz, zst or lz4.

    *field*: a field as str, or the path of a member as bytes; a path without a field is never compressed.

    >>> text_payload("txt", b"a"), text_payload(b"n01.txt.gz", b"a")[:3], text_payload(b"GZ", b"no field")
    (b'a', b'\x1f\x8b\x08', b'no field')
    """
    codec = split_codec(field if isinstance(field, str) else os.fsdecode(split_path(field)[1]))[1]
    return text if codec is None else _compress_payload(codec, text)


@lru_cache(1000)
def split_codec(field: str) -> tuple[str, Codec | None]:
    """Return (*field* without the suffix of a codec, that codec); (*field*, None) if it has none.

    The suffixes, in upper or lower case: gz, bz2, xz, zst, lz4. "txt.gz" -> ("txt", gzip), "gz" -> ("", gzip).
    """
    inner, codec = split_packed(f".{field}")
    return inner[1:], codec


def _compress_payload(codec: Codec, data: bytes) -> bytes:
    """Return *data* compressed by *codec*, as one whole stream."""
    compressor = codec.compressor()
    return bytes(compressor.compress(data) + compressor.flush())


def encode_picture(field: str, kind: str, picture: Any, **options: Any) -> bytes:
    """Return *picture*, a PIL image or an array, as a file in the format with suffix *kind*, such as "jpg".

    *kind*: in lower case. *options*: for `save` of Pillow. Raises: TypeError, naming *field*, if Pillow cannot write
    that.
    """
    from PIL import Image

    formats = Image.registered_extensions()
    if "." + kind not in formats:
        hint = "" if isinstance(picture, Image.Image) else "; fields of arrays are npy, npz and ten"
        raise TypeError(f"field {field!r}: Pillow writes no picture format with the suffix {kind!r}{hint}")
    try:
        image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    except TypeError:
        form = f"an array of {picture.dtype} with the shape {picture.shape}"
        raise TypeError(f"field {field!r}: {form} is no picture: bytes are, height by width by 3, or without") from None
    file = io.BytesIO()
    try:
        image.save(file, formats["." + kind], **options)
    except (OSError, ValueError, SystemError) as error:  # a mode, or a size, that the format does not have
        advice = "picture.convert('RGB') makes one that can be written" if image.mode not in ("RGB", "L") else ""
        raise TypeError(f"field {field!r}: {error}{advice and f' ({advice})'}") from None
    return file.getvalue()
