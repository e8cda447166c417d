"""Zip files to samples, by the directory at the end of one and the payloads that it lists; and back; by `zipfile`."""

from __future__ import annotations

import errno
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, NoReturn, cast

from tartools import tar
from tartools.errors import SampleError, StorageError, TarFormatError, TruncatedError, UsageError, shown
from tartools.formats.folder import class_members, is_left_out, number_classes, report_left_out, warn_of_twins
from tartools.formats.plan import join_chunks
from tartools.formats.zipnames import UNIX_SYSTEMS, ZipNames, path_of_member, raw_name
from tartools.samples.account import Account, RepeatedKeyDetector
from tartools.samples.sample import Sample
from tartools.samples.values import require_safe_key
from tartools.storage.scratch import reopen_scratch, scratch_file
from tartools.storage.streams import Sink
from tartools.tar import Member, split_path

# of the header of a member, and so of most files; of the record at the end
MEMBER_MAGIC, DIRECTORY_END_MAGIC = b"PK\3\4", b"PK\5\6"
LOCAL_HEADER = struct.Struct("<26x2H")  # that header: the lengths of the name and of the extra fields behind it
# that record: how many members, and the length of the comment behind it
DIRECTORY_END_RECORD = struct.Struct("<4s6xH8xH")
MAX_MEMBER_GAP_BYTES = 0xFFFF + 24  # bytes of extra fields of a member, and of the sizes behind its payload
ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, OverflowError, NotImplementedError, OSError)
ENCRYPTED_FLAG = 1  # flag
COMPRESSION_METHODS = {
    1: "shrink",
    6: "implode",
    9: "deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "zstd",
    95: "xz",
    98: "PPMd",
}
READ_CHUNK_BYTES = 1 << 18  # bytes


def samples(
    urls: Iterable[str],
    account: Account,
    class_field: str | None = None,
    skip_special: bool = False,
    encoding: str | None = None,
) -> Iterator[Sample]:
    """Yield the samples of zip files, file by file. Members are new: mode 0644, owner and time 0.

    *class_field*: field for the class of a sample, the name of its directory; None: no class. A field of numbers, such
    as cls, gets a number for each name, and cls.txt the name, for which the directories of all files are read first.
    Links and special files are reported as omissions, unless *skip_special*; files that systems add, and hidden
    folders, are left out with a warning. *encoding*: of names that do not say that they are UTF-8; None: UTF-8, or else
    code page 437. Samples are counted in *account*, as read. A lone member without a field gets no class.

    Holds: one sample, and 600 bytes for each member of a file. Raises: SampleError for members that can't be read, for
    a sample in no directory if it needs a class, or with the field for the class; UsageError for stdin if classes are
    numbered; TarFormatError for a damaged file; StorageError.
    """
    urls = list(urls)
    numbers = (
        {} if class_field is None else number_classes(class_field, _class_labels(urls, class_field, encoding), account)
    )
    for file, zipped in open_zips(urls, encoding):
        zipped.report(account, skip_special)
        for number in range(len(zipped)):
            sample = zipped.read_sample(file, number)
            if class_field is not None:
                sample = add_class(sample, class_field, numbers)
            account.bytes_in += sum(member.size for member in sample.members)
            account.samples_in += 1
            yield sample
        account.shards_done += 1


def open_zips(urls: Iterable[str], encoding: str | None = None) -> Iterator[tuple[BinaryIO, ZipSamples]]:
    """Yield (open file, its `ZipSamples`) for each of *urls*; the file is closed when the next is asked for.

    *encoding*: of names that do not say that they are UTF-8; None: UTF-8, or else code page 437. Raises: SampleError
    for members that can't be read, such as encrypted ones, and names not in *encoding*; TarFormatError for a damaged
    file; StorageError.
    """
    from tartools.storage import seekable  # brings what remote URLs need

    for url in urls:
        with seekable.open_seekable(url) as file:
            yield file, ZipSamples(file, url, encoding)


