"""Objects in Google Cloud Storage, by its JSON API and resumable uploads.

Credentials are those that google.auth finds; with `STORAGE_EMULATOR_HOST` set there are none. Names are taken
literally: blanks, %, # and ? have no special meaning.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import threading
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

import google.auth
from google.auth import exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.urllib3 import Request
from urllib3 import Timeout

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError
from tartools.storage.objects import http, integrity
from tartools.storage.objects.contract import ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.http import (
    DONE_STATUSES,
    RANGE_STATUSES,
    Client,
    Payload,
    Response,
    connections,
    escape_segment,
    range_header,
    read_all,
)
from tartools.storage.objects.retry import TransientError, timeouts
from tartools.storage.objects.uploads import Upload
from tartools.storage.url import bucket_and_name

GCS_SERVER = "https://storage.googleapis.com"
GS_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
LIST_PAGE_OBJECTS = 1000  # objects, the largest page
CONTENT_TYPE = "application/octet-stream"
MAX_RENEWALS = 2  # of credentials that the server does not accept
GS_CLIENT = Client()

_lock: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)


def _server() -> str:
    """Return the URL of the server, without a slash at the end: `STORAGE_EMULATOR_HOST`; Google's if unset or empty.

    http:// is put before a variable without a scheme: HOST:PORT.
    """
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return GCS_SERVER if not host else host if "://" in host else f"http://{host}"


def _request_token(
    url: str, method: str = "GET", body: Any = None, headers: Any = None, timeout: float | None = None, **_: object
) -> Any:
    """Make a request for google.auth, which gets and renews tokens by it; return the response in google.auth's type.

    *url*, *method*, *body*, *headers*: of the request. *timeout*: in seconds; None or 0: by `TARTOOLS_TIMEOUT`. Other
    arguments are ignored. Raises: TransportError of google.auth if there is no response; errors of `connections`;
    UsageError for an invalid `TARTOOLS_TIMEOUT`.
    """
    limit: Any = timeout or Timeout(*timeouts())
    return Request(connections(url))(url, method, body, headers, limit)


def _credentials() -> Any:
    """Return the credentials of this process, an object of google.auth; anonymous ones for an emulator.

    If there are none, google.auth takes up to 12 seconds to find that out. Raises: DefaultCredentialsError.
    """
    with _lock[os.getpid()]:
        return _credentials_for(os.getpid(), _server())


@functools.cache
def _credentials_for(process: int, server: str) -> Any:
    """Return the credentials for *server* of the process with the pid *process*, made once.

    Anonymous ones unless *server* is GCS_SERVER. Raises: DefaultCredentialsError.
    """
    return (
        google.auth.default(scopes=[GS_SCOPE], request=cast(Any, _request_token))[0]
        if server == GCS_SERVER
        else AnonymousCredentials()
    )


@contextmanager
def _translate_auth_errors(url: str) -> Iterator[None]:
    """Turn errors of google.auth in the block into StorageError, or TransientError if its server can't be reached.

    *url*: the name for messages.
    """
    try:
        yield
    except exceptions.DefaultCredentialsError:
        advice = "set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"
        raise StorageError(f"no usable Google credentials: {advice}", url=url) from None
    except exceptions.TransportError:
        raise TransientError("cannot reach the server that renews the Google credentials") from None
    except exceptions.GoogleAuthError:
        advice = "gcloud auth application-default login renews them"
        raise StorageError(f"the server does not accept the Google credentials; {advice}", url=url) from None


def _request(
    method: str,
    address: str,
    url: str,
    verb: str = "read",
    statuses: Collection[int] = DONE_STATUSES,
    *,
    pinned: bool = False,
    headers: dict[str, str] | None = None,
    body: Any = None,
) -> Response:
    """Make one request to *address*; return its response, whose status is one of *statuses*.

    *url* is for messages; *verb* ("read", "write", "list", "remove") and *pinned* choose the error for any other status
    (`_status_error`). *pinned*: True if a version of the object was read before, so that a missing object was deleted
    meanwhile. After a 401 the credentials are renewed, and the request is sent again, up to MAX_RENEWALS times.
    Redirects are not followed.

    Raises: TransientError; StorageError, also for credentials.
    """
    with _translate_auth_errors(url):
        credentials = _credentials()
        for attempt in range(MAX_RENEWALS + 1):
            sent = dict(headers or {})
            credentials.before_request(_request_token, method, address, sent)
            response = GS_CLIENT.request(method, address, url, headers=sent, body=body, follow=False)
            if response.status != 401 or attempt == MAX_RENEWALS:
                break
            response.close()
            credentials.refresh(_request_token)
    if response.status not in statuses:
        raise _status_error(response, verb, pinned)
    return response


def _status_error(response: Response, verb: str, pinned: bool) -> Exception:
    """Return the error that *response* reports (Cloud Storage, JSON API, "HTTP status and error codes"), and close it.

    *verb* was requested. *pinned*: True if a version of the object was read before, so that a missing object was
    deleted meanwhile. StorageError if the bucket is missing: for 404 to any verb but "read", or with "bucket does not
    exist" in the body; else the error by `http.status_error`: TransientError if busy, NoPermissionError for 403, for
    404 NotFoundError (*pinned*: ChangedError), for 412 ExistsError to "write", else ChangedError; StorageError for
    any other status.
    """
    text, url = response.text(), response.url
    if response.status == 404 and (verb != "read" or "bucket does not exist" in text):
        return StorageError(f"no such bucket: {bucket_and_name(url)[0]}", url=url)
    reason = re.search(r'"reason": *"(\w+)"', text)
    return http.status_error(response, verb, pinned=pinned, code=reason[1] if reason else "")


def object_at(url: str) -> Object:
    """Return the object *url*. Raises: UsageError without bucket or name, or if the name is . or .."""
    bucket, name = bucket_and_name(url)
    if not bucket or name in ("", ".", ".."):
        raise UsageError("write gs://BUCKET/OBJECT", url=url)
    return _GsObject(url)


class _GsObject:
    """The object *url* in Google Cloud Storage: reads, removes and makes it, as a `contract.Object`."""

    def __init__(self, url: str) -> None:
        self.url = url
        bucket, name = bucket_and_name(url)
        self.bucket = f"/storage/v1/b/{escape_segment(bucket)}/o"
        self.name = name
        self._path = f"{self.bucket}/{escape_segment(name)}"

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last), of generation *version* unless it is "".

        Without bytes behind *start* the body is empty. Raises: TransientError; StorageError, also if the object or this
        generation does not exist.
        """
        pinned = f"&generation={version}" if version else ""
        # Without this, objects with a Content-Encoding would be decompressed by the server, and have no ranges.
        headers = range_header(start, end) | {"Accept-Encoding": "gzip"}
        address = f"{_server()}/download{self._path}?alt=media{pinned}"
        response = _request("GET", address, self.url, "read", RANGE_STATUSES, pinned=bool(version), headers=headers)
        version = response.headers.get("x-goog-generation", "")
        return http.make_reply(response.status, response.headers, response, self.url, start, version)

    def head(self) -> ListedObject | None:
        """Return size and time of the object, without a version; None if it does not exist.

        Size or time are None if the server does not tell them. Raises: TransientError; StorageError, also if the bucket
        does not exist.
        """
        try:
            response = _request("GET", f"{_server()}{self._path}?fields=size,updated", self.url)
            return response.json(partial(_entry_of, self.url))
        except NotFoundError:
            return None

    def remove(self) -> None:
        """Remove the object, if it exists. Raises: TransientError; StorageError."""
        _request("DELETE", f"{_server()}{self._path}", self.url, "remove", (*DONE_STATUSES, 404)).drain()

    def output(self, force: bool) -> Upload:
        """Return an upload that makes the object at `commit`; unless *force*, that fails if the object exists."""
        return Upload(_Resumable(self, force))


