"""What all samples of the input are like, in bounded memory: the page of `tarshow --html` shows only some of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tartools.errors import printable
from tartools.samples import decoding
from tartools.samples.filetypes import PICTURES, SOUNDS, suffix_of
from tartools.samples.sample import Sample, field_name
from tartools.show import text
from tartools.stages.combinations import by_combination
from tartools.stages.statistics import FieldKinds, count_fields
from tartools.stages.summary import Counts, Distribution, PictureSize, Summary, Tally, joined
from tartools.tar import Member

LISTED = 1000  # broken members whose keys are listed
GROUP, GROUP_SIZE = 256, 1 << 20  # samples, and bytes, that are counted at once
BROKEN = "broken"
NO_CLASSES = {"json", *PICTURES, *SOUNDS}  # the last parts of fields that hold no classes
KINDS = FieldKinds(lambda field: suffix_of(field) not in NO_CLASSES, lambda _: False, lambda _: PictureSize())


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
    """What all samples are like: *counts* has their fields and what is broken, *sizes* theirs, *folders* how many each.

    Of more than 1,000 folders there are no counts. *more*: the input has more samples than were wanted.
    """

    def __init__(self) -> None:
        self.counts = Summary(LISTED)
        self.sizes = Distribution()
        self.folders: Counts = {}
        self.more = False

    @property
    def broken(self) -> Tally:
        """The members that can't be decoded: `Broken`."""
        return self.counts.findings.get(BROKEN, Tally())

    def add_broken(self, broken: Iterable[Broken]) -> None:
        """Add *broken* members."""
        for each in broken:
            self.counts.note(BROKEN, each)

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
        part = Summary(LISTED)
        part.samples, part.first = len(samples), samples[0].key
        count_fields(by_combination(keys, members, firsts), KINDS, part)
        self.counts.add(part)


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
