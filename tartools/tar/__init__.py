"""The tar format: bytes of a stream to members, members to bytes.

Knows nothing of samples, URLs or files by name. `reader.read_members` parses, `writer.Writer` writes,
`writer.encode_header` makes the only new headers there are. Formats: ustar, GNU and pax
(POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format").
"""

from __future__ import annotations

from tartools.tar.header import BLOCK, Member, Source, padded, read_range
from tartools.tar.parts import END, Ahead, Mark, Part, Special
from tartools.tar.reader import members_in, read_members
from tartools.tar.writer import (
    Writer,
    archive_size,
    copy_range,
    encode_header,
    new_member,
    renamed,
    rewritten,
    write_all,
)

__all__ = [
    "BLOCK",
    "END",
    "Ahead",
    "Mark",
    "Member",
    "Part",
    "Source",
    "Special",
    "Writer",
    "archive_size",
    "copy_range",
    "encode_header",
    "members_in",
    "new_member",
    "padded",
    "read_members",
    "read_range",
    "renamed",
    "rewritten",
    "write_all",
]
