"""Objects in AIStore, by its native HTTP API.

`AIS_ENDPOINT` is the URL of the proxy, which redirects requests for objects to targets; `AIS_AUTHN_TOKEN` the token, if
one is needed; `AIS_CLIENT_CA` and `AIS_SKIP_VERIFY` are for TLS. `ais://BUCKET/OBJECT` is in the cluster itself;
objects of `aws:` and `gcp:` are in a store behind it; `?provider=NAME` at the end of an `ais:` URL names any other such
store. The rest of a name is taken literally.

Source: AIStore, docs/http_api.md, and its Python SDK (obj/multipart_upload.py, request_client.py, bucket.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError
from tartools.storage.objects import http, integrity
from tartools.storage.objects.contract import ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.http import DONE_STATUSES, RANGE_STATUSES, Client, Payload, Response, Trust, range_header
from tartools.storage.objects.retry import TransientError
from tartools.storage.objects.uploads import Upload
from tartools.storage.url import Url

PARTS_SENT_AT_ONCE = 4  # parts that are sent at once
_TRUE = ("1", "t", "true", "y", "yes", "on")


class _Location(NamedTuple):
    """The parts of a URL.

    *scheme*: "ais", "aws" or "gcp".
    *bucket*, *name*: of the object; *name* may be empty.
    *ending*: the query "?provider=NAME", or "".
    *provider*: the store that has the bucket: of *ending*, or else the scheme.
    """

    scheme: str
    bucket: str
    name: str
    ending: str
    provider: str

    def url(self, name: str) -> str:
        """Return the URL of the object *name* in the same bucket."""
        return f"{self.scheme}://{self.bucket}/{name}{self.ending}"

    def address(self, path: str, **query: str) -> str:
        """Return the URL of *path*, such as "objects/BUCKET/NAME", at the proxy, with *query* and the provider.

        Example: http://PROXY/v1/objects/BUCKET/NAME?provider=ais; an `AIS_ENDPOINT` without a scheme gets http://.
        Raises: StorageError if `AIS_ENDPOINT` is not set.
        """
        endpoint = os.environ.get("AIS_ENDPOINT", "").rstrip("/")
        if not endpoint:
            raise StorageError("set AIS_ENDPOINT to the URL of the AIStore proxy", url=self.url(self.name))
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        path = quote(path, errors="surrogateescape")
        return f"{endpoint}/v1/{path}?{urlencode({'provider': self.provider} | query)}"


def _parse_url(url: str) -> _Location:
    """Return the parts of *url*, unchecked: a bucket or name that is missing is "".

    Example: ais://b/d/a.tar?provider=oci has the parts "ais", "b", "d/a.tar", "?provider=oci", "oci".
    """
    base_url, ending = Url(url).name, Url(url).query
    scheme, _, path = base_url.partition("://")
    bucket, _, name = path.partition("/")
    return _Location(scheme, bucket, name, ending, ending.partition("=")[2] or scheme.lower())


def _trusted_certificates() -> Trust:
    """Return the certificates to trust: the file or folder `AIS_CLIENT_CA`; without it True, for the default ones.

    False, to check none, if `AIS_SKIP_VERIFY_CRT` is one of `_TRUE` ("1", "true", "yes", …; in any case); if it is not
    set or empty, `AIS_SKIP_VERIFY` counts.
    """
    skip = os.environ.get("AIS_SKIP_VERIFY_CRT") or os.environ.get("AIS_SKIP_VERIFY", "")
    return skip.lower() not in _TRUE and (os.environ.get("AIS_CLIENT_CA") or True)


def _token(address: str, moved: bool) -> dict[str, str]:
    """Return the header Authorization with `AIS_AUTHN_TOKEN`; {} if that is not set, or if the request was *moved*.

    *moved*: True if a request without a body was redirected to another server; the targets that the proxy sends a body
    to get the token. *address* is for messages. Raises: StorageError if the token has unprintable characters.
    """
    token = os.environ.get("AIS_AUTHN_TOKEN", "").strip()
    if not token.isprintable():
        raise StorageError("AIS_AUTHN_TOKEN is not a token: it has unprintable characters", url=address)
    return {"Authorization": f"Bearer {token}"} if token and not moved else {}


AIS_CLIENT = Client(_token, _trusted_certificates)


def _request(
    method: str,
    address: str,
    url: str,
    verb: str,
    valid: Collection[int] = DONE_STATUSES,
    pinned: bool = False,
    **options: Any,
) -> Response:
    """Make one request to *address*; return its response, whose status is one of *valid*.

    *url* is for messages; *verb* ("read", "write", "list", "remove") and *pinned* choose the error for any other status
    (`_status_error`). *pinned*: True if a version of the object was read before, so that a missing object was deleted
    meanwhile. *options*: further arguments of `Client.request`.
    Raises: TransientError; StorageError.
    """
    response = AIS_CLIENT.request(method, address, url, **options)
    if response.status not in valid:
        raise _status_error(response, verb, pinned)
    return response


def _send_action(
    method: str,
    address: str,
    url: str,
    verb: str,
    action: str,
    value: Any = None,
    valid: Collection[int] = DONE_STATUSES,
) -> Response:
    """Send the action message *action* with *value* to *address*; return the response, whose status is one of *valid*.

    *url* is for messages; *verb* ("read", "write", "list") chooses the error for any other status (`_status_error`).
    Raises: TransientError; StorageError.
    """
    body = json.dumps({"action": action, "value": value}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return _request(method, address, url, verb, valid, headers=headers, body=body)


def _status_error(response: Response, verb: str, pinned: bool) -> Exception:
    """Return the error that *response* reports, and drain it; its text is in the body, for a HEAD in a header.

    *verb* was requested. *pinned*: True if a version of the object was read before, so that a missing object was
    deleted meanwhile. StorageError if the bucket is missing, and for 401; TransientError for 409 and 423 to a "read",
    since the object is locked; else the error by `http.status_error`: TransientError if busy, NoPermissionError for
    403, for 404 to a "read" NotFoundError (*pinned*: ChangedError), … Source: AIStore, cmn/err.go.
    """
    text, url = response.headers.get("Hdr-Error", "") or response.text(), response.url
    response.drain()
    if response.status == 404:
        bucket_match = re.search(
            r'\w+://[^/"\s]+(/?)', text
        )  # "PROVIDER://BUCKET" does not exist, or PROVIDER://BUCKET/NAME
        if bucket_match and not bucket_match[1]:
            return StorageError(f"no such bucket: {_parse_url(url).bucket}", url=url)
    if response.status == 401:
        return StorageError(
            "the server does not accept the credentials, or requires some: set AIS_AUTHN_TOKEN", url=url
        )
    if response.status in (409, 423) and verb == "read":  # it is being fetched or written
        return TransientError(f"the object is locked ({response.status})")
    return http.status_error(response, verb, pinned=pinned)


def object_at(url: str) -> Object:
    """Return the object *url*. Raises: UsageError without bucket or name, or with . or .. between slashes."""
    place = _parse_url(url)
    if not place.bucket or not place.name or {".", ".."} & set(place.name.split("/")):
        raise UsageError("write ais://BUCKET/OBJECT, without . and .. between slashes", url=url)
    return _AisObject(url, place)


class _AisObject:
    """The object *url* in AIStore, whose parts are *place*: reads, removes and makes it, as a `contract.Object`."""

    def __init__(self, url: str, place: _Location) -> None:
        self.url = url
        self._place = place

    def address(self, **query: str) -> str:
        """Return the URL of the object at the proxy, with *query* and the provider.

        Raises: StorageError if `AIS_ENDPOINT` is not set.
        """
        return self._place.address(f"objects/{self._place.bucket}/{self._place.name}", **query)

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last) of the object.

        AIStore has no conditional reads: *version* is not sent; the caller compares it with the version of the reply.
        The reply has the version "" if the server tells none, or if *version* is "" and it tells only a checksum of the
        range. Raises: TransientError; StorageError.
        """
        headers = range_header(start, end)
        response = _request("GET", self.address(), self.url, "read", RANGE_STATUSES, bool(version), headers=headers)
        now = self._version(response.headers)
        reply = http.make_reply(response.status, response.headers, response, self.url, start, now)
        if not version and now and reply.length != reply.size and self._is_of_range(now):
            return reply._replace(version="")
        return reply

    def _version(self, headers: Mapping[str, str]) -> str:
        """Return the version that *headers* tell; "" if there is none.

        In the cluster it is the checksum, since the ETag may be out of date; in a store behind it the ETag, since a
        checksum may be added when the object is cached. Each stands in for the other if that is missing; a weak ETag
        ("W/…") counts as missing.
        """
        tag, checksum = headers.get("ETag", ""), headers.get("Ais-Checksum-Value", "")
        if tag.startswith("W/"):
            tag = ""
        return checksum or tag if self._place.provider == "ais" else tag or checksum

    def _is_of_range(self, version: str) -> bool:
        """True if a HEAD tells another version: *version* is the checksum of a range, as with `enable_read_range`.

        False if the HEAD fails with a status or tells no version, and without a request for a bucket in a store behind
        the cluster. Raises: TransientError; StorageError.
        """
        if self._place.provider != "ais":
            return False
        response = AIS_CLIENT.request("HEAD", self.address(), self.url)
        response.drain()
        object_version = self._version(response.headers)
        return response.status == 200 and object_version not in ("", version)

    def head(self) -> ListedObject | None:
        """Return size and time of the object, None where the server tells none, without a version.

        None if the object does not exist. Raises: TransientError; StorageError, also if the bucket does not exist.
        """
        try:
            response = _request("HEAD", self.address(), self.url, "read", (200,))
        except NotFoundError:
            return None
        response.drain()
        changed = http.parse_date(response.headers.get("Last-Modified", ""))
        return ListedObject(self.url, http.content_length(response.headers), changed)

    def remove(self) -> None:
        """Remove the object; no failure if it or its bucket does not exist. Raises: TransientError; StorageError."""
        _request("DELETE", self.address(), self.url, "remove", (*DONE_STATUSES, 404)).drain()

    def output(self, force: bool) -> Upload:
        """Return an upload that makes the object at `commit`; unless *force*, that fails if the object exists."""
        return Upload(_AisMultipart(self, force))


