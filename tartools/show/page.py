"""Samples as one page of HTML that needs nothing else: no network, no other file, no right to run anything but its own.

Its layout, style and script are `page.html`, `page.css` and `page.js`. The page's policy (W3C, Content Security Policy
Level 3) names the style and the script by their SHA-256 sums and allows data: URLs for pictures and sounds, nothing
else: what a hostile name might smuggle in would not run.
"""

from __future__ import annotations

import base64
import hashlib
import math
import pkgutil
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from string import Template

from tartools.errors import several
from tartools.sample import Sample
from tartools.show import markup, text
from tartools.show.markup import BROKEN, FOLDER, IS, Tile, safe
from tartools.stages import ordered
from tartools.stages.report import in_units
from tartools.streams import Sink

SOUND_LIMIT = 2 << 20  # bytes of a sample whose sounds can be played
SOUNDS_LIMIT = 24 << 20  # bytes of all of these together
AHEAD = 16  # samples that are worked on, or done and not taken
CLASSES = 100  # values of a field beyond which they are no classes
BINS = 24  # of the histogram
EVEN = 32  # times the least that the greatest may be, beyond which a histogram has steps that grow


def write(samples: Iterable[Sample], sink: Sink, title: str, workers: int, most: int | None = None) -> int:
    """Write the page of *samples*, called *title*, and return how many there were; *most* says where reading ended.

    Order: input order. Holds: the page, some 20 KB for a sample with a photograph, and 16 samples; pictures are decoded
    by so many *workers* in threads. Raises: TarToolsError.
    """
    from PIL import Image

    Image.init()  # here, and not in several threads at once
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata; the filters are no business of threads
        work = ordered.mapped(audible(samples), lambda item: markup.tile(*item), workers, lambda: None, window=AHEAD)
        with closing(work):
            tiles = [tile for _, tile in work]
    sink.write(page(tiles, title, first=0 < len(tiles) == most).encode())
    return len(tiles)


def audible(samples: Iterable[Sample]) -> Iterator[tuple[Sample, bool]]:
    """Yield *samples*, and whether what sounds in them is to be part of the page: as long as there is room for it."""
    room = SOUNDS_LIMIT
    for sample in samples:
        size = sum(member.size for member in sample.members if text.may_sound(member))
        fits = size <= min(room, SOUND_LIMIT)
        yield sample, fits
        if fits:
            room -= size


def page(tiles: Sequence[Tile], title: str, *, first: bool) -> str:
    """Return the page of *tiles*, of which it says if they are the *first* of perhaps more."""
    style, script = part("css"), part("js")
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            "media-src data:",
            f"style-src '{sum_of(style)}'",
            f"script-src '{sum_of(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return Template(part("html")).substitute(
        policy=policy,
        title=safe(title),
        style=style,
        script=script,
        totals=totals(tiles, first=first),
        summary="\n".join(
            (fields(tiles), histogram([sum(size for _, size in t.sizes) for t in tiles]), *classes(tiles))
        ),
        tiles="\n".join(tile.html for tile in tiles),
    )


def part(kind: str) -> str:
    """Return the file `page.KIND` that lies beside this one."""
    return (pkgutil.get_data(__name__, f"page.{kind}") or b"").decode()


def sum_of(inline: str) -> str:
    """Return the hash source that allows the *inline* text of a style or script element (CSP, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}"


def totals(tiles: Sequence[Tile], *, first: bool) -> str:
    """Return how much there is, if it is but the *first* of it, and what is broken, with a button that shows that."""
    size, broken = sum(size for tile in tiles for _, size in tile.sizes), sum(tile.broken for tile in tiles)
    parts = ["the first " * first + several(len(tiles), "sample"), in_units(size)]
    if broken:
        parts.append(f'<button type="button" data-filter="{IS}={BROKEN}">{broken:,} {BROKEN}</button>')
    return " · ".join(parts)


def card(title: str, body: str) -> str:
    """Return a part of the summary."""
    return f'<div class="card"><h2>{safe(title)}</h2>{body}</div>'


def bar(share: float) -> str:
    """Return a bar of which *share*, from 0 to 1, is filled."""
    return (
        '<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="1"/></svg>'
    )


def fields(tiles: Sequence[Tile]) -> str:
    """Return which fields there are, in how many of the samples, and the mean of their sizes."""
    there: Counter[str] = Counter(name for tile in tiles for name in dict(tile.sizes))
    sizes: Counter[str] = Counter()
    for name, size in (field for tile in tiles for field in tile.sizes):
        sizes[name] += size
    rows = [
        f'<li><span class="name">{safe(name)}</span>{bar(count / len(tiles))}'
        f'<span class="number">{count:,} · {in_units(sizes[name] / count)}</span></li>'
        for name, count in there.items()
    ]
    return card("Fields, and the mean of their sizes", f"<ul tabindex=0>{''.join(rows)}</ul>") if rows else ""


def classes(tiles: Sequence[Tile]) -> Iterator[str]:
    """Yield for each field with few values how often each is there, with buttons that show just these samples."""
    counts: dict[str, Counter[str]] = {}
    for name, value in (value for tile in tiles for value in tile.values):
        counts.setdefault(name, Counter())[value] += 1
    for name in sorted(counts, key=lambda name: (name != "cls", name)):
        values = counts[name]
        if not 1 < len(values) <= min(CLASSES, values.total() // 2):
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


def query(name: str, value: str) -> str:
    """Return what finds the samples whose field *name* is *value*, for the page's filter: quotes hold words together.

    >>> query("cls", "5"), query("label", "sea lion")
    ('cls=5', '"label=sea lion"')
    """
    plain = f"{name}={value}".replace('"', "")
    return f'"{plain}"' if " " in plain else plain


def histogram(sizes: Sequence[int]) -> str:
    """Return how many samples have which of *sizes*, in bytes, as SVG."""
    if not sizes:
        return ""
    edges = steps(min(sizes), max(sizes))
    counts = Counter(next(n for n, end in enumerate(edges[1:]) if size < end) for size in sizes)
    height = {n: 100 * count / max(counts.values()) for n, count in counts.items()}
    bars = [
        f'<rect x="{n + 0.06:.2f}" width="0.88" y="{100 - height[n]:.1f}" height="{height[n]:.1f}">'
        f"<title>{counts[n]:,} of {low:,} to {high - 1:,} B</title></rect>"
        for n, (low, high) in enumerate(pairwise(edges))
        if counts[n]
    ]
    words = f"Sizes of {len(sizes):,} samples, from {min(sizes):,} to {max(sizes):,} bytes"
    drawing = (
        f'<svg class="sizes" viewBox="0 0 {len(edges) - 1} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}">{"".join(bars)}</svg>'
        f'<div class="ends"><span>{in_units(min(sizes))}</span><span>{in_units(max(sizes))}</span></div>'
    )
    return card("Size of a sample", drawing)


def steps(least: int, greatest: int) -> list[int]:
    """Return the edges of a histogram's bins, the last one beyond *greatest*: even, or growing if it is far away.

    >>> steps(5, 7), steps(10, 60)[:3], len(steps(1, 10**9))
    ([5, 6, 7, 8], [10, 12, 14], 25)
    """
    end, first = greatest + 1, max(least, 1)
    shares = [n / BINS for n in range(1, BINS)]
    if greatest > EVEN * first:
        inner = {math.floor(first * (end / first) ** share) for share in shares}
    else:
        inner = {math.floor(least + (end - least) * share) for share in shares}
    return sorted({least, end} | {edge for edge in inner if least < edge < end})
