"""What is said to be there is there after a power cut: the order of system calls, and each state of the disk."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.commands.test_nothing_left import SAMPLES, WRITERS, each, line
from tests.conftest import Run, make_tar, members_of
from tests.powercut import Disk, traced
from tests.tiers import also, exhaustive, in_both

__all__ = ["line"]  # a fixture
pytestmark = pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing")
PROGRAMS = Path(sys.executable).parent
WITHOUT = ("-e", "inject=fsync:retval=0:when={}")  # the N-th call of each process does nothing
LAST = {"tarfilte": 4, "tardedup": 4, "tarsplit": 1}  # its number, if it is not 2; tarsplit syncs data in a thread
COPIES = ("tarjob", "-s", "{0..2}", "-p", "1", "--log", "log", "-o", "out-{}.tar", "--", "tarcat", "in-{}.tar", "-o")


def job_words() -> list[str]:
    return [*COPIES[:-3], str(PROGRAMS / "tarcat"), *COPIES[-2:], "out-{}.tar"]


def disk_of(words: list[str], folder: Path, *more: str, **env: str) -> Disk:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    return Disk(
        traced([str(PROGRAMS / words[0]), *words[1:]], folder, *more, env={"TMPDIR": str(folder), **env}),
        folder,
        before,
    )


@each
def test_data_are_on_the_disk_before_their_name_is(label: str, line: list[str], tmp_path: Path) -> None:
    """And all names before the end of the command."""
    disk_of([word.replace("{}", "in.tar") for word in line], tmp_path).check_order()


@pytest.mark.parametrize("label", ["tarcat", *also("tarsplit --parts", "tar2parquet", "tarindex, a table")])
def test_it_can_be_switched_off(label: str, line: list[str], tmp_path: Path) -> None:
    disk = disk_of([word.replace("{}", "in.tar") for word in line], tmp_path, TARTOOLS_FSYNC="0")
    with pytest.raises(AssertionError, match="folder was not synced"):
        disk.check_order()


@exhaustive
@pytest.mark.parametrize(("label", "number"), [(label, n) for label in WRITERS for n in (1, LAST.get(label[:8], 2))])
def test_each_sync_is_needed(label: str, number: int, line: list[str], tmp_path: Path) -> None:
    """The first one is that of data, the last one that of the folder."""
    words = [word.replace("{}", "in.tar") for word in line]
    disk = disk_of(words, tmp_path, *(word.format(number) for word in WITHOUT))
    with pytest.raises(AssertionError, match="synced"):
        disk.check_order()


def test_a_set_that_replaces_another(run: Run, tmp_path: Path) -> None:
    """Each state reads as old or new shards, whole; the old ones that are too many go when all new ones are there."""
    (tmp_path / "in.tar").write_bytes(make_tar(SAMPLES))
    old, new = (
        ("tarsplit", "-n", "4", "-o", "o-%d.tar", "in.tar"),
        ["tarsplit", "-n", "15", "--force", "-o", "o-%d.tar", "in.tar"],
    )
    assert run(*old).status == 0
    before = {path.name: path.read_bytes() for path in tmp_path.glob("o-*")}
    disk = disk_of(new, tmp_path)
    disk.check_order()
    after = {path.name: path.read_bytes() for path in tmp_path.glob("o-*")}
    states = disk.states()
    assert len(before) == 10 and len(after) == 3 and len(states) > 10
    for state in states:
        shards = {Path(name).name: content for name, content in state.items() if "/o-" in name}
        assert all(content in (before[name], after.get(name)) for name, content in shards.items())
        assert shards.keys() == before.keys() or after.items() <= shards.items()


def resumed(run: Run, state: dict[str, bytes], folder: Path) -> set[bytes]:
    """Return the outputs of the job, run again where the disk has *state*."""
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
    for name, content in state.items():
        (folder / Path(name).name).write_bytes(content)
    for name in ("out-0.tar", "out-1.tar", "out-2.tar"):
        if (folder / name).exists():  # what command that reads it fails, or gets all of it
            done = run("tarcat", name)
            assert done.status or members_of(done.stdout) == members_of(make_tar(SAMPLES))
    done = run(*job_words())
    assert done.status == 0, done
    return {path.read_bytes() for path in folder.glob("out-*.tar")}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    (folder := tmp_path / "job").mkdir()
    for n in range(3):
        (folder / f"in-{n}.tar").write_bytes(make_tar(SAMPLES))
    return folder


@in_both
def test_a_job_goes_on_after_a_power_cut(thorough: bool, run: Run, job: Path, tmp_path: Path) -> None:
    """From each state that the disk may be in; cut temporary files are in few of them, or in all."""
    disk = disk_of(job_words(), job)
    disk.check_order()
    states = disk.states(temporary=thorough)
    assert len(states) > (150 if thorough else 8)
    for state in states:
        assert resumed(run, state, tmp_path) == {make_tar(SAMPLES)}


@pytest.mark.parametrize("number", [1, *also(2)])
def test_a_job_would_not_without_a_sync(number: int, run: Run, job: Path, tmp_path: Path) -> None:
    """The test above finds that the first sync of a command, that of its data, is missing."""
    disk = disk_of(job_words(), job, *(word.format(number) for word in WITHOUT))
    with pytest.raises(AssertionError):
        disk.check_order()
    if number == 1:
        states = disk.states(temporary=False)
        assert len(states) > 150
        assert any(resumed(run, state, tmp_path) != {make_tar(SAMPLES)} for state in states[::-7])


@exhaustive
@pytest.mark.parametrize(
    "code",
    [
        "tartools.write([{'__key__': 'a', 'txt': b'1'}], 'out.tar')",
        "with tartools.TarWriter('out.tar') as writer: writer.write({'__key__': 'a', 'txt': b'1'})",
        "tartools.map_samples(lambda sample: sample, 'in.tar', 'out.tar')",
        "with tartools.train.checkpoint.writer('new/model.pt') as file: file.write(bytes(100_000))",
        "tartools.train.pack([{'txt': b'1'}] * 40, 'new/out-%06d.tar', max_count=15)",
    ],
)
def test_of_python_functions(code: str, tmp_path: Path) -> None:
    if "train" in code:
        pytest.importorskip("torch")
    (tmp_path / "in.tar").write_bytes(make_tar(SAMPLES))
    words = [sys.executable, "-c", f"import tartools\n{code}"]
    Disk(traced(words, tmp_path, env={"PYTHONDONTWRITEBYTECODE": "1"}), tmp_path).check_order()
