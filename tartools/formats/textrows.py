r"""Rows of text as they are read, by all commands: TSV and CSV with a header, and JSON lines.

In TSV, tab, newline, carriage return and backslash are written as `\t \n \r \\`, so that a row is one line; CSV is
quoted (RFC 4180).
"""

import functools
import io
import marshal
import re
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from tartools.errors import SampleError
from tartools.formats.encodings import encoding_advice, utf16_advice
from tartools.samples.columnfields import (
    RowFormat,
    check_keys,
    check_words,
    key_column,
    keys_of_files,
    name_of_field,
    pack_row,
)
from tartools.samples.encoding import split_codec, text_payload

if TYPE_CHECKING:
    from json import JSONDecoder

ROWS_CHUNK_BYTES = 1 << 18  # bytes of rows that are handed on together, or a row
UTF8_BOM = b"\xef\xbb\xbf"

_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\"})
_UNESCAPES = {b"\\t": b"\t", b"\\n": b"\n", b"\\r": b"\r", b"\\\\": b"\\"}
# names that mean something else than a field, and those that a backslash keeps from it
_HEADER_PREFIXES = {"tsv": r"\\*@", "csv": r"\\*@", "jsonl": r"\\*(@|__)"}


class TextRows(NamedTuple):
    """Adjacent rows of a table of text.

    `lines`: the number of the line on which each row ends, from 1. `cells`: a list of the cells of each row, unescaped.
    `is_utf8`: True if all cells are surely UTF-8; False if some may not be.
    """

    lines: Sequence[int]
    cells: list[list[bytes]]
    is_utf8: bool = True

    def check_text(self, columns: Mapping[int, str], url: str) -> None:
        """Raise SampleError, naming line and column, if a cell of *columns* is not UTF-8; *columns*: title by index."""
        if self.is_utf8:
            return
        for line, row in zip(self.lines, self.cells, strict=True):
            for place, title in columns.items():
                check_utf8(row[place], f"line {line}, column {title}", url)


