"""The summary of the page of `tarshow --html`: cards with counts of all samples, made of HTML and SVG."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterator, Mapping
from itertools import pairwise

from tartools.errors import in_units, printable
from tartools.samples.distribution import Distribution
from tartools.show import text
from tartools.show.html.overview import Overview
from tartools.show.html.tile import FOLDER, mark, safe
from tartools.stages.statistics.totals import MOST

CLASSES = 100  # distinct values; a field with more has no classes
BINS = 24  # of the histogram
EVEN = 32  # greatest / least size; beyond this ratio, the steps of the histogram grow


def cards(found: Overview, shown: Container[str]) -> Iterator[str]:
    """Yield the cards of *found*; the keys *shown* are those of samples on the page."""
    yield from (fields(found), histogram(found.sizes), *classes(found), broken(found, shown))


def card(title: str, body: str) -> str:
    """Return a part of the summary."""
    return f'<details class="card" open><summary>{safe(title)}</summary>{body}</details>'


def bar(share: float) -> str:
    """Return a bar filled to *share*, from 0 to 1."""
    return (
        '<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="1"/></svg>'
    )


def fields(found: Overview) -> str:
    """Return the list of fields, with the count of samples that have each, and the mean size."""
    title = "Fields and mean sizes"
    if found.fields is None:
        return card(title, f"<p>more than {MOST:,}</p>")
    rows = [
        f'<li><span class="name">{safe(name) or "-"}</span>{bar(each.samples / found.samples)}'
        f'<span class="number">{each.samples:,} · {in_units(each.sizes.total / each.samples)}</span></li>'
        for name, each in found.fields.items()
    ]
    return card(title, f"<ul tabindex=0>{''.join(rows)}</ul>") if rows else ""


def classes(found: Overview) -> Iterator[str]:
    """Yield, for folders and each field with few values, the count of each value, with buttons that filter by it."""
    counts = {mark(printable(name)): texts(each.classes or {}) for name, each in (found.fields or {}).items()}
    if found.folders:
        counts[FOLDER] = found.folders
    for name in sorted(counts, key=lambda name: (name != "cls", name)):
        values = counts[name]
        if not 1 < len(values) <= min(CLASSES, sum(values.values()) // 2):
            continue
        most = max(values.values())
        ranked = sorted(values.items(), key=lambda item: (-item[1], item[0]))
        rows = [
            f'<li><button type="button" class="count" data-filter="{safe(query(name, value))}">'
            f'<span class="name">{safe(value)}</span>{bar(count / most)}'
            f'<span class="number">{count:,}</span></button></li>'
            for value, count in ranked
        ]
        title = f"{'Folders' if name == FOLDER else name} ({len(values):,})"
        yield card(title, f"<ul>{''.join(rows)}</ul>")


def texts(counts: Mapping[str, int]) -> dict[str, int]:
    r"""Return of the *counts* of values those of short texts on one line, as a tile has them.

    >>> texts({"cat": 2, "": 1, "two\nlines": 1})
    {'cat': 2}
    """
    described = (
        (text.text(value.encode("utf-8", "surrogateescape"), whole=True), count)
        for value, count in counts.items()
        if "\n" not in value
    )
    return {found.value: count for found, count in described if found and found.value}


def broken(found: Overview, shown: Container[str]) -> str:
    """Return the list of broken members, with buttons that filter by the keys of those that are *shown*."""
    if not found.listed:
        return ""
    rows = [
        "<li>"
        + (
            f'<button type="button" class="name" data-filter="{safe(quoted(each.key))}">{safe(each.key)}</button>'
            if each.key in shown
            else f'<span class="name">{safe(each.key)}</span>'
        )
        + f'<span class="why">{safe(f"{each.field}: {each.why}")}</span></li>'
        for each in found.listed
    ]
    if found.broken > len(found.listed):
        rows.append(f"<li>and {found.broken - len(found.listed):,} more</li>")
    return card(f"Broken ({found.broken:,})", f'<ul class="broken" tabindex=0>{"".join(rows)}</ul>')


def query(name: str, value: str) -> str:
    """Return the text for the filter that finds samples whose field *name* is *value*.

    >>> query("cls", "5"), query("label", "sea lion")
    ('cls==5', '"label==sea lion"')
    """
    return quoted(f"{name}=={value}")


def quoted(words: str) -> str:
    """Return *words* for the filter as one word: in quotes if it has blanks."""
    plain = words.replace('"', "")
    return f'"{plain}"' if any(map(str.isspace, plain)) else plain


def histogram(sizes: Distribution) -> str:
    """Return the histogram of *sizes*, in bytes, as SVG."""
    if sizes.least is None or sizes.greatest is None:
        return ""
    edges = steps(sizes.least, sizes.greatest)
    counts: Counter[int] = Counter()
    for low, count in sizes.buckets.items():
        counts[max(0, bisect_right(edges, low) - 1)] += count
    height = {n: 100 * count / max(counts.values()) for n, count in counts.items()}
    bars = [
        f'<rect x="{n + 0.06:.2f}" width="0.88" y="{100 - height[n]:.1f}" height="{height[n]:.1f}">'
        f"<title>{counts[n]:,} of {low:,} to {high - 1:,} B</title></rect>"
        for n, (low, high) in enumerate(pairwise(edges))
        if counts[n]
    ]
    words = f"Sizes of {counts.total():,} samples, from {sizes.least:,} to {sizes.greatest:,} bytes"
    drawing = (
        f'<svg class="sizes" viewBox="0 0 {len(edges) - 1} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}">{"".join(bars)}</svg>'
        f'<div class="ends"><span>{in_units(sizes.least)}</span><span>{in_units(sizes.greatest)}</span></div>'
    )
    return card("Size of a sample", drawing)


def steps(least: int, greatest: int) -> list[int]:
    """Return the edges of the bins of a histogram, the last above *greatest*: equal bins, or growing ones.

    Inner edges are lower bounds of the buckets of a `Distribution`, so that no bucket is in two bins.

    >>> steps(5, 7), steps(10, 60)[:3], len(steps(1, 10**9))
    ([5, 6, 7, 8], [10, 12, 14], 25)
    """
    end, first = greatest + 1, max(least, 1)
    shares = [n / BINS for n in range(1, BINS)]
    if greatest > EVEN * first:
        inner = {math.floor(first * (end / first) ** share) for share in shares}
    else:
        inner = {math.floor(least + (end - least) * share) for share in shares}
    inner = set(Distribution.of(inner).buckets)
    return sorted({least, end} | {edge for edge in inner if least < edge < end})
