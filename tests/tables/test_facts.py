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
from tests.tables.test_tables import rows_of

PICTURE = ("width", "height", "format", "mode", "broken")


def table_of(path: Path) -> pa.Table:
    return pq.read_table(path)


def picture(seed: int, size: tuple[int, int] = (40, 30), mode: str = "RGB", form: str = "PNG") -> bytes:
    """Return a picture of coloured noise, in large spots."""
    small = Image.frombytes("RGB", (8, 6), random.Random(seed).randbytes(3 * 48))
    return encoded(small.resize(size, Image.Resampling.BICUBIC).convert(mode), form)


def indexed(run: Run, folder: Path, values: list[Any], *options: str) -> pa.Table:
    """Return the table of samples whose field json has *values* at v; None is a sample without the field."""
    members = [
        (f"{n:06d}.cls", b"0") if value is None else (f"{n:06d}.json", json.dumps({"v": value}).encode())
        for n, value in enumerate(values)
    ]
    (folder / "a.tar").write_bytes(make_tar(members))
    assert run("tarindex", "-f", "json:v", *options, "a.tar", "-o", "t.parquet", "--force") == (0, b"", "")
    return table_of(folder / "t.parquet").column("json:v")


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
def test_json_values_keep_their_type(values: list[Any], kind: str, run: Run, tmp_path: Path) -> None:
    column = indexed(run, tmp_path, values)
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
def test_values_of_several_types_are_text(values: list[Any], run: Run, tmp_path: Path) -> None:
    column = indexed(run, tmp_path, values)
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
        (None, False, "bool"),
    ],
)
def test_types_do_not_depend_on_blocks_of_rows(
    first: Any, last: Any, kind: str, inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = indexed(inside, tmp_path, [*[first] * 3, *[last] * 3])
    monkeypatch.setattr(rows, "BLOCK", 2)
    many = indexed(inside, tmp_path, [*[first] * 9, *[last] * 9])
    assert one.type == many.type and str(one.type) == kind
    assert many.to_pylist()[::3] == one.to_pylist()


def test_pictures(run: Run, tmp_path: Path) -> None:
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
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    assert run("tarindex", "--pictures", "a.tar", "-o", "t.parquet") == (0, b"", "")
    table = table_of(tmp_path / "t.parquet")
    names = [f"{field}.{what}" for field in ("jpg", "seg.png", "JPG") for what in PICTURE]
    assert table.column_names[7:] == names
    assert [str(table.schema.field(name).type) for name in names[:5]] == ["int64", "int64", *["string"] * 3]
    assert {str(table.schema.field(name).type) for name in names[7:10] + names[12:]} == {"string"}
    rows = [tuple(row[f"jpg.{what}"] for what in PICTURE) for row in table.to_pylist()]
    nothing = (None, None, None, None, None)
    jpeg = (40, 30, "JPEG", "RGB", None)
    bad = "its first bytes are those of no picture"
    assert rows == [jpeg, jpeg, nothing, (*nothing[:4], bad), nothing, (*nothing[:4], "it is empty"), nothing]
    other = [[row[name] for name in names[5:]] for row in table.to_pylist()]
    assert other[1] == [7, 5, "PNG", "L", None, *nothing] and other[4] == [*nothing, 40, 30, "GIF", "P", None]
    assert other[0] == other[2] == other[3] == other[5] == other[6] == [*nothing, *nothing]

    assert run("tarindex", "--decode", "a.tar", "-o", "d.parquet") == (0, b"", "")
    decoded = table_of(tmp_path / "d.parquet")
    broken = decoded.column("jpg.broken").to_pylist()
    assert broken[0] is None and "it is cut" in broken[1] and broken[3] == bad
    assert decoded.column("jpg.width").to_pylist() == table.column("jpg.width").to_pylist()
    told = json.loads(run("tarstat", "--decode", "--json", "a.tar").stdout)["fields"][0]["pictures"]
    assert told["broken_keys"] == [key for key, why in zip("abcdefg", broken, strict=True) if why]


LENIENT = "import sys; sys.modules['simplejpeg'] = None"  # as if it were not installed


def test_jpegs_are_decoded_strictly_where_simplejpeg_is(run: Run, shell: Run, tmp_path: Path) -> None:
    """Pillow passes over an error in the middle; without simplejpeg each command says what is missing."""
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    members = [("a.jpg", whole), ("b.jpg", ended_early(whole)), ("c.jpg", b"x")]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    why = "strict decoders refuse it: Corrupt JPEG data: premature end of data segment"
    assert run("tarindex", "--decode", "a.tar", "-o", "t.parquet") == (0, b"", "")
    assert table_of(tmp_path / "t.parquet").column("jpg.broken").to_pylist()[:2] == [None, why]
    told = json.loads(run("tarstat", "--decode", "--json", "a.tar").stdout)["fields"][0]["pictures"]
    assert told["broken_keys"] == ["b", "c"]
    found = json.loads(run("tarcheck", "--decode", "--json", "a.tar").stdout)["findings"]
    assert ("damaged-picture", f"jpg: {why}") in [(each["code"], each["places"][0]["what"]) for each in found]
    (tmp_path / "sitecustomize.py").write_text(LENIENT)
    for name, more in (("tarindex", "-o l.parquet"), ("tarstat", ""), ("tarcheck", "")):
        done = shell(f"PYTHONPATH=$PWD {name} --decode a.tar {more}", real=True)
        assert re.fullmatch(rf"{name}: JPEGs whose .* only with simplejpeg: .* simplejpeg\n", done.stderr)
        assert b"strict" not in done.stdout
    assert table_of(tmp_path / "l.parquet").column("jpg.broken").to_pylist()[:2] == [None, None]


@pytest.mark.usefixtures("many_parts")
def test_pictures_in_any_number_of_processes(inside: Inside, tmp_path: Path) -> None:
    """A field that begins late in the data set is null before, and has its place behind the others."""
    members = [(f"{n:05d}.{'webp' if n == 6000 else 'bin'}", b"%d" % n) for n in range(7000)]
    members[3] = ("00003.png", picture(4))
    members[6000] = ("06000.webp", picture(5, form="WEBP"))
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for parallel in ("1", "3"):
        line = ["--pictures", "--hash", "bin webp", "--dhash", "png", "-p", parallel]
        assert inside("tarindex", *line, "a.tar", "-o", f"{parallel}.parquet") == (0, b"", "")
    table = table_of(tmp_path / "1.parquet")
    assert table.equals(table_of(tmp_path / "3.parquet"))
    assert table.column_names[7:12] == ["bin.blake2b", "webp.blake2b", "png.dhash", "png.colours", "png.width"]
    assert [n for n, form in enumerate(table.column("webp.format").to_pylist()) if form == "WEBP"] == [6000]
    assert table.column("webp.width").null_count == 6999


@pytest.mark.parametrize("size", [0, 1, 40, 70_000, 3_000_000, 20_000_000])
def test_digests(size: int, run: Run, tmp_path: Path) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "a.tar").write_bytes(make_tar([("a.bin", data), ("a.cls", b"7"), ("b.cls", b"8")]))
    assert run("tarindex", "--hash", "bin", "--hash", "CLS", "a.tar", "-o", "t.parquet") == (0, b"", "")
    table = table_of(tmp_path / "t.parquet")
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


