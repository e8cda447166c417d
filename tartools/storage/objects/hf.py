"""Data sets on Hugging Face's hub, as a store: files, which are read from where the hub redirects to, and listings.

URLs are `hf://datasets/ORG/NAME[@REVISION]/PATH`, on the server `HF_ENDPOINT`. A revision is a branch, a tag or a
commit, by default the branch main. `pin_commit` puts the commit in its place, so that every process that gets the URL
reads that commit. Names are taken literally: blanks, %, # and ? have no special meaning.

An output is a file without a name until it is complete. Then it is uploaded, and a commit to the branch lets it appear:
one for each output, or one for all of a block of `one_commit`.
"""

from __future__ import annotations

import functools
import io
import logging
import os
import re
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import quote, unquote, urlencode, urljoin, urlsplit, urlunsplit

from tartools.errors import ExistsError, NotFoundError, StorageError, UsageError, how_to_install, several
from tartools.storage.objects import http
from tartools.storage.objects.contract import ListedObject, NoPermissionError, Object, Page, Reply
from tartools.storage.objects.http import MAX_REDIRECTS, RANGE_STATUSES, Client, Response, escape_segment, range_header
from tartools.storage.objects.retry import TransientError, call_with_retries
from tartools.storage.scratch import SentOutput, reopen_scratch

HUB_SERVER = "https://huggingface.co"
HF_URL_FORM = "hf://datasets/ORG/NAME[@REVISION]/PATH"
COMMIT_PATTERN = "[0-9a-f]{40}"
_DATASET_URL = r"(hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:convert/[\w.-]+|pr/\d+)|[^/]*))?)(?:/(.*))?"
LOGIN_HINT = "hf auth login, or HF_TOKEN, gives access"
MAX_PATHS_IN_REQUEST = 500  # paths in one request
EXPIRED_STATUSES = (400, 401, 403, 404, 410)  # what the servers of signed addresses say of those that are too old
MAX_CACHED_PAGES = 32  # of listings that are remembered: a page of a commit never changes


class HubPath(NamedTuple):
    """The parts of a URL.

    *base*: the URL up to the data set and its revision, as the user wrote it.
    *repo*: the data set, ORG/NAME. *revision*: a branch, a tag or a commit, %-decoded; "main" if the URL has none.
    *path*: the file in the data set, "" for the whole data set.
    """

    base: str
    repo: str
    revision: str
    path: str

    def api(self, kind: str, revision: str, suffix: str = "") -> str:
        """Return the URL of the API for *kind* ("tree", "revision", "paths-info") at *revision*, with *suffix*."""
        return f"{server()}/api/datasets/{quote(self.repo)}/{kind}/{escape_segment(revision)}{suffix}"


def parse_hub_url(url: str) -> HubPath:
    """Return the parts of the hf: URL *url*. Raises: UsageError if it names no data set, or "" as the revision."""
    match = re.fullmatch(_DATASET_URL, url, re.DOTALL)
    if not match or match[3] == "":
        raise UsageError(f"write {HF_URL_FORM}", url=url)
    return HubPath(match[1], match[2], unquote(match[3] or "main"), match[4] or "")


