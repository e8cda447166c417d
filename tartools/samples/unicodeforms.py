"""Names that are equal on a screen, but not in their bytes: Unicode writes é as one character (NFC) or as two (NFD).

macOS names files in NFD, Linux and Windows programs mostly in NFC. Readers compare bytes, so that members of one sample
become two samples, and a join finds no partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def to_nfc(name: bytes) -> bytes:
    r"""Return *name* in Unicode form NFC (UAX #15); itself if it is ASCII, or not UTF-8.

    >>> to_nfc("e\u0301".encode()), to_nfc("\u00e9".encode()), to_nfc(b"e\xff")
    (b'\xc3\xa9', b'\xc3\xa9', b'e\xff')
    """
    if name.isascii():
        return name
    from unicodedata import is_normalized, normalize

    try:
        text = name.decode()
    except UnicodeDecodeError:
        return name
    return name if is_normalized("NFC", text) else normalize("NFC", text).encode()


def other_forms(name: bytes) -> list[bytes]:
    r"""Return *name* in the Unicode forms NFC and NFD, where they differ from it; [] if it is not UTF-8.

    Two items, if *name* is in neither form; they are equal for a few, such as U+2126 (ohm).

    >>> other_forms("\u00e9".encode()), other_forms(b"e"), other_forms(b"\xff")
    ([b'e\xcc\x81'], [], [])
    """
    if name.isascii():
        return []
    from unicodedata import normalize

    try:
        text = name.decode()
    except UnicodeDecodeError:
        return []
    forms = (normalize(form, text).encode() for form in ("NFC", "NFD"))
    return [form for form in forms if form != name]


def twins_in_other_form(names: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    r"""Yield (first name, name) for each of *names* that differs from the first one that is equal in form NFC.

    Names that are ASCII, or equal to that first one in all bytes, are skipped. Holds: the names that are not ASCII.

    >>> list(twins_in_other_form([b"a", "\u00e9".encode(), b"b", "e\u0301".encode(), b"a"]))
    [(b'\xc3\xa9', b'e\xcc\x81')]
    """
    first: dict[bytes, bytes] = {}
    for name in names:
        if not name.isascii():
            earlier = first.setdefault(to_nfc(name), name)
            if earlier != name:
                yield earlier, name
