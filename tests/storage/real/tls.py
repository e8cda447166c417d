"""HAProxy in front of another server: it speaks TLS, or limits requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.storage.real.server import free_port, processes, require

CONFIG = """
global
  log stdout local0
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend front
{frontend}
  default_backend back
backend back
  server s 127.0.0.1:{target}
"""
ENCRYPTED = "  bind 127.0.0.1:{port} ssl crt {certificate} alpn h2,http/1.1"
LIMITED = """  bind 127.0.0.1:{port}
  stick-table type ip size 10k expire 10s store http_req_rate(1s)
  http-request track-sc0 src
  http-request return status 503 content-type application/xml string {error} if {{ sc_http_req_rate(0) gt 10 }}"""
ERROR = "'<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>'"


@contextmanager
def encrypted(folder: Path, url: str, certificate: Path) -> Iterator[str]:
    """Give the URL by which the server at `url`, which has no TLS, is reached by TLS."""
    with _haproxy(folder, url, ENCRYPTED, certificate) as port:
        yield f"https://127.0.0.1:{port}"


@contextmanager
def limited(folder: Path, url: str) -> Iterator[str]:
    """Give the URL by which the server at `url` takes ten requests a second, those included that it refuses."""
    with _haproxy(folder, url, LIMITED) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _haproxy(folder: Path, url: str, frontend: str, certificate: Path | None = None) -> Iterator[int]:
    """Give the port of a proxy."""
    require("haproxy", "haproxy")
    with processes(folder) as group:
        port = free_port()
        front = frontend.format(port=port, certificate=certificate, error=ERROR)
        (folder / "haproxy.cfg").write_text(CONFIG.format(frontend=front, target=urlsplit(url).port))
        group.start("haproxy", "haproxy", "-f", folder / "haproxy.cfg")
        group.wait_for(port)
        yield port