def test_difference_hashes(run: Run, tmp_path: Path) -> None:
    kinds = [*(("RGB", form) for form in ("PNG", "JPEG", "WEBP")), ("L", "PNG"), ("P", "GIF"), ("RGBA", "PNG")]
    kinds += [("1", "PNG"), ("CMYK", "JPEG")]
    pictures = [picture(seed, (90, 70), *kind) for seed in range(3) for kind in kinds]
    members = [(f"{n:02d}.png", data) for n, data in enumerate(pictures)]
    broken = [("x.png", pictures[0][:-400]), ("y.png", b""), ("z.cls", b"1")]
    (tmp_path / "a.tar").write_bytes(make_tar([*members, *broken]))
    assert run("tarindex", "--dhash", "png", "a.tar", "-o", "t.parquet") == (0, b"", "")
    column = table_of(tmp_path / "t.parquet").column("png.dhash")
    assert column.type == pa.uint64()
    assert column.to_pylist() == [*map(difference_hash, pictures), None, None, None]
    colours = table_of(tmp_path / "t.parquet").column("png.colours")
    assert colours.type == pa.binary(48) and colours.null_count == 3
    assert colours.to_pylist()[0] == Image.open(io.BytesIO(pictures[0])).resize((4, 4), Image.Resampling.BOX).tobytes()
    hashes = column.to_pylist()[: len(pictures)]
    assert len(set(hashes[::8])) == 3
    for each, small in zip(hashes[::8], hashes[1::8], strict=True):  # the same pictures as JPEG
        assert (each ^ small).bit_count() <= 6


