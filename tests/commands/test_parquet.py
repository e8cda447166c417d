"""tar2parquet and tarcreate --parquet: samples to Parquet files with payloads, and back."""

from __future__ import annotations

import datetime
import io
import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from tartools.formats import parquetread, parquetwrite
from tests.archives import encoded
from tests.commands.conftest import Inside
from tests.conftest import Result, Run, has_end, make_samples, make_tar, members_of, python
from tests.tiers import also


def picture(color: int, form: str = "PNG") -> bytes:
    return encoded(Image.new("L", (9, 7), color), form)


NO_PARQUET = "this is not a Parquet file: it does not begin as one"
PNG, JPEG = picture(9), picture(200, "JPEG")
SAMPLES = [
    ("d/a.JPG", JPEG),
    ("d/a.seg.png", PNG),
    ("d/a.cls", b"3\n"),
    ("d/ü.JPG", JPEG[::-1]),
    ("d/ü.wav", b"RIFF"),
    ("d/ü.cls", b""),
    ("d/ü.bin", b"\xff\0"),
    ("z.cls", "größe".encode()),
    ("z.bin", b""),
]
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
COLUMNS = [
    ("__key__", pa.string(), ["d/a", "d/ü", "z"]),
    ("JPG", PICTURE, [{"bytes": JPEG, "path": "d/a.JPG"}, {"bytes": JPEG[::-1], "path": "d/ü.JPG"}, None]),
    ("wav", PICTURE, [None, {"bytes": b"RIFF", "path": "d/ü.wav"}, None]),
    ("seg.png", PICTURE, [{"bytes": PNG, "path": "d/a.seg.png"}, None, None]),
    ("cls", pa.string(), ["3\n", "", "größe"]),
    ("bin", pa.binary(), [None, b"\xff\0", b""]),
]
FEATURES = {  # as `datasets` writes them
    "__key__": {"dtype": "string", "_type": "Value"},
    "JPG": {"_type": "Image"},
    "wav": {"_type": "Audio"},
    "seg.png": {"_type": "Image"},
    "cls": {"dtype": "string", "_type": "Value"},
    "bin": {"dtype": "binary", "_type": "Value"},
}


def test_there_and_back(inside: Inside, tmp_path: Path) -> None:
    archive = make_tar(SAMPLES)
    (tmp_path / "a.tar").write_bytes(archive)
    assert inside("tar2parquet", "a.tar", "-o", "a.parquet") == (0, b"", "")
    found = pq.read_table(tmp_path / "a.parquet")
    assert [(one.name, one.type, found[one.name].to_pylist()) for one in found.schema] == COLUMNS
    assert json.loads(found.schema.metadata[b"huggingface"]) == {"info": {"features": FEATURES}}
    assert polars.read_parquet(tmp_path / "a.parquet").to_dict(as_series=False) == {n: v for n, _, v in COLUMNS}
    assert duckdb.read_parquet(str(tmp_path / "a.parquet")).fetchall() == list(
        zip(*(v for *_, v in COLUMNS), strict=True)
    )
    back = inside("tarcreate", "--parquet", "a.parquet").stdout
    assert members_of(back) == SAMPLES and has_end(back)


names = st.text("ab.é_ -", min_size=1, max_size=4).filter(lambda name: not name.startswith((".", "__")))
payloads = st.dictionaries(names, st.binary(max_size=40), min_size=1, max_size=4)
contents = st.lists(payloads, max_size=6)


@given(contents, st.integers(1, 3), st.booleans())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_fields(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, samples: list[dict[str, bytes]], rows: int, from_table: bool
) -> None:
    """All keys, names of fields and payloads come back, in the order of the columns; from shards or from a table."""
    monkeypatch.setattr(parquetread, "BATCH_ROWS", rows)
    Path("a.tar").write_bytes(
        make_tar([(f"k{n}.{f}", data) for n, one in enumerate(samples) for f, data in one.items()])
    )
    assert inside("tar2parquet", "a.tar", "-o", "a.parquet", "--force").status == 0
    columns = pq.read_schema("a.parquet").names[1:]
    assert sorted(columns) == sorted({field for one in samples for field in one})
    if from_table:
        assert inside("tarindex", "a.tar", "-o", "t.parquet", "--force").status == 0
        assert inside("tar2parquet", "t.parquet", "-o", "b.parquet", "--force").status == 0
        assert Path("b.parquet").read_bytes() == Path("a.parquet").read_bytes()
    if samples:
        assert inside("tarcreate", "--parquet", "a.parquet", "-o", "b.tar", "--force").status == 0
        ordered = [(n, sorted(one.items(), key=lambda each: columns.index(each[0]))) for n, one in enumerate(samples)]
        assert members_of(Path("b.tar").read_bytes()) == [(f"k{n}.{f}", data) for n, one in ordered for f, data in one]


