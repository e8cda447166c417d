"""S3 over buckets in memory: what the API reference says of GetObject, ListObjectsV2, PutObject and multipart uploads.

Paths are `/BUCKET/KEY`. Nobody's signature is checked. A part that is not the last has 5 MiB or more, as in S3.
"""

from __future__ import annotations

import re
from base64 import b64encode
from datetime import UTC, datetime
from email.utils import formatdate
from hashlib import md5
from urllib.parse import quote
from xml.sax.saxutils import escape
from zlib import crc32

from tests.storage.objects.memory import Bucket, Exists
from tests.storage.objects.wire import Answer, Request, ranged

SMALLEST_PART = 5 << 20  # bytes
STATUS = {
    "NoSuchBucket": 404,
    "NoSuchKey": 404,
    "NoSuchUpload": 404,
    "InvalidPart": 400,
    "BadDigest": 400,
    "InvalidRequest": 400,
    "EntityTooSmall": 400,
    "PreconditionFailed": 412,
    "InvalidRange": 416,
    "NotImplemented": 501,
}
XML = {"Content-Type": "application/xml"}


def refusal(request: Request, status: int, code: str = "", more: str = "") -> Answer:
    """Return an error as S3 tells it (API reference, Error responses); a HEAD has only the status."""
    text = (
        f"<Error><Code>{code}</Code><Message>{code}, as was asked for</Message>{more}<RequestId>1</RequestId></Error>"
    )
    return Answer(status, XML, b"" if request.method == "HEAD" else _xml(text))


def answer(request: Request, buckets: dict[str, Bucket]) -> Answer:
    """Answer a request."""
    place, _, key = request.path[1:].partition("/")
    bucket = buckets.get(place)
    if bucket is None:
        return _refuse(request, "NoSuchBucket", f"<BucketName>{place}</BucketName>")
    if "aws-chunked" in request.headers.get("content-encoding", ""):
        return _refuse(request, "NotImplemented")
    sums = _checksums(request)
    if any(request.headers.get(name, text) != text for name, text in sums.items()):
        return _refuse(request, "BadDigest")
    with bucket.lock:
        try:
            if not key:
                return _list(request, place, bucket)
            if "uploads" in request.query or "uploadId" in request.query:
                return _multipart(request, place, bucket, key)
            if request.method == "PUT":
                bucket.put(key, request.body, absent=_absent(request))
                return _stored(request, bucket.version(key).etag)
        except Exists:
            return _refuse(request, "PreconditionFailed")
        if request.method == "DELETE":
            bucket.objects.pop(key, None)
            return Answer(204, {})
        return _get(request, bucket, key)


def _checksums(request: Request) -> dict[str, str]:
    """Return the checksums of the body, as headers have them."""
    data = request.body.data
    sums = {"content-md5": md5(data).digest(), "x-amz-checksum-crc32": crc32(data).to_bytes(4, "big")}
    return {name: b64encode(digest).decode() for name, digest in sums.items()}


def _stored(request: Request, tag: str) -> Answer:
    """Return the answer to a request whose body was stored: its ETag, and the checksum that came with it."""
    name = "x-amz-checksum-crc32"
    return Answer(200, {"ETag": f'"{tag}"'} | {k: v for k, v in request.headers.items() if k == name})


def _xml(text: str) -> bytes:
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def _refuse(request: Request, code: str, more: str = "") -> Answer:
    return refusal(request, STATUS[code], code, more)


def _absent(request: Request) -> bool:
    return request.headers.get("if-none-match") == "*"


def _tag(bucket: Bucket, key: str) -> str:
    return f'"{bucket.version(key).etag}"'


def _get(request: Request, bucket: Bucket, key: str) -> Answer:
    if key not in bucket.objects:
        return _refuse(request, "NoSuchKey", f"<Key>{escape(key)}</Key>")
    version = bucket.version(key)
    if request.headers.get("if-match", f'"{version.etag}"').strip('"') != version.etag:
        return _refuse(request, "PreconditionFailed", "<Condition>If-Match</Condition>")
    headers = {
        "ETag": f'"{version.etag}"',
        "Last-Modified": formatdate(version.modified, usegmt=True),
        "Content-Type": "binary/octet-stream",
    }
    found = ranged(request, bucket.objects[key], headers)
    if found.status == 416:
        size = len(bucket.objects[key])
        refused = _refuse(request, "InvalidRange", f"<ActualObjectSize>{size}</ActualObjectSize>")
        return refused._replace(headers=XML | found.headers)
    return found


