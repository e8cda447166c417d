"""Objects on web servers: ranges, entity tags, and PUT of complete files (RFC 9110)."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from itertools import count
from urllib.parse import urlsplit

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError, option
from tartools.storage.objects import exists, integrity
from tartools.storage.objects.contract import ListedObject, Object, Page, Reply
from tartools.storage.objects.http import (
    DONE_STATUSES,
    RANGE_STATUSES,
    Client,
    Response,
    content_length,
    make_reply,
    netrc_header,
    parse_date,
    range_header,
    status_error,
)
from tartools.storage.objects.retry import call_with_retries
from tartools.storage.scratch import SentOutput, reopen_scratch
from tartools.storage.url import Url

NO_LISTINGS = "web servers cannot be listed; give the URLs with braces, or in a file (-T)"
STRONG_DATE_SECONDS = 60  # seconds since the last change, after which its date identifies a version
WEB_CLIENT = Client(netrc_header)


def object_at(url: str) -> Object:
    """Return the object *url*. Raises: UsageError without a host, or if *url* is not valid."""
    try:
        has_host = bool(urlsplit(url).hostname)
    except ValueError:
        has_host = False
    if not has_host:
        raise UsageError("write http://HOST/PATH", url=url)
    return _WebObject(url)


def page(prefix: str, token: str, flat: bool) -> Page:
    """Raise StorageError: web servers have no listings that programs can rely on.

    *prefix*: the URL, for the message; *token* and *flat* are not used.
    """
    raise StorageError(NO_LISTINGS, url=prefix)


def _version(headers: Mapping[str, str]) -> str:
    """Return the version of a response with *headers*, as a header line to be sent as a condition; "" if there is none.

    "If-Match: ETAG", unless that is weak ("W/…"); else "If-Unmodified-Since: DATE" with the date of Last-Modified, if
    the header Date is STRONG_DATE_SECONDS or more after it. Source: RFC 9110, 8.8.1 (strong and weak), 8.8.2.2 (dates),
    13.1.1 and 13.1.4 (conditions).
    """
    tag = headers.get("ETag", "")
    if tag and not tag.startswith("W/"):
        return f"If-Match: {tag}"
    changed, answered = headers.get("Last-Modified", ""), parse_date(headers.get("Date", ""))
    when = parse_date(changed)
    if when is None or answered is None or answered - when < STRONG_DATE_SECONDS:
        return ""
    return f"If-Unmodified-Since: {changed}"


def _error_code(response: Response) -> str:
    """Return "CODE: MESSAGE" of an error in XML, as S3 and GCS send it, or "CODE" or "MESSAGE" alone; "" for none.

    It may say that the signature of the URL has expired. A part with over 80 characters, or with others than letters,
    digits, blanks and _.,'- is left out. Reads and closes *response*, if its type is XML.
    """
    text = response.text() if "xml" in response.headers.get("Content-Type", "") else ""
    matches = [re.search(rf"<{name}>([\w .,'-]{{1,80}})</{name}>", text) for name in ("Code", "Message")]
    return ": ".join(text_match[1] for text_match in matches if text_match)


class _WebObject:
    """The object *url* of a web server: reads and makes it, as a `contract.Object`.

    *address*: the URL of its HEAD requests, if the server redirects uploads; "" for *url*.
    """

    def __init__(self, url: str, address: str = "") -> None:
        self.url = url
        self._address = address or url  # another one if the server redirects uploads

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last), under the condition *version*.

        *version*: a header line, "If-Match: ETAG" or "If-Unmodified-Since: DATE"; "" for none. The reply begins at byte
        0 if the server ignores ranges. Raises: TransientError; NoPermissionError for 403; NotFoundError for 404 and
        410, but ChangedError if *version* is given, and for 412; StorageError for all other failures.
        """
        headers = range_header(start, end)
        if version:
            name, _, value = version.partition(": ")
            headers[name] = value
        response = WEB_CLIENT.request("GET", self.url, self.url, headers=headers)
        if response.status not in RANGE_STATUSES:
            code = _error_code(response) if response.status in (400, 401, 403) else ""
            error = status_error(response, pinned=bool(version), code=code)
            if isinstance(error, NotFoundError):
                advice = f" ({NO_LISTINGS})" if "*" in Url(self.url).name else ""
                raise NotFoundError(f"{response.status} {HTTPStatus(response.status).phrase}{advice}", url=self.url)
            raise error
        return make_reply(response.status, response.headers, response, self.url, start, _version(response.headers))

    def head(self) -> ListedObject | None:
        """Return size, time and version of the object; None if it does not exist (404, 410).

        Size and time are None, the version is "", if the server does not state them. Raises: TransientError;
        NoPermissionError for 403; StorageError, also if the server does not know HEAD.
        """
        response = WEB_CLIENT.request("HEAD", self._address, self.url)
        about, status = response.headers, response.status
        response.drain()
        if status in (404, 410):
            return None
        if status in (405, 501):
            raise StorageError(
                f"the server does not say whether this exists ({status} to HEAD); {option('force')} writes it",
                url=self.url,
            )
        if status not in (200, 204):
            raise status_error(response)
        return ListedObject(
            self.url,
            content_length(about),
            parse_date(about.get("Last-Modified", "")),
            _version(about),
        )

    def remove(self) -> None:
        """Raise StorageError: nothing is removed from web servers, since few allow it."""
        raise StorageError("nothing is removed from web servers", url=self.url)

    def output(self, force: bool) -> SentOutput:
        """Return an output, kept in a scratch file, that is sent by one PUT at `commit`, with retries.

        Unless *force*, `commit` raises ExistsError if the object exists. Raises: StorageError without a scratch file.
        """
        return SentOutput(partial(self._send, force))

    def _send(self, force: bool, sink: io.FileIO) -> None:
        """Send all of *sink*, a scratch file, by one PUT, with retries; before, unless *force*, check that none exists.

        Raises: ExistsError if the object exists then, or by the time of the first PUT; StorageError.
        """
        if not force and exists(self.url):  # some servers ignore If-None-Match
            raise ExistsError(self.url)
        tries = count()
        with reopen_scratch(sink) as file:
            call_with_retries(lambda: self._put(file, force, next(tries) > 0), self.url)

    def _put(self, body: io.BufferedReader, force: bool, is_repeated: bool) -> None:
        """Send the file *body* by one PUT, one attempt, and compare the size that the server then has, if it tells it.

        *force*: replace an existing object. If the server does not know the condition that none exists (400, 501), a
        second PUT is sent without it. *is_repeated*: an earlier attempt failed, but may have written the object.
        Raises: ExistsError if the object exists (*is_repeated*: a plain StorageError); TransientError; StorageError,
        also if the server has another size.
        """
        condition = {} if force else {"If-None-Match": "*"}
        response = WEB_CLIENT.request("PUT", self.url, self.url, headers=condition, body=body)
        if response.status in (400, 501) and condition:  # the server may not know the condition; `_send` has looked
            response.close()
            response = WEB_CLIENT.request("PUT", self.url, self.url, body=body)
        if response.status in DONE_STATUSES:
            response.drain()
            return integrity.require_size(_WebObject(self.url, response.address), body.seek(0, io.SEEK_END))
        response.close()
        if response.status in (405, 501):
            raise StorageError(
                "the server does not accept uploads (PUT): write to a file, or to s3:, gs: or ais:", url=self.url
            )
        if response.status in (404, 409):
            phrase = f"{response.status} {HTTPStatus(response.status).phrase}"
            reason = "the folder does not exist, or the server does not accept uploads (PUT)"
            raise StorageError(f"cannot write: {reason}: {phrase}", url=self.url)
        if response.status == 412 and is_repeated:
            raise StorageError("exists now; an earlier try, which had no response, may have written it", url=self.url)
        raise status_error(response, "write")
