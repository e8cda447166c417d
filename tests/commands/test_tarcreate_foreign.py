"""tarcreate on what other programs make: names and text in other encodings, hidden folders, links, lists, nulls."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands.test_tarcreate import write_files
from tests.conftest import Run, keys_in, members_of

NFC, NFD = "\u00e9", "e\u0301"


def zip_of(names: list[bytes], system: int = 3, flags: int = 0) -> bytes:
    """Return a zip file whose members have these *names*, byte for byte, and are made on this *system*."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for number, name in enumerate(names):
            info = zipfile.ZipInfo(f"{number:0{len(name)}d}"[: len(name)])
            info.create_system = system
            archive.writestr(info, b"j")
    content = file.getvalue()
    for number, name in enumerate(names):
        content = content.replace(f"{number:0{len(name)}d}"[: len(name)].encode(), name)
    assert not flags
    return content


@pytest.mark.parametrize(
    ("name", "encoding", "code_page"),
    [("书法/颜真卿.jpg", "gbk", 437), ("テスト/写真.jpg", "cp932", 437), ("Привет/фото.jpg", "cp866", 437)],
)
def test_names_of_a_zip_file_in_another_encoding(
    name: str, encoding: str, code_page: int, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of([name.encode(encoding)]))
    done = run("tarcreate", "--zip", "a.zip", "--class", "label.txt")
    mojibake = name.encode(encoding).decode(f"cp{code_page}")
    assert done.status == 0 and mojibake in done.stderr
    assert f"--encoding {encoding} reads {name!r}" in done.stderr
    archive = run("tarcreate", "--zip", "a.zip", "--class", "label.txt", "--encoding", encoding).output()
    key, label = name.removesuffix(".jpg"), name.split("/", maxsplit=1)[0].encode()
    assert members_of(archive) == [(name, b"j"), (f"{key}.label.txt", label)]


def test_names_of_a_zip_file_that_are_as_they_should_be_are_not_guessed(run: Run, tmp_path: Path) -> None:
    for name in ("café.jpg".encode("cp437"), "书法.jpg".encode()):
        (tmp_path / "a.zip").write_bytes(zip_of([name]))
        run("tarcreate", "--zip", "a.zip").output()
    (tmp_path / "a.zip").write_bytes(zip_of(["テスト.jpg".encode("cp932")]))
    said = run("tarcreate", "--zip", "a.zip", "--encoding", "euc_jp").failure(lines=1)
    assert "tarcreate: a.zip: the name " in said and said.endswith(" is not euc_jp\n")
    said = run("tarcreate", "--zip", "a.zip", "--encoding", "klingon").failure(2)
    assert "not an encoding: 'klingon'" in said
    assert "--encoding needs a PLAN or --zip" in run("tarcreate", "--folder", ".", "--encoding", "gbk").failure(2)


def test_a_backslash_separates_folders_if_no_slash_does_and_the_file_is_from_windows(run: Run, tmp_path: Path) -> None:
    names = [rb"train\cat\1.jpg", rb"train\dog\2.jpg", rb"a/b\3.jpg"]
    (tmp_path / "a.zip").write_bytes(zip_of(names, system=0))
    done = run("tarcreate", "--zip", "a.zip")
    assert [name for name, _ in members_of(done.stdout)] == ["train/cat/1.jpg", "train/dog/2.jpg", r"a/b\3.jpg"]
    said = "tarcreate: a.zip: backslashes in 'train\\\\cat\\\\1.jpg' separate folders, as in 1 more name\n"
    assert (done.status, done.stderr) == (0, said)
    (tmp_path / "a.zip").write_bytes(zip_of(names, system=3))  # where a backslash is part of a name
    assert [name for name, _ in members_of(run("tarcreate", "--zip", "a.zip").output())] == [n.decode() for n in names]
    (tmp_path / "a.zip").write_bytes(zip_of([rb"..\..\x.jpg"], system=0))
    assert "is absolute or contains '..'" in run("tarcreate", "--zip", "a.zip").failure()


