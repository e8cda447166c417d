"""The remote pipelines of docs/move.md and docs/scale.md run as they are printed.

The buckets are those that are named there, on our servers. Only `https://host/` is replaced, by the URL of a server
that is there. `run-ocr` is a script of ours that writes what an OCR program would.
"""

from __future__ import annotations

import gzip
import io
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from tests.conftest import ROOT, Run, clean_environment, keys_in, make_tar, members_of
from tests.properties.test_model import Members
from tests.storage.objects import servers
from tests.storage.objects.memory import Bucket
from tests.storage.objects.servers import Proxy
from tests.storage.objects.sites import GsSite, MemorySite, S3Site, Site, environment
from tests.tiers import exhaustive

SECTION = (ROOT / "docs/move.md").read_text().partition("## Remote pipelines")[2].partition("\n## ")[0]
(BLOCK,) = re.findall(r"^```bash\n(.*?)\n```$", SECTION, re.MULTILINE | re.DOTALL)
LISTING, OCR, SHUFFLING, JOINING, SHOWING = BLOCK.splitlines()
RUN_OCR = """\
#!/bin/sh
for page; do echo "text of $TAR_KEY" > "${page%.png}.txt"; done
"""


def pages(start: int, count: int) -> Members:
    """Return *count* samples, each a picture of a page."""
    picture = io.BytesIO()
    Image.new("L", (30, 40), 255).save(picture, "PNG")
    return [(f"page-{n:04d}.png", picture.getvalue()) for n in range(start, start + count)]


def photos(start: int, count: int) -> Members:
    """Return *count* samples of a label and some text."""
    return [m for n in range(start, start + count) for m in ((f"{n:06d}.cls", b"%d" % n), (f"{n:06d}.txt", b"x" * n))]


class World(NamedTuple):
    """The stores of the pages, and what commands need to find them."""

    gs: Site
    s3: Site
    cache: Site
    web: str
    files: Path
    env: dict[str, str]


@pytest.fixture
def world(gs_server: str, s3_server: str, ais_server: Proxy, plain_server: tuple[str, Path], tmp_path: Path) -> World:
    """Return the stores of the pages; the bucket `bucket` of S3 is empty."""
    ais_server.buckets["cache"] = Bucket()
    env = {"PATH": f"{tmp_path}:{clean_environment()['PATH']}"}
    for scheme, url in (("gs", gs_server), ("s3", s3_server), ("ais", ais_server.base)):
        env |= environment(scheme, url, ais_server.token)
    cache = MemorySite("ais", "cache", env, ais_server.buckets["cache"])
    s3 = S3Site(s3_server, "bucket")
    assert s3.names() == []
    (tmp_path / "run-ocr").write_text(RUN_OCR)
    (tmp_path / "run-ocr").chmod(0o755)
    return World(GsSite(gs_server, "g1000"), s3, cache, *plain_server, env)


def test_the_remote_pipelines_run_as_printed(world: World, shell: Run) -> None:
    def done(line: str) -> bytes:
        return shell(f"set -o pipefail; {line}", env=world.env).output()

    for number in range(1, 4):
        world.gs.put(f"scanned-{number:04d}.tar", make_tar(pages(20 * number, 20)))
    assert done(LISTING) == b"gs://g1000/scanned-{0001..0003}.tar\n"

    assert done(OCR) == b""
    made = world.gs.get("ocr-0001.tar")
    assert made is not None
    expected = [
        m for page in pages(20, 20) for m in (page, (page[0][:-4] + ".txt", b"text of %s\n" % page[0][:-4].encode()))
    ]
    assert members_of(made) == expected

    for number in range(148):
        (world.files / f"train-{number:04d}.tgz").write_bytes(gzip.compress(make_tar(photos(3 * number, 3))))
    assert "https://host/" in SHUFFLING
    assert done(SHUFFLING.replace("https://host/", f"{world.web}/")) == b"s3://bucket/shuffled-000000.tar\n"
    shuffled = members_of(world.s3.get("shuffled-000000.tar") or b"")
    assert shuffled != photos(0, 444) and sorted(shuffled) == photos(0, 444)

    for number in range(7):
        world.s3.put(f"train-{number}.tar", make_tar(photos(20 * number, 20)))
    assert done(JOINING) == b""
    assert members_of(world.cache.get("train.tar") or b"") == photos(0, 140)
    assert (world.gs.pending(), world.s3.pending(), world.cache.pending()) == (0, 0, 0)

    assert re.findall(r"^\d{6}$", done(SHOWING).decode(), re.MULTILINE) == [f"{n:06d}" for n in range(100)]


def large_bucket(url: str) -> S3Site:
    """Return the bucket `bucket` on the server at *url*, with five shards of 20 samples."""
    s3 = S3Site(url, "bucket")
    for number in range(5):
        samples = range(20 * number, 20 * number + 20)
        s3.put(
            f"raw-{number}.tar",
            make_tar([(f"{n:03d}.{field}", b"%d" % (n % 10)) for n in samples for field in ("cls", "txt")]),
        )
    return s3


