"""Objects in Google Cloud Storage, by its JSON API and resumable uploads.

Credentials are those that google.auth finds; with `STORAGE_EMULATOR_HOST` set there are none. A name is taken as it
is: blanks, %, # and ? are letters of it.
"""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
import requests
from google.auth import exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession

from tartools.errors import StorageError, UsageError
from tartools.storage import requesting
from tartools.storage.requesting import Absent, document, finish, message, payload, ranged, whole
from tartools.storage.stores import Listed, Page, Reply
from tartools.storage.tries import Passing
from tartools.storage.uploads import Upload

STARTS_ANYWHERE = True
SERVER = "https://storage.googleapis.com"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
PAGE = 1000  # objects, the most there are in one
TYPE = "application/octet-stream"


def _server() -> str:
    """Return the URL of the server."""
    host = os.environ.get("STORAGE_EMULATOR_HOST", "").rstrip("/")
    return SERVER if not host else host if "://" in host else f"http://{host}"


def _authorized() -> requests.Session:
    """Return a session that adds credentials; without any, that takes google.auth up to 12 seconds to find out."""
    if _server() == SERVER:
        credentials, _ = google.auth.default(scopes=[SCOPE])
    else:
        credentials = AnonymousCredentials()
    made = AuthorizedSession(credentials)
    made.auth = lambda request: request  # a default entry in .netrc would take the place of the credentials
    return made


def _ask(
    method: str, address: str, url: str, *, headers: dict[str, str] | None = None, body: Any = None
) -> requests.Response:
    """Return the answer to one request. Raises: as `requesting.ask`; StorageError for credentials."""
    try:
        through = requesting.session(f"gs {_server()}", _authorized)
        return requesting.ask(through, method, address, url, headers=headers, body=body)
    except exceptions.DefaultCredentialsError:
        advice = "set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth application-default login"
        raise StorageError(f"no usable Google credentials: {advice}", url=url) from None
    except exceptions.TransportError:
        raise Passing("cannot reach the server that Google's credentials are from") from None
    except exceptions.GoogleAuthError:
        advice = "gcloud auth application-default login renews them"
        raise StorageError(f"the Google credentials are not accepted; {advice}", url=url) from None


def _refused(response: requests.Response, url: str, what: str = "read", pinned: bool = False) -> Exception:
    """Return what an answer that is an error means (Cloud Storage, JSON API, "HTTP status and error codes")."""
    try:
        text = message(response, url).decode("utf-8", "replace")
    except (Passing, StorageError):
        text = ""
    if response.status_code == 404 and (what != "read" or "bucket does not exist" in text):
        return StorageError(f"there is no bucket {_split(url)[0]}", url=url)
    reason = re.search(r'"reason": *"(\w+)"', text)
    return requesting.refused(response, url, what, pinned=pinned, code=reason[1] if reason else "")


def _split(url: str) -> tuple[str, str]:
    """Return bucket and name of the object of *url*; the name may be empty."""
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def _escaped(name: str) -> str:
    """Return *name* as one step of a path. No name has bytes that are not UTF-8: the server refuses them."""
    return quote(name, safe="", errors="surrogateescape")


def opened(url: str) -> GsObject:
    """Return the object *url*. Raises: UsageError if it names none."""
    bucket, name = _split(url)
    if not bucket or name in ("", ".", ".."):
        raise UsageError("write gs://BUCKET/OBJECT", url=url)
    return GsObject(url)


