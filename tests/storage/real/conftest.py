"""The servers of the trials, each started when its first trial begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.storage.real import page
from tests.storage.real.apache import apache, apache_tls
from tests.storage.real.azurite import azurite
from tests.storage.real.ceph import ceph, ceph_tls
from tests.storage.real.openssh import openssh
from tests.storage.real.proftpd import proftpd
from tests.storage.real.server import Server
from tests.storage.real.swift import swift, swift_tls
from tests.storage.real.trials import TRIALS

# By the heading in the table. Each gets an empty folder, and a file with a certificate of 127.0.0.1 and its key.
SERVERS: dict[str, Callable[[Path, Path], AbstractContextManager[Server]]] = {
    "Ceph gateway": ceph,
    "Ceph gateway, TLS": ceph_tls,
    "OpenStack Swift, s3api": swift,
    "OpenStack Swift, s3api, TLS": swift_tls,
    "Apache, WebDAV": apache,
    "Apache, WebDAV, TLS": apache_tls,
    "Azurite": azurite,
    "OpenSSH": openssh,
    "ProFTPD": proftpd,
}


@pytest.fixture(scope="session", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificate: Path
) -> Iterator[Server]:
    """Give each of the servers that are installed."""
    with SERVERS[request.param](tmp_path_factory.mktemp("server"), certificate) as server:
        page.note(TRIALS, SERVERS, request.param, page.VERSION, server.version)
        yield server
