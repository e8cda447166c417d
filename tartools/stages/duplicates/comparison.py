"""Find duplicates: samples that equal others, by digests of some fields or of all, or whose pictures are near.

The compared contents come from table columns where they exist, else from the samples.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, repeat, starmap
from operator import itemgetter
from struct import Struct
from typing import Any, NamedTuple

from tartools import storage
from tartools.errors import StorageError, TarToolsError, shown
from tartools.formats.textrows import escape
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch, SampleColumns
from tartools.samples.digests import blake2b
from tartools.samples.sample import Sample, failure_of
from tartools.samples.values import missing_value_text, payload_digests
from tartools.shards.passes import Pass
from tartools.shards.reading import count_samples
from tartools.shards.workers import ShardTask, outputs
from tartools.stages.combinations import digest_columns
from tartools.stages.duplicates import AGAINST_SIDE, INPUT_SIDE
from tartools.stages.externalsort import Spool, pack_blocks, unpack_blocks
from tartools.tar import Member

VALUE_DIGEST_BYTES, POSITION_BYTES = 16, 8  # bytes
MAX_POSITION = (1 << 8 * POSITION_BYTES) - 1
# records of `Pair`; side and number of the kept one before such a record
PAIR_RECORD, KEPT_PREFIX = Struct(">QBQB"), Struct(">BQ")

Sort = Callable[[Iterable[bytes]], Iterator[bytes]]  # of any number of records


class Comparison(NamedTuple):
    """The basis on which samples are compared.

    `by`: fields whose payloads must be equal, each as a tuple of alternatives; if empty, and without *near*, all
    fields.
    `near`: field, as alternatives, whose pictures must look alike: hashes that differ in at most *distance* bits, and
    similar colours and shapes (see `near_pairs`); *by* is empty then. None: payloads are compared.
    `largest`: keep the one of like samples with most bytes (pictures: pixels), not the first. `lenient`: a sample that
    lacks one of the fields, or whose picture can't be decoded, is no duplicate; otherwise it is an error.
    """

    by: Sequence[tuple[str, ...]] = ()
    near: tuple[str, ...] | None = None
    distance: int = 0
    largest: bool = False
    lenient: bool = False

    def contents(self, batch: Batch) -> list[bytes]:
        """Return the packed content to compare of each sample of *batch*; b"" for a sample that lacks it.

        A sample lacks it if it lacks one of the fields, or if its picture is damaged or has too many pixels. A content
        is a digest of 16 bytes and the sample's size in 8, or hash, colours and sides of a picture (CONTENT_RECORD). It
        comes from table columns if all of `columns` exist, else from the samples.
        Raises: SampleError for the first sample that lacks it, unless *lenient*, and for two members of one name;
        StorageError if values in table columns are no digests, hashes or colours, or, unless *lenient*, one is missing
        that the sample has, and if a file has changed.
        """
        columns = batch.columns
        contents = self._column_contents(columns) if columns is not None and self.columns else None
        if contents is None or columns is None:
            return self._sample_contents(batch)
        if not self.lenient and b"" in contents:
            number = contents.index(b"")
            self._sample_contents(Batch.from_sample(batch[number]))
            why = f"row {columns.first + number} has no value in {' '.join(self.columns)}"
            raise StorageError(f"{why}; tarindex makes the table again", url=columns.url)
        return contents

    def _sample_contents(self, batch: Batch) -> list[bytes]:
        """Return the packed contents, computed from the samples of *batch*; b"" for one that lacks it, if *lenient*.

        Raises: SampleError for it otherwise, and for two members of one name; StorageError if a file has changed.
        """
        if self.near is not None:
            return list(map(self.picture_content, batch))
        members = (self.members(sample) for sample in batch) if self.by else ()
        digests = (
            [combine_digests(payload_digests(m, VALUE_DIGEST_BYTES)) if m else b"" for m in members]
            if self.by
            else digest_samples(batch)
        )
        sizes = (sample.size.to_bytes(POSITION_BYTES, "big") for sample in batch)
        return [digest and digest + size for digest, size in zip(digests, sizes, strict=True)]

    def members(self, sample: Sample) -> list[Member] | None:
        """Return the members of *sample* to compare: for each of *by* or for *near*, the first alternative that it has.

        If it lacks all alternatives of one of these: return None if *lenient*, else raise SampleError. [] if all fields
        are compared. Raises: SampleError, too, if two members match an alternative, even if *lenient*.
        """
        compared = []
        for choices in self.by or ((self.near,) if self.near else ()):
            member = next(filter(None, map(sample.member, choices)), None)
            if member is None:
                if self.lenient:
                    return None
                name = ";".join(choices)
                raise failure_of(
                    sample,
                    f" has no {name!r} to compare{missing_value_text(name, sample.fields)}; "
                    "--keep-uncompared keeps such samples",
                )
            compared.append(member)
        return compared

    def picture_content(self, sample: Sample) -> bytes:
        """Return hash, colours, width and height of the picture to compare, packed (CONTENT_RECORD).

        The picture is the first of the alternatives *near* that *sample* has. If it has none, or that is damaged or has
        too many pixels: b"" if *lenient*, else SampleError. Raises: SampleError if two members match; TarToolsError if
        the payload can't be read.
        """
        from tartools.samples import decoding
        from tartools.stages.duplicates.near import CONTENT_RECORD

        members = self.members(sample)
        if members is None:
            return b""
        try:
            return CONTENT_RECORD.pack(*decoding.likeness(members[0]))
        except (TarToolsError, MemoryError):
            raise
        except Exception as error:  # each format has its own
            if self.lenient:
                return b""
            problem = (
                f": the picture {';'.join(self.near or ())!r} can't be compared: {decoding.reason_of_error(error)}"
            )
            raise failure_of(sample, f"{problem}; --keep-uncompared keeps such samples") from None

    @property
    def columns(self) -> list[str]:
        """The names of the table columns with the values to compare, such as `cls.blake2b`; [] if there can't be any.

        Tables have none for whole samples, nor for pictures of which there are alternatives. All alternatives of *by*
        are there. This looks at no table.
        """
        if self.near is None:
            return [f"{name}.blake2b" for choices in self.by for name in choices]
        if len(self.near) > 1:
            return []  # null is a picture that is broken, or one that is not there
        (name,) = self.near
        return [f"{name}.dhash", f"{name}.colours", f"{name}.width", f"{name}.height"]

    def _column_contents(self, columns: SampleColumns) -> list[bytes] | None:
        """Return the packed content of each row of *columns*, b"" without a value; None if a column is missing.

        `self.columns` must not be empty. Raises: StorageError if the values of a column are no digests, hashes or
        colours.
        """
        arrays_by_name = {name: column for name in self.columns if (column := columns.column(name)) is not None}
        if len(arrays_by_name) < len(self.columns):
            return None
        values = {name: column.to_pylist() for name, column in arrays_by_name.items()}
        return self._hashes(values, columns.url) if self.near else self._digests(values, columns)

    def _digests(self, values: dict[str, list[Any]], columns: SampleColumns) -> list[bytes]:
        every = {value for column in values.values() for value in column} - {None}
        if not all(isinstance(value, bytes) and len(value) == VALUE_DIGEST_BYTES for value in every):
            raise StorageError(
                f"not all values of {' '.join(values)} are digests of {VALUE_DIGEST_BYTES} bytes", url=columns.url
            )
        contents = []
        for number, size in enumerate(columns.values("__size__") or ()):
            candidates = (filter(None, (values[f"{name}.blake2b"][number] for name in choices)) for choices in self.by)
            digests = [next(digest, b"") for digest in candidates]
            contents.append(b"" if b"" in digests else combine_digests(digests) + size.to_bytes(POSITION_BYTES, "big"))
        return contents

    def _hashes(self, values: dict[str, list[Any]], url: str) -> list[bytes]:
        from tartools.stages.duplicates.near import COLOUR_BYTES, CONTENT_RECORD

        hashes, colours, widths, heights = values.values()
        if not all(isinstance(value, int) and 0 <= value < 1 << 64 for value in hashes if value is not None):
            raise StorageError(f"not all values of {[*values]} are hashes of 64 bits", url=url)
        if not all(isinstance(value, bytes) and len(value) == COLOUR_BYTES for value in colours if value is not None):
            raise StorageError(f"not all values of {[*values]} are colours of {COLOUR_BYTES} bytes", url=url)
        return [
            CONTENT_RECORD.pack(value, means, width, height)
            if value is not None and means is not None and width and height
            else b""
            for value, means, width, height in zip(hashes, colours, widths, heights, strict=True)
        ]


class DedupSide:
    """One side of the comparison: the samples of *run*, which are compared once and read again.

    `number`: INPUT_SIDE, whose samples may be left out, or AGAINST_SIDE, whose samples are only compared with those.
    `names`: a `Spool`, set by the caller, that gets shard and key of each sample; None: they are not needed.
    `samples`: number of samples. `uncompared`: number of samples without content to compare. `contents`, which is
    called once, counts both: they are complete at its end.
    """

    def __init__(self, number: int, run: Pass[Any]) -> None:
        self.number = number
        self.run = run
        self.names: Spool | None = None
        self.samples = self.uncompared = 0

    def contents(self, comparison: Comparison, account: Account) -> Iterator[bytes]:
        """Yield the packed content of each sample for *comparison*; b"" for a sample without one.

        Takes the snapshot of `run` first, so that it can be read again.
        A content is a digest and the sample's size, or hash, colours and sides of a picture: see `Comparison.contents`.
        Adds shards and keys to `names`, if set; counts `samples` and `uncompared`. `account`: shows the progress, and
        gets the number of omissions in samples that are only compared with; the samples of the input are reported when
        they are read again. Raises: the errors of `Comparison.contents` and of reading; StorageError if the input has
        changed.
        """
        side_account = self.run.account if self.number == AGAINST_SIDE else Account(lambda _: None)
        self.run.snapshot.take()
        account.progress.phase = Phase("comparing", account=side_account)
        with_names = self.names is not None

        def work(task: ShardTask[None]) -> Iterator[bytes]:
            return pack_blocks(_content_records(task.batches, comparison, side_account, with_names))

        for record in unpack_blocks(outputs(self.run.gather(work, side_account))):
            end = 1 + record[0]
            self.samples += 1
            self.uncompared += end == 1
            if self.names is not None:
                self.names.add(record[end:])
            yield record[1:end]
        side_account.check()
        self.run.snapshot.samples = self.samples
        if self.number == AGAINST_SIDE:
            account.omissions += side_account.omissions


def _content_records(
    batches: Iterator[Batch], comparison: Comparison, account: Account, with_names: bool
) -> Iterator[bytes]:
    """Yield a record for each sample of *batches*: length of its content in one byte, then the content.

    With *with_names*, shard, a NUL byte and key follow. *comparison* gives the content, b"" for a sample without
    one. *account* counts the samples as read and written.
    """
    for batch in count_samples(batches, account, written=True):
        names = _pack_names(batch) if with_names else repeat(b"")
        for content, name in zip(comparison.contents(batch), names, strict=False):
            yield bytes([len(content)]) + content + name


def _pack_names(batch: Batch) -> Iterator[bytes]:
    """Yield shard, a NUL byte and key of each sample of *batch*, as bytes."""
    shards = batch.shards
    rows = zip(repeat(shards[0]) if len(shards) == 1 else shards, batch.keys, strict=False)
    for shard, key in rows:
        yield shard.encode("utf-8", "surrogateescape") + b"\0" + key


def find_duplicates(
    sides: Sequence[DedupSide], comparison: Comparison, account: Account, sort: Callable[..., Iterator[bytes]]
) -> Iterator[bytes]:
    """Yield a record, a packed `Pair`, for each duplicate in the last of *sides*, in order of position.

    All samples are read before the first record comes. Two samples that are only compared with are no duplicates.
    `sides`: perhaps the side that is only compared with, then the input. `comparison`: says which samples are
    duplicates. `sort(records)`: yields any number of records sorted. `account`: shows the progress, and gets the
    omissions in the sides only compared with. Raises: the errors of `DedupSide.contents`.
    """
    if comparison.near is None:
        side_records = (
            sortable_records(side.contents(comparison, account), side.number, comparison.largest) for side in sides
        )
        yield from sort(find_equal(sort(chain.from_iterable(side_records))))
        return
    from tartools.stages.duplicates.near import near_pairs

    pictures = ((side.number, side.contents(comparison, account)) for side in sides)
    yield from starmap(PAIR_RECORD.pack, near_pairs(pictures, comparison.distance, comparison.largest))


def digest_samples(batch: Batch) -> list[bytes]:
    """Return a digest (16 bytes) of each sample of *batch*: of the names and payloads of its fields.

    Neither the key nor the order of the members makes a difference. Raises: StorageError if a file has changed.
    """
    digests = [b""] * len(batch)
    for same in batch.combinations():
        fields, columns = digest_columns(same, VALUE_DIGEST_BYTES)
        names = b"".join(len(field).to_bytes(POSITION_BYTES, "big") + field for field in fields)
        for number, row in zip(same.numbers, zip(*columns, strict=True), strict=True):
            digests[number] = blake2b(names + b"".join(row), digest_size=VALUE_DIGEST_BYTES).digest()
    return digests


def combine_digests(digests: Sequence[bytes]) -> bytes:
    """Return the only one of *digests*, or else one digest (16 bytes) of all of them, in order."""
    return digests[0] if len(digests) == 1 else blake2b(b"".join(digests), digest_size=VALUE_DIGEST_BYTES).digest()


def sortable_records(contents: Iterable[bytes], side: int, largest: bool) -> Iterator[bytes]:
    """Yield a record for each sample of *side* that sorts by digest, and of equal digests, the sample to keep first.

    Samples only compared with are preferred, earlier ones first; then, of the input, with *largest*, larger ones, then
    earlier ones. `contents`: for each sample digest and size, packed; there is no record for b"", which equals no
    other. A record is the digest, the side in a byte, the rank by size (0 but for the input with *largest*) and the
    position in 8 bytes each.
    """
    for position, content in enumerate(contents):
        if content:
            size = (
                int.from_bytes(content[VALUE_DIGEST_BYTES:], "big") if largest and side == INPUT_SIDE else MAX_POSITION
            )
            rank = (MAX_POSITION - size).to_bytes(POSITION_BYTES, "big")
            yield content[:VALUE_DIGEST_BYTES] + bytes([side]) + rank + position.to_bytes(POSITION_BYTES, "big")


def find_equal(sorted_records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a packed `Pair` for each record of the input that has the digest of the record before; the distance is 0.

    *sorted_records*: from `sortable_records`, sorted. The first record of a digest is the kept sample. Pairs come in
    the order of the records, not of positions.
    """
    last, side, kept_position = b"", AGAINST_SIDE, 0
    for record in sorted_records:
        position = int.from_bytes(record[-POSITION_BYTES:], "big")
        if record[:VALUE_DIGEST_BYTES] != last:
            last, side, kept_position = record[:VALUE_DIGEST_BYTES], record[VALUE_DIGEST_BYTES], position
        elif record[VALUE_DIGEST_BYTES] == INPUT_SIDE:
            yield PAIR_RECORD.pack(position, side, kept_position, 0)