class _AisMultipart:
    """The requests of an upload of *target* to AIStore, as an `uploads.Target`: `put`; or `begin`, `part`, `complete`.

    The data go to the storage node that the proxy names, because the proxy would drop them. *force*: replace an
    existing object.
    """

    workers = PARTS_SENT_AT_ONCE

    def __init__(self, target: _AisObject, force: bool) -> None:
        self.url = target.url
        self._target = target
        self._force = force
        self._upload = ""
        self._sent: set[int] = set()  # parts
        self._final = False  # the request that makes the object appear was sent, perhaps without a response

    def put(self, data: bytearray) -> None:
        """Make the object of *data*, and check that the server has as many bytes; if not, remove the object.

        The check is left out if `head` raises StorageError or tells no size. Before the first attempt, unless *force*,
        it looks whether the object exists. Raises: ExistsError if it does; TransientError; StorageError, also for
        another number of bytes, or if the object is missing afterwards.
        """
        self._check_absent()
        self._put(self._target.address(), data)
        integrity.require_size(self._target, len(data))

    def begin(self) -> None:
        """Begin an upload in parts, and keep its id for the other requests. Raises: TransientError; StorageError."""
        response = _send_action("POST", self._target.address(), self.url, "write", "mpt-upload")
        self._upload = http.read_all(response, self.url).decode("utf-8", "replace").strip().strip('"')

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send *data* as part *number* (from 1); *offset* is not used. Raises: TransientError; StorageError."""
        self._put(self._target.address(uploadId=self._upload, partNumber=str(number)), data)
        self._sent.add(number)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part if no earlier attempt has sent it, let the object appear, and compare its size.

        *number*, *offset*, *data*: of the last part. If an earlier attempt without a response has let the object
        appear, that is no error. Before the first request to let it appear, unless *force*, it looks whether the object
        exists. Raises: ExistsError if it does; TransientError; StorageError, also for another size: then the object is
        removed, unless it is of an earlier attempt.
        """
        if number not in self._sent:
            self.part(number, offset, data)
        is_repeated = self._final
        self._check_absent()
        parts = [{"part-number": n, "etag": ""} for n in sorted(self._sent)]
        statuses = (*DONE_STATUSES, 404) if is_repeated else DONE_STATUSES
        response = _send_action(
            "POST", self._target.address(uploadId=self._upload), self.url, "write", "mpt-complete", parts, statuses
        )
        if response.status == 404:  # an earlier attempt, which had no response, may have done it
            error = _status_error(response, "write", False)
            stored = self._target.head()
            if stored is None or stored.size != offset + len(data):
                raise error
        response.drain()
        integrity.require_size(self._target, offset + len(data))

    def abort(self) -> None:
        """Drop the parts that were sent since `begin`; no error if the server has no such upload.

        Raises: TransientError; StorageError.
        """
        address = self._target.address(uploadId=self._upload)
        _send_action("DELETE", address, self.url, "write", "mpt-abort", valid=(*DONE_STATUSES, 404)).drain()

    def _check_absent(self) -> None:
        """Raise ExistsError if the object exists and may not be replaced: AIStore has no conditional writes.

        Looks only before the first request that may make the object appear. If this user may not look, it counts as
        absent. Raises: TransientError; StorageError if it can't look for another reason.
        """
        if not self._force and not self._final:
            try:
                existing = self._target.head()
            except NoPermissionError:
                existing = None
            if existing is not None:
                raise ExistsError(self.url)
        self._final = True

    def _put(self, address: str, data: bytearray) -> None:
        """PUT *data* at the target that the proxy redirects *address* to; at *address* if it does not redirect.

        An empty PUT before it asks for the target.
        Raises: TransientError; StorageError.
        """
        response = _request("PUT", address, self.url, "write", (*DONE_STATUSES, 307, 308), body=b"", follow=False)
        target = response.redirect("PUT")
        response.drain()
        _request("PUT", target or address, self.url, "write", body=Payload(data)).drain()


