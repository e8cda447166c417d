"""What the measurements of tarbench mean, in sentences: what limits each row, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tartools.errors import in_units

Row = dict[str, Any]

PARTS = ("list", "first_byte", "transfer", "tar", "decode", "collate")
WORDS = {"first_byte": "first byte"}
PROCESSORS = "processors"
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
    facts["says"] = list(advice(facts))


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
        "list": f"to list what there is takes {share}",
        "first_byte": f"{'to wait for requests' if far else 'to open files'} takes {share}",
        "transfer": f"to {'transfer' if far else 'read'} the bytes takes {share}",
        "tar": f"to make samples of bytes takes {share}",
        "decode": f"to decode takes {share}",
        "collate": f"to make batches takes {share}",
    }[most]


def best(rows: Sequence[Row], fits: Callable[[Row], bool]) -> Row | None:
    """Return the fastest of *rows* that fits."""
    return max(filter(fits, rows), key=lambda row: row["samples_per_second"], default=None)


def times(row: Row, other: Row) -> float:
    """Return how many times as fast *row* is."""
    return float(row["samples_per_second"] / (other["samples_per_second"] or 1e-9))


def called(row: Row) -> str:
    """Return the name of *row* with its workers."""
    return f"{row['name']}, {row['workers']} workers" if row["workers"] else row["name"]


def advice(facts: dict[str, Any]) -> list[str]:
    """Return what to do with the data of *facts*, in sentences."""
    found = facts["rows"]
    loose = best(found, lambda row: row["form"] == "loose" and row["stored"] == "encoded")
    packed = best(found, lambda row: row["form"] != "loose" and row["stored"] == "encoded")
    said = list(claims(found))
    if loose and packed:
        factor = times(packed, loose)
        what = "objects" if loose["requests"] is not None else "loose files"
        if factor >= BETTER:
            text = f"Pack the files: {called(packed)} gives {factor:.1f} times the samples a second of {what}."
        else:
            text = f"Packing does not make this faster: {called(packed)} gives {factor:.2f} times what {what} give."
        said.append(f"{text} What limits it: {packed['says']}.")
    elif packed or loose:
        only = packed or loose
        assert only is not None
        said.append(f"The fastest is {called(only)}. What limits it: {only['says']}.")
    raw = best(found, lambda row: row["stored"] == "raw")
    encoded = best(found, lambda row: row["stored"] == "encoded")
    if raw and encoded:
        size = mean(raw) / (mean(encoded) or 1)
        factor = times(raw, encoded)
        verb = "Decoded arrays are worth a try" if factor >= MUCH else "Keep pictures as they are"
        said.append(
            f"{verb}: decoded arrays give {factor:.1f} times the samples a second, of {size:.0f} times the bytes."
        )
    return said


def claims(found: Sequence[Row]) -> list[str]:
    """Return what requests side by side gain, and what shards gain over these, for objects."""
    objects = [row for row in found if row["form"] == "loose" and row["stored"] == "encoded" and row["requests"]]
    alone = best(objects, lambda row: row["requests"] == 1 and not row["workers"])
    together = best(objects, lambda row: row["requests"] > 1 and not row["workers"])
    if not alone or not together:
        return []
    said = [
        f"{together['requests']} requests at once bring the bytes {brought(alone) / brought(together):.1f} times as "
        f"fast as one at a time, for objects of {in_units(mean(together))}."
    ]
    packed = [row for row in found if row["form"] in ("table", "tar") and row["parts"] and row["stored"] == "encoded"]
    shard = min(packed, key=brought, default=None)
    if shard:
        factor = brought(together) / brought(shard)
        said.append(f"A shard ({shard['name']}) brings them {factor:.1f} times as fast as these requests.")
        if factor < BETTER:
            said.append("Here the bytes take the time, not the requests, so packing gains nothing.")
    return said


def brought(row: Row) -> float:
    """Return the seconds a sample that *row*, without workers, takes until its bytes are there as a sample."""
    return sum(row["parts"][name] for name in PARTS[:4]) or 1e-9


def mean(row: Row) -> float:
    """Return the bytes of a sample of *row*."""
    return float(row["bytes_per_second"] / (row["samples_per_second"] or 1))
