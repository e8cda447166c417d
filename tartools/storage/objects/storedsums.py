"""Checksums that stores keep of whole objects: known without a download.

    hub     SHA-256 of a file in large file storage (LFS, Xet): its oid. None of small files, which git keeps.
    S3      the checksum of the upload, if it covers the whole object; else the ETag, where that is the MD5.
    GCS     MD5; CRC32C of composed objects, which have no MD5.

S3 keeps checksums of parts for most uploads in parts; these are not of the whole object (Amazon S3 User Guide,
"Checking object integrity"). An ETag is the MD5 only of an object that was sent in one request, and that is not
encrypted by KMS or by a key of the customer; in directory buckets it never is.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from tartools import storage
from tartools.storage.checksums import WRITTEN_ALGORITHM, Checksum, HashedInput
from tartools.storage.objects.contract import ListedObject
from tartools.storage.objects.retry import call_with_retries
from tartools.storage.url import Url, bucket_and_name

# parameters of HeadObject, the best first; an ETag that is the MD5 goes before a CRC
S3_HASHES = {"ChecksumSHA256": "SHA256", "ChecksumSHA1": "SHA1"}
S3_CRCS = {"ChecksumCRC32": "CRC32", "ChecksumCRC64NVME": "CRC64NVME", "ChecksumCRC32C": "CRC32C"}
DIRECTORY_BUCKET_SUFFIX = "--x-s3"


def stored_checksum(entry: ListedObject) -> Checksum | None:
    """Return the checksum that the store of *entry*, just listed, keeps of the whole object; None if it keeps none.

    S3 is asked by one request, with retries; for other stores it is `entry.checksum`, None if that is "". A local file
    is read, for its SHA-256. Raises: StorageError.
    """
    url = Url(entry.url)
    if url.is_local:
        return _compute_checksum(url)
    if url.scheme == "s3":
        from tartools.storage.objects import s3

        return s3_checksum(url, call_with_retries(lambda: s3.head_with_checksums(url), url))
    algorithm, _, digest = entry.checksum.partition(":")
    return Checksum(algorithm, digest) if digest else None


def _compute_checksum(url: str) -> Checksum:
    """Return the SHA-256 of the local file *url*, which is read. Raises: StorageError."""
    stream = HashedInput(storage.open_read(url), WRITTEN_ALGORITHM)
    try:
        stream.drain()
    finally:
        stream.close()
    return stream.checksum


def s3_checksum(url: str, answer: Mapping[str, Any]) -> Checksum | None:
    """Return the checksum of the whole object *url* that *answer*, of HeadObject, has; None if it has none.

    If there are several, the first of SHA-256, SHA-1, MD5 (the ETag, where that is the MD5), CRC-32, CRC-64/NVME,
    CRC-32C; in hexadecimal digits. Checksums of the type COMPOSITE are of parts, and are not returned.

    >>> s3_checksum("s3://b/a", {"ChecksumSHA256": "q83v", "ChecksumType": "FULL_OBJECT", "ETag": '"x"'})
    Checksum(algorithm='SHA256', digest='abcdef')
    >>> s3_checksum("s3://b/a", {"ChecksumSHA256": "q83v-2", "ChecksumType": "COMPOSITE", "ETag": '"aa-2"'})
    """
    tag = answer.get("ETag", "").strip('"')
    kind = answer.get("ChecksumType", "COMPOSITE" if "-" in tag else "FULL_OBJECT")  # older servers do not say it
    is_encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or "SSECustomerAlgorithm" in answer
    is_md5 = not is_encrypted and not bucket_and_name(url)[0].endswith(DIRECTORY_BUCKET_SUFFIX)
    for names in (S3_HASHES, S3_CRCS):
        for name, algorithm in names.items():
            if kind == "FULL_OBJECT" and (encoded := answer.get(name)):
                return Checksum(algorithm, b64decode(encoded).hex())
        if is_md5 and re.fullmatch("[0-9a-f]{32}", tag):
            return Checksum("MD5", tag)
    return None
