"""Ceph's gateway with a cluster of one node: Debian's ceph-mon, ceph-mgr, ceph-osd, ceph-common and radosgw."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.storage.real.s3 import s3_server
from tests.storage.real.server import Processes, Server, free_port, processes, require
from tests.storage.real.tls import encrypted, limited

KEYS = ("CEPHKEY", "secret-of-ceph-7")
CONFIG = """
[global]
fsid = {fsid}
mon_initial_members = a
mon_host = {address}
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
# With "none" instead of cephx the gateway hangs.
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
auth_allow_insecure_global_id_reclaim = true
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_data_avail_warn = 1
mon_data_avail_crit = 1
run_dir = {folder}/run
admin_socket = {folder}/run/$name.asok
log_file = {folder}/$name.log
mon_data = {folder}/mon
osd_data = {folder}/osd
mgr_data = {folder}/mgr
keyring = {folder}/keyring
osd_objectstore = bluestore
bluestore_block_size = 6442450944
osd_memory_target = 939524096
bluestore_cache_autotune = false
bluestore_cache_size = 134217728
[client.rgw.a]
rgw_frontends = beast endpoint=127.0.0.1:{port}
rgw_dns_name = localhost
rgw_data = {folder}/rgw
"""


@contextmanager
def ceph(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a gateway with a user and a bucket."""
    with _gateway(folder) as (version, url), limited(folder / "limited", url) as address:
        server = s3_server(version, url, KEYS)
        server.limited = {"AWS_ENDPOINT_URL": address}
        yield server


@contextmanager
def ceph_tls(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a gateway behind HAProxy, which speaks TLS by *certificate*."""
    with _gateway(folder) as (version, url), encrypted(folder / "tls", url, certificate) as address:
        lacks = {"a table at 10 requests a second": "tried without TLS"}
        yield s3_server(version, address, KEYS, bundle=str(certificate), lacks=lacks)


@contextmanager
def _gateway(folder: Path) -> Iterator[tuple[str, str]]:
    """Give the version and the URL of a gateway."""
    require("ceph-mon, ceph-mgr, ceph-osd, ceph-common, radosgw", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw")
    with processes(folder) as group:
        port = free_port()
        _start(group, port)
        key, secret = KEYS
        user = "user", "create", "--uid=t", "--display-name=t", f"--access-key={key}", f"--secret-key={secret}"
        group.run("radosgw-admin", "-c", folder / "ceph.conf", *user)
        version = group.run("radosgw", "--version").split()[2]
        yield version, f"http://127.0.0.1:{port}"


def _start(group: Processes, port: int) -> None:
    """Start a monitor, a manager, one storage daemon of 6 GiB (sparse), and the gateway on `port`."""
    folder, fsid, disk = group.folder, uuid.uuid4(), uuid.uuid4()
    for name in ("mon", "osd", "mgr", "rgw", "run"):
        (folder / name).mkdir()
    address = f"[v2:127.0.0.1:{free_port()},v1:127.0.0.1:{free_port()}]"
    config = folder / "ceph.conf"
    config.write_text(CONFIG.format(fsid=fsid, address=address, folder=folder, port=port))
    keys = {
        "mon.": ["mon", "allow *"],
        "mgr.x": ["mon", "allow *", "osd", "allow *"],
        "osd.0": ["mon", "allow profile osd", "mgr", "allow profile osd", "osd", "allow *"],
        "client.rgw.a": ["mon", "allow rw", "osd", "allow rwx"],
        "client.admin": ["mon", "allow *", "osd", "allow *", "mgr", "allow *", "mds", "allow *"],
    }
    group.run("ceph-authtool", "--create-keyring", "keyring")
    for name, rights in keys.items():
        caps = [text for kind, right in zip(rights[::2], rights[1::2], strict=True) for text in ("--cap", kind, right)]
        group.run("ceph-authtool", "keyring", "--gen-key", "-n", name, *caps)
    group.run("monmaptool", "--create", "--addv", "a", address, "--fsid", fsid, "monmap")
    common = "-c", config
    group.run("ceph-mon", *common, "-i", "a", "--mkfs", "--monmap", "monmap", "--keyring", "keyring")
    group.start("mon.a", "ceph-mon", *common, "-i", "a", "-f")
    group.run("ceph", *common, "osd", "new", disk, "0")
    group.start("mgr.x", "ceph-mgr", *common, "-i", "x", "-f")
    group.run("ceph-osd", *common, "-i", "0", "--mkfs", "--osd-uuid", disk)  # with another one the daemon stays down
    group.run("ceph", *common, "osd", "crush", "add", "osd.0", "1.0", "root=default", "host=h")
    group.start("osd.0", "ceph-osd", *common, "-i", "0", "-f")
    group.start("rgw.a", "radosgw", *common, "-n", "client.rgw.a", "-f")
    group.wait_for(port)
