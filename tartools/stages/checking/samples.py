"""Samples as the reader finds them to a summary of what is wrong with them, and to a record of each key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

from tartools.samples.filetypes import BY_SUFFIX, FIRST, NUMBERS, PICKLES, TEXTS, suffix_of
from tartools.samples.sample import Batch, Sample
from tartools.stages.checking.codes import CODES, NOTE, Place
from tartools.stages.checking.keys import DOUBTFUL, combination_number, key_records
from tartools.stages.checking.oddities import (
    CLEAR_MAGICS,
    codes_of_fields,
    codes_of_key,
    expected,
    lie,
    may_be_odd,
    no_number,
)
from tartools.stages.combinations import Combination, by_combination, heads_of, text
from tartools.stages.summary import EXTREMES, Distribution, FieldSummary, Summary, largest
from tartools.tar import Member

LISTED = 1000  # places of a finding that are remembered
USUAL = 50  # combinations of fields of which as many samples are remembered; of more, as many as of extremes
SECONDS = frozenset(magic[:2] for magic in CLEAR_MAGICS)  # what clear magic numbers begin with

Decode = Callable[[str, Member], tuple[str, str] | None]  # suffix and payload -> code and why, if it is broken


class Rows(NamedTuple):
    """Samples of input *shard*, as columns. Those that are *doubtful* lie next to damage."""

    shard: int
    keys: Sequence[bytes]
    begins: Sequence[int]  # bytes of the tar stream
    members: Sequence[Member]
    firsts: Sequence[int]
    end: int
    doubtful: bool = False
    walked: bool = False  # by `walk`, not by the reader


def rows_of(batch: Batch, shard: int) -> Rows | None:
    """Return the samples of *batch*; None if it is not known where in the shard they are."""
    if batch.groups is not None:
        source, keys, starts, members, firsts, _ = batch.groups
        base = getattr(source, "base", 0)
        begins = starts[:-1] if not base else [start + base for start in starts[:-1]]
        return Rows(shard, keys, begins, members or [], firsts, starts[-1] + base)
    if batch.offset is None:
        return None
    sample = batch[0]
    return Rows(shard, batch.keys, [batch.offset], sample.members, [0], batch.offset + sample.size)


def rows_of_lists(
    shard: int, keys: Sequence[bytes], begins: Sequence[int], members: Sequence[Sequence[Member]]
) -> Rows:
    """Return samples with *keys* that begin at *begins*, of which *members* has a list each."""
    firsts = [0, *accumulate(map(len, members))]
    return Rows(shard, keys, begins, [*chain.from_iterable(members)], firsts[:-1], members[-1][-1].end)


def nothing_found() -> Summary:
    """Return a summary of no samples, for `look`."""
    return Summary(LISTED, USUAL)


def look(rows: Rows, summary: Summary, decode: Decode | None) -> Iterator[bytes]:
    """Add to *summary* what is wrong with the samples *rows*; return a record of the key of each that has fields.

    Of payloads the first bytes are looked at; with *decode* all of them. Raises: StorageError.
    """
    summary.samples += len(rows.keys)
    summary.stored += rows.end - rows.begins[0]
    if may_be_odd(rows.keys):
        for key, byte in zip(rows.keys, rows.begins, strict=True):
            for code in codes_of_key(key):
                summary.note(code, Place(rows.shard, byte, text(key)))
    read = heads_of(rows.members, FIRST)
    for group in by_combination(rows.keys, rows.members, rows.firsts):
        begins = rows.begins if len(group.keys) == len(rows.keys) else [rows.begins[n] for n in group.numbers]
        yield from look_at(group, begins, rows, summary, read, decode)


def look_at(
    group: Combination,
    begins: Sequence[int],
    rows: Rows,
    summary: Summary,
    read: Callable[[Sequence[Member]], Iterable[bytes]],
    decode: Decode | None,
) -> Iterable[bytes]:
    """As `look`, for the samples *group* of *rows*, which have the same fields and begin at *begins*."""
    shard, count = rows.shard, len(group.keys)
    if group.fields == ("",):
        for raw, byte in zip(group.keys, begins, strict=True):
            if "hidden-file" not in codes_of_key(raw):
                summary.note("no-field", Place(shard, byte, text(raw)))
        summary.combined("", count, [])
        return ()
    combination = "/".join(group.fields)
    if rows.doubtful:
        combination = DOUBTFUL + combination
    known = summary.combinations.get(combination)
    most = LISTED - len(known.first) if known else LISTED
    summary.combined(combination, count, [Place(shard, *each) for each in named(group.keys, begins, most)])
    for code, what in codes_of_fields(group.fields):
        for byte, key in named(group.keys, begins, count):
            summary.note(code, Place(shard, byte, key, what))
    for field, column in zip(group.fields, group.columns, strict=True):
        look_into(field, column, MeasuredColumn(group.keys, begins, shard), summary, read, decode)
    return key_records(group.keys, 2 * shard + rows.walked, begins, combination_number(combination))


class MeasuredColumn(NamedTuple):
    """The samples whose members a column has."""

    keys: Sequence[bytes]
    begins: Sequence[int]
    shard: int

    def place(self, number: int, what: str) -> Place:
        """Return where sample *number* of these is."""
        return Place(self.shard, self.begins[number], text(self.keys[number]), what)


def named(keys: Sequence[bytes], begins: Sequence[int], most: int) -> list[tuple[int, str]]:
    """Return byte and key of the first samples, up to *most*."""
    return [(byte, text(key)) for byte, key in zip(begins[:most], keys[:most], strict=True)]


def look_into(
    field: str,
    column: Sequence[Member],
    samples: MeasuredColumn,
    summary: Summary,
    read: Callable[[Sequence[Member]], Iterable[bytes]],
    decode: Decode | None,
) -> None:
    """Add to *summary* what is wrong with the payloads *column* of *field* of *samples*."""
    sizes = list(map(itemgetter(4), column))
    summary.counted(field, sizes_of(field, sizes, samples, summary))
    if not min(sizes):
        for number, size in enumerate(sizes):
            if not size:
                summary.note("empty-field", samples.place(number, field))
    suffix = suffix_of(field)
    if suffix in PICKLES:
        for number in range(len(column)):
            summary.note("pickle", samples.place(number, field))
    lies: dict[int, str] = {}
    if suffix in TEXTS or suffix in BY_SUFFIX:
        heads = list(read(column))
        for number, code, what in lies_of(suffix, heads, sizes):
            if lies.setdefault(number, code) == code:
                summary.note(code, samples.place(number, f"{field}: {what}"))
    if decode is not None:
        for number, member in enumerate(column):
            found = decode(suffix, Member._make(member)) if sizes[number] else None
            if found and found[0] != lies.get(number):
                summary.note(found[0], samples.place(number, f"{field}: {found[1]}"))


def lies_of(suffix: str, heads: Sequence[bytes], sizes: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Yield number, code and what is wrong of payloads that, by their *heads*, are not what *suffix* says."""
    for number in suspicious(suffix, heads):
        if what := lie(suffix, heads[number]):
            yield number, "suffix-lies", what
    if suffix not in NUMBERS:
        return
    wrong = {each: what for each in {*zip(heads, sizes, strict=True)} if each[1] and (what := no_number(*each))}
    if wrong:
        for number, each in enumerate(zip(heads, sizes, strict=True)):
            if each in wrong:
                yield number, "not-a-number", wrong[each]


