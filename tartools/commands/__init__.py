"""The commands, one file each. Code of several commands is in files that begin with `_`.

A command's docstring is its help and man page; its function is a pipeline that reads from top to bottom. Begin reading
at `tarcat`.
"""

from __future__ import annotations

# not signal, which imports enum: for these 5 ms SIGINT would give a traceback
import _signal  # type: ignore[import-not-found]
import sys

from tartools import TYPE_CHECKING

if TYPE_CHECKING:
    from tartools.cli import Command

# The list of the commands: a new one is entered here. Tests compare it with the files of this folder; scripts, README
# and man pages follow from it (`make man`).
COMMANDS_BY_TASK = {  # task -> commands
    "inspect samples": ("tarshow", "tarls", "tarstat", "tarfirst"),
    "find problems": ("tarcheck", "tardedup", "tardiff"),
    "make shards": ("tarcreate", "tarindex"),
    "select and combine": ("tarcat", "tarpcat", "tarfilter", "tarjoin", "tarmix"),
    "sort and split": ("tarsort", "tarsplit"),
    "run commands": ("tarproc", "tarjob"),
    "convert": ("tar2tsv", "tar2jsonl", "tar2parquet", "tar2tfrecord", "tar2zip", "tar2folder"),
    "train": ("tarbench",),
    "cache remote data": ("cache",),
    "get started": ("demo", "man", "skill", "completion"),
}
BUILTINS = ("cache", "demo", "man", "skill", "completion")  # commands without a script of their own: `tartools demo`


def names() -> list[str]:
    """Return the names of all commands that have a script, sorted."""
    from pkgutil import iter_modules

    return sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> Command:
    """Import and return the command *name*: one that has a script, or one of `BUILTINS`.

    Raises: ModuleNotFoundError for any other name, AttributeError for the name of a module that has no command.
    """
    from importlib import import_module

    module = f"_{name}" if name in BUILTINS else name
    command: Command = getattr(import_module(f"tartools.commands.{module}"), name)
    return command


def _is_started_as_a_command() -> bool:
    """True if this process was started as one of the commands, by `sys.argv[0]`; False in another program.

    True for a file called tartools or as a command is (tarcat), and for `python -m tartools`.
    """
    import os

    folder, name = os.path.split(sys.argv[0] if sys.argv else "")
    if name in ("tartools", "__main__.py"):
        return name == "tartools" or os.path.basename(folder) == "tartools"
    return name.isalnum() and os.path.exists(os.path.join(__path__[0], f"{name}.py"))


if _is_started_as_a_command():
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until `cli.process` takes over, there is nothing to clean up

    import gc

    gc.set_threshold(50_000)  # imports make many objects and no garbage: 2 ms less for files, 30 for remote URLs
