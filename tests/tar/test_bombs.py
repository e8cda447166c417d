"""Hostile headers: what a shard may cost grows as its size does, or it is refused."""

from __future__ import annotations

import time
import tracemalloc

import pytest

from tartools.errors import TarFormatError
from tartools.storage.scratch import scratch_file
from tartools.tar import ContiguousGroups, ScatteredGroup, fullheader, read_members
from tartools.tar.fullheader import MAX_GLOBAL_BYTES
from tests.archives import END, Trickle, entry, long, pax
from tests.archives import header as block
from tests.tiers import exhaustive


def members(archive: bytes, step: int = 1 << 20) -> list[bytes]:
    """Return the paths in *archive*."""
    found: list[bytes] = []
    for part in read_members(Trickle(archive, step), url="a.tar", scratch=scratch_file):
        if isinstance(part, ContiguousGroups | ScatteredGroup):
            found += [member[0] for member in part.members or ()]
    return found


def chain(count: int) -> bytes:
    """Return *count* pax headers of 1 KiB before one member: the last of them counts."""
    return b"".join(pax((b"path", b"%d.txt" % n), (b"x", b"y" * 400)) for n in range(count)) + entry(b"a.txt", b"1")


def long_names(count: int) -> bytes:
    """Return *count* long names of GNU tar before one member."""
    return b"".join(long(b"%d.txt" % n) for n in range(count)) + entry(b"a.txt", b"1")


def sparse_map(count: int) -> bytes:
    """Return an old GNU sparse member with *count* blocks of map."""
    return sparse(count) + entry(b"a.txt", b"1")


def sparse(count: int) -> bytes:
    head = bytearray(block(b"s.bin", kind=b"S", magic=b"ustar  \0"))
    head[482] = 1
    from tests.archives import sealed

    return sealed(head) + b"".join(b"\7" * 504 + bytes([n < count - 1]) + bytes(7) for n in range(count))


def globals_before_each(count: int) -> bytes:
    """Return *count* members, each behind a global header whose record another one replaces."""
    return b"".join(pax((b"x", b"%d" % n * 99), kind=b"g") + entry(b"%d.txt" % n, b"1") for n in range(count))


def macos(count: int) -> bytes:
    """Return one sample with *count* metadata files of macOS inside."""
    return b"".join(entry(b"a.%d" % n, b"1") + entry(b"._a.%d" % n, b"2") for n in range(count))


GROWING = {
    "pax headers before one member": (chain, 800),
    "long names before one member": (long_names, 800),
    "a sparse map": (sparse_map, 500),
    "global headers": (globals_before_each, 400),
    "metadata inside one sample": (macos, 1000),
}


def test_each_extended_header_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few bytes come at a time; and the buffer is not copied for each of them."""
    parsed: list[int] = []
    parse = fullheader.parse_records

    def counted(payload: bytes, offset: int | None = None) -> dict[bytes, bytes]:
        parsed.append(len(payload))
        return parse(payload, offset)

    monkeypatch.setattr(fullheader, "parse_records", counted)
    for step in (1 << 20, 4096, 700):
        parsed.clear()
        assert members(chain(1500) + END, step) == [b"1499.txt"]
        assert len(parsed) == 1500


def test_a_chain_is_the_same_however_it_comes() -> None:
    archive = (
        long(b"l.txt") * 3 + pax((b"x", b"y"), kind=b"g") + chain(3) + pax((b"z", b"1"), kind=b"g") + chain(2) + END
    )
    expected = members(archive)
    assert expected == [b"2.txt", b"1.txt"]
    for step in range(1, 1500, 7):
        assert members(archive, step) == expected


def test_global_headers_have_a_limit_together() -> None:
    several = b"".join(pax((b"k%d" % n, b"v" * 1000), kind=b"g") for n in range(100))
    with pytest.raises(TarFormatError, match=f"global extended headers above the limit of {MAX_GLOBAL_BYTES} bytes"):
        members(several + entry(b"a.txt", b"1") + END)
    many = b"".join(pax(*((b"%d.%d" % (n, i), b"") for i in range(200)), kind=b"g") for n in range(9))
    with pytest.raises(TarFormatError, match="global extended headers above the limit"):
        members(many + entry(b"a.txt", b"1") + END)
    same = b"".join(pax((b"k", b"%d" % n * 9000), kind=b"g") for n in range(9))
    comments = pax((b"comment", b"c" * 100_000), kind=b"g")
    assert members(same + comments + entry(b"a.txt", b"1") + END) == [b"a.txt"]
    inside = pax((b"x", b"1")) + pax((b"k", b"v" * MAX_GLOBAL_BYTES), kind=b"g")
    with pytest.raises(TarFormatError, match="global extended headers above the limit"):
        members(inside + entry(b"a.txt", b"1") + END)


@exhaustive
@pytest.mark.parametrize("name", GROWING)
def test_time_grows_as_the_size(name: str) -> None:
    make, count = GROWING[name]
    seconds = []
    for times in (1, 2, 4):
        archive = make(count * times) + END
        best = 1e9
        for _ in range(3):
            begin = time.process_time()
            assert members(archive, 1 << 12)
            best = min(best, time.process_time() - begin)
        seconds.append(best)
    assert seconds[2] < 10 * seconds[0], seconds  # 16 times as long if it grew by the square


@exhaustive
@pytest.mark.parametrize("name", GROWING)
def test_memory_grows_as_the_size(name: str) -> None:
    make, count = GROWING[name]
    peaks = []
    for times in (1, 2, 4):
        archive = make(count * times) + END
        tracemalloc.start()
        assert members(archive)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 4 * peaks[0] + (8 << 20) and peaks[2] < 64 << 20, peaks
