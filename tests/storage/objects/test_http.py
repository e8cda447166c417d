"""The one client: connections, redirects, passwords, proxies, certificates, tokens."""

from __future__ import annotations

import base64
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tartools.storage.objects import gs
from tartools.storage.objects.http import BUNDLE_VARIABLES, Client
from tartools.storage.objects.retry import TransientError
from tests.commands.test_damage import WHOLE
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.inside import OBJECT, Inside
from tests.storage.objects.wire import Connection

TEXT = b"0123456789"
HOLDER = "me:p%40ss"
BASIC = "Basic " + base64.b64encode(b"me:p@ss").decode()


@pytest.fixture
def servers() -> Iterator[tuple[FaultServer, FaultServer]]:
    """Give two servers, each with the object `ä`."""
    with FaultServer() as one, FaultServer() as other:
        one.objects["ä"] = other.objects["ä"] = TEXT
        yield one, other
    assert one.errors == other.errors == []


def got(url: str, client: Client | None = None) -> bytes:
    """Return the object *url*."""
    found = (client or Client()).request("GET", url, url)
    try:
        assert found.status == 200
        return b"".join(iter(lambda: found.read(7), b""))
    finally:
        found.close()


def test_connections(servers: tuple[FaultServer, FaultServer]) -> None:
    one, other = servers
    urls = [one.url("http", "ä"), f"{other.base}/b/ä", f"{other.base}/./b/../b/ä"]
    for url in [*urls, *urls]:
        assert got(url) == TEXT
    assert (one.connections, other.connections) == (1, 1)
    first = Client().request("GET", urls[0], urls[0])
    assert got(urls[0]) == TEXT and one.connections == 2  # the other is still in use
    first.read(3)
    first.close()  # not at its end: given up
    for fault in (Fault("ä", cut=4), Fault("ä", dropped=True), Fault("ä", cut=4, framing="chunked")):
        one.faults = [fault]
        with pytest.raises(TransientError, match="the connection was dropped"):
            got(urls[0])
        assert fault.played == 1 and got(urls[0]) == TEXT
    assert one.connections == 5
    for again in (False, True):
        one.faults = [Fault("ä", framing="chunked")]
        assert got(urls[0]) == TEXT, again
    one.faults = [Fault("ä", framing="close")]
    assert got(urls[0]) == got(urls[0]) == TEXT
    assert one.connections == 6


def test_redirects_and_the_token(servers: tuple[FaultServer, FaultServer]) -> None:
    """It goes with a body wherever the server sends that, but with a GET to no other server."""
    one, other = servers
    client = Client(lambda address, moved: {} if moved else {"Authorization": "Bearer secret"})
    url = one.url("http", "ä")
    for place, server in (("?again", one), (other.url("http", "ä"), other)):
        for body in (None, b"new"):
            one.faults = [Fault("ä", status=307, headers={"Location": place})]
            found = client.request("PUT" if body else "GET", url, url, body=body)
            assert found.status in (200, 201, 204) and found.read(100) in (TEXT, b"")
            found.close()
            sent = {name: server.requests[-1].headers.get(name) for name in ("authorization", "user-agent")}
            token = "Bearer secret" if server is one or body else None
            assert sent == {"authorization": token, "user-agent": "tartools"}
            server.objects["ä"] = TEXT


# ---- passwords ----


def test_passwords_in_a_file(inside: Inside, tmp_path_factory: pytest.TempPathFactory) -> None:
    """For web servers and no others, for every range, and for the server that a redirect names."""
    path = tmp_path_factory.mktemp("home") / ".netrc"
    path.write_text("machine 127.0.0.1 login me password p@ss\nmachine localhost login you password x\n")
    path.chmod(0o600)
    elsewhere = inside.server.url("http", "b.tar").replace("127.0.0.1", "localhost")
    inside.server.objects["b.tar"] = WHOLE

    def sent(scheme: str) -> set[str | None]:
        inside.server.requests.clear()
        assert inside.copy(scheme) == (0, WHOLE, "")
        return {request.headers.get("authorization") for request in inside.server.requests}

    for environment in ({"NETRC": str(path)}, {"HOME": str(path.parent)}):
        inside.environ(**environment)
        assert sent("http") == {BASIC}
        assert sent("gs") == sent("ais") == {None}
        inside.environ(NETRC=os.devnull)
        assert sent("http") == {None}
        inside.drop("NETRC")
    inside.server.faults = [Fault(OBJECT, status=302, headers={"Location": elsewhere}, times=None)]
    assert sent("http") == {BASIC, "Basic " + base64.b64encode(b"you:x").decode()}
    inside.server.faults = []
    for wrong in (b"machine\nmachine", b"machine \xff"):
        path.write_bytes(wrong)
        assert sent("http") == {None}


