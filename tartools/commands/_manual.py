"""The program that writes man pages and completions: see `cli.manual`.

python -m tartools.commands._manual [--check] [DIRECTORY]
"""

from __future__ import annotations

import sys

from tartools.cli import manual
from tartools.commands import BUILTINS, COMMANDS_BY_TASK, load


def generate_files() -> dict[str, str]:
    """Return the text of every generated file, and of every page of docs/, by its path relative to the project.

    Files of which only the list of commands is generated are read before. Raises: ValueError if one has no such list.
    """
    by_task = [name for names in COMMANDS_BY_TASK.values() for name in names if name not in BUILTINS]
    return manual.generated_files([load(name) for name in by_task], list(map(load, BUILTINS)))


if __name__ == "__main__":
    sys.exit(manual.main(sys.argv[1:], generate_files()))