def check_utf8(text: bytes, place: str, url: str) -> None:
    """Raise SampleError, naming the *place* ("line 3") in *url*, if *text* is not UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text (byte {error.start}); {encoding_advice([text])}"
        raise SampleError(f"{place}: {reason}", url=url) from None


def check_no_utf16(file: io.BufferedReader, url: str) -> None:
    """Raise SampleError, with *url* and advice, if *file* begins as UTF-16 or UTF-32 text. Its position stays."""
    if advice := utf16_advice(file.peek(4)[:4]):
        raise SampleError(advice, url=url)


class Number(str):
    """A number in JSON, NaN or Infinity, as the text with which it is written."""

    __slots__ = ()


def escape(text: str) -> str:
    r"""Return *text* as a TSV cell: tab, newline, carriage return and backslash become \t, \n, \r and \\.

    >>> escape("a\tb\\")
    'a\\tb\\\\'
    """
    return text if text.isprintable() and "\\" not in text else text.translate(_ESCAPES)


def unescape(cell: bytes) -> bytes:
    r"""Return the text of a TSV *cell*; inverse of `escape`.

    Raises: ValueError for a backslash at the end, or before any other character than t, n, r or a backslash.
    """
    return re.sub(rb"\\[^\x80-\xbf]?[\x80-\xbf]*", _unescape_match, cell) if b"\\" in cell else cell


def _unescape_match(match: re.Match[bytes]) -> bytes:
    r"""Return the character for *match*, a backslash and the character behind it: \t, \n, \r or \\.

    Raises: ValueError for any other character, or none.
    """
    if match[0] not in _UNESCAPES:
        escape = match[0].decode("utf-8", "surrogateescape")
        raise ValueError(f"unknown escape {escape!r}; the escapes are \\t \\n \\r, and \\\\ for a backslash")
    return _UNESCAPES[match[0]]


def column_title(field: str, form: str = "tsv") -> str:
    r"""Return the title of the column for *field* in a table of *form*.

    For tarcreate, a column @NAME holds paths of files to read: so the field @NAME is called \@NAME, \@NAME is \\@NAME.
    In JSON lines it is the same with names that begin with two underscores, of which __key__ is the key.

    >>> column_title("@txt"), column_title("txt"), column_title("__key__", "jsonl")
    ('\\@txt', 'txt', '\\__key__')
    """
    return "\\" + field if re.match(_HEADER_PREFIXES[form], field) else field


def parse_title(title: str, form: str = "tsv") -> tuple[str, bool]:
    r"""Return (field, reads) for *title*, of a column: reads is True if its cells are paths of files to read.

    The inverse of `column_title`, for a table of *form*.

    >>> parse_title("@jpg"), parse_title("\\@txt"), parse_title("txt"), parse_title("\\__key__", "jsonl")
    (('jpg', True), ('@txt', False), ('txt', False), ('__key__', False))
    """
    if title.startswith("@"):
        return title[1:], True
    return title[title.startswith("\\") and bool(re.match(_HEADER_PREFIXES[form], title)) :], False


def read_table(
    file: io.BufferedReader, form: str, name: str, noun: str = "table"
) -> tuple[int, list[str], Iterator[TextRows]]:
    r"""Return (line number of the header, its cells, the rows below it) of the table in *file*, of *form* tsv or csv.

    Messages call it *noun*. Lines may end with CR LF, and a byte order mark is ignored. Empty lines are skipped, except
    below the header of a TSV of one column: there each is a row. Cells are bytes; those of the header are text, with
    surrogates for bytes that are not UTF-8.

    Holds: ROWS_CHUNK_BYTES of rows, or a row. Raises: SampleError, naming *name*, for UTF-16 text and a table without a
    header; naming the line, too, for rows that are not *form* or have another number of cells than the header, after
    the rows before them; the errors of reading *file*.

    >>> rows = b"key,txt\n" + b"a,%b\n" % (b"x" * ROWS_CHUNK_BYTES) * 3
    >>> [len(batch.cells) for batch in read_table(io.BufferedReader(io.BytesIO(rows)), "csv", "a.csv")[2]]
    [1, 1, 1]
    """
    check_no_utf16(file, name)
    batches = _check_widths((_read_csv if form == "csv" else _read_tsv)(file, name), form, name)
    first = next(batches, None)
    if first is None:
        raise SampleError(f"the {noun} is empty: a table has a header", url=name)
    header = [cell.decode("utf-8", "surrogateescape") for cell in first.cells[0]]
    below = TextRows(first.lines[1:], first.cells[1:], first.is_utf8)
    return first.lines[0], header, chain([below] if below.cells else [], batches)


def _check_widths(batches: Iterable[TextRows], form: str, name: str) -> Iterator[TextRows]:
    """Yield the rows of *batches*, without empty lines, except below the header of a TSV of one column.

    *form*: "tsv" or "csv"; *name*: of the table. Raises: SampleError for a row with another number of cells than the
    first that is not empty, or if that looks like another format; rows before the bad one are yielded first.
    """
    width = 0
    for batch in batches:
        if {width} == set(map(len, batch.cells)):
            yield batch
            continue
        lines: list[int] = []
        cells: list[list[bytes]] = []
        try:
            for line, row in zip(batch.lines, batch.cells, strict=True):
                if not row or (len(row) != width and row == [b""]):
                    continue
                if not width or len(row) != width:
                    _check_width(row, width or len(row), line, form, name)
                width = len(row)
                lines.append(line)
                cells.append(row)
        finally:  # what comes before a failure goes first
            if cells:
                yield TextRows(lines, cells, batch.is_utf8)


def _check_width(row: Sequence[bytes], width: int, line: int, form: str, name: str) -> None:
    """Raise SampleError if *row* has not *width* cells, or has one cell that looks like several of another format.

    That is a cell with a semicolon in a CSV, with a comma, or a blank inside, in a TSV.

    *line*: its number. *form*: "tsv" or "csv". *name*: of the table.
    """
    only_cell = row[0].strip() if len(row) == 1 and form == "tsv" else b""
    if len(row) != width:
        advice = "; tabs separate the columns, and this line has blanks" if b" " in only_cell else ""
        raise SampleError(f"line {line}: the header has {width} cells, this row has {len(row)}{advice}", url=name)
    if form == "csv" and len(row) == 1 and b";" in row[0]:
        raise SampleError(
            f"line {line}: in a CSV, commas separate the columns; this header has semicolons: save it with commas, or "
            "as a TSV",
            url=name,
        )
    if b" " in only_cell or b"," in only_cell:
        separators = "blanks" if b" " in only_cell else "commas (--format csv reads those)"
        raise SampleError(f"line {line}: in a TSV, tabs separate the columns; this header has {separators}", url=name)


def _read_tsv(file: io.BufferedReader, name: str) -> Iterator[TextRows]:
    """Yield the rows of the TSV in *file*, the header too, unescaped; an empty line is a row of one empty cell.

    Raises: SampleError, naming *name* and line, for a bad escape, after the rows before it.
    """
    first = 1
    while data := file.read(ROWS_CHUNK_BYTES):
        data += file.readline()
        data = data.removeprefix(UTF8_BOM) if first == 1 else data
        is_utf8 = _is_utf8(data)
        lines = data.split(b"\n")
        lines += [last] if (last := lines.pop()) else []  # empty, unless the file ends without a newline
        if b"\r" in data:
            lines = [line.removesuffix(b"\r") for line in lines]  # a CR in a value is escaped
        cells = [line.split(b"\t") for line in lines]
        for number, line in enumerate(lines if b"\\" in data else ()):
            if b"\\" in line:
                try:
                    cells[number] = _unescape_row(cells[number], first + number, name)
                except SampleError:
                    yield TextRows(range(first, first + number), cells[:number], is_utf8)
                    raise
        yield TextRows(range(first, first + len(lines)), cells, is_utf8)
        first += len(lines)


def _is_utf8(data: bytes) -> bool:
    """True if *data* is UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _unescape_row(cells: Sequence[bytes], line: int, name: str) -> list[bytes]:
    """Return *cells*, of a TSV, unescaped. Raises: SampleError, naming *name*, *line* and column, for a bad escape."""
    texts: list[bytes] = []
    try:
        texts.extend(map(unescape, cells))
    except ValueError as error:
        raise SampleError(f"line {line}, column {len(texts) + 1}: {error}", url=name) from None
    return texts


