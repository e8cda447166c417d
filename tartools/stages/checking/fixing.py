"""Save what can be saved of a data set: which samples, as what, and where to."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from struct import Struct

from tartools import storage
from tartools.errors import UsageError, printable, several, shown
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample, field_name
from tartools.shards.numbering import parse_numbering
from tartools.shards.writing import Destination, SampleWriter, check_shard_name, shard_writer
from tartools.stages.checking.across import Repeated, Words, beside, lacking_words, names_of_fields
from tartools.stages.checking.checked import CheckedShards
from tartools.stages.checking.codes import Trouble, is_harmless
from tartools.stages.checking.samples import Decode, Rows, codes_of, look_at_samples, nothing_found
from tartools.stages.combinations import text
from tartools.stages.samplefiles import Entry, SampleFiles
from tartools.storage.names import has_number
from tartools.tar import Member

ACTION = Struct(">IQBIQ")  # input and byte of a sample, what to do with it, and those of the sample it belongs to
WAIT, JOIN, LAST, AGAIN = range(4)  # join it to others: the first, another, the last; it has the key of another


def actions_of(compared: Iterable[Repeated]) -> Iterator[bytes]:
    """Yield what to do with samples that share a key, in records that sort by place; see `across.compare_keys`."""
    for group, verdicts in compared:
        first = group[0][:2]
        parts = [each for each, (_, other) in zip(group[1:], verdicts, strict=True) if not other]
        if parts:
            yield ACTION.pack(*first, WAIT, *first)
        for each, (_, other) in zip(group[1:], verdicts, strict=True):
            what = AGAIN if other else LAST if each is parts[-1] else JOIN
            yield ACTION.pack(*each[:2], what, *first)


class PendingSamples:
    """The *actions*, sorted, which are asked for in the order of places, each once."""

    def __init__(self, actions: Iterable[bytes]) -> None:
        self._actions = map(ACTION.unpack, actions)
        self._next = next(self._actions, None)

    @property
    def place(self) -> tuple[int, int] | None:
        """The place of the next."""
        return None if self._next is None else self._next[:2]

    def at(self, place: tuple[int, int]) -> tuple[int, tuple[int, int]] | None:
        """Return what to do with the sample at *place*, and the place of the first with its key; None if nothing."""
        while self._next is not None and self._next[:2] <= place:  # those before are of samples that are no more
            found, self._next = self._next, next(self._actions, None)
            if found[:2] == place:
                return found[2], found[3:]
        return None


def first_members(sample: Sample) -> Sample:
    """Return *sample* with the first member of each field; case makes no difference."""
    kept: dict[str, Member] = {}
    for member in sample.members:
        kept.setdefault(field_name(member), member)
    return sample if len(kept) == len(sample.members) else sample.with_members(kept.values())


def destinations(output: str, force: bool, shards: CheckedShards) -> list[Destination]:
    """Return where the fixed shards go: all to one, or each to its own if *output* is a pattern with a number.

    Raises: UsageError; StorageError if an output exists, or is an input.
    """
    if output == "-":
        raise UsageError("-o takes a file or a URL: the findings go to stdout")
    names = [output]
    if has_number(output):
        numbering = parse_numbering(output, False)
        names = [numbering.name(number) for number in range(len(shards.urls))]
    for name in names:
        check_shard_name(name)
        storage.check_output(name, force, shards.urls, single=False)
    return [Destination(name, force) for name in names]


@dataclass
class Fix:
    """Writes the samples of *shards* that can be saved to *places*, in their order; tells *account* of all others.

    Each sample has to have the fields *words*. With *unique*, the first sample of a key is kept, and of a field that a
    sample has twice the first member. Findings with codes *ignored* don't matter. *pending* are samples that share a
    key. Holds: nothing of samples whose other members have not come: *files* have them.
    """

    shards: CheckedShards
    places: Sequence[Destination]
    pending: PendingSamples
    words: Words
    unique: bool
    ignored: Container[str]
    decode: Decode | None
    account: Account
    files: SampleFiles
    _waiting: dict[tuple[int, int], list[Entry]] = field(default_factory=dict)

    def run(self) -> None:
        """Write all. An output appears when it is complete; one for all shards, after the last of them.

        Raises: StorageError if an output is a shard that a table lists.
        """
        count = len(self.shards.urls)
        listed = [url for table in self.shards.tables.values() for url in table.urls]
        for place in self.places:
            storage.check_output(place.url, True, listed, single=False)
        if len(self.places) == 1:
            self._write_to(self.places[0], range(count))
        else:
            for number, place in enumerate(self.places):
                if number in self.shards.missing:
                    self._omit(number, self.shards.missing[number])
                else:
                    self._write_to(place, [number])

    def _write_to(self, place: Destination, numbers: Sequence[int]) -> None:
        last = numbers[-1] == len(self.shards.urls) - 1
        with shard_writer(place) as writer:
            assert isinstance(writer, SampleWriter)
            for number in numbers:
                self._write(number, writer)
            for parts in self._waiting.values() if last else ():  # samples whose other members have not come
                key = text(parts[0].key)
                self.account.omit(f"sample {key!r} is not written: its members changed meanwhile")
            self.account.check()
        self.account.bytes_out += writer.written

    def _write(self, number: int, writer: SampleWriter) -> None:
        for found in self.shards.read(number):
            if not isinstance(found, Rows):
                self._omit(number, found)
                continue
            self.account.samples_in += len(found.keys)
            sound = self._is_sound(found)
            if sound and isinstance(found.samples, Batch):
                writer.write_batch(found.samples, 0, len(found.samples))
                self.account.samples_out += len(found.samples)
                continue
            for sample, byte in zip(found.samples, found.begins, strict=True):
                if sound:
                    self._write_sample(sample, writer)
                else:
                    self._take(sample, (number, byte), found, writer)

    def _omit(self, number: int, found: Trouble) -> None:
        """Report what can't be written because of what was *found*, unless that is nothing."""
        self.account.samples_in += found.rows
        self.account.dropped += found.rows
        where, what = shown(self.shards.urls[number]), printable(found.what)
        if found.byte >= 0:
            where = f"{where}: at byte {found.byte}"
            if not found.code.endswith("-compressed"):
                what = f"not written: {found.code}{f' ({what})' if what else ''}"
        elif found.rows:
            what = f"{several(found.rows, 'row')} not written: {what}"
        if found.code != "archive-after-end":
            self.account.omit(f"{where}: {what}")

    def _is_sound(self, rows: Rows) -> bool:
        """Tell whether all samples *rows* can be written as they are: one look at all of them."""
        if rows.doubtful or rows.lost:
            return False
        if self.pending.place is not None and self.pending.place <= (rows.shard, rows.begins[-1]):
            return False
        summary = nothing_found()
        for _ in look_at_samples(rows, summary, self.decode):
            pass
        return all(is_harmless(code) or code in self.ignored for code in summary.findings) and not any(
            combination and self._lacks(names_of_fields(combination)) for combination in summary.combinations
        )

    def _lacks(self, fields: Sequence[str]) -> list[str]:
        return [] if "missing-field" in self.ignored else lacking_words(fields, self.words)

    def _take(self, sample: Sample, place: tuple[int, int], rows: Rows, writer: SampleWriter) -> None:
        """Write *sample* of *rows*, which is at *place*, if it can be saved, and with it those that belong to it."""
        account, why = self.account, ""
        action, first = self.pending.at(place) or (None, place)
        if action == AGAIN:
            if self.unique:
                account.left_out += 1
                return
            where = beside(self.shards.where(*first), self.shards.where(*place))
            why = f"an earlier sample has this key, {where} (--drop-duplicates drops this one)"
        elif action is not None:
            parts = self._waiting.setdefault(first, [])
            parts.append(Entry(b"", sample.raw_key, *self.files.store(sample)))
            if action != LAST:
                account.joined += 1
                return
            del self._waiting[first]
            sample = sample.with_members(member for part in map(self.files.sample, parts) for member in part.members)
        if self.unique:
            sample = first_members(sample)
        if why := why or self._why_not(sample, rows):
            account.dropped += 1
            account.omit(f"{self._at(place)}: sample {sample.key!r} is not written: {printable(why)}")
            return
        if rows.doubtful:
            fields = printable(" ".join(sample.fields))
            account.warn(f"{self._at(place)}: sample {sample.key!r} lies next to damage; written with {fields}")
        self._write_sample(sample, writer)

    def _write_sample(self, sample: Sample, writer: SampleWriter) -> None:
        writer.write(sample)
        self.account.samples_out += 1

    def _why_not(self, sample: Sample, rows: Rows) -> str:
        """Return why *sample* of *rows* can't be saved, "" if it can."""
        if rows.doubtful and not self.words:
            return "it lies next to damage, and no fields are known that it should have (--expect)"
        if rows.lost:
            return f"{rows.lost[0]!r} is cut"
        if sample.grouped and (lacks := self._lacks([name.lower() for name in sample.fields])):
            return f"it lacks {' '.join(lacks)}"
        found = [each for each in codes_of(sample, self.decode) if each[0] not in self.ignored]
        return "; ".join(f"{code}{f' ({what})' if what else ''}" for code, what in found)

    def _at(self, place: tuple[int, int]) -> str:
        shard, byte = self.shards.where(*place)
        return f"{shown(shard)}: at byte {byte}"
