"""Objects in Google Cloud Storage, by its JSON API and resumable uploads.

Credentials are those that google.auth finds; with `STORAGE_EMULATOR_HOST` set there are none. Names are taken
literally: blanks, %, # and ? have no special meaning.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
import requests
from google.auth import exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession, Request

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError
from tartools.storage.objects import http, quick
from tartools.storage.objects.contract import Listed, Page, Reply
from tartools.storage.objects.http import drain, payload, range_header, read_all, read_json, read_short
from tartools.storage.objects.retry import TransientError
from tartools.storage.objects.uploads import Upload

LISTS_IN_PARALLEL = True
SERVER = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
PAGE = 1000  # objects, the largest page
TYPE = "application/octet-stream"


def _server() -> str:
    """Return the URL of the server."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return SERVER if not host else host if "://" in host else f"http://{host}"


def _authorized() -> requests.Session:
    """Return a session that adds credentials. Without any, google.auth takes up to 12 seconds to find that out."""
    if _server() == SERVER:
        credentials, _ = google.auth.default(scopes=[SCOPE])
    else:
        credentials = AnonymousCredentials()
    made = AuthorizedSession(credentials)
    made.auth = lambda request: request  # else a default entry in .netrc would replace the credentials
    return made


def _through() -> Any:
    """Return the session of this process for the server."""
    return http.session(f"gs {_server()}", _authorized)


@functools.cache
def _renewal(process: int) -> Request:
    """Return what renews the credentials of *process*: making one takes as long as a small request."""
    return Request()


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """Turn failures of credentials into StorageError, or TransientError."""
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
    method: str, address: str, url: str, *, headers: dict[str, str] | None = None, body: Any = None
) -> requests.Response:
    """Return the response to one request. Raises: as `http.request`; StorageError for credentials."""
    with _translated(url):
        return http.request(_through(), method, address, url, headers=headers, body=body)


def _quickly(address: str, url: str, headers: dict[str, str]) -> Any:
    """Return the response to a GET as `quick.answer` does. Raises: as `_request`."""
    with _translated(url):
        made = dict(headers)
        _through().credentials.before_request(_renewal(os.getpid()), "GET", address, made)
        return quick.answer(address, made)


def _status_error(response: requests.Response, url: str, what: str = "read", pinned: bool = False) -> Exception:
    """Return the failure that *response* reports (Cloud Storage, JSON API, "HTTP status and error codes")."""
    try:
        text = read_short(response, url).decode("utf-8", "replace")
    except (TransientError, StorageError):
        text = ""
    if response.status_code == 404 and (what != "read" or "bucket does not exist" in text):
        return StorageError(f"no such bucket: {_parsed(url)[0]}", url=url)
    reason = re.search(r'"reason": *"(\w+)"', text)
    return http.status_error(response, url, what, pinned=pinned, code=reason[1] if reason else "")


def _parsed(url: str) -> tuple[str, str]:
    """Return bucket and name of the object of *url*; the name may be empty."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def _escaped(name: str) -> str:
    """Return *name* escaped as one segment of a path. The server refuses names that are not UTF-8."""
    return quote(name, safe="", errors="surrogateescape")


def object_at(url: str) -> GsObject:
    """Return the object *url*. Raises: UsageError if it does not name one."""
    bucket, name = _parsed(url)
    if not bucket or name in ("", ".", ".."):
        raise UsageError("write gs://BUCKET/OBJECT", url=url)
    return GsObject(url)


class GsObject:
    """One object in a bucket."""

    def __init__(self, url: str) -> None:
        self.url = url
        bucket, name = _parsed(url)
        self.bucket = f"/storage/v1/b/{_escaped(bucket)}/o"
        self.name = name
        self._path = f"{self.bucket}/{_escaped(name)}"

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end*; see `contract.Object`. A version is a generation."""
        pinned = f"&generation={version}" if version else ""
        # Without this, objects with a Content-Encoding would be decompressed by the server, and have no ranges.
        headers = range_header(start, end) | {"Accept-Encoding": "gzip"}
        address = f"{_server()}/download{self._path}?alt=media{pinned}"
        response = _quickly(address, self.url, headers) if pinned and end is not None else None
        if response is None:
            response = _request("GET", address, self.url, headers=headers)
        if response.status_code not in (200, 206, 416):
            raise _status_error(response, self.url, pinned=bool(version))
        return http.reply(response, self.url, start, response.headers.get("x-goog-generation", ""))

    def head(self) -> Listed | None:
        """Return size and time; None if it does not exist."""
        response = _request("GET", f"{_server()}{self._path}?fields=size,updated", self.url)
        if response.status_code == 200:
            return _listed(self.url, read_json(response, self.url))
        error = _status_error(response, self.url)
        if isinstance(error, NotFoundError):
            return None
        raise error

    def remove(self) -> None:
        """Remove it; see `contract.Object`."""
        response = _request("DELETE", f"{_server()}{self._path}", self.url)
        if response.status_code not in (200, 204, 404):
            raise _status_error(response, self.url, "remove")
        drain(response)

    def output(self, force: bool) -> Upload:
        """Return an output that makes this object."""
        return Upload(_Resumable(self, force))


