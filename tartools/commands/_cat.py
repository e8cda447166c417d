"""What tarcat and tarpcat have in common: which samples, in which order, under which keys."""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, TypeVar

from tartools import cli
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, counted, one_by_one

Item = TypeVar("Item")


class Choice(cli.Group):
    """The options that choose and order samples."""

    first: cli.Count = None
    skip: Annotated[int | None, Option("--skip", metavar="N", minimum=0, help="Skip the first N samples read.")] = None
    part: Annotated[
        slice | None,
        Option(
            "--slice",
            metavar="LO:HI:STEP",
            parser=cli.sample_slice,
            help="Take these of the samples read, numbered from 0, as a slice in Python.",
        ),
    ] = None
    interleave: Annotated[
        int | None,
        Option(
            "--interleave", metavar="N", minimum=1, help="Open N shards at once and take a sample from each in turn."
        ),
    ] = None
    shuffle: Annotated[
        int | None,
        Option("--shuffle", metavar="N", minimum=1, help="Shuffle the list of shards, and samples in a buffer of N."),
    ] = None
    seed: cli.Seed = 0
    rekey: Annotated[
        str | None,
        Option(
            "--rekey",
            metavar="TEMPLATE",
            help="Give samples new keys, from {index:09d}, {key}, {shard} and fields that hold text, such as {cls}.",
        ),
    ] = None


def order(urls: Sequence[str], choice: Choice) -> list[str]:
    """Return *urls* in the order in which they are to be read."""
    if choice.skip is not None and choice.part is not None:
        raise UsageError("--skip and --slice exclude each other")
    if not choice.shuffle:
        return list(urls)
    from tartools.stages import shuffle

    return shuffle.shuffled_urls(urls, choice.seed)


def everything(choice: Choice, wanted: cli.Fields) -> bool:
    """Tell whether all samples are to be passed on as they come."""
    return choice == Choice(seed=choice.seed) and not (wanted.fields or wanted.exclude)


def chosen(samples: Iterator[Sample], choice: Choice, wanted: cli.Fields, account: Account) -> Iterator[Sample]:
    """Return the stages that *choice* and *wanted* ask for, one behind the other."""
    from tartools.stages import select

    samples = numbered(samples, choice, account)
    samples = select.by_specs(samples, wanted.fields, wanted.exclude, account, verbatim=wanted.verbatim)
    samples = drawn(samples, choice, account, Sample.own)
    if choice.rekey is not None:
        samples = select.rekey(samples, choice.rekey, verbatim=wanted.verbatim)
    return samples


def numbered(items: Iterator[Item], choice: Choice, account: Account) -> Iterator[Item]:
    """Return those of *items*, samples or rows, whose numbers *choice* names."""
    from tartools.stages import select

    if choice.skip or choice.part:
        return select.part(items, choice.part or slice(choice.skip, None), account)
    return items


def drawn(
    items: Iterator[Item], choice: Choice, account: Account, own: Callable[[Item], Item] | None = None
) -> Iterator[Item]:
    """Return *items* shuffled and counted as *choice* says; *own* makes an item that may be held."""
    from tartools.stages import select, shuffle

    if choice.shuffle:
        items = shuffle.shuffle_buffer(map(own, items) if own else items, choice.shuffle, choice.seed, account)
    if choice.first is not None:
        items = select.count(items, choice.first)
        account.phase = Phase("", choice.first, lambda: account.samples_out)
    return items


def write_table(
    urls: Sequence[str],
    output: cli.Output,
    wanted: cli.Fields,
    choice: Choice,
    account: Account,
    reading: Reading,
    most: int,
) -> None:
    """Write a table of the samples of *urls* that *choice* takes, in its order; *most* shards are read at once."""
    from tartools.shards import listing
    from tartools.shards.writing import NO_LIST, write_batches
    from tartools.stages import shuffle

    for option, value in (
        ("-f", wanted.fields),
        ("-x", wanted.exclude),
        ("--rekey", choice.rekey),
        ("-z", output.gzip),
    ):
        if value:
            raise UsageError(f"{NO_LIST}: {option} excludes an OUTPUT that ends in .parquet")
    inputs = listing.listed(urls, account, listing.Indexing(reading, most))
    destination = listing.TableDestination(output.url, output.force, inputs)
    if everything(choice, wanted):
        write_batches(counted(listing.row_batches(inputs), account), destination, account)
        return
    spans = [each_row(span, account) for span in inputs.spans(apart=bool(choice.interleave))]
    positions = shuffle.interleave(spans, choice.interleave) if choice.interleave else one_by_one(spans)
    positions = drawn(numbered(positions, choice, account), choice, account)
    write_batches(listing.rows_at(inputs, positions, reading.tmpdir), destination, account)


def each_row(rows: range, account: Account) -> Iterator[int]:
    """Yield *rows*, and count them as samples read."""
    for row in rows:
        account.samples_in += 1
        yield row
