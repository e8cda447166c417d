"""Archives of macOS: metadata files between members are no samples, end none, and are left out with a count."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

import tartools
from tartools.errors import SampleError
from tests.archives import END, entry
from tests.conftest import Run, has_end, members_of
from tests.tiers import also

COUNT = 12
FIELDS = ("cls", "seg.x", "txt")
NOTE = "{}: {} macOS metadata files (._* and .DS_Store) left out\n"


def apple_double(name: str) -> bytes:
    """Return the member that bsdtar of macOS writes before the file *name*: its attributes (RFC 1740, appendix A)."""
    folder, slash, base = name.rpartition("/")
    attributes = b"com.apple.quarantine\0" * 3
    head = struct.pack(">II16sH", 0x00051607, 0x00020000, b"Mac OS X        ", 1)
    payload = head + struct.pack(">III", 9, len(head) + 12, len(attributes)) + attributes
    return entry(f"{folder}{slash}._{base}".encode(), payload)


def macos_archives(folder: str) -> tuple[bytes, bytes, int]:
    """Return an archive of macOS, the same without metadata, and how many metadata files it has."""
    clean, mac, count = b"", entry(f"{folder}.DS_Store".encode(), b"\0\0\0\1Bud1"), 1
    for number in range(COUNT):
        for field in FIELDS:
            name = f"{folder}{number:03d}.{field}"
            member = entry(name.encode(), b"%d" % number)
            clean, mac, count = clean + member, mac + apple_double(name) + member, count + 1
        mac += entry(f"{folder}.DS_Store".encode(), b"Bud1")
    return clean + END, mac + END, count + COUNT


@pytest.fixture(params=["", *also("v1.2/train/")])
def mac(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Write `mac.tar` and `clean.tar`; give the number of metadata files."""
    monkeypatch.chdir(tmp_path)
    clean, made, count = macos_archives(request.param)
    Path("clean.tar").write_bytes(clean)
    Path("mac.tar").write_bytes(made)
    return count


@pytest.mark.parametrize(
    "line",
    [
        ["tarcat"],
        ["tarpcat", "-p", "2"],
        ["tarsort"],
        ["tarsort", "-S", "shuffle", "--seed", "1"],
        ["tarfilter", "-S", "match('.', key)"],
        ["tar2tsv", "-f", "cls seg.x txt"],
        ["tar2jsonl"],
        ["tarproc", "-c", "true"],
        ["tarmix", "1"],
        ["tarcat", "-f", "cls"],
    ],
    ids=" ".join,
)
def test_commands_leave_them_out_with_a_count(line: list[str], mac: int, run: Run) -> None:
    done = run(*line, "mac.tar")
    assert (done.status, done.stdout) == (0, run(*line, "clean.tar").stdout)
    assert done.stderr == NOTE.format(line[0], mac)


def test_no_sample_is_cut(mac: int, run: Run) -> None:
    done = run("tarsplit", "-n", "5", "-o", "s", "mac.tar")
    assert (done.status, done.stderr) == (0, NOTE.format("tarsplit", mac))
    shards = [Path(name).read_bytes() for name in done.stdout.decode().split()]
    assert [len(members_of(shard)) for shard in shards] == [15, 15, 6] and all(map(has_end, shards))
    members = [member for shard in shards for member in members_of(shard)]
    assert members == members_of(Path("clean.tar").read_bytes())


def test_tarcheck_warns_and_writes_a_clean_copy(mac: int, run: Run) -> None:
    done = run("tarcheck", "mac.tar")
    assert done.status == 1 and f"warnings: {mac}\n" in done.stdout.decode()
    assert f"warning macos-metadata: {mac}: a file that macOS adds" in done.stdout.decode()
    done = run("tarcheck", "--fix", "-o", "fixed.tar", "mac.tar")
    assert members_of(Path("fixed.tar").read_bytes()) == members_of(Path("clean.tar").read_bytes())
    assert run("tarcheck", "fixed.tar").status == run("tarcheck", "clean.tar").status


def test_tables_list_a_copy_without_them(mac: int, run: Run) -> None:
    done = run("tarindex", "mac.tar", "-o", "t.parquet")
    assert done.status == 1 and "tarcat makes a copy that a table can list" in done.stderr
    run("tarcat", "mac.tar", "-o", "copy.tar")
    run("tarindex", "copy.tar", "-o", "t.parquet").output()
    assert run("tarcat", "t.parquet").output() == run("tarcat", "clean.tar").stdout


def test_python_reads_whole_samples(mac: int) -> None:
    def samples(url: str) -> list[dict[str, bytes]]:
        return [dict(sample) | {"key": sample.key.encode()} for sample in tartools.read(url)]

    assert samples("mac.tar") == samples("clean.tar") and len(samples("mac.tar")) == COUNT
    assert mac > COUNT


def test_no_sample_gets_such_a_name(mac: int) -> None:
    with tartools.TarWriter("w.tar") as writer, pytest.raises(SampleError, match="would not read back"):
        writer.write({"__key__": "d/._a", "jpg": b"x"})
    assert mac
