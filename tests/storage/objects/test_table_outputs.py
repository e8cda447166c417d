"""Tables on servers that commands write, of shards there: named relative to the table, as far as they can be."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

from tests.conftest import make_tar
from tests.storage.objects.faults import SCHEMES
from tests.storage.objects.inside import Inside
from tests.tiers import by_turns

pytestmark = by_turns("scheme")
WHOLE = make_tar(
    [m for n in range(40) for m in ((f"{n:02d}.txt", b"%02d" % n * 300), (f"{n:02d}.cls", b"%d" % (n % 7)))]
)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_index_shuffle_split_and_copy(scheme: str, empty: Inside) -> None:
    empty.server.objects["set/a.tar"] = WHOLE
    url = empty.server.url(scheme, "set/")

    def done(*line: str) -> bytes:
        found = empty.run(*line)
        assert (found.status, found.stderr) == (0, ""), found
        return found.stdout

    def shards(name: str) -> set[str]:
        return set(pq.read_table(io.BytesIO(empty.server.objects[name])).column("__shard__").to_pylist())

    done("tarindex", "-f", "cls", f"{url}a.tar", "-o", f"{url}t.parquet")
    assert shards("set/t.parquet") == {"a.tar"}
    empty.server.requests.clear()
    done("tarsort", "-S", "shuffle", f"{url}t.parquet", "-o", f"{url}epoch.parquet")
    done("tarsort", "-s", "cls", "-S", "int", f"{url}t.parquet", "-o", f"{url}parts/byclass.parquet")
    assert not any("a.tar" in request.path for request in empty.server.requests)  # no sample is looked at
    assert shards("set/epoch.parquet") == {"a.tar"} and shards("set/parts/byclass.parquet") == {f"{url}a.tar"}
    assert done("tarcat", f"{url}epoch.parquet") == done("tarsort", "-S", "shuffle", f"{url}a.tar")
    assert done("tarcat", f"{url}parts/byclass.parquet") == done("tarsort", "-s", "cls", "-S", "int", f"{url}a.tar")
    printed = done("tarsplit", "-n", "15", f"{url}epoch.parquet", "-o", f"{url}part-%02d.parquet").decode().split()
    assert printed == [f"{url}part-{number:02d}.parquet" for number in range(3)]
    assert done("tarcat", *printed) == done("tarcat", f"{url}epoch.parquet")


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_shard_that_is_cut_leaves_no_table(scheme: str, empty: Inside) -> None:
    empty.server.objects["a.tar"] = WHOLE[:50_000]
    for line in (["tarcat"], ["tarpcat"], ["tarsort"], ["tarsplit"], ["tarindex"]):
        found = empty.run(*line, empty.server.url(scheme, "a.tar"), "-o", empty.server.url(scheme, "t.parquet"))
        assert found.status == 1 and "a.tar: " in found.stderr and found.stderr.count("\n") == 1, found
    assert sorted(empty.server.objects) == ["a.tar"]
