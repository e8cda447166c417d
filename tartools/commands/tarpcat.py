"""Concatenate shards, several of them read at once.

Does what tarcat does, with the same options; the bytes are those that tarcat writes with the same options and seed.
Shards that are read ahead of their turn wait in memory, all together up to -M, and beyond that in unnamed temporary
files: those of up to N-1 shards. Reading at once pays for compressed and remote shards, and for commands.

With --unordered, samples are written as they come, each whole, and nothing is kept on disk.

Examples:
  tarpcat -p 8 'train-{000..147}.tgz' -o train.tar
  tarpcat -p 4 'pipe:gsutil cat gs://bucket/train-{000..147}.tar' | tarsort -S shuffle -o shuffled.tar
  tarpcat --unordered --shuffle 5000 'train-*.tgz' | tar2tsv -f cls -o classes.tsv
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated

import typer

from tartools import cli, shards, storage
from tartools.account import Account
from tartools.commands import _cat
from tartools.errors import UsageError
from tartools.stages import parallel, processes, shuffle

Unordered = Annotated[bool, typer.Option("--unordered", help="Write samples as they come, in no certain order.")]


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
    urls = _cat.order(storage.expand(*source.named), choice)
    storage.check_output(output.url, output.force, urls)
    shards.announce(urls, account)
    reading = shards.Reading(source.lax, source.skip_special)
    most = cli.workers(workers)
    way = processes if account.expected is not None else parallel  # processes for files, threads for what is awaited

    def opened(url: str) -> shards.ShardStream:
        return shards.ShardStream(url, account, forks=way is processes)

    with ExitStack() as readers:  # whatever happens, they end here
        if unordered:
            samples = way.as_they_come(
                urls, opened, lambda url, own, stream: shards.read_shard(url, own, reading, stream), most, account
            )
            readers.enter_context(shards.closing_upstream(samples))
        else:
            ahead = way.read_ahead(urls, opened, most, memory, tmpdir)
            readers.enter_context(shards.closing_upstream(ahead))
            streams = zip(urls, ahead, strict=True)
            if _cat.everything(choice, wanted):
                batches = (shards.shard_batches(url, account, reading, stream) for url, stream in streams)
                counted = shards.counted(shards.one_by_one(batches), account)
                shards.write_batches(counted, output.url, account, force=output.force, gzip=output.gzip)
                return
            each = (shards.read_shard(url, account, reading, stream) for url, stream in streams)
            samples = shuffle.interleaved(each, choice.interleave) if choice.interleave else shards.one_by_one(each)
        samples = _cat.chosen(samples, choice, wanted, account)
        shards.write_samples(samples, output.url, account, force=output.force, gzip=output.gzip)
