"""Which samples are left out because they are like others: equal, by digests of some fields or of all, or near.

What is compared comes from columns where a table has it, else from the samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, groupby, repeat, starmap
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from tartools import storage
from tartools.errors import StorageError, TarToolsError, shown
from tartools.formats.textrows import escape
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch, Sample, failure_of
from tartools.samples.values import blanks, field_list, payload_digests
from tartools.shards.dataset import DataSet
from tartools.shards.reading import counted
from tartools.stages.combinations import alike
from tartools.stages.duplicates import AGAINST, INPUT
from tartools.stages.externalsort import Spool, pack_blocks, records_of
from tartools.tables.listed import ListedBatch, TableColumns, keys_of
from tartools.tar import Member

DIGEST, NUMBER = 16, 8  # bytes
MOST = (1 << 8 * NUMBER) - 1
PAIR, KEPT = Struct(">QBQB"), Struct(">BQ")  # records of `Pair`; side and number of the kept one before such a record

Sort = Callable[[Iterable[bytes]], Iterator[bytes]]  # of any number of records


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

        It comes from columns where they say it, else from the samples.
        Raises: SampleError for the first that lacks it, unless *lenient*; StorageError for columns of no use.
        """
        told = self._told(batch.columns) if isinstance(batch, ListedBatch) and self.columns else None
        if told is None:
            return self._read(batch)
        if not self.lenient and b"" in told:
            assert isinstance(batch, ListedBatch)
            number = told.index(b"")
            self._read(Batch.of(batch[number]))
            why = f"row {batch.columns.first + number} has no value in {' '.join(self.columns)}"
            raise StorageError(f"{why}; tarindex makes the table again", url=batch.columns.url)
        return told

    def _read(self, batch: Batch) -> list[bytes]:
        """Return what is compared, as the samples of *batch* have it. Raises: see `contents`."""
        if self.near is not None:
            return list(map(self.picture, batch))
        each = (self.members(sample) for sample in batch) if self.by else ()
        found = [combined(payload_digests(m, DIGEST)) if m else b"" for m in each] if self.by else whole_digests(batch)
        sizes = (sample.size.to_bytes(NUMBER, "big") for sample in batch)
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
                raise failure_of(
                    sample,
                    f" has no {name!r} to compare{blanks(name)}; its fields are: {field_list(sample.fields)}; "
                    "--keep-uncompared keeps such samples",
                )
            found.append(member)
        return found

    def picture(self, sample: Sample) -> bytes:
        """Return hash, colours and pixels of the picture of *sample*, packed; empty if it has none that decodes."""
        from tartools.samples import decoding
        from tartools.stages.duplicates.near import CONTENT

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
            what = f": the picture {';'.join(self.near or ())!r} can't be compared: {decoding.reason(error)}"
            raise failure_of(sample, f"{what}; --keep-uncompared keeps such samples") from None

    @property
    def columns(self) -> list[str]:
        """The columns of a table that say the same; none if none can."""
        if self.near is None:
            return [f"{name}.blake2b" for choices in self.by for name in choices]
        if len(self.near) > 1:
            return []  # null is a picture that is broken, or one that is not there
        (name,) = self.near
        return [f"{name}.dhash", f"{name}.colours", f"{name}.width", f"{name}.height"]

    def _told(self, columns: TableColumns) -> list[bytes] | None:
        """Return what *columns* say of each row, packed; empty where a value is missing. None if they do not say."""
        found = {name: column for name in self.columns if (column := columns.column(name)) is not None}
        if len(found) < len(self.columns):
            return None
        values = {name: column.to_pylist() for name, column in found.items()}
        return self._hashes(values, columns.url) if self.near else self._digests(values, columns)

    def _digests(self, values: dict[str, list[Any]], columns: TableColumns) -> list[bytes]:
        every = {value for column in values.values() for value in column} - {None}
        if not all(isinstance(value, bytes) and len(value) == DIGEST for value in every):
            raise StorageError(f"not all values of {' '.join(values)} are digests of {DIGEST} bytes", url=columns.url)
        begins, ends = columns.piece.begins, columns.piece.ends
        found = []
        for number, size in enumerate((ends - begins).tolist()):
            known = (filter(None, (values[f"{name}.blake2b"][number] for name in choices)) for choices in self.by)
            digests = [next(digest, b"") for digest in known]
            found.append(b"" if b"" in digests else combined(digests) + size.to_bytes(NUMBER, "big"))
        return found

    def _hashes(self, values: dict[str, list[Any]], url: str) -> list[bytes]:
        from tartools.stages.duplicates.near import COLOURS, CONTENT

        hashes, colours, widths, heights = values.values()
        if not all(isinstance(value, int) and 0 <= value < 1 << 64 for value in hashes if value is not None):
            raise StorageError(f"not all values of {[*values]} are hashes of 64 bits", url=url)
        if not all(isinstance(value, bytes) and len(value) == COLOURS for value in colours if value is not None):
            raise StorageError(f"not all values of {[*values]} are colours of {COLOURS} bytes", url=url)
        return [
            CONTENT.pack(value, means, width, height)
            if value is not None and means is not None and width and height
            else b""
            for value, means, width, height in zip(hashes, colours, widths, heights, strict=True)
        ]


