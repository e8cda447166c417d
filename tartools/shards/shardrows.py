"""The rows of samples in many shards and tables: the content of a table of them.

Where shards have changed, a table is made anew (`update_rows`): the rows of all others are taken over.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate, chain, groupby, pairwise, starmap
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools import storage
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.values import absent_field_error
from tartools.shards.reading import Reading, ShardPolicy, check_shards
from tartools.shards.workers import ShardTask, gather, outputs
from tartools.shards.writing import Destination, SampleWriter, write_batches
from tartools.storage.checks import Probe, check_unchanged, probe_all
from tartools.storage.local import path_of
from tartools.storage.outputformats import PARQUET_MAGIC
from tartools.storage.url import Url
from tartools.tables import rows, schema, source
from tartools.tables.catalog import ShardCatalog
from tartools.tables.extents import runs_of_equal
from tartools.tables.facts import TableFacts, fact_columns
from tartools.tables.inputs import ROW_COLUMN, RowInputs, RowStream, TablePart, extents_of_unified, rows_in_order
from tartools.tables.rows import RowSpool
from tartools.tables.tablewriter import RowBatch, TableContent, TableWriter
from tartools.tables.verified import VerifiedReader
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.storage.checksums import OutputSums

Runs = list[range]  # numbers of rows
JOINED_UPDATE = "this table joins several sets of shards: update the table of each set, and tarjoin them again"
NOT_IN_FILE = "a table can't list these samples, because they are in no file or object: copy them to one first"


class Indexing(NamedTuple):
    """How shards are indexed: read to make a row for each sample.

    `reading`: how they are read. `max_workers`: limit of worker processes; 1: this process reads. `facts`: values and
    facts of samples that become further columns; none by default.
    """

    reading: Reading
    max_workers: int
    facts: TableFacts = TableFacts(())


def table_destination(
    url: str, force: bool, inputs: Callable[[], TableContent], sums: OutputSums | None = None
) -> Destination:
    """Return the table *url* as a sink of rows: its `writer()` is a `TableWriter`.

    `inputs()`: called when writing begins; returns the schema of the rows, and their shards: `RowInputs`, for example.
    `force`: replace an existing file. `sums`: gets the checksum of the table once it has appeared.
    """
    return Destination(url, force, begin=lambda _: TableWriter(url, force, inputs(), sums))


class RowWriter(SampleWriter):
    """Writes the shard *destination* from batches of rows with numbers: *reader* reads the samples that the rows list.

    To be called: `write_batch` for the rows, then `commit`; or `abort` after an error. Both close *reader*.
    """

    def __init__(self, destination: Destination, reader: VerifiedReader) -> None:
        super().__init__(destination)
        self._reader = reader

    def write_batch(self, batch: Any, first: int, last: int) -> None:
        """Read and add the samples that rows *first* to *last* (exclusive) of *batch*, a `RowBatch`, list.

        Raises: StorageError if a sample is not as its row says; SampleError for the key of the sample before.
        """
        for samples in samples_of(self._reader, batch.rows.slice(first, last - first), batch.numbers[first:last]):
            super().write_batch(samples, 0, len(samples))

    def finish(self) -> None:
        """Check and close the read shards, then write the end of the archive; only `commit` may follow.

        Raises: StorageError if a local shard that was read has changed, or an earlier write failed.
        """
        self._reader.check()
        self._reader.close()
        super().finish()

    def abort(self, *, flush: bool = True) -> None:
        """Close the read shards and drop the output. *flush*: samples buffered for stdout are still written."""
        self._reader.close()
        super().abort(flush=flush)


def row_inputs(urls: Sequence[str], account: Account, indexing: Indexing) -> RowInputs:
    """Return rows that list the samples of *urls*, in order: of tables, and of shards, which are read and indexed now.

    The caller counts the samples in *account* as it takes the rows.

    Raises: StorageError without pyarrow, or for a shard that can't be read in parts, such as a compressed one;
    UsageError for stdin and commands, and for a table that lacks a column of `indexing.facts`; SampleError for a sample
    that a row can't list, and, if a shard was indexed, for a field of these facts that is missing (`check_seen`); the
    errors of reading.
    """
    return row_inputs_with_ranges([urls], account, indexing)[0]


def row_inputs_with_ranges(
    sources: Sequence[Sequence[str]], account: Account, indexing: Indexing
) -> tuple[RowInputs, list[range]]:
    """Return (rows, ranges): rows that list the samples of all *sources*, and the range of row numbers of each source.

    `sources`: lists of URLs of shards and tables, at least one list. Shards are read and indexed now. The caller counts
    the samples in *account* as it takes the rows.
    Raises: StorageError without pyarrow, or for a shard that can't be read in parts, such as a compressed one;
    UsageError for stdin and commands, and for a table that lacks a column of `indexing.facts`; SampleError for a sample
    that a row can't list, and, if a shard was indexed, for a field of these facts that is missing (`check_seen`); the
    errors of reading.
    """
    by_source = row_inputs_by_source(sources, account, indexing)
    inputs = RowInputs(
        [part for inputs_of_source in by_source for part in inputs_of_source.parts], by_source[0].catalog
    )
    check_seen(inputs, indexing.facts)
    account.progress.phase = Phase("writing", inputs.rows, lambda: account.samples_out)
    ends = accumulate((inputs_of_source.rows for inputs_of_source in by_source), initial=0)
    return inputs, list(starmap(range, pairwise(ends)))


def row_inputs_by_source(sources: Sequence[Sequence[str]], account: Account, indexing: Indexing) -> list[RowInputs]:
    """Return the rows of the samples of each of *sources*, lists of URLs; they share one catalog of shards.

    Shards are read and indexed now. The caller counts the samples in *account* as it takes the rows.
    Raises: StorageError without pyarrow, or for a shard that can't be read in parts, such as a compressed one;
    UsageError for stdin and commands, and for a table that lacks a column of `indexing.facts`; SampleError for a sample
    that a row can't list; the errors of reading. The facts are not checked by `check_seen`.
    """
    urls = [url for source_urls in sources for url in source_urls]
    schema.check_pyarrow()
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # the others keep 30 MB more
    check_stored(urls)
    check_shards(urls, account)
    account.progress.phase = Phase("reading")
    probes = probe_all(urls)
    catalog = ShardCatalog()
    inputs = []
    for source_urls in sources:
        parts: list[RowStream] = []
        for is_table, group in groupby(source_urls, lambda url: probes[url].first == PARQUET_MAGIC):
            if is_table:
                for url in group:
                    table = TablePart(url, catalog)
                    if column := missing_column(table, indexing.facts):
                        reason = f"this table has no column {column!r}; name its shards, to look into samples"
                        raise UsageError(reason, url=url)
                    parts.append(table)
            else:
                parts.append(index_shards(list(group), probes, catalog, account, indexing))
        inputs.append(RowInputs(parts, catalog))
    return inputs


def check_stored(urls: Sequence[str]) -> None:
    """Raise UsageError if one of *urls* is stdin or a command: a table can't list samples that are in no file."""
    for url in urls:
        if Url(url).scheme in ("-", "pipe"):
            raise UsageError(NOT_IN_FILE, url=url)


