"""`RowIndex`: the rows of a data set in DuckDB, for conditions, orders and counts; and how it is made.

The rows are those of `tables.inputs`, of tables and of shards that are indexed first. They go to a scratch database:
DuckDB compresses them there, and reads what a question needs, so memory is bounded for any number of rows. Row number
n of the data set is `rowid` n.

The database is read-only once it is made. SQL from the browser is one condition (see `rowconditions`); even so, DuckDB
may not open files, load extensions, or see Python's variables, and its settings are locked.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from tartools.errors import StorageError, how_to_install, shown
from tartools.samples.account import Account, Phase
from tartools.samples.filetypes import suffix_of
from tartools.show.serve.textfacts import CLASS_SUFFIXES
from tartools.storage.scratch import private_directory
from tartools.tables import schema
from tartools.tables.inputs import RowInputs, extents_of_unified

ROWS_TABLE = "samples"  # the table's name in SQL
SHARD_NUMBER = "__number__"  # column: the number of the shard in the catalog; `name_in_set` names those of further sets
SIZE_COLUMN = "__size__"  # column: bytes of the sample
MEMORY_LIMIT = "1GB"  # of DuckDB
SPILL_LIMIT = "8GB"  # of DuckDB's temporary files
QUESTION_SECONDS = 20.0  # after which a question is interrupted
MAX_QUESTIONS_AT_ONCE = 4
INTERRUPT_SECONDS = 0.05  # between two interrupts of a question, which may have begun after the first
MAX_VALUES_PER_FACET = 2000  # different values of a column; one with more has no facet of values
MAX_NUMBERS_LISTED = 12  # different numbers of a column that are listed; more become a histogram
FACET_TEXT_CHARS = 60  # average length of texts that are listed as values
FAULT_SUFFIX = ".broken"  # of columns that say why a payload is broken
NO_FACET = (schema.KEY_COLUMN, schema.INDEX_COLUMN, schema.BEGIN_COLUMN, schema.END_COLUMN)
LOCKED = (  # settings of a database that answers questions of a browser
    "SET enable_external_access = false",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET allow_community_extensions = false",
    "SET lock_configuration = true",
)
KEY_TYPES = {"VARCHAR": "text", "BOOLEAN": "bool", "DOUBLE": "number", "FLOAT": "number", "HUGEINT": "number"}

WAIT_SECONDS = 0.2  # between two looks at a thread
Result = TypeVar("Result")


class QuestionError(Exception):
    """A question that can't be answered, such as a wrong condition; the message is for the person who asked."""


class IndexColumn(NamedTuple):
    """A column of the index.

    `type`: "number", "text", "bool" or "other"
    `is_integer`: True for whole numbers
    `facet`: "values" if its values are counted, "histogram" if numbers are counted in bins, or "" for neither
    """

    name: str
    type: str
    is_integer: bool
    facet: str = ""

    @property
    def sql(self) -> str:
        """The name in double quotes, for SQL."""
        return quoted_name(self.name)


class IndexField(NamedTuple):
    """A field *name* of samples in set *set_number*, from 1, and the columns of the index with its sizes and offsets.

    *size_column*: name of the column with the bytes of the payload. *offset_column*: name of the column with its first
    byte in the shard.
    """

    name: str
    set_number: int
    size_column: str
    offset_column: str


def quoted_name(name: str) -> str:
    """Return the column *name* as SQL has it: in double quotes, with each double quote in it doubled."""
    return '"' + name.replace('"', '""') + '"'


def check_duckdb() -> None:
    """Raise StorageError if DuckDB is not installed; does not import it."""
    if find_spec("duckdb") is None:
        raise StorageError(f"--serve needs duckdb: {how_to_install('duckdb')}")


