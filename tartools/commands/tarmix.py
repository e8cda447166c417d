r"""Mix samples from several sources in given proportions.

A source is a number, its share, followed by its shards and tables, up to the next number: tarmix 0.7 'a-*.tar'
0.3 b.parquet. Shares need not sum to 1: 7 and 3 mean the same. A file whose name is a number is written ./0.7. Lines of
-T files follow the arguments of the command line, so a file can hold a mixture; without a number they belong to the
last source. A single share without shards reads stdin.

The source of each sample is drawn at random according to the shares. In any run of adjacent samples, however long, each
source has its share to within a few samples (7 in tests of 100,000), and at every position the probability of a source
is exactly its share. Each source keeps its order: shuffle it first.

--stop says what to do when a source ends: when it is drawn but has no more samples. first (the default) stops there.
all continues without that source, until all have ended: then every sample is written once, and the last ones are no
longer in proportion. longest restarts that source, until every source has ended once: every sample is written at least
once. Sources that may be repeated are read again, so they can't be stdin or commands.

The number of samples that first and -c leave out is printed on stderr: those of tables and, with first, of
uncompressed local shards, whose headers are read to the end for that. The rest of other shards is not read, and so
neither counted nor checked.

Samples with one key may come from two sources, and with longest from two rounds. Where they would be adjacent, tarmix
fails, as other commands do; otherwise it warns. --rekey gives new keys: {source} is the number of the source, counted
from 0 in the order of the command line, {round} how many times it has been restarted (0, except with longest), {index}
the number of the sample in OUTPUT; {key}, {shard} and fields that hold text, such as {cls}, are as for tarcat.

An OUTPUT that ends in .parquet is a table, which lists the samples and moves none: see TABLES in tartools(7). --rekey
does not go with it, nor do samples from stdin or pipe:. A repeated sample is listed again. A table may list
adjacent samples with one key; a shard can't.

Examples:
  Mix two data sets, seven samples of one for three of the other:
    tarmix 0.7 'web-*.tar' 0.3 books.tar -o mixed.tar
  Check the shares of the first thousand samples, by the field cls:
    tarmix -c 1000 0.7 'web-*.tar' 0.3 books.tar | tarstat
  Mix tables of shuffled data sets, and repeat the smaller ones:
    tarmix --stop longest 6 web.parquet 3 books.parquet 1 code.parquet \
      -o epoch.parquet
  Write every sample once, with unique keys, in shards of 1 GB:
    tarmix --stop all --rekey '{source}/{key}' 1 a.tar 1 b.tar |
      tarsplit -s 1e9 -o mixed
  Keep the mixture in a file, a share or the name of a shard per line:
    tarmix -T mixture.txt --seed 7 -o mixed.tar
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Annotated, Any

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import UsageError, printable
from tartools.samples.account import Account, Phase
from tartools.shards.dataset import DataSet
from tartools.shards.reading import Reading
from tartools.stages.mixing import MixedSource, Mixture, Stop
from tartools.storage.expand import add_lists, expand
from tartools.storage.url import Url
from tartools.tar.groups import Need

SHARE_PATTERN = r"[+-]?(?:(\d+)\.?(\d*)|\.(\d+))(?:e([+-]?\d{1,3}))?"
NO_NUMBER = r"[+-]?(?:nan|inf|infinity)"
SHARE_DECIMALS = 18  # behind the point
SHARE_DENOMINATOR = 10**9  # the least share is one sample of this number
USAGE_HINT = "such as tarmix 0.7 a.tar 0.3 b.tar"
NUMBER_NAME_HINT = "a file whose name is a number is written ./0.7"


class MixingOptions(cli.Group):
    """Options for the mixture.

    Attributes:
      stop: "first", "all" or "longest": when a source ends, stop, continue without it, or repeat it.
      total: samples to write at most (--count); None: no limit.
      seed: of the draws.
      rekey: template of new keys; None: keys stay.
      tmpdir: folder of temporary files; None: the default.
    """

    stop: Annotated[
        Stop, Option("--stop", "When a source ends: stop (first), continue without it (all), or repeat it (longest).")
    ] = "first"
    total: Annotated[int | None, Option("-c --count N", "Stop after N samples.", minimum=0, aliases="--total")] = None
    seed: cli.Seed = 0
    rekey: Annotated[
        str | None,
        Option(
            "--rekey TEMPLATE",
            "Give samples new keys, from {source}, {round}, {index:09d}, {key}, {shard} and fields, such as {cls}.",
        ),
    ] = None
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarmix(account: Account, source: cli.DescribedInputs, output: cli.Output, mixture: MixingOptions) -> None:
    """Draw samples from several data sets in proportion to their shares, and write them to *output*.

    *source*: words that name a share and its shards, one data set after the other: 0.7 a.tar 0.3 b.tar. *mixture*: what
    happens when a data set ends, number of samples, seed, new keys. Raises: TarToolsError.
    """
    shares, groups = zip(
        *parse_sources(add_lists(*source.expand_arguments, is_name=lambda word: parse_share(word) is None)), strict=True
    )
    urls = list(chain.from_iterable(groups))
    storage.check_output(output.url, output.force, urls)
    reading = Reading(source.strictness, tmpdir=mixture.tmpdir, sources=len(groups))
    run = DataSet(urls, account, reading, cli.implicit_workers()).to(
        [output.url], output.force, output.gzip, {"--rekey": mixture.rekey}, output.checksums
    )

    def begin(size: int | None) -> None:
        """Set the bytes, shards and samples that progress expects, as far as known; *size*: bytes of the inputs."""
        if mixture.stop == "all" and mixture.total is None:  # otherwise nobody knows how much will be read
            account.progress.expected = size
        if mixture.stop != "longest":  # that one reads some shards more than once
            account.progress.shards = len(urls)
        if mixture.total is not None:
            account.progress.phase = Phase("", mixture.total, lambda: account.samples_out)

    places = reading.with_need(Need.PLACES, ("__key__",))
    needed = mixture.stop == "longest"
    sources: list[MixedSource[Any]] = [
        MixedSource(source, account, needed=needed) for source in run.sources(groups, places, begin)
    ]
    mixing = Mixture(sources, shares, mixture.stop, mixture.seed, mixture.total, mixture.rekey, account)
    try:
        run.order(replace_keys(mixing, mixture.rekey), mixing.warn_of_repeats)
    finally:
        for mixed_source in sources:
            mixed_source.close()


def parse_share(word: str) -> int | None:
    """Return the share that *word* is, times 10**18, so that it is a whole number; None if *word* is not a number.

    A number is decimal, with an exponent of up to three digits. Raises: UsageError for one that can't be a share: 0,
    negative, infinite, nan, of more than 18 digits, or with an exponent out of range, such as 1e19 and 1e-19.

    >>> parse_share("0.7") == 7 * parse_share("1e-1"), parse_share("a.tar")
    (True, None)
    """
    match = re.fullmatch(SHARE_PATTERN, word, re.ASCII | re.IGNORECASE)
    if match is None and not re.fullmatch(NO_NUMBER, word, re.IGNORECASE):
        return None
    if match is not None and word[0] != "-":
        integer_part, part = match[1] or "", match[2] or match[3] or ""
        shift = SHARE_DECIMALS - len(part) + int(match[4] or 0)
        if len(integer_part + part) <= SHARE_DECIMALS and 0 <= shift <= 2 * SHARE_DECIMALS and int(integer_part + part):
            return int(integer_part + part) * 10**shift  # type: ignore[no-any-return]
    raise UsageError(f"{word} is not a share: a share is a number above 0, of up to 18 digits; {NUMBER_NAME_HINT}")


def parse_sources(words: Sequence[str]) -> list[tuple[int, list[Url]]]:
    """Return (share, shards) of each source that *words* name, in order.

    A share is a whole number, the word's number times 10**18. *words*: for each source its share, then its shards.
    A single share without shards stands for stdin. Raises: UsageError for words that do not begin with a share, one of
    several shares without shards, an impossible share, or one below 10**-9 of all; the errors of `expand`, such as
    StorageError for a wildcard without a match.
    """
    groups: list[tuple[str, int, list[str]]] = []
    for word in words:
        share = parse_share(word)
        if share is not None:
            groups.append((word, share, []))
        elif not groups:
            raise UsageError(f"the first word must be a share, and {printable(word)!r} is not a number: {USAGE_HINT}")
        else:
            groups[-1][2].append(word)
    if not groups:
        raise UsageError(f"no source: name shares and shards, {USAGE_HINT}")
    for word, _, names in groups:
        if not names and len(groups) > 1:
            raise UsageError(f"no shard follows the share {word}: {USAGE_HINT}; {NUMBER_NAME_HINT}")
    total = sum(share for _, share, _ in groups)
    for word, share, _ in groups:
        if share * SHARE_DENOMINATOR < total:
            raise UsageError(f"the share {word} is less than one of {SHARE_DENOMINATOR:,} samples")
    return [(share, expand(names)) for _, share, names in groups]


def replace_keys(mixing: Iterable[tuple[Any, int, int]], template: str | None) -> Iterator[Any]:
    """Yield the first item of each triple of *mixing*: (item, number of its source, round).

    Numbers are from 0 on; `round`: how many times the source was read before. With a *template* the items are samples,
    which get keys made from it, with {index} counting the samples yielded; None: items are yielded as they are. Raises:
    UsageError for a bad template; SampleError for a bad key, or a sample that lacks a field of the template.
    """
    if template is None:
        yield from (item for item, _, _ in mixing)
        return
    from tartools.stages import select

    make = select.make_rekeyer(template, ("source", "round"))
    for index, (sample, source, repetition) in enumerate(mixing):
        yield make(sample, index=index, source=source, round=repetition)
