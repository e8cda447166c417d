"""What the measurements of tarbench mean, and its report: sections for a terminal, one fact per line for a pipe.

All take the facts in the form of `tarbench --json`. Names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tartools.errors import in_units, printable, several, shown
from tartools.show.sections import Part, Section, share_of, shortened

Facts = Mapping[str, Any]
Row = dict[str, Any]

PARTS = ("list", "read", "decode", "collate")
DOING = {"list": "listing", "read": "reading", "decode": "decoding", "collate": "making batches"}
PROCESSORS = "processors"
OTHERS = 0.2  # of the processors, used by other programs: figures are too low then
BUSY = 0.8  # of the processors: nothing else limits then
BETTER = 1.15  # times as fast: less is chance


def advise(facts: dict[str, Any]) -> None:
    """Add to each row of *facts* its `limit` and what it `says`, and to *facts* what to do."""
    alone = {row["name"]: row for row in facts["rows"] if not row["workers"]}
    for row in facts["rows"]:
        parts = alone[row["name"]]["parts"]
        most = max(PARTS, key=parts.__getitem__)
        busy = row["cpu_seconds"] * row["samples_per_second"] / facts["cores"]
        row["limit"] = PROCESSORS if row["workers"] and busy >= BUSY else most
        row["says"] = (
            f"all {facts['cores']} processors are busy, most with {DOING[most]}"
            if row["limit"] == PROCESSORS
            else f"{DOING[most]} takes {100 * parts[most] / (sum(parts.values()) or 1):.0f} % of the time"
        )
    facts["answer"] = answer(facts)
    facts["says"] = advice(facts)


def answer(facts: Facts) -> list[str]:
    """Return which format to take, and how many workers, in a line each; and one if other programs disturbed."""
    loose, packed, factor = forms_of(facts)
    best = packed if packed and (loose is None or factor >= BETTER) else loose
    if best is None:
        return []
    found = sorted((row["workers"], row["samples_per_second"]) for row in facts["rows"] if row["name"] == best["name"])
    most = max(rate for _, rate in found)
    workers, rate = next(each for each in found if each[1] * BETTER >= most)
    form = f"format: {best['name']}"
    if loose and packed:
        times = as_fast(factor)
        form += f" ({packed['name']}: {times})" if best is loose else f" ({times} as {loose['name']})"
    told = f"workers: {workers} ({rate:,.0f} samples/s"
    if others := [each for each in found if each[0] != workers]:
        told += f"; {others[0][0] or 'without'}: {others[0][1]:,.0f}"
    said = [form, f"{told})"]
    if (facts.get("others") or 0) >= OTHERS:
        said.append(f"figures are too low: other programs used {100 * facts['others']:.0f} % of the processors")
    return said


def forms_of(facts: Facts) -> tuple[Row | None, Row | None, float]:
    """Return the best rows of loose files and of what is packed, and how many times as fast training is with these.

    They are compared by the times in which samples come, with the same time to decode and collate them, so that what
    else the machine did at that moment counts less.
    """
    alone = [row for row in facts["rows"] if row["parts"]]
    loose = min((row for row in alone if row["form"] == "loose"), key=brought, default=None)
    packed = min((row for row in alone if row["form"] != "loose"), key=brought, default=None)
    if not loose or not packed:
        return loose, packed, 1
    work = min(row["parts"]["decode"] + row["parts"]["collate"] for row in alone)
    return loose, packed, (brought(loose) + work) / (brought(packed) + work)


def brought(row: Row) -> float:
    """Return the seconds a sample that *row*, without workers, takes until its bytes are there as a sample."""
    return float(row["parts"]["list"] + row["parts"]["read"]) or 1e-9


def advice(facts: Facts) -> list[str]:
    """Return in a sentence what to do with the data of *facts*, and what limits it then; nothing without rows."""
    loose, packed, factor = forms_of(facts)
    only = packed or loose
    if only is None:
        return []
    if not loose or not packed:
        return [f"A sample takes {ms(brought(only))} ({only['name']}); {only['says']}."]
    first = "Pack the files" if factor >= BETTER else "Packing gains little"
    if factor * BETTER <= 1:
        first = "Leave the files as they are"
    return [
        f"{first}: a sample takes {ms(brought(packed))} ({packed['name']}) or {ms(brought(loose))} (loose files); with "
        f"decoding, packed is {as_fast(factor)}. What limits it then: {packed['says']}."
    ]


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield the *facts*, one per line. Of a dry run, what would be measured."""
    yield from facts["answer"]
    first, *others = map(shown, facts["source"])
    yield f"source: {first}{f' and {len(others):,} more' if others else ''}"
    yield f"samples: {facts['samples']}"
    if facts["bytes"] is not None:
        yield f"bytes: {facts['bytes']}"
        yield f"fields: {shortened(' '.join(facts['fields']))}"
    yield f"workers on: {facts['cores']} processors"
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
            parts = ", ".join(f"{name} {1e3 * row['parts'][name]:.3f} ms" for name in PARTS)
            yield f"parts {called(row)}: {parts}"
        yield f"limit {called(row)}: {row['says']}"
    for text in facts["says"]:
        yield f"advice: {printable(text)}"


