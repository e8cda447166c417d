"""Four bytes that stand for a key: so rows of a table are compared with the keys in shards, and keys are not held."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORD = 8  # bytes
FACTOR = 0x9E3779B97F4A7C15  # odd; its powers have no pattern
UNKNOWN = 0  # stands for the key of a row that has none


def sums(text: Any, begins: Any, lengths: Any) -> Any:
    """Return the sums of the keys that begin at *begins* in *text* (uint8), and are so many bytes long. None is 0.

    Keys of one length are summed up together, in words of 8 bytes. Of 4 billion pairs of different keys one is alike.
    """
    import numpy as np

    found = np.empty(len(begins), np.uint32)
    if not len(begins):
        return found
    first = int(lengths[0])
    several = [first] if (lengths == first).all() else np.unique(lengths).tolist()
    for length in several:
        some = slice(None) if len(several) == 1 else lengths == length
        at = begins[some]
        words = -(-length // WORD) or 1
        keys = np.zeros((len(at), words * WORD), np.uint8)
        keys[:, :length] = text[at[:, None] + np.arange(length)]
        weights = np.cumprod(np.full(words, FACTOR, np.uint64))
        found[some] = (keys.view("<u8") * weights).sum(axis=1, dtype=np.uint64) >> 32
    return found | 1


def of_list(keys: Sequence[bytes]) -> Any:
    """Return the sums of *keys*."""
    import numpy as np

    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    return sums(np.frombuffer(b"".join(keys), np.uint8), np.cumsum(lengths) - lengths, lengths)


def of_column(column: Any) -> Any:
    """Return the sums of the keys in *column* of Arrow, bytes without nulls."""
    import numpy as np

    _, places, data = column.buffers()
    kind = np.int64 if str(column.type).startswith("large") else np.int32
    ends = np.frombuffer(places, kind, len(column) + 1, column.offset * np.dtype(kind).itemsize).astype(np.int64)
    return sums(np.frombuffer(data or b"", np.uint8), ends[:-1], np.diff(ends))
