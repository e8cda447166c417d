"""The documentation site: it builds without a warning, and all its links lead somewhere."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import tartools
from tests.conftest import ROOT, clean_environment
from tests.tiers import exhaustive


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


def test_every_extra_that_is_named_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pages = (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tartools").rglob("*.py"))
    named = {
        extra.strip()
        for page in pages
        for words in re.findall(r"tartools\[([\w, ]+)\]", page.read_text())
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
    assert text.count("\n## ") == 16 and {kind for kind, _ in blocks} == {"sh", "python", "text"}
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
