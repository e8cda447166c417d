"""Tables on servers that commands write, of shards there: named relative to the table, as far as they can be."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import make_tar
from tests.storage.objects.faults import SCHEMES, FaultServer
from tests.storage.objects.inside import Inside

WHOLE = make_tar(
    [m for n in range(40) for m in ((f"{n:02d}.txt", b"%02d" % n * 300), (f"{n:02d}.cls", b"%d" % (n % 7)))]
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_index_shuffle_split_and_copy(
    scheme: str,
    faulty: FaultServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    inside = Inside(faulty, tmp_path, monkeypatch, capfdbinary)
    faulty.objects["set/a.tar"] = WHOLE
    url = faulty.url(scheme, "set/")

    def done(*line: str) -> bytes:
        found = inside.run(*line)
        assert (found.status, found.stderr) == (0, ""), found
        return found.stdout

    def shards(name: str) -> set[str]:
        return set(pq.read_table(io.BytesIO(faulty.objects[name])).column("__shard__").to_pylist())

    done("tarindex", "-f", "cls", f"{url}a.tar", "-o", f"{url}t.parquet")
    assert shards("set/t.parquet") == {"a.tar"}
    faulty.requests.clear()
    done("tarsort", "-S", "shuffle", f"{url}t.parquet", "-o", f"{url}epoch.parquet")
    done("tarsort", "-s", "cls", "-S", "int", f"{url}t.parquet", "-o", f"{url}parts/byclass.parquet")
    assert not any("a.tar" in request.path for request in faulty.requests)  # no sample is looked at
    assert shards("set/epoch.parquet") == {"a.tar"} and shards("set/parts/byclass.parquet") == {f"{url}a.tar"}
    assert done("tarcat", f"{url}epoch.parquet") == done("tarsort", "-S", "shuffle", f"{url}a.tar")
    assert done("tarcat", f"{url}parts/byclass.parquet") == done("tarsort", "-s", "cls", "-S", "int", f"{url}a.tar")
    printed = done("tarsplit", "-n", "15", f"{url}epoch.parquet", "-o", f"{url}part-%02d.parquet").decode().split()
    assert printed == [f"{url}part-{number:02d}.parquet" for number in range(3)]
    assert done("tarcat", *printed) == done("tarcat", f"{url}epoch.parquet")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_shard_that_is_cut_leaves_no_table(
    scheme: str,
    faulty: FaultServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    inside = Inside(faulty, tmp_path, monkeypatch, capfdbinary)
    faulty.objects["a.tar"] = WHOLE[:50_000]
    for line in (["tarcat"], ["tarpcat"], ["tarsort"], ["tarsplit"], ["tarindex"]):
        found = inside.run(*line, faulty.url(scheme, "a.tar"), "-o", faulty.url(scheme, "t.parquet"))
        assert found.status == 1 and "a.tar: " in found.stderr and found.stderr.count("\n") == 1, found
    assert sorted(faulty.objects) == ["a.tar"]
