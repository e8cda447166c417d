"""Data sets on Hugging Face's hub, as a store: files, which are read from where the hub redirects to, and listings.

The address that it redirects to is signed and expires; it is kept with the object. `hub` has what URLs name, and the
API; `hubcommit` makes outputs.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urljoin, urlsplit, urlunsplit

from tartools.errors import NotFoundError, StorageError, UsageError
from tartools.storage.objects import http, hub
from tartools.storage.objects.contract import ListedObject, Page, Reply
from tartools.storage.objects.http import REDIRECTS, Response, range_header
from tartools.storage.objects.hub import HubPath
from tartools.storage.streams import OutputStream

EXPIRED = (400, 401, 403, 404, 410)  # what the servers of signed addresses say of those that are too old
PAGES = 32  # of listings that are remembered: a page of a commit never changes


class _Signed(NamedTuple):
    """Where the bytes of a file are for some time: an *address* with a signature; the *version* of the file."""

    address: str
    version: str


def object_at(url: str) -> HubObject:
    """Return the object *url*. Raises: UsageError if it does not name one."""
    place = hub.parsed(url)
    if not place.path or place.path.endswith("/"):
        raise UsageError(f"write {hub.FORM}", url=url)
    return HubObject(url, place)


class HubObject:
    """One file of a data set. It is asked for once, and again when the address that the hub gave has expired."""

    def __init__(self, url: str, place: HubPath) -> None:
        self.url = url
        self.place = place
        self._signed: _Signed | None = None
        self._asking = os.getpid(), threading.Lock()  # several threads that begin to read ask once

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end*; see `contract.Object`. A version is the SHA-256 of Git LFS, or Git's."""
        headers = range_header(start, end)
        signed = self._signed
        if signed is not None:
            response = hub.CLIENT.request("GET", signed.address, self.url, headers=headers)
            if response.status not in EXPIRED:
                return self._reply(response, start, signed.version)
            response.close()
        if self._asking[0] != os.getpid():
            self._asking = os.getpid(), threading.Lock()
        with self._asking[1]:
            found, sent = self._signed, None
            if found is None or found is signed:
                found, sent = self._resolved(headers)
        response = sent or hub.CLIENT.request("GET", found.address, self.url, headers=headers)
        return self._reply(response, start, found.version)

    def _resolved(self, headers: dict[str, str]) -> tuple[_Signed, Response | None]:
        """Ask the hub where the file is, and keep that; return the response, too, if the hub itself sends the file."""
        commit, path = hub.commit_of(self.place, self.url), quote(self.place.path, errors="surrogateescape")
        address = f"{hub.server()}/datasets/{quote(self.place.repo)}/resolve/{commit}/{path}"
        tag = ""
        for _ in range(REDIRECTS + 1):
            response = hub.CLIENT.request("GET", address, self.url, headers=headers, follow=False)
            tag = response.headers.get("X-Linked-Etag") or tag
            target = response.redirect("GET")
            if target is None:
                tag = tag or response.headers.get("ETag", "")
                return _Signed(address, tag.removeprefix("W/").strip('"')), response
            address = target
            if not hub.is_hub(address):
                self._signed = _Signed(address, tag.removeprefix("W/").strip('"'))
                return self._signed, None
        raise StorageError("too many redirects", url=self.url)

    def _reply(self, response: Response, start: int, version: str) -> Reply:
        if response.status not in (200, 206, 416):
            raise hub.failure(response, self.place)
        return http.reply(response.status, response.headers, response, self.url, start, version)

    def head(self) -> ListedObject | None:
        """Return size and version, of a branch as it is now; None if it does not exist."""
        place = self.place
        version = hub.versions(place, place.revision, [place.path], self.url).get(place.path)
        return None if version is None else version._replace(url=self.url)

    def remove(self) -> None:
        """Remove it by a commit; see `contract.Object`."""
        from tartools.storage.objects import hubcommit

        hubcommit.removed(self.place, self.url)

    def output(self, force: bool) -> OutputStream:
        """Return an output that makes this object by a commit."""
        from tartools.storage.objects import hubcommit

        return hubcommit.HubOutput(self.place, self.url, force)


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return a page of the files whose URLs begin with *prefix*, at one commit; see `contract.Store`."""
    place = hub.parsed(prefix)
    folder = place.path.rpartition("/")[0]
    address = token
    if not address:
        rest = f"/{hub.escaped(folder)}" if folder else ""
        asked = urlencode({"recursive": str(not flat).lower(), "expand": "false"})
        address = place.api("tree", hub.current_commit(place, prefix), f"{rest}?{asked}")
    try:
        found, following = _tree(address, place._replace(path=""))
    except NotFoundError:  # of the folder
        return Page([], "")
    files = (about for about in found if about["type"] == "file" and about["path"].startswith(place.path))
    return Page([hub.listed_file(about, f"{place.base}/{about['path']}") for about in files], following, ordered=False)


@functools.lru_cache(PAGES)
def _tree(address: str, place: HubPath) -> tuple[list[dict[str, Any]], str]:
    """Return the page of a listing that is at *address*, and the address of the next one, "" at the end."""
    response = hub.ask(address, place, place.base, "list")
    link = re.search(r'<([^>]*)>\s*;[^,]*rel="?next"?', response.headers.get("Link", ""))
    if link is None:
        return response.json(), ""
    following = urljoin(address, link[1])
    if not following.startswith(f"{hub.server()}/"):  # of a mirror it may be on the hub
        following = hub.server() + urlunsplit(("", "", *urlsplit(following)[2:]))
    return response.json(), following