def _read_csv(file: io.BufferedReader, name: str) -> Iterator[TextRows]:
    """Yield the rows of the CSV in *file*, the header too; an empty line is a row without cells.

    Raises: SampleError, naming *name* and line, for text that is no CSV, after the rows before it.
    """
    import csv

    csv.field_size_limit(sys.maxsize)
    text = text_lines(file, "")
    waiting: deque[str] = deque()  # lines that were read together
    is_utf8 = True  # all lines so far

    def text_by_line() -> Iterator[str]:
        """Yield the lines of the file, read ROWS_CHUNK_BYTES at a time; note whether all are UTF-8."""
        nonlocal is_utf8
        while lines_read := text.readlines(ROWS_CHUNK_BYTES):
            is_utf8 = is_utf8 and not _has_surrogates(lines_read)
            waiting.extend(lines_read)
            while waiting:
                yield waiting.popleft()

    # A quoted cell may have newlines, so only `csv` knows where a row ends. A batch ends with the first row that is
    # complete when the lines that were read together are used up.
    reader = csv.reader(text_by_line(), strict=True)
    ended = False
    while not ended:
        lines: list[int] = []
        cells: list[list[bytes]] = []
        ended = True
        try:
            for row in reader:
                lines.append(reader.line_num)
                cells.append([cell.encode("utf-8", "surrogateescape") for cell in row])
                if not waiting:
                    ended = False
                    break
        except csv.Error as error:
            yield TextRows(lines, cells, is_utf8)
            raise SampleError(f"line {reader.line_num}: not CSV: {error}", url=name) from None
        yield TextRows(lines, cells, is_utf8)


def _has_surrogates(lines: Iterable[str]) -> bool:
    """True if one of *lines* has surrogates, which stand for bytes that are not UTF-8."""
    try:
        "".join(line for line in lines if not line.isascii()).encode()
    except UnicodeEncodeError:
        return True
    return False


