"""The page of `tarbench --html`: one self-contained file with bars, without a script.

It has the style of the page of tarshow, and that of `bench.css`. Its policy allows nothing but this style.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from string import Template
from typing import Any

from tartools.show.benchadvice import PARTS, WORDS
from tartools.show.benchreport import headline, rounded, source
from tartools.show.html.page import part, sum_of
from tartools.show.html.tile import safe

Facts = Mapping[str, Any]

WIDE = 1000  # units of a drawing


def page(facts: Facts) -> str:
    """Return the page of *facts*, which are in the form of `tarbench --json`."""
    style = part("css") + file("bench.css")
    policy = f"default-src 'none'; img-src data:; style-src '{sum_of(style)}'; base-uri 'none'; form-action 'none'"
    title = f"tarbench {source(facts)}"
    left = [f"<li>{safe(each['form'])}: {safe(each['why'])}</li>" for each in facts["left_out"]]
    return Template(file("bench.html")).substitute(
        policy=policy,
        title=safe(title),
        style=style,
        totals=safe(headline(facts)),
        says="\n".join(f"<p>{safe(text)}</p>" for text in (*facts["answer"], *facts["says"])),
        rates="\n".join(rates(facts["rows"])),
        legend="\n".join(f'<li class="{name}">{WORDS.get(name, name)}</li>' for name in PARTS),
        parts="\n".join(parts(facts["rows"])),
        left=f"<h2>Left out</h2><ul>{''.join(left)}</ul>" if left else "",
    )


def file(name: str) -> str:
    """Return the file *name* beside this module."""
    return (pkgutil.get_data(__name__, name) or b"").decode()


def rates(rows: list[Any]) -> Iterator[str]:
    """Yield a row of the table for each of *rows*, with a bar for its samples a second."""
    most = max((row["samples_per_second"] for row in rows), default=0) or 1
    for row in rows:
        width = WIDE * row["samples_per_second"] / most
        cells = (
            f'<th scope="row">{safe(row["name"])}</th>',
            f'<td class="number" data-name="workers">{row["workers"]}</td>',
            f'<td class="number" data-name="samples/s">{rounded(row["samples_per_second"])}</td>',
            f'<td class="number" data-name="MB/s">{rounded(row["bytes_per_second"] / 1e6)}</td>',
            f'<td class="number" data-name="CPU ms">{1e3 * row["cpu_seconds"]:.2f}</td>',
            f'<td class="drawn">{drawing([("bar", 0, width)])}</td>',
            f'<td class="why-limits">{safe(row["says"])}</td>',
        )
        yield f'<tr class="{row["stored"]}">{"".join(cells)}</tr>'


def parts(rows: list[Any]) -> Iterator[str]:
    """Yield a row of the table for each of *rows* without workers, with a bar of its parts."""
    some = [row for row in rows if row["parts"]]
    most = max((sum(row["parts"].values()) for row in some), default=0) or 1
    for row in some:
        at, bars = 0.0, []
        for name in PARTS:
            width = WIDE * row["parts"][name] / most
            bars.append((name, at, width))
            at += width
        numbers = "".join(
            f'<td class="number" data-name="{WORDS.get(name, name)}">{1e3 * row["parts"][name]:.2f}</td>'
            for name in PARTS
        )
        yield f'<tr><th scope="row">{safe(row["name"])}</th>{numbers}<td class="drawn">{drawing(bars)}</td></tr>'


def drawing(bars: list[tuple[str, float, float]]) -> str:
    """Return a picture of *bars*: of each the class, where it begins, and how wide it is."""
    drawn = "".join(
        f'<rect class="{name}" x="{at:.1f}" width="{width:.1f}" height="10"/>' for name, at, width in bars if width > 0
    )
    return f'<svg viewBox="0 0 {WIDE} 10" preserveAspectRatio="none" aria-hidden="true">{drawn}</svg>'
