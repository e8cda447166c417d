"""The report of tarcheck: tables for a terminal, one fact per line for a pipe.

Both take the facts in the form of `tarcheck --json`. Names from archives are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tartools.errors import printable, several, shown
from tartools.show.statreport import LISTED, LONG, Section, console_for, shortened
from tartools.show.terminal import Screen

Facts = Mapping[str, Any]

FIRST = 5  # places of a finding in a table
COLOURS = {"error": "bold red", "warning": "bold yellow", "note": "bold"}


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
        if found["reader"]:
            yield f"{start} {facts['profile']}: {found['reader']}"
        for place in found["places"][:LISTED]:
            yield f"{start} in: {where(place)}"


def where(place: Facts) -> str:
    """Return the *place* of a finding in words."""
    words = [shown(place["shard"])]
    if place["byte"] is not None:
        words.append(f"byte {place['byte']}")
    if place["key"]:
        words.append(f"key {shortened(place['key'], LONG)}")
    if place["what"]:
        words.append(shortened(place["what"], LONG))
    return ", ".join(words)


def tables(facts: Facts, screen: Screen) -> str:
    """Return the *facts* as tables as wide as *screen*, in colours if it takes escape codes."""
    from rich.text import Text

    console = console_for(screen)
    with console.capture() as captured:
        console.print(f"{several(facts['shards'], 'shard')}, {several(facts['samples'], 'sample')}", style="bold")
        if facts["undecoded"]:
            names = printable(" ".join(facts["undecoded"]))
            console.print(Text(f"not decoded: {names}; --decode finds those that are broken"))
        if not facts["findings"]:
            console.print("nothing found")
        else:
            rows = [
                (found["code"], found["weight"], f"{found['count']:,}", found["means"]) for found in facts["findings"]
            ]
            console.print()
            console.print(Section("", ("<Findings", "<weight", ">count", "<what it means"), rows))
        for found in facts["findings"]:
            places = found["places"][:FIRST]
            console.print()
            console.print(Text(f"{found['code']}: {found['means']}", style=COLOURS[found["weight"]]))
            for place in places:
                console.print(Text(f"  {where(place)}"))
            if found["count"] > len(places):
                console.print(Text(f"  and {found['count'] - len(places):,} more; --json lists them", style="dim"))
            if found["reader"]:
                console.print(Text(f"  {facts['profile']}: {found['reader']}"))
            console.print(Text(f"  {found['todo']}", style="cyan"))
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())
