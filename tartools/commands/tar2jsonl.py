r"""Write samples as JSON lines.

Writes one JSON object per sample: __key__, then its fields in the order of the archive. A payload of UTF-8
text is a string, even if it holds JSON or a number; other payloads are {"@base64": "..."}. tarcreate makes the same
samples from the lines: keys, names and payloads come back byte for byte. For single values of fields, with types and
columns, use tar2tsv --jsonl: its lines are for people and programs that read values, and can't be read back.

A name that begins with @ or with two underscores gets a backslash in front: "\\@txt" is the field @txt. The name ""
stands for a member without a field, such as README. Keys and names that are not UTF-8 are an error, and so are
duplicate names. JSON lines have no end marker and no checksums: a file truncated between two lines looks complete. A
sample is held in memory, with its payloads in base64. With the suffix of a codec (train.jsonl.gz, .zst ...), -o
compresses.

Examples:
  Write captions and classes, and read them back:
    tar2jsonl -f 'txt cls' train.tar -o train.jsonl
    tarcreate train.jsonl -o captions.tar
  Write all but the pictures:
    tar2jsonl -x jpg 'train-*.tar' -o train.jsonl
  Change a field with jq:
    tar2jsonl a.tar | jq -c '.cls = "5"' | tarcreate --format jsonl -o b.tar
"""

from collections.abc import Iterator

from tartools import cli
from tartools.commands._export import ExportOutput, SampleSelection, export, write_readable
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.storage.outputformats import JSON_LINES
from tartools.storage.streams import Sink


@cli.command(__doc__)
def tar2jsonl(account: Account, source: cli.Inputs, selection: SampleSelection, output: ExportOutput) -> None:
    """Write the samples of *source* to *output*, one JSON object per line.

    *selection*: the fields to write, and how many samples; a sample without any of these fields is left out. The exit
    status is 0, but 1 after an omission, such as a link in a shard. Raises: TarToolsError, such as SampleError for a
    name that is not UTF-8, a field twice, and a key that tarcreate would refuse or take for the one before.
    """
    from tartools.formats import jsonl

    def write(samples: Iterator[Sample], sink: Sink) -> None:
        """Write *samples* to *sink*, one JSON object per line; on a terminal, control characters are escaped."""
        write_readable(jsonl.json_lines(samples, account), sink, output)

    export(account, source, output, JSON_LINES, write, selection, selection.fields)
