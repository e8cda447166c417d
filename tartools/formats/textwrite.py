"""Samples as tables of text: TSV, CSV or JSON lines, which `textrows` reads back."""

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from types import SimpleNamespace
from typing import Any, NamedTuple

from tartools import storage
from tartools.errors import SampleError, TarToolsError, UsageError
from tartools.formats.textrows import column_title, escape
from tartools.samples.account import MAX_KEYS_REMEMBERED, SORT_HINT, Account
from tartools.samples.batch import Batch, SampleColumns
from tartools.samples.encoding import split_codec
from tartools.samples.fieldcolumns import merge_in_order
from tartools.samples.sample import Sample, failure_of
from tartools.samples.values import (
    PSEUDO_FIELDS,
    Column,
    comma_advice,
    field_list,
    make_getter,
    missing_value_text,
    parse_column,
    path_advice,
)
from tartools.tables.listed import (
    ABSENT_VALUE,
    column_answers,
    first_answer,
    make_json_getter,
    values_in_columns,
)

FILL_HINT = "(--fill STR writes STR instead)"


def parse_columns(specs: Sequence[str], *, key: bool = True) -> list[Column]:
    """Return the columns that *specs* describe: texts of words for `parse_column`, separated by blanks.

    A word is a field, jpg;png for the first of several, new=old, or json:size.0 for a value in JSON. With *key*,
    `__key__` is put first unless a word names it. Raises: UsageError for a word that is no column, for two columns with
    one name, and, without *key*, for no word at all.
    """
    columns = [parse_column(word) for word in " ".join(specs).split()]
    names = [column.name for column in columns]
    if key and "__key__" not in names:
        columns.insert(0, parse_column("__key__"))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two columns are called {twice!r}; write NEW={twice} for one of them")
    if not columns:
        raise UsageError("a table without a column: name fields with -f, or leave out --no-key")
    return columns


class TableFormat(NamedTuple):
    """The format of a table of text.

    `columns`: to write. `form`: "tsv", "csv" or "jsonl". `header`: True for a line with the names, unless it is jsonl.
    `missing`: text for a value that a sample lacks; None: that is an error.
    `verbatim`: True if names of fields are compared with case, and a final newline is kept.
    """

    columns: Sequence[Column]
    form: str = "tsv"
    header: bool = True
    missing: str | None = None
    verbatim: bool = False

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return [column.name for column in self.columns]


class EmptyColumns(NamedTuple):
    """The result of writing a part of a table.

    `unseen`: names of the columns for which no sample had a value. `fields`: fields of the samples that were written
    while a column had no value yet, for the message.
    """

    unseen: list[str]
    fields: list[str]


TableLines = Generator[bytes, None, EmptyColumns]


def make_lines(
    batches: Iterable[Batch], table: TableFormat, account: Account, max_rows: int | None = None
) -> TableLines:
    """Yield lines of the form of *table*, one for each sample of *batches*; return the columns that stayed empty.

    The generator returns these as `EmptyColumns`. There is no header: `add_header` adds it. The lines of a batch may
    come together, as one item. Samples are counted in *account* as read and written. A value that a sample lacks is
    written as `missing` of *table*. Values are text; in jsonl, values inside JSON fields and in columns of tables keep
    their type, and `__index__` and `__size__` are numbers. After *max_rows* rows reading stops; None: after all. With
    0, nothing is read, and no column counts as empty.

    Holds: one batch. Raises: SampleError, naming the column, for a value that is not UTF-8, is not JSON but should be,
    is there twice, or is missing if `missing` is None; the errors of reading *batches*.
    """
    names, form, missing = table.names, table.form, table.missing
    unseen = set(names)
    fields: dict[str, None] = {}
    if max_rows == 0:
        return EmptyColumns([], [])
    make = make_line_maker(form, names)
    nothing = ABSENT_VALUE if form == "jsonl" else None  # in JSON, None is a value
    join = None
    if form == "tsv" and max_rows is None:
        join = partial(join_tsv_lines, columns=table.columns, verbatim=table.verbatim)
    values = values_of_samples(batches, table.columns, form == "jsonl", table.verbatim, account, join)
    for index, (cells, sample) in enumerate(values):
        if isinstance(sample, Batch):  # its samples have all values
            unseen.clear()
            account.samples_out += len(sample)
            yield cells
            continue
        if unseen or nothing in cells:
            absent = [name for name, value in zip(names, cells, strict=True) if value is nothing]
            if absent and missing is None:
                if isinstance(sample, ListedRow):
                    raise sample.missing_error(absent[0])
                raise _missing_value_error(sample, absent[0], _key_returns_later(sample, values, account))
            unseen.intersection_update(absent)
            fields.update(dict.fromkeys(sample.fields) if unseen else ())
            cells = [missing if value is nothing else value for value in cells]
        try:
            line = make(cells).encode()
        except UnicodeEncodeError:
            raise _bad_unicode_error(sample, names, cells) from None
        account.samples_out += 1
        yield line
        if index + 1 == max_rows:
            break
    return EmptyColumns([name for name in names if name in unseen], list(fields))


