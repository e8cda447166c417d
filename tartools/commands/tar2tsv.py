r"""Write fields of samples as a table.

Writes one row a sample, as tab-separated values with a header. The first column is the key; -f names the others:
FIELD, 'a;b' (the first of these that the sample has), NEW=FIELD, FIELD:path.into.json, or one of __key__,
__shard__, __index__ (from 0, over all shards) and __size__ (bytes in the archive). Without -f there are only keys.

A field is UTF-8 text, without one final newline unless --verbatim. In TSV, tab, newline, carriage return and
backslash are written as \t \n \r \\, in CSV they are quoted. In JSON lines, values inside JSON fields keep their
type. A sample that lacks a value is a failure unless --missing says what to write; a column for which no sample
had a value always is one.

Examples:
  tar2tsv -f cls small.tar
  tar2tsv -f 'cls meta.json:width' --missing NA 'train-*.tar' > labels.tsv
  tar2tsv --nokey --noheader -f cls train.tar | sort | uniq -c
  tar2tsv --verbatim -f 'txt cls' a.tar | tarcreate > b.tar
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from tartools import cli, pieces, shards, storage
from tartools.account import Account
from tartools.errors import UsageError
from tartools.sample import Batch
from tartools.stages import table
from tartools.values import INDEX


@cli.group
class Layout(NamedTuple):
    """What the table looks like."""

    fields: Annotated[
        list[str] | None,
        typer.Option("-f", "--fields", metavar="SPEC", help="The columns: words 'a;b', 'NEW=a' or 'FIELD:json.path'."),
    ] = None
    nokey: Annotated[bool, typer.Option("--nokey", help="No column for the key.")] = False
    noheader: Annotated[bool, typer.Option("--noheader", help="No line with the names of the columns.")] = False
    csv: Annotated[bool, typer.Option("--csv", help="Write comma-separated values (RFC 4180).")] = False
    jsonl: Annotated[bool, typer.Option("--jsonl", help="Write one JSON object a line.")] = False
    missing: Annotated[
        str | None, typer.Option("--missing", metavar="STR", help="Write STR where a sample lacks a value.")
    ] = None
    verbatim: cli.Verbatim = False


@cli.group
class TextOutput(NamedTuple):
    """Where the table goes."""

    url: cli.Url = "-"
    force: cli.Force = False


@cli.command(__doc__)
def tar2tsv(
    account: Account,
    source: cli.Inputs,
    layout: Layout,
    output: TextOutput,
    first: cli.Count = None,
) -> None:
    """Run the command."""
    if layout.csv and layout.jsonl:
        raise UsageError("--csv and --jsonl exclude each other")
    columns = table.parse_columns(layout.fields or (), key=not layout.nokey)
    form = "csv" if layout.csv else "jsonl" if layout.jsonl else "tsv"
    shape = table.Layout(columns, form, not layout.noheader, layout.missing, layout.verbatim)
    urls = storage.expand(*source.named)
    storage.check_output(output.url, output.force, urls)
    reading = shards.Reading(source.lax, source.skip_special, forks=True)
    one_by_one = first is not None or any(INDEX in column.choices for column in columns)
    most = 1 if one_by_one else min(cli.workers(0), pieces.WORKERS)

    def rows(batches: Iterator[Batch], _turn: pieces.Turn) -> table.Rows:
        return table.rows(shards.each(batches, account), shape, account, first)

    unseen = table.Unseen(shape)
    parts = pieces.in_pieces(urls, account, reading, rows, pieces.Plan(most), unseen.add)
    with shards.closing_upstream(parts), storage.writing(output.url, output.force) as sink:
        table.write_lines(table.lines(parts, shape), sink)
        unseen.check()
