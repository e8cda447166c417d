"""Hugging Face's hub over buckets in memory: a data set is a bucket, and each state of it that was asked for a commit.

After huggingface_hub 2.4, whose own client the tests of `hubserver` run against this. Files that end in one of `LARGE`
are in Git LFS: the hub redirects to a store, by an address with a signature. Others it sends itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote

from tests.storage.objects.memory import Bucket
from tests.storage.objects.wire import Answer, Received, Request, ranged

LARGE = (".tar", ".tgz", ".gz", ".parquet", ".zip", ".bin", ".jpg", ".png")
JSON = {"Content-Type": "application/json; charset=utf-8"}
STORE = "/hf-store/"  # the path of signed addresses
_API = re.compile(r"/api/datasets/([^/]+/[^/]+)(?:/([\w-]+)(?:/([^/]+)(?:/(.*))?)?)?", re.DOTALL)
_RESOLVE = re.compile(r"/(?:datasets|api/resolve-cache/datasets)/([^/]+/[^/]+)/resolve/([^/]+)/(.*)", re.DOTALL)
_BATCH = re.compile(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch")
MESSAGES = {
    "RepoNotFound": "Repository not found",
    "GatedRepo": "Access to this dataset is restricted and you are not in the authorized list.",
    "RevisionNotFound": "Invalid rev id",
    "EntryNotFound": "Entry not found",
}


class Refused(Exception):  # noqa: N818  # an answer, not a failure
    """The request is answered by an error: its status and the hub's name for it."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status = status
        self.code = code
        self.message = message


class Repository(Bucket):
    """A bucket whose states are commits: of the branch main, and of those that have been asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.history = 0  # commits by clients
        self.commits: dict[str, dict[str, bytes]] = {}
        self.tags: dict[str, str] = {}
        self.log: list[str] = []  # subjects of the commits by clients
        self.blobs: dict[str, bytes] = {}  # what the store has, by SHA-256
        self.ignored: set[str] = set()  # paths that .gitignore names
        self.resolved: list[str] = []  # paths that were asked for
        self.signed = 0  # signatures so far
        self.expired = 0  # those up to this one are not valid any more


class Servers(NamedTuple):
    """The URLs of the hub and of its store."""

    hub: str
    store: str


def refusal(request: Request, status: int, code: str = "", message: str = "") -> Answer:
    """Return an error as the hub tells it, or its store, which is S3's."""
    if request.path.startswith(STORE):
        return Answer(status, {"Content-Type": "application/xml"}, f"<Error><Code>{code}</Code></Error>".encode())
    message = message or MESSAGES.get(code, "")
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return Answer(status, JSON | headers, json.dumps({"error": message}).encode())


def is_ours(request: Request) -> bool:
    """Tell whether *request* is one to the hub or its store."""
    return request.path.startswith(("/api/datasets/", "/api/resolve-cache/", "/datasets/", "/api/whoami", STORE))


def name_of(request: Request) -> str:
    """Return the name of the file of *request*, "" if it is about none."""
    if request.path.startswith(STORE):
        return request.query.get("name", "")
    found = _RESOLVE.fullmatch(request.path)
    return found[3] if found else ""


def commit(bucket: Repository) -> str:
    """Return the commit that *bucket* is now, and remember it."""
    with bucket.lock:
        state = dict(bucket.objects)
        about = "\n".join(f"{name} {hashlib.sha256(state[name]).hexdigest()}" for name in sorted(state))
        found = hashlib.sha1(f"{bucket.history}{about}".encode()).hexdigest()
        bucket.commits[found] = state
        return found


def answer(request: Request, buckets: Mapping[str, Repository], servers: Servers) -> Answer:
    """Answer a request."""
    try:
        if request.path.startswith(STORE):
            return _stored(request, buckets)
        if request.path.startswith("/api/whoami"):
            return _told({"name": "me", "type": "user", "auth": {}, "orgs": []})
        path = request.target.partition("?")[0]
        for pattern, does in ((_RESOLVE, _resolve), (_BATCH, _batch), (_API, _api)):
            if found := pattern.fullmatch(path):
                bucket = buckets.get(found[1])
                if bucket is None:
                    raise Refused(404 if "authorization" in request.headers else 401, "RepoNotFound")
                with bucket.lock:
                    return does(request, bucket, servers, *(unquote(text or "") for text in found.groups()))
        raise Refused(404, "")
    except Refused as error:
        return refusal(request, error.status, error.code, error.message)


