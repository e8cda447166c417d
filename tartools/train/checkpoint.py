"""Checkpoints at any URL, for `torch.save` and `torch.load`.

    with tartools.train.checkpoint.writer("s3://bucket/run/model.pt") as file:
        torch.save(model.state_dict(), file)
    with tartools.train.checkpoint.reader("s3://bucket/run/model.pt") as file:
        model.load_state_dict(torch.load(file, weights_only=True))

For torch.distributed.checkpoint there are `tartools.train.StorageWriter` and `StorageReader`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from tartools.storage import seekable
from tartools.storage.seekable import WritableFile
from tartools.storage.url import Name, name_of


@contextmanager
def writer(url: Name) -> Iterator[WritableFile]:
    """Open *url* for writing: a context manager with a binary file, which appears when the block ends well.

    It replaces what was at *url*. An exception in the block, a kill, a full disk leave what was there before; but
    stdout, existing fifos and devices, and commands (`pipe:`) get bytes at once. In stores parts are sent while the
    next one is written.

    Holds: for a store up to 5 parts of 16 MiB, beyond 8 GB of 32 MiB. Raises: StorageError, also in place of the error
    that torch.save makes of it; BrokenPipeError for stdout whose reader has closed it; UsageError if *url* is empty, a
    pattern with a number, or a terminal, holds credentials, names no object of its store, or is a file: URL of another
    host.
    """
    with WritableFile(name_of(url), force=True) as file, _raise_cause(file):
        yield file


@contextmanager
def reader(url: Name) -> Iterator[io.BufferedReader]:
    """Open *url* for reading: a context manager with a binary file that can seek, which is closed at its end.

    Objects of stores are read in ranges of one version, several at once, ahead of the reader. A local file is read in
    place, and not compared with what it was. Anything else (stdin, a command, a fifo), and an object that can't be read
    in ranges, is copied to a temporary file first.

    Holds: up to 72 MiB. Raises: StorageError, also if the object is replaced while it is read, and in place of the
    error that torch.load makes of it; OSError of reading a local file; UsageError if *url* names no object of its
    store, holds credentials, or is a file: URL of another host.
    """
    with seekable.open_seekable(name_of(url)) as file, _raise_cause(file.raw):
        yield file


@contextmanager
def _raise_cause(file: object) -> Iterator[None]:
    """For the body of `with`: replace what it raises by `file.failure`, the last error of *file*, which has the URL.

    torch raises an error of its own after that one. If there is no such attribute, or it is None, what the body raises
    passes unchanged.
    """
    try:
        yield
    except Exception as error:
        failure: Exception | None = getattr(file, "failure", None)
        if failure is None or failure is error:
            raise
        raise failure from None
