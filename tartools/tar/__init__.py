"""The tar format: parse a stream of bytes to members, write members to a stream of bytes.

`reader` parses the stream, `header` one header block (and its checksum), `fullheader` a header block with its extended
headers; `writer` writes members and is the only module that encodes headers; `compression` unpacks and packs streams.
This package knows nothing of samples, URLs or file names.
Formats: ustar, GNU and pax (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual,
"Basic Tar Format"). Begin reading at `reader`.
"""

from __future__ import annotations

from tartools.tar.groups import ARCHIVE_END, ContiguousGroups, Mark, Need, Parsed, ScatteredGroup, Special
from tartools.tar.header import BLOCK, padded_size
from tartools.tar.keys import join_path, split_path
from tartools.tar.member import Member, Source, range_in_file, read_range
from tartools.tar.reader import read_members
from tartools.tar.writer import (
    Writer,
    archive_size,
    capacity_of_archive,
    copy_payload,
    copy_range,
    encode_header,
    new_member,
    rename_member,
    rewrite_member,
)

__all__ = [
    "ARCHIVE_END",
    "BLOCK",
    "ContiguousGroups",
    "Mark",
    "Member",
    "Need",
    "Parsed",
    "ScatteredGroup",
    "Source",
    "Special",
    "Writer",
    "archive_size",
    "capacity_of_archive",
    "copy_payload",
    "copy_range",
    "encode_header",
    "join_path",
    "new_member",
    "padded_size",
    "range_in_file",
    "read_members",
    "read_range",
    "rename_member",
    "rewrite_member",
    "split_path",
]
