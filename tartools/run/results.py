"""Files that commands left in the directories of samples, read back as samples."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator

from tartools import tar
from tartools.errors import CommandError
from tartools.run.directories import (
    KEY_FILE,
    Errors,
    Outcome,
    SampleDirectories,
    SampleFailedError,
    SampleTask,
    path_text,
)
from tartools.samples.account import Account
from tartools.samples.encoding import split_codec, text_payload
from tartools.samples.filekeys import is_type_suffix
from tartools.samples.sample import Sample
from tartools.storage import scratch
from tartools.tar import Member, Source, copy_range, join_path, split_path

MAX_FILE_IN_MEMORY = 1 << 20  # bytes; a file up to this size is read into memory, a larger one stays a file
MAX_RESULT_IN_MEMORY = 16 << 20  # bytes of one result in memory
MAX_FILES_OPEN = 64  # large files of one result that are kept open; any more are copied into one
MAX_KEY_BYTES = 1 << 16  # bytes
MAX_LAST_LINE_BYTES = 1 << 12  # of the end of what a command printed


OnFailure = Callable[[SampleTask, str], object]  # gets a failed task, and why it failed


def collect_samples(
    outcomes: Iterable[tuple[SampleTask, Outcome]],
    directories: SampleDirectories,
    account: Account,
    on_failure: OnFailure = lambda task, why: None,
) -> Iterator[Sample]:
    """Yield the samples that the commands of tasks left, and remove their directories. *outcomes*: (task, its outcome).

    A sample of which nothing is left is left out. A failed one ends the run, is left out, or is yielded as it was read,
    depending on the options of *directories*; `on_failure(task, why)` is called before. *account*: counts samples left
    out and failed; gets a warning at the end if all that did not fail came back with the same key, fields and sizes,
    but a command left another file whose name has the suffix of a type. With subdirectories there is no such warning,
    and `account.samples_out` counts the inputs that gave any sample.
    Order: that of *outcomes*. Holds: one result, up to 16 MiB in memory, larger files open; its directory is given to
    `directories.remove` when the next one is requested. Raises: CommandError naming shard and sample, if failures end
    the run; StorageError if the disk is full.
    """
    options = directories.options
    ignored_file, is_changed = "", options.subdirs
    for task, outcome in outcomes:
        reader = _ResultReader(task, options.base, account)
        reuse = False
        try:
            try:
                if outcome.failure:
                    raise SampleFailedError(outcome.failure)
                results = _read_results(reader, task, options.subdirs, options.log)
                reuse = outcome.left_no_processes and reader.has_only_files and not options.subdirs
                account.left_out += not results
                is_changed = is_changed or not reader.is_unchanged(results)
                ignored_file = ignored_file or reader.find_ignored_file()
            except SampleFailedError as error:
                on_failure(task, str(error))
                results = _handle_failure(task, str(error), options.errors, account)
            account.samples_out += bool(results) and options.subdirs
            yield from results
        finally:
            directories.remove(task, reader.files, reuse=reuse)
    if ignored_file and not is_changed:
        name = path_text(options.base)
        account.warn(
            f"no field is new or of another size: a command left {ignored_file!r}, which is not named {name}.FIELD; "
            f"{name}.{ignored_file} would become a field"
        )


def _handle_failure(task: SampleTask, why: str, errors: Errors, account: Account) -> list[Sample]:
    """Report in *account* that *task* failed, and *why*; return the samples to pass on in its place.

    *errors*: "abort" raises CommandError, which ends the run, and reports nothing; "skip" counts the sample as dropped,
    and gives none; "ignore" gives the sample as it was read, from `task.raw`. The last two report an omission.
    """
    description = f"sample {path_text(task.key)!r}: {why}"
    if errors == "abort":
        raise CommandError(f"{description} (-e skip leaves such samples out, -e ignore passes them on)", url=task.shard)
    if errors == "skip":
        account.dropped += 1
        account.omit(str(CommandError(f"{description}; it is left out", url=task.shard)))
        return []
    account.omit(str(CommandError(f"{description}; it is passed on unchanged", url=task.shard)))
    assert task.raw
    file = scratch.open_file(task.raw)
    assert file
    return [Sample.at(task.key, file, 0, os.fstat(file.fileno()).st_size, task.shard)]


def last_log_line(task: SampleTask) -> str:
    """Return the last line with text that the command of *task* printed to its log, stripped; "" without one.

    "" also if the task has no log, or no command was started. Only the last 4096 bytes are looked at.
    """
    try:
        file = scratch.open_file(task.log) if task.log else None
    except FileNotFoundError:  # no command was started
        return ""
    if file is None:
        return ""
    with file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_LAST_LINE_BYTES))
        lines = file.read(MAX_LAST_LINE_BYTES).decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _read_results(reader: _ResultReader, task: SampleTask, subdirs: bool, log: bytes | None) -> list[Sample]:
    """Return the samples that the command of *task* left in its directory, or in the subdirectories with *subdirs*.

    Each subdirectory, but no link to one, gives one sample, by default with the key KEY/NAME, in the order of names; a
    directory without members gives none. *reader*: reads a directory. *log*: field in which the output of the command
    is added to each sample; None: it is not added. Raises: SampleFailedError, also if a file can't be read;
    StorageError if the disk is full.
    """
    try:
        if not subdirs:
            collected = [reader.read_sample(task.folder, task.key)]
        else:
            with os.scandir(task.folder) as entries:
                names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            collected = [reader.read_sample(task.folder + b"/" + name, task.key + b"/" + name) for name in names]
        samples = [sample for sample in collected if sample]
        return [reader.add_log(sample, log) for sample in samples] if log else samples
    except OSError as error:
        name = path_text(os.path.basename(os.fsencode(error.filename or b"its directory")))
        raise SampleFailedError(f"cannot collect {name!r}: {error.strerror}") from error


class _ResultReader:
    """Reads the result of one *task* from disk, with limits for memory and open files.

    *base*: name of the files that are members, before the dot; *account*: gets warnings.
    `files`: paths of the regular files in the directory that was read last; `has_only_files`: True if nothing else, no
    link either, is in it. Before the first: [] and False.
    """

    def __init__(self, task: SampleTask, base: bytes, account: Account) -> None:
        self._task = task
        self._base = base
        self._account = account
        self._old = {split_path(member.path)[1]: member for member in task.members}
        self._memory_bytes = 0  # bytes in memory
        self._open_count = 0  # large files
        self._shared_file: io.FileIO | None = None  # for what is beyond both
        self._shared_end = 0  # of it
        self.files: list[bytes] = []  # in the directory of the sample that was read last
        self.has_only_files = False  # there is nothing but files in it

    def read_sample(self, folder: bytes, default: bytes) -> Sample | None:
        """Return the sample in *folder*; None if it has no members.

        Its key is *default* unless the file BASE.__key__ there gives another. Fields that the sample had before come
        first, in their order, then new ones, sorted. Raises: SampleFailedError if its key is not valid, if it would not
        read back as this sample, or if a file has become something else; OSError, also if one is gone; StorageError if
        the disk is full.
        """
        paths = self._list_fields(folder)
        key_file = paths.pop(KEY_FILE, None)
        if not paths:
            return None
        key = self._read_key(key_file, default) if key_file else default
        if b"" in paths and len(paths) > 1:
            raise SampleFailedError(
                f"{path_text(self._base)!r} and {path_text(join_path(self._base, max(paths)))!r} "
                "would not read back as one sample: keep one of them"
            )
        fields = [field for field in self._old if field in paths] + sorted(paths.keys() - self._old.keys())
        members = [self._make_member(key, field, paths[field]) for field in fields]
        return Sample(key, tuple(members), self._task.shard)

    def is_unchanged(self, samples: list[Sample]) -> bool:
        """True if *samples* are the one that was there before: by its key, and the fields and sizes of its members.

        Payloads are not compared.
        """
        if len(samples) != 1:
            return False
        before = [(member.path, member.size) for member in self._task.members]
        return before == [(member.path, member.size) for member in samples[0].members]

    def find_ignored_file(self) -> str:
        """Return the first name of a file in the directory read last that is no field, but has the suffix of a type.

        Such as "out.jpg"; the first in sorted order. Types are as of `is_type_suffix`. "" if there is none.
        """
        names = (os.path.basename(file) for file in self.files)
        prefix = self._base + b"."
        others = (path_text(name) for name in names if not name.startswith(prefix) and name != self._base)
        return next((name for name in sorted(others) if is_type_suffix(name.rpartition(".")[2])), "")

    def add_log(self, sample: Sample, field: bytes) -> Sample:
        """Return *sample* with the output of the command as the last field, *field*.

        It is compressed if *field* ends in the suffix of a codec, such as b"log.gz" or b"gz". Raises:
        SampleFailedError if *sample* has such a field, has a key alone, without fields, or would not read back with it;
        OSError, also if there is no log; StorageError if the disk is full.
        """
        assert self._task.log
        if any(field == split_path(member.path)[1] for member in sample.members):
            raise SampleFailedError(f"it has a field {path_text(field)!r} already, which --add-log would add")
        if not sample.grouped:
            raise SampleFailedError(f"it has no fields, so {path_text(field)!r} would not read back as its log")
        member = self._make_member(sample.raw_key, field, self._task.log, new=True)
        if split_codec(path_text(field))[1] is not None:
            member = tar.new_member(member.path, text_payload(member.path, member.read()))
        return sample.with_members([*sample.members, member])

    def _list_fields(self, folder: bytes) -> dict[bytes, bytes]:
        """Return {field: path} of the files in *folder* that are members, or the key; others are ignored as scratch.

        A member is named BASE.FIELD, or BASE (field b"") if the sample had a member without a field. Links count, with
        the path of their target, if they lead to a file in the directory of the task; else there is a warning.
        BASE.__key__ counts as it is, even if it is no file. Sets `files` and `has_only_files`. Raises: OSError.
        """
        base, prefix = self._base, self._base + b"."
        paths = {}
        self.files, self.has_only_files = [], True
        with os.scandir(folder) as entries:
            for entry in entries:
                name = entry.name
                field = name[len(prefix) :] if name.startswith(prefix) else b""
                bare = name == base and b"" in self._old
                path: bytes | None = entry.path
                if entry.is_file(follow_symlinks=False):
                    self.files.append(entry.path)
                else:
                    self.has_only_files = False
                    if (field or bare) and field != KEY_FILE:
                        path = self._resolve_link(entry.path)
                if (field or bare) and path:
                    paths[field] = path
        return paths

    def _resolve_link(self, path: bytes) -> bytes | None:
        """Return the regular file to which the link *path* leads, if it is in the directory of the task; else None.

        Warns of a link that leads elsewhere. None, too, if *path* is no link.
        """
        if not os.path.islink(path):
            return None
        real = os.path.realpath(path)
        if real.startswith(self._task.folder + b"/") and os.path.isfile(real):
            return real
        self._account.warn(
            f"sample {path_text(self._task.key)!r}: {path_text(os.path.basename(path))!r} is a link that does not lead "
            "to a file of its directory; skipped"
        )
        return None

    def _read_key(self, path: bytes, default: bytes) -> bytes:
        """Return the key in the file *path*, after a check. *default*: the key that the sample would have without it.

        One newline at its end is dropped. *default*, and the key that the task's sample had, are accepted in any form.
        Raises: SampleFailedError for another key that can't be one: empty, absolute, with a part "..", a slash at its
        end, a dot in its last part, or a NUL; for any of more than 65,536 bytes; if *path* is no file, or a link to
        none in the directory of the task. OSError if it can't be read.
        """
        inside = self._resolve_link(path) if os.path.islink(path) else path
        file = scratch.read_file(inside, MAX_KEY_BYTES) if inside else None
        if file is None:
            raise SampleFailedError(f"{path_text(os.path.basename(path))!r} is not a file")
        if isinstance(file, io.FileIO):
            raise SampleFailedError(f"its new key has more than {MAX_KEY_BYTES} bytes")
        for key in (file, file.removesuffix(b"\n")):
            if key in (default, self._task.key):  # unchanged, whatever it is
                return key
        base = key.rpartition(b"/")[2]
        if not base or b"." in base or b"\0" in key or key.startswith(b"/") or b".." in key.split(b"/"):
            raise SampleFailedError(
                f"it cannot have the new key {path_text(key)[:200]!r}: not empty, not absolute, no '..', no dot in its "
                "last part"
            )
        return key

    def _make_member(self, key: bytes, field: bytes, file: bytes, *, new: bool = False) -> Member:
        """Return the file *file* as the member *field* of the sample *key*.

        It has the header of the member that was there before, changed only where needed; a plain one if there was none,
        or with *new*. Raises: SampleFailedError if its path would not read back as this key and field, and is not that
        of the member before, or if the file has become something else; OSError; StorageError if the disk is full.
        """
        path = join_path(key, field)
        old = None if new else self._old.get(field)
        if split_path(path) != (key, field) and not (old and path == old.path):
            raise SampleFailedError(
                f"the member {path_text(path)!r} would not read back as field {path_text(field)!r} of its key"
            )
        source, data, size = self._read_content(file)
        if old:
            return tar.rewrite_member(old, path, source, size)._replace(data=data)
        return Member(path, source, 0, data, size, tar.encode_header(path, size))

    def _read_content(self, path: bytes) -> tuple[Source, int, int]:
        """Return the content of the file *path* as (source, offset, size): bytes, or an open file if it is large.

        Large is over 1 MiB, or more than is left of 16 MiB for the whole result; the file itself is returned for up to
        64 of over 1 MiB, a scratch file with copies for all others. Raises: SampleFailedError if it is no regular file
        any more; OSError, also if it is gone or a link; StorageError if the disk is full.
        """
        file = scratch.read_file(path, min(MAX_FILE_IN_MEMORY, MAX_RESULT_IN_MEMORY - self._memory_bytes))
        if file is None:
            raise SampleFailedError(f"{path_text(os.path.basename(path))!r} is not a file any more")
        if isinstance(file, bytes):
            self._memory_bytes += len(file)
            return file, 0, len(file)
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_IN_MEMORY and self._open_count < MAX_FILES_OPEN:
            self._open_count += 1
            return file, 0, size
        if self._shared_file is None:
            self._shared_file = scratch.scratch_file(os.fsdecode(os.path.dirname(self._task.folder)))
        with file:
            copy_range(file, 0, size, self._shared_file)
        self._shared_end += size
        return self._shared_file, self._shared_end - size, size
