"""Blocks of remote objects that are kept on the local disk, if `TARTOOLS_CACHE` says where: `/nvme/cache:500GB`.

An object is kept in blocks of 1 MiB, each a file with a checksum behind it, in a folder for the object and its version.
So a copy is never stale: another version is another folder. A block is there whole or not at all, whoever is killed;
one that was cut or changed is fetched again. A process that fetches a block holds the lock of its temporary file, and
others wait for it, but not longer than for a server. What does not fit into the budget, or on the disk, is read
without being kept; with `TARTOOLS_CACHE_EVICT=old` the blocks go that were not read for the longest time. Begin
reading at `CachedObject.get`.
"""

from __future__ import annotations

import fcntl
import functools
import json
import mmap
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from glob import escape, glob
from hashlib import sha256
from itertools import chain
from typing import Any, NamedTuple

from tartools.errors import UsageError, byte_size, redacted
from tartools.storage.objects.contract import Body, Object, Reply
from tartools.storage.objects.pinned import Pinned, Range
from tartools.storage.objects.retry import timeouts
from tartools.storage.streams import unlock
from tartools.storage.url import drop_commit

CACHE_BLOCK_BYTES = 1 << 20  # bytes
BLOCKS_IN_REQUEST = 8  # blocks that are fetched by one request
MIN_FREE_BYTES = 1 << 30  # bytes that stay free on the disk
FETCH_POLL_SECONDS = 0.02  # seconds between two looks whether another process has fetched a block
EVICTED_SHARE = 0.05  # of the budget: what is removed when it is full
CACHE_FOLDER = "tartools-cache-1"  # below the one that the user names; nothing outside of it is looked at
ENTRY_NAME = re.compile(r"(\d+)(\.part)?")
CHECKSUM = struct.Struct("<I")
NUMBER_BYTES = 20  # of the file `used`
# threads that count bytes: those that were there, fetched, kept
COUNTER_SLOTS, COUNTER_SLOT = 1024, struct.Struct("<qqq")

_counted = mmap.mmap(-1, COUNTER_SLOTS * COUNTER_SLOT.size)  # shared with forks


class CachedVersion(NamedTuple):
    """The cached part of one version of an object.

    *url*, *version*: of the object, the URL without secrets and commit; "?" if the description is damaged.
    *size*: bytes of the object, 0 if the description is damaged; *stored_size*: bytes of its blocks on the disk, with
    checksums and unfinished blocks.
    *last_read*: the time of the last read or write of a block, in seconds since 1970; 0.0 if no block is stored.
    *folder*: the path of the blocks.
    """

    url: str
    version: str
    size: int
    stored_size: int
    last_read: float
    folder: str


def bytes_read() -> tuple[int, ...]:
    """Return three numbers of bytes for this process and its forks: read from the cache, fetched, and stored."""
    return tuple(map(sum, zip(*COUNTER_SLOT.iter_unpack(_counted), strict=True)))


def _count(hit_size: int = 0, fetched_size: int = 0, stored_size: int = 0) -> None:
    """Add to the counters that `bytes_read` sums up: bytes read from the cache, fetched, and stored."""
    place = threading.get_native_id() % COUNTER_SLOTS * COUNTER_SLOT.size
    before = COUNTER_SLOT.unpack_from(_counted, place)
    COUNTER_SLOT.pack_into(_counted, place, before[0] + hit_size, before[1] + fetched_size, before[2] + stored_size)


@functools.cache
def cache_of(text: str) -> Cache:
    """Return the cache that *text* describes, such as "/nvme/cache:500GB"; the same one for the same text.

    The size is a number for `byte_size`: "500GB", "64GiB". Raises: UsageError for any other text, or if the folder
    CACHE_FOLDER there belongs to another user, not root.
    """
    folder, colon, size = text.rpartition(":")
    try:
        if not folder or not colon:
            raise ValueError("no size")
        return Cache(folder, byte_size(size))
    except ValueError as error:
        raise UsageError(f"TARTOOLS_CACHE is a folder and its size, such as /nvme/cache:500GB ({error})") from None


