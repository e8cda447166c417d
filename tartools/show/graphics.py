"""Encode RGB pictures for terminals.

The protocols of kitty, iTerm2 and sixel draw pixels at the cursor; half blocks are text.
"""

from __future__ import annotations

import io
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL.Image import Image

KITTY_CHUNK_CHARS = 4096  # characters of base64 in one escape code of kitty's protocol
# of red, green and blue in colours 16 to 231 of xterm (ctlseqs, 256 colours)
COLOUR_LEVELS = (0, 95, 135, 175, 215, 255)
XTERM_PALETTE = [  # colours 16 to 255; the last 24 are greys
    *((red, green, blue) for red in COLOUR_LEVELS for green in COLOUR_LEVELS for blue in COLOUR_LEVELS),
    *((grey, grey, grey) for grey in range(8, 239, 10)),
]
KITTY_FORGET = "\x1b_Ga=d,d=A,q=2\x1b\\"  # removes the pictures that kitty's protocol has drawn
FIRST_COLOUR = 16  # number of the first colour of the palette
SIXEL_COLOURS = 256  # of a picture in sixels
EMPTY_SIXEL = ord("?")  # none of the six dots is set; each dot adds a bit, the top one the lowest
MAX_PLAIN_REPEATS = 3  # equal sixels are written one by one; for more there is a count
SIXEL_DTYPE = "S5"  # numpy's type of a part of a line of sixels, such as "-#255" and "!4096"


def encode_kitty(picture: Image, columns: int, rows: int) -> str:
    """Return the escape code that draws *picture*, scaled to *columns* by *rows* cells, in kitty's graphics protocol.

    It has all pixels of *picture*: the terminal scales it to exactly these cells, and may stretch it. The cursor
    stays where it is, and the terminal sends no reply. https://sw.kovidgoyal.net/kitty/graphics-protocol/, "Display
    images on screen" and "Remote client".
    """
    from base64 import b64encode

    data = b64encode(encode_png(picture)).decode()
    chunks = [data[start : start + KITTY_CHUNK_CHARS] for start in range(0, len(data), KITTY_CHUNK_CHARS)]
    last = len(chunks) - 1
    begin = f"a=T,f=100,C=1,c={columns},r={rows},"
    return "".join(f"\x1b_G{'' if n else begin}q=2,m={int(n < last)};{chunk}\x1b\\" for n, chunk in enumerate(chunks))


def encode_iterm(picture: Image, columns: int, rows: int) -> str:
    """Return the escape code that draws *picture* within *columns* by *rows* cells in the protocol of iTerm2.

    Its proportions are kept. https://iterm2.com/documentation-images.html
    """
    from base64 import b64encode

    data = encode_png(picture)
    place = f"inline=1;size={len(data)};width={columns};height={rows};preserveAspectRatio=1"
    return f"\x1b]1337;File={place}:{b64encode(data).decode()}\x07"


def encode_png(picture: Image) -> bytes:
    """Return *picture* encoded as PNG, with fast compression."""
    file = io.BytesIO()
    picture.save(file, "PNG", compress_level=3)
    return file.getvalue()


