r"""Write fields of samples as a table.

Writes one row per sample, as tab-separated values with a header. The first column is the key; -f names the others:
FIELD, 'a;b' (the first of these that the sample has), NEW=FIELD, FIELD:path.into.json, or one of __key__,
__shard__, __index__ (from 0, over all shards) and __size__ (bytes in the archive). Without -f there are only keys.

A field is UTF-8 text, without one final newline unless --verbatim. In TSV, tab, newline, carriage return and
backslash are written as \t \n \r \\; in CSV they are quoted. In JSON lines, values from JSON fields keep their
type. A sample that lacks a value is an error, unless --fill says what to write; a column without any value is
always an error.

For samples listed in a table, values come from the column of the same name (cls, json:width, 'a;b'), even if no shard
has such a field. If all values are in columns, no shard is read. null is a missing value, and bytes are written in hex.
--verbatim writes the values in the shards.

--jsonl is for inspecting values: it has the columns of -f. tar2jsonl(1) writes whole samples, pictures too, and
tarcreate makes the same samples from its lines. With the suffix of a codec (labels.tsv.gz, .zst ...), -o compresses.

For tarcreate, a column @NAME holds paths of files to read. So a field whose name begins with @ gets the column \@NAME,
in TSV \\@NAME, which tarcreate reads as the field @NAME.

Examples:
  Print the class of each sample:
    tar2tsv -f cls small.tar
  Write labels and widths to a file, with NA for missing values:
    tar2tsv -f 'cls meta.json:width' --fill NA 'train-*.tar' > labels.tsv
  Count the samples of each class:
    tar2tsv --no-key --no-header -f cls train.tar | sort | uniq -c
  List the scores that a table has:
    tar2tsv -f score --fill '' train.parquet
  Copy two fields to a new archive:
    tar2tsv --verbatim -f 'txt cls' a.tar | tarcreate > b.tar
"""

from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.commands._export import ExportOutput, write_readable
from tartools.errors import UsageError
from tartools.formats import packed, textwrite
from tartools.samples.account import Account, Phase
from tartools.samples.values import INDEX_NAME
from tartools.shards.reading import Reading, close_at_end
from tartools.shards.workers import ShardTask, gather, outputs
from tartools.storage.outputformats import CSV, JSON_LINES, TSV
from tartools.tables.listed import column_names

TEXT_FORMATS = {"tsv": TSV, "csv": CSV, "jsonl": JSON_LINES}


class TableOptions(cli.Group):
    """Options for the columns and the format of the rows.

    Attributes:
      fields: texts of -f, the columns besides the key, such as "cls json:width"; None: only the key.
      nokey, noheader: write no column __key__, no line of names. JSON lines have no such line.
      csv, jsonl: the format; TSV if both are False.
      missing: text to write where a sample lacks a value (--fill); None: that is an error.
      verbatim: match case, keep final newlines.
    """

    fields: Annotated[
        list[str] | None,
        Option(
            "-f --fields SPEC",
            "Columns, in quotes: 'cls meta.json:width'. 'a;b' takes the first that exists, 'new=old' renames.",
        ),
    ] = None
    nokey: Annotated[bool, Option("--no-key", "Write no column __key__.", aliases="--nokey")] = False
    noheader: Annotated[
        bool, Option("--no-header", "Write no line with the names of the columns.", aliases="--noheader")
    ] = False
    csv: Annotated[bool, Option("--csv", "Write comma-separated values (RFC 4180).")] = False
    jsonl: Annotated[bool, Option("--jsonl", "Write one JSON object per line.")] = False
    missing: Annotated[
        str | None,
        Option(
            "--fill STR", "Write STR where a sample lacks a value; otherwise that is an error.", aliases="--missing"
        ),
    ] = None
    verbatim: cli.Verbatim = False


@cli.command(__doc__)
def tar2tsv(
    account: Account,
    source: cli.Inputs,
    table: TableOptions,
    output: ExportOutput,
    first: cli.Count = None,
) -> None:
    """Write a row with the chosen columns for each sample of *source* to *output*, as TSV, CSV or JSON lines.

    *table*: columns and format. *first*: number of samples to write; None: all. The exit status is 0, but 1 after
    an omission, such as a link in a shard. Raises: TarToolsError, such as UsageError for options that exclude each
    other; SampleError for a value that is missing (without --fill) or not text, and a column without any value.
    """
    if table.csv and table.jsonl:
        raise UsageError("--csv and --jsonl exclude each other")
    columns = textwrite.parse_columns(table.fields or (), key=not table.nokey)
    form = "csv" if table.csv else "jsonl" if table.jsonl else "tsv"
    shape = textwrite.TableFormat(columns, form, not table.noheader, table.missing, table.verbatim)
    urls = source.urls()
    storage.check_output(output.url, output.force, urls, form=TEXT_FORMATS[form])
    listed = () if table.verbatim else column_names(columns)
    one_by_one = first is not None or any(INDEX_NAME in column.choices for column in columns)
    reading = Reading(source.strictness, columns=listed, uniform=not one_by_one)
    max_workers = 1 if one_by_one else cli.implicit_workers()

    def rows(task: ShardTask[textwrite.EmptyColumns]) -> Iterator[bytes]:
        """Yield the encoded rows of *task*, *first* at most, one or more in an item; set `task.result` at the end.

        The result: the columns that had no value in these rows.
        """
        with close_at_end(task.batches):
            task.result = yield from textwrite.make_lines(task.batches, shape, account, first)

    if first is not None:
        account.progress.phase = Phase("", first, lambda: account.samples_out)
    empty: list[textwrite.EmptyColumns] = []
    lines = outputs(gather(urls, account, reading, rows, max_workers=max_workers), empty)
    with closing(lines), packed.open_packed_sink(output.url, output.force) as sink:
        write_readable(textwrite.add_header(lines, shape), sink, output)
        textwrite.check_columns(shape, empty)
        account.check()
