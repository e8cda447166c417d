"""The table of schemes in tartools(7) says of each scheme what the code does with it."""

from __future__ import annotations

import pytest

from tartools.schemes import SCHEMES
from tartools.storage.url import Url
from tests.conftest import ROOT

TEXT = (ROOT / "man/man7/tartools.7").read_text().partition("\n.TS\n")[2].partition("\n.TE\n")[0]
ROWS = [line.split("\t") for line in TEXT.splitlines()[3:]]
CELLS = {scheme.strip(":"): cells for names, *cells in ROWS for scheme in names.split()}


def test_each_scheme_has_a_row() -> None:
    assert {*CELLS} == {*SCHEMES, "local", "files"} - {"-", "", "file", "pipe"}
    assert {len(cells) for cells in CELLS.values()} == {5}


@pytest.mark.parametrize("scheme", sorted({*CELLS} - {"local", "files"}))
def test_what_the_table_says(scheme: str) -> None:
    url = Url(f"{scheme}://host/d/a.tar")
    is_listed, has_ranges, is_resumed, is_whole, _ = (cell != "no" for cell in CELLS[scheme])
    assert is_listed == url.is_listed
    assert (has_ranges, is_resumed, is_whole) == (url.is_stored,) * 3
