r"""Write samples as JSON lines.

Writes one JSON object per sample: __key__, then its fields in the order of the archive. A payload that is UTF-8 text is
a string, also if it holds JSON or a number; other payloads are {"@base64": "..."}. tarcreate makes the same samples of
the lines: keys, names and payloads come back byte for byte. For single values of fields, with types and columns, take
tar2tsv --jsonl: it writes what people and programs look at, and does not read back.

A name that begins with @ or with two underscores gets a backslash in front: "\\@txt" is the field @txt. The name "" is
that of a member without a field, such as README. Keys and names that are not UTF-8 are an error, and so are two members
of one name. JSON lines have no end and no checksums: a file that was cut between two lines looks complete. A sample is
held in memory, with its payloads in base64. With the suffix of a codec (train.jsonl.gz, .zst ...), -o compresses.

Examples:
  Write captions and classes, and read them back:
    tar2jsonl -f 'txt cls' train.tar -o train.jsonl
    tarcreate train.jsonl -o captions.tar
  Write all but the pictures:
    tar2jsonl -x jpg 'train-*.tar' -o train.jsonl
  Change a field with jq:
    tar2jsonl a.tar | jq -c '.cls = "5"' | tarcreate --format jsonl -o b.tar
"""

import os

from tartools import cli, storage
from tartools.cli import process
from tartools.samples.account import Account
from tartools.shards.reading import Reading, closing_upstream, read_samples
from tartools.stages import select
from tartools.storage.names.expand import expand
from tartools.tar import compression


@cli.command(__doc__)
def tar2jsonl(
    account: Account,
    source: cli.Inputs,
    wanted: cli.Fields,
    url: cli.Url = "-",
    force: cli.Force = False,
) -> None:
    """Run the command."""
    from tartools.formats import jsonlwrite, tsv

    urls = expand(*source.named)
    storage.check_output(url, force, urls)
    samples = read_samples(urls, account, Reading(source.lax, source.skip_special))
    samples = select.by_specs(samples, wanted.fields, wanted.exclude, account, verbatim=wanted.verbatim)
    lines = jsonlwrite.lines(samples, account)
    with closing_upstream(samples), compression.writing(url, force) as sink:
        tsv.write_lines(map(process.printable, lines) if url == "-" and os.isatty(1) else lines, sink)
        account.check()