def test_columns_are_chosen_and_named(inside: Inside, tmp_path: Path) -> None:
    archive = make_tar([*SAMPLES, ("none.txt", b"")])
    done = inside("tar2parquet", "-v", "-f", "label=cls image=jpg;seg.png bin;wav", "-x", "bin", stdin=archive)
    assert done.stderr.startswith("tar2parquet: 4 samples in, 3 out, 1 left out, ")
    found = pq.read_table(io.BytesIO(done.stdout))
    assert found.schema.names == ["__key__", "label", "image", "bin", "wav"]
    assert found["image"].to_pylist() == [*COLUMNS[1][2][:2], None]
    assert found["wav"].to_pylist() == COLUMNS[2][2]
    assert json.loads(found.schema.metadata[b"huggingface"])["info"]["features"]["image"] == {"_type": "Image"}
    (tmp_path / "a.parquet").write_bytes(done.stdout)
    back = inside("tarcreate", "--parquet", "a.parquet", "-f", "__key__=label jpg=IMAGE")
    assert (back.status, back.stderr) == (1, "tarcreate: a.parquet: row 2: the key is empty\n")
    back = inside("tarcreate", "--parquet", "a.parquet", "-f", "cls=label jpg=IMAGE")
    assert members_of(back.stdout) == [
        *(("d/a.cls", b"3\n"), ("d/a.jpg", JPEG)),
        *(("d/ü.cls", b""), ("d/ü.jpg", JPEG[::-1]), ("z.cls", "größe".encode())),
    ]
    plain = inside("tar2parquet", "-f", "image=jpg cls", "--binary", "IMAGE cls", stdin=archive)
    assert [one.type for one in pq.read_schema(io.BytesIO(plain.stdout))] == [pa.string(), pa.binary(), pa.binary()]


@pytest.mark.parametrize(
    ("members", "options", "said"),
    [
        ([("a.txt", b"a\xff")], (), "sample 'a': field 'txt': not UTF-8 text (byte 1); --binary txt stores bytes"),
        ([("README", b"")], (), "sample 'README': its name has no dot, so it has no field, and no column; -f names "),
        ([("\udcff.a", b"")], (), "sample '\\udcff': its key is not UTF-8, which Parquet needs; --rekey of "),
        ([("a.\udcff", b"")], (), "sample 'a': the name b'\\xff' is not UTF-8, which Parquet needs"),
        ([("a.__x__", b"")], (), "no column of a field may be called '__x__': -f 'new=__x__' gives it another name"),
        ([("a.x", b""), ("a.x", b"")], (), "sample 'a': two members are for the column 'x'; -f 'new=old' renames one"),
        ([("a.x", b"")], ("--binary", "y"), "--binary: there is no column y; the columns are: x"),
        ([("a.x", b"")], ("-f", "x y"), "no sample had the field y; the fields were: x"),
    ],
)
def test_what_a_parquet_file_cannot_hold(
    members: list[tuple[str, bytes]], options: tuple[str, ...], said: str, inside: Inside, tmp_path: Path
) -> None:
    archive = make_tar(members)
    failure = inside("tar2parquet", *options, "-o", "a.parquet", stdin=archive).failure(lines=1)
    assert failure.removeprefix("tar2parquet: ").removeprefix("stdin: ").startswith(said)
    assert not (tmp_path / "a.parquet").exists()
    assert not inside("tar2parquet", *options, stdin=archive).stdout.endswith(b"PAR1")  # what was streamed has no end


def test_a_field_that_comes_late(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetwrite, "GROUP_ROWS", 2)
    members = [*make_samples(5), ("000004.txt", b"late")]
    Path("a.tar").write_bytes(make_tar(members))
    failure = inside("tar2parquet", "a.tar", "-o", "a.parquet").failure(lines=1)
    assert not Path("a.parquet").exists()
    assert failure == (
        "tar2parquet: a.tar: sample '000004': it has the field 'txt', which none of the 4 samples of the first row "
        "groups has, and no column can be added now: name all of them, as -f 'cls jpg txt'\n"
    )
    assert inside("tar2parquet", "a.tar", "-f", "cls jpg txt", "-o", "a.parquet").status == 0
    about = pq.ParquetFile("a.parquet").metadata
    assert [about.row_group(number).num_rows for number in range(about.num_row_groups)] == [2, 2, 1]
    assert [about.row_group(0).column(n).compression for n in range(4)] == ["ZSTD", "ZSTD", "UNCOMPRESSED", "ZSTD"]
    assert inside("tarcreate", "--parquet", "a.parquet", "-o", "b.tar").status == 0
    assert members_of(Path("b.tar").read_bytes()) == members


