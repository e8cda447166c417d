"""Text that becomes a field such as txt.gz is compressed, whoever makes the sample; bytes are stored as they are.

Values of such a field are what is inside, in all commands.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tartools
from tartools.samples.encoding import encode
from tartools.tar.compression import CODECS
from tests.archives import picture
from tests.commands.conftest import Inside
from tests.conftest import BIN, Run, has_end, keys_in, make_tar, members_of
from tests.processes import on_terminal

TEXT = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}


def written(_run: Run) -> None:
    with tartools.TarWriter("out.tar") as writer:
        writer.write(
            {
                "__key__": "n/1",
                "txt.gz": "hello",
                "bin.gz": gzip.compress(b"hello"),
                "A.GZ": "hello",
                "x.bz2": "hello",
                "x.xz": "hello",
                "cls.gz": 7,
                "json.gz": "hello",
            }
        )


def from_tsv(run: Run) -> None:
    Path("plan.tsv").write_text("__key__\ttxt.gz\t@file.gz\nn/1\thello\thello.gz\n")
    run("tarcreate", "plan.tsv", "-o", "out.tar")


def from_json_lines(run: Run) -> None:
    data = {"@base64": "H4sIAAAAAAAC/8tIzcnJBwCGphA2BQAAAA=="}
    Path("plan.jsonl").write_text(json.dumps({"__key__": "n/1", "txt.gz": "hello", "bin.gz": data}) + "\n")
    run("tarcreate", "plan.jsonl", "-o", "out.tar")


def from_a_recipe(run: Run) -> None:
    Path("recipe").write_text("n/1.txt.gz text:hello\nn/1.file.gz hello.gz\n")
    run("tarcreate", "recipe", "-o", "out.tar")


def from_parquet(run: Run) -> None:
    packed = [gzip.compress(b"hello")]
    columns = {
        "__key__": ["n/1"],
        "txt.gz": ["hello"],
        "bin.gz": packed,
        "x.gz": pa.array(["hello"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), "in.parquet")
    run("tarcreate", "--parquet", "in.parquet", "-o", "out.tar")


def from_a_folder(run: Run) -> None:
    Path("in/hello").mkdir(parents=True)
    Path("in/hello/1.file.bz2").write_bytes(bz2.compress(b"hello"))
    run("tarcreate", "--folder", "in", "--class", "txt.gz", "-o", "out.tar")


def joined(run: Run) -> None:
    Path("a.tar").write_bytes(make_tar([("n/1.cls", b"1")]))
    Path("b.csv").write_text("__key__,txt.gz\nn/1,hello\n")
    run("tarjoin", "a.tar", "b.csv", "-o", "out.tar")


def logged(run: Run) -> None:
    Path("a.tar").write_bytes(make_tar([("n/1.cls", b"1")]))
    run("tarproc", "--add-log", "txt.gz", "-c", "printf hello", "a.tar", "-o", "out.tar")


WAYS = [written, from_tsv, from_json_lines, from_a_recipe, from_parquet, from_a_folder, joined, logged]


@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_text_is_compressed(
    make: Callable[[Run], Any], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello.gz").write_bytes(gzip.compress(b"hello"))

    def done(*line: str) -> None:
        run(*line).output()

    make(done)  # type: ignore[arg-type]
    done("tarcheck", "out.tar")
    samples = list(tartools.read("out.tar"))
    fields = {name: data for sample in samples for name, data in sample.items() if name.lower() != "cls"}
    texts = {name: TEXT[Path(name).suffix.lower()](data) for name, data in fields.items()}
    others = {"json.gz": b'"hello"', "cls.gz": b"7"}
    assert texts == {name: others.get(name, b"hello") for name in texts}


SAMPLES = [(f"d/{n:04d}.{field}", b"%d" % n * 9) for n in range(500) for field in ("cls", "txt")]
SUFFIXES = [codec.suffixes[-1].removeprefix(".tar") for codec in CODECS]
LINES = {
    "tsv": (["tar2tsv", "--verbatim", "-f", "cls txt"], ["tarcreate"]),
    "csv": (["tar2tsv", "--verbatim", "--csv", "-f", "cls txt"], ["tarcreate"]),
    "jsonl": (["tar2jsonl"], ["tarcreate"]),
    "tfrecord": (["tar2tfrecord"], ["tarcreate", "--tfrecord"]),
}


@pytest.mark.parametrize("form", LINES)
def test_there_and_back(form: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    there, back = LINES[form]
    plain = run(*there, "a.tar").stdout
    for suffix in [*SUFFIXES, ".GZ"] if form == "tsv" else [".gz", ".zst"]:
        name = f"a.{form}{suffix}"
        assert run(*there, "a.tar", "-o", name) == (0, b"", "")
        packed = (tmp_path / name).read_bytes()
        assert next(codec for codec in CODECS if packed.startswith(codec.magic)).suffixes[-1] == f".tar{suffix.lower()}"
        assert len(packed) < len(plain) / 2
        made = run(*back, name)
        assert (made.status, made.stderr) == (0, "") and members_of(made.stdout) == SAMPLES and has_end(made.stdout)
    assert gzip.decompress((tmp_path / f"a.{form}.gz").read_bytes()) == plain
    assert run(*there, "a.tar", "-o", f"pipe:cat > b.{form}.gz").status == 0
    assert (tmp_path / f"b.{form}.gz").read_bytes() == plain  # what a command gets is plain


def test_plans_from_stdin(run: Run) -> None:
    archive = make_tar(SAMPLES[:6])
    tsv, lines = (run(*LINES[form][0], stdin=archive).stdout for form in ("tsv", "jsonl"))
    assert members_of(run("tarcreate", stdin=gzip.compress(tsv)).stdout) == SAMPLES[:6]
    assert members_of(run("tarcreate", "--format", "jsonl", stdin=gzip.compress(lines)).stdout) == SAMPLES[:6]


@pytest.mark.parametrize(("command", "kind"), [("tar2parquet", "Parquet"), ("tar2zip", "zip")])
def test_what_is_compressed_inside(command: str, kind: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    done = run(command, "a.tar", "-o", "a.bin.gz")
    assert (done.status, done.stdout) == (2, b"") and not (tmp_path / "a.bin.gz").exists()
    assert f"a {kind} file is compressed inside: call it a.bin, not a.bin.gz" in done.stderr
    assert run(command, "a.tar", "-o", "pipe:cat > a.bin.gz").status == 0


@pytest.mark.parametrize("command", ["tar2parquet", "tar2zip"])
def test_what_is_no_text_is_not_written_to_a_terminal(command: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    done = on_terminal([BIN / command, "a.tar"], tmp_path)
    assert (done.status, done.stdout, done.stderr.count("terminal")) == (2, b"", 1)


# ---- values of compressed fields: what is inside, in all commands; the bytes are copied as they are ----

KINDS = [codec.suffixes[-1].removeprefix(".tar.") for codec in CODECS]


def packed(count: int, kind: str) -> list[tuple[str, bytes]]:
    """Return members of samples whose fields are compressed by *kind*; pictures are 3, 4 ... pixels wide."""
    members = []
    for n in range(count):
        fields: dict[str, object] = {
            "txt": f"text {n}\n",
            "cls": str(n % 3),
            "json": {"n": 100 - n, "name": f"n{n % 2}"},
            "png": picture("PNG", n + 3, 5),
            "npy": np.arange(n + 1),
        }
        for field, value in fields.items():
            members.append((f"{n:03d}.{field}.{kind}", compress(kind, encode(field, value))))
    return members


def compress(kind: str, data: bytes) -> bytes:
    """Return *data* compressed by the codec with the suffix *kind*: by Python's own library, if it has one."""
    if kind in ("gz", "bz2", "xz"):
        return {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}[kind](data)
    codec = next(codec for codec in CODECS if codec.suffixes[-1] == f".tar.{kind}")
    compressor = codec.compressor()
    return bytes(compressor.compress(data) + compressor.flush())