def join_tsv_lines(batch: Batch, columns: Sequence[Column], verbatim: bool) -> bytes | None:
    """Return the TSV lines of all samples of *batch* at once; None if they have to be made one by one.

    None unless each of *columns* is `__key__` or a field, by its first name, that each sample has exactly once and that
    is not compressed, and all values are UTF-8 text in which nothing is escaped. *verbatim*: True if the final newline
    of a payload is part of the value, which has to be escaped then. Raises: the errors of reading payloads.
    """
    combinations = batch.combinations()
    cells: list[Sequence[bytes | bytearray]] = []
    for column in columns:
        if column.choices == ("__key__",):
            cells.append(batch.keys)
            continue
        name = column.choices[0]
        is_packed = split_codec(name)[1] is not None
        if (
            column.path
            or is_packed
            or name in PSEUDO_FIELDS
            or any(same.fields.count(name) != 1 for same in combinations)
        ):
            return None
        payloads = merge_in_order(
            [same.columns[same.fields.index(name)].payloads() for same in combinations], combinations
        )
        cells.append(payloads if verbatim else [payload.removesuffix(b"\n") for payload in payloads])
    # All cells are joined unescaped. If there are more tabs or newlines then than separators, a value has one, and has
    # to be escaped: to count them takes far less time than to look at each value.
    lines = b"\n".join(map(b"\t".join, zip(*cells, strict=True))) + b"\n"
    tabs = (len(cells) - 1) * len(batch)
    if lines.count(b"\n") != len(batch) or lines.count(b"\t") != tabs or b"\\" in lines or b"\r" in lines:
        return None
    try:
        lines.decode()
    except UnicodeDecodeError:
        return None
    return lines


def add_header(rows: Iterable[bytes], table: TableFormat) -> Iterator[bytes]:
    r"""Yield the header of *table*, if it has one, then *rows*, its other lines, unchanged.

    The header has the names as `column_title` writes them (\@txt), with ? in place of lone surrogates, and ends with a
    newline.
    """
    if table.header and table.form != "jsonl":
        yield make_line_maker(table.form, table.names)([column_title(name) for name in table.names]).encode(
            "utf-8", "replace"
        )
    yield from rows


def check_columns(table: TableFormat, parts: Sequence[EmptyColumns]) -> None:
    """Raise SampleError if a column of *table* is empty in all *parts*, which `make_lines` returned for the input.

    Nothing is raised if they have no samples, or samples of tables that list no field or column.
    """
    fields = dict.fromkeys(chain.from_iterable(part.fields for part in parts))
    lost = " ".join(name for name in table.names if all(name in part.unseen for part in parts))
    if lost and fields:
        advice = comma_advice(lost) + path_advice(lost, fields)
        raise SampleError(f"no sample had a value for {lost}{advice}; the fields were: {field_list(fields)}")


def _key_returns_later(
    sample: Sample, following: "Iterable[tuple[object, Sample | ListedRow | Batch]]", account: Account
) -> bool:
    """True if another sample with the key of *sample* is found in the same shard, further on.

    *following*: an iterator of the values and samples that come next. If the shard is a plain file, up to
    MAX_KEYS_REMEMBERED of them are taken from it to find that out, until one can't be read; from other sources, which
    could take any time, none is. Keys in `account.returning_keys` need no read.
    """
    if account.returning_keys.get(sample.raw_key) == sample.shard:
        return True
    if storage.plain_size(sample.shard) is None:
        return False
    try:
        batches = (later if isinstance(later, Batch) else [later] for _, later in following)
        for later in islice(chain.from_iterable(batches), MAX_KEYS_REMEMBERED):
            if later.shard != sample.shard or later.key == sample.key:
                return later.shard == sample.shard
    except TarToolsError:  # the missing value is what is reported
        pass
    return False


def _missing_value_error(sample: Sample, name: str, returns_later: bool) -> SampleError:
    """Return the error that *sample* has no value *name*; *returns_later*: its key returns later, which may be why."""
    advice = (
        f"; other members of this key are elsewhere in the shard: {SORT_HINT}" if returns_later else f" {FILL_HINT}"
    )
    return failure_of(sample, f" has no value for {name!r}{missing_value_text(name, sample.fields)}{advice}")


def _bad_unicode_error(sample: "Sample | ListedRow", names: Sequence[str], values: Sequence[object]) -> SampleError:
    """Return the error for a value of *sample* that UTF-8 cannot encode: bytes of a key, a lone surrogate in JSON.

    *values*: those of the columns *names*, one of which is the bad one.
    """
    bad = next((n for n, v in zip(names, values, strict=True) if re.search("[\ud800-\udfff]", str(v))), "?")
    return SampleError(
        f"sample {sample.key!r}: {bad!r} is not valid Unicode, so a table cannot hold it"
        + (" (tarcat --rekey gives other keys)" if bad == "__key__" else ""),
        url=sample.shard,
    )