class Cache:
    """Blocks of objects on the local disk, in the folder CACHE_FOLDER below *path*, for `CachedObject`.

    They have up to *budget* bytes, of all processes together, and one block of each process more. `entry` says where
    the blocks of a version are; before a block is written, `reserve` counts it. `entries` and `clear` are for the user.

    Raises: ValueError if the folder belongs to another user, not root, who could put anything into it. A folder that
    does not exist is made later, for the first block; one that can't be looked up or made caches nothing.
    """

    def __init__(self, path: str, budget: int) -> None:
        self.folder = os.path.join(os.path.abspath(path), CACHE_FOLDER)
        with suppress(OSError):  # a folder that can't be looked at can't be used: then nothing is cached
            if os.lstat(self.folder).st_uid not in (os.geteuid(), 0):
                raise ValueError("this folder belongs to another user")
        self.budget = budget
        self._full = False

    def entry(self, url: str, version: str) -> str:
        """Return the path of the folder for this *version* of *url*, which need not exist.

        *url*: as it was read, but without commit (`drop_commit`).
        """
        name = sha256(f"{url}\0{version}".encode("utf-8", "surrogateescape")).hexdigest()
        return os.path.join(self.folder, name[:2], name[2:40])

    def entries(self) -> Iterator[CachedVersion]:
        """Yield a description of each cached version of an object, unordered."""
        for folder in self._folders():
            about = _read_description(folder) or {"url": "?", "version": "?", "size": 0}  # cut by a power cut
            blocks = [*_blocks(folder)]
            size, last_read = sum(size for _, size, _ in blocks), max((when for when, _, _ in blocks), default=0.0)
            yield CachedVersion(about["url"], about["version"], about["size"], size, last_read, folder)

    def clear(self, url: str = "") -> int:
        """Remove the entries of *url* and of URLs below it, or all if it is ""; return their size in bytes on the disk.

        *url*: as it was read, or as it is listed, without secrets and commit. Files that can't be removed stay, but the
        result counts them. An entry whose description is damaged is removed only with all.
        """
        removed, url = 0, redacted(drop_commit(url))  # as descriptions have it
        for entry in self.entries():
            if not url or entry.url == url or entry.url.startswith(url.rstrip("/") + "/"):
                shutil.rmtree(entry.folder, ignore_errors=True)
                removed += entry.stored_size
        with suppress(OSError), self._lock_count() as file:
            _set_number(file, self._measure())
        return removed

    def reserve(self, size: int) -> bool:
        """Count *size* bytes as used, and return True; if they do not fit, count nothing, and return False.

        They fit if with them all counted bytes are within the budget, and MIN_FREE_BYTES (1 GiB) stay free. With
        `TARTOOLS_CACHE_EVICT=old` the least recently read blocks are removed to make room. Raises: OSError.
        """
        evicting = os.environ.get("TARTOOLS_CACHE_EVICT") == "old"
        with self._lock_count() as file:
            used = _read_number(file)
            if used is None:
                used = self._measure()
            if not self._fits(used + size, size) and (evicting or not self._full):
                used = self._measure()  # killed processes counted what they did not keep
                if evicting and not self._fits(used + size, size):
                    used -= self._evict(size + int(self.budget * EVICTED_SHARE))
                self._full = not self._fits(used + size, size)  # then this process measures no more
            fits = self._fits(used + size, size)
            _set_number(file, used + size * fits)
            return fits

    def _fits(self, total: int, unwritten: int) -> bool:
        """True if *total* bytes fit into the budget, and *unwritten* bytes leave MIN_FREE_BYTES on the disk.

        Raises: OSError.
        """
        disk = os.statvfs(self.folder)
        return total <= self.budget and disk.f_bavail * disk.f_frsize >= unwritten + MIN_FREE_BYTES

    @contextmanager
    def _lock_count(self) -> Iterator[int]:
        """Yield the descriptor of the file that counts the bytes in the cache, locked and open in the `with` block.

        The file and its folder are made if they are missing. Raises: OSError.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        fd = os.open(os.path.join(self.folder, "used"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield fd
        finally:
            unlock(fd)

    def _folders(self) -> list[str]:
        """Return the paths of the folders of all cached versions. Other names, and links, are left out."""
        names = os.path.join(escape(self.folder), "[0-9a-f]" * 2, "[0-9a-f]" * 38)
        return [folder for folder in glob(names) if not os.path.islink(folder)]

    def _measure(self) -> int:
        """Return the size in bytes of all blocks on the disk, with their checksums and unfinished blocks."""
        return sum(size for folder in self._folders() for _, size, _ in _blocks(folder))

    def _evict(self, size: int) -> int:
        """Remove the least recently read blocks, *size* bytes or more if there are as many; return how many bytes."""
        removed = 0
        for _, count, path in sorted(chain.from_iterable(map(_blocks, self._folders()))):
            if removed >= size:
                break
            with suppress(OSError):
                os.unlink(path)
                removed += count
        return removed


def _read_description(folder: str) -> dict[str, Any] | None:
    """Return the description of the entry in *folder*; None if it is missing or not JSON.

    Keys: "url" (without secrets and commit), "version", and "size", the bytes of the object.
    """
    with suppress(OSError, ValueError), open(os.path.join(folder, "object.json"), "rb") as file:
        entry: dict[str, Any] = json.load(file)
        return entry
    return None


def _blocks(folder: str) -> Iterator[tuple[float, int, str]]:
    """Yield (time of the last read, size in bytes on the disk, path) for each block in *folder*, unordered.

    The time is in seconds since 1970. The temporary files of blocks that are being fetched are among them. Nothing if
    the folder can't be read.
    """
    with suppress(OSError):
        for entry in os.scandir(folder):
            with suppress(OSError):
                if ENTRY_NAME.fullmatch(entry.name):
                    yield (status := entry.stat()).st_mtime, status.st_size, entry.path


def _read_number(fd: int) -> int | None:
    """Return the number in the file *fd*; None if it lacks the form: it is new, was removed, or cut by a power cut.

    The form: decimal digits, with blanks before them to NUMBER_BYTES bytes.
    """
    text = os.pread(fd, NUMBER_BYTES + 1, 0)
    return int(text) if len(text) == NUMBER_BYTES and text.strip(b" ").isdigit() else None


def _set_number(fd: int, number: int) -> None:
    """Write *number* (0 if negative) as all of the file *fd*: digits, with blanks before them to NUMBER_BYTES bytes."""
    os.pwrite(fd, b"%*d" % (NUMBER_BYTES, max(number, 0)), 0)
    os.ftruncate(fd, NUMBER_BYTES)


class CachedObject:
    """The object *source*, a `contract.Object`, whose `get` reads through *cache*; the other methods are unchanged.

    A reply to `get` holds up to BLOCKS_IN_REQUEST blocks in memory. Errors of the cache never fail a read: then nothing
    is stored.
    """

    def __init__(self, source: Object, cache: Cache) -> None:
        self.url, self.head, self.remove, self.output = source.url, source.head, source.remove, source.output
        self._source = source
        self._cache = cache
        self._sizes: dict[str, int] = {}  # of versions

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Return a reply with the bytes *start* to *end* (exclusive; None: to the last), read through the cache.

        *version*: the version to read; "" requests the current one first. Its cached blocks are read without a request,
        even if the object has another version by now. The reply is the one of *source* if the object has no version
        or no size, *version* is neither cached nor the current one, or *start* is not before the end. Blocks are read
        and fetched while the body is read, which raises StorageError. Raises: TransientError; StorageError.
        """
        version = version or self._request_version()
        size = self._size(version) if version else None
        if size is None or not start < size:
            return self._source.get(start, end, version)
        end = size if end is None else min(end, size)
        return Reply(_Chunks(self._read(start, end, size, version)), start, end - start, size, version)

    def _request_version(self) -> str:
        """Return the version of the object, by a request for its first byte; "" without versions, ranges or a size.

        Keeps the size for `_size`. Raises: TransientError; StorageError.
        """
        reply = self._source.get(0, 1, "")
        try:
            if reply.size is None or reply.length != min(reply.size, 1):
                return ""
            while reply.body.read(1):  # to its end, so that the connection is used again
                pass
        finally:
            reply.body.close()
        self._sizes[reply.version] = reply.size
        return reply.version

    def _size(self, version: str) -> int | None:
        """Return the size in bytes of this *version*, as the cache or the server says; None if neither tells it.

        Raises: TransientError; StorageError.
        """
        if version not in self._sizes and (
            about := _read_description(self._cache.entry(drop_commit(self.url), version))
        ):
            self._sizes[version] = about["size"]
        if version not in self._sizes:
            self._request_version()
        return self._sizes.get(version)

    def _read(self, start: int, end: int, size: int, version: str) -> Iterator[memoryview]:
        """Yield the bytes *start* to *end* of this *version*, which has *size* bytes, up to a block at a time.

        Raises: StorageError.
        """
        folder = self._cache.entry(drop_commit(self.url), version)
        entry = _Entry(self._source, self._cache, folder, size, version)
        number, last = start // CACHE_BLOCK_BYTES, -(-end // CACHE_BLOCK_BYTES)
        while number < last:
            is_hit, blocks = entry.blocks(number, min(number + BLOCKS_IN_REQUEST, last))
            for block in blocks:
                part = block[
                    max(start - number * CACHE_BLOCK_BYTES, 0) : min(
                        end - number * CACHE_BLOCK_BYTES, CACHE_BLOCK_BYTES
                    )
                ]
                _count(hit_size=len(part) * is_hit)
                yield part
                number += 1


