"""What is unlike the rest: samples that lack a field that most have, and sizes of payloads and shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median_low

from tartools.errors import in_units
from tartools.stages.checking.codes import Place
from tartools.stages.checking.keys import DOUBTFUL, names
from tartools.stages.summary import FieldSummary, Summary, Tally

ENOUGH = 100  # payloads of a field, below which none is far from the rest
FAR = 100  # times the size that one in twenty exceeds, or a part of the size that one in twenty stays below
LARGE = 1 << 16  # bytes; a smaller payload is never too large
SHARDS = 4  # fewer are not compared
UNLIKE = 10  # times as large as the median, or a part of it

Words = Sequence[Sequence[str]]  # of each, one has to be there


def expected_fields(combinations: Mapping[str, Tally]) -> Words:
    """Return the fields that most of the samples have, of *combinations* with their counts.

    Then those that most of the samples with all of these have, and so on. Samples without a field do not count.
    """
    known = {frozenset(names(each)): 0 for each in combinations}
    for each, tally in combinations.items():
        if each and not each.startswith(DOUBTFUL):
            known[frozenset(names(each))] += tally.count
    wanted: frozenset[str] = frozenset()
    while True:
        counts: dict[str, int] = {}
        samples = 0
        for fields, count in known.items():
            if wanted <= fields:
                samples += count
                for field in fields:
                    counts[field] = counts.get(field, 0) + count
        more = wanted | {field for field, count in counts.items() if 2 * count > samples}
        if more == wanted:
            return [(field,) for field in sorted(wanted)]
        wanted = more


def lacking(fields: Sequence[str], words: Words) -> list[str]:
    """Return which of *words* a sample with *fields* lacks.

    A field such as v2.jpg is taken for jpg, since its name has a dot too many.
    """
    have = {*fields, *(field.rpartition(".")[2] for field in fields if not wanted(field, words))}
    return [";".join(word) for word in words if have.isdisjoint(each.lower() for each in word)]


def wanted(field: str, words: Words) -> bool:
    """Tell whether *field* is among *words*."""
    return any(field == each.lower() for word in words for each in word)


def compare(summary: Summary, words: Words) -> None:
    """Add to *summary* which samples lack one of *words*, and which have a field that most lack."""
    usual = [*words, *expected_fields(summary.combinations)]
    for combination, tally in list(summary.combinations.items()):
        if not combination or combination.startswith(DOUBTFUL) or tally.count <= 0:
            continue
        fields, count = names(combination), tally.count
        more = [field for field in fields if not wanted(field, usual)]
        found = [("missing-field", field) for field in lacking(fields, words)]
        found += [("dotted-name" if "." in field else "unexpected-field", field) for field in more]
        for code, field in found:
            places = tally.first[:count]
            for number, place in enumerate(places):
                rest = count - len(places) + 1 if number == len(places) - 1 else 1
                summary.note(code, place._replace(what=field), rest)
            if not places:
                summary.note(code, Place(0, 0, "", field), count)


def note_payloads(summary: Summary) -> None:
    """Add to *summary* the payloads that are far larger or smaller than most of their field."""
    for field, found in summary.fields.items():
        counts = found.sizes.buckets
        if sum(counts.values()) < ENOUGH:
            continue
        high = max(LARGE, FAR * found.sizes.quantile(95))
        low = found.sizes.quantile(5) // FAR
        note_far(summary, field, found, low, high)


def note_far(summary: Summary, field: str, found: FieldSummary, low: int, high: int) -> None:
    """Add the payloads of *field* that are larger than *high*, or smaller than *low* and not empty."""
    counts = found.sizes.buckets
    for places, far in (
        ([each for each in found.large if each[0] > high], sum(n for size, n in counts.items() if size > high)),
        ([each for each in found.small if 0 < each[0] < low], sum(n for size, n in counts.items() if 0 < size < low)),
    ):
        for number, (size, place) in enumerate(places):
            more = max(far - len(places), 0) if number == len(places) - 1 else 0
            summary.note("size-outlier", place._replace(what=f"{field}: {in_units(size)}"), 1 + more)


def note_shards(summary: Summary, shards: Sequence[tuple[int, int]]) -> None:
    """Add to *summary* the shards that are far larger or smaller than most; *shards* are their numbers and bytes.

    The last may be small: it has what was left.
    """
    if len(shards) < SHARDS:
        return
    middle = median_low(size for _, size in shards)
    for number, size in shards:
        small = size * UNLIKE < middle and number != shards[-1][0] and size
        if small or size > middle * UNLIKE:
            summary.note("shard-size", Place(number, 0, "", f"{in_units(size)}; the median is {in_units(middle)}"))
