"""Inputs that are read more than once: those that can be read only once are copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tartools import storage
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch
from tartools.shards.reading import Reading, check_shards, one_by_one, shard_batches
from tartools.shards.stream import ShardStream
from tartools.storage.copies import Copy


class Twice:
    """The samples of *urls*, any number of times. Stdin and commands are read now, to the temporary directory.

    The progress of that is shown in *account*. *copied* tells whether there were any: other processes can't read these.
    Raises: StorageError.
    """

    def __init__(self, urls: Sequence[str], reading: Reading, account: Account) -> None:
        storage.check_inputs(urls)
        self.urls = urls
        copying = Account()
        account.phase = Phase("copying", account=copying)

        def count_copied(count: int) -> None:
            copying.bytes_in += count

        once = {at: url for at, url in enumerate(urls) if not storage.is_repeatable(url)}
        self._copies = {at: Copy(url, reading.tmpdir, count_copied) for at, url in once.items()}
        self.copied = bool(self._copies)

    def batches(self, urls: Sequence[str], account: Account, reading: Reading) -> Iterator[Batch]:
        """Return the samples of *urls*, which are those given before, in batches: see `reading.read_batches`."""
        check_shards(urls, account)
        return one_by_one(self._shard(at, url, account, reading) for at, url in enumerate(urls))

    def _shard(self, at: int, url: str, account: Account, reading: Reading) -> Iterator[Batch]:
        copied = self._copies[at].open() if at in self._copies else None
        return shard_batches(url, account, reading, ShardStream(url, account, reading.forks, copied))
