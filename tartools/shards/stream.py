"""The tar stream of one shard: opened, counted, decompressed, and in commands read by a forked process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tartools import storage
from tartools.errors import TarToolsError
from tartools.samples.account import Account
from tartools.storage.streams import Input, Stream, check_unchanged, skip
from tartools.tables import schema
from tartools.tar import compression
from tartools.tar.compression import Pushed, StoredBytes

if TYPE_CHECKING:
    from tartools.shards.forked import ForkedStream


class ShardStream:
    """The tar stream of the shard *url*. The only place that counts the bytes that are read, in *account*.

    While it is open, *account* watches that a file does not change.

    With *forks*, *forked* is the stream of a process that reads the shard, or will once that pays; else it is None.
    *opened* has its bytes, if they are not to be read from *url*.

    Raises StorageError if the shard can't be opened.
    """

    def __init__(self, url: str, account: Account, forks: bool = False, opened: Input | None = None) -> None:
        self._input: Input | None = opened or storage.open_read(url)
        self._stored: StoredBytes | None = StoredBytes(self._input)
        self._account = account
        self._counted = 0  # of the stored bytes
        self._ended = False  # the stream was read to its end, where its input has checked itself
        self.forked: ForkedStream | None = None
        try:
            stream = compression.decompressed(self._stored, url)
        except BaseException:
            self._input.close()
            raise
        fileno = getattr(self._input, "fileno", None)  # remote objects have no descriptor
        if forks and stream.file is None and fileno is not None:
            from tartools.shards.forked import ForkedStream  # most inputs are plain files

            stream = self.forked = ForkedStream(stream, self._stored, fileno(), url)
        self._stream: Stream | None = stream
        self.file, self.start = stream.file, stream.start
        self._failure: TarToolsError | None = None  # it was closed before its end, and had changed
        account.watched.append(self.check)

    @property
    def compressed(self) -> bool:
        """Whether the shard, of which something was read, is compressed."""
        return self._stored is not None and compression.is_compressed(self._stored.head)

    def is_table(self) -> bool:
        """Tell whether this is a table in place of a tar stream, whose bytes are read as they are stored.

        To be called before anything was read. Raises what reading raises.
        """
        assert self._stream is not None and self._stored is not None
        if self.file is not None:
            return compression.head_of(self.file, self.start).startswith(schema.MAGIC)
        self._stream = Pushed(self._stream, compression.first_bytes(self._stream, len(schema.MAGIC)))
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
        assert self._stream is not None
        count = self._stream.readinto(view)
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
        assert self._stream is not None
        skip(self._stream, count)
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
        if self.forked is not None:
            self.forked.close()  # before the input, or a command that writes on would get no SIGPIPE
        if self._input is not None:
            try:
                if not self._ended:
                    self.check()
                self._account.watched.remove(self.check)
            except TarToolsError as error:
                self._failure = error
            self._input.close()
        self.file = self._input = self._stored = self._stream = self.forked = None  # all that samples keep is this
