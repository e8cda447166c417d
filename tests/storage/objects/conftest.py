"""Servers for the tests, each started when it is first needed; a bucket of its own for every test."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.test_damage import WHOLE
from tests.shared import shared_folder
from tests.storage.objects import servers
from tests.storage.objects.fake_hf import Repository
from tests.storage.objects.faults import FaultServer
from tests.storage.objects.hubserver import Hub
from tests.storage.objects.inside import OBJECT, Inside
from tests.storage.objects.memory import Bucket
from tests.storage.objects.servers import NGINX, Proxy
from tests.storage.objects.sites import GsSite, MemorySite, S3Site, Site, WebSite, environment

WRITTEN = ["s3", "gs", "http", "ais"]  # servers that are written to, too
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "0")  # of those that share the servers
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for servers that all workers share, and for what they say."""
    folder = shared_folder(tmp_path_factory) / "servers"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def s3_server(logs: Path) -> Iterator[str]:
    """Give the URL of moto."""
    with servers.process(logs / "s3", "s3") as url:
        yield url


@pytest.fixture(scope="session")
def gs_server(logs: Path) -> Iterator[str]:
    """Give the URL of gcp-storage-emulator."""
    with servers.process(logs / "gs", "gs") as url:
        yield url


@pytest.fixture(scope="session")
def http_server(logs: Path) -> Iterator[tuple[str, Path]]:
    """Give the URL of nginx, and its directory."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    files = logs / "nginx"
    files.mkdir(exist_ok=True)
    with servers.process(logs / "http", "http", str(files)) as url:
        yield url, files


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Give the URL of Python's http.server, and its directory."""
    files = tmp_path_factory.mktemp("plain")
    with servers.plain(str(files)) as url:
        yield url, files


@pytest.fixture(scope="session")
def ais_server() -> Iterator[Proxy]:
    """Give the proxy of our AIStore; it asks for a token."""
    with servers.aistore("token-of-the-tests") as proxy:
        yield proxy


@pytest.fixture
def faulty() -> Iterator[FaultServer]:
    """Give a server that fails as its `faults` say."""
    with FaultServer() as server:
        yield server
    assert server.errors == []


def make_site(request: pytest.FixtureRequest, kind: str) -> Site:
    """Return a new, empty site on the server *kind*, which is started if it does not run yet."""
    server = request.getfixturevalue(f"{kind}_server")
    place = f"bucket-{WORKER}-{next(_numbers)}"
    if kind == "s3":
        return S3Site(server, place)
    if kind == "gs":
        return GsSite(server, place)
    if kind == "ais":
        bucket = server.buckets[place] = Bucket()
        return MemorySite("ais", place, environment("ais", server.base, server.token), bucket)
    url, files = server
    return WebSite(url, files, place)


@pytest.fixture(params=WRITTEN)
def site(request: pytest.FixtureRequest) -> Site:
    """Return an empty place on each of the servers that can be read and written."""
    return make_site(request, request.param)


@pytest.fixture(params=[*WRITTEN, "plain"])
def source(request: pytest.FixtureRequest) -> Site:
    """Return an empty place on each of the servers that can be read: one more knows no ranges."""
    return make_site(request, request.param)


@pytest.fixture
def plain(request: pytest.FixtureRequest) -> Site:
    """Return an empty place on the server that knows no ranges, and takes nothing."""
    return make_site(request, "plain")


@pytest.fixture(params=[kind for kind in WRITTEN if kind != "http"])
def listed(request: pytest.FixtureRequest) -> Site:
    """Return an empty place on each of the servers whose wildcards expand."""
    return make_site(request, request.param)


@pytest.fixture(scope="session")
def key() -> str:
    """Return a private key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return rsa.generate_private_key(65537, 2048).private_bytes(*form).decode()


@pytest.fixture
def empty(
    faulty: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Inside:
    """Return commands in this process, and a server that has nothing yet."""
    return Inside(faulty, tmp_path, monkeypatch, capfdbinary)


@pytest.fixture
def encrypted(
    certificate: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Iterator[Inside]:
    """Give commands in this process, and a server that speaks TLS."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    with FaultServer() as server:
        server.encrypt(certificate)
        server.objects[OBJECT] = WHOLE
        yield Inside(server, tmp_path, monkeypatch, capfdbinary)


@pytest.fixture
def repository(hub: Hub) -> Repository:
    """Return the data set of the hub."""
    return hub.data_sets["org/set"]


@pytest.fixture
def inside(empty: Inside) -> Inside:
    """Return commands in this process, and a server that has the object `WHOLE`."""
    empty.server.objects[OBJECT] = WHOLE
    return empty


@pytest.fixture(params=[False, True], ids=["one", "ahead"])
def ahead(request: pytest.FixtureRequest, inside: Inside) -> bool:
    """Let commands receive ranges ahead, or not; tell whether they do."""
    if request.param:
        inside.ahead()
    return bool(request.param)
