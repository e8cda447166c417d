"""The work of tarcat and tarpcat: select samples, order them, and give them keys."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError
from tartools.samples.account import Account, Phase
from tartools.samples.batch import Batch
from tartools.shards.dataset import DataSet
from tartools.shards.passes import Pass
from tartools.shards.reading import Reading, chain_shards, close_at_end
from tartools.storage.outputformats import is_table_name
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.storage.checksums import ListedSums

Item = TypeVar("Item")

Workers = Annotated[
    int | None,
    Option("-p --parallel N", "Read N shards at once; 0 means one per core.", minimum=0, default="one after the other"),
]


class SampleChoice(cli.Group):
    """Options that select samples, order them and give them keys, in tarcat and tarpcat; None: not given.

    Attributes:
      first: stop after so many samples written (-c).
      skip, part: samples to select, by number (--skip, --slice); they exclude each other.
      interleave: number of shards to take samples from in turn.
      shuffle: samples in the shuffle buffer; the list of shards is shuffled too.
      seed: of the shuffle.
      check_sums: file with the checksums that the shards must have.
      dots: "last": keys end at the last dot of names; else at the first.
      rekey: template of new keys.
    """

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
    check_sums: cli.CheckSums = None
    dots: cli.Dots = None
    rekey: Annotated[
        str | None,
        Option(
            "--rekey TEMPLATE",
            "Give samples new keys, from {index:09d}, {key}, {shard} and fields that hold text, such as {cls}.",
        ),
    ] = None


class ReadAheadOptions(cli.Group):
    """Options for reading several shards at once: memory (bytes), unordered (samples as they arrive), tmpdir."""

    memory: cli.Memory = 256 << 20
    unordered: Annotated[bool, Option("--unordered", "Write samples as they arrive, in any order.")] = False
    tmpdir: cli.TmpDir = None


def cat(
    account: Account,
    source: cli.Inputs,
    output: cli.Output,
    field_choice: cli.Fields,
    choice: SampleChoice,
    ahead: ReadAheadOptions,
    parallel: int | None,
) -> None:
    """Run tarcat or tarpcat: write the selected samples of the shards of *source* to *output*.

    *field_choice*, *choice*: which fields and samples, and in which order. *ahead*: how shards are read ahead.
    *parallel*: number of shards read at once; 0: one per core; None: one after the other, but with `ahead.unordered`
    one per core, up to 8. Raises: UsageError for options that exclude each other, or the table *output*; TarToolsError.
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
    sums = load_sums(choice, output, urls, account) if choice.check_sums is not None else None
    is_plain_copy = choice == SampleChoice(seed=choice.seed, check_sums=choice.check_sums) and not (
        field_choice.fields or field_choice.exclude
    )  # all, as they come
    in_turns = parallel is None and not ahead.unordered
    need = Need.PLACES if in_turns and is_plain_copy else Need.PAYLOADS
    reading = Reading(source.strictness, need, ahead.tmpdir, sums=sums, last_dot=choice.dots == "last")
    workers = cli.count_workers(parallel)

    def shards_ahead(urls: Sequence[str], account: Account, reading: Reading) -> Iterator[Iterator[Batch]]:
        """Yield for each shard an iterator over its batches, which are read ahead.

        With --unordered, yield a single iterator, over the batches of all shards as they arrive.
        """
        from tartools.shards import prefetch

        if ahead.unordered:
            return iter([prefetch.merge_shards(urls, account, reading, workers)])
        return prefetch.read_ahead(urls, account, reading, workers, ahead.memory)

    data = DataSet(urls, account, reading, cli.implicit_workers(), None if in_turns else shards_ahead)
    dots = choice.dots if choice.dots == "last" else None
    new = {"-f": field_choice.fields, "-x": field_choice.exclude, "--rekey": choice.rekey, "--dots last": dots}
    run = data.to([output.url], output.force, output.gzip, new, output.checksums)
    if is_plain_copy:
        run.copy()
        return
    with close_at_end(shards := run.items(by_shard=bool(choice.interleave))):
        run.order(apply_stages(interleave_shards(shards, choice), choice, field_choice, run))


def load_sums(choice: SampleChoice, output: cli.Output, urls: Sequence[str], account: Account) -> "ListedSums":
    """Return the checksums of --check-sums, which all shards *urls* must have; *account* checks them before the commit.

    Raises: UsageError for -c, --slice or a table as output, with which shards are not read to their ends; StorageError
    if the list can't be read, or lacks a shard, or has a checksum of it that can't be computed here (CRC32C).
    """
    stop = "-c" if choice.first is not None else "--slice" if choice.part is not None else ""
    if stop:
        raise UsageError(f"{stop} may stop before the end of a shard, so --check-sums can't compare it")
    if is_table_name(output.url):
        raise UsageError("--check-sums reads all of a shard; it excludes an OUTPUT that ends in .parquet")
    from tartools.storage.checksums import ListedSums

    sums = ListedSums(choice.check_sums or "")
    sums.require(urls)
    account.watched.append(sums.check)
    return sums


def interleave_shards(shards: Iterator[Iterator[Item]], choice: SampleChoice) -> Iterator[Item]:
    """Return the items of *shards*: one shard after the other, or one from each of N in turn.

    N is `choice.interleave`; None: one shard after the other.
    """
    if not choice.interleave:
        return chain_shards(shards)
    from tartools.stages import shuffle

    return shuffle.interleave(shards, choice.interleave)


def apply_stages(items: Iterator[Any], choice: SampleChoice, field_choice: cli.Fields, run: Pass[Any]) -> Iterator[Any]:
    """Return *items* passed through the stages of the options: slice, fields, shuffle, count, new keys.

    *items*: samples; or row numbers, if the output is a table (then no option that changes samples is given). *run*:
    the pass that yields them; its account counts samples left out, and with -c shows this number as the total. Raises:
    UsageError for wrong words of -f; the iterator: UsageError for a wrong template, SampleError for a sample that can't
    get its new names.
    """
    from tartools.stages import select, shuffle

    account = run.account
    if choice.skip or choice.part:
        items = select.take_slice(items, choice.part or slice(choice.skip, None), account)
    items = select.select_by_specs(
        items, field_choice.fields, field_choice.exclude, account, verbatim=field_choice.verbatim
    )
    if choice.shuffle:
        owned = items if run.own is None else map(run.own, items)
        items = shuffle.shuffle_buffer(owned, choice.shuffle, choice.seed, account)
    if choice.first is not None:
        items = select.take_first(items, choice.first)
        account.progress.phase = Phase("", choice.first, lambda: account.samples_out)
    if choice.rekey is not None:
        items = select.rekey(items, choice.rekey, verbatim=field_choice.verbatim)
    return items
