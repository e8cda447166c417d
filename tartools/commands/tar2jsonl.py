r"""Write samples as JSON lines.

Writes one JSON object per sample: __key__, then its fields in the order of the archive. A payload that is UTF-8 text is
a string, also if it holds JSON or a number; other payloads are {"@base64": "..."}. tarcreate makes the same samples of
the lines: keys, names and payloads come back byte for byte. For single values of fields, with types and columns, take
tar2tsv --jsonl: it writes what people and programs look at, and does not read back.

--refer writes for some fields where the payloads are, in place of the payloads: {"@url": "a.tar", "offset": 1536,
"size": 800}. tarcreate, and everyone who can read a range of a file, finds them there as long as the shard does not
change. It needs plain shards in files or object stores, or a table of such shards. The URL is that of the SHARD as it
was given, with its query.

A name that begins with @ or with two underscores gets a backslash in front: "\\@txt" is the field @txt. The name "" is
that of a member without a field, such as README. Keys and names that are not UTF-8 are an error, and so are two members
of one name. JSON lines have no end and no checksums: a file that was cut between two lines looks complete. A sample is
held in memory, with its payloads in base64. With the suffix of a codec (train.jsonl.gz, .zst ...), -o compresses.

Examples:
  Write captions and classes, and read them back:
    tar2jsonl -f 'txt cls' train.tar -o train.jsonl
    tarcreate train.jsonl -o captions.tar
  Write all but the pictures, which stay in the shards:
    tar2jsonl --refer jpg 'train-*.tar' -o train.jsonl
  Change a field with jq:
    tar2jsonl a.tar | jq -c '.cls = "5"' | tarcreate --format jsonl -o b.tar
"""

import os
from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option, process
from tartools.samples.account import Account
from tartools.shards.reading import Reading, closing_upstream, read_batches, read_samples
from tartools.stages import select
from tartools.storage.names.expand import expand
from tartools.tar import compression


@cli.command(__doc__)
def tar2jsonl(
    account: Account,
    source: cli.Inputs,
    wanted: cli.Fields,
    refer: Annotated[
        str | None,
        Option("--refer", metavar="NAMES", help="Write where the payloads of these fields are: 'jpg png'."),
    ] = None,
    url: cli.Url = "-",
    force: cli.Force = False,
) -> None:
    """Run the command."""
    from tartools.formats import jsonlwrite, tsv

    urls = expand(*source.named)
    storage.check_output(url, force, urls)
    reading = Reading(source.lax, source.skip_special)
    if refer is None:
        samples = read_samples(urls, account, reading)
    else:
        reading = reading._replace(ranges=True, plain=True, columns=(jsonlwrite.BEGIN,))
        batches = read_batches(urls, account, reading)
        jsonlwrite.check_places(urls)
        samples = jsonlwrite.referring(batches, refer, account, verbatim=wanted.verbatim)
    samples = select.by_specs(samples, wanted.fields, wanted.exclude, account, verbatim=wanted.verbatim)
    lines = jsonlwrite.lines(samples, account)
    with closing_upstream(samples), compression.writing(url, force) as sink:
        tsv.write_lines(map(process.printable, lines) if url == "-" and os.isatty(1) else lines, sink)
        account.check()
