"""Summarize what is in shards.

Reads all samples and prints: the number of samples; their size, and how much of it is headers and padding; for each
field its sizes, and how many samples lack it; which fields occur together; formats and sizes of pictures; how often
each class occurs; how evenly the shards are filled. On a terminal these are tables, otherwise one fact per line.

Classes are the values of the field cls, of fields that begin with cls., and of those that --classes names. Pictures are
recognized by the last part of their field (jpg, png ...). Their headers are read; --decode decodes all of each picture
(of an animation the first frame), to find those that are cut or damaged. Large payloads of local files that are neither
are not read at all. Names and values are escaped.

Of tables only the columns are read, so that sizes are those of the samples, without headers and padding. Classes come
from columns that have the names of their fields (tarindex -f cls), pictures from those that tarindex --pictures made;
without these columns they are not counted. What --classes names and has no column is read from the shards. So are all
samples with --decode, and samples whose members the table does not list (members without a field, and fields given
twice).

Up to 20 keys of broken pictures are listed, and of samples that lack a field that most samples have; --json lists up to
1,000,000 of each.

Counts, sums, minima and maxima are exact. Quantiles are up to 1 % too small, and do not depend on -p. At most 1,000
different fields, combinations of fields, classes and picture sizes are listed.

Workers are processes, which divide local files and remote shards among them; stdin and commands are read by one worker.
Reading remote shards is mostly waiting: -p 16 is faster than the default.

--json prints one object, in bytes and samples; null stands for lists that were too long:

  samples, members
  bytes         archives (decompressed); of these payloads, headers, padding,
                other (ends of archives, directories, links)
  shards        count; samples and their bytes in one (min, median, max);
                smallest and largest (url, samples, bytes)
  fields        of each: field, members, samples, missing (samples without it),
                missing_in (the first key of these), missing_keys (all of
                them, if most samples have the field), torn (the first of
                these keys that comes back in its shard: tarsort would bring
                its members together), bytes,
                sizes (min, p5, median, p95, max), histogram (how many sizes
                from min to max, in equal steps of their logarithms),
                classes (values: how many; counts; long: above 256 bytes),
                pictures (formats, sizes, width, height, broken; broken_in and
                why: of the first that is; broken_keys)
  combinations  of each, the most frequent first: fields, samples

Examples:
  Summarize one shard:
    tarstat train.tar
  List the fields that some samples lack, and 20 of these samples:
    tarstat 'train-{000..147}.tar' | grep ^missing
  List all pictures that can't be decoded:
    tarstat --decode --json train.tar | jq -r '.fields[].pictures.broken_keys[]?'
  Count the values of two more fields, with eight workers:
    tarstat --classes 'label split' -p 8 'train-*.tar'
  Get the size of each field, for a program:
    tarstat --json train.tar | jq '.fields[] | {field, bytes}'
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Annotated, Any

from tartools import cli, storage
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.errors import printable, shown
from tartools.samples.account import Account
from tartools.samples.distribution import DIGITS, Distribution
from tartools.samples.filetypes import is_picture_field
from tartools.samples.sample import Batch
from tartools.samples.values import no_sample_has
from tartools.shards.gathering import WORKERS, gather_results
from tartools.shards.reading import Reading
from tartools.show import decoding, statreport
from tartools.stages.statistics.counting import FieldKinds, count_batch
from tartools.stages.statistics.together import Together
from tartools.stages.statistics.totals import LISTED, FieldStatistics, PictureSize, Statistics
from tartools.storage.expand import expand
from tartools.tar import Member
from tartools.tar.compression import is_table

STEPS = 12  # of a histogram
PICTURE = ("format", "width", "height", "broken")  # columns of a table for each field of pictures


class Looks(cli.Group):
    """What to count, and how to print it."""

    classes: Annotated[
        str | None,
        Option("--classes", metavar="NAMES", help="Count the values of these fields too, in quotes: 'label split'."),
    ] = None
    decode: Annotated[bool, Option("--decode", help="Decode all pictures, to find those that are broken.")] = False
    json: Annotated[bool, Option("--json", help="Print one JSON object.")] = False


@cli.command(__doc__)
def tarstat(account: Account, source: cli.Inputs, looks: Looks, parallel: cli.Workers = 0) -> None:
    """Run the command."""
    urls = expand(*source.named)
    named = (looks.classes or "").split()
    wanted = FieldKinds(classes_in(named), is_picture_field, partial(measured, decode=looks.decode))
    columns, fields = ([], 0) if looks.decode else columns_of_tables(urls, named, wanted, account)
    reading = Reading(source.lax, source.skip_special, ranges=True, alike=True, forks=True, columns=columns)
    listed = LISTED if looks.json else statreport.LISTED
    most = parallel or min(cli.workers(0), WORKERS)

    def told_of(batches: Iterator[Batch]) -> dict[str, Any]:
        found = Statistics(listed=listed)
        together = Together(found, wanted, listed)
        for batch in batches:
            if batch.columns is None:
                if not together.take(batch):
                    together.flush()
                    found.add(count_batch(batch, wanted, listed))
            else:
                from tartools.stages.statistics.fromcolumns import count_listed

                found.add(count_listed(batch, wanted, listed, fields))
            account.samples_in += len(batch)
            account.samples_out += len(batch)
        together.flush()
        return found.as_dict()

    found = Statistics(listed=listed)
    gather_results(urls, account, reading, told_of, most, lambda part: found.add(Statistics.from_dict(part)))
    if found.samples and found.fields is not None:
        known = {field.lower() for field in found.fields}
        unseen = [name for name in named if name.lower() not in known]
        if unseen:
            lost = " ".join(unseen)
            raise no_sample_has(lost, found.fields)
    if columns:
        account.unpacked = found.headers + found.payloads + found.padding
    facts = facts_of(found, urls, account)
    print_facts(facts, looks.json, statreport)


def columns_of_tables(
    urls: Sequence[str], named: Sequence[str], kinds: FieldKinds, account: Account
) -> tuple[list[str], int]:
    """Return the columns from which samples are counted, if all *urls* are tables that have them, else none.

    Also how many fields the tables have together.

    Of fields that are not *named*, classes and pictures for which there are no columns are left out, with a warning.
    """
    if not all(map(is_table, urls)):
        return [], 0
    from tartools.tables import schema, source

    found: dict[str, None] = {schema.KEY: None, schema.MEMBERS: None}
    fields, classes, pictures = set[str](), set[str](), set[str]()  # the last two without columns
    for url in urls:
        with source.opened(url) as table:
            if table.fields is None or schema.KEY not in table.names:
                return [], 0
            fields.update(table.fields)
            classes.update(name for name in filter(kinds.classes, table.fields) if name not in table.names)
            for name in filter(kinds.pictures, table.fields):
                if not {f"{name}.{what}" for what in PICTURE}.issubset(table.names):
                    pictures.add(name)
            found |= dict.fromkeys(filter(kinds.classes, table.fields))
            found |= {f"{name}.{what}": None for name in filter(kinds.pictures, table.fields) for what in PICTURE}
    if {name.lower() for name in named} & {name.lower() for name in classes}:
        return [], 0
    lost = [f"classes of {' '.join(sorted(classes))} (tarindex -f)"] if classes else []
    lost += [f"pictures of {' '.join(sorted(pictures))} (tarindex --pictures)"] if pictures else []
    if lost:
        what = printable(" and ".join(lost))
        account.warn(f"{shown(urls[0])}: not counted, because there are no columns for them: {what}")
    gone = classes | {f"{name}.{what}" for name in pictures for what in PICTURE}
    return [name for name in found if name not in gone], len(fields)


def classes_in(named: Sequence[str]) -> Callable[[str], bool]:
    """Return what tells whether the values of a field are classes: those *named*, whatever their case, cls, cls.*."""
    folded = {"cls", *map(str.lower, named)}
    return lambda name: name.lower() in folded or name.lower().startswith("cls.")


def measured(member: Member, *, decode: bool) -> PictureSize:
    """Return what the header of the picture *member* says, or why it is broken; *decode* looks at all of it."""
    header, broken = decoding.described(member, decode)
    return PictureSize(*header[:3]) if header is not None and broken is None else PictureSize(broken=broken or "")


def facts_of(found: Statistics, urls: Sequence[str], account: Account) -> dict[str, Any]:
    """Return what was *found* in the shards *urls*, which *account* has counted, in the shape of --json."""
    size = account.unpacked
    taken = found.headers + found.payloads + found.padding
    return {
        "samples": found.samples,
        "members": found.members,
        "bytes": {
            "archives": size,
            "payloads": found.payloads,
            "headers": found.headers,
            "padding": found.padding,
            "other": size - taken,
        },
        "shards": balance(found.shards, shards_of(urls, found.shards)),
        "fields": None
        if found.fields is None
        else [facts_of_field(name, field, found, account) for name, field in found.fields.items()],
        "combinations": None
        if found.combinations is None
        else [{"fields": name.split("/"), "samples": count} for name, count in by_count(found.combinations).items()],
    }


def facts_of_field(name: str, field: FieldStatistics, found: Statistics, account: Account) -> dict[str, Any]:
    """Return what was *found* in the *field* called *name*; *account* knows keys that come back."""
    samples, usual = found.samples, 2 * field.samples > found.samples
    lacking = found.lacking(name) if field.samples < samples else []
    torn = (key for key in lacking or () if key.encode("utf-8", "surrogateescape") in account.torn)
    facts = {
        "field": name,
        "members": field.members,
        "samples": field.samples,
        "missing": samples - field.samples,
        "missing_in": field.lacking,
        "missing_keys": lacking if usual else [],
        "torn": next(torn, None),
        "bytes": field.sizes.total,
        "sizes": {
            "min": field.sizes.least,
            "p5": field.sizes.quantile(5),
            "median": field.sizes.quantile(50),
            "p95": field.sizes.quantile(95),
            "max": field.sizes.greatest,
        },
        "histogram": histogram(field.sizes),
    }
    if field.classes != {} or field.long:
        counts = None if field.classes is None else by_count(field.classes)
        facts["classes"] = {
            "values": None if counts is None else len(counts),
            "counts": counts,
            "long": field.long,
        }
    if field.pictures:
        pictures = field.pictures
        facts["pictures"] = {
            "formats": by_count(pictures.formats or {}),
            "sizes": None if pictures.sizes is None else by_count(pictures.sizes),
            "width": spread(pictures.widths),
            "height": spread(pictures.heights),
            "broken": pictures.broken,
            "broken_in": pictures.broken_keys[0] if pictures.broken_keys else None,
            "why": pictures.why,
            "broken_keys": pictures.broken_keys,
        }
    return facts


def spread(numbers: Distribution) -> dict[str, int | None]:
    """Return least, median and greatest of *numbers*; None if there are none."""
    known = numbers.least is not None
    return {"min": numbers.least, "median": numbers.quantile(50) if known else None, "max": numbers.greatest}


def histogram(numbers: Distribution) -> list[int]:
    """Return how many *numbers* fall into each of at most 12 equally wide steps of buckets, from least to greatest."""
    places = {place(low): count for low, count in numbers.buckets.items()}
    first, buckets = min(places), max(places) - min(places) + 1
    counts = [0] * min(STEPS, buckets)
    for where, count in places.items():
        counts[(where - first) * len(counts) // buckets] += count
    return counts


def place(low: int) -> int:
    """Return how many buckets of numbers there are before the one that begins at *low*.

    >>> place(255), place(256), place(512)
    (255, 256, 384)
    """
    shift = max(0, low.bit_length() - DIGITS)
    return (shift << DIGITS - 1) + (low >> shift)


def by_count(counts: dict[str, int]) -> dict[str, int]:
    """Return *counts*, the largest first, equal ones by value."""
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))


def shards_of(urls: Sequence[str], found: Collection[str]) -> Sequence[str]:
    """Return the URLs of shards: *urls*, and in place of tables among these the shards *found* that they list."""
    listed = [url for url in found if url not in urls]
    if not listed:
        return urls
    read = [url for url in urls if url in found or (storage.is_repeatable(url) and not is_table(url))]
    return [*read, *listed]


def balance(found: dict[str, list[int]], urls: Sequence[str]) -> dict[str, Any]:
    """Return how samples and bytes are spread over the shards *urls*; one that is named twice was read twice."""
    times = Counter(urls)
    counts = [[number // times[url] for number in found.get(url, (0, 0))] for url in urls]
    facts: dict[str, Any] = {"count": len(urls)}
    for column, what in enumerate(("samples", "bytes")):
        numbers = sorted(count[column] for count in counts)
        facts[what] = {"min": numbers[0], "median": numbers[(len(numbers) - 1) // 2], "max": numbers[-1]}
    for what, choose in (("smallest", min), ("largest", max)):
        number = choose(range(len(urls)), key=lambda number: counts[number][1])
        facts[what] = {"url": shown(urls[number]), "samples": counts[number][0], "bytes": counts[number][1]}
    return facts
