"""OpenSSH: Debian's openssh-server and openssh-client, with keys and a configuration of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.conftest import clean_environment
from tests.storage.real.server import FileServer, Refusal, Server, free_port, processes, require

SERVER = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/hostkey
AuthorizedKeysFile {folder}/key.pub
PasswordAuthentication no
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile {folder}/pid
Subsystem sftp internal-sftp
"""
CLIENT = """
Host trials stranger nokey
  HostName 127.0.0.1
  Port {port}
Host dead
  HostName 127.0.0.1
  Port 1
Host trials nokey
  UserKnownHostsFile {folder}/known
Host trials stranger
  IdentityFile {folder}/key
Host stranger
  UserKnownHostsFile {folder}/nobody
Host *
  IdentitiesOnly yes
  IdentityAgent none
  StrictHostKeyChecking ask
"""


@contextmanager
def openssh(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give sshd for this user; `ssh` of the commands is a script that names the configuration."""
    require("openssh-server, openssh-client", "sshd", "ssh", "ssh-keygen")
    with processes(folder) as group:
        port, files = free_port(), folder / "files"
        files.mkdir()
        with suppress(PermissionError, FileExistsError):
            os.mkdir("/run/sshd")  # which sshd wants if root starts it
        for name in ("key", "hostkey"):
            group.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name)
        (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'hostkey.pub').read_text()}")
        (folder / "sshd_config").write_text(SERVER.format(port=port, folder=folder))
        (folder / "ssh_config").write_text(CLIENT.format(port=port, folder=folder))
        (folder / "bin").mkdir()
        (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {folder}/ssh_config "$@"\n')
        (folder / "bin/ssh").chmod(0o755)
        group.start("sshd", "/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd_config")
        group.wait_for(port)
        version = group.run("sh", "-c", "ssh -V 2>&1").split()[0].removeprefix("OpenSSH_").rstrip(",")
        env = {"PATH": f"{folder}/bin:{clean_environment()['PATH']}"}
        yield FileServer(version, f"sftp://trials{files}", env, files, escaped="%", refusals=REFUSALS)


REFUSALS = [
    Refusal("a file that does not exist", ["{base}/none.tar"], "no such file on the server"),
    Refusal("a pattern without a match", ["{base}/none-*.tar"], "no object matches"),
    Refusal("a folder", ["{base}"], "this is a directory on the server"),
    Refusal("an output in no folder", ["-o", "{base}/no/a.tar", "{small}"], "the folder does not exist on the server"),
    Refusal("an unknown host key", ["sftp://stranger/a.tar"], "the host key of the server is not known: connect once"),
    Refusal("no key", ["sftp://nokey/a.tar"], r"authentication failed \(publickey.*\): ssh nokey has to"),
    Refusal("nobody listens", ["sftp://dead/a.tar"], "cannot connect: .*Connection refused", {"TARTOOLS_TRIES": "1"}),
    Refusal("no host", ["sftp:///a.tar"], "write sftp://"),
    Refusal("an option for a host", ["sftp://-oProxyCommand=x/a.tar"], "write sftp://"),
]
