"""The trials: what people do with a store, each with the installed commands, as functions of a place and a runner.

A trial has the name that the table of docs/servers.md shows. It asserts; where a server can't do what it needs, the
server's `lacks` says why.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import BIN, Run, clean_environment, make_samples, make_tar, members_of, python
from tests.storage.real.server import Server

SMALL = make_tar(make_samples(20))
OTHER = make_tar(make_samples(30, 1000))
PART_BYTES = 16 << 20  # the first parts of an upload
BIG = make_tar([(f"{n:03d}.bin", random.Random(n).randbytes(1 << 20)) for n in range(40)])  # three parts
ODD_NAMES = [
    *("blank s.tar", "plus+.tar", "percent%41.tar", "percent%.tar", "hash#1.tar", "amp&and=.tar", "semi;colon.tar"),
    *("quote'.tar", 'double".tar', "comma,.tar", "(round).tar", "tilde~.tar", "dollar$.tar", "at@.tar", "colon:.tar"),
    *(
        "umlaut-\u00e4\u00f6\u00fc.tar",
        "\u65e5\u672c\u8a9e.tar",
        "emoji-\U0001f600.tar",
        "cu{a,b}.tar",
        "deep/er/and/deeper.tar",
    ),
]
EXISTS = "already exists; --force replaces it"


@dataclass
class Place:
    """A folder of a server, which is new for each trial, and local `files`."""

    server: Server
    name: str
    files: Path
    run: Run

    def url(self, name: str) -> str:
        """Return the URL of the object `name` in this folder."""
        return self.server.url(f"{self.name}/{name}")

    def get(self, name: str) -> bytes | None:
        """Return the bytes of an object, by another client than ours; None if it does not exist."""
        return self.server.get(f"{self.name}/{name}")

    def command(self, name: str, *arguments: object, stdin: bytes = b"", **env: str) -> bytes:
        """Run a command that ends well and says nothing; return its stdout."""
        return self.run(name, *arguments, stdin=stdin, env=self.server.env | env, timeout=600).output()

    def split(self, data: bytes, count: int) -> None:
        """Write shards `s-%06d.tar`, each of `count` samples."""
        self.command("tarsplit", "-n", count, "-o", self.url("s-%06d.tar"), stdin=data)

    def index(self, table: str, shards: str) -> None:
        """Write a table of shards, once they are so old that the server gives them a version; wait for the table's."""
        time.sleep(self.server.version_seconds)
        done = self.run("tarindex", "-o", self.url(table), shards, env=self.server.env, timeout=600)
        assert done.status == 0, done
        time.sleep(self.server.version_seconds)

    def fails(self, name: str, *arguments: object, stdin: bytes = b"", **env: str) -> str:
        """Run a command that fails with one line; return that."""
        return self.run(name, *arguments, stdin=stdin, env=self.server.env | env, timeout=600).failure(lines=1)

    def python(self, program: str, *arguments: str) -> str:
        """Run a program in Python that ends well; return its stdout."""
        done = python(textwrap.dedent(program), *arguments, env=self.server.env, folder=self.files, timeout=600)
        assert done.status == 0, done.stderr
        return done.stdout.decode()

    @contextlib.contextmanager
    def writing(self, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """Give a tarcat that has sent the first part of the object `name`, and waits for more on its stdin."""
        command = [str(BIN / "tarcat"), *options, "-o", self.url(name), "-"]
        env = clean_environment() | self.server.env
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
            assert process.stdin is not None
            process.stdin.write(BIG[: PART_BYTES + (8 << 20)])
            process.stdin.flush()
            try:
                yield process
            finally:
                process.kill()


def write_small(place: Place) -> None:
    place.command("tarcat", "-o", place.url("a.tar"), stdin=SMALL)
    assert place.get("a.tar") == SMALL
    assert place.command("tarcat", place.url("a.tar")) == SMALL


def write_in_parts(place: Place) -> None:
    place.command("tarcat", "-o", place.url("big.tar"), stdin=BIG)
    assert place.get("big.tar") == BIG
    assert place.command("tarcat", place.url("big.tar")) == BIG


def overwrite(place: Place) -> None:
    """With --force only, small and in parts."""
    for name, first, second in (("a.tar", SMALL, OTHER), ("big.tar", SMALL, BIG)):
        place.command("tarcat", "-o", place.url(name), stdin=first)
        assert EXISTS in place.fails("tarcat", "-o", place.url(name), stdin=second)
        assert place.get(name) == first
        place.command("tarcat", "--force", "-o", place.url(name), stdin=second)
        assert place.get(name) == second


def object_that_appears_meanwhile(place: Place) -> None:
    """It is not replaced without --force."""
    with place.writing("a.tar") as process:
        place.command("tarcat", "-o", place.url("a.tar"), stdin=SMALL)
        _, message = process.communicate(BIG[PART_BYTES + (8 << 20) :])
    assert process.returncode == 1 and EXISTS in message.decode()
    assert place.get("a.tar") == SMALL


def odd_names(place: Place) -> None:
    """Blanks, quotes, percent signs, braces, letters of other scripts."""
    for name in ODD_NAMES:
        if place.server.quoted and re.search("[%?{/]", name):  # in web addresses these are escaped by the user
            continue
        if "list, wildcards" in place.server.lacks and "{" in name:  # nobody can ask whether a name has these braces
            continue
        place.command("tarcat", "-o", place.url(name), stdin=SMALL)
        assert place.get(name) == SMALL, name
        assert place.command("tarcat", place.url(name)) == SMALL, name


def empty_object(place: Place) -> None:
    place.python("import sys, tartools; tartools.open(sys.argv[1], 'wb').close()", place.url("empty"))
    assert place.get("empty") == b""
    assert "empty" in place.fails("tarcat", place.url("empty"))


def braces(place: Place) -> None:
    """Braces that name objects, in the order of the numbers."""
    for n in range(3):
        place.command("tarcat", "-o", place.url(f"l-{n}.tar"), stdin=make_tar(make_samples(2, 10 * n)))
    shards = [make_tar(make_samples(2, 10 * n)) for n in (2, 1, 0)]
    assert members_of(place.command("tarcat", place.url("l-{2..0}.tar"))) == [
        member for shard in shards for member in members_of(shard)
    ]


def list_objects(place: Place) -> None:
    """Prefixes, *, ?, ** and [...]."""
    for name in ("a-1.tar", "a-2.tar", "b/c-1.tar", "z.tar"):
        place.command("tarcat", "-o", place.url(name), stdin=SMALL)
    for pattern, names in (
        ("a-*.tar", ["a-1.tar", "a-2.tar"]),
        ("a-?.tar", ["a-1.tar", "a-2.tar"]),
        ("[az]*.tar", ["a-1.tar", "a-2.tar", "z.tar"]),
        ("**/*-1.tar", ["a-1.tar", "b/c-1.tar"]),
    ):
        found = place.command("tarls", place.url(pattern)).decode().split()
        assert found == [place.url(name) for name in names], pattern
    assert place.url("b/c-1.tar").encode() in place.command("tarls", place.url(""))


def killed_while_writing(place: Place) -> None:
    """Nothing appears after SIGKILL, SIGTERM and SIGINT; the same command then writes the object."""
    for signum in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        with place.writing("a.tar") as process:
            process.send_signal(signum)
            assert process.wait(60) != 0
        assert place.get("a.tar") is None
    place.command("tarcat", "-o", place.url("a.tar"), stdin=BIG)
    assert place.get("a.tar") == BIG


def tables(place: Place) -> None:
    """tarindex beside the shards, tarcat of the table, Table by number."""
    place.split(SMALL, 5)
    shards = place.url("s-{000000..000003}.tar")
    place.index("t.parquet", shards)
    assert place.command("tarcat", place.url("t.parquet")) == place.command("tarcat", shards) == SMALL
    program = "import sys, tartools; print(*[tartools.Table(sys.argv[1])[i].key for i in (17, 3, -1)])"
    assert place.python(program, place.url("t.parquet")).split() == ["000017", "000003", "000019"]


def split_into_50_shards(place: Place) -> None:
    data = make_tar(make_samples(100))
    place.split(data, 2)
    assert place.command("tarcat", place.url("s-{000000..000049}.tar")) == data
    assert place.get("s-000050.tar") is None
    assert (
        EXISTS
        in place.run("tarsplit", "-n", "2", "-o", place.url("s-%06d.tar"), stdin=data, env=place.server.env).failure()
    )


def jobs_with_resume(place: Place) -> None:
    """tarjob for ten shards; what fails at first is done by the second run, and only that."""
    for n in range(10):
        place.command("tarcat", "-o", place.url(f"in-{n}.tar"), stdin=make_tar(make_samples(4, 10 * n)))
    (place.files / "once").mkdir()
    fail_once = "mkdir once/{} 2>/dev/null && [ {} -gt 5 ] && exit 3"
    command = f"{fail_once}; tarcat -o {place.url('out-{}.tar')} {place.url('in-{}.tar')}"
    job = "tarjob", "-p", "2", "--spec", "{0..9}", "-o", place.url("out-{}.tar"), "--", "bash", "-c", command
    first = place.run(*job, env=place.server.env, timeout=600)
    assert first.status == 1 and [place.get(f"out-{n}.tar") is None for n in (0, 5, 6, 9)] == [False, False, True, True]
    second = place.run(*job, env=place.server.env, timeout=600)
    assert second.status == 0, second
    assert [place.get(f"out-{n}.tar") for n in range(10)] == [make_tar(make_samples(4, 10 * n)) for n in range(10)]


def table_on_a_busy_server(place: Place) -> None:
    """Ten requests a second suffice, slowly: 50 shards by a table, whose rows are read side by side."""
    data = make_tar(make_samples(100))
    place.split(data, 2)
    place.index("t.parquet", place.url("s-{000000..000049}.tar"))
    assert place.command("tarcat", place.url("t.parquet"), **place.server.limited) == data


def cache_with_two_versions(place: Place) -> None:
    """An object that is replaced is read anew, though the cache has its first version."""
    folder = place.files / "cache"
    cache = f"{folder}:100MB"
    for data in (SMALL, OTHER):
        place.command("tarcat", "--force", "-o", place.url("a.tar"), stdin=data)
        time.sleep(place.server.version_seconds)
        for _ in range(2):
            assert place.command("tarcat", place.url("a.tar"), TARTOOLS_CACHE=cache) == data
    assert sum(len(files) for _, _, files in os.walk(folder)) > 1


def replaced_while_it_is_read(place: Place) -> None:
    """No two versions are mixed."""
    place.command("tarcat", "-o", place.url("a.tar"), stdin=BIG)
    program = """
        import sys, tartools
        with tartools.open(sys.argv[1]) as file:
            file.read(100)
            with tartools.open(sys.argv[1], "wb", force=True) as other:
                other.write(b"x" * 50_000_000)
            try:
                file.seek(30_000_000)
                data = file.read(100)
            except Exception as error:
                print(error)
            else:
                print(data == b"x" * 100 and "mixed")
    """
    assert re.search("was (replaced|deleted)|False", place.python(program, place.url("a.tar")))


def loader_with_resume(place: Place) -> None:
    """Two workers, a state in mid-epoch: each sample once."""
    place.split(make_tar(make_samples(96)), 10)
    program = """
        import sys, tartools
        from tartools.train import loader
        if __name__ == "__main__":
            def make():
                return loader(sys.argv[1], 8, fields=("cls", "__key__"), num_workers=2, multiprocessing_context="spawn")
            def keys(batch):
                return [sample.key if hasattr(sample, "key") else sample[1] for sample in batch]
            first, seen = make(), []
            for number, batch in enumerate(first, 1):
                seen += keys(batch)
                if number == 5:
                    state = first.state_dict()
                    break
            second = make()
            second.load_state_dict(state)
            for batch in second:
                seen += keys(batch)
            print(len(seen), len(set(map(str, seen))))
    """
    (place.files / "train.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [sys.executable, "train.py", place.url("s-{000000..000009}.tar")],
        cwd=place.files,
        env=clean_environment() | place.server.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["96", "96"]), done.stderr


def checkpoint(place: Place) -> None:
    """torch.save to an open file; it appears when it is complete, and is read by ranges."""
    program = """
        import sys, torch, tartools
        state = {"weights": torch.arange(5_000_000, dtype=torch.float32), "epoch": 3}
        with tartools.open(sys.argv[1], "wb") as file:
            torch.save(state, file)
        with tartools.open(sys.argv[1]) as file:
            loaded = torch.load(file, weights_only=True)
        print(torch.equal(loaded["weights"], state["weights"]) and loaded["epoch"])
    """
    assert place.python(program, place.url("model.pt")).split() == ["3"]


def refusals(place: Place) -> None:
    """Each is one line with status 1 or 2 that says what is wrong, and has no secret."""
    (place.files / "small.tar").write_bytes(SMALL)
    for refusal in place.server.refusals:
        arguments = [text.format(base=place.server.url(place.name), small="small.tar") for text in refusal.arguments]
        done = place.run("tarcat", *arguments, env=place.server.env | dict(refusal.env), timeout=300)
        assert done.status in (1, 2) and done.stdout == b"" and done.stderr.count("\n") == 1, (refusal.title, done)
        assert re.search(refusal.message, done.stderr), (refusal.title, done.stderr)
        assert not [secret for secret in place.server.secrets if secret in done.stderr], refusal.title


TRIALS: dict[str, Callable[[Place], None]] = {
    "write a small shard": write_small,
    "write in parts (40 MB)": write_in_parts,
    "overwrite, with --force only": overwrite,
    "an object that appears meanwhile stays": object_that_appears_meanwhile,
    "odd names": odd_names,
    "an empty object": empty_object,
    "braces": braces,
    "list, wildcards": list_objects,
    "SIGKILL, SIGTERM, SIGINT while writing": killed_while_writing,
    "tables": tables,
    "tarsplit, 50 shards": split_into_50_shards,
    "tarjob, and its resume": jobs_with_resume,
    "a table at 10 requests a second": table_on_a_busy_server,
    "TARTOOLS_CACHE, two versions": cache_with_two_versions,
    "replaced while it is read": replaced_while_it_is_read,
    "loader, 2 workers, resume": loader_with_resume,
    "torch.save, torch.load": checkpoint,
    "requests that are refused": refusals,
}
