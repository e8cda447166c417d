"""The directories of tarproc: one for each sample, with its members as files, below one private folder.

`SampleDirectories` makes and removes them; `shells` runs commands in them, and `results` reads back what these left. In
a directory, `sample.<field>` is a member, `sample` the member without a field, and `sample.__key__` holds the key.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal, NamedTuple

from tartools.errors import StorageError
from tartools.run.guard import Guard
from tartools.samples.sample import Sample
from tartools.storage import scratch
from tartools.storage.interrupts import defer_signals
from tartools.tar import Member, Writer, copy_payload, join_path, split_path

Errors = Literal["abort", "skip", "ignore"]  # what happens to the run and the sample when a command fails

KEY_FILE = b"__key__"
LOG_SUFFIX = ".log"  # behind the name of a directory: the file with what the command printed
RAW_SUFFIX = b".tar"  # likewise: the sample as it was read
MAX_REUSED_DIRECTORIES = 16  # directories that wait for other samples
BAD_NAME = (errno.EEXIST, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL)  # of files; other errors end the run


class DirectoryOptions(NamedTuple):
    """How samples become directories, and directories samples.

    `base`: name of the files, before the dot
    `errors`: after a failed command "abort" ends the run, "skip" drops the sample, "ignore" passes it on unchanged
    `subdirs`: True if each subdirectory becomes a sample
    `log`: field in which the output of commands is stored; None: it is not stored
    `keep`: True if the directories are not removed
    `is_reported`: True if the last line that a failed command printed goes into the report of the failure
    """

    base: bytes = b"sample"
    errors: Errors = "abort"
    subdirs: bool = False
    log: bytes | None = None
    keep: bool = False
    is_reported: bool = False

    @property
    def is_logged(self) -> bool:
        """True if the output of a command goes to a file first, because it is stored or reported."""
        return self.log is not None or self.is_reported


class SampleTask(NamedTuple):
    """A sample on disk, for one run of the command.

    `folder`: absolute path of its directory
    `number`: its position in the input, from 0
    `key`, `shard`: key of the sample, and URL of the shard that it came from
    `members`: its members with headers and sizes, but without payloads
    `failure`: why it could not be written; "" if it was
    `log`: path of the file for the output of the command, which does not exist yet; None if that is not wanted
    `raw`: path of a tar with the sample as it was read; None unless failed samples are passed on
    `identity`: identity of the directory when it was made, to see if the command replaced it
    """

    folder: bytes
    number: int
    key: bytes
    shard: str
    members: tuple[Member, ...]
    failure: str
    log: bytes | None
    raw: bytes | None
    identity: scratch.Identity

    @property
    def environment(self) -> dict[bytes, bytes]:
        """The variables that the command gets beside ours: TAR_KEY, TAR_INDEX (`number`, in digits), TAR_SHARD."""
        return {b"TAR_KEY": self.key, b"TAR_INDEX": b"%d" % self.number, b"TAR_SHARD": os.fsencode(self.shard)}


class Outcome(NamedTuple):
    """How the command of a task ended.

    `failure`: how it failed; "" if it succeeded
    `left_no_processes`: True if nothing that it started runs any more, in any process group or session; False if
        something may still run
    """

    failure: str
    left_no_processes: bool = False


class SampleFailedError(Exception):
    """A sample can't become a directory, or its command or result failed; the text says why."""


