"""Names of keys and fields that readers take in different ways, or that are dangerous to unpack."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

# something may be wrong with one of the keys, joined by newlines
_ODD = re.compile(rb"(?m)^/|(?:^|/)\.\.(?:/|$)|[\x00-\x09\x0b-\x1f\x7f]|(?:^|/)\.[^/.]|^__")
_PLAIN = b"\n-,0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNSAFE = re.compile(rb"/|(?:.*/)?\.\.(?:/|$)", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_HIDDEN = re.compile(rb"(?:.*/)?\.[^/.][^/]*$", re.DOTALL)
_RESERVED = re.compile(rb"__[^/]*__(?:$|/)")  # what webdataset skips


def may_be_odd(keys: Sequence[bytes]) -> bool:
    """Tell whether `codes_of_key` may have something to say of one of *keys*: one look at all of them."""
    together = b"\n".join(keys)
    if not together.translate(None, _PLAIN):  # usually; faster than to search
        return together.count(b"\n") != len(keys) - 1
    if _ODD.search(together) or together.count(b"\n") != len(keys) - 1:
        return True
    try:
        together.decode()
    except UnicodeDecodeError:
        return True
    return False


def codes_of_key(key: bytes) -> list[str]:
    """Return the codes of what is odd about *key*."""
    found = [
        code
        for code, pattern in (
            ("unsafe-path", _UNSAFE),
            ("hidden-file", _HIDDEN),
            ("reserved-name", _RESERVED),
        )
        if pattern.match(key)
    ]
    if _CONTROL.search(key):
        found.append("control-character")
    try:
        key.decode()
    except UnicodeDecodeError:
        found.append("not-utf-8")
    return found


@lru_cache(10_000)
def codes_of_fields(fields: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return codes of what is odd about the names of the *fields* of a sample, each with what it is about."""
    found: list[tuple[str, str]] = []
    seen: dict[str, str] = {}
    for field in fields:
        folded = field.lower()
        if seen.get(folded) == field:
            found.append(("field-twice", field))
        elif folded in seen:
            found.append(("case-twice", f"{seen[folded]} {field}"))
        elif folded != field:
            found.append(("upper-case", field))
        seen.setdefault(folded, field)
        if field.startswith("_"):
            found.append(("reserved-name", field))
        raw = field.encode("utf-8", "surrogateescape")
        if _CONTROL.search(raw):
            found.append(("control-character", field))
        if any(0xDC80 <= ord(letter) <= 0xDCFF for letter in field):
            found.append(("not-utf-8", field))
    return tuple(found)
