"""How tardedup reads samples: what is compared of each, and any of them again."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tartools.commands._twice import Twice
from tartools.errors import SampleError, StorageError, TarToolsError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch, Sample
from tartools.samples.values import blanks, field_list
from tartools.shards.gathering import gather
from tartools.shards.reading import Reading, closing_upstream, one_by_one
from tartools.stages.duplicates import exact
from tartools.stages.sorting.externalsort import Spool, pack_blocks, records_of
from tartools.storage.url import Url
from tartools.tar import Member
from tartools.tar.compression import is_table_name

if TYPE_CHECKING:
    from tartools.tables.inputs import Inputs

CHANGED = "changed while it was read; start again when nothing writes to it"


class Comparison(NamedTuple):
    """What is compared: the pictures of the field *near*, or the payloads of fields *by*, or all fields.

    Each is a tuple of alternatives. With *lenient*, a sample that lacks them is like none.
    """

    by: Sequence[tuple[str, ...]] = ()
    near: tuple[str, ...] | None = None
    distance: int = 0
    largest: bool = False
    lenient: bool = False

    def contents(self, batch: Batch) -> list[bytes]:
        """Return what is compared of each sample of *batch*, packed; empty for one that lacks it.

        Raises: SampleError for the first that lacks it, unless *lenient*.
        """
        if self.near is not None:
            return list(map(self.picture, batch))
        found = exact.field_digests(batch, self.members) if self.by else exact.whole_digests(batch)
        sizes = (sample.size.to_bytes(exact.NUMBER, "big") for sample in batch)
        return [digest and digest + size for digest, size in zip(found, sizes, strict=True)]

    def members(self, sample: Sample) -> list[Member] | None:
        """Return the members of *sample* that are compared, None if it lacks one. Raises: see `contents`."""
        found = []
        for choices in self.by or ((self.near,) if self.near else ()):
            member = next(filter(None, map(sample.member, choices)), None)
            if member is None:
                if self.lenient:
                    return None
                name = ";".join(choices)
                raise SampleError(
                    f"sample {sample.key!r} has no {name!r} to compare{blanks(name)}; its fields are: "
                    f"{field_list(sample.fields)}; --keep-uncompared keeps such samples",
                    url=sample.shard,
                )
            found.append(member)
        return found

    def picture(self, sample: Sample) -> bytes:
        """Return hash, colours and pixels of the picture of *sample*, packed; empty if it has none that decodes."""
        from tartools.show import decoding
        from tartools.stages.duplicates.hashes import CONTENT

        found = self.members(sample)
        if found is None:
            return b""
        try:
            return CONTENT.pack(*decoding.likeness(found[0]))
        except (TarToolsError, MemoryError):
            raise
        except Exception as error:  # each format has its own
            if self.lenient:
                return b""
            raise SampleError(
                f"sample {sample.key!r}: the picture {';'.join(self.near or ())!r} can't be compared: "
                f"{decoding.reason(error)}; --keep-uncompared keeps such samples",
                url=sample.shard,
            ) from None

    @property
    def columns(self) -> list[str] | None:
        """The columns of a table that say the same; None if none can."""
        if self.near is None:
            return [f"{name}.blake2b" for choices in self.by for name in choices] or None
        if len(self.near) > 1:
            return None  # null is a picture that is broken, or one that is not there
        (name,) = self.near
        return [f"{name}.dhash", *((f"{name}.width", f"{name}.height") if self.largest else ())]


class Side:
    """The samples of *urls*, read several times. *rows* are those of tables, if columns answer or a table is written.

    *names* get shard and key of each sample, if they are wanted. *without* counts those that lack what is compared.
    """

    def __init__(self, number: int, urls: Sequence[str], reading: Reading, account: Account, most: int) -> None:
        self.number = number
        self.reading = reading
        self.most = most
        self.inputs = Twice(urls, reading, account)
        self.urls = urls
        self.rows: Inputs | None = None
        self.names: Spool | None = None
        self.samples = self.without = 0
        self._versions = self._looked()

    def _looked(self) -> dict[str, str | None]:
        """Return the versions of what will be read again, by URL."""
        from tartools.storage import is_repeatable

        again = [url for url in self.urls if is_repeatable(url) and not Url(url).read_command]
        again = [url for url in again if Url(url).is_local or Url(url).is_stored]
        if all(Url(url).is_local for url in again):
            from tartools.storage.version import look

            return {url: look(url).version for url in again}
        from tartools.shards.listing import looks

        return {url: found.version for url, found in looks(again).items()}

    def check(self, samples: int) -> None:
        """Raise StorageError if the inputs have changed since they were compared, or if these are not all *samples*."""
        for url, version in self._looked().items():
            if version != self._versions[url]:
                raise StorageError(CHANGED, url=url)
        if samples != self.samples:
            raise StorageError(f"the input has changed: it had {self.samples} samples, now {samples}")

    def listed(self, account: Account) -> Inputs:
        """Return the rows of the samples: of tables, and of shards, which are indexed."""
        from tartools.shards import listing

        if self.rows is None:
            indexing = listing.Indexing(self.reading._replace(forks=False), self.most)
            self.rows = listing.listed(self.urls, account, indexing)
        return self.rows

    def has_columns(self, comparison: Comparison) -> bool:
        """Tell whether these are tables, whose columns say what is compared."""
        wanted = comparison.columns
        if wanted is None or self.inputs.copied or not self.urls or not all(map(is_table_name, self.urls)):
            return False
        from tartools.shards.listing import looks
        from tartools.tables import schema, source

        if any(found.first != schema.MAGIC for found in looks(self.urls).values()):
            return False
        for url in self.urls:
            with source.opened(url) as table:
                if not {schema.KEY, *wanted} <= {*table.names}:
                    return False
        return True

    def contents(self, comparison: Comparison, account: Account) -> Iterator[bytes]:
        """Yield what is compared of each sample, packed: see `Comparison.contents`. Keeps the names, if wanted."""
        named = self.names is not None

        def work(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, None]:
            yield from pack_blocks(self._records(batches, comparison, account, named))

        account.phase = Phase("comparing")
        if self.inputs.copied:
            blocks = work(self.inputs.batches(account, self.reading), 0, False)
        else:
            blocks = gather(self.urls, account, self.reading, work, lambda _: None, most=self.most)
        for record in records_of(blocks):
            end = 1 + record[0]
            self.add(record[1:end], record[end:])
            yield record[1:end]
        account.check()

    def add(self, content: bytes, name: bytes) -> None:
        """Count a sample, and keep its *name*, if names are wanted."""
        self.samples += 1
        self.without += not content
        if self.names is not None:
            self.names.add(name)

    @staticmethod
    def _records(batches: Iterator[Batch], comparison: Comparison, account: Account, named: bool) -> Iterator[bytes]:
        """Yield a record of each sample: the length of its content, the content, and its name if it is *named*."""
        with closing_upstream(batches):
            for batch in batches:
                contents = comparison.contents(batch)
                account.samples_in += len(batch)
                account.samples_out += len(batch)
                if not named:
                    yield from (bytes([len(content)]) + content for content in contents)
                    continue
                for content, sample in zip(contents, batch, strict=True):
                    yield bytes([len(content)]) + content + name_of(sample.shard, sample.raw_key)

    def samples_at(self, positions: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples at *positions*, which ascend, owned. Reads no further than the last."""
        again = Account(lambda _: None)  # all has been said before
        if not positions:
            return
        if self.rows is not None:
            from tartools.shards.listing import samples_at

            batches = samples_at(self.rows, positions, again, self.reading._replace(forks=False))
            with closing_upstream(batches):
                yield from (sample.own() for sample in one_by_one(map(iter, batches)))
            return
        batches = self.inputs.batches(again, self.reading._replace(ranges=True))
        first, wanted = 0, iter(positions)
        position = next(wanted)
        with closing_upstream(batches):
            for batch in batches:
                while position < first + len(batch):
                    yield batch[position - first].own()
                    position = next(wanted, -1)
                    if position < 0:
                        return
                first += len(batch)
        raise StorageError("the input has changed: it has fewer samples now")


def name_of(shard: str, key: bytes) -> bytes:
    """Return shard and key of a sample as bytes."""
    return shard.encode("utf-8", "surrogateescape") + b"\0" + key


def check_listable(urls: Sequence[str]) -> None:
    """Raise UsageError if a table can't list the samples of *urls*, StorageError without pyarrow."""
    from tartools.shards.listing import check_stored
    from tartools.tables import schema

    schema.check_installed()
    check_stored(urls)
