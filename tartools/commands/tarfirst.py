"""Write the first file that matches.

Writes the payload of one member to stdout, as it is: of the first sample that meets all conditions, the field that
-f names, or its first member. Then it stops reading. When no sample matches, the exit status is 1.

-S takes an expression over fields, in Python's words. A name is the text of that field, field('meta.json') one
whose name has a dot, field('meta.json:width') a value inside JSON, has('txt') tells whether there is one; __key__,
__shard__, __index__ and __size__ are there too. There are int, float, str, len, abs, min, max and round. A sample
that lacks a field which is asked for does not match; a value that the expression cannot take is a failure.

Examples:
  tarfirst small.tar > first.jpg
  tarfirst -f 'jpg;png' -S 'int(cls) == 180' 'train-*.tar' > picture.jpg
  tarfirst -k train/n01/a -f json small.tar
  tarfirst -i 41 -f cls small.tar
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import typer

from tartools import cli, shards, storage
from tartools.account import Account
from tartools.errors import SampleError, UsageError
from tartools.sample import Sample
from tartools.stages import select
from tartools.stages.expression import Expression
from tartools.values import told


@cli.group
class Conditions(NamedTuple):
    """Which sample, and what of it."""

    fields: Annotated[
        list[str] | None,
        typer.Option("-f", "--fields", metavar="SPEC", help="The field to write: FIELD, or the first there is of a;b."),
    ] = None
    expression: Annotated[
        str | None, typer.Option("-S", "--select", metavar="EXPR", help="Samples of which EXPR is true.")
    ] = None
    key: Annotated[str | None, typer.Option("-k", "--key", metavar="KEY", help="Samples with this key.")] = None
    place: Annotated[
        int | None, typer.Option("-i", "--index", metavar="N", min=0, help="The sample with this number, from 0 on.")
    ] = None
    verbatim: cli.Verbatim = False


@cli.command(__doc__)
def tarfirst(account: Account, source: cli.Inputs, conditions: Conditions) -> None:
    """Run the command."""
    field = the_field(conditions)
    expression = None
    if conditions.expression is not None:
        expression = Expression(conditions.expression, verbatim=conditions.verbatim)
    urls = storage.expand(*source.named)
    samples = shards.read_samples(urls, account, shards.Reading(source.lax, source.skip_special))
    with shards.closing_upstream(samples), storage.writing("-") as sink:
        lacking: dict[str, None] = {}
        payload = first_match(samples, conditions, expression, field, lacking)
        if payload is None:
            raise SampleError(nothing(account.samples_in, expression, field, lacking))
        with payload as file:
            shutil.copyfileobj(file, sink, 1 << 20)
    account.samples_out, account.left_out = 1, account.samples_in - 1


def the_field(conditions: Conditions) -> tuple[str, ...]:
    """Return the names of which the first that a sample has is written; none if -f is not given."""
    words = select.parse_words(conditions.fields or ())
    if len(words) > 1 or any(word.new for word in words):
        raise UsageError("-f takes one word: a field, or a;b for the first of these that a sample has")
    return words[0].choices if words else ()


def first_match(
    samples: Iterator[Sample],
    conditions: Conditions,
    expression: Expression | None,
    field: tuple[str, ...],
    lacking: dict[str, None],
) -> io.BufferedReader | None:
    """Return the payload to write: of the first of *samples* that meets all conditions and has it.

    The fields of those that have it not are added to *lacking*.
    """
    for index, sample in enumerate(samples):
        if conditions.place in (None, index) and conditions.key in (None, sample.key):
            found = (sample.member(name, verbatim=conditions.verbatim) for name in field)
            member = next(filter(None, found), None) if field else sample.members[0]
            if member is None:
                lacking.update(dict.fromkeys(sample.fields))
            elif expression is None or expression.matches(sample, index):
                return member.open()
        if index == conditions.place:
            return None
    return None


def nothing(read: int, expression: Expression | None, field: Iterable[str], lacking: Iterable[str]) -> str:
    """Return what to say when none of the samples *read* matched, of which some had not *field* but those *lacking*."""
    text = f"none of {read} samples matches"
    if expression and expression.unseen:
        text += f"; none had {' '.join(expression.unseen)}, the fields were: {told(expression.seen)}"
    elif lacking:
        text += f"; those without {';'.join(field)} had: {told(lacking)}"
    return text
