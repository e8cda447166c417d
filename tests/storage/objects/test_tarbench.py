"""tarbench of data on servers: they are read as they are, and nothing is written there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run, make_tar
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

COUNT = 6
MEMBERS = [(f"d/{n}.{field}", data) for n in range(COUNT) for field, data in (("txt", b"%d" % n), ("cls", b"1" * n))]
SOURCES = {
    "a.tar": ["table, in order", "table, blocks", "table, shuffled", "tar, in order"],
    "a.parquet": ["table, in order", "table, blocks", "table, shuffled"],
    "a.zip": ["zip"],
    "loose/": ["loose files"],
}


@pytest.fixture
def server(faulty: FaultServer, run: Run, tmp_path: Path) -> FaultServer:
    """Return a server with the same samples as a shard, as the table of it, as a zip file, and as objects."""
    (tmp_path / "a.tar").write_bytes(make_tar(MEMBERS))
    assert run("tar2zip", "a.tar", "-o", "a.zip").status == 0
    faulty.objects["a.tar"] = (tmp_path / "a.tar").read_bytes()
    faulty.objects["a.zip"] = (tmp_path / "a.zip").read_bytes()
    faulty.objects.update({f"loose/{name}": data for name, data in MEMBERS})
    url = faulty.url("gs", "a.tar")
    assert run("tarindex", url, "-o", "a.parquet", env=faulty.env) == (0, b"", "")
    return faulty


@pytest.mark.parametrize("source", ["a.tar", "a.parquet", "a.zip", *also("loose/")])
def test_what_is_there_is_read_and_nothing_is_written(source: str, server: FaultServer, run: Run) -> None:
    server.requests.clear()
    url = source if source == "a.parquet" else server.url("gs", source)  # a local table of an object
    facts = measured(run, server, url, dry=source in ("a.zip", "a.parquet"))
    assert [row["name"] for row in facts["rows"]] == SOURCES[source]
    forms = {"loose files", "zip", "tar, in order", "table"}
    there = {"a.tar": {"tar, in order", "table"}, "a.parquet": {"table"}, "a.zip": {"zip"}, "loose/": {"loose files"}}
    assert {left["form"] for left in facts["left_out"]} == forms - there[source]
    assert all("nothing is written" in left["why"] for left in facts["left_out"])
    assert {request.method for request in server.requests} <= {"GET", "HEAD"}


def measured(run: Run, server: FaultServer, url: str, dry: bool) -> dict[str, Any]:
    """Return what was measured in one pass, of which each row gave each sample; or what would be, if it is *dry*."""
    line = ["tarbench", "--json", "--passes", "1", "--workers", "0", "--batch", "4", url, *["--dry-run"] * dry]
    facts: dict[str, Any] = json.loads(run(*line, env=server.env).output())
    assert facts["samples"] == COUNT
    for row in facts["rows"] * (not dry):
        assert (row["samples"], row["passes"], row["cache"]) == (COUNT, 1, None), row["name"]
        assert row["parts"]["read"] > 0
    return facts


def test_the_first_samples_are_taken(server: FaultServer, run: Run) -> None:
    """Keys may come twice: of a server, samples are read as they are."""
    server.objects["b.tar"] = server.objects["a.tar"]
    line = ("tarbench", "--json", "--passes", 1, "--workers", 0, "-c", 8, server.url("gs", "{a,b}.tar"))
    facts = json.loads(run(*line, env=server.env).output())
    found = {(row["form"], row["samples"]) for row in facts["rows"]}
    assert (facts["samples"], found) == (8, {("table", 8), ("tar", 2 * COUNT)})


def test_an_object_that_can_not_be_read_is_named(server: FaultServer, run: Run) -> None:
    damaged = bytearray(server.objects["a.tar"])
    damaged[1024 + 3] ^= 0x55
    server.objects["a.tar"] = bytes(damaged)
    url = server.url("gs", "a.tar")
    said = run("tarbench", "--workers", 0, "--passes", 1, url, env=server.env).failure(lines=1)
    assert said.startswith(f"tarbench: {url}: at byte 1024: ")
