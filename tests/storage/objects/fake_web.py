"""A plain web server over buckets in memory: ranges, entity tags, PUT that respects conditions (RFC 9110)."""

from __future__ import annotations

from email.utils import formatdate

from tests.storage.objects.memory import Bucket, Exists
from tests.storage.objects.wire import Answer, Request, ranged


def refusal(request: Request, status: int, code: str = "") -> Answer:
    """Return an error as web servers tell it."""
    return Answer(status, {"Content-Type": "text/html"}, f"<html><body>{status} {code}</body></html>".encode())


def answer(request: Request, buckets: dict[str, Bucket]) -> Answer:
    """Answer a request for `/BUCKET/NAME`."""
    place, _, name = request.path[1:].partition("/")
    bucket = buckets.get(place)
    if bucket is None:
        return refusal(request, 404)
    with bucket.lock:
        if request.method == "PUT":
            return _put(request, bucket, name)
        if name not in bucket.objects:
            return refusal(request, 404)
        if request.method == "DELETE":
            del bucket.objects[name]
            return Answer(204, {})
        version = bucket.version(name)
        if request.headers.get("if-match", f'"{version.etag}"') not in (f'"{version.etag}"', "*"):
            return refusal(request, 412)
        headers = {
            "ETag": f'"{version.etag}"',
            "Last-Modified": formatdate(version.modified, usegmt=True),
            "Content-Type": "application/octet-stream",
        }
        return ranged(request, bucket.objects[name], headers)


def _put(request: Request, bucket: Bucket, name: str) -> Answer:
    there = name in bucket.objects
    try:
        bucket.put(name, request.body, absent=request.headers.get("if-none-match") == "*")
    except Exists:
        return refusal(request, 412)
    return Answer(204 if there else 201, {})
