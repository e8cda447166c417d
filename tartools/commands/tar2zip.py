r"""Write samples to a zip file.

Reads the samples of each SHARD, or those listed in a table, and writes their members to one zip file, in order.
Payloads are stored uncompressed; --deflate compresses each of them, which makes text smaller, but not pictures.
tarcreate --zip makes samples from a zip file again, with the same names and payloads.

All members have mode 0644 and the date 1980-01-01, so that the same samples give the same bytes. The file has 64-bit
sizes where it needs them. Duplicate names are an error, and so is a name that is not UTF-8.

A member larger than 16 MiB is held in a temporary file. The directory at the end of the file needs about 500 bytes of
memory per member.

Examples:
  Make a zip file from shards:
    tar2zip 'train-*.tar' -o train.zip
  Compress captions:
    tar2zip --deflate captions.tar -o captions.zip
  Write the pictures of the first 100 samples:
    tar2zip -f 'jpg;png' -c 100 'train-*.tar' -o some.zip
  Write 1,000 random samples of a table, without making a shard first:
    tarcat --shuffle 10000 -c 1000 train.parquet |
      tar2zip -o s3://bucket/some.zip
"""

from functools import partial
from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.commands._export import ExportOutput, SampleSelection, export
from tartools.samples.account import Account
from tartools.storage.outputformats import ZIP


@cli.command(__doc__)
def tar2zip(
    account: Account,
    source: cli.Inputs,
    selection: SampleSelection,
    output: ExportOutput,
    deflate: Annotated[bool, Option("--deflate", "Compress each member.")] = False,
) -> None:
    """Write the chosen members of the samples of *source* to the zip file *output*, in order.

    *selection*: the fields to write, and how many samples; a sample without any of these fields is left out. *deflate*:
    compress each member. The exit status is 0, but 1 after an omission, such as a link in a shard. Raises:
    TarToolsError, such as SampleError for a duplicate name, or one that a zip file can't hold.
    """
    from tartools.formats.zipfiles import write_zip

    write = partial(write_zip, account=account, deflate=deflate)
    export(account, source, output, ZIP, write, selection, selection.fields)
