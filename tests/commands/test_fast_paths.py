"""What is fast keeps every promise: payloads that are not read, bytes that the kernel copies, samples in runs.

tarcat without options and tarsplit look at the headers of a plain file only, and have the kernel copy the rest; tarsort
finds samples there again. Small members lie in buffers of 1 MiB, and what does not fit goes on in the next one.
"""

from __future__ import annotations

import errno
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.archives import BLOCK, END, data, entry, header, long, pax
from tests.archives import GNU as GNU_MAGIC
from tests.commands.conftest import FITS, Inside
from tests.commands.test_conservation import MEASURE
from tests.conftest import BIN, Result, Run, python, running
from tests.processes import meanwhile
from tests.tiers import also, by_turns, in_both

MIB = 1 << 20
RECORD = 20 * BLOCK


def ended(members: bytes) -> bytes:
    """Return the archive of *members*: with its end, as ours are."""
    return members + END + bytes(-len(members + END) % RECORD)


class Piece(NamedTuple):
    """A part of an archive: a member of sample number *sample*, or (None) something else."""

    sample: int | None
    heading: bytes
    body: bytes = b""


class Made(NamedTuple):
    """An archive of which is known what it holds."""

    content: bytes
    samples: list[bytes]  # their members, as they are to be written
    known: list[int]  # bytes of which each sample needs so many to be known as complete
    headers: list[tuple[int, int, int]]  # where the heading, payload and padding of each piece begin
    needed: int  # bytes, with the first zero block

    def whole_at(self, end: int) -> list[bytes]:
        """Return the samples that are known as complete from the bytes before *end*."""
        return [sample for sample, known in zip(self.samples, self.known, strict=True) if known <= end]


def made(pieces: list[Piece]) -> Made:
    """Return the archive of *pieces*."""
    content, samples, known, headers = bytearray(), [b""], [], []
    at = 0
    for sample, heading, body in pieces:
        begin = len(content)
        headers.append((begin, begin + len(heading), begin + len(heading) + len(body)))
        if sample is not None and sample != at:
            known.append(begin + len(heading))
            samples.append(b"")
            at = sample
        if sample is not None:
            samples[-1] += heading + data(body)
        content += heading + data(body)
    needed = len(content) + BLOCK
    return Made(ended(bytes(content)), samples, [*known, needed], headers, needed)


def member(sample: int, path: bytes, body: bytes) -> Piece:
    return Piece(sample, header(path, len(body)), body)


SMALL = made([member(0, b"a.x", b"1"), member(0, b"a.y", b""), member(1, b"b.x", b"2" * 100), member(2, b"c.x", b"3")])
LOOSE = made(  # links and global headers among the members of a sample, names in extended headers
    [
        member(0, b"a.x", b"1"),
        Piece(None, header(b"a.link", kind=b"2", link=b"a.x")),
        member(0, b"a.y", b"2" * 30),
        Piece(1, pax((b"path", b"b" * 120 + b".x")) + header(b"cut", 1), b"3"),
        Piece(None, pax((b"comment", b"no more"), kind=b"g")),
        Piece(1, long(b"b" * 120 + b".y") + header(b"cut", 3, magic=GNU_MAGIC), b"444"),
        member(2, b"c.x", b"5"),
    ]
)
LARGE = made(
    [
        piece
        for n in range(10)
        for piece in (
            member(n, b"%02d.x" % n, b"%d" % (n * 7 % 10)),
            member(n, b"%02d.jpg" % n, random.Random(n).randbytes(1_200_000 if n == 5 else 200_000 + 97 * n)),
        )
    ]
)


class Mode(NamedTuple):
    """How a command is run: *arguments*, then in.tar unless it comes *by* a pipe; where output goes *to*."""

    name: str
    arguments: tuple[str, ...] = ()
    by: str = "name"
    to: str = "pipe"
    first: bytes = b""  # members that are put out before

    @property
    def url(self) -> str:
        return "in.tar" if self.by == "name" else "stdin"


