"""Objects in AIStore, by its native HTTP API.

`AIS_ENDPOINT` is the proxy, which sends requests for objects on to targets; `AIS_AUTHN_TOKEN` is the token, where one
is needed; for TLS there are `AIS_CLIENT_CA` and `AIS_SKIP_VERIFY`. `ais://BUCKET/OBJECT` is in the cluster itself, with
`aws:` or `gcp:` it is behind it. `?provider=NAME` at the end of an `ais:` URL names any other provider; but for that, a
name is taken as it is.

Source: AIStore, docs/http_api.md, and its Python SDK (obj/multipart_upload.py, request_client.py, bucket.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import requests
import urllib3

from tartools.errors import StorageError, UsageError
from tartools.storage import requesting
from tartools.storage.names import split_query
from tartools.storage.requesting import Absent, document, elsewhere, finish, message, payload, ranged
from tartools.storage.stores import Listed, NoPermission, Page, Reply
from tartools.storage.tries import Passing
from tartools.storage.uploads import Upload

STARTS_ANYWHERE = False
WORKERS = 4  # parts that are sent at once
_TRUE = ("1", "t", "true", "y", "yes", "on")


class _Place(NamedTuple):
    """A URL, taken apart; *name* may be empty, *ending* names the *provider* if the scheme does not."""

    scheme: str
    bucket: str
    name: str
    ending: str
    provider: str

    def url(self, name: str) -> str:
        """Return the URL of the object *name* beside this one."""
        return f"{self.scheme}://{self.bucket}/{name}{self.ending}"

    def address(self, path: str, **query: str) -> str:
        """Return where the proxy has *path*, in which the bucket is."""
        endpoint = os.environ.get("AIS_ENDPOINT", "").rstrip("/")
        if not endpoint:
            raise StorageError("set AIS_ENDPOINT to the URL of the AIStore proxy", url=self.url(self.name))
        endpoint = endpoint if "://" in endpoint else f"http://{endpoint}"
        path = quote(path, errors="surrogateescape")
        return f"{endpoint}/v1/{path}?{urlencode({'provider': self.provider} | query)}"


def _split(url: str) -> _Place:
    whole, ending = split_query(url)
    scheme, _, rest = whole.partition("://")
    bucket, _, name = rest.partition("/")
    return _Place(scheme, bucket, name, ending, ending.partition("=")[2] or scheme.lower())


def _trusted() -> bool | str | None:
    """Return whose certificates are trusted, as `requests` wants it: None for the usual ones, False for anybody's."""
    skip = os.environ.get("AIS_SKIP_VERIFY_CRT") or os.environ.get("AIS_SKIP_VERIFY", "")
    return False if skip.lower() in _TRUE else os.environ.get("AIS_CLIENT_CA") or None


def _session() -> requests.Session:
    if _trusted() is False:
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # the user has said so
    made = requests.Session()
    made.auth = _authorized
    return made