def test_hidden_folders_and_those_of_systems_are_no_classes(run: Run, tmp_path: Path) -> None:
    junk = [".ipynb_checkpoints/1.jpg", "@eaDir/1.jpg", "cat/.git/x.jpg", "__MACOSX/cat/._1.jpg", "#recycle/1.jpg"]
    write_files(tmp_path / "raw", "cat/1.jpg", "dog/2.jpg", *junk)
    done = run("tarcreate", "--folder", "raw", "--class", "cls")
    assert keys_in(done.stdout) == ["cat/1", "dog/2"]
    said = ["tarcreate: raw: left out #recycle/ and 4 more", "tarcreate: cls: 0 cat, 1 dog"]
    assert (done.status, done.stderr.splitlines()) == (0, said)
    with zipfile.ZipFile(tmp_path / "raw.zip", "w") as archive:
        for name in sorted(["cat/1.jpg", "dog/2.jpg", *junk]):
            archive.write(tmp_path / "raw" / name, name)
    zipped = run("tarcreate", "--zip", "raw.zip", "--class", "cls")
    assert (zipped.status, sorted(members_of(zipped.stdout))) == (0, sorted(members_of(done.stdout)))
    assert "tarcreate: raw.zip: left out #recycle/1.jpg and 4 more" in zipped.stderr.splitlines()
    os.rename(tmp_path / "raw", tmp_path / ".raw")  # the folder itself may be hidden
    assert run("tarcreate", "--folder", ".raw", "--class", "cls").stdout == done.stdout


def test_links_are_followed_on_request(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "blobs", "5f2a", "77bc", "d/x.txt")
    folder = tmp_path / "snapshot"
    folder.mkdir()
    (folder / "a.jpg").symlink_to("../blobs/5f2a")
    (folder / "a.txt").symlink_to(tmp_path / "blobs/77bc")
    (folder / "d").symlink_to("../blobs/d")
    done = run("tarcreate", "--folder", "snapshot")
    assert done.status == 1 and "(--follow reads the files that links name, --skip-special accepts" in done.stderr
    expected = [("a.jpg", b"5f2a"), ("a.txt", b"77bc"), ("d/x.txt", b"d/x.txt")]
    assert members_of(run("tarcreate", "--folder", "snapshot", "--follow").output()) == expected
    (folder / "up").symlink_to("..")  # which contains this folder again
    (folder / "self").symlink_to("self")
    (folder / "gone").symlink_to("nothing")
    done = run("tarcreate", "--folder", "snapshot", "--follow", "--exclude-files", "blobs")
    assert (done.status, members_of(done.stdout)) == (1, expected)
    assert (
        "snapshot/gone: a broken symbolic link is not followed and not stored; nor are 2 more such files" in done.stderr
    )
    assert "--follow needs --folder" in run("tarcreate", "--zip", "a.zip", "--follow").failure(2)


def test_keys_that_differ_in_their_unicode_form_alone_are_told(run: Run, tmp_path: Path) -> None:
    write_files(tmp_path / "raw", f"{NFC}.jpg", f"{NFD}.txt")
    done = run("tarcreate", "--folder", "raw")
    assert done.status == 0 and len(keys_in(done.stdout)) == 2 and done.stderr.count("\n") == 1
    assert r"the keys 'e\u0301' and '\xe9' look the same, but one is in another Unicode form" in done.stderr
    done = run("tarcreate", stdin=f"__key__\ttxt\n{NFC}\t1\nb\t2\n{NFD}\t3\n".encode())
    assert done.status == 0 and "another Unicode form" in done.stderr
    run("tarcreate", stdin=f"__key__\ttxt\n{NFC}\t1\nb\t2\nc{NFD}\t3\n".encode()).output()


# ---- text ----


