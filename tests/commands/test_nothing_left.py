"""What each writing command leaves if it does not come to its end: nothing, beside its output and in --tmpdir."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.commands.conftest import Inside
from tests.conftest import Run, make_tar
from tests.tiers import by_turns

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
    """It stays as it is, without --force; with it, it is replaced."""
    words = [word.replace("{}", "in.tar") for word in line]
    done = inside(*words)
    made = contents(tmp_path)
    refused = inside(*words)
    assert (done.status, refused.status, refused.stdout) == (0, 1, b""), done
    assert re.fullmatch(rf"{words[0]}: \S*(out|rest)\S*: already exists; --force replaces it\n", refused.stderr)
    assert contents(tmp_path) == made
    (path := tmp_path / refused.stderr.split(": ")[1]).write_bytes(b"old")
    assert inside(*words, "--force") == done
    assert contents(tmp_path).keys() == made.keys() and path.read_bytes() != b"old"
    assert os.listdir(tmp_path / "tmp") == []


@pytest.mark.parametrize("label", [label for label in WRITERS if not label.startswith("tarsplit")])
def test_of_an_output_that_is_the_input(label: str, line: list[str], inside: Inside, tmp_path: Path) -> None:
    made = contents(tmp_path)
    words = ["in.tar" if word.startswith("out.") else word.replace("{}", "in.tar") for word in line]
    done = inside(*words, "--force")
    assert (done.status, done.stdout) == (1, b"") and "in.tar: this output is also the input" in done.stderr
    assert contents(tmp_path) == made


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
