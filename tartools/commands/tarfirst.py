"""Write the first file that matches.

Finds the first sample that meets all conditions and writes one of its fields to stdout, unchanged: the field named by
-f, or its first member. Then it stops reading. If no sample matches, the exit status is 1. A terminal gets
text only.

If all inputs are tables of tarindex (*.parquet), -k and --index search the tables, and only the selected samples are
read from the shards: one request for each, if the shards are on a server.

-S takes an expression in Python's syntax. A name is the text of that field; field('meta.json') is a field whose name
has a dot, field('meta.json:width') a value inside JSON; has('txt') is true if the field exists. size('jpg') is the size
of a payload in bytes. width('jpg') and height('jpg') come from the header of a picture or a video, seconds('flac') from
that of a sound or a video, rate('flac') (in Hz) from that of a sound, fps('mp4') from that of a video; videos need the
extra video. 'jpg;webp' is the first of these fields that the sample has. match('^n0[12]', key) is true if the
regular expression matches anywhere in the text. key, __shard__, __index__ and __size__ are available, as
are int, float, str, len, abs, min, max and round. A sample that lacks a field of the expression does not match; a value
that the expression can't handle, such as int() of a word, is an error.

An expression from an untrusted source does no harm: its methods and limits are those of tarfilter(1).

Examples:
  Get the first file of an archive:
    tarfirst small.tar > first.jpg
  Get a picture of class 180:
    tarfirst -f 'jpg;png' -S 'int(cls) == 180' 'train-*.tar' > picture.jpg
  Print the metadata of one sample:
    tarfirst -k train/n01/a -f json small.tar
  Print the class of sample number 41:
    tarfirst --index 41 -f cls small.tar
  Fetch one sample of a data set on a server:
    tarfirst -k train/n01/a -f jpg s3://bucket/train.parquet > a.jpg
"""

import io
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import SampleError, UsageError, shown
from tartools.samples.account import SORT_HINT, Account
from tartools.samples.sample import Sample
from tartools.samples.values import field_list
from tartools.shards.reading import Reading, check_shards, close_at_end, read_samples
from tartools.stages import select
from tartools.storage.streams import COPY_CHUNK_BYTES
from tartools.tables.schema import is_table

if TYPE_CHECKING:
    from tartools.stages.filtering.expression import Expression

CONTROL_CHARACTER = "[^\t-\r -~\xa0-\U0010ffff]"  # control characters but for tabs and ends of lines and pages


class FirstConditions(cli.Group):
    """Options that say which sample is written, and which of its fields.

    Attributes:
      fields: one word, such as "jpg;png", alternative names of the field; None: the first member.
      expression: must be true for the sample (-S); None: no condition.
      key: its key; None: any.
      place: its number, from 0 through all inputs (--index); None: any.
      verbatim: match case, keep final newlines.
    """

    fields: Annotated[
        list[str] | None, Option("-f --fields SPEC", "Field to write: jpg, or 'jpg;png' for the first that exists.")
    ] = None
    expression: Annotated[
        str | None, Option("-S --select EXPR", "Only samples for which EXPR is true, such as 'int(cls) == 3'.")
    ] = None
    key: Annotated[str | None, Option("-k --key KEY", "Only the sample with this key.")] = None
    place: Annotated[int | None, Option("--index N", "Only sample number N, counted from 0.", minimum=0)] = None
    verbatim: cli.Verbatim = False


@cli.command(__doc__)
def tarfirst(account: Account, source: cli.Inputs, conditions: FirstConditions) -> None:
    """Write one payload to stdout: the chosen field of the first sample of *source* that meets *conditions*.

    A sample without that field does not meet them. Raises: TarToolsError, such as SampleError if no sample meets them,
    UsageError for more than one field, for a new name of it, or binary data on a terminal.
    """
    words = select.parse_words(conditions.fields)
    if len(words) > 1 or any(word.new for word in words):
        raise UsageError("-f takes a single field, or a;b for the first of these that a sample has")
    field = words[0].choices if words else ()
    expression = None
    if conditions.expression is not None:
        from tartools.stages.filtering.expression import Expression

        expression = Expression(conditions.expression, verbatim=conditions.verbatim)
    urls = source.urls()
    samples = numbered_samples(urls, account, Reading(source.strictness), conditions)
    with close_at_end(samples), storage.open_sink("-") as sink:
        other_fields: dict[str, None] = {}
        payload = first_match(samples, conditions, expression, field, other_fields)
        if payload is None:
            why = no_match_message(account.samples_in, expression, field, other_fields)
            raise SampleError(why + repeated_key_note(account, conditions.key) if other_fields or expression else why)
        with payload as file:
            if os.isatty(1):
                check_text(file)
            while chunk := file.read(COPY_CHUNK_BYTES):
                sink.write(chunk)
    account.samples_out, account.left_out = 1, account.samples_in - 1


