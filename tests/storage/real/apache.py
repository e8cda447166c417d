"""Apache with WebDAV, without and with TLS: Debian's apache2. It is read and written by plain HTTP (GET, PUT)."""

from __future__ import annotations

import http.client
import os
import pwd
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote, urlsplit

from tests.storage.real.server import Refusal, Server, free_port, processes, require

MODULES = Path("/usr/lib/apache2/modules")
NAMES = (
    *("mpm_event", "authn_core", "authz_core", "authn_file", "auth_basic", "authz_user", "dav", "dav_fs", "dav_lock"),
    *("alias", "mime", "ssl", "socache_shmcb", "setenvif", "env", "headers"),
)
CONFIG = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
Listen 127.0.0.1:{port}
Listen 127.0.0.1:{tls}
{user}
ErrorLog {folder}/error.log
DocumentRoot {folder}/files
TypesConfig /etc/mime.types
DavLockDB {folder}/lock
<Directory />
 Require all granted
</Directory>
Alias /dav {folder}/files
<Location /dav>
 Dav On
</Location>
Alias /private {folder}/files
<Location /private>
 Dav On
 AuthType Basic
 AuthName private
 AuthUserFile {folder}/passwords
 Require valid-user
</Location>
<Location /forbidden>
 Require all denied
</Location>
Redirect 302 /loop /loop
<VirtualHost 127.0.0.1:{tls}>
 SSLEngine on
 SSLCertificateFile {certificate}
</VirtualHost>
"""
LACKS = {"list, wildcards": "no listings in HTTP", "a table at 10 requests a second": "tried with S3"}


@contextmanager
def apache(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a folder of WebDAV."""
    with _running(certificate) as (version, port, _):
        yield _server(folder, version, f"http://127.0.0.1:{port}/dav", {})


@contextmanager
def apache_tls(folder: Path, certificate: Path) -> Iterator[Server]:
    """Give a folder of WebDAV, by TLS."""
    with _running(certificate) as (version, _, port):
        env = {"REQUESTS_CA_BUNDLE": str(certificate)}
        yield _server(folder, version, f"https://127.0.0.1:{port}/dav", env)


@contextmanager
def _running(certificate: Path) -> Iterator[tuple[str, int, int]]:
    """Give version, port and TLS port."""
    require("apache2", "apache2")
    # not in the folder of the tests: every run of pytest closes that to other users, and this server is one
    with TemporaryDirectory(prefix="apache-") as name, processes(Path(name)) as group:
        folder = Path(name)
        port, tls = free_port(), free_port()
        (folder / "files").mkdir()
        (folder / "passwords").write_text("user:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=\n")  # password
        user = ""
        if os.getuid() == 0:
            user = "User www-data\nGroup www-data"
            owner = pwd.getpwnam("www-data")
            for path in (folder, folder / "files"):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        text = "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in NAMES)
        text += CONFIG.format(folder=folder, port=port, tls=tls, user=user, certificate=certificate)
        (folder / "apache.conf").write_text(text)
        group.start("apache", "apache2", "-f", folder / "apache.conf", "-D", "FOREGROUND")
        group.wait_for(port)
        version = group.run("apache2", "-v").partition("Apache/")[2].partition(" ")[0]
        yield version, port, tls


def _server(folder: Path, version: str, base: str, env: dict[str, str]) -> Server:
    def request(method: str, name: str) -> tuple[int, bytes]:
        parts = urlsplit(base)
        context = ssl._create_unverified_context()
        connection: http.client.HTTPConnection = http.client.HTTPConnection(parts.netloc)
        if parts.scheme == "https":
            connection = http.client.HTTPSConnection(parts.netloc, context=context)
        with closing(connection):
            connection.request(method, f"{parts.path}/{quote(name)}")
            answer = connection.getresponse()
            return answer.status, answer.read()

    def get(name: str) -> bytes | None:
        status, data = request("GET", name)
        assert status in (200, 404), (status, data)
        return data if status == 200 else None

    def make_folder(name: str) -> None:
        assert request("MKCOL", name)[0] == 201

    return Server(
        version,
        base,
        env,
        get,
        make_folder,
        lacks=LACKS,
        refusals=_refusals(base),
        quoted=True,
        version_seconds=2.5,  # its ETag of a younger file is weak
        secrets=["password", "SECRET"],
    )


def _refusals(base: str) -> list[Refusal]:
    """Return what a web server refuses."""
    root = base.removesuffix("/dav")
    parts = urlsplit(base)
    other = "http" if parts.scheme == "https" else "https"
    once = {"TARTOOLS_TRIES": "1"}
    small = "{small}"
    return [
        Refusal("an object that does not exist", ["{base}/none.tar"], "no such object|404"),
        Refusal("an object below one", ["{base}/none/none.tar"], "no such object|404"),
        Refusal("a pattern", ["{base}/none-*.tar"], "web servers cannot be listed"),
        Refusal("one of a range", ["{base}/none-{{0..2}}.tar"], "no such object|404"),
        Refusal("an output in no folder", ["-o", "{base}/none/a.tar", small], "the folder does not.*409 Conflict"),
        Refusal("an output where nothing is taken", ["-o", f"{root}/a.tar", small], "does not accept uploads"),
        Refusal("no password", [f"{root}/private/a.tar"], "the server does not accept the credentials"),
        Refusal("no password, writing", ["-o", f"{root}/private/a.tar", small], "credentials"),
        Refusal("forbidden", [f"{root}/forbidden"], r"no permission to read \(Forbidden\)"),
        Refusal("forbidden, with a secret", [f"{root}/forbidden?key=SECRET"], r"no permission to read \(Forbidden\)"),
        Refusal("a loop of redirects", [f"{root}/loop"], "too many redirects"),
        Refusal("nobody listens", ["http://127.0.0.1:1/a.tar"], r"cannot connect to 127.0.0.1:1: .* \(1 try\)", once),
        Refusal("nobody listens, writing", ["-o", "http://127.0.0.1:1/a.tar", small], "cannot connect to", once),
        Refusal("no such host", ["http://no.such.host.invalid/a.tar"], "cannot connect to no.such.host.invalid", once),
        Refusal("the wrong scheme", [f"{other}://{parts.netloc}/dav/a.tar"], "TLS error|400|was dropped", once),
        Refusal("no host", ["http:///a.tar"], "write http://HOST/PATH"),
        Refusal("an invalid port", ["http://127.0.0.1:99999/a.tar"], "invalid URL"),
    ]
