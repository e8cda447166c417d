"""Many samples at once, and where their payloads are: found for all together, from their headers."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any

from tartools.storage.streams import check_input_file
from tartools.tar import BLOCK
from tartools.tar.keys import Paths
from tartools.tar.runs import are_plain, sizes_in

RoomOf = Callable[[int], memoryview]


@dataclass
class Bulk:
    """Samples with these *keys*, in the shards *urls*, and their payloads, of *fields*, whose names are in lower case.

    In the archive *fields*[f] of sample n is at *offsets*[f, n]; -1 says that it is not there. If they are *uniform*,
    all have all, in this order. A payload is *columns*[f][n], or *sizes*[f, n] bytes of *data* from *places*[f, n] on.
    """

    keys: list[bytes]
    fields: list[str]
    offsets: Any
    sizes: Any
    uniform: bool
    places: Any = None
    data: Any = None
    columns: dict[int, list[bytes]] | None = None
    urls: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.keys)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | ({"data": bytes(self.data)} if isinstance(self.data, memoryview) else {})

    def part(self, some: slice) -> Bulk:
        """Return *some* of these samples."""
        columns = self.columns and {n: column[some] for n, column in self.columns.items()}
        arrays = {name: getattr(self, name)[:, some] for name in ("offsets", "sizes", "places")}
        return replace(self, keys=self.keys[some], urls=self.urls[some], columns=columns, **arrays)

    def payloads(self, number: int) -> Iterable[bytes]:
        """Return the payloads of field *number*, of each sample; what is not there is empty.

        They are copied one by one, so that who drops each sample has the next one in the same memory.
        """
        if self.columns is not None:
            return self.columns[number]
        begins = self.places[number]
        spans = map(slice, begins.tolist(), (begins + self.sizes[number]).tolist())
        if isinstance(self.data, bytes):
            return map(self.data.__getitem__, spans)
        return map(bytes, map(memoryview(self.data).__getitem__, spans))


def in_buffer(data: Any, sizes: Any) -> Bulk | None:
    """Return the samples that *data* is, of *sizes* bytes, one after the other; None if that takes a closer look."""
    import numpy as np

    bounds = np.concatenate(([0], np.cumsum(sizes)))
    if (sizes % BLOCK).any() or len(data) != bounds[-1]:
        return None
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK)
    found = arranged(lambda _, at: blocks[at // BLOCK], bounds[:-1], bounds[1:])
    if found is not None:
        found.data, found.places = data, found.offsets
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
    found.sizes[np.setdiff1d(range(len(found.fields)), chosen)] = 0
    found.places = (np.cumsum(found.sizes) - found.sizes.ravel()).reshape(found.sizes.shape)
    starts, sizes, total, count = np.maximum(found.offsets, 0).tolist(), found.sizes.tolist(), int(found.sizes.sum()), 0
    if room_of is None:
        found.columns = {n: list(map(os.pread, places, sizes[n], starts[n])) for n in chosen}
        count = sum(sum(map(len, column)) for column in found.columns.values())
    else:
        found.data = room_of(total)
        for n in chosen:
            for place, start, size, at in zip(places, starts[n], sizes[n], found.places[n].tolist(), strict=True):
                count += os.preadv(place, [found.data[at : at + size]], start) if size else 0
    for file in set(files):
        check_input_file(file)
    return found if count == total else None


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
    if not are_plain(headers).all():
        return None
    paths = Paths(headers)
    if not (paths.plain & paths.keyed).all() or not paths.share_key(count, who[count:]):
        return None
    fields = paths.fields()
    offsets: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    uniform, low = True, 0
    for _, who, at, size in rounds:
        texts, codes = _distinct(fields[low : low + len(who)])
        low += len(who)
        uniform = uniform and len(texts) == 1 and len(who) == count
        for code, text in enumerate(texts):
            some = slice(None) if len(texts) == 1 else codes == code
            which, name = who[some], text.decode("utf-8", "surrogateescape").lower()
            if name not in offsets:
                offsets[name], sizes[name] = np.full(count, -1), np.zeros(count, np.int64)
            elif (offsets[name][which] >= 0).any():
                return None  # twice
            offsets[name][which], sizes[name][which] = at[some] + BLOCK, size[some]
    if not offsets or any(name.startswith("__") for name in offsets):
        return None
    found = np.array([*offsets.values()]), np.array([*sizes.values()])
    return Bulk(paths.keys(np.arange(count)), [*offsets], *found, uniform)


def _sizes_of(headers: Any) -> Any:
    """Return the sizes of payloads in *headers*; None unless all have one in octal digits."""
    sizes, right = sizes_in(headers)
    return sizes if right.all() else None


def _distinct(fields: Any) -> tuple[list[bytes], Any]:
    """Return the texts that *fields* are, and which of them each is; None for that if there is one only."""
    import numpy as np

    if (fields == fields[0]).all():
        return [fields[0].tobytes().rstrip(b"\0")], None
    texts, codes = np.unique(np.ascontiguousarray(fields).view(f"S{fields.shape[1]}").ravel(), return_inverse=True)
    return texts.tolist(), codes
