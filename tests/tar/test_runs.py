"""Runs of headers that numpy checks are parsed as the reader's loop parses them."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from itertools import starmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tartools.errors import TarFormatError
from tartools.samples.batch import Batch
from tartools.storage.scratch import scratch_file
from tartools.tar import ContiguousGroups, Member, Need, ScatteredGroup, read_members, reader, runs
from tests.archives import BLOCK, END, GNU, Trickle, data, entry, file_stream, long, pax
from tests.archives import header as block

NAMES = st.one_of(
    st.sampled_from(
        [
            b"a",
            b"a.",
            b".a",
            b"a..b",
            b"a.jpg",
            b"a.b.c",
            b"d/a.jpg",
            b"d.e/a.cls",
            b"d/.a.b",
            b"a/",
            b"d/a.",
            b"._a.jpg",
        ]
    ),
    st.text("ab./", min_size=1, max_size=8).map(str.encode),
    st.text(".x", min_size=95, max_size=100).map(str.encode),
    st.binary(min_size=1, max_size=4).filter(lambda name: b"\0" not in name),
)
MEMBERS = st.one_of(
    st.tuples(NAMES, st.integers(0, 1500)).map(lambda found: entry(found[0], bytes(found[1]))),
    st.tuples(NAMES, st.sampled_from([b"\0", b"5", b"2", b"g"])).map(lambda found: entry(found[0], b"", found[1])),
    st.tuples(NAMES, st.sampled_from([b"     1\0", b"0000001\0", b"+0", b"\x80"])).map(
        lambda found: block(found[0], size_field=found[1].rjust(12, b"0")) + bytes(BLOCK)
    ),
    st.sampled_from(
        [
            entry(b"nested.tar", entry(b"in.txt", b"1") + END),
            entry(b"n.bin", data(b"x") + entry(b"n.txt", b"2")),
            entry(b"a.txt\0more", b"3"),
            entry(b"a.gnu", b"4", magic=GNU),
            entry(b"b.txt", b"5", prefix=b"deep/er"),
            pax((b"path", b"p.txt")) + entry(b"x", b"6"),
            long(b"l.txt") + entry(b"y", b"7"),
            END + entry(b"c.txt", b"8"),
            block(b"v7.txt", 3, magic=bytes(8)) + data(b"abc"),
            bytes(BLOCK - 1) + b"\1",
        ]
    ),
)  # fmt: skip


class Runs(reader.Reader):
    """Looks for runs everywhere, and notes how many members they had."""

    taken = 0

    @property
    def takes_runs(self) -> bool:  # type: ignore[override]
        return True

    @takes_runs.setter
    def takes_runs(self, _: bool) -> None:
        pass


def parsed(stream: Any, **options: Any) -> list[Any]:
    """Return all that is in *stream*, with what it ends with, comparable."""
    found: list[Any] = []
    try:
        for part in read_members(stream, url="a.tar", scratch=scratch_file, **options):
            if isinstance(part, ContiguousGroups):
                listed, firsts = part.members, part.firsts
                if part.uniform is not None:
                    listed, firsts = part.uniform.members(part.source, part.keys), part.uniform.first_indexes()
                members = listed and [(m[0], *m[2:]) for m in listed]
                found.append((part.keys, part.starts, members, firsts if members else None))
            elif isinstance(part, ScatteredGroup):
                found.append((part.key, [(m[0], *m[2:]) for m in map(Member._make, part.members)], part.offset))
            else:
                found.append(part)
    except TarFormatError as error:
        found.append((type(error), str(error), error.offset))
    return found


def joined(found: list[Any]) -> list[Any]:
    """Return what `parsed` found, with adjacent groups as a list of groups, however they came together."""
    groups: list[Any] = []
    for part in found:
        if not isinstance(part, tuple) or not isinstance(part[0], list):
            groups.append(part)
            continue
        keys, starts, members, firsts = part
        lasts = [*firsts[1:], len(members)]
        groups += zip(
            keys, starts, starts[1:], [members[a:b] for a, b in zip(firsts, lasts, strict=True)], strict=False
        )
    return groups


def both(make: Callable[[], Any], **options: Any) -> tuple[list[Any], list[Any]]:
    """Return what the loop finds in the stream that *make* makes, and what it finds with runs."""
    loop = parsed(make(), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "Reader", Runs)
        patch.setattr(runs, "MIN_RUN_BLOCKS", 1)
        return loop, parsed(make(), **options)


STEPS = st.sampled_from([1 << 20, 1024, 700])  # bytes that the stream gives at a time


@settings(max_examples=200, deadline=None)
@given(st.lists(MEMBERS, max_size=12), STEPS, st.none() | st.integers(0, 1 << 20), st.sampled_from(Need))
def test_runs_are_parsed_as_the_loop_parses(members: list[bytes], step: int, at: int | None, need: Need) -> None:
    content = bytearray(b"".join(members) + END)
    if at is not None:  # a bit is flipped
        content[at % len(content)] ^= 1 << at % 8
    loop, found = both(lambda: Trickle(bytes(content), step), need=need)
    assert found == loop


@settings(max_examples=100, deadline=None)
@given(
    st.lists(MEMBERS, max_size=6),
    st.integers(2, 5),
    st.sampled_from([b"cls", b"csl", b"c"]),
    STEPS,
    st.none() | st.integers(0, 1 << 20),
)
def test_groups_that_are_alike(members: list[bytes], count: int, other: bytes, step: int, at: int | None) -> None:
    fields = (b"cls", b"a.png"), (other, b"a.png")
    several = [entry(b"%d.%b" % (n, field), data(field * n)) for n in range(count) for field in fields[n == 1]]
    content = bytearray(b"".join([*several, *members, *several]) + END)
    if at is not None:  # a bit is flipped
        content[at % len(content)] ^= 1 << at % 8
    loop, found = both(lambda: Trickle(bytes(content), step), uniform=True)
    assert joined(found) == joined(loop)


@pytest.mark.parametrize("fields", [(b"cls", b"a.txt"), (b"only",)])
@pytest.mark.parametrize("need", [Need.FIELDS, Need.PAYLOADS])
def test_payloads_of_groups_that_are_alike(
    need: Need, fields: tuple[bytes, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    __import__("numpy")
    monkeypatch.setattr(
        reader, "MAX_GROUP_IN_MEMORY", 1 << 20
    )  # from here on, a file of small members is read as a whole
    chance = random.Random(1)
    names = [b"%d.%b" % (n, field) for n in chance.sample(range(3000), 3000) for field in fields]
    members = [(name, chance.randbytes(chance.randrange(700))) for name in names]
    found, times = [], 0
    with file_stream(tmp_path / "a.tar", b"".join(starmap(entry, members)) + END) as stream:
        for part in read_members(stream, url="a.tar", scratch=scratch_file, uniform=True, need=need):
            if isinstance(part, ContiguousGroups) and part.uniform is not None:
                times += 1
                assert isinstance(part.source, bytearray) and part.uniform.endings == [b"." + field for field in fields]
                (combination,) = Batch(part, "a.tar").combinations()
                columns = [column.payloads() for column in combination.columns]
                for key, *payloads in zip(part.keys, *columns, strict=True):
                    found += [(key + b"." + f, bytes(p)) for f, p in zip(fields, payloads, strict=True)]
            elif isinstance(part, ContiguousGroups) and part.members:
                found += [(member[0], Member._make(member).read()) for member in part.members]
    assert found == members and times > 1


def plain(count: int, seed: int = 0) -> bytes:
    chance = random.Random(seed)
    samples = (
        entry(b"%06d.%b" % (n, field), chance.randbytes(chance.randrange(2000)))
        for n in range(count)
        for field in (b"cls", b"seg.png", b"JSON")
    )
    return b"".join(samples)


@pytest.mark.parametrize("need", Need)
def test_large_archives_over_many_buffers(need: Need, tmp_path: Path) -> None:
    content = plain(1500) + entry(b"large.bin", bytes(3 << 20)) + plain(300, 1) + END
    with file_stream(tmp_path / "a.tar", content) as one, file_stream(tmp_path / "b.tar", content) as two:
        streams = iter((one, two))
        loop, found = both(lambda: next(streams), need=need)
    assert found == loop
    assert sum(len(part[0]) for part in found if isinstance(part, tuple) and isinstance(part[0], list)) >= 1790


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    take = runs.take_run

    def noted(window: Any) -> int:
        found.append(take(window))
        return found[-1]

    monkeypatch.setattr(runs, "take_run", noted)
    return found


def test_runs_are_taken_once_numpy_is_there(counted: list[int]) -> None:
    __import__("numpy")
    content = plain(3000) + END
    found = parsed(Trickle(content, 1 << 20))
    assert sum(counted) > 6000 and found[-1] is not None
    counted.clear()
    extended = b"".join(pax((b"path", b"%d.txt" % n)) + entry(b"x", b"6") for n in range(3000))
    parsed(Trickle(extended + END, 1 << 17))
    assert counted == [0] * reader.MAX_RUN_MISSES  # then no longer


def test_numpy_is_imported_for_large_archives_of_small_members_only(tmp_path: Path) -> None:
    pair = entry(b"a.cls", b"1") + entry(b"b.cls", b"2")
    for count, wanted in ((50_000, True), (15_000, False)):
        (tmp_path / "in.tar").write_bytes(pair * count + END)
        line = [sys.executable, "-X", "importtime", "-m", "tartools", "tarcat", "in.tar", "-o", f"{count}.tar"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert any(line.endswith(" numpy") for line in done.stderr.splitlines()) is wanted
        assert (tmp_path / f"{count}.tar").read_bytes().rstrip(b"\0") == (pair * count).rstrip(b"\0")