def server() -> str:
    """Return the URL of the hub, or of its mirror `HF_ENDPOINT`, without a slash at the end."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB_SERVER


def token() -> str:
    """Return the user's token: `HF_TOKEN`, or the file that `hf auth login` writes; "" without a readable one."""
    if env_token := os.environ.get("HF_TOKEN", "").strip():
        return env_token
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or f"{cache}/huggingface"
    path = os.environ.get("HF_TOKEN_PATH") or f"{home}/token"
    try:
        with open(os.path.expandvars(os.path.expanduser(path)), encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


def is_hub(address: str) -> bool:
    """True if the URL *address* is on the hub itself: only that gets the token, not servers it redirects to."""
    return urlsplit(address)[:2] == urlsplit(server())[:2]


def _credentials(address: str, moved: bool) -> Mapping[str, str]:
    """Return the header with the user's token, if *address* is on the hub and there is a token; *moved* is not used."""
    user_token = token() if is_hub(address) else ""
    return {"Authorization": f"Bearer {user_token}"} if user_token else {}


HUB_CLIENT = Client(_credentials)


def refusal_of_hub(status: int, headers: Mapping[str, str], place: HubPath, url: str) -> Exception | None:
    """Return the hub's own error in a response with *status* and *headers*; None if there is none, as for a plain 503.

    NoPermissionError: gated; NotFoundError: no such file; OverloadError: 429 with nothing left by RateLimit (when to
    retry); StorageError: no such data set or revision, any other 401. *place*, *url*: for messages.
    """
    code, user_token = headers.get("X-Error-Code", ""), token()
    if code == "GatedRepo":
        advice = "" if user_token else f", then log in: {LOGIN_HINT}"
        return NoPermissionError(f"gated: accept its terms at {server()}/datasets/{place.repo}{advice}", url=url)
    if code == "RepoNotFound" or (status == 401 and not user_token):
        private = "one that the token has no access to" if user_token else f"a private one; {LOGIN_HINT}"
        return StorageError(f"no such data set on the hub, or {private}", url=url)
    if code == "RevisionNotFound":
        return StorageError(f"the data set has no revision {place.revision!r}", url=url)
    if code == "EntryNotFound":
        return NotFoundError("the data set has no such file", url=url)
    if status == 401:
        return StorageError("the hub does not accept the token; hf auth login, or HF_TOKEN, gives another", url=url)
    rate = re.search(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,18})", headers.get("RateLimit", ""))
    if status == 429 and rate:
        return http.busy_error(429, "Too Many Requests", str(int(rate[1]) + 1))  # it rounds down
    return None


def failure_of_hub(response: Response, place: HubPath, verb: str = "read") -> Exception:
    """Return the error that *response*, to a request to *verb* ("read", "write") *place*, reports, and close it."""
    error = refusal_of_hub(response.status, response.headers, place, response.url) if is_hub(response.address) else None
    if error is None:
        return http.status_error(response, verb)
    response.close()
    return error


def ask(address: str, place: HubPath, url: str, verb: str = "read", form: Any = None) -> Response:
    """Request *address* of the hub's API, by POST if there is a *form*, (name, value) pairs; return the response.

    Its status is 200. *place*, *url*: for messages; *verb*: for the error, too. Raises: TransientError; StorageError.
    """
    body = None if form is None else urlencode(form, errors="surrogateescape").encode()
    headers = {} if form is None else {"Content-Type": "application/x-www-form-urlencoded"}
    response = HUB_CLIENT.request("GET" if form is None else "POST", address, url, headers=headers, body=body)
    if response.status != 200:
        raise failure_of_hub(response, place, verb)
    return response


# ---- revisions ----

_commits: dict[tuple[str, str, str], str] = {}  # by server, data set and revision


def current_commit(place: HubPath, url: str) -> str:
    """Return the commit that the revision of *place* is now, itself if it is one; one attempt. *url* is for messages.

    Raises: TransientError; StorageError, also if there is no such data set or revision.
    """
    if re.fullmatch(COMMIT_PATTERN, place.revision):
        return place.revision
    response = ask(place.api("revision", place.revision, "?expand=sha"), place, url)
    commit = response.json(lambda about: str(about.get("sha")))
    if not re.fullmatch(COMMIT_PATTERN, commit):
        raise StorageError("the server does not say which commit the revision is", url=url)
    return commit


def commit_of(place: HubPath, url: str) -> str:
    """Return the commit that the revision of *place* was when this process, or one that it is a fork of, first asked.

    A commit that this process makes takes its place. *url* is for messages. Raises: TransientError; StorageError.
    """
    key = server(), place.repo, place.revision
    return _commits.get(key) or _commits.setdefault(key, current_commit(place, url))


def pin_commit(url: str) -> str:
    """Return the hf: URL *url* with `commit_of` as its revision, after retries. Raises: StorageError; UsageError."""
    place = parse_hub_url(url)
    commit = call_with_retries(lambda: commit_of(place, url), url)
    return f"hf://datasets/{place.repo}@{commit}/{place.path}"


