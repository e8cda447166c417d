"""tar2folder: samples as files of a folder, and their text in a table; names stay inside, whatever the shard says."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest

from tests.archives import encoded, header
from tests.commands.conftest import Inside
from tests.commands.test_nothing_left import small_files
from tests.conftest import Run, make_tar, members_of, python
from tests.properties.test_model import Members
from tests.tiers import by_turns

PETS: Members = [
    ("cat/1.cls", b"0"),
    ("cat/1.jpg", b"\xff\xd8\xff1"),
    ("cat/1.json", b'{"w": 1.50, "tags": ["a", "b"]}'),
    ("cat/1.txt", b'a "cat", so\nthere'),
    ("dog/2.cls", b"1"),
    ("dog/2.jpg", b"\xff\xd8\xff2"),
    ("dog/2.json", b'{"w": 2}'),
    ("dog/2.txt", b"a dog\n"),
]


def tree(folder: Path) -> dict[str, bytes]:
    """Return the files below *folder*, hidden ones too, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """Write the samples of `PETS` to a.tar in the folder of the test."""
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar(PETS))
    return path


def test_there_and_back(shard: Path, run: Run, tmp_path: Path) -> None:
    done = run("tar2folder", "-v", "a.tar", "-o", "new/pets")
    assert (done.status, done.stdout) == (0, b"") and done.stderr.startswith("tar2folder: 2 samples in, 2 out, ")
    assert tree(tmp_path / "new") == {f"pets/{name}": payload for name, payload in PETS}
    assert members_of(run("tarcreate", "--folder", "new/pets").output()) == PETS
    umask = os.umask(0)
    os.umask(umask)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*.jpg")} == {0o666 & ~umask}
    assert run("tar2folder", "-o", "from-stdin", stdin=shard.read_bytes()).output() == b""
    assert tree(tmp_path / "from-stdin") == dict(PETS)


def test_large_members_are_copied_from_the_file(run: Run, tmp_path: Path) -> None:
    payload = os.urandom(17 << 20)
    (tmp_path / "a.tar").write_bytes(make_tar([("a.bin", payload)]))
    for source in ("a.tar", "pipe:cat a.tar"):
        run("tar2folder", source, "-o", "d", "--force").output()
        assert tree(tmp_path / "d") == {"a.bin": payload}


def test_classes_become_folders(shard: Path, inside: Inside, tmp_path: Path) -> None:
    """By a field, which has no file then, or by a value in JSON; where the class is the folder already, it stays."""
    made: Members = [("1.jpg", b"1"), ("1.cls.txt", b"cat\n"), ("x/2.jpg", b"2"), ("x/2.cls.txt", b"big dog")]
    (tmp_path / "b.tar").write_bytes(make_tar(made))
    inside("tar2folder", "--class", "nope;CLS.txt", "b.tar", "-o", "b").output()
    assert tree(tmp_path / "b") == {"cat/1.jpg": b"1", "x/big dog/2.jpg": b"2"}
    members = [("x/big dog/2.cls.txt", b"big dog"), ("x/big dog/2.jpg", b"2")]
    back = members_of(inside("tarcreate", "--folder", "b", "--class", "cls.txt").output())
    assert back == [("cat/1.cls.txt", b"cat"), ("cat/1.jpg", b"1"), *members]
    (tmp_path / "c.tar").write_bytes(make_tar(back))
    inside("tar2folder", "--class", "cls.txt", "c.tar", "-o", "c").output()
    assert tree(tmp_path / "c") == tree(tmp_path / "b")
    (tmp_path / "e.tar").write_bytes(make_tar([("1.jpg", b"1"), ("1.cls", b"cat")]))
    inside("tar2folder", "--class", "__key__;cls", "e.tar", "-o", "e").output()  # the key is the class: cls stays
    assert tree(tmp_path / "e") == {"1/1.jpg": b"1", "1/1.cls": b"cat"}
    inside("tar2folder", "--class", "json:tags.0", "-c", "1", "a.tar", "-o", "d").output()
    assert tree(tmp_path / "d") == {name.replace("cat/", "cat/a/"): payload for name, payload in PETS[:4]}


