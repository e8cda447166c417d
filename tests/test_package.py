"""The wheel and the source archive: what is in them, and that they install and run, with their man pages.

Some tests install the libraries that pyproject.toml names, with uv: they skip if there is no uv, or no package index.
What uv has once downloaded, it installs offline from its cache.
"""

from __future__ import annotations

import os
import shutil
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
from tests.conftest import BIN, ROOT, Result, make_tar, start
from tests.tiers import exhaustive

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAX_ARCHIVE_BYTES = 10_000_000
INSTALL_SECONDS = 600  # with a slow package index
CURRENT_VERSION = "{}.{}".format(*sys.version_info)
LOWEST_VERSION = PROJECT["requires-python"].removeprefix(">=")
TESTED_VERSIONS = ("3.11", "3.12", "3.13", "3.14")
pytestmark = exhaustive


def find_python(version: str) -> str | None:
    """Return the path of a Python of *version*, such as 3.12: this one, one of pyenv, or of PATH."""
    if version == CURRENT_VERSION:
        return sys.executable
    beside = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"))
    return str(beside[-1]) if beside else shutil.which(f"python{version}")


PYTHONS = [version for version in {*TESTED_VERSIONS, CURRENT_VERSION} if find_python(version)]


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


def test_pages_are_found_below_a_prefix(wheel: Path, tmp_path: Path) -> None:
    """pip install --prefix, as --user, puts them where neither the package nor sys.prefix leads."""
    options = [
        "-q",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
        "--prefix",
        tmp_path / "here",
    ]  # or pip removes ours
    start(sys.executable, "-m", "pip", "install", *options, wheel)
    (packages,) = (tmp_path / "here").glob("lib/*/site-packages")
    program = "from tartools.cli.plainpage import find_page; print(find_page('tarcat'))"
    found = start(sys.executable, "-c", program, folder=tmp_path, env={"PYTHONPATH": str(packages)}).output()
    assert os.path.realpath(found.decode().strip()) == os.path.realpath(tmp_path / "here/share/man/man1/tarcat.1")


@pytest.fixture(scope="module")
def uv(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program uv, which reaches a package index."""
    program = shutil.which("uv", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if not program:
        pytest.skip("uv is not installed")
    answer = start(program, "pip", "compile", "-q", "--no-config", "-", stdin=b"braceexpand\n", timeout=INSTALL_SECONDS)
    if answer.status:
        pytest.skip(f"uv does not reach the package index: {answer.stderr}")
    return program


@pytest.fixture(scope="module")
def source_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", ROOT, tmp_path_factory.mktemp("source"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the shard a.tar."""
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("b.cls", b"2")]))
    return tmp_path


def run_uv(uv: str, *words: object, folder: Path, **settings: object) -> Result:
    """Run uv in *folder*, with *settings* as variables of the environment; fail if it fails."""
    env = {name.upper(): str(value) for name, value in settings.items()}
    result = start(uv, *words, folder=folder, env={"UV_NO_CONFIG": "1", **env}, timeout=INSTALL_SECONDS)
    assert result.status == 0, result.stderr
    return result


def make_environment(uv: str, python: str, folder: Path, *words: object, name: str = "env", **settings: object) -> Path:
    """Make an environment of *python* and install *words* in it; return the folder of its scripts."""
    run_uv(uv, "venv", "-q", "--python", python, name, folder=folder, **settings)
    scripts = folder / name / "bin"
    run_uv(uv, "pip", "install", "-q", "--python", scripts / "python", *words, folder=folder, **settings)
    return scripts


IMPORT_ALL = """
import importlib, pkgutil, tartools
for module in pkgutil.walk_packages(tartools.__path__, "tartools."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert error.name == "torch" and module.name.startswith("tartools.train."), (module.name, error)
"""


def check_commands(scripts: Path, folder: Path) -> None:
    """Check that all modules can be imported without a warning, and that demo, commands and pages run."""
    assert start(scripts / "python", "-W", "error", "-c", IMPORT_ALL, folder=folder, timeout=300).output() == b""
    done = run_installed(scripts, "tartools", "demo", folder=folder)
    assert done.status == 0, done.stderr
    keys = run_installed(scripts, "tar2tsv", "-f", "cls", "a.tar", folder=folder).output()
    assert keys == b"__key__\tcls\na\t1\nb\t2\n"
    assert run_installed(scripts, "tarcat", "a.tar", "-o", "b.tar.zst", folder=folder).output() == b""
    assert run_installed(scripts, "tarcat", "b.tar.zst", folder=folder).output() == (folder / "a.tar").read_bytes()
    check_page(scripts, folder)