CHOSEN = [f"{n:03d}" for n in range(100) if n % 10 < 8]


def test_the_large_shuffle_runs_as_printed(duckdb_command: dict[str, str], shell: Run, tmp_path: Path) -> None:
    """Its bucket is on a server of its own; run again, the last line does nothing."""
    section = (
        (ROOT / "docs/scale.md").read_text().partition("## A shuffle larger than one machine")[2].partition("\n## ")[0]
    )
    (block,) = re.findall(r"^```bash\n(.*?)\n```$", section, re.MULTILINE | re.DOTALL)
    with servers.process(tmp_path / "s3", "s3") as url:
        s3 = large_bucket(url)
        out = shell(f"set -euo pipefail\n{block}", env=environment("s3", url) | duckdb_command).output()
        assert out == b"s3://bucket/epoch/part-000000.parquet\n"
        found = keys_in(s3.get("train/part-000000.tar") or b"")
        assert sorted(found) == CHOSEN != found
        last = block.splitlines()[-1].replace("tarjob", "tarjob -v")
        again = shell(last, env=environment("s3", url))
        assert "tarjob: 1 item: 0 done, 1 already done, 0 failed, " in again.stderr


@exhaustive
def test_the_large_shuffle_of_the_manual_runs_as_printed(
    duckdb_command: dict[str, str], shell: Run, tmp_path: Path
) -> None:
    """The job of the Slurm array that has the only item copies it, so that nothing is left for the line without it."""
    page = (ROOT / "man/man7/tartools.7").read_text()
    section = page.partition(".SH A SHUFFLE LARGER THAN ONE MACHINE")[2].partition(".SH ")[0]
    for escape, character in ((r"\-", "-"), (r"\(aq", "'"), (r"\e", "\\")):
        section = section.replace(escape, character)
    blocks = re.findall(r"^\.RS 4\n(.*?)\n\.RE$", section, re.MULTILINE | re.DOTALL)
    index, choice, split, copy = blocks
    tarsort, duckdb, polars = choice.splitlines()
    here, on_ray, slurm = copy.replace("\\\n    ", "").split("\n", 2)  # continued lines are joined
    assert on_ray == here.replace("tarjob ", "tarjob --engine ray ")
    with servers.process(tmp_path / "s3", "s3") as url:
        s3 = large_bucket(url)
        env = environment("s3", url) | duckdb_command | {"SLURM_ARRAY_TASK_ID": "1"}
        quoted = f"{sys.executable} -c 'import polars; {polars}'"
        for line in (index, tarsort, "cp epoch.parquet sorted.parquet", duckdb, quoted, split, slurm):
            shell(f"set -euo pipefail\n{line}", env=env).output()
        assert keys_in(s3.get("train/part-000000.tar") or b"") == CHOSEN  # those of Polars, in their old order
        again = shell(here.replace("tarjob", "tarjob -v"), env=env)
        assert "tarjob: 1 item: 0 done, 1 already done, 0 failed, " in again.stderr
        found = keys_in(shell("tarcat sorted.parquet", env=env).stdout)
        assert sorted(found) == [f"{n:03d}" for n in range(100)] != found


def test_the_credentials_that_are_named_are_those_that_count() -> None:
    """The page's variables are those of the manual, which tests of credentials go by."""
    manual = (ROOT / "man/man7/tartools.7").read_text()
    text = (ROOT / "docs/move.md").read_text().partition("## Remote pipelines")[2].partition("```bash")[0]
    names = re.findall(r"`([A-Z_]{5,})`", text)
    assert names == ["AWS_PROFILE", "GOOGLE_APPLICATION_CREDENTIALS", "AIS_ENDPOINT", "HF_TOKEN"]
    assert [name in manual for name in names] == [True] * 4


def test_another_endpoint_is_one_variable(shell: Run, tmp_path: Path) -> None:
    """The lines of docs/endpoints.md, with the endpoint of a server of ours, which is not Amazon's."""
    (block,) = re.findall(r"^```bash\n(.*?)\n```$", (ROOT / "docs/endpoints.md").read_text(), re.MULTILINE | re.DOTALL)
    with servers.process(tmp_path / "s3", "s3") as url:
        env = environment("s3", url)
        site = S3Site(url, "bucket")
        site.put("train-000000.tar", make_tar(photos(0, 3)))
        lines = block.replace("https://minio.example:9000", url)
        out = shell(f"set -eu\n{lines}", env={name: value for name, value in env.items() if "ENDPOINT" not in name})
        assert (out.status, out.stdout) == (0, b"s3://bucket/train-000000.tar\n"), out.stderr
        assert keys_in(shell("tarcat s3://bucket/small.tar", env=env).stdout) == ["000000", "000001", "000002"]