MODES = {
    "tarcat FILE | pipe": Mode("tarcat"),
    "tarcat FILE -o": Mode("tarcat", ("-o", "out.tar"), to="nothing"),
    "tarcat FILE > file": Mode("tarcat", to="file"),
    "cat FILE | tarcat": Mode("tarcat", by="pipe"),
    "tarcat --slice 0: FILE": Mode("tarcat", ("--slice", "0:")),
    "tarcat whole.tar FILE": Mode("tarcat", ("whole.tar",), first=b"".join(SMALL.samples)),
    "tarsplit FILE": Mode("tarsplit", ("-n", "1", "-o", "part"), to="shards"),
    "tarsort FILE": Mode("tarsort", to="nothing"),
    "tarsort -S shuffle FILE": Mode("tarsort", ("-S", "shuffle"), to="nothing"),
    "tarsort -s x FILE": Mode("tarsort", ("-s", "x"), to="nothing"),
    "cat FILE | tarsort": Mode("tarsort", by="pipe", to="nothing"),
}
each_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


class Damaged:
    """in.tar, in a folder of its own, and what becomes of it."""

    def __init__(self, folder: Path, inside: Inside) -> None:
        self.folder = folder
        self.inside = inside
        self.file = folder / "in.tar"
        (folder / "whole.tar").write_bytes(SMALL.content)
        self.there = {"in.tar", "whole.tar"}

    def run(self, mode: Mode) -> Result:
        """Run *mode* on what is in.tar now."""
        short = self.file.stat().st_size < FITS // 2
        arguments = [*mode.arguments, "--skip-special", *(["in.tar"] if mode.by == "name" else [])]
        stdin = self.file.read_bytes() if mode.by == "pipe" else b""
        if mode.to != "file":
            return self.inside(mode.name, *arguments, stdin=stdin, short=short)
        done = self.inside(mode.name, *arguments, stdin=stdin, stdout="stdout.tar")
        os.unlink("stdout.tar")
        return done

    def check(self, mode: Mode, done: Result, archive: Made, at: int) -> None:
        """Check that *done* fails at byte *at*, that what went out are the samples before it, and nothing is left."""
        assert done.status == 1, (at, done)
        found = re.fullmatch(rf"{mode.name}: {mode.url}: at byte (\d+): [^\n]+\n", done.stderr)
        is_text = b"\0" not in archive.content[:at]  # a part of the first name alone: no sign of a tar archive
        assert found and int(found[1]) == (0 if is_text else at), (at, done.stderr)
        whole = archive.whole_at(at)
        shards = [f"part-{n:06d}.tar" for n in range(len(whole))] if mode.to == "shards" else []
        assert set(os.listdir(self.folder)) == {*self.there, *shards}, at
        for shard, sample in zip(shards, whole, strict=False):
            assert (self.folder / shard).read_bytes() == ended(sample), at
            os.unlink(self.folder / shard)
        if mode.to == "shards":
            expected = "".join(f"{shard}\n" for shard in shards).encode()
        else:
            expected = b"" if mode.to == "nothing" else mode.first + b"".join(whole)
        assert done.stdout == expected, at


@pytest.fixture
def damaged(tmp_path: Path, inside: Inside) -> Damaged:
    return Damaged(tmp_path, inside)


def edges(archive: Made) -> list[int]:
    """Return offsets from the end on: around all that begins or ends in *archive*."""
    found = {edge for piece in archive.headers for edge in piece} | {*range(0, archive.needed, MIB), archive.needed}
    found |= {begin + BLOCK for begin, _, _ in archive.headers}
    return sorted((at + by for at in found for by in (-1, 0, 1) if 0 <= at + by < archive.needed), reverse=True)


ARCHIVES = {"small": SMALL, "loose": LOOSE, "large": LARGE}


def cuts(name: str, archive: Made, turn: int, thorough: bool) -> list[int]:
    """Return where to cut *archive*, from its end on: around all that begins or ends; of large ones some by *turn*."""
    few = edges(archive)
    if name in ("small", "loose"):
        step = 1 if name == "small" else 9
        return list(range(archive.needed - 1 - turn % step, -1, -step)) if thorough else few
    others = random.Random(turn).sample(range(archive.needed), 150 if name == "large" else 0)
    return sorted({*few, *others}, reverse=True) if thorough else few[turn :: len(MODES)]


