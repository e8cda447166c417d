"""Never a wrong byte: of damaged tables, wrong rows and changed shards come the right samples, or a failure that names
the row, the shard and the byte. Archives and damage are drawn at random, by seed.
"""

from __future__ import annotations

import io
import os
import random
import re
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tartools
from tartools import tar
from tartools.errors import TarFormatError, TarToolsError
from tartools.tables import source
from tartools.tables.bulk import bulk_from_buffer
from tests.archives import Trickle
from tests.conftest import Run, has_end, make_tar, members_of
from tests.tables.conftest import Indexed, replaced
from tests.tables.test_tables import anything, as_before
from tests.tiers import also

Sample = tuple[bytes, list[tuple[str, bytes]]]
pytestmark = pytest.mark.filterwarnings("ignore:.*comes back after other samples")


def outcome(url: str) -> tuple[list[Sample], str]:
    """Return the samples that are read of *url*, and the failure after them, "" if there is none."""
    found: list[Sample] = []
    try:
        found.extend((sample.raw_key, list(sample.items())) for sample in tartools.read(url))
    except TarToolsError as error:
        assert error.status == 1
        return found, str(error)
    return found, ""


def sound(data: bytes, starts: list[int], keys: list[bytes]) -> bool:
    """Tell whether *data* is known, without the reader, as the samples with *keys* that begin and end at *starts*."""
    found = bulk_from_buffer(data, np.diff(starts))
    return found is not None and found.keys == keys


def tables(run: Run, folder: Path, seed: int) -> tuple[bytes, list[Sample]]:
    """Make `a.tar`, `b.tar` and their table `t.parquet` in *folder*; return the table and its samples."""
    for number, name in enumerate("ab"):
        (folder / f"{name}.tar").write_bytes(anything(2 * seed + number, 30))
    run("tarindex", "--force", "a.tar", "b.tar", "-o", "t.parquet").output()
    right, failure = outcome("t.parquet")
    assert failure == "" and len(right) == 60
    return (folder / "t.parquet").read_bytes(), right


def flipped(data: bytes, draw: random.Random, count: int = 1) -> bytes:
    """Return *data* with *count* of its bits flipped."""
    made = bytearray(data)
    for _ in range(count):
        made[draw.randrange(len(made))] ^= 1 << draw.randrange(8)
    return bytes(made)


@pytest.mark.parametrize("seed", [0, *also(*range(1, 6))])
def test_tables_with_bytes_flipped(seed: int, run: Run, tmp_path: Path) -> None:
    table, right = tables(run, tmp_path, seed)
    draw = random.Random(seed)
    failures = 0
    for _ in range(150):
        # the first bytes tell that it is a table; without them it is a damaged tar
        Path("f.parquet").write_bytes(table[:4] + flipped(table[4:], draw, draw.choice([1, 1, 2, 5])))
        found, failure = outcome("f.parquet")
        assert found == right[: len(found)]
        assert "f.parquet" in failure if failure else found == right
        failures += bool(failure)
    assert failures > 50


@pytest.mark.parametrize("error", [EOFError("x"), OSError("x"), UnicodeDecodeError("utf-8", b"x", 0, 1, "x")])
def test_what_its_reader_raises_is_no_damage(error: Exception, run: Run, tmp_path: Path) -> None:
    Path("t.parquet").write_bytes(tables(run, tmp_path, 9)[0])
    with pytest.raises(type(error)) as raised, source.open_table("t.parquet"):
        raise error
    assert raised.value is error


def test_tables_that_are_cut(run: Run, tmp_path: Path) -> None:
    table, _ = tables(run, tmp_path, 9)
    for cut in range(4, len(table), 100):
        Path("cut.parquet").write_bytes(table[:cut])
        found, failure = outcome("cut.parquet")
        assert found == [] and failure == f"cut.parquet: at byte {cut}: this table is truncated: its end is missing"


def test_rows_that_overlap(run: Run, tmp_path: Path) -> None:
    """The same sample several times side by side is no overlap; half of one is."""
    _, right = tables(run, tmp_path, 30)
    rows = pq.read_table("t.parquet")
    draw = random.Random(4)
    order = sorted(draw.choices(range(len(right)), k=400))
    pq.write_table(rows.take(order), "o.parquet")
    assert outcome("o.parquet") == ([right[n] for n in order], "")
    ends = rows.column("__end__").to_pylist()
    ends[4] = ends[5]
    pq.write_table(replaced(rows, "__end__", ends, pa.uint64()), "o.parquet")
    found, failure = outcome("o.parquet")
    assert found == right[: len(found)] and len(found) <= 4 and "row 4 of o.parquet" in failure


def headers_of(shard: bytes) -> list[int]:
    """Return the bytes of *shard* at which headers are. (What extended headers hold has no checksum in a tar.)"""
    found, at = [], 0
    while at < len(shard) and shard[at]:
        found.append(at)
        at += 512 + (int(shard[at + 124 : at + 135], 8) + 511) // 512 * 512
    return found


