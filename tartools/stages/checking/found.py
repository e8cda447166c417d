"""Counts of what was found, which add up: of a part of the input, of a shard, of the data set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tartools.samples.distribution import Distribution

MOST = 1000  # different combinations of fields, and fields; more are not told apart
LISTED = 1000  # places of a finding that are remembered
USUAL = 50  # combinations of fields of which as many samples are remembered; of more, as many as of extremes
EXTREMES = 20  # largest and smallest payloads of a field that are remembered
DOUBTFUL = "\0"  # precedes the fields of a sample next to damage, which may lack some that it had


class Place(NamedTuple):
    """Where: *shard* is the number of the input, *byte* that of its tar stream."""

    shard: int
    byte: int
    key: str
    what: str = ""


class Finding:
    """How often, and the first places."""

    def __init__(self, count: int = 0, places: Iterable[Place] = ()) -> None:
        self.count = count
        self.places = list(places)


class Sizes:
    """Sizes of the payloads of a field, and the places of the smallest and the largest."""

    def __init__(self, sizes: Distribution, small: list[tuple[int, Place]], large: list[tuple[int, Place]]) -> None:
        self.sizes = sizes
        self.small = small
        self.large = large

    def add(self, other: Sizes) -> None:
        """Add those of *other*, a later part."""
        self.sizes.add(other.sizes)
        self.small = sorted(self.small + other.small)[:EXTREMES]
        self.large = sorted(self.large + other.large, key=largest)[:EXTREMES]


def largest(found: tuple[int, Place]) -> tuple[int, Place]:
    """Return what sorts the largest first, and the first of those that are equal."""
    return -found[0], found[1]


class Summary:
    """What was found in some *samples*: findings, sizes of fields, and how many have which combination of fields.

    A combination is the names of the fields, joined by "/". *places* has the first samples of each.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.bytes = 0
        self.findings: dict[str, Finding] = {}
        self.fields: dict[str, Sizes] = {}
        self.combinations: dict[str, int] = {}
        self.places: dict[str, list[Place]] = {}

    def lists(self, code: str) -> bool:
        """Tell whether the place of one more finding of *code* would be remembered."""
        return code not in self.findings or len(self.findings[code].places) < LISTED

    def note(self, code: str, place: Place, count: int = 1) -> None:
        """Add a finding, which may stand for several others."""
        known = self.findings.setdefault(code, Finding())
        known.count += count
        if len(known.places) < LISTED:
            known.places.append(place)

    def combined(self, combination: str, count: int, places: Iterable[Place]) -> None:
        """Add *count* samples with a *combination* of fields, of which *places* are the first."""
        if combination in self.combinations or len(self.combinations) < MOST:
            self.combinations[combination] = self.combinations.get(combination, 0) + count
            known = self.places.setdefault(combination, [])
            most = LISTED if len(self.combinations) <= USUAL else EXTREMES
            known += list(places)[: max(0, most - len(known))]
        else:
            for place in places:
                self.note("many-fields", place, count)
                break

    def sized(self, field: str, sizes: Sizes) -> None:
        """Add the *sizes* of payloads of *field*."""
        if field in self.fields:
            self.fields[field].add(sizes)
        elif len(self.fields) < MOST:
            self.fields[field] = sizes

    def add(self, other: Summary) -> None:
        """Add *other*, of later samples."""
        self.samples += other.samples
        self.bytes += other.bytes
        for code, found in other.findings.items():
            known = self.findings.setdefault(code, Finding())
            known.count += found.count
            known.places += found.places[: LISTED - len(known.places)]
        for combination, count in other.combinations.items():
            self.combined(combination, count, other.places[combination])
        for field, sizes in other.fields.items():
            self.sized(field, sizes)

    def as_dict(self) -> dict[str, Any]:
        """Return it as values that JSON can hold."""
        return {
            "samples": self.samples,
            "bytes": self.bytes,
            "findings": {code: [found.count, found.places] for code, found in self.findings.items()},
            "fields": {field: [vars(each.sizes), each.small, each.large] for field, each in self.fields.items()},
            "combinations": self.combinations,
            "places": self.places,
        }

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> Summary:
        """Return what `as_dict` made *found* of, directly or through JSON."""
        self = cls()
        self.samples, self.bytes = found["samples"], found["bytes"]
        self.combinations = found["combinations"]
        self.places = {name: [Place(*place) for place in places] for name, places in found["places"].items()}
        self.findings = {
            code: Finding(count, [Place(*place) for place in places])
            for code, (count, places) in found["findings"].items()
        }
        for field, (sizes, *ends) in found["fields"].items():
            small, large = ([(size, Place(*place)) for size, place in end] for end in ends)
            self.fields[field] = Sizes(Distribution(**sizes), small, large)
        return self
