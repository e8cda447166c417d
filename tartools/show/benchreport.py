"""The report of tarbench: tables with bars for a terminal, one fact per line for a pipe.

Both take the facts in the form of `tarbench --json`. Names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tartools.errors import in_units, printable, several, shown
from tartools.show.benchadvice import PARTS, WORDS, brief, called
from tartools.show.statreport import LONG, Section, bar, console_for, shortened
from tartools.show.terminal import Screen

Facts = Mapping[str, Any]


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield the *facts*, one per line. Of a dry run, what would be measured."""
    yield from facts["answer"]
    yield f"source: {source(facts)}"
    yield f"samples: {facts['samples']}"
    if facts["bytes"] is not None:
        yield f"bytes: {facts['bytes']}"
        yield f"fields: {shortened(' '.join(facts['fields']), LONG)}"
    yield f"workers on: {facts['cores']} processors"
    if facts["delay"] is not None:
        yield f"delay: {facts['delay']:g} s"
    for left in facts["left_out"]:
        yield f"left out {left['form']}: {left['why']}"
    for row in facts["rows"]:
        if "samples" not in row:
            yield f"row {called(row)}"
            continue
        yield (
            f"row {called(row)}: {row['samples_per_second']:.1f} samples/s, {row['bytes_per_second'] / 1e6:.1f} MB/s, "
            f"{1e3 * row['cpu_seconds']:.3f} ms of processor a sample, {row['samples']} samples"
            f"{', ' + row['cache'] if row['cache'] else ''}"
        )
        if row["parts"]:
            parts = ", ".join(f"{WORDS.get(name, name)} {1e3 * row['parts'][name]:.3f} ms" for name in PARTS)
            yield f"parts {called(row)}: {parts}"
        yield f"limit {called(row)}: {row['says']}"
    for text in facts["says"]:
        yield f"advice: {printable(text)}"


def tables(facts: Facts, screen: Screen) -> str:
    """Return the *facts* as tables as wide as *screen*, in colours if it takes escape codes."""
    console = console_for(screen)
    with console.capture() as captured:
        for text in facts["answer"]:
            console.print(text, style="bold cyan")
        console.print(headline(facts), style="bold")
        for left in facts["left_out"]:
            console.print(f"left out: {left['form']} ({left['why']})", style="dim")
        for section in sections(facts):
            console.print()
            console.print(section)
        for text in facts["says"]:
            console.print()
            console.print(printable(text), style="bold cyan")
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def source(facts: Facts) -> str:
    """Return the name of what was measured; of several shards the first one."""
    first, *more = facts["source"]
    return f"{shown(first)} and {len(more):,} more" if more else shown(first)


def headline(facts: Facts) -> str:
    """Return what was measured, in words."""
    parts = [several(facts["samples"], "sample")]
    if facts["bytes"] is not None:
        parts.append(in_units(facts["bytes"]))
    parts += [f"batches of {facts['batch']}", several(facts["cores"], "processor")]
    if facts["delay"] is not None:
        parts.append(f"{1e3 * facts['delay']:g} ms to the server")
    cold = {row.get("cache") for row in facts["rows"]} - {None}
    return ", ".join(parts + ["/".join(sorted(cold))] * bool(cold))


def sections(facts: Facts) -> Iterator[Section]:
    """Yield the tables: rates, and parts."""
    found = [row for row in facts["rows"] if "samples" in row]
    if not found:
        yield Section("", ("<To measure",), [(called(row),) for row in facts["rows"]])
        return
    most = max(row["samples_per_second"] for row in found)
    alone = {(row["name"], row["stored"]): row for row in found if not row["workers"]}
    rates = [
        (
            row["name"],
            str(row["workers"]),
            rounded(row["samples_per_second"]),
            rounded(row["bytes_per_second"] / 1e6),
            f"{1e3 * row['cpu_seconds']:.2f}",
            bar(row["samples_per_second"], most),
            brief(row, alone[row["name"], row["stored"]]),
        )
        for row in found
    ]
    columns = ("<Rows", ">workers", ">samples/s", ">MB/s", ">CPU ms", "|", "<what limits it")
    yield Section("", columns, rates)
    parts = [
        (row["name"], *(f"{1e3 * row['parts'][name]:.2f}" for name in PARTS))
        for row in found
        if row["parts"] is not None
    ]
    yield Section("ms a sample, without workers", ("<Parts", *(f">{WORDS.get(n, n)}" for n in PARTS)), parts)


def rounded(number: float) -> str:
    """Return *number* with three digits that count.

    >>> rounded(1234.6), rounded(56.78), rounded(0.1234)
    ('1,235', '56.8', '0.123')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
