"""Many samples at once with the offsets of their payloads: headers are parsed for all samples together, by numpy."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, repeat
from typing import Any

from tartools.storage.streams import check_input_file
from tartools.tar import BLOCK
from tartools.tar.keys import Paths
from tartools.tar.runs import are_plain, sizes_in

GetBuffer = Callable[[int], memoryview]

SET_SHIFT = 56  # bits; an offset in a set of shards is shifted by the index of the set to put sets in order
MAX_TEXTS_COMPARED = 8  # distinct texts that are found by comparison; with more of them, sorting all is faster


@dataclass
class Bulk:
    """Samples in columns, with the places of their payloads. f is the index of a field, n the index of a sample.

    `len()` is the number of samples; `payloads(f)` gives the payloads of a field, `part` some of the samples.
    `keys`: of the samples. `urls`: of their shards. `fields`: names, in lower case.
    `offsets[f, n]`: of the payload, in bytes, in its file, or in the buffer that was parsed; -1 for an absent field. Of
        joined samples they tell only the order of the fields.
    `sizes[f, n]`: bytes of the payload; 0 for an absent field, and for one that was not asked for.
    `uniform`: True: all samples have all fields, in this order. False: they may not.
    `columns[f][n]`: the payload, for the fields that were asked for; if `columns` is None, the payload is in `data`
        (bytes, a memoryview or an array of uint8) from `places[f, n]` on.

    `offsets`, `sizes` and `places` are arrays of int64 with a row for each field.
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

    def part(self, selection: slice) -> Bulk:
        """Return the samples in the slice *selection*, as a `Bulk` with the same fields, which shares `data`.

        `places` must be set.
        """
        columns = self.columns and {n: column[selection] for n, column in self.columns.items()}
        arrays = {name: getattr(self, name)[:, selection] for name in ("offsets", "sizes", "places")}
        return replace(self, keys=self.keys[selection], urls=self.urls[selection], columns=columns, **arrays)

    def payloads(self, number: int) -> Iterable[bytes]:
        """Return the payload of the field with index *number* for each sample, as bytes; empty for an absent field.

        Payloads in `data` are copied one by one, when they are asked for: if the caller drops each one, the next takes
        the same memory. A field that was not read gives empty payloads, or KeyError if payloads are in `columns`. The
        result can be iterated once.
        """
        if self.columns is not None:
            return self.columns[number]
        begins = self.places[number]
        spans = map(slice, begins.tolist(), (begins + self.sizes[number]).tolist())
        if isinstance(self.data, bytes):
            return map(self.data.__getitem__, spans)
        return map(bytes, map(memoryview(self.data).__getitem__, spans))


JoinParts = Callable[[Bulk], tuple[Bulk, Any] | None]  # `join_parts` of certain rows


def join_parts(bulk: Bulk, count: int, samples: Any, sets: Any) -> tuple[Bulk, Any] | None:
    """Return (samples, indexes): *bulk*, parts of samples of a joined table, as the *count* samples that they make.

    *bulk*: from `locate_payloads`. Its part n belongs to the sample with the index `samples[n]`, in the set with the
    index `sets[n]`: arrays of integers, *samples* ascending, with each index from 0 to *count* - 1 at least once. The
    result: a `Bulk`, in which `places` are the offsets in the file or buffer of the part, and `offsets` tell only the
    order of the fields; and an array of integers, a row for each of its fields, a column for each sample: the index of
    the part that has the field, 0 for an absent field. None if the parts of a sample have several keys, or a field
    twice.
    """
    import numpy as np

    first_parts = np.searchsorted(samples, np.arange(count))
    keys = [bulk.keys[part] for part in first_parts.tolist()]
    if bulk.keys != [keys[sample] for sample in samples.tolist()]:
        return None
    shape = len(bulk.fields), count
    offsets, sizes, places, indexes = np.full(shape, -1), *np.zeros((3, *shape), np.int64)
    numbers, parts = np.nonzero(bulk.offsets >= 0)  # the field and the part of each payload, in this order
    cells = numbers * count + samples[parts]  # flat indexes of field and sample: ascending, as `samples` are
    if (cells[1:] == cells[:-1]).any():
        return None
    places.flat[cells] = bulk.offsets[numbers, parts]
    offsets.flat[cells] = places.flat[cells] + (sets[parts].astype(np.int64) << SET_SHIFT)
    sizes.flat[cells] = bulk.sizes[numbers, parts]
    indexes.flat[cells] = parts
    order = np.argsort(offsets[:, 0], kind="stable").tolist()
    offsets, sizes, places = offsets[order], sizes[order], places[order]
    uniform = bool((offsets >= 0).all() and (offsets[1:] > offsets[:-1]).all())
    fields = [bulk.fields[number] for number in order]
    return Bulk(keys, fields, offsets, sizes, uniform, places, bulk.data), indexes[order]


