"""What somebody meets who begins: the tutorial of tartools(7), the demo, the list of commands, errors that help."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tartools import commands
from tartools.__main__ import main
from tartools.commands import _demo as demo
from tests.commands.test_zip import zipped
from tests.conftest import ROOT, Result, Run, make_tar, members_of, python, start


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder `pictures` of two classes of 30 pictures, in `tmp_path`."""
    for label, colour in enumerate(("red", "blue")):
        folder = tmp_path / "pictures" / f"{label}-{colour}"
        folder.mkdir(parents=True)
        for n in range(30):
            Image.new("RGB", (100 + n, 80), colour).save(folder / f"{n:02d}.jpg")
    return tmp_path


@pytest.mark.skipif(not shutil.which("gm"), reason="GraphicsMagick is not installed")
def test_the_tutorial_runs_as_printed(pictures: Path, shell: Run, duckdb_command: dict[str, str]) -> None:
    page = (ROOT / "man/man7/tartools.7").read_text().partition(".SS First steps")[2].partition(".SS ")[0]
    for escape, character in ((r"\-", "-"), (r"\(aq", "'"), (r"\e", "\\")):
        page = page.replace(escape, character)
    *lines, program = re.findall(r"^\.RS 4\n(.*?)\n\.RE$", page, re.MULTILINE | re.DOTALL)
    done = shell("set -euo pipefail\n" + "\n".join(lines), env=duckdb_command)
    assert done.status == 0
    assert re.fullmatch(
        r"tarcreate: cls: 0 0-red, 1 1-blue\n"
        r"tardedup: \d+ duplicates among \d+ samples, \d+ of them of samples of --against\n"
        r"(tardedup: no samples selected \(of \d+\)\n)?",  # all of these pictures are small, and much alike
        done.stderr,
    )
    assert b"60" in done.stdout
    assert (pictures / "sheet.html").stat().st_size > 60 * 500
    assert sorted(path.name for path in pictures.glob("train-*")) == [f"train-{n:06d}.tar" for n in range(3)]
    split = {part: members_of((pictures / part / "000000.tar").read_bytes()) for part in ("train", "val")}
    labels = [payload for _, payload in split["val"] if payload in (b"0-red", b"1-blue")]
    assert len(split["train"]) == 162 and sorted(labels) == [b"0-red"] * 3 + [b"1-blue"] * 3
    parts = [members_of((pictures / f"part-{n:06d}.tar").read_bytes()) for n in range(3)]
    assert [len(part) for part in parts] == [30, 30, 30]
    assert {payload for part in parts for name, payload in part if name.endswith(".cls.txt")} == {b"1-blue"}
    assert len({name for part in parts for name, _ in part}) == 90
    read = start(sys.executable, "-W", "ignore", "-c", program, folder=pictures).output().splitlines()
    assert len(read) == 60
    assert re.fullmatch(rb"\(64, \d+\) [01]", read[0])


def first_screen(folder: Path, count: int) -> str:
    """Return the first screen of the README; make its folder `pictures`, of three classes of *count* pictures."""
    for label in ("circle", "square", "triangle"):
        (folder / "pictures" / label).mkdir(parents=True)
        for n in range(count):
            Image.new("RGB", (120, 90), "red").save(folder / "pictures" / label / f"{n:03d}.jpg")
    return (ROOT / "README.md").read_text().partition("\n## ")[0]


def test_the_first_commands_of_the_readme_print_what_it_says(shell: Run, tmp_path: Path) -> None:
    (block,) = re.findall(r"^```console\n(.*?)^```$", first_screen(tmp_path, 100), re.MULTILINE | re.DOTALL)
    for command, printed in re.findall(r"^\$ (.*)\n((?:[^$].*\n)*)", block, re.MULTILINE):
        done = shell(command)
        assert (done.status, done.stdout.decode() + done.stderr) == (0, printed)
    assert (tmp_path / "sheet.html").read_text().count("data:image/") >= 200


