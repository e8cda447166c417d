"""Which fields each sample must have: those that were asked for, or those that most samples have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tartools.stages.checking.found import DOUBTFUL, Place, Summary

Words = Sequence[Sequence[str]]  # of each, one has to be there


def expected_fields(combinations: Mapping[str, int]) -> Words:
    """Return the fields that most of the samples have, of *combinations* with their counts.

    Then those that most of the samples with all of these have, and so on. Samples without a field do not count.
    """
    known = {frozenset(names(each)): 0 for each in combinations}
    for each, count in combinations.items():
        if each and not each.startswith(DOUBTFUL):
            known[frozenset(names(each))] += count
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


def names(combination: str) -> list[str]:
    """Return the names of the fields of *combination*, in small letters: case makes no difference."""
    return combination.removeprefix(DOUBTFUL).lower().split("/")


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
    for combination, count in list(summary.combinations.items()):
        if not combination or combination.startswith(DOUBTFUL) or count <= 0:
            continue
        fields = names(combination)
        more = [field for field in fields if not wanted(field, usual)]
        found = [("missing-field", field) for field in lacking(fields, words)]
        found += [("dotted-name" if "." in field else "unexpected-field", field) for field in more]
        for code, field in found:
            places = summary.places[combination][:count]
            for number, place in enumerate(places):
                rest = count - len(places) + 1 if number == len(places) - 1 else 1
                summary.note(code, Place(*place[:3], field), rest)
            if not places:
                summary.note(code, Place(0, 0, "", field), count)
