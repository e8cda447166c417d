"""Checkpoints of `torch.distributed.checkpoint` (DCP) at any URL.

    dcp.save(state, storage_writer=tartools.train.StorageWriter("s3://bucket/run/step-100"))
    dcp.load(state, storage_reader=tartools.train.StorageReader("s3://bucket/run/step-100"))

The files are those that torch writes to a folder, which its own FileSystemReader reads: one of data for each rank, and
`.metadata`, which names them. Data has new names in each save, and `.metadata` is replaced last, at once: so a save
that fails leaves the checkpoint that was there. As everywhere in DCP, `.metadata` is unpickled: load what you trust.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import pickle
from contextlib import AbstractContextManager
from typing import IO, Any

from torch.distributed.checkpoint.filesystem import (
    CURRENT_DCP_VERSION,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
    _StoragePrefix,
)
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from tartools import storage
from tartools.errors import StorageError, UsageError
from tartools.storage.listing import list_objects
from tartools.storage.local import path_of
from tartools.storage.url import Url
from tartools.train import checkpoint

DISTCP_SUFFIX = ".distcp"

_log = logging.getLogger("tartools.train")


class _CheckpointFiles:
    """The file system interface of torch's reader and writer, for URLs; it can't rename or remove files."""

    def create_stream(self, path: str, mode: str) -> AbstractContextManager[Any]:
        """Return a context manager with the open file *path*, a URL: to read if *mode* is "rb", else to write.

        A file that is written appears, in place of an older one, when the block ends without an error. Raises:
        StorageError; UsageError for a URL to write that is a pattern with a number, such as %06d.
        """
        return checkpoint.reader(path) if mode == "rb" else checkpoint.writer(path)

    def concat_path(self, path: str, name: str) -> str:
        """Return the URL of the file *name* in the checkpoint *path*."""
        return f"{path}/{name}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        """Return *path*, the URL or folder of a checkpoint, as text without slashes at the end."""
        return os.fspath(path).rstrip("/")

    def mkdir(self, path: str) -> None:
        """Make the local folder *path* and its parents, unless they are there; do nothing for URLs that are not local.

        Raises: StorageError.
        """
        storage.make_directory(path)

    def exists(self, path: str) -> bool:
        """True if the file or object *path*, a URL, exists; False for an object at which this user may not look.

        Raises: StorageError if the server's response does not say it.
        """
        return storage.exists(path)


class _CheckpointAtUrl:
    """Base class of `StorageReader` and `StorageWriter`: gives torch's class a file system of URLs.

    *url*: the checkpoint, a prefix or folder. *options*: arguments of torch's class. `fs`: that file system, a
    `_CheckpointFiles`. `path`: *url* as text without slashes at the end.
    """

    def __init__(self, url: str | os.PathLike[str], **options: Any) -> None:
        super().__init__("", **options)  # type: ignore[call-arg]
        self.fs: Any = _CheckpointFiles()
        self.path: Any = self.fs.init_path(url)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """True if *checkpoint_id* is a path, or a URL of a scheme in `SCHEMES`, without credentials.

        Makes no request: whether the scheme can be written is not looked at.
        """
        try:
            Url(os.fspath(checkpoint_id)).module("write")
        except (StorageError, UsageError):
            return False
        return True


class StorageWriter(_CheckpointAtUrl, FileSystemWriter):
    """Saves a checkpoint to *url*, a prefix of any scheme: `dcp.save(state, storage_writer=StorageWriter(url))`.

    A checkpoint that is there is replaced when all ranks have saved, and then its data is removed, where the store
    lists its objects; with *overwrite* False it is an error. *thread_count*: files of each rank that are written side
    by side.

    Holds: for each of these up to 5 parts of 16 MiB, beyond 8 GB of 32 MiB. Raises: as DCP does, CheckpointException
    with the StorageError. If old data can't be removed, that is logged.
    """

    def __init__(self, url: str | os.PathLike[str], *, thread_count: int = 1, overwrite: bool = True) -> None:
        super().__init__(url, thread_count=thread_count, overwrite=overwrite, sync_files=False)

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the folder, if it is local; return *plan*.

        If ranks save without collectives, the plan is a copy with the prefix of this rank's files as `storage_data`.

        Raises: StorageError if a checkpoint is there and overwrite is False, the server can't tell that, or the folder
        can't be made.
        """
        self.fs.mkdir(self.path)
        if not self.overwrite and self._metadata_exists():
            raise StorageError("there is a checkpoint already, and overwrite=False", url=self.path)
        if self.use_collectives or self.rank is None:
            return plan
        return dataclasses.replace(plan, storage_data=self._prefix(self.rank))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Return *plans*, one a rank, each with the prefix of the rank's data files, which no save before has used.

        The prefix is its `storage_data`; a plan that has one already stays as it is.
        """
        return [
            plan if plan.storage_data is not None else dataclasses.replace(plan, storage_data=self._prefix(rank))
            for rank, plan in enumerate(plans)
        ]

    def _prefix(self, rank: int) -> _StoragePrefix:
        """Return the beginning of the names of the data files of *rank* in this save: "__RANK_ID_", a new ID a save.

        It is in torch's record, for the `storage_data` of a plan.
        """
        return _StoragePrefix(f"__{rank}_{self.save_id}_")

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the data of this rank by *plan*; return the results, which `finish` gets, as a future that is done.

        Raises: StorageError, also if one of several threads has failed.
        """
        written = super().write_data(plan, planner)
        missing = len(plan.items) - len(written.value())
        if missing:
            raise StorageError(f"{missing} of {len(plan.items)} values were not written", url=self.path)
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write `.metadata`, with which the checkpoint appears; then remove data of older saves that can be listed.

        If ranks save without collectives, each writes a file of its own, "__RANK.metadata", and removes its own data of
        older saves.
        *metadata*: gets its version, `storage_meta`, and the place of each value. *results*: of `write_data`, by rank.
        If data can't be removed, that is logged. Raises: StorageError.
        """
        metadata.version = CURRENT_DCP_VERSION
        metadata.storage_data = {result.index: result.storage_data for several in results for result in several}
        metadata.storage_meta = self.storage_meta()
        own_rank = None if self.use_collectives else self.rank
        begin = f"{self.path}/__{'' if own_rank is None else f'{own_rank}_'}"
        with self.fs.create_stream(self._get_metadata_path(own_rank), "wb") as file:
            pickle.dump(metadata, file)
        used = {info.relative_path for info in metadata.storage_data.values()}
        try:
            for name in self._list_files():
                if name.startswith(begin) and name.endswith(DISTCP_SUFFIX) and name.rpartition("/")[2] not in used:
                    storage.remove(name)
        except (StorageError, OSError) as error:
            _log.warning("the checkpoint is saved, but data of an older one was not removed: %s", error)

    def _list_files(self) -> list[str]:
        """Return the URLs of all files or objects directly in the checkpoint's folder; [] if its store can't list.

        In a local folder its subfolders, too. Raises: StorageError; UsageError if the URL names no bucket; OSError for
        a local folder.
        """
        if Url(self.path).is_local:
            return [f"{self.path}/{name}" for name in os.listdir(path_of(self.path))]
        return [entry.url for entry in list_objects(f"{self.path}/", flat=True)] if Url(self.path).is_listed else []


class StorageReader(_CheckpointAtUrl, FileSystemReader):
    """Loads a checkpoint from *url*, a prefix of any scheme: `dcp.load(state, storage_reader=StorageReader(url))`.

    Values are read in the order in which they lie in their files, in ranges read ahead. Holds: up to 72 MiB, and the
    largest value twice.

    Raises: as DCP does, CheckpointException with the StorageError.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        super().__init__(url)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Return a copy of *plan* with the items to read sorted by file and offset."""

        def place(item: Any) -> tuple[str, int]:
            info = self.storage_data[item.storage_index]
            return info.relative_path, info.offset

        return dataclasses.replace(plan, items=sorted(plan.items, key=place))

    def _slice_file(self, file: Any, sinfo: _StorageInfo) -> IO[bytes]:
        """Return the bytes of one value in memory, as a file. *sinfo*: its file, offset and length, in bytes.

        torch reads a value from both ends, which would be many requests. Raises: StorageError if *file* is too short.
        """
        file.seek(sinfo.offset)
        data = file.read(sinfo.length)
        if len(data) < sinfo.length:
            raise StorageError("this file of a checkpoint is too short", url=f"{self.path}/{sinfo.relative_path}")
        return io.BytesIO(data)
