"""Damaged files of other formats, and tables that lie: the right samples, or one message and no archive that ends.

Whatever comes, no command shows a traceback, hangs, or takes something for what it is not.
"""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.commands.conftest import Inside, inside
from tests.commands.test_zip import streamed
from tests.conftest import Result, has_end, make_samples, make_tar, members_of
from tests.properties.test_model import Members
from tests.tiers import also

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

__all__ = ["inside"]  # a fixture
CASES = 6
seeds = pytest.mark.parametrize("seed", [0, *also(*range(1, 12))])


def damaged(content: bytes, dice: random.Random) -> bytes:
    """Return *content* with a damage or two, most of them in the last or the first bytes, where directories are."""
    data = bytearray(content)
    for _ in range(dice.choice([1, 1, 1, 2, 5])):
        size = len(data)
        at = dice.choice(
            [dice.randrange(size), dice.randrange(max(0, size - 300), size), dice.randrange(min(size, 60))]
        )
        kind = dice.choice(["flip", "number", "random", "cut", "drop", "insert", "twice"])
        if kind == "flip":
            data[at] ^= 1 << dice.randrange(8)
        elif kind == "number":
            width = dice.choice([1, 2, 4, 8])
            data[at : at + width] = dice.choice([b"\0", b"\xff", b"\x7f", b"\x80", b"\1"]) * width
        elif kind == "random":
            data[at : at + 4] = dice.randbytes(4)
        elif kind == "cut" and dice.random() < 0.5:
            del data[at:]
        elif kind == "drop":
            del data[at : at + dice.randrange(1, 200)]
        elif kind == "insert":
            data[at:at] = dice.choice([dice.randbytes(9), bytes(100)])
        elif kind == "twice":
            data[at:at] = data[at : at + dice.randrange(1, 400)]
        data = data or bytearray(b"x")
    return bytes(data)


def members(dice: random.Random) -> Members:
    """Return members of a few samples, with fields of all kinds of text and bytes."""
    found: Members = []
    for n in range(dice.randrange(1, 9)):
        key = f"{'d/' * dice.randrange(2)}{n:03d}"
        found.append((f"{key}.txt", b"%d" % n * dice.randrange(1, 400)))
        found.append((f"{key}.bin", dice.randbytes(dice.choice([0, 1, 999]))))
    return found


def check(done: Result, name: str, what: object) -> None:
    """Fail unless *done* has ended well, or with one line that says why and without the end of an archive."""
    assert done.status in (0, 1, 2), (what, done)
    assert "Traceback" not in done.stderr, (what, done.stderr)
    if done.status:
        assert re.fullmatch(rf"({name}: [^\n]+\n)+", done.stderr), (what, done.stderr)
        assert not has_end(done.stdout) or "--skip-special" in done.stderr, what


def zip_file(found: Members, dice: random.Random) -> bytes:
    if dice.random() < 0.1:
        return streamed()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as archive:
        for name, payload in found:
            with archive.open(name, "w", force_zip64=dice.random() < 0.2) as member:
                member.write(payload)
    return file.getvalue()


Kind = tuple[list[str], list[str], Callable[[Members, Members], bool]]
KINDS: dict[str, Kind] = {  # how it is made of a shard and read, and what may come of it
    "zip": ([], ["--zip"], list.__eq__),
    "tfrecord": (["tar2tfrecord"], ["--tfrecord"], lambda found, whole: found == whole[: len(found)]),  # of any number
    "parquet": (["tar2parquet"], ["--parquet"], lambda *_: True),  # nothing protects these
    "jsonl": (["tar2jsonl"], [], lambda *_: True),
    "tsv": (["tar2tsv", "-f", "txt"], [], lambda *_: True),
}


