"""Cut a stream of samples into shards, never inside a sample.

Reads samples from each SHARD in turn and writes numbered shards, each with at most -n samples and at most -s bytes (the
size of the tar, including its end). Without -n and -s, shards have at most 1 GB. A sample that is larger than -s gets a
shard of its own. Members are copied byte for byte. The name of each shard is printed when the shard is complete and its
--post has succeeded.

OUTPUT is a prefix or a pattern:

  train             train-000000.tar, train-000001.tar ... (.tgz with -z)
  train.tar.zst     train-000000.tar.zst ...
  dir/              dir/000000.tar ...
  train-%06d.tar    train-000000.tar ...; {shard:06d} means the same

New shards never mix with those of an earlier run: if any shard that OUTPUT can name exists, tarsplit writes nothing and
fails. With --force it replaces them, and removes those that the new run did not write. Web servers can't be listed;
there, only the first shard and the inputs are
checked. In an http: URL, write a pattern as %06d (with the 0) or
{shard}.

Examples:
  Make two shards of up to 1 GB from a folder:
    tar -cf - --sort=name -C raw train | tarsplit -s 1e9 -o imagenet_train --maxshards 2
  Cut an archive into shards of 10,000 samples, with names of your own:
    tarsplit -n 10000 -o train-%06d.tar big.tar
  Spread all samples evenly over 16 compressed shards:
    tarsplit --shards 16 -o 'part-{shard:02d}.tgz' 'train-*.tar'
  Upload each shard when it is complete, and remove the local file:
    tarsplit -o /tmp/train --post 'gsutil cp {} gs://bucket/' --remove big.tar
"""

import os
from collections.abc import Sequence
from typing import Annotated, NoReturn

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import SampleError, UsageError
from tartools.samples.account import Account
from tartools.shards import numbering
from tartools.shards.reading import Reading, read_batches
from tartools.shards.series import Limits, write_shards
from tartools.shards.writing import Destination
from tartools.storage.names.existing import between
from tartools.storage.names.expand import expand
from tartools.storage.url import Url
from tartools.tar import compression

DEFAULT_SIZE = 10**9  # bytes

Samples = Annotated[
    int | None, Option("-n", "--samples", metavar="N", minimum=1, help="Put at most N samples in a shard.")
]
Size = Annotated[
    int | None,
    Option(
        *("-s", "--size"),
        metavar="BYTES",
        parser=cli.byte_size,
        default="1e9, without -n",
        help="Make shards of at most this size, such as 500M or 1e9.",
    ),
]
Pattern = Annotated[
    str, Option("-o", "--output", metavar="OUTPUT", help="Prefix or pattern of the shards' names. Required.")
]
Most = Annotated[
    int | None, Option("--maxshards", metavar="N", minimum=0, help="Stop after N shards; the rest is not read.")
]
Start = Annotated[int, Option("--start", metavar="N", minimum=0, help="Number of the first shard.")]
Even = Annotated[
    int | None,
    Option("--shards", metavar="K", minimum=1, help="Make K shards of equal size, give or take one sample."),
]
Post = Annotated[
    str | None,
    Option("--post", metavar="COMMAND", help="Run COMMAND after each complete shard; {} and $TAR_SHARD are its name."),
]
Remove = Annotated[bool, Option("--remove", help="Remove each shard after its --post has succeeded.")]


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
        raise UsageError("--remove needs a --post that copies the shards elsewhere first")
    if remove and not Url(output).is_local:
        raise UsageError("--remove removes files, and OUTPUT is not a file", url=output)
    if even and (samples or size):
        raise UsageError("--shards sets the size of shards; it excludes -n and -s")
    names = numbering.parse_numbering(output, gzip)
    compression.codec_for(names.name(0), gzip)
    urls = expand(*source.named)
    old = existing_shards(names)
    check_outputs(names, start, old, urls, force)
    reading = Reading(source.lax, source.skip_special, ranges=True, listed=False, forks=True)
    spread = even_counts(urls, even, reading) if even else None
    if spread is not None:
        limits = Limits(spread.samples, None, most)
    else:
        limits = Limits(lambda _: samples, size or (None if samples else DEFAULT_SIZE), most)
    shards = write_shards(
        read_batches(urls, account, reading),
        lambda k: Destination(names.name(start + k), force, gzip),
        limits,
        account,
    )
    with storage.writing("-") as printed:
        for number, url in enumerate(shards, start):
            finish(url, post, remove)
            printed.write(os.fsencode(url) + b"\n")
            old.pop(number, None)
    if spread is not None:
        spread.check(account.samples_in, most)
    if old:
        account.warn(f"left of an earlier run: {' '.join(old[number] for number in sorted(old))}")


def existing_shards(names: numbering.Numbering) -> dict[int, str]:
    """Return the shards that *names* can stand for and that exist, by number."""
    found = between(names.prefix, names.suffix)
    return {number: name for name in found if (number := names.number(name)) is not None}


def check_outputs(
    names: numbering.Numbering, start: int, old: dict[int, str], urls: Sequence[str], force: bool
) -> None:
    """Raise StorageError if a shard in *old* exists and may not be replaced, or if an input could be overwritten.

    Not every store can be listed, so the first shard and the inputs are checked by name.
    """
    inputs = [url for url in urls if names.number(url) is not None]
    for name in (*old.values(), *inputs, names.name(start)):
        storage.check_output(name, force, urls)


def finish(url: str, post: str | None, remove: bool) -> None:
    """Run the command *post* for the complete shard *url*, then *remove* it. Raises StorageError."""
    if post:
        storage.run(post, url)
    if remove:
        storage.remove(url)


def even_counts(urls: Sequence[str], shards: int, reading: Reading) -> "Spread":
    """Return how many samples each of *shards* shards gets; reads all inputs.

    Raises UsageError for an input that can't be read twice; SampleError if there are too few samples.
    """
    from tartools.shards.gathering import WORKERS, gather_results

    for url in urls:
        if not storage.is_repeatable(url):
            raise UsageError("--shards reads the inputs twice, which is impossible for this one", url=url)
    counts: list[int] = []
    most = min(cli.workers(0), WORKERS)
    silent = Account(lambda _: None)
    gather_results(urls, silent, reading, lambda batches: sum(map(len, batches)), most, counts.append)
    if sum(counts) < shards:
        raise SampleError(f"{sum(counts)} samples are too few for {shards} shards")
    return Spread(sum(counts), shards)


class Spread:
    """*total* samples spread over *shards* shards, whose numbers of samples differ by at most one."""

    def __init__(self, total: int, shards: int) -> None:
        self.total = total
        self.shards = shards

    def samples(self, k: int) -> int:
        """Return how many samples shard *k*, from 0 on, gets. Raises SampleError if there are no more shards."""
        if k >= self.shards:
            self._fail("more")
        return self.total // self.shards + (k < self.total % self.shards)

    def check(self, count: int, most: int | None) -> None:
        """Raise SampleError if only *count* samples were read for up to *most* shards, and that is too few."""
        if count < self.total and (most is None or most >= self.shards):
            self._fail("fewer")

    def _fail(self, what: str) -> NoReturn:
        raise SampleError(f"the input has changed: there were {self.total} samples when they were counted, now {what}")
