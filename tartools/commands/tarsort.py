"""Sort the samples of shards, however many.

Reads all samples of each SHARD, and writes them as one tar archive: in the order of their keys, or of what -s names.
The order is stable: samples that are equal in it stay as they were, under -r too.

By key (the default), members of one key become one sample wherever they are in the inputs. If that would hold a field
twice it is a failure, unless -u says which one to keep; tarcat --rekey gives samples new keys. By anything else, and
with -S shuffle, samples are what is adjacent.

-s takes a field, FIELD:path.in.json, __key__, __size__ (bytes in the archive) or __shard__. -S says as what it is
compared: text by bytes, int (of any length), float, version (runs of digits as numbers, as sort -V), or shuffle: a
random order that depends on --seed and on nothing else. Without -S it is text, and int for __size__ and __index__.

-u keeps one of the samples with equal sort keys, by key one of the members with equal names. Samples that have no
value to sort by are a failure, unless --missing says where they go; -r does not move them, and none equals another.

Sorting holds -M bytes, the process up to 100 MB more. Beyond that it needs about 100 bytes of disk a sample, in
--tmpdir, and there a copy of inputs that are not plain local files. Those that are must not change meanwhile.

Examples:
  tarsort train.tar > sorted.tar
  tarsort -S shuffle --seed 7 'train-{000..147}.tar' | tarsplit -s 1e9 -o shuffled
  tarsort -s cls -S int photos.tgz -o by-class.tar
  tarsort -s meta.json:width -S int -r --missing last photos.tar | tarcat -c 10 > widest.tar
  tarsort images.tar labels.tar -o both.tar
"""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator
from typing import Annotated, NamedTuple

import typer

from tartools import cli, pieces, shards, sortkeys, storage
from tartools.account import Account
from tartools.errors import StorageError, UsageError
from tartools.places import Files, Places
from tartools.sample import Batch
from tartools.stages import sort
from tartools.values import NUMBERS, parse_column

LEAST = 1 << 16  # bytes; with less, sorting does little but merging


def memory_size(text: str | int) -> int:
    """Return the bytes that *text* stands for. Raises: typer.BadParameter for less than 64K."""
    size = cli.byte_size(text)
    if size < LEAST:
        raise typer.BadParameter(f"{text} is too little to sort with; 64K is the least")
    return size


@cli.group
class Sorting(NamedTuple):
    """The options that say in which order, and what sorting may use."""

    sortkey: Annotated[str, typer.Option("-s", "--sortkey", metavar="FIELD", help="What to sort by.")] = "__key__"
    sorttype: Annotated[
        sortkeys.Kind | None, typer.Option("-S", "--sorttype", help="As what it is compared.", show_default="text")
    ] = None
    reverse: Annotated[
        bool, typer.Option("-r", "--reverse", help="The greatest first; equal ones stay as they were.")
    ] = False
    unique: Annotated[
        sortkeys.End | None, typer.Option("-u", "--unique", help="Keep only this one of equal samples.")
    ] = None
    missing: Annotated[
        sortkeys.End | None, typer.Option("--missing", help="Where samples go that lack what is sorted by.")
    ] = None
    seed: cli.Seed = 0
    verbatim: cli.Verbatim = False
    memory: Annotated[
        int,
        typer.Option("-M", "--memory", metavar="BYTES", parser=memory_size, help="What sorting holds; 64K or more."),
    ] = sort.MEMORY
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarsort(account: Account, source: cli.Inputs, output: cli.Output, wanted: Sorting) -> None:
    """Run the command."""
    order = ordered(wanted)
    urls = storage.expand(*source.named)
    storage.check_output(output.url, output.force, urls)
    reading = shards.Reading(
        source.lax,
        source.skip_special,
        ranges=sortkeys.key_encoder(order) is not None,  # values are read, keys are known
        tmpdir=wanted.tmpdir,
        forks=True,
    )
    places = Places(reopened, wanted.tmpdir, urls)
    most = 1 if order.by_position else min(cli.workers(0), pieces.WORKERS)

    def work(batches: Iterator[Batch], turn: pieces.Turn) -> Generator[bytes, None, Files]:
        return sort.indexed_in_turn(shards.counted(batches, account), order, places, *turn)

    blocks = pieces.in_pieces(urls, account, reading, work, pieces.Plan(most, plain=True), places.add_files)
    index = sort.index_of(blocks)
    batches = sort.sorted_batches(index, order, account, places, memory=wanted.memory, tmpdir=wanted.tmpdir)
    shards.write_batches(batches, output.url, account, force=output.force, gzip=output.gzip)


def ordered(wanted: Sorting) -> sortkeys.Order:
    """Return the order that is *wanted*. Raises: UsageError for options that exclude each other."""
    kind, key = wanted.sorttype, wanted.sortkey
    if kind == "shuffle" and (key != "__key__" or wanted.unique or wanted.missing):
        raise UsageError("-S shuffle looks at nothing in a sample: no -s, no -u and no --missing go with it")
    column = parse_column(key)
    if kind is None:
        kind = "int" if column.choices[0] in NUMBERS else "text"
    return sortkeys.Order(column, kind, wanted.reverse, wanted.unique, wanted.missing, wanted.seed, wanted.verbatim)


def reopened(url: str) -> io.FileIO:
    """Return the plain local file *url*, which was read before. Raises: StorageError if it is one no more."""
    file = storage.open_read(url).file
    if file is None:
        raise StorageError("this is no plain file any more", url=url)
    return file