def test_a_payload_that_is_too_large(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquetwrite, "MAX_PAYLOAD_BYTES", 5000)
    Path("a.tar").write_bytes(make_tar([("a.jpg", bytes(5000)), ("b.jpg", bytes(7000))]))
    said = "'b.jpg' has 7.0 kB, and a value of a Parquet file at most 5.0 kB"
    failure = inside("tar2parquet", "a.tar", "-o", "a.parquet").failure(lines=1)
    assert failure == f"tar2parquet: a.tar: sample 'b': {said}\n"


VALUES: list[tuple[str, Any, list[bytes | None]]] = [  # columns, and the payloads that are made of them
    (
        "image",
        pa.array(
            [{"path": None, "bytes": PNG}, {"path": "x.png", "bytes": b""}, None],
            pa.struct([("path", pa.string()), ("bytes", pa.large_binary())]),
        ),
        [PNG, b"", None],
    ),
    ("label", pa.array([3, -1, None], pa.int64()), [b"3", b"-1", None]),
    ("text", pa.array(["ü\n", "", None], pa.large_string()), ["ü\n".encode(), b"", None]),
    ("view", pa.array(["v", None, "w"], pa.string_view()), [b"v", None, b"w"]),
    ("kind", pa.array(["x", "y", "x"]).dictionary_encode(), [b"x", b"y", b"x"]),
    ("score", pa.array([0.1, 2, None], pa.float32()), [b"0.1", b"2.0", None]),
    ("good", pa.array([True, False, None]), [b"true", b"false", None]),
    ("day", pa.array([datetime.date(2026, 11, 22), None, None]), [b"2026-11-22", None, None]),
    ("emb", pa.array([[1, 2], [], None]), [b"[1, 2]", b"[]", None]),
    ("meta", pa.array([{"a": "ü", "b": [1.5]}, None, {"a": None, "b": []}]),
     ['{"a": "ü", "b": [1.5]}'.encode(), None, b'{"a": null, "b": []}']),
    ("hash", pa.array([b"\0\xff", b"ab", None], pa.binary(2)), [b"\0\xff", b"ab", None]),
    ("nothing", pa.nulls(3), [None, None, None]),
]  # fmt: skip


