r"""Select samples by field, by key, or take a fraction of them.

Reads the samples of each SHARD and writes those that meet all conditions as one tar archive, in order. --rest writes
the others to another archive, in the same pass; otherwise they are left out. --invert swaps the two.

-S takes an expression in Python's syntax. A name is the text of that field; field('meta.json') is a field whose name
has a dot, field('meta.json:width') a value inside JSON; has('txt') is true if the field exists. size('jpg') is the size
of a payload in bytes. width('jpg') and height('jpg') come from the header of a picture or a video, seconds('flac') from
that of a sound or a video, rate('flac') (in Hz) from that of a sound, fps('mp4') from that of a video; videos need the
extra video. 'jpg;webp' is the first of these fields that the sample has. match('^n0[12]', key) is true if the
regular expression matches anywhere in the text. key, __shard__, __index__ and __size__ are available, as
are int, float, str, len, abs, min, max and round. If the expression fails on a sample, because a field is
missing or int() gets a word, that is an error; with --ignore-errors it is false for such samples.

An expression from an untrusted source does no harm. Texts have the methods startswith, endswith, find, count, lower,
upper, strip, lstrip, rstrip, removeprefix, removesuffix, replace, split and is... (isdigit, isalpha, isalnum, isspace,
islower, isupper), JSON objects get, keys, values and items; lists are made by [... for x in ... if ...]. One sample
may take up to 100,000 steps: a step is one operation, 100 characters created, 1,000 characters read (100 of JSON), or
10 items of a list. Integers have up to 1,024 bits, text converted to numbers up to 4,300 characters, and expressions
may be nested 100 deep. A regular expression has up to 10,000 characters, 100,000 once repeats such as {1000} are
expanded, and none of (?x), (?R) and {e<=1}; it searches up to 2,000,000 characters of text, divided by the number of
its groups plus one, and all matches for a sample take up to one second. Beyond a limit the command fails, even with
--ignore-errors.

If no sample is selected, a warning says so, and lists the values of the fields in the expression, if they are few.

--share LO:HI selects a fraction of the samples by key alone: a sample is on the same side in every run and in every
version of a data set. The fraction of a key is its 8-byte BLAKE2b digest, as a big-endian number, divided by 2 to the
power of 64; samples with LO <= fraction < HI are selected. LO and HI are exact: 0.1, or 1/3. --sample selects by an
8-byte BLAKE2b digest with the digest of --seed as its key, so that another seed selects other samples. With --group
FIELD the value of FIELD takes the place of the key: all samples of a patient (json:patient) or a speaker are on one
side. A sample without a value is an error.

OUTPUT and --rest appear once both are complete. If one ends in .parquet, it is a table, which lists the samples and
moves none (see TABLES in tartools(7)). If inputs are tables, values in -S come from the column of the same name (cls,
json:width, or jpg.width and flac.seconds, which tarindex --facts makes), if there is one, otherwise from the shards.
Names that are not fields of samples, such as score, have the type of the column.

Examples:
  Split a data set, for training and validation:
    tarfilter --share 0:0.9 all.tar -o train.tar --rest val.tar
  The same, with all samples of a patient on one side:
    tarfilter --share 0:0.9 --group json:patient all.tar -o train.tar \
      --rest val.tar
  Select sounds of 2 to 20 seconds:
    tarfilter -S "2 <= seconds('flac;wav;mp3') <= 20" speech.tar -o fit.tar
  Select large pictures of one class:
    tarfilter -S "int(cls) == 180 and width('jpg') >= 256" 'train-*.tar' \
      -o chosen.tar
  Separate the samples whose keys are in a list from the others:
    tarfilter --keys bad.txt all.tar -o bad.tar --rest good.tar
  Select a thousandth of a data set, for a trial:
    tarfilter --sample 0.001 --seed 7 'train-*.tar' > few.tar
  List the samples that have a picture and a caption in a table:
    tarfilter --fields-present 'jpg;png txt' train.parquet -o complete.parquet
  Drop samples whose JSON has a low score, or none:
    tarfilter -S "field('json:score') > 0.5" --ignore-errors 'train-*.tar' \
      -o good.tar
"""

from collections.abc import Callable
from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.errors import StorageError, UsageError
from tartools.samples.account import Account
from tartools.shards.dataset import DataSet
from tartools.shards.reading import Reading
from tartools.stages import select, shares
from tartools.stages.filtering.conditions import Filter
from tartools.storage.expand import read_list


def share_of_keys(text: str) -> range:
    """Convert a fraction such as 0.1 or 1/3 to the range of the 64-bit key numbers below it: "0.5" is range(2**63).

    Raises: ValueError if *text* is no number from 0 to 1.
    """
    return range(shares.parse_bound(text))