def bulk_from_buffer(data: Any, sizes: Any, join: JoinParts | None = None) -> Bulk | None:
    """Return the samples in *data*, one or more, which they fill one after the other; `urls` is left empty.

    *data*: bytes, a memoryview or an array of uint8, which the result holds. *sizes*: bytes of each sample, an array of
    int64. *join*: makes samples of them, if they are parts of samples of a joined table: see `join_parts`. None if they
    have to be read by the full parser: for an unusual or damaged header, a member without a field or with one that
    begins with "__", a sample with several keys or a field twice, or wrong sizes.
    """
    import numpy as np

    bounds = np.concatenate(([0], np.cumsum(sizes)))
    if (sizes % BLOCK).any() or len(data) != bounds[-1]:
        return None
    blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK)
    bulk = locate_payloads(lambda _, at: blocks[at // BLOCK], bounds[:-1], bounds[1:])
    if bulk is not None:
        bulk.data, bulk.places = data, bulk.offsets
        if join is not None:
            joined = join(bulk)
            return None if joined is None else joined[0]
    return bulk


def bulk_from_files(
    files: list[io.FileIO],
    begins: Any,
    ends: Any,
    get_buffer: GetBuffer | None,
    fields: Collection[str] | None,
    join: JoinParts | None,
) -> Bulk | None:
    """Return the samples, one or more, in bytes *begins* to *ends* of *files*: the n-th is in the n-th file.

    *begins*, *ends*: arrays of int64. Reads the headers, and the payloads of *fields*, names in lower case, None for
    all: into the memoryview `get_buffer(size)` if it is given, else into `Bulk.columns`. `urls` is left empty. *join*:
    makes samples of them, if they are parts of samples of a joined table: see `join_parts`. None if they have to be
    read by the full parser: for an unusual or damaged header, a member without a field or with one that begins with
    "__", a sample with several keys or a field twice, or a file that ends too early. *files* are not closed.
    Raises: StorageError if one of *files* is an `InputFile` that has changed, unless None is returned for its headers;
    OSError if the system can't read one.
    """
    import numpy as np

    descriptors = [file.fileno() for file in files]

    def headers_at(numbers: Any, at: Any) -> Any:
        """Return the headers of the samples *numbers* at the offsets *at* of their files: uint8, a row of 512 each.

        *numbers*, *at*: arrays of integers. None if a file ends before.
        """
        data = b"".join(map(os.pread, [descriptors[n] for n in numbers.tolist()], repeat(BLOCK), at.tolist()))
        return np.frombuffer(data, np.uint8).reshape(-1, BLOCK) if len(data) == BLOCK * len(numbers) else None

    bulk = locate_payloads(headers_at, begins, ends)
    if bulk is None:
        return None
    if join is None:
        files_of = [descriptors] * len(bulk.fields)  # for each field, the descriptors for the samples
        starts = np.maximum(bulk.offsets, 0).tolist()
    else:
        joined = join(bulk)
        if joined is None:
            return None
        bulk, indexes = joined
        files_of, starts = np.array(descriptors)[indexes].tolist(), bulk.places.tolist()
    is_chosen = [fields is None or name in fields for name in bulk.fields]
    chosen = list(compress(range(len(is_chosen)), is_chosen))
    bulk.sizes[~np.array(is_chosen)] = 0
    bulk.places = (np.cumsum(bulk.sizes) - bulk.sizes.ravel()).reshape(bulk.sizes.shape)
    sizes, total, count = bulk.sizes.tolist(), int(bulk.sizes.sum()), 0
    if get_buffer is None:
        bulk.columns = {n: _read_payloads(files_of[n], sizes[n], starts[n]) for n in chosen}
        count = sum(sum(map(len, column)) for column in bulk.columns.values())
    else:
        bulk.data = get_buffer(total)
        for n in chosen:
            for descriptor, start, size, at in zip(
                files_of[n], starts[n], sizes[n], bulk.places[n].tolist(), strict=True
            ):
                count += os.preadv(descriptor, [bulk.data[at : at + size]], start) if size else 0
    for file in set(files):
        check_input_file(file)
    return bulk if count == total else None


def _read_payloads(descriptors: Sequence[int], sizes: Sequence[int], starts: Sequence[int]) -> list[bytes]:
    """Return *sizes* bytes of each of the files *descriptors* from the offsets *starts* on; fewer if a file ends.

    A size of 0, of samples without the field too, costs no system call.
    """
    if all(sizes):
        return list(map(os.pread, descriptors, sizes, starts))
    return [
        os.pread(file, size, start) if size else b""
        for file, size, start in zip(descriptors, sizes, starts, strict=True)
    ]


def locate_payloads(headers_at: Callable[[Any, Any], Any], begins: Any, ends: Any) -> Bulk | None:
    """Return keys, offsets and sizes of many samples, by their headers, as a `Bulk`; None if they need the full parser.

    *begins*, *ends*: arrays of int64, the extent of each sample, of which there is at least one.
    `headers_at(numbers, at)` returns the headers of the samples with the indexes *numbers* at the offsets *at*, both
    arrays: uint8, a row of 512 bytes each; None if data is missing. The caller sets `data`, `places` and `columns` of
    the result.

    Checks all headers: checksums, one key in each sample, a field in each path, no field twice (ignoring case), none
    that begins with "__", members that end where the sample does. None does not mean damage: only the headers that most
    programs write, with short names, are parsed here.
    """
    import numpy as np

    count = len(begins)
    at, numbers = begins, np.arange(count)
    rounds: list[tuple[Any, Any, Any, Any]] = []  # of the first members, of the second ones, ...
    while len(at):
        headers = headers_at(numbers, at)
        size = None if headers is None else _sizes_of(headers)
        if size is None:
            return None
        rounds.append((headers, numbers, at, size))
        at = at + BLOCK + (size + BLOCK - 1) // BLOCK * BLOCK
        remaining = ends[numbers] - at
        if (remaining < 0).any():
            return None
        if remaining.any():
            at, numbers = at[remaining > 0], numbers[remaining > 0]
        else:
            break
    headers = np.concatenate([parsed[0] for parsed in rounds]) if len(rounds) > 1 else rounds[0][0]
    numbers = np.concatenate([parsed[1] for parsed in rounds])
    if not are_plain(headers).all():
        return None
    paths = Paths(headers)
    if not (paths.plain & paths.keyed).all() or not paths.share_key(count, numbers[count:]):
        return None
    fields = paths.fields()
    offsets: dict[str, Any] = {}
    sizes: dict[str, Any] = {}
    uniform, low = True, 0
    for _, numbers, at, size in rounds:
        texts, codes = _distinct_texts(fields[low : low + len(numbers)])
        low += len(numbers)
        uniform = uniform and len(texts) == 1 and len(numbers) == count
        for code, text in enumerate(texts):
            selection = slice(None) if len(texts) == 1 else codes == code
            chosen, name = numbers[selection], text.decode("utf-8", "surrogateescape").lower()
            if name not in offsets:
                offsets[name], sizes[name] = np.full(count, -1), np.zeros(count, np.int64)
            elif (offsets[name][chosen] >= 0).any():
                return None  # twice
            offsets[name][chosen], sizes[name][chosen] = at[selection] + BLOCK, size[selection]
    if not offsets or any(name.startswith("__") for name in offsets):
        return None
    arrays = np.array([*offsets.values()]), np.array([*sizes.values()])
    return Bulk(paths.keys(np.arange(count)), [*offsets], *arrays, uniform)


def _sizes_of(headers: Any) -> Any:
    """Return the sizes of payloads in *headers*, an array of int64; None unless all have one in octal digits.

    *headers*: uint8, a row of 512 bytes each.
    """
    sizes, right = sizes_in(headers)
    return sizes if right.all() else None


def _distinct_texts(fields: Any) -> tuple[list[bytes], Any]:
    """Return the distinct texts of *fields*, rows of uint8 padded with NUL, and for each row the index of its text.

    Texts are in the order of their first rows, unless there are more than 8 (MAX_TEXTS_COMPARED), which are sorted. The
    indexes are an array, None for a single text.
    """
    import numpy as np

    texts: list[bytes] = []
    codes, remaining = np.zeros(len(fields), np.int64), np.arange(len(fields))
    while len(remaining):
        text = fields[remaining[0]]
        is_same = (fields[remaining] == text).all(axis=1)
        if not texts and is_same.all():
            return [text.tobytes().rstrip(b"\0")], None
        if len(texts) == MAX_TEXTS_COMPARED:
            padded = np.ascontiguousarray(fields).view(f"S{fields.shape[1]}").ravel()
            sorted_texts, codes = np.unique(padded, return_inverse=True)
            return sorted_texts.tolist(), codes
        codes[remaining[is_same]] = len(texts)
        texts.append(text.tobytes().rstrip(b"\0"))
        remaining = remaining[~is_same]
    return texts, codes
