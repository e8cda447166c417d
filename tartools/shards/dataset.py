"""The input of a command: shards and tables as one data set. Begin reading at `DataSet.to`, then in `passes`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tartools.errors import UsageError
from tartools.shards.passes import Outputs, Pass, PassInputs, SamplePass
from tartools.shards.writing import NO_LIST
from tartools.storage.outputformats import is_table_name

if TYPE_CHECKING:
    from tartools.storage.checksums import OutputSums


class DataSet(PassInputs):
    """The inputs of a command as one data set: the samples of shards and tables, in the order of `urls`.

    `to(outputs)` returns the pass that reads them. `urls`: shards and tables; no wildcards.
    `account`: gets counts and warnings. `reading`: how the inputs are read. `max_workers`: limit of worker processes.
    `read_shards(urls, account, reading)`: returns an iterator of batches for each shard, reading later shards ahead;
    None: they are read one after the other.
    """

    __slots__ = ()

    def to(
        self,
        outputs: Sequence[str | None] = (),
        force: bool = False,
        gzip: bool = False,
        changing: Mapping[str, object] | None = None,
        sums: "OutputSums | None" = None,
    ) -> Pass[Any]:
        """Return the pass from these inputs to *outputs*: a `RowPass` if one names a table, else a `SamplePass`.

        Reads nothing, and opens no output.
        `outputs`: URLs, () for a pass that only reads; None stands for an output that the user does not want. `force`:
            replace existing files. `gzip`: the option -z, compress shards. `sums`: gets the checksum of each output
            once it has appeared; None: none is computed.
        `changing`: option -> value, for options that make new samples, which a table can't list; those that are not
            given have the value None.
        Raises: with a table among *outputs*: UsageError for *gzip*, for an option of `changing` that is given, and for
        stdin or a command among the inputs; StorageError without pyarrow.
        """
        sinks = Outputs(outputs, force, gzip, sums)
        if not any(url is not None and is_table_name(url) for url in outputs):
            return SamplePass(self, sinks)
        if gzip:
            raise UsageError("-z excludes an OUTPUT that ends in .parquet")
        for option, value in (changing or {}).items():
            if value is not None:
                raise UsageError(f"{NO_LIST}: {option} excludes an OUTPUT that ends in .parquet")
        from tartools.shards.rowpass import RowPass  # with tables, for which pyarrow is imported

        return RowPass(self, sinks)