def _told(what: Any, headers: dict[str, str] | None = None) -> Answer:
    return Answer(200, JSON | (headers or {}), json.dumps(what).encode())


def _at(bucket: Repository, revision: str) -> tuple[str, dict[str, bytes]]:
    """Return the commit that *revision* is, and the files that it has."""
    found = commit(bucket)
    found = found if revision in ("main", "") else bucket.tags.get(revision, revision)
    if found not in bucket.commits:
        raise Refused(404, "RevisionNotFound")
    return found, bucket.commits[found]


def _git(kind: str, data: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data).hexdigest()


def _pointer(data: bytes) -> bytes:
    oid = hashlib.sha256(data).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(data)}\n".encode()


def about(path: str, data: bytes) -> dict[str, Any]:
    """Return what a listing says of a file."""
    if not path.endswith(LARGE):
        return {"type": "file", "oid": _git("blob", data), "size": len(data), "path": path}
    pointer = _pointer(data)
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": len(pointer)}
    return {"type": "file", "oid": _git("blob", pointer), "size": len(data), "path": path, "lfs": lfs}


# ---- files ----


def _resolve(request: Request, bucket: Repository, servers: Servers, repo: str, revision: str, path: str) -> Answer:
    oid, files = _at(bucket, revision)
    bucket.resolved.append(path)
    if path not in files:
        raise Refused(404, "EntryNotFound")
    data = files[path]
    headers = {"X-Repo-Commit": oid, "Access-Control-Expose-Headers": "X-Repo-Commit,X-Linked-ETag,ETag"}
    if not path.endswith(LARGE):
        tag = {"ETag": f'"{_git("blob", data)}"'}
        if request.path.startswith("/datasets/") and revision == oid:  # as the hub does since 2025
            place = f"/api/resolve-cache{request.target}"
            return Answer(307, headers | tag | {"Location": place})
        return ranged(request, data, headers | tag)
    digest = hashlib.sha256(data).hexdigest()
    bucket.blobs[digest] = data
    bucket.signed += 1
    signature = f"Expires=1800000000&Policy=x~_&Signature=SECRETSIGNATURE{bucket.signed}"
    place = f"{servers.store}{STORE}{repo}/{digest}?name={quote(path)}&{signature}"
    headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{digest}"', "Location": place}
    return Answer(302, headers | {"Vary": "Origin, Accept"}, b"Found. Redirecting")


def _stored(request: Request, buckets: Mapping[str, Repository]) -> Answer:
    """Answer for a file, of whatever name, by its digest. The store must not see the token of the hub."""
    repo, _, digest = request.path.removeprefix(STORE).rpartition("/")
    bucket = buckets[repo]
    if "authorization" in request.headers:
        raise Refused(400, "InvalidArgument")  # as S3 does: only one way of authentication
    if request.method == "PUT":
        if hashlib.sha256(request.body.data).hexdigest() != digest:
            raise Refused(400, "BadDigest")
        bucket.blobs[digest] = request.body.data
        return Answer(200, {"ETag": f'"{hashlib.md5(request.body.data).hexdigest()}"'})
    number = int((re.search(r"Signature=SECRETSIGNATURE(\d+)", request.target) or [0, 0])[1])
    if number <= bucket.expired:
        raise Refused(403, "AccessDenied")
    data = bucket.blobs[digest]
    return ranged(request, data, {"ETag": f'"{hashlib.md5(data).hexdigest()}-1"'})


# ---- the API ----


def _api(
    request: Request, bucket: Repository, servers: Servers, repo: str, kind: str, revision: str, path: str
) -> Answer:
    if kind in ("", "revision"):
        oid, files = _at(bucket, revision)
        known = {"id": repo, "sha": oid, "private": False, "gated": False, "tags": [], "downloads": 0}
        siblings = [{"rfilename": name} for name in sorted(files)]
        asked = "expand=" in request.target
        return _told({"_id": "1", "id": repo, "sha": oid} if asked else known | {"_id": "1", "siblings": siblings})
    if kind == "tree":
        return _tree(request, bucket, servers, revision, path)
    if kind == "paths-info":
        files = _at(bucket, revision)[1]
        asked_for = _form(request)
        return _told([about(name, files[name]) for name in asked_for if name in files])
    if kind == "preupload":
        files = _at(bucket, revision)[1]
        wanted = json.loads(request.body.data)["files"]
        return _told({"files": [_preupload(each["path"], files, bucket) for each in wanted], "commitOid": "0" * 40})
    if kind == "commit":
        return _commit(request, bucket, servers, repo, revision)
    raise Refused(404, "")


