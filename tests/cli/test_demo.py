"""The demo runs to its end, and shows what it runs."""

from __future__ import annotations

import sys
from pathlib import Path

from tartools.cli import demo
from tests.conftest import Result, members_of, python, start


def run_demo(*arguments: object, cwd: Path) -> Result:
    return start(sys.executable, "-m", "tartools", "demo", *arguments, folder=cwd, env={"TMPDIR": str(cwd)})


def test_the_demo_runs_what_it_prints(tmp_path: Path) -> None:
    done = run_demo(cwd=tmp_path)
    assert (done.status, done.stderr) == (0, "tarcreate: cls: 0 circle, 1 square, 2 triangle\n")
    printed = done.stdout.decode()
    shown = [line.removeprefix("$ ") for line in printed.splitlines() if line.startswith("$ ")]
    assert shown == [line for _, line in demo.LINES]
    (folder,) = tmp_path.iterdir()
    assert printed.endswith(f"# All of it is in {folder}\n")
    everything = {name for name, _ in members_of((folder / "shuffled.tar").read_bytes())}
    number = len(demo.SHAPES) * demo.PICTURES
    assert len(everything) == 4 * number
    for field in ("jpg", "cls", "cls.txt", "bytes"):
        assert sum(name.endswith(f".{field}") for name in everything) == number
    members = members_of((folder / "sorted.tar").read_bytes())
    sizes = [int(payload) for name, payload in members if name.endswith(".bytes")]
    assert sizes == sorted(len(payload) for name, payload in members if name.endswith(".jpg"))


def test_the_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        demo.draw_pictures(tmp_path / name)
    one, two = (
        {p.relative_to(tmp_path / n): p.read_bytes() for p in (tmp_path / n).rglob("*.jpg")} for n in ("one", "two")
    )
    assert one == two and len(one) == len(demo.SHAPES) * demo.PICTURES


def test_a_line_that_fails_ends_the_demo(tmp_path: Path) -> None:
    program = (
        "import sys; from tartools.cli import demo; "
        "demo.LINES = (('fail', 'false | cat'), ('never', 'touch never')); "
        "sys.exit(demo.main(['here']))"
    )
    done = python(program, folder=tmp_path)
    assert done.status == 1
    assert done.stderr == "tartools demo: this line ended with status 1\n"
    assert not (tmp_path / "here/never").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = run_demo(tmp_path, cwd=tmp_path)
    assert (done.status, done.stderr) == (1, f"tartools demo: {tmp_path} is not empty\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_wrong_option_is_a_usage_error(tmp_path: Path) -> None:
    assert run_demo("--fast", cwd=tmp_path).status == 2
