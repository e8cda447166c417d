r"""Write samples to a Parquet file, payloads included.

Reads the samples of each SHARD, or those listed in a table, and writes a row for each: the key as __key__, and a
column for each field. pandas, Polars, DuckDB and Hugging Face's `datasets` read such a file; load_dataset("parquet",
data_files="train.parquet") gives pictures as pictures. tarcreate --parquet turns it back into samples. (A table
made by tarindex is a Parquet file too, but it only lists samples that are in shards.)

The last part of a field's name sets the type of its column; tartools(7) lists these suffixes. Pictures (jpg, png ...)
and sounds (flac, wav ...) are structs of `bytes` and `path`, called Image and Audio in `datasets`; the path is the name
of the member. Text (cls, json, txt ...) is a string, and must be UTF-8. Everything else is bytes. --binary makes
columns of plain bytes, even for pictures and text. A payload is stored unchanged, with its final newline. A missing
field is null.

-f names the columns: FIELD, 'a;b' (the first of these that the sample has), NEW=FIELD. The type
of a renamed column follows from the new name if that has a known suffix, otherwise from the field: 'image=jpg;png' has
pictures. Without -f there is a column for each field in the first row group; a field that appears later is an error.
Columns are in the order of -f, otherwise of the members. Samples without any of the fields are left out.

A row group has 32 MiB of payloads, or 65,536 rows; the command needs about 300 MB of memory. Pages have checksums. Text
and bytes are compressed by zstd, pictures and sounds are not. The same samples give the same bytes (with one version of
pyarrow).

Examples:
  Make a Parquet file from shards:
    tar2parquet 'train-*.tar' -o train-00000.parquet
  Name pictures and labels like many data sets on Hugging Face:
    tar2parquet -f 'image=jpg;png label=cls' train.tar -o train.parquet
  Make one file for each shard, four at a time:
    tarjob -p 4 --spec '{000..147}' -- tar2parquet train-{}.tar \
      -o train-{}.parquet
"""

from functools import partial
from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.commands._export import ExportOutput, SampleSelection, export
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.stages import select
from tartools.storage.outputformats import PARQUET


@cli.command(__doc__)
def tar2parquet(
    account: Account,
    source: cli.Inputs,
    selection: SampleSelection,
    output: ExportOutput,
    binary: Annotated[
        list[str] | None, Option("--binary NAMES", "Columns to store as plain bytes, in quotes: 'jpg txt'.")
    ] = None,
) -> None:
    """Write the samples of *source* to the Parquet file *output*, a row for each, payloads included.

    *selection*: the fields to write, and how many samples; a sample without any of these fields is left out. *binary*:
    texts of names of columns, separated by blanks, to store as plain bytes; None: none. The exit status is 0, but 1
    after an omission, such as a link in a shard. Raises: TarToolsError, such as SampleError for a sample that does not
    fit the columns (a field that appears after the first row group, text that is not UTF-8), for a word of -f that no
    sample has a field for, and a name in *binary* that is no column.
    """
    from tartools.formats.parquetwrite import ParquetLayout, write_parquet
    from tartools.tables import schema

    words = select.parse_words(selection.fields)
    if selection.fields is not None and not words:
        raise UsageError("-f names no field")
    layout = ParquetLayout(words or None, " ".join(binary or ()).split(), selection.verbatim)
    write = partial(write_parquet, account=account, layout=layout)
    export(account, source, output, PARQUET, write, selection, check=schema.check_pyarrow)