@pytest.mark.parametrize(
    ("form", "rows", "place"),
    [
        ("csv", "__key__,txt,note\na,ok,x\nb,caf\u00e9,x\n", "line 3, column txt"),
        ("tsv", "__key__\ttxt\na\tok\nb\tcaf\u00e9\n", "line 3, column txt"),
        ("jsonl", '{"__key__": "a", "txt": "ok"}\n{"__key__": "b", "txt": "caf\u00e9"}\n', "line 2"),
        ("recipe", "a.txt text:ok\nb.txt text:caf\u00e9\n", "line 2"),
    ],
)
def test_text_in_another_encoding_is_refused_or_read(form: str, rows: str, place: str, run: Run) -> None:
    said = run("tarcreate", "--format", form, "-o", "a.tar", stdin=rows.encode("latin-1")).failure(lines=1)
    assert f"stdin: {place}: not UTF-8 text (byte " in said and "--encoding cp1252" in said
    expected = run("tarcreate", "--format", form, stdin=rows.encode()).output()
    for encoding in ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig"):
        done = run("tarcreate", "--format", form, "--encoding", encoding, stdin=rows.encode(encoding))
        assert done.output() == expected
    said = run("tarcreate", "--format", form, "--encoding", "ascii", stdin=rows.encode()).failure(lines=1)
    assert f"stdin: {place.partition(',')[0]}: not ascii text" in said


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "recipe"])
def test_utf16_is_named(form: str, encoding: str, run: Run) -> None:
    said = run("tarcreate", "--format", form, stdin="key,txt\n1,2\n".encode(encoding)).failure(lines=1)
    advice = "utf-16" if encoding == "utf-16" else encoding
    assert said == f"tarcreate: stdin: this is {encoding[:6].upper()} text, not UTF-8: --encoding {advice} reads it\n"


def test_keys_and_names_of_files_may_be_any_bytes(run: Run, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xe9.txt")).write_bytes(b"1")
    done = run("tarcreate", stdin=b"__key__\t@txt\tcls\n\xe9\t\xe9.txt\t7\n")
    assert (done.status, members_of(done.stdout)) == (0, [("\udce9.txt", b"1"), ("\udce9.cls", b"7")])


@pytest.mark.parametrize("name", ["file name", "a:b", "a=b", "c;d"])
def test_a_column_that_no_option_could_name_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    said = run("tarcreate", "--format", "csv", stdin=f"{name},txt\n1,2\n".encode()).failure(lines=1)
    assert f"stdin: line 1: not a name for a field: {name!r} (blanks separate fields in options" in said
    (tmp_path / "a.tar").write_bytes(run("tarcreate", stdin=b"__key__\ttxt\na\t1\n").output())
    (tmp_path / "b.csv").write_text(f"key,{name}\na,1\n")
    assert "b.csv: line 1: not a name for a field" in run("tarjoin", "a.tar", "b.csv").failure(lines=1)
    (tmp_path / "b.jsonl").write_text(f'{{"key": "a", "{name}": 1}}\n')
    assert "b.jsonl: line 1: not a name for a field" in run("tarjoin", "a.tar", "b.jsonl").failure(lines=1)


def test_a_column_of_file_names_that_are_not_read_is_told(run: Run, tmp_path: Path) -> None:
    advice = "no column is read from files, but 'file_name' has names of files: 'd/0.JPG'; call it '@jpg' to read them"
    advice += ", and write --key-column @jpg if their names are the keys"
    (tmp_path / "m.csv").write_text("file_name,txt\nd/0.JPG,a cat\nd/1.JPG,a dog\n")
    done = run("tarcreate", "m.csv")
    assert (done.status, done.stderr) == (0, f"tarcreate: m.csv: {advice}\n")
    (tmp_path / "m.jsonl").write_text('{"file_name": "d/0.JPG", "txt": "a cat"}\n')
    assert run("tarcreate", "m.jsonl").stderr == f"tarcreate: m.jsonl: {advice}\n"
    (tmp_path / "m.csv").write_text("txt,url\na cat.,http://host/\n")
    run("tarcreate", "m.csv").output()
    write_files(tmp_path, "d/0.JPG")
    (tmp_path / "m.csv").write_text("@jpg,file_name\nd/0.JPG,d/0.JPG\n")
    run("tarcreate", "m.csv").output()


def test_names_of_files_are_keys(run: Run, tmp_path: Path) -> None:
    """A list of file names and captions: the files are read, and name the samples."""
    write_files(tmp_path, "d/0.JPG", "d/1.jpg")
    (tmp_path / "m.csv").write_text("@jpg,txt\nd/0.JPG,a cat\nd/1.jpg,a dog\n")
    (tmp_path / "m.jsonl").write_text('{"@jpg": "d/0.JPG", "txt": "a cat"}\n{"@jpg": "d/1.jpg", "txt": "a dog"}\n')
    for plan in ("m.csv", "m.jsonl"):
        members = members_of(run("tarcreate", "--key-column", "@jpg", plan).output())
        assert [name for name, _ in members] == ["d/0.jpg", "d/0.txt", "d/1.jpg", "d/1.txt"]
        assert members[0][1] == (tmp_path / "d/0.JPG").read_bytes() and members[3][1] == b"a dog"
        chosen = run("tarcreate", "--key-column", "@jpg", "-f", "caption.txt=txt", plan).output()
        assert [name for name, _ in members_of(chosen)] == ["d/0.caption.txt", "d/1.caption.txt"]
    (tmp_path / "n.tsv").write_text("file\ttxt\na.1.jpg\tone\n")
    said = run("tarcreate", "--key-column", "file", "n.tsv").failure(lines=1)
    assert (
        "n.tsv: line 2, column file: the key 'a.1.jpg' would not read back" in said and "--dots first or last" in said
    )
    (tmp_path / "n.jsonl").write_text('{"file": "a.1.jpg", "txt": "one"}\n')
    for plan in ("n.tsv", "n.jsonl"):
        for dots, key in (("first", "a"), ("last", "a_1")):
            out = run("tarcreate", "--key-column", "file", "--dots", dots, plan).output()
            assert members_of(out) == [(f"{key}.txt", b"one")]
    (tmp_path / "o.tsv").write_text("__key__\ttxt\n22.05\tnumber\n")  # not the suffix of a file
    assert "the key '22.05' would not read back" in run("tarcreate", "o.tsv").failure(lines=1)
    (tmp_path / "o.jsonl").write_text('{"__key__": "a.jpg", "txt": "1"}\n{"__key__": "a.png", "txt": "2"}\n')
    assert "o.jsonl: line 2, column __key__: the key 'a' is that of line 1 too" in run("tarcreate", "o.jsonl").stderr


def test_a_folder_without_files_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "bare/below").mkdir(parents=True)
    done = run("tarcreate", "--folder", "bare")
    assert (done.status, members_of(done.stdout)) == (0, [])
    assert done.stderr == "tarcreate: bare: no files, so the archive has no samples\n"