@pytest.mark.parametrize("kind", [*KINDS, "GZ"])
def test_values_are_what_is_inside(kind: str, inside: Inside, tmp_path: Path) -> None:
    members = [(name.replace(".gz", f".{kind}"), data) for name, data in packed(6, kind.lower())]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    rows = [f"{n:03d}\ttext {n}\t{n % 3}\tn{n % 2}" for n in range(6)]
    spec = f"txt.{kind} cls.{kind} json.{kind}:name"
    assert inside("tarindex", "-f", spec, "a.tar", "-o", "t.parquet").output() == b""
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.column(f"txt.{kind}").to_pylist() == [f"text {n}" for n in range(6)]
    assert table.column(f"cls.{kind}").to_pylist() == [n % 3 for n in range(6)]
    for url in ("a.tar", "t.parquet"):
        lines = inside("tar2tsv", "--no-header", "-f", spec, url).output().decode().splitlines()
        assert lines == rows, url
        for test, keys in (
            (f"field('txt.{kind}') == 'text 4'", ["004"]),
            (f"int(field('cls.{kind}')) == 2", ["002", "005"]),
            (f"field('json.{kind}:n') > 98", ["000", "001"]),
            (f"width('png.{kind}') > 6 and height('png.{kind}') == 5", ["004", "005"]),
        ):
            chosen = inside("tarfilter", "-S", test, url).output()
            assert keys_in(chosen) == keys, (test, url)
            assert members_of(chosen) == [member for member in members if member[0][:3] in keys]
        backwards = inside("tarsort", "--sort-key", f"json.{kind}:n", "-S", "int", url).output()
        assert members_of(backwards) == [member for n in range(6)[::-1] for member in members[n * 5 : n * 5 + 5]]
        facts = inside("tarstat", "--classes", f"label.{kind};cls.{kind} json.{kind}:name", url).stdout.decode()
        assert f"class label.{kind};cls.{kind} 0: 2\n" in facts and f"class json.{kind}:name n1: 3\n" in facts
        parts = inside("tarsplit", "--by", f"x=cls.{kind}", url, "-o", "{x}.tar", "--force").output()
        assert parts == b"0.tar\n1.tar\n2.tar\n"
    assert f"class cls.{kind} 0: 2\n" in inside("tarstat", "a.tar").stdout.decode()
    shown = inside("tarshow", "-c", "1", "a.tar").output().decode()
    assert all(what in shown for what in (", text: text 0", ", number: 0", ", array int64 1", ", PNG 3x5", ", JSON"))
    assert inside("tarcheck", "--decode", "a.tar").status == 0


