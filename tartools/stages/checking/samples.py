"""Check samples as the reader returns them: add findings to a summary, and make a record of each key."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from tartools.samples.batch import Batch
from tartools.samples.fieldcolumns import Combination, FieldColumn, group_samples
from tartools.samples.filetypes import (
    BY_SUFFIX,
    MAGIC_BYTES,
    NUMBER_SUFFIXES,
    PICKLES,
    TEXTS,
    TYPES,
    suffix_of,
    type_of_file,
)
from tartools.samples.kinds import decode_payload
from tartools.samples.kinds.texts import number_mismatch
from tartools.samples.sample import Sample, decode_name
from tartools.samples.unicodeforms import to_nfc
from tartools.stages.checking.across import DOUBTFUL_PREFIX, combination_number, key_records
from tartools.stages.checking.codes import Place, is_harmless
from tartools.stages.summary import MAX_EXTREMES, Distribution, FieldSummary, Summary, extreme_sort_key
from tartools.tar import Member

MAX_FINDING_PLACES = 1000  # places of a finding that are remembered
MAX_USUAL_COMBINATIONS = (
    50  # combinations of fields of which as many samples are remembered; of more, as many as of extremes
)
# what text does not begin with
UNAMBIGUOUS_MAGICS = tuple(
    (magic, file_type.what)
    for file_type in TYPES
    for magic in file_type.magics
    if (len(magic) > 3 and not magic.isalnum()) or magic[0] > 127 or magic[:1] < b"\t"
)
MAGIC_STARTS = frozenset(magic[:2] for magic, _ in UNAMBIGUOUS_MAGICS)  # what these begin with

PlaceOf = Callable[[int, str], Place]  # number of a sample, and what is wrong with it


class Rows(NamedTuple):
    """Adjacent samples of one input, with their places, for the check.

    `shard`: number of the input. `keys`, `begins`: of each sample: key, and byte of the tar stream or table row.
        `combinations`: the samples grouped by their fields. `stored`: bytes that they take in the archive. `samples`:
        the samples, in the same order.
    `doubtful`: True if they lie next to damage. `lost`: names of their members that are truncated.
    """

    shard: int
    keys: Sequence[bytes]
    begins: Sequence[int]  # bytes of the tar stream, or rows of a table
    combinations: Sequence[Combination]
    stored: int
    samples: Batch | Sequence[Sample]
    doubtful: bool = False
    lost: Sequence[str] = ()


def rows_of_batch(batch: Batch, shard: int, row: int | None = None) -> Rows | None:
    """Return `Rows` of *batch*, samples of input number *shard*; None if their places in it are not known.

    `row`: row of the first sample, if the input is a table: places are row numbers then, else bytes.
    """
    bounds = batch.bounds() if row is None else range(row, row + len(batch) + 1)
    if bounds is None:
        return None
    return Rows(shard, batch.keys, bounds[:-1], batch.combinations(), batch.memory_size(0, len(batch)), batch)


def rows_of_samples(samples: Sequence[Sample], shard: int, begins: Sequence[int]) -> Rows:
    """Return `Rows` of *samples*, at least one, of input number *shard*; *begins*: byte, or table row, of each."""
    keys, stored = [sample.raw_key for sample in samples], sum(sample.size for sample in samples)
    return Rows(shard, keys, begins, group_samples(samples), stored, samples)


def empty_summary() -> Summary:
    """Return a summary without samples, with the limits of a check.

    Up to 1,000 places of each finding are kept (MAX_FINDING_PLACES), and as many samples of each combination of fields,
    but no more than 20 once there are over 50 combinations (MAX_USUAL_COMBINATIONS).
    """
    return Summary(MAX_FINDING_PLACES, MAX_USUAL_COMBINATIONS)


def check_samples(rows: Rows, summary: Summary, decode: bool) -> list[bytes]:
    """Add the samples *rows*, and findings about them, to *summary*; return the key records of the samples with fields.

    Key records are bytes that sort by key and place, one or two a sample: see `key_records`; the list is not sorted.
    Checks keys, names of fields, sizes and first bytes of payloads; with *decode*, payloads are decoded, too. Counts
    are added to `samples`, `stored`, `combinations` and `fields` (sizes, `small` and `large` only). If no sample has a
    complete member, nothing is added, and the list is empty. Raises: StorageError if a payload can't be read, or, with
    *decode*, a compressed one needs too much memory.
    """
    records: list[bytes] = []
    if not any(same.fields for same in rows.combinations):  # all members are cut
        return records
    summary.samples += len(rows.keys)
    summary.stored += rows.stored
    if may_have_findings(rows.keys):
        for key, byte in zip(rows.keys, rows.begins, strict=True):
            for code in codes_of_key(key):
                summary.note(code, Place(rows.shard, byte, decode_name(key)))
    for group in rows.combinations:
        begins = rows.begins if len(group) == len(rows.keys) else [rows.begins[n] for n in group.numbers]
        records += check_group(group, begins, rows, summary, decode)
    return records


def check_group(
    group: Combination,
    begins: Sequence[int],
    rows: Rows,
    summary: Summary,
    decode: bool,
) -> Sequence[bytes]:
    """Add findings about *group*, samples of *rows* with the same fields, to *summary*; return their key records.

    Findings are about the names of fields and, by `check_payloads`, the payloads, not about keys. The combination of
    fields is counted, with a DOUBTFUL_PREFIX if `rows.doubtful`, and so are the sizes. If the members of *group* have
    no field, only their number is counted, as the combination "", and each gets the finding "no-field", unless it is a
    hidden file; there are no records. `begins`: for each sample of *group* its byte or table row. *decode*: True to
    decode payloads. Raises: StorageError as `check_payloads` does.
    """
    count = len(group.keys)

    def place(number: int, detail: str) -> Place:
        return Place(rows.shard, begins[number], decode_name(group.keys[number]), detail)

    if group.fields == ("",):
        for number, raw in enumerate(group.keys):
            if "hidden-file" not in codes_of_key(raw):
                summary.note("no-field", place(number, ""))
        summary.add_combination("", count, [])
        return ()
    combination = "/".join(group.fields)
    if rows.doubtful:
        combination = DOUBTFUL_PREFIX + combination
    tally = summary.combinations.get(combination)
    places_left = MAX_FINDING_PLACES - len(tally.first) if tally else MAX_FINDING_PLACES
    summary.add_combination(combination, count, [place(number, "") for number in range(min(places_left, count))])
    for code, detail in codes_of_fields(group.fields):
        for number in range(count):
            summary.note(code, place(number, detail))
    for column in group.columns:
        check_payloads(column, place, summary, decode)
    return key_records(group.keys, rows.shard, begins, combination_number(combination))


def check_payloads(column: FieldColumn, place: PlaceOf, summary: Summary, decode: bool) -> None:
    """Add sizes of the payloads of the field *column*, and findings about them, to *summary*.

    `place(number, detail)`: returns the place of a finding about sample *number* of the column. First bytes are
    checked; with *decode*, payloads are decoded, too; the field is added to `undecoded` if one is too large for that.
    Codes: "empty-field", "pickle" (each payload of such a suffix), the first of `type_findings` for a payload, and
    those of decoding, such as "broken-picture", except that same one. Raises: StorageError if a payload can't be read,
    or, with *decode*, a compressed one needs too much memory.
    """
    field, sizes = column.name, column.sizes
    summary.add_field(field, summarize_sizes(field, sizes, place, summary))
    if not min(sizes):
        for number, size in enumerate(sizes):
            if not size:
                summary.note("empty-field", place(number, field))
    suffix = suffix_of(field)
    if suffix in PICKLES:
        for number in range(len(sizes)):
            summary.note("pickle", place(number, field))
    lies: dict[int, str] = {}
    if suffix in TEXTS or suffix in BY_SUFFIX:
        heads = list(map(bytes, column.payloads(MAGIC_BYTES)))
        for number, code, detail in type_findings(suffix, heads, sizes):
            if lies.setdefault(number, code) == code:
                summary.note(code, place(number, f"{field}: {detail}"))
    if decode:
        for number, code, reason in decoded_findings(field, column.members):
            if not code:
                summary.undecoded.add(field)
            elif code != lies.get(number):
                summary.note(code, place(number, f"{field}: {reason}"))


def decoded_findings(field: str, column: Sequence[Member]) -> Iterator[tuple[int, str, str]]:
    """Decode the payloads of *column*, members of *field*; yield (index in *column*, code, reason) for each finding.

    The code is "" for a payload that is too large to decode. Empty payloads give no finding, nor does a suffix that
    `decode_payload` has no check for; others give several, perhaps. Raises: StorageError if a payload can't be read, or
    a compressed one needs too much memory.
    """
    for number, member in enumerate(map(Member._make, column)):
        if member.size:
            for code, reason in decode_payload(field, member):
                yield number, code, reason


def type_findings(suffix: str, heads: Sequence[bytes], sizes: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Yield (number, code, reason) for payloads whose first bytes, *heads*, do not fit the *suffix* of their field.

    `number`: index of the payload in *heads*. `sizes`: bytes of the payloads. The code is "suffix-lies"; if readers
    take the field for a number (cls), then also "not-a-number" for a payload that is not empty and, as far as its head
    shows, no whole number: a payload may have both.
    """
    for number in find_suspicious(suffix, heads):
        if reason := type_mismatch(suffix, heads[number]):
            yield number, "suffix-lies", reason
    if suffix not in NUMBER_SUFFIXES:
        return
    reasons = {
        head_and_size: reason
        for head_and_size in {*zip(heads, sizes, strict=True)}
        if head_and_size[1] and (reason := number_mismatch(*head_and_size))
    }
    if reasons:
        for number, head_and_size in enumerate(zip(heads, sizes, strict=True)):
            if head_and_size in reasons:
                yield number, "not-a-number", reasons[head_and_size]


