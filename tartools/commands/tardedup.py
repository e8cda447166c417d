r"""Leave out duplicate samples, or pictures that look alike.

Reads the samples of each SHARD and writes, in order, those that do not duplicate an earlier one. Without --equal and
--near, samples are duplicates if all their fields are equal, names and payloads, whatever their keys. --equal compares
the payloads of these fields only, byte for byte ('jpg;png' is the first of these that a sample has). --near compares
pictures: it finds copies that were resized or compressed again, even in another format.

Pictures are near if their difference hashes (see --dhash in tarindex(1)) differ in at most --distance of 64 bits, and
the means of red, green and blue in 4 by 4 parts of them by at most 12 of 255, and 3 on average, and if width / height
of one is at most 1.1 times that of the other. By the hash alone, blank pictures, skies and other soft
gradients of any shape would be copies of each other. The default --distance of 6 finds copies of photographs; pictures
with large areas of one colour may need more. Copies that are cropped, stretched, rotated,
mirrored, or changed in brightness are not near. Pictures are compared as stored: EXIF does not rotate them. The
first frame stands for an animation.

The first of several duplicates is kept, or with --keep largest the one with the most pixels (with --equal, or without
either option: the one that takes the most bytes in the archive; the first of equally large ones). Near is not the same
as equal: A may be near B, and B near C, but not A near C. So samples are examined in order of preference, and one is
left out if it is near a sample that is kept. Every sample left out has a kept one near it.

--against names other shards or tables, which are not written: samples that duplicate one of theirs are left out too,
whatever --keep says. This keeps pictures of the validation set out of the training set:

  tardedup --near jpg --against val.tar 'train-*.tar' -o train.tar

A sample that lacks a field to compare, or whose picture does not decode, is an error; --keep-uncompared keeps it and
says how many there are.

--report writes a line for each sample left out: its key and shard, those of the kept one, and the distance (0 unless
pictures are near). The columns are key, shard, kept_key, kept_shard, distance, escaped as tar2tsv does. --html
writes a page of pairs, side by side: the 200 with the largest distance. OUTPUT appears after these.

Inputs are read twice, first to compare, then to write; stdin is copied to --tmpdir. If inputs are tables that have the
columns FIELD.blake2b (for --equal) or FIELD.dhash, FIELD.colours, FIELD.width and FIELD.height (for --near; --dhash of
tarindex makes the four), samples are not read to compare them. OUTPUT and --rest may end in .parquet: that is a table,
which lists the samples and moves none (see TABLES in tartools(7)). Digests need -M bytes of memory, and 70 bytes per
sample in --tmpdir beyond that; --near needs about 250 bytes per picture.

Examples:
  Leave out duplicate samples, whatever their keys:
    tardedup 'train-*.tar' -o unique.tar
  Leave out duplicate pictures, byte for byte:
    tardedup --equal jpg 'train-*.tar' -o unique.tar
  Keep the largest of similar pictures, and inspect the pairs:
    tardedup --near jpg --keep largest --html pairs.html 'train-*.tar' \
      -o unique.tar
  List which pictures look alike, and write nothing else:
    tardedup --near jpg --report pairs.tsv 'train-*.tar' -o /dev/null
  Move training pictures that are also in the validation set to a shard:
    tardedup --near jpg --against val.tar 'train-*.tar' -o clean.tar \
      --rest leaked.tar
  Read pictures once, and try several distances:
    tarindex --dhash jpg 'train-*.tar' -o train.parquet
    tardedup --near jpg --distance 3 train.parquet -o strict.parquet
    tardedup --near jpg --distance 10 train.parquet -o loose.parquet
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Literal

from tartools import cli
from tartools.cli import Option
from tartools.errors import UsageError, several
from tartools.samples.account import Account, Phase
from tartools.shards.dataset import DataSet
from tartools.shards.delivery import Selection
from tartools.shards.reading import Reading
from tartools.stages import select
from tartools.stages.duplicates import AGAINST_SIDE, INPUT_SIDE
from tartools.stages.duplicates.comparison import Comparison, DedupSide, find_duplicates, unpack_pair, write_report
from tartools.stages.externalsort import Spool, external_sort
from tartools.storage.expand import expand
from tartools.storage.outputformats import HTML, TSV
from tartools.tar.groups import Need

MAX_DISTANCE_BITS = (
    15  # bits; from 16 on, bands that differ in 4 bits would have to be looked up, which are 2,517: see `near`
)


def parse_distance(text: str) -> int:
    """Convert *text* to a distance in bits, from 0 to 15. Raises: ValueError for any other text."""
    if not text.isascii() or not text.isdecimal() or int(text) > MAX_DISTANCE_BITS:
        raise ValueError(f"not a number of bits from 0 to {MAX_DISTANCE_BITS}: {text!r}")
    return int(text)


class DuplicateOptions(cli.Group):
    """Options that say which samples are duplicates, and which of them is kept.

    Attributes:
      by: text of fields with equal payloads, such as "jpg txt" (--equal); if it and *near* are None, all are compared.
      near: field with pictures that look alike; "jpg;png" is the first of these that a sample has.
      distance: bits in which hashes may differ; None: 6.
      keep: "first" or "largest": most pixels with *near*, otherwise most bytes; the first of equally large ones.
      against: URLs of other data sets, whose samples count as kept; None: none.
      missing: keep samples that can't be compared; False: they are an error.
    """

    by: Annotated[str | None, Option("--equal NAMES", "Samples with equal payloads of these fields: 'jpg txt'.")] = None
    near: Annotated[str | None, Option("--near FIELD", "Samples whose pictures in this field look alike.")] = None
    distance: Annotated[
        int | None,
        Option("--distance BITS", "How many bits of 64 may differ, up to 15.", parser=parse_distance, default="6"),
    ] = None
    keep: Annotated[Literal["first", "largest"], Option("--keep", "Which of several duplicates to keep.")] = "first"
    against: Annotated[
        list[str] | None, Option("--against URL", "Also leave out samples that duplicate one in this shard or table.")
    ] = None
    missing: Annotated[
        bool, Option("--keep-uncompared", "Keep samples that can't be compared; otherwise they are an error.")
    ] = False


class DedupOutputs(cli.Group):
    """Options for outputs besides the kept samples: rest (samples left out), report (TSV), page (HTML); None: none."""

    rest: Annotated[str | None, Option("--rest URL", "Write the samples left out to this file or URL.")] = None
    report: Annotated[
        str | None, Option("--report FILE", "List the samples left out, each with the one it duplicates, as TSV.")
    ] = None
    page: Annotated[str | None, Option("--html FILE", "Write a page of pairs for a browser: one file.")] = None


@cli.command(__doc__)
def tardedup(
    account: Account,
    source: cli.Inputs,
    criteria: DuplicateOptions,
    output: cli.Output,
    extra_outputs: DedupOutputs,
    resources: cli.ResourceOptions,
) -> None:
    """Write the samples of *source* without duplicates to *output*, in order; before, write the reports.

    *criteria*: which samples are duplicates, and which of them is kept. *extra_outputs*: samples left out, reports.
    *resources*: workers, memory, temporary files. Warns of the number of duplicates. Raises: TarToolsError.
    """
    comparison = make_comparison(criteria)
    urls = source.urls()
    against = expand(criteria.against, [], "\n") if criteria.against is not None else []
    if "-" in against and "-" in urls:
        raise UsageError("stdin can be read only once: it is --against and input too")
    outputs = {
        "-o": output.url,
        "--rest": extra_outputs.rest,
        "--report": extra_outputs.report,
        "--html": extra_outputs.page,
    }
    cli.check_outputs(outputs, output.force, [*urls, *against], {"--report": TSV, "--html": HTML})
    columns = ("__key__", *comparison.columns) if comparison.columns else ()
    reading = Reading(source.strictness, tmpdir=resources.tmpdir, columns=columns)
    max_workers = cli.count_workers(resources.parallel)
    run = DataSet(urls, account, reading, max_workers).to(
        [output.url, extra_outputs.rest], output.force, output.gzip, sums=output.checksums
    )
    sides = [DedupSide(INPUT_SIDE, run)]
    if against:
        silent_account = Account(account.say, account.quiet)
        sides.insert(0, DedupSide(AGAINST_SIDE, DataSet(against, silent_account, reading, max_workers).to()))
    part = resources.memory // 4
    for side in sides if extra_outputs.report is not None else ():
        side.names = Spool(part // 2, resources.tmpdir)
    sort = partial(external_sort, memory=part, tmpdir=resources.tmpdir)
    pairs = Spool(part, resources.tmpdir)
    for record in find_duplicates(sides, comparison, account, sort):
        pairs.add(record)
    if extra_outputs.report is not None:
        names = {side.number: side.names or () for side in sides}
        write_report(
            pairs,
            [names.get(number, ()) for number in (AGAINST_SIDE, INPUT_SIDE)],
            extra_outputs.report,
            output.force,
            sort,
        )
    if extra_outputs.page is not None:
        from tartools.show.html.page import write_pairs

        workers = min(cli.count_workers(0), 4)
        write_pairs(pairs, sides, comparison, extra_outputs.page, force=output.force, workers=workers)
    account.progress.phase = Phase("writing", sides[-1].samples, lambda: account.samples_done)
    selection = Selection((unpack_pair(record).position for record in pairs), invert=True)
    run.select(selection.flags, selection.flags, reading.with_need(Need.PLACES, ("__key__",)))
    warn_of_left_out(sides, pairs, account)


def make_comparison(criteria: DuplicateOptions) -> Comparison:
    """Return the comparison that *criteria* ask for: by pictures, by some fields, or by all.

    Raises: UsageError if options exclude or need each other, or if --equal or --near does not name fields (--near:
    one).
    """
    if criteria.by is not None and criteria.near is not None:
        raise UsageError("--equal and --near exclude each other: pictures that are equal are near, too")
    if criteria.near is None and criteria.distance is not None:
        raise UsageError("--distance needs --near")
    if criteria.missing and criteria.by is None and criteria.near is None:
        raise UsageError("--keep-uncompared needs --equal or --near")
    words = select.parse_words([criteria.by or criteria.near or ""])
    if any(word.new for word in words) or (not words and (criteria.by, criteria.near) != (None, None)):
        raise UsageError(
            "--equal takes names of fields, in quotes: 'jpg txt', or 'jpg;png' for either; --near takes one"
        )
    choices = [word.choices for word in words]
    if criteria.near is not None and len(choices) > 1:
        raise UsageError("--near takes one field; 'jpg;png' is the first of these that a sample has")
    near_field = choices[0] if criteria.near is not None else None
    distance = 6 if criteria.distance is None else criteria.distance
    return Comparison(() if near_field else choices, near_field, distance, criteria.keep == "largest", criteria.missing)


def warn_of_left_out(sides: Sequence[DedupSide], pairs: Iterable[bytes], account: Account) -> None:
    """Warn of the number of duplicates left out, and of samples that could not be compared; not if there are none.

    *pairs*: for each sample left out, bytes that begin with a packed `Pair`. *sides*: the input last, before it the
    data of --against, if any; both have been compared.
    """
    pair_sides = [unpack_pair(record).side for record in pairs]
    if pair_sides:
        leaked = f", {pair_sides.count(AGAINST_SIDE):,} of them of samples of --against" if sides[1:] else ""
        account.warn(f"{several(len(pair_sides), 'duplicate')} among {several(sides[-1].samples, 'sample')}{leaked}")
    for side in sides:
        if side.uncompared:
            where = "of --against " if side.number == AGAINST_SIDE else ""
            account.warn(f"{several(side.uncompared, 'sample')} {where}could not be compared, and were kept")
