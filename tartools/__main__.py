"""`tartools` lists the commands, `tartools NAME ...` runs one as its script does; `python -m tartools` is the same.

This is the way to a command that another program of its name hides, or where scripts are not in PATH. `tartools demo`
runs the demo, `tartools completion SHELL` says how to switch completion on.
"""

from __future__ import annotations

from tartools import commands  # first: until this is imported, SIGINT gives a traceback

# isort: split
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

FAILURE, USAGE = 1, 2
PAGE = "man/man7/tartools.7"


def run() -> NoReturn:
    """Run as a process: arguments from `sys.argv`, exit."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # commands set it for themselves
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run what *arguments* name; return the exit status, unless a command ends the process itself."""
    name, *others = arguments or ["--help"]
    if name in commands.names():
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        sys.argv = [name, *others]
        commands.load(name)()
    if name == "demo":
        from tartools.commands import _demo

        return _demo.main(others)
    if name == "completion":
        from tartools.commands import _completions

        if len(others) == 2 and others[0] == "table":  # for completions
            text: str | None = _completions.columns_of(others[1])
        else:
            text = _completions.switched_on(others, commands.names())
        if text is None:
            sys.stderr.write("tartools: which shell? write tartools completion bash, zsh or fish\n")
            return USAGE
    elif name in ("-h", "--help"):
        text = listing()
    elif name == "--version":
        from importlib.metadata import version

        text = f"tartools {version('tartools')}\n"
    else:
        sys.stderr.write(unknown(name))
        return USAGE
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        sys.stderr.write(f"tartools: stdout: {error.strerror}\n")
        sys.stdout = None  # or the interpreter writes again, and changes the exit status
        return FAILURE
    return 0


def listing() -> str:
    """Return the commands with their summaries."""
    from pathlib import Path

    rows = [(name, commands.load(name).summary) for name in commands.names()] + [*commands.OWN.items()]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:{width}}  {summary}\n" for name, summary in rows]
    places = (Path(sys.prefix, "share", PAGE), Path(__file__).parents[1] / PAGE)  # installed, in a clone
    page = next(filter(Path.is_file, places), None)
    where = f"First steps, and what they share: man tartools (man -l {page})\n" if page else ""
    return f"Usage: tartools NAME [ARGUMENT]...\n\n{''.join(lines)}\nNAME --help and man NAME tell more.\n{where}"


def unknown(name: str) -> str:
    """Return the message for *name*, which is not one of our commands."""
    import difflib

    every = [*commands.names(), *commands.OWN]
    near = difflib.get_close_matches(name, every, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(every)}"
    return f"tartools: no command is called {name!r}; {hint}\n"


if __name__ == "__main__":
    run()