# ---- pairs of a sample that is left out and the kept one that it is like ----


class Pair(NamedTuple):
    """A sample that is left out, and the kept one that it is like.

    `position`: of the sample, in the input. `side`, `kept_position`: side of the kept one, and position there.
    `distance`: bits in which hashes of pictures differ; 0 for equal samples.
    """

    position: int
    side: int
    kept_position: int
    distance: int


def unpack_pair(record: bytes) -> Pair:
    """Return the `Pair` at the begin of *record*; other bytes may follow it."""
    return Pair(*PAIR_RECORD.unpack_from(record))


def name_pairs(
    pairs: Iterable[bytes], names: Sequence[Iterable[bytes]], sort: Sort
) -> Iterator[tuple[Pair, bytes, bytes]]:
    """Yield (pair, name of the sample that is left out, name of the kept one) for each of *pairs*, in order.

    `pairs`: packed, sorted. `names[side]`: the names of all samples of a side, in order: shard, NUL, key; it is
    iterated more than once. `sort(records)`: sorts any number of records. Holds: the memory of *sort*.
    """
    # names are spools that can only be read in order: so pairs are sorted by the kept sample, to take its name in one
    # pass, then by the sample that is left out
    by_kept = sort(KEPT_PREFIX.pack(*unpack_pair(record)[1:3]) + record for record in pairs)
    places = enumerate(names[INPUT_SIDE])
    for record in sort(_add_kept_names(by_kept, names)):
        pair = unpack_pair(record)
        yield pair, next(name for at, name in places if at == pair.position), record[PAIR_RECORD.size :]


