"""Find problems in a data set.

Reads all samples of each SHARD, and continues after damage at the next header that can be found. Prints findings: for
each kind a code, a count, its meaning, the remedy, and the first places, with shard, byte and key; on a terminal as a
table, otherwise one fact per line. If a SHARD is a table, its offsets and keys are compared with the shards that it
lists (but not numbers of samples and values), and the samples of its rows are checked, in order; a shard that is also
named itself is read once, completely.

Findings are errors, warnings or notes. The exit status is 1 if there are errors or warnings. Notes are about things
that may be intended, such as a field that few samples have; they do not change the exit status.

Errors:

{error}

Warnings:
{warning}

Notes:
{note}

A sample should have the fields of --expect; by default those that most samples have, and those that most of these
have. Picture (sound, video) fields that replace each other, such as jpg in most samples and webp in some, count as one:
jpg;webp. Names are compared in full (seg.png is not png) and without case. Samples next to damage may have lost fields,
so theirs are not compared. The first bytes of payloads are compared with the suffix, and cls, cls2, id, index and inx
should be whole numbers; --decode decodes pictures (up to 89 million pixels; for larger ones it reads the header), JSON,
arrays (npy, npz), sounds (wav, flac, ogg, opus) and text completely, even in fields such as json.gz. Fields that can't
be decoded (mp4, heic, svg, pdf ...) are named. If simplejpeg is installed (pip install simplejpeg), it decodes JPEGs:
it is strict, and finds damage that Pillow does not notice, but it also refuses a few valid but unusual ones.

A payload is an outlier if it is more than 100 times the 95th percentile, or less than a hundredth of the 5th; a shard,
if it is 10 times larger or smaller than the median. The last shard may be small.

--for hf also reads the shards as Hugging Face's datasets does, whose module the hub's viewer runs: names of shards and
their splits, fields and types in the first five samples of the first shard (by name, of the last split), fields and
types of all other samples, payloads that it decodes (text, numbers, JSON, arrays). The SHARDs are those of the whole
data set, in the folders that they have on the hub. The report ends with YAML between two lines ---: the head of a
README.md that names the splits (configs) and columns (features), with which datasets infers nothing. --for webdataset
reads the shards as webdataset does, and decode(). Rows of a table are checked as one shard, in their order.

--check-sums compares the stored bytes of shards with a list of checksums: of --sums, sha256sum, md5sum or tarls --sums.
A shard is found in the list by its path or URL, else by its base name, so that a copy elsewhere is found as well.
Shards that are only in the list are named on stderr.

Byte offsets refer to the tar stream, after decompression; for damaged compressed data, to the file. Stdin and
commands are copied to a temporary file. All keys are compared, in temporary files if they exceed the memory of -M.

--fix writes the intact samples to -o OUTPUT, unchanged and in order: one shard, or one for each input if OUTPUT has a
number. It continues after damage, joins the members of a sample at the position of the last, and leaves out samples
with an error or a warning: truncated, without an expected field, or with a broken payload. Each of these is named on
stderr, with the reason, and the exit status is 1; it is 0 if nothing had to be left out. --ignore CODES keeps samples
with such findings (but not damaged members). --drop-duplicates keeps the first of several samples with one key, and the
first of several members of a field; the others are left out silently. Samples next to damage are written if they have
all expected fields. --dots last checks, and with --fix writes, names such as img.2023.01.jpg as the field jpg of
img_2023_01, as tarcat --dots last does. The output of --fix has no errors, and no warnings but those marked above:
their data are intact, but some readers refuse them. Inputs are read twice.

--json prints one object:

  shards, samples    their numbers; shards include those listed in tables
  errors, warnings,
  notes              the number of findings of each weight
  expected           the fields that each sample should have; a;b is either
  undecoded          all fields with payloads that were only recognized by
                     their first bytes
  card               the YAML of --for hf
  findings           objects, the most severe first: code, weight, count,
                     means, todo, places: the first 1,000 (shard, byte, key,
                     what); byte is null for rows of tables

Examples:
  Check shards before training:
    tarcheck 'train-{000..147}.tar'
  Stop a script if there is a problem:
    tarcheck -q train.tar > findings.txt || exit 1
  Check that each sample has a picture and a label, and decode them:
    tarcheck --expect 'jpg;png cls' --decode 'train-*.tar'
  Check all shards of a data set for Hugging Face, and begin its card:
    tarcheck --for hf 'train-*.tar' | sed -n '/^---$/,$p' > README.md
  Check a download, also against the hub's checksums:
    tarls --sums hf://datasets/org/set/ > sums.txt
    tarcheck --check-sums sums.txt 'set/*.tar'
  Recover the intact samples of truncated shards:
    tarcheck --fix 'train-*.tar' -o 'fixed-{shard:06d}.tar'
  Give samples the keys that were meant, if names have several dots:
    tarcheck --fix --dots last dotted.tar -o good.tar
  Join the members of samples, and keep the first sample of each key:
    tarcheck --fix --drop-duplicates mess.tar -o good.tar
  List the keys of broken pictures, for a program:
    tarcheck --decode --json train.tar |
      jq -r '.findings[] | select(.code == "broken-picture").places[].key'
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

from tartools import cli
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.errors import StorageError, UsageError, several, shown
from tartools.samples.account import Account
from tartools.shards.reading import Reading, ShardPolicy
from tartools.show import checkreport
from tartools.stages import select
from tartools.stages.checking.across import Repeated, compare_fields, note_shard_sizes, note_size_outliers
from tartools.stages.checking.checked import Checking, InputsToCheck, inputs_to_check
from tartools.stages.checking.codes import CODES, SEVERITIES
from tartools.stages.externalsort import external_sort
from tartools.stages.summary import Summary
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.shards.writing import Destination
    from tartools.stages.checking.fixing import PendingSamples
    from tartools.stages.checking.readers import ReaderRules
    from tartools.storage.checksums import ListedSums

MAX_NAMES_WARNED = 10  # names of unread shards in a warning
HELP_COLUMNS = 78  # help indents by two
FIX_KEEPS_HINT = " (--fix keeps it)"


def list_codes(manual: str) -> str:
    """Return *manual* with the codes of findings and their meanings in place of {error}, {warning} and {note}.

    Each code begins a line, after two blanks, with its meaning beside it, wrapped to 78 columns; " (--fix keeps it)"
    ends the meaning of an error or warning with which --fix writes samples (`is_saved`).
    """
    import textwrap  # a run does not show them

    for weight in SEVERITIES:
        listed = (
            textwrap.fill(
                about.means + (FIX_KEEPS_HINT if about.is_saved else ""),
                HELP_COLUMNS,
                initial_indent=f"  {code:25}",
                subsequent_indent=" " * 27,
            )
            for code, about in CODES.items()
            if about.weight == weight
        )
        manual = manual.replace(f"{{{weight}}}", "\n".join(listed))
    return manual


class CheckOptions(cli.Group):
    """Options for the checks and their report.

    Attributes:
      expect: texts of fields that each sample must have, such as "jpg;png cls"; None: those that most samples have.
      decode: decode payloads, not only look at their first bytes.
      ignore: codes of findings to leave out, separated by blanks or commas; None: none.
      dots: "last": keys end at the last dot of names; else at the first.
      reader: the library that shall read the shards, "hf" (datasets) or "webdataset"; None for none.
      json: print one JSON object.
      check_sums: file with the checksums that the shards should have; None: they are not compared.
    """

    expect: Annotated[
        list[str] | None, Option("--expect NAMES", "Fields that each sample must have: 'jpg;png cls'.")
    ] = None
    decode: Annotated[
        bool, Option("--decode", "Decode pictures, JSON, arrays, sounds and text, to find broken ones.")
    ] = False
    ignore: Annotated[
        str | None, Option("--ignore CODES", "Kinds of findings that don't matter: 'suffix-lies upper-case'.")
    ] = None
    check_sums: cli.CheckSums = None
    dots: cli.Dots = None
    reader: Annotated[
        Literal["hf", "webdataset"] | None,
        Option("--for READER", "Check also for a reader: hf (datasets and its card) or webdataset."),
    ] = None
    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False


class FixOptions(cli.ShardOutputs):
    """Options for the repaired output.

    Attributes:
      fix: write the intact samples (--fix).
      output: URL of one shard, or a pattern for one per input; None without --fix.
      unique: keep the first of samples with one key, and of equal fields (--drop-duplicates).
      force: replace existing shards.
      sums: file to which their checksums are written, or None.
    """

    fix: Annotated[bool, Option("--fix", "Write the intact samples to OUTPUT.")] = False
    output: Annotated[
        str | None, Option("-o --output OUTPUT", "File or URL for --fix; with %06d or {shard:06d}, one for each shard.")
    ] = None
    unique: Annotated[
        bool, Option("--drop-duplicates", "With --fix, keep the first of samples with one key, and of equal fields.")
    ] = False
    force: cli.Force = False
    sums: cli.Sums = None


@cli.command(__doc__, complete=list_codes)
def tarcheck(
    account: Account, source: cli.Inputs, options: CheckOptions, repair: FixOptions, resources: cli.ResourceOptions
) -> int:
    """Check all samples of *source*, print the findings, and with --fix write intact samples; return the exit status.

    Returns 1 if there are errors or warnings, else 0; with --fix 0: samples left out are omissions of *account*, by
    which the command ends with 1. Missing and damaged inputs are findings; one named twice is read once. *options*: the
    checks and their report. *repair*: the output of --fix. *resources*: workers, memory, tmpdir. Raises: TarToolsError.
    """
    expect = select.parse_choices(options.expect, "--expect")
    ignored = ignored_codes(options)
    check_fix_options(repair)
    faults: list[StorageError] = []
    urls = list(dict.fromkeys(source.urls(faults.append)))
    sums = None
    if options.check_sums is not None:
        from tartools.storage.checksums import ListedSums

        sums = ListedSums(options.check_sums)
    policy = ShardPolicy(ignore_repeated_keys=True)
    reader = reader_of(options, repair)
    last_dot = options.dots == "last"
    reading = Reading(source.strictness, Need.FIELDS, resources.tmpdir, policy=policy, sums=sums, last_dot=last_dot)
    shards = inputs_to_check(urls, reading, faults)
    if last_dot and shards.tables:
        url = urls[min(shards.tables)]
        raise UsageError("--dots last is for shards, and this is a table: name the shards that it lists", url=url)
    places = destinations_of(repair, shards)
    # workers compare keys where a large shard is cut, and these are the keys up to the first dot
    max_workers = 1 if last_dot else cli.count_workers(resources.parallel)
    checking = Checking(shards, account, options.decode, max_workers, reader)
    sort = partial(external_sort, memory=resources.memory, tmpdir=resources.tmpdir)
    repeats = checking.find_repeats(sort)
    pending = pending_samples(repeats, sort) if places else None
    for _ in repeats:
        pass  # runs the check to its end; with --fix, `pending` has done so
    account.check()
    summary = checking.summary
    words = compare_fields(summary, expect)
    note_size_outliers(summary)
    note_shard_sizes(summary, checking.sizes)
    card = check_for_reader(summary, shards, reader) if reader else None
    for code in ignored:
        summary.findings.pop(code, None)
    account.samples_in = account.samples_out = summary.samples
    warn_of_unread(sums, urls, account)
    facts = checkreport.check_facts(summary, shards.count, shards.shard_place, words, options.decode, card)
    print_facts(facts, options.json, checkreport)
    if options.decode:
        from tartools.samples.decoding import simplejpeg_hint

        if hint := simplejpeg_hint(summary.fields):
            account.warn(hint)
    if places and pending:
        from tartools.stages.checking.fixing import Fix

        account.samples_in = account.samples_out = 0
        Fix(shards, places, pending, words, repair.unique, ignored, checking.decode, account, resources.tmpdir).run()
        return 0
    return int(facts["errors"] + facts["warnings"] > 0)


def destinations_of(repair: FixOptions, shards: InputsToCheck) -> "list[Destination] | None":
    """Return the sinks of the samples of *shards* that --fix writes, one for all or one for each; None without -o.

    Raises: UsageError for an unsuitable name, such as stdout or a table; StorageError if an output exists (without
    --force), is an input, or can't be written.
    """
    if repair.output is None:
        return None
    from tartools.stages.checking.fixing import destinations  # only --fix needs what writes shards

    return destinations(repair.output, repair.force, shards, repair.checksums)


def pending_samples(
    repeats: Iterator[Repeated], sort: Callable[[Iterator[bytes]], Iterator[bytes]]
) -> "PendingSamples":
    """Return the actions of --fix for samples that share a key, from the groups *repeats*.

    `sort(records)`: returns the records of the actions, bytes, in sorted order. *repeats* are read to their end.
    """
    from tartools.stages.checking.fixing import PendingSamples, actions_of

    return PendingSamples(sort(actions_of(repeats)))


def ignored_codes(options: CheckOptions) -> frozenset[str]:
    """Return the codes of --ignore, separated there by blanks or commas; an empty set without it.

    Raises: UsageError for a word that is no code.
    """
    ignored = frozenset((options.ignore or "").replace(",", " ").split())
    for code in sorted(ignored - CODES.keys()):
        message = f"{code!r} is not one (tarcheck --help)"
        raise UsageError(f"--ignore takes codes of findings, such as suffix-lies; {message}")
    return ignored


def reader_of(options: CheckOptions, repair: FixOptions) -> "ReaderRules | None":
    """Return the reader of --for; None without it. Raises: UsageError if --fix or --dots last go with it."""
    if options.reader is None:
        return None
    if repair.fix or options.dots == "last":
        raise UsageError("--for is about shards as they are: run it on the output of --fix, or of tarcat --dots last")
    from tartools.stages.checking.readers import READERS

    return READERS[options.reader]


def check_for_reader(summary: Summary, shards: InputsToCheck, reader: "ReaderRules") -> str | None:
    """Add findings to *summary* about all *shards*, as *reader* reads them; return the text of the dataset card.

    The text is that of the report's YAML; None if *reader* has none: it is not the one of --for hf.
    """
    from tartools.show.datasetcard import card_text
    from tartools.stages.checking.datasetrules import note_codecs, note_dataset

    note_codecs(summary, shards, reader)
    return card_text(note_dataset(summary, shards)) if reader.is_typed else None


def check_fix_options(repair: FixOptions) -> None:
    """Raise UsageError if --fix is given without -o, or -o, --drop-duplicates or --sums without --fix."""
    if repair.fix != (repair.output is not None) or (repair.unique and not repair.fix):
        raise UsageError("--fix goes with -o OUTPUT, and so does --drop-duplicates (see tarcheck --help)")
    if repair.sums is not None and not repair.fix:
        raise UsageError("--sums lists what --fix writes; --check-sums FILE compares the shards with a list")


def warn_of_unread(sums: "ListedSums | None", urls: Sequence[str], account: Account) -> None:
    """Warn of shards that the list *sums* of --check-sums has, and that are not among *urls*: how many, the first ten.

    Without *sums*, or such shards, nothing is reported.
    """
    if sums is not None and (absent := sums.unmatched_names(urls)):
        names = ", ".join(map(shown, absent[:MAX_NAMES_WARNED]))
        account.warn(f"{shown(sums.url)} lists {several(len(absent), 'shard')} more than were read: {names}")
