"""Extended headers: pax records and GNU long names. They describe the member that follows them.

Sources: POSIX.1-2017, pax, "pax Extended Header"; GNU tar manual, "Basic Tar Format" (types L and K).
"""

from __future__ import annotations

from tartools.errors import TarFormatError
from tartools.tar.header import Records


def parse_records(payload: bytes) -> Records:
    r"""Return the records of a pax extended header, in order. If a keyword occurs twice, the later record counts.

    >>> parse_records(b"12 path=abc\n")
    {b'path': b'abc'}
    """
    records: Records = {}
    position = 0
    while position < len(payload):
        digits, blank, _ = payload[position : position + 20].partition(b" ")
        end = position + int(digits) if blank and digits.isdigit() else 0
        keyword, equals, value = payload[position + len(digits) + 1 : end - 1].partition(b"=")
        if not position < end <= len(payload) or payload[end - 1 : end] != b"\n" or not equals or not keyword:
            raise TarFormatError("pax record is malformed")
        records[keyword] = value
        position = end
    return records


def format_records(records: Records) -> bytes:
    r"""Return *records* as the payload of a pax extended header.

    >>> format_records({b"path": b"abc"})
    b'12 path=abc\n'
    """
    lines = []
    for keyword, value in records.items():
        rest = len(keyword) + len(value) + 3
        length = rest + len(str(rest))
        length = rest + len(str(length))  # the length counts its own digits
        lines.append(b"%d %b=%b\n" % (length, keyword, value))
    return b"".join(lines)


def long_name(payload: bytes) -> bytes:
    """Return the path in the *payload* of a GNU long-name header: the bytes before the first NUL."""
    return payload.partition(b"\0")[0]