@pytest.mark.parametrize("seed", [0, *also(1, 2, 3)])
def test_shards_that_were_changed(seed: int, run: Run, tmp_path: Path) -> None:
    """Bytes of headers flipped, cuts, other shards under the name, of the same size too: all with the old time."""
    _, right = tables(run, tmp_path, 40 + seed)
    draw = random.Random(seed)
    rows = pq.read_table("t.parquet")
    order = random.Random(seed).sample(range(len(rows)), len(rows))
    pq.write_table(rows.take(order), "s.parquet")
    pq.write_table(rows.drop_columns(["__version__", "__members__"]), "less.parquet")
    expected = {"t.parquet": right, "s.parquet": [right[n] for n in order], "less.parquet": right}
    shard = tmp_path / "a.tar"
    whole = shard.read_bytes()
    other = make_tar([(f"z/{n}.cls", b"%d" % n) for n in range(40)])
    versions = [whole[: draw.randrange(len(whole))] for _ in range(4)] + [b"", other]
    versions += [(other * (len(whole) // len(other) + 1))[: len(whole)], bytes(len(whole))]
    for at in draw.sample(headers_of(whole), 40):
        versions.append(whole[:at] + flipped(whole[at : at + 512], draw) + whole[at + 512 :])
    failures = 0
    for version in versions:
        as_before(shard, version)
        for name, samples in expected.items():
            found, failure = outcome(name)
            assert found == samples[: len(found)]
            assert re.match(rf"a\.tar: at byte \d+: .*\(row \d+ of {name}", failure) if failure else found == samples
            failures += bool(failure)
    assert failures > 2 * len(versions)


@pytest.mark.parametrize("size", [300_000, 1_500_000])
def test_large_samples_in_any_order(size: int, indexed: Indexed, run: Run) -> None:
    draw = random.Random(size)
    members = [m for n in range(7) for m in ((f"{n}.bin", draw.randbytes(size - n)), (f"{n}.cls", b"%d" % n))]
    order = [3, 0, 6, 5, 1]
    pq.write_table(indexed(members).take(order), "s.parquet")
    expected = [member for n in order for member in members[2 * n : 2 * n + 2]]
    for line in (["tarcat"], ["tarpcat", "-p", "2"], ["tarcat", "-f", "cls bin"]):
        done = run(*line, "s.parquet")
        assert (done.status, members_of(done.stdout), done.stderr) == (0, expected, "")
    assert [sample["cls"] for sample in tartools.read("s.parquet")] == [b"%d" % n for n in order]


def test_a_table_that_names_a_fifo(run: Run, tmp_path: Path) -> None:
    """It is an error, where opening it would wait for a writer."""
    tables(run, tmp_path, 1)
    Path("a.tar").unlink()
    os.mkfifo("a.tar")
    what = r"a.tar: at byte \d+: this is not a regular file, but a fifo or a device \(row 0 of t.parquet; "
    for command in ("tarcat", "tarsort", "tarshow"):
        done = run(command, "t.parquet")
        assert done.status == 1 and not has_end(done.stdout) and re.match(f"{command}: {what}", done.stderr), done
    with pytest.raises(TarToolsError, match=what):
        tartools.Table("t.parquet")[0]


VERSIONS = ["9" * 5000, "9" * 19 + " 1", "-1 5", "1e9 1", "\u0663" * 20, "\u00b2 1", "x", " 7", ""]


@pytest.mark.parametrize("number", [0, *also(*range(1, len(VERSIONS)))])
def test_versions_that_no_file_has(number: int, run: Run, tmp_path: Path) -> None:
    _, right = tables(run, tmp_path, 5)
    rows = pq.read_table("t.parquet")
    pq.write_table(replaced(rows, "__version__", [VERSIONS[number]] * len(rows), pa.string()), "u.parquet")
    found, failure = outcome("u.parquet")
    assert found == right[: len(found)] and (failure or found == right)
    for line in (["tarcat"], ["tarsort", "-S", "shuffle"], ["tarcat", "--force", "-o", "v.parquet"]):
        done = run(*line, "u.parquet")
        assert done.status in (0, 1) and all(said.startswith(f"{line[0]}: ") for said in done.stderr.splitlines()), done


Rows = tuple[bytes, list[int], list[bytes]]


def as_read(data: bytes) -> tuple[list[int], list[bytes]] | None:
    """Return where the samples begin that the reader finds in *data*, and end, and their keys; None if it fails."""
    starts, keys = [0], []
    try:
        for part in tar.read_members(Trickle(data), url="x", scratch=io.FileIO, until=len(data)):
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
        assert sound(*archive(random.Random(seed), format))


def test_what_is_sound_is_read_alike() -> None:
    draw = random.Random(2)
    known = 0
    archives = list(map(archive, map(random.Random, range(60))))
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
        if sound(bytes(made), starts, keys):
            known += 1
            assert as_read(bytes(made)) == (starts, keys)
    assert known > 100


@pytest.mark.parametrize("wrong", ["key", "start", "end", "dot", "empty", "slash"])
def test_other_rows_are_not(wrong: str) -> None:
    data = make_tar([("a/0.cls", b"1"), ("a/0.jpg", b"2"), ("a/1.cls", b"3")])[: 3 * 1024]
    starts, keys = [0, 2048, 3072], [b"a/0", b"a/1"]
    assert sound(data, starts, keys)
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
    assert not sound(data, starts, keys)
