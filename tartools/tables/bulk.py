"""Many samples at once, and where their payloads are: found for all together, from their headers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from tartools.storage.streams import check_input_file
from tartools.tar import BLOCK
from tartools.tar.runs import are_plain, sizes_in

NAME = 100  # bytes
LONGEST = 32  # bytes of the name of a field
DOT, SLASH = ord("."), ord("/")

RoomOf = Callable[[int], memoryview]


@dataclass
class Bulk:
    """Samples with their payloads in *data*, or those of field f in *columns*[f].

    The key of sample n is the first *keys*[n] bytes of *names*[n]. The payload of *fields*[f] is *sizes*[f, n] bytes
    of *data* from *offsets*[f, n] on; the offset is -1 if the sample lacks it. In a sample, offsets are in the order of
    the archive. Names of fields are in lower case. If they are *uniform*, all have all fields, in this order. The shard
    of sample n is *urls*[*shards*[n]]. *whole* are the fields and offsets in the shards, if these are only some fields.
    """

    names: Any
    keys: Any
    fields: list[str]
    offsets: Any
    sizes: Any
    uniform: bool
    data: Any = None
    columns: dict[int, list[bytes]] | None = None
    shards: Any = None
    urls: Any = ()
    whole: tuple[list[str], Any] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def raw_keys(self) -> list[bytes]:
        """Return the keys as bytes."""
        names, width = self.names.tobytes(), self.names.shape[1]
        return [names[at : at + size] for at, size in zip(range(0, len(names), width), self.keys.tolist(), strict=True)]


def in_buffer(data: Any, sizes: Any) -> Bulk | None:
    """Return the samples that *data* is, of *sizes* bytes, one after the other; None if that takes a closer look."""
    import numpy as np

    bounds = np.concatenate(([0], np.cumsum(sizes)))
    if (sizes % BLOCK).any() or len(data) != bounds[-1]:
        return None
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK)
    found = arranged(lambda _, at: blocks[at // BLOCK], bounds[:-1], bounds[1:])
    if found is not None:
        found.data = data
    return found


def in_files(
    files: list[io.FileIO], begins: Any, ends: Any, room_of: RoomOf | None, wanted: Collection[str] | None
) -> Bulk | None:
    """Return the samples in bytes *begins* to *ends* of *files*; None if that takes a closer look.

    Read are their headers, and the payloads of the fields *wanted*, None for all: into `room_of(size)` if it is given,
    else into columns. Raises: StorageError if a file has changed.
    """
    import numpy as np

    places = [file.fileno() for file in files]

    def headers_at(who: Any, at: Any) -> Any:
        data = b"".join(map(os.pread, [places[n] for n in who.tolist()], repeat(BLOCK), at.tolist()))
        return np.frombuffer(data, np.uint8).reshape(-1, BLOCK) if len(data) == BLOCK * len(who) else None

    found = arranged(headers_at, begins, ends)
    if found is None:
        return None
    chosen = [n for n, name in enumerate(found.fields) if wanted is None or name in wanted]
    offsets, sizes = found.offsets[chosen], found.sizes[chosen]
    if room_of is None:
        starts = np.maximum(offsets, 0)
        pairs = zip(chosen, starts.tolist(), sizes.tolist(), strict=True)
        found.columns = {n: list(map(os.pread, places, size, at)) for n, at, size in pairs}
        count = sum(sum(map(len, column)) for column in found.columns.values())
    else:
        order = np.argsort(offsets, axis=0)
        ordered = np.take_along_axis(sizes, order, 0)
        packed = np.empty_like(offsets)
        np.put_along_axis(packed, order, np.cumsum(ordered.T).reshape(ordered.T.shape).T - ordered, 0)
        found.data, count = room_of(int(sizes.sum())), 0
        for starts, lengths, rooms in zip(offsets.tolist(), sizes.tolist(), packed.tolist(), strict=True):
            for place, start, size, at in zip(places, starts, lengths, rooms, strict=True):
                count += os.preadv(place, [found.data[at : at + size]], max(start, 0)) if size else 0
        found.whole = found.fields, found.offsets
        found.fields = [found.fields[n] for n in chosen]
        found.offsets, found.sizes = np.where(offsets < 0, -1, packed), sizes
    for file in set(files):
        check_input_file(file)
    return found if count == sizes.sum() else None


def arranged(headers_at: Callable[[Any, Any], Any], begins: Any, ends: Any) -> Bulk | None:
    """Return the samples from *begins* to *ends*; None if that takes a closer look.

    `headers_at(who, at)` has the headers at these bytes, of samples with the numbers *who*; None if they are not there.
    All headers are checked: checksums, one key in each sample, that members end where the sample does. None does not
    mean that something is wrong: only headers as most programs write them are known here, of short names.
    """
    import numpy as np

    count = len(begins)
    at, who = begins, np.arange(count)
    rounds: list[tuple[Any, Any, Any, Any]] = []  # of the first members, of the second ones, ...
    while len(at):
        headers = headers_at(who, at)
        size = None if headers is None else _sizes_of(headers)
        if size is None:
            return None
        rounds.append((headers, who, at, size))
        at = at + BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
        left = ends[who] - at
        if (left < 0).any():
            return None
        if left.any():
            at, who = at[left > 0], who[left > 0]
        else:
            break
    headers = np.concatenate([one[0] for one in rounds]) if len(rounds) > 1 else rounds[0][0]
    who = np.concatenate([one[1] for one in rounds])
    named = _named(headers[:, :NAME], who, count) if are_plain(headers).all() else None
    if named is None:
        return None
    names, keys, fields = named
    offsets: dict[bytes, Any] = {}
    sizes: dict[bytes, Any] = {}
    uniform, low = True, 0
    for _, who, at, size in rounds:
        texts, codes = _distinct(fields[low : low + len(who)])
        low += len(who)
        uniform = uniform and len(texts) == 1 and len(who) == count
        for code, text in enumerate(texts):
            some = slice(None) if len(texts) == 1 else codes == code
            which = who[some]
            if text not in offsets:
                offsets[text], sizes[text] = np.full(count, -1), np.zeros(count, np.int64)
            elif (offsets[text][which] >= 0).any():
                return None  # twice
            offsets[text][which], sizes[text][which] = at[some] + BLOCK, size[some]
    try:
        known = [text.decode().lower() for text in offsets]
    except UnicodeDecodeError:
        return None
    if len(set(known)) < len(known) or not known or any(name.startswith("__") for name in known):
        return None
    found = np.array([*offsets.values()]), np.array([*sizes.values()])
    return Bulk(np.ascontiguousarray(names[:count]), keys, known, *found, uniform)


def _sizes_of(headers: Any) -> Any:
    """Return the sizes of payloads in *headers*; None unless all have one in octal digits."""
    sizes, right = sizes_in(headers)
    return sizes if right.all() else None


def _named(names: Any, who: Any, count: int) -> tuple[Any, Any, Any] | None:
    """Return the paths *names*, the lengths of keys of the samples, and for each path the field, filled up with zeros.

    They are those of samples *who*; the first *count* are of the first members. None if keys differ from these, or are
    odd.
    """
    import numpy as np

    ends = (names == 0).argmax(axis=1)
    width = int(ends.max()) + 1
    names = names[:, :width]
    lengths = (names[:count] == DOT).argmax(axis=1)
    keys = lengths[who]
    widths = ends - keys - 1
    widest = int(widths.max())
    if widths.min() < 1 or lengths.min() < 1 or widest > LONGEST:
        return None
    rows = np.arange(len(names))
    if (names[rows, keys] != DOT).any() or (names[rows[:count], lengths - 1] == SLASH).any():
        return None
    if len(names) > count:
        others = who[count:]
        inside = np.arange(width) < lengths[:, None]
        if ((names[count:] != names[others]) & inside[others]).any():
            return None
    places = keys[:, None] + np.arange(1, widest + 1)
    fields = np.where(places < ends[:, None], names[rows[:, None], np.minimum(places, width - 1)], 0)
    return None if (fields == SLASH).any() else (names, lengths, fields)


def _distinct(fields: Any) -> tuple[list[bytes], Any]:
    """Return the texts that *fields* are, and which of them each is; None for that if there is one only."""
    import numpy as np

    if (fields == fields[0]).all():
        return [fields[0].tobytes().rstrip(b"\0")], None
    texts, codes = np.unique(np.ascontiguousarray(fields).view(f"S{fields.shape[1]}").ravel(), return_inverse=True)
    return texts.tolist(), codes
