"""Make a table of the samples in shards.

Reads each SHARD, local or remote, and writes a Parquet file with a row for each sample: in which shard it is, at which
bytes, and where its members are. Every command reads such a table as it reads shards, and DuckDB, Polars, pandas and
Spark choose and order its rows. So a subset, an order or a mixture of a data set is a small file, not a copy.

The columns are __shard__, __version__ (of the shard), __index__ (number of the sample in its shard), __key__,
__begin__ and __end__ (bytes in the shard), and __members__ (offset and size of each field). -f adds columns of values:
FIELD, 'a;b' (the first of these that the sample has), NEW=FIELD, FIELD:path.in.json. The values of a column are whole
numbers if all of them are, else numbers, else text; values inside JSON keep their type.

A shard that lies below the directory of the table is named relative to it, so that both can be moved together. Shards
must not be compressed, since no part of a compressed shard can be read alone: tarcat a.tgz -o a.tar unpacks one.

Examples:
  Make a table of 148 shards, with the class of each sample:
    tarindex -f cls 'train-{000..147}.tar' -o train.parquet
  Choose samples by SQL, and read them:
    duckdb -c "COPY (FROM 'train.parquet' WHERE cls = 7) TO 'sevens.parquet'"
    tarcat sevens.parquet > sevens.tar
"""

from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.shards.reading import Reading, counted
from tartools.shards.writing import write_batches
from tartools.storage.names.expand import expand


class TableOutput(cli.Group):
    """The table to write."""

    url: Annotated[str, Option("-o", "--output", metavar="TABLE", help="File or URL to write; required.")] = ""
    force: cli.Force = False


@cli.command(__doc__)
def tarindex(
    account: Account,
    source: cli.Inputs,
    output: TableOutput,
    fields: Annotated[
        list[str] | None,
        Option("-f", "--fields", metavar="SPEC", help="Columns of values, in quotes: 'cls json:score'."),
    ] = None,
    parallel: cli.Parallel = 0,
    tmpdir: cli.TmpDir = None,
) -> None:
    """Run the command."""
    from tartools.shards import listing
    from tartools.tables import facts

    if not output.url:
        raise UsageError("-o TABLE is required")
    urls = expand(*source.named)
    storage.check_output(output.url, output.force, urls)
    columns = facts.columns(fields or ())
    wanted = facts.values(columns) if columns else None
    reading = Reading(source.lax, source.skip_special, tmpdir=tmpdir)
    indexing = listing.Indexing(reading, cli.workers(parallel), [column.name for column in columns], wanted)
    inputs = listing.listed(urls, account, indexing)
    destination = listing.TableDestination(output.url, output.force, inputs)
    write_batches(counted(listing.row_batches(inputs), account), destination, account)
