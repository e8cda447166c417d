"""The wheel and the source archive: what is in them, and that an installed wheel runs, offline, with its pages."""

from __future__ import annotations

import site
import subprocess
import sys
import tarfile
import tomllib
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tartools import commands
from tartools.cli.plainpage import plain_text
from tests.conftest import ROOT, Result, start
from tests.tiers import exhaustive

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAX_ARCHIVE_BYTES = 10_000_000
pytestmark = exhaustive


def build(kind: str, source: Path, folder: Path) -> Path:
    """Build the `wheel` or `sdist` of the tree *source* into *folder*; return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def test_the_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as file:
        names = file.namelist()
        metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
        described = Parser().parsestr(file.read(metadata).decode())
        scripts = file.read(metadata.replace("METADATA", "entry_points.txt")).decode()
    top = f"tartools-{PROJECT['version']}"
    assert {name.partition("/")[0] for name in names} == {"tartools", f"{top}.dist-info", f"{top}.data"}
    tracked = start("git", "ls-files", "-co", "--exclude-standard", "tartools", folder=ROOT).output().decode().split()
    assert {name for name in names if name.startswith("tartools/")} == {*tracked}
    assert (described["Name"], described["Version"]) == ("tartools", PROJECT["version"])
    assert described["Description-Content-Type"] == "text/markdown"
    assert described.get_payload() == (ROOT / "README.md").read_text()
    assert {*(described.get_all("Provides-Extra") or ())} == {*PROJECT["optional-dependencies"]}
    lines = {f"{name} = {place}" for name, place in PROJECT["scripts"].items()}
    assert lines == {*scripts.splitlines()} - {"[console_scripts]", ""}
    assert wheel.stat().st_size < MAX_ARCHIVE_BYTES


def test_the_source_archive_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
        file.extractall(tmp_path / "tree", filter="data")
    assert {"PKG-INFO", "README.md", "LICENSE", "pyproject.toml", "man/man7/tartools.7"} <= names
    assert not [name for name in names if name.startswith((".venv", "build/")) or "__pycache__" in name]
    assert archive.stat().st_size < MAX_ARCHIVE_BYTES
    (tree,) = (tmp_path / "tree").iterdir()
    with ZipFile(build("wheel", tree, tmp_path / "again")) as again, ZipFile(wheel) as first:
        contents = [{name: file.read(name) for name in file.namelist()} for file in (again, first)]
    assert contents[0] == contents[1]


@pytest.fixture(scope="module")
def scripts(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment in which pip has installed the wheel; the libraries are those of this one."""
    folder = tmp_path_factory.mktemp("installed")
    start(sys.executable, "-m", "venv", "--without-pip", folder).output()
    python = folder / "bin/python"
    start(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-deps", wheel)
    packages = (
        start(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").output().decode().strip()
    )
    libraries = [path for path in (*site.getsitepackages(), *sys.path) if path.endswith(("-packages", ".pth"))]
    Path(packages, "libraries.pth").write_text("\n".join(libraries) + "\n")
    return folder / "bin"


def run_installed(scripts: Path, *words: object, folder: Path) -> Result:
    """Run a script of the environment as somebody who has neither a home nor a clone."""
    return start(scripts / str(words[0]), *words[1:], folder=folder, env={"HOME": str(folder), "COLUMNS": "80"})


def test_an_installed_wheel_runs_the_demo(scripts: Path, tmp_path: Path) -> None:
    where = start(scripts / "python", "-c", "import tartools; print(tartools.__file__)", folder=tmp_path).output()
    assert where.decode().startswith(str(scripts.parent))
    done = run_installed(scripts, "tartools", "demo", "shapes", folder=tmp_path)
    assert done.status == 0 and (tmp_path / "shapes/shapes.tar").is_file()
    assert run_installed(scripts, "tarls", "shapes/shapes.tar", folder=tmp_path).output() == b"shapes/shapes.tar\n"


@pytest.mark.parametrize("name", ["tartools", *commands.names()])
def test_an_installed_wheel_shows_its_pages(name: str, scripts: Path, tmp_path: Path) -> None:
    section = 7 if name == "tartools" else 1
    page = (ROOT / f"man/man{section}/{name}.{section}").read_text()
    shown = run_installed(scripts, "tartools", "man", name, folder=tmp_path).output().decode()
    assert shown == plain_text(page, 80)
    by_module = start(scripts / "python", "-m", "tartools", "man", name, folder=tmp_path, env={"COLUMNS": "80"})
    assert by_module.output().decode() == shown


def test_pages_are_found_in_a_target_folder(wheel: Path, tmp_path: Path) -> None:
    """pip install --target puts them beside the package, where sys.prefix does not lead."""
    options = ["-q", "--no-index", "--no-deps", "--target", tmp_path / "here"]
    start(sys.executable, "-m", "pip", "install", *options, wheel)
    program = "from tartools.cli.plainpage import find_page; print(find_page('tarcat'))"
    found = start(sys.executable, "-c", program, folder=tmp_path, env={"PYTHONPATH": str(tmp_path / "here")}).output()
    assert Path(found.decode().strip()).read_text() == (ROOT / "man/man1/tarcat.1").read_text()
