"""The likeliest mistakes of people who are new here: each line of mistakes.txt ends with its status and its message.

A mistake is a line `$ COMMAND`, then the status, then what stderr says. Where a message changes, run
`python -m tests.commands.test_mistakes`, which writes the file again, and read the difference.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands.conftest import Inside, inside
from tests.conftest import BIN, ROOT, Run, clean_environment, make_tar
from tests.tiers import exhaustive

__all__ = ["inside"]  # a fixture
FILE = Path(__file__).with_name("mistakes.txt")
SHELL = re.compile(r"[;<|&]|\w=\w+ ")  # lines that need a shell
QUICK = 3  # of so many mistakes without a shell, one is in the plain tier


class Mistake(NamedTuple):
    """A command line, its exit status, and what it says on stderr."""

    line: str
    status: int
    said: str


def mistakes() -> list[Mistake]:
    """Return the mistakes of the file, in its order."""
    found = []
    for part in re.split(r"^\$ ", FILE.read_text(), flags=re.MULTILINE)[1:]:
        line, status, said = part.split("\n", 2)
        found.append(Mistake(line, int(status.removeprefix("status ")), said.rstrip("\n")))
    return found


def make_files(folder: Path) -> None:
    """Make what the command lines name, in *folder*."""
    members = []
    for index, label in enumerate(("path", "sand", "moss")):
        about = json.dumps({"class": label, "width": index + 3}).encode()
        members += [
            (f"train/{label}/{label}_{index:04d}.{field}", payload)
            for field, payload in (
                ("jpg", b"\xff\xd8\xff\xe0\0\x10JFIF" + bytes(100)),
                ("txt", b"a text"),
                ("json", about),
            )
        ]
    tar = make_tar(members)
    files = {
        "a.tar": tar, "b.tar": tar, "plain.tar.gz": tar, "gz_as.tar": gzip.compress(tar, mtime=0), "empty.tar": b"",
        "text.tar": b"hello world", "rnd.tar": random.Random(4).randbytes(20480), "x.json": b'{"a": 1}\n',
        "pic.jpg": members[0][1] * 20, "id.csv": b"id,c\n1,2\n", "key.csv": b"key,c\n1,2\n",
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "dir").mkdir()
    (folder / "dir/a.txt").write_text("a")
    for name in ("zip.tar", "z.zip"):
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(zipfile.ZipInfo("a.txt"), "a text")


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(number, marks=[] if not SHELL.search(one.line) and number % QUICK == 0 else exhaustive)
        for number, one in enumerate(mistakes())
    ],
)
def test_a_mistake_gets_its_message(number: int, inside: Inside, run: Run, shell: Run, tmp_path: Path) -> None:
    mistake = mistakes()[number]
    make_files(tmp_path)
    name, *words = shlex.split(mistake.line) if not SHELL.search(mistake.line) else [""]
    if not name:
        done = shell(mistake.line)
    else:
        done = run(name, *words) if name in ("tartools", "tarjob", "tarproc") else inside(name, *words)
    assert (done.status, said_in(done.stderr)) == mistake[1:], mistake.line


def said_in(stderr: str) -> str:
    """Return *stderr* without what differs between machines."""
    return re.sub(r"(bash: line \d+: )", "bash: ", stderr).rstrip("\n")


def test_there_are_as_many_as_were_tried() -> None:
    lines = [one.line for one in mistakes()]
    assert len(lines) == len({*lines}) >= 68


def write_again() -> None:
    """Write the file with what the commands say now."""
    text = ""
    for one in mistakes():
        with tempfile.TemporaryDirectory() as folder:
            make_files(Path(folder))
            environment = clean_environment()
            environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
            done = subprocess.run(
                ["bash", "-c", one.line], cwd=folder, env=environment, capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
            text += f"$ {one.line}\nstatus {done.returncode}\n{said_in(done.stderr)}\n\n"
    FILE.write_text(text)


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(write_again())