class SampleDirectories:
    """Makes the directories of samples in a private folder in *tmpdir* (None: the default), and removes them.

    `write` makes them, `remove` releases the directory of one task, and `sweep` removes the released ones. It has to be
    closed, which removes the folder, unless *options* say to keep it. If this process is killed before, the guard does
    so. Threads may share it.

    `folder`: the absolute path of the private folder
    `guard`: the `Guard` that removes the folder, and starts the commands

    Raises: StorageError if the folder can't be made, or the guard can't be started.
    """

    def __init__(self, options: DirectoryOptions, tmpdir: str | None = None) -> None:
        self.options = options
        self._emptied: list[bytes] = []  # directories to be removed
        self._used: list[bytes] = []  # empty directories for other samples
        undo_steps: list[Callable[[], object]] = []
        try:
            with defer_signals():  # until the guard runs
                self.folder = os.path.realpath(os.fsencode(scratch.private_directory(tmpdir)))
                undo_steps.append(partial(scratch.remove_tree, self.folder))
                self.guard = Guard(self.folder, keep=options.keep, tmpdir=tmpdir)
                undo_steps.append(self.guard.close)
        except BaseException:  # a signal too, that came meanwhile
            for undo in undo_steps:
                undo()
            raise

    def close(self) -> None:
        """Remove the folder, unless it is to be kept, and end the guard."""
        if not self.options.keep:
            scratch.remove_tree(self.folder)
        self.guard.close()

    def write(self, samples: Iterable[Sample]) -> Iterator[SampleTask]:
        """Write each of *samples* to a directory of its own, with its members as files, and yield its task.

        Order: that of *samples*; each is written when it is requested, with `errors` "ignore" also as a tar, `raw`. A
        sample whose key or fields can't be names of files is yielded too, with the reason in `failure`.
        Holds: no payload once it is written. Raises: StorageError if the disk is full or can't be written to, or a
        payload can't be read; the errors of reading *samples*.
        """
        for number, sample in enumerate(samples):
            folder = b"%b/%06d" % (self.folder, number)
            raw = folder + RAW_SUFFIX if self.options.errors == "ignore" else None
            log = folder + LOG_SUFFIX.encode() if self.options.is_logged else None
            failure, identity = "", scratch.Identity()
            try:
                if self._used:
                    os.rename(self._used.pop(), folder)
                else:
                    os.mkdir(folder, 0o700)
                identity = scratch.identity_of_file(folder)
                if raw:
                    with scratch.create_file(raw) as sink:
                        writer = Writer(sink)
                        sample.write_to(writer)
                        writer.flush()
                _write_files(sample, folder, self.options.base)
            except SampleFailedError as error:
                failure = str(error)
            except OSError as error:
                raise StorageError(
                    f"cannot write the files of sample {sample.key!r}: {error.strerror} (--tmpdir names another place)",
                    url=os.fsdecode(self.folder),
                ) from error
            bare = tuple(Member(m.path, b"", 0, 0, m.size, m.header) for m in sample.members)
            yield SampleTask(folder, number, sample.raw_key, sample.shard, bare, failure, log, raw, identity)

    def remove(self, task: SampleTask, files: Iterable[bytes], *, reuse: bool = False) -> None:
        """Remove *files*, the log and the raw copy of *task*; if directories are kept, only the raw copy.

        *files*: paths of the files in its directory. The directory itself is removed by the next call of `sweep`. With
        *reuse* it is kept for another sample instead, if all *files* could be removed, it is the one that was made for
        the task, and fewer than MAX_REUSED_DIRECTORIES wait; the caller knows that nothing else is in it, and that
        nobody works in it.
        """
        if task.raw:
            scratch.remove_tree(task.raw)
        if self.options.keep:
            return
        if task.log:
            scratch.remove_tree(task.log)
        emptied = scratch.remove_files(files)
        if (
            reuse
            and emptied
            and len(self._used) < MAX_REUSED_DIRECTORIES
            and scratch.identity_of_file(task.folder) == task.identity
        ):
            self._used.append(task.folder)
        else:
            self._emptied.append(task.folder)

    def sweep(self) -> None:
        """Remove all directories left by `remove`, with their content, but the ones kept for reuse.

        This may wait for the disk. Files that can't be removed stay without an error.
        """
        while self._emptied:
            try:
                folder = self._emptied.pop()
            except IndexError:
                return  # another thread was faster
            try:
                os.rmdir(folder)
            except OSError:
                scratch.remove_tree(folder)


def _write_files(sample: Sample, folder: bytes, base: bytes) -> None:
    """Write the key of *sample* as BASE.__key__, and its members as BASE.FIELD or BASE, into *folder*; *base*: BASE.

    Raises: SampleFailedError for a key or field with a NUL, a name that the file system refuses, one that two members
    have, or the field __key__; StorageError if a payload can't be read, or the disk is full; OSError for other
    failures.
    """
    if b"\0" in sample.raw_key:
        raise SampleFailedError("its key contains a NUL, which no file and no environment can")
    _write_file(folder, base + b"." + KEY_FILE, Member(b"", sample.raw_key, 0, 0, len(sample.raw_key)))
    for member in sample.members:
        _write_file(folder, join_path(base, split_path(member.path)[1]), member)


def _write_file(folder: bytes, name: bytes, member: Member) -> None:
    """Write the payload of *member* to the new file *name* in *folder*.

    Raises: SampleFailedError for a name with a NUL, one that the file system refuses, or one that is there;
    StorageError if the payload can't be read, or the disk is full; OSError for other failures.
    """
    path = folder + b"/" + name
    try:
        with scratch.create_file(path) as sink:
            copy_payload(member, sink)
    except ValueError:
        raise SampleFailedError(f"a field with a NUL can't be the name of a file: {path_text(name)!r}") from None
    except OSError as error:
        if error.errno not in BAD_NAME:
            raise
        if error.errno == errno.EEXIST:
            raise SampleFailedError(f"two of its members need the one file name {path_text(name)!r}") from None
        raise SampleFailedError(
            f"the file system can't store the name {path_text(name)[:60]!r}...: {error.strerror}"
        ) from None


def path_text(raw: bytes) -> str:
    """Return the path or name *raw* as text for messages; bytes that are no UTF-8 become surrogates."""
    return raw.decode("utf-8", "surrogateescape")
