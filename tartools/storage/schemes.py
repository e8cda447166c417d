"""The table of schemes: which module reads and writes the URLs of each. A new scheme is a row here.

The names are those of modules in `tartools.storage`, which are imported when they are first needed. Those that begin
with `objects.` are stores: they speak a protocol, and `objects` reads and writes what they have.
"""

from __future__ import annotations

import sys

SCHEMES = {
    "-": "standard",  # stdin or stdout
    "": "local",  # a plain path
    "file": "local",
    "pipe": "pipe",
    "s3": "objects.s3",
    "gs": "objects.gs",
    "ais": "objects.ais",
    "aws": "objects.ais",
    "gcp": "objects.ais",
    "http": "objects.web",
    "https": "objects.web",
    "azure": "smart",  # this and what follows is left to smart_open
    "sftp": "smart",
    "scp": "smart",
    "ssh": "smart",
    "hdfs": "smart",
    "webhdfs": "smart",
    "ftp": "smart",
    "ftps": "smart",
}
STORES = "objects."
LISTED = ("objects.s3", "objects.gs", "objects.ais")  # stores that list their objects: wildcards expand


def loaded(module: str) -> object:
    """Return a *module* of the table, imported."""
    name = f"tartools.storage.{module}"
    __import__(name)  # what import_module does, without importing importlib: 0.3 ms of each start
    return sys.modules[name]