def numbered_samples(
    urls: Sequence[str], account: Account, reading: Reading, conditions: FirstConditions
) -> Iterator[tuple[int, Sample]]:
    """Yield (number, sample) for the samples of *urls* that may meet the *conditions*, in order.

    If *conditions* have a key or number, and all of *urls* are tables, their columns are searched, and only samples
    that match them, or whose row has no key, are read; otherwise all samples are read and yielded. Numbers are from 0
    on, through all *urls*. *account* counts the samples as read. Raises: TarToolsError if they can't be read.
    """
    if conditions.key is not None or conditions.place is not None:
        from tartools.tables import tablesamples

        check_shards(urls, account)
        if all(map(is_table, urls)):
            yield from tablesamples.find_samples(urls, account, conditions.place, conditions.key)
            return
    samples = read_samples(urls, account, reading)
    with close_at_end(samples):
        yield from enumerate(samples)


def first_match(
    samples: Iterator[tuple[int, Sample]],
    conditions: FirstConditions,
    expression: "Expression | None",
    field: tuple[str, ...],
    other_fields: dict[str, None],
) -> io.BufferedReader | None:
    """Return the payload to write, open, of the first of the numbered *samples* that meets all conditions; else None.

    The caller closes it. No sample is taken after it, or after the number of *conditions*. *conditions*: number and
    key, and whether case matters in names; *expression*: that of -S; None: no condition. *field*: alternative names; ()
    is the first member. Samples with this number and key that have none of them do not match; their fields are added to
    *other_fields*. Raises: the errors of *samples* and `expression.matches`.
    """
    for index, sample in samples:
        if conditions.place in (None, index) and conditions.key in (None, sample.key):
            members = (sample.member(name, verbatim=conditions.verbatim) for name in field)
            member = next(filter(None, members), None) if field else sample.members[0]
            if member is None:
                other_fields.update(dict.fromkeys(sample.fields))
            elif expression is None or expression.matches(sample, index):
                return member.open()
        if index == conditions.place:
            return None
    return None


def check_text(file: io.BufferedReader) -> None:
    """Raise UsageError unless *file* is UTF-8 without control characters, which a terminal would obey; else rewind it.

    Tabs, and ends of lines and pages, are allowed. Holds: 1 MiB.
    """
    import codecs
    import re

    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        while chunk := file.read(1 << 20):
            if re.search(CONTROL_CHARACTER, decoder.decode(chunk)):
                raise ValueError
        decoder.decode(b"", final=True)
    except ValueError:
        raise UsageError(
            "stdout is a terminal, which cannot show binary data: use > FILE or a pipe, or view it with tarshow"
        ) from None
    file.seek(0)


def no_match_message(
    count: int, expression: "Expression | None", field: Iterable[str], other_fields: Iterable[str]
) -> str:
    """Return the message that none of *count* samples matched, with a hint.

    *expression*: the one that samples had to meet, or None. *field*: alternative names of the field to write.
    *other_fields*: fields of the samples that had none of *field*.
    """
    text = f"none of {count} samples matches"
    if expression and expression.unseen:
        text += f"; none had {' '.join(expression.unseen)}, the fields were: {field_list(expression.fields_seen)}"
    elif expression and expression.describe_values():
        text += expression.describe_values()
    elif other_fields:
        text += f"; those without {';'.join(field)} had: {field_list(other_fields)}"
    return text


def repeated_key_note(account: Account, key: str | None) -> str:
    """Return the end of a message, if *key* (None: any key) was seen to return later in its shard; otherwise ""."""
    for raw, shard in account.returning_keys.items():
        name = raw.decode("utf-8", "surrogateescape")
        if key in (None, name):
            return f"; the key {name!r} comes back in {shown(shard)}, so its members are apart: {SORT_HINT}"
    return ""
