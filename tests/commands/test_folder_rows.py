"""tarcreate --folder with --rows or --coco: a table about files; and keys and fields of rows of all kinds."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from tests.commands.conftest import Inside
from tests.commands.test_tar2folder import PETS, pictures, tree
from tests.conftest import Run, make_tar, members_of
from tests.properties.test_model import Members

CSV = 'file_name,text,width\n1.jpg,one,30\nsub/2.jpg,"two, 2",\n'
FILES = {"1.jpg": b"1", "1.npy": b"n", "sub/2.jpg": b"2"}


def lay_out(folder: Path, files: dict[str, bytes]) -> None:
    """Write *files*, by relative path, below *folder*."""
    for name, payload in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(payload)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the folder d of `FILES`."""
    lay_out(tmp_path / "d", FILES)
    return tmp_path / "d"


EXPECTED: Members = [
    *(("1.jpg", b"1"), ("1.npy", b"n"), ("1.text", b"one"), ("1.width", b"30")),
    *(("sub/2.jpg", b"2"), ("sub/2.text", b"two, 2"), ("sub/2.width", b"")),
]


@pytest.mark.parametrize("place", ["d/metadata.csv", "metadata.csv", "elsewhere.csv", "packed.csv.gz", "d/sub/x.csv"])
def test_columns_become_fields(place: str, folder: Path, inside: Inside, tmp_path: Path) -> None:
    """Names are relative to the table's folder, or to the folder; its own file is in no sample."""
    path = tmp_path / ("d/metadata.csv" if place == "metadata.csv" else place)
    path.write_bytes(gzip.compress(CSV.encode()) if place.endswith("gz") else CSV.encode())
    done = inside("tarcreate", "--folder", "d", "--rows", place)
    assert members_of(done.output()) == EXPECTED


@pytest.mark.parametrize("table", ["metadata.csv", "metadata.jsonl"])
def test_what_tar2folder_wrote(table: str, run: Run, tmp_path: Path) -> None:
    """The same samples, in the same order; with classes as folders, too."""
    for number, members in enumerate((pictures(6), [(name, payload.rstrip()) for name, payload in PETS])):
        (tmp_path / "a.tar").write_bytes(make_tar(members))
        run("tar2folder", "--rows", table, "a.tar", "-o", f"d{number}").output()
        back = run("tarcreate", "--folder", f"d{number}", "--rows", table).output()
        assert members_of(back) == members
        run("tar2folder", "--rows", table, "--class", "cls", "a.tar", "-o", f"c{number}").output()
        classed = members_of(run("tarcreate", "--folder", f"c{number}", "--rows", table).output())
        assert [data for _, data in classed] == [data for _, data in members]
        assert tree(tmp_path / f"c{number}") != tree(tmp_path / f"d{number}")


@pytest.mark.parametrize(
    ("words", "first", "second"),
    [
        ("txt=text", [("1.txt", b"one")], [("sub/2.txt", b"two, 2")]),
        ("", [], []),
        ("TEXT", [("1.text", b"one")], [("sub/2.text", b"two, 2")]),
        (
            "txt=text json",
            [("1.json", b'{"width":30}'), ("1.txt", b"one")],
            [("sub/2.json", b"{}"), ("sub/2.txt", b"two, 2")],
        ),
        ("m.json=json", [("1.m.json", b'{"text":"one","width":30}')], [("sub/2.m.json", b'{"text":"two, 2"}')]),
        ("txt.gz=text", [("1.txt.gz", None)], [("sub/2.txt.gz", None)]),
    ],
)
def test_words_choose_and_rename(words: str, first: Members, second: Members, folder: Path, inside: Inside) -> None:
    """The word json gathers the columns that no other word names; numbers are numbers there."""
    (folder / "m.csv").write_text(CSV)
    made = members_of(inside("tarcreate", "--folder", "d", "--rows", "m.csv", "-f", words).output())
    if "gz" in words:
        made = [(name, None if name.endswith("gz") else payload) for name, payload in made]  # type: ignore[misc]
    expected = [("1.jpg", b"1"), ("1.npy", b"n"), *first, ("sub/2.jpg", b"2"), *second]
    assert sorted(made) == sorted(expected)


JSON_ROWS = """
{"path": "1.jpg", "n": 1.50, "ok": true, "none": null, "meta": {"a": [1.0]}, "list": [1, 2], "m.json": {}, "txt": "é"}

{"path": "sub/2.jpg", "n": "x", "extra": -0}
"""


