"""The directory at the end of a zip file, by Python's `zipfile`, and the payloads that it lists."""

from __future__ import annotations

import errno
import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NoReturn, cast

from tartools import tar
from tartools.errors import SampleError, TarFormatError, TruncatedError
from tartools.formats.build import kept
from tartools.samples.values import checked_key
from tartools.tar import Member

BEGIN, END = b"PK\3\4", b"PK\5\6"  # of the header of a member, and so of most files; of the record at the end
LOCAL = struct.Struct("<26x2H")  # that header: the lengths of the name and of the extra fields behind it
RECORD = struct.Struct("<4s6xH8xH")  # that record: how many members, and the length of the comment behind it
GAP = 0xFFFF + 24  # bytes of extra fields of a member, and of the sizes behind its payload
DAMAGE = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, OverflowError, NotImplementedError, OSError)
ENCRYPTED, UTF8 = 1, 1 << 11  # flags
METHODS = {1: "shrink", 6: "implode", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz", 98: "PPMd"}
READ = 1 << 18  # bytes


def raw_name(info: zipfile.ZipInfo) -> bytes:
    """Return the name of a member as it is in the file."""
    return info.orig_filename.encode("utf-8" if info.flag_bits & UTF8 else "cp437")


def path_of(info: zipfile.ZipInfo) -> bytes:
    """Return the name of a member in UTF-8: as it is, if it happens to be, or else it is in code page 437."""
    if info.orig_filename.isascii():
        return info.orig_filename.encode()
    try:
        raw_name(info).decode()
    except UnicodeDecodeError:
        return info.orig_filename.encode()
    return raw_name(info)


class Directory:
    """The directory of the zip file *url*, which is open as *file*: its members, *infos*, and the byte of its *start*.

    Holds: 600 bytes for each member. Raises: TarFormatError if this is not a zip file or is damaged; StorageError.
    """

    def __init__(self, file: BinaryIO, url: str) -> None:
        self.url = url
        try:
            with zipfile.ZipFile(file) as archive:
                self.infos, self.start, comment = archive.infolist(), archive.start_dir, len(archive.comment)
        except DAMAGE as error:
            self._refuse(file, error)
        self._check_end(file, comment)
        self._check_places(file)

    def failure(self, what: str, at: int) -> TarFormatError:
        """Return the failure of what is at byte *at*."""
        return TarFormatError(what, url=self.url, offset=at)

    def _refuse(self, file: BinaryIO, error: Exception) -> NoReturn:
        """Raise what says why `zipfile` has raised *error*."""
        for found in (error, error.__context__):
            if isinstance(found, OSError) and found.errno != errno.EINVAL:  # that is a seek to a place there is not
                raise found
        at = file.tell()
        length = file.seek(0, io.SEEK_END)
        if "not a zip file" not in str(error):
            raise self.failure(f"the directory of this zip file is damaged: {error}", min(at, length)) from None
        if _begins(file):
            raise TruncatedError("this zip file was cut: its end is missing", url=self.url, offset=length)
        raise self.failure("this is not a zip file: it neither begins nor ends as one", 0)

    def _check_end(self, file: BinaryIO, comment: int) -> None:
        """Raise TarFormatError unless the last bytes say what was found, with *comment* bytes behind them."""
        end = file.seek(0, io.SEEK_END) - RECORD.size - comment
        file.seek(end)
        signature, count, told = RECORD.unpack(file.read(RECORD.size))
        if signature != END or told != comment:
            raise self.failure("the end of this zip file is damaged, or other bytes follow it", end)
        if count not in (0xFFFF, len(self.infos) & 0xFFFF):  # the first: there is a 64-bit end
            raise self.failure(f"the directory lists {len(self.infos)} members, and its end says {count}", end)

    def _check_places(self, file: BinaryIO) -> None:
        """Raise TarFormatError if members overlap each other or the directory, or if some are not listed."""
        at, gap = 0, 0  # where a member ended, and where some may be that are not listed
        for info in sorted(self.infos, key=lambda info: info.header_offset):
            if info.header_offset < at:
                raise self.failure(f"the directory is damaged: it says that {info.filename!r} begins here", at)
            gap = gap or (0 if at else info.header_offset)
            at = info.header_offset + LOCAL.size + len(info.orig_filename) + info.compress_size
        if at > self.start:
            raise self.failure("the directory is damaged: members reach into it", self.start)
        if (gap or self.start - at > (GAP if self.infos else 0)) and _begins(file):
            what = "the directory is damaged: there are members that it does not list"
            raise self.failure(what, 0 if gap else at)

    def checked(self, info: zipfile.ZipInfo, path: bytes) -> None:
        """Raise SampleError if the payload of the member *path* can't be read."""
        name = path.decode()
        try:
            checked_key(name)
            if "\0" in name:
                raise SampleError(f"not a member name: {name!r}")
            if info.flag_bits & ENCRYPTED:
                raise SampleError(f"the member {name!r} is encrypted: unpack the file with its password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                method = METHODS.get(info.compress_type, f"method {info.compress_type}")
                raise SampleError(
                    f"the member {name!r} is compressed by {method}: only stored and deflated ones are read"
                )
        except SampleError as error:
            raise SampleError(error.message, url=self.url) from None

    def chunks(self, file: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the payload of *info*, in pieces. Raises: TarFormatError if it is not what the directory says."""
        left, what = info.file_size, ""
        file.seek(info.header_offset)
        head = file.read(LOCAL.size)
        named, extra = LOCAL.unpack(head.ljust(LOCAL.size))
        if not head.startswith(BEGIN) or file.read(named + extra)[:named] != raw_name(info):
            what = "the header before it differs from the directory"
        try:
            with zipfile.ZipExtFile(cast("Any", file), "r", info) as payload:
                while not what and (chunk := payload.read(READ)):
                    left -= len(chunk)
                    yield chunk
        except zipfile.BadZipFile:
            what = "its checksum (CRC) differs"
        except zlib.error:
            what = "it does not unpack"
        except EOFError:
            raise TruncatedError("the file ends in a payload", url=self.url, offset=info.header_offset) from None
        if what or left:
            what = what or "it is not as long as the directory says"
            raise self.failure(f"the member {path_of(info).decode()!r} is damaged: {what}", info.header_offset)

    def member(self, file: BinaryIO, info: zipfile.ZipInfo) -> Member:
        """Return *info* as the member of an archive: mode 0644, owner and time 0.

        Holds: its payload, above 16 MiB in a scratch file. Raises: TarFormatError, StorageError.
        """
        path, source = path_of(info), kept(self.chunks(file, info))
        return Member(path, source, 0, 0, info.file_size, tar.encode_header(path, info.file_size))


def _begins(file: BinaryIO) -> bool:
    """Tell whether *file* begins with a member."""
    file.seek(0)
    return file.read(len(BEGIN)) == BEGIN