def check_page(scripts: Path, folder: Path) -> None:
    """Check that the man page of a command is found."""
    page = plain_text((ROOT / "man/man1/tarcat.1").read_text(), 80)
    assert run_installed(scripts, "tartools", "man", "tarcat", folder=folder).output().decode() == page


def test_the_index_takes_both_archives(uv: str, wheel: Path, source_archive: Path, tmp_path: Path) -> None:
    """twine asks whether the description can be shown; check-wheel-contents knows mistakes of packaging."""
    said = run_uv(
        uv, "tool", "run", "-q", "twine", "--no-color", "check", "--strict", wheel, source_archive, folder=tmp_path
    )
    assert [line.rpartition(": ")[2] for line in said.stdout.decode().splitlines()] == ["PASSED", "PASSED"]
    said = run_uv(uv, "tool", "run", "-q", "check-wheel-contents", wheel, folder=tmp_path)
    assert said.stdout.decode() == f"{wheel}: OK\n"


@pytest.mark.parametrize("version", sorted(PYTHONS))
def test_each_python_runs_the_wheel(version: str, uv: str, wheel: Path, folder: Path) -> None:
    """With no other library than the wheel requires; the second time without the network."""
    python = find_python(version)
    assert python
    make_environment(uv, python, folder, wheel, name="online")
    check_commands(make_environment(uv, python, folder, wheel, uv_offline=1), folder)


def test_the_lowest_versions_run_the_wheel(uv: str, wheel: Path, folder: Path) -> None:
    """Those of all libraries and extras that pyproject.toml names, but not of PyTorch and Ray, which are large."""
    lowest = ["--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml"]
    for extra in ("azure", "hf", "sound", "table", "tfrecord", "video", "view"):
        lowest += ["--extra", extra]
    scripts = make_environment(uv, find_python(LOWEST_VERSION) or LOWEST_VERSION, folder, *lowest)
    run_uv(uv, "pip", "install", "-q", "--no-deps", "--python", scripts / "python", wheel, folder=folder)
    check_commands(scripts, folder)
    assert run_installed(scripts, "tarindex", "a.tar", "-o", "a.parquet", folder=folder).status == 0
    shard = run_installed(scripts, "tarcat", "a.parquet", folder=folder).output()
    assert shard == (folder / "a.tar").read_bytes()


@pytest.mark.parametrize("kind", ["wheel", "source_archive"])
def test_uvx_runs_a_command(kind: str, uv: str, folder: Path, request: pytest.FixtureRequest) -> None:
    archive = request.getfixturevalue(kind)
    for words in (["tartools", "tarls"], ["tarls"]):
        said = run_uv(uv, "tool", "run", "-q", "--from", archive, *words, "a.tar", folder=folder)
        assert said.output() == b"a.tar\n"


def test_uv_installs_the_commands(uv: str, wheel: Path, folder: Path) -> None:
    places = {"uv_tool_dir": folder / "tools", "uv_tool_bin_dir": folder / "bin"}
    run_uv(uv, "tool", "install", "-q", wheel, folder=folder, **places)
    assert {path.name for path in (folder / "bin").iterdir()} == {*PROJECT["scripts"]}
    check_page(folder / "bin", folder)


def test_pipx_installs_the_commands(uv: str, wheel: Path, folder: Path) -> None:
    """And the man pages: man(1) finds share/man beside a folder bin that is in PATH."""
    places = {"pipx_home": folder / "pipx", "pipx_bin_dir": folder / "bin", "pipx_man_dir": folder / "share/man"}
    python = ["--python", sys.executable]
    run_uv(uv, "tool", "run", "-q", "pipx", "install", *python, wheel, folder=folder, **places)
    assert {path.name for path in (folder / "bin").iterdir()} == {*PROJECT["scripts"]}
    check_page(folder / "bin", folder)
    assert (folder / "share/man/man1/tarcat.1").read_text() == (ROOT / "man/man1/tarcat.1").read_text()
    assert (folder / "share/man/man7/tartools.7").read_text() == (ROOT / "man/man7/tartools.7").read_text()
    run = ["pipx", "run", *python, "--spec", wheel, "tartools", "tarls", "a.tar"]
    assert run_uv(uv, "tool", "run", "-q", *run, folder=folder, **places).stdout == b"a.tar\n"
