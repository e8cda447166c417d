"""What each writing command leaves if it does not come to its end, by itself or because the power is cut: nothing."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands.conftest import Inside
from tests.conftest import Run, make_tar, members_of
from tests.powercut import Disk, traced
from tests.tiers import also, by_turns, exhaustive, in_both

ROWS = str(Path(__file__).with_name("rows.tsv"))
WRITERS = {  # the name of the command comes first; what stands behind its inputs
    "tarcat": ("-o", "out.tar"),
    "tarcat to gzip": ("-o", "out.tgz"),
    "tarpcat": ("-p", "2", "-M", "10K", "--tmpdir", "tmp", "-o", "out.tar"),
    "tarsplit": ("-o", "out.tar"),
    "tarsplit to tables": ("-o", "out-{shard}.parquet"),
    "tarsplit --shards": ("--shards", "1", "-o", "out.tar"),
    "tarsplit --parts": ("--parts", "a:0.5,b:0.5", "-o", "out-{part}.tar"),
    "tarsplit --by": ("--by", "cls", "-o", "out-{cls}.tar"),
    "tarsort": ("-o", "out.tar"),
    "tarsort -M": ("-M", "64K", "-s", "cls", "-o", "out.tar"),
    "tarproc": ("-c", "true", "--tmpdir", "tmp", "-o", "out.tar"),
    "tarproc -p": ("-p", "3", "-c", "true", "--tmpdir", "tmp", "-o", "out.tar"),
    "tarshow": ("-f", "cls", "--html", "out.html"),
    "tar2tsv": ("-f", "cls", "-o", "out.tsv"),
    "tar2jsonl": ("-o", "out.jsonl"),
    "tar2tfrecord": ("-o", "out.tfrecord"),
    "tar2zip": ("-o", "out.zip"),
    "tar2parquet": ("-o", "out.parquet"),
    "tarfilter": ("--share", "0:0.5", "--rest", "rest.tar", "-o", "out.tar"),
    "tardedup": ("--rest", "rest.tar", "-o", "out.tar"),
    "tarmix": ("1", "-o", "out.tar"),
    "tarjoin": ("--left", "--with", ROWS, "-o", "out.tar"),
    "tarcheck": ("--fix", "-o", "out.tar"),
    "tarindex, a table": ("-f", "cls", "-o", "out.parquet"),
}
SAMPLES = [
    member for n in range(40) for member in ((f"{n:03d}.cls", b"%d" % (n % 3)), (f"{n:03d}.txt", b"%d" % n * 2000))
]
each = pytest.mark.parametrize("label", WRITERS)
each_of_pipes = pytest.mark.parametrize("label", [label for label in WRITERS if "table" not in label])


@pytest.fixture
def line(label: str, tmp_path: Path) -> list[str]:
    """Return the words of the command, with {} for its input; make in.tar and tmp."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "in.tar").write_bytes(make_tar(SAMPLES))
    name, options = re.split("[ ,]", label, maxsplit=1)[0], WRITERS[label]
    return [name, *options[:1], "{}", *options[1:]] if name == "tarmix" else [name, "{}", *options]


def check_nothing_is_left(folder: Path) -> None:
    assert sorted(os.listdir(folder)) == ["in.tar", "tmp"]
    assert os.listdir(folder / "tmp") == []


@each_of_pipes
def test_of_an_input_that_fails_at_its_end(label: str, line: list[str], run: Run, tmp_path: Path) -> None:
    done = run(*(word.replace("{}", "pipe:cat in.tar; exit 3") for word in line), env={"TMPDIR": "tmp"})
    assert (done.status, done.stdout) == (1, b"") and "status 3" in done.stderr and done.stderr.count("\n") == 1
    check_nothing_is_left(tmp_path)


