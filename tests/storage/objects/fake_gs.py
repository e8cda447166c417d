"""Google's JSON API over buckets in memory: media with generations, listings with offsets, media and resumable uploads.

From the reference of the JSON API (Objects: get, list, insert, delete) and the page on resumable uploads.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from tests.storage.objects.memory import Bucket, Exists, Upload
from tests.storage.objects.wire import Answer, Request, ranged

CHUNK = 256 << 10  # bytes, of which all chunks but the last of a resumable upload are multiples
JSON = {"Content-Type": "application/json; charset=UTF-8"}
_PATH = re.compile(r"(?:/download|/upload|/resumable/upload)?/storage/v1/b/([^/]+)(?:/o(?:/(.*))?)?", re.DOTALL)


def refusal(request: Request, status: int, code: str = "", message: str = "") -> Answer:
    """Return an error as Google tells it; *code* is the reason."""
    message = message or f"{code}, as was asked for"
    error = {"code": status, "message": message, "errors": [{"domain": "global", "reason": code, "message": message}]}
    return Answer(status, JSON, json.dumps({"error": error}).encode())


def name_of(request: Request) -> str:
    """Return the name of the object of *request*, "" if it is about none."""
    found = _PATH.fullmatch(request.target.partition("?")[0])
    return unquote(found[2]) if found and found[2] else request.query.get("name", "")


def answer(request: Request, buckets: dict[str, Bucket]) -> Answer:
    """Answer a request."""
    found = _PATH.fullmatch(request.target.partition("?")[0])  # an escaped slash is part of a name
    if found is None:
        return refusal(request, 404, "notFound")
    bucket = buckets.get(found[1])
    if bucket is None:
        return refusal(request, 404, "notFound", "The specified bucket does not exist.")
    with bucket.lock:
        try:
            if "upload_id" in request.query:
                return _resume(request, found[1], bucket)
            if request.method == "POST":
                return _insert(request, found[1], bucket)
        except Exists:
            return refusal(request, 412, "conditionNotMet")
        if found[2] is None:
            return _list(request, found[1], bucket) if "/o" in found[0] else _json({"name": found[1]})
        return _get(request, found[1], bucket, unquote(found[2]))


def _json(value: dict[str, Any]) -> Answer:
    return Answer(200, JSON, json.dumps(value).encode())


def _resource(place: str, bucket: Bucket, name: str) -> dict[str, Any]:
    version = bucket.version(name)
    when = datetime.fromtimestamp(version.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    size = str(len(bucket.objects[name]))
    digest = "" if "-" in version.etag else b64encode(bytes.fromhex(version.etag)).decode()
    return {
        **{"kind": "storage#object", "name": name, "bucket": place, "generation": str(version.generation)},
        **{
            "metageneration": "1",
            "size": size,
            "updated": when,
            "timeCreated": when,
            "etag": version.etag,
            "md5Hash": digest,
        },
    }


def _get(request: Request, place: str, bucket: Bucket, name: str) -> Answer:
    """Objects: get, delete. A generation that is not the live one is not there: the bucket keeps no others."""
    missing = f"No such object: {place}/{name}"
    if name not in bucket.objects:
        return refusal(request, 404, "notFound", missing)
    generation = str(bucket.version(name).generation)
    if request.query.get("generation", generation) != generation:
        return refusal(request, 404, "notFound", missing)
    if request.query.get("ifGenerationMatch", generation) != generation:
        return refusal(request, 412, "conditionNotMet")
    if request.method == "DELETE":
        del bucket.objects[name]
        return Answer(204, {})
    if request.query.get("alt") != "media":
        return _json(_resource(place, bucket, name))
    headers = {
        "ETag": bucket.version(name).etag,
        "x-goog-generation": generation,
        "x-goog-metageneration": "1",
        "x-goog-stored-content-encoding": "identity",
        "x-goog-stored-content-length": str(len(bucket.objects[name])),
        "Content-Type": "application/octet-stream",
    }
    found = ranged(request, bucket.objects[name], headers)
    if found.status == 416:
        refused = refusal(request, 416, "requestedRangeNotSatisfiable")
        return refused._replace(headers=JSON | found.headers)
    return found


def _list(request: Request, place: str, bucket: Bucket) -> Answer:
    query = request.query
    found = bucket.listed(
        query.get("prefix", ""),
        query.get("delimiter", ""),
        query.get("pageToken", ""),
        int(query.get("maxResults") or 0),
    )
    value: dict[str, Any] = {"kind": "storage#objects"}
    if found.names:
        value["items"] = [_resource(place, bucket, name) for name in found.names]
    if found.prefixes:
        value["prefixes"] = found.prefixes
    if found.next:
        value["nextPageToken"] = found.next
    return _json(value)


def _insert(request: Request, place: str, bucket: Bucket) -> Answer:
    """Objects: insert, by uploadType media or resumable."""
    name = request.query["name"]
    absent = request.query.get("ifGenerationMatch") == "0"
    if request.query.get("uploadType") == "resumable":
        if absent and name in bucket.objects:
            raise Exists
        identity = bucket.begin(name, absent)
        place = f"http://{request.headers['host']}/upload/storage/v1/b/{place}/o"
        return Answer(200, {"Location": f"{place}?uploadType=resumable&upload_id={identity}"})
    bucket.put(name, request.body, absent)
    return _json(_resource(place, bucket, name))


def _resume(request: Request, place: str, bucket: Bucket) -> Answer:
    """A chunk of a resumable upload, the question how far it is, or its end."""
    identity = request.query["upload_id"]
    upload = bucket.uploads.get(identity)
    if upload is None:
        return refusal(request, 404, "notFound")
    if request.method == "DELETE":
        del bucket.uploads[identity]
        return Answer(499, {})
    if upload.done:
        return _json(_resource(place, bucket, upload.name))
    found = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", request.headers.get("content-range", ""))
    stored = upload.joined(sorted(upload.parts)).size
    total = None if found is None or found[3] == "*" else int(found[3])
    if found is None or found[1] is not None:
        start = int(found[1]) if found else 0
        if start != stored:
            return refusal(request, 503 if start > stored else 400, "invalid", "Invalid request. Wrong offset.")
        if total is None and found and (int(found[2]) + 1) % CHUNK:
            return refusal(request, 400, "invalid", "Chunks are multiples of 262144 bytes.")
        upload.parts[len(upload.parts) + 1] = request.body
        stored += request.body.size
    if found is None or stored == total:
        bucket.complete(identity, sorted(upload.parts))
        return _json(_resource(place, bucket, upload.name))
    return _incomplete(upload)


def _incomplete(upload: Upload) -> Answer:
    stored = sum(part.size for part in upload.parts.values())
    return Answer(308, {"Range": f"bytes=0-{stored - 1}"} if stored else {})
