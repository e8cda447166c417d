"""Objects in S3 and what speaks its protocol, by boto3, which smart_open brings.

Credentials, region and endpoint are boto3's business: `AWS_PROFILE`, `AWS_ENDPOINT_URL`, `AWS_REGION` and the like.
"""

from __future__ import annotations

import functools
import io
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import getproxies

import boto3
import urllib3
from botocore import exceptions
from botocore.config import Config
from urllib3 import exceptions as http

from tartools.errors import StorageError, UsageError, concealed
from tartools.storage.stores import Listed, NoPermission, Page, Reply
from tartools.storage.tries import Passing, timeouts
from tartools.storage.uploads import Upload

STARTS_ANYWHERE = True
CONNECTIONS = 64
LIFE = 3600  # seconds of a signature
_PASSING = (
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "InternalError",
    "OperationAborted",
    "ConditionalRequestConflict",
)
_ABSENT = ("NoSuchKey", "NotFound", "404")
_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired")
_lock = threading.Lock()  # clients are for all threads; making one is not


@functools.cache
def _client_of(process: int) -> Any:
    times = timeouts()
    config = Config(
        connect_timeout=times.connect,
        read_timeout=times.idle,
        retries={"total_max_attempts": 1},  # `tries` counts them, and resumes where it was cut
        max_pool_connections=CONNECTIONS,
        response_checksum_validation="when_required",  # ranges have none
    )
    client = boto3.client("s3", config=config)
    client.meta.events.register_first("choose-signer.s3", _sign_by_version_4)
    return client


def _sign_by_version_4(signature_version: object, **_: object) -> str | None:
    """Choose how URLs are signed: boto3 still takes version 2 for some, which newer buckets refuse."""
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query", "s3-query") else None


def client() -> Any:
    """Return the client of this process: a fork must not share its connections."""
    with _lock:
        return _client_of(os.getpid())


@functools.cache
def _pool_of(process: int) -> urllib3.PoolManager:
    times = timeouts()
    return urllib3.PoolManager(
        maxsize=CONNECTIONS, retries=False, timeout=urllib3.Timeout(connect=times.connect, read=times.idle)
    )


@contextmanager
def asking(url: str, what: str = "read", pinned: bool = False) -> Iterator[None]:
    """Turn what goes wrong with a request about *url* into Passing or StorageError; *what* may be forbidden."""
    try:
        yield
    except exceptions.ClientError as error:
        raise _refused(error, url, what, pinned) from None
    except exceptions.ConnectTimeoutError:
        raise Passing("cannot connect: no answer") from None
    except exceptions.ReadTimeoutError:
        raise Passing(f"no byte came for {timeouts().idle:g} seconds") from None
    except exceptions.EndpointConnectionError:
        raise Passing("cannot connect to the server") from None
    except exceptions.SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" not in str(error):
            raise Passing("the connection was cut") from None
        raise StorageError("the server's certificate is not trusted (AWS_CA_BUNDLE names others)", url=url) from None
    except (exceptions.HTTPClientError, exceptions.IncompleteReadError, http.HTTPError, OSError) as error:
        if "timed out" in str(getattr(error, "kwargs", {}).get("error", "")):  # urllib3 sends under this timeout
            raise Passing(f"no byte was taken for {timeouts().connect:g} seconds") from None
        silent = isinstance(error, http.ReadTimeoutError | TimeoutError)
        raise Passing(f"no byte came for {timeouts().idle:g} seconds" if silent else "the connection was cut") from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        advice = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure"
        raise StorageError(f"no AWS credentials: {type(error).fmt.format(**error.kwargs)}; {advice}", url=url) from None
    except exceptions.ParamValidationError:
        raise StorageError("S3 has no such name of a bucket or an object", url=url) from None
    except ValueError:
        raise StorageError("the endpoint (AWS_ENDPOINT_URL) is no URL", url=url) from None
    except exceptions.BotoCoreError as error:
        raise StorageError(f"boto3 cannot do this: {concealed(str(error))}", url=url) from None


