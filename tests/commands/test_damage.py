"""The damage matrix: an archive cut at any byte, any byte of its headers changed, for every command that reads one.

Never is a part taken for the whole: the status is that of trouble, with the place, no -o output appears, nothing on
stdout ends. The reader itself meets each byte in `tests.tar.test_reader`; the plain tier has the ends of all regions.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.archives import BLOCK, GNU, entry, long, pax
from tests.commands.conftest import Inside
from tests.conftest import Result, Run, has_end, make_tar, members_of
from tests.tiers import in_both

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
TINY = make_tar([("a.cls", b"1"), ("b.cls", b"2")])
TINY_NEEDED = 5 * BLOCK
ZIPPED = gzip.compress(TINY, mtime=0)
# where the fields of headers begin
FIELDS = (0, 100, 108, 116, 124, 136, 148, 156, 157, 257, 263, 265, 297, 329, 337, 345, 500)


class Case(NamedTuple):
    """How a command is run on in.tar, which comes last unless the *arguments* have it; beside it is sound.tar.

    *step*: the exhaustive tier looks at every step-th byte.
    """

    arguments: tuple[str, ...] = ()
    output: tuple[str, ...] = ("-o", "out.tar")
    step: int = 1
    trouble: int = 1


ROWS = str(Path(__file__).with_name("rows.tsv"))
CASES = {  # the name of the command comes first
    "tarcat": Case(),
    "tarsplit": Case(("-n", "1"), ("-o", "part")),
    "tarsplit --parts": Case(("--parts", "a:0.5,b:0.5"), ("-o", "p-{part}.tar"), step=41),
    "tarsplit --stratify": Case(("--parts", "a:0.5,b:0.5", "--stratify", "__size__"), ("-o", "p-{part}.tar"), step=41),
    "tarsplit --by": Case(("--by", "__size__"), ("-o", "p-{__size__}.tar"), step=41),
    "tarsplit --by to tables": Case(("--by", "__size__"), ("-o", "p-{__size__}.parquet"), step=41),
    "tarsort": Case(),
    "tarsort -S": Case(("-S", "shuffle", "sound.tar"), step=41),
    "tarproc": Case(("-c", "true"), step=41),
    "tarpcat": Case(),
    "tarshow": Case(output=()),
    "tarshow --html": Case(("-f", "cls"), ("--html", "page.html"), step=7),
    "tarstat": Case(output=(), step=7),
    "tarstat --json": Case(("--json", "sound.tar"), output=(), step=41),
    "tar2tsv": Case(("-f", "cls"), ("-o", "out.tsv")),
    "tar2tsv to gzip": Case(("-f", "cls"), ("-o", "out.tsv.gz"), step=7),
    "tarfilter": Case(("--share", "0:0.5", "--rest", "rest.tar")),
    "tarfilter to tables": Case(("-S", "cls != '1'", "--rest", "rest.tar"), ("-o", "out.parquet"), step=41),
    "tarfilter --rest to tables": Case(("--share", "0:0.5", "--rest", "rest.parquet"), step=41),
    "tarjoin": Case(("--left", "--with", ROWS), step=7),
    "tarjoin B": Case(("--prefer", "a", "sound.tar", "in.tar"), step=7),
    "tarjoin -M B": Case(("-M", "1", "--prefer", "a", "sound.tar", "in.tar"), step=7),
    "tarmix": Case(("--stop", "all", "1"), step=7),
    "tarmix --stop first": Case(("--stop", "first", "1000", "in.tar", "1", "sound.tar"), step=41),
    "tarmix to tables": Case(("--stop", "longest", "1", "sound.tar", "1", "in.tar"), ("-o", "out.parquet"), step=41),
    "tardiff": Case(("sound.tar",), (), step=7, trouble=2),
    "tardiff A": Case(("--list-keys", "in.tar", "sound.tar"), (), step=41, trouble=2),
    "tardiff -o": Case(("--json", "sound.tar"), step=41, trouble=2),
    "tardiff of the same": Case(("in.tar",), (), step=41, trouble=2),
    "tardiff --digest": Case(("--digest",), (), step=7, trouble=2),
    "tar2jsonl": Case(output=("-o", "out.jsonl")),
    "tar2tfrecord": Case(output=("-o", "out.tfrecord")),
    "tar2zip": Case(output=("-o", "out.zip")),
    "tarbench": Case(("--dry-run",), (), step=7),
    "tar2parquet": Case(output=("-o", "out.parquet"), step=7),
    "tarfirst": Case(("-k", "nope"), ()),
    "tardedup": Case(("--rest", "rest.tar")),
}
each = pytest.mark.parametrize("label", CASES)


class Damaged:
    """in.tar, and what a command in this process makes of it."""

    def __init__(self, label: str, folder: Path, inside: Inside) -> None:
        self.name = label.split(maxsplit=1)[0]
        self.case = CASES[label]
        self.folder = folder
        self.inside = inside

    def run(self, content: bytes) -> Result:
        """Run the command on *content*."""
        for path in self.folder.iterdir():
            path.unlink()
        (self.folder / "sound.tar").write_bytes(TINY)
        (self.folder / "in.tar").write_bytes(content)
        arguments = self.case.arguments if "in.tar" in self.case.arguments[1:] else (*self.case.arguments, "in.tar")
        return self.inside(self.name, *self.case.output, *arguments, short=True)

    def outputs(self) -> dict[str, bytes]:
        """Return what there is now beside the inputs; of tables of in.tar, which know its time, only the names."""
        made = [path for path in self.folder.iterdir() if path.name not in ("in.tar", "sound.tar")]
        return {path.name: b"" if path.suffix == ".parquet" else path.read_bytes() for path in made}

    def place(self, done: Result, whole: bytes) -> int:
        """Check that *done* is a failure as it should be, and that no output appeared, but shards that tarsplit named,
        each whole and in the order of *whole*; return the offset that its message names.
        """
        assert done.status == self.case.trouble, done
        found = re.fullmatch(rf"{self.name}: in\.tar: at byte (\d+): [^\n]+\n", done.stderr)
        assert found, done.stderr
        assert not has_end(done.stdout) and not (done.stdout and self.name in ("tardiff", "tarstat"))
        outputs = self.outputs()
        assert sorted(outputs) == [f"part-{n:06d}.tar" for n in range(len(outputs))]
        shards = [content for _, content in sorted(outputs.items())]
        assert all(map(has_end, shards))
        members = [member for shard in shards for member in members_of(shard)]
        assert members == members_of(whole)[: len(members)]
        return int(found[1])


@pytest.fixture
def damaged(label: str, tmp_path: Path, inside: Inside) -> Damaged:
    return Damaged(label, tmp_path, inside)


def regions() -> list[int]:
    """Return the first, middle and last byte of each region, and the boundaries of blocks and those beside them."""
    found = set()
    start = 0
    for _, part in PARTS:
        found |= {start, start + len(part) // 2, start + len(part) - 1}
        start += len(part)
    for at in range(0, NEEDED, BLOCK):
        found |= {at - 1, at, at + 1}
    return sorted(at for at in found if 0 <= at < NEEDED)


def cuts(step: int, thorough: bool) -> Iterator[tuple[bytes, int]]:
    """Yield archives, and where to cut them: each *step*-th byte and those around each block's boundary, or a few."""
    if not thorough:
        yield from ((WHOLE, cut) for cut in regions()[:: 1 if step < 40 else 4])
        return
    near = {at + by for at in range(0, TINY_NEEDED, BLOCK) for by in (-1, 0, 1)}
    yield from ((TINY, at) for at in range(TINY_NEEDED) if at % step == 0 or at in near)
    yield from ((WHOLE, at) for at in range(0, NEEDED, 13 * step))


