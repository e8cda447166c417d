"""The command line: options, errors to exit statuses, progress on stderr, signals.

`declare` and `options` are what commands declare their parameters with, `command` makes a command of a function,
`parse` reads the ordinary command line, and `typer_app` explains the rest; `process` and `progress` are the command as
a process, and `drawing` is what progress looks like; `manual` and `completions` are made of the declarations. Only this
room exits. Begin reading at `command.Command`.
"""

from __future__ import annotations

from tartools.cli.command import Command, command
from tartools.cli.declare import Group, Option, sample_slice
from tartools.cli.options import (
    Common,
    Count,
    Fields,
    Force,
    Gzip,
    Inputs,
    Means,
    Memory,
    Output,
    Parallel,
    Seed,
    TmpDir,
    Url,
    Verbatim,
    Workers,
    check_outputs,
    workers,
)
from tartools.errors import byte_size

__all__ = [
    "Command",
    "Common",
    "Count",
    "Fields",
    "Force",
    "Group",
    "Gzip",
    "Inputs",
    "Means",
    "Memory",
    "Option",
    "Output",
    "Parallel",
    "Seed",
    "TmpDir",
    "Url",
    "Verbatim",
    "Workers",
    "byte_size",
    "check_outputs",
    "command",
    "sample_slice",
    "workers",
]
