"""The tar format: bytes of a stream to members, members to bytes.

Knows nothing of samples, URLs or files by name. `reader.read_members` parses, `writer.Writer` writes,
`writer.encode_header` makes the only new headers there are. Formats: ustar, GNU and pax
(POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format").
"""

from __future__ import annotations

from tartools.tar.cut import Cut, find_cut
from tartools.tar.header import BLOCK, Member, Source, located, padded, read_range
from tartools.tar.members import members_in
from tartools.tar.parts import END, Loose, Mark, Part, Run, Special, split_path
from tartools.tar.reader import read_members
from tartools.tar.writer import (
    Writer,
    archive_size,
    copy_range,
    encode_header,
    new_member,
    renamed,
    rewritten,
    room_in,
    write_all,
)

__all__ = [
    "BLOCK",
    "END",
    "Cut",
    "Loose",
    "Mark",
    "Member",
    "Part",
    "Run",
    "Source",
    "Special",
    "Writer",
    "archive_size",
    "copy_range",
    "encode_header",
    "find_cut",
    "located",
    "members_in",
    "new_member",
    "padded",
    "read_members",
    "read_range",
    "renamed",
    "rewritten",
    "room_in",
    "split_path",
    "write_all",
]
