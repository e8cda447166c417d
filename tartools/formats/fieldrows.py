"""Tables of text whose rows add fields to samples that exist: TSV, CSV and JSON lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from tartools.errors import SampleError
from tartools.formats import tsv
from tartools.samples.encoding import text_payload, unpacked
from tartools.samples.payloads import RowFormat, check_keys, check_words, key_column, packed_row

CHUNK = 1 << 20  # bytes of a TSV that are split together
ROWS = 1000  # of a CSV or of JSON lines that are packed together
BOM = b"\xef\xbb\xbf"

Cells = list[list[bytes]]
Rows = tuple[Sequence[int], Cells]  # the numbers of the lines on which they end, and the rows


Batch = tuple[Sequence[bytes], Sequence[bytes]]  # keys of adjacent rows, and their fields as `PackedFields` packs them


def batches(file: io.BufferedReader, form: str, name: str, rows: RowFormat) -> Iterator[Batch]:
    """Yield keys and packed fields of the rows in *file*, which is *form*: tsv, csv or jsonl.

    An empty cell of TSV and CSV is an empty field; in JSON lines, null and what an object lacks are no field.

    Holds: 1 MiB of rows. Raises: SampleError, naming *name*, line and column, for what is no such row.
    """
    if form == "jsonl":
        yield from _objects(file, name, rows)
        return
    found = _tsv(file, name) if form == "tsv" else _csv(file, name)
    lines, header = next(found, ((1,), []))
    if not header:
        raise SampleError("the table is empty: it has no header", url=name)
    titles = [cell.decode("utf-8", "surrogateescape") for cell in header[0]]
    key_at, columns = _header(titles, name, lines[0], rows)
    numbers = [rows.packed.number(field) for _, field in columns]
    compressed = any(unpacked(field)[1] for _, field in columns)
    places = range(len(columns)) if compressed else [place for place, _ in columns]
    single = rows.packed.single = rows.alone and len(places) == 1
    for lines, cells in found:
        keys = [row[key_at] for row in cells]
        try:
            check_keys(keys)
        except SampleError as error:
            raise SampleError(f"line {lines[error.offset or 0]}: {error.message}", url=name) from None
        if compressed:
            cells = [[text_payload(field, row[place]) for place, field in columns] for row in cells]
        if single:
            at = places[0]
            yield keys, [row[at] for row in cells]
        else:
            pack = rows.packed.pack
            yield keys, [pack(zip(numbers, [row[at] for at in places], strict=True)) for row in cells]


def _header(titles: list[str], url: str, line: int, rows: RowFormat) -> tuple[int, list[tuple[int, str]]]:
    """Return which column has the keys, and which columns are for which fields. Raises: SampleError."""
    try:
        key_at = key_column(titles, rows.key, "")
        fields = [tsv.titled(title) for title in titles]
        columns: dict[str, int] = {}
        for place, (field, _) in enumerate(fields):
            if place != key_at and columns.setdefault(field, place) != place:
                raise SampleError(f"two columns are for the field {field!r}")
        check_words(list(columns), rows, "")
        found = rows.chosen.of(columns)
        for place, field in found:
            if fields[place][1]:
                raise SampleError(f"the column @{field} has paths of files to read; tarcreate makes samples of these")
            rows.packed.number(field)
    except SampleError as error:
        raise SampleError(f"line {line}: {error.message}", url=url) from None
    return key_at, found


def _tsv(file: io.BufferedReader, name: str) -> Iterator[Rows]:
    """Yield rows of a TSV: the header alone, then many together."""
    header = file.readline().removeprefix(BOM)
    line = 1
    while header in (b"\n", b"\r\n"):
        header, line = file.readline(), line + 1
    if not header:
        return
    cells = _cells(header, name, line)
    next(tsv.read_rows(io.BytesIO(header), "tsv", name))  # says what is wrong with a header without tabs
    width = len(cells)
    yield (line,), [cells]
    line += 1
    while chunk := file.read(CHUNK):
        chunk += file.readline()
        lines = chunk.split(b"\n")
        last = lines.pop()  # empty, unless the file ends without a newline
        lines += [last] if last else []
        rows: Cells = [each.split(b"\t") for each in lines]
        numbers: Sequence[int] = range(line, line + len(lines))
        if b"\\" in chunk or b"\r" in chunk or set(map(len, rows)) != {width}:
            rows = []
            kept: list[int] = []
            numbers = kept
            for number, each in enumerate(lines, line):
                found = _cells(each, name, number)
                if found == [b""] and width > 1:
                    continue
                if len(found) != width:
                    what = f"the header has {width} cells, this row has {len(found)}"
                    raise SampleError(f"line {number}: {what}", url=name)
                rows.append(found)
                kept.append(number)
        if rows:
            yield numbers, rows
        line += len(lines)


def _cells(line: bytes, name: str, number: int) -> list[bytes]:
    """Return the cells of *line* number *number*, unescaped. Raises: SampleError."""
    cells = line.removesuffix(b"\n").removesuffix(b"\r").split(b"\t")
    if b"\\" in line:
        for at, cell in enumerate(cells):
            try:
                cells[at] = tsv.unescape(cell.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
            except ValueError as error:
                raise SampleError(f"line {number}, column {at + 1}: {error}", url=name) from None
    return cells


def _csv(file: io.BufferedReader, name: str) -> Iterator[Rows]:
    """Yield rows of a CSV, as `_tsv`."""
    rows = tsv.read_rows(file, "csv", name)
    most = 1
    while several := list(islice(rows, most)):
        yield (
            [row.line for row in several],
            [[cell.encode("utf-8", "surrogateescape") for cell in row.cells] for row in several],
        )
        most = ROWS


def _objects(file: io.BufferedReader, name: str, rows: RowFormat) -> Iterator[Batch]:
    """Yield what `batches` does for JSON lines."""
    columns: dict[tuple[str, ...], tuple[str, list[tuple[str, str]]]] = {}  # of objects with these names
    seen: dict[str, None] = {}
    keys: list[bytes] = []
    values: list[bytes] = []
    line = 0
    for line, text in enumerate(file, 1):
        if line == 1:
            text = text.removeprefix(BOM)
        if text.isspace():
            continue
        try:
            found = _object(text)
            names = tuple(found)
            if names not in columns:
                seen.update(dict.fromkeys(names))
                columns[names] = _object_columns(names, rows)
            key_name, chosen = columns[names]
            key, packed = packed_row(found[key_name], ((f, found[n]) for n, f in chosen), rows.packed)
        except SampleError as error:
            raise SampleError(f"line {line}: {error.message}", url=name) from None
        keys.append(key)
        values.append(packed)
        if len(keys) == ROWS:
            yield keys, values
            keys, values = [], []
    if keys:
        yield keys, values
    if line == 0:
        raise SampleError("the table is empty: it has no line", url=name)
    if seen:
        check_words(list(seen), rows, name)


def _object(text: bytes) -> dict[str, Any]:
    import json

    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SampleError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise SampleError("not a JSON object, with a name for each value")
    return found


def _object_columns(names: tuple[str, ...], rows: RowFormat) -> tuple[str, list[tuple[str, str]]]:
    """Return the name of the key in an object with *names*, and for each name that is taken the field it is for."""
    key_at = key_column(names, rows.key, "")
    found = rows.chosen.of({name: place for place, name in enumerate(names) if place != key_at})
    return names[key_at], [(names[place], field) for place, field in found]
