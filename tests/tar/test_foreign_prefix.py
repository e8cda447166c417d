"""Headers with times of GNU tar -g where ustar has a prefix: read right, found by tarcheck, clean where they change."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.archives import END, GNU, V7, data, entry
from tests.archives import header as block
from tests.conftest import Run, has_end, members_of

TIMES = b"15302452447\0" + b"15302452447\0"  # of access and change, in octal


def incremental(magic: bytes = GNU) -> bytes:
    """Return an archive as GNU tar -g writes it: every header has times in the field for a prefix."""
    members = [(b"x/%d.%b" % (n, field), b"%d" % n) for n in range(3) for field in (b"cls", b"txt")]
    folder = block(b"x/", 0, b"D" if magic == GNU else b"5", magic=magic, tail=TIMES)
    return folder + b"".join(block(n, len(p), magic=magic, tail=TIMES) + data(p) for n, p in members) + END


def python_names(archive: bytes) -> list[str]:
    """Return the names of files that Python's tarfile, so webdataset and datasets, reads."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return [member.name for member in tar if member.isfile()]


NAMES = [f"x/{n}.{field}" for n in range(3) for field in ("cls", "txt")]


@pytest.mark.parametrize("magic", [GNU, V7], ids=["gnu", "v7"])
def test_tarcheck_warns_and_fix_writes_what_all_read(magic: bytes, run: Run, tmp_path: Path) -> None:
    (tmp_path / "i.tar").write_bytes(incremental(magic))
    assert python_names(incremental(magic)) != NAMES
    done = run("tarcheck", "i.tar")
    assert done.status == 1 and "warning foreign-prefix: 6: times of tar -g" in done.stdout.decode()
    assert "errors: 0\nwarnings: 6\n" in done.stdout.decode()
    run("tarcheck", "--fix", "-o", "fixed.tar", "i.tar")
    fixed = (tmp_path / "fixed.tar").read_bytes()
    assert python_names(fixed) == NAMES and members_of(fixed) == [(name, name[2:3].encode()) for name in NAMES]
    assert has_end(fixed) and run("tarcheck", "fixed.tar").status == 0


def test_changed_headers_are_clean_and_others_are_passed_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "i.tar").write_bytes(incremental())
    assert run("tarcat", "i.tar").output().rstrip(b"\0") == incremental()[512:].rstrip(b"\0")
    renamed = run("tarcat", "--rekey", "y{key}", "i.tar").output()
    assert python_names(renamed) == [f"y{name}" for name in NAMES]


def test_a_ustar_prefix_is_none(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(entry(b"a.txt", b"1", prefix=b"long/way") + END)
    assert run("tarcheck", "a.tar").status == 0


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
def test_gnu_tar_itself(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for name in NAMES:
        (tmp_path / name).write_bytes(b"1")
    line = ["tar", "--format=gnu", "-g", "state", "--sort=name", "-cf", "i.tar", "x"]
    if subprocess.run(line, cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("this tar has no -g")
    assert "foreign-prefix: 6" in run("tarcheck", "i.tar").stdout.decode()
    assert python_names(run("tarcat", "--rekey", "y/{key}", "i.tar").stdout) == [f"y/{name}" for name in NAMES]
