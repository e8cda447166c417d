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
    """And no trial that failed."""
    table = page.parse(page.PAGE.read_text())
    assert table.trials == [page.VERSION, *TRIALS]
    assert table.servers == [*SERVERS]
    assert page.FAILED not in table.cells.values()
