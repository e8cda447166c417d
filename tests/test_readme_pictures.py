"""The data set that docs/pictures.py draws for the README, as the commands see it."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from PIL import Image

from tests.conftest import ROOT, Run

PICTURES = ROOT / "docs" / "pictures"


def test_the_data_set_of_the_pictures(run: Run, tmp_path: Path) -> None:
    script = runpy.run_path(str(ROOT / "docs" / "pictures.py"))
    script["make_data"](str(tmp_path / "shapes.tar"), 120)
    facts = json.loads(run("tarstat", "--json", "shapes.tar").stdout)
    fields = {field["field"]: field for field in facts["fields"]}
    assert facts["samples"] == 120 and list(fields) == ["jpg", "cls", "json"]
    assert set(fields["cls"]["classes"]["counts"]) == set(script["CLASSES"])
    assert (fields["json"]["missing"], fields["json"]["missing_in"]) == (1, "000007")
    shown = run("tarshow", "--html", "shapes.html", "shapes.tar")
    assert shown.status == 0 and "shapes.html: 1 broken picture or sound, " in shown.stderr and "000101" in shown.stderr
    first = (tmp_path / "shapes.tar").read_bytes()
    script["make_data"](str(tmp_path / "again.tar"), 120)
    assert (tmp_path / "again.tar").read_bytes() == first


def test_the_pictures_are_small() -> None:
    with Image.open(PICTURES / "tarshow-html.png") as page:
        assert page.size == (1280, 800)
    terminal = (PICTURES / "tarstat.svg").read_text()
    assert terminal.startswith("<svg ") and "@font-face" not in terminal and "tarstat" in terminal
    assert all(path.stat().st_size < 300_000 for path in PICTURES.iterdir())
