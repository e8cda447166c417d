"""Messages of Apache Thrift in its compact protocol, read without a description: numbers of fields to their values.

Source: Apache Thrift, doc/specs/thrift-compact-protocol.md.
"""

from __future__ import annotations

from typing import Any

TRUE, FALSE, BYTE, DOUBLE, BINARY, LIST, SET, STRUCT = 1, 2, 3, 7, 8, 9, 10, 12
INTEGERS = (4, 5, 6)
DEEPEST = 32  # messages in messages
LONGEST = 70  # bits of an integer


def parsed(data: bytes, at: int, deep: int = 0) -> tuple[dict[int, Any], int]:
    """Return the message at byte *at* of *data*, and where it ends. Values of unknown types have no place in it.

    Raises: IndexError if *data* ends in it; ValueError if it is none.

    >>> parsed(bytes([0x15, 6, 0x18, 2, 97, 98, 0]), 0)
    ({1: 3, 2: b'ab'}, 7)
    """
    if deep > DEEPEST:
        raise ValueError("messages in messages without an end")
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        found[number], at = (head & 15 == TRUE, at) if head & 15 in (TRUE, FALSE) else _value(data, at, head & 15, deep)
    return found, at + 1


def unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at byte *at*, of seven bits a byte, and where it ends. Raises: as `parsed`."""
    number = 0
    for shift in range(0, LONGEST, 7):
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
    raise ValueError("a number without an end")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = unsigned(data, at)
    return number >> 1 ^ -(number & 1), at


def _value(data: bytes, at: int, kind: int, deep: int) -> tuple[Any, int]:
    if kind in INTEGERS:
        return _integer(data, at)
    if kind == BINARY:
        size, at = unsigned(data, at)
        if at + size > len(data):
            raise IndexError("the data end in a text")
        return data[at : at + size], at + size
    if kind == STRUCT:
        return parsed(data, at, deep + 1)
    if kind in (LIST, SET):
        head, at = data[at], at + 1
        count = head >> 4
        if count == 15:
            count, at = unsigned(data, at)
        values = []
        for _ in range(count):
            value, at = _value(data, at, head & 15, deep + 1)
            values.append(value)
        return values, at
    if kind in (TRUE, FALSE, BYTE):
        return data[at], at + 1
    if kind == DOUBLE:
        return None, at + 8
    raise ValueError(f"no type {kind}")
