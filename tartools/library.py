"""The toolbox for Python programs: samples read and written as the commands do it.

Nothing here forks or touches signals, and only what reads and writes remote URLs starts threads. Commands of `pipe:`
URLs are the exception, asked for as such.
"""

from __future__ import annotations

import io
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

from tartools import shards, storage
from tartools.sample import Sample, Value, build
from tartools.shardwriter import ShardWriter
from tartools.storage.interrupts import signals_wait

if TYPE_CHECKING:
    from tartools.storage.files import WritableFile


def read(urls: str | Sequence[str], *, lax: bool = False, skip_special: bool = False) -> Iterator[Sample]:
    """Return an iterator over the samples of one or many shards.

        for sample in tartools.read("train-{000..147}.tar"):
            sample.key, sample["jpg"]  # str, bytes

    *urls* are paths and URLs as on the command line: braces and wildcards are expanded, `-` is stdin. An empty list has
    no samples. All local files are looked at before this returns. Dropping the iterator closes what it has open.

    Order: that of the names, and of each archive. Holds: one sample, one read buffer of 1 MiB. A sample that you keep
    keeps its buffer: keep `sample.own()` instead.
    Raises: StorageError, TarFormatError with URL and byte offset, after the samples before the damage. Members that
    carry no data (links) are told as warnings, unless *skip_special*; *lax* accepts a shard without an end.
    """
    patterns = [urls] if isinstance(urls, str) else list(urls)
    expanded = storage.expand(patterns) if patterns else []
    return shards.read_samples(expanded, reading=shards.Reading(lax, skip_special))


def write(
    samples: Iterable[Sample | Mapping[str, Value]], url: str, *, force: bool = False, gzip: bool = False
) -> None:
    """Write *samples* to the shard *url*, which appears when it is complete; see `TarWriter`.

    tartools.write((s for s in tartools.read("a.tar") if s["cls"] == b"3"), "threes.tar")
    """
    with TarWriter(url, force=force, gzip=gzip) as writer:
        for sample in samples:
            writer.write(sample)


@overload
def open(url: str, mode: Literal["rb"] = "rb") -> io.BufferedReader: ...
@overload
def open(url: str, mode: Literal["wb"], *, force: bool = False) -> WritableFile: ...
def open(url: str, mode: str = "rb", *, force: bool = False) -> io.BufferedReader | WritableFile:
    """Return *url*, local or remote, as a Python file: to read ("rb") or to write ("wb").

        with tartools.open("s3://bucket/model.pt", "wb") as file:
            torch.save(model.state_dict(), file)
        state = torch.load(tartools.open("s3://bucket/model.pt", "rb"))

    Reading: buffered; files, and objects of stores and servers that have ranges, seek, and only what is read is
    fetched. A server without ranges has all of it copied to a temporary file first. `pipe:` and stdin do not seek.
    Writing: no seeking; *url* appears at `close`, or when the `with` block ends normally. Anything else leaves nothing.
    Around it, a wrapper like `io.TextIOWrapper` needs this file's own `with`, since its own closes in any case.

    Holds: 9 ranges of 8 MiB when it is read from end to end; the parts under way, 5 of 16 MiB, when it is written.
    Raises: StorageError, with URL and byte; ValueError for another *mode*.
    """
    from tartools.storage import files

    if mode == "rb":
        return files.reading(url)
    if mode == "wb":
        return files.WritableFile(url, force=force)
    raise ValueError(f"mode is 'rb' or 'wb', not {mode!r}")


class TarWriter:
    """Writes samples to the shard *url*; the suffix (or *gzip*) says how it is compressed.

        with tartools.TarWriter("a.tar") as writer:
            writer.write({"__key__": "n01", "png": picture, "cls": 3, "json": {"who": "me"}})

    The file appears under its name at `close`, or when the `with` block ends normally. Anything else (an exception,
    being forgotten, the end of the program) leaves nothing behind.

    Raises: StorageError if *url* exists (unless *force*) or can't be written.
    """

    def __init__(self, url: str, *, force: bool = False, gzip: bool = False) -> None:
        storage.check_output(url, force, ())  # a store says it only at the end otherwise
        with signals_wait():
            self._writer = ShardWriter(url, force=force, gzip=gzip)
            self._finalizer = weakref.finalize(self, self._writer.abort)

    def write(self, sample: Sample | Mapping[str, Value]) -> None:
        """Add a sample: one that was read, or a mapping of `__key__` and fields to values.

        Values: bytes, str, numbers, PIL images (as the field's suffix says), and JSON values for a `json` field.
        Raises: TypeError naming the field for another value; SampleError for a key or field that would not read
        back, or the key of the sample before; ValueError after `close`.
        """
        if not self._finalizer.alive:
            raise ValueError("this TarWriter is closed")
        self._writer.write(sample if isinstance(sample, Sample) else build(sample))

    def close(self) -> None:
        """Write the end of the archive, and let the shard appear. Does nothing the second time."""
        if self._finalizer.alive:
            try:
                self._writer.commit()
            except BaseException:
                self._finalizer()
                raise
            self._finalizer.detach()

    def abort(self) -> None:
        """Give up: nothing appears. Does nothing after `close`."""
        self._finalizer()

    def __enter__(self) -> TarWriter:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close after a normal end of the block, else abort."""
        if kind is None:
            self.close()
        else:
            self.abort()
