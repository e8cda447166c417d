"""Headers that are checked together are those that the reader takes for the same samples."""

from __future__ import annotations

import io
import random
import tarfile

import numpy as np
import pytest

from tartools import tar
from tartools.errors import TarFormatError
from tartools.tables.headers import sound
from tests.conftest import make_tar

Rows = tuple[bytes, list[int], list[bytes]]


class Held:
    """Bytes as a stream."""

    file = None
    start = 0

    def __init__(self, data: bytes) -> None:
        self.readinto = io.BytesIO(data).readinto


def as_read(data: bytes) -> tuple[list[int], list[bytes]] | None:
    """Return where the samples begin that the reader finds in *data*, and end, and their keys; None if it fails."""
    starts, keys = [0], []
    try:
        for part in tar.read_members(Held(data), url="x", scratch=io.FileIO, until=len(data)):
            if not isinstance(part, tar.ContiguousGroups):
                return None
            starts += part.starts[1:]
            keys += part.keys
    except TarFormatError:
        return None
    return starts, keys


def archive(draw: random.Random, format: int = tarfile.USTAR_FORMAT) -> Rows:
    """Return samples without the end of archive, where they begin and end, and their keys."""
    members = []
    for number in range(draw.randrange(1, 30)):
        key = draw.choice(["", "a/", "x" * 60 + "/", "ü/", "v1.2/"]) + f"{number:03d}"
        fields = draw.sample(["cls", "jpg", "seg.png", "Ü"], draw.randrange(1, 5))
        members += [(f"{key}.{field}", bytes(draw.choice([0, 1, 511, 512, 3000]))) for field in fields]
    data = make_tar(members, format)
    data = data[: sum(512 + (len(payload) + 511) // 512 * 512 for _, payload in members)]
    found = as_read(data)
    assert found is not None
    return data, *found


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_plain_headers_are_known(format: int) -> None:
    for seed in range(20):
        data, starts, keys = archive(random.Random(seed), format)
        assert sound(data, np.array(starts), keys) == (not any(b"." in key for key in keys))


def test_what_is_sound_is_read_alike() -> None:
    draw = random.Random(2)
    known = 0
    archives = [found for found in map(archive, map(random.Random, range(60))) if b"." not in b"".join(found[2])]
    for _ in range(2500):
        data, starts, keys = draw.choice(archives)
        made = bytearray(data)
        for _ in range(draw.randrange(1, 4)):
            header = draw.choice(starts[:-1]) + draw.choice([0, 0, 512, 1024])
            at = min(header + draw.choice([draw.randrange(512), draw.randrange(100, 160), 345]), len(made) - 1)
            made[at] = draw.choice([made[at] ^ (1 << draw.randrange(8)), 0, 32, 47, 48, 55])
            if draw.random() < 0.6 and header + 512 <= len(made):  # with the right checksum
                made[header + 148 : header + 156] = b" " * 8
                made[header + 148 : header + 156] = b"%06o\0 " % sum(made[header : header + 512])
        if sound(bytes(made), np.array(starts), keys):
            known += 1
            assert as_read(bytes(made)) == (starts, keys)
    assert known > 100


@pytest.mark.parametrize("wrong", ["key", "start", "end", "dot", "empty", "slash"])
def test_other_rows_are_not(wrong: str) -> None:
    data = make_tar([("a/0.cls", b"1"), ("a/0.jpg", b"2"), ("a/1.cls", b"3")])[: 3 * 1024]
    starts, keys = [0, 2048, 3072], [b"a/0", b"a/1"]
    assert sound(data, np.array(starts), keys)
    changes = {
        "key": (starts, [b"a/0", b"a/2"]),
        "start": ([0, 1024, 3072], keys),
        "end": ([0, 2048, 3584], keys),
        "dot": (starts, [b"a/0", b"a/1.c"]),
        "empty": (starts, [b"a/0", b""]),
        "slash": (starts, [b"a/0", b"a/"]),
    }
    starts, keys = changes[wrong]
    data += bytes(max(0, starts[-1] - len(data)))
    assert not sound(data, np.array(starts), keys)
