"""The table of docs/servers.md: a row for each trial, a column for each server; `note` writes one cell."""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "servers.md"
BEGIN, END = "<!-- table of trials -->\n", "<!-- end of the table -->\n"
VERSION = "version"  # the first row
PASSED, FAILED, NOT_RUN = "yes", "**no**", ""
REASON = r"\(\w[^|]*\)"  # written by hand behind FAILED, and kept as long as the trial fails


class Table:
    """The table: `cells` by trial and title of a server; the order of rows and columns is that of the lists."""

    def __init__(self, trials: list[str], servers: list[str], cells: dict[tuple[str, str], str]) -> None:
        self.trials = trials
        self.servers = servers
        self.cells = cells

    def text(self) -> str:
        """Return the table as Markdown."""
        lines = [["trial", *self.servers], ["---"] * (len(self.servers) + 1)]
        lines += [
            [trial, *(self.cells.get((trial, server), NOT_RUN) for server in self.servers)] for trial in self.trials
        ]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def parse(text: str) -> Table:
    """Return the table in the text of the page."""
    lines = text.partition(BEGIN)[2].partition(END)[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    if not rows:
        return Table([], [], {})
    servers = rows[0][1:]
    cells = {(row[0], server): cell for row in rows[2:] for server, cell in zip(servers, row[1:], strict=True)}
    return Table([row[0] for row in rows[2:]], servers, cells)


def unexplained(table: Table) -> list[str]:
    """Return a message for each cell that does not say enough: a trial that fails needs a reason a reader can use."""
    sound = rf"{re.escape(PASSED)}|({re.escape(FAILED)}|-) {REASON}|{NOT_RUN}"
    return [
        f"{trial}, {server}: {cell!r} needs a reason: {FAILED} (…)"
        for (trial, server), cell in table.cells.items()
        if trial != VERSION and not re.fullmatch(sound, cell)
    ]


def note(trials: Iterable[str], servers: Iterable[str], server: str, trial: str, cell: str) -> None:
    """Write one cell of the table, which gets these rows and columns. FAILED keeps its reason."""
    with PAGE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        table = Table([VERSION, *trials], [*servers], parse(text).cells)
        if cell != FAILED or not table.cells.get((trial, server), NOT_RUN).startswith(FAILED):
            table.cells[trial, server] = cell
        before, _, rest = text.partition(BEGIN)
        file.seek(0)
        file.write(before + BEGIN + "\n" + table.text() + "\n" + END + rest.partition(END)[2])
        file.truncate()
