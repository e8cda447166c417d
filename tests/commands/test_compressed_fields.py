"""Text that becomes a field such as txt.gz is compressed, whoever makes the sample; bytes are stored as they are."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tartools
from tartools.tar.compression import CODECS
from tests.conftest import BIN, Run, has_end, make_tar, members_of
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