def test_values_of_json_lines(folder: Path, inside: Inside) -> None:
    """Numbers are as they are written, objects and lists get the suffix json; the order of rows is kept."""
    (folder / "m.jsonl").write_text("\n".join(JSON_ROWS.strip().split("\n")[::-1]))
    made = members_of(inside("tarcreate", "--folder", "d", "--rows", "m.jsonl").output())
    assert made == [
        *(("sub/2.extra", b"-0"), ("sub/2.jpg", b"2"), ("sub/2.n", b"x")),
        *(
            ("1.jpg", b"1"),
            ("1.list.json", b"[1, 2]"),
            ("1.m.json", b"{}"),
            ("1.meta.json", b'{"a": [1.0]}'),
            ("1.n", b"1.50"),
        ),
        *(("1.npy", b"n"), ("1.ok", b"true"), ("1.txt", "é".encode())),
    ]
    made = members_of(inside("tarcreate", "--folder", "d", "--rows", "m.jsonl", "-f", "json").output())
    assert (
        dict(made)["1.json"] == '{"n":1.50,"ok":true,"meta":{"a": [1.0]},"list":[1, 2],"m.json":{},"txt":"é"}'.encode()
    )


def test_values_of_parquet(folder: Path, inside: Inside) -> None:
    """Bytes are payloads, and a list of pictures is a field for each."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    rows = {
        "file_name": ["1.jpg", "sub/2.jpg"],
        "views": [[b"GIF89a", b"?"], []],
        "crop": [{"bytes": b"\xff\xd8\xff", "path": None}, None],
        "size": [[3, 4], None],
        "score": [0.5, None],
        "raw.bin": [b"\0", b""],
    }
    pq.write_table(pa.table(rows), folder / "metadata.parquet")
    made = members_of(inside("tarcreate", "--folder", "d", "--rows", "metadata.parquet").output())
    assert made == [
        *(("1.crop", b"\xff\xd8\xff"), ("1.jpg", b"1"), ("1.npy", b"n"), ("1.raw.bin", b"\0"), ("1.score", b"0.5")),
        *(("1.size.json", b"[3,4]"), ("1.views.0.gif", b"GIF89a"), ("1.views.1", b"?")),
        *(("sub/2.jpg", b"2"), ("sub/2.raw.bin", b"")),
    ]
    said = inside("tarcreate", "--folder", "d", "--rows", "metadata.parquet", "-f", "json").failure(lines=1)
    assert said.startswith("tarcreate: d/metadata.parquet: row 1: column 'json' has bytes, which JSON can't hold")


def test_further_files_of_a_row(inside: Inside, tmp_path: Path) -> None:
    """A file of another key gets the column's name and its suffix; one of the same key has its field already."""
    lay_out(tmp_path / "d", {"img/1.jpg": b"1", "img/1.seg.png": b"s", "masks/1.v2.PNG": b"m", "masks/2.png": b"2"})
    rows = [{"file_name": "img/1.jpg", "seg_file_name": "img/1.seg.png", "mask_file_name": "./masks/1.v2.PNG"}]
    (tmp_path / "d/m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = inside("tarcreate", "--folder", "d", "--rows", "m.jsonl")
    assert members_of(done.stdout) == [("img/1.jpg", b"1"), ("img/1.mask.PNG", b"m"), ("img/1.seg.png", b"s")]
    assert (done.status, done.stderr) == (1, "tarcreate: d: left out 1 file without a row: masks/2.png\n")


def test_the_column_of_file_names(folder: Path, inside: Inside) -> None:
    for header, field, options in (
        ("audio_filepath,x", "x", ()),
        ("x_file_name,x", "x", ()),
        ("name,path", "path", ("--file-column", "name")),
        ("path,file_name", "file_name", ("--file-column", "path")),
    ):
        (folder / "m.csv").write_text(f"{header}\n1.jpg,a\nsub/2.jpg,b\n")
        made = dict(members_of(inside("tarcreate", "--folder", "d", "--rows", "m.csv", *options).output()))
        assert made == FILES | {f"1.{field}": b"a", f"sub/2.{field}": b"b"}
    (folder / "m.csv").write_text("name\n1.jpg\n")
    said = inside("tarcreate", "--folder", "d", "--rows", "m.csv").failure(lines=1)
    assert (
        "no column of file names (file_name, audio_filepath, path, *_file_name)" in said and "columns are: name" in said
    )


def test_rows_and_files_without_each_other_are_listed(folder: Path, inside: Inside, tmp_path: Path) -> None:
    (folder / "m.csv").write_text("file_name\n1.jpg\n" + "".join(f"gone{n}.jpg\n" for n in range(12)))
    done = inside("tarcreate", "--folder", "d", "--rows", "m.csv")
    assert (done.status, members_of(done.stdout)) == (1, [("1.jpg", b"1"), ("1.npy", b"n")])
    listed = ", ".join(f"line {n + 3} ('gone{n}.jpg')" for n in range(10))
    assert done.stderr.splitlines() == [
        f"tarcreate: d/m.csv: left out 12 rows without a file: {listed} and 2 more",
        "tarcreate: d: left out 1 file without a row: sub/2.jpg",
    ]
    done = inside("tarcreate", "--folder", "d", "--rows", "m.csv", "--exclude-files", "2.*")
    assert done.status == 1 and "without a row" not in done.stderr
    (folder / "m.csv").write_text("file_name\n/etc/passwd\n../m.tar\n")
    said = inside("tarcreate", "--folder", "d", "--rows", "m.csv").failure(lines=1)
    assert said == "tarcreate: d/m.csv: no file that a row names is in d; the first: line 2 ('/etc/passwd')\n"


def test_a_row_reads_no_file_outside_of_the_folder(folder: Path, inside: Inside, tmp_path: Path) -> None:
    """Neither by its path, nor by a link in the folder."""
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    (folder / "link.jpg").symlink_to("../secret.jpg")
    names = ["../secret.jpg", str(tmp_path / "secret.jpg"), "sub/../../secret.jpg", "file:../secret.jpg", "link.jpg"]
    (folder / "m.csv").write_text("file_name\n1.jpg\n" + "".join(f"{name}\n" for name in names))
    done = inside("tarcreate", "--folder", "d", "--rows", "m.csv", "--skip-special")
    assert done.status == 1 and b"secret" not in done.stdout and "left out 5 rows without a file" in done.stderr


@pytest.mark.parametrize(("file", "name"), [("e\u0301", "\u00e9"), ("\u00e9", "e\u0301")])
def test_unicode_forms_of_names(file: str, name: str, inside: Inside, tmp_path: Path) -> None:
    lay_out(tmp_path / "d", {f"{file}.jpg": b"1", f"{file}{file}.png": b"2"})
    (tmp_path / "d/m.csv").write_text(f"file_name,seg_file_name,t\n{name}.jpg,{name}{name}.png,x\n")
    made = members_of(inside("tarcreate", "--folder", "d", "--rows", "m.csv").output())
    assert made == [(f"{file}.jpg", b"1"), (f"{file}.seg.png", b"2"), (f"{file}.t", b"x")]


def test_a_file_without_a_suffix_takes_no_fields(inside: Inside, tmp_path: Path) -> None:
    """A member without a field is a sample of its own: what a row adds to it would be another sample."""
    lay_out(tmp_path / "d", {"README": b"1"})
    (tmp_path / "d/m.csv").write_text("file_name,t\nREADME,x\n")
    said = inside("tarcreate", "--folder", "d", "--rows", "m.csv").failure()
    advice = "the file 'README' has no suffix, so that no field of the row can join it: rename it"
    assert said == f"tarcreate: d/m.csv: line 2: {advice}\n"
    (tmp_path / "d/m.csv").write_text("file_name\nREADME\n")
    assert members_of(inside("tarcreate", "--folder", "d", "--rows", "m.csv").output()) == [("README", b"1")]


def test_two_columns_of_parquet_with_one_name(inside: Inside, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    lay_out(tmp_path / "d", {"1.jpg": b"1"})
    columns = [pyarrow.array([value]) for value in ("1.jpg", "x", "y")]
    parquet.write_table(pyarrow.Table.from_arrays(columns, ["file_name", "t", "t"]), tmp_path / "d/m.parquet")
    said = inside("tarcreate", "--folder", "d", "--rows", "m.parquet").failure()
    assert said == "tarcreate: d/m.parquet: two columns are called 't'\n"


def test_lists_in_compressed_fields_of_json(inside: Inside, tmp_path: Path) -> None:
    lay_out(tmp_path / "d", {"1.jpg": b"1"})
    (tmp_path / "d/m.jsonl").write_text('{"file_name": "1.jpg", "meta.json.gz": [1, "a"]}')
    made = members_of(inside("tarcreate", "--folder", "d", "--rows", "m.jsonl").output())
    assert [(name, gzip.decompress(data) if "gz" in name else data) for name, data in made] == [
        ("1.jpg", b"1"), ("1.meta.json.gz", b'[1, "a"]'),
    ]  # fmt: skip


def test_keys(folder: Path, inside: Inside) -> None:
    (folder / "m.csv").write_text("file_name,id,split\n1.jpg,x/7,val\nsub/2.jpg,8.jpg,train\n")
    for options, keys in (
        (("--key-column", "id"), ["x/7", "8"]),
        (("--key-template", "{split}/{index:03d}"), ["val/000", "train/001"]),
        (("-f", "__key__=id split"), ["x/7", "8"]),
    ):
        made = members_of(inside("tarcreate", "--folder", "d", "--rows", "m.csv", *options).output())
        names = [name for name, _ in made]
        assert [name for name in names if name.endswith("jpg")] == [f"{key}.jpg" for key in keys]
        assert f"{keys[0]}.npy" in names and f"{keys[0]}.split" in names
        assert (f"{keys[0]}.id" in names) == ("{" in options[1])


WRONG = {  # rows, options, what is said
    "two rows": ("file_name\n1.jpg\n1.npy\n", (), "line 3: the file '1.npy' is of the sample that line 2 names too"),
    "no name": ("file_name,t\n,x\n", (), "line 2: it names no file in the column 'file_name'"),
    "no column": ("file_name,t\n1.jpg,x\n", ("-f", "nope"), "no column nope; the columns are: file_name t"),
    "no key": ("file_name,t\n1.jpg,x\n", ("--key-column", "nope"), "no column 'nope'; the columns are: file_name t"),
    "no file column": ("a,t\n1.jpg,x\n", ("--file-column", "nope"), "no column 'nope'; the columns are: a t"),
    "no template": ("file_name\n1.jpg\n", ("--key-template", "{nope}"), "no column 'nope'; the columns are: file_name"),
    "same key": (
        "file_name,k\n1.jpg,x\nsub/2.jpg,x\n",
        ("--key-column", "k"),
        "line 3: the key 'x' is that of line 2 too",
    ),
    "key above": (
        "file_name,k\n1.jpg,../x\n",
        ("--key-column", "k"),
        "line 2: the key '../x' is absolute or contains '..'",
    ),
    "field twice": (
        "file_name,npy\n1.jpg,x\n",
        (),
        "line 2: a file and a column, or two columns, are for the field 'npy'",
    ),
    "column twice": ("file_name,t,t\n1.jpg,x,y\n", (), "two columns are called 't'"),
    "a blank": ("file_name,a b\n1.jpg,x\n", (), "line 2: not a name for a field: 'a b'"),
    "cells": ("file_name,t\n1.jpg\n", (), "line 2: the header has 2 cells, this row has 1"),
    "further file": (
        "file_name,m_file_name\n1.jpg,x.png\n",
        (),
        "line 2: column 'm_file_name': there is no file 'x.png'",
    ),
}


@pytest.mark.parametrize(("rows", "options", "said"), WRONG.values(), ids=WRONG)
def test_wrong_rows(rows: str, options: tuple[str, ...], said: str, folder: Path, inside: Inside) -> None:
    (folder / "m.csv").write_text(rows)
    failure = inside("tarcreate", "--folder", "d", "--rows", "m.csv", *options, "-o", "a.tar").failure(lines=1)
    assert failure.startswith(f"tarcreate: d/m.csv: {said}") and os.listdir() == ["d"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--rows m.csv", "--rows needs --folder"),
        ("--coco m.json --zip a.zip", "--coco needs --folder"),
        ("--folder d --rows m.csv --coco m.json", "--rows and --coco exclude each other"),
        ("--folder d --key-column x", "--key-column needs a PLAN or --parquet or --tfrecord or --folder with --rows"),
        ("--folder d --file-column x", "--file-column needs --folder with --rows"),
        ("--folder d -f x", "-f needs a PLAN or --parquet or --tfrecord or --folder with --rows"),
        ("--folder d --rows m.xls", "the format of a table of rows is its suffix: .csv, .tsv, .jsonl or .parquet"),
        ("--key-column x --key-template y p.tsv", "--key-column and --key-template exclude each other"),
        ("--format recipe -f x p.txt", "--key-column, -f and --dots are for tables; a recipe has no columns"),
    ],
)
def test_options_that_do_not_go_together(line: str, said: str, folder: Path, inside: Inside) -> None:
    Path("m.xls").write_text("x")
    Path("p.txt").write_text("a.txt text:x\n")
    assert said in inside("tarcreate", *line.split()).failure(2, lines=1)


def test_classes_go_with_rows(inside: Inside, tmp_path: Path) -> None:
    lay_out(tmp_path / "d", {"cat/1.jpg": b"1", "dog/2.jpg": b"2"})
    (tmp_path / "d/m.csv").write_text("file_name,txt\ndog/2.jpg,b\ncat/1.jpg,a\n")
    done = inside("tarcreate", "-q", "--folder", "d", "--rows", "m.csv", "--class", "cls")
    assert members_of(done.output()) == [
        *(("dog/2.cls", b"1"), ("dog/2.cls.txt", b"dog"), ("dog/2.jpg", b"2"), ("dog/2.txt", b"b")),
        *(("cat/1.cls", b"0"), ("cat/1.cls.txt", b"cat"), ("cat/1.jpg", b"1"), ("cat/1.txt", b"a")),
    ]


# ---- COCO ----


COCO = {
    "info": {"year": 2026},
    "images": [
        {"id": 7, "file_name": "1.jpg", "width": 30, "height": 20},
        {"id": 9, "file_name": "2.jpg"},
        {"id": "x", "file_name": "gone.jpg"},
    ],
    "annotations": [
        {"id": 1, "image_id": 9, "category_id": 3, "bbox": [1, 2.5, 3, 4], "iscrowd": 0},
        {"id": 2, "image_id": 7, "caption": "a caption"},
        {"id": 3, "image_id": 9, "category_id": 1, "bbox": []},
        {"image_id": 7, "file_name": "1.png", "segments_info": [{"id": 5, "category_id": 1}]},
    ],
    "categories": [{"id": 1, "name": "dog", "supercategory": "animal"}, {"id": 3, "name": "cat"}],
}


@pytest.mark.parametrize("place", ["annotations.json", "d/sub/instances.json.gz"])
def test_a_picture_gets_its_annotations(place: str, folder: Path, inside: Inside, tmp_path: Path) -> None:
    (folder / "sub/2.jpg").rename(folder / "2.jpg")
    data = json.dumps(COCO).encode()
    (tmp_path / place).write_bytes(gzip.compress(data) if place.endswith("gz") else data)
    done = inside("tarcreate", "--folder", "d", "--coco", place)
    assert (done.status, done.stderr) == (
        1,
        f"tarcreate: {place}: left out 1 row without a file: image x ('gone.jpg')\n",
    )
    made = dict(members_of(done.stdout))
    assert list(made) == ["1.jpg", "1.json", "1.npy", "2.jpg", "2.json"]
    assert json.loads(made["1.json"]) == {
        "id": 7,
        "file_name": "1.jpg",
        "width": 30,
        "height": 20,
        "annotations": [
            {"id": 2, "caption": "a caption"},
            {"file_name": "1.png", "segments_info": [{"id": 5, "category_id": 1, "category": "dog"}]},
        ],
    }
    assert json.loads(made["2.json"])["annotations"] == [
        {"id": 1, "category_id": 3, "bbox": [1, 2.5, 3, 4], "iscrowd": 0, "category": "cat"},
        {"id": 3, "category_id": 1, "bbox": [], "category": "dog"},
    ]
    renamed = inside("tarcreate", "-q", "--folder", "d", "--coco", place, "-f", "boxes.json=json")
    assert [name for name, _ in members_of(renamed.stdout)] == [
        "1.boxes.json",
        "1.jpg",
        "1.npy",
        "2.boxes.json",
        "2.jpg",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("[]", 'not a COCO file: it has no list "images"'),
        ("{", "not JSON: "),
        ('{"images": [{"id": 1}]}', "not a COCO file: item 0 of 'images' has no 'file_name'"),
        ('{"images": [], "annotations": [3]}', "not a COCO file: item 0 of 'annotations' has no 'image_id'"),
        ('{"images": [], "annotations": {}}', "not a COCO file: 'annotations' is not a list"),
        ('{"images": [], "annotations": [{"image_id": 5}]}', "1 annotations are of no picture (the first: image 5)"),
        (
            '{"images": [{"id": 5, "file_name": "a.jpg"}, {"id": 5, "file_name": "b.jpg"}]}',
            "two images have the id 5: whose are its annotations?",
        ),
        (
            '{"images": [], "annotations": [{"image_id": 5, "category_id": 2}]}',
            "no category has the id 2, which an annotation names",
        ),
        (
            '{"images": [], "annotations": [{"image_id": 5, "category_id": [1]}]}',
            "no category has the id [1], which an annotation names",
        ),
        (
            '{"images": [], "annotations": [{"image_id": 5, "segments_info": [7]}]}',
            "not a COCO file: an item of 'segments_info' is no object",
        ),
    ],
)
def test_what_is_no_coco_file(change: str, said: str, folder: Path, inside: Inside) -> None:
    Path("c.json").write_text(change)
    assert (
        inside("tarcreate", "--folder", "d", "--coco", "c.json", "-o", "a.tar")
        .failure(lines=1)
        .startswith(f"tarcreate: c.json: {said}")
    )