def shard_versions(urls: Sequence[str]) -> dict[str, str]:
    """Return URL -> present version of each of the shards *urls*.

    Raises: UsageError for tables, stdin and commands; StorageError for one that is missing or has no version.
    """
    check_stored(urls)
    probes = probe_all(urls)
    check_no_tables(probes, "an index is made of shards")
    return {url: probe.require_version(url) for url, probe in probes.items()}


def check_no_tables(probes: Mapping[str, Probe], why: str) -> None:
    """Raise UsageError if one of the probed URLs is a table.

    `probes`: URL -> its probe. `why`: end of the message "this is a table, and ...".
    """
    for url, probe in probes.items():
        if probe.first == PARQUET_MAGIC:
            raise UsageError(f"this is a table, and {why}", url=url)


def blocks_of_shards(urls: Sequence[str], account: Account, indexing: Indexing) -> Generator[bytes, None, None]:
    """Read the shards *urls*, by workers where that pays; yield rows for their samples, in order, as packed blocks.

    A block has some thousand rows of one shard, as bytes for `RowSpool.add`. `indexing`: how the shards are
    read, and the facts for further columns. The caller counts the samples; *account* gets reports of members that are
    no samples.
    Raises: SampleError for a sample that a row can't list; StorageError for a compressed shard with samples; what
    reading raises.
    """
    facts = indexing.facts.facts_of if indexing.facts.has_facts else None

    def work(task: ShardTask[None]) -> Iterator[bytes]:
        return rows.pack_rows(task.batches, facts)

    reading = indexing.reading._replace(need=Need.FIELDS, policy=ShardPolicy(reject_compressed=True), uniform=True)
    return outputs(gather(urls, account, reading, work, max_workers=indexing.max_workers))


