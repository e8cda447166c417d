"""What tarindex can say of samples: values of all types, what pictures are, digests; and what it reads for that."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tartools.tables import rows
from tests.archives import encoded, ended_early
from tests.commands.conftest import Inside
from tests.conftest import Run, make_tar, python
from tests.tables.conftest import Indexed

PICTURE = ("width", "height", "format", "mode", "broken")


def picture(seed: int, size: tuple[int, int] = (40, 30), mode: str = "RGB", form: str = "PNG") -> bytes:
    """Return a picture of coloured noise, in large spots."""
    small = Image.frombytes("RGB", (8, 6), random.Random(seed).randbytes(3 * 48))
    return encoded(small.resize(size, Image.Resampling.BICUBIC).convert(mode), form)


def column_of(indexed: Indexed, values: list[Any]) -> pa.ChunkedArray:
    """Return the column of samples whose field json has *values* at v; None is a sample without the field."""
    members = [
        (f"{n:06d}.cls", b"0") if value is None else (f"{n:06d}.json", json.dumps({"v": value}).encode())
        for n, value in enumerate(values)
    ]
    return indexed(members, "-f", "json:v").column("json:v")


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None, -2], "int64"),
        ([1.0, 2.5, None], "double"),
        ([True, None, False], "bool"),
        (["a", None, "ü"], "string"),
        ([[1, 2], [], None], "list<item: int64>"),
        ([[], [1.0], [2.5]], "list<item: double>"),
        ([["a", None], ["b"]], "list<item: string>"),
        ([[[1]], [[]]], "list<item: list<item: int64>>"),
        ([{"a": 1}, {"b": "x"}, None], "struct<a: int64, b: string>"),
        ([[{"a": 1.0}], [{"a": 0.5}]], "list<item: struct<a: double>>"),
        ([2**60 + 1, 0.5], "double"),
        ([[2**60 + 1, 0.5]], "list<item: double>"),
    ],
)
def test_json_values_keep_their_type(values: list[Any], kind: str, indexed: Indexed) -> None:
    column = column_of(indexed, values)
    assert str(column.type).replace("element:", "item:") == kind
    found = column.to_pylist()
    if kind.startswith("struct"):
        assert found == [{"a": 1, "b": None}, {"a": None, "b": "x"}, None]
    else:
        assert json.dumps(found) == json.dumps(values).replace(str(2**60 + 1), str(float(2**60 + 1)))


@pytest.mark.parametrize(
    "values",
    [
        [1, True],
        [1, "a", None],
        [[1], 1],
        [[1, "a"], [2]],
        [[[1]], [2]],
        [{"a": 1}, {"a": "b"}],
        [{}, None],
        [[{}], []],
        [2**63, 1],
        [1, 2**63],
        [{str(n): n for n in range(1001)}],
        [json.loads("[" * 21 + "]" * 21)],
        [{"\ud800": 1}, 7],
    ],
    ids=range(13),
)
def test_values_of_several_types_are_text(values: list[Any], indexed: Indexed) -> None:
    column = column_of(indexed, values)
    assert column.type == pa.string()
    for found, value in zip(column.to_pylist(), values, strict=True):
        expected = value if value is None or isinstance(value, str) else json.dumps(value)
        assert found == expected.replace(r"\ud800", "?") if expected else found is None


@pytest.mark.parametrize(
    ("first", "last", "kind"),
    [
        ([], [1], "list<element: int64>"),
        ([1], [0.5], "list<element: double>"),
        ({"a": 1}, {"b": [True]}, "struct<a: int64, b: list<element: bool>>"),
        (True, 1, "string"),
        ([1], ["a"], "string"),
        ({"a": 1}, {"a": []}, "string"),
        ({"a": "b"}, {"a": 1}, "string"),
        (1, 2**63, "string"),
        (2**60 + 1, 0.5, "double"),
        (None, False, "bool"),
    ],
)
def test_types_do_not_depend_on_blocks_of_rows(
    first: Any, last: Any, kind: str, indexed: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = column_of(indexed, [*[first] * 3, *[last] * 3])
    monkeypatch.setattr(rows, "ROWS_IN_BLOCK", 2)  # a block for each MiB that is read
    many = column_of(indexed, [*[first] * 1500, *[last] * 1500])
    assert one.type == many.type and str(one.type) == kind
    assert many.to_pylist()[::500] == one.to_pylist()


def test_pictures(indexed: Indexed, run: Run, tmp_path: Path) -> None:
    whole = picture(1, form="JPEG")
    members = [
        ("a.jpg", whole),
        ("a.cls", b"1"),
        ("b.jpg", whole[:-300]),
        ("b.seg.png", picture(2, (7, 5), "L")),
        ("c.txt", b"x"),
        ("d.jpg", b"no picture"),
        ("e.JPG", picture(3, mode="P", form="GIF")),
        ("f.jpg", b""),
        ("g.jpg", whole),
        ("g.jpg", whole),
    ]
    table = indexed(members, "--pictures")
    names = [f"{field}.{what}" for field in ("jpg", "seg.png", "JPG") for what in PICTURE]
    assert table.column_names[7:] == names
    assert [str(table.schema.field(name).type) for name in names[:5]] == ["int64", "int64", *["string"] * 3]
    assert {str(table.schema.field(name).type) for name in names[7:10] + names[12:]} == {"string"}
    rows = [tuple(row[f"jpg.{what}"] for what in PICTURE) for row in table.to_pylist()]
    nothing = (None, None, None, None, None)
    jpeg = (40, 30, "JPEG", "RGB", None)
    bad = "its first bytes do not match any picture format"
    assert rows == [jpeg, jpeg, nothing, (*nothing[:4], bad), nothing, (*nothing[:4], "it is empty"), nothing]
    other = [[row[name] for name in names[5:]] for row in table.to_pylist()]
    assert other[1] == [7, 5, "PNG", "L", None, *nothing] and other[4] == [*nothing, 40, 30, "GIF", "P", None]
    assert other[0] == other[2] == other[3] == other[5] == other[6] == [*nothing, *nothing]

    decoded = indexed(members, "--decode")
    broken = decoded.column("jpg.broken").to_pylist()
    assert broken[0] is None and "truncated" in broken[1] and broken[3] == bad
    assert decoded.column("jpg.width").to_pylist() == table.column("jpg.width").to_pylist()
    told = json.loads(run("tarstat", "--decode", "--json", "a.tar").stdout)["fields"][0]["pictures"]
    assert told["broken_keys"] == [key for key, why in zip("abcdefg", broken, strict=True) if why]


LENIENT = "import sys; sys.modules['simplejpeg'] = None"  # as if it were not installed


def test_jpegs_are_decoded_strictly_where_simplejpeg_is(indexed: Indexed, run: Run, shell: Run, tmp_path: Path) -> None:
    """Pillow passes over an error in the middle; without simplejpeg each command says what is missing."""
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    members = [("a.jpg", whole), ("b.jpg", ended_early(whole)), ("c.jpg", b"x")]
    why = "strict decoders refuse it: Corrupt JPEG data: premature end of data segment"
    assert indexed(members, "--decode").column("jpg.broken").to_pylist()[:2] == [None, why]
    told = json.loads(run("tarstat", "--decode", "--json", "a.tar").stdout)["fields"][0]["pictures"]
    assert told["broken_keys"] == ["b", "c"]
    found = json.loads(run("tarcheck", "--decode", "--json", "a.tar").stdout)["findings"]
    assert ("damaged-picture", f"jpg: {why}") in [(each["code"], each["places"][0]["what"]) for each in found]
    (tmp_path / "sitecustomize.py").write_text(LENIENT)
    for name, more in (("tarindex", "-o l.parquet"), ("tarstat", ""), ("tarcheck", "")):
        done = shell(f"PYTHONPATH=$PWD {name} --decode a.tar {more}", real=True)
        assert re.fullmatch(rf"{name}: simplejpeg finds more damage .* not installed: .* simplejpeg\n", done.stderr)
        assert b"strict" not in done.stdout
    (tmp_path / "s.tar").write_bytes(make_tar([("a.png", encoded(Image.effect_noise((8, 8), 50), "PNG"))]))
    for name, more in (("tarindex", "-o s.parquet"), ("tarstat", ""), ("tarcheck", "")):
        shell(f"PYTHONPATH=$PWD {name} --decode s.tar {more}", real=True).output()
    assert pq.read_table(tmp_path / "l.parquet").column("jpg.broken").to_pylist()[:2] == [None, None]


@pytest.mark.usefixtures("many_parts")
def test_pictures_in_any_number_of_processes(inside: Inside, tmp_path: Path) -> None:
    """A field that begins late in the data set is null before, and has its place behind the others."""
    members = [(f"{n:05d}.{'webp' if n == 6000 else 'bin'}", b"%d" % n) for n in range(7000)]
    members[3] = ("00003.png", picture(4))
    members[6000] = ("06000.webp", picture(5, form="WEBP"))
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for parallel in ("1", "3"):
        line = ["--pictures", "--hash", "bin webp", "--dhash", "png", "-p", parallel]
        assert inside("tarindex", *line, "a.tar", "a.tar", "-o", f"{parallel}.parquet") == (0, b"", "")
    table = pq.read_table(tmp_path / "1.parquet")
    assert table.equals(pq.read_table(tmp_path / "3.parquet"))
    assert table.column_names[7:12] == ["bin.blake2b", "webp.blake2b", "png.dhash", "png.colours", "png.width"]
    assert table.column("__index__").to_pylist() == [*range(7000), *range(7000)]
    assert [n for n, form in enumerate(table.column("webp.format").to_pylist()) if form == "WEBP"] == [6000, 13_000]
    assert table.column("webp.width").null_count == 2 * 6999


@pytest.mark.parametrize("size", [0, 1, 40, 70_000, 3_000_000, 20_000_000])
def test_digests(size: int, indexed: Indexed) -> None:
    data = random.Random(size).randbytes(size)
    table = indexed([("a.bin", data), ("a.cls", b"7"), ("b.cls", b"8")], "--hash", "bin", "--hash", "CLS")
    assert table.schema.field("bin.blake2b").type == pa.binary(16)
    assert table.column("bin.blake2b").to_pylist() == [hashlib.blake2b(data, digest_size=16).digest(), None]
    assert table.column("CLS.blake2b").to_pylist() == [
        hashlib.blake2b(value, digest_size=16).digest() for value in (b"7", b"8")
    ]


def difference_hash(data: bytes) -> int:
    """Return the hash as the man page says it, in other words than those of the command."""
    grey = Image.open(io.BytesIO(data)).convert("L").resize((9, 8), Image.Resampling.LANCZOS)
    bits = "".join(
        str(int(grey.getpixel((x, y)) < grey.getpixel((x + 1, y))))
        for y in range(8)
        for x in range(8)  # type: ignore[operator]
    )
    return int(bits, 2)


def test_difference_hashes(indexed: Indexed) -> None:
    """That of the first is known: of 9 by 8 pixels none is changed; brighter to the right in the first row alone."""
    grey = bytes([*range(9), *[8 - x for _ in range(7) for x in range(9)]])
    known = encoded(Image.frombytes("L", (9, 8), grey), "PNG")
    kinds = [*(("RGB", form) for form in ("PNG", "JPEG", "WEBP")), ("L", "PNG"), ("P", "GIF"), ("RGBA", "PNG")]
    kinds += [("1", "PNG"), ("CMYK", "JPEG")]
    pictures = [picture(seed, (90, 70), *kind) for seed in range(3) for kind in kinds]
    members = [(f"{n:02d}.png", data) for n, data in enumerate(pictures)]
    broken = [("x.png", pictures[0][:-400]), ("y.png", b""), ("z.cls", b"1")]
    table = indexed([("-.png", known), *members, *broken], "--dhash", "png")
    column = table.column("png.dhash")
    assert column.type == pa.uint64()
    assert column.to_pylist() == [0xFF << 56, *map(difference_hash, pictures), None, None, None]
    colours = table.column("png.colours")
    assert colours.type == pa.binary(48) and colours.null_count == 3
    assert colours.to_pylist()[1] == Image.open(io.BytesIO(pictures[0])).resize((4, 4), Image.Resampling.BOX).tobytes()
    hashes = column.to_pylist()[1 : 1 + len(pictures)]
    assert len(set(hashes[::8])) == 3
    for each, small in zip(hashes[::8], hashes[1::8], strict=True):  # the same pictures as JPEG
        assert (each ^ small).bit_count() <= 6


@pytest.mark.parametrize("options", [["-f", "cls json:w"], ["--pictures"], ["--hash", "cls", "--dhash", "png"]])
def test_large_payloads_are_not_read(options: list[str], shell: Run, tmp_path: Path) -> None:
    if not Path("/proc/self/io").exists():
        pytest.skip("this system does not count what is read")
    members = [
        member
        for n in range(30)
        for member in (
            (f"{n}.jpg", picture(1, form="JPEG") + bytes(2_000_000)),
            (f"{n}.cls", b"7"),
            (f"{n}.json", b'{"w": 1}'),
            (f"{n}.png", picture(1)),
        )
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    count = "tarindex -p 1 {} a.tar -o t.parquet --force; grep rchar /proc/$$/io"
    chosen = " ".join(f"'{word}'" for word in options)
    first, more = (int(shell(count.format(line)).stdout.split()[1]) for line in ("", chosen))
    assert more - first < 12_000_000  # Pillow and its modules; the pictures have 60 MB
    assert first < 60_000_000


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["-f", "cls", "--hash", "txt"], "no sample had the field txt; the fields were: cls png"),
        (["-f", "cls nothing"], "no sample had the field nothing; the fields were: cls png"),
        (["-f", "a;b"], "no sample had the field a;b; the fields were: cls png"),
        (["--dhash", "jpg"], "no sample had the field jpg; the fields were: cls png"),
        (["--pictures", "-f", "png.mode=cls"], "two columns would have the name 'png.mode'"),
    ],
)
def test_a_field_that_no_sample_has_or_a_name_that_is_taken(
    options: list[str], said: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("a.png", picture(1))]))
    assert run("tarindex", *options, "a.tar", "-o", "t.parquet") == (1, b"", f"tarindex: {said}\n")
    assert not (tmp_path / "t.parquet").exists()


def test_ordinary_tables_import_no_pillow(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("a.png", picture(1))]))
    program = (
        "import atexit, sys; from tartools.commands.tarindex import tarindex\n"
        "atexit.register(lambda: print('PIL' in sys.modules, file=sys.stderr)); tarindex()"
    )
    for options, loaded in (["-f", "cls", "--hash", "png"], "False"), (["--pictures"], "True"):
        done = python(program, "-p", 1, *options, "a.tar", "-o", "t.parquet", "--force", folder=tmp_path)
        assert (done.status, done.stderr) == (0, f"{loaded}\n")


# ---- tarindex --update ----

NAMES = [f"data/{number:02d}.tar" for number in range(50)]
UPDATES = {  # shards of the table, those that are named then, those that go and that change, and what is said
    "one of fifty changed": (NAMES, NAMES, [], [17], "49, read: 1, dropped: 0"),
    "some came and went": (
        NAMES[:40],
        [name for name in reversed(NAMES) if name not in (NAMES[3], NAMES[5])],
        [3, 5],
        [],
        "38, read: 10, dropped: 2",
    ),
    "without names those of the table": (NAMES, [], [49], [1], "48, read: 1, dropped: 1"),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder with the shards."""
    (tmp_path / "data").mkdir()
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(shard(number, samples=number % 4 + 1))
    return tmp_path / "data"