def make_line_maker(form: str, names: Sequence[str]) -> Callable[[Sequence[object]], str]:
    r"""Return a function: values of the columns *names*, in order -> a line of *form*, with its newline (CSV: "\r\n").

    *form*: "tsv" or "csv", where values are text, escaped or quoted where they need it, or "jsonl", where they are JSON
    values.
    """
    if form == "jsonl":
        import json

        return lambda values: json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False) + "\n"
    if form == "csv":
        import csv

        return csv.writer(SimpleNamespace(write=str)).writerow  # it returns what `write` does: the line
    tabs = len(names) - 1

    def line(values: Sequence[object]) -> str:
        """Return the TSV line of *values*, which are escaped where they need it."""
        text = "\t".join(values)  # type: ignore[arg-type]  # getters give text
        if text.count("\t") == tabs and not ("\n" in text or "\\" in text or "\r" in text):
            return text + "\n"
        return "\t".join(escape(str(value)) for value in values) + "\n"

    return line


# ---- values for cells: from the samples, or from the columns of a table ----


class ListedRow(NamedTuple):
    """A sample that a table lists and that was not read: row *number* of the table rows *columns*, from 0.

    It has the attributes of a `Sample` that messages need: `key`, `shard`, `fields`.
    """

    columns: SampleColumns
    number: int

    @property
    def key(self) -> str:
        """The key of the sample; empty if *columns* has no keys, or a key in it is null."""
        return str((self.columns.values("__key__") or {self.number: ""})[self.number])

    @property
    def shard(self) -> str:
        """The URL of the table."""
        return self.columns.url

    @property
    def fields(self) -> list[str]:
        """The names of the fields that the table lists, then of its columns that do not begin with "__"."""
        columns = (name for name in self.columns.names if not name.startswith("__"))
        return list(dict.fromkeys([*(self.columns.fields or ()), *columns]))

    def missing_error(self, name: str) -> SampleError:
        """Return the error that the row has no value *name*, or that there is no such column."""
        if name not in self.columns.names:
            have = self.fields
            advice = path_advice(name, have)
            return SampleError(
                f"no sample has {name!r}{advice}; the fields and columns are: {field_list(have)} {FILL_HINT}",
                url=self.shard,
            )
        row = f"row {self.columns.first + self.number} (sample {self.key!r})"
        return SampleError(f"{row} has no value in the column {name!r} {FILL_HINT}", url=self.shard)


def values_of_samples(
    batches: Iterable[Batch],
    columns: Sequence[Column],
    typed: bool,
    verbatim: bool,
    account: Account,
    join_batch: Callable[[Batch], bytes | None] | None = None,
) -> Iterator[tuple[Any, Sample | ListedRow | Batch]]:
    """Yield (values of *columns*, sample) for each sample of *batches*, in order; count the samples in *account*.

    Values are text, or None for a missing value; with *typed*, JSON values, or ABSENT_VALUE. With *verbatim*, names of
    fields are compared with case, and a final newline is kept, except in batches with `columns` of a table. These take
    values from the columns of the table. If it has all *columns*, no sample is read, and a `ListedRow` comes in its
    place. `join_batch(batch)` returns the finished lines of a batch without `columns`, for which (lines, batch) is
    yielded once; if it returns None, the samples follow as usual. Samples are counted as read.
    Holds: a batch. Raises: SampleError for a field that occurs twice, is not UTF-8, or is not JSON but should be; the
    errors of reading *batches*.
    """
    make = make_json_getter if typed else make_getter
    getters = [make(column, verbatim=verbatim) for column in columns]
    index = 0
    for batch in batches:
        if batch.columns is not None:
            for row in _values_of_rows(batch, batch.columns, columns, typed, index):
                account.samples_in += 1
                yield row
            index += len(batch)
            continue
        if join_batch is not None and (lines := join_batch(batch)) is not None:
            account.samples_in += len(batch)
            yield lines, batch
            index += len(batch)
            continue
        for sample in batch:
            account.samples_in += 1
            yield [get(sample, index) for get in getters], sample
            index += 1


def _values_of_rows(
    batch: Batch, table_rows: SampleColumns, columns: Sequence[Column], typed: bool, index: int
) -> Iterator[tuple[list[Any], Sample | ListedRow]]:
    """Yield (values of *columns*, sample or `ListedRow`) for each sample of *batch*.

    *table_rows*: its rows in the table. Samples are read only if the table lacks one of the columns. *typed*: values
    are JSON values, a missing one is ABSENT_VALUE; else text, a missing one is None. *index*: that of the first sample
    in all samples. Raises: SampleError for a field that can't be the value; the errors of reading samples.
    """
    nothing = ABSENT_VALUE if typed else None
    answers = [column_answers(column, table_rows, typed, range(index, index + len(batch))) for column in columns]
    answered_columns = [values_in_columns(answer, nothing) for answer in answers]
    if None not in answered_columns:
        for number, row in enumerate(zip(*answered_columns, strict=True)):
            yield list(row), ListedRow(table_rows, number)
        return
    for number, sample in enumerate(batch):
        yield [first_answer(answer, number, sample, index + number, nothing) for answer in answers], sample
