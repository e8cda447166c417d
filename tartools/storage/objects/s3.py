"""Objects in S3 and in servers with its protocol, by botocore. See docs/adr/0008."""

from __future__ import annotations

import functools
import io
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import botocore.session
from botocore import exceptions
from botocore.config import Config
from urllib3.exceptions import HTTPError

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError, concealed
from tartools.storage.objects import http
from tartools.storage.objects.contract import Body, ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.retry import timeouts
from tartools.storage.objects.uploads import Upload
from tartools.storage.url import bucket_and_name

CONNECTIONS = 64
_TRANSIENT = (
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "InternalError",
    "OperationAborted",
    "ConditionalRequestConflict",
)
ABSENT = ("NoSuchKey", "NotFound", "404")
_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired")
_CONNECTION = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
_lock: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # threads may not make a client at the same time


def object_at(url: str) -> Object:
    """Return the object *url*. Raises: UsageError if it does not name one."""
    if not all(bucket_and_name(url)):
        raise UsageError("write s3://BUCKET/KEY", url=url)
    return _S3Object(url)


# ---- the client ----


class _BadLengthError(exceptions.BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """An answer that botocore can't read."""

    fmt = "the server sent a Content-Length that is not a number"


@functools.cache
def _client_of(process: int) -> Any:
    times = timeouts()
    config = Config(
        connect_timeout=times.connect,
        read_timeout=times.idle,
        retries={"total_max_attempts": 1},  # `retry` counts attempts, and `pinned` resumes
        max_pool_connections=CONNECTIONS,
        response_checksum_validation="when_required",  # ranges have no checksum
    )
    boto3 = sys.modules.get("boto3")
    if boto3 is not None and boto3.DEFAULT_SESSION is not None:  # a Python program may have chosen credentials so
        client = boto3.client("s3", config=config)
    else:
        client = botocore.session.get_session().create_client("s3", config=config)
    client.meta.events.register_first("before-parse.s3.GetObject", _check_length)
    return client


def _check_length(response_dict: dict[str, Any], **_: object) -> None:
    """Raise _BadLengthError for an object whose length is not a number, and close its connection.

    botocore would raise ValueError, and leave the connection open until the garbage collector comes.
    """
    if response_dict["status_code"] < 300 and not response_dict["headers"].get("Content-Length", "0").isdecimal():
        response_dict["body"].close()
        raise _BadLengthError


def _client() -> Any:
    """Return the client of this process: a fork must not share its connections."""
    with _lock[os.getpid()]:
        return _client_of(os.getpid())


@contextmanager
def _translated(url: str, what: str = "read", pinned: bool = False) -> Iterator[None]:
    """Turn what botocore and urllib3 raise about *url* into TransientError or StorageError; *what* was requested."""
    try:
        yield
    except exceptions.ClientError as error:
        raise _status_error(error, url, what, pinned) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        advice = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure"
        raise StorageError(f"no AWS credentials: {type(error).fmt.format(**error.kwargs)}; {advice}", url=url) from None
    except exceptions.ParamValidationError:
        raise StorageError("not a valid name of a bucket or an object in S3", url=url) from None
    except (*_CONNECTION, HTTPError, OSError) as error:
        about = getattr(error, "kwargs", {})  # botocore has an error of urllib3 within its own
        cause, address = about.get("error") or error, about.get("endpoint_url") or ""
        raise http.failure(cause, url, address, timeouts().connect, "AWS_CA_BUNDLE") from None
    except ValueError:
        raise StorageError("the endpoint (AWS_ENDPOINT_URL) is not a URL", url=url) from None
    except exceptions.BotoCoreError as error:
        raise StorageError(f"botocore: {concealed(str(error))}", url=url) from None


def _code(error: exceptions.ClientError) -> str:
    return error.response.get("Error", {}).get("Code") or ""


def _status_error(error: exceptions.ClientError, url: str, what: str, pinned: bool) -> Exception:
    """Return the failure that *error* reports (S3 API reference, Error responses)."""
    name = _code(error)
    answer = error.response.get("ResponseMetadata", {})
    status = answer.get("HTTPStatusCode", 0)
    if http.is_busy(status) or name.startswith(_TRANSIENT):
        return http.busy(f"{status} {name}", answer.get("HTTPHeaders", {}).get("retry-after", ""))
    if name in _CREDENTIALS:
        return StorageError(f"the server does not accept the credentials ({name})", url=url)
    if name == "NoSuchBucket":
        return StorageError(f"no such bucket: {bucket_and_name(url)[0]}", url=url)
    if name in ABSENT:
        if pinned:
            return StorageError("was deleted while it was being read", url=url)
        return NotFoundError("no such object", url=url)
    if name == "NoSuchUpload":
        return StorageError("the server has dropped the upload", url=url)
    if name == "RequestTimeTooSkewed":
        return StorageError("the clock of this machine is wrong, so the server refuses its signatures", url=url)
    if name in ("PreconditionFailed", "412"):
        if what == "write":
            return ExistsError(url)
        return StorageError("was replaced while it was being read", url=url)
    if status in (401, 403):
        return NoPermissionError(f"no permission to {what} ({name or status})", url=url)
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(f"the server refuses: {status} {name} {message}".rstrip(), url=url)


# ---- reading ----


class _Body(Body):
    def __init__(self, body: Any, url: str) -> None:
        self._body = body
        self._url = url

    def read(self, most: int, /) -> bytes:
        with _translated(self._url):
            data: bytes = self._body.read(most)
            return data

    def close(self) -> None:
        self._body.close()


class _S3Object:
    def __init__(self, url: str) -> None:
        self.url = url
        bucket, key = bucket_and_name(url)
        self.place = {"Bucket": bucket, "Key": key}

    def get(self, start: int, end: int | None, version: str) -> Reply:
        return self._get(start, end, version)[0]

    def _get(self, start: int, end: int | None, version: str) -> tuple[Reply, dict[str, str]]:
        """Return what `get` does, and the headers of the response."""
        wanted = {"Range": http.range_of(start, end), "IfMatch": version}
        with _translated(self.url, pinned=bool(version)):
            try:
                answer = _client().get_object(**self.place, **{name: text for name, text in wanted.items() if text})
            except exceptions.ClientError as error:
                answer = error.response
                if answer.get("ResponseMetadata", {}).get("HTTPStatusCode") != 416:
                    raise
        status, headers = (answer["ResponseMetadata"][name] for name in ("HTTPStatusCode", "HTTPHeaders"))
        behind = "Error" in answer  # the end; every range of an empty object is
        body: Any = io.BytesIO() if behind else _Body(answer["Body"], self.url)
        found = http.reply(status, headers, body, self.url, start, headers.get("etag", ""))
        if found.size is None and behind:
            found = found._replace(size=int(answer["Error"].get("ActualObjectSize", "0")))
        return found, headers

    def head(self) -> ListedObject | None:
        """Return size and time; None if it does not exist. A GET, because errors of a HEAD do not say what is wrong."""
        try:
            found, headers = self._get(0, 1, "")
        except NotFoundError:
            return None
        found.body.close()
        return ListedObject(self.url, found.size, http.parse_date(headers.get("last-modified", "")))

    def remove(self) -> None:
        with _translated(self.url, "remove"):
            _client().delete_object(**self.place)

    def output(self, force: bool) -> Upload:
        return Upload(_S3Multipart(self, force))


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return a page of the objects whose URLs begin with *prefix*; see `contract.Store`."""
    bucket, start = bucket_and_name(prefix)
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": start}
    if flat:
        options["Delimiter"] = "/"
    if token:
        options["ContinuationToken"] = token
    with _translated(prefix, "list"):
        answer = _client().list_objects_v2(**options)
    entries = [
        ListedObject(
            f"s3://{bucket}/{found['Key']}", found["Size"], found["LastModified"].timestamp(), found.get("ETag", "")
        )
        for found in answer.get("Contents", ())
    ]
    return Page(entries, answer.get("NextContinuationToken", ""))


# ---- writing ----


class _S3Multipart:
    """An upload in parts: S3 API reference, CreateMultipartUpload and those that follow it."""

    workers = 4  # parts that are sent at once

    def __init__(self, made: _S3Object, force: bool) -> None:
        self.url = made.url
        self._made = made
        self._place = made.place
        self._unless: dict[str, str] = {} if force else {"IfNoneMatch": "*"}
        self._upload: dict[str, str] = {}
        self._tags: dict[int, str] = {}
        self._doubtful = False  # the request that makes the object appear was sent, perhaps without a response

    def put(self, data: bytearray) -> None:
        self._finish(0, data, lambda: _client().put_object(**self._place, **self._unless, Body=http.Payload(data)))

    def begin(self) -> None:
        with _translated(self.url, "write"):
            self._upload = {"UploadId": _client().create_multipart_upload(**self._place)["UploadId"]}

    def part(self, number: int, offset: int, data: bytearray) -> None:
        with _translated(self.url, "write"):
            sent = _client().upload_part(**self._place, **self._upload, PartNumber=number, Body=http.Payload(data))
        self._tags[number] = sent["ETag"]

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        if number not in self._tags:
            self.part(number, offset, data)
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in sorted(self._tags.items())]
        make = functools.partial(_client().complete_multipart_upload, **self._place, **self._upload, **self._unless)
        self._finish(offset, data, lambda: make(MultipartUpload={"Parts": parts}))

    def _finish(self, offset: int, data: bytearray, make: Callable[[], object]) -> None:
        """Make the object, which ends with *data*, unless an earlier attempt without a response has done it."""
        again, self._doubtful = self._doubtful, True
        with _translated(self.url, "write"):
            try:
                make()
            except exceptions.ClientError as error:
                if not again or _code(error) not in ("NoSuchUpload", "PreconditionFailed") or not self._made.head():
                    raise
                found = self._made.get(offset, offset + len(data) + 1, "")
                with closing(found.body) as body:
                    if found.size != offset + len(data) or body.read(len(data)) != data:
                        raise

    def abort(self) -> None:
        with _translated(self.url, "write"):
            _client().abort_multipart_upload(**self._place, **self._upload)
