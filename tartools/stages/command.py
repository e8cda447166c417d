"""Samples to directories of files, in which commands run, and back to samples.

`laid_out` makes the directories, something else runs the commands (see `stages.ordered` and `storage.shell`), and
`collected` takes what they left. In a directory, `sample.<field>` is a member, `sample` the member without a field,
and `sample.__key__` holds the key.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from tartools import tar
from tartools.account import Account
from tartools.errors import CommandError, StorageError
from tartools.sample import Sample, join_path
from tartools.storage import scratch
from tartools.tar import Member, Source, Writer, copy_range, split_path

SMALL = 1 << 20  # bytes; a file up to this size is read into memory, a larger one stays a file
HELD = 16 << 20  # bytes of one result in memory
OPENED = 64  # large files of one result that are kept open; with more, they are copied into one
LONGEST_KEY = 1 << 16  # bytes
KEY = b"__key__"
UNFIT = (errno.EEXIST, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)  # what a name may be to a file system


class Errors(StrEnum):
    """What becomes of the run and the sample when a command fails."""

    abort = "abort"
    skip = "skip"
    ignore = "ignore"


class Rules(NamedTuple):
    """How samples become directories and directories samples.

    *base* is what the files are called before the dot, *log* the field for what commands print. With *subdirs*
    each subdirectory is a sample. With *keep* the directories are not removed.
    """

    base: bytes = b"sample"
    errors: Errors = Errors.abort
    subdirs: bool = False
    log: bytes | None = None
    keep: bool = False


class Task(NamedTuple):
    """One sample on disk: in *folder*, of members that were *members*, which have no payload any more.

    *number* is its place in the input, from 0. *failure* tells why it could not be laid out. What the command
    prints goes to the file *log*, and *raw* holds the sample as it came, where these are wanted.
    """

    folder: bytes
    number: int
    key: bytes
    shard: str
    members: tuple[Member, ...]
    failure: str
    log: bytes | None
    raw: bytes | None

    @property
    def environment(self) -> dict[bytes, bytes]:
        """What the command finds in its environment."""
        return {b"TAR_KEY": self.key, b"TAR_INDEX": b"%d" % self.number, b"TAR_SHARD": os.fsencode(self.shard)}


class _FailedError(Exception):
    """Why a sample has failed."""


def laid_out(
    samples: Iterable[Sample], folder: bytes, rules: Rules, log: Callable[[bytes], bytes | None]
) -> Iterator[Task]:
    """Yield for each of *samples* a directory of its own below *folder*, with its members as files.

    *log* tells of a directory where what is printed in it will be.

    Order: that of *samples*. Holds: no payload once it is written. Raises: StorageError if the disk is full.
    """
    for number, sample in enumerate(samples):
        place = b"%b/%06d" % (folder, number)
        raw = place + b".tar" if rules.errors is Errors.ignore else None
        failure = ""
        try:
            if raw:
                _keep_raw(sample, raw)
            _lay_out(sample, place, rules.base)
        except _FailedError as error:
            failure = str(error)
        except OSError as error:
            raise StorageError(
                f"cannot lay out sample {sample.key!r}: {error.strerror} (--tmpdir puts the files elsewhere)",
                url=os.fsdecode(folder),
            ) from error
        bare = tuple(Member(m.path, b"", 0, 0, m.size, m.header) for m in sample.members)
        yield Task(place, number, sample.raw_key, sample.shard, bare, failure, log(place), raw)


def collected(
    finished: Iterable[tuple[Task, str]], rules: Rules, account: Account, discard: Callable[[bytes], None]
) -> Iterator[Sample]:
    """Yield the samples that the commands of *finished* tasks left; the text beside a task tells how it failed.

    A sample of which nothing is left is left out. One that failed ends the run, or is dropped, or is yielded as it
    came, as `rules.errors` says. With `rules.subdirs`, `account.samples_out` counts the inputs that gave any sample.

    Order: that of *finished*. Holds: one result, up to 16 MiB in memory; its directory is emptied when the next
    is asked for, and given to *discard*. Raises: CommandError naming shard and sample.
    """
    for task, failure in finished:
        catch = _Catch(task, rules.base, account)
        try:
            results: list[Sample] = []
            try:
                if failure:
                    raise _FailedError(failure)
                results = _collect(catch, task, rules)
                account.left_out += not results
            except _FailedError as error:
                results = _after_failure(task, str(error), rules.errors, account)
            account.samples_out += bool(results) and rules.subdirs
            yield from results
        finally:
            _clear(task, rules.keep, catch.files, discard)


def _keep_raw(sample: Sample, path: bytes) -> None:
    """Write *sample* as it came to the new file *path*."""
    with scratch.create_file(path) as sink:
        writer = Writer(sink)
        sample.write_to(writer)
        writer.flush()


def _lay_out(sample: Sample, folder: bytes, base: bytes) -> None:
    """Write the files of *sample* into the new directory *folder*."""
    os.mkdir(folder, 0o700)
    if b"\0" in sample.raw_key:
        raise _FailedError("its key holds a NUL, which no file and no environment can")
    key = Member(b"", sample.raw_key, 0, 0, len(sample.raw_key))
    _write(folder, base + b"." + KEY, key)
    for member in sample.members:
        _write(folder, join_path(base, split_path(member.path)[1]), member)


def _write(folder: bytes, name: bytes, member: Member) -> None:
    """Write the payload of *member* to the new file *name* in *folder*."""
    _, source, _, data, size, _ = member
    path = folder + b"/" + name
    try:
        if isinstance(source, io.FileIO):
            with scratch.create_file(path) as sink:
                copy_range(source, data, data + size, sink)
        else:
            scratch.write_file(path, memoryview(source)[data : data + size])
    except ValueError:
        raise _FailedError(f"a field that holds a NUL can't be a file: {_text(name)!r}") from None
    except OSError as error:
        if error.errno not in UNFIT:
            raise
        if error.errno == errno.EEXIST:
            raise _FailedError(f"two of its members need the one file name {_text(name)!r}") from None
        raise _FailedError(f"the file system can't hold the name {_text(name)[:60]!r}...: {error.strerror}") from None


def _after_failure(task: Task, why: str, errors: Errors, account: Account) -> list[Sample]:
    """Return what is passed on of a *task* that failed, and report it.

    Raises: CommandError if that ends the run.
    """
    what = f"sample {_text(task.key)!r}: {why}"
    if errors is Errors.abort:
        raise CommandError(f"{what} (-e skip leaves such samples out, -e ignore passes them on)", url=task.shard)
    if errors is Errors.skip:
        account.dropped += 1
        account.omit(str(CommandError(f"{what}; it is left out", url=task.shard)))
        return []
    account.omit(str(CommandError(f"{what}; it is passed on as it came", url=task.shard)))
    assert task.raw
    file = scratch.open_file(task.raw)
    assert file
    return [Sample.at(task.key, file, 0, os.fstat(file.fileno()).st_size, task.shard)]


def _clear(task: Task, keep: bool, files: Iterable[bytes], discard: Callable[[bytes], None]) -> None:
    """Remove what *task* has on disk; if we are to *keep* what people look at, then only the rest.

    *files* are in its directory. What cannot be removed so simply is left to *discard*.
    """
    if task.raw:
        scratch.remove(task.raw)
    if keep:
        return
    if task.log:
        scratch.remove(task.log)
    scratch.remove_files(files)
    discard(task.folder)


def _collect(catch: _Catch, task: Task, rules: Rules) -> list[Sample]:
    """Return the samples that the command of *task* left. Raises: _FailedError."""
    try:
        if not rules.subdirs:
            results = [catch.sample(task.folder, task.key)]
        else:
            with os.scandir(task.folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            results = [catch.sample(task.folder + b"/" + name, task.key + b"/" + name) for name in names]
        found = [sample for sample in results if sample]
        return [catch.with_log(sample, rules.log) for sample in found] if rules.log else found
    except OSError as error:
        name = _text(os.path.basename(os.fsencode(error.filename or b"its directory")))
        raise _FailedError(f"cannot collect {name!r}: {error.strerror}") from error


class _Catch:
    """Takes the results of one task from disk, within the bounds of what one result may hold."""

    def __init__(self, task: Task, base: bytes, account: Account) -> None:
        self._task = task
        self._base = base
        self._account = account
        self._old = {split_path(member.path)[1]: member for member in task.members}
        self._held = 0  # bytes in memory
        self._opened = 0  # large files
        self._common: io.FileIO | None = None  # for what is beyond both
        self._end = 0  # of it
        self.files: list[bytes] = []  # in the directory of the sample that was taken last

    def sample(self, folder: bytes, default: bytes) -> Sample | None:
        """Return the sample in *folder*, whose key is *default* unless a file there says other; None for none."""
        paths = self._fields(folder)
        told = paths.pop(KEY, None)
        if not paths:
            return None
        key = self._key(told, default) if told else default
        if b"" in paths and len(paths) > 1:
            raise _FailedError(
                f"{_text(self._base)!r} and {_text(join_path(self._base, max(paths)))!r} "
                "would not read back as one sample: keep one of them"
            )
        fields = [field for field in self._old if field in paths] + sorted(paths.keys() - self._old.keys())
        members = [self._member(key, field, paths[field]) for field in fields]
        return Sample(key, tuple(members), self._task.shard)

    def with_log(self, sample: Sample, field: bytes) -> Sample:
        """Return *sample* with what the command printed as *field*."""
        assert self._task.log
        if any(field == split_path(member.path)[1] for member in sample.members):
            raise _FailedError(f"it has a field {_text(field)!r} already, which --add-log would add")
        if not sample.grouped:
            raise _FailedError(f"it has no fields, so {_text(field)!r} would not read back as its log")
        return sample.with_members([*sample.members, self._member(sample.raw_key, field, self._task.log, new=True)])

    def _fields(self, folder: bytes) -> dict[bytes, bytes]:
        """Return field -> path of the files in *folder* that are members, and the key. All else is scratch."""
        base, prefix = self._base, self._base + b"."
        paths = {}
        self.files = files = []
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                field = name[len(prefix) :] if name.startswith(prefix) else b""
                bare = name == base and b"" in self._old
                path: bytes | None = entry.path
                if entry.is_file(follow_symlinks=False):
                    files.append(entry.path)
                elif (field or bare) and field != KEY:
                    path = self._inside(entry.path)
                if (field or bare) and path:
                    paths[field] = path
        return paths

    def _inside(self, path: bytes) -> bytes | None:
        """Return which regular file *path* leads to, in the directory of the task; None if to none."""
        if not os.path.islink(path):
            return None
        real = os.path.realpath(path)
        if real.startswith(self._task.folder + b"/") and os.path.isfile(real):
            return real
        self._account.warn(
            f"sample {_text(self._task.key)!r}: {_text(os.path.basename(path))!r} is a link to no file of its "
            "directory, and is not taken"
        )
        return None

    def _key(self, path: bytes, default: bytes) -> bytes:
        """Return the key that the file *path* gives; *default* is what it would be without."""
        inside = self._inside(path) if os.path.islink(path) else path
        file = scratch.read_file(inside, LONGEST_KEY) if inside else None
        if file is None:
            raise _FailedError(f"{_text(os.path.basename(path))!r} is no file")
        if isinstance(file, io.FileIO):
            raise _FailedError(f"its new key has more than {LONGEST_KEY} bytes")
        text = file
        for key in (text, text.removesuffix(b"\n")):
            if key in (default, self._task.key):  # as it came, whatever that is
                return key
        base = key.rpartition(b"/")[2]
        if not base or b"." in base or b"\0" in key or key.startswith(b"/") or b".." in key.split(b"/"):
            raise _FailedError(
                f"it cannot have the new key {_text(key)[:200]!r}: not empty, not absolute, no '..', no dot in its "
                "last part"
            )
        return key

    def _member(self, key: bytes, field: bytes, file: bytes, *, new: bool = False) -> Member:
        """Return the file *file* as the member *field*, with the header of the old one as far as it still holds."""
        path = join_path(key, field)
        old = None if new else self._old.get(field)
        if split_path(path) != (key, field) and not (old and path == old.path):
            raise _FailedError(f"the member {_text(path)!r} would not read back as field {_text(field)!r} of its key")
        source, data, size = self._taken(file)
        if old:
            return tar.rewritten(old, path, source, size)._replace(data=data)
        return Member(path, source, 0, data, size, tar.encode_header(path, size))

    def _taken(self, path: bytes) -> tuple[Source, int, int]:
        """Return the file *path* as (source, offset, size)."""
        file = scratch.read_file(path, min(SMALL, HELD - self._held))
        if file is None:
            raise _FailedError(f"{_text(os.path.basename(path))!r} is no file any more")
        if isinstance(file, bytes):
            self._held += len(file)
            return file, 0, len(file)
        size = os.fstat(file.fileno()).st_size
        if size > SMALL and self._opened < OPENED:
            self._opened += 1
            return file, 0, size
        if self._common is None:
            self._common = scratch.scratch_file(os.fsdecode(os.path.dirname(self._task.folder)))
        with file:
            copy_range(file, 0, size, self._common)
        self._end += size
        return self._common, self._end - size, size


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
