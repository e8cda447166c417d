"""What only shows beside other samples: keys that come again, fields that are missing, sizes far from the rest.

Keys are compared as records, which sort by key and place. A record is the key, as `sortkeys.text_bytes` encodes it,
then 20 bytes: twice the number of the input (plus one if `walk` found the sample), byte, fields. A key that is not in
Unicode form NFC has a second record: its NFC form, `OTHER_FORM`, and the key before the 20 bytes. It sorts directly
after the records of the NFC form:

    NFC key | input byte fields
    NFC key | OTHER_FORM | key | input byte fields
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby, islice, repeat
from operator import itemgetter
from statistics import median_low
from struct import Struct

from tartools.errors import in_units, shown
from tartools.samples.encoding import without_codec
from tartools.samples.filetypes import BY_SUFFIX, PICTURE, SOUND, VIDEO, suffix_of
from tartools.samples.sortkeys import text_bytes, text_of_key
from tartools.samples.unicodeforms import nfc
from tartools.stages.checking.codes import Place
from tartools.stages.combinations import text
from tartools.stages.summary import Summary, Tally

Keyed = tuple[int, int, bytes, str]  # a sample: its input, byte, key, and fields
Repeated = tuple[list[Keyed], list[tuple[str, int]]]  # samples that share a key, and what `judged` says of them
Where = Callable[[int, int], tuple[str, int]]  # input and byte of a sample -> its shard, and the byte there

DOUBTFUL = "\0"  # precedes the fields of a sample next to damage, which may lack some that it had
TAIL = Struct(">IQ8s")
MOST = 100_000  # samples with one key that are looked at together
END_OF_KEY = b"\0\0"  # of `text_bytes`
OTHER_FORM = b"\xff"  # more than the first byte of an input's number


def names_of_fields(combination: str) -> list[str]:
    """Return the names of the fields of *combination*, in small letters: case makes no difference."""
    return combination.removeprefix(DOUBTFUL).lower().split("/")


def combination_number(combination: str) -> bytes:
    """Return eight bytes that stand for *combination*."""
    return blake2b(combination.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def key_records(keys: Sequence[bytes], shard: int, begins: Iterable[int], number: bytes) -> list[bytes]:
    """Return a record for each of *keys*, whose samples begin at *begins*; *shard* is twice the number of the input."""
    tails = map(TAIL.pack, repeat(shard), begins, repeat(number))
    records = [text_bytes(key) + tail for key, tail in zip(keys, tails, strict=False)]
    if not b"".join(keys).isascii():
        records += [
            text_bytes(form) + OTHER_FORM + record
            for key, record in zip(keys, records, strict=True)
            if (form := nfc(key)) != key
        ]
    return records


def repeated(records: Iterator[bytes], combinations: dict[bytes, str], dead: frozenset[int]) -> Iterator[list[Keyed]]:
    """Yield the samples that share a key, in order: (input, byte, key, fields).

    Keys that are equal but for their Unicode form follow the first sample of the first form.

    *combinations* are the fields by their numbers, and is complete once the first record comes. Records of the inputs
    *dead* do not count. Holds: 100,000 samples with one key.
    """
    size = TAIL.size
    if dead:
        records = (each for each in records if int.from_bytes(each[-size : 4 - size], "big") not in dead)
    last_form, first_of_form = b"", b""
    for encoded, records_of_key in groupby(records, itemgetter(slice(-size))):
        form, other_form, key = encoded.partition(END_OF_KEY + OTHER_FORM)
        begin = -len(key) - size if other_form else 0
        same = map(itemgetter(slice(begin, None)), records_of_key)
        group = list(islice(same, MOST))
        if not other_form:
            last_form, first_of_form = encoded.removesuffix(END_OF_KEY), group[0]
        elif form == last_form:
            group.insert(0, first_of_form)
        else:  # no sample has the key in form NFC
            last_form, first_of_form, group = form, group[0], []
        while len(group) > 1:
            yield [unpacked_combination(each, combinations) for each in group]
            group = [group[0], *islice(same, MOST - 1)]


def unpacked_combination(record: bytes, combinations: dict[bytes, str]) -> Keyed:
    """Return input, byte, key and fields of *record*."""
    shard, byte, number = TAIL.unpack(record[-TAIL.size :])
    return shard >> 1, byte, text_of_key(record[: -TAIL.size]), combinations.get(number, "")


def judged(group: Sequence[Keyed], where: Where) -> Iterator[tuple[str, int]]:
    """Yield, for each of *group* but the first, its code, and the number of the sample that it belongs to."""
    fields = set(names_of_fields(group[0][3]))
    shards = {where(*group[0][:2])[0]}
    for number, byte, _, combination in group[1:]:
        own = set(names_of_fields(combination))
        shard = where(number, byte)[0]
        same = shard in shards
        if fields.isdisjoint(own):
            fields |= own
            yield ("torn-sample" if same else "split-sample"), 0
        else:
            yield ("key-twice" if same else "key-in-two-shards"), 1
        shards.add(shard)


def compare_keys(groups: Iterable[list[Keyed]], summary: Summary, where: Where) -> Iterator[Repeated]:
    """Add to *summary* what *groups* of samples with one key say; pass them on, each with what `judged` says.

    *where* returns URL and byte of the sample at the byte of an input.
    Samples that are members of one are counted as one from now on.
    """
    known: set[tuple[int, int]] = set()
    for group in groups:  # with the first one, all have been read
        if group[0][2] != group[-1][2]:
            note_other_forms(group, summary, where)
            continue
        known = known or {(place.shard, place.byte) for each in summary.combinations.values() for place in each.first}
        verdicts = list(judged(group, where))
        parts = [group[0]]
        for (code, other), each in zip(verdicts, group[1:], strict=True):
            shard, byte, key, _ = each
            what = f"also {beside(where(*group[0][:2]), where(shard, byte))}" if summary.lists(code) else ""
            summary.note(code, Place(shard, byte, text(key), what))
            if not other:
                parts.append(each)
        if len(parts) > 1:
            for shard, byte, _, combination in parts:
                if tally := summary.combinations.get(combination):
                    tally.count -= 1
                    if (shard, byte) in known:
                        tally.first = [each for each in tally.first if (each.shard, each.byte) != (shard, byte)]
            doubt = DOUBTFUL if any(each[3].startswith(DOUBTFUL) for each in parts) else ""
            whole = doubt + "/".join(each[3].removeprefix(DOUBTFUL) for each in parts)
            summary.combined(whole, 1, [Place(*parts[0][:2], text(parts[0][2]))])
            summary.samples -= len(parts) - 1
        yield group, verdicts


def note_other_forms(group: Sequence[Keyed], summary: Summary, where: Where) -> None:
    """Add to *summary* that the first key of *group* equals the others but for their Unicode form."""
    first, *others = group
    for shard, byte, key, _ in others:
        what = f"also {beside(where(*first[:2]), where(shard, byte))}"
        summary.note("unicode-form", Place(shard, byte, text(key), what))


def beside(place: tuple[str, int], own: tuple[str, int]) -> str:
    """Return in words where *place* is, a shard and a byte of it, for a message about the sample at *own*.

    >>> beside(("a.tar", 0), ("a.tar", 512)), beside(("a.tar", 0), ("b.tar", 0)), beside(("a.tar", 0), ("a.tar", 0))
    ('at byte 0', 'at byte 0 of a.tar', 'in another row of a table')
    """
    if place == own:
        return "in another row of a table"
    return f"at byte {place[1]}" + ("" if place[0] == own[0] else f" of {shown(place[0])}")


# ---- fields and sizes that are unlike the rest ----


ENOUGH = 100  # payloads of a field, below which none is far from the rest
FAR = 100  # times the size that one in twenty exceeds, or a part of the size that one in twenty stays below
LARGE = 1 << 16  # bytes; a smaller payload is never too large
SHARDS = 4  # fewer are not compared
UNLIKE = 10  # times as large as the median, or a part of it

Words = Sequence[Sequence[str]]  # of each, one has to be there


def expected_fields(combinations: Mapping[str, Tally]) -> Words:
    """Return the fields that most of the samples have, of *combinations* with their counts.

    Then those that most of the samples with all of these have, and so on. Samples without a field do not count. Fields
    that stand for each other, such as jpg and webp, are one: the most frequent first.
    """
    counts_by_fields: Counter[frozenset[str]] = Counter()
    for combination, tally in combinations.items():
        if combination and not combination.startswith(DOUBTFUL):
            counts_by_fields[frozenset(names_of_fields(combination))] += tally.count
    groups = {group[0]: group for group in alternative_fields(counts_by_fields)}
    first = {field: group[0] for group in groups.values() for field in group}
    known: Counter[frozenset[str]] = Counter()
    for fields, count in counts_by_fields.items():
        known[frozenset(first.get(field, field) for field in fields)] += count
    wanted: frozenset[str] = frozenset()
    while True:
        having = {fields: count for fields, count in known.items() if wanted <= fields}
        counts: Counter[str] = Counter()
        for fields, count in having.items():
            counts.update(dict.fromkeys(fields, count))
        more = wanted | {field for field, count in counts.items() if 2 * count > sum(having.values())}
        if more == wanted:
            return [tuple(groups.get(field, (field,))) for field in sorted(wanted)]
        wanted = more


def alternative_fields(counts: Mapping[frozenset[str], int]) -> list[list[str]]:
    """Return groups of fields of pictures, sounds or videos of which a sample has one; the most frequent comes first.

    Fields of a group have the same name but for the suffix. They are alternatives if at most half of the samples with
    the rarer one have both: a mask beside its picture is none.
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


