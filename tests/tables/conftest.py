"""Commands that tests of tables run in their own process, where pyarrow is imported once and not for each of them."""

from __future__ import annotations

import pytest

from tartools.shards import gathering, workers
from tests.commands.conftest import Inside, inside
from tests.conftest import Result, Run
from tests.tiers import exhaustive

__all__ = ["inside"]


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
def many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small shards read in parts, by several workers, as large ones are."""
    monkeypatch.setattr(gathering, "SMALL", 0)
    monkeypatch.setattr(workers, "PART", 100_000)