class DedupSide:
    """The samples of *data*, compared once and read again; the side *number*.

    *names* get shard and key of each sample, if they are wanted. *without* counts those that lack what is compared.
    """

    def __init__(self, number: int, data: DataSet) -> None:
        self.number = number
        self.data = data
        self.names: Spool | None = None
        self.samples = self.without = 0

    def contents(self, comparison: Comparison, account: Account) -> Iterator[bytes]:
        """Yield what is compared of each sample, packed: see `Comparison.contents`. Keeps the names, if wanted.

        *account* gets what is to be said of samples that are only compared with; the others are read again.
        """
        told = self.data.account if self.number == AGAINST else Account(lambda _: None)
        self.data.keep()
        account.progress.phase = Phase("comparing", account=told)
        named = self.names is not None

        def work(batches: Iterator[Batch], _number: int, _forked: bool) -> Generator[bytes, None, None]:
            yield from pack_blocks(_records(batches, comparison, told, named))

        for record in records_of(self.data.gather(work, lambda _: None, told, most=self.data.most)):
            end = 1 + record[0]
            self.samples += 1
            self.without += end == 1
            if self.names is not None:
                self.names.add(record[end:])
            yield record[1:end]
        told.check()
        self.data.samples = self.samples
        if self.number == AGAINST:
            account.omissions += told.omissions


def _records(batches: Iterator[Batch], comparison: Comparison, account: Account, named: bool) -> Iterator[bytes]:
    """Yield a record of each sample: the length of its content, the content, and its name if it is *named*."""
    for batch in counted(batches, account, done=True):
        names = _names(batch) if named else repeat(b"")
        for content, name in zip(comparison.contents(batch), names, strict=False):
            yield bytes([len(content)]) + content + name


def _names(batch: Batch) -> Iterator[bytes]:
    """Yield shard and key of each sample of *batch*, as bytes."""
    if isinstance(batch, ListedBatch) and batch.columns.values("__key__") is not None:
        urls, numbers = batch.columns.shards()
        shards = map(urls.__getitem__, numbers.tolist())
        found: Iterable[tuple[str, bytes]] = zip(shards, keys_of(batch), strict=True)
    else:
        found = ((sample.shard, sample.raw_key) for sample in batch)
    for shard, key in found:
        yield shard.encode("utf-8", "surrogateescape") + b"\0" + key


def find(
    sides: Sequence[DedupSide], comparison: Comparison, account: Account, sort: Callable[..., Iterator[bytes]]
) -> Iterator[bytes]:
    """Yield a record for each sample of the last of *sides* that is left out, by position: see `Pair`."""
    if comparison.near is None:
        found = (records(side.contents(comparison, account), side.number, comparison.largest) for side in sides)
        yield from sort(repeats(sort(chain.from_iterable(found))))
        return
    from tartools.stages.duplicates.near import near_pairs

    pictures = ((side.number, side.contents(comparison, account)) for side in sides)
    yield from starmap(PAIR.pack, near_pairs(pictures, comparison.distance, comparison.largest))