def code(error: exceptions.ClientError) -> str:
    """Return the name that S3 gives to an error."""
    return error.response.get("Error", {}).get("Code") or ""


def _refused(error: exceptions.ClientError, url: str, what: str, pinned: bool) -> Exception:
    """Return what an answer that is an error means (S3 API reference, Error responses)."""
    name = code(error)
    answer = error.response.get("ResponseMetadata", {})
    status = answer.get("HTTPStatusCode", 0)
    if _is_busy(status) or name.startswith(_PASSING):
        return _busy(f"{status} {name}", answer.get("HTTPHeaders", {}).get("retry-after", ""))
    if name in _CREDENTIALS:
        return StorageError(f"the credentials are not accepted ({name})", url=url)
    if name == "NoSuchBucket":
        return StorageError(f"there is no bucket {split(url)[0]}", url=url)
    if name in _ABSENT:
        gone = "this was deleted while it was being read"
        return StorageError(gone if pinned else "there is no such object", url=url)
    if name == "NoSuchUpload":
        return StorageError("the server has dropped this upload", url=url)
    if name == "RequestTimeTooSkewed":
        return StorageError("the clock of this machine is wrong: the server refuses what it signs", url=url)
    if name in ("PreconditionFailed", "412"):
        if what == "write":
            return StorageError("this exists already; --force replaces it", url=url)
        return StorageError("this was replaced while it was being read", url=url)
    if status in (401, 403):
        return NoPermission(f"no permission to {what} this ({name or status})", url=url)
    message = error.response.get("Error", {}).get("Message", "")
    return StorageError(f"the server refuses: {status} {name} {message}".rstrip(), url=url)


def _is_busy(status: int) -> bool:
    return status in (408, 429) or (status >= 500 and status not in (501, 505))


def _busy(what: str, after: str) -> Passing:
    """Return what an answer that asks for patience means; *after* is its Retry-After, which S3 has in seconds."""
    return Passing(f"the server is busy ({what.rstrip()})", float(after) if after.isdigit() else None)


