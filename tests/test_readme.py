"""The README and the site are true: what they print runs, CI runs the README's commands, links lead somewhere."""

from __future__ import annotations

import gzip
import html
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from PIL import Image

import tartools
from tests.archives import encoded
from tests.conftest import BIN, ROOT, Run, clean_environment, keys_in, make_tar, members_of, python, start
from tests.properties.test_model import Members
from tests.tiers import exhaustive

README = (ROOT / "README.md").read_text()
PYTHON_PAGE, INSTALL_PAGE = ((ROOT / f"docs/{name}.md").read_text() for name in ("python", "install"))
SETUP, PIPELINES = (
    re.findall(r"^```sh\n(.*?)\n```$", text, re.MULTILINE | re.DOTALL)
    for text in (README, (ROOT / "docs/pipelines.md").read_text())
)
SAID = {"table_is_shown": "tarshow: without jpg: 1 of 3 samples: c\n"}  # on stderr


def picture(size: tuple[int, int], form: str = "JPEG") -> bytes:
    return encoded(Image.new("RGB", size, (9, 99, 199)), form)


def photos(start: int, count: int) -> Members:
    """Return *count* samples with a picture, a label and a description."""
    return [
        member
        for n in range(start, start + count)
        for member in (
            (f"{n:06d}.jpg", picture((300 + n, 200))),
            (f"{n:06d}.cls", b"%d" % (n % 3)),
            (f"{n:06d}.json", json.dumps({"width": 300 + n}).encode()),
        )
    ]