# ---- keys and fields of rows that are plans, of Parquet and of TFRecord ----


PLANS = {
    "tsv": ("p.tsv", "id\ttext\tcls\n7/a\tone\t0\n8\ttwo\t1\n"),
    "csv": ("p.csv", "id,text,cls\n7/a,one,0\n8,two,1\n"),
    "jsonl": ("p.jsonl", '{"id": "7/a", "text": "one", "cls": 0}\n{"text": "two", "id": 8, "cls": 1}\n'),
    "parquet": ("--parquet p.parquet", ""),
    "tfrecord": ("--tfrecord p.tfrecord", ""),
}


@pytest.mark.parametrize("kind", PLANS)
def test_keys_and_fields_are_chosen_alike(kind: str, inside: Inside) -> None:
    source, text = PLANS[kind]
    if text:
        Path(source).write_text(text)
    else:
        if kind == "tfrecord":
            pytest.importorskip("google.protobuf")
        Path("p.csv").write_text(PLANS["csv"][1])
        Path("p.tar").write_bytes(inside("tarcreate", "p.csv").output())
        inside(f"tar2{kind}", "p.tar", "-o", f"p.{kind}").output()
    line = ["tarcreate", *source.split()]
    assert members_of(inside(*line, "--key-column", "id", "-f", "txt=text").output()) == [
        ("7/a.txt", b"one"),
        ("8.txt", b"two"),
    ]
    made = members_of(inside(*line, "--key-column", "id").output())
    assert sorted(made) == [("7/a.cls", b"0"), ("7/a.text", b"one"), ("8.cls", b"1"), ("8.text", b"two")]
    made = members_of(inside(*line, "--key-template", "{cls}/x{:02d}", "-f", "text").output())
    assert made == [("0/x00.text", b"one"), ("1/x01.text", b"two")]
    made = members_of(inside(*line, "--key-template", "{text}-{index}").output())
    assert sorted(name for name, _ in made if name.endswith("cls")) == ["one-0.cls", "two-1.cls"]
    assert members_of(inside(*line, "-f", "__key__=id cls").output()) == [("7/a.cls", b"0"), ("8.cls", b"1")]
    for options in (
        ("--key-column", "nope"),
        ("--key-template", "{nope}"),
        ("-f", "nope"),
        ("--key-column", "id", "-f", "nope"),
    ):
        assert "nope" in inside(*line, *options, "-o", "a.tar").failure()
        assert not Path("a.tar").exists()


def test_words_choose_columns_of_files(folder: Path, inside: Inside) -> None:
    """A column @jpg is named by its field, and stays one that is read; others are not even looked for."""
    Path("p.csv").write_text("__key__,@jpg,@txt,text\na,d/1.jpg,nope.txt,one\n")
    assert members_of(inside("tarcreate", "-f", "text pic.jpg=jpg", "p.csv").output()) == [
        ("a.text", b"one"),
        ("a.pic.jpg", b"1"),
    ]
    Path("p.jsonl").write_text('{"__key__": "a", "@jpg": "d/1.jpg", "@txt": "nope.txt", "\\\\@x": "one"}\n')
    made = members_of(inside("tarcreate", "-f", "@x pic.jpg=jpg", "p.jsonl").output())
    assert made == [("a.@x", b"one"), ("a.pic.jpg", b"1")]