def _add_kept_names(by_kept: Iterable[bytes], names: Sequence[Iterable[bytes]]) -> Iterator[bytes]:
    """Yield packed pairs, each with the name of the kept sample behind it, in the order of *by_kept*.

    `by_kept`: packed pairs with a KEPT_PREFIX (side and position of the kept sample), sorted. `names[side]`: the names
    of all samples of a side, in order: shard, NUL, key.
    """
    for side, side_records in groupby(by_kept, itemgetter(0)):
        places = enumerate(names[side])
        for place, same in groupby(side_records, itemgetter(slice(KEPT_PREFIX.size))):
            kept_position = KEPT_PREFIX.unpack(place)[1]
            name = next(name for at, name in places if at == kept_position)
            yield from (record[KEPT_PREFIX.size :] + name for record in same)


def write_report(pairs: Iterable[bytes], names: Sequence[Iterable[bytes]], url: str, force: bool, sort: Sort) -> None:
    """Write a table of *pairs*, packed and sorted, to *url* as TSV: keys and shards of both samples, and distance.

    Its header is: key, shard, kept_key, kept_shard, distance. `names[side]`: the names of all samples of a side, in
    order: shard, NUL, key; it is iterated more than once. `force`: replace an existing file. `sort(records)`: sorts any
    number of records. Raises: StorageError if *url* exists (unless *force*) or can't be written.
    """
    with storage.open_sink(url, force) as sink:
        sink.write(b"key\tshard\tkept_key\tkept_shard\tdistance\n")
        for pair, dropped_name, kept_name in name_pairs(pairs, names, sort):
            cells = [*key_and_shard(dropped_name), *key_and_shard(kept_name), str(pair.distance)]
            sink.write(("\t".join(cells) + "\n").encode("utf-8", "surrogateescape"))


def key_and_shard(name: bytes) -> list[str]:
    """Return [key, shard] of the sample with this *name* (shard, NUL, key), escaped for TSV; the shard as `shown`."""
    shard, _, key = name.partition(b"\0")
    return [escape(os.fsdecode(key)), escape(shown(os.fsdecode(shard)))]