class Layout:
    """The columns that rows of *inputs* have in the index; `arrange_rows` makes rows with these.

    `unified`: unified schema of the rows
    `catalog`: the shards of the rows
    `sets`: numbers of the sets of shards, from 1
    `fields`: the fields of samples in all sets, with their columns of sizes and offsets
    `names`: unified column -> column of the index, except for shards and members
    `numbers`: names of the columns with the number of the shard in the catalog, one for each set
    `shard_column`: name of the column with the URL of the first set's shard, as it is shown
    `size_column`: name of the column with the bytes of the sample
    """

    def __init__(self, inputs: RowInputs) -> None:
        self.unified = inputs.schema
        self.catalog = inputs.catalog
        self.sets = schema.sets_in(self.unified.names)
        self._shards = {schema.name_in_set(schema.SHARD_COLUMN, number): number for number in self.sets}
        self._members = {schema.name_in_set(schema.MEMBERS_COLUMN, number): number for number in self.sets}
        self._taken: set[str] = set()
        self.numbers = [self._unique(schema.name_in_set(SHARD_NUMBER, number)) for number in self.sets]
        self.shard_column = self._unique(schema.SHARD_COLUMN)
        self.names: dict[str, str] = {}  # of unified columns in the index
        for name in self.unified.names:
            if name not in self._shards and name not in self._members:
                self.names[name] = self._unique(name)
        self.size_column = self._unique(SIZE_COLUMN)
        self.fields = [
            IndexField(name, number, self._unique(f"{name}.size"), self._unique(f"{name}.offset"))
            for number in self.sets
            for name in schema.fields_in_set(self.unified, number)
        ]

    def _unique(self, name: str) -> str:
        """Return *name*, or if a column has it, *name* with a number added (jpg_2), and note it as taken.

        Names that differ only in case are equal here.
        """
        unique, number = name, 1
        while unique.lower() in self._taken:
            number += 1
            unique = f"{name}_{number}"
        self._taken.add(unique.lower())
        return unique

    def arrange_rows(self, rows: Any) -> Any:
        """Return a record batch with the columns of the index, made of the unified record batch *rows*."""
        pa = schema.import_arrow()
        columns: dict[str, Any] = {}
        for number, name in zip(self.sets, self.numbers, strict=True):
            columns[name] = rows.column(schema.name_in_set(schema.SHARD_COLUMN, number))
        urls = pa.array([shown(url) for url in self.catalog.urls], pa.string())
        columns[self.shard_column] = urls.take(rows.column(schema.SHARD_COLUMN))
        for name, own_name in self.names.items():
            columns[own_name] = rows.column(name)
        columns[self.size_column] = pa.array(extents_of_unified(rows, 0, None).sizes)
        places = list(self._places(rows))
        for field, (sizes, offsets) in zip(self.fields, places, strict=True):
            columns[field.size_column], columns[field.offset_column] = sizes, offsets
        return pa.RecordBatch.from_pydict(columns)

    def _places(self, rows: Any) -> Iterator[tuple[Any, Any]]:
        """Yield (sizes, offsets), both Arrow arrays, of each of `fields`, in order, in *rows*, a unified record batch.

        They count bytes, and are null for a sample that lacks the field. For one that has it twice the offset is null
        and the size 0.
        """
        import numpy as np

        from tartools.tables.extents import valid_mask, whole_numbers

        pa = schema.import_arrow()
        for number in self.sets:
            column = schema.name_in_set(schema.MEMBERS_COLUMN, number)
            if column not in rows.schema.names:
                continue
            for place in rows.column(column).flatten():
                (offsets, has_offset), (sizes, has_size) = map(whole_numbers, place.flatten())
                is_absent = ~valid_mask(place)
                sizes = np.where(has_size, sizes, 0)
                yield pa.array(sizes, mask=is_absent), pa.array(offsets, mask=is_absent | ~has_offset)


