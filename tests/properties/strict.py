"""A second reader of tar archives, written to be looked through and not to be fast. It shares no code with ours.

Sources: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Interchange Format"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

BLOCK = 512
EXTENDED = b"xXgLK"
LINKS, PASSED = b"1246", b"3DMV"  # what carries no sample data; the first have no payload whatever their size says
MOST = 1 << 20  # bytes of an extended header


class Found(NamedTuple):
    """What is in an archive: its regular *members* as (path, payload), up to the damage if it is not *sound*."""

    members: list[tuple[bytes, bytes]]
    sound: bool


class DamagedError(Exception):
    """The archive ends here or is no archive."""


def read(content: bytes) -> Found:
    """Return what is in the archive *content*."""
    members: list[tuple[bytes, bytes]] = []
    try:
        for path, payload in _members(content):
            members.append((path, payload))
    except DamagedError:
        return Found(members, False)
    return Found(members, True)


def _members(content: bytes) -> Iterator[tuple[bytes, bytes]]:  # noqa: PLR0912  # one thing after the other
    at, ended = 0, False
    shared: dict[bytes, bytes] = {}
    while True:
        block = content[at : at + BLOCK]
        if len(block) < BLOCK:
            if ended and not block.strip(b"\0"):
                return
            raise DamagedError
        if not block.strip(b"\0"):
            ended, shared, at = True, {}, at + BLOCK
            continue
        ended = False
        own: dict[bytes, bytes] = {}
        long_path, begun = b"", at
        kind, size = _header(block)
        while kind in EXTENDED:
            payload = _cut(content, at + BLOCK, size)
            if size > MOST:
                raise DamagedError
            if kind == b"g":
                shared = shared | {k: v for k, v in _records(payload).items() if k != b"comment"}
            elif kind in b"xX":
                own |= _records(payload)
            elif kind == b"L":
                long_path = payload.partition(b"\0")[0]
            alone = kind == b"g" and at == begun
            at += BLOCK + _padded(size)
            if alone:
                break
            block = content[at : at + BLOCK]
            kind, size = _header(block)
        else:
            records = shared | own
            path = records.get(b"GNU.sparse.name") or records.get(b"path") or long_path or _name(block)
            stated = records.get(b"size")
            if stated and (not re.fullmatch(rb"[0-9]{1,20}", stated)):
                raise DamagedError
            size = int(stated) if stated else size
            at += BLOCK
            if kind == b"S":
                at = _past_map(content, at, block[482])
            sparse = kind == b"S" or any(key.startswith(b"GNU.sparse.") for key in records)
            folder = kind == b"5" or (path.endswith(b"/") and size == 0)
            special = sparse or folder or kind in LINKS or kind in PASSED
            if special and not kind.strip(b"123456"):
                size = 0
            payload = _cut(content, at, size)
            at += _padded(size)
            if not special:
                yield path, payload


def _header(block: bytes) -> tuple[bytes, int]:
    """Return type flag and size of a header."""
    if len(block) < BLOCK:
        raise DamagedError
    blank = block[:148] + b" " * 8 + block[156:]
    stated = _number(block[148:156])
    if stated != sum(blank) and stated != sum(b - 256 if b > 127 else b for b in blank):  # old Suns had signed bytes
        raise DamagedError
    size = _number(block[124:136])
    if size < 0:
        raise DamagedError
    return block[156:157], size


def _number(field: bytes) -> int:
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    digits = re.fullmatch(rb" *([0-7]*) *", field.partition(b"\0")[0])
    if digits is None:
        raise DamagedError
    return int(digits[1] or b"0", 8)


def _name(block: bytes) -> bytes:
    name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    return prefix + b"/" + name if prefix and block[257:265] == b"ustar\x0000" else name


def _records(payload: bytes) -> dict[bytes, bytes]:
    records = {}
    while payload:
        length = re.match(rb"([0-9]{1,19}) ", payload)
        line = payload[: int(length[1])] if length else b""
        if not length or len(line) != int(length[1]) or not line.endswith(b"\n"):
            raise DamagedError
        keyword, equals, value = line[length.end() : -1].partition(b"=")
        if not keyword or not equals:
            raise DamagedError
        records[keyword] = value
        payload = payload[len(line) :]
    return records


def _past_map(content: bytes, at: int, more: int) -> int:
    while more:
        block = _cut(content, at, BLOCK)
        more, at = block[504], at + BLOCK
    return at


def _cut(content: bytes, at: int, size: int) -> bytes:
    """Return *size* bytes of *content* at *at*, whose padding is there too."""
    if at + _padded(size) > len(content):
        raise DamagedError
    return content[at : at + size]


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
