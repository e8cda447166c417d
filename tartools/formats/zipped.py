"""Zip files to samples."""

from __future__ import annotations

import stat
from array import array
from collections.abc import Iterable, Iterator
from typing import BinaryIO
from zipfile import ZipInfo

from tartools import tar
from tartools.errors import SampleError, printable, shown
from tartools.formats.folder import is_of_system, warn_of_twins
from tartools.formats.zipread import Directory, path_of
from tartools.samples.account import Account, FirstKeys
from tartools.samples.encoding import text_payload
from tartools.samples.sample import Sample, join_path
from tartools.storage import files
from tartools.tar import split_path

UNIX = (3, 19)  # systems that made a file: Unix, macOS


def samples(
    urls: Iterable[str], account: Account, class_field: str | None = None, skip_special: bool = False
) -> Iterator[Sample]:
    """Yield the samples of zip files, file by file. Members are new: mode 0644, owner and time 0.

    With *class_field*, the name of a sample's directory is stored as that field. Links and special files are reported
    as omissions, unless *skip_special*; what systems add is left out with a warning.

    Holds: one sample, and what `Zipped` holds of one file. Raises: what `Zipped` and `Directory.member` raise.
    """
    for url in urls:
        with files.seekable(url) as file:
            zipped = Zipped(file, url)
            zipped.report(account, skip_special)
            for number in range(len(zipped)):
                sample = zipped.sample(file, number)
                if class_field is not None:
                    sample = with_class(sample, class_field)
                account.bytes_in += sum(member.size for member in sample.members)
                account.samples_in += 1
                yield sample
        account.shards_done += 1


def with_class(sample: Sample, field: str) -> Sample:
    """Return *sample* with the name of its directory as *field*.

    Raises: SampleError if it has that field, or no directory.
    """
    label = sample.raw_key.rpartition(b"/")[0].rpartition(b"/")[2]
    path = join_path(sample.raw_key, field.encode("utf-8", "surrogateescape"))
    if not sample.grouped:
        return sample
    if not label or any(member.path == path for member in sample.members):
        what = f"is in no directory, so it has no {field!r}" if not label else f"would have the field {field!r} twice"
        raise SampleError(f"the sample {sample.key!r} {what}", url=sample.shard)
    return sample.with_members((*sample.members, tar.new_member(path, text_payload(path, label))))


class Zipped:
    """The samples of a zip file: adjacent members with one key, in the order of its directory.

    *others* are links and special files, (name, kind); *left_out* are the files that systems add, and the directories
    of macOS; *directories* are entries. *returned* is the first key that comes back after other keys, or None.

    Holds: what `Directory` holds, 16 bytes a member, and while it is made, all names.
    Raises: SampleError for encrypted members, other methods than stored and deflated, names that lead out of the
    folder, and two members of one name; TarFormatError; StorageError.
    """

    def __init__(self, file: BinaryIO, url: str) -> None:
        self.directory = Directory(file, url)
        self.others: list[tuple[str, str]] = []
        self.left_out: list[str] = []
        self.returned: bytes | None = None
        self._members: list[ZipInfo] = []
        self._firsts = array("l")  # where in these each sample begins
        self._sort()
        self._firsts.append(len(self._members))

    def _sort(self) -> None:
        """Find the samples."""
        seen: set[bytes] = set()
        first_keys = FirstKeys(self._returns)
        last: bytes | None = None
        for info in self.directory.infos:
            path = path_of(info)
            if not self._is_member(info, path):
                continue
            self.directory.checked(info, path)
            if path in seen:
                raise SampleError(f"two members are called {path.decode()!r}", url=self.directory.url)
            seen.add(path)
            key, field = split_path(path)
            if not field or key != last:
                self._firsts.append(len(self._members))
                if first_keys.left:
                    first_keys.add([key])
            last = key if field else None
            self._members.append(info)

    def _returns(self, key: bytes) -> None:
        self.returned = self.returned or key

    def _is_member(self, info: ZipInfo, path: bytes) -> bool:
        """Tell whether *info*, with this *path*, is a member of a sample; note what else it is."""
        kind = stat.S_IFMT(info.external_attr >> 16) if info.create_system in UNIX else 0
        if path.endswith(b"/"):
            if info.file_size:
                raise self.directory.failure(f"the directory {path.decode()!r} has a payload", info.header_offset)
        elif is_of_system(path.rpartition(b"/")[2]) or path.startswith(b"__MACOSX/"):
            self.left_out.append(path.decode())
        elif kind not in (0, stat.S_IFREG):
            self.others.append((path.decode(), "symbolic link" if kind == stat.S_IFLNK else "special file"))
        else:
            return True
        return False

    def __len__(self) -> int:
        return len(self._firsts) - 1

    def __getitem__(self, number: int) -> list[ZipInfo]:
        """Return the members of sample *number*."""
        return self._members[self._firsts[number] : self._firsts[number + 1]]

    def sample(self, file: BinaryIO, number: int) -> Sample:
        """Return sample *number*; see `Directory.member`."""
        members = tuple(self.directory.member(file, info) for info in self[number])
        return Sample(split_path(members[0].path)[0], members, self.directory.url)

    def report(self, account: Account, skip_special: bool) -> None:
        """Report what does not become part of a sample."""
        where = shown(self.directory.url)
        if self.left_out:
            more = f" and {len(self.left_out) - 1:,} more" if len(self.left_out) > 1 else ""
            account.warn(f"{where}: left out {printable(self.left_out[0])}{more}")
        if self.others and not skip_special:
            name, kind = self.others[0]
            more = f"; nor are {len(self.others) - 1} more such members" if len(self.others) > 1 else ""
            account.omit(
                f"{where}: {printable(name)}: a {kind} is not followed and not stored{more} "
                "(--skip-special accepts that)"
            )
        if self.returned is not None:
            account.comes_back(self.returned, self.directory.url)
        warn_of_twins((list(map(path_of, self[number])) for number in range(len(self))), account)