def text_lines(file: IO[bytes], newline: str) -> io.TextIOWrapper:
    r"""Return *file* as text without a byte order mark; bytes that are not UTF-8 become surrogate escapes.

    *newline*: "\n" if only that ends a line; "" if "\r" and "\r\n" do too. Lines keep their ends. *file* is closed with
    the text, also when that is deleted.
    """
    return io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline=newline)


def read_objects(
    file: Iterable[bytes],
    name: str,
    noun: str = "table",
    *,
    exact: bool = False,
    is_read: Callable[[bytes], object] | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the line, from 1, JSON object) for each line of *file*; empty and blank lines are skipped.

    `is_read(line)`: returns False for a line, as bytes, to skip unparsed; None: parse all.
    *exact*: True to get numbers as they are written, each a `Number`. *noun*: for the file in messages.

    Raises: SampleError, naming *name*, for UTF-16 text and a file without any line; naming the line, too, for one that
    is not a JSON object, or with a name twice in an object; the errors of reading *file*.
    """
    line = 0
    for line, text in enumerate(file, 1):
        if line == 1:
            if advice := utf16_advice(text[:4]):
                raise SampleError(advice, url=name)
            text = text.removeprefix(UTF8_BOM)
        if text.isspace() or not text or (is_read is not None and not is_read(text)):
            continue
        try:
            yield line, parse_object(text, exact=exact)
        except SampleError as error:
            raise SampleError(f"line {line}: {error.message}", url=name) from None
    if not line:
        raise SampleError(f"the {noun} is empty: it has no line", url=name)


def parse_object(text: bytes, *, exact: bool) -> dict[str, Any]:
    """Return the JSON object *text*; if *exact*, with its numbers, at any depth, as `Number`.

    Raises: SampleError if it is not JSON in UTF-8, is nested too deeply, has a number of too many digits (unless
    *exact*), is no object, or if an object in it has a name twice.
    """
    from json import JSONDecodeError

    try:
        value = _decoder(exact).decode(text.decode())
    except UnicodeDecodeError as error:
        reason = f"not UTF-8 text (byte {error.start} of the line); {encoding_advice([text])}"
        raise SampleError(reason) from None
    except JSONDecodeError as error:
        raise SampleError(f"not JSON: {error.msg} (character {error.pos + 1})") from None
    except ValueError as error:  # a number of very many digits
        raise SampleError(f"not JSON: {error}") from None
    except RecursionError:
        raise SampleError("not JSON that can be read: brackets are nested too deeply") from None
    if not isinstance(value, dict):
        raise SampleError("not a JSON object, with a name for each value")
    return value


@functools.cache
def _decoder(exact: bool) -> "JSONDecoder":
    """Return a decoder of JSON, which raises SampleError for a name twice in an object; if *exact*, with `Number`s."""
    from json import JSONDecoder

    number = Number if exact else None
    return JSONDecoder(object_pairs_hook=_make_object, parse_float=number, parse_int=number, parse_constant=number)


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the (name, value) *pairs* of a JSON object as a dict. Raises: SampleError if a name occurs twice."""
    items = dict(pairs)
    if len(items) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise SampleError(f"the name {twice!r} occurs twice in one object")
    return items


# ---- rows that add fields to samples that exist ----


PackedRows = tuple[Sequence[bytes], Sequence[bytes]]  # keys, and fields; see `RowFormat`


