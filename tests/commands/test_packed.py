"""Tables, JSON lines and TFRecord files that are compressed: by the suffix of the output, and read as plans."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tartools.tar.codecs import CODECS
from tests.conftest import BIN, Run, has_end, make_tar, members_of
from tests.processes import on_terminal
from tests.storage.objects.faults import Fault, FaultServer

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


@pytest.mark.parametrize("form", LINES)
def test_a_cut_is_a_failure(form: str, run: Run, tmp_path: Path) -> None:
    there, back = LINES[form]
    name = f"a.{form}.gz"
    run(*there, "-o", name, stdin=make_tar(SAMPLES))
    content = (tmp_path / name).read_bytes()
    for cut in (content[:-1], content[:-8], content[: len(content) // 2], content[:-8] + b"12345678"):
        (tmp_path / name).write_bytes(cut)
        done = run(*back, name, "-o", "a.tar")
        assert done.status == 1 and done.stderr.startswith(f"tarcreate: {name}: at byte "), done.stderr
        assert done.stderr.count("\n") == 1 and not (tmp_path / "a.tar").exists()
    there = run(*LINES[form][0], "-o", "a.gz", stdin=make_tar(SAMPLES)[:9000])
    assert there.status == 1 and not (tmp_path / "a.gz").exists()


def test_plans_from_stdin_and_servers(run: Run) -> None:
    archive = make_tar(SAMPLES[:6])
    tsv, lines = (run(*LINES[form][0], stdin=archive).stdout for form in ("tsv", "jsonl"))
    assert members_of(run("tarcreate", stdin=gzip.compress(tsv)).stdout) == SAMPLES[:6]
    assert members_of(run("tarcreate", "--format", "jsonl", stdin=gzip.compress(lines)).stdout) == SAMPLES[:6]
    with FaultServer() as server:
        for name, content in (("a.tsv.gz", tsv), ("a.jsonl.gz", lines)):
            server.objects[name] = gzip.compress(content)
            server.faults = [Fault(name, "GET", cut=30, framing="close")]
            done = run("tarcreate", server.url("http", name), env=server.env)
            assert (done.status, members_of(done.stdout)) == (0, SAMPLES[:6]), done.stderr


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