def _list(request: Request, place: str, bucket: Bucket) -> Answer:
    query = request.query
    if query.get("list-type") != "2":
        return _refuse(request, "NotImplemented")
    after = query.get("continuation-token", "")
    found = bucket.listed(query.get("prefix", ""), query.get("delimiter", ""), after, int(query.get("max-keys") or 0))
    coded = query.get("encoding-type") == "url"

    def text(name: str) -> str:
        return quote(name) if coded else escape(name)

    entries = "".join(_entry(bucket, name, text(name)) for name in found.names)
    entries += "".join(f"<CommonPrefixes><Prefix>{text(name)}</Prefix></CommonPrefixes>" for name in found.prefixes)
    more = f"<NextContinuationToken>{escape(found.next)}</NextContinuationToken>" if found.next else ""
    kind = "<EncodingType>url</EncodingType>" if coded else ""
    return Answer(
        200,
        XML,
        _xml(
            f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{place}</Name>{kind}'
            f"<KeyCount>{len(found.names)}</KeyCount><IsTruncated>{'true' if found.next else 'false'}</IsTruncated>"
            f"{more}{entries}</ListBucketResult>"
        ),
    )


def _entry(bucket: Bucket, name: str, text: str) -> str:
    version = bucket.version(name)
    when = datetime.fromtimestamp(version.modified, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return (
        f"<Contents><Key>{text}</Key><LastModified>{when}</LastModified><ETag>&quot;{version.etag}&quot;</ETag>"
        f"<Size>{len(bucket.objects[name])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
    )


def _multipart(request: Request, place: str, bucket: Bucket, key: str) -> Answer:
    """CreateMultipartUpload, UploadPart, CompleteMultipartUpload, AbortMultipartUpload."""
    if "uploads" in request.query:
        identity = bucket.begin(key)
        bucket.uploads[identity].algorithm = request.headers.get("x-amz-checksum-algorithm", "")
        text = f"<Bucket>{place}</Bucket><Key>{escape(key)}</Key><UploadId>{identity}</UploadId>"
        return Answer(200, XML, _xml(f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>"))
    identity = request.query["uploadId"]
    upload = bucket.uploads.get(identity)
    if upload is None or upload.done or upload.name != key:
        return _refuse(request, "NoSuchUpload")
    if request.method == "DELETE":
        del bucket.uploads[identity]
        return Answer(204, {})
    if request.method == "PUT":
        number = int(request.query["partNumber"])
        upload.parts[number] = request.body
        return _stored(request, md5(request.body.data).hexdigest())
    numbers = [int(number) for number in re.findall(rb"<PartNumber>(\d+)</PartNumber>", request.body.data)]
    tags = [tag.decode() for tag in re.findall(rb"<ETag>(?:&quot;|\")?([^<&\"]+)", request.body.data)]
    if not set(numbers) <= set(upload.parts):
        return _refuse(request, "InvalidPart")
    digests = [md5(upload.parts[number].data) for number in numbers]
    if tags != [digest.hexdigest() for digest in digests]:
        return _refuse(request, "InvalidPart")
    if upload.algorithm and request.body.data.count(b"<ChecksumCRC32>") != len(numbers):
        return _refuse(request, "InvalidRequest")
    if any(upload.parts[number].size < SMALLEST_PART for number in numbers[:-1]):
        return _refuse(request, "EntityTooSmall")
    upload.absent = _absent(request)
    bucket.complete(identity, numbers)
    tag = f'"{md5(b"".join(digest.digest() for digest in digests)).hexdigest()}-{len(numbers)}"'
    text = f"<Bucket>{place}</Bucket><Key>{escape(key)}</Key><ETag>{escape(tag)}</ETag>"
    return Answer(200, XML, _xml(f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"))
