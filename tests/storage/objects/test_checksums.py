"""`tarls --sums`: what stores keep of whole objects, without a download; and lists of checksums in stores."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tartools.storage.objects.storedsums import s3_checksum
from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.fake_hf import Repository
from tests.storage.objects.hubserver import Hub
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

SHARDS = {f"train/{n}.tar": make_tar([(f"{10 * n + k}.cls", b"%d" % k) for k in range(3)]) for n in range(3)}
MD5_TAG = '"' + "ab" * 16 + '"'
WHOLE_SHA256 = base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Give a hub with a data set of shards, which it keeps as large files, and of a small file."""
    with Hub() as hub:
        hub.data_sets["org/set"] = Repository()
        hub.data_sets["org/set"].objects |= SHARDS | {"README.md": b"# A set\n"}
        yield hub
    assert hub.errors == []


def test_the_hub_keeps_sha256_of_large_files(hub: Hub, run: Run, tmp_path: Path) -> None:
    env = hub.env(tmp_path)
    out = run("tarls", "--sums", "hf://datasets/org/set/", env=env).output().decode()
    assert [line.split("  ")[0] for line in out.splitlines()] == [
        hashlib.sha256(data).hexdigest() for data in SHARDS.values()
    ]
    assert not [request for request in hub.requests if "/resolve/" in request.target]  # nothing is downloaded
    done = run("tarls", "--all", "--sums", "hf://datasets/org/set/README.md", env=env)
    assert (done.status, done.stdout) == (1, b"")
    assert "README.md: the store keeps no checksum of all of its bytes; download it, and use sha256sum" in done.stderr
    (tmp_path / "SUMS").write_text(out)
    url = "hf://datasets/org/set/train/*.tar"
    assert run("tarcheck", "-q", "--check-sums", "SUMS", url, env=env).status == 0
    assert run("tarcat", "--check-sums", "SUMS", url, env=env).stderr == ""
    (tmp_path / "1.tar").write_bytes(SHARDS["train/1.tar"])  # a copy
    assert run("tarcat", "--check-sums", "SUMS", "1.tar").output() == SHARDS["train/1.tar"]
    hub.data_sets["org/set"].objects["train/1.tar"] = make_tar(make_samples(4, 10))
    said = run("tarcat", "--check-sums", "SUMS", url, "-o", "out.tar", env=env).failure()
    assert "/train/1.tar: SHA256 is " in said and not (tmp_path / "out.tar").exists()


@by_turns("listed")
def test_a_list_of_a_store_is_compared_there_and_with_a_copy(listed: Site, run: Run, tmp_path: Path) -> None:
    """S3 and GCS have the MD5 of objects that were sent in one request."""
    for name, data in SHARDS.items():
        listed.put(name, data)
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    done = run("tarls", "--sums", listed.url("train/"), env=listed.env)
    if listed.scheme not in ("s3", "gs"):
        assert (done.status, done.stdout, done.stderr.count("the store keeps no checksum")) == (1, b"", len(SHARDS))
        return
    expected = [f"MD5 ({listed.url(name)}) = {hashlib.md5(data).hexdigest()}" for name, data in SHARDS.items()]
    assert (done.status, done.stdout.decode().splitlines(), done.stderr) == (0, expected, "")
    (tmp_path / "SUMS").write_bytes(done.stdout)
    assert run("tarcheck", "-q", "--check-sums", "SUMS", listed.url("train/*"), env=listed.env).status == 0
    assert run("tarcheck", "-q", "--check-sums", "SUMS", *SHARDS).status == 0
    (tmp_path / "train/2.tar").write_bytes(SHARDS["train/2.tar"] + bytes(512))
    assert b"checksum-differs: 1" in run("tarcheck", "-q", "--check-sums", "SUMS", *SHARDS).stdout


@by_turns("listed")
def test_shards_and_their_list_in_a_store(listed: Site, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(6)))
    words = "tarsplit", "-n", 3, "a.tar", "-o", listed.url("new/x"), "--sums", listed.url("new/SUMS")
    assert run(*words, env=listed.env).status == 0
    names = "x-000000.tar", "x-000001.tar"
    lines = [f"{hashlib.sha256(listed.get(f'new/{name}') or b'').hexdigest()}  {name}" for name in names]
    assert (listed.get("new/SUMS") or b"").decode().splitlines() == lines
    words = "tarcat", "--check-sums", listed.url("new/SUMS"), listed.url("new/*.tar")
    assert run(*words, env=listed.env).output() == (tmp_path / "a.tar").read_bytes()
    said = run(*words, "-o", listed.url("b.tar"), "--sums", listed.url("new/SUMS"), env=listed.env).failure()
    assert said == f"tarcat: {listed.url('new/SUMS')}: already exists; --force replaces it\n"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"ETag": MD5_TAG}, ("MD5", "ab" * 16)),
        ({"ETag": MD5_TAG, "ServerSideEncryption": "AES256"}, ("MD5", "ab" * 16)),
        ({"ETag": MD5_TAG, "ChecksumCRC32": "AAAAAQ=="}, ("MD5", "ab" * 16)),
        ({"ETag": MD5_TAG, "ChecksumCRC32": "AAAAAQ==", "ServerSideEncryption": "aws:kms"}, ("CRC32", "00000001")),
        ({"ETag": MD5_TAG, "ServerSideEncryption": "aws:kms"}, None),
        ({"ETag": MD5_TAG, "SSECustomerAlgorithm": "AES256"}, None),
        ({"ETag": '"' + "ab" * 16 + '-7"'}, None),
        ({"ETag": MD5_TAG, "ChecksumSHA256": WHOLE_SHA256}, ("SHA256", bytes(range(32)).hex())),
        (
            {"ETag": '"a-2"', "ChecksumSHA256": WHOLE_SHA256, "ChecksumType": "FULL_OBJECT"},
            ("SHA256", bytes(range(32)).hex()),
        ),
        ({"ETag": '"a-2"', "ChecksumSHA256": f"{WHOLE_SHA256}-2"}, None),
        ({"ETag": '"a-2"', "ChecksumCRC32": "AAAAAA==-2", "ChecksumType": "COMPOSITE"}, None),
        (
            {"ETag": '"a-2"', "ChecksumCRC64NVME": "AAAAAAAAAAE=", "ChecksumType": "FULL_OBJECT"},
            ("CRC64NVME", "0000000000000001"),
        ),
    ],
)
def test_what_s3_says_of_a_whole_object(answer: dict[str, str], expected: tuple[str, str] | None) -> None:
    assert s3_checksum("s3://bucket/a.tar", answer) == expected
    if "Checksum" not in "".join(answer):
        assert s3_checksum("s3://bucket--use1-az4--x-s3/a.tar", answer) is None