class FilterConditions(cli.Group):
    """Conditions of the samples to select: a sample has to meet all that are given; None: not given.

    Attributes:
      expression: an expression that must be true (-S).
      keys: file with a list of keys, one per line.
      present: texts of fields that a sample must have, such as "jpg;png cls": a;b is either.
      sample, hash: ranges of key numbers, with and without the seed (--sample, --share).
      seed: of --sample.
      group: field whose value takes the place of the key for --sample and --share.
      invert: select the samples that do not meet the conditions.
      missing: an expression that fails is false (--ignore-errors).
      verbatim: match case, keep final newlines.
    """

    expression: Annotated[
        str | None, Option("-S --select EXPR", "Samples for which EXPR is true, such as 'int(cls) == 3'.")
    ] = None
    keys: Annotated[str | None, Option("--keys FILE", "Samples whose keys are in FILE, one per line.")] = None
    present: Annotated[
        list[str] | None, Option("--fields-present NAMES", "Samples that have all of these fields: 'jpg;png cls'.")
    ] = None
    sample: Annotated[
        range | None, Option("--sample SHARE", "A random fraction of the samples, such as 0.1.", parser=share_of_keys)
    ] = None
    seed: cli.Seed = 0
    hash: Annotated[
        range | None,
        Option("--share LO:HI", "A fraction by key alone, the same in every run: 0:0.9.", parser=shares.parse_span),
    ] = None
    group: Annotated[
        str | None, Option("--group FIELD", "For --share, --sample: keep samples with one value of FIELD together.")
    ] = None
    invert: Annotated[bool, Option("--invert", "Select the samples that do not meet the conditions.")] = False
    missing: Annotated[
        bool, Option("--ignore-errors", "Treat EXPR as false where it fails; otherwise that is an error.")
    ] = False
    verbatim: cli.Verbatim = False


def make_filter(conditions: FilterConditions) -> Filter:
    """Return the filter that *conditions* ask for.

    Raises: UsageError without a condition, for an invalid one, or an option that needs another; StorageError for a list
    of keys that is empty, or can't be read.
    """
    key_conditions = (conditions.expression, conditions.keys, conditions.present, conditions.sample, conditions.hash)
    if all(each is None for each in key_conditions):
        raise UsageError("no condition: give -S, --keys, --fields-present, --sample or --share")
    numbers: list[tuple[Callable[[bytes], int], range]] = []
    if conditions.hash is not None:
        numbers.append((shares.hash_key, conditions.hash))
    if conditions.sample is not None:
        numbers.append((shares.make_key_hash(conditions.seed), conditions.sample))
    if conditions.group is not None and not numbers:
        raise UsageError("--group needs --share or --sample")
    expression = None
    if conditions.expression is not None:
        from tartools.stages.filtering.expression import Expression

        expression = Expression(conditions.expression, verbatim=conditions.verbatim)
    elif conditions.missing:
        raise UsageError("--ignore-errors needs -S")
    words = select.parse_choices(conditions.present, "--fields-present")
    keys = None
    if conditions.keys == "-":
        raise UsageError("--keys takes the name of a file: stdin is for shards")
    if conditions.keys is not None:
        lines = read_list(conditions.keys).split("\n")
        keys = {line.removesuffix("\r").encode("utf-8", "surrogateescape") for line in lines} - {b""}
        if not keys:
            raise StorageError("the list of keys is empty", url=conditions.keys)
    return Filter(
        keys=keys,
        numbers=numbers,
        group=None if conditions.group is None else shares.parse_value_column(conditions.group),
        verbatim=conditions.verbatim,
        words=words,
        expression=expression,
        lenient=conditions.missing,
        invert=conditions.invert,
    )


Rest = Annotated[str | None, Option("--rest URL", "Write the other samples to this file or URL.")]


@cli.command(__doc__)
def tarfilter(
    account: Account,
    source: cli.Inputs,
    conditions: FilterConditions,
    output: cli.Output,
    rest: Rest = None,
    tmpdir: cli.TmpDir = None,
) -> None:
    """Write the samples of *source* that *conditions* select to *output*, and all other samples to *rest*, in order.

    *rest*: URL; None: the other samples are left out. *tmpdir*: folder of temporary files; None: the default. Raises:
    TarToolsError.
    """
    sample_filter = make_filter(conditions)
    urls = source.urls()
    cli.check_outputs({"-o": output.url, "--rest": rest}, output.force, [*urls, *filter(None, [conditions.keys])])
    columns = sample_filter.columns()
    reading = Reading(source.strictness, sample_filter.need, tmpdir, columns)
    run = DataSet(urls, account, reading, cli.implicit_workers()).to(
        [output.url, rest], output.force, output.gzip, sums=output.checksums
    )
    run.select(sample_filter.flags, sample_filter.flags_of_keys if sample_filter.is_by_key else None)
    sample_filter.warn(account)