def find_suspicious(suffix: str, heads: Sequence[bytes]) -> Iterable[int]:
    """Return no indexes if all *heads* surely fit *suffix*, else all of them, for `type_mismatch` to check.

    *heads*: first bytes of payloads. Usually none; all if one is empty, unless *suffix* is that of a text.
    """
    if suffix in TEXTS:
        if MAGIC_STARTS.isdisjoint({head[:2] for head in heads}):
            return ()
    elif suffix in BY_SUFFIX and all(head.startswith(BY_SUFFIX[suffix].magics) for head in heads):
        return ()
    return range(len(heads))


def summarize_sizes(field: str, sizes: Sequence[int], place: PlaceOf, summary: Summary) -> FieldSummary:
    """Return a summary of the payload *sizes* of *field*, with the places of the smallest and largest of them.

    It counts sizes only, no samples or members. Up to 20 of each are listed (MAX_EXTREMES); if *summary* has 20, only
    payloads that are more extreme. Empty ones are not among the smallest. `place(number, detail)`: returns the place of
    payload *number*; the detail is *field*.
    """
    # a place is made only for sizes more extreme than the 20 listed so far: for most batches there is none
    distribution = Distribution.of(sizes)
    field_summary = summary.fields.get(field)
    high = field_summary.large[-1][0] if field_summary and len(field_summary.large) == MAX_EXTREMES else -1
    low = field_summary.small[-1][0] if field_summary and len(field_summary.small) == MAX_EXTREMES else 1 << 64
    above_high = sorted(
        ((-n, i) for i, n in enumerate(sizes) if n > high) if (distribution.maximum or 0) > high else ()
    )
    below_low = sorted(
        ((n, i) for i, n in enumerate(sizes) if 0 < n < low) if (distribution.minimum or 0) < low else ()
    )
    large = [(-n, place(i, field)) for n, i in above_high[:MAX_EXTREMES]]
    small = [(n, place(i, field)) for n, i in below_low[:MAX_EXTREMES]]
    counts = FieldSummary(sizes=distribution)
    counts.small, counts.large = small, sorted(large, key=extreme_sort_key)
    return counts


