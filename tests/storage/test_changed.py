"""Files that change while they are read: a failure, and no end of the archive."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tartools.errors import StorageError
from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.samples.batch import Batch
from tartools.shards import workers
from tartools.shards.reading import Reading
from tartools.tar.rescan import find_boundary
from tests.archives import entry
from tests.conftest import BIN, Run, has_end, make_tar, members_of, running
from tests.processes import meanwhile
from tests.tiers import also

SAMPLES = 160
PAYLOAD = 100_000  # bytes, of which a pipe and our buffers hold a few dozen
SAID = "in.tar: this file changed while it was read; start again when nothing writes to it\n"


def archive(letter: bytes) -> bytes:
    return make_tar([member for n in range(SAMPLES) for member in members(n, letter)])


def members(n: int, letter: bytes) -> list[tuple[str, bytes]]:
    return [(f"{n:03d}.cls", letter), (f"{n:03d}.txt", letter * PAYLOAD)]


FIRST, OTHER = archive(b"a"), archive(b"b")


@pytest.fixture(autouse=True)
def inputs(tmp_path: Path) -> None:
    """Make in.tar, written long ago, and other.tar of the same size."""
    (tmp_path / "in.tar").write_bytes(FIRST)
    (tmp_path / "other.tar").write_bytes(OTHER)
    os.utime(tmp_path / "in.tar", ns=(10**18, 10**18))


def overwrite(path: Path) -> None:
    """Write other bytes to the same file, as cp does."""
    with path.open("r+b") as file:
        file.write(OTHER)


def overwrite_and_hide(path: Path) -> None:
    overwrite(path)
    os.utime(path, ns=(10**18, 10**18))


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(512))


def shift(path: Path) -> None:
    """Overwrite, so that headers are where payloads were: one that is torn is no damage."""
    with path.open("r+b") as file:
        file.write(entry(b"x.y", bytes(40_000)) + OTHER)


LINES = [
    "tarcat in.tar",
    "tarcat < in.tar",
    "tarcat -c 100 in.tar",
    "tarcat --slice 0: in.tar",
    "tarcat --skip 3 --shuffle 3 other.tar in.tar --rekey '{index}'",
    "tarcat -f cls -f txt -c 100 < in.tar",
    "tarpcat -p 2 in.tar --unordered",
    "tar2tsv -f txt in.tar",
    "tar2tsv -f txt -c 100 in.tar",
]
CHANGES = [
    *((line, overwrite) for line in LINES),
    *((line, change) for line in ("tarcat in.tar", "tarcat -c 100 in.tar") for change in (overwrite_and_hide, append)),
    ("tarcat --slice 0: in.tar", shift),
]


@pytest.mark.parametrize(("line", "change"), CHANGES)
def test_a_shard_that_changes_while_it_is_read(line: str, change: Callable[[Path], object], tmp_path: Path) -> None:
    if "other.tar" in line:
        (tmp_path / "other.tar").write_bytes(make_tar([("a.cls", b"1"), ("b.cls", b"2"), ("c.cls", b"3")]))
    done = meanwhile(tmp_path, line, lambda: change(tmp_path / "in.tar"))
    said = SAID.replace("in.tar", "stdin") if "<" in line else SAID
    assert (done.status, done.stderr) == (1, f"{line.split(maxsplit=1)[0]}: {said}")
    assert not has_end(done.stdout)


@pytest.mark.parametrize("line", ["tarcat in.tar", "tarcat --slice 0: in.tar"])
@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.rename(path.with_name("done.tar")),
        lambda path: os.link(path, path.with_name("link.tar")),
        lambda path: path.unlink(),
        lambda path: path.chmod(0o400),
        lambda path: os.replace(path.with_name("other.tar"), path),
        lambda path: path.read_bytes(),
    ],
    ids=["rename", "link", "unlink", "chmod", "replace", "read"],
)
def test_what_leaves_the_content_as_it_is(line: str, change: Callable[[Path], object], tmp_path: Path) -> None:
    assert meanwhile(tmp_path, line, lambda: change(tmp_path / "in.tar")).output() == FIRST


OVERWRITE = "dd if=other.tar of=in.tar conv=notrunc status=none"


@pytest.mark.parametrize("more", ["", *also("--count 100", "-S")])
def test_a_shard_that_a_command_overwrites(more: str, run: Run, tmp_path: Path) -> None:
    """By tarproc: nothing appears."""
    command = f'[ "$TAR_INDEX" != 3 ] || (cd {tmp_path} && {OVERWRITE}); mkdir -p s; cp sample.cls s/s.cls'
    done = run("tarproc", "-c", command, *more.split(), "-o", "out.tar", "in.tar")
    assert (done.status, done.stderr.splitlines()[-1:]) == (1, [f"tarproc: {SAID[:-1]}"])
    assert sorted(os.listdir(tmp_path)) == ["in.tar", "other.tar"]


@pytest.mark.parametrize(
    ("more", "change"), [("", OVERWRITE), ("--max-shards 3", OVERWRITE), ("", "truncate -s 4600000 in.tar")]
)
def test_a_shard_that_is_overwritten_or_cut_between_two_outputs(
    more: str, change: str, run: Run, tmp_path: Path
) -> None:
    """The outputs before, several of which get their names together, are whole and stay; the next does not appear."""
    command = f"[ {{}} != x-000001.tar ] || {change}"
    done = run("tarsplit", "-n", 20, "-o", "x", "--post", command, *more.split(), "in.tar")
    assert (done.status, done.stderr) == (1, f"tarsplit: {SAID}")
    printed = done.stdout.decode().split()
    assert 2 <= len(printed) <= 6 and printed == [f"x-{number:06d}.tar" for number in range(len(printed))]
    assert sorted(os.listdir(tmp_path)) == ["in.tar", "other.tar", *printed]
    for number, name in enumerate(printed):
        expected = [member for n in range(20 * number, 20 * number + 20) for member in members(n, b"a")]
        assert members_of((tmp_path / name).read_bytes()) == expected


def batches_of(part: workers.ShardPart) -> Iterator[Batch]:
    """Return the samples of *part*, as a worker reads them."""
    return workers.read_part(part, Account(), Reading(), lambda _: RepeatedKeyDetector(lambda _: None))


def test_a_file_that_is_overwritten_while_a_part_of_it_is_read(tmp_path: Path) -> None:
    url = str(tmp_path / "in.tar")
    with (tmp_path / "in.tar").open("rb") as file:
        cut = find_boundary(partial(os.pread, file.fileno()), 8 << 20)
    reading = batches_of(workers.ShardPart(0, url, 0, cut))
    next(reading)
    overwrite(tmp_path / "in.tar")
    with pytest.raises(StorageError, match="changed while it was read"):
        list(reading)


def test_a_plan_that_names_a_file_which_changes(tmp_path: Path) -> None:
    """A file of more than 1 MiB is copied when its turn comes; what reads it sees that it grew."""
    (tmp_path / "in.tar").write_bytes(bytes(8 << 20))
    (tmp_path / "plan.tsv").write_text("__key__\t@bin\na\tin.tar\nb\tother.tar\n")
    done = meanwhile(tmp_path, "tarcreate plan.tsv", lambda: append(tmp_path / "in.tar"))
    assert (done.status, done.stderr) == (1, f"tarcreate: {SAID}")


@pytest.mark.parametrize(("copy", "letter"), [("1", b"a"), ("", b"b")])
def test_what_waits_in_a_pipe_is_a_copy_if_that_is_asked_for(copy: str, letter: bytes, tmp_path: Path) -> None:
    """Else Linux puts the pages of the file there, and they show what is written to it later."""
    content = entry(b"a.txt", b"a" * 300_000) + bytes(1024)
    (tmp_path / "in.tar").write_bytes(content)
    reading, writing = os.pipe()
    with open(reading, "rb") as file:
        command = [BIN / "tarcat", "in.tar", "-o", f"/dev/fd/{writing}"]
        with running(command, cwd=tmp_path, pass_fds=[writing], env={"TARTOOLS_COPY": copy}) as process:
            os.close(writing)
            assert process.wait(60) == 0  # the pipe holds all of it
        with (tmp_path / "in.tar").open("r+b") as same:
            same.write(entry(b"a.txt", b"b" * 300_000))
        assert members_of(file.read()) == [("a.txt", letter * 300_000)]
