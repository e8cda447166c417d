"""Objects in S3 and in servers with its protocol, by botocore. See docs/adr/0008."""

from __future__ import annotations

import functools
import io
import os
import re
import sys
import threading
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import botocore.session
from botocore import exceptions
from botocore.config import Config
from urllib3.exceptions import HTTPError

from tartools.errors import ChangedError, ExistsError, NotFoundError, StorageError, UsageError, concealed
from tartools.storage.objects import http, integrity
from tartools.storage.objects.contract import Body, ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.expect import close_after_refusals
from tartools.storage.objects.retry import timeouts
from tartools.storage.objects.uploads import Upload
from tartools.storage.url import bucket_and_name

MAX_S3_CONNECTIONS = 64
CRC32, MD5 = "ChecksumCRC32", "ContentMD5"  # parameters of botocore
CHECKSUM_SETTING = "AWS_REQUEST_CHECKSUM_CALCULATION"
BUNDLE_SETTING = "AWS_CA_BUNDLE"
_TRANSIENT = (
    "RequestTimeout",
    "SlowDown",
    "Throttling",
    "InternalError",
    "OperationAborted",
    "ConditionalRequestConflict",
    "BadDigest",  # the data were damaged on their way: they are sent again
    "XAmzContentChecksumMismatch",
    "XAmzContentSHA256Mismatch",
)
NOT_FOUND_CODES = ("NoSuchKey", "NotFound", "404")
_CREDENTIAL_CODES = (
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
)
_CONNECTION = (exceptions.HTTPClientError, exceptions.ConnectionError, exceptions.IncompleteReadError)
_lock: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)  # threads may not make a client at the same time


def object_at(url: str) -> Object:
    """Return the object *url*. Raises: UsageError without bucket or key."""
    if not all(bucket_and_name(url)):
        raise UsageError("write s3://BUCKET/KEY", url=url)
    return _S3Object(url)


# ---- the client ----


