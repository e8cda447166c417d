"""How tardedup finds the samples that are left out: what is compared comes from columns, or else from samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

from tartools.commands._dedup import Comparison, Side, name_of
from tartools.errors import StorageError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch
from tartools.shards.reading import one_by_one
from tartools.stages.duplicates import exact
from tartools.stages.duplicates.pairs import AGAINST, INPUT
from tartools.tables import schema

if TYPE_CHECKING:
    from tartools.tables.inputs import Inputs


def find(
    sides: Sequence[Side], comparison: Comparison, account: Account, sort: Callable[..., Iterator[bytes]]
) -> Iterator[bytes]:
    """Yield a record for each sample of the last of *sides* that is left out, by position: see `pairs.Pair`."""
    if comparison.near is None:
        records = one_by_one(
            exact.records(contents_of(side, comparison, account), side.number, comparison.largest) for side in sides
        )
        yield from sort(exact.repeats(sort(records)))
        return
    from tartools.stages.duplicates.hashes import Hashes

    hashes = Hashes()
    for side in sides:
        if side.number == INPUT:
            hashes.end_against()
        if side.has_columns(comparison):
            hashes.without_colours(side.number)
        for content in contents_of(side, comparison, account):
            hashes.add(content)
    yield from hashes.pairs(comparison.distance, comparison.largest, partial(colours, sides, comparison))


def colours(sides: Sequence[Side], comparison: Comparison, number: int, positions: Sequence[int]) -> Iterator[bytes]:
    """Yield the colours of the pictures at *positions* of side *number*: these pictures are decoded."""
    from tartools.stages.duplicates.hashes import CONTENT

    (side,) = (side for side in sides if side.number == number)
    with closing(side.samples_at(positions)) as samples:  # type: ignore[type-var]
        for sample in samples:
            content = comparison._replace(lenient=False).picture(sample)
            yield CONTENT.unpack(content)[1]


def contents_of(side: Side, comparison: Comparison, account: Account) -> Iterator[bytes]:
    """Return what is compared of each sample of *side*: from columns where they say it, else from the samples.

    *account* gets what is to be said of samples that are only compared with.
    """
    silent = Account(account.say, account.quiet) if side.number == AGAINST else Account(lambda _: None)
    account.phase = Phase("comparing", account=silent)
    if side.has_columns(comparison):
        yield from from_columns(side, comparison, account if side.number == INPUT else silent)
    else:
        yield from side.contents(comparison, silent)
    if side.number == AGAINST:
        account.omissions += silent.omissions


def from_columns(side: Side, comparison: Comparison, account: Account) -> Iterator[bytes]:
    """Yield what is compared of each row of the tables of *side*: see `Comparison.contents`.

    Raises: SampleError for the first sample that lacks it, unless that is allowed; StorageError for a column of no use.
    """
    inputs = side.listed(account)
    wanted = comparison.columns or []
    first = 0
    for rows in inputs.batches([schema.SHARD, schema.KEY, schema.BEGIN, schema.END, *wanted]):
        found = (digests if comparison.near is None else hashes)(rows, comparison, side.urls[0])
        for number, (content, name) in enumerate(zip(found, names(rows, inputs, side), strict=True), first):
            if not content and not comparison.lenient:
                for sample in side.samples_at([number]):
                    comparison.contents(Batch.of(sample))
                raise StorageError(
                    f"row {number} has no value in {' '.join(wanted)}; tarindex makes the table again", url=side.urls[0]
                )
            side.add(content, name)
            yield content
        first += len(rows)


def names(rows: Any, inputs: Inputs, side: Side) -> Iterable[bytes]:
    """Return the names of the samples of *rows*, if *side* wants them."""
    if side.names is None:
        return [b""] * len(rows)
    keys = schema.raw(rows.column(schema.KEY)).to_pylist()
    shards = [inputs.shards.url(number) for number in rows.column(schema.SHARD).to_pylist()]
    return [name_of(shard, key or b"") for shard, key in zip(shards, keys, strict=True)]


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
    """Yield hash and pixels of each of *rows*, packed, without colours; empty where there are none."""
    from tartools.stages.duplicates.hashes import CONTENT
    from tartools.stages.duplicates.near import COLOURS

    found, *sides = (rows.column(name).to_pylist() for name in comparison.columns or ())
    widths, heights = sides or ([1] * len(rows),) * 2
    if not all(isinstance(value, int) and 0 <= value < 1 << 64 for value in found if value is not None):
        raise StorageError(f"not all values of {comparison.columns} are hashes of 64 bits", url=url)
    for value, width, height in zip(found, widths, heights, strict=True):
        known = value is not None and bool(width) and bool(height)
        yield CONTENT.pack(value, bytes(COLOURS), width * height) if known else b""