def whole_digests(batch: Batch) -> list[bytes]:
    """Return a digest of each sample of *batch*: of the names and payloads of its fields, in any order."""
    found = [b""] * len(batch)
    for numbers, _, fields, columns in alike(batch, DIGEST):
        names = b"".join(len(field).to_bytes(NUMBER, "big") + field for field in fields)
        for number, row in zip(numbers, zip(*columns, strict=True), strict=True):
            found[number] = blake2b(names + b"".join(row), digest_size=DIGEST).digest()
    return found


def combined(digests: Sequence[bytes]) -> bytes:
    """Return the digest of several payloads with these *digests*."""
    return digests[0] if len(digests) == 1 else blake2b(b"".join(digests), digest_size=DIGEST).digest()


def records(contents: Iterable[bytes], side: int, largest: bool) -> Iterator[bytes]:
    """Yield a record of each sample of *side*; *contents* are their digests, each with the size of the sample.

    Records sort by digest, then by preference: against, then, with *largest*, by size, then by position. An empty
    content is that of a sample that equals none.
    """
    for position, content in enumerate(contents):
        if content:
            size = int.from_bytes(content[DIGEST:], "big") if largest and side == INPUT else MOST
            rank = (MOST - size).to_bytes(NUMBER, "big")
            yield content[:DIGEST] + bytes([side]) + rank + position.to_bytes(NUMBER, "big")


def repeats(sorted_records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a pair for each sample of the input that equals one before it in *sorted_records*: that one is kept."""
    last, side, kept = b"", AGAINST, 0
    for record in sorted_records:
        position = int.from_bytes(record[-NUMBER:], "big")
        if record[:DIGEST] != last:
            last, side, kept = record[:DIGEST], record[DIGEST], position
        elif record[DIGEST] == INPUT:
            yield PAIR.pack(position, side, kept, 0)


# ---- pairs of a sample that is left out and the kept one that it is like ----


class Pair(NamedTuple):
    """Sample number *position* of the input is left out: it is like number *kept* of *side*, at this *distance*."""

    position: int
    side: int
    kept: int
    distance: int


def pair_of(record: bytes) -> Pair:
    """Return the pair whose record begins *record*."""
    return Pair(*PAIR.unpack_from(record))


def named(pairs: Iterable[bytes], names: Sequence[Iterable[bytes]], sort: Sort) -> Iterator[tuple[Pair, bytes, bytes]]:
    """Yield each of *pairs* with the name of the sample that is left out, and that of the kept one, in order.

    *names* are those of all samples of each side, in order. Memory: that of *sort*.
    """
    by_kept = sort(KEPT.pack(*pair_of(record)[1:3]) + record for record in pairs)
    places = enumerate(names[INPUT])
    for record in sort(_with_kept(by_kept, names)):
        pair = pair_of(record)
        yield pair, next(name for at, name in places if at == pair.position), record[PAIR.size :]


def _with_kept(by_kept: Iterable[bytes], names: Sequence[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the records *by_kept*, each with the name of the kept sample behind it."""
    for side, found in groupby(by_kept, itemgetter(0)):
        places = enumerate(names[side])
        for place, same in groupby(found, itemgetter(slice(KEPT.size))):
            kept = KEPT.unpack(place)[1]
            name = next(name for at, name in places if at == kept)
            yield from (record[KEPT.size :] + name for record in same)


def write_report(pairs: Iterable[bytes], names: Sequence[Iterable[bytes]], url: str, force: bool, sort: Sort) -> None:
    """Write a line for each of *pairs* to *url*, as TSV. *names* are those of all samples of each side, in order."""
    with storage.writing(url, force) as sink:
        sink.write(b"key\tshard\tkept_key\tkept_shard\tdistance\n")
        for pair, out, kept in named(pairs, names, sort):
            cells = [*key_and_shard(out), *key_and_shard(kept), str(pair.distance)]
            sink.write(("\t".join(cells) + "\n").encode("utf-8", "surrogateescape"))


def key_and_shard(name: bytes) -> list[str]:
    """Return key and shard of the sample with this *name*, escaped."""
    shard, _, key = name.partition(b"\0")
    return [escape(os.fsdecode(key)), escape(shown(os.fsdecode(shard)))]
