"""The advice and the report of tarbench: sections for a terminal, one fact per line for a pipe.

All take the facts in the form of `tarbench --json`. Names are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tartools.errors import in_units, several, shown
from tartools.show.sections import Part, Section, share_of, shorten

Facts = Mapping[str, Any]
Row = dict[str, Any]

TIME_PARTS = ("list", "read", "decode", "collate")
PROCESSOR_LIMIT = "processors"
MAX_OTHER_LOAD = 0.2  # share of the CPU used by other programs; with more, figures are too low
BUSY_SHARE = 0.8  # share of the CPU; from this on, the CPU is the bottleneck
MIN_SPEEDUP = 1.15  # times as fast; less is within the noise


def add_advice(facts: dict[str, Any]) -> None:
    """Add "limit" to each row of *facts*, which `tarbench --json` prints, and the lines "advice" to *facts*.

    Not for a dry run: its rows have no results.

    The limit is the part of the time that takes longest ("list", "read", "decode" or "collate") in the row of the same
    name without workers, which must be there, or "processors" for a row with workers whose CPU time per sample keeps
    the cores at least 80 % busy (BUSY_SHARE).
    """
    parts_by_name = {row["name"]: row["parts"] for row in facts["rows"] if not row["workers"]}
    for row in facts["rows"]:
        busy = row["cpu_seconds"] * row["samples_per_second"] / facts["cores"]
        slowest_part = max(TIME_PARTS, key=parts_by_name[row["name"]].__getitem__)
        row["limit"] = PROCESSOR_LIMIT if row["workers"] and busy >= BUSY_SHARE else slowest_part
    facts["advice"] = make_advice(facts)


def make_advice(facts: Facts) -> list[str]:
    """Return lines of advice: the format, the number of workers, and a warning if other programs used the CPU.

    They begin with "format: ", "workers: " and "figures are too low: "; the last is there if other programs used 20 %
    or more (MAX_OTHER_LOAD). *facts*: from `tarbench --json`, not of a dry run; "advice" and "limit" need not be
    there. No lines without rows. Loose files, if measured, are the format unless another is at least 1.15 times as fast
    (MIN_SPEEDUP). The number of workers is the smallest one with which this format's best rate is at most 1.15 times as
    high.
    """
    loose, packed, factor = compare_forms(facts)
    best = packed if packed and (loose is None or factor >= MIN_SPEEDUP) else loose
    if best is None:
        return []
    rates_by_workers = sorted(
        (row["workers"], row["samples_per_second"]) for row in facts["rows"] if row["name"] == best["name"]
    )
    max_rate = max(rate for _, rate in rates_by_workers)
    workers, rate = next(pair for pair in rates_by_workers if pair[1] * MIN_SPEEDUP >= max_rate)
    form = f"format: {best['name']}"
    if loose and packed:
        times = speed_in_words(factor)
        form += f" ({packed['name']}: {times})" if best is loose else f" ({times} as {loose['name']})"
    workers_line = f"workers: {workers} ({rate:,.0f} samples/s"
    if other_rates := [pair for pair in rates_by_workers if pair[0] != workers]:
        workers_line += f"; {other_rates[0][0] or 'without'}: {other_rates[0][1]:,.0f}"
    lines = [form, f"{workers_line})"]
    if (facts["others"] or 0) >= MAX_OTHER_LOAD:
        lines.append(f"figures are too low: other programs used {100 * facts['others']:.0f} % of the processors")
    return lines


def compare_forms(facts: Facts) -> tuple[Row | None, Row | None, float]:
    """Return (best row of loose files, best row of another form, how many times as fast training is from the other).

    *facts*: those of `tarbench --json`. The best row lists and reads a sample in the shortest time. Only rows without
    workers are compared; a row that does not exist is None, and the factor then 1. Times to decode and collate are
    assumed to be equal, so that other load on the machine during one row counts less.
    """
    single_rows = [row for row in facts["rows"] if row["parts"]]
    loose = min((row for row in single_rows if row["form"] == "loose"), key=loading_seconds, default=None)
    packed = min((row for row in single_rows if row["form"] != "loose"), key=loading_seconds, default=None)
    if not loose or not packed:
        return loose, packed, 1
    work = min(row["parts"]["decode"] + row["parts"]["collate"] for row in single_rows)
    return loose, packed, (loading_seconds(loose) + work) / (loading_seconds(packed) + work)


def loading_seconds(row: Row) -> float:
    """Return the seconds that a sample takes until it is read: the times to list and to read, not to decode. Never 0.

    *row*: of a measurement without workers; others have no times of parts.
    """
    return float(row["parts"]["list"] + row["parts"]["read"]) or 1e-9


def plain_lines(facts: Facts) -> Iterator[str]:
    """Yield the *facts* of `tarbench --json`, one per line; after a dry run the rows that would be measured.

    First the lines of advice, then facts about the data ("samples: 100"), then up to three lines a row, with "row",
    "parts" or "limit" and its name before the colon: "limit zip: read 60 %". After a dry run a row is "row zip".
    """
    yield from facts["advice"]
    first_url, *other_urls = map(shown, facts["source"])
    yield f"source: {first_url}{f' and {len(other_urls):,} more' if other_urls else ''}"
    yield f"samples: {facts['samples']}"
    if facts["bytes"] is not None:
        yield f"bytes: {facts['bytes']}"
        yield f"fields: {shorten(' '.join(facts['fields']))}"
    yield f"workers on: {facts['cores']} processors"
    for name, row, parts in rows_with_parts(facts):
        if "samples" not in row:
            yield f"row {name}"
            continue
        yield (
            f"row {name}: {row['samples_per_second']:.1f} samples/s, {row['bytes_per_second'] / 1e6:.1f} MB/s, "
            f"{1e3 * row['cpu_seconds']:.3f} ms CPU per sample, {row['samples']} samples"
            f"{', ' + row['cache'] if row['cache'] else ''}"
        )
        if row["parts"]:
            yield f"parts {name}: {', '.join(f'{part} {1e3 * parts[part]:.3f} ms' for part in TIME_PARTS)}"
        yield f"limit {name}: {describe_limit(row, parts)}"


def parts(facts: Facts) -> Iterator[Part]:
    """Yield the *facts* of `tarbench --json` as parts of a report: `Section` tables, and pairs (line, its style).

    After a dry run the rows to measure take the place of the results.
    """
    yield from ((text, "bold cyan") for text in facts["advice"])
    measured = [several(facts["samples"], "sample")]
    if facts["bytes"] is not None:
        measured.append(in_units(facts["bytes"]))
    measured += [f"batches of {facts['batch']}", several(facts["cores"], "processor")]
    rows = facts["rows"]
    if not rows or "samples" not in rows[0]:
        yield ", ".join(measured), "bold"
        yield Section("", ("<To measure",), [(name,) for name, _, _ in rows_with_parts(facts)])
        return
    measured.append("/".join(sorted({row["cache"] or "on a server" for row in rows})))
    yield ", ".join(measured), "bold"
    max_rate = max(row["samples_per_second"] for row in rows)
    rates = [
        (
            row["name"],
            str(row["workers"]),
            round_figure(row["samples_per_second"]),
            round_figure(row["bytes_per_second"] / 1e6),
            f"{1e3 * row['cpu_seconds']:.2f}",
            share_of(row["samples_per_second"], max_rate),
            describe_limit(row, parts),
        )
        for _, row, parts in rows_with_parts(facts)
    ]
    columns = ("<Rows", ">workers", ">samples/s", ">MB/s", ">CPU ms", "|", "<what limits it")
    yield Section("", columns, rates)
    times = [(row["name"], *(f"{1e3 * row['parts'][part]:.2f}" for part in TIME_PARTS)) for row in rows if row["parts"]]
    yield Section("ms per sample, without workers", ("<Parts", *(f">{part}" for part in TIME_PARTS)), times)


def rows_with_parts(facts: Facts) -> Iterator[tuple[str, Row, Mapping[str, float]]]:
    """Yield (name with the number of workers, row, parts of its time) for each row of *facts*.

    The name is "zip, 4 workers", or "zip" without workers. The parts, in seconds per sample, are those of the row of
    the same name without workers, which must be there; {} if not measured.
    """
    parts_by_name = {row["name"]: row.get("parts") or {} for row in facts["rows"] if not row["workers"]}
    for row in facts["rows"]:
        name = f"{row['name']}, {several(row['workers'], 'worker')}" if row["workers"] else row["name"]
        yield name, row, parts_by_name[row["name"]]


def describe_limit(row: Row, parts: Mapping[str, float]) -> str:
    """Return the bottleneck of *row* and its share of the time: "read 60 %", or "processors busy, read".

    *row*: with its "limit", from `add_advice`. *parts*: seconds per sample by part, of the row of this name without
    workers; the part named is the one that takes longest there.
    """
    slowest_part = max(TIME_PARTS, key=parts.__getitem__)
    percentage = 100 * parts[slowest_part] / (sum(parts.values()) or 1)
    return (
        f"processors busy, {slowest_part}" if row["limit"] == PROCESSOR_LIMIT else f"{slowest_part} {percentage:.0f} %"
    )


def speed_in_words(factor: float) -> str:
    """Return *factor* in words: how many times as fast, with one decimal below 10.

    >>> speed_in_words(1.04), speed_in_words(1.4), speed_in_words(12.34)
    ('as fast', '1.4 times as fast', '12 times as fast')
    """
    times = f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"
    return "as fast" if times == "1.0" else f"{times} times as fast"


def round_figure(number: float) -> str:
    """Return *number* with up to three significant digits, or as a whole number from 100 on; 1e-05 for 0.00001.

    >>> round_figure(1234.6), round_figure(56.78), round_figure(0.1234)
    ('1,235', '56.8', '0.123')
    """
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
