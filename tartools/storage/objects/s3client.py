"""The botocore client of this process, and its errors translated."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore import exceptions
from botocore.config import Config
from urllib3 import exceptions as http

from tartools.errors import ExistsError, NotFoundError, StorageError, concealed
from tartools.storage.garbage import uncollected
from tartools.storage.objects.contract import NoPermissionError
from tartools.storage.objects.models import Models
from tartools.storage.objects.retry import TransientError, timeouts

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
_lock = threading.Lock()  # threads share a client, but may not make one at the same time


class _BadLengthError(exceptions.BotoCoreError):  # type: ignore[misc]  # botocore has no types
    """An answer that botocore can't read."""

    fmt = "the server sent a Content-Length that is not a number"


@functools.cache
def _client_of(process: int) -> Any:
    times = timeouts()
    config = Config(
        connect_timeout=times.connect,
        read_timeout=times.idle,
        retries={"total_max_attempts": 1},  # `retry` counts attempts, and `ranges` resumes
        max_pool_connections=CONNECTIONS,
        response_checksum_validation="when_required",  # ranges have no checksum
    )
    with uncollected():
        boto3 = sys.modules.get("boto3")
        if boto3 is not None and boto3.DEFAULT_SESSION is not None:  # a Python program may have chosen credentials so
            client = boto3.client("s3", config=config)
        else:
            session = botocore.session.get_session()
            session.register_component("data_loader", Models(session.get_component("data_loader").search_paths))
            client = session.create_client("s3", config=config)
    client.meta.events.register_first("choose-signer.s3", _sign_by_version_4)
    client.meta.events.register_first("before-parse.s3.GetObject", _check_length)
    return client


def _sign_by_version_4(signature_version: object, **_: object) -> str | None:
    """Choose how URLs are signed: botocore still uses version 2 for some, which newer buckets refuse."""
    return "s3v4-query" if signature_version in ("v4-query", "s3v4-query", "s3-query") else None


def _check_length(response_dict: dict[str, Any], **_: object) -> None:
    """Raise _BadLengthError for an object whose length is not a number, and close its connection.

    botocore would raise ValueError, and leave the connection open until the garbage collector comes.
    """
    if response_dict["status_code"] < 300 and not response_dict["headers"].get("Content-Length", "0").isdecimal():
        response_dict["body"].close()
        raise _BadLengthError


def client() -> Any:
    """Return the client of this process: a fork must not share its connections."""
    with _lock:
        return _client_of(os.getpid())


def _server(error: Any) -> str:
    """Return host and port that *error* of botocore is about."""
    parts = urlsplit(error.kwargs.get("endpoint_url") or "")
    return f"{parts.hostname}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


@contextmanager
def translated_errors(url: str, what: str = "read", pinned: bool = False) -> Iterator[None]:
    """Turn what botocore and urllib3 raise about *url* into TransientError or StorageError; *what* was requested."""
    try:
        yield
    except exceptions.ClientError as error:
        raise _status_error(error, url, what, pinned) from None
    except exceptions.ConnectTimeoutError as error:
        raise TransientError(f"cannot connect to {_server(error)}: no response") from None
    except exceptions.ReadTimeoutError:
        raise TransientError(f"no byte came for {timeouts().idle:g} seconds") from None
    except exceptions.EndpointConnectionError as error:
        raise TransientError(f"cannot connect to {_server(error)}") from None
    except exceptions.SSLError as error:
        if "CERTIFICATE_VERIFY_FAILED" not in str(error):
            raise TransientError("the connection was cut") from None
        raise StorageError("the server's certificate is not trusted (AWS_CA_BUNDLE names others)", url=url) from None
    except (exceptions.HTTPClientError, exceptions.IncompleteReadError, http.HTTPError, OSError) as error:
        if "timed out" in str(
            getattr(error, "kwargs", {}).get("error", "")
        ):  # urllib3 uses this timeout while it sends
            raise TransientError(f"no byte was taken for {timeouts().connect:g} seconds") from None
        silent = isinstance(error, http.ReadTimeoutError | TimeoutError)
        raise TransientError(
            f"no byte came for {timeouts().idle:g} seconds" if silent else "the connection was cut"
        ) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        advice = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run aws configure"
        raise StorageError(f"no AWS credentials: {type(error).fmt.format(**error.kwargs)}; {advice}", url=url) from None
    except exceptions.ParamValidationError:
        raise StorageError("not a valid name of a bucket or an object in S3", url=url) from None
    except ValueError:
        raise StorageError("the endpoint (AWS_ENDPOINT_URL) is not a URL", url=url) from None
    except exceptions.BotoCoreError as error:
        raise StorageError(f"botocore: {concealed(str(error))}", url=url) from None


def error_code(error: exceptions.ClientError) -> str:
    """Return the name of an error in S3."""
    return error.response.get("Error", {}).get("Code") or ""


def _status_error(error: exceptions.ClientError, url: str, what: str, pinned: bool) -> Exception:
    """Return the failure that *error* reports (S3 API reference, Error responses)."""
    name = error_code(error)
    answer = error.response.get("ResponseMetadata", {})
    status = answer.get("HTTPStatusCode", 0)
    if is_busy(status) or name.startswith(_TRANSIENT):
        return busy_error(f"{status} {name}", answer.get("HTTPHeaders", {}).get("retry-after", ""))
    if name in _CREDENTIALS:
        return StorageError(f"the server does not accept the credentials ({name})", url=url)
    if name == "NoSuchBucket":
        return StorageError(f"no such bucket: {bucket_and_key(url)[0]}", url=url)
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


def is_busy(status: int) -> bool:
    """Tell whether a response of this *status* asks for a retry."""
    return status in (408, 429) or (status >= 500 and status not in (501, 505))


def busy_error(what: str, after: str) -> TransientError:
    """Return the failure of a server that asks for a retry; *after* is its Retry-After, which S3 has in seconds."""
    return TransientError(f"the server is busy ({what.rstrip()})", float(after) if after.isdigit() else None)


def bucket_and_key(url: str) -> tuple[str, str]:
    """Return bucket and key of *url*; the key may be empty."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key