def index_shards(
    urls: Sequence[str], probes: Mapping[str, Probe], catalog: ShardCatalog, account: Account, indexing: Indexing
) -> RowSpool:
    """Read the shards *urls* and return a spool with a row for each sample, in order: records in a temporary file.

    `probes`: URL -> its probe, with the version. `catalog`: gets the shards, whose numbers in it are in the rows.
    `account`: gets reports of members that are no samples; the caller counts the samples. `indexing`: how the shards
    are read, and the facts for further columns.

    Raises: StorageError if a shard changes meanwhile, has no version, or is compressed and not empty; SampleError for a
    sample that a row can't list; what reading raises.
    """
    versions = {url: probes[url].require_version(url) for url in urls}
    spool = RowSpool(indexing.facts.named_columns, versions, catalog, indexing.reading.tmpdir)
    with closing(blocks_of_shards(urls, account, indexing)) as blocks:
        for block in blocks:
            spool.add(block)
    check_unchanged(versions)
    return spool


def missing_column(table: TablePart, facts: TableFacts) -> str | None:
    """Return the name of the first column for *facts* that *table* lacks; None if it has all of them.

    First come the columns that *facts* name, then the columns for measured facts of each field of *table*.
    """
    columns = [name for name, _ in facts.named_columns]
    if facts.measured:
        fields = schema.fields_of(table.schema)
        columns += [name for field in fields for name, _ in fact_columns(field, facts.measured)]
    return next((name for name in columns if name not in table.schema.names), None)


def check_seen(inputs: RowInputs, facts: TableFacts) -> None:
    """Raise SampleError if *facts* name a field, or a value inside JSON, that is missing in all samples.

    A field must be among the fields that *inputs* list, of tables or of indexed shards; a value inside JSON in a row of
    an indexed shard. If *facts* name alternatives, one is enough; names such as `__key__` always pass. Nothing is
    checked without an indexed shard, or if the shards have no samples.
    """
    spools = [part for part in inputs.parts if isinstance(part, RowSpool) and part.rows]
    if spools:
        fields = schema.fields_of(inputs.schema)
        facts.check_seen(fields)
        empty = set.intersection(*(set(spool.empty_columns) for spool in spools))
        for column in facts.columns:
            if column.path and column.name in empty:
                raise absent_field_error(column.name, fields)


def all_rows(inputs: RowInputs) -> Iterator[RowBatch]:
    """Yield all rows of *inputs*, in order, in batches; `numbers` of each are its row numbers, from 0 on."""
    import numpy as np

    first = 0
    for batch in inputs.batches():
        yield RowBatch(batch, np.arange(first, first + len(batch)))
        first += len(batch)


def rows_at(inputs: RowInputs, positions: Iterable[int], tmpdir: str | None) -> Iterator[RowBatch]:
    """Return the rows of *inputs* at *positions*, in the order of *positions*, as batches.

    All *positions* are taken before this returns. The batches have no row numbers (`numbers` is None). `tmpdir`: folder
    of the temporary file in which rows are brought into order; None: the system's. Holds: 8 bytes a position, and 1/256
    of the rows at *positions*, or 65,536 if that is more. Raises: StorageError for more than 2**32 rows; the errors of
    reading rows.
    """
    return (RowBatch(rows.drop_columns([ROW_COLUMN])) for rows in rows_in_order(inputs, positions, tmpdir))