def read_packed_rows(file: io.BufferedReader, form: str, name: str, rows: RowFormat) -> Iterator[PackedRows]:
    """Yield (keys, packed fields) of adjacent rows in *file*, which is *form*: tsv, csv or jsonl.

    *rows*: which columns are read, and where keys end that are file names. A row's packed fields are marshalled pairs
    (field, payload); text for a field such as txt.gz is compressed. If all rows are in one TSV or CSV file and have one
    field, they are only its payload, and its name is set as `rows.single` before the first rows. An empty cell of TSV
    and CSV is an empty field; in JSON lines, null and names that an object lacks are no field.
    Holds: ROWS_CHUNK_BYTES of rows, or a row. Raises: SampleError, naming *name*, for a bad header or row, such as one
    with an empty key or a value that is not UTF-8, and for a word without a column; the errors of reading *file*.
    """
    if form == "jsonl":
        yield from _read_packed_objects(file, name, rows)
        return
    line, titles, below = read_table(file, form, name)
    key_at, columns = _choose_header_columns(titles, name, line, rows)
    names = [name_of_field(field) for _, field in columns]
    compressed = any(split_codec(field)[1] for _, field in columns)
    places = range(len(columns)) if compressed else [place for place, _ in columns]
    rows.single = names[0] if rows.is_only_file and len(places) == 1 else None
    texts = {place: titles[place] for place, _ in columns}
    for batch in below:
        lines, cells, _ = batch
        batch.check_text(texts, name)
        keys = [row[key_at] for row in cells]
        try:
            check_keys(keys)
        except SampleError as error:
            raise SampleError(f"line {lines[error.offset or 0]}: {error.message}", url=name) from None
        keys = keys_of_files(keys, rows.dots)
        if compressed:
            cells = [[text_payload(field, row[place]) for place, field in columns] for row in cells]
        if rows.single:
            at = places[0]
            yield keys, [row[at] for row in cells]
        else:
            yield keys, [marshal.dumps(list(zip(names, [row[at] for at in places], strict=True))) for row in cells]


def _choose_header_columns(
    titles: list[str], url: str, line: int, rows: RowFormat
) -> tuple[int, list[tuple[int, str]]]:
    """Return (index of the key column, [(index, field)] of the chosen columns) for the *titles* of a header.

    *rows*: its `key` names the key column (None: `__key__`, else `key`), its `chosen` the columns to take.
    The key column is no field. Raises: SampleError, naming *url* and *line*: no key column, or two; two other columns
    for one field, chosen or not; a word of -f without a column; a chosen column @NAME, which has paths of files, or one
    whose name can't be a field.
    """
    try:
        key_at = key_column(titles, rows.key, "")
        fields = [parse_title(title) for title in titles]
        columns: dict[str, int] = {}
        for place, (field, _) in enumerate(fields):
            if place != key_at and columns.setdefault(field, place) != place:
                raise SampleError(f"two columns are for the field {field!r}")
        check_words(list(columns), rows, "")
        chosen = rows.chosen.choose(columns)
        for place, field in chosen:
            if fields[place][1]:
                raise SampleError(f"the column @{field} has paths of files to read; tarcreate makes samples of these")
            name_of_field(field)
    except SampleError as error:
        raise SampleError(f"line {line}: {error.message}", url=url) from None
    return key_at, chosen


def _read_packed_objects(file: io.BufferedReader, name: str, rows: RowFormat) -> Iterator[PackedRows]:
    """Yield (keys, packed fields) of adjacent JSON objects in *file*: for each object its key, and its fields as bytes.

    *rows*: which values are read, and where keys end that are file names. The bytes are marshalled pairs (field,
    payload); null and names that an object lacks are no field. Text, numbers and booleans are text; lists of numbers
    are .npy files, other lists and objects JSON: their fields get .npy or .json behind their names, unless they end so.
    Holds: ROWS_CHUNK_BYTES, or a row. Raises: SampleError, naming *name* and line, for a bad object, and, after the
    last, for a word that no object has.
    """
    columns: dict[tuple[str, ...], tuple[str, list[tuple[str, str]]]] = {}  # of objects with these names
    titles: dict[str, None] = {}
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    for line, values_by_name in read_objects(file, name):
        try:
            names = tuple(values_by_name)
            if names not in columns:
                titles.update(dict.fromkeys(names))
                key_at = key_column(names, rows.key, "")
                places = {title: place for place, title in enumerate(names) if place != key_at}
                columns[names] = names[key_at], [(names[at], field) for at, field in rows.chosen.choose(places)]
            key_name, chosen = columns[names]
            key, packed = pack_row(values_by_name[key_name], ((f, values_by_name[n]) for n, f in chosen), rows.dots)
        except SampleError as error:
            raise SampleError(f"line {line}: {error.message}", url=name) from None
        keys.append(key)
        values.append(packed)
        size += len(key) + len(packed)
        if size >= ROWS_CHUNK_BYTES:
            yield keys, values
            keys, values, size = [], [], 0
    if keys:
        yield keys, values
    if titles:
        check_words(list(titles), rows, name)
