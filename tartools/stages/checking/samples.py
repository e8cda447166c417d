"""Samples as the reader finds them to a summary of what is wrong with them, and to a record of each key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from typing import NamedTuple

from tartools.samples.filetypes import BY_SUFFIX, FIRST, NUMBERS, PICKLES, TEXTS, TYPES, suffix_of, type_of_file
from tartools.samples.sample import Batch, Sample
from tartools.samples.unicodeforms import nfc
from tartools.stages.checking.across import DOUBTFUL, combination_number, key_records
from tartools.stages.checking.codes import Place, is_harmless
from tartools.stages.combinations import Combination, by_combination, heads_of, text
from tartools.stages.summary import EXTREMES, Distribution, FieldSummary, Summary, largest
from tartools.tar import Member

LISTED = 1000  # places of a finding that are remembered
USUAL = 50  # combinations of fields of which as many samples are remembered; of more, as many as of extremes
# what text does not begin with
CLEAR = tuple(
    (magic, one.what)
    for one in TYPES
    for magic in one.magics
    if (len(magic) > 3 and not magic.isalnum()) or magic[0] > 127 or magic[:1] < b"\t"
)
SECONDS = frozenset(magic[:2] for magic, _ in CLEAR)  # what these begin with

Finding = tuple[str, str]  # code and reason; "" is the code of a payload that is not decoded
Decode = Callable[[str, Member], Iterable[Finding]]  # of a field and a payload of it
PlaceOf = Callable[[int, str], Place]  # number of a sample, and what is wrong with it


class Rows(NamedTuple):
    """The *samples* of input *shard* that were found together, also as columns; they take *stored* bytes.

    Those that are *doubtful* lie next to damage; *lost* are members of theirs that are cut.
    """

    shard: int
    keys: Sequence[bytes]
    begins: Sequence[int]  # bytes of the tar stream, or rows of a table
    members: Sequence[Member]
    firsts: Sequence[int]
    stored: int
    samples: Batch | Sequence[Sample]
    doubtful: bool = False
    walked: bool = False  # by `walk`, not by the reader
    lost: Sequence[str] = ()


def rows_of_batch(batch: Batch, shard: int, row: int | None = None) -> Rows | None:
    """Return the samples of *batch*, which rows from *row* on list; None if it is not known where they are.

    Without a *row* it is asked where in the shard, with one that is known.
    """
    numbers = range(row or 0, (row or 0) + len(batch))
    groups = batch.groups
    if groups is not None and (groups.members is not None or row is None):
        source, keys, starts, members, firsts, _ = groups
        base = getattr(source, "base", 0)
        begins = numbers if row is not None else [start + base for start in starts[:-1]] if base else starts[:-1]
        return Rows(shard, keys, begins, members or [], firsts, starts[-1] - starts[0], batch)
    if row is None and batch.offset is None:
        return None
    return rows_of_samples(batch, shard, numbers if row is not None else [batch.offset or 0])


def rows_of_samples(samples: Batch | Sequence[Sample], shard: int, begins: Sequence[int]) -> Rows:
    """Return *samples*, which begin at *begins*."""
    keys = [sample.raw_key for sample in samples]
    members = [sample.members for sample in samples]
    firsts = [0, *accumulate(map(len, members))]
    every = [*chain.from_iterable(members)]
    return Rows(shard, keys, begins, every, firsts[:-1], sum(member.stored for member in every), samples)


def nothing_found() -> Summary:
    """Return a summary of no samples, for `look_at_samples`."""
    return Summary(LISTED, USUAL)


def look_at_samples(rows: Rows, summary: Summary, decode: Decode | None) -> Iterator[bytes]:
    """Add to *summary* what is wrong with the samples *rows*; return a record of the key of each that has fields.

    Of payloads the first bytes are looked at; with *decode* all of them. Raises: StorageError.
    """
    if not rows.members:  # all of them are cut
        return
    summary.samples += len(rows.keys)
    summary.stored += rows.stored
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
    """As `look_at_samples`, for the samples *group* of *rows*, which have the same fields and begin at *begins*."""
    count = len(group.keys)

    def place(number: int, what: str) -> Place:
        return Place(rows.shard, begins[number], text(group.keys[number]), what)

    if group.fields == ("",):
        for number, raw in enumerate(group.keys):
            if "hidden-file" not in codes_of_key(raw):
                summary.note("no-field", place(number, ""))
        summary.combined("", count, [])
        return ()
    combination = "/".join(group.fields)
    if rows.doubtful:
        combination = DOUBTFUL + combination
    known = summary.combinations.get(combination)
    most = LISTED - len(known.first) if known else LISTED
    summary.combined(combination, count, [place(number, "") for number in range(min(most, count))])
    for code, what in codes_of_fields(group.fields):
        for number in range(count):
            summary.note(code, place(number, what))
    for field, column in zip(group.fields, group.columns, strict=True):
        look_into(field, column, place, summary, read, decode)
    return key_records(group.keys, 2 * rows.shard + rows.walked, begins, combination_number(combination))


def look_into(
    field: str,
    column: Sequence[Member],
    place: PlaceOf,
    summary: Summary,
    read: Callable[[Sequence[Member]], Iterable[bytes]],
    decode: Decode | None,
) -> None:
    """Add to *summary* what is wrong with the payloads *column* of *field*, of samples at `place(number, what)`."""
    sizes = list(map(itemgetter(4), column))
    summary.counted(field, sizes_of(field, sizes, place, summary))
    if not min(sizes):
        for number, size in enumerate(sizes):
            if not size:
                summary.note("empty-field", place(number, field))
    suffix = suffix_of(field)
    if suffix in PICKLES:
        for number in range(len(column)):
            summary.note("pickle", place(number, field))
    lies: dict[int, str] = {}
    if suffix in TEXTS or suffix in BY_SUFFIX:
        heads = list(read(column))
        for number, code, what in lies_of(suffix, heads, sizes):
            if lies.setdefault(number, code) == code:
                summary.note(code, place(number, f"{field}: {what}"))
    if decode is not None:
        for number, code, reason in decoded_findings(field, column, decode):
            if not code:
                summary.undecoded.add(field)
            elif code != lies.get(number):
                summary.note(code, place(number, f"{field}: {reason}"))


def decoded_findings(field: str, column: Sequence[Member], decode: Decode) -> Iterator[tuple[int, str, str]]:
    """Yield number, code and reason of findings about the payloads *column* of *field*, which are decoded."""
    for number, member in enumerate(map(Member._make, column)):
        if member.size:
            for code, reason in decode(field, member):
                yield number, code, reason


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
    elif suffix in BY_SUFFIX and all(head.startswith(BY_SUFFIX[suffix].magics) for head in heads):
        return ()
    return range(len(heads))


def sizes_of(field: str, sizes: Sequence[int], place: PlaceOf, summary: Summary) -> FieldSummary:
    """Return the *sizes* of payloads of *field*, with the places of those that may be the extremes of *summary*."""
    found = Distribution.of(sizes)
    known = summary.fields.get(field)
    high = known.large[-1][0] if known and len(known.large) == EXTREMES else -1
    low = known.small[-1][0] if known and len(known.small) == EXTREMES else 1 << 64
    most = sorted(((-n, i) for i, n in enumerate(sizes) if n > high) if (found.greatest or 0) > high else ())
    least = sorted(((n, i) for i, n in enumerate(sizes) if n < low) if (found.least or 0) < low else ())
    large = [(-n, place(i, field)) for n, i in most[:EXTREMES]]
    small = [(n, place(i, field)) for n, i in least[:EXTREMES]]
    return FieldSummary(sizes=found, small=small, large=sorted(large, key=largest))


def codes_of(sample: Sample, decode: Decode | None) -> list[tuple[str, str]]:
    """Return the findings about *sample* alone because of which --fix leaves it out: codes, and what they are about."""
    summary = nothing_found()
    for _ in look_at_samples(rows_of_samples([sample], 0, [0]), summary, decode):
        pass
    return [(code, tally.first[0].what) for code, tally in summary.findings.items() if not is_harmless(code)]


# ---- what is odd about a member alone: its key and field, as readers take them, its first bytes beside its suffix ----


# something may be wrong with one of the keys, joined by newlines
_ODD = re.compile(rb"(?m)^/|(?:^|/)\.\.(?:/|$)|[\x00-\x09\x0b-\x1f\x7f]|(?:^|/)\.[^/.]|^__")
_PLAIN = b"\n-,0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_BEGINS = {
    "unsafe-path": re.compile(rb"/|(?:.*/)?\.\.(?:/|$)", re.DOTALL),
    "hidden-file": re.compile(rb"(?:.*/)?\.[^/.][^/]*$", re.DOTALL),
    "reserved-name": re.compile(rb"__[^/]*__(?:$|/)"),  # what webdataset skips
}

BEGINS_AS_NUMBER = re.compile(rb"[\s\d_+-]*")


def may_be_odd(keys: Sequence[bytes]) -> bool:
    """Tell whether `codes_of_key` may have something to say of one of *keys*: one look at all of them."""
    together = b"\n".join(keys)
    if not together.translate(None, _PLAIN):  # usually; faster than to search
        return together.count(b"\n") != len(keys) - 1
    if _ODD.search(together) or together.count(b"\n") != len(keys) - 1:
        return True
    try:
        together.decode()
    except UnicodeDecodeError:
        return True
    return False


def codes_of_key(key: bytes) -> list[str]:
    """Return the codes of what is odd about *key*."""
    found = [code for code, pattern in _BEGINS.items() if pattern.match(key)]
    if _CONTROL.search(key):
        found.append("control-character")
    try:
        key.decode()
    except UnicodeDecodeError:
        found.append("not-utf-8")
    return found


@lru_cache(10_000)
def codes_of_fields(fields: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return codes of what is odd about the names of the *fields* of a sample, each with what it is about."""
    found: list[tuple[str, str]] = []
    seen: dict[str, str] = {}
    forms: dict[bytes, str] = {}
    for field in fields:
        folded = field.lower()
        if seen.get(folded) == field:
            found.append(("field-twice", field))
        elif folded in seen:
            found.append(("case-twice", f"{seen[folded]} {field}"))
        elif (form := nfc(folded.encode("utf-8", "surrogateescape"))) in forms:
            found.append(("unicode-form", f"{forms[form]} {field}"))
        else:
            forms[form] = field
            if folded != field:
                found.append(("upper-case", field))
        seen.setdefault(folded, field)
        if field.startswith("_"):
            found.append(("reserved-name", field))
        raw = field.encode("utf-8", "surrogateescape")
        if _CONTROL.search(raw):
            found.append(("control-character", field))
        if any(0xDC80 <= ord(letter) <= 0xDCFF for letter in field):
            found.append(("not-utf-8", field))
    return tuple(found)


