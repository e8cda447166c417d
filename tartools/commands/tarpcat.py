"""Concatenate shards, reading several at once.

This is tarcat -p 4: it has the same options, and writes the same bytes for the same options and seed. Reading several
shards at once pays off for compressed and remote shards, and for commands (pipe:).

Shards that were read before their turn wait in memory, up to -M bytes in all. What does not fit goes to temporary files
without names, for at most N-1 shards. With --unordered, whole samples are written as they arrive, and nothing goes to
disk.

Examples:
  Decompress and join 148 shards, eight at a time:
    tarpcat -p 8 'train-{000..147}.tgz' -o train.tar
  Read four objects at once through a command, and shuffle the samples:
    tarpcat -p 4 'pipe:gsutil cat gs://bucket/train-{000..147}.tar' |
      tarsort -S shuffle -o shuffled.tar
  Tabulate the classes of all samples, where their order does not matter:
    tarpcat --unordered 'train-*.tgz' | tar2tsv -f cls -o classes.tsv
"""

from tartools import cli
from tartools.commands import _cat
from tartools.samples.account import Account


@cli.command(__doc__)
def tarpcat(
    account: Account,
    source: cli.Inputs,
    output: cli.Output,
    field_choice: cli.Fields,
    choice: _cat.SampleChoice,
    *,
    workers: cli.Parallel = 4,
    ahead: _cat.ReadAheadOptions,
) -> None:
    """Write the selected samples of *source* to *output*, as tarcat does, but read several shards at once.

    *field_choice*, *choice*: which fields and samples, and whether they are shuffled or get new keys. *workers*: number
    of shards to read at once, 0 for one per core. *ahead*: memory for that, and whether samples come in any order.
    Raises: TarToolsError.
    """
    _cat.cat(account, source, output, field_choice, choice, ahead, workers)