def write_rows(
    inputs: RowInputs, url: str, account: Account | None = None, *, force: bool = False, batches: Any = None
) -> None:
    """Write rows to the table *url*: *batches* (`RowBatch` from *inputs*) if given, otherwise all rows of *inputs*.

    `account`: counts the rows as written samples; None: nobody counts. `force`: replace an existing file. Raises:
    StorageError, also if *url* exists (unless *force*); the errors of reading rows.
    """
    destination = table_destination(url, force, lambda: inputs)
    write_batches(all_rows(inputs) if batches is None else batches, destination, account or Account())


def samples_at(inputs: RowInputs, positions: Iterable[int], account: Account, reading: Reading) -> Iterator[Batch]:
    """Return the samples that the rows of *inputs* at *positions* list, in that order, in batches.

    All *positions* are taken before this returns. The consumer counts the samples; *account* counts the bytes read.
    `reading`: its `need` and `tmpdir` are used. Raises: StorageError if a sample is not as its row says, for more than
    2**32 rows, or, after the last sample, if a local shard has changed; the errors of reading rows.
    """
    columns = [schema.KEY_COLUMN, *schema.extent_columns(inputs.schema.names)]
    return _samples_of(inputs, rows_in_order(inputs, positions, reading.tmpdir, columns), account, reading)


def _samples_of(inputs: RowInputs, batches: Iterator[Any], account: Account, reading: Reading) -> Iterator[Batch]:
    with closing(reader_of_rows(inputs, account, reading)) as reader:
        for rows in batches:
            yield from samples_of(reader, rows.drop_columns([ROW_COLUMN]), rows.column(ROW_COLUMN).to_numpy())
        reader.check()


def reader_of_rows(inputs: RowInputs, account: Account, reading: Reading) -> VerifiedReader:
    """Return a reader of the samples that the rows of *inputs* list; it verifies each against its row.

    *inputs*: of at least one table or shard. The caller ends with its `check` and `close`.
    `reading`: its `need` and `tmpdir` are used. `account`: gets the bytes read.
    """
    names = [part.url for part in inputs.parts if isinstance(part, TablePart)] or [inputs.catalog.urls[0]]
    table = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    catalog = inputs.catalog.for_table(table)
    catalog.is_joined = len(schema.sets_in(inputs.schema.names)) > 1
    return VerifiedReader(catalog, account, need=reading.need, tmpdir=reading.tmpdir)


def samples_of(reader: VerifiedReader, rows: Any, numbers: Any) -> Iterator[Batch]:
    """Yield the samples that *rows*, a record batch, list, in order, in batches, as *reader* reads them.

    *rows*: unified rows with the columns of extents, and of keys if there are any.
    `numbers`: an array of the row numbers to name in messages; None: count from 0.
    Raises: StorageError if a sample is not as its row says.
    """
    for first in range(0, len(rows), source.TABLE_READ_ROWS):
        piece_numbers = None if numbers is None else numbers[first : first + source.TABLE_READ_ROWS]
        yield from reader.samples(extents_of_unified(rows.slice(first, source.TABLE_READ_ROWS), first, piece_numbers))


class Update(NamedTuple):
    """The rows for an updated table.

    `inputs`: the rows of the old table, then those of the shards read anew.
    `rows`: iterator of row numbers in *inputs*, in the order of the new table.
    `shards_kept`, `shards_read`, `shards_dropped`: how many shards were taken over from the old table, read anew, and
    are no longer named.
    """

    inputs: RowInputs
    rows: Iterator[int]
    shards_kept: int
    shards_read: int
    shards_dropped: int


