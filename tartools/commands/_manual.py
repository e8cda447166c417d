"""The program that writes man pages and completions: see `cli.manual`.

python -m tartools.commands._manual [--check] [DIRECTORY]
"""

from __future__ import annotations

import sys

from tartools.cli import manual
from tartools.commands import BUILTINS, COMMANDS_BY_TASK, load


def generated_here() -> dict[str, str]:
    """Return every generated file: its path in the project, and its text."""
    by_task = [name for names in COMMANDS_BY_TASK.values() for name in names if name not in BUILTINS]
    return manual.generated([load(name) for name in by_task], list(map(load, BUILTINS)))


if __name__ == "__main__":
    sys.exit(manual.main(sys.argv[1:], generated_here()))
