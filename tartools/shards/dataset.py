"""What a command reads: shards and tables as one data set. Begin reading at `DataSet.to`, then in `passes`."""

from collections.abc import Mapping, Sequence
from typing import Any

from tartools.errors import UsageError
from tartools.shards.passes import Outputs, Pass, PassInputs, SamplePass
from tartools.shards.writing import NO_LIST
from tartools.tables.schema import is_table_name


class DataSet(PassInputs):
    """The samples of some shards and tables: see `PassInputs`."""

    __slots__ = ()

    def to(
        self,
        outputs: Sequence[str | None] = (),
        force: bool = False,
        gzip: bool = False,
        changing: Mapping[str, object] | None = None,
    ) -> Pass[Any]:
        """Return the pass for *outputs*: over rows if one has the name of a table, otherwise over samples.

        No other place decides that. *changing*: options, with their values, that make new samples, which no table can
        list. Raises: UsageError for these, for *gzip*, and for stdin and commands among the inputs of a table;
        StorageError without pyarrow.
        """
        sinks = Outputs(outputs, force, gzip)
        if not any(url is not None and is_table_name(url) for url in outputs):
            return SamplePass(self, sinks)
        if gzip:
            raise UsageError("-z excludes an OUTPUT that ends in .parquet")
        for option, value in (changing or {}).items():
            if value is not None:
                raise UsageError(f"{NO_LIST}: {option} excludes an OUTPUT that ends in .parquet")
        from tartools.shards.rowpass import RowPass  # with tables, for which pyarrow is imported

        return RowPass(self, sinks)
