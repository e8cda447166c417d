"""What a URL says about itself."""

from __future__ import annotations

import os
import re

from tartools.errors import UsageError

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#@]*@")
_PROVIDER = re.compile(r"\?provider=(ais|aws|gcp|azure|oci|ht)\Z")
PIPE, FILE = "pipe:", "file:"
LOCAL = ("", "file")
LISTED = ("s3", "gs", "ais", "aws", "gcp")  # whose names are letters, and whose wildcards expand
REMOTE = (*LISTED, "http", "https")
SMART = ("azure", "sftp", "scp", "ssh", "hdfs", "webhdfs", "ftp", "ftps")  # that we leave to smart_open


def scheme_of(url: str) -> str:
    """Return the scheme of *url*, as it is: "" for a plain path, "-" for stdin or stdout.

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
    return found[1]


def gopen(scheme: str) -> str | None:
    """Return the command that reads the URLs of *scheme* instead of us, if the environment names one."""
    return os.environ.get(f"GOPEN_{scheme.upper()}") if scheme not in ("", "-", "pipe") else None


def split_query(url: str) -> tuple[str, str]:
    """Return *url* without what is no part of a name, and that: a query, or the provider of an ais: bucket.

    >>> split_query("ais://b/?.tar?provider=aws"), split_query("s3://b/a?x"), split_query("https://h/a.tar?x=1")
    (('ais://b/?.tar', '?provider=aws'), ('s3://b/a?x', ''), ('https://h/a.tar', '?x=1'))
    """
    scheme = scheme_of(url)
    at = len(url)
    if scheme in ("http", "https"):
        at = len(url.partition("?")[0])
    elif scheme == "ais" and (found := _PROVIDER.search(url)):
        at = found.start()
    return url[:at], url[at:]
