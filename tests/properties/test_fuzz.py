"""Damaged archives, held against a second reader.

The law: tarcat ends with status 0 and exactly the samples that the second reader sees, or with status 1, and then what
it has written are the samples before the damage, without an end. Of compressed data a part comes out before its
checksum shows the damage: then what is written may be something else, but it has no end. For longer, 400 cases a seed:

    FUZZ_SEEDS="$(seq 100 199)" pytest tests/properties/test_fuzz.py
"""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from tartools.tar.compression import CODECS
from tests.archives import BLOCK, END, GNU, V7, base256, entry, header, long, pax, sealed
from tests.commands.conftest import Inside, inside
from tests.conftest import make_samples, make_tar
from tests.properties import strict
from tests.tiers import also

__all__ = ["inside"]  # a fixture
CASES = 400
SEEDS = [int(seed) for seed in os.environ.get("FUZZ_SEEDS", "").split()]
MOST = 60_000  # bytes of an archive, which any pipe holds
WAYS = (("in.tar",), ("--slice", "0:", "in.tar"), ("--slice", "0:"), ())  # of a file or a pipe, copied or looked at
FIELDS = (0, 100, 108, 116, 124, 136, 148, 156, 157, 257, 265, 297, 329, 345, 500)  # where those of a header begin
NUMBERS = (b"00000000000\0", b"77777777777\0", b"00000001000 ", b"           \0", b"-0000000001\0", b"0000000100a\0")


class Case(NamedTuple):
    """An input, how tarcat reads it, and what it has to find: the members, and whether the input is sound."""

    content: bytes
    way: tuple[str, ...]
    expected: strict.Found
    what: str


class ViolationError(AssertionError):
    """The law does not hold for a case."""


# ---- archives ----


def archives(dice: random.Random) -> bytes:
    """Return an archive of a few samples, in one of the formats or in several."""
    make = dice.choice([by_tarfile, by_tarfile, by_hand])
    content = make(dice)
    return content + (make(dice) if dice.random() < 0.1 else b"")


def by_tarfile(dice: random.Random) -> bytes:
    file = io.BytesIO()
    form = dice.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(fileobj=file, mode="w", format=form) as archive:
        for number in range(dice.randrange(1, 6)):
            folder = "f" * (dice.choice([1, 50, 95] if form == tarfile.USTAR_FORMAT else [1, 90, 130, 260]))
            for field in ("cls", "jpg", "ä")[: dice.randrange(1, 4)]:
                payload = dice.randbytes(dice.choice([0, 1, 3, 511, 512, 513, 3000]))
                info = tarfile.TarInfo(f"{folder}/{number}.{field}")
                info.size, info.mtime = len(payload), dice.choice([0, 10**9, 10**9 + 0.5])
                if form != tarfile.PAX_FORMAT:
                    info.mtime = int(info.mtime)
                archive.addfile(info, io.BytesIO(payload))
            if dice.random() < 0.2:
                info = tarfile.TarInfo(f"{folder}/{number}.link")
                info.type, info.linkname = dice.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE]), "x" * 90
                archive.addfile(info)
    return file.getvalue()


def by_hand(dice: random.Random) -> bytes:
    pieces: list[Callable[[bytes], bytes]] = [
        lambda name: entry(name + b".x", b"1" * 700),
        lambda name: entry(name + b".x", b"22", magic=V7, kind=b"\0"),
        lambda name: entry(name + b".x", b"3", b"7"),
        lambda name: entry(name + b".x", b"4", prefix=b"p" * 30),
        lambda name: (
            pax((b"path", b"q" * 120 + name + b".x"), (b"size", b"5")) + header(b"cut") + b"5" * 5 + bytes(507)
        ),
        lambda name: pax((b"comment", b"no"), (b"mtime", b"1.5"), kind=b"g"),
        lambda name: long(b"l" * 120 + name + b".x") + header(b"cut", 1, magic=GNU) + b"6" + bytes(511),
        lambda name: long(b"l" * 120, b"K") + header(name, 0, b"2", magic=GNU, link=b"cut"),
        lambda name: header(name + b".x", size_field=base256(600)) + b"7" * 600 + bytes(424),
        lambda name: header(b"d" + name + b"/", 0, b"5"),
        lambda name: header(name, 0, b"S", magic=GNU),
        lambda name: header(name + b".x\xff", 0, signed=True),
    ]
    return b"".join(dice.choice(pieces)(b"%d" % n) for n in range(dice.randrange(1, 9))) + END


