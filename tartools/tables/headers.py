"""Plain headers of many samples, checked together: a tenth of the time that the reader takes for them."""

from __future__ import annotations

from typing import Any

from tartools.tar import BLOCK
from tartools.tar.runs import plain, sizes_in

NAME = 100  # bytes


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
    return sizes_of(headers) if plain(headers).all() else None


def sizes_of(headers: Any) -> Any:
    """Return the sizes of payloads in *headers*; None unless all have one in octal digits."""
    sizes, right = sizes_in(headers)
    return sizes if right.all() else None


def named(found: Any, names: Any, inside: Any, lengths: Any) -> bool:
    """Tell whether the names *found* are those of fields of samples: the keys in *names*, a dot, and no directory."""
    import numpy as np

    rows = np.arange(len(found))
    if (np.where(inside, found, 0) != names).any() or (found[rows, lengths] != ord(".")).any():
        return False
    return bool(found[rows, lengths + 1].all() and not ((found == ord("/")) & ~inside).any())