def lacking_words(fields: Sequence[str], words: Words) -> list[str]:
    """Return the *words* of which a sample with *fields* has none: seg.png is not png."""
    return [";".join(word) for word in words if not any(name.lower() in fields for name in word)]


def is_among(field: str, words: Words) -> bool:
    """Tell whether *field* is among *words*."""
    return any(field == each.lower() for word in words for each in word)


def numbered_fields(fields: Iterable[str], words: Words) -> str:
    """Return two of *fields* that differ in a number, if the sample seems to be several, read as one; else "".

    Names of files are cut at the first dot: 22.01.txt and 22.02.txt are one sample, with the fields 01.txt and 02.txt.
    Then no field is without a dot, unlike in a sample of 0.jpg, 1.jpg and json. Those among *words* are intended.
    """
    first: dict[str, str] = {}
    pair = ""
    for field in fields:
        name = without_codec(field)[0]
        if "." not in name:
            return ""
        other = first.setdefault(re.sub(r"\d+", "0", field), field)
        if other != field and not pair and not (is_among(field, words) and is_among(other, words)):
            pair = f"{other} {field}"
    return pair


def compare_fields(summary: Summary, expect: Words) -> Words:
    """Add to *summary* which samples lack a field, and which have one that most lack; return the fields to have.

    These are *expect*, or if it is empty those that most samples have.
    """
    expected = expected_fields(summary.combinations)
    words = expect or expected
    usual = [*expect, *(word[:1] for word in expected)]
    for combination, tally in list(summary.combinations.items()):
        if not combination or combination.startswith(DOUBTFUL) or tally.count <= 0:
            continue
        fields, count = names_of_fields(combination), tally.count
        more = [field for field in fields if not is_among(field, usual)]
        found = [("missing-field", field) for field in lacking_words(fields, words)]
        found += [("dotted-name" if "." in field else "unexpected-field", field) for field in more]
        if pair := numbered_fields(fields, expect):
            found.append(("several-samples", pair))
        for code, field in found:
            places = tally.first[:count]
            for number, place in enumerate(places):
                rest = count - len(places) + 1 if number == len(places) - 1 else 1
                summary.note(code, place._replace(what=field), rest)
            if not places:
                summary.note(code, Place(0, 0, "", field), count)
    return words


