"""Integrity of uploads: checksums of the sent data, and errors of a store that has stored other data."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from hashlib import md5
from zlib import crc32

from tartools.errors import StorageError
from tartools.storage.objects.contract import Object
from tartools.storage.objects.retry import TransientError

Data = bytes | bytearray | memoryview


def md5_digest(data: Data) -> bytes:
    """Return the MD5 of *data*, 16 bytes."""
    return md5(data, usedforsecurity=False).digest()


def md5_base64(data: Data) -> str:
    """Return the MD5 of *data* in base64, as the header Content-MD5 has it (RFC 1864)."""
    return b64encode(md5_digest(data)).decode()


def crc32_base64(data: Data) -> str:
    """Return the CRC-32 of *data* in base64, as the header x-amz-checksum-crc32 has it: four bytes, big-endian."""
    return b64encode(crc32(data).to_bytes(4, "big")).decode()


def corrupted_error(url: str, sent: str, stored: str) -> StorageError:
    """Return the error that the store has other data than were sent.

    *sent*, *stored*: the sizes or checksums of both, as text.
    """
    return StorageError(f"the server stored other data than were sent ({stored}, not {sent})", url=url)


def require_size(target: Object, sent: int) -> None:
    """Compare the size that the store has for *target*, which was just written, with *sent*, in bytes.

    Nothing is compared if the store does not say the size, or `target.head()` raises a StorageError, as for a user who
    may only write.

    Raises: TransientError; StorageError if the object is missing, or has another size: then it tries to remove it.
    """
    try:
        stored = target.head()
    except StorageError:
        return
    if stored is None:
        raise StorageError("the server accepted the object, but does not have it", url=target.url)
    if stored.size not in (None, sent):
        remove_corrupted(target)
        raise corrupted_error(target.url, f"{sent} bytes", f"{stored.size} bytes")


def remove_corrupted(target: Object) -> None:
    """Try to remove the object *target*, which has other data than were sent; errors are ignored."""
    with suppress(StorageError, TransientError):
        target.remove()