def lie(suffix: str, head: bytes) -> str:
    """Return what is wrong with a payload that begins with *head* in a field that ends in *suffix*; empty if nothing.

    >>> lie("jpg", b"GIF89a..."), lie("jpg", b"hello"), lie("txt", b"hello")
    ('it is a GIF picture, not a JPEG picture', 'it does not begin as a JPEG picture', '')
    """
    if suffix in TEXTS:
        clear = next((what for magic, what in CLEAR if head.startswith(magic)), "")
        return f"it is {clear}, not text" if clear else ""
    said, found = BY_SUFFIX.get(suffix), type_of_file(head)
    if said is None or not head or head.startswith(said.magics) or (found and found.what == said.what):
        return ""
    return f"it is {found.what}, not {said.what}" if found else f"it does not begin as {said.what}"


def no_number(head: bytes, size: int) -> str:
    """Return what is wrong with a payload of *size* bytes that begins with *head*, and should be a number for `int`.

    >>> no_number(b"-5", 3), no_number(b"1.5", 3), no_number(b"an oak in autumn", 20)
    ('', "'1.5' is not a whole number", "'an oak in autumn...' is not a whole number")
    """
    try:
        if size > len(head) and BEGINS_AS_NUMBER.fullmatch(head):
            return ""
        int(head)
    except ValueError:
        text = head.decode(errors="replace")
        return f"{text + '...' * (size > len(head))!r} is not a whole number"
    return ""
