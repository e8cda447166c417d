"""Places where the tests keep objects: one interface over all the servers, which goes past the code that is tested."""

from __future__ import annotations

import http.client
import json
import xml.etree.ElementTree as ET
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import quote, urlsplit

from tests.storage.objects.memory import Bucket
from tests.storage.objects.wire import Received

SIGNED = {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20200101/us-east-1/s3/aws4_request, Signature=0"}
S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def environment(scheme: str, url: str, token: str = "") -> dict[str, str]:
    """Return what commands need in their environment to find the server at *url*."""
    if scheme == "s3":
        return {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    if scheme == "ais":
        return {"AIS_ENDPOINT": url} | ({"AIS_AUTHN_TOKEN": token} if token else {})
    if scheme == "hf":  # the hub has another name than its store, which gets no token
        return {"HF_ENDPOINT": url.replace("127.0.0.1", "localhost")} | ({"HF_TOKEN": token} if token else {})
    if scheme == "azure":
        return {"AZURE_STORAGE_CONNECTION_STRING": f"AccountName=testing;AccountKey=dGVzdGluZw==;BlobEndpoint={url}"}
    return {"STORAGE_EMULATOR_HOST": url} if scheme == "gs" else {}


def ask(method: str, url: str, data: bytes = b"", headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Return status and body of the answer to one request."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(split.hostname or "", split.port)
    try:
        connection.request(method, url.partition(split.netloc)[2], data, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def create_bucket(scheme: str, url: str, bucket: str) -> None:
    """Create *bucket* on the server at *url*, if it has buckets."""
    if scheme == "s3":
        done = ask("PUT", f"{url}/{bucket}", headers=SIGNED)
    elif scheme == "gs":
        data = json.dumps({"name": bucket}).encode()
        done = ask("POST", f"{url}/storage/v1/b?project=p", data, {"Content-Type": "application/json"})
    elif scheme == "ais":
        done = ask("POST", f"{url}/v1/buckets/{bucket}?provider=ais", b'{"action": "create-bck"}')
    else:
        return
    assert done[0] == 200, done


class Site(ABC):
    """A bucket, or a directory of a web server. Commands find it by `url`, with `env` in their environment."""

    def __init__(self, scheme: str, place: str, env: dict[str, str]) -> None:
        self.scheme = scheme
        self.place = place
        self.env = env

    def url(self, name: str) -> str:
        """Return the URL of the object *name*, as a user writes it."""
        return f"{self.scheme}://{self.place}/{name}"

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make the object *name*."""

    @abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return the object *name*; None if there is none."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all objects, sorted by their bytes."""

    def pending(self) -> int:
        """Return how many uploads were begun, and neither completed nor dropped, as far as the server says."""
        return 0


class S3Site(Site):
    """A new bucket in moto."""

    def __init__(self, server: str, bucket: str) -> None:
        super().__init__("s3", bucket, environment("s3", server))
        self._bucket = f"{server}/{bucket}"
        create_bucket("s3", server, bucket)

    def put(self, name: str, data: bytes) -> None:
        assert self._ask("PUT", f"/{quote(name)}", data)[0] == 200

    def get(self, name: str) -> bytes | None:
        status, body = self._ask("GET", f"/{quote(name)}")
        assert status in (200, 404), body
        return body if status == 200 else None

    def names(self) -> list[str]:
        found: list[str] = []
        token: str | None = ""
        while token is not None:
            more = f"&continuation-token={quote(token)}" if token else ""
            page = ET.fromstring(self._ask("GET", f"?list-type=2{more}")[1])
            found += [key.text or "" for key in page.iterfind(f"{S3}Contents/{S3}Key")]
            token = page.findtext(f"{S3}NextContinuationToken")
        return sorted(found, key=str.encode)

    def pending(self) -> int:
        return len(list(ET.fromstring(self._ask("GET", "?uploads")[1]).iterfind(f"{S3}Upload")))

    def _ask(self, method: str, rest: str, data: bytes = b"") -> tuple[int, bytes]:
        return ask(method, self._bucket + rest, data, SIGNED)  # nobody checks by whom


class GsSite(Site):
    """A new bucket in gcp-storage-emulator."""

    def __init__(self, server: str, bucket: str) -> None:
        super().__init__("gs", bucket, environment("gs", server))
        self._server = server
        self._objects = f"{server}/storage/v1/b/{bucket}/o"
        create_bucket("gs", server, bucket)

    def put(self, name: str, data: bytes) -> None:
        place = f"{self._server}/upload/storage/v1/b/{self.place}/o?uploadType=media&name={quote(name, safe='')}"
        assert ask("POST", place, data, {"Content-Type": "application/octet-stream"})[0] == 200

    def get(self, name: str) -> bytes | None:
        status, body = ask("GET", f"{self._objects}/{quote(name, safe='')}?alt=media")
        assert status in (200, 404), body
        return body if status == 200 else None

    def names(self) -> list[str]:
        return sorted((item["name"] for item in json.loads(ask("GET", self._objects)[1])["items"]), key=str.encode)

    def pending(self) -> int:
        number: int = json.loads(ask("GET", f"{self._server}/pending?bucket={self.place}")[1])
        return number


class WebSite(Site):
    """A new directory of a web server that has *files*; nobody lists it."""

    def __init__(self, server: str, files: Path, directory: str) -> None:
        super().__init__("http", f"{server.partition('://')[2]}/{directory}", {})
        self._files = files / directory
        self._files.mkdir()

    def url(self, name: str) -> str:
        """Return the URL, in which all but letters is escaped."""
        return super().url(quote(name))

    def put(self, name: str, data: bytes) -> None:
        path = self._files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, name: str) -> bytes | None:
        path = self._files / name
        return path.read_bytes() if path.exists() else None

    def names(self) -> list[str]:
        found = (path.relative_to(self._files) for path in self._files.rglob("*") if path.is_file())
        return sorted(map(str, found), key=str.encode)


class MemorySite(Site):
    """A bucket of a server of ours, which runs in this process."""

    def __init__(self, scheme: str, place: str, env: dict[str, str], bucket: Bucket) -> None:
        super().__init__(scheme, place, env)
        self._bucket = bucket

    def put(self, name: str, data: bytes) -> None:
        self._bucket.put(name, Received(len(data), data))

    def get(self, name: str) -> bytes | None:
        return self._bucket.objects.get(name)

    def names(self) -> list[str]:
        return sorted(self._bucket.objects, key=str.encode)

    def pending(self) -> int:
        return self._bucket.pending