class GsObject:
    """One object in a bucket."""

    def __init__(self, url: str) -> None:
        self.url = url
        bucket, name = _split(url)
        self.bucket = f"/storage/v1/b/{_escaped(bucket)}/o"
        self.name = name
        self._path = f"{self.bucket}/{_escaped(name)}"

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Ask for the bytes *start* to *end*; see `stores.Object`. A version is a generation."""
        pinned = f"&generation={version}" if version else ""
        # Else what is stored with a Content-Encoding would be decompressed on its way, and have no ranges.
        headers = ranged(start, end) | {"Accept-Encoding": "gzip"}
        response = _ask("GET", f"{_server()}/download{self._path}?alt=media{pinned}", self.url, headers=headers)
        if response.status_code not in (200, 206, 416):
            raise _refused(response, self.url, pinned=bool(version))
        return requesting.reply(response, self.url, start, response.headers.get("x-goog-generation", ""))

    def head(self) -> Listed | None:
        """Return size and time; None if it is not there."""
        response = _ask("GET", f"{_server()}{self._path}?fields=size,updated", self.url)
        if response.status_code == 200:
            return _listed(self.url, document(response, self.url))
        error = _refused(response, self.url)
        if isinstance(error, Absent):
            return None
        raise error

    def output(self, force: bool) -> Upload:
        """Return an output that makes this object."""
        return Upload(_Resumable(self, force))


def _listed(url: str, about: dict[str, Any]) -> Listed:
    size, updated = about.get("size"), about.get("updated")
    return Listed(
        url, None if size is None else int(size), datetime.fromisoformat(updated).timestamp() if updated else None
    )


def page(prefix: str, token: str, after: str, flat: bool) -> Page:
    """Return a page of the objects whose URL begins with *prefix*; see `stores.Store`."""
    bucket, start = _split(prefix)
    query = {"prefix": start, "maxResults": str(PAGE), "fields": "items(name,size,updated),nextPageToken"}
    if flat:
        query["delimiter"] = "/"
    if token:
        query["pageToken"] = token
    if after:
        query["startOffset"] = _split(after)[1]
    address = f"{_server()}/storage/v1/b/{_escaped(bucket)}/o?{urlencode(query, errors='surrogateescape')}"
    response = _ask("GET", address, prefix)
    if response.status_code != 200:
        raise _refused(response, prefix, "list")
    found = document(response, prefix)
    entries = [_listed(f"gs://{bucket}/{about['name']}", about) for about in found.get("items", ())]
    return Page([entry for entry in entries if entry.url > after], found.get("nextPageToken", ""))


class _Resumable:
    """A resumable upload: parts in their order, by one session, which knows how much it has.

    Source: Cloud Storage documentation, "Perform resumable uploads".
    """

    workers = 1

    def __init__(self, made: GsObject, force: bool) -> None:
        self.url = made.url
        self._made = made
        self._query = {"name": made.name} | ({} if force else {"ifGenerationMatch": "0"})
        self._session = ""
        self._doubtful = False  # a request was sent, and nobody knows what came of it

    def put(self, data: bytearray) -> None:
        """Make the object of *data*."""
        again, self._doubtful = self._doubtful, True
        response = _ask("POST", self._address("media"), self.url, body=payload(data), headers={"Content-Type": TYPE})
        if response.status_code == 412 and again:
            finish(response)
            return self._recognise(data)
        if response.status_code != 200:
            raise _refused(response, self.url, "write")
        return finish(response)

    def _recognise(self, data: bytearray) -> None:
        """Do nothing if the object is what an earlier try, which had no answer, has written; else raise."""
        if whole(self._made.get(0, len(data) + 1, "").body, self.url) != data:
            raise StorageError("this exists already; --force replaces it", url=self.url)

    def begin(self) -> None:
        """Begin a session."""
        response = _ask("POST", self._address("resumable"), self.url, body=b"", headers={"X-Upload-Content-Type": TYPE})
        if response.status_code != 200:
            raise _refused(response, self.url, "write")
        finish(response)
        self._session = response.headers["Location"]

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send one part."""
        self._send(offset, data, None)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part, which makes the object appear."""
        self._send(offset, data, offset + len(data))

    def abort(self) -> None:
        """Drop the session."""
        response = _ask("DELETE", self._session, self.url, body=b"")
        if response.status_code not in (200, 204, 404, 410, 499):  # 499: "client closed request", as is documented
            raise _refused(response, self.url, "write")
        finish(response)

    def _address(self, kind: str) -> str:
        query = {"uploadType": kind} | self._query
        return f"{_server()}/upload{self._made.bucket}?{urlencode(query, errors='surrogateescape')}"

    def _send(self, offset: int, data: bytearray, total: int | None) -> None:
        """Send what the server has not got of *data*, which begins at *offset*; *total* bytes are all of the object."""
        end, size = offset + len(data), "*" if total is None else str(total)
        kept = self._kept(b"", f"bytes */{size}") if self._doubtful else offset
        while kept is not None and (kept < end or total is not None):
            if not offset <= kept <= end:
                raise StorageError("the server has lost what was sent", url=self.url)
            before = kept
            body = payload(memoryview(data)[before - offset :])
            kept = self._kept(body, f"bytes {before}-{end - 1}/{size}" if len(body) else f"bytes */{size}")
            if kept == before:
                self._doubtful = True
                raise Passing("the server kept nothing of what was sent")

    def _kept(self, body: Any, place: str) -> int | None:
        """Send *body*, or a question, for *place*; return how many bytes the server has, None if it has the object."""
        self._doubtful = True
        response = _ask("PUT", self._session, self.url, body=body, headers={"Content-Range": place})
        if response.status_code in (200, 201):
            finish(response)
            self._doubtful = False
            return None
        if response.status_code in (404, 410):
            finish(response)
            raise StorageError("the server has dropped this upload", url=self.url)
        if response.status_code != 308:
            raise _refused(response, self.url, "write")
        finish(response)
        self._doubtful = False
        found = re.fullmatch(r"bytes=0-([1-9]\d*)", response.headers.get("Range", ""))  # the emulator's 0-0 is nothing
        return int(found[1]) + 1 if found else 0
