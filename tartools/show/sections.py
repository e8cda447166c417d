"""Sections of a report: a table each, with bars. Here they are drawn on a terminal, by `html.cards` on a page.

Names and values from archives are escaped by who makes a section, with `shorten`.
"""

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tartools.errors import printable

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult

    from tartools.show.terminal import Screen

BAR_EIGHTHS = "▏▎▍▌▋▊▉█"
BAR_CHARS, COLUMN_GAP_CHARS = 16, 2  # characters: of a bar, between columns
MIN_WORD_CHARS = 8  # characters that remain of a word that is cut
MAX_WORD_CHARS = 200  # characters of a word in a line; longer ones are cut
MAX_PLACES_LISTED = 20  # keys, or places, in a report


class Section(NamedTuple):
    """A table of a report, drawn on a terminal or as a list with bars on a page.

    Attributes:
        more: text below the table.
        columns: their names, each after a sign, < left, > right, | bars: ("<Fields", ">bytes", "|"). The first column
            names the rows.
        rows: their cells: texts, or shares from 0 to 1, which become bars.
        filters: on a page, for each row the filter that finds its samples, or None; () if no row has one.

    If the table is too wide for the terminal, bars are left out, then words are cut (no columns with >), then the last
    columns are left out, but for the first two.
    """

    more: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]
    filters: Sequence[str | None] = ()

    def __rich_console__(self, _console: object, options: "ConsoleOptions") -> "RenderResult":
        from rich.table import Table
        from rich.text import Text

        from tartools.show.sheet import line_columns

        rows = [[cell if isinstance(cell, str) else draw_bar(cell) for cell in row] for row in self.rows]
        below = list(zip(*rows, strict=True)) or [()] * len(self.columns)
        wide = [max(map(line_columns, (column[1:], *parts))) for column, parts in zip(self.columns, below, strict=True)]
        min_widths = [
            width if column[0] == ">" else min(width, MIN_WORD_CHARS)
            for column, width in zip(self.columns, wide, strict=True)
        ]
        shown = list(range(len(wide)))
        if sum(wide[n] + COLUMN_GAP_CHARS for n in shown) - COLUMN_GAP_CHARS > options.max_width:
            shown = [n for n in shown if self.columns[n][0] != "|"]
        while shown[2:] and sum(min_widths[n] + COLUMN_GAP_CHARS for n in shown) - COLUMN_GAP_CHARS > options.max_width:
            shown.pop()
        table = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP_CHARS, 0, 0), header_style="dim")
        for n in shown:
            sign, name = self.columns[n][0], self.columns[n][1:]
            heading = Text(name, style="" if table.columns else "bold not dim", no_wrap=True, overflow="ellipsis")
            table.add_column(
                heading,
                justify="right" if sign == ">" else "left",
                style="cyan" if sign == "|" else "",
                no_wrap=sign == ">",  # columns that may wrap are made narrower first
                min_width=min_widths[n],
            )
        for row in rows:
            table.add_row(*(Text(row[n], no_wrap=True, overflow="ellipsis") for n in shown))
        yield table
        if self.more:
            yield Text(self.more, style="dim")


Part = Section | tuple[str, str]  # of a report: a section, or a line and its style


def draw_report(parts: Iterable[Part], screen: "Screen") -> str:
    """Return the *parts* of a report, sections and styled lines, as text, as wide as *screen*.

    An empty line is before each section; a style is one of rich, such as "bold". Lines that are too long are wrapped.
    It has colours if *screen* takes escape codes, else no blanks at the ends of lines.
    """
    from rich.console import Console
    from rich.text import Text

    console = Console(
        file=io.StringIO(),
        width=screen.columns,
        force_terminal=screen.codes,
        color_system="standard" if screen.codes else None,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        for part in parts:
            if isinstance(part, Section):
                console.print()
                console.print(part)
            else:
                console.print(Text(part[0], style=part[1]))
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def shorten(text: str, width: int = MAX_WORD_CHARS) -> str:
    r"""Return *text* on one line, escaped, and cut to *width* characters; a dash if it is empty.

    >>> shorten("a\x1b[2J", 20), shorten("segmentation", 8), shorten("", 5)
    ('a\\x1b[2J', 'segment…', '-')
    """
    line = printable(text[: width + 1]) or "-"
    return line if len(line) <= width else line[: width - 1] + "…"


def share_of(part: float, total: float) -> float:
    """Return *part*, from 0 to *total*, divided by *total*; a total below 1 counts as 1, so that 0 of 0 gives 0."""
    return part / max(total, 1)


def percent(part: int, total: int) -> str:
    """Return *part* as a percentage of *total*, with one decimal: "12.5 %"; "0.0 %" for 0 of 0."""
    return f"{100 * part / max(total, 1):.1f} %"


def draw_bar(share: float, width: int = BAR_CHARS) -> str:
    """Return a bar of block characters for *share*, from 0 to 1; 1 fills *width* characters.

    A share above 0 is never empty.

    >>> draw_bar(1 / 2, 4), draw_bar(1 / 64, 4), draw_bar(0, 3)
    ('██', '▏', '')
    """
    eighths = round(8 * width * share)
    eighths = max(eighths, 1) if share else 0
    return BAR_EIGHTHS[-1] * (eighths // 8) + (BAR_EIGHTHS[eighths % 8 - 1] if eighths % 8 else "")


def draw_skyline(counts: Iterable[int]) -> str:
    """Return *counts* as one line of vertical bars; the largest count fills the height, 0 is a blank; "" for none.

    Heights are rounded up to eighths, so that a count above 0 is always seen.

    >>> draw_skyline([0, 1, 4, 8])
    ' ▁▄█'
    """
    from tartools.samples.kinds.sounds import BARS

    counts = list(counts)
    max_count = max(counts, default=0)
    return "".join(BARS[-(-8 * count // max_count) - 1] if count else " " for count in counts)
