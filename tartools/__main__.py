"""`python -m tartools` lists the commands, `python -m tartools NAME ...` runs one as its script does, `demo` the demo.

This is the way to a command that another program of its name hides, or where scripts are not in PATH.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path

from tartools.commands import _manual

USAGE = 2
PAGE = "man/man7/tartools.7"
PAGES = (Path(sys.prefix, "share", PAGE), Path(__file__).parents[1] / PAGE)  # installed, in a clone


def main(arguments: Sequence[str]) -> int:
    """Run what *arguments* name; return the exit status, unless a command ends the process itself."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        sys.stdout.write(listing())
        return 0
    if name == "--version":
        from importlib.metadata import version

        sys.stdout.write(f"tartools {version('tartools')}\n")
        return 0
    if name == "demo":
        from tartools.commands import _demo

        return _demo.main(arguments[1:])
    if name in _manual.names():
        sys.argv = [name, *arguments[1:]]
        _manual.load(name)()
    sys.stderr.write(unknown(name))
    return USAGE


def listing() -> str:
    """Return the commands with their summaries."""
    rows = [(name, _manual.load(name).summary) for name in _manual.names()]
    rows.append(("demo", "Make a small data set and run the commands on it, line by line."))
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:{width}}  {summary}\n" for name, summary in rows]
    page = next(filter(Path.is_file, PAGES), None)
    where = f"First steps, and what they share: man tartools (man -l {page})\n" if page else ""
    return (
        f"Usage: python -m tartools NAME [ARGUMENT]...\n\n{''.join(lines)}\n"
        f"NAME --help and man NAME tell more.\n{where}"
    )


def unknown(name: str) -> str:
    """Return the message for *name*, which is not one of our commands."""
    near = difflib.get_close_matches(name, [*_manual.names(), "demo"], cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(_manual.names())} and demo"
    return f"tartools: no command is called {name!r}; {hint}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