# ---- proxies ----


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
def test_a_proxy(variable: str, inside: Inside) -> None:
    """It gets the whole URL, and its own password; but not where no_proxy names the server."""
    if variable != "http_proxy":
        inside.environ(https_proxy="http://127.0.0.1:1")
    inside.environ(**{variable: inside.server.base.replace("//", f"//{HOLDER}@")})
    there = "http://no.such.host.invalid/b/a.tar"
    assert inside.run("tarcat", there) == (0, WHOLE, "")
    for request in inside.server.requests:
        assert (request.target, request.headers["proxy-authorization"]) == (there, BASIC)
        assert request.headers["host"] == "no.such.host.invalid"
    port = inside.server.base.rpartition(":")[2]
    for near in ("127.0.0.1", f"x,127.0.0.1:{port}", "10.0.0.0/8, 127.0.0.0/8", "*"):
        inside.environ(no_proxy=near)
        inside.server.requests.clear()
        assert inside.copy("http") == (0, WHOLE, ""), near
        assert {request.target for request in inside.server.requests} == {"/b/a.tar"}
    for far in ("localhost", "10.0.0.0/8", "127.0.0.1:1", "/,x/8"):
        inside.environ(no_proxy=far)
        inside.server.requests.clear()
        assert inside.copy("http") == (0, WHOLE, ""), far
        assert {request.target for request in inside.server.requests} == {inside.server.url("http", OBJECT)}


def test_a_proxy_that_is_no_url(inside: Inside) -> None:
    inside.environ(http_proxy="http://[::1")
    assert inside.copy("http").stderr == f"tarcat: {inside.server.url('http', OBJECT)}: invalid URL\n"
    inside.environ(http_proxy="socks5://127.0.0.1:1")
    assert "PySocks" in inside.copy("http").stderr  # which is not there


# ---- certificates ----


@pytest.mark.parametrize(
    ("scheme", "variable"),
    [
        ("http", "REQUESTS_CA_BUNDLE"),
        ("http", "CURL_CA_BUNDLE"),
        ("http", "SSL_CERT_FILE"),
        ("gs", "REQUESTS_CA_BUNDLE"),
        ("ais", "REQUESTS_CA_BUNDLE"),
        ("ais", "AIS_CLIENT_CA"),
        ("s3", "AWS_CA_BUNDLE"),
    ],
)
def test_certificates(scheme: str, variable: str, encrypted: Inside, certificate: Path) -> None:
    done = encrypted.copy(scheme)
    assert done.status == 1 and "the server's certificate is not trusted: self-signed certificate; " in done.stderr
    assert encrypted.server.requests == []
    encrypted.environ(**{variable: str(certificate)})
    assert encrypted.copy(scheme) == (0, WHOLE, "")


def test_certificates_of_no_interest_or_not_there(encrypted: Inside) -> None:
    encrypted.environ(REQUESTS_CA_BUNDLE="none.pem")
    url = encrypted.server.url("http", OBJECT)
    what = "cannot read the file of trusted certificates none.pem (No such file or directory)"
    assert encrypted.copy("http").stderr == f"tarcat: {url}: {what}; {BUNDLE_VARIABLES} names it\n"
    for variable in ("AIS_SKIP_VERIFY_CRT", "AIS_SKIP_VERIFY"):
        encrypted.environ(**{variable: "true"})
        assert encrypted.copy("ais") == (0, WHOLE, "")
        encrypted.drop(variable)
        assert encrypted.copy("ais").status == 1