def _authorized(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """Add the token to *request*."""
    token = os.environ.get("AIS_AUTHN_TOKEN", "").strip()
    if not token.isprintable():
        raise StorageError("AIS_AUTHN_TOKEN holds more than a token", url=request.url or "")
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
    return request


def _ask(method: str, address: str, url: str, **options: Any) -> requests.Response:
    """Return the answer to one request without a body, which is redirected at once."""
    through = requesting.session("ais", _session)
    return requesting.ask(through, method, address, url, verify=_trusted(), follow=True, **options)


def _send(method: str, address: str, url: str, body: Any, **options: Any) -> requests.Response:
    """Return the answer to one request with *body*, which is sent wherever it is redirected to."""
    through = requesting.session("ais", _session)
    return requesting.send(through, method, address, url, body, verify=_trusted(), **options)


def _act(method: str, address: str, url: str, action: str, value: Any = None) -> requests.Response:
    """Return the answer to one request that is an action message."""
    body = json.dumps({"action": action, "value": value}).encode()
    return _send(method, address, url, body, headers={"Content-Type": "application/json", "Accept": "application/json"})


def _refused(response: requests.Response, url: str, what: str = "read", pinned: bool = False) -> Exception:
    """Return what an answer that is an error means (AIStore, cmn/err.go); the answer to a HEAD has it in a header."""
    text = response.headers.get("Hdr-Error", "")
    try:
        text = text or message(response, url).decode("utf-8", "replace")
    except (Passing, StorageError):
        pass
    finish(response)
    if response.status_code == 404:
        named = re.search(r'\w+://[^/"\s]+(/?)', text)  # "PROVIDER://BUCKET" does not exist, or PROVIDER://BUCKET/NAME
        if named and not named[1]:
            return StorageError(f"there is no bucket {_split(url).bucket}", url=url)
    if response.status_code == 401:
        return StorageError("the server wants credentials that it accepts: set AIS_AUTHN_TOKEN", url=url)
    if response.status_code in (409, 423) and what == "read":  # it is just being fetched, or written
        return Passing(f"the object is locked ({response.status_code})")
    return requesting.refused(response, url, what, pinned=pinned)


def opened(url: str) -> AisObject:
    """Return the object *url*. Raises: UsageError if it names none."""
    place = _split(url)
    if not place.bucket or not place.name or {".", ".."} & set(place.name.split("/")):
        raise UsageError("write ais://BUCKET/OBJECT, without . and .. between slashes", url=url)
    return AisObject(url, place)


class AisObject:
    """One object in a bucket."""

    def __init__(self, url: str, place: _Place) -> None:
        self.url = url
        self._place = place

    def address(self, **query: str) -> str:
        """Return where the proxy has it."""
        return self._place.address(f"objects/{self._place.bucket}/{self._place.name}", **query)

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Ask for the bytes *start* to *end*; see `stores.Object`. Nobody checks *version* but who compares replies."""
        response = _ask("GET", self.address(), self.url, headers=ranged(start, end))
        if response.status_code not in (200, 206, 416):
            raise _refused(response, self.url, pinned=bool(version))
        now = self._version(response.headers)
        found = requesting.reply(response, self.url, start, now)
        if not version and now and found.length != found.size and self._is_of_range(now):
            return found._replace(version="")
        return found

    def _version(self, headers: Mapping[str, str]) -> str:
        """Return what changes with the bytes: of objects in the cluster the checksum, of others rather the ETag.

        The ETag of the former may be older than they are; a checksum of the latter may come when they are cached.
        """
        tag, checksum = headers.get("ETag", ""), headers.get("Ais-Checksum-Value", "")
        if tag.startswith("W/"):
            tag = ""
        return checksum or tag if self._place.provider == "ais" else tag or checksum

    def _is_of_range(self, version: str) -> bool:
        """Tell whether *version* is a checksum of no more than a range, as buckets with `enable_read_range` have it."""
        if self._place.provider != "ais":
            return False
        response = _ask("HEAD", self.address(), self.url)
        finish(response)
        whole = self._version(response.headers)
        return response.status_code == 200 and whole not in ("", version)

    def head(self) -> Listed | None:
        """Return size and time; None if it is not there."""
        response = _ask("HEAD", self.address(), self.url)
        if response.status_code != 200:
            error = _refused(response, self.url)
            if isinstance(error, Absent):
                return None
            raise error
        finish(response)
        changed = requesting.moment(response.headers.get("Last-Modified", ""))
        return Listed(self.url, requesting.size_of(response), changed)

    def output(self, force: bool) -> Upload:
        """Return an output that makes this object."""
        return Upload(_Multipart(self, force))


class _Multipart:
    """An upload in parts, which go straight to the target: what is sent to the proxy is lost there."""

    workers = WORKERS

    def __init__(self, made: AisObject, force: bool) -> None:
        self.url = made.url
        self._made = made
        self._force = force
        self._upload = ""
        self._sent: set[int] = set()  # parts
        self._final = False  # what makes the object appear was sent, and nobody knows what came of it

    def put(self, data: bytearray) -> None:
        """Make the object of *data*."""
        self._last_look()
        self._put(self._made.address(), data)

    def begin(self) -> None:
        """Begin an upload in parts."""
        response = _act("POST", self._made.address(), self.url, "mpt-upload")
        if response.status_code != 200:
            raise _refused(response, self.url, "write")
        self._upload = message(response, self.url).decode("utf-8", "replace").strip().strip('"')

    def part(self, number: int, offset: int, data: bytearray) -> None:
        """Send one part."""
        self._put(self._made.address(uploadId=self._upload, partNumber=str(number)), data)
        self._sent.add(number)

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        """Send the last part, and let the object appear."""
        if number not in self._sent:
            self.part(number, offset, data)
        again = self._final
        self._last_look()
        parts = [{"part-number": n, "etag": ""} for n in sorted(self._sent)]
        response = _act("POST", self._made.address(uploadId=self._upload), self.url, "mpt-complete", parts)
        if response.status_code not in (200, 204):
            error = _refused(response, self.url, "write")
            found = self._made.head() if again and response.status_code == 404 else None
            if found is None or found.size != offset + len(data):
                raise error  # else an earlier try, which had no answer, has done it
        finish(response)

    def abort(self) -> None:
        """Drop the parts."""
        response = _act("DELETE", self._made.address(uploadId=self._upload), self.url, "mpt-abort")
        if response.status_code not in (200, 204, 404):
            raise _refused(response, self.url, "write")
        finish(response)

    def _last_look(self) -> None:
        """Raise StorageError if the object is there, and is not to be replaced: AIStore writes on no condition."""
        if not self._force and not self._final:
            try:
                there = self._made.head()
            except NoPermission:
                there = None
            if there is not None:
                raise StorageError("this exists already; --force replaces it", url=self.url)
        self._final = True

    def _put(self, address: str, data: bytearray) -> None:
        """Ask the proxy where *data* is to go, and send it there."""
        response = requesting.ask(
            requesting.session("ais", _session), "PUT", address, self.url, body=b"", verify=_trusted()
        )
        place = elsewhere(response, address)
        if place is None:
            if response.status_code not in (200, 201, 204):
                raise _refused(response, self.url, "write")
            finish(response)
        response = _send("PUT", place or address, self.url, payload(data))
        if response.status_code not in (200, 201, 204):
            raise _refused(response, self.url, "write")
        finish(response)


def page(prefix: str, token: str, after: str, flat: bool) -> Page:
    """Return a page of the objects whose URL begins with *prefix*, and ends as it does; see `stores.Store`."""
    place = _split(prefix)
    uuid, more = json.loads(token) if token else ("", "")
    value = {"prefix": place.name, "props": "name,size", "uuid": uuid, "continuation_token": more}
    response = _act("GET", place.address(f"buckets/{place.bucket}"), prefix, "list", value)
    if response.status_code != 200:
        raise _refused(response, prefix, "list")
    found = document(response, prefix)
    entries = [
        Listed(place.url(entry["name"]), int(entry.get("size") or 0), None)
        for entry in found.get("entries") or ()
        if not (flat and "/" in entry["name"][len(place.name) :])
    ]
    more = found.get("continuation_token", "")
    return Page([entry for entry in entries if entry.url > after], json.dumps([found["uuid"], more]) if more else "")
