"""A header passes if its checksum is right as a whole number: bit by bit, in the reader's loop and in runs by numpy."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator

import pytest

from tartools.errors import TarFormatError
from tartools.tar.header import ADLER_MODULUS, byte_sum
from tests.archives import BLOCK, END, Trickle, data, entry, sealed
from tests.archives import header as block
from tests.tar.test_runs import both, joined
from tests.tiers import in_both

CHECKSUM = range(148, 156)


def filled(total: int) -> bytes:
    """Return a header whose bytes sum up to about *total*: its link name, owners and prefix are of high bytes."""
    header = bytearray(block(b"h.txt", 1))
    for byte in (*range(157, 257), *range(265, 345), *range(346, BLOCK)):
        header[byte] = min(255, max(0, total - byte_sum(header)))
    return sealed(header)


HEADERS = {
    "ASCII": block(b"a.txt", 1),
    "UTF-8": block("日本/写真.txt".encode(), 1),
    "below the modulus": filled(ADLER_MODULUS - 600),
    "below 65536": filled(ADLER_MODULUS + 5),
    "above 65536": filled(1 << 16 | 9),
    "large": filled(1 << 17),
}


def damaged(header: bytes) -> Iterator[bytes]:
    """Yield *header* with each bit of its checksum field flipped, and with sums that differ by a modulus."""
    for byte in CHECKSUM:
        for bit in range(8):
            changed = bytearray(header)
            changed[byte] ^= 1 << bit
            yield bytes(changed)
    for modulus in (255, 1 << 8, ADLER_MODULUS, 1 << 16, 2 * ADLER_MODULUS, 1 << 17):
        for stored in (byte_sum(header) + modulus, byte_sum(header) - modulus):
            if 0 <= stored < 8**6:
                yield header[:148] + b"%06o\0 " % stored + header[156:]


def is_sound(header: bytes) -> bool:
    """Return whether Python's tarfile takes the checksum of *header* for right."""
    try:
        return tarfile.nti(header[148:156]) in tarfile.calc_chksums(header)
    except tarfile.HeaderError:
        return False


def test_sums_are_those_of_tarfile() -> None:
    for header in HEADERS.values():
        assert byte_sum(header) == tarfile.calc_chksums(header)[0]
    assert byte_sum(b"\xff" * BLOCK) == 504 * 255 + 8 * 32


@pytest.mark.parametrize("name", HEADERS)
@in_both
def test_each_bit_of_a_checksum_counts(name: str, thorough: bool) -> None:
    header, after = HEADERS[name], entry(b"z.txt", b"9")
    sound, _ = both(lambda: Trickle(entry(b"000.txt", data(b"0")) + header + data(b"1") + after + END))
    assert not any(isinstance(part[0], type) for part in sound if isinstance(part, tuple)), sound
    for copies in (1, 70) if thorough else (1,):  # few headers, and so many that a run is worth it anyway
        before = b"".join(entry(b"%03d.txt" % number, data(b"0")) for number in range(copies))
        for changed in damaged(header):
            content = before + changed + data(b"1") + after + END
            found = [joined(way) for way in both(lambda: Trickle(content))]  # noqa: B023
            assert found[0] == found[1], changed[148:156]
            if is_sound(changed):
                assert found[0][-1] == joined(sound)[-1] and len(found[0]) == copies + 3, changed[148:156]
            else:
                assert found[0][-1][::2] == (TarFormatError, len(before)), changed[148:156]
                assert "header checksum does not match" in found[0][-1][1]