@seeds
@pytest.mark.parametrize("kind", KINDS)
def test_damaged_sources(kind: str, seed: int, inside: Inside, tmp_path: Path) -> None:
    dice = random.Random(f"{kind} {seed}")
    command, options, right = KINDS[kind]
    name = Path(f"in.{kind}")
    for _ in range(3):
        found = members(dice)
        if command:
            (tmp_path / "a.tar").write_bytes(make_tar(found))
            assert inside(*command, "--force", "a.tar", "-o", f"{name}").status == 0
            content = name.read_bytes()
        else:
            content = zip_file(found, dice)
            name.write_bytes(content)
        out = inside("tarcreate", *options, f"{name}").output()
        whole = members_of(out)
        for _ in range(CASES // 3):
            changed = damaged(content, dice)
            name.write_bytes(changed)
            done = inside("tarcreate", *options, f"{name}")
            check(done, "tarcreate", changed)
            if done.status == 0:
                assert right(members_of(done.stdout), whole), (changed, done.stderr)


# ---- tables ----

NAMES = [
    *[".", "..", "/", "-", "a.tar/b", "pipe:false", "no.tar", "s3://", "file:%00", "t.parquet"],
    "",
    "\0",
    "x" * 5000,
    None,
]
NUMBERS = [-(1 << 63), -1, 0, 1, 511, 512, 513, 1536, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, None]
TEXTS = ["", "/", "../x", "\0", "a\nb", "é" * 300, None]


def lying(table: Any, dice: random.Random) -> Any:
    """Return *table* with some values, types or columns that it should not have."""
    for _ in range(dice.choice([1, 1, 2])):
        name = dice.choice([name for name in table.schema.names if name.startswith("__")])
        at, values = table.schema.get_field_index(name), table.column(name).to_pylist()
        row = dice.randrange(len(values)) if values else 0
        kind = dice.choice(["value", "value", "value", "type", "drop", "order"])
        if kind == "drop":
            table = table.drop_columns([name])
        elif kind == "order" and len(values):
            table = table.take(dice.choices(range(len(values)), k=len(values) + 3))
        elif kind == "type":
            table = table.set_column(at, name, pa.array([dice.choice([1.5, None, 7.0]) for _ in values]))
        elif values:
            lie = dice.choice(NUMBERS)
            if name == "__members__":
                values[row] = {each: {"offset": lie, "size": dice.choice(NUMBERS)} for each in values[row] or {}}
            else:
                values[row] = dice.choice({"__shard__": NAMES, "__key__": TEXTS}.get(name, NUMBERS))
            try:
                made = pa.array(values, table.schema.field(at).type)
            except (pa.ArrowException, OverflowError):
                made = pa.array([None if value is None else str(value) for value in values])
            table = table.set_column(at, name, made)
        if not {"__shard__", "__begin__"} & {*table.schema.names}:
            break
    return table


COMMANDS = (
    ["tarcat"],
    ["tarsort", "-S", "shuffle"],
    ["tarfilter", "-S", "size('jpg') > 99"],
    ["tarfilter", "--share", "0:.5"],
)


@seeds
@pytest.mark.parametrize("how", ["bytes", "values"])
def test_hostile_tables(how: str, seed: int, inside: Inside, tmp_path: Path) -> None:
    """Samples that come out are samples of the shard, whole: nothing is made of what a row says."""
    dice = random.Random(f"{how} {seed}")
    found = make_samples(20)
    (tmp_path / "a.tar").write_bytes(make_tar(found))
    assert inside("tarindex", "-f", "cls", "a.tar", "-o", "t.parquet").status == 0
    sound = (tmp_path / "t.parquet").read_bytes()
    table = pq.read_table(tmp_path / "t.parquet")
    pairs = {(found[n], found[n + 1]) for n in range(0, len(found), 2)}
    for _ in range(CASES):
        if how == "bytes":
            (tmp_path / "t.parquet").write_bytes(damaged(sound, dice))
        else:
            pq.write_table(lying(table, dice), tmp_path / "t.parquet")
        what = (tmp_path / "t.parquet").read_bytes()
        line = dice.choice(COMMANDS)
        done = inside(*line, "t.parquet")
        check(done, line[0], what)
        if done.status == 0 and has_end(done.stdout):
            out = members_of(done.stdout)
            assert {*zip(out[::2], out[1::2], strict=True)} <= pairs, what
        done = inside("tarcheck", "--json", "t.parquet")
        assert done.status in (0, 1) and "Traceback" not in done.stderr, (what, done)
        if not done.stderr:
            report = json.loads(done.stdout)
            assert done.status == (report["errors"] + report["warnings"] > 0), (what, report)
