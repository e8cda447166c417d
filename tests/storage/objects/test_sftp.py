"""sftp: reads, writes, lists and fails against OpenSSH's sftp-server, which a script in place of ssh starts."""

from __future__ import annotations

import os
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tartools.storage.listing import ls
from tartools.storage.objects import sftp
from tartools.storage.objects.sftpclient import ConnectionFailedError, Packet, Server, explain_failure
from tests.conftest import Run, clean_environment, make_samples, make_tar, python

SFTP_SERVER = next((p for p in ("/usr/lib/openssh/sftp-server", "/usr/libexec/sftp-server") if os.path.exists(p)), "")
SMALL = make_tar(make_samples(5))
BIG = make_tar([(f"{n:02d}.bin", random.Random(n).randbytes(1 << 20)) for n in range(17)])
RELAY = """\
import os, sys
count = int(sys.argv[1])
while count > 0 and (data := os.read(0, 1 << 16)):
    count -= len(data)
    while data:
        data = data[os.write(1, data):]
"""
Ssh = Callable[[str], dict[str, str]]


@pytest.fixture
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Ssh:
    """Return what makes an environment in which `ssh` is a script of sh, which has the server as $SERVER."""
    if not SFTP_SERVER:
        pytest.skip("OpenSSH's sftp-server is not installed (openssh-sftp-server)")

    def environment(script: str) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("ssh")
        (folder / "ssh").write_text(
            f'#!/bin/sh\nSERVER={SFTP_SERVER}\nTIMES="{folder}/times"\necho >> "$TIMES"\n{script}\n'
        )
        (folder / "ssh").chmod(0o755)
        return {"PATH": f"{folder}:{clean_environment()['PATH']}"}

    return environment


@pytest.fixture
def env(ssh: Ssh) -> dict[str, str]:
    """Return an environment with an ssh that connects to this machine."""
    return ssh('exec "$SERVER"')


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder on the server."""
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def url_of(path: Path | str, scheme: str = "sftp") -> str:
    return f"{scheme}://server{path}"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- what it does ----


@pytest.mark.parametrize("scheme", ["sftp", "scp", "ssh"])
def test_reads_and_writes(scheme: str, env: dict[str, str], files: Path, run: Run) -> None:
    for data in (SMALL, BIG):
        assert run("tarcat", "-o", url_of(files / "a.tar", scheme), "--force", stdin=data, env=env) == (0, b"", "")
        assert (files / "a.tar").read_bytes() == data
        assert run("tarcat", url_of(files / "a.tar", scheme), env=env) == (0, data, "")
    assert names(files) == ["a.tar"]


def test_a_new_output_needs_no_force_and_an_old_one_does(env: dict[str, str], files: Path, run: Run) -> None:
    url = url_of(files / "a.tar")
    assert run("tarcat", "-o", url, stdin=SMALL, env=env) == (0, b"", "")
    done = run("tarcat", "-o", url, stdin=BIG, env=env)
    assert done == (1, b"", f"tarcat: {url}: already exists; --force replaces it\n")
    assert (files / "a.tar").read_bytes() == SMALL


@pytest.mark.parametrize("data", [SMALL, BIG], ids=["whole", "parts"])
def test_an_output_that_appears_meanwhile_is_kept(data: bytes, env: dict[str, str], files: Path, run: Run) -> None:
    url = url_of(files / "a.tar")
    (files / "in.tar").write_bytes(data)
    done = run("tarcat", f"pipe:cat {files}/in.tar; echo old > {files}/a.tar", "-o", url, env=env)
    assert done == (1, b"", f"tarcat: {url}: already exists; --force replaces it\n")
    assert names(files) == ["a.tar", "in.tar"] and (files / "a.tar").read_text() == "old\n"


def test_what_fails_leaves_nothing(env: dict[str, str], files: Path, run: Run) -> None:
    done = run("tarcat", "-o", url_of(files / "a.tar"), stdin=BIG[:-50_000], env=env)
    assert done.status == 1 and names(files) == []


def test_lists_and_expands(env: dict[str, str], files: Path, run: Run) -> None:
    (files / "d/e").mkdir(parents=True)
    for name in ("a 1.tar", "a2.tar", "b%20.tar", "d/a3.tar", "d/e/a4.tar", ".hidden.tar"):
        (files / name).write_bytes(SMALL)
    (files / "link.tar").symlink_to("a2.tar")
    (files / "dangling.tar").symlink_to("nothing")
    (files / "d/loop").symlink_to("..")

    def listed(pattern: str) -> list[str]:
        said = run("tarls", url_of(f"{files}/{pattern}"), env=env).output().decode()
        return [line.removeprefix(url_of(f"{files}/")) for line in said.splitlines()]

    assert listed("") == [".hidden.tar", "a 1.tar", "a2.tar", "b%2520.tar", "d/a3.tar", "d/e/a4.tar", "link.tar"]
    assert listed("a*.tar") == ["a 1.tar", "a2.tar"]
    assert listed("**/a*.tar") == ["a 1.tar", "a2.tar", "d/a3.tar", "d/e/a4.tar"]
    assert listed("a%20") == ["a%201.tar"]
    assert run("tarcat", url_of(f"{files}/b%2520.tar"), env=env).output() == SMALL
    assert run("tarcat", url_of(f"{files}/a%201.tar"), env=env).output() == SMALL
    assert "no object matches" in run("tarcat", url_of(f"{files}/x*.tar"), env=env).failure(lines=1)


def test_a_server_that_lists_names_without_modes(
    env: dict[str, str], files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders and links are told apart by LSTAT: folders are entered, and no link to one is."""
    for name in ("a.tar", "d/b.tar"):
        (files / name).parent.mkdir(exist_ok=True)
        (files / name).write_bytes(SMALL)
    (files / "link.tar").symlink_to("a.tar")
    (files / "d/loop").symlink_to("..")
    entries = sftp._entries
    without_modes: Callable[..., Any] = lambda *args: [(n, a._replace(mode=None)) for n, a in entries(*args)]  # noqa: E731
    monkeypatch.setattr(sftp, "_entries", without_modes)
    monkeypatch.setenv("PATH", env["PATH"])
    top = url_of(f"{files}/")
    assert [entry.url.removeprefix(top) for entry in ls(top)] == ["a.tar", "d/b.tar", "link.tar"]