def _form(request: Request) -> list[str]:
    """Return the paths that are asked for, in a form or in JSON."""
    if "json" in request.headers.get("content-type", ""):
        found: list[str] = json.loads(request.body.data)["paths"]
        return found
    return parse_qs(request.body.data.decode())["paths"]


def _tree(request: Request, bucket: Repository, servers: Servers, revision: str, path: str) -> Answer:
    """List a folder, a page at a time: folders first, as in no order that anyone promises."""
    files = _at(bucket, revision)[1]
    start = path + "/" if path else ""
    inside = {name: data for name, data in files.items() if name.startswith(start)}
    if path and not inside:
        raise Refused(404, "EntryNotFound", f"{path} does not exist on {revision!r}")
    deep = request.query.get("recursive", "").lower() in ("true", "1")
    folders = {name[: at.start()] for name in inside for at in re.finditer("/", name) if at.start() >= len(start)}
    entries = [{"type": "directory", "oid": _git("tree", name.encode()), "size": 0, "path": name} for name in folders]
    entries += [about(name, data) for name, data in inside.items()]
    if not deep:
        entries = [entry for entry in entries if "/" not in entry["path"][len(start) :]]
    entries.sort(key=lambda entry: (entry["type"], entry["path"]))
    first = int(request.query.get("cursor", "0"))
    more = {}
    if first + bucket.page < len(entries):
        asked = f"recursive={str(deep).lower()}&expand=false&cursor={first + bucket.page}"
        more = {"Link": f'<{servers.hub}{request.target.partition("?")[0]}?{asked}>; rel="next"'}
    return _told(entries[first : first + bucket.page], more)


# ---- uploads ----


def _preupload(path: str, files: dict[str, bytes], bucket: Repository) -> dict[str, Any]:
    mode = "lfs" if path.endswith(LARGE) else "regular"
    known = {"oid": _oid(path, files[path])} if path in files else {}
    return {"path": path, "uploadMode": mode, "shouldIgnore": path in bucket.ignored} | known


def _oid(path: str, data: bytes) -> str:
    return hashlib.sha256(data).hexdigest() if path.endswith(LARGE) else _git("blob", data)


def _batch(request: Request, bucket: Repository, servers: Servers, repo: str) -> Answer:
    """Say where the contents of files go that the store does not have yet (Git LFS, batch API)."""
    objects = []
    for wanted in json.loads(request.body.data)["objects"]:
        actions = {}
        if wanted["oid"] not in bucket.blobs:
            place = f"{servers.store}{STORE}{repo}/{wanted['oid']}?Signature=SECRETSIGNATURE"
            actions = {"actions": {"upload": {"href": place}}}
        objects.append(wanted | actions)
    return _told({"transfer": "basic", "objects": objects})


def _commit(request: Request, bucket: Repository, servers: Servers, repo: str, revision: str) -> Answer:
    """Make a commit of lines of JSON: all of it, or nothing."""
    if "authorization" not in request.headers:
        raise Refused(401, "RepoNotFound")
    if revision != "main":
        raise Refused(404, "RevisionNotFound")
    lines = [json.loads(line) for line in request.body.data.splitlines()]
    header = next(line["value"] for line in lines if line["key"] == "header")
    if header.get("parentCommit") not in (None, commit(bucket)):
        raise Refused(412, "", "A commit has happened since. Please refresh and try again.")
    files = dict(bucket.objects)
    for kind, value in ((line["key"], line["value"]) for line in lines):
        if kind == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif kind == "lfsFile":
            if value["oid"] not in bucket.blobs:
                raise Refused(400, "", "an LFS pointer to nothing")
            files[value["path"]] = bucket.blobs[value["oid"]]
        elif kind == "deletedFile":
            if value["path"] not in files:
                raise Refused(404, "EntryNotFound", "A file with this name doesn't exist")
            del files[value["path"]]
    bucket.history += 1
    for name in {*bucket.objects} - {*files}:
        del bucket.objects[name]
    for name, data in files.items():
        if bucket.objects.get(name) is not data:
            bucket.put(name, Received(len(data), data))
    oid = commit(bucket)
    bucket.log.append(header["summary"])
    place = f"{servers.hub}/datasets/{repo}/commit/{oid}"
    return _told({"success": True, "commitOid": oid, "commitUrl": place, "hookOutput": ""})
