"""Plain headers of many samples, checked together: a tenth of the time that the reader takes for them."""

from __future__ import annotations

from typing import Any

from tartools.tar import BLOCK

NAME, SIZE, SIZE_END, CHKSUM, CHKSUM_END, KIND, PREFIX = 100, 124, 135, 148, 154, 156, 345  # bytes of a header
LANES = 0x00FF00FF00FF00FF  # every other byte of eight


def sound(data: bytes | bytearray, starts: Any, keys: list[bytes]) -> bool:
    """Tell whether *data* is the samples with *keys*, one after the other, which begin at *starts* (one item more).

    False does not mean that they are not: only headers as most programs write them are known here, of short names.
    """
    import numpy as np

    whole = b"\0".join(keys)
    longest = max(map(len, keys))
    if b"." in whole or longest > NAME - 2 or whole.count(b"\0") != len(keys) - 1 or not all(keys):
        return False
    if (starts % BLOCK).any() or any(key[-1:] == b"/" for key in keys):
        return False
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK)
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    names = np.array(keys, f"S{NAME}").view(np.uint8).reshape(-1, NAME)
    inside = np.arange(NAME) < lengths[:, None]
    names = np.where(inside, names, 0)
    at, ends = starts[:-1] // BLOCK, starts[1:] // BLOCK
    while len(at):
        headers = blocks[at]
        sizes = plain_sizes(headers)
        if sizes is None or not named(headers[:, :NAME], names, inside, lengths):
            return False
        at = at + 1 + (sizes + BLOCK - 1) // BLOCK
        if (at > ends).any():
            return False
        more = at < ends
        if not more.all():
            at, ends, names, inside, lengths = at[more], ends[more], names[more], inside[more], lengths[more]
    return True


def plain_sizes(headers: Any) -> Any:
    """Return the sizes of payloads in *headers*; None unless all are of regular files, with right checksums."""
    return octal(headers, SIZE, SIZE_END) if plain(headers) else None


def plain(headers: Any) -> bool:
    """Tell whether all *headers* are of regular files with short names, and have right checksums."""
    import numpy as np

    checks = octal(headers, CHKSUM, CHKSUM_END)
    if checks is None:
        return False
    kinds = headers[:, KIND]
    if ((kinds != ord("0")) & (kinds != 0)).any() or headers[:, PREFIX].any():
        return False
    words = headers.view(np.uint64)
    odd = words >> 8
    odd &= LANES
    odd += words & LANES  # at most 64 * 2 * 255 in each of four lanes, of a header
    lanes = odd.sum(axis=1)
    sums = (lanes & 0xFFFF) + ((lanes >> 16) & 0xFFFF) + ((lanes >> 32) & 0xFFFF) + (lanes >> 48)
    field = headers[:, CHKSUM : CHKSUM + 8].sum(axis=1, dtype=np.uint64)
    return bool((sums - field + 8 * 0x20 == checks).all())


def octal(headers: Any, begin: int, end: int) -> Any:
    """Return the octal numbers in bytes *begin* to *end* of *headers*; None if one has other characters, or no end."""
    import numpy as np

    digits = headers[:, begin:end] - ord("0")  # what is less wraps around
    after = headers[:, end]
    if (digits > 7).any() or ((after != 0) & (after != ord(" "))).any():
        return None
    return digits.astype(np.int64) @ (8 ** np.arange(end - begin - 1, -1, -1, dtype=np.int64))


def named(found: Any, names: Any, inside: Any, lengths: Any) -> bool:
    """Tell whether the names *found* are those of fields of samples: the keys in *names*, a dot, and no directory."""
    import numpy as np

    rows = np.arange(len(found))
    if (np.where(inside, found, 0) != names).any() or (found[rows, lengths] != ord(".")).any():
        return False
    return bool(found[rows, lengths + 1].all() and not ((found == ord("/")) & ~inside).any())
