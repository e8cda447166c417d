"""A pass over rows that list samples, for outputs with at least one table.

All inputs become rows first: tables are, and shards are read and indexed. Payloads are read only for what is not in
the columns, and for an output that is a shard.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from tartools.samples.account import Account
from tartools.samples.batch import Batch
from tartools.shards import shardrows
from tartools.shards.passes import Answer, ItemSource, Outputs, Pass, PassInputs, Result, Sorter, Watch
from tartools.shards.reading import Reading, close_at_end, count_samples
from tartools.shards.writing import Batches, Destination, SampleWriter, write_batches
from tartools.storage.checks import changed_error
from tartools.storage.outputformats import is_table_name
from tartools.tables import schema
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.shards.workers import Tasks, Work
    from tartools.tables.inputs import RowInputs


class RowPass(Pass[int]):
    """A pass over rows that list the samples, for outputs with a table. Its items are row numbers.

    Shards are indexed when rows are first needed (see `rows`), not when this is made.
    Raises: UsageError for stdin and commands among the inputs; StorageError without pyarrow.
    """

    def __init__(self, inputs: PassInputs, outputs: Outputs) -> None:
        schema.check_pyarrow()
        shardrows.check_stored(inputs.urls)
        super().__init__(inputs, outputs)
        self._rows: RowInputs | None = None  # until they are needed

    def rows(self) -> RowInputs:
        """Return the rows that list all samples. The first time, shards among the inputs are read and indexed.

        Raises: StorageError for a shard that can't be read in parts, such as a compressed one; SampleError for a sample
        that a row can't list; the errors of reading.
        """
        if self._rows is None:
            self._index([self.urls])
        assert self._rows is not None
        return self._rows

    def _index(self, groups: Sequence[Sequence[str]]) -> list[range]:
        """Index the shards among *groups*, lists of URLs that together are the inputs; store the rows.

        Returns the range of row numbers of each group.
        """
        indexing = shardrows.Indexing(self.reading, self.max_workers)
        self._rows, ranges = shardrows.row_inputs_with_ranges(groups, self.account, indexing)
        return ranges

    # ---- outputs ----

    def destination(self, url: str) -> Destination:
        """Return the sink that writes rows to the table *url*, or the samples that they list to the shard *url*.

        It takes batches of rows. Nothing is opened yet.
        """
        if is_table_name(url):
            return shardrows.table_destination(url, self._outputs.force, self.rows, self._outputs.sums)
        return Destination(url, self._outputs.force, self._outputs.gzip, self._shard_writer, self._outputs.sums)

    def _shard_writer(self, destination: Destination) -> SampleWriter:
        reading = self.reading.with_need(Need.PLACES)
        return shardrows.RowWriter(destination, shardrows.reader_of_rows(self.rows(), self.account, reading))

    # ---- the verbs ----

    def copy(self) -> None:
        """Write all rows, in order, to the only output; count their samples as read and written."""
        write_batches(count_samples(self.batches(), self.account), self._only_destination(), self.account)

    def items(self, by_shard: bool) -> Iterator[Iterator[int]]:
        """Return iterators of row numbers: one for each table, and one for each shard that has samples if *by_shard*.

        Otherwise one for each run of adjacent shards. Taking a number counts a sample as read.
        """

        def counted_numbers(span: range) -> Iterator[int]:
            for number in span:
                self.account.samples_in += 1
                yield number

        return map(counted_numbers, self.rows().spans(by_shard))

    def order(self, items: Iterator[int], watch: Watch | None = None) -> None:
        """Write the rows with the numbers *items*, in that order, to the only output; take all *items* before writing.

        Counts them as written; taking the items has counted them as read.

        `watch(batches, keys)`: if given, passes the batches of rows on and looks at them; `keys(batch)` is the list of
        their keys, with None for a row without one, [] if there is no column of keys.
        """
        batches: Iterator[Any] = shardrows.rows_at(self.rows(), items, self.reading.tmpdir)
        if watch is not None:
            batches = watch(batches, lambda batch: batch.keys)
        write_batches(batches, self._only_destination(), self.account)

    def sort(self, sorter: Sorter) -> None:
        """Write the rows that *sorter* gives, in its order, to the only output; count them as written.

        They are sorted by columns that have the values, else by values that are read from the samples. Raises: what
        *sorter* raises, also UnsortableRowsError.
        """
        if sorter.needs_values:
            self.snapshot.take()
        rows = self.rows()
        positions = sorter.positions(rows, self.account)
        self.order(sorter.positions_by_samples(self, rows) if positions is None else positions)

    # ---- what is computed of the samples ----

    def batches(self) -> Iterator[Batches]:
        """Return all rows that list the samples, in order, in batches. The consumer counts them."""
        return shardrows.all_rows(self.rows())

    def evaluate(
        self,
        answers: Callable[[Batch], Sequence[Answer]],
        of_keys: Callable[[Sequence[bytes]], Sequence[Answer]] | None = None,
        reading: Reading | None = None,
    ) -> Iterator[tuple[Batches, Sequence[Answer]]]:
        """Yield batches of rows, each with the results for the samples that they list: one a row.

        The results are those of `of_keys(keys)`, if it is given and all rows have keys; otherwise the samples are read
        again as *reading* says (None: as the pass), for `answers(batch)`. The consumer counts the samples. Raises:
        StorageError if the samples have changed, or `of_keys` returns too few; the errors of reading.
        """
        if of_keys is None:
            self.snapshot.take()
        rows = self.rows()
        if of_keys is not None and rows.have_keys:
            for row_batch in shardrows.all_rows(rows):
                values = of_keys(row_batch.keys)
                if len(values) < len(row_batch):
                    raise changed_error(self.urls[0])
                yield row_batch, values
            self.snapshot.check(rows.rows)
            return
        self.snapshot.take()
        self.snapshot.samples = rows.rows
        quiet = Account(lambda _: None)  # what is to be said of the shards was said when they were indexed
        with close_at_end(reread := self._check_snapshot(self.read(quiet, reading))):
            all_values = chain.from_iterable(map(answers, reread))
            for row_batch in shardrows.all_rows(rows):
                values = list(islice(all_values, len(row_batch)))
                if len(values) == len(row_batch):  # otherwise `_check_snapshot` has raised why
                    yield row_batch, values
            for _ in all_values:
                pass

    def sources(
        self,
        groups: Sequence[Sequence[str]],
        reading: Reading,  # no sample is read
        begin: Callable[[int | None], object],
    ) -> list[ItemSource]:
        """Return a source of row numbers for each of *groups*, lists of URLs that together are the inputs.

        Indexes the shards now; *reading* and *begin* are not used, since taking row numbers reads no sample.
        """
        spans = self._index(groups)
        return [ItemSource(urls, partial(iter, (span,)), True) for urls, span in zip(groups, spans, strict=True)]

    def prepare(self, *, reread: bool) -> None:
        """Index the shards now; with *reread*, take a snapshot before, for a later reading of the samples."""
        if reread:
            self.snapshot.take()
        self.rows()

    def count(self) -> int:
        """Return the number of samples, which is the number of rows."""
        return self.rows().rows

    def label_counts(
        self,
        label: Callable[[Batch], Sequence[str]],
        of_keys: Callable[[Sequence[bytes]], Sequence[str]] | None = None,
    ) -> Iterator[Mapping[str, int]]:
        """Yield mappings from label to number of samples, to be added up.

        Uses `of_keys(keys)` for the labels, with no second reading, if it is given and all rows have keys; otherwise
        reads the samples, for `label(batch)`.
        """
        if of_keys is None:
            yield from super().label_counts(label)
            return
        for _, labels in self.evaluate(label, of_keys):
            yield Counter(labels)

    def gather(
        self, work: Work[Result], account: Account, *, max_workers: int | None = None, remote: bool = False
    ) -> Tasks[Result]:
        """Yield each task of *work* over the samples, in order; read its `output` to the end, then its `result`.

        `work(task)`: reads the samples, returns an iterator of output bytes, and sets its `result`. `account`: gets
        reports of members that are no samples. `max_workers`: the most workers; None: those of the pass.
        `remote`: they read remote shards, too: only for work without output.
        Raises: the errors of reading and of *work*; StorageError at the end if the rows were indexed before, and the
        inputs have changed since the snapshot.
        """
        is_repeated = self._rows is not None
        yield from super().gather(work, account, max_workers=max_workers, remote=remote)
        if is_repeated:
            self.snapshot.check()