@each_mode
@pytest.mark.parametrize("name", [*ARCHIVES, "huge"])
@in_both
def test_an_archive_cut_anywhere(mode: Mode, name: str, huge: Made, damaged: Damaged, thorough: bool) -> None:
    """A member that is too large for memory goes from pipes to a temporary file, and from files it is not read."""
    archive = ARCHIVES.get(name, huge)
    damaged.file.write_bytes(archive.content)
    assert damaged.run(mode).status == 0
    for made_now in ("out.tar", *(f"part-{n:06d}.tar" for n in range(len(archive.samples)))):
        (damaged.folder / made_now).unlink(missing_ok=True)
    for cut in cuts(name, archive, list(MODES.values()).index(mode), thorough):
        os.truncate(damaged.file, cut)
        damaged.check(mode, damaged.run(mode), archive, cut)


def check_bytes(found: bytes, expected: bytes) -> None:
    """Check that *found* is *expected*; of many bytes pytest would have too much to say."""
    if found != expected:
        first = next(
            (at for at, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), "the shorter's end"
        )
        pytest.fail(f"{len(found)} bytes for {len(expected)}; from byte {first} on they differ")


@pytest.fixture(scope="module")
def huge() -> Made:
    """Return an archive of three samples, the second of 20 MB: more than is held, and far more than a pipe holds."""
    middle = random.Random(3).randbytes(1_000_003) * 20
    return made([member(0, b"a.x", b"1"), member(1, b"b.x", b"2"), member(1, b"b.y", middle), member(2, b"c.x", b"3")])


COPIERS = {
    "tarcat": ["tarcat"],
    "tarcat --slice 0:": ["tarcat", "--slice", "0:"],
    "tarsort": ["tarsort"],
    "tarsort -s x": ["tarsort", "-s", "x"],
}
each_copier = pytest.mark.parametrize("line", COPIERS.values(), ids=COPIERS)


