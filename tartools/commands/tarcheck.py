"""Find what is wrong with a data set.

Reads all samples of each SHARD, and goes on after damage where another header can be found. Prints findings: for each
kind a code, how many there are, what it means, what to do, and the first places, with shard, byte and key; on a
terminal as a table, otherwise one fact per line. If a SHARD is a table, the places and keys that it has are compared
with the shards that it lists (numbers of samples and values are not), and the samples of its rows are checked, in their
order; a shard that is named too is read once, whole.

Findings are errors, warnings or notes. The exit status is 1 if there are errors or warnings. Notes are about what may
well be intended, such as a field that few samples have; they leave it 0.

Errors:

{error}

Warnings:
{warning}

Notes:
{note}

A sample should have the fields that most samples have, and those that most of these have; or those of --expect. Fields
of pictures (sounds, videos) that stand for each other, such as jpg in most samples and webp in some, are one:
jpg;webp. Names are compared whole (seg.png is not png) and without case. Fields of samples next to damage are not
compared, because they may have been lost. The first bytes of payloads are compared with the suffix, and cls, cls2, id,
index and inx should be whole numbers; --decode decodes pictures (up to 89 million pixels; of larger ones it reads the
header), JSON, arrays (npy, npz), sounds (wav, flac, ogg, opus) and text, whole, also in fields such as json.gz. Fields
that nothing decodes (mp4, heic, svg, pdf ...) are named. JPEGs are decoded by simplejpeg, if it is installed (pip
install simplejpeg): it is strict, and finds damage that Pillow passes over; it refuses a few that are odd but sound,
too.

A payload is far from the rest if it is 100 times as large as the size that 5 % exceed, or 100 times smaller than the
size that 5 % stay below; a shard, if it is 10 times larger or smaller than the median. The last shard may be small.

Bytes are counted in the tar stream, after decompression; in damaged compressed data, in the file. Stdin and commands
are copied to a temporary file. Keys are compared with all others, in temporary files if they exceed the memory of -M.

--fix writes the samples that can be saved to -o OUTPUT, with the bytes that they had and in their order: one shard, or
one for each input if OUTPUT has a number. It goes on after damage; brings the members of a sample together, where the
last of them is; and leaves out samples with an error or a warning: cut, without a field that they should have, with a
payload that is broken. Each of these is named on stderr, with the reason, and the exit status is 1; if nothing had to
be left out, it is 0. --ignore CODES keeps samples with such findings (damaged members can't be kept). --drop-duplicates
keeps the first of several samples with one key, and the first of several members of a field; the others are left out
silently. Samples next to damage are written if they have all fields that they should have. What --fix writes has no
errors, and no warnings but those marked above: their data are sound, and some readers refuse them. Inputs are read
twice.

--json prints one object:

  shards, samples    how many; shards with those that tables list
  errors, warnings,
  notes              how many findings of each weight
  expected           the fields that each sample should have; a;b is either
  undecoded          all fields with payloads of which only the first bytes
                     were looked at
  findings           the heaviest first; of each: code, weight, count, means,
                     todo, places: the first 1,000 (shard, byte, key, what);
                     byte is null for rows of tables

Examples:
  Check shards before training:
    tarcheck 'train-{000..147}.tar'
  Stop a script if something is wrong:
    tarcheck -q train.tar > findings.txt || exit 1
  Check that each sample has a picture and a label, and decode all:
    tarcheck --expect 'jpg;png cls' --decode 'train-*.tar'
  Save what can be saved of shards of which some were cut:
    tarcheck --fix 'train-*.tar' -o 'fixed-{shard:06d}.tar'
  Bring members together, and keep the first sample of each key:
    tarcheck --fix --drop-duplicates mess.tar -o good.tar
  List the keys of broken pictures, for a program:
    tarcheck --decode --json train.tar |
      jq -r '.findings[] | select(.code == "broken-picture").places[].key'
"""

import textwrap
from functools import partial
from typing import Annotated

from tartools import cli
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.errors import UsageError
from tartools.samples.account import Account
from tartools.shards.workers import DEFAULT_WORKERS
from tartools.show import checkreport
from tartools.stages import select
from tartools.stages.checking.across import compare_fields, note_payloads, note_shards
from tartools.stages.checking.checked import Checking, inputs_to_check
from tartools.stages.checking.codes import CODES, WEIGHTS
from tartools.stages.checking.fixing import Fix, PendingSamples, actions_of, destinations
from tartools.stages.checking.samples import Decode
from tartools.stages.externalsort import external_sort
from tartools.stages.samplefiles import SampleFiles

