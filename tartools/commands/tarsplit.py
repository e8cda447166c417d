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
  train.parquet     train-000000.parquet ...: tables that list the samples

New shards never mix with those of an earlier run: if any shard that OUTPUT can name exists, tarsplit writes nothing and
fails. With --force the new shards replace the old set: once the last one is complete and its --post has succeeded,
those that OUTPUT can name and this run did not write are removed, each named on stderr. With --start N, shards with
numbers below N stay. With --start N and --maxshards M, so do those from N+M on: other runs may have written them.
Nothing is removed after a failure, or if the input has no samples. If an old shard can't be removed, that is said, and
the exit status is 1.

A table lists samples that stay where they are; -n, -s and --shards count what tarcat would write of it.

Web servers can't be listed. There, only the first shard and the inputs are checked before; with --force, old shards
behind the last new one are named and stay. In an http: URL, write a pattern as %06d (with the 0) or {shard}.

--shards reads the inputs twice: stdin and pipe: are copied to --tmpdir first, which takes as much disk as they have
bytes.

Examples:
  Make two shards of up to 1 GB from a folder:
    tar -cf - --sort=name -C raw train | tarsplit -s 1e9 -o imagenet_train --maxshards 2
  Add shards behind train-000099.tar, and replace what an interrupted run has left there:
    tarsplit --start 100 --force -n 10000 -o train more.tar
  Cut an archive into shards of 10,000 samples, with names of your own:
    tarsplit -n 10000 -o train-%06d.tar big.tar
  Spread all samples evenly over 16 compressed shards:
    tarsplit --shards 16 -o 'part-{shard:02d}.tgz' 'train-*.tar'
  Upload each shard when it is complete, and remove the local file:
    tarsplit -o /tmp/train --post 'gsutil cp {} gs://bucket/' --remove big.tar
"""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, NoReturn

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import SampleError, StorageError, UsageError, shown
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Batch
from tartools.shards import numbering
from tartools.shards.reading import Reading, counted, read_batches
from tartools.shards.series import Limits, write_shards
from tartools.shards.writing import Batches, Destination
from tartools.storage.names.existing import between
from tartools.storage.names.expand import expand
from tartools.storage.url import Url
from tartools.tar import compression

DEFAULT_SIZE = 10**9  # bytes
LOOKED_UP = 1000  # shards of an earlier run, where they can't be listed

ReadBatches = Callable[[Sequence[str], Account, Reading], Iterator[Batch]]

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
Start = Annotated[int | None, Option("--start", metavar="N", minimum=0, default="0", help="Number of the first shard.")]
Even = Annotated[
    int | None,
    Option("--shards", metavar="K", minimum=1, help="Make K shards of equal numbers of samples, give or take one."),
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
    start: Start = None,
    post: Post = None,
    remove: Remove = False,
    force: cli.Force = False,
    gzip: cli.Gzip = False,
    tmpdir: cli.TmpDir = None,
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
    first = start or 0
    old = existing_shards(names)
    check_outputs(names, first, old, urls, force)
    reading = Reading(source.lax, source.skip_special, ranges=True, listed=False, tmpdir=tmpdir, forks=True)
    spread = None
    if compression.is_table_name(names.name(0)):
        batches, made, count = table_rows(urls, force, account, reading)
        spread = evenly(count, even) if even else None
    else:
        made = partial(Destination, force=force, gzip=gzip)
        read: ReadBatches = read_batches
        if even:
            spread, read = even_counts(urls, even, reading, account)
        batches = read(urls, account, reading)
    limits = Limits(lambda _: samples, size or (None if samples else DEFAULT_SIZE), most)
    if spread is not None:
        limits = Limits(spread.samples, None, most)
    shards = write_shards(batches, lambda k: made(names.name(first + k)), limits, account)
    following = first
    with storage.writing("-") as printed:
        for url in shards:
            finish(url, post, remove)
            printed.write(os.fsencode(url) + b"\n")
            following += 1
    if spread is not None:
        spread.check(account.samples_in, most)
    if most == 0:
        return
    if not account.samples_in:
        account.warn("no samples in the input; no shards written")
    if force:
        until = None if start is None or most is None else start + most
        replace_set(names, range(first, following), until, old, account)


def table_rows(
    urls: Sequence[str], force: bool, account: Account, reading: Reading
) -> tuple[Iterator[Batches], Callable[[str], Destination], int]:
    """Return the rows of tables of the samples of *urls*, what makes a table of some, and how many rows there are."""
    from tartools.shards import listing

    inputs = listing.listed(urls, account, listing.Indexing(reading, cli.workers(0)))
    return listing.row_batches(inputs), lambda url: listing.TableDestination(url, force, inputs), inputs.rows


def replace_set(
    names: numbering.Numbering, written: range, until: int | None, old: dict[int, str], account: Account
) -> None:
    """Remove the shards in *old* that would mix with those *written*; report each in *account*.

    They have numbers from the first that was written up to *until*, exclusive (None: all). If nothing was written, they
    stay. Those that can't be removed are omissions; so are those that stay because nothing was written.
    """
    rest = {number: name for number, name in old.items() if number >= written.start and number not in written}
    if written and not Url(names.prefix).is_local and not Url(names.prefix).is_listed:
        rest = unlisted(names, written.stop, account)
    for number in sorted(rest):
        if until is not None and number >= until:
            break
        try:
            if not written:
                raise StorageError("nothing was written to replace it")
            storage.remove(rest[number])
        except StorageError as error:
            account.omit(f"{shown(rest[number])}: is of an earlier run, and stays: {error.message}")
        else:
            account.warn(f"{shown(rest[number])}: removed, because this run did not write it")


def unlisted(names: numbering.Numbering, number: int, account: Account) -> dict[int, str]:
    """Return the shards that exist from *number* on, up to the first that does not: where there are no listings."""
    found: dict[int, str] = {}
    if Url(names.prefix).scheme == "pipe":
        return found
    try:
        while len(found) < LOOKED_UP and storage.exists(name := names.name(number)):
            found[number] = name
            number += 1
    except StorageError as error:
        account.warn(f"shards of an earlier run may be left: {error}")
    return found


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


def even_counts(urls: Sequence[str], shards: int, reading: Reading, account: Account) -> tuple["Spread", ReadBatches]:
    """Return how many samples each of *shards* shards gets, and a function that reads the inputs again.

    Shows its progress in *account*.

    Reads all inputs. Those that can be read only once are copied to the temporary directory of *reading*.
    Raises StorageError; SampleError if there are too few samples.
    """
    from tartools.commands import _twice
    from tartools.shards.gathering import WORKERS, gather_results

    inputs = _twice.Twice(urls, reading, account)
    counts: list[int] = []
    most = min(cli.workers(0), WORKERS)
    silent = Account(lambda _: None)
    account.phase = Phase("counting", account=silent)

    def count(found: Iterator[Batch]) -> int:
        return sum(map(len, counted(found, silent)))

    if inputs.copied:  # other processes could not open the copies
        counts.append(count(inputs.batches(urls, silent, reading)))
    else:
        gather_results(urls, silent, reading, count, most, counts.append)
    account.phase = Phase("writing", sum(counts), lambda: account.samples_out)
    return evenly(sum(counts), shards), inputs.batches


def evenly(count: int, shards: int) -> "Spread":
    """Return *count* samples spread over *shards* shards. Raises SampleError if they are too few."""
    if count < shards:
        raise SampleError(f"{count} samples are too few for {shards} shards")
    return Spread(count, shards)


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
