"""What is odd about a member alone: its key and field, as readers take them, and its first bytes beside its suffix."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from tartools.samples.filetypes import BY_SUFFIX, TEXTS, TYPES, type_of

# something may be wrong with one of the keys, joined by newlines
_ODD = re.compile(rb"(?m)^/|(?:^|/)\.\.(?:/|$)|[\x00-\x09\x0b-\x1f\x7f]|(?:^|/)\.[^/.]|^__")
_PLAIN = b"\n-,0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_UNSAFE = re.compile(rb"/|(?:.*/)?\.\.(?:/|$)", re.DOTALL)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f]")
_HIDDEN = re.compile(rb"(?:.*/)?\.[^/.][^/]*$", re.DOTALL)
_RESERVED = re.compile(rb"__[^/]*__(?:$|/)")  # what webdataset skips

BEGINS_AS_NUMBER = re.compile(rb"[\s\d_+-]*")
# what text does not begin with
CLEAR = tuple(
    (magic, one.what)
    for one in TYPES
    for magic in one.magics
    if (len(magic) > 3 and not magic.isalnum()) or magic[0] > 127 or magic[:1] < b"\t"
)
CLEAR_MAGICS = tuple(magic for magic, _ in CLEAR)


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


def lie(suffix: str, head: bytes) -> str:
    """Return what is wrong with a payload that begins with *head* in a field that ends in *suffix*; empty if nothing.

    >>> lie("jpg", b"GIF89a..."), lie("jpg", b"hello"), lie("txt", b"hello")
    ('it is a GIF picture, not a JPEG picture', 'it does not begin as a JPEG picture', '')
    """
    if suffix in TEXTS:
        clear = next((what for magic, what in CLEAR if head.startswith(magic)), "")
        return f"it is {clear}, not text" if clear else ""
    said, found = BY_SUFFIX.get(suffix), type_of(head)
    if said is None or not head or head.startswith(said.magics) or (found and found.what == said.what):
        return ""
    return f"it is {found.what}, not {said.what}" if found else f"it does not begin as {said.what}"


def no_number(head: bytes, size: int) -> str:
    """Return what is wrong with a payload of *size* bytes that begins with *head*, and should be a number for `int`.

    >>> no_number(b"-5", 3), no_number(b"1.5", 3), no_number(b"an oak in autumn", 20)
    ('', "'1.5' is not a whole number", "'an oak in autumn...' is not a whole number")
    """
    try:
        if size > len(head) and BEGINS_AS_NUMBER.fullmatch(head):
            return ""
        int(head)
    except ValueError:
        text = head.decode(errors="replace")
        return f"{text + '...' * (size > len(head))!r} is not a whole number"
    return ""


def expected(suffix: str) -> tuple[bytes, ...]:
    """Return first bytes that prove that a payload is what *suffix* says; none if there are others too."""
    return BY_SUFFIX[suffix].magics if suffix in BY_SUFFIX else ()
