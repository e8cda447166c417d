"""A terminal for tests: what a command sends becomes lines of text, and a picture of what a person would see.

It knows what tarshow needs: colours, half blocks, the three protocols that draw pictures, and where the cursor goes.
Anything else is an error.
"""

from __future__ import annotations

import base64
import io
import re
from typing import NamedTuple

from PIL import Image, ImageDraw

CELL = (10, 20)  # pixels
LEVELS = (0, 95, 135, 175, 215, 255)
TOKEN = re.compile(
    r"\x1b_G(?P<kitty>[^\x1b]*)\x1b\\|\x1b\]1337;File=(?P<iterm>[^\x07]*)\x07|\x1bP(?P<sixel>[^\x1b]*)\x1b\\"
    r"|\x1b\[(?P<sgr>[0-9;]*)m|\x1b\[(?P<count>\d+)(?P<move>[AC])|\x1b(?P<cursor>[78])|(?P<newline>\r?\n)|(?P<text>[^\x1b])"
)


class Cell(NamedTuple):
    """A character and its colours, None for the default ones."""

    text: str
    upper: tuple[int, int, int] | None
    ground: tuple[int, int, int] | None


class Drawn(NamedTuple):
    """A picture, the cell where it begins, and how many it covers."""

    row: int
    column: int
    columns: int
    rows: int
    picture: Image.Image


