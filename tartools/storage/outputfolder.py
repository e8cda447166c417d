"""Output folders: new files are collected in a hidden folder, and get their names when all are complete.

    photos does not exist:  .photos.HOST.PID-X.tmp/  ──one rename──►  photos/
    photos exists:          photos/.tartools.HOST.PID-X.tmp/new/a.jpg  ──a link for each file──►  photos/a.jpg

So a folder that did not exist appears whole or not at all. In one that exists, other files stay; if a file can't get
its name, those that have theirs lose it again. Only a killed process can leave some of them. The next run removes the
hidden folder that it left: a lock tells that its process is gone, as for temporary files of `local`.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tartools.errors import ExistsError, StorageError, UsageError
from tartools.storage.interrupts import defer_signals
from tartools.storage.local import (
    canonical_name,
    is_temporary_name,
    lock_new,
    make_directory,
    path_of,
    temporary_name,
)
from tartools.storage.scratch import remove_tree
from tartools.storage.streams import FileSink, sync_all, sync_file, translate_os_errors, unlock
from tartools.storage.url import Url


def check_folder(url: str) -> None:
    """Check that the output *url* is a local folder, or does not exist. Its content is not looked at.

    Raises: UsageError if it is "" or not local (stdout, a command, on a server, a `file://` URL of another host);
    StorageError if it is a file; OSError if it can't be looked up.
    """
    if not url:
        raise UsageError("the name of a folder is empty (a variable of the shell may not be set)")
    if not Url(url).is_local:
        raise UsageError(
            "files are written to a local folder: name one, and upload it with the store's own tool", url=url
        )
    status = _status(os.path.realpath(path_of(url)))
    if status is not None and not stat.S_ISDIR(status.st_mode):
        raise StorageError("is a file, and this writes a folder", url=url)


@contextmanager
def open_output_folder(url: str, force: bool, inputs: Iterable[str] = ()) -> Iterator[OutputFolder]:
    """Yield the output folder *url*: committed if the block ends normally, else aborted, also if the commit fails.

    *force*: replace files that exist in it, but none of *inputs*, URLs. Raises: StorageError; UsageError for a
    `file://` URL of another host; the errors of the block.
    """
    output: OutputFolder | None = None
    try:
        with defer_signals():
            output = OutputFolder(url, force, inputs)
        yield output
        output.commit()
    except BaseException:
        if output is not None:
            output.abort()
        raise


class OutputFolder:
    """A folder of new files, which appear at `commit` or not at all.

    Open each file by `create`, write and close it; then call `commit`, or `abort`, also after a failed `commit`.

    *url*: its name; missing parents are made at once, as is the hidden folder. *force*: replace files that exist;
    otherwise they are an error, as an existing file that is one of *inputs*, URLs, always is. Raises: StorageError;
    UsageError for a `file://` URL of another host.
    """

    def __init__(self, url: str, force: bool, inputs: Iterable[str] = ()) -> None:
        self._url = url
        self._force = force
        self._inputs = {os.fsencode(canonical_name(name)) for name in inputs if Url(name).is_local}
        self._path = os.path.realpath(path_of(url))
        self._exists = os.path.isdir(self._path)
        parent, name = os.path.split(self._path)
        self._parents = [] if self._exists else make_directory(parent)
        self._made_folders: set[bytes] = set()  # folders that were made
        self._open = True
        self._owner = os.getpid()
        try:
            with translate_os_errors(url):
                if self._exists:
                    parent, name = self._path, "tartools"
                hidden, self._lock = _hidden_folder(parent, name)
                self._hidden = self._source = os.fsencode(hidden)
                if self._exists:
                    self._source += b"/new"
                    os.mkdir(self._source)
        except BaseException:
            self._remove_parents()
            raise
        self._target = os.fsencode(self._path)

    def create(self, path: bytes) -> FileSink:
        """Open the new file *path*, relative to the folder, for writing; folders on its way are made.

        The caller closes it. A symbolic link in its place counts as a file. Raises: ExistsError if the folder has such
        a file, and it is not to be replaced; StorageError if *path* has a part that is empty, "." or "..", leads
        through a file or a symbolic link of the folder, is a folder in it or an input, or can't be made;
        FileExistsError if *path* was created before, as a file or a folder, or a folder on its way was, as a file.
        """
        if any(part in (b"", b".", b"..") for part in path.split(b"/")):
            raise StorageError("this path would leave the folder", url=self._name(path))
        try:
            self._make_parents(path)
            if self._exists:
                self._check_free(path)
            return FileSink(os.fsdecode(self._source + b"/" + path), self._name(path), os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            raise
        except (OSError, ValueError) as error:
            raise StorageError(getattr(error, "strerror", None) or str(error), url=self._name(path)) from error

    def commit(self) -> None:
        """Let all files appear, and wait until their data and names are on the disk.

        It does not wait with TARTOOLS_FSYNC=0; on macOS data may get there later. Signals that come while the files get
        their names are handled after that.

        Raises: ExistsError if a name is taken by now; StorageError. Then none appears, or those that did disappear
        again; one stays if it can't be moved back. The caller calls `abort`.
        """
        sync_all()  # one call for all files: to sync each of a million small ones would take hours
        with defer_signals(), translate_os_errors(self._url):
            if self._exists:
                self._move_files()
            else:
                self._rename()
            unlock(self._lock)
            self._open = False

    def abort(self) -> None:
        """Remove all that was written, and the parents made for it, if empty; files that can't be removed stay.

        Does nothing after a `commit` that succeeded, the second time, and in a fork, whose parent goes on writing.
        """
        if self._open and os.getpid() == self._owner:
            self._open = False
            remove_tree(self._hidden)
            unlock(self._lock)
            self._remove_parents()

    def _name(self, path: bytes) -> str:
        """Return the URL of the file *path*, relative to this folder, for messages."""
        return os.path.join(self._url, os.fsdecode(path))

    def _remove_parents(self) -> None:
        """Remove the parents that were made for the folder, as far as they are empty."""
        with suppress(OSError):
            for parent in reversed(self._parents):
                os.rmdir(parent)

    def _make_parents(self, path: bytes) -> None:
        """Make the folders on the way to *path* in the hidden folder, as far as they were not made before.

        Raises: StorageError if the output folder has a file or a symbolic link in place of one; FileExistsError if a
        file of that name was created; OSError.
        """
        end = path.rfind(b"/")
        if end < 0 or path[:end] in self._made_folders:
            return
        end = path.find(b"/")
        while end >= 0:
            folder = path[:end]
            if folder not in self._made_folders:
                if self._exists and (status := _status(self._target + b"/" + folder)) is not None:
                    _check_real_folder(status, self._name(folder))
                os.mkdir(self._source + b"/" + folder)
                self._made_folders.add(folder)
            end = path.find(b"/", end + 1)

    def _check_free(self, path: bytes) -> None:
        """Raise ExistsError if the file *path* exists in the folder and may not be replaced.

        Raises: StorageError if it is a folder, or one of the inputs, also by a link; OSError if it can't be looked up.
        """
        status = _status(self._target + b"/" + path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise StorageError("is a folder, and this writes a file of that name", url=self._name(path))
        if status is not None and self._inputs and os.path.realpath(self._target + b"/" + path) in self._inputs:
            raise StorageError("this output is also an input", url=self._name(path))
        if status is not None and not self._force:
            raise ExistsError(self._name(path))

    def _rename(self) -> None:
        """Give the hidden folder the name of the output, and flush that to the disk; take it back if the flush fails.

        Raises: ExistsError if the name is the name of a file, or of a folder with files, by now; OSError.
        """
        try:
            os.rename(self._hidden, self._path)
        except OSError as error:
            if os.path.lexists(self._path):
                raise ExistsError(self._url) from error
            raise
        try:
            sync_file(os.path.dirname(self._path))
        except OSError:  # a power cut could lose the name: the user is told of a failure, which leaves nothing behind
            with suppress(OSError):
                os.rename(self._path, self._hidden)
            raise

    def _move_files(self) -> None:
        """Move the files of the hidden folder to the folder that exists; after a failure, move them back.

        Files that they replace are held in the hidden folder until all are moved, and restored after a failure; steps
        back that fail are left out. At the end the hidden folder is removed, and names are flushed to the disk before.
        Raises: ExistsError, StorageError and OSError, as `_make_folder` and `_move` raise them.
        """
        undo: list[Callable[[], object]] = []
        folders = [b""]
        try:
            os.mkdir(self._hidden + b"/old")
            for folder in folders:
                prefix = folder + b"/" if folder else b""
                for entry in list(os.scandir(self._source + b"/" + folder)):
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        self._make_folder(path, undo)
                        folders.append(path)
                    else:
                        self._move(path, undo)
        except BaseException:
            for step in reversed(undo):
                with suppress(OSError):
                    step()
            raise
        sync_all()
        remove_tree(self._hidden)

    def _make_folder(self, path: bytes, undo: list[Callable[[], object]]) -> None:
        """Make the folder *path* in the output folder, unless it exists; append to *undo* the function that removes it.

        *path*: relative to the output folder, in bytes; its parent exists. Raises: StorageError if *path* is a symbolic
        link or a file; OSError.
        """
        target = self._target + b"/" + path
        if (status := _status(target)) is not None:
            _check_real_folder(status, self._name(path))
            return
        os.mkdir(target)
        undo.append(partial(os.rmdir, target))

    def _move(self, path: bytes, undo: list[Callable[[], object]]) -> None:
        """Move the file *path* to its place; append to *undo* functions that remove it and restore the one it replaced.

        *undo* is to be called from its end. Raises: ExistsError if the name is taken and files may not be replaced, or
        is taken meanwhile; StorageError if it is a folder or an input; OSError.
        """
        source, target = self._source + b"/" + path, self._target + b"/" + path
        self._check_free(path)
        if self._force and _status(target) is not None:
            held = b"%b/old/%d" % (self._hidden, len(undo))
            os.rename(target, held)
            undo.append(partial(os.rename, held, target))
        try:
            os.link(source, target)
        except FileExistsError:
            raise ExistsError(self._name(path)) from None
        except OSError:  # a file system without links
            os.rename(source, target)
        undo.append(partial(os.unlink, target))


def _status(path: str | bytes) -> os.stat_result | None:
    """Return the status of *path*, of a link itself; None if it does not exist. Raises: OSError for other failures."""
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def _check_real_folder(status: os.stat_result, name: str) -> None:
    """Raise StorageError, naming the path *name*, unless *status* is the status of a folder, not of a link to one."""
    if stat.S_ISLNK(status.st_mode):
        raise StorageError("is a symbolic link, by which files could leave the folder", url=name)
    if not stat.S_ISDIR(status.st_mode):
        raise StorageError("is a file, and this writes a folder of that name", url=name)


def _hidden_folder(parent: str, name: str) -> tuple[str, int]:
    """Make a hidden folder for the output *name* in *parent*; return its path, and the descriptor that locks it.

    First it removes hidden folders of this host that killed runs left in *parent* for the same output. `unlock`
    releases the descriptor. Raises: OSError.
    """
    for leftover in os.listdir(parent):
        if is_temporary_name(leftover, name):
            _remove_abandoned(os.path.join(parent, leftover))
    while True:
        hidden = os.path.join(parent, temporary_name(name))
        os.mkdir(hidden)
        lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if lock_new(lock, hidden):
            return hidden, lock
        os.close(lock)


def _remove_abandoned(hidden: str) -> None:
    """Remove the folder *hidden* and its content if no process holds its lock; no failure if that is impossible."""
    with suppress(OSError):
        lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(os.fsencode(hidden))
        finally:
            os.close(lock)
