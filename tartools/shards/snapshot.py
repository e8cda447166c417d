"""A record of the inputs, to compare a second reading with, so that it has the samples of the first.

Inputs that can be read only once (stdin, a pipe) are spooled: both readings get the copy. Others are read again: local
files and objects must have the versions that they had before, and all inputs together the same number of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tartools import storage
from tartools.errors import StorageError
from tartools.samples.account import Account, Phase
from tartools.storage.streams import Input
from tartools.storage.url import Url

if TYPE_CHECKING:
    from tartools.storage.scratch import Copy


class Snapshot:
    """The inputs *urls* as they are when `take` is called; `check` raises if they have changed since.

    Call `take` before the first reading, and `check` after the second; both readings get copied inputs from `open`.
    `tmpdir`: folder of the copies of inputs that can be read only once. `account`: shows the copying as a phase.
    `samples`: set by the caller: number of samples in the first reading; None if that is not known.
    """

    def __init__(self, urls: Sequence[str], tmpdir: str | None, account: Account) -> None:
        self.samples: int | None = None
        self._urls = urls
        self._tmpdir = tmpdir
        self._account = account
        self._copies: dict[int, Copy] = {}
        self._versions: dict[str, str | None] | None = None  # None: not taken

    @property
    def has_copies(self) -> bool:
        """True if `take` found inputs that can be read only once: only this process can read them again, by `open`."""
        return bool(self._copies)

    def take(self) -> None:
        """Copy inputs that can be read only once to temporary files; record the versions of files and objects.

        Only the first call does so. A regular file on stdin is kept open instead of copied. An archive that was split,
        and a URL that a `GOPEN_<SCHEME>` command reads, have no version. Sets the phase "copying" in the account's
        progress if an input can be read only once. Raises: StorageError if an input can't be read, or there is no room
        for a copy; UsageError for a URL that is no input, and for stdin that is named twice or a terminal.
        """
        if self._versions is not None:
            return
        from tartools.storage.checks import probe_all

        storage.check_inputs(self._urls)
        one_pass = {at: url for at, url in enumerate(self._urls) if not storage.is_repeatable(url)}
        seekable = [Url(url) for url in self._urls if storage.is_seekable(url)]
        versions = {url: probe.version for url, probe in probe_all(seekable).items()}
        if one_pass:
            from tartools.storage.scratch import Copy

            copying = Account()
            self._account.progress.phase = Phase("copying", account=copying)

            def count_copied(count: int) -> None:
                copying.bytes_in += count

            self._copies = {
                at: Copy(storage.open_read(url), url, self._tmpdir, count_copied) for at, url in one_pass.items()
            }
        self._versions = versions  # once there are copies: without them a second call would do nothing

    def open(self, at: int) -> Input | None:
        """Return the copy of input number *at* (index in `urls`), from its first byte on; None if it was not copied.

        The input that an earlier call returned for the same number may not be read any more.
        """
        return self._copies[at].open() if at in self._copies else None

    def check(self, samples: int | None = None) -> None:
        """Raise StorageError if an input has changed since `take`, or if *samples*, a count, is not `self.samples`.

        Changed: its version, if `take` recorded one, is another, or can't be found any more. Without `take`, versions
        are not compared; counts are compared only if neither is None.
        """
        if self._versions is not None:
            from tartools.storage.checks import check_unchanged

            check_unchanged(self._versions)
        if samples is not None and self.samples not in (None, samples):
            raise StorageError(f"the input has changed: it had {self.samples} samples, now {samples}")