@pytest.mark.parametrize("kind", KINDS)
def test_damage_inside_is_an_error_that_names_the_sample(kind: str, inside: Inside, tmp_path: Path) -> None:
    members = packed(3, kind)
    name, data = members[7]  # json of 001
    members[7] = (name, data[: len(data) // 2] + b"???" + data[len(data) // 2 + 3 :])
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for line in (
        ["tar2tsv", "-f", f"json.{kind}:n"],
        ["tarfilter", "-S", f"field('json.{kind}:n') > 3"],
        ["tarsort", "--sort-key", f"json.{kind}:n"],
        ["tarindex", "-f", f"json.{kind}:n", "-o", "o.parquet"],
        ["tarsplit", "--by", f"json.{kind}:name", "-o", "{json}.tar".replace("json", f"json.{kind}:name")],
        ["tarstat", "--classes", f"json.{kind}:n"],
    ):
        done = inside(*line, "a.tar")
        assert done.status == 1 and f"a.tar: sample '001', field 'json.{kind}': " in done.stderr, (line, done)
    checked = inside("tarcheck", "--decode", "a.tar")
    assert checked.status == 1 and b"error broken-" in checked.stdout
    assert inside("tarcat", "a.tar").output() == inside("tarcat", "--", "a.tar").output()  # bytes are copied
    assert members_of(inside("tarcat", "a.tar").output()) == members


def test_a_bomb_inside_a_class_is_not_counted_by_its_content(inside: Inside, tmp_path: Path) -> None:
    bomb = gzip.compress(bytes(20_000))
    assert len(bomb) < 256
    (tmp_path / "a.tar").write_bytes(
        make_tar([("a.cls.gz", bomb), ("b.cls.gz", gzip.compress(b"7\n")), ("c.cls.gz", b"?")])
    )
    lines = inside("tarstat", "a.tar").output().decode()
    assert "classes cls.gz: 3\n" in lines and "class cls.gz 7: 1\n" in lines and "class cls.gz ?: 1\n" in lines
    assert len(lines) < 3000


def test_pictures_that_are_none_inside(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg.gz", gzip.compress(b"no")), ("b.jpg.gz", b"no")]))
    said = inside("tarfilter", "-S", "width('jpg.gz') > 0", "a.tar").stderr
    assert "sample 'a': width('jpg.gz') > 0: width('jpg.gz'): " in said
    said = inside("tarfilter", "-S", "key == 'a' or width('jpg.gz') > 0", "a.tar").stderr
    assert "sample 'b': key == 'a' or width('jpg.gz') > 0: " in said and "gzip" in said
