"""Cut a stream of samples into shards, never inside a sample.

Reads samples from each SHARD in turn and writes numbered shards of up to -n samples and -s bytes (the size of the
tar, its end included; without either, 1 GB). A sample that alone is larger than -s gets a shard of its own. Members
are copied byte for byte. The name of each shard is printed once it is complete and its --post has succeeded.

OUTPUT is a prefix (train gives train-000000.tar, or .tgz with -z; train.tar.zst gives train-000000.tar.zst; dir/ gives
dir/000000.tar), or a pattern with %06d or {shard:06d} in it. Shards of an earlier run are never mixed with new ones:
if any shard that OUTPUT can name exists, nothing is done unless --force is given, which says what it left. (Web servers
can't be listed: there, only the first shard and those that are read are looked at before.) In an http: URL a pattern is
%06d, with the 0, or {shard}.

Examples:
  tar -cf - --sort=name -C raw train | tarsplit -s 1e9 -o imagenet_train --maxshards 2
  tarsplit -n 10000 -o train-%06d.tar big.tar
  tarsplit --shards 16 -o 'part-{shard:02d}.tgz' 'train-*.tar'
  tarsplit -o /tmp/train --post 'gsutil cp {} gs://bucket/' --remove big.tar
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, NamedTuple, NoReturn

import typer

from tartools import cli, compression, numbering, shards, storage
from tartools.account import Account
from tartools.errors import SampleError, UsageError

DEFAULT_SIZE = 10**9  # bytes

Samples = Annotated[
    int | None, typer.Option("-n", "--samples", metavar="N", min=1, help="Samples in a shard, at most.")
]
Size = Annotated[
    int | None,
    typer.Option("-s", "--size", metavar="BYTES", parser=cli.byte_size, help="Bytes of a shard's tar, at most."),
]
Pattern = Annotated[
    str, typer.Option("-o", "--output", metavar="OUTPUT", help="Prefix or pattern of the names of the shards.")
]
Most = Annotated[
    int | None, typer.Option("--maxshards", metavar="N", min=0, help="Stop after N shards; what follows is not read.")
]
Start = Annotated[int, typer.Option("--start", metavar="N", min=0, help="Number of the first shard.")]
Even = Annotated[
    int | None, typer.Option("--shards", metavar="K", min=1, help="K shards, whose numbers of samples differ by 1.")
]
Post = Annotated[
    str | None, typer.Option("--post", metavar="COMMAND", help="Run this for each complete shard; {} is its name.")
]
Remove = Annotated[bool, typer.Option("--remove", help="Remove each shard once its --post has succeeded.")]


@cli.command(__doc__)
def tarsplit(
    account: Account,
    source: cli.Inputs,
    output: Pattern,
    samples: Samples = None,
    size: Size = None,
    even: Even = None,
    most: Most = None,
    start: Start = 0,
    post: Post = None,
    remove: Remove = False,
    force: cli.Force = False,
    gzip: cli.Gzip = False,
) -> None:
    """Run the command."""
    if remove and not post:
        raise UsageError("--remove needs a --post that takes the shards elsewhere first")
    if remove and not storage.is_file(output):
        raise UsageError("--remove removes files, and OUTPUT names none", url=output)
    if even and (samples or size):
        raise UsageError("--shards decides the size of shards; it excludes -n and -s")
    names = numbering.parse_numbering(output, gzip)
    compression.codec_for(names.name(0), gzip)
    urls = storage.expand(*source.named)
    there = storage.between(names.prefix, names.suffix)
    old = {number: name for name in there if (number := names.number(name)) is not None}
    read = [url for url in urls if names.number(url) is not None]
    for name in (*old.values(), *read, names.name(start)):  # not everything can be listed
        storage.check_output(name, force, urls)
    reading = shards.Reading(source.lax, source.skip_special, ranges=True, listed=False, forks=True)
    spread = even_counts(urls, even, reading) if even else None
    with storage.writing("-") as printed:
        for number, url in shards.write_shards(
            shards.read_batches(urls, account, reading),
            names.name,
            account,
            counts=(lambda _: samples) if spread is None else spread.__call__,
            size=size or (None if samples or even else DEFAULT_SIZE),
            start=start,
            most=most,
            force=force,
            gzip=gzip,
        ):
            if post:
                storage.run(post, url)
            if remove:
                storage.remove(url)
            printed.write(os.fsencode(url) + b"\n")
            old.pop(number, None)
    if spread and account.samples_in < spread.total and (most is None or most >= spread.into):
        spread.fail("fewer")
    if old:
        account.warn(f"left of an earlier run: {' '.join(old[number] for number in sorted(old))}")


def even_counts(urls: Sequence[str], into: int, reading: shards.Reading) -> Spread:
    """Return how many samples each of *into* shards gets, so that they differ by at most one; reads all inputs.

    Raises: UsageError for an input that can't be read twice; SampleError if there are too few samples.
    """
    from tartools import pieces  # whose json costs 2 ms

    for url in urls:
        if not storage.is_repeatable(url):
            raise UsageError("--shards reads the inputs twice, which this one does not allow", url=url)
    counts: list[int] = []
    most = min(cli.workers(0), pieces.WORKERS)
    pieces.digest(urls, Account(lambda _: None), reading, lambda batches: sum(map(len, batches)), most, counts.append)
    total = sum(counts)
    if total < into:
        raise SampleError(f"{total} samples are too few for {into} shards")
    return Spread(total, into)


class Spread(NamedTuple):
    """How *total* samples are spread over *into* shards."""

    total: int
    into: int

    def __call__(self, k: int) -> int:
        """Return how many samples shard number *k*, from 0 on, gets. Raises: SampleError if there are no more."""
        if k >= self.into:
            self.fail("more")
        return self.total // self.into + (k < self.total % self.into)

    def fail(self, what: str) -> NoReturn:
        """Raise the SampleError for *what* samples there were."""
        raise SampleError(f"the input has changed: there were {self.total} samples when they were counted, now {what}")
