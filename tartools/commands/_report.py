"""Printing the facts of tarstat, tarcheck and tarbench."""

import os
from types import ModuleType
from typing import Any

from tartools import storage


def print_facts(facts: dict[str, Any], as_json: bool, report: ModuleType) -> None:
    """Print *facts* on stdout: as JSON if *as_json*, as tables on a terminal, otherwise as lines, one fact each.

    *report*: the module of `tartools.show` that makes tables and lines of such facts, by `parts` and `plain_lines`.
    Raises: StorageError if stdout can't be written.
    """
    if as_json:
        import json

        written = json.dumps(facts, indent=2) + "\n"
    elif os.isatty(1):
        from tartools.show import terminal
        from tartools.show.sections import draw_report

        written = draw_report(report.parts(facts), terminal.detect_screen(terminal.NO_PROTOCOL))
    else:
        written = "".join(f"{line}\n" for line in report.plain_lines(facts))
    with storage.open_sink("-") as sink:
        sink.write(written.encode())