def test_certificates_of_s3_that_cannot_be_read(encrypted: Inside, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A file that does not exist, or has none, and a folder, which botocore does not take."""
    folder = tmp_path_factory.mktemp("bundles")
    (folder / "empty.pem").write_text("none")
    file = "cannot read the file of trusted certificates {} ({}); AWS_CA_BUNDLE names it"
    for bundle, message in (
        (folder / "none.pem", file.format(folder / "none.pem", "No such file or directory")),
        (folder / "empty.pem", file.format(folder / "empty.pem", "it has no certificates (PEM)")),
        (folder, f"the trusted certificates {folder} are a folder; AWS_CA_BUNDLE has to name a file"),
    ):
        encrypted.environ(AWS_CA_BUNDLE=str(bundle))
        assert encrypted.copy("s3") == (1, None, f"tarcat: s3://b/a.tar: {message}\n")
        failed = encrypted.run("tarls", "s3://b/").failure(lines=1)
        assert failed == f"tarls: s3://b/: {message}\n"
    assert encrypted.server.requests == []


class Tunnel(Connection):
    """A connection to a proxy for https."""

    def do_CONNECT(self) -> None:
        """Pass on what comes, in both directions, until one side hangs up."""
        self.server.seen.append(self.headers["Proxy-Authorization"])  # type: ignore[attr-defined]
        if self.headers["Proxy-Authorization"] != BASIC:
            self.send_error(407)
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as there:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_pass_on, args=(there, self.connection))
            back.start()
            _pass_on(self.connection, there)
            back.join()
        self.close_connection = True


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def test_a_proxy_for_what_is_encrypted(encrypted: Inside, certificate: Path) -> None:
    with FaultServer() as proxy:
        proxy.RequestHandlerClass = Tunnel
        proxy.seen = []  # type: ignore[attr-defined]
        address = proxy.base.replace("//", f"//{HOLDER}@")
        encrypted.environ(REQUESTS_CA_BUNDLE=str(certificate), https_proxy=address, TARTOOLS_READAHEAD="1")
        assert encrypted.copy("http") == (0, WHOLE, "")
        assert proxy.seen == [BASIC]  # type: ignore[attr-defined]
        encrypted.environ(https_proxy=proxy.base)
        reason = "cannot connect through the proxy: 407 Proxy Authentication Required"
        encrypted.copy("http").refused(encrypted.server.url("http", OBJECT), rf"at byte 0: {reason} \(3 tries\)")
        encrypted.environ()  # which closes the connections


# ---- tokens of Google's ----


def test_a_token_is_renewed_when_it_is_not_accepted(key: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same client: google-auth asks for one before the first request, and for another after a 401."""
    base = inside.server.base
    account = {"type": "service_account", "client_email": "me@x", "private_key": key, "token_uri": f"{base}/token"}
    monkeypatch.setattr(gs, "GCS_SERVER", base)
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")

    def token(text: str) -> Fault:
        answer = {"access_token": text, "expires_in": 3600, "token_type": "Bearer"}
        return Fault(method="POST", has="/token", status=200, body=json.dumps(answer).encode())

    with tempfile.NamedTemporaryFile("w") as file:
        json.dump(account, file, indent=1)
        file.flush()
        inside.environ(GOOGLE_APPLICATION_CREDENTIALS=file.name, TARTOOLS_READAHEAD="1")
        inside.server.faults = [token("first"), token("second"), Fault(OBJECT, start=3000, status=401)]
        assert inside.copy("gs") == (0, WHOLE, "")
        assert [fault.played for fault in inside.server.faults] == [1, 1, 1]
        sent = [r.headers["authorization"] for r in inside.server.requests if r.start is not None]
        assert sent == ["Bearer first"] * 4 + ["Bearer second"] * 8
        inside.server.requests.clear()
        gs._credentials_for.cache_clear()
        inside.server.faults = [Fault(method="POST", has="/token", status=503, times=None)]
        said = inside.copy("gs").stderr
        assert said.startswith(f"tarcat: gs://b/{OBJECT}: ") and "redentials" in said