def test_home_is_a_tilde(env: dict[str, str], files: Path, run: Run) -> None:
    (files / "a.tar").write_bytes(SMALL)
    assert run("tarcat", "sftp://server/~/files/a.tar", env=env).output() == SMALL


def test_tables(env: dict[str, str], files: Path, run: Run) -> None:
    """A table has versions of shards on sftp, and tells a shard that was replaced."""
    for n in range(3):
        (files / f"s{n}.tar").write_bytes(make_tar(make_samples(5, 5 * n)))
    os.utime(files / "s1.tar", (1_000_000_000, 1_000_000_000))
    table = url_of(files / "t.parquet")
    assert run("tarindex", url_of(f"{files}/s*.tar"), "-o", table, env=env) == (0, b"", "")
    assert run("tarcat", table, env=env).output() == run("tarcat", *sorted(map(str, files.glob("s*.tar")))).output()
    os.utime(files / "s1.tar", (1_000_000_001, 1_000_000_001))
    assert "was replaced since the table was made" in run("tarcat", table, env=env).failure(lines=1)


def test_python_seeks(env: dict[str, str], files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tartools

    monkeypatch.setenv("PATH", env["PATH"])
    (files / "a.bin").write_bytes(BIG)
    with tartools.open(url_of(files / "a.bin"), "rb") as file:
        for position in (0, 5 << 20, 100, len(BIG) - 10):
            assert file.seek(position) == position
            assert file.read(1000) == BIG[position : position + 1000]


# ---- connections that fail ----


def test_a_cut_connection_is_resumed(ssh: Ssh, files: Path, run: Run) -> None:
    """The first connection breaks off in the middle; the second goes on."""
    (files / "a.tar").write_bytes(BIG)
    relay = f"{sys.executable} -Sc '{RELAY}'"
    first = '[ "$(wc -l < "$TIMES")" = 1 ]'
    cut = ssh(f'if {first}; then "$SERVER" | {relay} 9000000; else exec "$SERVER"; fi')
    assert run("tarcat", url_of(files / "a.tar"), env=cut) == (0, BIG, "")
    cut = ssh(f'if {first}; then {relay} 12000000 | "$SERVER"; else exec "$SERVER"; fi')
    assert run("tarcat", "-o", url_of(files / "b.tar"), stdin=BIG, env=cut) == (0, b"", "")
    assert (files / "b.tar").read_bytes() == BIG and names(files) == ["a.tar", "b.tar"]


def test_a_silent_server(ssh: Ssh, run: Run) -> None:
    silent = ssh("sleep 60") | {"TARTOOLS_TIMEOUT": "0.1", "TARTOOLS_TRIES": "1"}
    message = "tarcat: sftp://server/a.tar: at byte 0: no byte came for 0.2 seconds (1 try)\n"
    assert run("tarcat", url_of("/a.tar"), env=silent) == (1, b"", message)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo Welcome", "the server does not speak SFTP (does its shell print something at the start?)"),
        ("echo 'me@server: Permission denied (publickey,password).' >&2; exit 255",
         "authentication failed (publickey,password): ssh server has to work without a question (key, agent)"),
        ("echo 'No ED25519 host key is known.' >&2; echo 'Host key verification failed.' >&2; exit 255",
         "the host key of the server is not known: connect once by ssh server, "
         "or see StrictHostKeyChecking in ssh_config(5)"),
        ("echo 'unheard of' >&2; exit 255", "ssh: unheard of"),
    ],
)  # fmt: skip
def test_what_ssh_says(script: str, message: str, ssh: Ssh, run: Run) -> None:
    for arguments in ([url_of("/a.tar")], ["-o", url_of("/a.tar")]):
        assert run("tarcat", *arguments, stdin=SMALL, env=ssh(script)) == (
            *(1, b""),
            f"tarcat: {url_of('/a.tar')}: {message}\n",
        )