@pytest.mark.parametrize("label", ["", ".", "..", "a/b", "/etc", "a\nb", "\x1b[0m", ".git", "@eaDir", "__MACOSX"])
def test_a_class_that_is_no_name_of_a_folder(label: str, inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", b"1"), ("a.cls.txt", label.encode())]))
    said = inside("tar2folder", "--class", "cls.txt", "a.tar", "-o", "d").failure(lines=1)
    assert said.startswith("tar2folder: a.tar: sample 'a': the class ") and "can't be the name of a folder" in said
    assert os.listdir() == ["a.tar"]


def test_a_sample_without_a_class(shard: Path, inside: Inside) -> None:
    said = inside("tar2folder", "--class", "label", "a.tar", "-o", "d").failure(lines=1)
    assert (
        said == "tar2folder: a.tar: sample 'cat/1' has no value for --class label; its fields are: cls jpg json txt\n"
    )
    assert "has no other field" in inside("tar2folder", "-f", "cls", "--class", "cls", "a.tar", "-o", "d").failure()
    assert os.listdir() == ["a.tar"]


ROWS_CSV = b"""file_name,cls,json,txt\r
cat/1.jpg,0,"{""w"": 1.50, ""tags"": [""a"", ""b""]}","a ""cat"", so\nthere"\r
dog/2.jpg,1,"{""w"": 2}",a dog\r
"""
ROWS_JSONL = rb"""
{"file_name": "cat/1.jpg", "cls": 0, "json": {"w": 1.50, "tags": ["a", "b"]}, "txt": "a \"cat\", so\nthere"}
{"file_name": "dog/2.jpg", "cls": 1, "json": {"w": 2}, "txt": "a dog"}
""".lstrip()


def test_text_goes_to_a_table(shard: Path, inside: Inside, tmp_path: Path) -> None:
    for name, rows in (("metadata.csv", ROWS_CSV), ("metadata.jsonl", ROWS_JSONL)):
        inside("tar2folder", "--rows", name, "a.tar", "-o", name[:-4]).output()
        assert tree(tmp_path / name[:-4]) == {"cat/1.jpg": PETS[1][1], "dog/2.jpg": PETS[5][1], name: rows}
    inside("tar2folder", "--rows", "t.csv", "--verbatim", "-f", "jpg text=txt", "a.tar", "-o", "v").output()
    assert tree(tmp_path / "v")["t.csv"].endswith(b'\r\ndog/2.jpg,"a dog\n"\r\n')
    inside("tar2folder", "--rows", "t.csv", "--class", "json:w", "-f", "jpg json", "a.tar", "-o", "w").output()
    assert [*tree(tmp_path / "w")] == [
        "t.csv",
        *sorted(["cat/1.5/1.jpg", "dog/2/2.jpg"], key=[*tree(tmp_path / "w")].index),
    ]


def test_values_in_json_lines(inside: Inside, tmp_path: Path) -> None:
    """Numbers of classes are numbers where these are written so; JSON is as it was written, on one line."""
    samples: Members = [
        *(("a.png", b"1"), ("a.cls", b"05"), ("a.id", b"-7"), ("a.m.json", b'\xef\xbb\xbf{\n "a":\r\n 1e2}\n')),
        *(
            ("b.png", b"1"),
            ("b.cls", b"5\n"),
            ("b.id", b"9" * 19),
            ("b.m.json", b"null"),
            ("b.txt", "\u2028é".encode()),
        ),
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(samples))
    inside("tar2folder", "--rows", "m.jsonl", "a.tar", "-o", "d").output()
    lines = (tmp_path / "d/m.jsonl").read_text().removesuffix("\n").split("\n")
    assert lines[0] == '{"file_name": "a.png", "cls": "05", "id": -7, "m.json": {  "a":   1e2}}'
    assert json.loads(lines[1]) == {"file_name": "b.png", "cls": 5, "id": "9" * 19, "m.json": None, "txt": "\u2028é"}


def test_a_row_names_the_main_file_and_others_of_its_kind(inside: Inside, tmp_path: Path) -> None:
    fields = ("npy", "seg.png", "jpg", "depth.png", "seg.webp", "wav")
    (tmp_path / "a.tar").write_bytes(make_tar([(f"a.{field}", b"1") for field in fields]))
    inside("tar2folder", "--rows", "m.jsonl", "a.tar", "-o", "d").output()
    row = json.loads((tmp_path / "d/m.jsonl").read_text())
    assert row == {
        "file_name": "a.jpg",
        "seg_file_name": "a.seg.png",
        "depth_file_name": "a.depth.png",
        "seg.webp_file_name": "a.seg.webp",
    }
    assert sorted(os.listdir("d")) == sorted([*(f"a.{field}" for field in fields), "m.jsonl"])


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("b.png", b"")], "sample 'b' lacks 'txt', unlike the first one"),
        ([("b.png", b""), ("b.txt", b""), ("b.cls", b"")], "sample 'b' has 'cls', unlike the first one"),
        ([("b.png", b""), ("b.seg.png", b""), ("b.txt", b"")], "sample 'b' has 'seg_file_name', unlike the first one"),
        ([("b.txt", b"1")], "sample 'b' has text alone, and a row of a table needs a file"),
        ([("b.png", b""), ("b.txt", b"\xff")], "sample 'b', field 'txt': not UTF-8 text (byte 0)"),
        ([("m.csv/x", b"")], "sample 'm.csv/x': 'm.csv' would be a file and a folder"),
        ([("M.CSV", b""), ("M.png", b"")], "sample 'M' has 'CSV', unlike the first one"),
        ([("M.CSV/a.png", b""), ("M.CSV/a.txt", b"")], "sample 'M.CSV/a': 'm.csv' and 'M.CSV' are one name"),
    ],
)
def test_what_does_not_fit_a_csv(members: Members, said: str, inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.png", b""), ("a.txt", b""), *members]))
    assert said in inside("tar2folder", "--rows", "m.csv", "a.tar", "-o", "d").failure(lines=1)
    assert os.listdir() == ["a.tar"]


@pytest.mark.parametrize("payload", [b"{", b"", b'{"a": NaN}', b'"\x01"', b"\xff"])
def test_json_that_is_none(payload: bytes, inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.png", b""), ("a.json", payload)]))
    said = inside("tar2folder", "--rows", "m.jsonl", "a.tar", "-o", "d").failure(lines=1)
    assert said.startswith("tar2folder: a.tar: sample 'a', field 'json': ") and os.listdir() == ["a.tar"]


@pytest.mark.parametrize("name", ["", "a.tsv", "d/metadata.csv", "../m.csv", ".csv", "metadata"])
def test_a_name_of_a_table_that_is_none(name: str, shard: Path, inside: Inside) -> None:
    assert "not a name for --rows" in inside("tar2folder", "--rows", name, "a.tar", "-o", "d").failure(2, lines=1)


# ---- names ----


BAD_NAMES: dict[str, tuple[Members, str]] = {
    "absolute": ([("/tmp/evil.txt", b"1")], "the key '/tmp/evil' is absolute or contains '..'"),
    "above": ([("../evil.txt", b"1")], "the key '../evil' is absolute or contains '..'"),
    "above, later": ([("a/../../evil.txt", b"1")], "the key 'a/../../evil' is absolute or contains '..'"),
    "two dots": ([("a/..", b"1")], "the key 'a/..' is absolute or contains '..'"),
    "case": ([("A.jpg", b"1"), ("a.jpg", b"2")], "sample 'a': 'A.jpg' and 'a.jpg' are one name on macOS and Windows"),
    "case of fields": ([("a.jpg", b"1"), ("a.JPG", b"2")], "sample 'a': 'a.jpg' and 'a.JPG' are one name"),
    "case of folders": ([("Cat/1.jpg", b"1"), ("cat/2.jpg", b"2")], "sample 'cat/2': 'Cat' and 'cat' are one name"),
    "case of ß": ([("groß/1.jpg", b"1"), ("gross/2.jpg", b"2")], "'groß' and 'gross' are one name"),
    "Unicode": ([("e\u0301.jpg", b"1"), ("\u00e9.jpg", b"2")], "are one name on macOS and Windows"),
    "twice": ([("a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")], "sample 'a': two files would be called 'a.jpg'"),
    "twice by dots": ([("./a.jpg", b"1"), ("b.jpg", b"2"), ("a.jpg", b"3")], "two files would be called 'a.jpg'"),
    "key twice": (
        [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.txt", b"3")],
        "sample 'a': an earlier sample has the same key",
    ),
    "file, folder": ([("a", b"1"), ("a/b.jpg", b"2")], "sample 'a/b': 'a' would be a file and a folder"),
    "folder, file": ([("a/b.jpg", b"2"), ("a", b"1")], "sample 'a': 'a' would be a file and a folder"),
    "long": ([("a" * 300 + ".jpg", b"1")], "File name too long"),
}


@pytest.mark.parametrize(("members", "said"), BAD_NAMES.values(), ids=BAD_NAMES)
@pytest.mark.parametrize("exists", [False, True])
def test_a_bad_name_leaves_nothing(members: Members, said: str, exists: bool, inside: Inside, tmp_path: Path) -> None:
    """Neither in the folder nor outside of it, with --force either."""
    import tarfile

    (tmp_path / "a.tar").write_bytes(make_tar([("0.jpg", b"0"), *members], tarfile.PAX_FORMAT))
    if exists:
        (tmp_path / "d").mkdir()
        (tmp_path / "d/kept").write_bytes(b"kept")
    before = tree(tmp_path)
    done = inside("tar2folder", "-q", "--force", "a.tar", "-o", "d")
    assert said in done.failure(lines=1)
    assert tree(tmp_path) == before and sorted(os.listdir()) == ["a.tar", *["d"] * exists]
    assert not Path("../evil.txt").exists() and not Path("/tmp/evil.txt").exists()


def test_plain_dots_and_slashes_are_no_folders(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("./a//b.jpg", b"1"), ("./c..d/e.jpg", b"2"), ("README", b"3")]))
    inside("tar2folder", "a.tar", "-o", "d").output()
    assert tree(tmp_path / "d") == {"a/b.jpg": b"1", "c..d/e.jpg": b"2", "README": b"3"}


def test_links_in_a_shard_are_not_made(inside: Inside, tmp_path: Path) -> None:
    """A link to a folder outside, and a member that would be in it."""
    link = bytearray(header(b"d", kind=b"2"))
    (tmp_path / "a.tar").write_bytes(bytes(link) + make_tar([("d/evil.txt", b"1")]))
    done = inside("tar2folder", "a.tar", "-o", "out")
    assert done.status == 1 and "a symbolic link carries no sample data" in done.stderr
    assert not (tmp_path / "out/d").is_symlink() and tree(tmp_path / "out") == {"d/evil.txt": b"1"}


def test_a_link_in_the_folder_is_not_followed(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d/x").symlink_to("../elsewhere")
    (tmp_path / "d/y.txt").symlink_to("../elsewhere/y.txt")
    (tmp_path / "a.tar").write_bytes(make_tar([("x/evil.txt", b"1")]))
    said = inside("tar2folder", "--force", "a.tar", "-o", "d").failure(lines=1)
    assert said == "tar2folder: d/x: is a symbolic link, by which files could leave the folder\n"
    (tmp_path / "a.tar").write_bytes(make_tar([("y.txt", b"1")]))
    assert "d/y.txt: already exists" in inside("tar2folder", "a.tar", "-o", "d").failure()
    inside("tar2folder", "--force", "a.tar", "-o", "d").output()  # replaces the link
    assert os.listdir("elsewhere") == [] and not Path("d/y.txt").is_symlink()
    os.symlink("d", "link")
    (tmp_path / "a.tar").write_bytes(make_tar([("z.txt", b"1")]))
    inside("tar2folder", "a.tar", "-o", "link").output()  # the user's own name is followed
    assert Path("d/z.txt").read_bytes() == b"1" and Path("link").is_symlink()


def test_names_that_tarcreate_leaves_out_are_told(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(".git/a.txt", b"1"), ("b/Thumbs.db", b"2"), ("c.txt", b"3")]))
    done = inside("tar2folder", "a.tar", "-o", "d")
    warning = "'.git/a.txt' and 1 more file will be left out by tarcreate --folder, which skips such names"
    assert done == (0, b"", f"tar2folder: {warning}\n")
    assert [*tree(tmp_path / "d")].__len__() == 3


