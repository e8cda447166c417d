"""One tile of the page of `tarshow --html`: a sample as HTML, with its pictures and sounds embedded.

Names, values and messages may be hostile: they enter HTML only through `safe`.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import NamedTuple

from tartools.errors import TarToolsError, printable
from tartools.samples.sample import Sample, field_name
from tartools.show import decoding, sound, text
from tartools.tar import Member

SIDE = 384  # pixels of a picture on the page; a tile shows some 200, the large view 900
QUALITY, EFFORT = 75, 2  # of WebP: half of what JPEG takes to look as good, in no more time
TINY = 64  # pixels; smaller pictures are stored without loss and drawn unsmoothed
COLUMNS = 120  # of a waveform
SILENT = '<p class="silent">too large to be played here</p>'
VALUE = 40  # characters; a longer text is no class, and has no filter
FOLDER, IS, BROKEN = "folder", "is", "broken"


class Tile(NamedTuple):
    """A sample on the page: its *html*, sizes and short values by field, and whether a member is *broken*."""

    html: str
    sizes: Sequence[tuple[str, int]]
    values: Sequence[tuple[str, str]]
    broken: bool


class Field(NamedTuple):
    """A member: its description *found*, and as HTML its *face* (what is drawn) and its *player*."""

    name: str
    size: int
    found: text.Description
    face: str = ""
    player: str = ""
    broken: bool = False


def safe(words: str) -> str:
    """Return *words* for HTML, as text or in a quoted attribute; control characters are escaped.

    >>> safe('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(printable(words))


def embedded(payload: bytes, kind: str) -> str:
    """Return *payload* as a data: URL (RFC 2397)."""
    return f"data:{kind};base64,{base64.b64encode(payload).decode()}"


def make_tile(sample: Sample, audible: bool) -> Tile:
    """Return the tile of *sample*; its sounds are embedded if *audible*.

    Holds: the tile, and one decoded picture. Raises: StorageError if the file of the sample has become shorter.
    """
    fields = [field(member, audible) for member in sample.members]
    folder, slash, base = sample.key.rpartition("/")
    values = [(FOLDER, printable(folder))] if slash else []
    values += [(mark(f.name), f.found.value) for f in fields if f.found.value and len(f.found.value) <= VALUE]
    broken = any(f.broken for f in fields)
    marks = [f"{name}={value}" for name, value in values] + [f"{IS}={BROKEN}"] * broken
    shown = next((f for f in fields if f.face), None)
    face = shown.face if shown else f'<span class="kind">{safe(" ".join(f.name for f in fields))}</span>'
    key = f'<span class="folder">{safe(folder + slash)}</span>{safe(base)}'
    parts = [
        f'<li class="tile" data-values="{safe_lines(marks)}">',
        f'<button type="button" class="open" aria-haspopup="dialog"><span class="face">{face}</span>',
        f'<span class="key">{key}</span></button>',
        *(f.player for f in fields),
        '<dl class="fields">',
        *(row(f, drawn=f is not shown) for f in fields),
        "</dl></li>",
    ]
    return Tile("".join(parts), [(f.name, f.size) for f in fields], values, broken)


def mark(field: str) -> str:
    """Return the name of *field* for the filter; a dot distinguishes fields from the words of the filter itself.

    >>> mark("cls"), mark("folder")
    ('cls', '.folder')
    """
    return f".{field}" if field in (FOLDER, IS) else field


def safe_lines(lines: Sequence[str]) -> str:
    """Return *lines* as `safe` does, joined by newlines."""
    return "\n".join(map(safe, lines))


def row(shown: Field, drawn: bool) -> str:
    """Return the row of the field *shown* in the list of fields; *drawn* adds its picture or waveform."""
    what = safe(shown.found.value or shown.found.what)
    parts = [f'<div><dt>{safe(shown.name)}</dt><dd class="what">{what}</dd><dd class="size">{shown.size:,} B</dd>']
    if shown.found.kind != "sound" and shown.found.lines:
        parts.append(f"<dd><pre>{safe_lines(shown.found.lines)}</pre></dd>")
    if drawn and shown.face and shown.found.kind in ("picture", "sound"):
        parts.append(f"<dd>{shown.face}</dd>")
    return "".join([*parts, "</div>"])


def field(member: Member, audible: bool) -> Field:
    """Return the field of *member*."""
    found = text.describe(member)
    known = Field(printable(field_name(member)) or "-", member.size, found)
    if found.kind == "picture":
        face = picture(member, f"{known.name}: {found.what}")
        return known._replace(face=face, broken=not face.startswith("<img"))
    if found.kind == "sound":
        face = waveform(member) if found.lines else ""
        return known._replace(face=face, player=player(member, known.name) if audible else SILENT)
    if found.kind == "broken":
        return known._replace(face=wrong(found.what), broken=True)
    if found.lines:
        return known._replace(face=f"<pre>{safe_lines(found.lines)}</pre>")
    return known


def wrong(words: str) -> str:
    """Return the HTML in place of a damaged picture or sound."""
    return f'<span class="wrong">{safe(words)}</span>'


def picture(member: Member, words: str) -> str:
    """Return the picture *member*, described by *words*, encoded as WebP; or a message if it cannot be decoded."""
    try:
        decoded = decoding.decoded(member, SIDE, SIDE)
        file = io.BytesIO()
        tiny = max(decoded.size) <= TINY
        decoded.save(file, "WEBP", quality=QUALITY, method=EFFORT, lossless=tiny)
    except TarToolsError:
        raise
    except Exception as error:  # Pillow raises any exception for damaged pictures
        return wrong(f"{words}: {decoding.reason(error)}")
    source = embedded(file.getvalue(), "image/webp")
    width, height = decoded.size
    return (
        f'<img alt="{safe(words)}" width="{width}" height="{height}" decoding="async"'
        f'{" class=tiny" if tiny else ""} src="{source}">'
    )


def waveform(member: Member) -> str:
    """Return the waveform of the sound *member* as SVG."""
    peaks = sound.read(member, COLUMNS).peaks
    bars = "".join(f"M{place} {50 - height:.0f}h.7v{2 * height:.0f}h-.7z" for place, height in scaled(peaks))
    return (
        f'<svg class="wave" viewBox="0 0 {len(peaks)} 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{bars}"/></svg>'
    )


def scaled(peaks: Sequence[float]) -> list[tuple[int, float]]:
    """Return (column, half of the height) for each of *peaks*; silence is still visible."""
    return [(place, max(1, 50 * peak)) for place, peak in enumerate(peaks)]


def player(member: Member, name: str) -> str:
    """Return the player of the sound *member* of field *name*; empty if browsers do not know its format."""
    payload = member.read()
    kind = sound.media_type(payload)
    if not kind:
        return ""
    return f'<audio controls preload="none" aria-label="{safe(name)}" src="{embedded(payload, kind)}"></audio>'