@each
@in_both
def test_a_cut(label: str, damaged: Damaged, thorough: bool) -> None:
    for whole, cut in cuts(damaged.case.step, thorough):
        is_text = b"\0" not in whole[:cut]  # a part of the first name alone: no sign of a tar archive
        assert damaged.place(damaged.run(whole[:cut]), whole) == (0 if is_text else cut)


@pytest.mark.parametrize("label", [label for label in CASES if "tables" not in label])  # which need plain shards
@in_both
def test_a_cut_of_what_is_compressed(label: str, damaged: Damaged, thorough: bool) -> None:
    last = len(ZIPPED) - 1
    some = range(0, last, max(1, damaged.case.step // 5)) if thorough else (0, 1, 9, 10, last // 2, last - 8)
    for cut in (*some, last):
        assert damaged.place(damaged.run(ZIPPED[:cut]), TINY) <= cut


@each
@in_both
def test_a_byte_of_a_header_changed(label: str, damaged: Damaged, thorough: bool) -> None:
    """Where the byte carries no meaning (behind the checksum's digits), the members are the same."""
    sound = damaged.run(TINY)
    kept = damaged.outputs()
    harmless = []
    for at in range(0, BLOCK, damaged.case.step) if thorough else (*FIELDS[:: 1 + damaged.case.step // 40], 155, 511):
        changed = bytearray(TINY)
        changed[2 * BLOCK + at] ^= 0x11
        done = damaged.run(bytes(changed))
        if ((done.status, done.stderr) == (sound.status, sound.stderr) and "nope" not in damaged.case.arguments) or (
            "none of 2" in done.stderr
        ):
            harmless.append(at)
            assert done.stdout == sound.stdout
            for file, content in damaged.outputs().items():
                assert content == kept[file] or members_of(content) == members_of(kept[file])
        else:
            assert damaged.place(done, TINY) == 2 * BLOCK
    assert set(harmless) <= {155}


@each
def test_a_cut_behind_the_first_zero_block_is_nothing(label: str, damaged: Damaged) -> None:
    sound = damaged.run(TINY)
    kept = damaged.outputs()
    for cut in (TINY_NEEDED, TINY_NEEDED + 1, TINY_NEEDED + 511, TINY_NEEDED + 512, 10239):
        done = damaged.run(TINY[:cut])
        assert (done.status, done.stderr) == (sound.status, sound.stderr)
        assert done.stdout == sound.stdout or damaged.name == "tarstat"  # which tells how many bytes there are
        assert damaged.outputs() == kept


EARLY = {
    "tarcat": ["-c", "1"],
    "tarcat --slice": ["--slice", ":1"],
    "tarpcat": ["-c", "1"],
    "tarsplit": ["-n", "1", "--max-shards", "1", "--force", "-o", "part"],
    "tarproc": ["-c", "true", "--count", "1"],
    "tarshow": ["-c", "1"],
    "tar2tsv": ["-f", "cls", "-c", "1"],
    "tarfirst": ["-f", "cls"],
}


@pytest.mark.parametrize(("name", "arguments"), EARLY.items(), ids=EARLY)
def test_who_stops_early_needs_the_header_that_ends_the_last_sample(name: str, arguments: list[str], run: Run) -> None:
    needed = 3 * BLOCK  # a.cls and the header of b.cls
    for cut, status in ((needed - 1, 1), (needed, 0), (needed + 1, 0), (needed + BLOCK, 0), (len(TINY), 0)):
        done = run(*name.split()[:1], *arguments, stdin=TINY[:cut])
        assert (done.status, done.stderr == "") == (status, status == 0), (cut, done)
        if name.startswith(("tarcat", "tarpcat", "tarproc")):
            assert has_end(done.stdout) == (status == 0)
    assert run(*name.split()[:1], *arguments, stdin=TINY[: 2 * BLOCK] + b"\1" * BLOCK).status == 1
