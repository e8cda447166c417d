"""Mix the samples of several sources in shares.

A source is a number, its share, and the shards and tables that follow it, up to the next number: tarmix 0.7 'a-*.tar'
0.3 b.parquet. Shares need not sum to 1: 7 and 3 mean the same. A file whose name is a number is written ./0.7. Lines of
-T files are words too, after those of the command line, so that a file can hold a mixture; without a number they belong
to the last source. One share alone, without shards, reads stdin.

The next sample comes from a source that is drawn by the shares. Among neighbours, however many, each source has its
share to within a few samples (7 in tests of 100,000), and at every place the chance of a source is exactly its share.
Each source keeps its order: shuffle it first.

--stop says what to do when a source ends, that is, when it is drawn and has no more samples. first (the default) stops
there. all goes on without that source, until all have ended: then every sample is written once, and the last ones are
no longer in shares. longest begins that source again, until every source has ended once: every sample is written at
least once. Sources that may be repeated are read again, so they can't be stdin or commands.

How many samples first and --count leave out is printed on stderr: those of tables and, with first, of local shards that
are not compressed, whose headers are read to the end for that. The rest of other shards is not read, and so neither
counted nor checked.

Samples with one key may come from two sources, and with longest from two rounds. Where they would be adjacent, tarmix
fails, as other commands do; otherwise it warns. --rekey gives new keys: {source} is the number of the source, counted
from 0 in the order of the command line, {round} how often it was begun before (0, except with longest), {index} the
number of the sample in OUTPUT; {key}, {shard} and fields that hold text, such as {cls}, are as for tarcat.

An OUTPUT that ends in .parquet is a table, which lists the samples and moves none: see TABLES in tartools(7). --rekey
does not go with it, nor do samples from stdin or pipe:. A sample that is repeated is listed again. A table may list
adjacent samples with one key; a shard can't.

Examples:
  Mix two data sets, seven samples of one to three of the other:
    tarmix 0.7 'web-*.tar' 0.3 books.tar -o mixed.tar
  Check the shares of the first thousand samples, by the field cls:
    tarmix --count 1000 0.7 'web-*.tar' 0.3 books.tar | tarstat
  Mix tables of shuffled data sets, and move no sample; repeat the smaller ones until the largest has ended:
    tarmix --stop longest 6 web.parquet 3 books.parquet 1 code.parquet -o epoch.parquet
  Write every sample once, under keys that differ, in shards of 1 GB:
    tarmix --stop all --rekey '{source}/{key}' 1 a.tar 1 b.tar | tarsplit -s 1e9 -o mixed
  Keep the mixture in a file, a share or the name of a shard per line:
    tarmix -T mixture.txt --seed 7 -o mixed.tar
"""

from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.samples.account import Account
from tartools.shards.reading import Reading
from tartools.stages.mixing import Stop
from tartools.storage.expand import named


class MixingOptions(cli.Group):
    """How much is mixed, and under which keys."""

    stop: Annotated[
        Stop,
        Option(
            "--stop",
            help="When a source ends: stop (first), go on without it (all), or repeat it (longest).",
        ),
    ] = "first"
    total: Annotated[
        int | None, Option("--count", metavar="N", minimum=0, aliases=("--total",), help="Stop after N samples.")
    ] = None
    seed: cli.Seed = 0
    rekey: Annotated[
        str | None,
        Option(
            "--rekey",
            metavar="TEMPLATE",
            help="Give samples new keys, from {source}, {round}, {index:09d}, {key}, {shard} and fields, as {cls}.",
        ),
    ] = None
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarmix(account: Account, source: cli.Inputs, output: cli.Output, wanted: MixingOptions) -> None:
    """Run the command."""
    from tartools.commands import _mix

    given = _mix.sources_in(named(*source.named))
    urls = [url for one in given for url in one.urls]
    storage.check_output(output.url, output.force, urls)
    how = _mix.MixOptions(wanted.stop, wanted.total, wanted.seed, wanted.rekey)
    reading = Reading(source.lax, source.skip_special, tmpdir=wanted.tmpdir, forks=True)
    _mix.write(given, output, how, account, reading)
