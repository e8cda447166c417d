"""`ZipDataset`: the samples of zip files for torch's DataLoader."""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Set
from functools import partial
from hashlib import blake2b, file_digest
from itertools import accumulate
from typing import Any, BinaryIO, cast
from zipfile import ZipInfo

from torch.utils.data import Dataset

from tartools.errors import SampleError, StorageError
from tartools.formats.zipfiles import LOCAL_HEADER, ZipSamples
from tartools.formats.zipnames import path_of_member
from tartools.samples.account import Account
from tartools.storage import seekable
from tartools.storage.checks import version_of
from tartools.storage.expand import expand
from tartools.storage.objects import fetch_range, requests_at_once
from tartools.storage.pool import Threads, call_in_window
from tartools.storage.streams import FileVersion, SharedFile
from tartools.storage.url import Name, Url, names_of
from tartools.tar import split_path
from tartools.train.fieldchooser import Classes, Decode, FieldChooser, Fields, Size, make_dict
from tartools.train.sampler import begin_epoch
from tartools.train.workererrors import guard_worker

EXTRA_FIELD_SLACK_BYTES = 64  # bytes of extra fields before a payload that a request leaves room for
MAX_ZIP_GAP_BYTES = 1 << 16  # bytes between members of one sample that are read in vain, to make one request


class ZipDataset(Dataset[Any]):
    """The samples of zip files, each by its number: a dataset for `torch.utils.data.DataLoader`.

        data = tartools.train.ZipDataset("s3://bucket/photos.zip", fields=("jpg", "__key__"), decode="pil")

    Adjacent members of a zip file with one key are a sample, in the order of the file's directory, as for `tarcreate
    --zip`; `photos/a.jpg` alone is the sample `photos/a` with the field jpg. *urls* are names and patterns of local
    files and objects. *fields*: names for a tuple of these; None for a dict of `__key__`, `__url__` and all fields.
    *decode*: a decoder's name or function, several, or a dict of these by field; None for bytes. *transform*: a
    function of the result, or one for each field. *resize*: size of pictures. *exif*: True turns them as their EXIF
    data say. *classes*: names that become numbers. More on them: `FieldChooser`.

    Stored and deflated members are read, each sample with one request if its members lie close together, and the
    requests of a batch side by side. Lengths and checksums of the fields that are needed are compared with the
    directory. It pickles as URLs and versions, and may be used in forks, other processes and threads: each process
    opens the files for itself.

    Holds: 700 bytes and a name for each member. Raises, when it is made: SampleError for members that can't be read,
    such as encrypted ones and links; TarFormatError for a damaged directory; StorageError; UsageError for a name that
    is no file or object; ValueError and TypeError for arguments that don't fit. Later: TarFormatError for damaged
    payloads; StorageError, also if a file has changed since this was made; what `FieldChooser` raises.
    """

    def __init__(
        self,
        urls: Name | Iterable[Name],
        fields: Fields = None,
        decode: Decode = None,
        transform: Any = None,
        resize: Size = None,
        classes: Classes = None,
        *,
        exif: bool = False,
    ) -> None:
        self.chooser = FieldChooser(fields, decode, transform, resize, classes, exif=exif)
        self._zips = [_Zip(url, version_of(url)) for url in expand(names_of(urls))]
        account = Account()  # warnings go to `warnings`
        for zip_file in self._zips:
            directory = zip_file.read_directory()
            if directory.specials:
                name, kind = directory.specials[0]
                raise SampleError(f"the member {name!r} is a {kind}, which has no payload", url=zip_file.url)
            directory.report(account, True)
        self._ends = [*accumulate(len(zip_file.read_directory()) for zip_file in self._zips)]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def set_epoch(self, epoch: int) -> None:
        """Have random transforms and clips get seeds for *epoch*; `StatefulSampler` and `loader` call this."""
        begin_epoch(self, None, epoch)

    def __getitem__(self, index: int) -> Any:
        """Return sample *index* (negative: from the end), decoded.

        Raises: IndexError; the errors that the class names.
        """
        guard_worker()
        zip_file, number = self._place(index)
        return self.chooser(zip_file.read_sample(number, self.chooser.needed))

    def __getitems__(self, indices: Iterable[int]) -> list[Any]:
        """Return the samples numbered *indices*, decoded, in this order.

        Raises: IndexError; the errors that the class names for later.
        """
        guard_worker()
        samples = [
            partial(zip_file.read_sample, number, self.chooser.needed) for zip_file, number in map(self._place, indices)
        ]
        if all(zip_file.is_local for zip_file in self._zips):
            return [self.chooser(sample()) for sample in samples]
        requests: Threads[Callable[[], Any], Any] = Threads(min(requests_at_once(), len(samples)))
        return [self.chooser(answer()) for _, answer in call_in_window(samples, requests, len(samples))]

    def digest(self) -> str:
        """Return a fingerprint of the zip files, in their order: 32 hex digits that follow from URLs and versions."""
        return blake2b(
            repr([(zip_file.url, zip_file.version) for zip_file in self._zips]).encode(), digest_size=16
        ).hexdigest()

    def _place(self, index: int) -> tuple[_Zip, int]:
        """Return (zip file, number in it) of the sample *index*; negative: from the end. Raises: IndexError."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        index %= len(self)
        place = bisect_right(self._ends, index)
        return self._zips[place], index - (self._ends[place - 1] if place else 0)


class _Zip:
    """The zip file at *url*, of this *version*; `read_sample` returns a sample by its number in the file.

    *version*: as `version_of` returns it: size, a blank, and mtime in ns or an object's ETag, or what its store has in
    place of that. The directory is read when it is needed, and not pickled.
    *digest*: of the directory of a local file, if it was read before, because its version is only size and time.
    """

    def __init__(self, url: str, version: str, digest: bytes | None = None) -> None:
        self.url = url
        self.is_local = Url(url).is_local
        self.version = version
        self._digest = digest
        self._directory: ZipSamples | None = None
        self._open: tuple[int, SharedFile] | None = None  # a process, and what it opened

    def __reduce__(self) -> tuple[Any, ...]:
        return _Zip, (self.url, self.version, self._digest)

    def read_directory(self) -> ZipSamples:
        """Return the samples in the directory of the file, which is read at the first call.

        Raises: StorageError if the file was replaced or can't be read; TarFormatError for a damaged directory;
        SampleError for members that can't be read, but not for links, which are in its `specials`.
        """
        if self._directory is None:
            with seekable.open_as_file(self.url) as file:
                if seekable.version_of_file(file) != self.version:
                    raise self._replaced_error()
                directory = ZipSamples(file, self.url)
                if self.is_local:
                    file.seek(directory.start)
                    digest = file_digest(file, blake2b).digest()
                    if digest != (self._digest or digest):
                        raise self._replaced_error()
                    self._digest = digest
                self._directory = directory
        return self._directory

    def read_sample(self, number: int, needed: Set[str] | None) -> dict[str, Any]:
        """Return sample *number*, from 0, of this file as a dict: `__key__`, `__url__`, and payloads by field.

        Fields are in lower case. *needed*: fields to read, others are None; None: all. Raises: StorageError if the file
        has changed; TarFormatError for damaged payloads; SampleError for fields to be read that differ only in case, or
        any that begins with two underscores.
        """
        directory = self.read_directory()
        infos = directory[number]
        begin, end = _span(infos, directory.start)
        window = cast(BinaryIO, _Window(self._read_range, begin, self._read_range(begin, end)))
        key, _ = split_path(path_of_member(infos[0]))

        def payload(info: ZipInfo) -> bytes:
            """Return the payload of the member *info*, decompressed.

            Raises: TarFormatError if it is damaged; the errors of `_read_range`.
            """
            return b"".join(directory.chunks(window, info))

        fields = [(path_of_member(info)[len(key) + 1 :].decode(), partial(payload, info)) for info in infos]
        return make_dict(key.decode(), self.url, fields, needed)

    def _read_range(self, begin: int, end: int) -> bytes:
        """Return bytes *begin* to *end* of the file, fewer at the end of a local one.

        Raises: StorageError if it has changed or can't be read, or if an object ends before *end*; OSError if the
        system refuses to read a local file.
        """
        if not self.is_local:
            return fetch_range(self.url, begin, end, self.version)
        file = self._file()
        data = os.pread(file.fileno(), end - begin, begin)
        while len(data) < end - begin and (
            chunk := os.pread(file.fileno(), end - begin - len(data), begin + len(data))
        ):
            data += chunk
        if str(FileVersion.of(file)) != self.version:
            raise self._replaced_error()
        return data

    def _file(self) -> SharedFile:
        """Return the open local file; each process opens it once for itself. Raises: StorageError if it can't."""
        if self._open is None or self._open[0] != os.getpid():
            with seekable.open_as_file(self.url) as file:
                self._open = os.getpid(), SharedFile(os.dup(file.fileno()), "r")
        return self._open[1]

    def _replaced_error(self) -> StorageError:
        """Return the error that the file was changed or replaced since the dataset was made."""
        return StorageError("was changed or replaced since this dataset was made", url=self.url)