class _Entry(NamedTuple):
    """One *version* of the object *source*, of *size* bytes, whose blocks are in *folder* of *cache*."""

    source: Object
    cache: Cache
    folder: str
    size: int
    version: str

    def blocks(self, first: int, last: int) -> tuple[bool, list[memoryview]]:
        """Return (True, [the cached block *first*]), or (False, blocks from number *first* on, fetched by one request).

        Fetched blocks end before number *last*, a cached block, or a block that another process fetches, and are stored
        if there is room. Each is its data without the checksum: CACHE_BLOCK_BYTES, fewer at the end of the object.
        A block *first* that another process fetches is waited for. Raises: StorageError.
        """
        block = self._block_or_lock(first, wait=True)
        assert block is not None
        if isinstance(block, memoryview):
            return True, [block]
        fds = [block]
        try:
            while first + len(fds) < last and isinstance(fd := self._block_or_lock(first + len(fds), wait=False), int):
                fds.append(fd)
            begin, end = first * CACHE_BLOCK_BYTES, min((first + len(fds)) * CACHE_BLOCK_BYTES, self.size)
            data = memoryview(bytearray(end - begin))
            source, part = Pinned(self.source, self.size, self.version), Range(begin, end, data, repeatable=True)
            for count in source.receive(part):
                _count(fetched_size=count)
            blocks = [data[place : place + CACHE_BLOCK_BYTES] for place in range(0, len(data), CACHE_BLOCK_BYTES)]
            for number, (fd, block) in enumerate(zip(fds, blocks, strict=True), first):
                self._store_block(fd, number, block)
            return False, blocks
        finally:
            for number, fd in enumerate(fds, first):
                _release(fd, f"{self.folder}/{number}.part")

    def _block_or_lock(self, number: int, *, wait: bool) -> memoryview | int | None:
        """Return the data of block *number* if it is cached, else the descriptor of its locked temporary file.

        The descriptor is -1 if nothing can be stored. If another process has the lock: with *wait* it waits for the
        block, at most the idle timeout, after which it returns -1; without *wait* it returns None.
        """
        path = f"{self.folder}/{number}"
        while (block := self._read_block(path, min(CACHE_BLOCK_BYTES, self.size - number * CACHE_BLOCK_BYTES))) is None:
            fd = self._lock(f"{path}.part", wait)
            if fd is None or fd < 0 or _is_at(fd, f"{path}.part"):
                return fd
            os.close(fd)  # its holder has finished: look again
        return block

    def _lock(self, path: str, wait: bool) -> int | None:
        """Return the descriptor of the temporary file *path*, made if it is missing, locked; -1 on any failure.

        If another process has the lock: with *wait* it waits at most the idle timeout, after which it returns -1;
        without *wait* it returns None. The file may be renamed or removed by then: the caller compares (`_is_at`).
        """
        try:
            if _read_description(self.folder) is None:  # also after one that was killed before it had written that
                self._make_folder()
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1
        until = time.monotonic() + timeouts().idle * wait
        with ExitStack() as failed:
            failed.callback(os.close, fd)
            with suppress(OSError):  # a file system without locks
                while True:
                    with suppress(BlockingIOError):
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        failed.pop_all()
                        return fd
                    if time.monotonic() >= until:  # its holder hangs
                        return -1 if wait else None
                    time.sleep(FETCH_POLL_SECONDS)
        return -1

    def _make_folder(self) -> None:
        """Make the folder of the entry, with a file that describes the object. Raises: OSError."""
        os.makedirs(self.cache.folder, mode=0o700, exist_ok=True)  # those below are not seen by others
        os.makedirs(self.folder, exist_ok=True)
        about = {"url": redacted(drop_commit(self.source.url)), "version": self.version, "size": self.size}
        path = os.path.join(self.folder, f"object.json.{threading.get_native_id()}")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(about, file)
        os.rename(path, os.path.join(self.folder, "object.json"))

    def _read_block(self, path: str, length: int) -> memoryview | None:
        """Return the data, *length* bytes, of the block in the file *path*; None if it is missing or can't be read.

        Sets its mtime, which is the time of the last read. A damaged block counts as missing, and is removed.
        """
        try:
            with open(path, "rb", buffering=0) as file:
                data = memoryview(file.readall())
                with suppress(OSError):
                    os.utime(file.fileno())
        except OSError:
            return None
        if len(data) == length + CHECKSUM.size and CHECKSUM.pack(_checksum(data[:length])) == data[length:]:
            return data[:length]
        with suppress(OSError):
            os.unlink(path)
        return None

    def _store_block(self, fd: int, number: int, block: memoryview) -> None:
        """Write *block* with its checksum into the temporary file *fd*, and rename that to *number*, if there is room.

        Does nothing if *fd* is -1. Errors are ignored: then the block is not stored.
        """
        path = f"{self.folder}/{number}"
        with suppress(OSError):  # a full disk, a folder that was removed
            if fd < 0 or not self.cache.reserve(len(block) + CHECKSUM.size):
                return
            os.ftruncate(fd, 0)
            if os.writev(fd, [block, CHECKSUM.pack(_checksum(block))]) == len(block) + CHECKSUM.size:
                os.rename(f"{path}.part", path)
                _count(stored_size=len(block))