def suspicious(suffix: str, heads: Sequence[bytes]) -> Iterable[int]:
    """Return the numbers of the *heads* for which `lie` has to be asked: usually none."""
    if suffix in TEXTS:
        if SECONDS.isdisjoint({head[:2] for head in heads}):
            return ()
    elif (magics := expected(suffix)) and all(head.startswith(magics) for head in heads):
        return ()
    return range(len(heads))


def sizes_of(field: str, sizes: Sequence[int], samples: MeasuredColumn, summary: Summary) -> FieldSummary:
    """Return the *sizes* of payloads of *field*, with the places of those that may be the extremes of *summary*."""
    found = Distribution.of(sizes)
    known = summary.fields.get(field)
    high = known.large[-1][0] if known and len(known.large) == EXTREMES else -1
    low = known.small[-1][0] if known and len(known.small) == EXTREMES else 1 << 64
    most = sorted(((-n, i) for i, n in enumerate(sizes) if n > high) if (found.greatest or 0) > high else ())
    least = sorted(((n, i) for i, n in enumerate(sizes) if n < low) if (found.least or 0) < low else ())
    large = [(-n, samples.place(i, field)) for n, i in most[:EXTREMES]]
    small = [(n, samples.place(i, field)) for n, i in least[:EXTREMES]]
    return FieldSummary(sizes=found, small=small, large=sorted(large, key=largest))


def codes_of(sample: Sample, decode: Decode | None) -> list[tuple[str, str]]:
    """Return the findings of weight about *sample* alone: codes, and what they are about."""
    summary = nothing_found()
    rows = Rows(0, [sample.raw_key], [0], sample.members, [0], 0)
    for _ in look(rows, summary, decode):
        pass
    return [(code, found.first[0].what) for code, found in summary.findings.items() if CODES[code].weight != NOTE]
