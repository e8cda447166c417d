"""Objects on web servers: ranges, entity tags, and PUT of what is complete (RFC 9110)."""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import requests
from requests.structures import CaseInsensitiveDict

from tartools.errors import StorageError, UsageError
from tartools.storage.requesting import (
    Payload,
    ask,
    finish,
    moment,
    ranged,
    refused,
    reply,
    send,
    session,
    size_of,
)
from tartools.storage.scratch import scratch_file
from tartools.storage.stores import Listed, NoPermission, Page, Reply
from tartools.storage.tries import persist

STARTS_ANYWHERE = False
STRONG = 60  # seconds from the last change to the answer, after which a date stands for the bytes


def opened(url: str) -> WebObject:
    """Return the object *url*. Raises: UsageError if it names no server."""
    try:
        named = bool(urlsplit(url).hostname)
    except ValueError:
        named = False
    if not named:
        raise UsageError("write http://HOST/PATH", url=url)
    return WebObject(url)


def page(prefix: str, token: str, after: str, flat: bool) -> Page:
    """Raise StorageError: web servers have no listings that programs could rely on."""
    raise StorageError("web servers cannot be listed; name the URLs by braces, or in a list (-T)", url=prefix)


def _version(headers: CaseInsensitiveDict[str]) -> str:
    """Return the condition, a header line, that an answer with *headers* would fulfil again; "" if none is certain.

    Source: RFC 9110, 8.8.1 (strong and weak), 8.8.2.2 (dates), 13.1.1 and 13.1.4 (conditions).
    """
    tag = headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return f"If-Match: {tag}"
    changed, answered = headers.get("Last-Modified", ""), moment(headers.get("Date", ""))
    when = moment(changed)
    if when is None or answered is None or answered - when < STRONG:
        return ""
    return f"If-Unmodified-Since: {changed}"


class WebObject:
    """What a web server has at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Ask for the bytes *start* to *end*; see `stores.Object`."""
        headers = ranged(start, end)
        if version:
            name, _, value = version.partition(": ")
            headers[name] = value
        response = self.ask("GET", headers)
        if response.status_code not in (200, 206, 416):
            raise refused(response, self.url, pinned=bool(version))
        return reply(response, self.url, start, _version(response.headers))

    def head(self) -> Listed | None:
        """Return size and time; None if it is not there."""
        response = self.ask("HEAD")
        status = response.status_code
        if status in (404, 410):
            finish(response)
            return None
        if status in (405, 501):
            finish(response)
            raise StorageError(
                f"this server does not say what it has ({status} to HEAD); --force writes it", url=self.url
            )
        if status not in (200, 204):
            raise refused(response, self.url)
        finish(response)
        return Listed(self.url, size_of(response), moment(response.headers.get("Last-Modified", "")))

    def ask(self, method: str, headers: dict[str, str] | None = None) -> requests.Response:
        """Return the answer to one request without a body."""
        return ask(session("web"), method, self.url, self.url, headers=headers, follow=True)

    def output(self, force: bool) -> WebOutput:
        """Return an output that makes this object."""
        return WebOutput(self, force)


class WebOutput:
    """An output that is sent when it is complete, by one PUT; until then it is a file without a name."""

    streaming = False

    def __init__(self, made: WebObject, force: bool) -> None:
        self._made = made
        self._force = force
        self._doubtful = False  # a try was sent, and nobody knows what came of it
        self.sink = scratch_file()

    def commit(self) -> None:
        """Send everything. Raises: StorageError, also if the object exists by then and is not to be replaced."""
        if not self._force:
            self._check_absent()
        persist(self._put, self._made.url)
        self.sink.close()

    def abort(self) -> None:
        """Forget everything."""
        self.sink.close()

    def _check_absent(self) -> None:
        """Raise StorageError if the object is there: some servers ignore If-None-Match."""
        try:
            there = persist(self._made.head, self._made.url)
        except NoPermission:
            return  # the server will say when it is asked to write
        if there is not None:
            raise StorageError("this exists already; --force replaces it", url=self._made.url)

    def _put(self) -> None:
        """Try once to send the file."""
        url, file = self._made.url, self.sink.fileno()
        body = Payload(os.fstat(file).st_size, lambda start, end: os.pread(file, end - start, start))
        unless = {} if self._force else {"If-None-Match": "*"}
        again, self._doubtful = self._doubtful, True
        response = send(session("web"), "PUT", url, url, body, headers=unless)
        if response.status_code in (200, 201, 204):
            finish(response)
            return
        if response.status_code in (405, 501):
            finish(response)
            raise StorageError("this server takes no uploads (PUT): write a file, or to s3:, gs: or ais:", url=url)
        if response.status_code == 412 and again:
            finish(response)
            raise StorageError("this exists now; an earlier try, which had no answer, may have written it", url=url)
        raise refused(response, url, "write")