def _class_labels(urls: list[str], field: str, encoding: str | None) -> Iterator[bytes]:
    """Yield the class of each sample of the zip files *urls*: the name of the directory that it is in.

    Samples in no directory, and lone members without a field, are skipped. *field*: the field for the class, for the
    message. *encoding*: of names that do not say that they are UTF-8; None: UTF-8, or else code page 437.
    Raises: UsageError for stdin, which could not be read again; SampleError, TarFormatError and StorageError for the
    files.
    """
    if "-" in urls:
        reason = f"this is read once, and --class {field} numbers all classes first: name a file, or --class label.txt"
        raise UsageError(reason, url="-")
    for _, zipped in open_zips(urls, encoding):
        for number in range(len(zipped)):
            key, inner = split_path(path_of_member(zipped[number][0]))
            if inner and (label := _class_of_key(key)):
                yield label


def _class_of_key(key: bytes) -> bytes:
    """Return the class of the sample *key*: the name of the directory that it is in, b"" if in none."""
    return key.rpartition(b"/")[0].rpartition(b"/")[2]


def add_class(sample: Sample, field: str, numbers: dict[bytes, int]) -> Sample:
    """Return *sample* with members that say its class, the name of its directory, after its own members.

    *numbers*: number of each class: *field* gets it, and the field with .txt behind its name the name; if {}, *field*
    gets the name. A sample that is a lone member without a field is returned unchanged. Raises: SampleError if it has
    one of these fields, or is in no directory.
    """
    label = _class_of_key(sample.raw_key)
    if not sample.grouped:
        return sample
    if not label:
        raise SampleError(f"the sample {sample.key!r} is in no directory, so it has no {field!r}", url=sample.shard)
    class_parts = class_members(sample.raw_key, field, label, numbers)
    if {path for path, _ in class_parts} & {member.path for member in sample.members}:
        raise SampleError(f"the sample {sample.key!r} would have the field {field!r} twice", url=sample.shard)
    return sample.with_members((*sample.members, *(tar.new_member(*part) for part in class_parts)))


