"""Print the lines that enable tab completion in bash, zsh or fish.

The first of them says which start file of the shell they go into.

Examples:
  Show the lines for bash:
    tartools completion bash
  Enable completion in each new bash:
    tartools completion bash >> ~/.bashrc
"""

from typing import Annotated

from tartools import cli
from tartools.cli import completions
from tartools.cli.process import print_now
from tartools.commands import names
from tartools.errors import UsageError


@cli.command(__doc__, name="tartools completion")
def completion(
    *, words: Annotated[list[str] | None, cli.Option("SHELL", "The shell: bash, zsh or fish.")] = None
) -> int:
    """Print the shell lines that enable completion for the shell in *words*: bash, zsh or fish; return 0.

    The completions themselves call it with `table FILE`: it prints the names of a table's columns, nothing if FILE
    can't be read. Raises: UsageError for other words, and without any.
    """
    words = words or []
    if len(words) == 2 and words[0] == "table":
        text: str | None = completions.columns_of(words[1])
    else:
        text = completions.completion_lines(words, names())
    if text is None:
        raise UsageError("which shell? write tartools completion bash, zsh or fish")
    print_now(text)
    return 0
