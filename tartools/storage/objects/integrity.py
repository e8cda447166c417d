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
    """Return the MD5 of `data`, 16 bytes."""
    return md5(data, usedforsecurity=False).digest()


def md5_base64(data: Data) -> str:
    """Return the MD5 of `data` as Content-MD5 has it (RFC 1864)."""
    return b64encode(md5_digest(data)).decode()


def crc32_base64(data: Data) -> str:
    """Return the CRC-32 of `data` as x-amz-checksum-crc32 has it: four bytes, the most significant first."""
    return b64encode(crc32(data).to_bytes(4, "big")).decode()


def corrupted_error(url: str, sent: str, stored: str) -> StorageError:
    """Return the error that a store has other data than were sent, by their sizes or checksums."""
    return StorageError(f"the server stored other data than were sent ({stored}, not {sent})", url=url)


def require_size(target: Object, sent: int) -> None:
    """Ask the store for the size of an object that was just written, and compare it with the number of sent bytes.

    Nothing is compared if the store does not say it, or lets this user only write.

    Raises: TransientError; StorageError if the object is missing, or has another size: then it is removed.
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
    """Try to remove an object with other data than were sent: nothing appears after a failure."""
    with suppress(StorageError, TransientError):
        target.remove()