# ---- whole or not at all ----


def test_a_folder_that_exists(shard: Path, inside: Inside, tmp_path: Path) -> None:
    """Other files stay; without --force nothing changes if one of ours is there."""
    (tmp_path / "d/dog").mkdir(parents=True)
    (tmp_path / "d/kept").write_bytes(b"kept")
    inside("tar2folder", "-f", "jpg", "a.tar", "-o", "d").output()
    jpgs = {name: payload for name, payload in PETS if name.endswith("jpg")}
    assert tree(tmp_path / "d") == {"kept": b"kept", **jpgs}
    (tmp_path / "d/dog/2.jpg").write_bytes(b"mine")
    (tmp_path / "d/cat/1.jpg").unlink()
    (tmp_path / "d/cat").rmdir()
    before = tree(tmp_path)
    said = inside("tar2folder", "a.tar", "-o", "d").failure(lines=1)
    assert said == "tar2folder: d/dog/2.jpg: already exists; --force replaces it\n" and tree(tmp_path) == before
    inside("tar2folder", "--force", "a.tar", "-o", "d").output()
    assert tree(tmp_path / "d") == {"kept": b"kept", **dict(PETS)}
    assert sorted(os.listdir("d")) == ["cat", "dog", "kept"]


def test_an_input_is_not_replaced(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    archive = make_tar([("a.tar", b"1")])
    (tmp_path / "d/a.tar").write_bytes(archive)
    said = inside("tar2folder", "--force", "d/a.tar", "-o", "d").failure(lines=1)
    assert said == "tar2folder: d/a.tar: this output is also an input\n" and tree(tmp_path) == {"d/a.tar": archive}


def test_a_name_that_is_taken_while_it_runs(shard: Path, run: Run, tmp_path: Path) -> None:
    """Files that had moved before go back; files that they had replaced too."""
    for name in ("zz/1.txt", "d/0/kept"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    (tmp_path / "b.tar").write_bytes(make_tar([(f"{n}/a.txt", b"new") for n in range(9)]))
    taking = "pipe:cat b.tar; mkdir -p d/8; echo taken > d/8/a.txt"
    assert (
        run("tar2folder", taking, "-o", "d").failure() == "tar2folder: d/8/a.txt: already exists; --force replaces it\n"
    )
    assert tree(tmp_path / "d") == {"0/kept": b"old", "8/a.txt": b"taken\n"} and sorted(os.listdir(tmp_path / "d")) == [
        "0",
        "8",
    ]
    (tmp_path / "d/0/a.txt").write_bytes(b"old")
    linking = "pipe:cat b.tar; rm -r d/8; ln -s ../zz d/8"
    assert "d/8: is a symbolic link" in run("tar2folder", "--force", linking, "-o", "d").failure(lines=1)
    assert tree(tmp_path / "d") == {"0/kept": b"old", "0/a.txt": b"old"} and os.listdir(tmp_path / "zz") == ["1.txt"]
    making = "pipe:cat b.tar; mkdir -p e/x"
    assert run("tar2folder", making, "-o", "e").failure() == "tar2folder: e: already exists; --force replaces it\n"
    assert os.listdir(tmp_path / "e") == ["x"]


@pytest.mark.parametrize("exists", [False, True])
def test_nothing_is_left(exists: bool, shard: Path, run: Run, inside: Inside, tmp_path: Path) -> None:
    """After damage, a full disk and a signal; folders that were made for the output go, too."""
    if exists:
        (tmp_path / "x/d").mkdir(parents=True)
    (tmp_path / "cut.tar").write_bytes(shard.read_bytes()[:3000])
    before = sorted(path for path in tmp_path.rglob("*"))
    assert "cut.tar: at byte " in inside("tar2folder", "cut.tar", "-o", "x/d").failure(lines=1)
    (tmp_path / "big.tar").write_bytes(make_tar([("a.bin", bytes(1000))]))
    with small_files(500):
        done = inside("tar2folder", "big.tar", "-o", "x/d")
    assert done.failure() == "tar2folder: x/d/a.bin: File too large\n"
    (tmp_path / "big.tar").unlink()
    assert "status 3" in run("tar2folder", "pipe:cat a.tar; exit 3", "-o", "x/d").failure(lines=1)
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_name_that_does_not_reach_the_disk(
    shard: Path, inside: Inside, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The new folder has its name when the flush of that name fails: it goes again, and so does its new parent."""

    def fail(fd: int) -> None:
        if os.listdir(fd) == ["d"]:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setenv("TARTOOLS_FSYNC", "1")
    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(os, "sync", lambda: None)
    assert inside("tar2folder", "a.tar", "-o", "x/d").failure() == "tar2folder: x/d: Input/output error\n"
    assert os.listdir(tmp_path) == ["a.tar"]
    monkeypatch.setattr(os, "fsync", os.fstat)
    inside("tar2folder", "a.tar", "-o", "x/d").output()
    assert tree(tmp_path / "x/d") == dict(PETS)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@by_turns("number")
def test_nothing_is_left_of_a_signal(number: int, shard: Path, run: Run, tmp_path: Path) -> None:
    source = f"pipe:cat a.tar; kill -{int(number)} $PPID; while echo; do sleep 0.02; done"
    assert run("tar2folder", source, "-o", "d") == (-number, b"", "")
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("exists", [False, True])
def test_the_next_run_removes_what_a_killed_one_left(exists: bool, shard: Path, run: Run, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "d").mkdir()
    assert run("tar2folder", "pipe:cat a.tar; kill -9 $PPID; sleep 1", "-o", "d").status == -9
    left = list(tmp_path.rglob("*.tmp"))
    assert len(left) == 1 and left[0].is_dir() and left[0].parent == (tmp_path / "d" if exists else tmp_path)
    run("tar2folder", "a.tar", "-o", "d").output()
    assert tree(tmp_path / "d") == dict(PETS) and sorted(os.listdir(tmp_path)) == ["a.tar", "d"]


def test_outputs_that_can_not_be_a_folder(shard: Path, inside: Inside) -> None:
    assert inside("tar2folder", "a.tar").failure(2) == "tar2folder: -o DIR is required\n"
    for url in ("-", "s3://bucket/d", "pipe:cat"):
        assert "a local folder" in inside("tar2folder", "a.tar", "-o", url).failure(2, lines=1)
    assert (
        inside("tar2folder", "a.tar", "-o", "a.tar").failure()
        == "tar2folder: a.tar: is a file, and this writes a folder\n"
    )
    assert "Not a directory" in inside("tar2folder", "a.tar", "-o", "a.tar/d").failure(lines=1)
    assert os.listdir() == ["a.tar"]


# ---- what Hugging Face's datasets reads ----


LOADED = """
import sys, datasets
rows = datasets.load_dataset("imagefolder", data_dir=sys.argv[1], split="train", cache_dir="cache")
for row in rows:
    print({name: value.size if hasattr(value, "size") else value for name, value in row.items()})
"""


def pictures(count: int) -> Members:
    """Return samples of pictures of two classes, each of its own size, with a mask, text and JSON."""
    from PIL import Image

    samples: Members = []
    for n in range(count):
        key = f"{'cat' if n % 2 else 'dog'}/{n:02d}"
        samples += [(f"{key}.cls", b"%d" % (n % 2)), (f"{key}.json", b'{"wide":%d}' % (30 + n))]
        samples += [(f"{key}.png", encoded(Image.new("RGB", (30 + n, 20), (n, 0, 0)), "PNG"))]
        samples += [(f"{key}.seg.png", encoded(Image.new("L", (9, 9 + n)), "PNG")), (f"{key}.txt", b'no. %d,\n"x"' % n)]
    return samples


def loaded(folder: str, tmp_path: Path) -> list[dict[str, object]]:
    """Return the rows that `load_dataset` makes of *folder*; a picture is its size."""
    done = python(LOADED, folder, folder=tmp_path, env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")})
    assert done.status == 0, done
    return [eval(line) for line in done.stdout.decode().splitlines()]  # the test's own program printed it


@pytest.mark.parametrize("table", ["metadata.csv", "metadata.jsonl"])
def test_imagefolder_reads_pictures_and_their_rows(table: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(pictures(6)))
    run("tar2folder", "--rows", table, "a.tar", "-o", "d").output()
    is_json = table.endswith("jsonl")
    assert loaded("d", tmp_path) == [
        {
            "image": (30 + n, 20),
            "seg": (9, 9 + n),
            "cls": n % 2,
            "json": {"wide": 30 + n} if is_json else f'{{"wide":{30 + n}}}',
            "txt": f'no. {n},\n"x"',
        }
        for n in range(6)
    ]


def test_imagefolder_reads_classes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(name.replace("/", "-"), payload) for name, payload in pictures(6)]))
    run("tar2folder", "-f", "png cls", "--class", "cls", "a.tar", "-o", "d").output()
    rows = loaded("d", tmp_path)
    assert sorted((row["image"], row["label"]) for row in rows) == [((30 + n, 20), n % 2) for n in range(6)]
