"""One tile of the page of `tarshow --html`: a sample as HTML, with its pictures, sounds and videos embedded.

Names, values and messages may be hostile: they enter HTML only through `safe`.
"""

from __future__ import annotations

import base64
import codecs
import html
import io
from collections.abc import Sequence
from typing import Any, NamedTuple

from tartools.errors import StorageError, TarToolsError, printable
from tartools.samples import decoding
from tartools.samples.filetypes import CONTENT_TYPES, MAGIC_BYTES, VIDEO, type_of_file
from tartools.samples.kinds import describe, may_be_picture
from tartools.samples.kinds.kind import Description
from tartools.samples.kinds.sounds import read_sound
from tartools.samples.sample import Sample, field_name
from tartools.samples.videos import first_frame
from tartools.tar import Member

# of WebP: two thirds of what JPEG takes to look as good; more effort saves 10 % and takes 50 %
WEBP_QUALITY, WEBP_EFFORT = 75, 1
MAX_LOSSLESS_PIXELS = 64  # pixels; smaller pictures are stored without loss and drawn unsmoothed
WAVEFORM_COLUMNS = 120  # of a waveform
PLAYED_VIDEOS = ("video/mp4", "video/webm")  # content types; of the others few browsers know the codecs
WEBM_MARK, WEBM_MARK_BYTES = b"webm", 64  # the DocType of WebM, which browsers play; of other Matroska they may not
SHOWN_TEXT_BYTES = 2000  # of a text that a tile shows
SILENT_PLAYER = '<p class="silent">too large to be played here</p>'
NEWLINE = "\n"
FIRST_FRAME = "#t=0.001"  # of a URL of a video: shows a frame before it plays (W3C, Media Fragments URI)
FOLDER_FACET, IS_FACET, BROKEN_FACET = "folder", "is", "broken"


class Broken(NamedTuple):
    """A picture, sound or video that can't be decoded, or compressed payload that can't be unpacked.

    Attributes, printable:
      key: of its sample.
      field: its field; "-" if it has none.
      why: the reason.
      sound: True unless it is, or by its field should be, a picture.
    """

    key: str
    field: str
    why: str
    sound: bool = False

    def __str__(self) -> str:
        """Return "KEY (FIELD: REASON)"."""
        return f"{self.key} ({self.field}: {self.why})"


class PageTile(NamedTuple):
    """A sample on the page: its printable *key*, its *html*, and the members that are *broken*, each a `Broken`."""

    key: str
    html: str
    broken: Sequence[Broken]


class PageField(NamedTuple):
    """A member on the page.

    Attributes:
      name: its field, printable; "-" if it has none.
      size: bytes of its payload.
      description: from `describe`.
      face: HTML of its picture, waveform, still or text, of an error message, or of the lines of its description; "" if
        it has none.
      player: HTML of its player, or of a note that it is too large, for sounds and videos; "" if it has none.
      text: of a text, its beginning (`read_beginning`), for the large view; "" if the description has it.
      broken: why it can't be decoded; "" if it can, or was not tried.
      sound: True if a broken member is no picture.
    """

    name: str
    size: int
    description: Description
    face: str = ""
    player: str = ""
    broken: str = ""
    sound: bool = False
    text: str = ""

    @property
    def rank(self) -> tuple[int, int]:
        """The sort key of members on a tile: pictures and the like first, then texts, the longest first, then others.

        (0, 0) for a member whose `face` is no text, also if it is ""; (1, -size) for a text, (2, 0) for any other.
        """
        if not self.face.startswith("<pre"):
            return 0, 0
        return (1, -self.size) if self.description.kind == "text" else (2, 0)