def page(prefix: str, page_token: str, flat: bool) -> Page:
    """Return a page of the objects whose URLs begin with *prefix*; they have its query too, such as "?provider=aws".

    *page_token*: `Page.next` of the page before, JSON with the id of the listing and a token; "" for the first page.
    *flat*: only objects without a slash behind *prefix*. The time of each is None, a size that is not told 0; the
    version is its checksum, "" without one and in a store behind the cluster. Raises: TransientError; StorageError.
    """
    place = _parse_url(prefix)
    uuid, token = json.loads(page_token) if page_token else ("", "")
    value = {"prefix": place.name, "props": "name,size,checksum", "uuid": uuid, "continuation_token": token}
    column = "checksum" if place.provider == "ais" else ""  # the version of what is behind the cluster is not listed

    def parse_page(reply: Any) -> Page:
        """Return the page that *reply*, the JSON of a response, describes.

        Raises: LookupError, ValueError, TypeError or AttributeError if it is of another form.
        """
        entries = [
            ListedObject(place.url(entry["name"]), int(entry.get("size") or 0), None, entry.get(column, ""))
            for entry in reply.get("entries") or ()
            if not (flat and "/" in entry["name"][len(place.name) :])
        ]
        token = reply.get("continuation_token", "")
        return Page(entries, json.dumps([reply["uuid"], token]) if token else "")

    return _send_action("GET", place.address(f"buckets/{place.bucket}"), prefix, "list", "list", value).json(parse_page)
