"""ftp: names and passwords, files that do not exist, replies in messages, downloads that break off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.fake_ftp import FtpServer

DATA = make_tar(make_samples(50))
ANONYMOUS = ("anonymous", "anonymous@")


@pytest.fixture
def ftp() -> Iterator[FtpServer]:
    """Give a server with the file /d/a b.tar."""
    with FtpServer() as server:
        server.files["/d/a b.tar"] = DATA
        yield server


@pytest.mark.parametrize("user", ["", "anonymous@"])
def test_anonymous_by_default(user: str, ftp: FtpServer, run: Run) -> None:
    assert run("tarcat", ftp.url("/d/a%20b.tar", user)) == (0, DATA, "")
    assert run("tarcat", ftp.url("/d/a%20b.tar", user), "-o", ftp.url("/new.tar", user)) == (0, b"", "")
    assert ftp.files["/new.tar"] == DATA
    assert {*ftp.logins} == {ANONYMOUS}


def test_a_new_output_needs_no_force_and_an_old_one_does(ftp: FtpServer, run: Run) -> None:
    url = ftp.url("/new.tar")
    assert run("tarcat", "-o", url, stdin=DATA) == (0, b"", "")
    assert run("tarcat", "-o", url, stdin=DATA) == (1, b"", f"tarcat: {url}: already exists; --force replaces it\n")
    ftp.files["/new.tar"] = b"old"
    assert run("tarcat", "--force", "-o", url, stdin=DATA) == (0, b"", "")
    assert ftp.files["/new.tar"] == DATA


@pytest.mark.parametrize("user", ["", "me@"])
def test_passwords_of_netrc(user: str, ftp: FtpServer, run: Run, tmp_path: Path) -> None:
    ftp.passwords = {"me": "se/cret:1@"}
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password se/cret:1@\n")
    (tmp_path / "netrc").chmod(0o600)
    assert run("tarcat", ftp.url("/d/a%20b.tar", user), env={"NETRC": f"{tmp_path}/netrc"}) == (0, DATA, "")
    assert ftp.logins == [("me", "se/cret:1@")]
    ftp.passwords = {"me": "another"}
    said = run("tarcat", ftp.url("/a.tar", user), env={"NETRC": f"{tmp_path}/netrc"}).failure(lines=1)
    assert said.endswith(": cannot read: the server says 530 Login incorrect.; ~/.netrc may have a password\n")
    assert "cret" not in said


def test_the_reply_is_in_the_message(ftp: FtpServer, run: Run) -> None:
    url = ftp.url("/no.tar")
    message = "does not exist (550 /no.tar: No such file or directory)"
    assert run("tarcat", url) == (1, b"", f"tarcat: {url}: {message}\n")
    ftp.read_only = True
    message = "cannot write: the server says 550 /no.tar: Permission denied"
    assert run("tarcat", "-o", url, stdin=DATA) == (1, b"", f"tarcat: {url}: {message}\n")


@pytest.mark.parametrize("cut", [0, 1000, len(DATA) - 1])
def test_a_download_that_breaks_off(cut: int, ftp: FtpServer, run: Run) -> None:
    """The connection just ends; the reply says that this is not all, also where the data have no end of their own."""
    ftp.cut = cut
    url = ftp.url("/d/a%20b.tar")
    message = "cannot read: the server says 426 Data connection closed, file transfer aborted"
    assert run("tarcat", url, "-o", "out.tar") == (1, b"", f"tarcat: {url}: {message}\n")


def test_what_is_no_url_of_ftp(run: Run) -> None:
    said = run("tarcat", "ftp://host:port/a.tar").failure(lines=1)
    assert said == "tarcat: ftp://host:port/a.tar: write ftp://[USER@]HOST[:PORT]/PATH\n"
