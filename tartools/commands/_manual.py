"""The program that writes man pages and completions: see `cli.manual`.

python -m tartools.commands._manual [--check] [DIRECTORY]
"""

from __future__ import annotations

import sys

from tartools.cli import manual
from tartools.commands import BUILTINS, load, names


def generated_here() -> dict[str, str]:
    """Return every generated file: its path in the project, and its text."""
    return manual.generated(list(map(load, names())), BUILTINS)


if __name__ == "__main__":
    sys.exit(manual.main(sys.argv[1:], generated_here()))