def safe(words: str) -> str:
    """Return *words* for HTML, as text or in a quoted attribute; control characters are escaped.

    >>> safe('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(printable(words))


def data_url(payload: bytes, kind: str) -> str:
    """Return *payload*, of the media type *kind* ("image/png"), as a data: URL (RFC 2397) in base64."""
    return f"data:{kind};base64,{base64.b64encode(payload).decode()}"


def make_tile(sample: Sample, audible: bool, side: int, faces: int = 1) -> PageTile:
    """Return the tile of *sample*, with pictures of up to *side* pixels; its sounds and videos play if *audible*.

    The first *faces* members by `rank` are side by side: pictures, waveforms, stills and messages about broken members,
    then texts, the longest first, then other descriptions. Other drawings are in the list of fields below. A sample
    without any of these shows the names of its fields.

    Holds: the tile, and one decoded picture. Raises: TarToolsError if a payload can't be read; MemoryError.
    """
    fields = [make_page_field(member, audible, side) for member in sample.members]
    folder, slash, base = sample.key.rpartition("/")
    marks = [f"{FOLDER_FACET}={printable(folder)}"] if slash else []
    marks += [f"{mark(f.name)}={f.description.value}" for f in fields if f.description.value]
    broken = [Broken(printable(sample.key), f.name, f.broken, f.sound) for f in fields if f.broken]
    marks += [f"{IS_FACET}={BROKEN_FACET}"] if broken else []
    shown = sorted((f for f in fields if f.face), key=lambda f: f.rank)[:faces]
    face = "".join(f.face for f in shown) or f'<span class="kind">{safe(" ".join(f.name for f in fields))}</span>'
    beside = "face pair" if faces > 1 else "face"
    key = f'<span class="folder">{safe(folder + slash)}</span>{safe(base)}'
    parts = [
        f'<li class="tile" data-values="{safe_lines(marks)}">',
        f'<button type="button" class="open" aria-haspopup="dialog"><span class="{beside}">{face}</span>',
        f'<span class="key">{key}</span></button>',
        *(f.player for f in fields),
        '<dl class="fields">',
        *(field_row(f, drawn=f not in shown) for f in fields),
        "</dl></li>",
    ]
    return PageTile(printable(sample.key), "".join(parts), broken)


def mark(field: str) -> str:
    """Return the name of *field* for the filter; a dot distinguishes fields from the words of the filter itself.

    >>> mark("cls"), mark("folder")
    ('cls', '.folder')
    """
    return f".{field}" if field in (FOLDER_FACET, IS_FACET) else field


def safe_lines(lines: Sequence[str]) -> str:
    """Return *lines* joined by newlines, each escaped for HTML, control characters too, by `safe`."""
    return "\n".join(map(safe, lines))


def field_row(page_field: PageField, drawn: bool) -> str:
    """Return the row of *page_field* in the HTML list of fields: name, description, size, and lines, but of no sound.

    The lines are its `text`, or else its description's. *drawn*: True if the tile does not show its `face` elsewhere: a
    picture, still or waveform is added (no message about a broken one), and a `text` replaces description and lines.
    """
    words, kind, lines = (
        safe(page_field.description.value or page_field.description.what),
        "what",
        page_field.description.lines,
    )
    if page_field.text and drawn:
        words, kind, lines = safe_lines(page_field.text.split(NEWLINE)), "what prose", ()
    elif page_field.text:  # the tile has it above; the large view has it here
        lines = page_field.text.split(NEWLINE)
    size = f'<dd class="size">{page_field.size:,} B</dd>'
    parts = [f'<div><dt>{safe(page_field.name)}</dt><dd class="{kind}">{words}</dd>{size}']
    if lines and page_field.description.kind != "sound":
        parts.append(f"<dd><pre>{safe_lines(lines)}</pre></dd>")
    if drawn and page_field.rank == (0, 0) and page_field.face and not page_field.broken:
        parts.append(f"<dd>{page_field.face}</dd>")
    return "".join([*parts, "</div>"])


def make_page_field(member: Member, audible: bool, side: int) -> PageField:
    """Return *member* with its HTML; pictures have up to *side* pixels, sounds and videos play if *audible*.

    A member that can't be decoded has a message as `face`, and the reason as `broken`, unless it is a picture that is
    only too large. A video without a still has no `face`, and is not broken.

    Raises: TarToolsError if the payload can't be read; MemoryError.
    """
    description = describe(member)
    page_field = PageField(printable(field_name(member)) or "-", member.size, description)
    if description.kind == "picture":
        words = f"{page_field.name}: {description.what}"
        try:
            return page_field._replace(face=picture_for_page(member, words, side))
        except (TarToolsError, MemoryError):
            raise
        except decoding.TooLargeError as error:
            return page_field._replace(face=error_html(f"{words}: {error}"))
        except Exception as error:  # Pillow raises any exception for damaged pictures
            why = decoding.reason_of_error(error)
            return page_field._replace(face=error_html(f"{words}: {why}"), broken=why)
    if description.kind == "sound":
        face = waveform(member) if description.lines else ""
        return page_field._replace(face=face, player=player(member, page_field.name) if audible else SILENT_PLAYER)
    if description.kind == "broken":
        return page_field._replace(
            face=error_html(description.what), broken=description.what, sound=not may_be_picture(member)
        )
    if is_video(member):
        face = still(member, f"{page_field.name}: {description.what}", side)
        return page_field._replace(
            face=face, player=video_player(member, page_field.name, face) if audible else SILENT_PLAYER
        )
    if description.kind == "text":
        words = read_beginning(member)
        face = f"<pre>{safe_lines(words.split(NEWLINE))}</pre>"
        return page_field._replace(face=face, text="" if description.value == words else words)
    if description.lines:
        return page_field._replace(face=f"<pre>{safe_lines(description.lines)}</pre>")
    return page_field


def is_video(member: Member) -> bool:
    """True if *member*, by its first bytes, is a video, such as MP4 or Matroska. Its name does not matter.

    Raises: StorageError if the payload can't be read.
    """
    with member.open() as file:
        file_type = type_of_file(file.read(MAGIC_BYTES))
    return file_type is not None and file_type.kind == VIDEO


def read_beginning(member: Member) -> str:
    """Return the text of *member* without newlines at the end; of more than 2,000 bytes the first, with an ellipsis.

    It is read as UTF-8; other bytes become replacement characters, but a character that is cut at the end is dropped.
    Raises: StorageError if the payload can't be read.
    """
    with member.open() as file:
        head = file.read(SHOWN_TEXT_BYTES)
    words = codecs.getincrementaldecoder("utf-8")("replace").decode(head).rstrip(NEWLINE)
    return words + ("…" if member.size > SHOWN_TEXT_BYTES else "")


def error_html(words: str) -> str:
    """Return the HTML that stands in place of a damaged picture or sound: the message *words*."""
    return f'<span class="wrong">{safe(words)}</span>'


def picture_for_page(member: Member, words: str, side: int) -> str:
    """Return the HTML of the picture *member* as WebP, which also shows its size in pixels; *words* describe it.

    The picture is reduced to at most *side* by *side* pixels. Raises: any exception that Pillow raises for a damaged
    picture; `decoding.TooLargeError`; TarToolsError if the payload can't be read.
    """
    header = decoding.picture_header(member)
    return image_html(decoding.decode_reduced(member, side, side), (header.width, header.height), words)


def still(member: Member, words: str, side: int) -> str:
    """Return the HTML of the first frame of the video *member*, of up to *side* by *side* pixels; *words* describe it.

    "" if it can't be decoded, has no frame, or PyAV is not installed. Raises: StorageError if the payload can't be
    read; MemoryError.
    """
    try:
        picture = first_frame(member)
    except (StorageError, MemoryError):
        raise
    except Exception:  # FFmpeg's errors have many classes; no PyAV is a TarToolsError
        return ""
    if picture is None:
        return ""
    size = picture.size
    picture.thumbnail((side, side))
    return image_html(picture, size, words, "still")


def image_html(picture: Any, size: tuple[int, int], words: str, kind: str = "") -> str:
    """Return the HTML of *picture*, a Pillow `Image`, as WebP, and of *size*, (width, height) before it was reduced.

    The size of *picture* follows if it is not *size*. *words*: its alternative text. *kind*: a class of the element,
    beside "tiny" for pictures of up to 64 by 64 pixels, which are stored without loss.
    """
    width, height = picture.size
    tiny = max(picture.size) <= MAX_LOSSLESS_PIXELS
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=WEBP_QUALITY, method=WEBP_EFFORT, lossless=tiny)
    pixels = f"{size[0]}x{size[1]}"
    classes = " ".join([kind] * bool(kind) + ["tiny"] * tiny)
    html_class = f' class="{classes}"' if classes else ""
    if size != picture.size:
        pixels += f", shown at {width}x{height}"
    return (
        f'<img alt="{safe(words)}" width="{width}" height="{height}" decoding="async"'
        f'{html_class} src="{data_url(file.getvalue(), "image/webp")}">'
        f'<span class="pixels">{pixels}</span>'
    )


def waveform(member: Member) -> str:
    """Return the waveform of the sound *member* as SVG, of 120 bars, or one a frame if it has fewer frames.

    Heights are relative to the loudest bar; silence is a thin line. Raises: ValueError if its first bytes are not those
    of WAV, FLAC or Ogg; soundfile's errors for damage; ModuleNotFoundError without soundfile.
    """
    _, peaks = read_sound(member, WAVEFORM_COLUMNS)
    heights = (max(1, 50 * peak) for peak in peaks)  # half of each; silence is still visible
    bars = "".join(f"M{place} {50 - height:.0f}h.7v{2 * height:.0f}h-.7z" for place, height in enumerate(heights))
    return (
        f'<svg class="wave" viewBox="0 0 {len(peaks)} 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<path d="{bars}"/></svg>'
    )


def video_player(member: Member, name: str, face: str) -> str:
    """Return the HTML player of the video *member*, labelled *name*; "" unless it is MP4 or WebM.

    With *face*, a still on the tile, only the large view shows the player. Raises: StorageError if the payload can't be
    read.
    """
    payload = member.read()
    file_type = type_of_file(payload[:MAGIC_BYTES])
    kind = CONTENT_TYPES.get(file_type.suffixes[0]) if file_type and file_type.suffixes else None
    if kind not in PLAYED_VIDEOS or (kind == "video/webm" and WEBM_MARK not in payload[:WEBM_MARK_BYTES]):
        return ""
    source = data_url(payload, kind) + FIRST_FRAME
    hidden = " class=large" if face else ""
    return f'<video controls preload="metadata"{hidden} aria-label="{safe(name)}" src="{source}"></video>'


def player(member: Member, name: str) -> str:
    """Return the HTML player of the sound *member*, labelled *name*; "" if browsers do not know its format.

    Raises: StorageError if the payload can't be read.
    """
    payload = member.read()
    file_type = type_of_file(payload[:MAGIC_BYTES])
    kind = CONTENT_TYPES.get(file_type.suffixes[0]) if file_type and file_type.suffixes else None
    if kind is None:
        return ""
    source = data_url(payload, kind)
    return f'<audio controls preload="none" aria-label="{safe(name)}" src="{source}"></audio>'