@each_copier
def test_a_file_that_is_truncated_while_it_is_copied(line: list[str], huge: Made, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(huge.content)
    done = meanwhile(tmp_path, " ".join([*line, "in.tar"]), lambda: os.truncate(tmp_path / "in.tar", 10 * MIB + 5))
    assert done.status == 1
    assert done.stderr == f"{line[0]}: in.tar: at byte {10 * MIB + 5}: the file became shorter while it was read\n"
    check_bytes(done.stdout, huge.content[: 10 * MIB + 5])


@each_copier
def test_a_reader_that_goes_or_a_signal_in_the_middle_of_a_copy(line: list[str], huge: Made, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(huge.content)
    for number in (signal.SIGPIPE, signal.SIGTERM, signal.SIGINT):
        options = {"bufsize": 0, "cwd": tmp_path, "env": {"TMPDIR": str(tmp_path)}}
        command = [BIN / line[0], *line[1:], "in.tar"]
        with running(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
            assert process.stdout and process.stderr
            assert process.stdout.read(1)
            if number == signal.SIGPIPE:
                process.stdout.close()
            else:
                process.send_signal(number)
            assert process.wait(60) == -number
            assert process.stderr.read() == b""
            assert number == signal.SIGPIPE or huge.content[1:].startswith(process.stdout.read())
    assert os.listdir(tmp_path) == ["in.tar"]


PLACES = {  # what stdout can be where the kernel can't copy, or copies otherwise
    "appended to": "{} >> out",
    "fifo": "mkfifo pipe; cat pipe > out & {} > pipe; wait",
    "fifo by name": "mkfifo pipe; cat pipe > out & {} -o pipe || kill $!; wait $!",
    "another command": "{} -o 'pipe:cat > out'",
    "substituted": "{} > >(cat > out; echo > done); while ! test -e done; do :; done",
    "opened for both": "{} 1<> out",
}


@each_copier
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@by_turns("line")
def test_outputs_of_any_kind(place: str, line: list[str], shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(LARGE.content)
    (tmp_path / "before").write_bytes(b"before")
    assert shell(place.format(" ".join([*line, "in.tar"]))) == (0, b"", "")
    check_bytes((tmp_path / "out").read_bytes(), in_order(LARGE.samples, line))


def in_order(samples: list[bytes], line: list[str]) -> bytes:
    """Return the archive of *samples* of LARGE as *line* writes it: in their order, or sorted by x."""
    ordered: list[bytes] = sorted(samples, key=x_of) if "-s" in line else samples
    return ended(b"".join(ordered))


def x_of(sample: bytes) -> bytes:
    """Return the payload of the member x, of a block, which comes first or last."""
    name, _, _ = sample.partition(b"\0")
    return sample[BLOCK : 2 * BLOCK] if name.endswith(b".x") else sample[-BLOCK:]


@each_copier
def test_outputs_that_take_nothing(line: list[str], shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(LARGE.content)
    command = " ".join([*line, "in.tar"])
    assert shell(f"{command} > /dev/null") == (0, b"", "")
    full = f"{line[0]}: stdout: No space left on device\n"
    assert shell(f"{command} > /dev/full") == (1, b"", full)
    assert shell(f"{command} -o /dev/full") == (1, b"", full.replace("stdout", "/dev/full"))
    assert shell(f"ulimit -f 1500; {command} -o out.tar") == (1, b"", f"{line[0]}: out.tar: File too large\n")
    assert os.listdir(tmp_path) == ["in.tar"]


@each_copier
def test_a_socket_as_output(line: list[str], tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(LARGE.content)
    ours, theirs = socket.socketpair()
    command = [BIN / line[0], *line[1:], "in.tar"]
    with ours, theirs, running(command, stdout=theirs.fileno(), cwd=tmp_path) as process:
        theirs.close()
        with ours.makefile("rb") as file:
            check_bytes(file.read(), in_order(LARGE.samples, line))
        assert process.wait(60) == 0


@each_copier
def test_a_pipe_that_is_not_waited_for_and_read_slowly(line: list[str], tmp_path: Path) -> None:
    """Its writer is told to come again, time after time."""
    (tmp_path / "in.tar").write_bytes(LARGE.content)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with running([BIN / line[0], *line[1:], "in.tar"], stdout=writing, cwd=tmp_path) as process:
        while select.select([], [writing], [], 0)[1]:  # until the pipe is full for the first time
            time.sleep(0.01)
        os.close(writing)
        with open(reading, "rb", buffering=0) as file:
            out = b"".join(iter(lambda: file.read(7000), b""))
        assert process.wait(60) == 0
    check_bytes(out, in_order(LARGE.samples, line))


def refusing(calls: int, most: int, number: int, *, again: bool) -> Callable[..., int]:
    """Return a sendfile that copies *most* bytes at once, and in call *calls* (if *again*: each such) fails."""
    count, sendfile = 0, os.sendfile

    def copy(out: int, source: int, offset: int, length: int) -> int:
        nonlocal count
        count += 1
        if (count % calls == 0) if again else (count >= calls):
            raise OSError(number, os.strerror(number))
        return sendfile(out, source, offset, min(length, most))

    return copy


KERNELS = {
    "never": (1, MIB, errno.EINVAL, False),
    "not known": (1, MIB, errno.ENOSYS, False),
    "once": (2, MIB, errno.EINVAL, False),
    "a while": (7, 1000, errno.EINVAL, False),
    "long": (500, 4099, errno.EINVAL, False),
    "now and then": (2, 100_000, errno.EAGAIN, True),
    "mostly": (3, 70_001, errno.EINVAL, True),
    "short": (10**9, 5003, 0, True),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize(
    "mode", [m for m in MODES.values() if not m.first], ids=[k for k, m in MODES.items() if not m.first]
)
@by_turns("kernel")
def test_a_kernel_that_does_not_copy_or_only_a_little(
    kernel: tuple[int, int, int, bool], mode: Mode, damaged: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte is lost, and none comes twice."""
    damaged.file.write_bytes(LARGE.content)
    before = whole_output(mode, damaged)
    calls, most, number, again = kernel
    monkeypatch.setattr(os, "sendfile", refusing(calls, most, number, again=again))
    check_bytes(whole_output(mode, damaged), before)


def whole_output(mode: Mode, damaged: Damaged) -> bytes:
    """Return all that *mode* makes of a sound in.tar."""
    status, stdout, stderr = damaged.run(mode)
    assert (status, stderr) == (0, "")
    for name in sorted(set(os.listdir()) - damaged.there):
        stdout += Path(name).read_bytes()
        os.unlink(name)
    return stdout


AT_AN_OFFSET = "import os, sys; os.lseek(0, {}, os.SEEK_SET); os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.mark.parametrize(
    ("archive", "before"), [(LOOSE, SMALL.content), (LARGE, b"j" * 1_500_001)], ids=["loose", "large"]
)
def test_standard_input_that_is_a_file_from_some_byte_on(
    archive: Made, before: bytes, shell: Run, tmp_path: Path
) -> None:
    """What is before it is of no interest. Messages count from there."""
    (tmp_path / "in.tar").write_bytes(before + archive.content)
    line = f"{sys.executable} -c '{AT_AN_OFFSET.format(len(before))}'"
    expected = ended(b"".join(archive.samples))
    for command in ("tarcat", "tarcat --slice 0:", "tarsort", "tarsplit -n 1 -o part > shards && tarcat -T shards"):
        out = shell(
            f"{line} {command.replace(' &&', ' --skip-special < in.tar &&', 1)} --skip-special < in.tar"
        ).output()
        check_bytes(out, expected)
        for shard in tmp_path.glob("part*"):
            shard.unlink()
    begin, payload, _ = archive.headers[-1]
    for cut in (payload, begin + 3):
        os.truncate(tmp_path / "in.tar", len(before) + cut)
        for command in ("tarcat", "tarcat --slice 0:", "tarsort"):
            done = shell(f"{line} {command} --skip-special < in.tar")
            assert done.status == 1
            assert done.stderr.startswith(f"{command.split()[0]}: stdin: at byte {cut}: the input ends inside"), command
            check_bytes(done.stdout, b"" if command == "tarsort" else b"".join(archive.whole_at(cut)))


@pytest.mark.parametrize("name", ["tarcat", "tarsort"])
@pytest.mark.parametrize("beyond", [0, 1, 513, 1 << 33])
@by_turns("beyond")
def test_standard_input_beyond_the_end_of_its_file_is_empty(name: str, beyond: int, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "in.tar").write_bytes(SMALL.content)
    offset = len(SMALL.content) + beyond
    done = shell(f"{sys.executable} -c '{AT_AN_OFFSET.format(offset)}' {name} < in.tar")
    assert done == (1, b"", f"{name}: stdin: at byte 0: the input is empty, not a tar archive\n")


@pytest.fixture
def roomy() -> Iterator[Path]:
    """Return a folder where holes in files cost nothing to read, if the system has such a place."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    "line",
    [
        "tarcat --slice 0: in.tar",
        "tarsort in.tar",
        "tarsplit --force -n 1 -o part in.tar",
        *also("tarcat in.tar", "tarcat --shuffle 2 in.tar", "tarsort -s x in.tar", "tarsort -S shuffle in.tar"),
    ],
)
def test_a_member_of_five_gb_is_not_held(line: str, roomy: Path) -> None:
    size = 5 << 30
    with (roomy / "in.tar").open("wb") as file:
        file.write(entry(b"b.x", b"1") + header(b"b.bin", size))
        file.seek(size, os.SEEK_CUR)
        file.write(entry(b"b.y", b"2") + entry(b"a.x", b"3") + END)
    for number in range(2):
        (roomy / f"part-{number:06d}.tar").symlink_to("/dev/null")
    name, *arguments = line.split()
    done = python(MEASURE, BIN / name, *arguments, folder=roomy)
    status, peak = map(int, done.stdout.split())
    assert (status, done.stderr) == (0, "")
    assert peak < 100_000_000


SIZES = [8 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20]  # where another way begins: to read on, to copy, to hold


def of_all_sizes(loose: bool) -> Made:
    """Return an archive of samples around each of SIZES, and tiny ones between them; with links in them or without."""
    dice = random.Random(12)
    bodies = [[size + by] for size in SIZES[:-1] for by in (-512, 0, 512) for _ in range(2)]
    bodies += [[9 << 20, 9 << 20]] if loose else [[SIZES[-1] - 512], [9 << 20, 9 << 20], [SIZES[-1] + 512]]
    bodies += [[3 * BLOCK + 1]] * 60
    dice.shuffle(bodies)
    pieces: list[Piece] = []
    for n, totals in enumerate(bodies):
        name = b"%06d" % dice.randrange(10**6)
        small = member(n, name + b".x", b"%06d" % dice.randrange(10**6))
        large = [  # all of a sample with one such member has the size that was asked for
            member(n, name + b".%d" % field, dice.randbytes(total - 3 * BLOCK - dice.randrange(BLOCK) * (total > 5000)))
            for field, total in enumerate(totals)
        ]
        if loose:
            pieces += [small, Piece(None, header(name + b".link", kind=b"2", link=b"x")), *large]
        else:
            pieces += [small, *large] if dice.randrange(2) else [*large, small]
    return made(pieces)


WAYS = [  # how a command writes the samples, and what then puts them into the order in which they are looked at
    *("tarcat", "tarcat --slice 0:", "tarcat -o out", "tarcat --shuffle 3 | tarsort"),
    *("tarsplit -n 2 -o part > names && tarcat -T names", "tarsplit -s 3000000 -o part > names && tarcat -T names"),
    *("tarsort", "tarsort -s x", "tarsort -S shuffle | tarsort"),
]


@pytest.fixture(scope="module")
def all_sizes() -> dict[bool, Made]:
    return {loose: of_all_sizes(loose) for loose in (False, True)}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", ["in.tar", "< in.tar", "< <(cat in.tar)"], ids=["file", "stdin", "pipe"])
@pytest.mark.parametrize("loose", [False, True], ids=["plain", "loose"])
@by_turns("loose", "source")
def test_samples_of_every_size_from_file_and_pipe(
    loose: bool, way: str, source: str, all_sizes: dict[bool, Made], shell: Run, tmp_path: Path
) -> None:
    archive = all_sizes[loose]
    (tmp_path / "in.tar").write_bytes(archive.content)
    command, *rest = re.split("(?= [|>])", way, maxsplit=1)
    out = shell(f"set -o pipefail; {command} --skip-special {source}{' '.join(rest)}").output()
    ordered: list[bytes] = sorted(archive.samples, key=x_of if "-s x" in way else None) if "sort" in way else []
    found = (tmp_path / "out").read_bytes() if "-o out" in way else out
    check_bytes(found, ended(b"".join(ordered or archive.samples)))


@pytest.fixture
def many(tmp_path: Path) -> list[bytes]:
    """Make 300 shards of two samples, in the order of their names; return the samples."""
    samples = []
    for n in range(300):
        samples += [entry(b"%03d.x" % n, b"%03d" % (999 - n)) + entry(b"%03d.y" % n, b"%d" % n * 3000)]
        samples += [entry(b"%03da.x" % n, b"%03d" % (500 - n))]
        (tmp_path / f"{n:03d}.tar").write_bytes(ended(samples[-2] + samples[-1]))
    return samples


@pytest.mark.parametrize("options", [[], ["-s", "x"], ["-S", "shuffle"]], ids=["key", "x", "shuffle"])
def test_tarsort_keeps_128_files_open_or_fails_cleanly(
    options: list[str], many: list[bytes], shell: Run, tmp_path: Path
) -> None:
    line = f"tarsort {' '.join(options)} *.tar"
    check_bytes(shell(f"ulimit -n 160; {line} | tarsort").output(), ended(b"".join(many)))
    assert re.fullmatch(r"tarsort: \d{3}\.tar: Too many open files\n", shell(f"ulimit -n 64; {line} -o out").failure())
    assert len(os.listdir(tmp_path)) == 300
