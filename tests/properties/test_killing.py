"""Commands that are killed at a random moment (SIGKILL): each output is absent or whole, and the same line goes on."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import BIN, clean_environment, make_samples, make_tar, start
from tests.tiers import exhaustive

KILLS = 6  # of each line
LINES = {
    "tarcat": "tarcat --force in.tar in-2.tgz -o out.tar",
    "tarcat to zstd": "tarcat --force in.tar -o out.tar.zst",
    "tarcat to a table": "tarcat --force in.tar -o out.parquet",
    "tarsplit": "tarsplit --force -n 90 in.tar in-2.tgz -o out",
    "tarsplit --parts": "tarsplit --force --parts a:0.5,b:0.5 in.tar -o out-{part}.tar",
    "tarfilter": "tarfilter --force --share 0:0.5 in.tar -o out.tar --rest out-2.tar",
    "tarsort": "tarsort --force -M 64K --tmpdir tmp -s cls in.tar -o out.tar",
    "tarmix": "tarmix --force --stop all 2 in.tar 1 in-2.tgz -o out.tar",
    "tardedup": "tardedup --force --tmpdir tmp in.tar -o out.tar",
    "tarproc": "tarproc --force --tmpdir tmp --count 60 -p 2 -c true in.tar -o out.tar",
    "tarindex": "tarindex --force -f cls in.tar -o out.parquet",
    "tar2zip": "tar2zip --force in.tar -o out.zip",
    "tarjob": "tarjob -p 2 -s {1..6} -- tarcat --force in.tar -o out-{}.tar",
}


def folder_with_inputs(path: Path) -> Path:
    (path / "tmp").mkdir(parents=True)
    (path / "in.tar").write_bytes(make_tar(make_samples(2000)))
    start(BIN / "tarcat", "-o", path / "in-2.tgz", "-", stdin=make_tar(make_samples(500, 5000))).output()
    for name in path.iterdir():
        name.touch()  # once: a table has the time of its shards
    return path


def outputs(folder: Path) -> dict[str, bytes]:
    """Return what appeared in *folder*."""
    return {path.name: path.read_bytes() for path in folder.glob("out*")}


def launched(line: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    everything = {"cwd": folder, "env": clean_environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([BIN / line[0], *line[1:]], **everything)  # type: ignore[call-overload,no-any-return]


@exhaustive
@pytest.mark.parametrize("label", LINES)
def test_killed(label: str, tmp_path: Path) -> None:
    dice, line = random.Random(label), LINES[label].split(" ")
    folder = folder_with_inputs(tmp_path / "in")
    began = time.monotonic()
    with launched(line, folder) as process:
        said = process.communicate()
    took = time.monotonic() - began
    whole = outputs(folder)
    assert process.returncode == 0 and whole, said
    for _ in range(KILLS):
        for name in whole:
            (folder / name).unlink(missing_ok=True)
        with launched(line, folder) as process:
            time.sleep(dice.uniform(0.3, 1) * took)
            process.kill()
            process.communicate()  # until all that it started have ended
        for name, content in outputs(folder).items():
            assert content == whole[name], name
        with launched(line, folder) as process:
            said = process.communicate()
        assert process.returncode == 0, said
        assert outputs(folder) == whole
