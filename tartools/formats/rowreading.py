"""Rows of tables about files: CSV, TSV, JSON lines, Parquet, and pictures of a COCO file, each as values by column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tartools.errors import SampleError, UsageError
from tartools.formats import packed
from tartools.formats.encodings import read_as_utf8
from tartools.formats.parquetread import FILE_KIND, column_buffer_bytes, plain_field_values, read_small_batches
from tartools.formats.textrows import Number, read_objects, read_table
from tartools.storage import seekable
from tartools.storage.url import Url
from tartools.tables.source import open_parquet
from tartools.tar.compression import split_packed

ROW_SUFFIXES = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "ndjson": "jsonl", "parquet": "parquet", "pq": "parquet"}
NUMBER_CELL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?").fullmatch


class JsonText(Number):
    """A list or object in JSON, as the text with which it is written; `jsonl.compact_json` returns that text."""

    __slots__ = ()


class Row(NamedTuple):
    """A row of a table.

    `place`: in its file, for messages: "line 3", "row 3" or "image 3". `values`: by column; columns without a value are
    absent.
    """

    place: str
    values: dict[str, Any]


def read_rows(url: str, encoding: str | None = None) -> list[Row]:
    """Return the rows of the table *url*, whose suffix is its format: csv, tsv, jsonl (ndjson) or parquet (pq).

    A suffix such as .gz may follow, unless it is Parquet. In CSV and TSV all values are text; an empty cell is "". In
    JSON lines, a number is a `Number`, a list or object a `JsonText`. In Parquet, values are bytes, text (dates and
    times too), numbers, booleans, lists, objects, and lists of `FileInList`. Null is no value. *encoding*: of CSV, TSV
    and JSON lines; None: UTF-8. A table with a header only, or a Parquet file without rows, has no rows: [].

    Holds: all rows. Raises: UsageError for another suffix; SampleError for a row that can't be read, naming its line or
    number, for two columns of one name, and for a text file without a line; TarFormatError for a damaged file;
    StorageError.
    """
    form = _table_format(url)
    if form is None:
        raise UsageError("the format of a table of rows is its suffix: .csv, .tsv, .jsonl or .parquet", url=url)
    if form == "parquet":
        return list(_parquet_rows(url))
    with packed.open_packed(url) as file:
        text = read_as_utf8(file, encoding, url)
        if form == "jsonl":
            return list(_json_rows(text, url))
        _, titles, below = read_table(text, form, url)
        if twice := next((title for title in titles if titles.count(title) > 1), None):
            raise SampleError(f"two columns are called {twice!r}", url=url)
        rows = []
        for batch in below:
            batch.check_text(dict(enumerate(titles)), url)
            for line, cells in zip(batch.lines, batch.cells, strict=True):
                rows.append(Row(f"line {line}", dict(zip(titles, map(bytes.decode, cells), strict=True))))
        return rows


def _json_rows(file: Iterable[bytes], url: str) -> Iterator[Row]:
    """Yield the rows of the JSON lines in *file*, called *url*; null is no value, a list or object is a `JsonText`.

    A number is a `Number`; text, true and false are str and bool. Blank lines are skipped.
    Raises: SampleError, naming the line, for a line that is no JSON object, or has a name twice in one object; for a
    file without a line; the errors of reading *file*.
    """
    text = b""

    def lines() -> Iterator[bytes]:
        """Yield the lines of the file; the last one yielded is in `text`."""
        nonlocal text
        for text in file:  # noqa: UP028  # a `yield from` would not set `text`
            yield text

    for line, values in read_objects(lines(), url, exact=True):
        if any(isinstance(value, (list, dict)) for value in values.values()):
            texts = texts_of_values(text.decode("utf-8-sig"))
            values = {
                name: JsonText(texts[name]) if isinstance(value, (list, dict)) else value
                for name, value in values.items()
            }
        yield Row(f"line {line}", {name: value for name, value in values.items() if value is not None})


def texts_of_values(line: str) -> dict[str, str]:
    """Return the JSON of each value in the valid JSON object *line*, as it is written, by name.

    >>> texts_of_values('{"a": [1.50,  2], "b": {} }')
    {'a': '[1.50,  2]', 'b': '{}'}
    """
    decoder, blank = json.JSONDecoder(), re.compile(r"[ \t\n\r]*")
    texts: dict[str, str] = {}
    at = line.index("{") + 1
    while (at := blank.match(line, at).end()) < len(line) and line[at] != "}":  # type: ignore[union-attr]
        name, at = decoder.raw_decode(line, at)
        begin = blank.match(line, line.index(":", at) + 1).end()  # type: ignore[union-attr]
        _, at = decoder.raw_decode(line, begin)
        texts[name] = line[begin:at]
        at = blank.match(line, at).end()  # type: ignore[union-attr]
        at += line[at] == ","
    return texts


def _parquet_rows(url: str) -> Iterator[Row]:
    """Yield the rows of the Parquet file *url*; null, and an empty list of pictures, sounds or bytes, is no value.

    Pictures and sounds are bytes, other values as `plain_field_values` returns them. Raises: SampleError for a value
    that can't be read, such as a picture that is only a path, and for two columns of one name; TarFormatError for a
    damaged file; StorageError.
    """
    with open_parquet(url, seekable.open_seekable(url), FILE_KIND, column_buffer_bytes(url)) as table:
        table.check_names()
        if twice := next((name for name in table.names if table.names.count(name) > 1), None):
            raise SampleError(f"two columns are called {twice!r}", url=url)
        first = 1
        for batch in read_small_batches(table, table.names):
            names = batch.schema.names
            columns = [plain_field_values(batch.column(at), name, url, first) for at, name in enumerate(names)]
            for number in range(len(batch)):
                values = {name: column[number] for name, column in zip(names, columns, strict=True)}
                values = {name: value for name, value in values.items() if value is not None}
                yield Row(f"row {first + number}", values)
            first += len(batch)


def is_text_table(url: str) -> bool:
    """True if all values in the table *url* are text: a CSV or TSV, by its suffix (x.csv, x.tsv.gz)."""
    return _table_format(url) in ("csv", "tsv")


def _table_format(url: str) -> str | None:
    """Return "csv", "tsv", "jsonl" or "parquet", by the suffix of *url*, before one such as .gz; None for any other.

    The suffixes ndjson (jsonl) and pq (parquet), and upper case, count too.
    """
    return ROW_SUFFIXES.get(split_packed(Url(url).name)[0].rpartition(".")[2].lower())


def convert_number_cells(rows: Sequence[Row], names: Sequence[str]) -> None:
    """Replace the text cells of each column in *names* by a `Number` in *rows*, if all its cells are JSON numbers.

    Empty cells don't count, and are removed from such a column. A column with another cell, or with empty cells only,
    stays as it is, so a column is of one type in all rows. *rows*: of a CSV or TSV.
    """
    for name in names:
        cells = [row.values[name] for row in rows if row.values.get(name)]
        if cells and all(type(cell) is str and NUMBER_CELL(cell) for cell in cells):
            for row in rows:
                if cell := row.values.pop(name, ""):
                    row.values[name] = Number(cell)


# ---- COCO ----


def read_coco(url: str) -> list[Row]:
    """Return a row for each picture of the COCO file *url*, with the values `file_name` and `json`.

    `json` is the object of the picture, as a dict, with the list `annotations` of its annotations, [] if it has none,
    each as `_name_categories` returns it. The `place` of a row is "image ID". The file may be compressed.

    Holds: the whole file, some six times its size. Raises: SampleError if it is no JSON, no COCO file, has an
    annotation of no picture, two pictures of one id, or a `category_id` that no category has; TarFormatError if
    compressed data are damaged; StorageError.
    """
    from tartools.samples.payloads import parse_json

    with packed.open_packed(url) as file:
        data = file.read()
    try:
        content = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise SampleError(f"not JSON: {error}", url=url) from None
    del data
    pictures = content.get("images") if isinstance(content, dict) else None
    if not isinstance(pictures, list):
        raise SampleError('not a COCO file: it has no list "images"', url=url)
    categories = {item["id"]: item["name"] for item in _objects_in(content, "categories", ("id", "name"), url)}
    annotations: dict[Any, list[dict[str, Any]]] = {}
    for item in _objects_in(content, "annotations", ("image_id",), url):
        annotations.setdefault(item["image_id"], []).append(_name_categories(item, categories, url))
    rows: list[Row] = []
    ids: set[Any] = set()
    for picture in _objects_in(content, "images", ("id", "file_name"), url):
        if picture["id"] in ids:
            raise SampleError(f"two images have the id {picture['id']}: whose are its annotations?", url=url)
        ids.add(picture["id"])
        described = {**picture, "annotations": annotations.pop(picture["id"], [])}
        rows.append(Row(f"image {picture['id']}", {"file_name": picture["file_name"], "json": described}))
    if annotations:
        strays = sum(map(len, annotations.values()))
        raise SampleError(
            f"{strays:,} annotations are of no picture (the first: image {next(iter(annotations))})", url=url
        )
    return rows


def _objects_in(content: dict[str, Any], name: str, required: Sequence[str], url: str) -> Iterator[dict[str, Any]]:
    """Yield the objects in the list *name* of *content*, the file *url*; none if *content* lacks the name.

    Raises: SampleError if the value is no list, or an item of it is no object with text or a whole number for each of
    the *required* names.
    """
    items = content.get(name, [])
    if not isinstance(items, list):
        raise SampleError(f"not a COCO file: {name!r} is not a list", url=url)
    for number, item in enumerate(items):
        for key in required:
            if not isinstance(item, dict) or not isinstance(item.get(key), (str, int)):
                raise SampleError(f"not a COCO file: item {number} of {name!r} has no {key!r}", url=url)
        yield item


def _name_categories(annotation: dict[str, Any], categories: dict[Any, str], url: str) -> dict[str, Any]:
    """Return a copy of *annotation* without `image_id`, and with `category`, the name of its category, if it has one.

    It has a category if it has `category_id`, which stays. The objects in the list `segments_info`, of panoptic files,
    are changed in the same way. *categories*: id -> name.

    Raises: SampleError, naming the file *url*, for a `category_id` that is not in *categories*, and for a segment that
    is no object.
    """
    result = {name: value for name, value in annotation.items() if name != "image_id"}
    if "category_id" in result:
        category = result["category_id"]
        if not isinstance(category, (str, int)) or category not in categories:
            raise SampleError(f"no category has the id {json.dumps(category)[:60]}, which an annotation names", url=url)
        result["category"] = categories[category]
    if isinstance(segments := result.get("segments_info"), list):  # of panoptic files
        if not all(isinstance(segment, dict) for segment in segments):
            raise SampleError("not a COCO file: an item of 'segments_info' is no object", url=url)
        result["segments_info"] = [_name_categories(segment, categories, url) for segment in segments]
    return result
