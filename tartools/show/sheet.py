"""Arrange samples on a terminal: pictures side by side with labels under them, then the other fields as text.

A video is drawn as its first frame.

A sample is a `Block`, or several if its pictures do not fit side by side. As many samples as fit are side by side.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

from tartools.errors import TarToolsError, printable
from tartools.samples import decoding
from tartools.samples.filetypes import PICTURE, VIDEO
from tartools.samples.kinds import describe
from tartools.samples.kinds.kind import Description
from tartools.samples.sample import Sample, field_name
from tartools.show import graphics, text
from tartools.show.terminal import BLOCKS, ITERM, KITTY, NO_PROTOCOL, Screen
from tartools.tar import Member

if TYPE_CHECKING:
    from PIL.Image import Image

PICTURE_GAP_COLUMNS = 2  # columns between pictures, and between samples
# limits of columns and rows of a picture: two fit into 80 columns
NARROW_PICTURE_COLUMNS, MAX_PICTURE_COLUMNS, MAX_PICTURE_ROWS = 39, 64, 32
MIN_PICTURE_COLUMNS = 20  # columns of a picture in the pager, at least
ROWS_AROUND_PICTURES = 5  # rows of the screen besides pictures: key, label, a line of text, an empty line, the prompt
MESSAGE_COLUMNS = 26  # columns of the message in place of a picture
BOLD, DIM, REVERSE, STYLE_END = "\x1b[1m", "\x1b[2m", "\x1b[7m", "\x1b[0m"
DRAWN_KINDS = (PICTURE, VIDEO)  # kinds of descriptions of members that are drawn

Described = Sequence[tuple[Member, Description]]


class Tile(NamedTuple):
    """A picture, or the first frame of a video, on the terminal, with its label below.

    Attributes:
      columns, rows: its size in cells.
      lines: its lines, if it is drawn by text, or a message.
      drawing: otherwise the escape code that draws it at the cursor.
      label: text under it.
      broken: True if it is damaged; False also if it is only too large to be decoded.
    """

    columns: int
    rows: int
    lines: Sequence[str]
    drawing: str
    label: str
    broken: bool = False

    @property
    def width(self) -> int:
        """The columns that the picture or its label take, whichever is wider."""
        return max(self.columns, line_columns(self.label))


class Block(NamedTuple):
    """A sample, or a part of one: its *title*, *tiles* (pictures) side by side, and *lines* of text below."""

    title: str
    tiles: Sequence[Tile]
    lines: Sequence[str]

    @property
    def width(self) -> int:
        """The columns that its title, tiles or lines take, whichever is widest."""
        tiles = sum(tile.width + PICTURE_GAP_COLUMNS for tile in self.tiles) - PICTURE_GAP_COLUMNS
        return max(tiles, line_columns(self.title), *map(line_columns, self.lines))


def draw_rows(
    samples: Iterable[Sample], screen: Screen, note: Callable[[Sample, bool], object] = lambda _sample, _broken: None
) -> Iterator[tuple[str, int, int]]:
    """Yield (text, count of samples, lines that the text takes), for as many *samples* as fit side by side on *screen*.

    If *screen* draws no pictures, that is one, and each character is counted as one column. A sample without pictures,
    or with more than fit side by side, is alone. *note*: called with each sample, and True if a picture, sound, video
    or compressed payload in it is broken, else False.
    Order: input order. Holds: the text of the samples that are side by side. Raises: TarToolsError.
    """
    if screen.protocol == NO_PROTOCOL:
        for sample in samples:
            described = describe_members(sample, screen)
            note(sample, is_broken(described))
            lines_text = text.sample_text(sample, described, bold=screen.codes)
            yield lines_text, 1, sum(max(1, -(-len(line) // screen.columns)) for line in lines_text[:-1].split("\n"))
        return
    max_columns = min(
        screen.columns,
        max(NARROW_PICTURE_COLUMNS, min(MAX_PICTURE_COLUMNS, (screen.columns - PICTURE_GAP_COLUMNS) // 2)),
    )
    max_rows = min(MAX_PICTURE_ROWS, screen.rows - ROWS_AROUND_PICTURES)
    waiting: list[Block] = []
    for sample in samples:
        described = describe_members(sample, screen)
        blocks = lay_out(sample, described, screen, max_columns, max_rows)
        note(sample, is_broken(described) or any(tile.broken for block in blocks for tile in block.tiles))
        lone = len(blocks) > 1 or not blocks[0].tiles
        used_columns = sum(block.width + PICTURE_GAP_COLUMNS for block in waiting)
        if waiting and (lone or used_columns + blocks[0].width > screen.columns):
            yield draw_row(waiting) + "\n", len(waiting), block_height(waiting, screen.columns) + 1
            waiting = []
        if lone:
            lines = sum(block_height([block], screen.columns) for block in blocks)
            yield "".join(draw_row([block]) for block in blocks) + "\n", 1, lines + 1
        else:
            waiting += blocks
    if waiting:
        yield draw_row(waiting) + "\n", len(waiting), block_height(waiting, screen.columns) + 1


def is_broken(described: Described) -> bool:
    """True if one of the members *described* is a broken picture, sound or video, or damaged compressed data."""
    return any(description.kind == "broken" for _, description in described)


def block_height(blocks: Sequence[Block], columns: int) -> int:
    """Return the number of lines that *blocks* side by side take on a terminal of *columns*, which wraps long lines.

    *blocks*: at least one; all have a title, or none. A title, and the labels of tiles, count as one line each.
    """
    tallest = max((tile.rows + 1 for block in blocks for tile in block.tiles), default=0)
    below = max(sum(max(1, -(-line_columns(line) // columns)) for line in block.lines) for block in blocks)
    return bool(blocks[0].title) + tallest + below


def draw_page(sample: Sample, screen: Screen) -> tuple[str, bool]:
    """Return (text of *sample* for all rows of *screen* but the last, True if all of its lines and pictures fit).

    Pictures with their labels get the rows that the text leaves, but at least half of the rows below the key. Lines and
    pictures that do not fit are left out; a line wider than the screen is cut, which does not count as not fitting.
    Raises: TarToolsError if a payload can't be read.
    """
    described = describe_members(sample, screen)
    is_drawing = screen.protocol != NO_PROTOCOL
    count = sum(is_drawing and description.kind in DRAWN_KINDS for _, description in described)
    text_rows = sum(1 + len(description.lines) for _, description in described) - count
    free_rows = screen.rows - 1
    picture_rows = free_rows - 1 - min(text_rows, free_rows // 2)  # rows for pictures and their labels
    max_across = min(count, (screen.columns + PICTURE_GAP_COLUMNS) // (MIN_PICTURE_COLUMNS + PICTURE_GAP_COLUMNS))
    # the number side by side that makes square pictures largest
    across = max(
        range(1, max_across + 1),
        key=lambda n: min(screen.columns // n, 2 * (picture_rows // -(-count // n))),
        default=1,
    )
    max_rows = max(1, picture_rows // max(1, -(-count // across)) - 1)
    shown, fits = "", True
    for block in lay_out(
        sample, described, screen, (screen.columns + PICTURE_GAP_COLUMNS) // across - PICTURE_GAP_COLUMNS, max_rows
    ):
        title, lines = fit_line(block.title, screen.columns), [fit_line(line, screen.columns) for line in block.lines]
        free_rows -= bool(title) + (max(tile.rows for tile in block.tiles) + 1 if block.tiles else 0)
        if free_rows < 0:
            return shown, False
        fits = len(lines) <= free_rows
        lines = lines[:free_rows]
        shown += draw_row([Block(title, block.tiles, lines)], codes=screen.codes)
    return shown, fits


def grid_size(screen: Screen) -> tuple[int, int]:
    """Return (thumbnails side by side, rows of thumbnails) of a grid on *screen*, each at least 1.

    A thumbnail with its key has at least MIN_PICTURE_COLUMNS columns, and half as many rows, but not more than
    *screen*.
    """
    across = max(1, (screen.columns + PICTURE_GAP_COLUMNS) // (MIN_PICTURE_COLUMNS + PICTURE_GAP_COLUMNS))
    return across, max(1, (screen.rows - 1) // (MIN_PICTURE_COLUMNS // 2))


def draw_grid(samples: Sequence[Sample], marked_index: int, screen: Screen) -> str:
    """Return the text, for all rows of *screen* but the last, with a thumbnail of each of *samples*, under its key.

    A thumbnail is the first picture or video, or else the beginning of the list of fields. *samples*: no more than
    `grid_size` has room for. *marked_index*: index in *samples* of the one whose key is marked. Raises: TarToolsError
    if a payload can't be read.
    """
    across, down = grid_size(screen)
    max_columns, max_rows = (
        (screen.columns + PICTURE_GAP_COLUMNS) // across - PICTURE_GAP_COLUMNS,
        max(1, (screen.rows - 1) // down - 2),
    )
    blocks = [
        draw_thumbnail(sample, screen, max_columns, max_rows, marked=number == marked_index)
        for number, sample in enumerate(samples)
    ]
    return "".join(draw_row(blocks[n : n + across], codes=screen.codes) for n in range(0, len(blocks), across))


def draw_thumbnail(sample: Sample, screen: Screen, max_columns: int, max_rows: int, *, marked: bool) -> Block:
    """Return *sample* as a block for a grid: its key, then its first picture or video if *screen* draws it.

    Else the key is followed by the beginning of the list of fields. A long key is cut at its beginning. *max_columns*:
    largest width of the block. *max_rows*: largest height without the key and the empty line at the end. *marked*: True
    to highlight the key. Raises: TarToolsError if a payload can't be read.
    """
    from rich.cells import set_cell_size

    described = describe_members(sample, screen)
    key = printable(sample.key)
    while line_columns(key) > max_columns - 2:  # neighbours differ in the end of their keys
        key = "…" + key[2:]
    title = set_cell_size(("> " if marked else "  ") + key, max_columns)
    title = add_style(title, REVERSE if marked and screen.codes else "")
    first = next((pair for pair in described if pair[1].kind in DRAWN_KINDS), None)
    if first is None or screen.protocol == NO_PROTOCOL:
        return Block(
            title, (), [*(fit_line(line, max_columns) for line in text.describe_fields(described)[:max_rows]), ""]
        )
    drawn = draw_tile(*first, screen, max_columns, max_rows)
    lines = drawn.lines[:max_rows]  # a message can be longer
    return Block(title, [drawn._replace(lines=lines, rows=min(drawn.rows, max_rows), label="")], ())


def describe_members(sample: Sample, screen: Screen) -> Described:
    """Return (member, description) for each member of *sample*. Decodes pictures if *screen* will not draw them.

    Raises: TarToolsError if a payload can't be read.
    """
    return [(member, describe(member, decode=screen.protocol == NO_PROTOCOL)) for member in sample.members]


def lay_out(sample: Sample, members: Described, screen: Screen, max_columns: int, max_rows: int) -> list[Block]:
    """Return *sample* as blocks, at least one, whose pictures and videos fit side by side into the width of *screen*.

    *members*: its members with their descriptions. A picture and its label take at most *max_columns* columns, a
    picture *max_rows* rows; a message in place of a picture may take more rows. The first block has the key as title,
    the last the text of the other fields: of all fields, if *screen* draws no pictures. Raises: TarToolsError if a
    payload can't be read.
    """
    drawn: list[tuple[Member, Description]] = []
    described: list[tuple[Member, Description]] = []
    for pair in members:
        (drawn if pair[1].kind in DRAWN_KINDS and screen.protocol != NO_PROTOCOL else described).append(pair)
    bands: list[list[Tile]] = [[]]
    for member, description in drawn:
        next_tile = draw_tile(member, description, screen, max_columns, max_rows)
        if bands[-1] and sum(tile.width + PICTURE_GAP_COLUMNS for tile in bands[-1]) + next_tile.width > screen.columns:
            bands.append([])
        bands[-1].append(next_tile)
    blocks = [Block("", band, ()) for band in bands]
    blocks[0] = blocks[0]._replace(title=printable(sample.key))
    blocks[-1] = blocks[-1]._replace(lines=text.describe_fields(described))
    return blocks


def decode_drawn(member: Member, kind: str, width: int, height: int) -> "Image":
    """Return the picture *member*, or the first frame of a video, reduced to at most *width* by *height* pixels.

    A smaller one keeps its size. *kind*: one of DRAWN_KINDS. Raises: TarToolsError if it can't be read, or, for a
    video, without PyAV; ValueError for a video without a frame; TooLargeError for a picture of too many pixels; any
    error of Pillow or PyAV for a damaged one.
    """
    if kind != VIDEO:
        return decoding.decode_reduced(member, width, height)
    from tartools.samples.videos import reduced_frame

    frame = reduced_frame(member, width, height)
    if frame is None:
        raise ValueError("it has no frame")
    return frame


def draw_tile(member: Member, description: Description, screen: Screen, max_columns: int, max_rows: int) -> Tile:
    """Return the tile of the picture or video *member* for *screen*; if it can't be decoded, a message in a frame.

    *description*: of *member*; its kind says how to decode it, its text is for the label. *max_columns*, *max_rows*:
    the largest size, in cells; a message may have more rows. Raises: TarToolsError if the member can't be read, or
    PyAV, for videos, is missing.
    """
    name = printable(field_name(member)) or "-"
    try:
        picture = decode_drawn(member, description.kind, max_columns * screen.cell[0], max_rows * screen.cell[1])
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # of Pillow or PyAV
        lines = draw_frame(decoding.reason_of_error(error), min(max_columns, MESSAGE_COLUMNS))
        broken = not isinstance(error, decoding.TooLargeError)
        return Tile(
            line_columns(lines[0]), len(lines), lines, "", fit_line(f"  {name}  {member.size:,} B", max_columns), broken
        )
    label = fit_line(f"  {name}  {member.size:,} B  {description.what}", max_columns)
    columns, height = fit_cells(picture.size, max_columns, max_rows)
    if screen.protocol == BLOCKS:
        lines = graphics.draw_half_blocks(picture, columns, height, exact=screen.exact)
        return Tile(columns, height, lines, "", label)
    if screen.protocol == KITTY:
        drawing = graphics.encode_kitty(picture, columns, height)
    elif screen.protocol == ITERM:
        drawing = graphics.encode_iterm(picture, columns, height)
    else:
        drawing = graphics.encode_sixel(picture, columns * screen.cell[0], height * screen.cell[1])
    return Tile(columns, height, (), drawing, label)


def fit_cells(size: tuple[int, int], max_columns: int, max_rows: int) -> tuple[int, int]:
    """Return (columns, rows) of cells for a picture of *size* (width, height) in pixels, within the given maxima.

    There is at most one column per pixel. A cell counts as twice as high as it is wide.

    >>> fit_cells((500, 375), 40, 20), fit_cells((375, 500), 40, 20), fit_cells((28, 28), 40, 20)
    ((40, 15), (30, 20), (28, 14))
    """
    width, height = size
    columns = min(max_columns, width, max(1, round(2 * max_rows * width / height)))
    return columns, max(1, min(max_rows, round(columns * height / width / 2)))


def draw_row(blocks: Sequence[Block], *, codes: bool = True) -> str:
    """Return the text that draws *blocks* side by side, from the start of a line on; the cursor ends below them.

    *blocks*: at least one; all have a title, or none. *codes*: True to style titles and labels by escape codes.
    Pictures are drawn after the lines that leave space for them, because the screen may scroll by these.
    """
    tallest = max((tile.rows for block in blocks for tile in block.tiles), default=0)
    columns = [draw_block(block, tallest, codes) for block in blocks]
    widths = [block.width for block in blocks]
    lines = [in_columns(widths, parts) + "\n" for parts in zip_longest(*columns, fillvalue="")]
    top = tallest + bool(blocks[0].title)
    return "".join([*lines[:top], draw_tile_pictures(blocks, tallest), *lines[top:]])


def draw_block(block: Block, tallest: int, codes: bool) -> list[str]:
    """Return the lines of *block*, blank where pictures will be drawn; styled, if escape *codes* are allowed.

    *tallest*: rows of the highest picture beside each other, its own or a neighbour's; all labels are in the row below.
    """
    lines = [add_style(block.title, BOLD if codes else "")] if block.title else []
    columns = [
        [*tile.lines, *[""] * (tallest - len(tile.lines)), add_style(tile.label, DIM if codes else "")]
        for tile in block.tiles
    ]
    widths = [tile.width for tile in block.tiles]
    lines += [in_columns(widths, parts) for parts in zip(*columns, strict=True)]
    return [*lines, *block.lines]


def draw_tile_pictures(blocks: Sequence[Block], tallest: int) -> str:
    """Return the code that draws the pictures of *blocks* into the rows above the cursor, which stays.

    *tallest*: rows of the highest picture.
    """
    drawn = ""
    block_column = 0
    for block in blocks:
        column = block_column
        for tile in block.tiles:
            if tile.drawing:  # cursor saved, up, to the right, and restored: ECMA-48, CUU and CUF; DECSC and DECRC
                drawn += f"\x1b7\x1b[{tallest}A" + (f"\x1b[{column}C" if column else "") + tile.drawing + "\x1b8"
            column += tile.width + PICTURE_GAP_COLUMNS
        block_column += block.width + PICTURE_GAP_COLUMNS
    return drawn


def in_columns(widths: Sequence[int], parts: Sequence[str]) -> str:
    """Return *parts* on one line, each padded to its number of columns in *widths*, and with blanks between them.

    These are PICTURE_GAP_COLUMNS blanks. Blanks at the end of the line are removed.
    """
    padded = (part + " " * (width - line_columns(part)) for width, part in zip(widths, parts, strict=True))
    return (" " * PICTURE_GAP_COLUMNS).join(padded).rstrip(" ")


def add_style(line: str, code: str) -> str:
    """Return *line* between the escape *code* and the code that resets it; unchanged if either is empty."""
    return f"{code}{line}{STYLE_END}" if line and code else line


def draw_frame(message: str, width: int) -> list[str]:
    """Return *message*, wrapped, in a frame of box-drawing characters, as lines of *width* columns, at least 5."""
    import textwrap

    from rich.cells import set_cell_size

    lines = textwrap.wrap(message, width - 4)
    inner = [f"│ {set_cell_size(line, width - 4)} │" for line in lines]
    return [f"┌{'─' * (width - 2)}┐", *inner, f"└{'─' * (width - 2)}┘"]


def line_columns(line: str) -> int:
    r"""Return the columns that *line* takes on a terminal; colours take none.

    >>> line_columns("ab"), line_columns("日本"), line_columns("\x1b[1mab\x1b[0m")
    (2, 4, 2)
    """
    from rich.cells import cell_len

    return cell_len(re.sub("\x1b\\[[0-9;]*m", "", line))


def fit_line(line: str, width: int) -> str:
    """Return *line*; if it is longer than *width* columns, cut to that, the last one being an ellipsis.

    >>> fit_line("abcdef", 4), fit_line("abcd", 4)
    ('abc…', 'abcd')
    """
    from rich.cells import set_cell_size

    return line if line_columns(line) <= width else set_cell_size(line, width - 1) + "…"
