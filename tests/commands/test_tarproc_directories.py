"""Directories of tarproc that are used for several samples: each sample finds its own as if it were new."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from tests.conftest import Run, has_end, make_tar, members_of
from tests.processes import alive
from tests.tiers import also, in_both

COUNT = 120  # samples, or 40: more than there are messes
# What a sample finds, in a file beside the directories: names, types and permissions, links, payloads.
SEEN = "{ find . -printf '%p %y %m %n %u %g\\n' | sort; tail -n +1 sample.*; } > \"$SEEN/$TAR_INDEX\"; "
# What it then does to them. A file that it leaves as `sample.new` is a field of the result.
MESSES = [
    "true",
    "chmod 600 sample.cls; chmod u+x sample.__key__",
    "chmod 770 .",
    "chmod g+s .",
    "ln sample.jpg sample.new",
    'ln sample.txt "$SEEN/linked$TAR_INDEX"',
    "mv sample.jpg sample.new",
    "mv sample.jpg x; cp x sample.jpg; echo y > sample.cls",
    "rm sample.txt",
    "ln -sf x sample.lnk; cp sample.jpg x",
    "mkdir -p d/e; touch d/e/f",
    "mkfifo pipe",
    "touch .hidden 'sample.a b' scratch; chmod 0 scratch",
    "head -c 3000000 /dev/zero > sample.cls",
    "cat sample.jpg sample.jpg >> sample.txt",
    ": > sample.jpg",
    "umask 777; touch sample.new; chmod 644 sample.new",
    'echo "$TAR_KEY-x" > sample.__key__',
    "setsid sleep 100 < /dev/null > /dev/null 2>&1 &",
    "false",
]


def samples(draw: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Return members of *count* samples with some of a few fields, and payloads of very different sizes."""
    members = []
    for number in range(count):
        fields = draw.sample(["jpg", "cls", "txt", "JPG", "seg.png"], draw.randrange(1, 6))
        members += [
            (f"{number:03}.{field}", draw.randbytes(draw.choice([0, 1, 99, 5000, 200_000, 1_200_000])))
            for field in fields
        ]
    return members


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for what samples have found."""
    folder = tmp_path / "seen"
    folder.mkdir()
    monkeypatch.setenv("SEEN", str(folder))
    return folder


@pytest.mark.parametrize(
    "options", [(), ("-p", "3"), *also(("-p", "2", "--unordered"), ("-e", "ignore"), ("--add-log", "log"))]
)
@in_both
def test_each_sample_finds_new_files(
    options: tuple[str, ...], run: Run, seen: Path, tmp_path: Path, thorough: bool
) -> None:
    """Compare with shells that are started for each sample, as they are where BASH_ENV is set."""
    draw = random.Random(len(options))
    count = COUNT if thorough else COUNT // 3
    data = make_tar(samples(draw, count))
    order = draw.sample(MESSES * (count // len(MESSES)), count)
    cases = " ".join(f"{number}) {mess};;" for number, mess in enumerate(order))
    quiet = "exec 2> /dev/null; " if "-p" in options else ""  # two write at once
    command = f"{quiet}{SEEN} case $TAR_INDEX in {cases} esac"
    options = options if "-e" in options else (*options, "-e", "skip")
    found = []
    for env in ({"SEEN": str(seen)}, {"SEEN": str(seen), "BASH_ENV": "/dev/null"}):
        done = run("tarproc", "--tmpdir", tmp_path, "-c", command, *options, stdin=data, env=env)
        assert done.status == 1 and has_end(done.stdout), done.stderr
        looks = {path.name: path.read_bytes() for path in seen.iterdir() if path.name.isdigit()}
        assert len(looks) == count
        members = members_of(done.stdout)
        found.append((sorted(members) if "--unordered" in options else members, looks, sorted(done.stderr.split("\n"))))
        for path in seen.iterdir():
            path.unlink()
    assert found[0] == found[1]
    assert os.listdir(tmp_path) == ["seen"]


@pytest.mark.parametrize("file", [".", "sample.txt"])
def test_attributes_do_not_stay(file: str, run: Run, seen: Path) -> None:
    program = f"import os; print(os.listxattr('{file}')); os.setxattr('{file}', 'user.note', b'1')"
    data = make_tar([(f"{number:03}.txt", b"1") for number in range(30)])
    command = f'if [ $((TAR_INDEX % 5)) = 0 ]; then {sys.executable} -c "{program}" > "$SEEN/$TAR_INDEX"; fi'
    assert run("tarproc", "-c", command, stdin=data, env={"SEEN": str(seen)}).status == 0
    assert {(seen / str(number)).read_text() for number in range(0, 30, 5)} == {"[]\n"}


WHICH = 'stat -c "%i %w" . sample.__key__ sample.txt | tr "\\n" "/" > "$SEEN/$TAR_INDEX"; '


def which(run: Run, seen: Path, command: str, *options: str) -> list[list[str]]:
    """Return for each of 60 samples which directory and files it had, by inode and time of birth."""
    data = make_tar([(f"{number:03}.txt", b"1") for number in range(60)])
    done = run("tarproc", *options, "-c", WHICH + command, stdin=data, env={"SEEN": str(seen)})
    assert done.status == 0, done.stderr
    return [(seen / str(number)).read_text().split("/")[:3] for number in range(60)]


def test_directories_are_used_again(run: Run, seen: Path) -> None:
    folders = [folder for folder, _, _ in which(run, seen, "true")]
    assert len(set(folders)) <= 4  # made ahead


@pytest.mark.parametrize(
    ("command", "options"),
    [("mv $PWD $PWD-x; mkdir -m 700 $PWD; cp $PWD-x/* $PWD", ()), ("true", ("--keep-dir", "--tmpdir", "."))],
)
def test_when_directories_are_not_used_again(
    command: str, options: tuple[str, ...], run: Run, seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a command has made it, who knows who works in it."""
    monkeypatch.chdir(tmp_path)
    assert len({folder for folder, _, _ in which(run, seen, command, *options)}) == 60


@pytest.mark.parametrize("way", ["setsid", *also("setsid setsid", "timeout 300 setsid")])
def test_not_while_a_daemon_lives(way: str, run: Run, seen: Path, tmp_path: Path) -> None:
    """It works in its directory, and in no other, until it is killed at the end."""
    steps = "echo \\$\\$ > $SEEN/pid; while :; do echo x > sample.txt; echo x > sample.x; done"
    daemon = f'{way} sh -c "{steps}" </dev/null >/dev/null 2>&1 &'
    first = f'if [ "$TAR_INDEX" = 0 ]; then {daemon} until [ -e sample.x ]; do :; done; fi'
    found = which(run, seen, f'[ ! -e sample.x ] || exit 1; {first}; ls | wc -l > "$SEEN/n$TAR_INDEX"')
    folders = [folder for folder, _, _ in found]
    assert folders.count(folders[0]) == 1
    assert {(seen / f"n{number}").read_text() for number in range(1, 60)} == {"2\n"}
    assert len(set(folders)) > 50  # in this shell none is used again
    assert not alive(int((seen / "pid").read_text()))
