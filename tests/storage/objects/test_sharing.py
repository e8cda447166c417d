"""What several processes, careless programs and odd names do to remote URLs."""

from __future__ import annotations

import os

import pytest

import tartools
from tartools.errors import StorageError
from tartools.shards.numbering import parse_numbering
from tartools.storage.objects import retry
from tartools.storage.objects.retry import Attempts, TransientError
from tests.conftest import Run, make_samples, make_tar, python
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

TAR = make_tar(make_samples(5))

FORKING = """
import os, sys, tartools
file = tartools.open(sys.argv[1])
begin = file.read(100)
wrong = 0
for child in range(2):
    if not (pid := os.fork()):
        rest = file.read()
        os._exit(0 if begin + rest == open(sys.argv[2], "rb").read() else 3)
    wrong += os.waitpid(pid, 0)[1]
assert begin + file.read() == open(sys.argv[2], "rb").read()
sys.exit(wrong != 0)
"""


@by_turns("site")
def test_a_file_that_was_opened_before_a_fork_is_read_in_each_process(site: Site, tmp_path: os.PathLike[str]) -> None:
    data = os.urandom(3_000_000)
    site.put("a.bin", data)
    path = os.path.join(tmp_path, "a.bin")
    with open(path, "wb") as file:
        file.write(data)
    done = python(FORKING, site.url("a.bin"), path, env=site.env)
    assert (done.status, done.stderr) == (0, "")


class FullError(Exception):
    """No space."""


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_file_of_which_a_write_failed_does_not_appear(
    size: int, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.path.join(tmp_path, "a")
    file = tartools.open(path, "wb")
    file.write(b"x" * 200_000)

    def full(data: object) -> int:
        raise FullError

    with monkeypatch.context() as patch:
        patch.setattr(file._pending.writer._output.sink, "write", full)
        with pytest.raises(FullError):
            for _ in range(20_000):
                file.write(b"y" * size)
    with pytest.raises(StorageError, match="earlier write"):
        file.close()
    assert file.closed
    assert os.listdir(tmp_path) == []


@by_turns("site")
def test_tarsplit_never_writes_over_its_input(site: Site, run: Run) -> None:
    site.put("t-000001.tar", TAR)
    done = run("tarsplit", "--force", "-n", 2, "-o", site.url("t"), site.url("t-000001.tar"), env=site.env)
    assert (done.status, done.stderr.count("\n")) == (1, 1)
    assert "input" in done.stderr
    assert site.get("t-000001.tar") == TAR


@pytest.mark.parametrize("name", ["S3://bucket/a.tar", "HTTP://127.0.0.1:1/a.tar"])
def test_a_scheme_is_written_in_small_letters(name: str, run: Run) -> None:
    done = run("tarcat", name)
    assert (done.status, done.stdout, done.stderr.count("\n")) == (1, b"", 1)
    assert "s3:" in done.stderr and "http:" in done.stderr


@pytest.mark.parametrize("column", ["@txt", "plan"])
def test_data_of_which_nobody_says_how_long_they_are_are_refused(column: str, faulty: FaultServer, run: Run) -> None:
    faulty.objects["a.tsv"] = b"__key__\ttxt\n" + b"".join(b"%d\tx\n" % n for n in range(9000))
    fault = Fault("a.tsv", no_range=True, framing="close", cut=30_000, times=None)
    faulty.faults = [fault]
    url = faulty.url("http", "a.tsv")
    if column == "plan":
        done = run("tarcreate", "-o", "out.tar", url, env=faulty.env)
    else:
        done = run("tarcreate", "-o", "out.tar", stdin=f"__key__\t@txt\na\t{url}\n".encode(), env=faulty.env)
    assert fault.played
    assert (done.status, done.stderr.count("\n")) == (1, 1)
    assert "state the length" in done.stderr
    with pytest.raises(StorageError, match="state the length"):
        tartools.open(url).read()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http://h/my%20data/train", "http://h/my%20data/train-000007.tar"),
        ("http://h/my%20data/t-%03d.tar", "http://h/my%20data/t-007.tar"),
        ("https://h/t.tgz?signature=a%2Fb", "https://h/t-000007.tgz?signature=a%2Fb"),
        ("ais://b/t?provider=aws", "ais://b/t-000007.tar?provider=aws"),
        ("s3://b/50%20d", "s3://b/50                   7"),
    ],
)
def test_names_of_shards_are_those_of_urls(text: str, name: str) -> None:
    assert parse_numbering(text, False).name(7) == name
    assert parse_numbering(text, False).number(name) == 7


def test_a_server_that_asks_for_too_much_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Attempts("s3://b/a").failed(TransientError("busy", retry.LONGEST_WAIT)) == retry.LONGEST_WAIT
    with pytest.raises(StorageError, match="asks for a retry in 3600 seconds"):
        Attempts("s3://b/a").failed(TransientError("busy", 3600))
