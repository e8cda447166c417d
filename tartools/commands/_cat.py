"""The work of tarcat and tarpcat: select samples, order them, and give them keys."""

from collections.abc import Callable, Iterator
from typing import Annotated, TypeVar

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import deliver_order
from tartools.shards.reading import check_shards, closing_upstream, counted, each, one_by_one
from tartools.shards.writing import write_batches, write_samples

Item = TypeVar("Item")

Workers = Annotated[
    int | None,
    Option("-p --parallel N", "Read N shards at once; 0 means one per core.", minimum=0, default="one after the other"),
]


class SampleChoice(cli.Group):
    """The options that choose and order samples."""

    first: cli.Count = None
    skip: Annotated[int | None, Option("--skip N", "Skip the first N samples read.", minimum=0)] = None
    part: Annotated[
        slice | None,
        Option(
            "--slice LO:HI:STEP",
            "Select samples by number, counted from 0, as in a Python slice.",
            parser=cli.sample_slice,
        ),
    ] = None
    interleave: Annotated[
        int | None, Option("--interleave N", "Open N shards at once and take a sample from each in turn.", minimum=1)
    ] = None
    shuffle: Annotated[
        int | None, Option("--shuffle N", "Shuffle the list of shards, and samples in a buffer of N.", minimum=1)
    ] = None
    seed: cli.Seed = 0
    rekey: Annotated[
        str | None,
        Option(
            "--rekey TEMPLATE",
            "Give samples new keys, from {index:09d}, {key}, {shard} and fields that hold text, such as {cls}.",
        ),
    ] = None


class Ahead(cli.Group):
    """How shards are read ahead."""

    memory: cli.Memory = 256 << 20
    unordered: Annotated[bool, Option("--unordered", "Write samples as they arrive, in any order.")] = False
    tmpdir: cli.TmpDir = None


def cat(
    account: Account,
    source: cli.Inputs,
    output: cli.Output,
    field_choice: cli.Fields,
    choice: SampleChoice,
    ahead: Ahead,
    parallel: int | None,
) -> None:
    """Write the samples of the shards of *source* that are *field_choice* to *output*.

    So many shards are read in *parallel*; None: each in its turn.
    """
    if ahead.unordered and choice.interleave:
        raise UsageError("--interleave and --unordered exclude each other")
    urls = source.urls()
    if choice.skip is not None and choice.part is not None:
        raise UsageError("--skip and --slice exclude each other")
    if choice.shuffle:
        from random import Random  # takes 10 ms

        Random(choice.seed).shuffle(urls)
    storage.check_output(output.url, output.force, urls)
    is_plain_copy = choice == SampleChoice(seed=choice.seed) and not (
        field_choice.fields or field_choice.exclude
    )  # all, as they come
    reading = source.reading._replace(tmpdir=ahead.tmpdir)
    in_turns = parallel is None and not ahead.unordered
    if in_turns:
        reading = reading._replace(forks=True, ranges=is_plain_copy, listed=not is_plain_copy)
    data = DataSet(urls, account, reading, cli.workers(0))
    new = {"-f": field_choice.fields, "-x": field_choice.exclude, "--rekey": choice.rekey}
    sink = data.sink(output.url, output.force, output.gzip, new)
    if data.lists:
        if is_plain_copy:
            write_batches(counted(data.batches(), account), sink, account)
        else:
            numbers = in_turn(data.numbers(apart=bool(choice.interleave)), choice)
            deliver_order(data, shuffled_items(items_at(numbers, choice, account), choice, account), sink, account)
        return
    shards = data.shards() if in_turns else shards_ahead(data, ahead, cli.workers(parallel or 0))
    with closing_upstream(shards):
        if is_plain_copy:
            write_batches(counted(one_by_one(shards), account), sink, account)
        else:
            samples = in_turn((each(batches, account) for batches in shards), choice)
            write_samples(selected(samples, choice, field_choice, account), sink, account)


def shards_ahead(data: DataSet, ahead: Ahead, workers: int) -> Iterator[Iterator[Batch]]:
    """Return the samples of each shard of *data*, in batches; of all in one if they come in any order."""
    from tartools.shards import prefetch

    check_shards(data.urls, data.account)
    if ahead.unordered:
        return iter([prefetch.as_they_come(data.urls, data.account, data.reading, workers)])
    return prefetch.read_ahead(data.urls, data.account, data.reading, workers, ahead.memory)


def in_turn(shards: Iterator[Iterator[Item]], choice: SampleChoice) -> Iterator[Item]:
    """Return the items of *shards*, one shard after the other, or interleaved as *choice* says."""
    if not choice.interleave:
        return one_by_one(shards)
    from tartools.stages import shuffle

    return shuffle.interleave(shards, choice.interleave)


def selected(
    samples: Iterator[Sample], choice: SampleChoice, field_choice: cli.Fields, account: Account
) -> Iterator[Sample]:
    """Return the stages that *choice* and *field_choice* ask for, one behind the other."""
    from tartools.stages import select

    samples = items_at(samples, choice, account)
    samples = select.by_specs(
        samples, field_choice.fields, field_choice.exclude, account, verbatim=field_choice.verbatim
    )
    samples = shuffled_items(samples, choice, account, Sample.own)
    if choice.rekey is not None:
        samples = select.rekey(samples, choice.rekey, verbatim=field_choice.verbatim)
    return samples


def items_at(items: Iterator[Item], choice: SampleChoice, account: Account) -> Iterator[Item]:
    """Return the *items*, samples or rows, with the numbers of *choice*."""
    from tartools.stages import select

    if choice.skip or choice.part:
        return select.take_slice(items, choice.part or slice(choice.skip, None), account)
    return items


def shuffled_items(
    items: Iterator[Item], choice: SampleChoice, account: Account, own: Callable[[Item], Item] | None = None
) -> Iterator[Item]:
    """Return *items* shuffled and counted as *choice* says; *own* makes an item that may be held."""
    from tartools.stages import select, shuffle

    if choice.shuffle:
        items = shuffle.shuffle_buffer(map(own, items) if own else items, choice.shuffle, choice.seed, account)
    if choice.first is not None:
        items = select.take_first(items, choice.first)
        account.progress.phase = Phase("", choice.first, lambda: account.samples_out)
    return items