@pytest.mark.skipif(not shutil.which("gm"), reason="GraphicsMagick is not installed")
def test_the_tasks_of_the_readme_are_done_by_their_lines(shell: Run, tmp_path: Path) -> None:
    screen = first_screen(tmp_path, 20)
    shell("tarcreate --folder pictures --class cls -o pictures.tar")
    tasks = dict(re.findall(r"^\| ([a-z 0-9/]+) \| `([^`]*)`", screen, re.MULTILINE))
    for task, line in tasks.items():
        if task != "train":
            shell(f"set -o pipefail; {line}".replace(r"\|", "|")).output()
    classes = shell("tar2tsv --no-key --no-header -f cls.txt circles.tar | sort -u").stdout
    assert classes == b"circle\n"
    train, val = (shell(f"tar2tsv --no-header {part}-*.tar").stdout.split() for part in ("train", "val"))
    assert (len(train), len(val), len({*train, *val})) == (54, 6, 60)
    assert sorted(shell("tar2tsv --no-header part-*.tar").stdout.split()) == sorted(train)
    (tmp_path / "small-000003.tar").unlink()  # as after an interruption
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("small-*.tar")}
    done = shell(f"{tasks['scale out'].replace('tarjob ', 'tarjob -v ')}")
    assert done.stderr.startswith("tarjob: 10 items: 1 done, 9 already done, 0 failed, ")
    assert len(before) == 9 and all(path.stat().st_mtime_ns == time for path, time in before.items())
    program = f"import tartools.train\nprint(sum(len(labels) {tasks['train']}))"
    assert python(program, folder=tmp_path) == (0, b"54\n", "")


def test_the_list_of_commands_says_how_to_show_the_pages() -> None:
    for more in ([], ["--help"]):
        done = subprocess.run([sys.executable, "-m", "tartools", *more], capture_output=True, text=True, check=True)
        printed = " ".join(done.stdout.split())
        assert "what all share: tartools man. The page of a command: tartools man NAME." in printed
    assert re.search("^  tarjob  +Run a command for each of many shards", done.stdout, re.MULTILINE)


