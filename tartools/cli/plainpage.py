"""Man pages without man: find an installed page, and turn its roff into plain text.

The pages of this project use a small part of roff: the macros of man(7) for headings, paragraphs, lists and fonts,
literal blocks (`.nf`), and one table of tbl(1). Fonts are dropped.
"""

from __future__ import annotations

import re
import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

OVERVIEW_NAME = "tartools"  # of the page in section 7; all others are in section 1
BODY_INDENT = SUBHEADING_STEP = 4  # columns
SPECIAL_CHARACTERS = {"aq": "'", "ga": "`", "ha": "^", "ti": "~", "lq": '"', "rq": '"'}
TABLE_GAP = 2  # columns between the columns of a table


def find_page(name: str) -> Path | None:
    """Return the file of the man page *name*, in a clone or where the package was installed; None if there is none.

    *name*: a command, whose page is in section 1, or "tartools" for the page in section 7. The file has roff, not
    compressed.
    """
    section = 7 if name == OVERVIEW_NAME else 1
    page = f"man/man{section}/{name}.{section}"
    packages = Path(__file__).parents[2]
    beside = (packages / page, packages / "share" / page)  # in a clone; after pip install --target
    return next(filter(Path.is_file, (*beside, *_installed_files(page), Path(sys.prefix, "share", page))), None)


def _installed_files(page: str) -> Iterator[Path]:
    """Yield the path that the record of the installation has for *page*: --user and --prefix put it elsewhere.

    *page*: its path below share/, such as man/man1/tarcat.1. Yields nothing if there is no such record.
    """
    from importlib import metadata

    try:
        files = metadata.files("tartools") or []
    except metadata.PackageNotFoundError:
        return
    yield from (Path(str(file.locate())) for file in files if str(file).endswith(f"share/{page}"))


def plain_text(page: str, width: int) -> str:
    """Return the roff *page* as plain text, its paragraphs filled to *width* columns, 1 or more.

    Long words, literal lines, headings, terms of lists and tables may be wider. Blank lines at its begin and end are
    dropped; it ends with a newline. Raises: KeyError for a special character that is none of SPECIAL_CHARACTERS;
    ValueError for a quote that is not closed, and for a table whose rows differ in their number of cells.
    """
    text = PlainText(width)
    for line in page.splitlines():
        text.add(line)
    text.end_paragraph()
    return "\n".join(text.lines).strip("\n") + "\n"


class PlainText:
    """Lines of plain text, made from lines of roff: `add` each, then `end_paragraph`.

    *width*: columns to which paragraphs are filled; other lines may be wider.

    Attributes:
      lines: the finished lines.
    """

    def __init__(self, width: int) -> None:
        self.lines: list[str] = []
        self._width = width
        self._words: list[str] = []  # of the paragraph that is being filled
        self._indent = BODY_INDENT
        self._is_literal = self._is_term = False
        self._rows: list[list[str]] | None = None  # of the table that is being read

    def add(self, line: str) -> None:
        """Add a line of roff: a macro or text; comments, and lines of a table without a tab, are dropped.

        Raises: KeyError and ValueError, as `plain_text` says.
        """
        if line.startswith(('.\\"', "'\\\"")):
            return
        macro, _, words = line.partition(" ")
        if self._rows is not None and macro != ".TE":
            self._rows += [unescape_roff(line).split("\t")] if "\t" in line else []
        elif line.startswith("."):
            self._apply(macro.removeprefix("."), words)
        else:
            self._add_text(unescape_roff(line))

    def end_paragraph(self) -> None:
        """Add the words since the last paragraph to `lines`, filled to the width; nothing if there are none."""
        if self._words:
            self._add_filled(" ".join(self._words), self._indent)
            self._words = []

    def _apply(self, macro: str, words: str) -> None:
        """Apply *macro*, a name without its dot, with its arguments *words*; an unknown one only ends the paragraph.

        *words*: the rest of the line, as roff. Raises: KeyError and ValueError, as `plain_text` says.
        """
        if macro in ("B", "I", "SM"):
            self._add_text(" ".join(arguments_of(words)))
            return
        if macro in ("BI", "BR", "IR", "RB", "RI"):
            self._add_text("".join(arguments_of(words)))
            return
        self.end_paragraph()
        if macro in ("SH", "SS"):
            self._indent = BODY_INDENT
            self.lines += ["", " " * (2 * (macro == "SS")) + unescape_roff(words).strip('"')]
        elif macro in ("PP", "TP"):
            self._indent, self._is_term = BODY_INDENT, macro == "TP"
            self.lines.append("")
        elif macro in ("nf", "fi"):
            self._is_literal = macro == "nf"
        elif macro in ("RS", "RE"):
            self._indent += SUBHEADING_STEP if macro == "RS" else -SUBHEADING_STEP
        elif macro == "TS":
            self._rows = []
        elif macro == "TE":
            self._end_table()

    def _add_text(self, text: str) -> None:
        """Add *text*: after `.TP` as the term of a list, in a literal block as a line, else to the paragraph."""
        if self._is_term:
            self.lines.append(" " * self._indent + text)
            self._indent += SUBHEADING_STEP
            self._is_term = False
        elif self._is_literal:
            self.lines.append((" " * self._indent + text).rstrip())
        else:
            self._words.append(text)

    def _end_table(self) -> None:
        """Add the rows of the table, with columns as wide as their widest cell and TABLE_GAP.

        Raises: ValueError if rows differ in their number of cells.
        """
        rows, self._rows = self._rows or [], None
        widths = [max(map(len, column)) + TABLE_GAP for column in zip(*rows, strict=True)]
        for row in rows:
            cells = "".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
            self.lines.append(" " * self._indent + cells.rstrip())

    def _add_filled(self, text: str, indent: int) -> None:
        """Add *text* in lines of the width, each after *indent* blanks."""
        space = " " * indent
        self.lines += textwrap.wrap(
            text,
            self._width,
            initial_indent=space,
            subsequent_indent=space,
            break_long_words=False,
            break_on_hyphens=False,
        )


def arguments_of(words: str) -> list[str]:
    """Return the arguments in *words*, the roff after the name of a macro: words, or texts in double quotes.

    They are without quotes and escapes: `tar "a b"` has the arguments tar and a b. Raises: ValueError if a quote is not
    closed; KeyError for a special character not in SPECIAL_CHARACTERS.
    """
    lexer = shlex.shlex(unescape_roff(words), posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters, lexer.escape, lexer.quotes = True, "", "", '"'
    return list(lexer)


def unescape_roff(text: str) -> str:
    r"""Return *text* without the escapes of roff, fonts included; special characters such as \(aq are replaced.

    A backslash with a character that is none of the escapes used here is dropped with it. Raises: KeyError for a
    special character not in SPECIAL_CHARACTERS.

    >>> print(unescape_roff(r"\fB\-\-lax\fR \(aqa\e\(aq \&.5"))
    --lax 'a\' .5
    """

    def character(escape: re.Match[str]) -> str:
        name = escape[1]
        if name.startswith("("):
            return SPECIAL_CHARACTERS[name[1:]]
        return {"-": "-", "e": "\\", "&": ""}.get(name, "")

    return re.sub(r"\\(f.|\(..|.)", character, text)