def test_files_of_others(inside: Inside, tmp_path: Path) -> None:
    table = pa.table({name: values for name, values, _ in VALUES} | {"__index_level_0__": [7, 8, 9]})
    pq.write_table(table, tmp_path / "1.parquet")
    polars.DataFrame({"label": [4], "id": ["n/x"], "image": [{"bytes": JPEG, "path": "x.jpg"}]}).write_parquet(
        tmp_path / "2.parquet"
    )
    expected = [(f"{n:03d}.{name}", made[n]) for n in range(3) for name, _, made in VALUES if made[n] is not None] + [
        ("003.label", b"4"),
        ("003.id", b"n/x"),
        ("003.image", JPEG),
    ]
    done = inside("tarcreate", "--parquet", "{1..2}.parquet", "--key-template", "{:03d}")
    assert (done.status, done.stderr, members_of(done.stdout)) == (0, "", expected)
    done = inside("tarcreate", "--parquet", "2.parquet", "-f", "jpg=image __key__=id label")
    assert members_of(done.stdout) == [("n/x.jpg", JPEG), ("n/x.label", b"4")]
    done = inside("tarcreate", "-v", "--parquet", "1.parquet", "-f", "text view")
    assert [name[8:] for name, _ in members_of(done.stdout)] == ["0.text", "0.view", "1.text", "2.view"]
    done = inside("tarcreate", "-v", "--parquet", "1.parquet", "-f", "day")
    assert (done.status, members_of(done.stdout)) == (1, [("000000000.day", b"2026-11-22")])
    assert "tarcreate: 3 samples in, 1 out, 2 left out and reported, " in done.stderr
    done = inside("tarcreate", "--parquet", "1.parquet", "-f", "__index_level_0__ label")
    assert members_of(done.stdout)[0] == ("000000000.__index_level_0__", b"7")


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ({"image": pa.array([{"bytes": None, "path": "x.jpg"}], PICTURE)}, (),
         "row 1: the column 'image' has only the path 'x.jpg', not the bytes of that file; a TSV with a "),
        ({"__shard__": ["a.tar"], "__begin__": [0], "__end__": [1]}, (),
         "this Parquet file is a table that lists samples of shards: tarcat reads it"),
        ({"__key__": ["a"], "__url__": ["b"]}, (), "this Parquet file has no column for a field; its columns are: "),
        ({"a/b": ["1"]}, (), "the column 'a/b' can't be a field: -f names the columns to take, 'new=old' renames one"),
        ({"": ["1"]}, (), "the column '' can't be a field: "),
        ({"__key__": ["a", "b", None], "x": ["1"] * 3}, (), "row 3: the key is null"),
        ({"__key__": ["a.b"], "x": ["1"]}, (), "row 1: the key 'a.b' would not read back; its last part may "),
        ({"__key__": ["../a"], "x": ["1"]}, (), "row 1: the key '../a' is absolute or contains '..'"),
        ({"x": ["1"]}, ("-f", "y"), "no column y; the columns are: x"),
        ({"x": ["1"]}, ("-f", "y=x;y __key__=z"), "no column z; the columns are: x"),
    ],
)  # fmt: skip
def test_what_is_refused(
    columns: dict[str, Any], options: tuple[str, ...], said: str, inside: Inside, tmp_path: Path
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    failure = inside("tarcreate", "--parquet", "a.parquet", *options, "-o", "a.tar").failure(lines=1)
    assert failure.startswith(f"tarcreate: a.parquet: {said}")
    assert not (tmp_path / "a.tar").exists()


def test_what_is_said_where_another_option_is_meant(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(inside("tar2parquet", stdin=make_tar(SAMPLES)).stdout)
    for command in ("tarcat", "tarstat"):
        assert "(tarcreate --parquet makes samples of its rows; " in inside(command, "a.parquet").failure()
    done = inside("tarcreate", "a.parquet")
    said = "this is not a plan; tarcreate --parquet FILE makes samples of it"
    assert done == (1, b"", f"tarcreate: a.parquet: {said}\n")
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    assert inside("tarcreate", "--parquet", "a.tar").stderr == f"tarcreate: a.tar: at byte 0: {NO_PARQUET}\n"


def all_kinds(rows: int) -> pa.Table:
    """Return columns with nulls, empty values, values that come again, long texts and numbers."""
    chance = random.Random(1)
    data = [chance.randbytes(chance.choice([0, 3, 40, 200])) for _ in range(rows)]
    return pa.table({
        "a.bin": pa.array([None if n % 3 == 1 else data[n] for n in range(rows)], pa.large_binary()),
        "jpg": pa.array([None if n % 7 == 3 else {"bytes": data[n // 2], "path": "x"} for n in range(rows)], PICTURE),
        "nothing": pa.array([None] * rows, pa.binary()),
        "same": pa.array([b"x" * 300] * rows, pa.binary()),
        "txt": pa.array([None if n % 5 == 0 else "ä word " * (n % 30) for n in range(rows)], pa.string()),
        "n": pa.array(range(rows)),
    })  # fmt: skip


WRITERS: dict[str, Callable[[pa.Table], object]] = {
    **{
        f"{codec} {version}": lambda made, codec=codec, version=version: pq.write_table(
            made,
            "a.parquet",
            compression=codec,
            data_page_version=version,
            use_dictionary=["jpg", "same", "txt"],
            dictionary_pagesize_limit=3000,
            data_page_size=2000,
            write_batch_size=30,
            row_group_size=150,
            write_page_checksum=True,
        )
        for codec in ("none", "snappy", "gzip", "zstd", "lz4", "brotli")
        for version in ("1.0", "2.0")
    },
    "defaults": lambda made: pq.write_table(made, "a.parquet"),
    "duckdb": lambda made: duckdb.sql("COPY made TO 'a.parquet'"),
    "polars": lambda made: polars.DataFrame(made).write_parquet("a.parquet", data_page_size=500),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_pages_of_all_writers(writer: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nulls, dictionaries, codecs and both kinds of pages, in batches that end inside of pages and row groups."""
    monkeypatch.setattr(parquetread, "COLUMN_READ_BYTES", 50)
    monkeypatch.setattr(parquetread, "BATCH_ROWS", 7)
    made = all_kinds(400)
    WRITERS[writer](made)
    assert inside("tarcreate", "--parquet", "a.parquet", "-o", "a.tar").status == 0
    assert members_of(Path("a.tar").read_bytes()) == [
        (f"{number:09d}.{name}", payload)
        for number, row in enumerate(made.to_pylist())
        for name, value in row.items()
        if (payload := payload_of(value)) is not None
    ]


def payload_of(value: Any) -> bytes | None:
    value = value["bytes"] if isinstance(value, dict) else value
    return value if value is None or isinstance(value, bytes) else str(value).encode()


@pytest.mark.parametrize("writer", ["tar2parquet", *also("none 1.0", "snappy 1.0", "zstd 2.0")])
def test_damage(writer: str, made: Callable[[str, bytes], Result], inside: Inside) -> None:
    """Cut at any byte, it is a failure. With any byte changed, it is one too, or nothing else changes."""
    if writer == "tar2parquet":
        Path("a.tar").write_bytes(make_tar([("a.jpg", JPEG), ("a.cls", b"1"), ("b.cls", b"2"), ("b.bin", b"3")]))
        assert inside("tar2parquet", "a.tar", "-o", "a.parquet").status == 0
    else:
        WRITERS[writer](all_kinds(30).drop_columns(["nothing"]))
    content = Path("a.parquet").read_bytes()
    ends = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    status, whole, _ = made("--parquet", content)
    assert status == 0
    for cut in range(0, len(content), 7):
        what = f"{cut}: this Parquet file is truncated: its end is missing" if cut else f"0: {NO_PARQUET}"
        assert made("--parquet", content[:cut]) == (1, b"", f"tarcreate: in: at byte {what}\n")
    failures = 0
    for at in [*range(0, ends, 2), *range(ends, ends + 300), *range(ends + 300, len(content), 9)]:
        bits = (0x01, 0x20, 0x80, 0xFF)[at % 4]
        status, found, said = made("--parquet", content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :])
        assert (status, found) in ((1, b""), (0, whole)), (at, bits)
        assert said.count("\n") == status and said.startswith("tarcreate: in: " * status), (at, said)
        failures += status
        assert not status or writer != "tar2parquet" or re.search("at byte [0-9]+: ", said), (at, said)
    assert failures > 400


def test_text_that_is_not_utf8(inside: Inside) -> None:
    pq.write_table(
        pa.table({"txt": ["a", "¡¡¡"]}), "a.parquet", compression="none", use_dictionary=False, write_statistics=False
    )
    content = Path("a.parquet").read_bytes()
    Path("a.parquet").write_bytes(content.replace("¡¡¡".encode(), b"\xa1" * 6))
    failure = inside("tarcreate", "--parquet", "a.parquet", "-o", "a.tar").failure(lines=1)
    where = "in the data read up to this byte, after row 0: this Parquet file is damaged: "
    assert re.match(f"tarcreate: a.parquet: at byte [0-9]+: {where}", failure)
    assert not Path("a.tar").exists()


DATASETS = """
import datasets, pathlib
pictures = datasets.load_dataset("parquet", data_files="a.parquet", split="train")
assert [row["jpg"].size for row in pictures] == [(9, 7), (9, 7)], pictures[0]
raw = pictures.cast_column("jpg", datasets.Image(decode=False))
assert [row["jpg"]["bytes"] for row in raw] == [pathlib.Path(name).read_bytes() for name in ("1.jpg", "2.jpg")]
assert [(row["__key__"], row["cls"]) for row in raw] == [("1", "7"), ("2", "8")]
shards = datasets.load_dataset("webdataset", data_files="b.tar", split="train")
assert [(row["__key__"], row["cls"], row["jpg"].size) for row in shards] == [("1", 7, (9, 7)), ("2", 8, (9, 7))]
features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["x", "y"])})
pictures = [{"bytes": row["jpg"]["bytes"], "path": None} for row in raw]
made = datasets.Dataset.from_dict({"image": pictures, "label": ["y", "x"]}, features=features)
made.to_parquet("c.parquet")
"""


def test_datasets_reads_and_writes_such_files(run: Run, tmp_path: Path) -> None:
    jpegs = [picture(n, "JPEG") for n in (50, 150)]
    for n, jpeg in enumerate(jpegs, 1):
        (tmp_path / f"{n}.jpg").write_bytes(jpeg)
    archive = make_tar([("1.jpg", jpegs[0]), ("1.cls", b"7"), ("2.jpg", jpegs[1]), ("2.cls", b"8")])
    assert run("tar2parquet", "-o", "a.parquet", stdin=archive).status == 0
    assert run("tarcreate", "--parquet", "a.parquet", "-o", "b.tar").status == 0
    done = python(DATASETS, folder=tmp_path, env={"HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1"})
    assert done.status == 0, done
    out = run("tarcreate", "--parquet", "c.parquet", "-f", "jpg=image cls=label").output()
    assert [data for _, data in members_of(out)] == [jpegs[0], b"1", jpegs[1], b"0"]