# ---- damage ----


def damaged(content: bytes, dice: random.Random) -> tuple[bytes, str]:
    """Return *content* with damage, and what that is."""
    blocks = [content[at : at + BLOCK] for at in range(0, len(content), BLOCK)]
    at = dice.randrange(max(1, len(content.rstrip(b"\0")) // BLOCK + 2)) % len(blocks)
    kind = dice.choice(["flip", "field", "number", "type", "cut", "drop", "twice", "insert", "swap", "zeros", "tail"])
    if kind in ("flip", "field", "number", "type"):
        block = bytearray(blocks[at].ljust(BLOCK, b"\0"))
        if kind == "flip":
            block[dice.randrange(BLOCK)] ^= 1 << dice.randrange(8)
        elif kind == "field":
            first = dice.choice(FIELDS)
            block[first : first + 2] = dice.choice([b"\0\0", b"  ", b"..", b"/\0", b"\xff\xff", dice.randbytes(2)])
        elif kind == "number":
            block[124:136] = dice.choice([*NUMBERS, base256(dice.choice([-1, 0, 700, 1 << 40])), dice.randbytes(12)])
        else:
            block[156:157] = dice.choice([bytes([n]) for n in b"\x000123456789xXgLKSDMVNA "])
        good = dice.random() < 0.7 and kind != "flip"
        blocks[at] = sealed(block) if good else bytes(block)
    elif kind == "cut":
        return content[: dice.randrange(len(content) + 1)], kind
    elif kind == "drop":
        del blocks[at : at + dice.randrange(1, 3)]
    elif kind == "twice":
        blocks[at:at] = blocks[at : at + dice.randrange(1, 5)]
    elif kind == "insert":
        blocks.insert(at, dice.choice([dice.randbytes(BLOCK), dice.choice(blocks), entry(b"new.x", b"")]))
    elif kind == "swap":
        other = dice.randrange(len(blocks))
        blocks[at], blocks[other] = blocks[other], blocks[at]
    elif kind == "zeros":
        blocks.insert(at, bytes(BLOCK * dice.randrange(1, 25)))
    else:
        blocks.append(dice.choice([b"\0" * 100, b"\1", bytes(BLOCK) + b"\1" * 100, dice.randbytes(BLOCK)]))
    return b"".join(blocks), kind


def compressed(content: bytes, dice: random.Random) -> tuple[bytes, str]:
    """Return *content* compressed, with damage that the checksum of its codec shows."""
    codec = dice.choice(CODECS)
    compressor = codec.compressor()
    data = bytearray(compressor.compress(content) + compressor.flush())
    kind = dice.choice(["flip", "byte", "cut", "drop", "insert"])
    at = dice.randrange(len(data))
    if kind == "flip":
        data[at] ^= 1 << dice.randrange(8)
    elif kind == "byte":
        data[at] = dice.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "drop":
        del data[at : at + dice.randrange(1, 20)]
    else:
        data[at:at] = dice.randbytes(dice.randrange(1, 20))
    return bytes(data), f"{codec.name} {kind}"


def cases(seed: int) -> Iterator[Case]:
    """Yield cases without an end; the same for the same *seed*."""
    dice = random.Random(seed)
    while True:
        content = archives(dice)
        way = dice.choice(WAYS)
        if dice.random() < 0.15:
            data, what = compressed(content, dice)
            expected = strict.read(content)
            if data[:1] != b"" and not any(data.startswith(codec.magic) for codec in CODECS):
                expected = strict.read(data)  # it is compressed no more
        else:
            data, what = content, "sound"
            for _ in range(dice.choice([0, 1, 1, 1, 2, 3])):
                data, what = damaged(data, dice) if data else (data, what)
            expected = strict.read(data)
        if 0 < len(data) <= MOST:
            yield Case(data, way, expected, what)


# ---- the law ----


def check(case: Case, status: int, out: bytes, said: str) -> None:
    """Raise ViolationError if *case* has another end than the law allows."""
    found = strict.read(out)
    wanted = case.expected.members
    if status == 0:
        if not found.sound or found.members != wanted or said:
            raise ViolationError(f"{case.what}: {len(found.members)} of {len(wanted)} members, status 0, {said!r}")
        if not case.expected.sound and " " not in case.what:
            raise ViolationError(f"{case.what}: status 0, but the input is damaged")
    elif status == 1:
        if found.sound or not said.startswith("tarcat: ") or said.count("\n") != 1:
            raise ViolationError(f"{case.what}: status 1, sound: {found.sound}, {said!r}")
        if found.members != wanted[: len(found.members)] and " " not in case.what:
            raise ViolationError(f"{case.what}: status 1, and members that are not in the input; {said!r}")
        if case.expected.sound and " " not in case.what and "side by side" not in said:
            raise ViolationError(f"{case.what}: the input is sound, but {said!r}")
    else:
        raise ViolationError(f"{case.what}: status {status}, {said!r}")


@pytest.mark.parametrize("seed", SEEDS or [1, 2, *also(*range(3, 12))])
def test_the_law_holds_for_damaged_archives(seed: int, inside: Inside) -> None:
    ends = {0: 0, 1: 0}
    for number, case in enumerate(islice(cases(seed), CASES)):
        Path("in.tar").write_bytes(case.content)
        status, out, said = inside("tarcat", *case.way, "--skip-special", "-q", stdin=case.content, stdout="out")
        try:
            check(case, status, out, said)
        except ViolationError as error:
            pytest.fail(f"case {number} of seed {seed}, tarcat {' '.join(case.way)}: {error}")
        ends[status] += 1
    assert min(ends.values()) > CASES // 10  # both ends are tried


def test_what_breaks_the_law_is_found() -> None:
    """The check fails for each way to break it."""
    whole, part = make_tar(make_samples(3)), make_tar(make_samples(2))
    sound, cut = strict.read(whole), strict.read(whole[:-10_240])
    torn = whole.rstrip(b"\0")[:-512]
    wrong = [
        (Case(whole, (), sound, "flip"), 0, part, ""),  # a sample is lost
        (Case(whole, (), sound, "flip"), 0, torn, ""),  # no end
        (Case(whole, (), cut, "flip"), 0, whole, ""),  # damage that nobody has seen
        (Case(whole, (), sound, "flip"), 1, whole, "tarcat: in.tar: damage\n"),  # an end in spite of it
        (Case(whole, (), sound, "flip"), 1, b"", "tarcat: in.tar: damage\n"),  # damage where there is none
        (Case(whole, (), cut, "flip"), 1, entry(b"z.x", b"1"), "tarcat: in.tar: damage\n"),  # a sample of its own
        (Case(whole, (), cut, "flip"), 1, b"", ""),  # no word
        (Case(whole, (), cut, "flip"), 2, b"", "tarcat: in.tar: damage\n"),
    ]
    for case, status, out, said in wrong:
        with pytest.raises(ViolationError):
            check(case, status, out, said)
    check(Case(whole, (), sound, "flip"), 0, whole, "")
    check(Case(whole, (), cut, "flip"), 1, b"", "tarcat: in.tar: damage\n")


@pytest.mark.parametrize("seed", range(60))
def test_the_second_reader_sees_what_python_sees(seed: int) -> None:
    content = by_tarfile(random.Random(seed))
    with tarfile.open(fileobj=io.BytesIO(content), errors="surrogateescape") as archive:
        regular = [(info, archive.extractfile(info)) for info in archive if info.isreg()]
        seen = [(info.name.encode("utf-8", "surrogateescape"), file.read()) for info, file in regular if file]
    assert strict.read(content) == (seen, True)


@pytest.mark.skipif(shutil.which("bsdtar") is None, reason="there is no bsdtar")
@pytest.mark.parametrize("seed", range(20))
def test_the_second_reader_sees_what_bsdtar_sees(seed: int) -> None:
    content = by_tarfile(random.Random(seed))
    done = subprocess.run(["bsdtar", "-xOf", "-"], input=content, capture_output=True, check=True)
    assert b"".join(payload for _, payload in strict.read(content).members) == done.stdout
