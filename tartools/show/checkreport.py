"""The report of tarcheck: its facts, one fact per line for a pipe, and parts for a terminal.

Lines and parts take the facts in the form of `tarcheck --json`. Names from archives are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tartools.errors import printable, redacted, several, shown
from tartools.samples.filetypes import suffix_of
from tartools.show.broken import is_decoded
from tartools.show.sections import LISTED, Part, Section, shortened
from tartools.stages.checking.across import Where, Words
from tartools.stages.checking.codes import CODES, WEIGHTS
from tartools.stages.summary import Summary, Tally

Facts = Mapping[str, Any]

FIRST = 5  # places of a finding in a table
COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


def check_facts(found: Summary, shards: int, where: Where, words: Words, decoded: bool) -> dict[str, Any]:
    """Return what was *found* in so many *shards*, of whose samples each should have *words*, in the shape of --json.

    Payloads were *decoded*, or only their first bytes looked at.
    """
    counts = dict.fromkeys(WEIGHTS, 0)
    for code, tally in found.findings.items():
        counts[CODES[code].weight] += tally.count
    order = list(CODES)
    codes = sorted(found.findings, key=lambda code: (WEIGHTS.index(CODES[code].weight), order.index(code)))
    return {
        "shards": shards,
        "samples": found.samples,
        **{f"{weight}s": count for weight, count in counts.items()},
        "expected": [";".join(word) for word in words],
        "undecoded": [] if decoded else sorted(name for name in found.fields if is_decoded(suffix_of(name))),
        "findings": [finding(code, found.findings[code], where) for code in codes],
    }


def finding(code: str, found: Tally, where: Where) -> dict[str, Any]:
    """Return what was *found* of *code*, in the shape of --json."""
    about = CODES[code]
    places = [(*where(place.shard, place.byte), place) for place in sorted(found.first)]
    return {
        "code": code,
        "weight": about.weight,
        "count": found.count,
        "means": about.means,
        "todo": about.todo,
        "places": [
            {
                "shard": redacted(shard),
                "byte": byte if byte >= 0 else None,
                "key": place.key,
                "what": place.what,
            }
            for shard, byte, place in places
        ],
    }


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield the *facts*, one per line."""
    for what in ("shards", "samples", "errors", "warnings", "notes"):
        yield f"{what}: {facts[what]}"
    yield f"expected: {printable(' '.join(facts['expected'])) or '-'}"
    if facts["undecoded"]:
        yield f"not decoded: {printable(' '.join(facts['undecoded']))}"
    for found in facts["findings"]:
        start = f"{found['weight']} {found['code']}"
        yield f"{start}: {found['count']}: {found['means']}"
        yield f"{start} todo: {found['todo']}"
        for place in found["places"][:LISTED]:
            yield f"{start} in: {place_in_words(place)}"


def place_in_words(place: Facts) -> str:
    """Return the *place* of a finding in words."""
    words = [shown(place["shard"])]
    if place["byte"] is not None:
        words.append(f"byte {place['byte']}")
    if place["key"]:
        words.append(f"key {shortened(place['key'])}")
    if place["what"]:
        words.append(shortened(place["what"]))
    return ", ".join(words)


def parts(facts: Facts) -> Iterator[Part]:
    """Yield the *facts* as parts of a report on a terminal."""
    yield f"{several(facts['shards'], 'shard')}, {several(facts['samples'], 'sample')}", "bold"
    if facts["undecoded"]:
        names = printable(" ".join(facts["undecoded"]))
        yield f"not decoded: {names}; --decode finds those that are broken", ""
    if not facts["findings"]:
        yield "nothing found", ""
        return
    rows = [(found["code"], found["weight"], f"{found['count']:,}", found["means"]) for found in facts["findings"]]
    yield Section("", ("<Findings", "<weight", ">count", "<what it means"), rows)
    for found in facts["findings"]:
        places = found["places"][:FIRST]
        yield "", ""
        yield f"{found['code']}: {found['means']}", COLOURS[found["weight"]]
        yield from ((f"  {place_in_words(place)}", "") for place in places)
        if found["count"] > len(places):
            yield f"  and {found['count'] - len(places):,} more; --json lists them", "dim"
        yield f"  {found['todo']}", "cyan"
