"""The second data set of tarjoin as shards and tables of samples: to keys and where their samples are."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import pairwise

from tartools import tar
from tartools.errors import SampleError, TarFormatError
from tartools.samples.account import Account
from tartools.samples.columnfields import ChosenColumns
from tartools.samples.sample import Batch, join_path
from tartools.samples.values import blanks, field_list
from tartools.shards.reading import Reading, closing_upstream, read_batches
from tartools.stages.sorting.records import LOCATION, Entry
from tartools.stages.sorting.samplefiles import SampleFiles, reopened
from tartools.tar import Member
from tartools.tar.compression import split_suffix


class SecondShards:
    """B is shards and tables of samples, *urls*. Those that are not in plain local files go to a temporary file."""

    def __init__(
        self,
        urls: Sequence[str],
        words: Sequence[object] | None,
        chosen: ChosenColumns,
        account: Account,
        reading: Reading,
    ) -> None:
        self._urls = urls
        self._account = account
        self._reading = reading._replace(ranges=True)
        self._chosen = chosen
        self._keys_alone = words is not None and not words
        self._files = SampleFiles(reopened, reading.tmpdir)
        self._fields: dict[tuple[str, ...], list[tuple[int, bytes]]] = {}  # of samples with these: which, for which

    def batches(self) -> Generator[tuple[Sequence[bytes], Sequence[bytes]], None, None]:
        """Yield the keys of adjacent samples, and where these are."""
        account = self._account
        with closing_upstream(found := read_batches(self._urls, account, self._reading)):
            for batch in self._explained(found):
                if self._keys_alone:
                    yield batch.keys, [b""] * len(batch)
                else:
                    yield batch.keys, self._places(batch)
        account.check()

    def _explained(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches*; if B begins with no shard, by its name neither, the failure says how to read it as rows."""
        read = False
        try:
            for batch in batches:
                read = True
                yield batch
        except TarFormatError as error:
            if read or split_suffix(error.url)[1]:
                raise
            help = f"{error.message} (--format tsv, csv or jsonl reads B as rows)"
            raise TarFormatError(help, url=error.url, offset=error.offset) from error

    def _places(self, batch: Batch) -> list[bytes]:
        """Return where the samples of *batch* are: in plain files, or copied to a temporary one."""
        where = self._files.location_of(batch)
        if where is None or batch.groups is None:
            found = [self._files.store(sample) for sample in batch]
            return [LOCATION.pack(start, end, shard, 0, flags) for start, end, shard, flags in found]
        starts, (shard, shift) = batch.groups.starts, where
        return [LOCATION.pack(start + shift, end + shift, shard, 0, 0) for start, end in pairwise(starts)]

    def single(self) -> bytes | None:
        """Return None: what `batches` yields is no payload."""
        return None

    def members(self, key: bytes, found: bytes) -> list[Member]:
        """Return the members that are added, for what `batches` yields. Raises: SampleError for one field twice."""
        start, end, shard, _, flags = LOCATION.unpack(found)
        sample = self._files.sample(Entry(b"", key, start, end, shard, flags))
        members, names = sample.members, sample.fields
        if names not in self._fields:
            if len(set(names)) < len(names):
                what = f"sample {sample.key!r} has a field twice; its fields are: {field_list(names)}"
                raise SampleError(what, url=sample.shard)
            try:
                chosen = self._chosen.of({name: number for number, name in enumerate(names)})
            except SampleError as error:
                raise SampleError(f"sample {sample.key!r}: {error.message}", url=sample.shard) from None
            self._fields[names] = [(at, name.encode("utf-8", "surrogateescape")) for at, name in sorted(chosen)]
        return [tar.renamed(members[at], join_path(key, field)) for at, field in self._fields[names]]

    def check(self) -> None:
        """Raise SampleError if no sample had a field that was asked for; StorageError if a file has changed."""
        self._files.check()
        seen = list(dict.fromkeys(name for names in self._fields for name in names))
        if seen and (lost := " ".join(self._chosen.lost(seen))):
            raise SampleError(
                f"no sample of B that was joined had {lost}{blanks(lost)}; the fields: {field_list(seen)}"
            )
