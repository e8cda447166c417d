"""Our AIStore is what the official SDK takes for one, and our commands and the SDK see what the other has written."""

from __future__ import annotations

import pytest
from aistore.sdk import Bucket, Client  # type: ignore[import-untyped]
from aistore.sdk.errors import AISError, ErrObjNotFound  # type: ignore[import-untyped]
from aistore.sdk.retry_config import RetryConfig  # type: ignore[import-untyped]

from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.conftest import make_site
from tests.storage.objects.servers import Proxy
from tests.storage.objects.sites import Site

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


def test_a_token_that_is_wrong(ais: Site, run: Run) -> None:
    ais.put("a.tar", SMALL)
    for token in ("wrong-token", ""):
        done = run("tarcat", ais.url("a.tar"), env=ais.env | {"AIS_AUTHN_TOKEN": token})
        assert done.status == 1 and "credentials" in done.stderr and done.stderr.count("\n") == 1
        assert "wrong-token" not in done.stderr
