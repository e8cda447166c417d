"""Samples to a zip file."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from typing import Any

from tartools.errors import SampleError, StorageError
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.storage.scratch import reread, scratch_file
from tartools.storage.streams import Sink
from tartools.tar import Member

LARGE = 16 << 20  # bytes; larger members go to a scratch file
COPIED = 1 << 20  # bytes
LONGEST = 0xFFFF  # bytes of a name
DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold
MODE = 0o100644  # a regular file


def write_zip(samples: Iterable[Sample], sink: Sink, account: Account, deflate: bool = False) -> None:
    """Write *samples*, member by member and in order, to *sink* as a zip file; with *deflate*, compressed.

    All members have mode 0644 and the date 1980-01-01: same samples, same bytes. Large files get 64-bit sizes.

    Holds: a member, above 16 MiB in a scratch file, and some 500 bytes for each member, which end the file.
    Raises: SampleError if two members have one name, or for a name that a zip file can't hold; what *samples* raises;
    StorageError.
    """
    held: Any = _Held(sink)
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    archive = zipfile.ZipFile(held, "w", method)  # not closed after an error: no end then
    try:
        for sample in samples:
            for member in sample.members:
                _write(archive, member, sample)
                held.flush_member()
            account.samples_out += 1
        archive.close()
        held.flush_member()
    except BaseException:
        archive.fp = None  # or it would write the end of the file when it is garbage-collected
        raise
    account.bytes_out += held.tell()


def _write(archive: zipfile.ZipFile, member: Member, sample: Sample) -> None:
    """Add *member* of *sample* to *archive*."""
    info = zipfile.ZipInfo(_name(archive, member, sample), DATE)
    info.compress_type = archive.compression
    info.create_system = 3  # Unix
    info.external_attr = MODE << 16
    info.file_size = member.size  # says whether it needs 64 bits
    with archive.open(info, "w") as target:
        if member.size <= COPIED:
            target.write(member.read())
            return
        with member.open() as payload:
            while chunk := payload.read(COPIED):
                target.write(chunk)


def _name(archive: zipfile.ZipFile, member: Member, sample: Sample) -> str:
    """Return the name of *member* for *archive*. Raises: SampleError if it is there already, or can't be a name."""
    wrong = ""
    if len(member.path) > LONGEST:
        wrong = f"a name in a zip file has at most {LONGEST:,} bytes, and this has {len(member.path):,}"
    try:
        name = member.path.decode()
    except UnicodeDecodeError:
        wrong = "a name in a zip file is UTF-8"
    else:
        wrong = wrong or ("a name in a zip file has no NUL" if "\0" in name else "")
    if wrong:
        raise SampleError(f"{member.name[:200]!r}: {wrong}; --rekey of tarcat gives new keys", url=sample.shard)
    if name in archive.NameToInfo:
        raise SampleError(
            f"two members are called {name!r}: --rekey of tarcat gives new keys, tarsort joins samples of one key",
            url=sample.shard,
        )
    return name


class _Held:
    """What zipfile writes to. The current member is held, because zipfile writes its header again at its end."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._before = 0  # bytes in the sink
        self._file: io.BytesIO | io.FileIO = io.BytesIO()

    def write(self, data: bytes) -> int:
        """Add *data*."""
        if isinstance(self._file, io.BytesIO) and self._file.tell() + len(data) > LARGE:
            scratch = scratch_file()
            scratch.write(self._file.getbuffer())
            self._file = scratch
        self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the byte of the zip file that is written next."""
        return self._before + self._file.tell()

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go to a byte of the current member."""
        if whence != io.SEEK_SET or place < self._before:
            raise StorageError("a zip file is written from its first byte to its last")
        return self._before + self._file.seek(place - self._before)

    def flush(self) -> None:
        """Do nothing: `flush_member` does."""

    def flush_member(self) -> None:
        """Write what is held to the sink."""
        size = self._file.seek(0, io.SEEK_END)
        if isinstance(self._file, io.BytesIO):
            self._sink.write(self._file.getvalue())
        else:
            with self._file, reread(self._file) as held:
                while chunk := held.read(COPIED):
                    self._sink.write(chunk)
        self._before += size
        self._file = io.BytesIO()
