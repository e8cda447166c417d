"""The input of a command: shards and tables as one data set. Begin reading at `DataSet.to`, then in `passes`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tartools.errors import UsageError
from tartools.shards.passes import Outputs, Pass, PassInputs, SamplePass
from tartools.shards.writing import NO_LIST
from tartools.tables.schema import is_table_name

if TYPE_CHECKING:
    from tartools.storage.checksums import OutputSums


class DataSet(PassInputs):
    """The inputs of a command, read as one data set: the samples of shards and tables, in the order of `urls`.

    `account`: gets counts and warnings. `reading`: how the inputs are read. `max_workers`: the most worker processes.
    `read_shards(urls, account, reading)`: reads shards ahead; None: they are read one after the other.
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

        `outputs`: URLs; None stands for an output that the user does not want. `force`: replace existing files. `gzip`:
        the option -z, compress shards. `changing`: option -> value; one with another value than None makes new samples,
        which a table can't list. `sums`: gets the checksum of each output once it has appeared.
        Raises: with a table among *outputs*: UsageError for *gzip*, for such an option, and for stdin or a command
        among the inputs; StorageError without pyarrow.
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
