"""Tables of text whose rows add fields to samples that exist: TSV, CSV and JSON lines."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from tartools.errors import SampleError
from tartools.formats import textrows
from tartools.samples.columnfields import RowFormat, check_keys, check_words, key_column, packed_row
from tartools.samples.encoding import text_payload, unpacked

ROWS = 1000  # of JSON lines that are packed together

PackedRows = tuple[Sequence[bytes], Sequence[bytes]]  # keys, and fields as `PackedFields` packs them


def batches(file: io.BufferedReader, form: str, name: str, rows: RowFormat) -> Iterator[PackedRows]:
    """Yield keys and packed fields of the rows in *file*, which is *form*: tsv, csv or jsonl.

    An empty cell of TSV and CSV is an empty field; in JSON lines, null and what an object lacks are no field.

    Holds: 256 KiB of rows. Raises: SampleError, naming *name*, line and column, for what is no such row.
    """
    if form == "jsonl":
        yield from _objects(file, name, rows)
        return
    line, titles, below = textrows.read_table(file, form, name)
    key_at, columns = _header(titles, name, line, rows)
    numbers = [rows.packed.number(field) for _, field in columns]
    compressed = any(unpacked(field)[1] for _, field in columns)
    places = range(len(columns)) if compressed else [place for place, _ in columns]
    single = rows.packed.single = rows.alone and len(places) == 1
    for lines, cells in below:
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
        fields = [textrows.titled(title) for title in titles]
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


def _objects(file: io.BufferedReader, name: str, rows: RowFormat) -> Iterator[PackedRows]:
    """Yield what `batches` does for JSON lines."""
    columns: dict[tuple[str, ...], tuple[str, list[tuple[str, str]]]] = {}  # of objects with these names
    seen: dict[str, None] = {}
    keys: list[bytes] = []
    values: list[bytes] = []
    for line, found in textrows.objects(file, name):
        try:
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
    if seen:
        check_words(list(seen), rows, name)


def _object_columns(names: tuple[str, ...], rows: RowFormat) -> tuple[str, list[tuple[str, str]]]:
    """Return the name of the key in an object with *names*, and for each name that is taken the field it is for."""
    key_at = key_column(names, rows.key, "")
    found = rows.chosen.of({name: place for place, name in enumerate(names) if place != key_at})
    return names[key_at], [(names[place], field) for place, field in found]
