"""HAProxy, which speaks TLS in front of another server."""

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
frontend encrypted
  bind 127.0.0.1:{port} ssl crt {certificate} alpn h2,http/1.1
  default_backend plain
backend plain
  server s 127.0.0.1:{target}
"""


@contextmanager
def encrypted(folder: Path, url: str, certificate: Path) -> Iterator[str]:
    """Give the URL by which the server at `url`, which has no TLS, is reached by TLS."""
    require("haproxy", "haproxy")
    with processes(folder) as group:
        port = free_port()
        (folder / "haproxy.cfg").write_text(
            CONFIG.format(port=port, certificate=certificate, target=urlsplit(url).port)
        )
        group.start("haproxy", "haproxy", "-f", folder / "haproxy.cfg")
        group.wait_for(port)
        yield f"https://127.0.0.1:{port}"
