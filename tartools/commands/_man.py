"""Show the man page of a command, or tartools(7), however they were installed.

On a terminal man(1) shows the page, or a pager where there is no man. In a pipe or a file it is plain text. Nothing has
to be set for it, neither MANPATH nor PATH.

Examples:
  First steps, URLs, damaged archives, exit statuses:
    tartools man
  The page of a command:
    tartools man tarsort
  Search it:
    tartools man tarsort | grep -n memory
"""

import os
import shutil
import sys
from typing import Annotated

from tartools import cli
from tartools.cli.plainpage import OVERVIEW_NAME, find_page, plain_text
from tartools.cli.process import print_now
from tartools.commands import BUILTINS, names
from tartools.errors import TarToolsError, UsageError

MAX_PAGE_COLUMNS = 100  # longer lines are hard to read


@cli.command(__doc__, name="tartools man")
def man(
    *,
    name: Annotated[str, cli.Option("[NAME]", "A command; without one, the page tartools(7).")] = OVERVIEW_NAME,
) -> int:
    """Show the man page *name*, as plain text on stdout; return 0.

    On a terminal this process becomes man(1) instead, or, if man is not installed, shows the text in a pager. Raises:
    UsageError if *name* is neither "tartools" nor a command with a script of its own, TarToolsError if the page was not
    installed.
    """
    if name not in (OVERVIEW_NAME, *names()):
        raise UsageError(missing_page_message(name))
    page = find_page(name)
    if page is None:
        raise TarToolsError(f"the man pages were not installed; {name} --help has the text of {name}'s")
    has_man = shutil.which("man") and not shutil.which("man.REAL")  # which Ubuntu's containers hide behind a notice
    if sys.stdout.isatty() and has_man:
        os.execvp("man", ["man", *(["-l"] if sys.platform == "linux" else []), str(page)])  # noqa: S606
    text = plain_text(page.read_text(), min(shutil.get_terminal_size().columns, MAX_PAGE_COLUMNS))
    if sys.stdout.isatty():
        import pydoc

        pydoc.pager(text)
    else:
        print_now(text)
    return 0


def missing_page_message(name: str) -> str:
    """Return the message that *name* has no man page.

    For one of BUILTINS it advises `tartools NAME --help`; otherwise it lists commands with similar names, or, if
    none is similar, all that have a page.
    """
    if name in BUILTINS:
        return f"{name} has no man page; write tartools {name} --help"
    import difflib

    near = difflib.get_close_matches(name, names(), cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join((OVERVIEW_NAME, *names()))}"
    return f"no command is called {name!r}; {hint}"