def test_the_list_of_commands_is_by_task_and_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [*commands.names(), *commands.BUILTINS]
    assert sorted(name for names in commands.COMMANDS_BY_TASK.values() for name in names) == sorted(every)
    for columns in (40, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        for arguments in ([], ["--help"]):
            assert main(arguments) == 0
            lines = capsys.readouterr().out.splitlines()
            assert all(len(line) <= columns for line in lines if not re.match("Usage|.*man ", line))
            assert {*every} <= set(re.findall(r"\w+", "\n".join(lines)))
            assert arguments or columns < 80 or len(lines) < 24


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"7z\xbc\xaf\x27\x1c" + bytes(600), "a 7z archive (bsdtar"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "a pointer of Git LFS (git lfs pull"),
        (b"<!DOCTYPE html>\n<html><body>No such file", "an HTML page (perhaps an error page of the server"),
        (b'{"error": "denied"}', "JSON"),
        (b"hello world", "11 bytes of text\n"),
        (b"one line\n" * 99, "text\n"),
        ("a,b\n1,2\n".encode("utf-16"), "text in UTF-16 (iconv"),
        (b"\x1f\x9d\x90" + bytes(range(200)) * 9, "data of compress (.Z) ('pipe:gzip -dc FILE' reads it)"),
        (lzma.compress(bytes(10240), lzma.FORMAT_ALONE), "LZMA data (.lzma) ('pipe:xz -dc FILE' reads it)"),
        (b"\x02\x21\x4c\x18" + bytes(600), "lz4 data in the legacy format ('pipe:lz4 -dc FILE' reads it)"),
        (b"\x8b\x02\x80hello\n\x03" + bytes(40), "50 other bytes: fewer than the 512 of a header"),
        (b"RIFF\x24\0\0\0WAVEfmt " + bytes(20), "a WAV sound (tarcreate --folder"),
        (gzip.compress(gzip.compress(bytes(10240), mtime=0), mtime=0), "gzip data (it was compressed twice: '"),
    ],
)
def test_what_is_no_archive_is_told(content: bytes, what: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(content)
    said = run("tarcat", "x.tar").failure(lines=1)
    assert said.startswith(f"tarcat: x.tar: at byte 0: this is not a tar archive but {what}")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_parts_of_a_split_archive_are_named_and_read_together(
    suffix: str, run: Run, shell: Run, tmp_path: Path
) -> None:
    members = [(f"{n:03}.txt", bytes([n]) * 700) for n in range(20)]
    archive = make_tar(members) if not suffix else gzip.compress(make_tar(members), 0, mtime=0)
    parts = [f"x.tar{suffix}.part{part}" for part in ("aa", "ab", "ac", "ad")]
    step = len(archive) // 4 + 1
    for number, name in enumerate(parts):
        (tmp_path / name).write_bytes(archive[number * step : (number + 1) * step])
    for name in parts[:2]:
        said = run("tarcat", name).stderr
        line = re.search(r"name all parts[:,] ('\S+')", said)
        assert line is not None, said
        assert members_of(shell(f"tarcat {line[1]}").output()) == members
    found = json.loads(run("tarcheck", "--json", *parts[1:3]).stdout)["findings"]
    archives = [each for each in found if each["code"] == "split-part"]
    assert [place["shard"] for place in archives[0]["places"]] == parts[1:3]
    assert {each["code"] for each in found if each["weight"] == "error"} == {"split-part", "missing-part"}


def test_what_is_said_of_a_zip_archive_helps(run: Run, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped([("a.txt", b"x" * 3000)]))
    said = run("tarcat", "x.zip").stderr
    line = re.search(r"\((tarcreate .*) makes a tar archive of it\)", said)
    assert line is not None
    done = shell(f"{line[1].replace('FILE', 'x.zip')} | tar2tsv -f txt")
    assert (done.status, done.stdout) == (0, b"__key__\ttxt\na\t" + b"x" * 3000 + b"\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("tar2tsv", "-f", "jpg"),
        ("tar2tsv", "-f", "jpg", "--fill", "NA"),
        ("tarcat", "-f", "jpg", "-o", "out.tar"),
        ("tarsort", "-s", "jpg"),
        ("tarfirst", "-f", "jpg"),
        ("tarfirst", "-S", "int(jpg) == 1"),
    ],
)
def test_names_without_a_dot_are_explained(arguments: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("one", b"1"), ("two", b"2")]))
    done = run(*arguments, "a.tar")
    assert done.status == 1
    assert "no name has a dot: a sample n01 with a field jpg is a file n01.jpg" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        *("tarcat -o x.ZIP a.tar", "tarcat -z a.tar -o file:x.zip", "tarpcat a.tar -o x.zip", "tarsort a.tar -o x.zip"),
        *("tarproc -c 'touch ran' a.tar -o x.zip", "tarcreate --folder . -o x.zip"),
        *("tarsplit -o x.zip a.tar", "tarsplit -o x-%03d.zip a.tar"),
    ],
)
def test_an_output_called_zip_is_refused(line: str, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt", b"1")]))
    said = shell(line).failure(2, lines=1)
    assert said.endswith(": .zip says zip, and this writes tar: name it .tar; tar2zip writes zip\n")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def run_demo(*arguments: object, cwd: Path) -> Result:
    return start(sys.executable, "-m", "tartools", "demo", *arguments, folder=cwd, env={"TMPDIR": str(cwd)})


def test_the_demo_runs_what_it_prints(tmp_path: Path) -> None:
    done = run_demo(cwd=tmp_path)
    assert (done.status, done.stderr) == (0, "tarcreate: cls: 0 circle, 1 square, 2 triangle\n")
    printed = done.stdout.decode()
    shown = [line.removeprefix("$ ") for line in printed.splitlines() if line.startswith("$ ")]
    assert shown == [line for _, line in demo.DEMO_LINES]
    (folder,) = tmp_path.iterdir()
    assert printed.endswith(f"# All of it is in {folder}\n")
    everything = {name for name, _ in members_of((folder / "shuffled.tar").read_bytes())}
    number = len(demo.CORNERS_BY_CLASS) * demo.PICTURES_PER_CLASS
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
    assert one == two and len(one) == len(demo.CORNERS_BY_CLASS) * demo.PICTURES_PER_CLASS


def test_a_line_that_fails_ends_the_demo(tmp_path: Path) -> None:
    program = (
        "import sys; from tartools.commands import _demo; "
        "_demo.DEMO_LINES = (('fail', 'false | cat'), ('never', 'touch never')); "
        "sys.exit(_demo.demo.main(['here']))"
    )
    done = python(program, folder=tmp_path)
    assert done.status == 1
    assert done.stderr == "tartools demo: this line ended with status 1\n"
    assert not (tmp_path / "here/never").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    assert run_demo("--fast", cwd=tmp_path).status == 2
    done = run_demo(tmp_path, cwd=tmp_path)
    assert (done.status, done.stderr) == (1, f"tartools demo: {tmp_path} is not empty\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