class _BadLengthError(exceptions.BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """The server sent a Content-Length that is not a number, so that botocore can't read its response."""

    fmt = "the server sent a Content-Length that is not a number"


class _Connection(NamedTuple):
    """The *client* of botocore, and the parameter that has the *checksum* of sent data: MD5, CRC32, or "" for none."""

    client: Any
    checksum: str


@functools.cache
def _connection_of(process: int) -> _Connection:
    """Return the connection of the process *process* (a pid), made once, by the environment or boto3's default session.

    Raises: StorageError: certificates; UsageError: timeout; ValueError: endpoint; errors of botocore.
    """
    times = timeouts()
    config = Config(
        connect_timeout=times.connect,
        read_timeout=times.idle,
        retries={"total_max_attempts": 1},  # `retry` counts attempts, and `pinned` resumes
        max_pool_connections=MAX_S3_CONNECTIONS,
        response_checksum_validation="when_required",  # ranges have no checksum
        request_checksum_calculation="when_required",  # `_checksum_parameter` says why
    )
    verify = True if os.environ.get(BUNDLE_SETTING) == "" else None  # empty is as not set; botocore fails
    session, boto3 = botocore.session.get_session(), sys.modules.get("boto3")
    if boto3 is not None and boto3.DEFAULT_SESSION is not None:  # a Python program may have chosen credentials so
        client = boto3.client("s3", config=config, verify=verify)
    else:
        client = session.create_client("s3", config=config, verify=verify)
    if client.meta.endpoint_url.startswith("https:") and (bundle := session.get_config_variable("ca_bundle")):
        _require_bundle(bundle)
    close_after_refusals(client)
    client.meta.events.register_first("before-parse.s3.GetObject", _check_length)
    setting = session.get_config_variable("request_checksum_calculation") or ""
    return _Connection(client, _checksum_parameter(client.meta.endpoint_url, setting.lower()))


def _require_bundle(bundle: str) -> None:
    """Raise StorageError if *bundle* is not a file of certificates: botocore would fail at each connection."""
    if os.path.isdir(bundle):  # which other clients than botocore take
        raise StorageError(f"the trusted certificates {bundle} are a folder; {BUNDLE_SETTING} has to name a file")
    http.load_trusted(bundle, BUNDLE_SETTING)


def _checksum_parameter(endpoint: str, setting: str) -> str:
    """Return the parameter of PutObject and UploadPart that has the checksum of the data; "" for none.

    *endpoint*: URL of the server. *setting*: AWS_REQUEST_CHECKSUM_CALCULATION in lower case; "when_required": none.
    By TLS botocore sends its own checksum behind the data, in the encoding aws-chunked. Servers from before 2025 refuse
    that (Ceph 16: 411, Swift: 501), or store the framing with the data. Here the data are in memory, so a header has
    their checksum: MD5, which all servers know; CRC-32 for Amazon, whose directory buckets take no MD5.
    """
    if setting == "when_required":
        return ""
    return CRC32 if re.search(r"\.amazonaws\.com(\.cn)?$", urlsplit(endpoint).hostname or "") else MD5


def _check_length(response_dict: dict[str, Any], **_: object) -> None:
    """Raise _BadLengthError for an object whose stated length is not a number, and close its connection.

    Called by botocore with each response to GetObject, *response_dict*, before it reads that. botocore would raise
    ValueError, and leave the connection open until the garbage collector comes.
    """
    if response_dict["status_code"] < 300 and not response_dict["headers"].get("Content-Length", "0").isdecimal():
        response_dict["body"].close()
        raise _BadLengthError


def _connection() -> _Connection:
    """Return the connection of this process: a fork must not share it. Raises: the errors of `_connection_of`."""
    with _lock[os.getpid()]:
        return _connection_of(os.getpid())


def _client() -> Any:
    """Return the client of botocore of this process. Raises: the errors of `_connection_of`."""
    return _connection().client


@contextmanager
def _translate_errors(url: str, verb: str = "read", pinned: bool = False) -> Iterator[None]:
    """Turn errors of botocore and urllib3, OSError and ValueError in the block into TransientError or StorageError.

    They have *url*, as a StorageError without one then has. *verb* ("read", "write", …), *pinned*: for `_status_error`;
    *pinned*: True if a version of the object was read before, so that a missing object was deleted meanwhile.
    """
    try:
        yield
    except exceptions.ClientError as error:
        raise _status_error(error, url, verb, pinned) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        advice = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure"
        raise StorageError(f"no AWS credentials: {type(error).fmt.format(**error.kwargs)}; {advice}", url=url) from None
    except exceptions.ParamValidationError:
        raise StorageError("not a valid name of a bucket or an object in S3", url=url) from None
    except (*_CONNECTION, HTTPError, OSError) as error:
        about = getattr(error, "kwargs", {})  # botocore has an error of urllib3 within its own
        cause, address = about.get("error") or error, about.get("endpoint_url") or ""
        raise http.request_error(cause, url, address, timeouts().connect, BUNDLE_SETTING) from None
    except StorageError as error:  # of the settings
        raise error if error.url else StorageError(error.message, url=url) from None
    except ValueError:
        raise StorageError("the endpoint (AWS_ENDPOINT_URL) is not a URL", url=url) from None
    except exceptions.BotoCoreError as error:
        raise StorageError(f"botocore: {concealed(str(error))}", url=url) from None


def _code(error: exceptions.ClientError) -> str:
    """Return the error code of S3, such as "NoSuchKey"; "" if there is none."""
    return error.response.get("Error", {}).get("Code") or ""


def _status(error: exceptions.ClientError) -> int:
    """Return the HTTP status of the error; 0 if there is none."""
    status: int = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status


def _status_error(error: exceptions.ClientError, url: str, verb: str, pinned: bool) -> Exception:
    """Return the exception for the error response *error* to a request for *url* (S3 API reference, Error responses).

    *verb*: "write" makes 412 an ExistsError, else ChangedError. *pinned*: True makes a missing object a ChangedError,
    else NotFoundError. TransientError if a retry may help. 401, 403: NoPermissionError, but for refused credentials or
    a wrong clock a plain StorageError, as for a missing bucket and all other responses.
    """
    name = _code(error)
    status, headers = _status(error), error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if http.is_busy(status) or name.startswith(_TRANSIENT):
        return http.busy_error(status, name, headers.get("retry-after", ""))
    if name in _CREDENTIAL_CODES:
        return StorageError(f"the server does not accept the credentials ({name})", url=url)
    if name == "NoSuchBucket":
        return StorageError(f"no such bucket: {bucket_and_name(url)[0]}", url=url)
    if name in NOT_FOUND_CODES:
        if pinned:
            return ChangedError("was deleted while it was being read", url=url)
        return NotFoundError("no such object", url=url)
    if name == "NoSuchUpload":
        return StorageError("the server has dropped the upload", url=url)
    if name == "RequestTimeTooSkewed":
        return StorageError("the clock of this machine is wrong, so the server refuses its signatures", url=url)
    if status == 412:  # Swift has another name for it
        if verb == "write":
            return ExistsError(url)
        return ChangedError("was replaced while it was being read", url=url)
    if status in (401, 403):
        return NoPermissionError(f"no permission to {verb} ({name or status})", url=url)
    message = error.response.get("Error", {}).get("Message") or ""
    if "Part number must be" in message:
        return StorageError(f"the object has more parts than the server accepts ({message.rstrip('.')})", url=url)
    refusal = " ".join(filter(None, ["the server refuses:", str(status), name, message.rstrip(" .")]))
    if verb == "write" and status in (400, 411, 501) and _connection().checksum:
        refusal += f"; if it does not support checksums, set {CHECKSUM_SETTING}=when_required"
    return StorageError(refusal, url=url)


# ---- reading ----


class _Body(Body):
    """The bytes of *body*, the stream of botocore; its errors are translated, with *url*."""

    def __init__(self, body: Any, url: str) -> None:
        self._body = body
        self._url = url

    def read(self, max_bytes: int, /) -> bytes:
        """Return up to *max_bytes* bytes, b"" at the end. Raises: TransientError; StorageError."""
        with _translate_errors(self._url):
            data: bytes = self._body.read(max_bytes)
            return data

    def close(self) -> None:
        """Release the connection."""
        self._body.close()


class _S3Object:
    """The object *url* in S3: reads, removes and makes it, as a `contract.Object`."""

    def __init__(self, url: str) -> None:
        self.url = url
        bucket, key = bucket_and_name(url)
        self.place = {"Bucket": bucket, "Key": key}

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last), of the ETag *version* unless it is "".

        Without bytes behind *start* the body is empty. Raises: TransientError; StorageError, also for another ETag.
        """
        return self._get(start, end, version)[0]

    def _get(self, start: int, end: int | None, version: str) -> tuple[Reply, dict[str, str]]:
        """Request the bytes *start* to *end* (exclusive; None: to the last); return (reply, headers of the response).

        *version*: the ETag that the object must have; "" for any. Raises: TransientError; StorageError.
        """
        conditions = {"Range": http.range_of(start, end), "IfMatch": version}
        with _translate_errors(self.url, pinned=bool(version)):
            try:
                answer = _client().get_object(**self.place, **{name: text for name, text in conditions.items() if text})
            except exceptions.ClientError as error:
                answer = error.response
                if _status(error) != 416:
                    raise
        status, headers = (answer["ResponseMetadata"][name] for name in ("HTTPStatusCode", "HTTPHeaders"))
        is_past_end = "Error" in answer  # the end; every range of an empty object is
        body: Any = io.BytesIO() if is_past_end else _Body(answer["Body"], self.url)
        reply = http.make_reply(status, headers, body, self.url, start, headers.get("etag", ""))
        if reply.size is None and is_past_end:
            reply = reply._replace(size=int(answer["Error"].get("ActualObjectSize", "0")))
        return reply, headers

    def head(self) -> ListedObject | None:
        """Return size and time of the object, without a version; None if it does not exist.

        Size, time: None if not told. By a GET: errors of a HEAD have no reason. Raises: TransientError; StorageError.
        """
        try:
            reply, headers = self._get(0, 1, "")
        except NotFoundError:
            return None
        reply.body.close()
        return ListedObject(self.url, reply.size, http.parse_date(headers.get("last-modified", "")))

    def remove(self) -> None:
        """Remove the object, if it exists. Raises: TransientError; StorageError."""
        with _translate_errors(self.url, "remove"):
            _client().delete_object(**self.place)

    def output(self, force: bool) -> Upload:
        """Return an upload that makes the object at `commit`; unless *force*, that fails if the object exists."""
        return Upload(_S3Multipart(self, force))


def head_with_checksums(url: str) -> dict[str, Any]:
    """Return the response of HeadObject for *url*, with its checksums. Raises: TransientError; StorageError."""
    with _translate_errors(url):
        answer: dict[str, Any] = _client().head_object(**_S3Object(url).place, ChecksumMode="ENABLED")
        return answer


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return a page of the objects whose URLs begin with *prefix*, in the order of the store.

    *token*: `Page.next` of the page before, "" for the first page. *flat*: only objects without a slash behind
    *prefix*. Raises: TransientError; StorageError.
    """
    bucket, start = bucket_and_name(prefix)
    options: dict[str, Any] = {"Bucket": bucket, "Prefix": start}
    if flat:
        options["Delimiter"] = "/"
    if token:
        options["ContinuationToken"] = token
    with _translate_errors(prefix, "list"):
        answer = _client().list_objects_v2(**options)
    entries = [
        ListedObject(
            f"s3://{bucket}/{entry['Key']}", entry["Size"], entry["LastModified"].timestamp(), entry.get("ETag", "")
        )
        for entry in answer.get("Contents", ())
    ]
    return Page(entries, answer.get("NextContinuationToken", ""))