def update_rows(urls: Sequence[str], old: str, account: Account, indexing: Indexing) -> Update:
    """Return the rows for an update of the table *old*: the rows of the shards *urls*, in this order.

    If *urls* is empty, it is the shards of *old* that still exist. Rows of a shard are taken over if *old* lists its
    samples in order, from the first one on, in its present version, and has all columns for `indexing.facts`; other
    shards are read now. The caller counts the samples; *account* gets reports of members that are no samples.

    Raises: UsageError for stdin, commands and tables among *urls*, for a shard that is named twice, and for a table
    *old* that joins several sets of shards; StorageError for a shard that can't be read in parts, such as a compressed
    one; SampleError for a sample that a row can't list, and, if shards are read, for a field of `indexing.facts` that
    neither these nor *old* have, or a value inside JSON that these lack; the errors of reading.
    """
    check_stored([*urls, old])
    catalog = ShardCatalog()
    table = TablePart(old, catalog)
    if len(schema.sets_in(table.schema.names)) > 1:
        raise UsageError(JOINED_UPDATE, url=old)
    runs_by_number = whole_shards(table)
    before = {canonical_shard(url): url for url in catalog.urls}
    if not urls:
        urls = [url for url in before.values() if storage.exists(url)]
    names = [canonical_shard(url) for url in urls]
    counts = Counter(names)
    if twice := next((url for url, name in zip(urls, names, strict=True) if counts[name] > 1), None):
        raise UsageError("named twice, which --update does not allow", url=twice)
    probes = probe_all(urls)
    check_no_tables(probes, "--update takes shards")
    versions = {(canonical_shard(url), catalog.versions[number]): number for number, url in enumerate(catalog.urls)}
    fits = not missing_column(table, indexing.facts)
    runs_by_url: dict[str, Runs] = {}
    for url, name in zip(urls, names, strict=True):
        number = versions.get((name, probes[url].version)) if probes[url].version is not None else None
        if fits and number in runs_by_number:
            runs_by_url[url] = runs_by_number[number]
    changed = [url for url in urls if url not in runs_by_url]
    # rows of unchanged shards keep their numbers in the old table; those of shards read anew are numbered behind them,
    # as `RowInputs([table, spool])` numbers its rows
    spool = index_shards(changed, probes, catalog, account, indexing)
    first = table.rows
    for url in changed:
        count = spool.counts.get(url, 0)
        runs_by_url[url] = [range(first, first + count)]
        first += count
    inputs = RowInputs([table, spool], catalog)
    check_seen(inputs, indexing.facts)
    positions = chain.from_iterable(run for url in urls for run in runs_by_url[url])
    dropped = len(set(before) - set(names))
    return Update(inputs, positions, len(urls) - len(changed), len(changed), dropped)


def canonical_shard(url: str) -> str:
    """Return a text by which names of one shard are compared: the absolute path of *url* if it is local, else its URL.

    Symbolic links are not resolved. "file:a%20b.tar" and "./a b.tar" give the same.
    """
    return os.path.abspath(path_of(url)) if Url(url).is_local else str(url)


def whole_shards(table: TablePart) -> dict[int, Runs]:
    """Return shard number -> ranges of row numbers, for shards that *table* lists from their first sample on.

    The numbers of shards are those in the catalog of *table*.

    Left out are shards with rows that are missing, repeated, in another order, or without the index of their sample in
    the shard, and shards with rows in one batch of `table.batches` with the latter. That the last samples of a shard
    are missing can't be seen.
    """
    import numpy as np

    runs_by_number: dict[int, Runs] = {}
    following: dict[int, int] = {}  # the number of the next sample of each shard
    broken: set[int] = set()
    first = 0
    for batch in table.batches([schema.SHARD_COLUMN, schema.INDEX_COLUMN]):
        numbers = batch.column(schema.SHARD_COLUMN).to_numpy()
        index = batch.column(schema.INDEX_COLUMN) if schema.INDEX_COLUMN in batch.schema.names else None
        indexes = None if index is None or index.null_count else index.to_numpy()
        for low, high in runs_of_equal(numbers):
            number = int(numbers[low])
            start = following.get(number, 0)
            following[number] = start + high - low
            runs_by_number.setdefault(number, []).append(range(first + low, first + high))
            if indexes is None or not np.array_equal(indexes[low:high], np.arange(start, start + high - low)):
                broken.add(number)
        first += len(batch)
    return {number: runs for number, runs in runs_by_number.items() if number not in broken}


def empty_columns(update: Update) -> list[str]:
    """Return the names of the columns of the old table of *update* that rows of shards read anew lack: null there.

    Columns that they have, but without a value, are not named. [] if no row was read anew.
    """
    table, spool = update.inputs.parts
    return [name for name in table.schema.names if name not in spool.schema.names] if spool.rows else []