def _release(fd: int, path: str) -> None:
    """Unlock and close the temporary file *fd*; remove it if it is still at *path*, that is, was not renamed.

    Does nothing if *fd* is -1.
    """
    if fd >= 0:
        with suppress(OSError):
            if _is_at(fd, path):
                os.unlink(path)
        unlock(fd)


class _Chunks(Body):
    """The bytes of *chunks* as the body of a reply; each read returns bytes of one chunk."""

    def __init__(self, chunks: Iterator[memoryview]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def read(self, max_bytes: int, /) -> bytes:
        """Return up to *max_bytes* bytes, b"" at the end. Raises: the errors of *chunks*."""
        return bytes(self._next(max_bytes))

    def readinto(self, buffer: memoryview, /) -> int:
        """Read up to `len(buffer)` bytes into *buffer*; return how many, 0 at the end. Raises: errors of *chunks*."""
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, max_bytes: int) -> memoryview:
        """Return up to *max_bytes* bytes of the current chunk, then of the next one; empty at the end of all."""
        self._rest = self._rest or next(self._chunks, memoryview(b""))
        data, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        return data

    def close(self) -> None:
        """Drop the remaining chunks."""
        self._chunks = iter(())


def _is_at(fd: int, path: str) -> bool:
    """True if *path* still is the open file *fd*; False if it is another file, or does not exist."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except OSError:
        return False


def _checksum(data: memoryview) -> int:
    """Return the CRC-32 of *data*."""
    from isal import isal_zlib

    return isal_zlib.crc32(data)