def _entry_of(url: str, about: dict[str, Any]) -> ListedObject:
    """Return the entry of the object *url*, which the JSON *about* describes.

    *about* may have: size, updated, generation, md5Hash, crc32c, as in the JSON API. The checksum is "MD5:" and
    hexadecimal digits, or "CRC32C:" and these if md5Hash is missing. Without size or updated, None takes their place;
    without generation or checksums, "". Raises: ValueError, TypeError or AttributeError for values of another form.
    """
    size, updated = about.get("size"), about.get("updated")
    changed = datetime.fromisoformat(updated).timestamp() if updated else None
    algorithm, encoded = ("MD5", about["md5Hash"]) if about.get("md5Hash") else ("CRC32C", about.get("crc32c", ""))
    checksum = f"{algorithm}:{b64decode(encoded).hex()}" if encoded else ""
    return ListedObject(url, None if size is None else int(size), changed, about.get("generation", ""), checksum)


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return a page of the objects whose URLs begin with *prefix*, in the order of the store.

    *token*: `Page.next` of the page before, "" for the first page. *flat*: only objects without a slash behind
    *prefix*. Raises: TransientError; StorageError.
    """
    bucket, start = bucket_and_name(prefix)
    query = {
        "prefix": start,
        "maxResults": str(LIST_PAGE_OBJECTS),
        "fields": "items(name,size,updated,generation,md5Hash,crc32c),nextPageToken",
    }
    if flat:
        query["delimiter"] = "/"
    if token:
        query["pageToken"] = token
    address = f"{_server()}/storage/v1/b/{escape_segment(bucket)}/o?{urlencode(query, errors='surrogateescape')}"

    def parse_page(response: Any) -> Page:
        """Return the page that *response*, the JSON of a listing, describes.

        Raises: LookupError, ValueError, TypeError or AttributeError if it is other JSON.
        """
        entries = [_entry_of(f"gs://{bucket}/{about['name']}", about) for about in response.get("items", ())]
        return Page(entries, response.get("nextPageToken", ""))

    return _request("GET", address, prefix, "list").json(parse_page)


class _Resumable:
    """The requests of an upload of *target* to GCS, as an `uploads.Target`: `put`; or `begin`, `part`, `complete`.

    Parts go in order, in one session, which tells the number of bytes that it has received. *force*: replace an
    existing object. Source: Cloud Storage documentation, "Perform resumable uploads".
    """

    workers = 1

    def __init__(self, target: _GsObject, force: bool) -> None:
        self.url = target.url
        self._target = target
        self._condition: dict[str, str] = {} if force else {"ifGenerationMatch": "0"}
        self._session = ""
        self._is_doubtful = False  # a request had no response: it may have succeeded
        self._digest, self._digested = hashlib.md5(usedforsecurity=False), 0  # of so many bytes from the first on
        self._resource: dict[str, Any] = {}  # the object, as the server describes it

    def put(self, data: bytearray) -> None:
        """Make the object of *data* by one request, and compare its MD5 or size with the sent data.

        If an earlier attempt failed, perhaps after it had made the object, an object with these bytes is no error.
        Raises: ExistsError; TransientError; StorageError, also if the server stored other data: then it tries to remove
        the object.
        """
        was_doubtful, self._is_doubtful = self._is_doubtful, True
        response = self._post(
            "media",
            Payload(data),
            {"Content-Type": CONTENT_TYPE},
            (*DONE_STATUSES, 412) if was_doubtful else DONE_STATUSES,
        )
        if response.status == 412:
            response.drain()
            if read_all(self._target.get(0, len(data) + 1, "").body, self.url) != data:
                raise ExistsError(self.url)  # by others: not by an earlier attempt that had no response
        else:
            self._resource = _resource(response)
            self._require_stored(0, data)

    def begin(self) -> None:
        """Begin a session, and keep its address for the other requests.

        Raises: ExistsError; TransientError; StorageError.
        """
        response = self._post("resumable", b"", {"X-Upload-Content-Type": CONTENT_TYPE}, DONE_STATUSES)
        response.drain()
        self._session = response.headers.get("Location", "")

    def _post(self, kind: str, body: Any, headers: dict[str, str], expected: tuple[int, ...]) -> Response:
        """Return the response to a POST that inserts the object; its status is one of *expected*.

        *kind*: "media" for all data in *body*, "resumable" for a session. If the server refuses the condition that no
        object exists (400 or 501), `head` looks for one, if this user may read; if it finds none, the request is sent
        again without the condition, as all later ones are. Raises: ExistsError; TransientError; StorageError.
        """
        refusals = (400, 501) if self._condition else ()
        address = self._address(kind)
        response = _request("POST", address, self.url, "write", (*expected, *refusals), body=body, headers=headers)
        if response.status not in refusals:
            return response
        response.drain()
        with suppress(NoPermissionError):  # to read; the server may still take a write
            if self._target.head() is not None:
                raise ExistsError(self.url)
        self._condition = {}
        return self._post(kind, body, headers, expected)

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send *data*, which begins at byte *offset* of the object; the *number* is not used.

        Raises: TransientError; StorageError.
        """
        self._send(offset, data, None)
        self._update_digest(offset, data)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part, *data*, which makes the object appear, and compare the object with the sent data.

        *offset*: the byte of the object at which *data* begins; *number* is not used. Raises: ExistsError;
        TransientError; StorageError, also if the object has other data: then it tries to remove it.
        """
        self._send(offset, data, offset + len(data))
        self._require_stored(offset, data)

    def abort(self) -> None:
        """Drop the session, and the data that it has received; no error if the server has no such session.

        Raises: TransientError; StorageError.
        """
        statuses = (*DONE_STATUSES, 404, 410, 499)  # 499: "client closed request", as is documented
        _request("DELETE", self._session, self.url, "write", statuses, body=b"").drain()

    def _address(self, kind: str) -> str:
        """Return the address of an upload of *kind* "media" or "resumable"."""
        query = {"uploadType": kind, "name": self._target.name} | self._condition
        return f"{_server()}/upload{self._target.bucket}?{urlencode(query, errors='surrogateescape')}"

    def _update_digest(self, offset: int, data: bytearray) -> None:
        """Add *data*, at byte *offset* of the object, to the MD5 of the sent data if it comes next; else do nothing."""
        if offset == self._digested:
            self._digest.update(data)
            self._digested += len(data)

    def _require_stored(self, offset: int, data: bytearray) -> None:
        """Compare the MD5 of the stored object, or its size if the server does not tell the MD5, with the sent data.

        The sent data end in *data*, which begins at byte *offset*. Sizes are compared by `integrity.require_size`.
        Raises: TransientError; StorageError if the object has other data, which it then tries to remove, or is missing.
        """
        self._update_digest(offset, data)
        stored = self._resource.get("md5Hash")
        sent = b64encode(self._digest.digest()).decode()
        if stored is None:
            integrity.require_size(self._target, offset + len(data))
        elif stored != sent:
            integrity.remove_corrupted(self._target)
            raise integrity.corrupted_error(self.url, f"MD5 {sent}", stored)

    def _send(self, offset: int, data: bytearray, total: int | None) -> None:
        """Send the bytes of *data*, which begins at byte *offset* of the object, that the session does not have.

        *total*: the size of the object in bytes if this is the last part, which completes it; else None.
        Raises: TransientError, also if the server has stored none of these bytes; StorageError, also if it has
        lost bytes before *offset*.
        """
        end, size = offset + len(data), "*" if total is None else str(total)
        stored = self._send_range(b"", f"bytes */{size}") if self._is_doubtful else offset
        while stored is not None and (stored < end or total is not None):
            if not offset <= stored <= end:
                raise StorageError("the server has lost a part of the upload", url=self.url)
            before = stored
            place = f"bytes {before}-{end - 1}/{size}" if before < end else f"bytes */{size}"
            stored = self._send_range(Payload(memoryview(data)[before - offset :]), place)
            if stored == before:
                self._is_doubtful = True
                raise TransientError("the server did not store the part")

    def _send_range(self, body: Any, place: str) -> int | None:
        """Send *body* with the header Content-Range *place*; return how many bytes the session has, from the first on.

        *place*: "bytes 0-9/*", "bytes 10-19/20", or without a *body* "bytes */20" or "bytes */*". Returns None if the
        object is complete. Raises: TransientError; StorageError, also if the server has dropped the session.
        """
        self._is_doubtful = True
        statuses, headers = (200, 201, 308, 404, 410), {"Content-Range": place}
        response = _request("PUT", self._session, self.url, "write", statuses, body=body, headers=headers)
        if response.status in (200, 201):
            self._resource = _resource(response)
        response.drain()
        if response.status in (404, 410):
            raise StorageError("the server has dropped the upload", url=self.url)
        self._is_doubtful = False
        if response.status != 308:
            return None
        match = re.fullmatch(r"bytes=0-([1-9]\d*)", response.headers.get("Range", ""))  # 0-0 of the emulator is nothing
        return int(match[1]) + 1 if match else 0


def _resource(response: Response) -> dict[str, Any]:
    """Return the JSON object in *response*, which describes the stored object; {} if it has none, or can't be read.

    Closes the response.
    """
    try:
        resource = json.loads(response.text())
    except ValueError:
        return {}
    return resource if isinstance(resource, dict) else {}
