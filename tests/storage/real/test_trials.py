"""Each trial with each server that is installed; what passes is written into docs/servers.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.storage.real import page
from tests.storage.real.conftest import SERVERS
from tests.storage.real.server import Server
from tests.storage.real.trials import TRIALS, Place
from tests.tiers import exhaustive


@exhaustive
@pytest.mark.parametrize("trial", TRIALS)
def test_trial(trial: str, server: Server, run: Run, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    heading = request.node.callspec.params["server"]
    if trial in server.lacks:
        page.note(TRIALS, SERVERS, heading, trial, f"- ({server.lacks[trial]})")
        return
    name = re.sub(r"\W+", "-", trial)
    server.make_folder(name)
    page.note(TRIALS, SERVERS, heading, trial, page.FAILED)
    TRIALS[trial](Place(server, name, tmp_path, run))
    page.note(TRIALS, SERVERS, heading, trial, page.PASSED)


def test_the_page_has_a_row_for_each_trial_and_a_column_for_each_server() -> None:
    """And each trial that fails has its reason there."""
    table = page.parse(page.PAGE.read_text())
    assert table.trials == [page.VERSION, *TRIALS]
    assert table.servers == [*SERVERS]
    assert page.unexplained(table) == []


def test_a_trial_that_fails_is_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until a reason is written behind it, the test of the page fails; the reason stays until the trial passes."""
    monkeypatch.setattr(page, "PAGE", tmp_path / "servers.md")
    page.PAGE.write_text(f"# Servers\n\n{page.BEGIN}{page.END}\nThe end\n")

    def note(cell: str) -> tuple[str, int]:
        page.note(["t"], ["s", "other"], "s", "t", cell)
        table = page.parse(page.PAGE.read_text())
        return table.cells["t", "s"], len(page.unexplained(table))

    assert note(page.FAILED) == ("**no**", 1)
    page.PAGE.write_text(page.PAGE.read_text().replace("**no**", "**no** (takes no PUT)"))
    assert note(page.FAILED) == ("**no** (takes no PUT)", 0)
    assert note("- ()") == ("- ()", 1)
    assert note("perhaps") == ("perhaps", 1)
    assert note(page.PASSED) == ("yes", 0)
    assert page.PAGE.read_text().startswith("# Servers\n") and page.PAGE.read_text().endswith("\nThe end\n")