@pytest.mark.parametrize(("before", "after", "gone", "changed", "said"), UPDATES.values(), ids=UPDATES)
def test_only_what_changed_is_read(
    before: list[str], after: list[str], gone: list[int], changed: list[int], said: str, run: Run, data: Path
) -> None:
    table = ("-o", "data/t.parquet", "--force")
    run("tarindex", "-f", "cls", *before, *table).output()
    for number in gone:
        os.unlink(data / f"{number:02d}.tar")
    for number in changed:
        (data / f"{number:02d}.tar").write_bytes(shard(number, samples=30, size=100))
    done = run("tarindex", "-f", "cls", "--update", "data/t.parquet", *after, *table)
    assert done == (0, b"", f"tarindex: data/t.parquet: shards taken over: {said}\n")
    run("tarindex", "-f", "cls", *(after or NAMES[:49]), "-o", "data/fresh.parquet").output()
    assert (data / "t.parquet").read_bytes() == (data / "fresh.parquet").read_bytes()


@pytest.mark.parametrize("choose", ["__index__ > 0", "__index__ < 1 OR __index__ > 1"])
def test_a_table_that_lacks_rows_of_a_shard(choose: str, indexed: Indexed, run: Run, tmp_path: Path) -> None:
    table = indexed(shard(1))
    duckdb.sql(f"COPY (FROM '{tmp_path}/t.parquet' WHERE {choose}) TO '{tmp_path}/few.parquet'")
    done = run("tarindex", "--update", "few.parquet", "a.tar", "-o", "new.parquet")
    assert done.status == 0 and "taken over: 0, read: 1" in done.stderr
    assert pq.read_table(tmp_path / "new.parquet").equals(table)


