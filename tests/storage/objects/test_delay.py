"""The proxy that measurements are made with: it passes on every byte, and takes the time it says."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from tests.conftest import Run, make_samples, make_tar
from tests.storage.objects.delay import BURST, PIPE, serve
from tests.storage.objects.sites import Site

ARCHIVE = make_tar(make_samples(3000))  # 5 MB


@pytest.mark.skipif(not hasattr(os, "splice"), reason="this system has no splice(2)")
def test_delay_and_rate(plain: Site, run: Run) -> None:
    plain.put("a.tar", ARCHIVE)
    place, _, rest = plain.url("a.tar").removeprefix("http://").partition("/")
    host, _, port = place.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=(listening, (host, int(port)), 0.2, 20e6), daemon=True).start()
        start = time.monotonic()
        done = run("tarcat", f"http://127.0.0.1:{listening.getsockname()[1]}/{rest}")
        took = time.monotonic() - start
        listening.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
    assert done == (0, ARCHIVE, "")
    # Connecting, asking, and the bytes: but for a burst, and for the last pages, which are passed on before their wait.
    assert took > 2 * 0.2 + (len(ARCHIVE) - BURST - PIPE) / 20e6