class Screen:
    """What *data* leaves on a terminal that is as high as it has to be."""

    def __init__(self, data: bytes) -> None:
        self.cells: dict[tuple[int, int], Cell] = {}
        self.drawn: list[Drawn] = []
        self._row = self._column = 0
        self._saved = (0, 0)
        self._upper: tuple[int, int, int] | None = None
        self._ground: tuple[int, int, int] | None = None
        self._kitty = ("", "")
        text, position = data.decode(), 0
        while position < len(text):
            found = TOKEN.match(text, position)
            assert found, f"no terminal is known to understand {text[position : position + 40]!r}"
            position = found.end()
            assert found.lastgroup
            self._take(found)

    @property
    def lines(self) -> list[str]:
        """The text of each line; half blocks are left out."""
        last = max((row for row, _ in self.cells), default=-1)
        lines = [[" "] * (1 + max((c for r, c in self.cells if r == row), default=-1)) for row in range(last + 1)]
        for (row, column), cell in self.cells.items():
            lines[row][column] = cell.text.replace("▀", " ")
        return ["".join(line).rstrip() for line in lines]

    def blocks(self) -> Drawn:
        """Return all half blocks as one picture, a pixel each."""
        places = [place for place, cell in self.cells.items() if cell.text == "▀"]
        (top, left), (bottom, right) = (tuple(edge(part) for part in zip(*places, strict=True)) for edge in (min, max))
        picture = Image.new("RGB", (right - left + 1, 2 * (bottom - top + 1)))
        for row, column in places:
            cell = self.cells[row, column]
            assert cell.upper is not None and cell.ground is not None
            picture.putpixel((column - left, 2 * (row - top)), cell.upper)
            picture.putpixel((column - left, 2 * (row - top) + 1), cell.ground)
        return Drawn(top, left, right - left + 1, bottom - top + 1, picture)

    def image(self) -> Image.Image:
        """Return what a person sees."""
        ends = [(row + 1, column + 1) for row, column in self.cells]
        ends += [(drawn.row + drawn.rows, drawn.column + drawn.columns) for drawn in self.drawn]
        image = Image.new("RGB", (max(end[1] for end in ends) * CELL[0], max(end[0] for end in ends) * CELL[1]))
        pen = ImageDraw.Draw(image)
        for (row, column), cell in self.cells.items():
            x, y = column * CELL[0], row * CELL[1]
            if cell.ground:
                pen.rectangle((x, y, x + CELL[0] - 1, y + CELL[1] - 1), fill=cell.ground)
            if cell.text == "▀":
                pen.rectangle((x, y, x + CELL[0] - 1, y + CELL[1] // 2 - 1), fill=cell.upper)
            else:
                pen.text((x, y), cell.text, fill=(200, 200, 200))
        for drawn in self.drawn:
            area = (drawn.columns * CELL[0], drawn.rows * CELL[1])
            image.paste(drawn.picture.resize(area), (drawn.column * CELL[0], drawn.row * CELL[1]))
        return image

    def _take(self, found: re.Match[str]) -> None:
        kind, value = str(found.lastgroup), found[str(found.lastgroup)]
        if kind == "text":
            assert value.isprintable(), repr(value)
            self.cells[self._row, self._column] = Cell(value, self._upper, self._ground)
            self._column += 1
        elif kind == "newline":
            self._row, self._column = self._row + 1, 0
        elif kind == "move":
            if value == "A":
                self._row -= int(found["count"])
            else:
                self._column += int(found["count"])
        elif kind == "cursor":
            if value == "7":
                self._saved = (self._row, self._column)
            else:
                self._row, self._column = self._saved
        else:
            getattr(self, f"_{kind}_code")(value)

    def _sgr_code(self, value: str) -> None:
        numbers = iter([int(number or 0) for number in value.split(";")])
        for number in numbers:
            if number in (38, 48):
                exact = next(numbers) == 2
                colour = (next(numbers), next(numbers), next(numbers)) if exact else colour_256(next(numbers))
                if number == 38:
                    self._upper = colour
                else:
                    self._ground = colour
            elif number in (0, 39, 49):
                self._upper = None if number in (0, 39) else self._upper
                self._ground = None if number in (0, 49) else self._ground
            else:
                assert number in (1, 2), number

    def _kitty_code(self, value: str) -> None:
        control, _, data = value.partition(";")
        assert len(data) <= 4096
        keys = dict(part.split("=") for part in control.split(","))
        first, before = self._kitty
        assert bool(first) == (set(keys) == {"q", "m"}) and keys["q"] == "2", keys
        self._kitty = (first or control, before + data)
        if keys["m"] == "1":
            assert len(data) == 4096
            return
        control, data = self._kitty
        self._kitty = ("", "")
        keys = dict(part.split("=") for part in control.split(","))
        assert (keys["a"], keys["f"], keys["C"]) == ("T", "100", "1")
        self._draw(opened(data), int(keys["c"]), int(keys["r"]))

    def _iterm_code(self, value: str) -> None:
        control, _, data = value.partition(":")
        keys = dict(part.split("=") for part in control.split(";"))
        assert (keys["inline"], keys["preserveAspectRatio"]) == ("1", "1")
        assert int(keys["size"]) == len(base64.b64decode(data, validate=True))
        self._draw(opened(data), int(keys["width"]), int(keys["height"]))
        self._column += 1  # terminals do not agree where the cursor is then

    def _sixel_code(self, value: str) -> None:
        picture = sixels(value)
        self._draw(picture, -(-picture.width // CELL[0]), -(-picture.height // CELL[1]))
        self._row, self._column = self._row + 3, 0

    def _draw(self, picture: Image.Image, columns: int, rows: int) -> None:
        self.drawn.append(Drawn(self._row, self._column, columns, rows, picture))


def opened(data: str) -> Image.Image:
    """Return the PNG that *data* is, in base64."""
    picture = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert picture.format == "PNG"
    return picture.convert("RGB")


def sixels(value: str) -> Image.Image:
    """Return the picture that *value*, what a sixel sequence has between its introducer and its end, draws."""
    found = re.fullmatch(r'[0-9;]*q"1;1;(\d+);(\d+)(.*)', value)
    assert found
    picture = Image.new("RGB", (int(found[1]), int(found[2])), (255, 0, 255))
    colours: dict[str, tuple[int, ...]] = {}
    x = y = 0
    colour: tuple[int, ...] = ()
    tokens = re.compile(r"#(\d+);2;(\d+);(\d+);(\d+)|#(\d+)|!(\d+)([?-~])|([?-~])|(\$)|(-)")
    position = 0
    while position < len(found[3]):
        token = tokens.match(found[3], position)
        assert token, found[3][position : position + 20]
        position = token.end()
        if token[1]:
            colours[token[1]] = tuple(round(int(part) * 255 / 100) for part in token.group(2, 3, 4))
        elif token[5]:
            colour = colours[token[5]]
        elif token[9]:
            x = 0
        elif token[10]:
            x, y = 0, y + 6
        else:
            bits = ord(token[7] or token[8]) - 63
            count = int(token[6] or 1)
            for bit in range(6):
                if bits >> bit & 1:
                    picture.paste(colour, (x, y + bit, x + count, y + bit + 1))
            x += count
    return picture


def colour_256(number: int) -> tuple[int, int, int]:
    """Return the colour with this *number* of xterm's 256; the first 16 are what the user has chosen."""
    assert number >= 16
    if number >= 232:
        return (10 * number - 2312,) * 3
    number -= 16
    return LEVELS[number // 36], LEVELS[number // 6 % 6], LEVELS[number % 6]