def entries_at(place: HubPath, revision: str, paths: Sequence[str], url: str) -> dict[str, ListedObject]:
    """Return path -> entry for each of *paths* that is a file of *place* at *revision*; without retries.

    Entries: as by `_files`. *url*: for messages. Raises: TransientError; StorageError, also without the revision.
    """
    entries: list[ListedObject] = []
    for first in range(0, len(paths), MAX_PATHS_IN_REQUEST):
        form = [("paths", path) for path in paths[first : first + MAX_PATHS_IN_REQUEST]] + [("expand", "false")]
        entries += ask(place.api("paths-info", revision), place, url, "look", form).json(partial(_files, place))
    return {entry.url.removeprefix(f"{place.base}/"): entry for entry in entries}


def _files(place: HubPath, entries: list[dict[str, Any]]) -> list[ListedObject]:
    """Return the files of *entries*, the hub's JSON: URL, size, version (SHA-256 of LFS, or SHA-1), LFS checksum."""
    return [
        ListedObject(
            f"{place.base}/{about['path']}",
            about.get("size"),
            None,
            (about.get("lfs") or {}).get("oid") or about.get("oid", ""),
            f"SHA256:{about['lfs']['oid']}" if (about.get("lfs") or {}).get("oid") else "",
        )
        for about in entries
        if about["type"] == "file"
    ]


# ---- files and listings ----


def object_at(url: str) -> Object:
    """Return the object *url*. Raises: UsageError if it names no data set, or no file in it."""
    place = parse_hub_url(url)
    if not place.path or place.path.endswith("/"):
        raise UsageError(f"write {HF_URL_FORM}", url=url)
    return _HubObject(url, place)


