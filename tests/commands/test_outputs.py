"""Names of outputs, in all commands: a suffix that says another format is refused, and a missing folder is made."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tartools.commands import load
from tests.commands.conftest import Inside, inside
from tests.commands.test_every_command import COMMANDS
from tests.conftest import make_tar

__all__ = ["inside"]  # a fixture
PICTURE = b"P6 1 1 255\n\0\0\0"
TAR = make_tar([(f"{n}.{field}", value) for n in range(2) for field, value in (("cls", b"1"), ("ppm", PICTURE))])
SHARDS = ("tar", "tgz", "tar.zst")
OTHERS = ("tar", "parquet", "zip", "tsv", "csv", "jsonl", "tfrecord", "html", "jpg", "7z", "tar.7z")
# Command lines in which OUT is an output, by command and option; and the suffixes that it may have.
LINES: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("tarcat", "-o"): ("tarcat a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarpcat", "-o"): ("tarpcat a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarsort", "-o"): ("tarsort a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarmix", "-o"): ("tarmix 1 a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarfilter", "-o"): ("tarfilter -S 'int(cls) == 1' a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarfilter", "--rest"): ("tarfilter -S 'int(cls) == 1' a.tar -o o.tar --rest OUT", (*SHARDS, "parquet")),
    ("tardedup", "-o"): ("tardedup a.tar -o OUT", (*SHARDS, "parquet")),
    ("tardedup", "--rest"): ("tardedup a.tar -o o.tar --rest OUT", (*SHARDS, "parquet")),
    ("tardedup", "--report"): ("tardedup a.tar -o o.tar --report OUT", ("tsv",)),
    ("tardedup", "--html"): ("tardedup a.tar -o o.tar --html OUT", ("html",)),
    ("tarproc", "-o"): ("tarproc -c true a.tar -o OUT", SHARDS),
    ("tarproc", "--report"): ("tarproc -c true -e skip a.tar -o o.tar --report OUT", ("tsv", "txt")),
    ("tarjoin", "-o"): ("tarjoin a.tar b.tsv -o OUT", (*SHARDS, "parquet")),
    ("tardiff", "-o"): ("tardiff a.tar a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarcreate", "-o"): ("tarcreate --zip a.zip -o OUT", SHARDS),
    ("tarcheck", "-o"): ("tarcheck --fix a.tar -o OUT", SHARDS),
    ("tarsplit", "-o"): ("tarsplit a.tar -o OUT", (*SHARDS, "parquet")),
    ("tarindex", "-o"): ("tarindex a.tar -o OUT", ("parquet",)),
    ("tarshow", "--html"): ("tarshow a.tar --html OUT", ("html",)),
    ("tar2tsv", "-o"): ("tar2tsv -f cls a.tar -o OUT", ("tsv", "tsv.gz")),
    ("tar2jsonl", "-o"): ("tar2jsonl a.tar -o OUT", ("jsonl", "jsonl.zst", "json")),
    ("tar2parquet", "-o"): ("tar2parquet a.tar -o OUT", ("parquet",)),
    ("tar2tfrecord", "-o"): ("tar2tfrecord a.tar -o OUT", ("tfrecord", "tfrecord.gz")),
    ("tar2zip", "-o"): ("tar2zip a.tar -o OUT", ("zip",)),
}
NAMES_OF_NO_OUTPUT = {("tarjob", "-o"), ("tar2folder", "-o")}  # a pattern, a folder


def test_all_outputs_are_here() -> None:
    """An option of a command whose value is a file or URL to write."""
    found = set()
    for name in COMMANDS:
        for option in load(name).parameters.values():
            found |= {(name, word) for word in {"-o", "--html", "--report", "--rest"} & {*option.names}}
    assert found - NAMES_OF_NO_OUTPUT == {*LINES}


@pytest.mark.parametrize("line", LINES.values(), ids=["".join(key) for key in LINES])
def test_suffixes_and_folders(line: tuple[str, tuple[str, ...]], inside: Inside) -> None:
    pytest.importorskip("google.protobuf")
    text, suffixes = line
    Path("a.tar").write_bytes(TAR)
    Path("b.tsv").write_bytes(b"__key__\tx\n0\t1\n1\t1\n")
    inside("tar2zip", "a.tar", "-o", "a.zip")
    before = {*Path().iterdir()}
    for suffix in {*OTHERS} - {*suffixes}:
        done = inside(*shlex.split(text.replace("OUT", f"x.{suffix}")))
        assert done.failure(2, lines=1), suffix
        assert {*Path().iterdir()} == before, suffix
    for suffix in (*suffixes, *([""] if "tarsplit" not in text else [])):
        Path("o.tar").unlink(missing_ok=True)
        name = f"new{suffix}/d/x.{suffix}".rstrip(".")
        done = inside(*shlex.split(text.replace("OUT", name)))
        assert done.status == 0, done
        assert [path.name.partition(".")[0].partition("-")[0] for path in Path(f"new{suffix}/d").iterdir()] == ["x"]


@pytest.mark.parametrize("key", [key for key in LINES if key[0] != "tarsplit"], ids="".join)  # that adds a number
def test_a_directory_is_no_output(key: tuple[str, str], inside: Inside) -> None:
    """It is refused before anything is read or written, also with --force, and not once the samples are sorted."""
    pytest.importorskip("google.protobuf")
    text, (suffix, *_) = LINES[key]
    Path("a.tar").write_bytes(TAR)
    Path("b.tsv").write_bytes(b"__key__\tx\n0\t1\n1\t1\n")
    inside("tar2zip", "a.tar", "-o", "a.zip")
    Path(f"d.{suffix}").mkdir()
    before = {*Path().iterdir()}
    name, *words = shlex.split(text.replace("OUT", f"d.{suffix}"))
    for option in ([], ["--force"]):
        said = inside(name, *option, *words).failure(2 if load(name).trouble == 2 else 1)
        assert said == f"{name}: d.{suffix}: is the name of a directory; name a file in it\n"
        assert {*Path().iterdir()} == before


FIELDS = ["tarcat", "tarpcat -p 1", "tarshow", "tar2jsonl", "tar2zip -o o.zip", "tar2parquet -o o.parquet"]
FIELDS += ["tar2tfrecord -o o.tfrecord", "tar2tsv"]


@pytest.mark.parametrize("line", FIELDS)
@pytest.mark.parametrize("count", [[], ["-c", "1"]])
def test_fields_that_no_sample_has(line: str, count: list[str], inside: Inside) -> None:
    """A word of -f that names nothing is an error, also if only the first samples are read; one of -x is a warning."""
    Path("a.tar").write_bytes(TAR)
    name, *words = line.split()
    done = inside(name, *words, *count, "-f", "cls nosuch", "a.tar")
    assert done.status == 1 and "nosuch" in done.stderr and "cls ppm" in done.stderr
    assert not list(Path().glob("o.*"))
    if name == "tar2tsv":
        return
    done = inside(name, *words, *count, "-x", "PPM nosuch", "a.tar")
    assert (done.status, done.stderr) == (0, f"{name}: -x: no sample had the field nosuch; the fields were: cls ppm\n")
    assert inside(name, *words, *count, "--force" if "-o" in words else "-q", "-x", "ppm", "a.tar").stderr == ""
