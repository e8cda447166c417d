"""Payloads by their first bytes: do they say the same as the suffix of the field?"""

from __future__ import annotations

import re

from tartools.samples.filetypes import BY_SUFFIX, TEXTS, TYPES, type_of

BEGINS_AS_NUMBER = re.compile(rb"[\s\d_+-]*")
# what text does not begin with
CLEAR = tuple(
    (magic, one.what)
    for one in TYPES
    for magic in one.magics
    if (len(magic) > 3 and not magic.isalnum()) or magic[0] > 127 or magic[:1] < b"\t"
)
CLEAR_MAGICS = tuple(magic for magic, _ in CLEAR)


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