class _HubObject:
    """The file *url* of a data set on the hub: reads, removes and makes it, as a `contract.Object`.

    *place*: parts of *url*. Version: SHA-256 of Git LFS, or Git's SHA-1. Its signed address is kept until that expires.
    """

    def __init__(self, url: str, place: HubPath) -> None:
        self.url = url
        self._place = place
        self._signed: tuple[str, str] | None = None  # an address with a signature, and the version of the file
        self._asking: defaultdict[int, threading.Lock] = defaultdict(
            threading.Lock
        )  # of a process the threads ask once

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last) of the file at the commit of `commit_of`.

        *version* is not sent: the caller compares it with the reply's. Raises: TransientError; StorageError.
        """
        headers = range_header(start, end)
        signed = self._signed
        if signed is not None:
            response = HUB_CLIENT.request("GET", signed[0], self.url, headers=headers)
            if response.status not in EXPIRED_STATUSES:
                return self._reply(response, start, signed[1])
            response.close()
        with self._asking[os.getpid()]:
            resolved, sent = self._signed, None
            if resolved is None or resolved is signed:
                resolved, sent = self._resolve(headers)
        response = sent or HUB_CLIENT.request("GET", resolved[0], self.url, headers=headers)
        return self._reply(response, start, resolved[1])

    def _resolve(self, headers: dict[str, str]) -> tuple[tuple[str, str], Response | None]:
        """Ask the hub for the address of the file; return ((address, version), response).

        *headers*: of the requests. An address on another server is kept, and the response is None; else it is the
        hub's, with the file or an error status. Raises: TransientError; StorageError.
        """
        commit, path = commit_of(self._place, self.url), quote(self._place.path, errors="surrogateescape")
        address = f"{server()}/datasets/{quote(self._place.repo)}/resolve/{commit}/{path}"
        tag = ""
        for _ in range(MAX_REDIRECTS + 1):
            response = HUB_CLIENT.request("GET", address, self.url, headers=headers, follow=False)
            tag = response.headers.get("X-Linked-Etag") or tag
            target = response.redirect("GET")
            version = (tag or response.headers.get("ETag", "")).removeprefix("W/").strip('"')
            if target is None:
                return (address, version), response
            address = target
            if not is_hub(address):
                self._signed = address, version
                return self._signed, None
        raise StorageError("too many redirects", url=self.url)

    def _reply(self, response: Response, start: int, version: str) -> Reply:
        """Return the reply, of *version*, for *response* to a request from *start* on. Raises: the error it reports."""
        if response.status not in RANGE_STATUSES:
            raise failure_of_hub(response, self._place)
        return http.make_reply(response.status, response.headers, response, self.url, start, version)

    def head(self) -> ListedObject | None:
        """Return the size and version that the file has now; None if missing. Raises: TransientError; StorageError."""
        place = self._place  # of a branch as it is now
        version = entries_at(place, place.revision, [place.path], self.url).get(place.path)
        return None if version is None else version._replace(url=self.url)

    def remove(self) -> None:
        """Remove the file, if it exists, in a commit of its own or of the open `one_commit`. Raises: StorageError."""
        _change(_Change(self._place, self.url, None, True))

    def output(self, force: bool) -> SentOutput:
        """Return an output that `commit` uploads and commits by `_add`; that fails if the file exists, unless *force*.

        Raises: StorageError without huggingface_hub or a scratch file; UsageError if the URL names a commit.
        """
        if find_spec("huggingface_hub") is None:
            message = f"a library for uploads to the hub is missing: {how_to_install('huggingface_hub')}"
            raise StorageError(f"{message}; or write files, and upload them by hf upload", url=self.url)
        if re.fullmatch(COMMIT_PATTERN, self._place.revision):
            raise UsageError("a commit does not change: name a branch, or none for main", url=self.url)
        return SentOutput(partial(_add, self._place, self.url, force))


def page(prefix: str, token: str, flat: bool) -> Page:
    """Return a page of the files whose URLs begin with *prefix*, unordered; empty without the folder.

    *token*: `Page.next` of the page before; "" for the first page, at the current commit, which later pages keep.
    *flat*: only files without a slash behind *prefix*. Raises: TransientError; StorageError; UsageError by *prefix*.
    """
    place = parse_hub_url(prefix)
    folder = place.path.rpartition("/")[0]
    address = token
    if not address:
        path = f"/{escape_segment(folder)}" if folder else ""
        query = urlencode({"recursive": str(not flat).lower(), "expand": "false"})
        address = place.api("tree", current_commit(place, prefix), f"{path}?{query}")
    try:
        entries, following = _list_page(address, place._replace(path=""))
    except NotFoundError:  # of the folder
        return Page([], "")
    start = f"{place.base}/{place.path}"
    return Page([entry for entry in entries if entry.url.startswith(start)], following, is_sorted=False)


@functools.lru_cache(MAX_CACHED_PAGES)
def _list_page(address: str, place: HubPath) -> tuple[list[ListedObject], str]:
    """Return (files in the page of a listing of *place* at *address*, address of the next page, "" at the end).

    *place*: its `path` is "". Pages are cached. Raises: NotFoundError without the folder; TransientError; StorageError.
    """
    response = ask(address, place, place.base, "list")
    entries = response.json(partial(_files, place))
    link = re.search(r'<([^>]*)>\s*;[^,]*rel="?next"?', response.headers.get("Link", ""))
    if link is None:
        return entries, ""
    following = urljoin(address, link[1])
    if not following.startswith(f"{server()}/"):  # of a mirror it may be on the hub
        following = server() + urlunsplit(("", "", *urlsplit(following)[2:]))
    return entries, following


# ---- writing, by huggingface_hub, which repeats what fails while it uploads ----


class _Change(NamedTuple):
    """A change that a commit makes to the file *url*, whose parts are *place*.

    *addition*: a CommitOperationAdd, with the new content; None: remove it. *force*: an existing file may be replaced.
    """

    place: HubPath
    url: str
    addition: Any
    force: bool


_changes: list[_Change] | None = None  # of the block of `one_commit` that runs


def _add(place: HubPath, url: str, force: bool, sink: io.FileIO) -> None:
    """Upload the content of *sink* as the file *url*, and commit it, now or in the open block of `one_commit`.

    Raises: StorageError, also if the file exists by then (unless *force*).
    """
    from huggingface_hub import CommitOperationAdd

    existing = partial(entries_at, place, place.revision, [place.path], url)
    if not force and call_with_retries(existing, url):
        raise ExistsError(url)
    with reopen_scratch(sink) as file:
        addition = CommitOperationAdd(place.path, file)
        _upload(place, url, addition)
        if addition.path_or_fileobj is file:  # it is so small that it is a part of the commit
            addition.path_or_fileobj = file.read()
    _change(_Change(place, url, addition, force))


def _change(change: _Change) -> None:
    """Commit *change* now, or add it to the open block of `one_commit`. Raises: StorageError from the commit."""
    if _changes is None:
        _send([change])
    else:
        _changes.append(change)


@contextmanager
def one_commit() -> Iterator[None]:
    """Make one commit for each branch of all outputs and removals in the block at its end; after an error in it none.

    A block inside makes its own commits. Raises: StorageError, also if an output exists by then; earlier commits stay.
    """
    global _changes  # noqa: PLW0603
    before, _changes = _changes, []
    try:
        yield
        for _, group in groupby(sorted(_changes, key=_branch), _branch):
            _send([*group])
    finally:
        _changes = before


def _branch(change: _Change) -> tuple[str, str]:
    """Return data set and revision of *change*."""
    return change.place.repo, change.place.revision


def _upload(place: HubPath, url: str, addition: Any) -> None:
    """Upload *addition* ahead of the commit, unless it is small. Raises: StorageError, also if .gitignore has it."""
    try:
        with _open_client(place, url) as client:
            client.preupload_lfs_files(place.repo, [addition], repo_type="dataset", revision=place.revision)
    except TransientError as error:
        raise StorageError(error.reason, url=url) from None
    if getattr(addition, "_should_ignore", False):
        raise StorageError("the .gitignore of the data set leaves this file out", url=url)


def _send(changes: Sequence[_Change]) -> None:
    """Make one commit of *changes* to one branch. Raises: StorageError; ExistsError if one without `force` exists."""
    parents: list[str] = []  # the commits before those of which no response came
    call_with_retries(partial(_try_commit, changes, parents), changes[0].url)


def _try_commit(changes: Sequence[_Change], parents: list[str]) -> None:
    """Make one commit of *changes* to their branch, one attempt, on top of its current commit.

    *parents*: those of earlier attempts, whose commits may have succeeded without a response; this attempt's is added.
    No commit is made if nothing is left to change. Raises: ExistsError; TransientError; StorageError.
    """
    from huggingface_hub import CommitOperationDelete

    place, url = changes[0].place, changes[0].url
    parent = current_commit(place, url)
    existing = entries_at(place, parent, [change.place.path for change in changes], url)
    operations: list[Any] = []
    for change in changes:
        path, version = change.place.path, existing.get(change.place.path)
        if change.addition is None:
            operations += [CommitOperationDelete(path)] * (version is not None)
        elif version is None or change.force:
            operations.append(change.addition)
        elif not parents or version.version != getattr(change.addition, "_local_oid", None):
            raise ExistsError(change.url)
    if not operations:
        _commits[server(), place.repo, place.revision] = parent
        return
    parents.append(parent)
    first = f"{'Add' if changes[0].addition else 'Remove'} {place.path}"
    subject = first if len(changes) == 1 else f"{first} and {several(len(changes) - 1, 'other file')}"
    with _open_client(place, url) as client:
        commit = client.create_commit(
            place.repo,
            operations,
            commit_message=subject,
            repo_type="dataset",
            revision=place.revision,
            parent_commit=parent,
        )
    _commits[server(), place.repo, place.revision] = commit.oid


@contextmanager
def _open_client(place: HubPath, url: str) -> Iterator[Any]:
    """Yield the client of huggingface_hub; turn all errors in the block into StorageError, or TransientError.

    *place*, *url*: for messages. Its log, which has signed addresses, and its progress bars are off meanwhile.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    log = logging.getLogger("huggingface_hub")
    level, bars = log.level, not are_progress_bars_disabled()
    log.setLevel(logging.CRITICAL)
    if bars:
        disable_progress_bars()
    try:
        yield HfApi(server(), token=token() or False, library_name="tartools")
    except Exception as error:
        causes = [error, error.__cause__, error.__context__]  # of its threads
        response = next((cause.response for cause in causes if isinstance(cause, HfHubHTTPError)), None)
        if response is None:
            raise TransientError(f"huggingface_hub: {type(error).__name__}") from None
        refusal = refusal_of_hub(response.status_code, response.headers, place, url)
        if refusal is not None:
            raise refusal from None
        if response.status_code in (409, 412):
            raise TransientError("others make commits to this branch, too") from None
        if http.is_busy(response.status_code):
            raise http.busy_error(response.status_code, "", response.headers.get("Retry-After", "")) from None
        reason = "no permission to write" if response.status_code == 403 else "the hub refuses"
        raise StorageError(f"{reason} ({response.status_code})", url=url) from None
    finally:
        log.setLevel(level)
        if bars:
            enable_progress_bars()
