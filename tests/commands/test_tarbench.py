"""tarbench: every sample of every row, by counts that do not depend on time; failures; what is on a server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tartools.commands.tarbench import tarbench
from tartools.errors import how_to_install
from tests.archives import encoded
from tests.conftest import Run, make_tar
from tests.schedule import needs_torch
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

pytestmark = needs_torch
COUNT, BATCH = 7, 3
FORMS = {"loose", "zip", "tar", "table"}
SHM = Path("/dev/shm")


def picture(number: int) -> bytes:
    """Return a PNG; sizes differ, so that a batch has to bring them to one."""
    return encoded(Image.new("RGB", (20 + number, 300), (number, 0, 0)), "PNG")


def members(count: int = COUNT) -> list[tuple[str, bytes]]:
    """Return samples of a picture, a class, and a field that nothing may unpickle, with keys in folders."""
    kinds = (("png", picture), ("cls", lambda n: b"%d" % n), ("pyd", lambda _: b"\x80"))
    return [(f"d{n % 2}/{n}.{field}", make(n)) for n in range(count) for field, make in kinds]


def measured(run: Run, *arguments: object, **options: Any) -> dict[str, Any]:
    """Return what tarbench says of one pass."""
    out = run("tarbench", "--json", "--passes", 1, "--batch", BATCH, *arguments, **options).output()
    facts: dict[str, Any] = json.loads(out)
    return facts


def names(facts: dict[str, Any]) -> list[tuple[str, int]]:
    return [(row["name"], row["workers"]) for row in facts["rows"]]


def check_rows(facts: dict[str, Any], cache: str | None) -> None:
    """Check that each row gave each sample once, and tells where its time went, and what the page *cache* had."""
    assert facts["samples"] == COUNT
    for row in facts["rows"]:
        assert (row["passes"], row["samples"], row["cache"]) == (1, COUNT, cache), row["name"]
        assert row["run_seconds"] > 0 and row["samples_per_second"] > 0 and row["bytes_per_second"] > 0
        assert row["cpu_seconds"] >= 0 and row["limit"]
        if row["workers"]:
            assert row["parts"] is None
        else:
            assert list(row["parts"]) == ["list", "read", "decode", "collate"]
            assert min(row["parts"].values()) >= 0 and row["parts"]["read"] > 0 and row["parts"]["decode"] > 0
            assert row["limit"] in row["parts"]


def test_each_sample_comes_once_a_pass_in_every_row(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(members()))
    facts = measured(run, "--workers", "1", "a.tar")
    check_rows(facts, "warm")
    rows = ["loose files", "zip", "tar, in order", "table, in order", "table, blocks", "table, shuffled"]
    assert names(facts) == [(name, workers) for name in rows for workers in (0, 1)]
    assert facts["bytes"] == sum(len(data) for _, data in members())
    assert (facts["fields"], facts["source"]) == (["png", "cls", "pyd"], ["a.tar"])
    assert [line.partition(": ")[0] for line in facts["advice"]][:2] == ["format", "workers"]
    assert os.listdir(tmp_path) == ["a.tar"]


def test_what_is_measured_does_not_depend_on_how_it_is_kept(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(members()))
    for line in (["tar2zip", "a.tar", "-o", "a.zip"], ["tarindex", "a.tar", "-o", "a.parquet"]):
        assert run(*line).status == 0
    for name, data in members():
        path = tmp_path / "folder" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    found = []
    for source in ("a.tar", "a.zip", "a.parquet", "folder", "folder/"):
        done = run("tarbench", "--dry-run", "--json", "-v", source)
        assert (done.status, done.stderr.partition(" out")[0]) == (0, f"tarbench: {COUNT} samples in, {COUNT}"), source
        facts = json.loads(done.stdout)
        assert facts.pop("source") == [source]
        found.append(facts | {"fields": sorted(facts["fields"])})
    assert all(facts == found[0] for facts in found)
    assert {row["form"] for row in found[0]["rows"]} == FORMS
    few = json.loads(run("tarbench", "--dry-run", "--json", "-c", 3, "a.tar").stdout)
    assert few["samples"] == 3
    assert json.loads(run("tarbench", "--dry-run", "--json", "--bytes", 1, "a.tar").stdout)["samples"] == 1


@pytest.mark.parametrize("workers", ["0", *also("0 1")])
def test_a_picture_that_is_broken_is_named(workers: str, run: Run, tmp_path: Path) -> None:
    damaged = [(name, data[:60] if name == "d1/3.png" else data) for name, data in members()]
    (tmp_path / "a.tar").write_bytes(make_tar(damaged))
    said = run("tarbench", "--passes", 1, "--workers", workers, "a.tar").failure()
    assert re.fullmatch(r"tarbench: a\.tar: sample 'd1/3': field 'png': [^\n]+\n", said), said
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.skipif(not SHM.is_dir(), reason="needs a file system without a disk")
def test_rows_that_stay_in_the_page_cache_are_not_called_cold(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(members()))
    with tempfile.TemporaryDirectory(dir=SHM) as folder:
        line = ("--passes", 1, "--workers", 0, "--cold", "--tmpdir", folder, "a.tar")
        done = run("tarbench", "--json", *line)
        assert os.listdir(folder) == []
    assert (done.status, done.stderr) == (0, "")
    assert {row["cache"] for row in json.loads(done.stdout)["rows"]} == {"warm"}


def test_usage(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(members()))
    (tmp_path / "empty").mkdir()
    assert "several kinds" in run("tarbench", "a.tar", "empty").failure(2)
    assert "one folder" in run("tarbench", "empty", "empty/").failure(2)
    assert "not a list of numbers: '2 x'" in run("tarbench", "--workers", "2 x", "a.tar").failure(2)
    assert sorted(os.listdir(tmp_path)) == ["a.tar", "empty"]


def test_without_torch_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tar").write_bytes(make_tar(members()))
    assert tarbench.main(["a.tar"]) == 1
    assert capfd.readouterr() == ("", f"tarbench: this needs torch: {how_to_install('torch')}\n")


SOURCES = {
    "a.tar": ["table, in order", "table, blocks", "table, shuffled", "tar, in order"],
    "a.parquet": ["table, in order", "table, blocks", "table, shuffled"],
    "a.zip": ["zip"],
    "loose/": ["loose files"],
}


@pytest.fixture
def server(run: Run, tmp_path: Path) -> Iterator[FaultServer]:
    """Give a server with the same samples as a shard, as the table of it, as a zip file, and as objects."""
    (tmp_path / "a.tar").write_bytes(make_tar(members()))
    assert run("tar2zip", "a.tar", "-o", "a.zip").status == 0
    with FaultServer() as server:
        server.objects.update({name: (tmp_path / name).read_bytes() for name in ("a.tar", "a.zip")})
        server.objects.update({f"loose/{name}": data for name, data in members()})
        assert run("tarindex", server.url("gs", "a.tar"), "-o", "a.parquet", env=server.env) == (0, b"", "")
        server.requests.clear()
        yield server
    assert server.errors == []


@pytest.mark.parametrize("source", ["a.tar", "a.parquet", "a.zip", *also("loose/")])
def test_what_is_there_is_read_and_nothing_is_written(source: str, server: FaultServer, run: Run) -> None:
    url = source if source == "a.parquet" else server.url("gs", source)  # a local table of an object
    dry = source in ("a.zip", "a.parquet")
    facts = measured(run, "--workers", 0, url, *["--dry-run"] * dry, env=server.env)
    if not dry:
        check_rows(facts, None)
    assert [row["name"] for row in facts["rows"]] == SOURCES[source]
    assert {request.method for request in server.requests} <= {"GET", "HEAD"}


def test_the_first_samples_are_taken(server: FaultServer, run: Run) -> None:
    """Keys may come twice: of a server, samples are read as they are."""
    server.objects["b.tar"] = server.objects["a.tar"]
    facts = measured(run, "--workers", 0, "-c", 8, server.url("gs", "{a,b}.tar"), env=server.env)
    found = {(row["form"], row["samples"]) for row in facts["rows"]}
    assert (facts["samples"], found) == (8, {("table", 8), ("tar", 2 * COUNT)})
    server.requests.clear()
    line = ("--dry-run", "--bytes", 1, server.url("gs", "{a,b}.tar"))  # the second one is not needed
    assert measured(run, *line, env=server.env)["samples"] == COUNT
    assert not [request for request in server.requests if "b.tar" in request.path]


@pytest.mark.parametrize("name", ["missing.tar", "a.tar {}"])
def test_an_object_that_is_missing_is_named(name: str, server: FaultServer, run: Run) -> None:
    urls = [server.url("gs", word.format("missing.tar")) for word in name.split()]
    said = run("tarbench", "--workers", 0, "--bytes", "1GB", *urls, env=server.env).failure(lines=1)
    assert said == f"tarbench: {server.url('gs', 'missing.tar')}: no such object\n"


def test_an_object_that_can_not_be_read_is_named(server: FaultServer, run: Run) -> None:
    damaged = bytearray(server.objects["a.tar"])
    damaged[1024 + 3] ^= 0x55
    server.objects["a.tar"] = bytes(damaged)
    url = server.url("gs", "a.tar")
    said = run("tarbench", "--workers", 0, "--passes", 1, url, env=server.env).failure(lines=1)
    assert said.startswith(f"tarbench: {url}: at byte 1024: ")