def _listed(url: str, about: dict[str, Any]) -> Listed:
    size, updated = about.get("size"), about.get("updated")
    changed = datetime.fromisoformat(updated).timestamp() if updated else None
    return Listed(url, None if size is None else int(size), changed, about.get("generation", ""))


def page(prefix: str, token: str, after: str, flat: bool) -> Page:
    """Return a page of the objects whose URLs begin with *prefix*; see `contract.Store`."""
    bucket, start = _parsed(prefix)
    query = {"prefix": start, "maxResults": str(PAGE), "fields": "items(name,size,updated,generation),nextPageToken"}
    if flat:
        query["delimiter"] = "/"
    if token:
        query["pageToken"] = token
    if after:
        query["startOffset"] = _parsed(after)[1]
    address = f"{_server()}/storage/v1/b/{_escaped(bucket)}/o?{urlencode(query, errors='surrogateescape')}"
    response = _request("GET", address, prefix)
    if response.status_code != 200:
        raise _status_error(response, prefix, "list")
    found = read_json(response, prefix)
    entries = [_listed(f"gs://{bucket}/{about['name']}", about) for about in found.get("items", ())]
    return Page([entry for entry in entries if entry.url > after], found.get("nextPageToken", ""))


class _Resumable:
    """A resumable upload: parts in order, in one session, which tells how much it has received.

    Source: Cloud Storage documentation, "Perform resumable uploads".
    """

    workers = 1

    def __init__(self, made: GsObject, force: bool) -> None:
        self.url = made.url
        self._made = made
        self._query = {"name": made.name} | ({} if force else {"ifGenerationMatch": "0"})
        self._session = ""
        self._doubtful = False  # a request had no response: it may have succeeded

    def put(self, data: bytearray) -> None:
        """Make the object of *data*."""
        again, self._doubtful = self._doubtful, True
        response = _request(
            "POST", self._address("media"), self.url, body=payload(data), headers={"Content-Type": TYPE}
        )
        if response.status_code == 412 and again:
            drain(response)
            return self._check_written(data)
        if response.status_code != 200:
            raise _status_error(response, self.url, "write")
        return drain(response)

    def _check_written(self, data: bytearray) -> None:
        """Raise StorageError unless the object is *data*, written by an earlier attempt that had no response."""
        if read_all(self._made.get(0, len(data) + 1, "").body, self.url) != data:
            raise ExistsError(self.url)

    def begin(self) -> None:
        """Begin a session."""
        response = _request(
            "POST", self._address("resumable"), self.url, body=b"", headers={"X-Upload-Content-Type": TYPE}
        )
        if response.status_code != 200:
            raise _status_error(response, self.url, "write")
        drain(response)
        self._session = response.headers["Location"]

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send one part."""
        self._send(offset, data, None)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part, which makes the object appear."""
        self._send(offset, data, offset + len(data))

    def abort(self) -> None:
        """Drop the session."""
        response = _request("DELETE", self._session, self.url, body=b"")
        if response.status_code not in (200, 204, 404, 410, 499):  # 499: "client closed request", as is documented
            raise _status_error(response, self.url, "write")
        drain(response)

    def _address(self, kind: str) -> str:
        query = {"uploadType": kind} | self._query
        return f"{_server()}/upload{self._made.bucket}?{urlencode(query, errors='surrogateescape')}"

    def _send(self, offset: int, data: bytearray, total: int | None) -> None:
        """Send what the server lacks of *data*, which begins at byte *offset* of an object of *total* bytes."""
        end, size = offset + len(data), "*" if total is None else str(total)
        kept = self._kept(b"", f"bytes */{size}") if self._doubtful else offset
        while kept is not None and (kept < end or total is not None):
            if not offset <= kept <= end:
                raise StorageError("the server has lost a part of the upload", url=self.url)
            before = kept
            body = payload(memoryview(data)[before - offset :])
            kept = self._kept(body, f"bytes {before}-{end - 1}/{size}" if len(body) else f"bytes */{size}")
            if kept == before:
                self._doubtful = True
                raise TransientError("the server did not store the part")

    def _kept(self, body: Any, place: str) -> int | None:
        """Send *body* as Content-Range *place*; return how many bytes the server has, None for all."""
        self._doubtful = True
        response = _request("PUT", self._session, self.url, body=body, headers={"Content-Range": place})
        if response.status_code in (200, 201):
            drain(response)
            self._doubtful = False
            return None
        if response.status_code in (404, 410):
            drain(response)
            raise StorageError("the server has dropped the upload", url=self.url)
        if response.status_code != 308:
            raise _status_error(response, self.url, "write")
        drain(response)
        self._doubtful = False
        found = re.fullmatch(r"bytes=0-([1-9]\d*)", response.headers.get("Range", ""))  # 0-0 of the emulator is nothing
        return int(found[1]) + 1 if found else 0
