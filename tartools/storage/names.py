"""What a URL says about itself."""

from __future__ import annotations

import re

from tartools.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#@]*@")
PIPE, FILE = "pipe:", "file:"
LOCAL = ("", "file")
LISTED = ("s3", "gs", "ais", "aws", "gcp")  # whose names are letters, and whose wildcards expand
REMOTE = (*LISTED, "http", "https")
SMART = ("azure", "sftp", "scp", "ssh", "hdfs", "webhdfs", "ftp", "ftps")  # that we leave to smart_open


def scheme_of(url: str) -> str:
    """Return the scheme of *url* in lower case: "" for a plain path, "-" for stdin or stdout.

    Raises: UsageError for a URL with a password in it, which would end up in process lists and logs.

    >>> scheme_of("a:b.tar"), scheme_of("s3://b/a.tar"), scheme_of("pipe:cat a"), scheme_of("-")
    ('', 's3', 'pipe', '-')
    """
    if url == "-":
        return "-"
    if url.startswith((PIPE, FILE)):
        return url[:4]
    found = _SCHEME.match(url)
    if not found:
        return ""
    if _PASSWORD.match(url):
        raise UsageError(f"a {found[1]} URL with a password in it is refused; see tartools(7) for credentials")
    return found[1].lower()