def note_payloads(summary: Summary) -> None:
    """Add to *summary* the payloads that are far larger or smaller than most of their field, and not empty."""
    for field, found in summary.fields.items():
        counts = found.sizes.buckets
        if sum(counts.values()) < ENOUGH:
            continue
        high = max(LARGE, FAR * found.sizes.quantile(95))
        low = found.sizes.quantile(5) // FAR
        for places, sizes in (
            ([each for each in found.large if each[0] > high], [size for size in counts if size > high]),
            ([each for each in found.small if 0 < each[0] < low], [size for size in counts if 0 < size < low]),
        ):
            more = max(sum(counts[size] for size in sizes) - len(places), 0)
            for number, (size, place) in enumerate(places, 1):
                count = 1 + more if number == len(places) else 1
                summary.note("size-outlier", place._replace(what=f"{field}: {in_units(size)}"), count)


def note_shards(summary: Summary, shards: Sequence[tuple[int, int]]) -> None:
    """Add to *summary* the shards that are far larger or smaller than most; *shards* are their numbers and bytes.

    The last may be small: it has what was left.
    """
    if len(shards) < SHARDS:
        return
    middle = median_low(size for _, size in shards)
    for number, size in shards:
        small = size * UNLIKE < middle and number != shards[-1][0] and size
        if small or size > middle * UNLIKE:
            summary.note("shard-size", Place(number, 0, "", f"{in_units(size)}; the median is {in_units(middle)}"))
