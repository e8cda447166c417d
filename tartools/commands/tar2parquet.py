r"""Write samples to a Parquet file, payloads included.

Reads the samples of each SHARD, or those that a table lists, and writes a row for each: the key as __key__, and a
column for each field. pandas, Polars, DuckDB and Hugging Face's `datasets` read such a file; load_dataset("parquet",
data_files="train.parquet") gives pictures as pictures. tarcreate --parquet makes samples from it again. (A table, which
tarindex makes, is a Parquet file too, but only says where samples are.)

The last part of a field's name says what its column is; tartools(7) lists these suffixes. Pictures (jpg, png ...) and
sounds (flac, wav ...) are structs of `bytes` and `path`, which `datasets` calls Image and Audio; the path is the name
of the member. Text (cls, json, txt ...) is a string, and has to be UTF-8. Everything else is bytes. --binary makes
columns of plain bytes, also of pictures and text. A payload is stored as it is, with its final newline. A sample that
lacks a field has null.

-f names the columns: FIELD, 'a;b' (the first of these that the sample has), NEW=FIELD. A column with a new name is
called and read as that name says, if that says what it is; else as the field says, so 'image=jpg;png' has pictures.
Without -f there is a column for each field that samples of the first row group have; a field that only comes later is
an error. Columns are in the order of -f, else in that of the members. Samples without any of the fields are left out.

A row group has 32 MiB of payloads, or 65,536 rows; memory is some 300 MB. Pages have checksums. Text and bytes are
compressed by zstd, pictures and sounds are not. The same samples give the same bytes (with one version of pyarrow).

Examples:
  Make a Parquet file from shards:
    tar2parquet 'train-*.tar' -o train-00000.parquet
  Name pictures and labels as many data sets on Hugging Face do:
    tar2parquet -f 'image=jpg;png label=cls' train.tar -o train.parquet
  Make one file of each shard, four at a time:
    tarjob -p 4 -s '{000..147}' -- tar2parquet train-{}.tar \
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
    """Run the command."""
    from tartools.formats.parquetwrite import ParquetLayout, write_parquet
    from tartools.tables import schema

    words = select.parse_words(selection.fields)
    if selection.fields is not None and not words:
        raise UsageError("-f names no field")
    layout = ParquetLayout(words or None, " ".join(binary or ()).split(), selection.verbatim)
    write = partial(write_parquet, account=account, layout=layout)
    export(account, source, output, PARQUET, write, selection, check=schema.check_pyarrow)