class RowIndex:
    """A DuckDB database of the rows of a data set: `ask` and `cursor` answer questions in SQL to the table `samples`.

    `make_index` makes it.
    `rows`: number of rows; row number n of the data set has the `rowid` n
    `layout`: names of the columns of the table
    `columns`: name -> column, for the columns that a person sees
    `fields`: the fields of samples, with their columns
    `fault_columns`: a list of the columns FIELD.broken, which say why a payload is broken; null for a sound one

    Several threads may ask at once; 4 are answered at a time (MAX_QUESTIONS_AT_ONCE), the others wait. `close`
    interrupts them, and removes its files.
    """

    def __init__(self, database: Any, folder: str, rows: int, layout: Layout, columns: Sequence[IndexColumn]) -> None:
        self._database = database
        self._folder = folder
        self._turns = threading.BoundedSemaphore(MAX_QUESTIONS_AT_ONCE)
        self._cursors: set[Any] = set()  # of the questions that are being answered
        self._is_closed = False
        self.rows = rows
        self.layout = layout
        self.columns = {column.name: column for column in columns}
        self.fields = layout.fields
        names = {f"{field.name}{FAULT_SUFFIX}" for field in self.fields}
        self.fault_columns = [column for column in columns if column.name in names]

    @property
    def has_faults(self) -> bool:
        """True if there are columns that say why a payload is broken."""
        return bool(self.fault_columns)

    @property
    def text_columns(self) -> list[IndexColumn]:
        """The columns in which words are searched: all of text, but the URL of the shard and the columns of faults."""
        excluded = {self.layout.shard_column, *(column.name for column in self.fault_columns)}
        return [column for column in self.columns.values() if column.type == "text" and column.name not in excluded]

    def ask(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        tables: Mapping[str, Any] | None = None,
        seconds: float = QUESTION_SECONDS,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of the answer to *sql*, which has a ? for each of *parameters*.

        *tables*: name -> Arrow table that it may name. *seconds*: after these it is interrupted. Raises: QuestionError
        for anything that DuckDB refuses, for SQL that takes too long or too much memory, and once the index is closed.
        """
        with self.cursor(sql, parameters, tables, seconds) as cursor:
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    @contextlib.contextmanager
    def cursor(
        self,
        sql: str,
        parameters: Sequence[object] = (),
        tables: Mapping[str, Any] | None = None,
        seconds: float = QUESTION_SECONDS,
    ) -> Iterator[Any]:
        """Run *sql*, which has a ? for each of *parameters*, and give the cursor with the answer to the body of `with`.

        At its end the cursor is closed. *tables*: name -> Arrow table that it may name. *seconds*: after these it is
        interrupted, also while the body fetches. Raises: QuestionError for anything that DuckDB refuses, for SQL that
        takes too long or too much memory, also in the body, and once the index is closed.
        """
        import duckdb

        with self._turns:
            if self._is_closed:
                raise QuestionError("the server is ending")
            cursor = self._database.cursor()
            timer = threading.Timer(seconds, cursor.interrupt)
            timer.daemon = True
            self._cursors.add(cursor)
            try:
                for name, table in (tables or {}).items():
                    cursor.register(name, table)
                timer.start()
                cursor.execute(sql, list(parameters))
                yield cursor
            except duckdb.InterruptException:
                raise QuestionError(f"stopped after {seconds:.0f} s: ask for less, or for columns only") from None
            except duckdb.OutOfMemoryException:
                raise QuestionError(f"this takes more than {MEMORY_LIMIT} of memory") from None
            except duckdb.Error as error:
                raise QuestionError(_first_lines(error)) from None
            finally:
                timer.cancel()
                self._cursors.remove(cursor)
                cursor.close()

    def close(self) -> None:
        """Interrupt all questions, close the database, and remove its folder. Later questions raise QuestionError.

        DuckDB does not close while it answers, and a thread that the interpreter ends inside DuckDB aborts the process:
        so this waits until all questions have ended.
        """
        self._is_closed = True
        for _ in range(MAX_QUESTIONS_AT_ONCE):
            while not self._turns.acquire(timeout=INTERRUPT_SECONDS):
                for cursor in list(self._cursors):
                    cursor.interrupt()
        self._database.close()
        self._turns.release(MAX_QUESTIONS_AT_ONCE)
        shutil.rmtree(self._folder, ignore_errors=True)


def _first_lines(error: Exception) -> str:
    """Return the message of DuckDB's *error* without the quotation of the SQL, which is not the person's own.

    It has up to 500 characters.
    """
    return str(error).split("\n\nLINE ")[0].strip()[:500]


def make_index(inputs: RowInputs, account: Account, tmpdir: str | None, threads: int) -> RowIndex:
    """Read the rows of *inputs* into a scratch database in *tmpdir*; return its index, which the caller closes.

    *account*: gets the progress. *tmpdir*: None: the default folder. *threads*: number of threads of DuckDB. Raises:
    StorageError without rows, if DuckDB can't hold them, or no folder can be made in *tmpdir*; the errors of reading
    *inputs*.
    """
    import duckdb

    layout = Layout(inputs)
    folder = private_directory(tmpdir)
    path = os.path.join(folder, "rows.duckdb")
    settings: dict[str, Any] = {
        "memory_limit": MEMORY_LIMIT,
        "threads": threads,
        "temp_directory": os.path.join(folder, "spill"),
    }
    try:
        with contextlib.closing(duckdb.connect(path, config=settings)) as database:
            columns = wait_for(lambda: _fill(database, inputs, layout, account), database.interrupt)
        settings["max_temp_directory_size"] = SPILL_LIMIT
        locked = duckdb.connect(path, read_only=True, config=settings)
        for setting in LOCKED:
            locked.execute(setting)
        os.unlink(path)  # it stays open, and goes with this process, however that ends
        return RowIndex(locked, folder, inputs.rows, layout, columns)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, duckdb.Error):  # a full disk, or too little memory
            raise StorageError(f"DuckDB can't hold the rows: {_first_lines(error)}") from None
        raise


def wait_for(work: Callable[[], Result], interrupt: Callable[[], object]) -> Result:
    """Return the result of *work*, which runs in a thread, so that signals are handled here meanwhile.

    DuckDB turns the exception of a signal into an error of its own. If an exception is raised here meanwhile, such as
    KeyboardInterrupt, *interrupt* is called again and again until *work* has ended; then the exception is raised.
    Raises: the exception of *work*.
    """
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            failures.append(error)
        finally:
            has_ended.set()

    has_ended = threading.Event()  # `join` takes a thread for ended once an exception interrupts it
    threading.Thread(target=run, daemon=True).start()
    try:
        while not has_ended.wait(WAIT_SECONDS):
            pass
    except BaseException:
        while not has_ended.is_set():
            interrupt()  # again and again: it ends only what DuckDB is doing now
            has_ended.wait(WAIT_SECONDS)
        raise
    if failures:
        raise failures[0]
    return results[0]


def _fill(database: Any, inputs: RowInputs, layout: Layout, account: Account) -> list[IndexColumn]:
    """Read the rows of *inputs* into *database*, a connection of DuckDB; return the columns that a person sees.

    *account*: gets the progress. Raises: StorageError without rows; duckdb.Error if DuckDB can't hold them; the errors
    of reading *inputs*.
    """
    failures: list[BaseException] = []
    loaded = 0

    def batches() -> Iterator[Any]:
        nonlocal loaded
        try:
            for rows in inputs.batches():
                yield layout.arrange_rows(rows)
                loaded += len(rows)
        except BaseException as error:
            failures.append(error)  # DuckDB replaces it by its own
            raise

    account.progress.phase = Phase("loading", inputs.rows, lambda: loaded)
    arranged = batches()
    first = next(arranged, None)
    if first is None:
        raise StorageError("there are no samples to show")
    reader = schema.import_arrow().RecordBatchReader.from_batches(first.schema, chain([first], arranged))
    database.register("incoming", reader)
    try:
        database.execute(f"CREATE TABLE {ROWS_TABLE} AS SELECT * FROM incoming")  # noqa: S608
    except Exception:
        if failures:
            raise failures[0] from None
        raise
    database.unregister("incoming")
    return _columns(database, layout)


def _columns(database: Any, layout: Layout) -> list[IndexColumn]:
    """Return the columns of the rows in *database* that a person sees, in their order, with the facet of each.

    *database*: a connection of DuckDB. Left out are the columns of shard numbers, and of the offsets of fields.
    """
    hidden = {*layout.numbers, *(field.offset_column for field in layout.fields)}
    described = database.execute(f"DESCRIBE {ROWS_TABLE}").fetchall()
    columns = []
    for name, type_name, *_ in described:
        if name not in hidden:
            is_integer = type_name.endswith("INT") or type_name.endswith("INTEGER")
            kind = "number" if is_integer or type_name.startswith("DECIMAL") else KEY_TYPES.get(type_name, "other")
            columns.append(IndexColumn(name, kind, is_integer))
    return [column._replace(facet=_facet(database, column)) for column in columns]


def _facet(database: Any, column: IndexColumn) -> str:
    """Return the facet that *column* gets: "values", "histogram" or "". *database*: a connection of DuckDB.

    "values": for booleans; for texts of up to 60 characters on average, if at most 12 differ, or at most 2000 and half
    as many as there are; for whole numbers, if at most 12 differ, of classes (cls) 2000; DuckDB estimates how many
    differ. "histogram": for other numbers. "": for the key, the index, the begin and the end of the sample in the first
    set, for other types and texts, and for texts and numbers without a value.
    """
    if column.type == "bool":
        return "values"
    if column.type == "other" or re.sub(r"_\d+__$", "__", column.name) in NO_FACET:  # __begin_2__, of set 2
        return ""
    length = f"avg(length({column.sql}))" if column.type == "text" else "0"
    sql = f"SELECT approx_count_distinct({column.sql}), {length}, count({column.sql}) FROM {ROWS_TABLE}"  # noqa: S608
    values, chars, count = database.execute(sql).fetchone()
    if not count:
        return ""
    if column.type == "text":
        is_few = values <= MAX_NUMBERS_LISTED or values <= min(MAX_VALUES_PER_FACET, count / 2)
        return "values" if is_few and chars <= FACET_TEXT_CHARS else ""
    is_class = column.is_integer and suffix_of(column.name) in CLASS_SUFFIXES
    is_few = values <= (MAX_VALUES_PER_FACET if is_class else MAX_NUMBERS_LISTED)
    return "values" if is_few and column.is_integer else "histogram"
