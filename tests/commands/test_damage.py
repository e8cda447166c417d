"""The damage matrix: an archive cut at any byte, any byte of its headers changed, for every command that reads one.

Never is a part taken for the whole: the status is 1 with the place, no -o output appears, nothing on stdout ends.
"""

from __future__ import annotations

import gzip
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tartools.cli import Command
from tests.archives import BLOCK, GNU, entry, long, pax
from tests.conftest import Run, has_end, make_tar, members_of

# every kind of region: headers, payloads, padding, extended headers, the end
LONG = b"d/" * 60
PARTS = [
    ("header of a.cls", entry(b"a.cls")[:BLOCK]),
    ("header of a.x", entry(b"a.x", b"1" * 700)[:BLOCK]),
    ("payload of a.x", b"1" * 700),
    ("padding of a.x", bytes(324)),
    ("pax header", pax((b"path", LONG + b"b.cls"))[:BLOCK]),
    ("pax records", pax((b"path", LONG + b"b.cls"))[BLOCK:]),
    ("header of b.cls", entry(b"cut", b"2")[:BLOCK]),
    ("payload of b.cls", entry(b"cut", b"2")[BLOCK:]),
    ("GNU long name", long(LONG + b"c.cls")),
    ("header of c.cls", entry(b"cut", b"3", magic=GNU)[:BLOCK]),
    ("payload of c.cls", entry(b"cut", b"3")[BLOCK:]),
    ("first zero block", bytes(BLOCK)),
]
NEEDED = sum(len(part) for _, part in PARTS)  # bytes, with the first zero block
WHOLE = b"".join(part for _, part in PARTS) + bytes(-NEEDED % 10240)
ZIPPED = gzip.compress(WHOLE, mtime=0)
TINY = make_tar([("a.cls", b"1"), ("b.cls", b"2")])
TINY_NEEDED = 5 * BLOCK


class Case(NamedTuple):
    """How a command is run; *step*: in-process runs look at every step-th offset."""

    arguments: tuple[str, ...]
    step: int
    output: tuple[str, ...] = ("-o", "out.tar")


CASES = {
    "tarcat": Case((), 1),
    "tarsplit": Case(("-n", "1"), 1, ("-o", "part")),
    "tarsort": Case((), 1),
    "tarproc": Case(("-c", "true"), 41),
    "tarpcat": Case((), 1),
    "tarshow": Case((), 1, ()),
    "tar2tsv": Case(("-f", "cls"), 1),
    "tarfilter": Case(("--hash", "0:0.5", "--rest", "rest.tar"), 1),
    "tarjoin": Case(("--left", "--with", str(Path(__file__).with_name("rows.tsv"))), 7),
    "tarmix": Case(("--stop", "all", "1"), 7),
    "tar2jsonl": Case((), 1),
    "tar2tfrecord": Case((), 1),
    "tar2zip": Case((), 1),
    "tarbench": Case(("--dry-run",), 7, ()),
    "tar2parquet": Case((), 7),
    "tarfirst": Case(("-k", "nope"), 1, ()),
    "tardedup": Case(("--rest", "rest.tar"), 1),
}
each = pytest.mark.parametrize("name", CASES)


