r"""Samples to the lines of a table, and the lines of a table to rows: TSV, CSV and (out only) JSON lines.

In TSV a tab, newline, carriage return and backslash are `\t \n \r \\`, so that a row is always a line; CSV is
quoted (RFC 4180). What `lines` writes, `read_rows` reads back exactly.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import IO, NamedTuple

from tartools.account import Account
from tartools.errors import SampleError, UsageError
from tartools.sample import Sample
from tartools.streams import Sink
from tartools.values import Column, getter, lookup, parse_column, told

CHUNK = 1 << 16  # bytes that are collected before they are written
ABSENT = object()  # the value of a column of JSON for a sample that has none; None is JSON's null

_SPECIAL = re.compile(r"[\t\n\r\\]")
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\\": "\\\\"})
_UNESCAPES = {"\\" + letter: value for letter, value in (("t", "\t"), ("n", "\n"), ("r", "\r"), ("\\", "\\"))}


class Row(NamedTuple):
    """One row, and the line of the file on which it ends, from 1 on."""

    line: int
    cells: list[str]


def escape(text: str) -> str:
    r"""Return *text* as a TSV cell.

    >>> escape("a\tb\\")
    'a\\tb\\\\'
    """
    return text.translate(_ESCAPES) if _SPECIAL.search(text) else text


def unescape(cell: str) -> str:
    r"""Return what a TSV *cell* stands for; inverse of `escape`.

    Raises: ValueError for a backslash before anything but t, n, r or another one.
    """
    return re.sub(r"\\.?", _unescaped, cell) if "\\" in cell else cell


def _unescaped(found: re.Match[str]) -> str:
    if found[0] not in _UNESCAPES:
        raise ValueError(f"unknown escape {found[0]!r}: there are \\t \\n \\r, and \\\\ for a backslash")
    return _UNESCAPES[found[0]]


def parse_columns(specs: Sequence[str], *, key: bool = True) -> list[Column]:
    """Return the columns of *specs*, words separated by blanks; first the key, if *key* and it is not among them.

    Raises: UsageError for a word that is no column, two columns of one name, or no column at all.
    """
    columns = [parse_column(word) for word in " ".join(specs).split()]
    names = [column.name for column in columns]
    if key and "__key__" not in names:
        columns.insert(0, parse_column("__key__"))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two columns are called {twice!r}; write NEW={twice} for one of them")
    if not columns:
        raise UsageError("a table without a column: name fields with -f, or leave out --nokey")
    return columns


class Layout(NamedTuple):
    """What a table looks like: its columns, its *form* (tsv, csv or jsonl), and what stands for a *missing* value."""

    columns: Sequence[Column]
    form: str = "tsv"
    header: bool = True
    missing: str | None = None
    verbatim: bool = False

    @property
    def names(self) -> list[str]:
        """What the columns are called."""
        return [column.name for column in self.columns]


class Seen(NamedTuple):
    """What samples had: the columns of which none had a value, and as long as there are some, the fields of all."""

    unseen: list[str]
    fields: list[str]


Rows = Generator[bytes, None, Seen]


def rows(samples: Iterable[Sample], layout: Layout, account: Account, most: int | None = None) -> Rows:
    """Yield a line for each of *samples*, in order; return what was seen.

    A value that a sample lacks is the *missing* of *layout*. Values are text, in jsonl those inside JSON fields keep
    their type. After *most* rows no further sample is asked for, and nothing counts as unseen.

    Holds: one sample. Raises: SampleError naming sample and column for a value that is missing (*missing* being
    None) or no UTF-8.
    """
    names, form, missing, verbatim = layout.names, layout.form, layout.missing, layout.verbatim
    unseen = set(names)
    seen: dict[str, None] = {}
    if most == 0:
        return Seen([], [])
    make = line_maker(form, names)
    of = json_getter if form == "jsonl" else getter
    getters = [of(column, verbatim=verbatim) for column in layout.columns]
    nothing = ABSENT if form == "jsonl" else None  # of JSON, None is a value
    for index, sample in enumerate(samples):
        values = [get(sample, index) for get in getters]
        if unseen or nothing in values:
            absent = [name for name, value in zip(names, values, strict=True) if value is nothing]
            if absent and missing is None:
                raise _lacks(sample, absent[0])
            unseen.intersection_update(absent)
            seen.update(dict.fromkeys(sample.fields) if unseen else ())
            values = [missing if value is nothing else value for value in values]
        try:
            line = make(values).encode()
        except UnicodeEncodeError:
            raise _unwritable(sample, names, values) from None
        account.samples_out += 1
        yield line
        if index + 1 == most:  # then nobody can tell what no sample has
            return Seen([], [])
    return Seen([name for name in names if name in unseen], list(seen))


def lines(rows: Iterable[bytes], layout: Layout) -> Iterator[bytes]:
    """Yield the table of *rows*, in parts."""
    if layout.header and layout.form != "jsonl":
        yield line_maker(layout.form, layout.names)(layout.names).encode("utf-8", "replace")
    yield from rows


class Unseen:
    """The columns of *layout* for which no sample had a value so far, and the fields that there were instead."""

    def __init__(self, layout: Layout) -> None:
        self._names = layout.names
        self._left = set(layout.names)
        self._fields: dict[str, None] = {}

    def add(self, seen: tuple[Iterable[str], Iterable[str]]) -> None:
        """Take note of what `rows` returned for a part of the input."""
        if self._left:
            self._left &= set(seen[0])
            self._fields |= dict.fromkeys(seen[1])

    def check(self) -> None:
        """Raise SampleError if there are such columns, and were samples."""
        if self._left and self._fields:
            lost = " ".join(name for name in self._names if name in self._left)
            raise SampleError(f"no sample had a value for {lost}; the fields were: {told(self._fields)}")


def json_getter(column: Column, *, verbatim: bool) -> Callable[[Sample, int], object]:
    """Return the function that gives the value of *column* for a sample as JSON has it; ABSENT for none."""

    def value(sample: Sample, index: int) -> object:
        found = lookup(sample, column, index, verbatim=verbatim)
        return ABSENT if found is None else found[0]

    return value


def _lacks(sample: Sample, name: str) -> SampleError:
    return SampleError(
        f"sample {sample.key!r} has nothing for {name!r}, its fields are: {told(sample.fields)} "
        "(--missing STR writes STR instead)",
        url=sample.shard,
    )


def _unwritable(sample: Sample, names: Sequence[str], values: Sequence[object]) -> SampleError:
    """Return the failure for a value that UTF-8 has no bytes for: odd bytes in a key, half a character in JSON."""
    bad = next((n for n, v in zip(names, values, strict=True) if re.search("[\ud800-\udfff]", str(v))), "?")
    return SampleError(
        f"sample {sample.key!r}: {bad!r} is not valid Unicode, which a table must be"
        + (" (tarcat --rekey gives other keys)" if bad == "__key__" else ""),
        url=sample.shard,
    )


def line_maker(form: str, names: Sequence[str]) -> Callable[[Sequence[object]], str]:
    """Return the function that makes a line of *form* out of the values of the columns *names*."""
    if form == "jsonl":
        import json

        return lambda values: json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n"
    if form == "csv":
        import csv

        return csv.writer(_Echo()).writerow
    tabs = len(names) - 1

    def line(values: Sequence[object]) -> str:
        text = "\t".join(values)  # type: ignore[arg-type]  # getters give text
        if text.count("\t") == tabs and not ("\n" in text or "\\" in text or "\r" in text):
            return text + "\n"
        return "\t".join(escape(str(value)) for value in values) + "\n"

    return line


class _Echo:
    """A file whose `write` gives back what it was given, which makes csv.writer a function."""

    def write(self, text: str, /) -> str:
        return text


def write_lines(parts: Iterable[bytes], sink: Sink) -> None:
    """Write *parts* to *sink*, 64 KiB or more at a time; those before a failure too."""
    pending = bytearray()
    try:
        for part in parts:
            pending += part
            if len(pending) >= CHUNK:
                full, pending = pending, bytearray()
                sink.write(full)
    finally:
        if pending:
            sink.write(pending)


def read_rows(file: IO[bytes], form: str, name: str) -> Iterator[Row]:
    """Yield the rows of a table that *file* holds as *form*, tsv or csv; the header is the first of them.

    Bytes that are not UTF-8 are surrogate escapes. Lines may end as on Windows, and a byte order mark is no cell.
    Empty lines are passed over, unless they are the rows of a TSV of one column.

    Holds: one row. Raises: SampleError naming *name* and the line, for what can't be read as *form* and for rows
    that have not as many cells as the header.
    """
    width = 0
    for row in (csv_rows if form == "csv" else tsv_rows)(file, name):
        if len(row.cells) != width and row.cells in ([], [""]):
            continue
        width = width or len(row.cells)
        if len(row.cells) != width:
            raise SampleError(f"line {row.line}: the header has {width} cells, and this row {len(row.cells)}", url=name)
        yield row


def tsv_rows(file: IO[bytes], name: str) -> Iterator[Row]:
    """Yield the rows of a TSV file; an empty line is a row of one empty cell. As `read_rows`."""
    for number, line in enumerate(text_lines(file, "\n"), 1):
        cells = line.removesuffix("\n").removesuffix("\r").split("\t")  # a return that is meant is escaped
        try:
            yield Row(number, [unescape(cell) for cell in cells])
        except ValueError as error:
            raise SampleError(f"line {number}: {error}", url=name) from None


def csv_rows(file: IO[bytes], name: str) -> Iterator[Row]:
    """Yield the rows of a CSV file; an empty line is a row without cells. As `read_rows`."""
    import csv

    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(text_lines(file, ""), strict=True)
    try:
        for cells in reader:
            yield Row(reader.line_num, cells)
    except csv.Error as error:
        raise SampleError(f"line {reader.line_num}: not CSV: {error}", url=name) from None


def text_lines(file: IO[bytes], newline: str) -> io.TextIOWrapper:
    """Return the text of *file*, a byte order mark left out; what is not UTF-8 is surrogate escapes."""
    return io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline=newline)
