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
from tests.conftest import Run, make_tar

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
        found = run(*line)
        assert (found.status, found.stderr) == (0, ""), found

    make(done)  # type: ignore[arg-type]
    done("tarcheck", "out.tar")
    samples = list(tartools.read("out.tar"))
    fields = {name: data for sample in samples for name, data in sample.items() if name.lower() != "cls"}
    texts = {name: TEXT[Path(name).suffix.lower()](data) for name, data in fields.items()}
    others = {"json.gz": b'"hello"', "cls.gz": b"7"}
    assert texts == {name: others.get(name, b"hello") for name in texts}
