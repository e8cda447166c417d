"""How tarfilter writes two outputs in one pass: from samples, or from rows of tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tartools import cli, storage
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account
from tartools.samples.listed import Listed
from tartools.samples.sample import Batch
from tartools.shards.reading import Reading, closing_upstream, counted, read_batches
from tartools.shards.writing import Destination, Writer, shard_writer
from tartools.stages.filtering.conditions import runs
from tartools.stages.filtering.expression import Ask
from tartools.storage.url import Url
from tartools.tar.compression import is_table_name

if TYPE_CHECKING:
    from tartools.tables.inputs import Inputs


class Chooser(Protocol):
    """What chooses samples: `Filter`, or something else that does."""

    @property
    def reads(self) -> bool:
        """Whether it looks into payloads."""
        ...

    @property
    def by_key(self) -> bool:
        """Whether keys alone tell."""
        ...

    @property
    def asks(self) -> Sequence[Ask] | None:
        """What it asks of a sample; None if not known."""
        ...

    def columns(self, verbatim: bool, /) -> list[str]:
        """Return the names of the columns of a table that may answer."""
        ...

    def flags(self, batch: Batch, /) -> list[bool]:
        """Return whether each of the next samples, those of *batch*, is chosen."""
        ...

    def of_keys(self, keys: Sequence[bytes], /) -> list[bool]:
        """Return whether each of the next samples, which have *keys*, is chosen; asked only if `by_key`."""
        ...


class Outputs(NamedTuple):
    """Where the chosen samples go, and the others, if anywhere."""

    output: cli.Output
    rest: str | None

    @property
    def destinations(self) -> list[Destination]:
        """The shards to write: first that of the chosen samples."""
        found = [self.output.destination]
        if self.rest is not None:
            found.append(Destination(self.rest, self.output.force, self.output.gzip))
        return found


def check_rest(rest: str, output: cli.Output, inputs: Sequence[str]) -> None:
    """Check the output *rest* before anything is read. Raises: UsageError if it is *output* too; as `check_output`."""
    storage.check_output(rest, output.force, inputs)
    if same_file(rest, output.url):
        raise UsageError("-o and --rest are one file", url=rest)


def same_file(one: str, other: str) -> bool:
    """Tell whether both outputs are one file, or one object."""
    both = Url(one), Url(other)
    if all(url.is_local for url in both):
        return os.path.realpath(both[0].removeprefix("file:")) == os.path.realpath(both[1].removeprefix("file:"))
    return both[0] == both[1]


def write(
    urls: Sequence[str], wanted: Chooser, outputs: Outputs, verbatim: bool, account: Account, reading: Reading
) -> None:
    """Write the samples of *urls* that *wanted* chooses, and the others, to *outputs*."""
    columns = wanted.columns(verbatim)
    names = [is_table_name(each.url) for each in outputs.destinations]
    if any(names):
        if outputs.output.gzip:
            raise UsageError("-z excludes an OUTPUT that ends in .parquet")
        _write_rows(urls, wanted, columns, outputs, account, reading)
    elif urls and all(map(is_table_name, urls)) and _columns_tell(urls, columns, wanted):
        _write_rows(urls, wanted, columns, outputs, account, reading)
    else:
        plainly = reading._replace(ranges=not wanted.reads, listed=not wanted.by_key, columns=columns)
        write_samples(counted(read_batches(urls, account, plainly), account), wanted.flags, outputs, account)


def _columns_tell(urls: Sequence[str], columns: Sequence[str], wanted: Chooser) -> bool:
    """Tell whether all *urls* are tables, and *wanted* needs no sample, because they have *columns*."""
    from tartools.shards.listing import looks
    from tartools.tables import schema, source

    if wanted.asks is None or not all(found.first == schema.MAGIC for found in looks(urls).values()):
        return False
    needed = {*columns, schema.MEMBERS} if not wanted.by_key else {schema.KEY}
    for url in urls:
        with source.opened(url) as table:
            if not needed - {"__size__", "__index__"} <= {*table.names}:
                return False
    return True


def write_samples(
    batches: Iterable[Batch], flags: Callable[[Batch], Iterable[bool]], outputs: Outputs, account: Account
) -> None:
    """Write the samples of *batches* to *outputs*, as their *flags* say; in one pass."""
    with closing_upstream(batches), ExitStack() as stack:
        writers = _writers(outputs.destinations, stack)
        for batch in batches:
            for first, last, flag in runs(flags(batch)):
                writer = writers[flag]
                if writer is None:
                    account.left_out += last - first
                    continue
                if isinstance(batch, Listed):
                    for part in batch.batches(first, last):
                        writer.write_batch(part, 0, len(part))
                else:
                    writer.write_batch(batch, first, last)
                account.samples_out += last - first
        account.check()
        _finish(writers, account)


def _writers(destinations: Sequence[Destination], stack: ExitStack) -> dict[bool, Writer | None]:
    """Return the writers of *destinations*, by the flags of samples; *stack* commits the last one first."""
    opened = [stack.enter_context(shard_writer(each)) for each in destinations]
    return {True: opened[0], False: opened[1] if opened[1:] else None}


def _finish(writers: dict[bool, Writer | None], account: Account) -> None:
    """Write the ends of both outputs, before the first of them appears."""
    for flag in (False, True):
        writer = writers[flag]
        if writer is not None:
            writer.finish()
            account.bytes_out += writer.written


def _write_rows(
    urls: Sequence[str],
    wanted: Chooser,
    columns: Sequence[str],
    outputs: Outputs,
    account: Account,
    reading: Reading,
) -> None:
    """Write *outputs* from the rows of *urls*."""
    from tartools.shards import listing

    inputs = listing.listed(urls, account, listing.Indexing(reading._replace(forks=False), cli.workers(0)))
    write_rows(inputs, _flags(urls, inputs, wanted, columns, account, reading), outputs, account, reading)


def write_rows(inputs: Inputs, flags: Any, outputs: Outputs, account: Account, reading: Reading) -> None:
    """Write *outputs* from the rows of *inputs*, as *flags* say, an array. Tables list samples; shards get them."""
    from tartools.shards import listing
    from tartools.tables.writing import RowBatch

    account.samples_in += inputs.rows
    destinations = [
        listing.TableDestination(each.url, each.force, inputs) if is_table_name(each.url) else each
        for each in outputs.destinations
    ]
    with ExitStack() as stack:
        writers = _writers(destinations, stack)
        for flag, writer in writers.items():
            if writer is None:
                account.left_out += int((flags == flag).sum())
                continue
            rows = _chosen_rows(inputs, flags == flag, is_table_name(writer.url))
            batches: Iterator[Any] = map(RowBatch, rows)
            if not is_table_name(writer.url):
                batches = listing.samples_of(inputs, rows, account, reading._replace(ranges=True, listed=False))
            with closing_upstream(batches):
                for batch in batches:
                    writer.write_batch(batch, 0, len(batch))
                    account.samples_out += len(batch)
        account.check()
        _finish(writers, account)


def _chosen_rows(inputs: Inputs, flags: Any, whole: bool) -> Iterator[Any]:
    """Yield the rows of *inputs* whose *flags* are set: *whole*, or as `samples_of` takes them."""
    import numpy as np

    from tartools.shards.listing import PLACES
    from tartools.tables import order, schema

    pa = schema.arrow()
    first = 0
    for rows in inputs.batches(None if whole else PLACES):
        taken = np.flatnonzero(flags[first : first + len(rows)])
        if len(taken):
            kept = rows if len(taken) == len(rows) else rows.take(pa.array(taken))
            yield kept if whole else kept.append_column(order.ROW, pa.array(first + taken))
        first += len(rows)


def _flags(
    urls: Sequence[str], inputs: Inputs, wanted: Chooser, columns: Sequence[str], account: Account, reading: Reading
) -> Any:
    """Return whether *wanted* chooses each row of *inputs*, which are those of *urls*, as an array.

    Shards are read again if keys are not enough. Raises: StorageError if they have changed.
    """
    import numpy as np

    from tartools.tables import schema

    flags = np.zeros(inputs.rows, bool)
    first = 0
    found: Iterator[list[bool]]
    if wanted.by_key and all(schema.KEY in part.schema.names for part in inputs.parts):
        found = (wanted.of_keys(_keys(rows)) for rows in inputs.batches([schema.KEY]))
    else:
        again = Account(lambda _: None)  # what is to be said of the shards was said when they were indexed
        plainly = reading._replace(ranges=not wanted.reads, columns=columns)
        found = map(wanted.flags, read_batches(urls, again, plainly))
    with closing_upstream(found):
        for each in found:
            flags[first : first + len(each)] = each
            first += len(each)
    if first != inputs.rows:
        raise StorageError(f"the input has changed: it had {inputs.rows} samples, now {first}")
    return flags


def _keys(rows: Any) -> list[bytes]:
    """Return the keys of *rows*."""
    from tartools.tables import schema

    found = schema.raw(rows.column(0)).to_pylist()
    if None in found:
        raise StorageError("a table has rows without a key, and the conditions need them: tarindex makes it again")
    return found  # type: ignore[no-any-return]
