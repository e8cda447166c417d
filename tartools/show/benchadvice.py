"""What the measurements of tarbench mean, in sentences: what limits each row, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tartools.errors import in_units

Row = dict[str, Any]

PARTS = ("list", "first_byte", "transfer", "tar", "decode", "collate")
WORDS = {"first_byte": "first byte"}
PROCESSORS = "processors"
OTHERS = 0.2  # of the processors, used by other programs: figures are too low then
BUSY = 0.8  # of the processors: nothing else limits then
BETTER = 1.15  # times as fast: less is chance
MUCH = 1.5  # times as fast, from which decoded arrays may be worth their size


def advise(facts: dict[str, Any]) -> None:
    """Add to each row of *facts* its `limit` and what it `says`, and to *facts* what to do."""
    found: Sequence[Row] = facts["rows"]
    alone = {(row["name"], row["stored"]): row for row in found if not row["workers"]}
    for row in found:
        base = alone[row["name"], row["stored"]]
        row["limit"] = limit_of(row, base, facts["cores"])
        row["says"] = sentence(row, base, facts["cores"])
    facts["answer"] = answer(facts)
    facts["says"] = list(advice(facts))


def answer(facts: dict[str, Any]) -> list[str]:
    """Return which format to take, and how many workers, in a line each; and one if other programs disturbed."""
    loose, packed, factor = forms_of(facts)
    best = packed if packed and (loose is None or factor >= BETTER) else loose
    if best is None:
        return []
    found = sorted(
        (row["workers"], row["samples_per_second"])
        for row in facts["rows"]
        if (row["name"], row["stored"]) == (best["name"], best["stored"])
    )
    most = max(rate for _, rate in found)
    workers, rate = next(each for each in found if each[1] * BETTER >= most)
    form = f"format: {best['name']}"
    if loose and packed:
        times = f"{rounded(factor)} times as fast"
        form += f" ({packed['name']}: {times})" if best is loose else f" ({times} as {loose['name']})"
    told = f"workers: {workers} ({rate:,.0f} samples/s"
    if others := [each for each in found if each[0] != workers]:
        told += f"; {others[0][0] or 'without'}: {others[0][1]:,.0f}"
    said = [form, f"{told})"]
    if (facts.get("others") or 0) >= OTHERS:
        said.append(f"figures are too low: other programs used {100 * facts['others']:.0f} % of the processors")
    return said


def forms_of(facts: dict[str, Any]) -> tuple[Row | None, Row | None, float]:
    """Return the best rows of loose files and of what is packed, and how many times as fast training is with these."""
    encoded = [row for row in facts["rows"] if row["parts"] and row["stored"] == "encoded"]
    loose = min((row for row in encoded if row["form"] == "loose"), key=brought, default=None)
    packed = min((row for row in encoded if row["form"] != "loose"), key=brought, default=None)
    if not loose or not packed:
        return loose, packed, 1
    work = min(map(worked, encoded))
    return loose, packed, (brought(loose) + work) / (brought(packed) + work)


def brief(row: Row, base: Row) -> str:
    """Return what limits *row* in a few words; *base* is it without workers."""
    most = largest(base["parts"])
    word = WORDS.get(most, most)
    share = 100 * base["parts"][most] / (sum(base["parts"].values()) or 1)
    return f"processors busy, {word}" if row["limit"] == PROCESSORS else f"{word} {share:.0f} %"


def largest(parts: dict[str, float]) -> str:
    """Return the name of the largest of *parts*."""
    return max(PARTS, key=lambda name: parts[name])


def limit_of(row: Row, base: Row, cores: int) -> str:
    """Return what limits *row*: processors if they are busy, else the largest part of *base*, which has no workers."""
    busy = row["cpu_seconds"] * row["samples_per_second"] / cores
    return PROCESSORS if row["workers"] and busy >= BUSY else largest(base["parts"])


def sentence(row: Row, base: Row, cores: int) -> str:
    """Return in words what limits *row*."""
    parts = base["parts"]
    most = largest(parts)
    share = f"{100 * parts[most] / (sum(parts.values()) or 1):.0f} % of the time"
    if row["limit"] == PROCESSORS:
        return f"all {cores} processors are busy, most with: {WORDS.get(most, most)}"
    far = row["requests"] is not None
    return {
        "list": f"listing takes {share}",
        "first_byte": f"{'waiting for requests' if far else 'opening files'} takes {share}",
        "transfer": f"{'transferring' if far else 'reading'} the bytes takes {share}",
        "tar": f"making samples of the bytes takes {share}",
        "decode": f"decoding takes {share}",
        "collate": f"making batches takes {share}",
    }[most]


def called(row: Row) -> str:
    """Return the name of *row* with its workers."""
    return f"{row['name']}, {row['workers']} workers" if row["workers"] else row["name"]


def brought(row: Row) -> float:
    """Return the seconds a sample that *row*, without workers, takes until its bytes are there as a sample."""
    return sum(row["parts"][name] for name in PARTS[:4]) or 1e-9


def worked(row: Row) -> float:
    """Return the seconds a sample that *row*, without workers, takes from then on until it is in a batch."""
    return float(row["parts"]["decode"] + row["parts"]["collate"])


def advice(facts: dict[str, Any]) -> list[str]:
    """Return what to do with the data of *facts*, in sentences.

    Rows are compared by the times that samples take to come, with the same time to decode and collate them, so that
    what else the machine did at that moment counts less.
    """
    alone = [row for row in facts["rows"] if row["parts"]]
    encoded = [row for row in alone if row["stored"] == "encoded"]
    loose, packed, factor = forms_of(facts)
    said = claims(encoded)
    if loose and packed:
        what = "objects" if loose["requests"] is not None else "loose files"
        first = "Pack the files" if factor >= BETTER else "Packing gains little"
        if factor * BETTER <= 1:
            first = "Leave the files as they are"
        said.append(
            f"{first}: {packed['name']} brings a sample in {ms(brought(packed))}, {what} in {ms(brought(loose))}; with "
            f"the decoding that is {rounded(factor)} times as fast. What limits it then: {packed['says']}."
        )
    elif loose or packed:
        only = packed or loose
        assert only is not None
        said.append(f"A sample comes in {ms(brought(only))} ({only['name']}); {only['says']}.")
    raw = min((row for row in alone if row["stored"] == "raw"), key=brought, default=None)
    if raw and packed:
        gain = (brought(packed) + worked(packed)) / (brought(raw) + worked(raw))
        first = "Decoded arrays are worth a try" if gain >= MUCH else "Keep pictures as they are"
        size = mean(raw) / (mean(packed) or 1)
        said.append(
            f"{first}: decoded arrays come {rounded(gain)} times as fast, and are {rounded(size)} times as large."
        )
    return said


def claims(encoded: Sequence[Row]) -> list[str]:
    """Return what requests side by side gain, and what shards gain over these, for objects."""
    objects = [row for row in encoded if row["form"] == "loose" and row["requests"]]
    single = next((row for row in objects if row["requests"] == 1), None)
    together = next((row for row in objects if row["requests"] > 1), None)
    if not single or not together:
        return []
    gained = rounded(brought(single) / brought(together))
    said = [
        f"{together['requests']} requests at once bring the bytes {gained} times as "
        f"fast as one at a time, for objects of {in_units(mean(together))}."
    ]
    shard = min((row for row in encoded if row["form"] in ("table", "tar")), key=brought, default=None)
    if shard:
        factor = brought(together) / brought(shard)
        said.append(f"A shard ({shard['name']}) brings them {rounded(factor)} times as fast as these requests.")
        if factor < BETTER:
            said.append("Here the bytes take the time, not the requests, so packing gains nothing.")
    return said


def ms(seconds: float) -> str:
    """Return *seconds* in milliseconds.

    >>> ms(0.00512), ms(1.5)
    ('5.1 ms', '1,500 ms')
    """
    return f"{1e3 * seconds:,.0f} ms" if seconds >= 0.1 else f"{1e3 * seconds:.2g} ms"


def rounded(factor: float) -> str:
    """Return how many times, with one decimal below 10.

    >>> rounded(1.04), rounded(12.34)
    ('1.0', '12')
    """
    return f"{factor:.1f}" if factor < 10 else f"{factor:,.0f}"


def mean(row: Row) -> float:
    """Return the bytes of a sample of *row*."""
    return float(row["bytes_per_second"] / (row["samples_per_second"] or 1))
