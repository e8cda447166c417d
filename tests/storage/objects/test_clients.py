"""Clients of the stores: the SDK of AIStore beside ours, the session of boto3, what is imported; a proxy that waits."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from aistore.sdk import Bucket, Client  # type: ignore[import-untyped]
from aistore.sdk.errors import AISError, ErrObjNotFound  # type: ignore[import-untyped]
from aistore.sdk.retry_config import RetryConfig  # type: ignore[import-untyped]

from tests.conftest import Run, make_samples, make_tar, python
from tests.storage.objects.conftest import make_site
from tests.storage.objects.delay import BURST, PIPE, serve
from tests.storage.objects.faults import FaultServer
from tests.storage.objects.servers import Proxy
from tests.storage.objects.sites import Site
from tests.tiers import exhaustive

SMALL = make_tar(make_samples(5))
BIG = make_tar([(f"{n}.bin", bytes([n]) * 3_000_000) for n in range(12)])


@pytest.fixture
def ais(request: pytest.FixtureRequest) -> Site:
    """Return an empty bucket."""
    return make_site(request, "ais")


@pytest.fixture
def bucket(ais: Site, ais_server: Proxy) -> Bucket:
    """Return the same bucket as the SDK sees it."""
    retry = RetryConfig.default()
    retry.network_retry.stop = lambda state: True  # what is not there, is not there later either
    return Client(ais_server.base, token=ais_server.token, retry_config=retry).bucket(ais.place)


def test_the_sdk_reads_what_we_write(ais: Site, bucket: Bucket, run: Run) -> None:
    for name, data in (("d/small+ü.tar", SMALL), ("big.tar", BIG)):
        assert run("tarcat", "-o", ais.url(name), stdin=data, env=ais.env) == (0, b"", "")
        assert bucket.object(name).get_reader().read_all() == data
        assert bucket.object(name).get_reader(byte_range="bytes=512-1023").read_all() == data[512:1024]
        assert bucket.object(name).props.size == len(data)
    assert [(entry.name, entry.size) for entry in bucket.list_all_objects()] == [
        ("big.tar", len(BIG)),
        ("d/small+ü.tar", len(SMALL)),
    ]


def test_we_read_what_the_sdk_writes(ais: Site, bucket: Bucket, run: Run) -> None:
    bucket.object("small.tar").get_writer().put_content(SMALL)
    upload = bucket.object("big.tar").multipart_upload().create()
    assert ais.pending() == 1
    for number, start in enumerate(range(0, len(BIG), 5 << 20), 1):
        upload.add_part(number).put_content(BIG[start : start + (5 << 20)])
    upload.complete()
    assert ais.pending() == 0
    assert run("tarcat", ais.url("small.tar"), env=ais.env) == (0, SMALL, "")
    assert run("tarcat", ais.url("big.tar"), env=ais.env) == (0, BIG, "")


def test_the_sdk_lists_in_pages_and_drops_uploads(ais: Site, bucket: Bucket) -> None:
    names = [f"{number:04d}" for number in range(2500)]
    for name in names:
        ais.put(name, b"")
    assert [entry.name for entry in bucket.list_all_objects(page_size=999)] == names
    assert [entry.name for entry in bucket.list_all_objects(prefix="01")] == names[100:200]
    upload = bucket.object("x").multipart_upload().create()
    upload.add_part(1).put_content(b"1")
    upload.abort()
    assert (ais.pending(), ais.get("x")) == (0, None)
    bucket.object("0000").delete()
    assert ais.names() == names[1:]


def test_what_is_not_there_is_an_error_to_the_sdk(ais: Site, bucket: Bucket, ais_server: Proxy) -> None:
    with pytest.raises(ErrObjNotFound):
        bucket.object("no.tar").get_reader().read_all()
    with pytest.raises(AISError, match="401"):
        Client(ais_server.base, token="wrong").bucket(ais.place).list_all_objects()


# ---- The client of S3: the credentials that a program has chosen ----


PROGRAM = """
import boto3, sys
from tartools import storage
if sys.argv[2:]:
    boto3.setup_default_session(aws_access_key_id=sys.argv[2], aws_secret_access_key="x")
sys.stdout.buffer.write(storage.read_content(sys.argv[1]))
"""


def test_the_default_session_of_boto3(faulty: FaultServer) -> None:
    faulty.objects["a"] = b"abc"
    for chosen in ((), ("CHOSEN",)):
        assert python(PROGRAM, faulty.url("s3", "a"), *chosen, env=faulty.env) == (0, b"abc", "")
        signed = faulty.requests[-1].headers["authorization"]
        assert ("Credential=CHOSEN/" in signed) == bool(chosen)


# ---- Only what a URL needs is imported: who reads S3 does not wait for Google's libraries, nor the other way ----


LIBRARIES = ("boto3", "botocore", "requests", "google.auth", "google.cloud.storage", "smart_open", "aistore")
NEEDED = {"s3": {"botocore"}, "gs": {"google.auth"}, "ais": set(), "http": set(), "azure": set()}
LISTED = [pytest.param(scheme, "in-[0-9].tar", marks=exhaustive) for scheme in ("gs", "ais", "azure")]
IMPORTING = f"""
import sys
from tartools.commands.tarcat import tarcat
status = tarcat.main(sys.argv[1:])
print(*sorted(set(sys.modules) & {set(LIBRARIES)!r}))
sys.exit(status)
"""


def imported(server: FaultServer, *arguments: str) -> set[str]:
    """Return the libraries that tarcat with *arguments* has imported at its end."""
    return set(python(IMPORTING, *arguments, env=server.env).output().decode().split())


@pytest.mark.parametrize(
    ("scheme", "name"), [*((scheme, "in-1.tar") for scheme in NEEDED), ("s3", "in-[0-9].tar"), *LISTED]
)
def test_a_scheme_imports_its_own_library(scheme: str, name: str, faulty: FaultServer) -> None:
    """Also where it is listed."""
    faulty.objects["in-1.tar"] = data = make_tar(make_samples(3))
    assert imported(faulty, faulty.url(scheme, name), "-o", faulty.url(scheme, "out")) == NEEDED[scheme]
    assert faulty.objects["out"] == data


ARCHIVE = make_tar(make_samples(3000))  # 5 MB


@pytest.mark.skipif(not hasattr(os, "splice"), reason="this system has no splice(2)")
def test_delay_and_rate(plain: Site, run: Run) -> None:
    plain.put("a.tar", ARCHIVE)
    place, _, rest = plain.url("a.tar").removeprefix("http://").partition("/")
    host, _, port = place.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening, (host, int(port)), 0.2, 20e6), daemon=True).start()
        start = time.monotonic()
        done = run("tarcat", f"http://127.0.0.1:{listening.getsockname()[1]}/{rest}")
        took = time.monotonic() - start
        listening.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
    assert done == (0, ARCHIVE, "")
    # Connecting, asking, and the bytes: but for a burst, and for the last pages, which are passed on before their wait.
    assert took > 2 * 0.2 + (len(ARCHIVE) - BURST - PIPE) / 20e6
