"""The report of tarcheck: its facts, one fact per line for a pipe, and parts for a terminal.

Lines and parts take the facts in the form of `tarcheck --json`. Names from archives are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tartools.errors import printable, redacted, several, shown
from tartools.samples.kinds import is_decoded, is_number_field
from tartools.show.sections import MAX_PLACES_LISTED, Part, Section, shorten
from tartools.stages.checking.across import ExpectedFields, ShardPlace
from tartools.stages.checking.codes import CODES, SEVERITIES
from tartools.stages.summary import Summary, Tally

Facts = Mapping[str, Any]

PLACES_SHOWN = 5  # places of a finding in a table
LARGE_PICTURES = {"large-picture", "huge-picture"}  # found by --decode only
WEIGHT_STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def check_facts(
    summary: Summary,
    shards: int,
    shard_place: ShardPlace,
    expected: ExpectedFields,
    decoded: bool,
    card: str | None = None,
) -> dict[str, Any]:
    """Return the facts of --json: the findings of *summary* in a number of *shards*, errors first.

    Keys: shards, samples; errors, warnings and notes, the number of findings of each severity; expected (fields, such
    as "jpg;png" for alternatives); undecoded (fields, by `undecoded_fields`); findings, a list of `describe_finding`.
    `shard_place(number, byte)`: returns (shard, byte) for the place of a finding. *expected*: fields that each sample
    should have, each a tuple of alternatives. *decoded*: True if payloads were decoded, not only their first bytes
    read.
    *card*: YAML of a dataset card, the value of the key card; no such key if it is None.
    """
    counts = dict.fromkeys(SEVERITIES, 0)
    for code, tally in summary.findings.items():
        counts[CODES[code].weight] += tally.count
    order = list(CODES)
    codes = sorted(summary.findings, key=lambda code: (SEVERITIES.index(CODES[code].weight), order.index(code)))
    return {
        "shards": shards,
        "samples": summary.samples,
        **{f"{weight}s": count for weight, count in counts.items()},
        "expected": [";".join(choices) for choices in expected],
        "undecoded": undecoded_fields(summary, decoded),
        "findings": [describe_finding(code, summary.findings[code], shard_place) for code in codes],
        **({} if card is None else {"card": card}),
    }


def undecoded_fields(summary: Summary, decoded: bool) -> list[str]:
    """Return the fields in *summary* with payloads that were only checked by their first bytes, sorted.

    *decoded*: True if payloads were decoded: then these are fields that can't be decoded, or have too large payloads;
    else all but fields of numbers, such as cls (not cls.gz), whose text is always read.
    """
    if decoded:
        return sorted(name for name in summary.fields if not is_decoded(name) or name in summary.undecoded)
    return sorted(name for name in summary.fields if not is_number_field(name))


def describe_finding(code: str, tally: Tally, shard_place: ShardPlace) -> dict[str, Any]:
    """Return the facts of --json about the findings with *code*: their number, and the places that *tally* keeps.

    Keys: code, weight (severity), count, means (its meaning), todo (the remedy), places: dicts of shard (`redacted`),
    byte (None if there is none), key and what (the detail), sorted by input and byte. *tally*: the findings.
    `shard_place(number, byte)`: returns (shard, byte) for the place of a finding; a negative byte means that there is
    none.
    """
    about = CODES[code]
    places = [(*shard_place(place.shard, place.byte), place) for place in sorted(tally.first)]
    return {
        "code": code,
        "weight": about.weight,
        "count": tally.count,
        "means": about.means,
        "todo": about.todo,
        "places": [
            {
                "shard": redacted(shard),
                "byte": byte if byte >= 0 else None,
                "key": place.key,
                "what": place.detail,
            }
            for shard, byte, place in places
        ],
    }


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield the *facts* of `tarcheck --json`, one per line: counts, expected and undecoded fields, then findings.

    Each kind of finding has a line with its count and meaning, one with the remedy, and one for each of up to 20
    places. At the end are the lines of the dataset card, if there is one.
    """
    for count_name in ("shards", "samples", "errors", "warnings", "notes"):
        yield f"{count_name}: {facts[count_name]}"
    yield f"expected: {printable(' '.join(facts['expected'])) or '-'}"
    if facts["undecoded"]:
        yield f"not decoded: {printable(' '.join(facts['undecoded']))}"
    for finding_facts in facts["findings"]:
        start = f"{finding_facts['weight']} {finding_facts['code']}"
        yield f"{start}: {finding_facts['count']}: {finding_facts['means']}"
        yield f"{start} todo: {finding_facts['todo']}"
        for place in finding_facts["places"][:MAX_PLACES_LISTED]:
            yield f"{start} in: {place_in_words(place)}"
    yield from facts.get("card", "").splitlines()


def place_in_words(place: Facts) -> str:
    """Return the *place* of a finding in words: "a.tar, byte 512, key n01, REMARK"; only the shard is always there.

    *place*: an item of "places" in the facts of `tarcheck --json`.
    """
    words = [shown(place["shard"])]
    if place["byte"] is not None:
        words.append(f"byte {place['byte']}")
    if place["key"]:
        words.append(f"key {shorten(place['key'])}")
    if place["what"]:
        words.append(shorten(place["what"]))
    return ", ".join(words)


def parts(facts: Facts) -> Iterator[Part]:
    """Yield the *facts* of `tarcheck --json` as parts of a report: pairs (line, its style), a `Section` of findings.

    Without findings there is a line in place of the `Section`. The last are the lines of the dataset card, if there is
    one.
    """
    yield f"{several(facts['shards'], 'shard')}, {several(facts['samples'], 'sample')}", "bold"
    if facts["undecoded"]:
        names = printable(" ".join(facts["undecoded"]))
        large = any(finding["code"] in LARGE_PICTURES for finding in facts["findings"])
        if not large and any(map(is_decoded, facts["undecoded"])):
            names += "; --decode decodes pictures, JSON, arrays, sounds and text"
        yield f"not decoded: {names}", ""
    yield from finding_parts(facts["findings"])
    if "card" in facts:
        yield "", ""
        yield from ((line, "") for line in facts["card"].splitlines())


def finding_parts(findings: Sequence[Facts]) -> Iterator[Part]:
    """Yield a table of *findings*, then each kind with its meaning, up to 5 places and remedy.

    All but the table are pairs (line, its style); a line says how many further places there are. *findings*: the list
    "findings" in the facts of `tarcheck --json`; if it is empty, there is one line that says so, and no table.
    """
    if not findings:
        yield "nothing found", ""
        return
    rows = [
        (finding_facts["code"], finding_facts["weight"], f"{finding_facts['count']:,}", finding_facts["means"])
        for finding_facts in findings
    ]
    yield Section("", ("<Findings", "<weight", ">count", "<what it means"), rows)
    for finding_facts in findings:
        places = finding_facts["places"][:PLACES_SHOWN]
        yield "", ""
        yield f"{finding_facts['code']}: {finding_facts['means']}", WEIGHT_STYLES[finding_facts["weight"]]
        yield from ((f"  {place_in_words(place)}", "") for place in places)
        if finding_facts["count"] > len(places):
            yield f"  and {finding_facts['count'] - len(places):,} more; --json lists them", "dim"
        yield f"  {finding_facts['todo']}", "cyan"
