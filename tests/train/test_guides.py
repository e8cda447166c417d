"""docs/training: programs for those who come from other loaders run, as scripts, on a few pictures."""

from __future__ import annotations

import ast
import re
import runpy
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

import tartools
import tartools.train
from tests.archives import encoded
from tests.conftest import ROOT, Run, make_tar
from tests.schedule import needs_torch

pytestmark = needs_torch
PAGES = ("litdata", "streaming", "energon", "datasets", "pytorch")
THEIRS = ["datasets", *(name for name in ("litdata", "streaming") if find_spec(name))]  # heavy ones: where they are
COUNT = 16
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PICTURES = [encoded(Image.new("RGB", (32, 28), (10 * number, 0, 0)), "jpeg") for number in range(COUNT)]


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """Return kind and text of the blocks of *page* that are of these kinds, in order."""
    found = BLOCK.findall((ROOT / f"docs/training/{page}.md").read_text())
    return [(kind, text) for kind, text in found if kind in kinds]


def lay_out(page: str) -> None:
    """Write the files with which *page* begins, here."""
    if page == "datasets":
        rows = [{"image": {"bytes": data, "path": None}, "label": n % 2} for n, data in enumerate(PICTURES)]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        datasets.Dataset.from_list(rows, features=features).to_parquet("photos.parquet")
    elif page == "energon":
        Path("data").mkdir()
        members = [(f"{n:02d}.{field}", data) for n, jpg in enumerate(PICTURES) for field, data in pair(n, jpg)]
        Path("data/train-000000.tar").write_bytes(make_tar(members))
    else:
        for number, data in enumerate(PICTURES):
            folder = Path("photos", ("cat", "dog")[number % 2] if page == "pytorch" else "")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:02d}.jpg").write_bytes(data)


def pair(number: int, jpg: bytes) -> tuple[tuple[str, bytes], ...]:
    return ("jpg", jpg), ("cls", b"%d" % (number % 2))


def run_script(name: str, code: str) -> dict[str, Any]:
    """Run *code* as the script *name* here; return its names."""
    Path(name).write_text(code)
    return runpy.run_path(str(Path(name).resolve()), run_name="__main__")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_our_programs_run(page: str, here: Path, shell: Run) -> None:
    lay_out(page)
    ran = 0
    for number, (kind, code) in enumerate(blocks(page, "sh", "python")):
        if kind == "sh":
            done = shell(f"set -eo pipefail\n{code}")
            assert done.status == 0, f"{code}\n{done.stderr}"
            continue
        names = run_script(f"script{number}.py", code)
        ran += 1
    assert ran == (1 if page == "pytorch" else len(blocks(page, "python"))) > 0
    table = tartools.Table("train.parquet")
    assert len(table) == COUNT
    stored = {sample["jpg"] for sample in table}
    assert (stored == {*PICTURES}) == (page != "litdata")  # whose program encodes them again
    assert {sample["cls"] for sample in table} == {b"0", b"1"}
    if "state" in names:
        names["loader"].load_state_dict(names["state"])


def test_training_goes_on_after_a_stop(here: Path, shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out("pytorch")
    (_, line), (_, code) = blocks("pytorch", "sh", "python")
    assert shell(line).status == 0
    Path("guide_of_pytorch.py").write_text(code)
    monkeypatch.syspath_prepend(here)
    program: Any = import_module("guide_of_pytorch")
    save = program.saved
    places: list[tuple[int, int]] = []

    def saved(state: Any) -> None:
        save(state)
        places.append((state["loader"]["epoch"], state["loader"]["done"]))
        if len(places) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(program, "saved", saved)
    with pytest.raises(KeyboardInterrupt):
        program.main()
    assert places == [(0, 8)]
    program.main()
    assert places == [(0, 8), (0, 16), (1, 8), (1, 16)]


@pytest.mark.parametrize("page", PAGES)
def test_every_program_starts_workers_below_its_guard(page: str) -> None:
    for _, code in blocks(page, "py", "python"):  # theirs too
        assert ast.unparse(ast.parse(code).body[-1]).startswith("if __name__ == '__main__':"), code


def test_no_guide_gives_a_lambda_to_workers() -> None:
    pages = [path.stem for path in (ROOT / "docs/training").glob("*.md")]
    found = [code for page in pages for _, code in blocks(page, "py", "python") if "num_workers" in code]
    assert len(found) > 10
    assert [code for code in found if re.search(r"\blambda\b", code)] == []


@pytest.mark.filterwarnings("ignore")  # of theirs
@pytest.mark.parametrize("page", THEIRS)
def test_what_stands_beside_ours_runs(page: str, here: Path) -> None:
    """Of those of the others that are installed, which a run of the benchmark has all of; here without a store."""
    lay_out("energon" if page == "datasets" else page)
    for path in Path().glob("data/*.tar"):
        path.rename(path.name)
    names: dict[str, Any] = {}
    for number, (_, code) in enumerate(blocks(page, "py")):
        names = run_script(f"theirs{number}.py", code.replace("s3://bucket/train", "train").replace("/nvme", "local"))
    pictures = names["pictures"]
    assert len(pictures) == 4 and (page != "datasets" or isinstance(pictures[0], Image.Image))
