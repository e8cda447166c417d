"""What tarcat and tarpcat have in common: which samples, in which order, under which keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import typer

from tartools import cli
from tartools.account import Account
from tartools.errors import UsageError
from tartools.sample import Sample
from tartools.stages import select, shuffle


@cli.group
class Choice(NamedTuple):
    """The options that choose and order."""

    first: cli.Count = None
    skip: Annotated[
        int | None, typer.Option("--skip", metavar="N", min=0, help="Leave out the first N samples read.")
    ] = None
    part: Annotated[
        slice | None,
        typer.Option("--slice", metavar="LO:HI:STEP", parser=cli.sample_slice, help="Only these of the samples read."),
    ] = None
    interleave: Annotated[
        int | None,
        typer.Option("--interleave", metavar="N", min=1, help="Take one sample of each of N open shards in turn."),
    ] = None
    shuffle: Annotated[
        int | None,
        typer.Option("--shuffle", metavar="N", min=1, help="Shuffle the shards, and samples in a buffer of N."),
    ] = None
    seed: cli.Seed = 0
    rekey: Annotated[
        str | None,
        typer.Option("--rekey", metavar="TEMPLATE", help="New keys, made of {index:09d}, {key} and {shard}."),
    ] = None


def order(urls: Sequence[str], choice: Choice) -> list[str]:
    """Return *urls* in the order in which they are to be read."""
    if choice.skip is not None and choice.part is not None:
        raise UsageError("--skip and --slice exclude each other")
    return shuffle.shuffled(urls, choice.seed) if choice.shuffle else list(urls)


def everything(choice: Choice, wanted: cli.Fields) -> bool:
    """Tell whether all samples are to be passed on as they come."""
    return choice._replace(seed=0) == Choice() and not (wanted.fields or wanted.exclude)


def chosen(samples: Iterator[Sample], choice: Choice, wanted: cli.Fields, account: Account) -> Iterator[Sample]:
    """Return the stages that *choice* and *wanted* ask for, one behind the other."""
    if choice.skip or choice.part:
        samples = select.part(samples, choice.part or slice(choice.skip, None), account)
    if wanted.fields or wanted.exclude:
        words, dropped = select.parse_words(wanted.fields or ()), " ".join(wanted.exclude or ()).split()
        samples = select.fields(samples, words, dropped, account, verbatim=wanted.verbatim)
    if choice.shuffle:
        samples = shuffle.buffered(samples, choice.shuffle, choice.seed, account)
    if choice.first is not None:
        samples = select.count(samples, choice.first)
    if choice.rekey is not None:
        samples = select.rekey(samples, choice.rekey)
    return samples