@each_of_pipes
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@by_turns("number")
def test_of_a_signal(label: str, line: list[str], number: int, run: Run, tmp_path: Path) -> None:
    """While there is more to come; who writes that ends when nobody reads it."""
    mark = f"6{os.getpid()}.{int(number)}"
    source = f"pipe:cat in.tar; kill -{int(number)} $PPID; while echo; do sleep 0.02; done # {mark}"
    assert run(*(word.replace("{}", source) for word in line), env={"TMPDIR": "tmp"}) == (-number, b"", "")
    assert subprocess.run(["pgrep", "-f", mark], capture_output=True, check=False).stdout == b""
    check_nothing_is_left(tmp_path)


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Let no file become longer than *size* in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@each
def test_of_a_full_disk(label: str, line: list[str], inside: Inside, tmp_path: Path) -> None:
    with small_files(200):
        done = inside(*(word.replace("{}", "in.tar") for word in line))
    assert not done.stdout or label == "tarcheck"  # which prints what it found
    assert done.status == 1 and "File too large" in done.stderr
    check_nothing_is_left(tmp_path)


@pytest.mark.parametrize("label", ["tarfilter", "tardedup"])
@pytest.mark.parametrize("full", ["out.tar", "rest.tar"])
def test_of_a_full_disk_for_one_of_two_outputs(
    label: str, full: str, line: list[str], run: Run, tmp_path: Path
) -> None:
    done = run(*("/dev/full" if word == full else word.replace("{}", "in.tar") for word in line))
    assert (done.status, done.stdout, done.stderr) == (1, b"", f"{label}: /dev/full: No space left on device\n")
    check_nothing_is_left(tmp_path)


@each
def test_of_an_output_that_is_there(label: str, line: list[str], inside: Inside, tmp_path: Path) -> None:
    """It stays as it is, without --force, and nothing is read, if no value names it; with it, it is replaced."""
    words = [word.replace("{}", "in.tar") for word in line]
    done = inside(*words)
    made = contents(tmp_path)
    source = "in.tar" if "table" in label or "--by" in label else "pipe:touch was-read; cat in.tar"
    refused = inside(*(word.replace("{}", source) for word in line))
    assert (done.status, refused.status, refused.stdout) == (0, 1, b""), done
    assert re.fullmatch(rf"{words[0]}: \S*(out|rest)\S*: already exists; --force replaces it\n", refused.stderr)
    assert contents(tmp_path) == made
    (path := tmp_path / refused.stderr.split(": ")[1]).write_bytes(b"old")
    assert inside(*words, "--force") == done
    assert contents(tmp_path).keys() == made.keys() and path.read_bytes() != b"old"
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("label", [label for label in WRITERS if not label.startswith("tarsplit")])
def test_of_an_output_that_is_the_input(label: str, line: list[str], inside: Inside, tmp_path: Path) -> None:
    """By its own name, if that may be an output of the command; else by a link, whose suffix says what is written."""
    (name,) = (word for word in line if word.startswith("out."))
    output = "in.tar" if name in ("out.tar", "out.tgz") else name
    if output == name:
        os.link(tmp_path / "in.tar", tmp_path / name)
    made = contents(tmp_path)
    words = [output if word == name else word.replace("{}", "in.tar") for word in line]
    assert f"{output}: this output is also the input in.tar\n" in inside(*words, "--force").failure()
    assert contents(tmp_path) == made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


# ---- what is said to be there is there after a power cut: the order of system calls, and each state of the disk ----


PROGRAMS = Path(sys.executable).parent
WITHOUT = ("-e", "inject=fsync:retval=0:when={}")  # the N-th call of each process does nothing
LAST = {"tarfilte": 4, "tardedup": 4, "tarsplit": 1}  # its number, if it is not 2; tarsplit syncs data in a thread
COPIES = (
    "tarjob",
    "--spec",
    "{0..2}",
    "-p",
    "1",
    "--log",
    "log",
    "-o",
    "out-{}.tar",
    "--",
    "tarcat",
    "in-{}.tar",
    "-o",
)


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
