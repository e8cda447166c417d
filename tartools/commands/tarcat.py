"""Concatenate shards.

Reads the samples of each SHARD in turn and writes them as one tar archive. Without an option that selects samples, the
members of the output are byte for byte those of the input.

An OUTPUT that ends in .parquet is a table, which lists the samples and moves none: see TABLES in tartools(7). Options
that change samples (-f, -x, --rekey) do not go with it, nor do samples from stdin or pipe:.

The options apply in this order, whatever their order on the command line: --shuffle to the list of shards,
--interleave, --skip or --slice (both count samples read), -f and -x, --shuffle to the samples, -c (counts samples
written), --rekey.

Examples:
  Join two shards:
    tarcat a.tar b.tar > ab.tar
  Join 148 compressed shards to one uncompressed archive:
    tarcat 'train-{000..147}.tgz' -o train.tar
  Take the first ten samples of a remote archive, without reading the rest:
    curl -s https://host/photos.tgz | tarcat -c 10 > small.tar
  Shuffle shards and samples, and cut the result into new shards:
    tarcat --shuffle 1000 --seed 7 'train-*.tar' | tarsplit -n 10000 -o shuffled
  Shuffle a table in a buffer, and list the first 100,000 samples:
    tarcat --shuffle 10000 -c 100000 train.parquet -o epoch.parquet
  Join shards that have keys in common, with new keys:
    tarcat --rekey '{shard}/{index:06d}' a.tar b.tar > unique.tar
"""

from tartools import cli, storage
from tartools.commands import _cat
from tartools.samples.account import Account
from tartools.shards.reading import Reading, counted, read_batches, read_each, read_samples
from tartools.shards.writing import write_batches, write_samples
from tartools.storage.expand import expand
from tartools.tar.compression import is_table_name


@cli.command(__doc__)
def tarcat(account: Account, source: cli.Inputs, output: cli.Output, wanted: cli.Fields, choice: _cat.Choice) -> None:
    """Run the command."""
    urls = _cat.order(expand(*source.named), choice)
    storage.check_output(output.url, output.force, urls)
    reading = Reading(source.lax, source.skip_special, forks=True)
    if is_table_name(output.url):
        _cat.write_table(urls, output, wanted, choice, account, reading, cli.workers(0))
        return
    if _cat.everything(choice, wanted):
        reading = reading._replace(ranges=True, listed=False)
        batches = counted(read_batches(urls, account, reading), account)
        write_batches(batches, output.destination, account)
        return
    if choice.interleave:
        from tartools.stages import shuffle

        samples = shuffle.interleave(read_each(urls, account, reading), choice.interleave)
    else:
        samples = read_samples(urls, account, reading)
    samples = _cat.chosen(samples, choice, wanted, account)
    write_samples(samples, output.destination, account)