@pytest.fixture
def main(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> Callable[[str, bytes], tuple[int, bytes, str]]:
    """Return a function that runs a command in this process on an input in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def main(name: str, content: bytes) -> tuple[int, bytes, str]:
        for path in tmp_path.iterdir():
            path.unlink()
        Path("in.tar").write_bytes(content)
        case = CASES[name]
        command = getattr(importlib.import_module(f"tartools.commands.{name}"), name)
        assert isinstance(command, Command)
        status = command.main([*case.arguments, *case.output, "in.tar"])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return main


Main = Callable[[str, bytes], tuple[int, bytes, str]]


def check_failure(done: tuple[int, bytes, str], name: str, source: str = "in.tar") -> int:
    """Check that *done* is a failure as it should be; return the offset that its message names."""
    status, out, err = done
    assert status == 1, done
    found = re.fullmatch(rf"{name}: {source}: at byte (\d+): [^\n]+\n", err)
    assert found, err
    assert not has_end(out)
    return int(found[1])


def check_folder(folder: Path, whole: bytes) -> None:
    """Check that no output appeared, but shards that tarsplit named, each whole and in order."""
    names = sorted(path.name for path in folder.iterdir() if path.name != "in.tar")
    assert names == [f"part-{n:06d}.tar" for n in range(len(names))]
    shards = [(folder / name).read_bytes() for name in names]
    assert all(map(has_end, shards))
    members = [member for shard in shards for member in members_of(shard)]
    assert members == members_of(whole)[: len(members)]


def offsets(needed: int, step: int) -> Iterator[int]:
    """Yield the offsets to cut at: each *step*-th, and those around each block's boundary."""
    near = {at + by for at in range(0, needed, BLOCK) for by in (-1, 0, 1)}
    yield from (at for at in range(needed) if at % step == 0 or at in near)


@each
def test_cut_at_every_byte(name: str, main: Main, tmp_path: Path) -> None:
    for cut in offsets(TINY_NEEDED, CASES[name].step):
        assert check_failure(main(name, TINY[:cut]), name) == cut
        check_folder(tmp_path, TINY)


@pytest.mark.parametrize("name", ["tarcat", "tarsort"])
def test_every_kind_of_region_cut_at_every_byte(name: str, main: Main, tmp_path: Path) -> None:
    for cut in offsets(NEEDED, 1 if name == "tarcat" else 13):
        assert check_failure(main(name, WHOLE[:cut]), name) == cut
        check_folder(tmp_path, WHOLE)


@each
def test_gzip_cut_at_every_byte(name: str, main: Main, tmp_path: Path) -> None:
    zipped = gzip.compress(TINY, mtime=0)
    for cut in range(0, len(zipped), max(1, CASES[name].step // 5)):
        assert check_failure(main(name, zipped[:cut]), name) <= cut
        check_folder(tmp_path, TINY)
    assert check_failure(main(name, zipped[:-1]), name) <= len(zipped)


@each
def test_every_byte_of_a_header_changed(name: str, main: Main, tmp_path: Path) -> None:
    """Where the byte carries no meaning (behind the checksum's digits), the members are the same."""
    sound = main(name, TINY)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "in.tar"}
    harmless = []
    for at in range(2 * BLOCK, 3 * BLOCK, CASES[name].step):
        damaged = bytearray(TINY)
        damaged[at] ^= 0x11
        status, out, err = main(name, bytes(damaged))
        if ((status, err) == (sound[0], sound[2]) and name != "tarfirst") or "none of 2" in err:
            harmless.append(at - 2 * BLOCK)
            assert out == sound[1]
            for file, content in kept.items():
                now = (tmp_path / file).read_bytes()
                assert now == content or members_of(now) == members_of(content)
        else:
            assert check_failure((status, out, err), name) == 2 * BLOCK
            check_folder(tmp_path, TINY)
    assert set(harmless) <= {155}


@each
def test_cut_behind_the_first_zero_block_is_nothing(name: str, main: Main, tmp_path: Path) -> None:
    sound = main(name, TINY)
    kept = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name != "in.tar"}
    for cut in (TINY_NEEDED, TINY_NEEDED + 1, TINY_NEEDED + 511, TINY_NEEDED + 512, 10239):
        assert main(name, TINY[:cut]) == sound
        assert {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.name != "in.tar"} == kept


def regions() -> Iterator[int]:
    """Yield the first, middle and last byte of each region, and the boundaries of blocks and those beside them."""
    found = set()
    start = 0
    for _, part in PARTS:
        found |= {start, start + len(part) // 2, start + len(part) - 1}
        start += len(part)
    for at in range(0, NEEDED, BLOCK):
        found |= {at - 1, at, at + 1}
    yield from sorted(at for at in found if 0 <= at < NEEDED)


@each
def test_cuts_in_real_processes(name: str, shell: Run, tmp_path: Path) -> None:
    """Through a pipe, at every offset of `regions`: one bash that runs the command on each cut."""
    (tmp_path / "whole").write_bytes(WHOLE)
    cuts = list(regions()) if name == "tarcat" else list(regions())[:: 2 if name != "tarproc" else 3]
    arguments = " ".join(CASES[name].arguments)
    prefix = "-o part$cut" if name == "tarsplit" else ""
    line = (
        f"for cut in {' '.join(map(str, cuts))}; do head -c $cut whole |"
        f" {name} {arguments} {prefix} > out$cut 2> err$cut; echo $?; done"
    )
    done = shell(line, timeout=300)
    assert done.stdout.split() == [b"1"] * len(cuts)
    for cut in cuts:
        err = (tmp_path / f"err{cut}").read_text()
        assert re.fullmatch(rf"{name}: stdin: at byte {cut}: [^\n]+\n", err), err
        out = (tmp_path / f"out{cut}").read_bytes()
        assert not has_end(out)
        if name == "tarsplit":
            assert out.decode().split() == sorted(path.name for path in tmp_path.glob(f"part{cut}-*"))
            assert all(has_end((tmp_path / shard).read_bytes()) for shard in out.decode().split())
        elif name in ("tarcat", "tarpcat"):
            assert WHOLE.startswith(out)  # whole members and no more
            assert len(out) % BLOCK == 0


EARLY = {
    "tarcat": ["-c", "1"],
    "tarpcat": ["-c", "1"],
    "tarsplit": ["-n", "1", "--maxshards", "1", "-o", "part"],
    "tarproc": ["-c", "true", "--count", "1"],
    "tarshow": ["-c", "1"],
    "tar2tsv": ["-f", "cls", "-c", "1"],
    "tarfirst": ["-f", "cls"],
}


@pytest.mark.parametrize(("name", "arguments"), EARLY.items(), ids=EARLY)
def test_who_stops_early_needs_the_header_that_ends_the_last_sample(
    name: str, arguments: list[str], shell: Run, tmp_path: Path
) -> None:
    needed = 3 * BLOCK  # a.cls and the header of b.cls
    (tmp_path / "whole").write_bytes(TINY)
    for cut, status in ((needed - 1, 1), (needed, 0), (needed + 1, 0), (needed + BLOCK, 0), (len(TINY), 0)):
        for path in tmp_path.glob("part*"):
            path.unlink()
        done = shell(f"head -c {cut} whole | {name} {' '.join(arguments)}")
        assert (done.status, done.stderr == "") == (status, status == 0), (cut, done)
        if name in ("tarcat", "tarpcat", "tarproc"):
            assert has_end(done.stdout) == (status == 0)
    (tmp_path / "whole").write_bytes(TINY[: 2 * BLOCK] + b"\1" * BLOCK)
    assert shell(f"{name} {' '.join(arguments)} < whole").status == 1