def split(url: str) -> tuple[str, str]:
    """Return bucket and key of *url*; the key may be empty."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def opened(url: str) -> S3Object:
    """Return the object *url*. Raises: UsageError if it names none."""
    if not all(split(url)):
        raise UsageError("write s3://BUCKET/KEY", url=url)
    return S3Object(url)


class _Body:
    """The body of an answer."""

    def __init__(self, body: Any, url: str) -> None:
        self._body = body
        self._url = url

    def read(self, most: int, /) -> bytes:
        with asking(self._url):
            data: bytes = self._body.read(most)
            return data

    def close(self) -> None:
        if self._body is not None:
            self._body.close()


def _reply(status: int, body: Any, url: str, place: str | None, length: int | None, etag: str | None) -> Reply:
    """Return the answer with *body*; *place* is its Content-Range, if it is a part (RFC 9110, 14.4).

    Raises: StorageError for a part of which nobody says where it is from.
    """
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", place or "")
    if status == 206 and not found:
        body.close()
        raise StorageError("the server sent a part without saying which", url=url)
    if not found:
        return Reply(_Body(body, url), 0, length, length, etag or "")
    start, end = int(found[1]), int(found[2]) + 1
    size = None if found[3] == "*" else int(found[3])
    length = end - start if length is None else length
    return Reply(_Body(body, url), start, length, size, etag or "")


class S3Object:
    """One object in a bucket."""

    def __init__(self, url: str) -> None:
        self.url = url
        bucket, key = split(url)
        self.place = {"Bucket": bucket, "Key": key}
        self._signed: str | None = ""  # its URL with a signature; None if that is no way to get it

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Ask for the bytes *start* to *end*; see `stores.Object`."""
        conditions = {"Range": f"bytes={start}-{'' if end is None else end - 1}"} if start or end is not None else {}
        if version and end is not None and (reply := self._get_signed(conditions | {"If-Match": version})):
            return reply
        if version:
            conditions["IfMatch"] = version
        with asking(self.url, pinned=bool(version)):
            try:
                answer = client().get_object(**self.place, **conditions)
            except exceptions.ClientError as error:
                if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != 416:
                    raise
                return self._behind_the_end(error, start)
        status, known = answer["ResponseMetadata"]["HTTPStatusCode"], ("ContentRange", "ContentLength", "ETag")
        return _reply(status, answer["Body"], self.url, *map(answer.get, known))

    def _get_signed(self, headers: dict[str, str]) -> Reply | None:
        """Ask by a signed URL, which is a quarter of the work that boto3 has; None if boto3 is to ask.

        It knows what to make of a refusal, of proxies, and of certificates that only it was told to trust.
        """
        if self._signed is None or getproxies():
            return None
        with asking(self.url):
            if not self._signed:
                self._signed = client().generate_presigned_url("get_object", Params=self.place, ExpiresIn=LIFE)
            try:
                answer = _pool_of(os.getpid()).request(
                    "GET", self._signed, headers=headers, preload_content=False, decode_content=False
                )
            except http.SSLError:
                self._signed = None
                return None
        if answer.status != 206:
            answer.close()
            if _is_busy(answer.status):
                raise _busy(str(answer.status), answer.headers.get("Retry-After", ""))
            self._signed = "" if answer.status == 403 else None  # it may have lived too long
            return None
        length = answer.headers.get("Content-Length", "")
        return _reply(
            answer.status,
            answer,
            self.url,
            answer.headers.get("Content-Range"),
            int(length) if length.isdigit() else None,
            answer.headers.get("ETag"),
        )

    def _behind_the_end(self, error: exceptions.ClientError, start: int) -> Reply:
        """Return the answer to a range that begins behind the last byte, as that of every empty object does."""
        headers = error.response["ResponseMetadata"].get("HTTPHeaders", {})
        size = headers.get("content-range", "").rpartition("/")[2]
        if not size.isdigit():
            size = error.response.get("Error", {}).get("ActualObjectSize", "0")
        return Reply(io.BytesIO(), start, 0, int(size), headers.get("etag", ""))

    def head(self) -> Listed | None:
        """Return size and time; None if it is not there. Not by HEAD, whose errors do not say what is wrong."""
        with asking(self.url):
            try:
                answer = client().get_object(**self.place, Range="bytes=0-0")
            except exceptions.ClientError as error:
                answer = error.response.get("ResponseMetadata", {})
                if code(error) in _ABSENT:
                    return None
                if answer.get("HTTPStatusCode") != 416:
                    raise
                return Listed(self.url, 0, None)
            answer["Body"].close()
        size = answer.get("ContentRange", "").rpartition("/")[2]
        return Listed(
            self.url, int(size) if size.isdigit() else answer["ContentLength"], answer["LastModified"].timestamp()
        )

    def output(self, force: bool) -> Upload:
        """Return an output that makes this object."""
        from tartools.storage.s3upload import Multipart

        return Upload(Multipart(self, force))


def page(prefix: str, token: str, after: str, flat: bool) -> Page:
    """Return a page of the objects whose URL begins with *prefix*; see `stores.Store`."""
    bucket, start = split(prefix)
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": start}
    if flat:
        options["Delimiter"] = "/"
    if token:
        options["ContinuationToken"] = token
    elif after:
        options["StartAfter"] = split(after)[1]
    with asking(prefix, "list"):
        answer = client().list_objects_v2(**options)
    entries = [
        Listed(f"s3://{bucket}/{found['Key']}", found["Size"], found["LastModified"].timestamp())
        for found in answer.get("Contents", ())
    ]
    return Page(entries, answer.get("NextContinuationToken", ""))
