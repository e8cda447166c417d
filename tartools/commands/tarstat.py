"""Summarize the contents of shards.

Reads all samples and prints: the number of samples; their size, and how much of it is headers and padding; for each
field its sizes, and how many samples lack it; the combinations of fields; formats and sizes of pictures; the count of
each class; how evenly the shards are filled. On a terminal these are tables, otherwise one fact per line.

Classes are the values of the field cls, of fields that begin with cls., and of those given by --classes, which may be
values inside JSON (json:split) or the first of two fields (label;cls). Pictures are recognized by the last part of
their field (jpg, png ...). Only their headers are read; --decode decodes the whole picture (only the first frame of an
animation), to find truncated and damaged ones. If simplejpeg is installed, it decodes JPEGs: it is strict, and finds
damage that Pillow does not notice, but it also refuses a few valid but unusual ones. Large payloads of local files that
are neither classes nor pictures are not read at all. Names and values are escaped.

--hours adds up the lengths of the sounds (wav, flac, ogg, opus, mp3, m4a) and videos (mp4, mov, mkv, webm, avi) in each
field, from their headers. Those that can't be read are counted and listed as broken, as pictures are; --decode also
decodes WAV, FLAC and Ogg. Videos and m4a need PyAV, the extra video.

For tables, only the columns are read, so sizes are those of the samples, without headers and padding. Classes come from
columns with the names of their fields (tarindex -f cls), pictures from the columns of tarindex --pictures; without
these columns they are not counted. --hours takes the columns of tarindex --facts. Fields of --classes that have no
column are read from the shards, and so are sounds and videos for --hours. So are all samples with --decode, and samples
whose members are not listed in the table (members without a field, and duplicate fields).

Up to 20 keys are listed of broken pictures, and of samples without a field that most samples have; --json lists up to
1,000,000 of each.

Counts, sums, minima and maxima are exact. Quantiles are up to 1 % too small, and do not depend on -p. Up to 1,000
different fields, combinations of fields, classes and picture sizes are listed.

Workers are processes, which share local files and remote shards; stdin and commands are read by one worker. Reading
remote shards is mostly waiting: -p 16 is faster than the default.

--json prints one object, in bytes and samples; null stands for lists that were too long:

  samples, members
  bytes         archives (decompressed); of these payloads, headers, padding,
                other (ends of archives, directories, links)
  shards        count; samples and their bytes in one (min, median, max);
                smallest and largest (url, samples, bytes)
  fields        objects: field, members, samples, missing (samples that lack
                it), missing_in (the first key of these), missing_keys (all of
                them, if most samples have the field), torn (the first of
                these keys that comes back in its shard: tarsort would bring
                its members together), bytes,
                sizes (min, p5, median, p95, max), histogram (how many sizes
                from min to max, in equal steps of their logarithms),
                classes (values: how many; counts; long: above 256 bytes),
                pictures (formats, sizes, width, height, broken; broken_in and
                why: of the first that is; broken_keys)
                with --hours, lengths (count, hours; seconds: all, min, median
                and max; broken ... as for pictures)
  values        with --classes json:split: field, samples, missing,
                missing_in, classes, as above
  combinations  of each, the most frequent first: fields, samples

Examples:
  Summarize one shard:
    tarstat train.tar
  List the fields that some samples lack, and 20 of these samples:
    tarstat 'train-{000..147}.tar' | grep ^missing
  List all pictures that can't be decoded:
    tarstat --decode --json train.tar |
      jq -r '.fields[].pictures.broken_keys[]?'
  Add up the hours of speech:
    tarstat --hours 'speech-*.tar' | grep ^hours
  Count the values of two more fields, with eight workers:
    tarstat --classes 'label json:split' -p 8 'train-*.tar'
  Get the size of each field, for a program:
    tarstat --json train.tar | jq '.fields[] | {field, bytes}'
"""

from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from functools import partial
from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.commands._report import print_facts
from tartools.samples import decoding
from tartools.samples.account import Account
from tartools.samples.filetypes import is_picture_field
from tartools.samples.values import absent_field_error, parse_column
from tartools.shards.reading import Reading
from tartools.shards.workers import ShardTask, gather
from tartools.show import sections, statreport
from tartools.show.statreport import facts_of
from tartools.stages.statistics import FieldKinds, columns_of_tables, make_class_test, summarize
from tartools.stages.summary import MAX_REMEMBERED_KEYS, Summary
from tartools.storage.split import archive_of
from tartools.tables.schema import is_table
from tartools.tar.groups import Need


