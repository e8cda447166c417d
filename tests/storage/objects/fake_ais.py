"""AIStore over buckets in memory: a proxy that sends clients to a target, a target that has the objects.

After the sources of AIStore 4 (ais/tgtobj.go, ais/tgtmpt.go, cmn/objlist.go, cmn/err.go) and of its Python SDK 2.0.0. A
bucket of another provider than `ais` is called `PROVIDER:NAME` here.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from tests.storage.objects.memory import Bucket
from tests.storage.objects.wire import Answer, Request, ranged

JSON = {"Content-Type": "application/json"}
MSGPACK = "application/msgpack"


def refusal(request: Request, status: int, code: str = "") -> Answer:
    """Return an error as AIStore tells it: in the body, for a HEAD in a header."""
    error = {"message": code, "method": request.method, "url_path": request.path, "remote_addr": "127.0.0.1:1"}
    error |= {"caller": "", "node": "t[target1]", "status": str(status)}
    text = json.dumps(error | {"status": status})
    if request.method == "HEAD":
        return Answer(status, {"Hdr-Error": text})
    return Answer(status, JSON, text.encode())


def redirect(request: Request, target: str) -> Answer:
    """Send a request for an object on to *target*. What is appended has to come back letter by letter."""
    path, _, query = request.target.partition("?")
    return Answer(307, {"Location": f"{target}{path}?{query}{_signature(request.method, path)}"})


def is_redirected(request: Request) -> bool:
    """Tell whether *request* has what `redirect` appended."""
    return request.target.endswith(_signature(request.method, request.target.partition("?")[0]))


def _signature(method: str, path: str) -> str:
    digest = hashlib.md5(f"{method} {path}".encode()).hexdigest()
    return f"&pid=p%5Bproxy1%5D&utm=1700000000000000001&vlabs=&sig={digest}%2B/%3D="


def name_of(request: Request) -> str:
    """Return the name of the object of *request*, "" if it is about none."""
    return request.path.partition("/v1/objects/")[2].partition("/")[2]


def answer(request: Request, buckets: dict[str, Bucket]) -> Answer:
    """Answer a request, as a target answers those for objects and a proxy those for buckets."""
    kind, _, rest = request.path.partition("/v1/")[2].partition("/")
    place, _, name = rest.partition("/")
    provider = request.query.get("provider") or "ais"
    if provider != "ais":
        place = f"{provider}:{place}"
    if kind == "buckets" and _action(request)[0] == "create-bck":
        buckets.setdefault(place, Bucket())
        return Answer(200, {})
    bucket = buckets.get(place)
    if kind not in ("buckets", "objects"):
        return refusal(request, 501, f"invalid path {request.path}")
    if bucket is None:
        return refusal(request, 404, f'bucket "{provider}://{rest.partition("/")[0]}" does not exist')
    with bucket.lock:
        if kind == "buckets":
            return _list(request, bucket)
        if request.method == "POST" or "uploadId" in request.query:
            return _multipart(request, bucket, name)
        if request.method == "PUT":
            bucket.put(name, request.body)
            return Answer(200, {})
        if name not in bucket.objects:
            return refusal(request, 404, f"t[target1]: {provider}://{rest} does not exist")
        if request.method == "DELETE":
            del bucket.objects[name]
            return Answer(200, {})
        return _get(request, bucket, name)


def _action(request: Request) -> tuple[str, Any]:
    message = json.loads(request.body.data or b"{}")
    return message.get("action", ""), message.get("value")


def _checksum(bucket: Bucket, name: str) -> str:
    return bucket.version(name).etag.rjust(32, "0")


def _get(request: Request, bucket: Bucket, name: str) -> Answer:
    version = bucket.version(name)
    headers = {
        "ais-version": str(version.generation),
        "ais-checksum-type": "md5",
        "ais-checksum-value": _checksum(bucket, name),
        "ais-atime": "1700000000000000001",
        "ais-present": "true",
        "Content-Type": "application/octet-stream",
    }
    found = ranged(request, bucket.objects[name], headers)
    if found.status == 416:
        return refusal(request, 416, "range not satisfiable")._replace(headers=JSON | found.headers)
    return found


def _multipart(request: Request, bucket: Bucket, name: str) -> Answer:
    """Create, upload a part of, complete and abort an upload. A part has at least a byte, and none may be missing."""
    action, value = ("", None) if request.method == "PUT" else _action(request)
    if action == "mpt-upload":
        return Answer(200, {"Content-Type": "text/plain"}, bucket.begin(name).encode())
    identity = request.query.get("uploadId", "")
    upload = bucket.uploads.get(identity)
    if upload is None or upload.done or upload.name != name:
        return refusal(request, 404, f"t[target1]: {name}, upload {identity} does not exist")
    if request.method == "PUT":
        if not request.body.size:
            return refusal(request, 400, f"{name}: put-part invalid size (0)")
        upload.parts[int(request.query["partNumber"])] = request.body
        return Answer(200, {})
    if action == "mpt-abort" and request.method == "DELETE":
        del bucket.uploads[identity]
        return Answer(200, {})
    numbers = sorted(part["part-number"] for part in value or ())
    if action != "mpt-complete" or numbers != list(range(1, len(upload.parts) + 1)):
        return refusal(request, 400, f"parts must be exactly 1..{len(upload.parts)}: got {numbers}")
    bucket.complete(identity, numbers)
    return Answer(200, {})


def _list(request: Request, bucket: Bucket) -> Answer:
    """A page of a listing; a token is good only together with the uuid of the page before."""
    action, value = _action(request)
    if request.method == "HEAD" or action != "list":
        return Answer(200, {"ais-bucket-props": "{}"}) if request.method == "HEAD" else refusal(request, 400, action)
    token, uuid = value.get("continuation_token", ""), value.get("uuid", "")
    if token and uuid != "list1":
        return refusal(request, 400, f"list-objects: unknown uuid {uuid!r}")
    found = bucket.listed(value.get("prefix", ""), after=token, most=int(value.get("page_size") or 0))
    sizes = [(name, len(bucket.objects[name])) for name in found.names]
    if request.headers.get("accept") == MSGPACK:
        from msgspec import msgpack

        rows = [{"n": name} | ({"s": size} if size else {}) for name, size in sizes]
        packed = {"UUID": "list1", "ContinuationToken": found.next, "Flags": 0, "Entries": rows or None}
        return Answer(200, {"Content-Type": MSGPACK}, msgpack.encode(packed))
    entries = [{"name": name} | ({"size": str(size)} if size else {}) for name, size in sizes]
    if "checksum" in value.get("props", ""):
        entries = [entry | {"checksum": _checksum(bucket, entry["name"])} for entry in entries]
    text = {"uuid": "list1", "continuation_token": found.next, "flags": 0, "entries": entries or None}
    return Answer(200, JSON, json.dumps(text).encode())
