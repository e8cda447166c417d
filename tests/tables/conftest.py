"""Commands that tests of tables run in their own process, where pyarrow is imported once and not for each of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tartools.shards import workers
from tests.commands.conftest import Inside, inside
from tests.conftest import Result, Run, make_tar
from tests.tiers import exhaustive

__all__ = ["inside"]
Indexed = Callable[..., pa.Table]


@pytest.fixture(name="run", params=["inside", pytest.param("forked", marks=exhaustive)])
def run_inside_and_forked(request: pytest.FixtureRequest, run: Run, inside: Inside) -> Run:
    """Return a function that runs a command in `tmp_path`, as `run` does: in this process, and in the exhaustive tier
    as one of its own too. With -p it always is one of its own.
    """

    def inside_or_forked(name: str, *arguments: object, stdin: bytes = b"") -> Result:
        words = [*map(str, arguments)]
        forked = request.param == "forked" or name == "tarpcat" or "-p" in words
        return run(name, *words, stdin=stdin) if forked else inside(name, *words, stdin=stdin)

    return inside_or_forked


@pytest.fixture
def indexed(run: Run, tmp_path: Path) -> Indexed:
    """Return a function that writes members as `a.tar`, and returns the rows of its table, `t.parquet`.

    The members may be an archive; more options are for tarindex.
    """

    def indexed(members: Any, *options: object) -> pa.Table:
        (tmp_path / "a.tar").write_bytes(members if isinstance(members, bytes) else make_tar(members))
        run("tarindex", *options, "a.tar", "-o", "t.parquet", "--force").output()
        return pq.read_table(tmp_path / "t.parquet")

    return indexed


def replaced(table: pa.Table, name: str, values: Any, kind: pa.DataType | None = None) -> pa.Table:
    """Return *table* with other *values* in the column *name*."""
    return table.set_column(table.schema.get_field_index(name), name, pa.array(values, kind))


@pytest.fixture
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small shards read in parts, by several workers, as large ones are."""
    monkeypatch.setattr(workers, "PART_BYTES", 100_000)
