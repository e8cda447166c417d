"""Concatenate shards.

Reads the samples of each SHARD in turn and writes them as one tar archive. Without an option that selects, the
members of the output are byte for byte those of the input.

Whatever their order on the command line, these work one after the other: --shuffle on the list of shards,
--interleave, --skip or --slice (both count samples read), -f and -x, --shuffle on samples, -c (counts samples
written), --rekey.

Examples:
  tarcat a.tar b.tar > ab.tar
  tarcat 'train-{000..147}.tgz' -o train.tar
  curl -s https://host/photos.tgz | tarcat -c 10 > small.tar
  tarcat --shuffle 1000 --seed 7 'train-*.tar' | tarsplit -n 10000 -o shuffled
  tarcat --rekey '{shard}/{index:06d}' a.tar b.tar > unique.tar
"""

from __future__ import annotations

from tartools import cli, shards, storage
from tartools.account import Account
from tartools.commands import _cat
from tartools.stages import shuffle


@cli.command(__doc__)
def tarcat(account: Account, source: cli.Inputs, output: cli.Output, wanted: cli.Fields, choice: _cat.Choice) -> None:
    """Run the command."""
    urls = _cat.order(storage.expand(*source.named), choice)
    storage.check_output(output.url, output.force, urls)
    reading = shards.Reading(source.lax, source.skip_special, forks=True)
    if _cat.everything(choice, wanted):
        reading = reading._replace(ranges=True, listed=False)
        batches = shards.counted(shards.read_batches(urls, account, reading), account)
        shards.write_batches(batches, output.url, account, force=output.force, gzip=output.gzip)
        return
    if choice.interleave:
        samples = shuffle.interleaved(shards.read_each(urls, account, reading), choice.interleave)
    else:
        samples = shards.read_samples(urls, account, reading)
    samples = _cat.chosen(samples, choice, wanted, account)
    shards.write_samples(samples, output.url, account, force=output.force, gzip=output.gzip)