def _span(infos: list[ZipInfo], max_end: int) -> tuple[int, int]:
    """Return (begin, end), the bytes to read at once for a sample with the members *infos*.

    They have all members if each lies close behind the one before it (up to 64 KiB, MAX_ZIP_GAP_BYTES), else the first
    one alone. The end is an estimate, which leaves room for extra fields (EXTRA_FIELD_SLACK_BYTES). *max_end*: the byte
    at which the directory begins; end is not above it.
    """
    begin = infos[0].header_offset
    ends = [
        info.header_offset + LOCAL_HEADER.size + len(info.orig_filename) + EXTRA_FIELD_SLACK_BYTES + info.compress_size
        for info in infos
    ]
    for info, end in zip(infos[1:], ends, strict=False):
        if not -2 * EXTRA_FIELD_SLACK_BYTES <= info.header_offset - end <= MAX_ZIP_GAP_BYTES:
            return begin, min(ends[0], max_end)
    return begin, min(ends[-1], max_end)


class _Window:
    """A file to read, whose bytes *data*, from byte *begin* on, are in memory; `fetch(begin, end)` returns any others.

    Its position is at first *begin*.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], begin: int, data: bytes) -> None:
        self._fetch = fetch
        self._begin, self._data = begin, data
        self._position = begin

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        """Go to byte *place* of the whole file, and return it; *whence* must be SEEK_SET."""
        assert whence == io.SEEK_SET
        self._position = place
        return place

    def read(self, count: int) -> bytes:
        """Return the next *count* bytes, fewer at the end of the file if `fetch` returns fewer.

        Raises: the errors of `fetch`.
        """
        at = self._position - self._begin
        data = self._data[at : at + count] if at >= 0 else b""
        if len(data) < count:
            data += self._fetch(self._position + len(data), self._position + count)
        self._position += len(data)
        return data
