"""Azure's blob service over buckets in memory: what the REST reference says of blobs, blocks and listings.

Paths are `/CONTAINER/BLOB`. Nobody checks by whom a request is signed. Block lists have to name blocks that came.
"""

from __future__ import annotations

import base64
import hashlib
import re
from email.utils import formatdate
from xml.sax.saxutils import escape

from tests.storage.objects.memory import Bucket, Exists, Upload
from tests.storage.objects.wire import Answer, Request, ranged

STATUS = {
    "ContainerNotFound": 404,
    "BlobNotFound": 404,
    "BlobAlreadyExists": 409,
    "ConditionNotMet": 412,
    "InvalidBlockList": 400,
    "Md5Mismatch": 400,
    "NoAuthenticationInformation": 401,
}


def refusal(request: Request, status: int, code: str = "") -> Answer:
    """Return an error as Azure tells it: its name is in a header too, since a HEAD has no body."""
    text = (
        f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code><Message>as was asked for</Message></Error>'
    )
    headers = {"Content-Type": "application/xml"} | ({"x-ms-error-code": code} if code else {})
    return Answer(status, headers, b"" if request.method == "HEAD" else text.encode())


def _refuse(request: Request, code: str) -> Answer:
    return refusal(request, STATUS[code], code)


def is_ours(request: Request) -> bool:
    """True if *request* speaks this protocol."""
    return "x-ms-version" in request.headers


def answer(request: Request, buckets: dict[str, Bucket]) -> Answer:
    """Answer a request."""
    place, _, name = request.path[1:].partition("/")
    bucket = buckets.get(place)
    if not re.match(r"SharedKey \w+:.{44}$|Bearer .", request.headers.get("authorization", "")):
        return _refuse(request, "NoAuthenticationInformation")
    if bucket is None:
        return _refuse(request, "ContainerNotFound")
    digest = request.headers.get("content-md5")
    if digest and base64.b64decode(digest) != hashlib.md5(request.body.data).digest():
        return _refuse(request, "Md5Mismatch")
    with bucket.lock:
        if not name:
            return _list(request, bucket)
        if request.method == "PUT":
            return _put(request, bucket, name)
        return _get(request, bucket, name)


def _get(request: Request, bucket: Bucket, name: str) -> Answer:
    """Get Blob, Get Blob Properties, Delete Blob."""
    if name not in bucket.objects:
        return _refuse(request, "BlobNotFound")
    version = bucket.version(name)
    tag = f'"0x{version.etag}"'
    if request.headers.get("if-match", tag) != tag:
        return _refuse(request, "ConditionNotMet")
    if request.method == "DELETE":
        del bucket.objects[name]
        return Answer(202, {})
    headers = {"ETag": tag, "Last-Modified": formatdate(version.modified, usegmt=True)}
    found = ranged(request, bucket.objects[name], headers)
    if found.status == 416:
        refused = refusal(request, 416, "InvalidRange")
        return refused._replace(headers=refused.headers | found.headers)
    if request.method == "HEAD":
        return Answer(200, headers | {"Content-Length": str(len(bucket.objects[name]))})
    return found


def _put(request: Request, bucket: Bucket, name: str) -> Answer:
    """Put Blob, Put Block, Put Block List."""
    kind, absent = request.query.get("comp", ""), request.headers.get("if-none-match") == "*"
    try:
        if kind == "":
            assert request.headers["x-ms-blob-type"] == "BlockBlob"
            bucket.put(name, request.body, absent)
            return Answer(201, {"ETag": f'"0x{bucket.version(name).etag}"'})
        blocks = bucket.blocks.setdefault(name, Upload(name, False))
        if kind == "block":
            blocks.parts[int.from_bytes(base64.b64decode(request.query["blockid"]), "big")] = request.body
            return Answer(201, {})
        listed = re.findall(r"<Latest>([^<]+)</Latest>", request.body.data.decode())
        numbers = [int.from_bytes(base64.b64decode(text), "big") for text in listed]
        if not set(numbers) <= set(blocks.parts):
            return _refuse(request, "InvalidBlockList")
        bucket.put(name, blocks.joined(numbers), absent)
        return Answer(201, {"ETag": f'"0x{bucket.version(name).etag}"'})
    except Exists:
        return _refuse(request, "BlobAlreadyExists")


def _list(request: Request, bucket: Bucket) -> Answer:
    """List Blobs."""
    query = request.query
    most = int(query.get("maxresults") or 0)
    found = bucket.listed(query.get("prefix", ""), query.get("delimiter", ""), query.get("marker", ""), most)
    entries = "".join(_entry(bucket, name) for name in found.names)
    entries += "".join(f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>" for name in found.prefixes)
    text = f"<Blobs>{entries}</Blobs><NextMarker>{escape(found.next)}</NextMarker>"
    text = f'<?xml version="1.0" encoding="utf-8"?><EnumerationResults>{text}</EnumerationResults>'
    return Answer(200, {"Content-Type": "application/xml"}, text.encode())


def _entry(bucket: Bucket, name: str) -> str:
    version = bucket.version(name)
    return (
        f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{formatdate(version.modified, usegmt=True)}"
        f"</Last-Modified><Etag>0x{version.etag}</Etag><Content-Length>{len(bucket.objects[name])}</Content-Length>"
        "<BlobType>BlockBlob</BlobType></Properties></Blob>"
    )
