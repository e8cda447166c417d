"""ProFTPD: Debian's proftpd-core, with a user of its own. It has to be started by root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.storage.real.server import FileServer, Refusal, Server, free_port, processes, require

PASSWORD = "secret-of-proftpd-7"
CONFIG = """
ServerName trials
ServerType standalone
DefaultAddress 127.0.0.1
Port {port}
UseIPv6 off
User root
Group root
PidFile {folder}/pid
ScoreboardFile {folder}/scoreboard
DelayEngine off
UseReverseDNS off
AuthUserFile {folder}/passwd
AuthOrder mod_auth_file.c
RequireValidShell off
RootLogin on
DefaultRoot ~
SystemLog {folder}/system.log
TransferLog none
WtmpLog off
<Directory />
AllowOverwrite on
</Directory>
"""
NO_LISTING, NO_RANGES = "no listings by smart_open", "no ranges by smart_open"
LACKS = {
    "list, wildcards": NO_LISTING,
    **dict.fromkeys(("tables", "TARTOOLS_CACHE, two versions", "replaced while it is read"), NO_RANGES),
    **dict.fromkeys(("loader, 2 workers, resume", "torch.save, torch.load"), NO_RANGES),
    "a table at 10 requests a second": NO_RANGES,
}


@contextmanager
def proftpd(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a server with the user `me`, whose password is in a file like ~/.netrc."""
    require("proftpd-core", "proftpd", "ftpasswd")
    if os.getuid():
        pytest.skip("ProFTPD has to be started by root")
    with processes(folder) as group:
        port, files = free_port(), folder / "files"
        files.mkdir()
        (folder / "proftpd.conf").write_text(CONFIG.format(port=port, folder=folder))
        user = "--name=me", "--uid=0", "--gid=0", f"--home={files}", "--shell=/bin/sh", f"--file={folder}/passwd"
        group.run("sh", "-c", 'echo "$0" | ftpasswd --stdin --passwd "$@"', PASSWORD, *user)
        (folder / "passwd").chmod(0o600)
        (folder / "netrc").write_text(f"machine 127.0.0.1 login me password {PASSWORD}\n")
        (folder / "netrc").chmod(0o600)
        group.start("proftpd", "proftpd", "-n", "-c", folder / "proftpd.conf")
        group.wait_for(port)
        version = group.run("sh", "-c", "proftpd -v 2>&1").split()[-1]
        env = {"NETRC": f"{folder}/netrc"}
        base = f"ftp://127.0.0.1:{port}"
        refusals = [
            Refusal("a file that does not exist", ["{base}/none.tar"], r"does not exist \(550 .*\)"),
            Refusal("an output in no folder", ["-o", "{base}/no/a.tar", "{small}"], "the server says 550 "),
            Refusal("a wrong password", ["{base}/none.tar"], "530 .*netrc", {"NETRC": "/dev/null"}),
            Refusal("nobody listens", ["ftp://127.0.0.1:1/a.tar"], "Connection refused"),
        ]
        yield FileServer(version, base, env, files, escaped="%#?", lacks=LACKS, refusals=refusals, secrets=[PASSWORD])
