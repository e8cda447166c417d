"""How tardedup finds the samples that are left out: what is compared comes from columns, or else from samples."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools.errors import SampleError, StorageError, TarToolsError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch, Sample
from tartools.samples.values import blanks, field_list
from tartools.shards.dataset import DataSet
from tartools.shards.reading import closing_upstream, one_by_one
from tartools.stages.duplicates import exact
from tartools.stages.duplicates.pairs import AGAINST, INPUT
from tartools.stages.sorting.externalsort import Spool, pack_blocks, records_of
from tartools.tables import schema
from tartools.tar import Member

if TYPE_CHECKING:
    from tartools.tables.inputs import RowInputs


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
        sides = (f"{name}.width", f"{name}.height") if self.largest else ()
        return [f"{name}.dhash", f"{name}.colours", *sides]


class DedupSide:
    """The samples of *data*, compared once and read again.

    *names* get shard and key of each sample, if they are wanted. *without* counts those that lack what is compared.
    """

    def __init__(self, number: int, data: DataSet) -> None:
        self.number = number
        self.data = data
        self.names: Spool | None = None
        self.samples = self.without = 0

    def contents(self, comparison: Comparison, account: Account) -> Iterator[bytes]:
        """Yield what is compared of each sample, packed: see `Comparison.contents`. Keeps the names, if wanted.

        It comes from columns where they say it, else from the samples, which are counted in *account*.
        """
        self.data.keep()
        columns = comparison.columns
        account.phase = Phase("comparing")
        if columns is not None and not self.data.copied and self.data.has_columns([schema.KEY, *columns]):
            yield from self._from_columns(comparison, columns)
        else:
            yield from self._from_samples(comparison, account)
        self.data.samples = self.samples

    def _from_samples(self, comparison: Comparison, account: Account) -> Iterator[bytes]:
        named = self.names is not None

        def work(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, None]:
            yield from pack_blocks(self._records(batches, comparison, account, named))

        for record in records_of(self.data.gather(work, lambda _: None, account, most=self.data.most)):
            end = 1 + record[0]
            self._add(record[1:end], record[end:])
            yield record[1:end]
        account.check()

    def _from_columns(self, comparison: Comparison, columns: Sequence[str]) -> Iterator[bytes]:
        """Raises: SampleError for the first sample that lacks what is compared, unless that is allowed."""
        inputs, url = self.data.rows(), self.data.urls[0]
        for rows in inputs.batches([schema.SHARD, schema.KEY, schema.BEGIN, schema.END, *columns]):
            found = (digests if comparison.near is None else hashes)(rows, comparison, url)
            for content, name in zip(found, self._names_of(rows, inputs), strict=True):
                if not content and not comparison.lenient:
                    for sample in self.data.samples_at([self.samples]):
                        comparison.contents(Batch.of(sample))
                    why = f"row {self.samples} has no value in {' '.join(columns)}; tarindex makes the table again"
                    raise StorageError(why, url=url)
                self._add(content, name)
                yield content

    def _names_of(self, rows: Any, inputs: RowInputs) -> Iterable[bytes]:
        if self.names is None:
            return repeat(b"", len(rows))
        keys = schema.raw(rows.column(schema.KEY)).to_pylist()
        shards = [inputs.shards.url(number) for number in rows.column(schema.SHARD).to_pylist()]
        return [name_of(shard, key or b"") for shard, key in zip(shards, keys, strict=True)]

    def _add(self, content: bytes, name: bytes) -> None:
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


def name_of(shard: str, key: bytes) -> bytes:
    """Return shard and key of a sample as bytes."""
    return shard.encode("utf-8", "surrogateescape") + b"\0" + key


def find(
    sides: Sequence[DedupSide], comparison: Comparison, account: Account, sort: Callable[..., Iterator[bytes]]
) -> Iterator[bytes]:
    """Yield a record for each sample of the last of *sides* that is left out, by position: see `pairs.Pair`."""
    if comparison.near is None:
        records = one_by_one(
            exact.records(contents_of(side, comparison, account), side.number, comparison.largest) for side in sides
        )
        yield from sort(exact.repeats(sort(records)))
        return
    from tartools.stages.duplicates.hashes import Hashes

    found = Hashes()
    for side in sides:
        if side.number == INPUT:
            found.end_against()
        for content in contents_of(side, comparison, account):
            found.add(content)
    yield from found.pairs(comparison.distance, comparison.largest)


def contents_of(side: DedupSide, comparison: Comparison, account: Account) -> Iterator[bytes]:
    """Return what is compared of each sample of *side*.

    *account* gets what is to be said of samples that are only compared with.
    """
    told = side.data.account if side.number == AGAINST else Account(lambda _: None)
    account.phase = Phase("comparing", account=told)
    yield from side.contents(comparison, told)
    if side.number == AGAINST:
        account.omissions += told.omissions


def digests(rows: Any, comparison: Comparison, url: str) -> Iterator[bytes]:
    """Yield digest and size of each of *rows*, packed; empty where a field is missing."""
    columns = {name: rows.column(name).to_pylist() for name in comparison.columns or ()}
    values = {value for column in columns.values() for value in column} - {None}
    if not all(isinstance(value, bytes) and len(value) == exact.DIGEST for value in values):
        raise StorageError(f"not all values of {' '.join(columns)} are digests of {exact.DIGEST} bytes", url=url)
    ends, begins = (rows.column(name).to_pylist() for name in (schema.END, schema.BEGIN))
    for number in range(len(rows)):
        found = [
            next((value for name in choices if (value := columns[f"{name}.blake2b"][number]) is not None), None)
            for choices in comparison.by
        ]
        known = [digest for digest in found if digest is not None]
        size = (ends[number] - begins[number]).to_bytes(exact.NUMBER, "big")
        yield exact.joined(known) + size if len(known) == len(found) else b""


def hashes(rows: Any, comparison: Comparison, url: str) -> Iterator[bytes]:
    """Yield hash, colours and pixels of each of *rows*, packed; empty where there are none."""
    from tartools.stages.duplicates.hashes import CONTENT
    from tartools.stages.duplicates.near import COLOURS

    found, colours, *sides = (rows.column(name).to_pylist() for name in comparison.columns or ())
    widths, heights = sides or ([1] * len(rows),) * 2
    if not all(isinstance(value, int) and 0 <= value < 1 << 64 for value in found if value is not None):
        raise StorageError(f"not all values of {comparison.columns} are hashes of 64 bits", url=url)
    if not all(isinstance(value, bytes) and len(value) == COLOURS for value in colours if value is not None):
        raise StorageError(f"not all values of {comparison.columns} are colours of {COLOURS} bytes", url=url)
    for value, means, width, height in zip(found, colours, widths, heights, strict=True):
        known = value is not None and means is not None and bool(width) and bool(height)
        yield CONTENT.pack(value, means, width * height) if known else b""
