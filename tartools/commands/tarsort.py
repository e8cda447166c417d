"""Sort the samples of shards, however many.

Reads all samples of each SHARD and writes them as one tar archive, sorted by key or by the field given by -s. The
sort is stable: samples with equal values keep their order, even with -r.

When sorting by key (the default), members with the same key become one sample, wherever they are in the inputs. If a
field would be duplicated, tarsort fails, unless -u says which one to keep; tarcat --rekey gives samples new keys. With
any other sort key, and with -S shuffle, a sample is a group of adjacent members, as for other commands.

-s takes FIELD, FIELD:path.in.json, __key__, __size__ (bytes in the archive) or __shard__. -S says how to compare:
text (by bytes), int (of any length), float, version (runs of digits as numbers, as sort -V does) or shuffle, which is
a random order that depends on --seed and on nothing else. The default is text, and int for __size__ and __index__.

With -u, one of several samples with equal values is kept; when sorting by key, one of several members with equal names.
Samples without a sort value are an error, unless --missing says where to put them. -r does not move them, and -u keeps
all of them.

An OUTPUT that ends in .parquet is a table, which lists the samples in order and moves none: see TABLES in tartools(7).
A table can't join rows with the same key, so these are an error; with -u one of several rows with equal fields is kept.
If all inputs are tables, and their columns have the sort values, samples are not read to sort them.

Sorting uses -M bytes of memory, and the process up to 100 MB more. Larger inputs need about 100 bytes of disk per
sample in --tmpdir, and a copy of all inputs that are not plain local files. Local inputs must not change while they
are sorted.

Examples:
  Sort an archive by key:
    tarsort train.tar > sorted.tar
  Shuffle all samples of 148 shards, and split the result into new shards:
    tarsort -S shuffle --seed 7 'train-{000..147}.tar' |
      tarsplit -s 1e9 -o shuffled
  Shuffle a table, to read a data set of any size in that order:
    tarsort -S shuffle train.parquet -o epoch.parquet
  Sort by class number:
    tarsort -s cls -S int photos.tgz -o by-class.tar
  Find the ten widest photos, by a value in JSON:
    tarsort -s meta.json:width -S int -r --missing last photos.tar |
      tarcat -c 10 > widest.tar
  Join images and labels from two archives:
    tarsort images.tar labels.tar -o both.tar
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, NamedTuple

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples import sortkeys
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.values import NUMERIC_NAMES, parse_column
from tartools.shards.dataset import DataSet
from tartools.shards.passes import Pass
from tartools.shards.reading import Reading, ShardPolicy, count_samples
from tartools.shards.workers import ShardTask, Tasks, gather
from tartools.stages import externalsort, sortrows, sortsamples
from tartools.stages.samplefiles import Identities, SampleFiles
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.tables.inputs import RowInputs

MIN_MEMORY_BYTES = 1 << 16  # bytes; with less, sorting does little but merging


def parse_memory(text: str) -> int:
    """Convert *text* to a number of bytes, such as 64M. Raises: ValueError for less than 64K, or no number of bytes."""
    size = cli.byte_size(text)
    if size < MIN_MEMORY_BYTES:
        raise ValueError(f"{text} is too little to sort with; 64K is the least")
    return size


class Sorting(cli.Group):
    """Options for the order, and for memory and temporary files.

    Attributes:
      sortkey: value to sort by, a column.
      sorttype: how values compare; None: as int for `__index__` and `__size__`, as text for all other columns.
      reverse: descending order.
      unique: which of equal samples is kept: "first", "last"; None: all.
      missing: where samples without the value go; None: an error.
      seed: of a shuffle.
      verbatim: match case, keep final newlines.
      memory, tmpdir: bytes of memory, folder of temporary files.
    """

    sortkey: Annotated[
        str, Option("-s --sort-key FIELD", "Sort by this field, such as cls or meta.json:width.", aliases="--sortkey")
    ] = "__key__"
    sorttype: Annotated[
        sortkeys.Kind | None, Option("-S --sort-type", "How to compare values.", default="text", aliases="--sorttype")
    ] = None
    reverse: Annotated[bool, Option("-r --reverse", "Sort in descending order.")] = False
    unique: Annotated[
        sortkeys.End | None,
        Option("-u --unique", "Keep only the first, or only the last, of several samples with equal values."),
    ] = None
    missing: Annotated[
        sortkeys.End | None,
        Option("--missing", "Put samples without the field first, or last; otherwise they are an error."),
    ] = None
    seed: cli.Seed = 0
    verbatim: cli.Verbatim = False
    memory: Annotated[
        int,
        Option(
            "-M --memory BYTES",
            "Memory for sorting, 64K or more, such as 64M or 1e9.",
            parser=parse_memory,
            default="256M",
        ),
    ] = sortsamples.DEFAULT_SORT_MEMORY
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarsort(account: Account, source: cli.Inputs, output: cli.Output, sorting: Sorting) -> None:
    """Write the samples of *source* to *output* in the order that *sorting* says. Raises: TarToolsError."""
    order = make_order(sorting)
    urls = source.urls()
    storage.check_output(output.url, output.force, urls)
    reading = Reading(source.strictness, tmpdir=sorting.tmpdir)
    run = DataSet(urls, account, reading, cli.implicit_workers()).to(
        [output.url], output.force, output.gzip, sums=output.checksums
    )
    run.sort(CommandSorter(order, urls, account, reading, sorting.memory))


class CommandSorter(NamedTuple):
    """Sorts samples for `Pass.sort`: by rows of a table, or by reading the shards.

    For a table as output, it calls `positions`, which gives row numbers; if that returns None, `positions_by_samples`.
    For a shard, it calls `positions` if all inputs are tables; if they are not, or that returns None or raises
    UnsortableRowsError, `batches`, which reads the samples.

    Attributes:
      order: the order.
      urls, reading: the inputs, and how they are read.
      account: counts the samples.
      memory: bytes of memory for sorting.
    """

    order: sortkeys.Order
    urls: Sequence[str]
    account: Account
    reading: Reading
    memory: int

    @property
    def needs_values(self) -> bool:
        """True if the order depends on values of samples: it is not a shuffle."""
        return self.order.kind != "shuffle"

    def positions(self, inputs: "RowInputs", account: Account) -> Iterator[int] | None:
        """Return the row numbers of *inputs* in order, by values in columns; None if columns lack the values.

        Counts the samples in *account* as read, unless it returns None. The iterator raises UnsortableRowsError if,
        sorted by key, a row has no key, or several rows have one key (rows that list no field may), unless
        `order.unique` is set and their fields are listed and equal; SampleError if a value is not of its kind, missing
        without `order.missing`, or missing in all rows.
        """
        return sortrows.positions_by_columns(inputs, self.order, account, self.memory, self.reading.tmpdir)

    def positions_by_samples(self, run: Pass[int], inputs: "RowInputs") -> Iterator[int]:
        """Return the row numbers of *inputs* in order, by values that are read from the samples of *run*.

        Counts the samples in the account of *run* as read. The iterator raises UnsortableRowsError if, sorted by key,
        several rows have one key; SampleError if a value is not of its kind, missing without `order.missing`, or
        missing in all samples; the errors of reading samples.
        """
        return sortrows.positions_by_samples(run, inputs, self.order, self.memory)

    def batches(self) -> Iterator[Batch]:
        """Return batches of the samples in order; sort records of their keys or values first, then copy samples.

        Sorted by key, members of one key become one sample. With `order.unique`, one sample of each value is kept.
        Counts the samples in `account` as read. The iterator raises SampleError for a value that is not of its kind,
        missing without `order.missing`, or missing in all samples, and for a field twice without `order.unique`, if
        sorted by key; StorageError, also if a file has changed meanwhile; TarFormatError.
        """
        order, account, tmpdir = self.order, self.account, self.reading.tmpdir
        is_from_keys = sortkeys.make_key_encoder(order) is not None  # else values are read
        need = Need.FIELDS if is_from_keys else Need.PAYLOADS
        policy = ShardPolicy(ignore_repeated_keys=order.by_key)
        reading = Reading(self.reading.strictness, need, self.reading.tmpdir, policy=policy)
        files = SampleFiles(tmpdir, self.urls)
        max_workers = 1 if order.by_position else cli.implicit_workers()

        def work(task: ShardTask[Identities]) -> Iterator[bytes]:
            """Yield sort records of the samples of *task*, in blocks of bytes; count the samples as read."""
            task.batches = count_samples(task.batches, account)
            return sortsamples.index_blocks(task, order, files)

        tasks = gather(self.urls, account, reading, work, max_workers=max_workers, plain=True)
        records = externalsort.unpack_blocks(record_blocks(tasks, files, account))
        return sortsamples.sort_batches(records, order, account, files, memory=self.memory, tmpdir=tmpdir)


def record_blocks(tasks: Tasks[Identities], files: SampleFiles, account: Account) -> Generator[bytes, None, None]:
    """Yield the sort records that *tasks* made, in blocks of bytes; note which files were read in *files*.

    Before and after it sets the phase of the progress: reading, writing.
    """
    account.progress.phase = Phase("reading")
    with closing(tasks):
        for task in tasks:
            yield from task.output
            files.add_identities(task.result)
    account.progress.phase = Phase("writing", account.samples_in, lambda: account.samples_done)


def make_order(sorting: Sorting) -> sortkeys.Order:
    """Return the order that the options *sorting* describe.

    Raises: UsageError if -S shuffle is given with -s, -u or --missing, or -s is no column (`parse_column`).
    """
    kind, key = sorting.sorttype, sorting.sortkey
    if kind == "shuffle" and (key != "__key__" or sorting.unique or sorting.missing):
        raise UsageError("-S shuffle does not look into samples: leave out -s, -u and --missing")
    column = parse_column(key)
    if kind is None:
        kind = "int" if column.choices[0] in NUMERIC_NAMES else "text"
    return sortkeys.Order(
        column, kind, sorting.reverse, sorting.unique, sorting.missing, sorting.seed, sorting.verbatim
    )
