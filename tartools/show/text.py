"""Samples as text for a terminal: the key, and for each field its size and its description."""

from __future__ import annotations

from collections.abc import Iterable

from tartools.errors import printable
from tartools.samples.kinds.kind import Description
from tartools.samples.sample import Sample, field_name
from tartools.tar import Member


def sample_text(sample: Sample, described: Iterable[tuple[Member, Description]], *, bold: bool = False) -> str:
    """Return the lines that show *sample*: its key, its fields, an empty line; *bold* sets the key in bold.

    *described*: its members with their descriptions. Control characters in keys, fields and texts are escaped, so that
    a file cannot control the terminal.
    """
    title = printable(sample.key)
    return "\n".join([f"\x1b[1m{title}\x1b[0m" if bold else title, *describe_fields(described)]) + "\n\n"


def describe_fields(described: Iterable[tuple[Member, Description]]) -> list[str]:
    """Return a line for each of the *described* members: field, size and description, in columns.

    Below it are the lines of its text, if it has any.
    """
    rows = [
        (printable(field_name(member)) or "-", f"{member.size:,} B", description) for member, description in described
    ]
    names, sizes = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    lines = []
    for name, size, description in rows:
        lines.append(f"  {name:<{names}}  {size:>{sizes}}  {description.what}")
        lines += ["    " + line for line in description.lines]
    return lines
