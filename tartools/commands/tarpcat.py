"""Concatenate shards, several of them read at once.

Does what tarcat does, with the same options, and writes the same bytes for the same options and seed. Reading several
shards at once pays for compressed and remote shards, and for commands (pipe:).

Shards that were read before their turn wait in memory, up to -M bytes in all. What does not fit goes to temporary files
without names, for at most N-1 shards. With --unordered, whole samples are written as they arrive, and nothing goes to
disk.

Examples:
  Decompress and join 148 shards, eight at a time:
    tarpcat -p 8 'train-{000..147}.tgz' -o train.tar
  Read four objects at once through a command, and shuffle the samples:
    tarpcat -p 4 'pipe:gsutil cat gs://bucket/train-{000..147}.tar' | tarsort -S shuffle -o shuffled.tar
  Tabulate the classes of all samples, where their order does not matter:
    tarpcat --unordered 'train-*.tgz' | tar2tsv -f cls -o classes.tsv
"""

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.commands import _cat
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.samples.sample import Batch
from tartools.shards import prefetch
from tartools.shards.reading import Reading, check_shards, counted, each, one_by_one
from tartools.shards.writing import write_batches, write_samples
from tartools.stages import shuffle
from tartools.storage.names.expand import expand
from tartools.tar.compression import is_table_name

Unordered = Annotated[bool, Option("--unordered", help="Write samples as they arrive, in any order.")]


@cli.command(__doc__)
def tarpcat(
    account: Account,
    source: cli.Inputs,
    output: cli.Output,
    wanted: cli.Fields,
    choice: _cat.Choice,
    workers: cli.Parallel = 4,
    memory: cli.Memory = 256 << 20,
    unordered: Unordered = False,
    tmpdir: cli.TmpDir = None,
) -> None:
    """Run the command."""
    if unordered and choice.interleave:
        raise UsageError("--interleave and --unordered exclude each other")
    urls = _cat.order(expand(*source.named), choice)
    storage.check_output(output.url, output.force, urls)
    reading = Reading(source.lax, source.skip_special)
    most = cli.workers(workers)
    if is_table_name(output.url):
        _cat.write_table(urls, output, wanted, choice, account, reading._replace(tmpdir=tmpdir), most)
        return
    check_shards(urls, account)
    if unordered:
        with closing(prefetch.as_they_come(urls, account, reading, most)) as batches:
            write([batches], output, wanted, choice, account)
        return
    with closing(prefetch.read_ahead(urls, account, reading._replace(tmpdir=tmpdir), most, memory)) as shards:
        write(shards, output, wanted, choice, account)


def write(
    shards: Iterable[Iterator[Batch]], output: cli.Output, wanted: cli.Fields, choice: _cat.Choice, account: Account
) -> None:
    """Write the samples of *shards* that are *wanted*, as tarcat does."""
    if _cat.everything(choice, wanted):
        write_batches(counted(one_by_one(shards), account), output.destination, account)
        return
    samples = (each(batches, account) for batches in shards)
    chosen = shuffle.interleave(samples, choice.interleave) if choice.interleave else one_by_one(samples)
    write_samples(_cat.chosen(chosen, choice, wanted, account), output.destination, account)
