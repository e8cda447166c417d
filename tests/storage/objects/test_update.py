"""`tarindex --update` of shards on servers."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import make_tar
from tests.storage.objects.faults import SCHEMES
from tests.storage.objects.inside import Inside
from tests.tiers import by_turns

pytestmark = by_turns("scheme")


def shard(number: int, size: int) -> bytes:
    return make_tar([(f"{number}{sample}.txt", b"x" * size) for sample in range(number)])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_on_a_server_only_changed_shards_are_read(scheme: str, empty: Inside, tmp_path: Path) -> None:
    for number in range(5):
        empty.server.objects[f"{number}.tar"] = shard(number + 1, size=90_000)
    urls = [empty.server.url(scheme, f"{number}.tar") for number in range(5)]
    assert empty.run("tarindex", *urls, "-o", "t.parquet").status == 0
    empty.server.objects["3.tar"] = shard(3, size=80_000)
    empty.server.requests.clear()
    done = empty.run("tarindex", "--update", "t.parquet", *urls, "-o", "new.parquet")
    assert (done.status, done.stderr) == (0, "tarindex: t.parquet: shards taken over: 4, read: 1, dropped: 0\n")
    asked: dict[str, int] = {}
    for request in empty.server.requests:
        if request.method != "GET" or "range" not in request.headers:
            continue
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        name = next(name for name in empty.server.objects if name in request.path)
        asked[name] = asked.get(name, 0) + int(last) - int(first) + 1
    assert all(asked[f"{number}.tar"] == 4 for number in (0, 1, 2, 4)) and asked["3.tar"] > 240_000
    assert len(pq.read_table(tmp_path / "new.parquet")) == 1 + 2 + 3 + 3 + 5