class ZipSamples:
    """The samples of the zip file *url*, open as *file*: adjacent members with one key, in the order of its directory.

    A member without a field is a sample of its own; directories are no members. `len(zipped)` is the number of samples,
    `zipped[number]` has the directory entries of one, from 0; `read_sample` reads it from a file opened again or from
    *file*, which is not kept.

    `start`: the byte at which the directory begins.
    `specials`: links and special files, (name, kind).
    `left_out`: paths of files that systems add (.DS_Store, ._NAME), and of files in folders .NAME or
        of systems (__MACOSX).
    `returning_keys`: keys that return after other keys, among the first 10,000 samples.
    `names`: decodes names that do not say that they are UTF-8, in *encoding*; None: as UTF-8, or else code page 437.

    Holds: 600 bytes for each member, 100 for each sample, and while it is made, all names.
    Raises: SampleError for encrypted members, other methods than stored and deflated, names that are not in *encoding*
    or lead out of the folder, and two members of one name; TarFormatError if this is not a zip file or is damaged;
    StorageError; OSError if the system refuses to read.
    """

    def __init__(self, file: BinaryIO, url: str, encoding: str | None = None) -> None:
        self.url = url
        self.names = ZipNames(url, encoding)
        self.specials: list[tuple[str, str]] = []
        self.left_out: list[str] = []
        self.returning_keys: list[bytes] = []
        self._samples: list[list[zipfile.ZipInfo]] = []  # the members of each
        try:
            with zipfile.ZipFile(file) as archive:
                infos, self.start, comment = archive.infolist(), archive.start_dir, len(archive.comment)
        except ZIP_ERRORS as error:
            self._raise_open_error(file, error)
        self._check_end(file, infos, comment)
        self._check_places(file, infos)
        self.names.set_filenames(infos)
        self._group_members(infos)

    def failure(self, message: str, at: int) -> TarFormatError:
        """Return the error with this message, the URL of the zip file, and the offset *at*, in bytes."""
        return TarFormatError(message, url=self.url, offset=at)

    def _raise_open_error(self, file: BinaryIO, error: Exception) -> NoReturn:
        """Raise the error that explains *error*, which `zipfile` raised when it opened *file*.

        Raises: OSError if the system refused to read; TruncatedError if the file begins as a zip file, but its end is
        missing; TarFormatError if the directory is damaged, or this is no zip file.
        """
        for cause in (error, error.__context__):
            if isinstance(cause, OSError) and cause.errno != errno.EINVAL:  # that is a seek to a place there is not
                raise cause
        at = file.tell()
        length = file.seek(0, io.SEEK_END)
        if "not a zip file" not in str(error):
            raise self.failure(f"the directory of this zip file is damaged: {error}", min(at, length)) from None
        if _is_zip_begin(file):
            raise TruncatedError("this zip file is truncated: its end is missing", url=self.url, offset=length)
        raise self.failure("this is not a zip file: it neither begins nor ends as one", 0)

    def _check_end(self, file: BinaryIO, infos: list[zipfile.ZipInfo], comment: int) -> None:
        """Raise TarFormatError unless the record at the end of *file* agrees with the directory, which lists *infos*.

        *comment*: bytes of the comment behind the record.
        """
        end = file.seek(0, io.SEEK_END) - DIRECTORY_END_RECORD.size - comment
        file.seek(end)
        signature, count, comment_size = DIRECTORY_END_RECORD.unpack(file.read(DIRECTORY_END_RECORD.size))
        if signature != DIRECTORY_END_MAGIC or comment_size != comment:
            raise self.failure("the end of this zip file is damaged, or other bytes follow it", end)
        if count not in (0xFFFF, len(infos) & 0xFFFF):  # the first: there is a 64-bit end
            raise self.failure(f"the directory lists {len(infos)} members, and its end says {count}", end)

    def _check_places(self, file: BinaryIO, infos: list[zipfile.ZipInfo]) -> None:
        """Raise TarFormatError if members overlap each other or the directory, or if some are not listed.

        Members that are not listed are noticed only before the first and behind the last listed one, and only if *file*
        begins with a member.
        """
        at, gap = 0, 0  # where a member ended, and where some may be that are not listed
        for info in sorted(infos, key=lambda info: info.header_offset):
            if info.header_offset < at:
                raise self.failure(f"the directory is damaged: it says that {info.filename!r} begins here", at)
            gap = gap or (0 if at else info.header_offset)
            at = info.header_offset + LOCAL_HEADER.size + len(info.orig_filename) + info.compress_size
        if at > self.start:
            raise self.failure("the directory is damaged: members reach into it", self.start)
        if (gap or self.start - at > (MAX_MEMBER_GAP_BYTES if infos else 0)) and _is_zip_begin(file):
            reason = "the directory is damaged: there are members that it does not list"
            raise self.failure(reason, 0 if gap else at)

    def _group_members(self, infos: list[zipfile.ZipInfo]) -> None:
        """Collect the samples among the members *infos*, which are in the order of the directory, in `_samples`.

        Keys that return go to `returning_keys`, members that are left out to `specials` or `left_out`. Raises:
        SampleError for a member that can't be read, or two with one name; TarFormatError for a directory with a
        payload.
        """
        paths: set[bytes] = set()
        first_keys = RepeatedKeyDetector(self.returning_keys.append)
        last: bytes | None = None
        for info in infos:
            path = path_of_member(info)
            if not self._is_member(info, path):
                continue
            self._check_member(info, path)
            if path in paths:
                raise SampleError(f"two members are called {path.decode()!r}", url=self.url)
            paths.add(path)
            key, field = split_path(path)
            if not field or key != last:
                self._samples.append([])
                if first_keys.remaining:
                    first_keys.add([key])
            last = key if field else None
            self._samples[-1].append(info)

    def _is_member(self, info: zipfile.ZipInfo, path: bytes) -> bool:
        """True if *info*, with this *path*, is a member of a sample.

        False for directories, and for links, special files, files that systems add and those in hidden folders, which
        are added to `specials` or `left_out`. Raises: TarFormatError for a directory that has a payload.
        """
        kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system in UNIX_SYSTEMS else 0
        if path.endswith(b"/"):
            if info.file_size:
                raise self.failure(f"the directory {path.decode()!r} has a payload", info.header_offset)
        elif is_left_out(path.rpartition(b"/")[2], False) or any(is_left_out(x, True) for x in path.split(b"/")[:-1]):
            self.left_out.append(path.decode())
        elif kind not in (0, stat.S_IFREG):
            self.specials.append((path.decode(), "symbolic link" if kind == stat.S_IFLNK else "special file"))
        else:
            return True
        return False

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> list[zipfile.ZipInfo]:
        """Return the directory entries of the members of sample *number*, from 0."""
        return self._samples[number]

    def read_sample(self, file: BinaryIO, number: int) -> Sample:
        """Return sample *number*, from 0, with the payloads read from *file*, the zip file.

        Raises: TarFormatError if one is damaged; StorageError.
        """
        members = tuple(self.read_member(file, info) for info in self[number])
        return Sample(split_path(members[0].path)[0], members, self.url)

    def report(self, account: Account, skip_special: bool) -> None:
        """Warn of doubtful names, left out files and the first key that returns; report special files as an omission.

        Doubtful names: the warnings of `ZipNames`, and fields that differ only in case or spelling (`warn_of_twins`).
        Special files include links. *skip_special*: True to say nothing of them. All messages go to *account*.
        """
        where = shown(self.url)
        for warning in self.names.warnings():
            account.warn(warning)
        specials = [] if skip_special else [(f"{where}: {name}", kind) for name, kind in self.specials]
        report_left_out(where, self.left_out, specials, "members", account)
        for key in self.returning_keys[:1]:
            account.record_returning_key(key, self.url)
        warn_of_twins((list(map(path_of_member, self[number])) for number in range(len(self))), account)

    def _check_member(self, info: zipfile.ZipInfo, path: bytes) -> None:
        """Raise SampleError if the member *path*, with the directory entry *info*, can't be a member or be read.

        Faults: an empty or absolute path, one with .. or NUL, encryption, and any method but stored and deflated.
        """
        name = path.decode()
        try:
            require_safe_key(name)
            if "\0" in name:
                raise SampleError(f"not a member name: {name!r}")
            if info.flag_bits & ENCRYPTED_FLAG:
                raise SampleError(f"the member {name!r} is encrypted: unpack the file with its password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                method = COMPRESSION_METHODS.get(info.compress_type, f"method {info.compress_type}")
                raise SampleError(
                    f"the member {name!r} is compressed by {method}: only stored and deflated ones are read "
                    "(7z x FILE -oDIR unpacks others, and tarcreate --folder DIR makes samples of that)"
                )
        except SampleError as error:
            raise SampleError(error.message, url=self.url) from None

    def chunks(self, file: BinaryIO, info: zipfile.ZipInfo) -> Iterator[bytes]:
        """Yield the payload of *info* from *file*, unpacked, in chunks of up to READ_CHUNK_BYTES.

        Raises, perhaps only after the last chunk: TarFormatError if its header, checksum or size differs from the
        directory, or if it does not unpack; TruncatedError if the file ends in it; StorageError if it can't be read.
        """
        remaining, fault = info.file_size, ""
        file.seek(info.header_offset)
        head = file.read(LOCAL_HEADER.size)
        name_size, extra = LOCAL_HEADER.unpack(head.ljust(LOCAL_HEADER.size))
        if not head.startswith(MEMBER_MAGIC) or file.read(name_size + extra)[:name_size] != raw_name(info):
            fault = "the header before it differs from the directory"
        try:
            with zipfile.ZipExtFile(cast("Any", file), "r", info) as payload:
                while not fault and (chunk := payload.read(READ_CHUNK_BYTES)):
                    remaining -= len(chunk)
                    yield chunk
        except zipfile.BadZipFile:
            fault = "its checksum (CRC) differs"
        except zlib.error:
            fault = "it does not unpack"
        except EOFError:
            raise TruncatedError("the file ends in a payload", url=self.url, offset=info.header_offset) from None
        if fault or remaining:
            fault = fault or "it is not as long as the directory says"
            raise self.failure(f"the member {path_of_member(info).decode()!r} is damaged: {fault}", info.header_offset)

    def read_member(self, file: BinaryIO, info: zipfile.ZipInfo) -> Member:
        """Return the member for the directory entry *info*, its payload read from *file*; mode 0644, owner and time 0.

        Holds: its payload, above MAX_PAYLOAD_IN_MEMORY in a scratch file. Raises: TarFormatError if it is damaged;
        StorageError.
        """
        path, source = path_of_member(info), join_chunks(self.chunks(file, info))
        return Member(path, source, 0, 0, info.file_size, tar.encode_header(path, info.file_size))


def _is_zip_begin(file: BinaryIO) -> bool:
    """True if *file* begins as a zip file: with the header of a member. Changes the position of *file*."""
    file.seek(0)
    return file.read(len(MEMBER_MAGIC)) == MEMBER_MAGIC


# ---- samples to a zip file ----


MAX_MEMBER_IN_MEMORY = 16 << 20  # bytes; larger members go to a scratch file
COPY_BYTES = 1 << 20  # bytes
MAX_ZIP_NAME_BYTES = 0xFFFF  # bytes of a name
FIRST_ZIP_DATE = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can hold
REGULAR_FILE_MODE = 0o100644  # a regular file


def write_zip(samples: Iterable[Sample], sink: Sink, account: Account, deflate: bool = False) -> None:
    """Write *samples*, member by member and in order, to *sink* as a zip file; with *deflate*, compressed.

    All members have mode 0644 and the date 1980-01-01: same samples, same bytes. Large files get 64-bit sizes.
    Samples written, and the bytes of the file, are counted in *account*. The caller commits *sink*.

    Holds: a member, above MAX_MEMBER_IN_MEMORY in a scratch file, and some 500 bytes for each member, for the directory
    at the end. Raises: SampleError if two members have one name, or for a name that a zip file can't hold; the errors
    of *samples*; StorageError.
    """
    buffer: Any = _MemberBuffer(sink)
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    archive = zipfile.ZipFile(buffer, "w", method)  # not closed after an error: no end then
    try:
        for sample in samples:
            for member in sample.members:
                _write_member(archive, member, sample)
                buffer.flush_member()
            account.samples_out += 1
        archive.close()
        buffer.flush_member()
    except BaseException:
        archive.fp = None  # or it would write the end of the file when it is garbage-collected
        raise
    account.bytes_out += buffer.tell()


def _write_member(archive: zipfile.ZipFile, member: Member, sample: Sample) -> None:
    """Add *member* of *sample* to *archive*, under its path.

    Raises: SampleError for a name that it can't have there; StorageError if its payload can't be read.
    """
    info = zipfile.ZipInfo(_member_name(archive, member, sample), FIRST_ZIP_DATE)
    info.compress_type = archive.compression
    info.create_system = 3  # Unix
    info.external_attr = REGULAR_FILE_MODE << 16
    info.file_size = member.size  # says whether it needs 64 bits
    with archive.open(info, "w") as target:
        if member.size <= COPY_BYTES:
            target.write(member.read())
            return
        with member.open() as payload:
            while chunk := payload.read(COPY_BYTES):
                target.write(chunk)


def _member_name(archive: zipfile.ZipFile, member: Member, sample: Sample) -> str:
    """Return the name of *member*, of *sample*, for *archive*.

    Raises: SampleError if *archive* has a member of this name already, or if the name is not UTF-8, has a NUL or is
    longer than MAX_ZIP_NAME_BYTES.
    """
    wrong = ""
    if len(member.path) > MAX_ZIP_NAME_BYTES:
        wrong = f"a name in a zip file has at most {MAX_ZIP_NAME_BYTES:,} bytes, and this has {len(member.path):,}"
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


class _MemberBuffer:
    """The file that zipfile writes to: it holds one member, and `flush_member` passes that on to *sink*.

    Call `flush_member` after each member, and after the end of the archive. A member above MAX_MEMBER_IN_MEMORY is in a
    scratch file. It is held because zipfile rewrites its header at its end.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._before = 0  # bytes in the sink
        self._file: io.BytesIO | io.FileIO = io.BytesIO()

    def write(self, data: bytes) -> int:
        """Write *data* at the position in the current member; return its length."""
        if isinstance(self._file, io.BytesIO) and self._file.tell() + len(data) > MAX_MEMBER_IN_MEMORY:
            scratch = scratch_file()
            scratch.write(self._file.getbuffer())
            self._file = scratch
        self._file.write(data)
        return len(data)

    def tell(self) -> int:
        """Return the offset in the zip file of the byte that is written next."""
        return self._before + self._file.tell()

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go to byte *place* of the zip file, in the current member; return it.

        Raises: StorageError for a byte before the current member, and for another *whence* than SEEK_SET.
        """
        if whence != io.SEEK_SET or place < self._before:
            raise StorageError("a zip file is written from its first byte to its last")
        return self._before + self._file.seek(place - self._before)

    def flush(self) -> None:
        """Do nothing: members are written by `flush_member`."""

    def flush_member(self) -> None:
        """Write the current member to the sink, and start an empty one."""
        size = self._file.seek(0, io.SEEK_END)
        if isinstance(self._file, io.BytesIO):
            self._sink.write(self._file.getvalue())
        else:
            with self._file, reopen_scratch(self._file) as held:
                while chunk := held.read(COPY_BYTES):
                    self._sink.write(chunk)
        self._before += size
        self._file = io.BytesIO()
