"""Repair a data set (--fix): write the samples that can be saved, joined if necessary, and report all others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import starmap
from struct import Struct
from typing import TYPE_CHECKING

from tartools import storage
from tartools.errors import UsageError, printable, several, shown
from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample, decode_name, field_name
from tartools.shards.numbering import parse_numbering
from tartools.shards.writing import Destination, SampleWriter, check_shard_name, shard_writer
from tartools.stages.checking.across import ExpectedFields, Repeated, describe_place, missing_fields, names_of_fields
from tartools.stages.checking.checked import InputsToCheck
from tartools.stages.checking.codes import ShardFinding, is_harmless
from tartools.stages.checking.samples import Rows, check_samples, empty_summary, reasons_to_drop
from tartools.stages.samplefiles import Location, SampleFiles
from tartools.storage.names import has_number
from tartools.tar import Member

if TYPE_CHECKING:
    from tartools.storage.checksums import OutputSums

ACTION = Struct(">IQBIQ")  # input and byte of a sample, what to do with it, and those of the sample it belongs to
# join it to others: the first, another, the last; it has the key of another
WAITS, JOINS_NEXT, JOINS_LAST, REPEATS_KEY = range(4)


def actions_of(compared: Iterable[Repeated]) -> Iterator[bytes]:
    """Yield an ACTION record, which sorts by place, for each sample that shares a key with other samples.

    A record packs the input and byte of the sample, the action, and input and byte of the first sample of its group.

    `compared`: groups of samples with one key, and their verdicts, from `across.compare_keys`. Parts of the first
    sample have JOINS_NEXT, the last part JOINS_LAST, other samples REPEATS_KEY. The first sample of a group has a
    record, WAITS, only if it has parts. Order: that of the groups; sort the records for `PendingSamples`.
    """
    for group, verdicts in compared:
        first = group[0][:2]
        parts = [sample for sample, (_, is_own_sample) in zip(group[1:], verdicts, strict=True) if not is_own_sample]
        if parts:
            yield ACTION.pack(*first, WAITS, *first)
        for sample, (_, is_own_sample) in zip(group[1:], verdicts, strict=True):
            action = REPEATS_KEY if is_own_sample else JOINS_LAST if sample is parts[-1] else JOINS_NEXT
            yield ACTION.pack(*sample[:2], action, *first)


class PendingSamples:
    """Returns the actions of --fix for samples that share a key, from *actions*: the records of `actions_of`, sorted.

    Call `action_at` with ascending places; records of places passed over are dropped. A place is (input number, byte).
    """

    def __init__(self, actions: Iterable[bytes]) -> None:
        self._actions = map(ACTION.unpack, actions)
        self._next = next(self._actions, None)

    @property
    def place(self) -> tuple[int, int] | None:
        """The place, (input number, byte), of the next sample with an action; None at the end."""
        return None if self._next is None else self._next[:2]

    def action_at(self, place: tuple[int, int]) -> tuple[int, tuple[int, int]] | None:
        """Return (action, place of the first sample with its key) for the sample at *place*; None without an action.

        The action is WAITS (for its parts), JOINS_NEXT (a part; others follow), JOINS_LAST (the last part) or
        REPEATS_KEY.
        """
        while self._next is not None and self._next[:2] <= place:  # those before are of samples that are no more
            action, self._next = self._next, next(self._actions, None)
            if action[:2] == place:
                return action[2], action[3:]
        return None


def first_members(sample: Sample) -> Sample:
    """Return *sample* with only the first member of each field; names in different case are different fields.

    It is *sample* itself if it has no field twice.
    """
    by_field: dict[str, Member] = {}
    for member in sample.members:
        by_field.setdefault(field_name(member), member)
    return sample if len(by_field) == len(sample.members) else sample.with_members(by_field.values())


def destinations(output: str, force: bool, shards: InputsToCheck, sums: OutputSums | None = None) -> list[Destination]:
    """Return the sinks of the fixed shards: one for all, or one for each input if *output* is a pattern with a number.

    In a pattern, such as fixed-%06d.tar, the number is the input's, from 0. `force`: replace existing files. `shards`:
    the inputs. `sums`: gets the outputs' checksums. Raises: UsageError for stdout, a table, or a name that can't be an
    output; StorageError if an output exists (without `force`), is an input, or can't be written.
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
    return [Destination(name, force, sums=sums) for name in names]