class CountOptions(cli.Group):
    """Options for the counts and their report.

    Attributes:
      classes: more fields to count values of.
      hours: add up the lengths of sounds and videos.
      decode: decode pictures, and with *hours* sounds, to find broken ones.
      json: print one JSON object.
    """

    classes: Annotated[
        str | None, Option("--classes NAMES", "Count the values of these too, in quotes: 'label json:split'.")
    ] = None
    hours: Annotated[bool, Option("--hours", "Add up the hours of sounds and videos.")] = False
    decode: Annotated[bool, Option("--decode", "Decode all pictures, to find broken ones.")] = False
    json: Annotated[bool, Option("--json", "Print one JSON object.")] = False


@cli.command(__doc__)
def tarstat(account: Account, source: cli.Inputs, count_options: CountOptions, parallel: cli.Workers = None) -> None:
    """Count fields, sizes, classes and pictures of the samples of *source*, and print the facts.

    *count_options*: which fields have classes, whether pictures are decoded, JSON. *parallel*: number of workers, 0 for
    one per core; None: one per core, up to 8. Raises: TarToolsError, also for a field of --classes that no sample has,
    unless there are no samples.
    """
    urls = source.urls()
    words = {word: parse_column(word) for word in (count_options.classes or "").split()}
    class_fields = [word for word, column in words.items() if column.choices == (word,)]
    value_columns = [column for word, column in words.items() if column.choices != (word,)]
    measure = partial(decoding.picture_facts, decode=count_options.decode)
    kinds = FieldKinds(make_class_test(class_fields), is_picture_field, measure, value_columns)
    if count_options.hours:
        from tartools.samples.kinds import has_length, length_of

        kinds = kinds._replace(has_length=has_length, measure_length=partial(length_of, decode=count_options.decode))
    columns, fields = ([], 0) if count_options.decode else columns_of_tables(urls, class_fields, kinds, account)
    need = Need.PAYLOADS if value_columns else Need.FIELDS
    reading = Reading(source.strictness, need, columns=columns, uniform=True)
    listed = MAX_REMEMBERED_KEYS if count_options.json else sections.MAX_PLACES_LISTED
    summary = Summary(listed)

    def work(task: ShardTask[Summary]) -> Iterable[bytes]:
        """Count the samples of *task*; the counts are its result. Return no bytes."""
        task.result = summarize(task.batches, kinds, listed, fields, account)
        return ()

    max_workers = cli.count_workers(parallel)
    with closing(gather(urls, account, reading, work, max_workers=max_workers, remote=True)) as tasks:
        for task in tasks:
            summary.add(task.result, summary.samples)
    present = {field.lower() for field in summary.fields}
    unseen = [name for name in class_fields if name.lower() not in present and not summary.many_fields]
    unseen += [name for name, values in summary.values.items() if not values.samples]
    if unseen and summary.samples:
        raise absent_field_error(" ".join(unseen), summary.fields)
    if count_options.hours and summary.samples and not any(field.lengths for field in summary.fields.values()):
        account.warn("no field holds sounds or videos, by its last part, so there are no hours to add up")
    if count_options.decode and (hint := decoding.simplejpeg_hint(summary.fields)):
        account.warn(hint)
    if columns:
        account.unpacked = summary.stored
    # samples of an archive that was split have its name
    names = [archive if (archive := archive_of(url)) in summary.shards else url for url in urls]
    print_facts(
        facts_of(summary, shards_of(names, summary.shards), account.unpacked, account.returning_keys),
        count_options.json,
        statreport,
    )


def shards_of(urls: Sequence[str], shard_urls: Collection[str]) -> Sequence[str]:
    """Return the URLs of all shards: *urls* without the tables among them, then the shards that only tables list.

    *shard_urls*: all shards whose samples were counted, those that tables list included. Without a table the result is
    *urls*. What can't be read twice (stdin) counts as a table if it is no shard itself and there are listed ones.
    """
    listed = [url for url in shard_urls if url not in urls]
    empty = [url for url in urls if url not in shard_urls]
    tables = {url for url in empty if (is_table(url) if storage.is_repeatable(url) else listed)}
    return [*(url for url in urls if url not in tables), *listed]
