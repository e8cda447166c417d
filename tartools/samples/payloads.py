"""Read values from payloads, the same way in all commands: fields such as `json.gz` unpacked, JSON parsed as bytes."""

from __future__ import annotations

from typing import Any

from tartools.errors import TarFormatError
from tartools.samples.encoding import split_codec
from tartools.samples.sample import field_name
from tartools.tar import Member, new_member
from tartools.tar.compression import Codec, decompress

MAX_ERROR_CHARS = 100  # characters of an error message about a payload
MAX_UNPACKED_BYTES = 1 << 30  # of a compressed payload: a few kilobytes may have any number


def unpack(field: str, payload: bytes) -> bytes:
    """Return *payload* decompressed if *field* ends in gz, bz2, xz, zst or lz4, in any case; else as it is.

    Raises: ValueError if it is empty, not compressed so, damaged, or has more than 1 GiB; StorageError if there is too
    little memory, or zstd data need a window above 128 MiB.

    >>> import gzip
    >>> unpack("json.gz", gzip.compress(b"{}")), unpack("json", b"{}")
    (b'{}', b'{}')
    """
    codec = split_codec(field)[1]
    return payload if codec is None else _decompress(codec, payload)


def unpack_member(member: Member) -> Member:
    """Return *member* decompressed, without the codec's suffix in its name, if its field ends in gz, bz2 etc.

    Any other member is returned as it is; one whose field is only "gz" is decompressed, but keeps its name. Raises:
    ValueError if its payload is empty, not compressed so, damaged, or has more than 1 GiB; StorageError if the file has
    changed, there is too little memory, or zstd data need a window above 128 MiB.
    """
    field = field_name(member)
    inner, codec = split_codec(field)
    if codec is None:
        return member
    key = member.path[: len(member.path) - len(field.encode("utf-8", "surrogateescape"))]
    return new_member(key + (inner or field).encode("utf-8", "surrogateescape"), _decompress(codec, member.read()))


def _decompress(codec: Codec, payload: bytes) -> bytes:
    """Return *payload*, in *codec*, decompressed.

    Raises: ValueError if it is empty, not in this codec, damaged, or has more than 1 GiB; StorageError if there is too
    little memory, or zstd data need a window above 128 MiB.
    """
    try:
        return decompress(codec, payload, MAX_UNPACKED_BYTES)
    except TarFormatError as error:
        raise ValueError(error.message) from None


def parse_json(payload: bytes, constants: list[str] | None = None) -> Any:
    r"""Return the value of the JSON *payload*, in UTF-8, UTF-16 or UTF-32, with a byte order mark or not.

    webdataset reads the same encodings. *constants*: a list to which the text of each NaN, Infinity and -Infinity is
    appended, which Python reads, but RFC 8259 excludes; None: they are read all the same. Raises: ValueError if it is
    not JSON, is in no such encoding, or is nested too deeply.

    >>> parse_json(b'\xef\xbb\xbf{"a": 1}'), parse_json(b"[1]")
    ({'a': 1}, [1])
    """
    import json

    def note_constant(text: str) -> float:
        """Append *text*, NaN, Infinity or -Infinity, to *constants*, and return it as a float."""
        constants.append(text)  # type: ignore[union-attr]
        return float(text)

    try:
        return json.loads(payload) if constants is None else json.loads(payload, parse_constant=note_constant)
    except RecursionError:  # a million brackets
        raise ValueError("it is nested too deeply") from None
