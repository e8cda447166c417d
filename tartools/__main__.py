"""`tartools` names the commands by task, `tartools --help` says what they do, `tartools NAME ...` runs one.

It runs as its script does, and so does `python -m tartools NAME`. This is the way to a command that another program of
its name hides, or where scripts are not in PATH. Those of `BUILTINS`, such as `demo`, have no
scripts: `tartools demo`.
"""

from __future__ import annotations

from tartools import commands  # first: until this is imported, SIGINT gives a traceback

# isort: split
import sys
from collections.abc import Sequence
from typing import NoReturn

USAGE_STATUS = 2
PAGES = "First steps, and what all share: tartools man. The page of a command: tartools man NAME."


def run() -> NoReturn:
    """Run the command that `sys.argv[1]` names, or else `main`: handle signals, and exit with its status.

    The name becomes `sys.argv[0]`, so that the command finds its own arguments behind it.
    """
    name, *others = sys.argv[1:] or [""]
    if name in (*commands.names(), *commands.BUILTINS):
        sys.argv = [name, *others]
        commands.load(name)()
    from tartools.cli import process
    from tartools.cli.command import exit_status

    process.run(lambda: exit_status("tartools", lambda: main(sys.argv[1:])))


def main(arguments: Sequence[str]) -> int:
    """Run `tartools` with *arguments*: print an overview, the help or the version on stdout; return the exit status.

    Only the first argument counts: none, -h or --help, or --version. Any other word gets a message on stderr and the
    status USAGE_STATUS. Raises: OSError if the text can't be printed.
    """
    from tartools.cli import process

    name = arguments[0] if arguments else ""
    if not arguments:
        text = overview()
    elif name in ("-h", "--help"):
        text = help_text()
    elif name == "--version":
        from importlib.metadata import version

        text = f"tartools {version('tartools')}\n"
    else:
        sys.stderr.write(unknown_command_message(name))
        return USAGE_STATUS
    process.print_now(text)
    return 0


def overview() -> str:
    """Return the text that `tartools` prints without arguments: the names of the commands by task, about a screen."""
    width = max(map(len, commands.COMMANDS_BY_TASK))
    lines = [
        wrap_text(f"  {task:{width}}  ", " ".join(names)) + "\n" for task, names in commands.COMMANDS_BY_TASK.items()
    ]
    more = "tartools --help says what each does, NAME -h lists the options of one, and tartools demo runs some."
    return f"Usage: tartools NAME [ARGUMENT]...\n\n{''.join(lines)}\n{wrap_text('', more)}\n{wrap_text('', PAGES)}\n"


def help_text() -> str:
    """Return the text of `tartools --help`: the commands by task, with their summaries, which imports all of them."""
    parts = []
    for task, names in commands.COMMANDS_BY_TASK.items():
        summaries = [(name, commands.load(name).summary) for name in names]
        parts.append(
            "\n".join([f"{task}:", *(wrap_text(f"  {name:12}  ", summary) for name, summary in summaries), ""])
        )
    more = (
        "A command reads shards (tar archives of samples: adjacent files with one name up to the first dot) or tables "
        "that list samples, from files, URLs or stdin, and writes a shard, by default to stdout: tarcat -c 10 a.tar > "
        "b.tar. NAME -h shows the options of a command, NAME --help and tartools man NAME all about it."
    )
    usage = "Usage: tartools NAME [ARGUMENT]...    the same as NAME [ARGUMENT]...\n"
    return "\n".join([usage, *parts, f"{wrap_text('', more)}\n{wrap_text('', PAGES)}\n"])


def wrap_text(first: str, text: str) -> str:
    """Return *first* and *text*, filled to the width of the terminal, but at least 40 columns; no newline at the end.

    Lines after the first are indented by the length of *first*. Words that are longer than a line are not broken.
    """
    import shutil
    import textwrap

    return textwrap.fill(
        text,
        max(shutil.get_terminal_size().columns, 40),
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_long_words=False,
        break_on_hyphens=False,
    )


def unknown_command_message(name: str) -> str:
    """Return the message that *name* is no command, with its newline: up to 3 similar names, or all if none is."""
    import difflib

    every = [*commands.names(), *commands.BUILTINS]
    near = difflib.get_close_matches(name, every, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(every)}"
    return f"tartools: no command is called {name!r}; {hint}\n"


if __name__ == "__main__":
    run()