@pytest.mark.parametrize("prefix", ["file:", "file://{}/"])
def test_a_table_in_a_folder_named_by_a_url(prefix: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.tar").write_bytes(shard(1))
    table = f"{prefix.format(tmp_path)}d/t.parquet"
    run("tarindex", "d/a.tar", "-o", table).output()
    assert pq.read_table(tmp_path / "d/t.parquet").column("__shard__").to_pylist() == ["a.tar"] * 4
    assert run("tarcat", table).output() == run("tarcat", "d/a.tar").output()


def test_a_shard_with_another_name_for_its_path_is_taken_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a b.tar").write_bytes(shard(1))
    run("tarindex", f"file://{tmp_path}/a%20b.tar", "-o", "t.parquet").output()
    done = run("tarindex", "--update", "t.parquet", "a b.tar", "-o", "new.parquet")
    assert done.status == 0 and "taken over: 1, read: 0" in done.stderr


def shard(number: int, samples: int = 4, size: int = 900) -> bytes:
    members = []
    for sample in range(samples):
        members += [(f"{number:02d}{sample}.txt", b"x" * size), (f"{number:02d}{sample}.cls", b"%d" % number)]
    return make_tar(members)


def test_columns(run: Run, data: Path, tmp_path: Path) -> None:
    """A column that is asked for and not there has all shards read; one that nobody asks for is told about."""
    names = NAMES[1:4]
    run("tarindex", *names, "-o", "plain.parquet").output()
    done = run("tarindex", "-f", "cls", "--update", "plain.parquet", *names, "-o", "cls.parquet")
    assert done.status == 0 and "taken over: 0, read: 3" in done.stderr
    assert pq.read_table(tmp_path / "cls.parquet").column("cls").to_pylist() == [1, 1, 2, 2, 2, 3, 3, 3, 3]
    (tmp_path / names[0]).write_bytes(shard(7, samples=1))
    done = run("tarindex", "--update", "cls.parquet", *names, "-o", "new.parquet")
    why = "no option names these columns, which are null in shards read now: cls"
    assert (done.status, done.stderr.splitlines()[1:]) == (0, [f"tarindex: cls.parquet: {why}"])
    assert pq.read_table(tmp_path / "new.parquet").column("cls").to_pylist() == [None, 2, 2, 2, 3, 3, 3, 3]
    twice, table = "named twice, which --update does not allow", "this is a table, and --update takes shards"
    for shards, why in ([names[0], f"./{names[0]}"], twice), (["new.parquet"], table):
        said = run("tarindex", "--update", "cls.parquet", *shards, "-o", "x.parquet").failure(2)
        assert said == f"tarindex: {shards[0]}: {why}\n"