# ---- writing ----


_unconditional: set[str] = set()  # endpoints that do not know If-None-Match


def _is_unknown_condition(error: exceptions.ClientError) -> bool:
    """True if *error* may mean that a server does not know If-None-Match: 501, or 400 with one of three codes."""
    status = _status(error)
    return status == 501 or (status == 400 and _code(error) in ("InvalidArgument", "InvalidRequest", "NotImplemented"))


class _S3Multipart:
    """The requests of an upload of *target* to S3, as an `uploads.Target`: `put`; or `begin`, `part`, `complete`.

    *force*: replace an existing object. Source: S3 API reference, CreateMultipartUpload and what follows it.
    """

    workers = 4  # parts that are sent at once

    def __init__(self, target: _S3Object, force: bool) -> None:
        self.url = target.url
        self._target = target
        self._place = target.place
        self._force = force
        self._upload: dict[str, str] = {}
        self._parts: dict[int, dict[str, Any]] = {}  # as CompleteMultipartUpload lists them
        self._digests: dict[int, bytes] = {}  # MD5 of the parts whose ETag is their MD5
        self._is_doubtful = False  # the request that makes the object appear was sent, perhaps without a response

    def put(self, data: bytearray) -> None:
        """Make the object of *data* by one request; no error if an earlier attempt made it. Raises: as `complete`."""
        self._finish(0, data, functools.partial(self._put, data))

    def _put(self, data: bytearray, **condition: str) -> None:
        """Make the object of *data* by one request with *condition* (IfNoneMatch); check it. Raises: as `_complete`."""
        checksum = self._checksum(data)
        reply = _client().put_object(**self._place, **condition, **checksum, Body=http.Payload(data))
        if not self._is_stored(reply, data, checksum):
            integrity.require_size(self._target, len(data))

    def begin(self) -> None:
        """Begin an upload in parts, and keep its id. Raises: TransientError; StorageError."""
        with _translate_errors(self.url, "write"):
            algorithm = {"ChecksumAlgorithm": "CRC32"} if _connection().checksum == CRC32 else {}
            self._upload = {
                "UploadId": _client().create_multipart_upload(**self._place, **algorithm)["UploadId"],
            }

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send and check part *number*, and keep its ETag. *offset*: unused. Raises: TransientError; StorageError."""
        checksum = self._checksum(data)
        with _translate_errors(self.url, "write"):
            reply = _client().upload_part(
                **self._place, **self._upload, **checksum, PartNumber=number, Body=http.Payload(data)
            )
            self._is_stored(reply, data, checksum, number)
        crc = {name: text for name, text in checksum.items() if name == CRC32}
        self._parts[number] = {"PartNumber": number, "ETag": reply["ETag"]} | crc

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part if no earlier attempt has sent it, and make the object appear, if none has done that.

        *number*, *offset*, *data*: of the last part. Raises: ExistsError; TransientError; StorageError.
        """
        if number not in self._parts:
            self.part(number, offset, data)
        self._finish(offset, data, functools.partial(self._complete, offset + len(data)))

    def _complete(self, size: int, **condition: str) -> None:
        """Make the object of the parts, under *condition* (IfNoneMatch); check its ETag, or that it has *size* bytes.

        Raises: TransientError; StorageError; botocore's errors. Source: S3 User Guide, "Checking object integrity".
        """
        parts = {"Parts": [part for _, part in sorted(self._parts.items())]}
        reply = _client().complete_multipart_upload(**self._place, **self._upload, **condition, MultipartUpload=parts)
        digests = b"".join(digest for _, digest in sorted(self._digests.items()))
        tag = f"{integrity.md5_digest(digests).hex()}-{len(self._parts)}"
        if len(self._digests) < len(self._parts) or reply.get("ETag", "").strip('"') != tag:
            integrity.require_size(self._target, size)

    def _checksum(self, data: bytearray) -> dict[str, str]:
        """Return {parameter of a request: checksum of *data* in base64}; {} if the server gets none."""
        name = _connection().checksum
        if not name:
            return {}
        return {name: integrity.crc32_base64(data) if name == CRC32 else integrity.md5_base64(data)}

    def _is_stored(
        self, reply: dict[str, Any], data: bytearray, checksum: dict[str, str], number: int | None = None
    ) -> bool:
        """True if *reply* proves that the server has *data*: by the sent *checksum*, or an ETag that is their MD5.

        False if it proves nothing: an ETag is no MD5 if a key of KMS or of the client encrypts the object, or if it is
        not 32 hexadecimal digits. *number*: the part; None for a whole object.
        Raises: StorageError if the server has other data; then it tries to remove an object, but not a part.
        """
        if CRC32 in checksum and reply.get(CRC32):
            sent, stored = checksum[CRC32], reply[CRC32]
        else:
            stored = reply.get("ETag", "").strip('"').lower()
            encrypted = reply.get("ServerSideEncryption", "").startswith("aws:kms") or reply.get("SSECustomerAlgorithm")
            if encrypted or not re.fullmatch("[0-9a-f]{32}", stored):
                return False
            digest = b64decode(checksum[MD5]) if MD5 in checksum else integrity.md5_digest(data)
            sent = digest.hex()
            if number is not None:
                self._digests[number] = digest
        if sent != stored:
            if number is None:
                integrity.remove_corrupted(self._target)
            raise integrity.corrupted_error(self.url, f"checksum {sent}", stored)
        return True

    def _finish(self, offset: int, data: bytearray, make: Callable[..., None]) -> None:
        """Call *make* by `_make_if_absent`; drop the error that the object exists if an earlier call has made it.

        It has if there was one, and the object ends at the end of *data*, which begins at byte *offset*, and has these
        bytes there; then a missing upload is no error, either. Raises: ExistsError; TransientError; StorageError.
        """
        was_doubtful, self._is_doubtful = self._is_doubtful, True
        with _translate_errors(self.url, "write"):
            try:
                self._make_if_absent(make)
            except (exceptions.ClientError, ExistsError) as error:
                exists = isinstance(error, ExistsError) or _status(error) == 412 or _code(error) == "NoSuchUpload"
                if not was_doubtful or not exists or not self._target.head():
                    raise
                stored = self._target.get(offset, offset + len(data) + 1, "")
                with closing(stored.body) as body:
                    if stored.size != offset + len(data) or body.read(len(data)) != data:
                        raise

    def _make_if_absent(self, make: Callable[..., None]) -> None:
        """Call `make(IfNoneMatch="*")`, which fails if the object exists; `make()` if the server does not know that.

        Looks before whether the object exists, if the server may ignore the condition. With *force* it only calls
        `make()`. Raises: ExistsError; other errors of *make*, not translated, and of `_require_absent`.
        """
        endpoint, condition = _client().meta.endpoint_url, {"IfNoneMatch": "*"}
        if self._force or endpoint in _unconditional:
            condition = {}
        if not self._force and (self._upload or not condition):  # Ceph 16 ignores the condition of an upload in parts
            self._require_absent()
        try:
            make(**condition)
        except exceptions.ClientError as error:
            if not condition or not _is_unknown_condition(error):
                raise
            self._require_absent()
            make()
            _unconditional.add(endpoint)

    def _require_absent(self) -> None:
        """Raise ExistsError if the object exists and this user may look. Raises: TransientError; StorageError."""
        with suppress(NoPermissionError):  # to read; the server may still take a write
            if self._target.head() is not None:
                raise ExistsError(self.url)

    def abort(self) -> None:
        """Drop the upload of `begin` and its parts. Raises: TransientError; StorageError, also if there is none."""
        with _translate_errors(self.url, "write"):
            _client().abort_multipart_upload(**self._place, **self._upload)