def parts(facts: Facts) -> Iterator[Part]:
    """Yield the *facts* as parts of a report on a terminal."""
    yield from ((text, "bold cyan") for text in facts["answer"])
    measured = [several(facts["samples"], "sample")]
    if facts["bytes"] is not None:
        measured.append(in_units(facts["bytes"]))
    measured += [f"batches of {facts['batch']}", several(facts["cores"], "processor")]
    if cold := {row.get("cache") for row in facts["rows"]} - {None}:
        measured.append("/".join(sorted(cold)))
    yield ", ".join(measured), "bold"
    yield from ((f"left out: {left['form']} ({left['why']})", "dim") for left in facts["left_out"])
    yield from row_tables(facts)
    for text in facts["says"]:
        yield "", ""
        yield printable(text), "bold cyan"


def called(row: Row) -> str:
    """Return the name of *row* with its workers."""
    return f"{row['name']}, {several(row['workers'], 'worker')}" if row["workers"] else str(row["name"])


def row_tables(facts: Facts) -> Iterator[Section]:
    """Yield the tables: rates, and parts."""
    found = [row for row in facts["rows"] if "samples" in row]
    if not found:
        yield Section("", ("<To measure",), [(called(row),) for row in facts["rows"]])
        return
    most = max(row["samples_per_second"] for row in found)
    alone = {row["name"]: row["parts"] for row in found if not row["workers"]}
    rates = [
        (
            row["name"],
            str(row["workers"]),
            rounded(row["samples_per_second"]),
            rounded(row["bytes_per_second"] / 1e6),
            f"{1e3 * row['cpu_seconds']:.2f}",
            share_of(row["samples_per_second"], most),
            brief(row, alone[row["name"]]),
        )
        for row in found
    ]
    columns = ("<Rows", ">workers", ">samples/s", ">MB/s", ">CPU ms", "|", "<what limits it")
    yield Section("", columns, rates)
    parts = [(name, *(f"{1e3 * alone[name][part]:.2f}" for part in PARTS)) for name in alone]
    yield Section("ms a sample, without workers", ("<Parts", *(f">{part}" for part in PARTS)), parts)


def brief(row: Row, parts: Mapping[str, float]) -> str:
    """Return what limits *row* in a few words; *parts* are those without workers."""
    most = max(PARTS, key=parts.__getitem__)
    taken = 100 * parts[most] / (sum(parts.values()) or 1)
    return f"processors busy, {most}" if row["limit"] == PROCESSORS else f"{most} {taken:.0f} %"


def ms(seconds: float) -> str:
    """Return *seconds* in milliseconds.

    >>> ms(0.00512), ms(1.5)
    ('5.1 ms', '1,500 ms')
    """
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"


def as_fast(factor: float) -> str:
    """Return how many times as fast, with one decimal below 10.

    >>> as_fast(1.04), as_fast(1.4), as_fast(12.34)
    ('as fast', '1.4 times as fast', '12 times as fast')
    """
    times = f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"
    return "as fast" if times == "1.0" else f"{times} times as fast"


def rounded(number: float) -> str:
    """Return *number* with three digits that count.

    >>> rounded(1234.6), rounded(56.78), rounded(0.1234)
    ('1,235', '56.8', '0.123')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