HELP_COLUMNS = 78  # help indents by two
KEPT_BY_FIX = " (--fix keeps it)"
MANUAL = __doc__ or ""
for weight in WEIGHTS:
    listed = (
        textwrap.fill(
            about.means + (KEPT_BY_FIX if about.is_saved else ""),
            HELP_COLUMNS,
            initial_indent=f"  {code:25}",
            subsequent_indent=" " * 27,
        )
        for code, about in CODES.items()
        if about.weight == weight
    )
    MANUAL = MANUAL.replace(f"{{{weight}}}", "\n".join(listed))


class CheckOptions(cli.Group):
    """Options for the checks and their report."""

    expect: Annotated[
        list[str] | None, Option("--expect NAMES", "Fields that each sample must have: 'jpg;png cls'.")
    ] = None
    decode: Annotated[
        bool, Option("--decode", "Decode pictures, JSON, arrays, sounds and text, to find those that are broken.")
    ] = False
    ignore: Annotated[
        str | None, Option("--ignore CODES", "Kinds of findings that don't matter: 'suffix-lies upper-case'.")
    ] = None
    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False


class FixOptions(cli.Group):
    """Options for the repaired output."""

    fix: Annotated[bool, Option("--fix", "Write the samples that can be saved to OUTPUT.")] = False
    output: Annotated[
        str | None, Option("-o --output OUTPUT", "File or URL for --fix; with %06d or {shard:06d}, one for each shard.")
    ] = None
    unique: Annotated[
        bool, Option("--drop-duplicates", "With --fix, keep the first of samples with one key, and of equal fields.")
    ] = False
    force: cli.Force = False


@cli.command(MANUAL)
def tarcheck(account: Account, source: cli.Inputs, options: CheckOptions, fixed: FixOptions, means: cli.Means) -> int:
    """Run the command."""
    expect = select.choices_of(options.expect, "--expect")
    ignored = frozenset((options.ignore or "").replace(",", " ").split())
    for code in sorted(ignored - CODES.keys()):
        message = f"{code!r} is not one (tarcheck --help)"
        raise UsageError(f"--ignore takes codes of findings, such as suffix-lies; {message}")
    if fixed.fix != (fixed.output is not None) or (fixed.unique and not fixed.fix):
        raise UsageError("--fix goes with -o OUTPUT, and so does --drop-duplicates (see tarcheck --help)")
    urls = list(dict.fromkeys(source.urls()))
    reading = source.reading._replace(ranges=True, tmpdir=means.tmpdir, forks=True, torn=True)
    shards = inputs_to_check(urls, reading)
    places = destinations(fixed.output, fixed.force, shards) if fixed.output else None
    checking = Checking(
        shards, account, payload_decoder(options), means.parallel or min(cli.workers(0), DEFAULT_WORKERS)
    )
    sort = partial(external_sort, memory=means.memory, tmpdir=means.tmpdir)
    doings = actions_of(checking.repeats(sort))
    pending = PendingSamples(sort(doings)) if places else None
    for _ in doings:
        pass  # without --fix, nobody else takes them
    account.check()
    summary = checking.summary
    words = compare_fields(summary, expect)
    note_payloads(summary)
    note_shards(summary, checking.sizes)
    for code in ignored:
        summary.findings.pop(code, None)
    account.samples_in = account.samples_out = summary.samples
    facts = checkreport.check_facts(summary, shards.count, shards.shard_place, words, options.decode)
    print_facts(facts, options.json, checkreport)
    if options.decode:
        from tartools.samples.decoding import simplejpeg_hint

        if hint := simplejpeg_hint(summary.fields):
            account.warn(hint)
    if places and pending:
        account.samples_in = account.samples_out = 0
        files = SampleFiles(means.tmpdir)
        Fix(shards, places, pending, words, fixed.unique, ignored, checking.decode, account, files).run()
        return 0
    return int(facts["errors"] + facts["warnings"] > 0)


def payload_decoder(options: CheckOptions) -> Decode | None:
    """Return the function that decodes payloads, if --decode is given."""
    if not options.decode:
        return None
    from tartools.show.broken import decode_payload

    return decode_payload
