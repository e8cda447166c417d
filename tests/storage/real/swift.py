"""OpenStack Swift with s3api and tempauth, one device in a folder.

Debian's swift-proxy, swift-account, swift-container, swift-object, and memcached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.storage.real.s3 import s3_server
from tests.storage.real.server import Server, free_port, processes, require
from tests.storage.real.tls import encrypted, limited

KEYS = ("test:tester", "secret-of-swift-7")
BACKEND = """
[DEFAULT]
devices = {folder}/data
mount_check = false
bind_ip = 127.0.0.1
bind_port = {port}
workers = 1
user = {user}
swift_dir = {folder}
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
FILTERS = (
    *("catch_errors", "gatekeeper", "healthcheck", "proxy_logging", "cache", "listing_formats", "bulk", "tempurl"),
    *("s3api", "tempauth", "copy", "slo", "dlo", "versioned_writes", "symlink"),
)
SETTINGS = {
    "cache": "memcache_servers = 127.0.0.1:{memcached}",
    "s3api": "s3_acl = false\nlocation = us-east-1\nallow_multipart_uploads = yes\ndns_compliant_bucket_names = no",
    "tempauth": f"user_test_tester = {KEYS[1]} .admin",
    "versioned_writes": "allow_versioned_writes = true\nallow_object_versioning = true",
}


@contextmanager
def swift(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a proxy with a user and a bucket."""
    with _running(folder) as (version, url), limited(folder / "limited", url) as address:
        server = s3_server(version, url, KEYS)
        server.limited = {"AWS_ENDPOINT_URL": address}
        yield server


@contextmanager
def swift_tls(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a proxy behind HAProxy, which speaks TLS by *certificate*."""
    with _running(folder) as (version, url), encrypted(folder / "tls", url, certificate) as address:
        lacks = {"a table at 10 requests a second": "tried without TLS"}
        yield s3_server(version, address, KEYS, bundle=str(certificate), lacks=lacks)


@contextmanager
def _running(folder: Path) -> Iterator[tuple[str, str]]:
    """Give the version and the URL of a proxy. Debian's /etc/swift/swift.conf is used as it is."""
    programs = [f"swift-{kind}-server" for kind in ("proxy", "account", "container", "object")]
    require("swift-proxy, swift-account, swift-container, swift-object, memcached", *programs, "memcached")
    with processes(folder) as group:
        (folder / "data" / "d1").mkdir(parents=True)
        memcached, port = free_port(), free_port()
        user = group.run("id", "-un").strip()
        group.start("memcached", "memcached", "-u", user, "-l", "127.0.0.1", "-p", memcached, "-m", "32")
        for kind in ("account", "container", "object"):
            own = free_port()
            group.run("swift-ring-builder", f"{kind}.builder", "create", 4, 1, 1)
            group.run("swift-ring-builder", f"{kind}.builder", "add", f"r1z1-127.0.0.1:{own}/d1", 1)
            group.run("sh", "-c", f"swift-ring-builder {kind}.builder rebalance || [ $? = 1 ]")  # 1: with warnings
            config = folder / f"{kind}.conf"
            config.write_text(BACKEND.format(folder=folder, port=own, user=user, kind=kind))
            group.start(kind, f"swift-{kind}-server", config)
            group.wait_for(own)
        (folder / "proxy.conf").write_text(_proxy(folder, port, memcached, user))
        group.start("proxy", "swift-proxy-server", folder / "proxy.conf")
        group.wait_for(port)
        version = group.run("/usr/bin/python3", "-c", "import swift; print(swift.__version__)").strip()
        yield version, f"http://127.0.0.1:{port}"


def _proxy(folder: Path, port: int, memcached: int, user: str) -> str:
    """Return the configuration of the proxy."""
    text = f"[DEFAULT]\nbind_ip = 127.0.0.1\nbind_port = {port}\nworkers = 1\nuser = {user}\nswift_dir = {folder}\n"
    text += f"[pipeline:main]\npipeline = {' '.join(FILTERS)} proxy-server\n"
    text += "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
    for name in FILTERS:
        text += f"[filter:{name}]\nuse = egg:swift#{'memcache' if name == 'cache' else name}\n"
        text += SETTINGS.get(name, "").format(memcached=memcached) + "\n"
    return text