@pytest.mark.parametrize(
    ("text", "reason", "transient"),
    [
        (
            "ssh: connect to host h port 22: Connection refused\r\n",
            "cannot connect: connect to host h port 22: Con",
            True,
        ),
        ("ssh: Could not resolve hostname h: Name or service not known", "cannot connect: Could not resolve", True),
        ("kex_exchange_identification: Connection closed by remote host", "cannot connect: kex_exchange_ident", True),
        ("REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed.", "the server has another ho", False),
        ("Received disconnect: Too many authentication failures", "authentication failed: ssh -p 2 h has", False),
        ("subsystem request failed on channel 0", "the server has no SFTP", False),
    ],
)
def test_reasons(
    text: str,
    reason: str,
    transient: int,
) -> None:
    error = explain_failure(text, Server("h", port="2"))
    assert error is not None and error.reason.startswith(reason) and error.transient == transient
    assert explain_failure("\n", Server("h")) is None


def test_the_command_line_of_ssh(ssh: Ssh, run: Run) -> None:
    """Nothing in a URL is an option of ssh, and nobody is asked."""
    env = ssh('echo "$@" >&2; exit 255')
    said = run("tarcat", "sftp://me@[::1]:2222/a.tar", env=env).failure(lines=1)
    assert re.search(r"ssh: -oBatchMode=yes .*-p 2222 -l me -s -- ::1 sftp$", said.strip())
    for place in ("-oProxyCommand=touch", "-l@host", "", "a@b@c", "host:port"):
        assert "write sftp://[USER@]HOST[:PORT]/PATH\n" in run("tarcat", f"sftp://{place}/a", env=env).failure(status=2)


def test_ssh_is_missing(files: Path, run: Run) -> None:
    said = run("tarcat", url_of(files / "a.tar"), env={"PATH": "/nowhere"}).failure()
    assert said.endswith(": the program ssh is missing: apt install openssh-client\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.tar", "no such file on the server"),
        ("folder", "this is a directory on the server"),
        ("no/no.tar", "no such file on the server"),
    ],
)
def test_what_is_not_read(name: str, message: str, env: dict[str, str], files: Path, run: Run) -> None:
    (files / "folder").mkdir()
    assert run("tarcat", url_of(files / name), env=env) == (1, b"", f"tarcat: {url_of(files / name)}: {message}\n")


def test_what_is_not_written(env: dict[str, str], files: Path, run: Run) -> None:
    url = url_of(files / "no/a.tar")
    message = "the folder does not exist on the server"
    assert run("tarcat", "-o", url, stdin=SMALL, env=env) == (1, b"", f"tarcat: {url}: {message}\n")


# ---- while it is read ----


@pytest.mark.parametrize("size", [0, 10 << 20, len(BIG) - 1])
def test_a_file_that_is_cut_while_it_is_read(size: int, env: dict[str, str], files: Path, run: Run) -> None:
    (files / "a.tar").write_bytes(BIG)
    program = (
        "import os, tartools\n"
        f"with tartools.open({url_of(files / 'a.tar')!r}, 'rb') as file:\n"
        f"    file.read(1 << 20); os.truncate({str(files / 'a.tar')!r}, {size}); file.read()\n"
    )
    done = python(program, env=env | {"TARTOOLS_TRIES": "2"})
    assert done.status == 1 and "was replaced while it was being read" in done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "it = iter(tartools.read(URL)); next(it)",
        "f = tartools.open(URL, 'rb'); f.read(100)",
        "f = tartools.open(URL, 'rb'); f.read(100); raise SystemExit(0)",
        "f = tartools.open(URL, 'rb'); f.read(100); pid = os.fork()\n"
        "if not pid: g = tartools.open(URL, 'rb'); os._exit(len(g.read()) != SIZE)\n"
        "assert os.waitpid(pid, 0)[1] == 0 and len(f.read()) == SIZE - 100",
    ],
    ids=["samples", "file", "exit", "fork"],
)
def test_a_program_ends_with_an_open_input(program: str, env: dict[str, str], files: Path) -> None:
    """Nothing waits for a thread that is dead by then; a fork has a connection of its own."""
    (files / "a.tar").write_bytes(BIG)
    program = f"import os, tartools; URL, SIZE = {url_of(files / 'a.tar')!r}, {len(BIG)}\n{program}"
    done = python(program, env=env)
    assert (done.status, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("data", "take"),
    [
        (b"\0\0\0", Packet.take_number),
        (b"\0\0\0\5abcd", Packet.take_bytes),
        (b"\0\0\0\x0d" + bytes(19), Packet.take_attributes),  # size, mode and times, of which the last is cut
    ],
)
def test_a_packet_that_is_too_short(data: bytes, take: Callable[[Packet], object]) -> None:
    with pytest.raises(ConnectionFailedError, match="the server sent a packet that is too short"):
        take(Packet(1, memoryview(data)))
    assert Packet(1, memoryview(b"\0\0\0\4abcd")).take_bytes() == b"abcd"
