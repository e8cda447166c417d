"""The commands that write samples to a file of another format: one set of options, one rule of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run, make_tar, members_of

SAMPLES = [
    *(("a.jpg", b"A"), ("a.txt", b"1")),
    *(("b.jpg", b"B"), ("b.txt", b"2")),
    *(("c.jpg", b"C"), ("c.txt", b"3")),
]
SOURCES = {  # exporter -> how tarcreate reads its file
    "tar2jsonl": ("--format", "jsonl"),
    "tar2zip": ("--zip",),
    "tar2parquet": ("--parquet",),
    "tar2tfrecord": ("--tfrecord",),
}
exporters = pytest.mark.parametrize("exporter", SOURCES)


def exported(run: Run, exporter: str, *options: str) -> list[tuple[str, bytes]]:
    """Return the members that tarcreate makes of what *exporter* writes of `a.tar`."""
    run(exporter, *options, "a.tar", "-o", "out").output()
    return members_of(run("tarcreate", *SOURCES[exporter], "out").output())


@exporters
def test_fields_and_samples_are_chosen_alike(exporter: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    assert exported(run, exporter, "-c", "2", "-f", "txt") == [("a.txt", b"1"), ("b.txt", b"2")]
    (tmp_path / "out").unlink()
    assert exported(run, exporter, "--count", "1", "-x", "JPG") == [("a.txt", b"1")]


@exporters
def test_samples_without_the_fields_do_not_count(exporter: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("0.jpg", b"0"), *SAMPLES[:2], ("aa.jpg", b"9"), *SAMPLES[2:]]))
    assert exported(run, exporter, "-c", "2", "-f", "txt") == [("a.txt", b"1"), ("b.txt", b"2")]
    assert run(exporter, "-c", "0", "a.tar", "-o", "none").status == 0
    as_tarcat = run("tarcat", "-c", "2", "-f", "txt", "a.tar").stdout
    assert members_of(as_tarcat) == [("a.txt", b"1"), ("b.txt", b"2")]


@exporters
@pytest.mark.parametrize("key", ["../a", "d/../a", "/a"])
def test_a_key_that_tarcreate_refuses_is_refused(exporter: str, key: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{key}.txt", b"1")]))
    said = run(exporter, "a.tar", "-o", "out").failure(lines=1)
    assert f"a.tar: the key '{key}' is absolute or contains '..'" in said and "--rekey of tarcat" in said
    assert not (tmp_path / "out").exists()


@exporters
def test_dots_that_lead_nowhere_are_kept(exporter: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("d/a../b.txt", b"1"), ("e..f/c.txt", b"2")]))
    assert exported(run, exporter) == [("d/a../b.txt", b"1"), ("e..f/c.txt", b"2")]