def test_what_is_no_plan_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pic.jpg").write_bytes(b"\xff\xd8\xff\xe0\0\x10JFIF\0")
    said = run("tarcreate", "pic.jpg").failure(lines=1)
    assert "pic.jpg: this is a JPEG picture, not a plan: tarcreate --folder DIR" in said
    (tmp_path / "a dir").mkdir()
    said = run("tarcreate", "a dir").failure(lines=1)
    assert "a dir: is a directory, not a plan: tarcreate --folder 'a dir' makes samples of its files" in said


# ---- rows of Parquet files ----


def parquet(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), path)


@pytest.mark.parametrize("options", [(), ("-f", "jpg=image")])
def test_a_row_without_a_value_is_left_out_and_reported(options: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    parquet(tmp_path / "n.parquet", {"image": [b"a", None, b"c", None]})
    done = run("tarcreate", "-v", "--parquet", "n.parquet", *options)
    assert done.status == 1 and [payload for _, payload in members_of(done.stdout)] == [b"a", b"c"]
    said, account = done.stderr.splitlines()
    assert said == "tarcreate: 2 rows without a value for a field are left out (the first: row 2 of n.parquet)"
    assert account.startswith("tarcreate: 4 samples in, 2 out, 2 left out and reported")


PNG, GIF = b"\x89PNG\r\n\x1a\n1", b"GIF89a"
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def test_a_list_of_pictures_becomes_numbered_fields(run: Run, tmp_path: Path) -> None:
    files = [[{"bytes": b"J", "path": "x/a.JPG"}, None, {"bytes": GIF, "path": None}], None, []]
    columns = {
        "__key__": ["a", "b", "c"],
        "images": pa.array(files, pa.list_(FILE)),
        "view": pa.array([[PNG], [b"?", b"!"], None], pa.list_(pa.binary())),
        "n": [[1, 2], [], None],
        "cls": [1, 2, 3],
    }
    parquet(tmp_path / "l.parquet", columns)
    assert members_of(run("tarcreate", "--parquet", "l.parquet").output()) == [
        *(
            ("a.images.0.jpg", b"J"),
            ("a.images.2.gif", GIF),
            ("a.view.0.png", PNG),
            ("a.n", b"[1, 2]"),
            ("a.cls", b"1"),
        ),
        *(("b.view.0", b"?"), ("b.view.1", b"!"), ("b.n", b"[]"), ("b.cls", b"2"), ("c.cls", b"3")),
    ]
    done = run("tarcreate", "--parquet", "l.parquet", "-f", "jpg=images left.png=view")
    assert [name for name, _ in members_of(done.stdout)] == [
        *("a.0.jpg", "a.2.jpg", "a.left.0.png", "b.left.0.png", "b.left.1.png")
    ]
    (tmp_path / "a.tar").write_bytes(run("tarcreate", stdin=b"__key__\ttxt\na\t1\n").output())
    joined = run("tarjoin", "-f", "images", "--key-column", "__key__", "a.tar", "l.parquet")
    assert members_of(joined.stdout) == [("a.txt", b"1"), ("a.images.0.jpg", b"J"), ("a.images.2.gif", GIF)]


def test_a_picture_of_a_row_is_joined_as_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(run("tarcreate", stdin=b"__key__\ttxt\na\t1\n").output())
    parquet(tmp_path / "p.parquet", {"key": ["a"], "png": pa.array([{"bytes": PNG, "path": "x"}], FILE)})
    assert members_of(run("tarjoin", "a.tar", "p.parquet").output()) == [("a.txt", b"1"), ("a.png", PNG)]


def test_bytes_inside_of_objects_are_refused(run: Run, tmp_path: Path) -> None:
    parquet(tmp_path / "o.parquet", {"key": ["a"], "x": [{"picture": PNG, "n": 1}], "cls": [1]})
    what = "the column 'x' has bytes inside of lists or objects, which JSON can't hold; -f chooses other columns"
    assert what in run("tarcreate", "--parquet", "o.parquet").failure(lines=1)
    (tmp_path / "a.tar").write_bytes(run("tarcreate", stdin=b"__key__\ttxt\na\t1\n").output())
    assert what in run("tarjoin", "a.tar", "o.parquet").failure(lines=1)
    assert members_of(run("tarcreate", "--parquet", "o.parquet", "-f", "cls __key__=key").output()) == [("a.cls", b"1")]


# ---- keys that are names of files ----


@pytest.mark.parametrize(
    ("name", "options", "key"),
    [
        ("d/n01_10026.JPEG", (), "d/n01_10026"),
        ("a.1.jpg", ("--dots", "first"), "a"),
        ("v.1/a.1.jpg", ("--dots", "last"), "v.1/a_1"),
        ("22.05", ("--dots", "first"), "22"),
        ("plain", (), "plain"),
    ],
)
def test_a_key_that_is_the_name_of_a_file(
    name: str, options: tuple[str, ...], key: str, run: Run, tmp_path: Path
) -> None:
    parquet(tmp_path / "f.parquet", {"file_name": [name], "cls": [7]})
    spec = ("-f", "cls __key__=file_name", *options)
    assert members_of(run("tarcreate", "--parquet", "f.parquet", *spec).output()) == [(f"{key}.cls", b"7")]
    (tmp_path / "a.tar").write_bytes(run("tarcreate", stdin=f"__key__\tcls\tfile_name\nx\t7\t{name}\n".encode()).stdout)
    run("tar2tfrecord", "a.tar", "-o", "f.tfrecord", "-f", "cls image/filename=file_name").output()
    spec = ("-f", "cls __key__=image.filename", *options)
    assert members_of(run("tarcreate", "--tfrecord", "f.tfrecord", *spec).output()) == [(f"{key}.cls", b"7")]


@pytest.mark.parametrize("name", ["22.05", "a.1.jpg"])
def test_a_key_that_may_end_at_several_dots_is_refused(name: str, run: Run, tmp_path: Path) -> None:
    parquet(tmp_path / "f.parquet", {"file_name": [name], "cls": [7]})
    said = run("tarcreate", "--parquet", "f.parquet", "-f", "cls __key__=file_name").failure(lines=1)
    assert f"the key {name!r} would not read back" in said and "--dots first or last says where the key ends" in said
