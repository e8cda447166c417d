"""The page of `tarshow --html`: one self-contained file, which needs no network and no other file.

Its template, style and script are `page.html`, `page.css` and `page.js`. The policy of the page (W3C, Content Security
Policy Level 3) allows this style and this script, by their SHA-256 sums, and data: URLs for pictures and sounds; so
code that a hostile name might smuggle in would not run.
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

from tartools.errors import in_units, several
from tartools.samples.sample import Sample
from tartools.show import text
from tartools.show.html.tile import BROKEN, FOLDER, IS, Tile, make_tile, safe
from tartools.stages import ordered
from tartools.storage.streams import Sink

SOUND_LIMIT = 2 << 20  # bytes of sounds of a sample; larger ones are not embedded
SOUNDS_LIMIT = 24 << 20  # bytes of sounds of the page
AHEAD = 16  # samples in progress, or finished and waiting for an earlier one
CLASSES = 100  # distinct values; a field with more has no classes
BINS = 24  # of the histogram
EVEN = 32  # greatest / least size; beyond this ratio, the steps of the histogram grow


def write(samples: Iterable[Sample], sink: Sink, title: str, workers: int, most: int | None = None) -> int:
    """Write the page of *samples* with this *title*; return how many samples it has. *most* is the limit of reading.

    Order: input order. Holds: the page, some 20 KB for a sample with a photograph, and 16 samples. *workers* threads
    decode pictures. Raises: TarToolsError.
    """
    from PIL import Image

    Image.init()  # once, before the threads start
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about odd metadata; warning filters are shared by all threads
        work = ordered.mapped(audible(samples), lambda item: make_tile(*item), workers, lambda: None, window=AHEAD)
        with closing(work):
            tiles = [tile for _, tile in work]
    sink.write(page(tiles, title, first=0 < len(tiles) == most).encode())
    return len(tiles)


def audible(samples: Iterable[Sample]) -> Iterator[tuple[Sample, bool]]:
    """Yield each of *samples*, and whether its sounds are embedded, up to the limits."""
    room = SOUNDS_LIMIT
    for sample in samples:
        size = sum(member.size for member in sample.members if text.may_sound(member))
        fits = size <= min(room, SOUND_LIMIT)
        yield sample, fits
        if fits:
            room -= size


def page(tiles: Sequence[Tile], title: str, *, first: bool) -> str:
    """Return the page of *tiles*; *first*: the input may have more samples."""
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
    """Return the file `page.KIND` beside this module."""
    return (pkgutil.get_data(__name__, f"page.{kind}") or b"").decode()


def sum_of(inline: str) -> str:
    """Return the hash source that allows the *inline* text of a style or script element (CSP, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}"


def totals(tiles: Sequence[Tile], *, first: bool) -> str:
    """Return the counts of samples, bytes and broken samples, with a button for these; *first* as in `page`."""
    size, broken = sum(size for tile in tiles for _, size in tile.sizes), sum(tile.broken for tile in tiles)
    parts = ["the first " * first + several(len(tiles), "sample"), in_units(size)]
    if broken:
        parts.append(f'<button type="button" data-filter="{IS}={BROKEN}">{broken:,} {BROKEN}</button>')
    return " · ".join(parts)


def card(title: str, body: str) -> str:
    """Return a part of the summary."""
    return f'<div class="card"><h2>{safe(title)}</h2>{body}</div>'


def bar(share: float) -> str:
    """Return a bar filled to *share*, from 0 to 1."""
    return (
        '<svg viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="1"/></svg>'
    )


def fields(tiles: Sequence[Tile]) -> str:
    """Return the list of fields, with the count of samples that have each, and the mean size."""
    samples: Counter[str] = Counter(name for tile in tiles for name in dict(tile.sizes))
    sizes: Counter[str] = Counter()
    for name, size in (field for tile in tiles for field in tile.sizes):
        sizes[name] += size
    rows = [
        f'<li><span class="name">{safe(name)}</span>{bar(count / len(tiles))}'
        f'<span class="number">{count:,} · {in_units(sizes[name] / count)}</span></li>'
        for name, count in samples.items()
    ]
    return card("Fields, and the mean of their sizes", f"<ul tabindex=0>{''.join(rows)}</ul>") if rows else ""


def classes(tiles: Sequence[Tile]) -> Iterator[str]:
    """Yield, for each field with few values, the count of each value, with buttons that filter by it."""
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
    """Return the text for the filter that finds samples whose field *name* is *value*, quoted if it has blanks.

    >>> query("cls", "5"), query("label", "sea lion")
    ('cls=5', '"label=sea lion"')
    """
    plain = f"{name}={value}".replace('"', "")
    return f'"{plain}"' if " " in plain else plain


def histogram(sizes: Sequence[int]) -> str:
    """Return the histogram of *sizes*, in bytes, as SVG."""
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
    """Return the edges of the bins of a histogram, the last above *greatest*: equal bins, or growing ones.

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
