"""Findings that need other samples: repeated keys, missing fields, unusual sizes.

Keys are compared as records, which sort by key and place. A record is the key, as `sortkeys.text_bytes` encodes it,
then 20 bytes: number of the input, byte, fields. A key that is not in Unicode form NFC has a second record: its NFC
form, `UNICODE_FORM_PREFIX`, and the key before the 20 bytes. It sorts directly after the records of the NFC form:

    NFC key | input byte fields
    NFC key | UNICODE_FORM_PREFIX | key | input byte fields
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from struct import Struct

from tartools.errors import in_units, shown
from tartools.samples.digests import blake2b
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import BY_SUFFIX, PICTURE, SOUND, VIDEO, suffix_of
from tartools.samples.sample import decode_name
from tartools.samples.sortkeys import text_bytes, text_of_key
from tartools.samples.unicodeforms import to_nfc
from tartools.stages.checking.codes import Place
from tartools.stages.summary import Summary, Tally

Keyed = tuple[int, int, bytes, str]  # a sample: its input, byte, key, and fields
Repeated = tuple[list[Keyed], list[tuple[str, int]]]  # samples that share a key, and their verdicts: `judge_repeats`
ShardPlace = Callable[[int, int], tuple[str, int]]  # input and byte of a sample -> its shard, and the byte there

DOUBTFUL_PREFIX = "\0"  # precedes the fields of a sample next to damage, which may lack some that it had
RECORD_TAIL = Struct(">IQ8s")
MAX_SAMPLES_OF_KEY = 100_000  # samples with one key that are looked at together
END_OF_KEY = b"\0\0"  # of `text_bytes`
UNICODE_FORM_PREFIX = b"\xff"  # more than the first byte of an input's number
OTHER_FORM_MARK = END_OF_KEY + UNICODE_FORM_PREFIX  # in records of keys that are not in form NFC, and in no others


def names_of_fields(combination: str) -> list[str]:
    """Return the lower-case names of the fields in *combination*, which joins them with "/".

    A DOUBTFUL_PREFIX before them is dropped. "", the combination of members without a field, gives [""].
    """
    return combination.removeprefix(DOUBTFUL_PREFIX).lower().split("/")


def combination_number(combination: str) -> bytes:
    """Return the digest (8 bytes) that stands for *combination*, names of fields joined by "/", in a key record."""
    return blake2b(combination.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def key_records(keys: Sequence[bytes], shard: int, begins: Iterable[int], number: bytes) -> list[bytes]:
    """Return the key records of samples with the same fields: bytes that sort by key, then by place.

    A record is the encoded key, then number of the input, byte, and *number*. First one for each of *keys*, in their
    order; then a second one for each key that is not in Unicode form NFC, which sorts behind those of its NFC form.
    `shard`: number of the input. `begins`: the byte at which each sample begins, or its table row. `number`:
    `combination_number` of their fields.
    """
    tails = map(RECORD_TAIL.pack, repeat(shard), begins, repeat(number))
    records = [text_bytes(key) + tail for key, tail in zip(keys, tails, strict=False)]
    if not b"".join(keys).isascii():
        records += [
            text_bytes(form) + UNICODE_FORM_PREFIX + record
            for key, record in zip(keys, records, strict=True)
            if (form := to_nfc(key)) != key
        ]
    return records


def group_repeated_keys(records: Iterable[bytes], combinations: dict[bytes, str]) -> Iterator[list[Keyed]]:
    """Yield lists of samples, (input, byte, key, fields), that share a key, in input order.

    `records`: key records, sorted. Samples whose keys differ only in Unicode form give a list, too: first, wherever it
    is, a sample with the key in form NFC (or else in the first other form), then in input order the samples with one
    other form. `combinations`: fields by `combination_number`, complete once the first record comes.
    Holds: 100,000 samples with one key (MAX_SAMPLES_OF_KEY); further lists of that key begin with its first sample
    again.
    """
    size = RECORD_TAIL.size
    encoded, group = b"", list[bytes]()  # the key of the records in *group*
    cut = 0  # bytes to cut off the front of each record of *group*: its NFC form
    nfc_form, first_of_form = b"", b""  # the last key without another form; the first record that has this NFC form
    is_compared = True  # False: no sample has the NFC form of *group*, which is the first of its forms
    for record in records:
        if record[:-size] == encoded:  # usually keys differ: the loop is kept short for that
            if is_compared:
                group.append(record[cut:])
            if len(group) >= MAX_SAMPLES_OF_KEY:
                yield [unpack_record(record, combinations) for record in group]
                del group[1:]
            continue
        if len(group) > 1:
            yield [unpack_record(record, combinations) for record in group]
        encoded = record[:-size]
        if OTHER_FORM_MARK not in encoded:
            cut, is_compared, group = 0, True, [record]
            nfc_form, first_of_form = encoded, record
            continue
        form = encoded.partition(OTHER_FORM_MARK)[0] + END_OF_KEY
        cut = len(form) + len(UNICODE_FORM_PREFIX)
        is_compared = form == nfc_form
        if is_compared:
            group = [first_of_form, record[cut:]]
        else:
            nfc_form, first_of_form, group = form, record[cut:], []
    if len(group) > 1:
        yield [unpack_record(record, combinations) for record in group]


def unpack_record(record: bytes, combinations: dict[bytes, str]) -> Keyed:
    """Return (input, byte, key, fields) of *record*, a key record without UNICODE_FORM_PREFIX.

    *combinations*: fields, joined by "/", by combination number; the fields are "" if it lacks the number.
    """
    shard, byte, number = RECORD_TAIL.unpack(record[-RECORD_TAIL.size :])
    return shard, byte, text_of_key(record[: -RECORD_TAIL.size]), combinations.get(number, "")


def judge_repeats(group: Sequence[Keyed], shard_place: ShardPlace) -> Iterator[tuple[str, int]]:
    """Yield a verdict (code of the finding, is_own_sample) for each but the first of *group*, samples with one key.

    A sample that shares no field with the first one and its parts so far is a part of it: "torn-sample" if an earlier
    one of *group* is in the same shard, else "split-sample"; is_own_sample is 0. Any other is a sample of its own:
    "key-twice" or "key-in-two-shards", by the same rule; is_own_sample is 1. Names of fields are compared in lower
    case. `shard_place(number, byte)`: returns (shard URL, byte) of the sample at *byte* of input *number*.
    """
    fields = set(names_of_fields(group[0][3]))
    shards = {shard_place(*group[0][:2])[0]}
    for number, byte, _, combination in group[1:]:
        own = set(names_of_fields(combination))
        shard = shard_place(number, byte)[0]
        same = shard in shards
        if fields.isdisjoint(own):
            fields |= own
            yield ("torn-sample" if same else "split-sample"), 0
        else:
            yield ("key-twice" if same else "key-in-two-shards"), 1
        shards.add(shard)


def compare_keys(groups: Iterable[list[Keyed]], summary: Summary, shard_place: ShardPlace) -> Iterator[Repeated]:
    """Add findings about *groups* of samples with one key to *summary*; yield each group with its verdicts.

    Verdicts: (code of the finding, 0 for a part of the first sample or 1 for another sample) for each but the first.
    `shard_place(number, byte)`: returns (shard URL, byte) of the sample at *byte* of input *number*.

    *summary* has to have all samples once the first group comes. Each sample but the first of a group gets a finding
    with its code. Parts count from then on as one sample with all their fields. Groups of keys in different Unicode
    forms are not yielded: their findings are "unicode-form" (`note_unicode_forms`).
    """
    listed_places: set[tuple[int, int]] = set()
    for group in groups:  # with the first one, all have been read
        if group[0][2] != group[-1][2]:
            note_unicode_forms(group, summary, shard_place)
            continue
        listed_places = listed_places or {
            (place.shard, place.byte) for tally in summary.combinations.values() for place in tally.first
        }
        verdicts = list(judge_repeats(group, shard_place))
        parts = [group[0]]
        for (code, is_own_sample), sample in zip(verdicts, group[1:], strict=True):
            shard, byte, key, _ = sample
            detail = (
                f"also {describe_place(shard_place(*group[0][:2]), shard_place(shard, byte))}"
                if summary.keeps_place(code)
                else ""
            )
            summary.note(code, Place(shard, byte, decode_name(key), detail))
            if not is_own_sample:
                parts.append(sample)
        # each part was counted as a sample with its own fields: take these counts and places back, and count the sample
        # with all fields, so that it is not reported to lack any
        if len(parts) > 1:
            for shard, byte, _, combination in parts:
                if tally := summary.combinations.get(combination):
                    tally.count -= 1
                    if (shard, byte) in listed_places:
                        tally.first = [place for place in tally.first if (place.shard, place.byte) != (shard, byte)]
            doubt = DOUBTFUL_PREFIX if any(sample[3].startswith(DOUBTFUL_PREFIX) for sample in parts) else ""
            joined_fields = doubt + "/".join(sample[3].removeprefix(DOUBTFUL_PREFIX) for sample in parts)
            summary.add_combination(joined_fields, 1, [Place(*parts[0][:2], decode_name(parts[0][2]))])
            summary.samples -= len(parts) - 1
        yield group, verdicts


def note_unicode_forms(group: Sequence[Keyed], summary: Summary, shard_place: ShardPlace) -> None:
    """Add a finding to *summary* for each but the first of *group*: its key is the first one's in another Unicode form.

    The code is "unicode-form". `shard_place(number, byte)`: returns (shard URL, byte) of the sample at *byte* of input
    *number*.
    """
    first, *later = group
    for shard, byte, key, _ in later:
        detail = f"also {describe_place(shard_place(*first[:2]), shard_place(shard, byte))}"
        summary.note("unicode-form", Place(shard, byte, decode_name(key), detail))


def describe_place(place: tuple[str, int], own: tuple[str, int]) -> str:
    """Return *place*, (shard, byte), in words, for a message about the sample at *own*.

    >>> describe_place(("a.tar", 0), ("a.tar", 512)), describe_place(("a.tar", 0), ("b.tar", 0))
    ('at byte 0', 'at byte 0 of a.tar')
    >>> describe_place(("a.tar", 0), ("a.tar", 0))
    'in another row of a table'
    """
    if place == own:
        return "in another row of a table"
    return f"at byte {place[1]}" + ("" if place[0] == own[0] else f" of {shown(place[0])}")


# ---- unusual fields and sizes ----


MIN_PAYLOADS_FOR_OUTLIERS = 100  # payloads of a field, below which none is far from the rest
OUTLIER_RATIO = 100  # times the size that one in twenty exceeds, or a part of the size that one in twenty stays below
MIN_OUTLIER_BYTES = 1 << 16  # bytes; a smaller payload is never too large
MIN_SHARDS_COMPARED = 4  # fewer are not compared
SHARD_SIZE_RATIO = 10  # times as large as the median, or a part of it

ExpectedFields = Sequence[Sequence[str]]  # of each, one has to be there


def expected_fields(combinations: Mapping[str, Tally]) -> ExpectedFields:
    """Return the fields of over half of the samples, which all should have, as tuples of alternatives.

    Among the samples that have all of these, the fields of over half of them are added, and so on. Sorted by the first
    name, in small letters; [] if no field is in over half. `combinations`: fields joined by "/" -> counts. Samples
    without a field, or next to damage, do not count. Fields that stand for each other (`alternative_fields`) count as
    one, and are in one tuple, the most frequent first: [("jpg", "webp"), ("txt",)].
    """
    counts_by_fields: Counter[frozenset[str]] = Counter()
    for combination, tally in combinations.items():
        if combination and not combination.startswith(DOUBTFUL_PREFIX):
            counts_by_fields[frozenset(names_of_fields(combination))] += tally.count
    groups = {group[0]: group for group in alternative_fields(counts_by_fields)}
    first = {field: group[0] for group in groups.values() for field in group}
    merged_counts: Counter[frozenset[str]] = Counter()
    for fields, count in counts_by_fields.items():
        merged_counts[frozenset(first.get(field, field) for field in fields)] += count
    expected: frozenset[str] = frozenset()
    while True:
        having = {fields: count for fields, count in merged_counts.items() if expected <= fields}
        counts: Counter[str] = Counter()
        for fields, count in having.items():
            counts.update(dict.fromkeys(fields, count))
        extended = expected | {field for field, count in counts.items() if 2 * count > sum(having.values())}
        if extended == expected:
            return [tuple(groups.get(field, (field,))) for field in sorted(expected)]
        expected = extended


def alternative_fields(counts: Mapping[frozenset[str], int]) -> list[list[str]]:
    """Return groups of fields of pictures, sounds or videos that stand for each other; the most frequent comes first.

    `counts`: fields of a sample -> number of such samples. Fields of a group are of one kind, such as pictures, and
    have the same name but for the suffix. A field joins a group of more frequent ones if at most half of its samples
    have one of these, too: a mask beside its picture does not. A picture, sound or video without alternatives is a
    group of its own; other fields, such as txt, are in no group.
    """
    samples_with: Counter[str] = Counter()
    for fields, count in counts.items():
        samples_with.update(dict.fromkeys(fields, count))
    groups: dict[tuple[str, str], list[list[str]]] = {}
    for field, count in sorted(samples_with.items(), key=lambda item: (-item[1], item[0])):
        file_type = BY_SUFFIX.get(suffix_of(field))
        if file_type is None or file_type.kind not in (PICTURE, SOUND, VIDEO):
            continue
        same_kind = groups.setdefault((field.rpartition(".")[0], file_type.kind), [])
        for group in same_kind:
            both = sum(number for fields, number in counts.items() if field in fields and not fields.isdisjoint(group))
            if 2 * both <= count:
                group.append(field)
                break
        else:
            same_kind.append([field])
    return [group for same_kind in groups.values() for group in same_kind]


def missing_fields(fields: Sequence[str], expected: ExpectedFields) -> list[str]:
    """Return the *expected* fields that a sample with *fields* lacks, each as text.

    Each of *expected* is a tuple of alternative fields, of which the sample must have one; the text joins them with
    ";", such as "jpg;webp". *fields*: names in small letters, compared whole: seg.png is not png.
    """
    return [";".join(choices) for choices in expected if not any(name.lower() in fields for name in choices)]


def is_among(field: str, expected: ExpectedFields) -> bool:
    """True if *field*, in small letters, is one of the alternatives in *expected*, in any case."""
    return any(field == name.lower() for choices in expected for name in choices)


def find_numbered_fields(fields: Iterable[str], expected: ExpectedFields) -> str:
    """Return two of *fields* that differ only in numbers, "01.txt 02.txt", if samples seem to be read as one; else "".

    Names of files are cut at the first dot: 22.01.txt and 22.02.txt are one sample, with the fields 01.txt and 02.txt.
    "" if a field has no dot (a suffix of a codec, as in json.gz, aside), as in a sample of 0.jpg, 1.jpg and json. Two
    fields that are both *expected* do not count.
    """
    first: dict[str, str] = {}
    pair = ""
    for field in fields:
        name = split_codec(field)[0]
        if "." not in name:
            return ""
        earlier = first.setdefault(re.sub(r"\d+", "0", field), field)
        if earlier != field and not pair and not (is_among(field, expected) and is_among(earlier, expected)):
            pair = f"{earlier} {field}"
    return pair


def compare_fields(summary: Summary, expect: ExpectedFields) -> ExpectedFields:
    """Add findings about missing and unexpected fields to *summary*; return the fields that samples should have.

    These are *expect*, or if it is empty `expected_fields`: tuples of alternatives. A field is unexpected if it is not
    in *expect*, nor the first alternative of one of `expected_fields`. A sample with fields that differ only in
    numbers, not both in *expect*, gives a finding, too: perhaps it is several (`find_numbered_fields`). Samples next to
    damage, or without a field, are left out. Codes: "missing-field", "unexpected-field" ("dotted-name" if it has a
    dot), "several-samples".
    """
    expected = expected_fields(summary.combinations)
    words = expect or expected
    usual = [*expect, *(word[:1] for word in expected)]
    for combination, tally in list(summary.combinations.items()):
        if not combination or combination.startswith(DOUBTFUL_PREFIX) or tally.count <= 0:
            continue
        fields = names_of_fields(combination)
        unexpected = [field for field in fields if not is_among(field, usual)]
        findings = [("missing-field", field) for field in missing_fields(fields, words)]
        findings += [("dotted-name" if "." in field else "unexpected-field", field) for field in unexpected]
        if pair := find_numbered_fields(fields, expect):
            findings.append(("several-samples", pair))
        for code, field in findings:
            note_tally(summary, code, tally, field)
    return words


def note_tally(summary: Summary, code: str, tally: Tally, detail: str) -> None:
    """Add findings with *code* and *detail* to *summary*: one for each sample of *tally*, at the places that it has.

    *tally*: of one sample or more; its `first` are `Place`s, whose `detail` is replaced. Further samples are counted at
    the last of these places; without any, all at byte 0 of input 0.
    """
    places = tally.first[: tally.count]
    for number, place in enumerate(places):
        sample_count = tally.count - len(places) + 1 if number == len(places) - 1 else 1
        summary.note(code, place._replace(detail=detail), sample_count)
    if not places:
        summary.note(code, Place(0, 0, "", detail), tally.count)


def note_size_outliers(summary: Summary) -> None:
    """Add a finding to *summary* for each payload that is far larger or smaller than most of its field, and not empty.

    Far larger: over 64 KiB (MIN_OUTLIER_BYTES), and over 100 times (OUTLIER_RATIO) the 95th percentile of the sizes.
    Far smaller: below 1/100 of the 5th percentile. Fields of fewer than 100 payloads (MIN_PAYLOADS_FOR_OUTLIERS) are
    left out. The code is "size-outlier". The places are of the 20 largest and smallest; further outliers are counted at
    the last of these.
    """
    for field, field_summary in summary.fields.items():
        counts = field_summary.sizes.buckets
        if sum(counts.values()) < MIN_PAYLOADS_FOR_OUTLIERS:
            continue
        high = max(MIN_OUTLIER_BYTES, OUTLIER_RATIO * field_summary.sizes.quantile(95))
        low = field_summary.sizes.quantile(5) // OUTLIER_RATIO
        for places, sizes in (
            (
                [extreme for extreme in field_summary.large if extreme[0] > high],
                [size for size in counts if size > high],
            ),
            (
                [extreme for extreme in field_summary.small if 0 < extreme[0] < low],
                [size for size in counts if 0 < size < low],
            ),
        ):
            unlisted = max(sum(counts[size] for size in sizes) - len(places), 0)
            for number, (size, place) in enumerate(places, 1):
                count = 1 + unlisted if number == len(places) else 1
                summary.note("size-outlier", place._replace(detail=f"{field}: {in_units(size)}"), count)


def note_shard_sizes(summary: Summary, shards: Sequence[tuple[int, int]]) -> None:
    """Add a finding to *summary* for each shard that is over 10 times larger or smaller than the median.

    `shards`: (number of the input, bytes) of each, sorted; fewer than 4 are not compared. The last may be small: it has
    the remaining samples. A shard of 0 bytes is not small. Of two medians the lower counts. The limits are
    SHARD_SIZE_RATIO and MIN_SHARDS_COMPARED; the code is "shard-size".
    """
    if len(shards) < MIN_SHARDS_COMPARED:
        return
    median = sorted(size for _, size in shards)[(len(shards) - 1) // 2]  # the lower one of two
    for number, size in shards:
        small = size * SHARD_SIZE_RATIO < median and number != shards[-1][0] and size
        if small or size > median * SHARD_SIZE_RATIO:
            summary.note("shard-size", Place(number, 0, "", f"{in_units(size)}; the median is {in_units(median)}"))