def encode_sixel(picture: Image, width: int, height: int) -> str:
    """Return *picture*, scaled up or down to fit into *width* by *height* pixels, as sixels of at most 256 colours.

    Its proportions stay. The result is a complete escape code.

    VT330/VT340 Programmer Reference Manual, volume 2, chapter 14: bands of six rows; in each band, for each colour the
    sixels of that colour from left to right, then back to its start ($); then the next band (-).

    Holds: about 60 bytes for each pixel shown.
    """
    from PIL import Image, ImageOps

    # ten times as quick as the best palette, and its colours are off by 3 of 255 instead of 2
    indexed = ImageOps.contain(picture, (width, height)).quantize(SIXEL_COLOURS, Image.Quantize.FASTOCTREE)
    width, height = indexed.size
    colours = (indexed.getpalette() or [])[: 3 * SIXEL_COLOURS]
    parts = [f'\x1bP0;1q"1;1;{width};{height}']
    for number in range(len(colours) // 3):
        red, green, blue = (round(value * 100 / 255) for value in colours[3 * number : 3 * number + 3])
        parts.append(f"#{number};2;{red};{green};{blue}")
    return "".join(parts) + _encode_bands(indexed) + "\x1b\\"


def _encode_bands(indexed: Image) -> str:
    """Return the bands of *indexed*, a picture with a palette, as sixels; the last one ends with "-" too.

    Four or more equal sixels in a row are `!N` and the sixel. All bands are made at once: each run of sixels is a row
    of short strings in a numpy array, padded with zero bytes, which are removed at the end.
    """
    import numpy as np

    width, height = indexed.size
    rows = np.arange(height)[:, None]
    colours = np.frombuffer(indexed.tobytes(), np.uint8).reshape(height, width)
    lines = rows // 6 * SIXEL_COLOURS + colours  # a line is one colour of a band
    dots = np.sort(((lines * width + np.arange(width)) * 8 + rows % 6).reshape(-1))
    firsts = np.flatnonzero(np.diff(dots >> 3, prepend=-1))
    sixels = np.add.reduceat(1 << (dots & 7), firsts)
    places = dots[firsts] >> 3
    line, column = places // width, places % width
    new_line = np.diff(line, prepend=-1) != 0
    begins = np.flatnonzero(new_line | (np.diff(places, prepend=-2) != 1) | (np.diff(sixels, prepend=0) != 0))
    lengths = np.diff(begins, append=len(places))
    line, column, sixels, new_line = line[begins], column[begins], sixels[begins], new_line[begins]
    gaps = column - np.where(new_line, 0, np.roll(column + lengths, 1))
    new_band = np.diff(line // SIXEL_COLOURS, prepend=0) != 0
    heads = np.array(["", *(f"{end}#{n}" for end in "$-" for n in range(SIXEL_COLOURS))], SIXEL_DTYPE)
    counts = np.array([f"!{n}" if n > MAX_PLAIN_REPEATS else "" for n in range(width + 1)], SIXEL_DTYPE)
    repeated = np.array(
        [[chr(EMPTY_SIXEL + bits) * n for n in (*range(MAX_PLAIN_REPEATS + 1), 1)] for bits in range(64)], SIXEL_DTYPE
    )
    tokens = np.empty((len(begins), 5), SIXEL_DTYPE)
    tokens[:, 0] = heads[np.where(new_line, 1 + new_band * SIXEL_COLOURS + line % SIXEL_COLOURS, 0)]
    tokens[:, 1], tokens[:, 2] = counts[gaps], repeated[0, np.minimum(gaps, MAX_PLAIN_REPEATS + 1)]
    tokens[:, 3], tokens[:, 4] = counts[lengths], repeated[sixels, np.minimum(lengths, MAX_PLAIN_REPEATS + 1)]
    return tokens.tobytes().translate(None, b"\0").decode().removeprefix("$") + "-"


def draw_half_blocks(picture: Image, columns: int, rows: int, *, exact: bool) -> list[str]:
    """Return the RGB *picture* as *rows* lines of *columns* half blocks (▀), each with one colour above another.

    It is stretched to that size. *exact*: True for any colour; False: the nearest of colours 16 to 255 of xterm. Every
    line ends with the default colours.
    """
    from PIL import Image

    small = picture.resize((columns, 2 * rows), Image.Resampling.LANCZOS)
    if exact:
        data = small.tobytes()
        colours = [f"2;{r};{g};{b}" for r, g, b in zip(data[::3], data[1::3], data[2::3], strict=True)]
    else:
        palette = Image.new("P", (1, 1))
        palette.putpalette([value for colour in XTERM_PALETTE for value in colour])
        # dithering would be visible in dots as large as these
        indexed = small.quantize(palette=palette, dither=Image.Dither.NONE)
        colours = [f"5;{FIRST_COLOUR + number}" for number in indexed.tobytes()]
    lines = [colours[y * columns : (y + 1) * columns] for y in range(2 * rows)]
    return [_draw_line(upper, lower) for upper, lower in zip(lines[::2], lines[1::2], strict=True)]


def _draw_line(upper: list[str], lower: list[str]) -> str:
    """Return a line of half blocks, with an escape code only where a colour changes.

    *upper*, *lower*: colours of the halves of each block, as in an escape code after "38;" or "48;", such as "5;16".
    """
    cells = list(zip(upper, lower, strict=True))
    parts = []
    for before, cell in pairwise([("", ""), *cells]):
        codes = [
            f"{code_start};{new}" for code_start, old, new in zip(("38", "48"), before, cell, strict=True) if new != old
        ]
        parts.append(f"\x1b[{';'.join(codes)}m▀" if codes else "▀")
    return "".join(parts) + "\x1b[0m"
