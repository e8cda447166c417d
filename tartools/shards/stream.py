"""The tar stream of one shard: opened, counted, decompressed, and in commands read by a forked process."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from tartools import storage
from tartools.errors import TarToolsError
from tartools.samples.account import Account
from tartools.storage.streams import Input, Stream, check_unchanged, skip
from tartools.tables import schema
from tartools.tar import compression
from tartools.tar.compression import Decompressed, StoredBytes

if TYPE_CHECKING:
    from tartools.shards.forks import ForkedStream


class ShardStream:
    """The tar stream of the shard *url*. The only place that counts the bytes that are read, in *account*.

    While it is open, *account* watches that a file does not change.

    With *forks*, a forked process reads the shard once that pays. *opened* has its bytes, if they are not to be read
    from *url*.

    Raises StorageError if the shard can't be opened.
    """

    compressed = False  # as far as something was read

    def __init__(self, url: str, account: Account, forks: bool = False, opened: Input | None = None) -> None:
        self._input: Input | None = opened or storage.open_read(url)
        self._stored: StoredBytes | None = StoredBytes(self._input)
        self._url = url
        self._forks = forks
        self._account = account
        self._counted = 0  # of the stored bytes
        self._ended = False  # the stream was read to its end, where its input has checked itself
        self._stream: Stream | None = None  # the bytes of the tar, once the first bytes tell what the shard is
        self._forked: ForkedStream | None = None
        self.file: io.FileIO | None = None
        self.start = 0
        if self._input.file is not None:  # which can be looked into without waiting
            try:
                stream = self._opened()
            except BaseException:
                self._input.close()
                raise
            self.file, self.start = stream.file, stream.start
        self._failure: TarToolsError | None = None  # it was closed before its end, and had changed
        account.watched.append(self.check)

    def _opened(self) -> Stream:
        """Return the bytes of the tar: decompressed, and by a forked process where it may fork and has a descriptor."""
        if self._stream is not None:
            return self._stream
        assert self._stored is not None
        self._stream = compression.decompressed(self._stored, self._url)
        self.compressed = isinstance(self._stream, Decompressed)
        fileno = getattr(self._input, "fileno", None)  # remote objects have no descriptor
        if self._forks and self.compressed and fileno is not None:
            from tartools.shards.forks import ForkedStream  # most inputs are plain files

            self._stream = self._forked = ForkedStream(self._stream, self._stored, fileno(), self._url)
        return self._stream

    def is_table(self) -> bool:
        """Tell whether this is a table in place of a tar stream, whose bytes are read as they are stored.

        To be called before anything was read. Raises what reading raises.
        """
        if self.file is not None:
            return compression.head_of(self.file, self.start).startswith(schema.MAGIC)
        self._opened()
        assert self._stored is not None
        return self._stored.head.startswith(schema.MAGIC)

    @property
    def framed(self) -> bool:
        """Whether the end of what is read is known to be the end of the shard: see `streams.check_whole`."""
        return bool(getattr(self._input, "framed", True))

    def start_at(self, begin: int) -> None:
        """Move to byte *begin* of a plain file that has not been read yet. What is before does not count as read."""
        assert self._input is not None
        skip(self._input, begin)

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; 0 at the end."""
        count = self._opened().readinto(view)
        self._count(count)
        self._ended = not count
        return count

    def check(self) -> None:
        """Raise StorageError if the shard is a file that has changed since it was opened."""
        if self._failure is not None:
            raise self._failure
        if self._input is not None:
            check_unchanged(self._input.file)

    def skip(self, count: int, /) -> None:
        """Skip *count* bytes of a plain file, which count as read."""
        skip(self._opened(), count)
        self._count(count)

    def _count(self, unpacked: int) -> None:
        assert self._stored is not None
        stored = self._stored.count
        self._account.bytes_in += stored - self._counted
        self._account.unpacked += unpacked
        self._counted = stored

    def cancel(self) -> bool:
        """Make another thread's `readinto` return soon; tell whether that is possible."""
        opened = self._input
        return opened is None or opened.cancel()

    def close(self) -> None:
        """Stop reading. Views of what was read stay valid; `file` is None from now on.

        If it was not read to its end, and has changed, the account goes on watching it: that is its failure.
        """
        if self._forked is not None:
            self._forked.close()  # before the input, or a command that writes on would get no SIGPIPE
        if self._input is not None:
            try:
                if not self._ended:
                    self.check()
                self._account.watched.remove(self.check)
            except TarToolsError as error:
                self._failure = error
            self._input.close()
        self.file = self._input = self._stored = self._stream = self._forked = None  # all that samples keep is this
