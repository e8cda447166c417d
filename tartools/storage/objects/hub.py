"""The API of Hugging Face's hub: what URLs name there, revisions and their commits, the token, what failures mean.

URLs are `hf://datasets/ORG/NAME[@REVISION]/PATH`, on the server `HF_ENDPOINT`. A revision is a branch, a tag or a
commit, by default the branch main. `pinned` puts the commit in its place, so that whoever gets the URL, in whatever
process, reads that commit. Names are taken literally: blanks, %, # and ? have no special meaning.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urlsplit

from tartools.errors import NotFoundError, StorageError, UsageError
from tartools.storage.objects import http
from tartools.storage.objects.contract import ListedObject, NoPermissionError
from tartools.storage.objects.http import Client, Response
from tartools.storage.objects.retry import with_retries

SERVER = "https://huggingface.co"
FORM = "hf://datasets/ORG/NAME[@REVISION]/PATH"
COMMIT = "[0-9a-f]{40}"
_PARTS = r"(hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:convert/[\w.-]+|pr/\d+)|[^/]*))?)(?:/(.*))?"
LOGIN = "hf auth login, or HF_TOKEN, gives access"
ASKED = 500  # paths in one request


class HubPath(NamedTuple):
    """What a URL names: *base* is its part before *path*, which is "" for the whole data set."""

    base: str
    repo: str
    revision: str
    path: str

    def api(self, kind: str, revision: str, rest: str = "") -> str:
        """Return the address that answers for *kind* ("tree", "revision") at *revision*."""
        return f"{server()}/api/datasets/{quote(self.repo)}/{kind}/{escaped(revision)}{rest}"


def escaped(name: str) -> str:
    """Return *name* as one segment of the path of an address."""
    return quote(name, safe="", errors="surrogateescape")


def parsed(url: str) -> HubPath:
    """Return the parts of *url*. Raises: UsageError if it names no data set."""
    found = re.fullmatch(_PARTS, url, re.DOTALL)
    if not found or found[3] == "":
        raise UsageError(f"write {FORM}", url=url)
    return HubPath(found[1], found[2], unquote(found[3] or "main"), found[4] or "")


def server() -> str:
    """Return the URL of the hub, or of its mirror."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or SERVER


def token() -> str:
    """Return the token of the user: of `HF_TOKEN`, or of the file that `hf auth login` writes; "" if there is none."""
    if known := os.environ.get("HF_TOKEN", "").strip():
        return known
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    path = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    try:
        with open(os.path.expandvars(os.path.expanduser(path)), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def is_hub(address: str) -> bool:
    """Tell whether *address* is on the hub itself, which gets the token; whom it redirects to does not."""
    return urlsplit(address)[:2] == urlsplit(server())[:2]


def _credentials(address: str, moved: bool) -> Mapping[str, str]:
    known = token() if is_hub(address) else ""
    return {"Authorization": f"Bearer {known}"} if known else {}


CLIENT = Client(_credentials)


def refusal(status: int, headers: Mapping[str, str], place: HubPath, url: str) -> Exception | None:
    """Return what the hub's response of *status* and *headers* means, if that is not what HTTP says anyway.

    Without a token it answers 401 for what is private, gated or not there. It tells by a draft of the IETF, RateLimit,
    in how many seconds it answers again.
    """
    code, known = headers.get("X-Error-Code", ""), token()
    if code == "GatedRepo":
        then = "" if known else f", then log in: {LOGIN}"
        return NoPermissionError(f"gated: accept its terms at {server()}/datasets/{place.repo}{then}", url=url)
    if code == "RepoNotFound" or (status == 401 and not known):
        private = "one that the token has no access to" if known else f"a private one; {LOGIN}"
        return StorageError(f"no such data set on the hub, or {private}", url=url)
    if code == "RevisionNotFound":
        return StorageError(f"the data set has no revision {place.revision!r}", url=url)
    if code == "EntryNotFound":
        return NotFoundError("the data set has no such file", url=url)
    if status == 401:
        return StorageError("the hub does not accept the token; hf auth login, or HF_TOKEN, gives another", url=url)
    rate = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)", headers.get("RateLimit", ""))
    if status == 429 and rate:
        return http.busy("429 Too Many Requests", str(int(rate[1]) + 1))  # it rounds down
    return None


def failure(response: Response, place: HubPath, what: str = "read") -> Exception:
    """Return the failure that *response* reports, and close it."""
    known = refusal(response.status, response.headers, place, response.url) if is_hub(response.address) else None
    if known is None:
        return http.status_error(response, what)
    response.close()
    return known


def ask(address: str, place: HubPath, url: str, what: str = "read", form: Any = None) -> Response:
    """Return the response, of status 200, of the hub's API at *address*, which a *form* is sent to if there is one."""
    body = None if form is None else urlencode(form, errors="surrogateescape").encode()
    headers = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
    response = CLIENT.request("GET" if form is None else "POST", address, url, headers=headers, body=body)
    if response.status != 200:
        raise failure(response, place, what)
    return response


# ---- revisions ----

_commits: dict[tuple[str, str, str], str] = {}  # by server, data set and revision


def current_commit(place: HubPath, url: str) -> str:
    """Return the commit that the revision of *place* is now; one attempt.

    Raises: TransientError; StorageError if there is no such data set or revision.
    """
    if re.fullmatch(COMMIT, place.revision):
        return place.revision
    about = ask(place.api("revision", place.revision, "?expand=sha"), place, url).json()
    found = about.get("sha") if isinstance(about, dict) else None
    if not re.fullmatch(COMMIT, found or ""):
        raise StorageError("the server does not say which commit the revision is", url=url)
    return str(found)


def commit_of(place: HubPath, url: str) -> str:
    """Return the commit that the revision of *place* was when this process, or one that it is a fork of, first asked.

    Raises: as `current_commit`.
    """
    key = server(), place.repo, place.revision
    return _commits.get(key) or _commits.setdefault(key, current_commit(place, url))


def moved_on(place: HubPath, commit: str) -> None:
    """Note that this process has made the branch of *place* the *commit*."""
    _commits[server(), place.repo, place.revision] = commit


def pinned(url: str) -> str:
    """Return *url* with a commit in place of its revision: see `commit_of`."""
    place = parsed(url)
    commit = with_retries(lambda: commit_of(place, url), url)
    return f"hf://datasets/{place.repo}@{commit}/{place.path}"


def versions(place: HubPath, revision: str, paths: Sequence[str], url: str) -> dict[str, ListedObject]:
    """Return what is known of those of *paths* that are files at *revision*, by path; one attempt."""
    found: list[dict[str, Any]] = []
    for first in range(0, len(paths), ASKED):
        form = [("paths", path) for path in paths[first : first + ASKED]] + [("expand", "false")]
        found += ask(place.api("paths-info", revision), place, url, "look", form).json()
    return {
        about["path"]: listed_file(about, f"{place.base}/{about['path']}") for about in found if about["type"] == "file"
    }


def listed_file(about: Mapping[str, Any], url: str) -> ListedObject:
    """Return what the hub says of a file."""
    lfs = about.get("lfs") or {}
    return ListedObject(url, about.get("size"), None, lfs.get("oid") or about.get("oid", ""))
