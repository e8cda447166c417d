"""Concatenate shards.

Reads the samples of each SHARD in turn and writes them as one tar archive. Without an option that selects samples, the
members of the output are byte for byte those of the input.

An OUTPUT that ends in .parquet is a table, which lists the samples and moves none: see TABLES in tartools(7). Options
that change samples (-f, -x, --rekey) do not go with it, nor do samples from stdin or pipe:.

-p N reads N shards at once, which pays off for compressed and remote shards, and for commands (pipe:); the output is
the same. Shards that were read before their turn wait in memory, up to -M bytes in all. What does not fit goes to
temporary files without names, for at most N-1 shards. With --unordered, whole samples are written as they arrive, and
nothing goes to disk.

--dots last reads names such as img.2023.01.jpg with the key img_2023_01 and the field jpg; otherwise the key is img,
and the field 2023.01.jpg. Dots of the key become underscores, so that other programs read the output in the same way.
This comes before all other options.

The options apply in this order, whatever their order on the command line: --shuffle to the list of shards,
--interleave, --skip or --slice (both count samples read), -f and -x, --shuffle to the samples, -c (counts samples
written), --rekey.

Parts of an archive that was split (x.tar.gz.partaa, x.tar.001 ...) are read as one shard; see URLS in tartools(7).

--check-sums compares the stored bytes of each SHARD with a list of checksums: of --sums, sha256sum, md5sum or tarls
--sums. A shard is found in the list by its path or URL, else by its base name. If one is not in the list, nothing is
read; if one differs, this is an error, and OUTPUT does not appear. As shards have to be read to their ends, -c and
--slice exclude it.

Examples:
  Join two shards:
    tarcat a.tar b.tar > ab.tar
  Join 148 compressed shards into one uncompressed archive:
    tarcat 'train-{000..147}.tgz' -o train.tar
  Take the first ten samples of a remote archive, without reading the rest:
    curl -s https://host/photos.tgz | tarcat -c 10 > small.tar
  Shuffle shards and samples, and split the result into new shards:
    tarcat --shuffle 1000 --seed 7 'train-*.tar' |
      tarsplit -n 10000 -o shuffled
  Shuffle a table in a buffer, and list the first 100,000 samples:
    tarcat --shuffle 10000 -c 100000 train.parquet -o epoch.parquet
  Make shards of an archive that was published in parts, without a copy:
    tarcat 'hf://datasets/org/set/x.tar.gz.part*' | tarsplit -s 1e9 -o train
  Copy shards of a bucket, if they are those that were listed:
    tarcat --check-sums SHA256SUMS 's3://bucket/train-*.tar' -o train.tar
  Give samples the keys that were meant, if names have several dots:
    tarcat --dots last 'dotted-*.tar' | tarsplit -o fixed
  Join shards that have keys in common, with new keys:
    tarcat --rekey '{shard}/{index:06d}' a.tar b.tar > unique.tar
"""

from tartools import cli
from tartools.commands import _cat
from tartools.samples.account import Account


@cli.command(__doc__)
def tarcat(
    account: Account,
    source: cli.Inputs,
    output: cli.Output,
    field_choice: cli.Fields,
    choice: _cat.SampleChoice,
    *,
    workers: _cat.Workers = None,
    ahead: _cat.ReadAheadOptions,
) -> None:
    """Write the selected samples of *source* to *output*, in input order unless *choice* or *ahead* asks for another.

    *field_choice*, *choice*: which fields and samples, and whether they are shuffled or get new keys. *workers*: number
    of shards to read at once, 0 for one per core; None: one after the other, but with `ahead.unordered` one per core,
    up to 8. *ahead*: memory for that, and whether samples come in any order. Raises: TarToolsError.
    """
    _cat.cat(account, source, output, field_choice, choice, ahead, workers)
