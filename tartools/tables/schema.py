"""The columns of a table, and the names of shards in it.

Everything that reading relies on is a column, because SQL engines drop the metadata of a file.
"""

from __future__ import annotations

import os
from typing import Any

from tartools.errors import StorageError, how_to_install
from tartools.storage.url import Url
from tartools.tar import compression
from tartools.tar.runs import one_thread

SHARD, VERSION, INDEX, KEY = "__shard__", "__version__", "__index__", "__key__"
BEGIN, END, MEMBERS = "__begin__", "__end__", "__members__"
MAGIC, SUFFIX = compression.PARQUET, compression.TABLE
ROW_GROUP = 1 << 16  # rows
MOST_FIELDS = 1000  # in `__members__`


def check_installed() -> None:
    """Raise StorageError if there is no pyarrow, without importing it, which takes 0.3 s."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise _missing()


def arrow() -> Any:
    """Return pyarrow, with `pyarrow.parquet` imported. Raises: StorageError that says how to install it."""
    try:
        with one_thread():
            import pyarrow
            import pyarrow.parquet
    except ImportError as error:
        raise _missing() from error
    return pyarrow


def _missing() -> StorageError:
    return StorageError(f"Parquet files need pyarrow: {how_to_install('pyarrow')}")


def raw(column: Any) -> Any:
    """Return *column*, of text or bytes, as an array of bytes. Raises: ArrowException if it is neither."""
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == pa.string():  # the common case; `cast` takes 60 ms to import
        return column.view(pa.binary())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        raise pa.ArrowTypeError("no text")
    return column.cast(pa.large_binary())


def folder_of(url: str) -> str:
    """Return the directory or prefix that the table *url* is in, with its last slash; "" for stdin.

    >>> folder_of("s3://b/sets/train.parquet"), folder_of("train.parquet")
    ('s3://b/sets/', '')
    """
    name = "" if url == "-" else Url(url).name
    return name[: name.rfind("/") + 1]


def relative(shard: str, folder: str) -> str:
    """Return the name of *shard* in a table in *folder*: relative where both can be moved together.

    >>> relative("s3://b/sets/a.tar", "s3://b/sets/"), relative("s3://b/a.tar", "sets/")
    ('a.tar', 's3://b/a.tar')
    """
    if folder and shard.startswith(folder):
        return shard[len(folder) :]
    if not Url(shard).is_local or "://" in shard:
        return shard
    path = shard.removeprefix("file:")
    if folder and not Url(folder).is_local:
        return os.path.abspath(path)
    inside = os.path.relpath(path, folder or ".")
    return path if os.path.isabs(path) and inside.startswith("..") else inside


def resolved(name: str, folder: str) -> str:
    """Return the URL of the shard *name* in a table in *folder*.

    Raises: StorageError for what a table may not name: commands, stdin, and local files if the table is on a server.
    """
    url = Url(name)
    far = bool(folder) and not Url(folder).is_local
    outside = url.scheme == "file" or os.path.isabs(name) or ".." in name.split("/")
    if url.scheme in ("-", "pipe") or (far and outside):
        raise StorageError(f"a table may not name the shard {str(name)!r}")
    return name if url.scheme or os.path.isabs(name) else folder + name
