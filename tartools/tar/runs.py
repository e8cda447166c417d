"""Runs of plain headers, checked and grouped together by numpy: in a third of the time that the reader's loop takes.

Headers are found by their magic. That they are all the headers there are, and that none is part of a payload, is what
their sizes say: each member ends where the next header begins. Where one does not, or where a header is not as most
programs write them, the run ends, and the reader's loop goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

from tartools.tar.grouping import Grouper
from tartools.tar.groups import ContiguousGroups, UniformGroups
from tartools.tar.header import BLOCK
from tartools.tar.keys import Paths, stem_of

MIN_RUN_BLOCKS = 64  # blocks, or headers; in a shorter run, the loop is as fast
MAGIC_OFFSET, USTA_NUMBER = 257, int.from_bytes(b"usta", "little")
SIZE_OFFSET, CHKSUM_OFFSET, TYPE_OFFSET, PREFIX_OFFSET = 124, 148, 156, 345  # bytes of a header
# eight digits 0; the bits in which octal digits don't differ
OCTAL_ZEROS, NOT_OCTAL_BITS = 0x3030303030303030, 0xF8F8F8F8F8F8F8F8


def import_numpy() -> Any:
    """Import numpy, and return it; the first import by a command is without threads for products of matrices.

    That saves 50 ms. In other programs that use tartools, in programs that a command runs, and if OPENBLAS_NUM_THREADS
    is set, numpy has its usual threads.
    """
    with limit_numpy_threads():
        import numpy as np

        return np


@contextmanager
def limit_numpy_threads() -> Iterator[None]:
    """For the body of `with`: a first import of numpy in it, by a command, gets one OpenBLAS thread, to save time.

    Sets OPENBLAS_NUM_THREADS meanwhile. Nothing changes if that is set, if numpy is imported, or if this is no command.
    """
    if "numpy" in sys.modules or "tartools.cli" not in sys.modules or "OPENBLAS_NUM_THREADS" in os.environ:
        yield
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OPENBLAS_NUM_THREADS"]


def take_run(reader: Any) -> int:
    """Parse plain members from the position of *reader*, a `Reader`, on, by numpy; return how many were parsed.

    They are added to `groups` of *reader*, and its `position` moves to their end. No global records may be in force,
    and the open group must have no scattered members.
    0 if fewer than `MIN_RUN_BLOCKS` plain headers follow each other; then nothing has changed.
    """
    np = import_numpy()
    position, groups = reader.position, reader.groups
    count = (reader.filled - position) // BLOCK
    blocks = np.frombuffer(reader.buffer, np.uint8, count * BLOCK, position).reshape(-1, BLOCK)
    at = (_read_numbers(blocks, MAGIC_OFFSET, "<u4") == USTA_NUMBER).nonzero()[0]
    if len(at) < MIN_RUN_BLOCKS or at[0]:
        return 0
    headers = blocks[at]
    sizes, sound = sizes_in(headers)
    sound &= are_plain(headers)
    ends = at + 1 + (sizes + BLOCK - 1) // BLOCK
    sound[1:] &= ends[:-1] == at[1:]
    sound &= ends <= (reader.payload_limit() - position) // BLOCK
    paths = Paths(headers)
    sound &= paths.plain & ((sizes > 0) | (paths.bases == 0)) & ~paths.hidden
    run_length = len(at) if sound.all() else int(sound.argmin())
    if run_length < MIN_RUN_BLOCKS:
        return 0
    starts = at[:run_length] * BLOCK + position + groups.shift
    begins = paths.group_begins(run_length)
    if groups.open.owns(paths.first_path()):
        begins = begins[1:]
    if not (groups.uniform and len(begins) > MIN_RUN_BLOCKS and _add_uniform(groups, paths, starts, sizes, begins)):
        _add_members(groups, paths, starts, sizes, begins, 0, run_length)
    reader.position = position + int(ends[run_length - 1]) * BLOCK
    reader.ended = False
    return run_length


def _add_members(groups: Grouper, paths: Paths, starts: Any, sizes: Any, begins: Any, low: int, high: int) -> None:
    """Add members *low* to *high* (exclusive) of a run to *groups*; the last of their groups stays open.

    *paths*, *starts*, *sizes*: of all members of the run: paths, offsets of headers in the source, bytes of payloads.
    *begins*: indexes in the run (like *starts* and *sizes* an array of int64), from *low* to *high*, of members that
    begin a new group; the members before the first index belong to the group that is open.
    """
    group = groups.open
    first = group.first
    if groups.members is not None:
        first = len(groups.members) - low
        places = starts[low:high].tolist(), (starts[low:high] + BLOCK).tolist(), sizes[low:high].tolist()
        members: Any = zip(paths.paths(low, high), repeat(groups.source), *places, repeat(None))
        groups.members += members
    if len(begins):
        if group.key is not None:
            groups.keys.append(group.key)
            groups.starts.append(group.begin)
            groups.firsts.append(group.first)
        groups.keys += paths.keys(begins)
        groups.starts += starts[begins].tolist()
        groups.firsts += (begins + first).tolist() if groups.members is not None else [first] * len(begins)
        group.key, group.begin, group.first = groups.keys.pop(), groups.starts.pop(), groups.firsts.pop()
        group.stem = stem_of(group.key, paths.keyed[begins[-1]])


def _add_uniform(groups: Grouper, paths: Paths, starts: Any, sizes: Any, begins: Any) -> bool:
    """Add all members of a run to *groups*, the groups that begin and end in it as `UniformGroups`; return True.

    Add none and return False if these groups differ in their fields or the order of these.
    *paths*, *starts*, *sizes*: of all members: paths, offsets of headers in the source, bytes of payloads (int64).
    *begins*: an array of two or more indexes in the run at which groups begin. Members before the first index belong to
    the group that is open; the last of these groups is not compared, and stays open.
    """
    low, high = int(begins[0]), int(begins[-1])
    endings = paths.common_endings(begins)
    if endings is None:
        return False
    _add_members(groups, paths, starts, sizes, begins[:0], 0, low)
    groups.complete_group(int(starts[low]) - groups.shift)
    groups.cut_contiguous(int(starts[low]) - groups.shift)
    uniform = UniformGroups(endings, starts[low:high], sizes[low:high])
    keys = paths.keys(begins[:-1])
    groups.parts.append(ContiguousGroups(groups.source, keys, starts[begins].tolist(), None, [], uniform))
    _add_members(groups, paths, starts, sizes, begins[-1:], high, len(starts))
    return True


def sizes_in(headers: Any) -> tuple[Any, Any]:
    """Return (sizes, flags) for *headers*, rows of 512 uint8: bytes of each payload, int64; True for octal digits.

    The flag is True for 11 octal digits and a blank or NUL; where it is False, the size means nothing.
    """
    import numpy as np

    sizes, right = parse_octal(_read_numbers(headers, SIZE_OFFSET + 4, "<u8"), 7)  # of 11 digits
    sizes = sizes.view("i8")
    if not (_read_numbers(headers, SIZE_OFFSET, "<u4") == OCTAL_ZEROS >> 32).all():
        digits = headers[:, SIZE_OFFSET : SIZE_OFFSET + 4] - ord("0")  # what is less wraps around
        right &= (digits <= 7).all(axis=1)
        sizes += digits.astype(np.int64) @ (8 ** np.arange(10, 6, -1, dtype=np.int64))
    return sizes, right


def are_plain(headers: Any) -> Any:
    """Return an array of flags for *headers*, rows of 512 uint8: True for a regular file without a prefix of its name.

    False also if the checksum (unsigned) does not match, or is not written as 6 octal digits and a blank or NUL.
    """
    import numpy as np

    stored, valid = parse_octal(_read_numbers(headers, CHKSUM_OFFSET, "<u8"), 6)
    # sums in 16 bits are fastest; those of ASCII headers, at most 512 * 127, fit
    sums = headers.sum(axis=1, dtype=np.uint16 if headers.max(initial=0) < 128 else np.uint32).astype(np.uint64)
    sums -= headers[:, CHKSUM_OFFSET : CHKSUM_OFFSET + 8].sum(axis=1, dtype=np.uint16)
    sums += np.uint64(8 * ord(" "))
    kinds = headers[:, TYPE_OFFSET]
    valid &= sums == stored
    valid &= ((kinds == ord("0")) | (kinds == 0)) & (headers[:, PREFIX_OFFSET] == 0)
    return valid


def parse_octal(words: Any, digits: int) -> tuple[Any, Any]:
    """Return (values, flags) for *words*, uint64 in little-endian order: the octal number that begins each, as uint64.

    *digits*: how many it has, 6 or 7.

    The flag is False, and the value means nothing, if there are other bytes than octal digits, or if neither a blank
    nor a NUL follows them.
    """
    words = words.byteswap()  # the first byte becomes the most significant
    values = (words ^ OCTAL_ZEROS) >> 8 * (8 - digits)
    right = (values & NOT_OCTAL_BITS == 0) & (words >> 8 * (7 - digits) & (0xFF - ord(" ")) == 0)
    values = (values & 0x0007000700070007) + ((values >> 8 & 0x0007000700070007) << 3)  # two digits together, then four
    values = (values & 0x0000003F0000003F) + ((values >> 16 & 0x0000003F0000003F) << 6)
    return (values & 0xFFF) + (values >> 32 << 12), right


def _read_numbers(blocks: Any, at: int, form: str) -> Any:
    """Return an array of the numbers at byte *at* of each of *blocks*, rows of 512 uint8; *form*: dtype, "<u4"."""
    import numpy as np

    return np.ndarray(len(blocks), form, blocks, at, (BLOCK,))