def reasons_to_drop(sample: Sample, decode: bool) -> list[tuple[str, str]]:
    """Return (code, detail) of the findings about *sample* alone for which --fix leaves it out; [] if there are none.

    Each code comes once, with the detail of its first finding, "" for one about the key. With *decode*, payloads are
    decoded, too. Raises: StorageError if a payload can't be read, or, with *decode*, a compressed one needs too much
    memory.
    """
    summary = empty_summary()
    check_samples(rows_of_samples([sample], 0, [0]), summary, decode)
    return [(code, tally.first[0].detail) for code, tally in summary.findings.items() if not is_harmless(code)]


# ---- findings about a single member: its key and field, as readers split them, and its first bytes and suffix ----


# something may be wrong with one of the keys, joined by newlines
_UNSAFE_PATH = re.compile(rb"(?m)^/|(?:^|/)\.\.(?:/|$)|[\x00-\x09\x0b-\x1f\x7f]|(?:^|/)\.[^/.]|^__")
_ORDINARY_NAME_BYTES = b"\n-,0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CONTROL_BYTE = re.compile(rb"[\x00-\x1f\x7f]")
_KEY_PATTERNS_BY_CODE = {
    "unsafe-path": re.compile(rb"/|(?:.*/)?\.\.(?:/|$)", re.DOTALL),
    "hidden-file": re.compile(rb"(?:.*/)?\.[^/.][^/]*$", re.DOTALL),
    "reserved-name": re.compile(rb"__[^/]*__(?:$|/)"),  # what webdataset skips
}