@dataclass
class Fix:
    """Writes the samples of *shards* that can be saved to *sinks*, in order; reports other samples to *account*.

    Call `run` once. `shards`: as a check has left them, which has found the missing and unsound ones.
    `sinks`: one sink for all inputs, or one for each. `pending`: actions for samples that share a key; a joined sample
    is written at the place of its last part. `expected`: tuples of alternative fields, of each of which a sample has to
    have one. `unique`: of samples with one key, and of members with one field, all but the first are dropped without a
    report; else such samples are reported.
    `ignored`: codes of findings that don't matter. `decode`: decode payloads. `tmpdir`: folder of the parts of samples
    whose other parts have not come.
    """

    shards: InputsToCheck
    sinks: Sequence[Destination]
    pending: PendingSamples
    expected: ExpectedFields
    unique: bool
    ignored: Container[str]
    decode: bool
    account: Account
    tmpdir: str | None
    _waiting: dict[tuple[int, int], list[tuple[bytes, Location]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._files = SampleFiles(self.tmpdir)

    def run(self) -> None:
        """Write all samples that can be saved. An output appears when it is complete; one for all, at the end.

        With a sink for each input, a missing input has no output; it is reported. Raises: StorageError if an output is
        a shard that a table lists; the errors of reading and writing.
        """
        count = len(self.shards.urls)
        listed = [url for table in self.shards.tables.values() for url in table.urls]
        for place in self.sinks:
            storage.check_output(place.url, True, listed, single=False)
        if len(self.sinks) == 1:
            self._write_to(self.sinks[0], range(count))
        else:
            for number, place in enumerate(self.sinks):
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
                key = decode_name(parts[0][0])
                self.account.omit(f"sample {key!r} is not written: its members changed meanwhile")
            self.account.check()
        self.account.bytes_out += writer.bytes_written

    def _write(self, number: int, writer: SampleWriter) -> None:
        for item in self.shards.read(number):
            if not isinstance(item, Rows):
                self._omit(number, item)
                continue
            self.account.samples_in += len(item.keys)
            sound = self._is_sound(item)
            if sound and isinstance(item.samples, Batch):
                writer.write_batch(item.samples, 0, len(item.samples))
                self.account.samples_out += len(item.samples)
                continue
            for sample, byte in zip(item.samples, item.begins, strict=True):
                if sound:
                    self._write_sample(sample, writer)
                else:
                    self._save_or_report(sample, (number, byte), item, writer)

    def _omit(self, number: int, finding: ShardFinding) -> None:
        """Report *finding*, about input *number*; count table rows that it makes unreadable as read and dropped.

        An archive behind the end of another one is not reported: its samples are written.
        """
        self.account.samples_in += finding.rows
        self.account.dropped += finding.rows
        where, description = shown(self.shards.urls[number]), printable(finding.detail)
        if finding.byte >= 0:
            where = f"{where}: at byte {finding.byte}"
            if not finding.code.endswith("-compressed"):
                description = f"not written: {finding.code}{f' ({description})' if description else ''}"
        elif finding.rows:
            description = f"{several(finding.rows, 'row')} not written: {description}"
        if finding.code != "archive-after-end":
            self.account.omit(f"{where}: {description}")

    def _is_sound(self, rows: Rows) -> bool:
        """True if all samples of *rows* can be written as they are; if False, each has to be checked alone.

        That is, they do not lie next to damage, none has an action of `pending` or lacks an expected field, all
        findings about them are harmless or ignored, and with `unique` none has a field twice. Raises: StorageError if a
        payload can't be read.
        """
        if rows.doubtful or rows.lost:
            return False
        if self.pending.place is not None and self.pending.place <= (rows.shard, rows.begins[-1]):
            return False
        summary = empty_summary()
        check_samples(rows, summary, self.decode)
        if self.unique and "field-twice" in summary.findings:
            return False
        return all(is_harmless(code) or code in self.ignored for code in summary.findings) and not any(
            combination and self._missing_fields(names_of_fields(combination)) for combination in summary.combinations
        )

    def _missing_fields(self, fields: Sequence[str]) -> list[str]:
        return [] if "missing-field" in self.ignored else missing_fields(fields, self.expected)

    def _save_or_report(self, sample: Sample, place: tuple[int, int], rows: Rows, writer: SampleWriter) -> None:
        """Write *sample* of *rows*, at *place* (input number, byte), to *writer* if it can be saved; else report it.

        A part of a sample is held until the last part comes, then they are joined. With `unique`, a sample that repeats
        a key is counted as left out, and not reported. A sample next to damage is written with a warning. Raises: the
        errors of reading and writing.
        """
        account, why = self.account, ""
        action, first = self.pending.action_at(place) or (None, place)
        if action == REPEATS_KEY:
            if self.unique:
                account.left_out += 1
                return
            where = describe_place(self.shards.shard_place(*first), self.shards.shard_place(*place))
            why = f"an earlier sample has this key, {where} (--drop-duplicates drops this one)"
        elif action is not None:
            parts = self._waiting.setdefault(first, [])
            parts.append((sample.raw_key, self._files.store(sample)))
            if action != JOINS_LAST:
                account.joined += 1
                return
            del self._waiting[first]
            sample = sample.with_members(
                member for part in starmap(self._files.sample, parts) for member in part.members
            )
        if self.unique:
            sample = first_members(sample)
        if why := why or self._reason_to_drop(sample, rows):
            account.dropped += 1
            account.omit(f"{self._describe_place(place)}: sample {sample.key!r} is not written: {printable(why)}")
            return
        if rows.doubtful:
            fields = printable(" ".join(sample.fields))
            account.warn(
                f"{self._describe_place(place)}: sample {sample.key!r} lies next to damage; written with {fields}"
            )
        self._write_sample(sample, writer)

    def _write_sample(self, sample: Sample, writer: SampleWriter) -> None:
        writer.write(sample)
        self.account.samples_out += 1

    def _reason_to_drop(self, sample: Sample, rows: Rows) -> str:
        """Return the reason why *sample* of *rows* can't be saved; "" if it can.

        It lies next to damage and no fields are expected, one of its members is truncated, it lacks an expected field
        (unless "missing-field" is ignored), or it has findings that are neither harmless nor ignored. Raises:
        StorageError if a payload can't be read.
        """
        if rows.doubtful and not self.expected:
            return "it lies next to damage, and no fields are known that it should have (--expect)"
        if rows.lost:
            return f"{rows.lost[0]!r} is cut"
        if sample.grouped and (lacks := self._missing_fields([name.lower() for name in sample.fields])):
            return f"it lacks {' '.join(lacks)}"
        findings = [finding for finding in reasons_to_drop(sample, self.decode) if finding[0] not in self.ignored]
        return "; ".join(f"{code}{f' ({detail})' if detail else ''}" for code, detail in findings)

    def _describe_place(self, place: tuple[int, int]) -> str:
        shard, byte = self.shards.shard_place(*place)
        return f"{shown(shard)}: at byte {byte}"
