"""Which samples of a data set can be saved, and as what."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from struct import Struct
from typing import NamedTuple

from tartools.samples.combinations import text
from tartools.samples.sample import Sample, field_name
from tartools.stages.checking.codes import CODES, NOTE
from tartools.stages.checking.fields import Words, lacking, names
from tartools.stages.checking.found import Summary
from tartools.stages.checking.keys import Where, beside
from tartools.stages.checking.samples import Decode, codes_of
from tartools.tar import Member

ACTION = Struct(">IQBIQ")  # input and byte of a sample, what to do with it, and those of the sample it belongs to
WAIT, JOIN, LAST, AGAIN = range(4)  # join it to others: the first, another, the last; it has the key of another


class Action(NamedTuple):
    """What to do with the sample at *place*, which has the key of the one at *first*."""

    place: tuple[int, int]
    what: int
    first: tuple[int, int]


def actions(group: Sequence[tuple[int, int, bytes, str]], verdicts: Sequence[tuple[str, int]]) -> Iterator[bytes]:
    """Yield what to do with the samples of *group*, which have one key, in records that sort by place."""
    first = group[0][:2]
    parts = [each for each, (_, other) in zip(group[1:], verdicts, strict=True) if not other]
    if parts:
        yield ACTION.pack(*first, WAIT, *first)
    for each, (_, other) in zip(group[1:], verdicts, strict=True):
        what = AGAIN if other else LAST if each is parts[-1] else JOIN
        yield ACTION.pack(*each[:2], what, *first)


def actions_of(
    compared: Iterable[tuple[Sequence[tuple[int, int, bytes, str]], Sequence[tuple[str, int]]]],
) -> Iterator[bytes]:
    """Yield what to do with samples that share a key; see `actions` and `keys.compare`."""
    for group, verdicts in compared:
        yield from actions(group, verdicts)


class PendingSamples:
    """The *actions*, sorted, which are asked for in the order of places, each once."""

    def __init__(self, actions: Iterable[bytes]) -> None:
        self._actions = iter(actions)
        self._next = self._taken()

    def _taken(self) -> Action | None:
        record = next(self._actions, None)
        if record is None:
            return None
        shard, byte, what, *first = ACTION.unpack(record)
        return Action((shard, byte), what, (first[0], first[1]))

    @property
    def place(self) -> tuple[int, int] | None:
        """The place of the next."""
        return None if self._next is None else self._next.place

    def at(self, place: tuple[int, int]) -> Action | None:
        """Return what to do with the sample at *place*; None if nothing was said."""
        while self._next is not None and self._next.place < place:  # of a sample that is no more
            self._next = self._taken()
        found = self._next
        if found is None or found.place != place:
            return None
        self._next = self._taken()
        return found


class Verdict(NamedTuple):
    """A *sample* to write, or None, and *why* it is left out. *left* is how many were left out on request."""

    sample: Sample | None
    why: str = ""
    joined: int = 0
    left: int = 0


class Fixing:
    """Decides about samples, in the order of the data set.

    Each sample has to have the fields *words*. With *unique*, the first sample of a key is kept, and of a field that a
    sample has twice the first member. Findings with codes *ignored* don't matter. *where* is that of `keys.compare`.

    Holds: the members of samples whose other members have not come.
    """

    def __init__(
        self,
        pending: PendingSamples,
        words: Words,
        unique: bool,
        decode: Decode | None,
        where: Where,
        ignored: Container[str] = (),
    ) -> None:
        self._pending = pending
        self._where = where
        self._words = words
        self._unique = unique
        self._decode = decode
        self._ignored = ignored
        self._waiting: dict[tuple[int, int], list[Sample]] = {}

    def is_about(self, shard: int, byte: int) -> bool:
        """Tell whether something was said of a sample that begins up to *byte* of *shard*, and not asked for."""
        place = self._pending.place
        return place is not None and place <= (shard, byte)

    def is_sound(self, summary: Summary) -> bool:
        """Tell whether all samples that *summary* is of can be written, if they have keys of their own."""
        return all(CODES[code].weight == NOTE or code in self._ignored for code in summary.findings) and not any(
            combination and self._lacks(names(combination)) for combination in summary.combinations
        )

    def _lacks(self, fields: Sequence[str]) -> list[str]:
        return [] if "missing-field" in self._ignored else lacking(fields, self._words)

    def of(
        self,
        sample: Sample,
        place: tuple[int, int],
        keep: Callable[[Sample], Sample],
        lost: Sequence[str] = (),
        *,
        doubtful: bool = False,
    ) -> Verdict:
        """Return what becomes of *sample* at *place*; *keep* returns a sample that may be held.

        *lost* are members of it that are cut. A *doubtful* one lies next to damage.
        """
        action = self._pending.at(place)
        if action is not None and action.what == AGAIN:
            if self._unique:
                return Verdict(None, left=1)
            first = beside(self._where(*action.first), self._where(*place))
            return Verdict(None, f"an earlier sample has this key, {first} (--drop-duplicates drops this one)")
        if action is not None:
            parts = self._waiting.setdefault(action.first, [])
            parts.append(keep(sample))
            if action.what != LAST:
                return Verdict(None, joined=1)
            del self._waiting[action.first]
            sample = sample.with_members([member for part in parts for member in part.members])
        if doubtful and not self._words:
            return Verdict(None, "it lies next to damage, and no fields are known that it should have (--expect)")
        return self._judged(sample, lost)

    def _judged(self, sample: Sample, lost: Sequence[str]) -> Verdict:
        if lost:
            return Verdict(None, f"{lost[0]!r} is cut")
        if self._unique:
            sample = first_members(sample)
        if sample.grouped and (lacks := self._lacks([name.lower() for name in sample.fields])):
            return Verdict(None, f"it lacks {' '.join(lacks)}")
        found = [each for each in codes_of(sample, self._decode) if each[0] not in self._ignored]
        if found:
            return Verdict(None, "; ".join(f"{code}{f' ({what})' if what else ''}" for code, what in found))
        return Verdict(sample)

    def left(self) -> Iterator[str]:
        """Yield the keys of samples whose last members never came."""
        yield from (text(parts[0].raw_key) for parts in self._waiting.values())


def first_members(sample: Sample) -> Sample:
    """Return *sample* with the first member of each field; case makes no difference."""
    kept: dict[str, Member] = {}
    for member in sample.members:
        kept.setdefault(field_name(member), member)
    return sample if len(kept) == len(sample.members) else sample.with_members(kept.values())
