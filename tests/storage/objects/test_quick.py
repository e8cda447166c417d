"""GET requests by http.client: connections are used again, or given up; redirects are followed without the token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tartools.storage.objects import quick
from tartools.storage.objects.retry import TransientError
from tests.storage.objects.faults import Fault, FaultServer

TOKEN = {"Authorization": "Bearer secret"}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return a list to which each new connection is added."""
    found: list[object] = []
    connect = quick._connected

    def connected(server: Any, seconds: float) -> Any:
        found.append(server)
        return connect(server, seconds)

    monkeypatch.setattr(quick, "_connected", connected)
    return found


@pytest.fixture
def servers() -> Iterator[tuple[FaultServer, FaultServer]]:
    """Give two servers, each with the object `ä`."""
    with FaultServer() as one, FaultServer() as other:
        one.objects["ä"] = other.objects["ä"] = b"0123456789"
        yield one, other
    assert one.errors == other.errors == []


def got(url: str) -> bytes:
    """Return the object *url*."""
    found = quick.answer(url, {})
    try:
        assert found.status_code == 200
        return b"".join(iter(lambda: found.read(7), b""))
    finally:
        found.close()


def test_connections(servers: tuple[FaultServer, FaultServer], made: list[object]) -> None:
    one, other = servers
    urls = [one.url("http", "ä"), f"{other.base}/b/ä", f"{other.base}/./b/../b/ä"]
    for url in [*urls, *urls]:
        assert got(url) == b"0123456789"
    assert len(made) == 2
    first = quick.answer(urls[0], {})
    assert got(urls[0]) == b"0123456789" and len(made) == 3  # the other is still in use
    first.read(3)
    first.close()  # not at its end: given up
    for fault in (Fault("ä", cut=4), Fault("ä", dropped=True), Fault("ä", cut=4, framing="chunked")):
        one.faults = [fault]
        with pytest.raises(TransientError, match="the connection was cut"):
            got(urls[0])
        assert fault.played == 1 and got(urls[0]) == b"0123456789"
    assert len(made) == 6
    for again in (False, True):
        one.faults = [Fault("ä", framing="chunked")]
        assert got(urls[0]) == b"0123456789", again
    one.faults = [Fault("ä", framing="close")]
    assert got(urls[0]) == got(urls[0]) == b"0123456789"
    assert len(made) == 7


def test_redirects(servers: tuple[FaultServer, FaultServer]) -> None:
    one, other = servers
    url = one.url("http", "ä")
    for place, server in (("?again", one), (other.url("http", "ä"), other)):
        one.faults = [Fault("ä", status=307, headers={"Location": place})]
        assert quick.answer(url, TOKEN) is None
        one.faults = [Fault("ä", status=307, headers={"Location": place})]
        found = quick.answer(url, TOKEN, follow=True)
        assert found.read(100) == b"0123456789" and found.status_code == 200
        found.close()
        sent = {name: server.requests[-1].headers.get(name) for name in ("authorization", "user-agent")}
        assert sent == {"authorization": "Bearer secret" if server is one else None, "user-agent": "tartools"}
    for place, played in (("?again", 6), ("http://[::1", 1), ("http://127.0.0.1:99999/", 1), ("http://a:b@c/", 1)):
        one.faults = [Fault("ä", status=302, headers={"Location": place}, times=None)]
        assert quick.answer(url, {}, follow=True) is None
        assert one.faults[0].played == played
    one.faults = []


def test_what_is_left_to_others(servers: tuple[FaultServer, FaultServer], monkeypatch: pytest.MonkeyPatch) -> None:
    url = servers[0].url("http", "ä")
    for status in (401, 407, 300):
        servers[0].faults = [Fault("ä", status=status)]
        assert quick.answer(url, TOKEN) is None
    assert quick.answer(url.replace("http://", "https://"), TOKEN) is None  # it does not speak TLS
    assert quick.answer(url.replace("http://", "http://user:secret@"), TOKEN) is None
    with pytest.raises(TransientError, match=r"cannot connect to 127\.0\.0\.1:\d+: Connection refused"):
        quick.answer("http://127.0.0.1:1/", TOKEN)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1/")
    assert quick.answer(url, TOKEN) is None