def test_a_picture_whose_hash_is_known(run: Run, tmp_path: Path) -> None:
    """Of 9 by 8 pixels none is changed: brighter to the right in the first row, darker in the others."""
    grey = bytes([*range(9), *[8 - x for _ in range(7) for x in range(9)]])
    (tmp_path / "a.tar").write_bytes(make_tar([("a.png", encoded(Image.frombytes("L", (9, 8), grey), "PNG"))]))
    assert run("tarindex", "--dhash", "png", "a.tar", "-o", "t.parquet") == (0, b"", "")
    assert table_of(tmp_path / "t.parquet").column("png.dhash").to_pylist() == [0xFF << 56]


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
    ("options", "name"),
    [
        (["-f", "cls", "--hash", "txt"], "txt"),
        (["-f", "cls nothing"], "nothing"),
        (["-f", "a;b"], "a;b"),
        (["--dhash", "png"], "png"),
    ],
)
def test_a_field_that_no_sample_has(options: list[str], name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("a.jpg", b"x")]))
    said = run("tarindex", *options, "a.tar", "-o", "t.parquet").failure()
    assert said == f"tarindex: no sample had the field {name}; the fields were: cls jpg\n"
    assert not (tmp_path / "t.parquet").exists()


def test_a_value_named_as_a_fact_of_pictures(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1"), ("a.png", picture(1))]))
    done = run("tarindex", "--pictures", "-f", "png.mode=cls", "a.tar", "-o", "t.parquet")
    assert (done.status, done.stderr) == (1, "tarindex: two columns would have the name 'png.mode'\n")
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


COUNT = 50


def shard(number: int, samples: int = 4, size: int = 900) -> bytes:
    members = []
    for sample in range(samples):
        members += [(f"{number:02d}{sample}.txt", b"x" * size), (f"{number:02d}{sample}.cls", b"%d" % number)]
    return make_tar(members)


def shards(folder: Path) -> list[str]:
    names = [f"{number:02d}.tar" for number in range(COUNT)]
    for number, name in enumerate(names):
        (folder / name).write_bytes(shard(number, samples=number % 4 + 1))
    return names


def told(run: Run, *line: str) -> str:
    done = run(*line)
    assert done.status == 0, done
    return done.stderr


def test_one_of_fifty_changed(run: Run, tmp_path: Path) -> None:
    names = shards(tmp_path)
    assert run("tarindex", "-f", "cls", *names, "-o", "old.parquet") == (0, b"", "")
    (tmp_path / "17.tar").write_bytes(shard(17, samples=30, size=100))
    said = told(run, "tarindex", "-v", "-f", "cls", "--update", "old.parquet", *names, "-o", "new.parquet")
    assert said.startswith("tarindex: old.parquet: shards taken over: 49, read: 1, dropped: 0\n")
    assert run("tarindex", "-f", "cls", *names, "-o", "fresh.parquet") == (0, b"", "")
    assert (tmp_path / "new.parquet").read_bytes() == (tmp_path / "fresh.parquet").read_bytes()


def test_shards_that_came_and_went(run: Run, tmp_path: Path) -> None:
    names = shards(tmp_path)
    assert run("tarindex", *names[:40], "-o", "t.parquet") == (0, b"", "")
    os.unlink(tmp_path / names[3])
    os.unlink(tmp_path / names[5])
    wanted = [name for name in reversed(names) if name not in ("03.tar", "05.tar")]
    said = told(run, "tarindex", "--update", "t.parquet", *wanted, "-o", "t.parquet", "--force")
    assert said == "tarindex: t.parquet: shards taken over: 38, read: 10, dropped: 2\n"
    assert run("tarindex", *wanted, "-o", "fresh.parquet") == (0, b"", "")
    assert rows_of(tmp_path / "t.parquet").equals(rows_of(tmp_path / "fresh.parquet"))


def test_without_names_the_shards_are_those_of_the_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    names = shards(tmp_path / "data")
    assert run("tarindex", *(f"data/{name}" for name in names), "-o", "data/t.parquet") == (0, b"", "")
    os.unlink(tmp_path / "data/49.tar")
    (tmp_path / "data/01.tar").write_bytes(shard(1, samples=9))
    said = told(run, "tarindex", "--update", "data/t.parquet", "-o", "data/t.parquet", "--force")
    assert said == "tarindex: data/t.parquet: shards taken over: 48, read: 1, dropped: 1\n"
    assert run("tarcat", "data/t.parquet").output() == run("tarcat", *(f"data/{name}" for name in names[:-1])).output()


@pytest.mark.parametrize("choose", ["__index__ > 0", "__index__ < 1 OR __index__ > 1"])
def test_a_table_that_lacks_rows_of_a_shard(choose: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(shard(1))
    assert run("tarindex", "a.tar", "-o", "t.parquet") == (0, b"", "")
    duckdb.sql(f"COPY (FROM '{tmp_path}/t.parquet' WHERE {choose}) TO '{tmp_path}/few.parquet'")
    said = told(run, "tarindex", "--update", "few.parquet", "a.tar", "-o", "new.parquet")
    assert "taken over: 0, read: 1" in said
    assert rows_of(tmp_path / "new.parquet").equals(rows_of(tmp_path / "t.parquet"))


def test_columns(run: Run, tmp_path: Path) -> None:
    """A column that is asked for and not there has all shards read; one that nobody asks for is told about."""
    names = shards(tmp_path)[1:4]
    assert run("tarindex", *names, "-o", "plain.parquet") == (0, b"", "")
    said = told(run, "tarindex", "-f", "cls", "--update", "plain.parquet", *names, "-o", "cls.parquet")
    assert "taken over: 0, read: 3" in said
    assert rows_of(tmp_path / "cls.parquet").column("cls").to_pylist() == [1, 1, 2, 2, 2, 3, 3, 3, 3]
    (tmp_path / names[0]).write_bytes(shard(7, samples=1))
    said = told(run, "tarindex", "--update", "cls.parquet", *names, "-o", "new.parquet")
    assert said.splitlines()[1] == (
        "tarindex: cls.parquet: no option names these columns, which are null in shards read now: cls"
    )
    assert rows_of(tmp_path / "new.parquet").column("cls").to_pylist() == [None, 2, 2, 2, 3, 3, 3, 3]
    done = run("tarindex", "--update", "cls.parquet", names[0], f"./{names[0]}", "-o", "x.parquet")
    assert (done.status, done.stderr) == (2, f"tarindex: {names[0]}: named twice, which --update does not allow\n")
