"""Uploads to S3: as a whole, or in parts."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable
from contextlib import closing

from botocore import exceptions

from tartools.storage.objects.contract import Object
from tartools.storage.objects.s3client import client, error_code, translated_errors


class _Payload(io.RawIOBase):
    """The bytes of a part as a file: urllib3 sends anything else at once, within the timeout for connecting."""

    def __init__(self, data: bytearray) -> None:
        self._view = memoryview(data)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, len(self._view))[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        found = self._view[self._position : self._position + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


class Multipart:
    """An upload in parts: S3 API reference, CreateMultipartUpload and those that follow it."""

    workers = 4  # parts that are sent at once

    def __init__(self, made: Object, place: dict[str, str], force: bool) -> None:
        self.url = made.url
        self._made = made
        self._place = place
        self._unless: dict[str, str] = {} if force else {"IfNoneMatch": "*"}
        self._upload: dict[str, str] = {}
        self._tags: dict[int, str] = {}
        self._doubtful = False  # the request that makes the object appear was sent, perhaps without a response

    def put(self, data: bytearray) -> None:
        """Make the object of *data*."""
        self._finish(0, data, lambda: client().put_object(**self._place, **self._unless, Body=_Payload(data)))

    def begin(self) -> None:
        """Begin an upload in parts."""
        with translated_errors(self.url, "write"):
            self._upload = {"UploadId": client().create_multipart_upload(**self._place)["UploadId"]}

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send one part."""
        with translated_errors(self.url, "write"):
            sent = client().upload_part(**self._place, **self._upload, PartNumber=number, Body=_Payload(data))
        self._tags[number] = sent["ETag"]

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part, and let the object appear."""
        if number not in self._tags:
            self.part(number, offset, data)
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in sorted(self._tags.items())]
        make = functools.partial(client().complete_multipart_upload, **self._place, **self._upload, **self._unless)
        self._finish(offset, data, lambda: make(MultipartUpload={"Parts": parts}))

    def _finish(self, offset: int, data: bytearray, make: Callable[[], object]) -> None:
        """Make the object, which ends with *data*, unless an earlier attempt without a response has done it."""
        again, self._doubtful = self._doubtful, True
        with translated_errors(self.url, "write"):
            try:
                make()
            except exceptions.ClientError as error:
                if (
                    not again
                    or error_code(error) not in ("NoSuchUpload", "PreconditionFailed")
                    or not self._made.head()
                ):
                    raise
                found = self._made.get(offset, offset + len(data) + 1, "")
                with closing(found.body) as body:
                    if found.size != offset + len(data) or body.read(len(data)) != data:
                        raise

    def abort(self) -> None:
        """Drop the parts."""
        with translated_errors(self.url, "write"):
            client().abort_multipart_upload(**self._place, **self._upload)
