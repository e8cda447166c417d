"""Objects on web servers: ranges, entity tags, and PUT of what is complete (RFC 9110)."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict

from tartools.errors import ExistsError, StorageError, UsageError, option
from tartools.storage.objects import quick
from tartools.storage.objects.contract import Listed, NoPermissionError, Page, Reply
from tartools.storage.objects.http import (
    Payload,
    content_length,
    drain,
    parse_date,
    range_header,
    reply,
    request,
    send,
    session,
    status_error,
)
from tartools.storage.objects.retry import with_retries
from tartools.storage.scratch import scratch_file

LISTS_IN_PARALLEL = False
STRONG = 60  # seconds since the last change, after which its date identifies a version


def object_at(url: str) -> WebObject:
    """Return the object *url*. Raises: UsageError if it does not name a server."""
    try:
        named = bool(urlsplit(url).hostname)
    except ValueError:
        named = False
    if not named:
        raise UsageError("write http://HOST/PATH", url=url)
    return WebObject(url)


def page(prefix: str, token: str, after: str, flat: bool) -> Page:
    """Raise StorageError: web servers have no listings that programs can rely on."""
    raise StorageError("web servers cannot be listed; give the URLs with braces, or in a file (-T)", url=prefix)


def _version(headers: CaseInsensitiveDict[str]) -> str:
    """Return the condition, a header line, that holds as long as the object has not changed; "" if there is none.

    Source: RFC 9110, 8.8.1 (strong and weak), 8.8.2.2 (dates), 13.1.1 and 13.1.4 (conditions).
    """
    tag = headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return f"If-Match: {tag}"
    changed, answered = headers.get("Last-Modified", ""), parse_date(headers.get("Date", ""))
    when = parse_date(changed)
    if when is None or answered is None or answered - when < STRONG:
        return ""
    return f"If-Unmodified-Since: {changed}"


class WebObject:
    """An object on a web server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._quick = True  # until it is redirected, or needs what only `requests` has

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end*; see `contract.Object`."""
        headers = range_header(start, end)
        if version:
            name, _, value = version.partition(": ")
            headers[name] = value
        response: Any = None
        if self._quick and version and end is not None:
            response = quick.answer(self.url, headers)
        if response is None:
            response = self.request("GET", headers)
            self._quick = not version and not response.history
        if response.status_code not in (200, 206, 416):
            raise status_error(response, self.url, pinned=bool(version))
        return reply(response, self.url, start, _version(response.headers))

    def head(self) -> Listed | None:
        """Return size and time; None if it does not exist."""
        response = self.request("HEAD")
        status = response.status_code
        if status in (404, 410):
            drain(response)
            return None
        if status in (405, 501):
            drain(response)
            raise StorageError(
                f"the server does not tell whether this exists ({status} to HEAD); {option('force')} writes it",
                url=self.url,
            )
        if status not in (200, 204):
            raise status_error(response, self.url)
        drain(response)
        about = response.headers
        return Listed(self.url, content_length(response), parse_date(about.get("Last-Modified", "")), _version(about))

    def request(self, method: str, headers: dict[str, str] | None = None) -> requests.Response:
        """Return the response to one request without a body."""
        return request(session("web"), method, self.url, self.url, headers=headers, follow=True)

    def remove(self) -> None:
        """Raise StorageError: few web servers let their files be removed."""
        raise StorageError("nothing is removed from web servers", url=self.url)

    def output(self, force: bool) -> WebOutput:
        """Return an output that makes this object."""
        return WebOutput(self, force)


class WebOutput:
    """An output that is sent when it is complete, by one PUT; until then it is a file without a name."""

    streaming = False

    def __init__(self, made: WebObject, force: bool) -> None:
        self._made = made
        self._force = force
        self._doubtful = False  # an attempt had no response: it may have succeeded
        self.sink = scratch_file()

    def commit(self) -> None:
        """Send everything. Raises: StorageError, also if the object exists by then and may not be replaced."""
        if not self._force:
            self._check_absent()
        with_retries(self._put, self._made.url)
        self.sink.close()

    def abort(self) -> None:
        """Drop everything."""
        self.sink.close()

    def _check_absent(self) -> None:
        """Raise StorageError if the object exists: some servers ignore If-None-Match."""
        try:
            found = with_retries(self._made.head, self._made.url)
        except NoPermissionError:
            return  # then the server refuses the write
        if found is not None:
            raise ExistsError(self._made.url)

    def _put(self) -> None:
        """Send the file, one attempt."""
        url, file = self._made.url, self.sink.fileno()
        body = Payload(os.fstat(file).st_size, lambda start, end: os.pread(file, end - start, start))
        unless = {} if self._force else {"If-None-Match": "*"}
        again, self._doubtful = self._doubtful, True
        response = send(session("web"), "PUT", url, url, body, headers=unless)
        if response.status_code in (200, 201, 204):
            drain(response)
            return
        if response.status_code in (405, 501):
            drain(response)
            raise StorageError(
                "the server does not accept uploads (PUT): write to a file, or to s3:, gs: or ais:", url=url
            )
        if response.status_code == 412 and again:
            drain(response)
            raise StorageError("exists now; an earlier try, which had no response, may have written it", url=url)
        raise status_error(response, url, "write")
