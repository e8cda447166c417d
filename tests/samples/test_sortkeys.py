"""Sort keys as bytes: they compare as the values do, backwards too, and none is the beginning of another."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tartools.samples import sortkeys


def plain_version(value: bytes) -> list[tuple[int, int, bytes]]:
    """Return *value* as what versions compare by: digits as numbers before other bytes, the end before all."""
    return [
        (1, int(part), b"") if part.isdigit() else (2, 0, bytes([part[0]]))
        for part in re.findall(rb"[0-9]+|[^0-9]", value)
    ]


def plain(kind: str, value: bytes) -> object:
    """Return what *value* compares by, in the words of Python."""
    if kind == "version":
        return plain_version(value)
    return value if kind == "text" else {"int": int, "float": float}[kind](value)


VALUES = {
    "text": st.binary(max_size=6),
    "int": st.one_of(st.integers(-300, 300), st.integers()).map(lambda n: b"%d" % n),
    "float": st.floats(allow_nan=False).map(lambda x: repr(x).encode()),
    "version": st.text("a.\0\x01\x020179", max_size=6).map(lambda s: s.encode()),
}


@pytest.mark.parametrize("kind", VALUES)
@given(st.data())
def test_encodings_keep_the_order(kind: str, data: st.DataObject) -> None:
    one, two = data.draw(VALUES[kind]), data.draw(VALUES[kind])
    first, second = (sortkeys.ENCODINGS[kind](value) for value in (one, two))
    assert first is not None
    assert second is not None
    if plain(kind, one) < plain(kind, two):  # type: ignore[operator]
        assert first < second
    elif plain(kind, one) == plain(kind, two) and kind != "version":
        assert first == second
    if first != second:
        assert not first.startswith(second)
        complements = first.translate(sortkeys.COMPLEMENT), second.translate(sortkeys.COMPLEMENT)
        assert (first < second) == (complements[0] > complements[1])