def digits() -> Members:
    return [
        member
        for n in range(20)
        for member in ((f"{n:06d}.cls", b"%d" % (n * 7 % 10)), (f"{n:06d}.png", picture((28, 28), "PNG")))
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Lay out the files that the ten pipelines name."""
    for name in ("raw/train/n01", "raw/train/n02", "files"):
        (tmp_path / name).mkdir(parents=True)
    for n in range(6):
        (tmp_path / f"raw/train/n0{1 + n % 2}/{n:03d}.jpg").write_bytes(picture((30, 20)))
    for n in range(4):
        (tmp_path / f"train-{n:06d}.tar").write_bytes(make_tar(photos(n * 5, 5)))
        (tmp_path / f"packed-{n}.tgz").write_bytes(gzip.compress(make_tar(photos(n * 5, 5))))
    (tmp_path / "small.tar").write_bytes(make_tar(photos(0, 4)))
    (tmp_path / "digits.tgz").write_bytes(gzip.compress(make_tar(digits())))
    (tmp_path / "files/a.jpg").write_bytes(picture((30, 20)))
    (tmp_path / "plan.tsv").write_text("__key__\t@jpg\tcls\na\tfiles/a.jpg\t1\nb\tfiles/a.jpg\t2\nc\t\t3\n")
    return tmp_path


def values(path: Path, field: str) -> list[bytes]:
    return [payload for name, payload in members_of(path.read_bytes()) if name.endswith(f".{field}")]


def photos_are_cut(data: Path, stdout: bytes) -> None:
    assert stdout == b"photos-000000.tar\n"
    assert len(keys_in((data / "photos-000000.tar").read_bytes())) == 6


def ten_are_taken(data: Path, stdout: bytes) -> None:
    assert members_of((data / "small.tar").read_bytes()) == photos(0, 5)


def all_are_shuffled(data: Path, stdout: bytes) -> None:
    found = [key for name in stdout.decode().split() for key in keys_in((data / name).read_bytes())]
    everything = [f"{n:06d}" for n in range(20)]
    assert found != everything and sorted(found) == everything
    assert stdout.decode().split() == [f"shuffled-{n:06d}.tar" for n in range(3)]


def two_fields_are_kept(data: Path, stdout: bytes) -> None:
    found = start(BIN / "tarcat", "labelled.tar.zst", folder=data).output()
    assert members_of(found) == [member for member in photos(0, 20) if not member[0].endswith("json")]


def pictures_fit(data: Path, stdout: bytes) -> None:
    sizes = [Image.open(io.BytesIO(payload)).size for payload in values(data / "resized.tar", "jpg")]
    assert len(sizes) == 4 and {max(size) for size in sizes} == {256}
    assert keys_in((data / "resized.tar").read_bytes()) == keys_in((data / "small.tar").read_bytes())


def threes_are_kept(data: Path, stdout: bytes) -> None:
    assert values(data / "threes.tar", "cls") == [b"3", b"3"]


def labels_are_sorted(data: Path, stdout: bytes) -> None:
    assert values(data / "by-class.tar", "cls") == sorted(payload for name, payload in digits() if name.endswith("cls"))


def labels_are_counted(data: Path, stdout: bytes) -> None:
    assert [line.split() for line in stdout.splitlines()] == [[b"2", b"%d" % n] for n in range(10)]


def table_is_shown(data: Path, stdout: bytes) -> None:
    assert b"JPEG 30x20 RGB" in stdout and [key in stdout for key in (b"a", b"b", b"c")] == [True] * 3


def labels_are_tabulated(data: Path, stdout: bytes) -> None:
    rows = (data / "labels.tsv").read_text().splitlines()
    assert rows[0].split("\t") == ["__key__", "cls", "json:width"]
    assert rows[1:] == [f"{n:06d}\t{n % 3}\t{300 + n}" for n in range(20)]


CHECKS: list[Callable[[Path, bytes], None]] = [
    photos_are_cut,
    ten_are_taken,
    all_are_shuffled,
    two_fields_are_kept,
    pictures_fit,
    threes_are_kept,
    labels_are_sorted,
    labels_are_counted,
    table_is_shown,
    labels_are_tabulated,
]


def test_there_are_ten() -> None:
    assert len(PIPELINES) == len(CHECKS) == 10


@pytest.mark.parametrize(
    ("line", "check"), list(zip(PIPELINES, CHECKS, strict=False)), ids=[c.__name__ for c in CHECKS]
)
def test_a_pipeline_runs_as_printed(line: str, check: Callable[[Path, bytes], None], data: Path, shell: Run) -> None:
    if "gm " in line and not shutil.which("gm"):
        pytest.skip("GraphicsMagick (gm) is not installed")
    if (
        "--sort=name" in line
        and b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True, check=True).stdout
    ):
        pytest.skip("tar is not GNU tar")
    if "small.tar" in line.partition(">")[2]:
        (data / "small.tar").unlink()
    done = shell(f"set -o pipefail; {line}")
    assert (done.status, done.stderr) == (0, SAID.get(check.__name__, ""))
    check(data, done.stdout)


def test_the_python_runs_as_printed(run: Run, data: Path) -> None:
    assert run("tarindex", "-f", "cls", *(f"train-{n:06d}.tar" for n in range(4)), "-o", "train.parquet").status == 0
    program = "\n".join(re.findall(r"^```python\n(.*?)\n```$", PYTHON_PAGE, re.MULTILINE | re.DOTALL))
    out = python(program, folder=data).output()
    *lines, batch = out.decode().splitlines()
    assert [line.split()[0] for line in lines] == [f"{n:06d}" for n in range(20)]
    assert batch == "(20, 3, 224, 224) torch.int64"  # of photographs of twenty shapes
    assert [name for name, _ in members_of((data / "new.tar").read_bytes())] == ["a/000.cls", "a/000.json", "a/000.txt"]
    ones = members_of(run("tarcat", "ones.parquet").stdout)
    assert ones == [member for n in range(20) if n % 3 == 1 for member in photos(n, 1)]
    for n in range(4):
        made = data / f"thumbnails-{n:06d}.tar"
        assert keys_in(made.read_bytes()) == [f"{k:06d}" for k in range(n * 5, n * 5 + 5)]
        assert {max(Image.open(io.BytesIO(payload)).size) for payload in values(made, "jpg")} == {64}


def test_the_endless_stream_ends(data: Path, shell: Run) -> None:
    (line,) = re.findall(r"`(while cat a\.tar.*?)`", INSTALL_PAGE)
    (data / "a.tar").write_bytes(make_tar(photos(0, 4)))
    shell(line).output()
    assert members_of((data / "small.tar").read_bytes()) == [m for n in (0, 0, 0) for m in photos(n, 4)][:30]


def test_the_two_commands_are_what_ci_runs() -> None:
    install, tests = SETUP
    venv, plain, demo = install.split(" && ")
    assert (venv, plain) == ("python3 -m venv .venv", ".venv/bin/pip install -q .")  # without what only tests need
    assert demo == ".venv/bin/python -m tartools demo"
    editable, pytest_ = tests.split(" && ")
    assert editable == ".venv/bin/pip install -q -e '.[test]'" and pytest_.startswith(".venv/bin/python -m pytest ")
    script = (ROOT / ".ci/run").read_text()
    for prefix, line in (("python3 -m venv ", install), (r"\.venv/bin/pip install ", tests)):
        assert re.findall(rf"^{prefix}.*", README, re.MULTILINE) == [line]
        assert script.count(f"readme_line '{prefix}'") == 1
    assert [script.count(part) for part in ('bash -c "${second%% && *}"', 'bash -c "${second#* && }')] == [1, 1]
    assert "PATH=" not in script  # as printed


def workflow(name: str) -> dict[str, Any]:
    """Return the jobs of a workflow of GitHub."""
    jobs = yaml.safe_load((ROOT / ".github/workflows" / name).read_text())["jobs"]
    assert isinstance(jobs, dict)
    return jobs


def test_the_workflows_run_what_the_readme_says() -> None:
    jobs = workflow("tests.yml")
    assert jobs["linux"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert [step["run"] for step in jobs["linux"]["steps"] if "run" in step] == [".ci/run"]
    assert [step["run"] for step in jobs["exhaustive"]["steps"] if "run" in step] == [".ci/run -m exhaustive"]
    assert [step["run"] for step in jobs["macos"]["steps"] if "run" in step] == SETUP
    assert workflow("release.yml")["publish"]["needs"] == ["test", "build", "try"]
    assert workflow("release.yml")["try"]["strategy"] == {"matrix": jobs["linux"]["strategy"]["matrix"]}
    assert workflow("release.yml")["test"]["uses"] == "./.github/workflows/tests.yml"


def test_the_form_for_issues_asks_for_what_helps() -> None:
    fields = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text())["body"]
    assert [field["id"] for field in fields] == ["command", "expected", "version", "members"]


def test_make_knows_the_targets_of_the_guide() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make (\w+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)) == targets


def test_the_libraries_are_those_of_the_project() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {re.split(r"[\[<>=;]", line)[0] for line in project["dependencies"]}
    table = INSTALL_PAGE.partition("## What it is built on")[2]
    assert {row.split()[0].lower() for row in re.findall(r"^\| (\S.*?) \|", table, re.MULTILINE)} - {
        "library"
    } == needed


def test_links_lead_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert target.startswith("https://") or (page.parent / target).exists(), target


# ---- The data set that docs/pictures.py draws for the README, as the commands see it ----


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


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.loaded: set[str] = set()  # with the page
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.add(value)
                if tag in ("img", "link", "script"):
                    self.loaded.add(value)
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")


SEARCHED = {  # what people type into the search of the site -> a page that has it
    "minio": "endpoints.html",
    "endpoint": "endpoints.html",
    "progress bar": "progress.html",
    "truncated": "damaged.html",
    "ignore": "damaged.html",
    "hang": "hangs.html",
    "fewer shards": "hangs.html",
    "memory": "memory.html",
    "patient": "cookbook.html",
    "group": "order.html",
    "audio": "training/sound.html",
    "token": "training/text.html",
    "ddp": "training/pytorch.html",
    "collate_fn": "training/webdataset.html",
}


def find_in_site(index: Path, words: str) -> set[str]:
    """Return the pages that have a section with all *words*, by the index that the site's search uses."""
    entries = json.loads(index.read_text())["docs"]
    texts = [(entry["location"], f"{entry['title']} {entry['text']}".lower()) for entry in entries]
    return {place.partition("#")[0] for place, text in texts if all(word in text for word in words.split())}


def pages_in_navigation(text: str) -> set[str]:
    """Return the titles in the navigation of a page of the site."""
    titles = re.findall(r'<span class="md-ellipsis">\s*(.*?)\s*</span>', text, re.DOTALL)
    assert "Look" in titles
    return {html.unescape(title) for title in titles}


def check_for_machines(site: Path) -> None:
    """Check llms.txt, whose links lead to pages with a sentence each, and llms-full.txt, which has their text."""
    listed = re.findall(r"^- \[([^\]]+)\]\(([^)]+)\): (.+)$", (site / "llms.txt").read_text(), re.MULTILINE)
    places = {place for _, place, _ in listed}
    assert all((site / place).is_file() for place in places) and len(places) == len(listed) > 60
    assert {"look.html", "hangs.html", "man/tarsort.html", "training/pytorch.html"} <= places
    assert not [place for place in places if place.startswith(("adr/", "changelog"))]
    full = (site / "llms-full.txt").read_text()
    assert "# tarsort(1)\n\nNAME\n    tarsort - Sort the samples" in full
    assert (ROOT / "docs/look.md").read_text().splitlines()[3] in full and "<!--" not in full


@exhaustive
@pytest.mark.skipif(not shutil.which("mandoc"), reason="mandoc is not installed")
def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    options = html.unescape((tmp_path / "site/options.html").read_text())
    assert "<td><code>--dots first|last</code></td>" in options and "Default: __key__, or key." in options
    pages = {path: Page(path.read_text()) for path in (tmp_path / "site").rglob("*.html")}
    lost = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                assert parts.scheme != "file", link
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            found = target.is_file() and (not parts.fragment or unquote(parts.fragment) in pages[target].anchors)
            if not found:
                lost.append(f"{path.relative_to(tmp_path)}: {link}")
    assert lost == []
    shown = {path.stem for path in pages}
    assert {path.stem for path in ROOT.glob("man/man*/*")} <= shown
    assert {path.stem for path in ROOT.glob("docs/**/*.md")} <= shown
    text = (tmp_path / "site/python/train.html").read_text()
    assert re.findall(r'<h2 id="tartools.train.([^"]*)"', text)[0] == "loading.loader"
    assert re.search(r"TableDataset</span><span class=\"p\">\(<.*\n", text)  # its signature, on several lines
    assert {urlsplit(link).netloc for page in pages.values() for link in page.loaded} == {""}  # nothing from elsewhere
    index = tmp_path / "site/search/search_index.json"
    assert {words for words, place in SEARCHED.items() if place not in find_in_site(index, words)} == set()
    last = [path.name for path in pages if "md-footer__link--next" not in path.read_text() and "adr" not in path.parts]
    assert sorted(last) == ["404.html", "peers.html"]  # all others lead to the next page
    assert "Decisions" not in pages_in_navigation((tmp_path / "site/look.html").read_text())
    check_for_machines(tmp_path / "site")


def test_every_extra_that_is_named_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tartools").rglob("*.py"))
    named = {
        extra.strip()
        for page in pages
        for words in re.findall(r"(?:tartools|'\.)\[([\w, ]+)\]", page.read_text())
        for extra in words.split(",")
    }
    assert {"table", "train", "ray"} <= named <= {*extras}


def test_the_site_names_mandoc_if_it_is_missing(tmp_path: Path) -> None:
    line = [sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(tmp_path / "site")]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1", "PATH": str(tmp_path)}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.strip().splitlines()[-1][:38]) == (1, "the site's man pages need mandoc (apt ")


def test_the_cookbook_does_what_it_says(tmp_path: Path) -> None:
    text = (ROOT / "docs/cookbook.md").read_text()
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert text.count("\n## ") == 27 and {kind for kind, _ in blocks} == {"sh", "python", "text"}
    environment = clean_environment()
    folder, printed = tmp_path, ""
    for kind, code in blocks:
        if kind == "text":
            assert code == printed
            continue
        line = ["bash", "-c", f"set -eo pipefail\n{code}"] if kind == "sh" else [sys.executable, "-c", code]
        done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{code}\n{done.stderr}"
        printed = done.stdout
        folder = tmp_path / "shapes"  # the first block goes there
    assert (folder / "largest.html").is_file()
    made = folder / "balanced.parquet"
    assert made.is_file() and len(tartools.Table(str(made))) == 30
    assert [sample.key for sample in tartools.read(str(folder / "mirrored.tar"))] == [
        sample.key for sample in tartools.read(str(folder / "train-{000000..000003}.tar"))
    ]