def may_have_findings(keys: Sequence[bytes]) -> bool:
    """True if `codes_of_key` may return a code for one of *keys*; False if it surely returns none: a fast check."""
    joined = b"\n".join(keys)
    if not joined.translate(None, _ORDINARY_NAME_BYTES):  # usually; faster than to search
        return joined.count(b"\n") != len(keys) - 1
    if _UNSAFE_PATH.search(joined) or joined.count(b"\n") != len(keys) - 1:
        return True
    try:
        joined.decode()
    except UnicodeDecodeError:
        return True
    return False


def codes_of_key(key: bytes) -> list[str]:
    """Return the codes of findings about the name *key*; [] if it is an ordinary name.

    Codes: "unsafe-path", "hidden-file", "reserved-name", "control-character", "not-utf-8".
    """
    codes = [code for code, pattern in _KEY_PATTERNS_BY_CODE.items() if pattern.match(key)]
    if _CONTROL_BYTE.search(key):
        codes.append("control-character")
    try:
        key.decode()
    except UnicodeDecodeError:
        codes.append("not-utf-8")
    return codes


@lru_cache(10_000)
def codes_of_fields(fields: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return (code, detail) for each finding about the names of the *fields* of one sample; the detail is the name.

    Codes: "field-twice", "upper-case", "reserved-name", "control-character", "not-utf-8"; "case-twice" and
    "unicode-form", whose detail has both names, separated by a blank.
    """
    findings: list[tuple[str, str]] = []
    by_folded_name: dict[str, str] = {}
    forms: dict[bytes, str] = {}
    for field in fields:
        folded = field.lower()
        if by_folded_name.get(folded) == field:
            findings.append(("field-twice", field))
        elif folded in by_folded_name:
            findings.append(("case-twice", f"{by_folded_name[folded]} {field}"))
        elif (form := to_nfc(folded.encode("utf-8", "surrogateescape"))) in forms:
            findings.append(("unicode-form", f"{forms[form]} {field}"))
        else:
            forms[form] = field
            if folded != field:
                findings.append(("upper-case", field))
        by_folded_name.setdefault(folded, field)
        if field.startswith("_"):
            findings.append(("reserved-name", field))
        raw = field.encode("utf-8", "surrogateescape")
        if _CONTROL_BYTE.search(raw):
            findings.append(("control-character", field))
        if any(0xDC80 <= ord(letter) <= 0xDCFF for letter in field):
            findings.append(("not-utf-8", field))
    return tuple(findings)


def type_mismatch(suffix: str, head: bytes) -> str:
    """Return why a payload that begins with *head* does not fit the *suffix* of its field; "" if it fits.

    Anything fits a suffix of an unknown type; an empty *head* fits any; a text is only told from binary types.

    >>> type_mismatch("jpg", b"GIF89a..."), type_mismatch("jpg", b"hello"), type_mismatch("txt", b"hello")
    ('it is a GIF picture, not a JPEG picture', 'it does not begin as a JPEG picture', '')
    """
    if suffix in TEXTS:
        magic_type = next((type_name for magic, type_name in UNAMBIGUOUS_MAGICS if head.startswith(magic)), "")
        return f"it is {magic_type}, not text" if magic_type else ""
    expected, detected = BY_SUFFIX.get(suffix), type_of_file(head)
    if (
        expected is None
        or not head
        or head.startswith(expected.magics)
        or (detected and detected.what == expected.what)
    ):
        return ""
    return f"it is {detected.what}, not {expected.what}" if detected else f"it does not begin as {expected.what}"
