"""What all samples of the input are like, in bounded memory: the page of `tarshow --html` shows only some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tartools.errors import printable
from tartools.samples.combinations import by_combination
from tartools.samples.distribution import Distribution
from tartools.samples.filetypes import PICTURES, SOUNDS, suffix_of
from tartools.samples.sample import Sample, field_name
from tartools.show import decoding, text
from tartools.stages.statistics.counting import FieldKinds, count_fields
from tartools.stages.statistics.totals import Counts, FieldStatistics, PictureSize, Statistics, joined
from tartools.tar import Member

LISTED = 1000  # broken members whose keys are listed
GROUP, GROUP_SIZE = 256, 1 << 20  # samples, and bytes, that are counted at once
NO_CLASSES = {"json", *PICTURES, *SOUNDS}  # the last parts of fields that hold no classes


class Broken(NamedTuple):
    """A picture, or a *sound*, that cannot be decoded: the *key* of its sample, its *field*, and *why*, printable."""

    key: str
    field: str
    why: str
    sound: bool = False

    def __str__(self) -> str:
        """Say it in words."""
        return f"{self.key} ({self.field}: {self.why})"


class Overview:
    """Counts of all samples: *samples*, their *sizes*, *fields* and *folders*, and what is *broken*.

    Of more than 1,000 fields or folders, these are None. The first 1,000 broken members are *listed*. *more*: the input
    has more samples than were wanted.
    """

    def __init__(self) -> None:
        self.sizes = Distribution()
        self.folders: Counts = {}
        self.broken = 0
        self.more = False
        self.listed: list[Broken] = []
        self._found = Statistics()

    @property
    def samples(self) -> int:
        """How many samples there were."""
        return self._found.samples

    @property
    def fields(self) -> dict[str, FieldStatistics] | None:
        """The counts of each field."""
        return self._found.fields

    def add_broken(self, broken: Sequence[Broken]) -> None:
        """Add *broken* members."""
        self.broken += len(broken)
        self.listed += broken[: LISTED - len(self.listed)]

    def count(self, samples: Sequence[Sample]) -> None:
        """Add the counts of *samples*, one of the groups that `grouped` makes."""
        keys: list[bytes] = []
        members: list[Member] = []
        firsts: list[int] = []
        folders: dict[str, int] = {}
        for sample in samples:
            keys.append(sample.raw_key)
            firsts.append(len(members))
            members += sample.members
            folder, slash, _ = sample.key.rpartition("/")
            if slash:
                folders[printable(folder)] = folders.get(printable(folder), 0) + 1
        self.sizes.add(Distribution.of(sum(member.size for member in sample.members) for sample in samples))
        self.folders = joined(self.folders, folders)
        kinds = FieldKinds(may_be_classes, lambda _: False, lambda _: PictureSize())
        fields = count_fields(by_combination(keys, members, firsts), kinds)
        self._found.add(Statistics(len(samples), len(members), first=samples[0].key, fields=fields))


def grouped(samples: Iterable[Sample]) -> Iterator[list[Sample]]:
    """Yield *samples* in groups: up to 256, of up to 1 MiB or one larger, all in one buffer or file."""
    group: list[Sample] = []
    size = 0
    for sample in samples:
        full = len(group) == GROUP or size + sample.size > GROUP_SIZE
        if group and (full or not same_source(group[0], sample)):
            yield group
            group, size = [], 0
        group.append(sample)
        size += sample.size
    if group:
        yield group


def same_source(one: Sample, other: Sample) -> bool:
    """Tell whether the members of both samples are all in one buffer or file."""
    source = one.members[0].source
    return all(member.source is source for sample in (one, other) for member in sample.members)


def may_be_classes(field: str) -> bool:
    """Tell whether the values of *field* may be classes."""
    return suffix_of(field) not in NO_CLASSES


def broken_pictures(samples: Sequence[Sample]) -> list[Broken]:
    """Return the pictures of *samples* that cannot be decoded. Holds: one of them, decoded, at a time.

    Raises: StorageError if their file has become shorter.
    """
    broken = []
    for sample, member in ((each, member) for each in samples for member in each.members):
        if not text.may_be_picture(member):
            continue
        _, why = decoding.described(member, decode=True)
        if why is not None:
            broken.append(Broken(printable(sample.key), printable(field_name(member)) or "-", why))
    return broken
