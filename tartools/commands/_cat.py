"""What tarcat and tarpcat have in common: which samples, in which order, under which keys."""

from collections.abc import Iterator, Sequence
from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample


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
    from tartools.stages import select, shuffle

    if choice.skip or choice.part:
        samples = select.part(samples, choice.part or slice(choice.skip, None), account)
    if wanted.fields or wanted.exclude:
        words, dropped = select.parse_words(wanted.fields or ()), " ".join(wanted.exclude or ()).split()
        samples = select.fields(samples, words, dropped, account, verbatim=wanted.verbatim)
    if choice.shuffle:
        samples = shuffle.shuffle_buffer(samples, choice.shuffle, choice.seed, account)
    if choice.first is not None:
        samples = select.count(samples, choice.first)
        account.phase = Phase("", choice.first, lambda: account.samples_out)
    if choice.rekey is not None:
        samples = select.rekey(samples, choice.rekey, verbatim=wanted.verbatim)
    return samples
