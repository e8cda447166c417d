"""The samples for which an expression of `tarfilter -S` is true, by their positions."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from contextlib import closing
from time import monotonic
from typing import Any

from tartools.errors import TarToolsError
from tartools.samples.account import Account
from tartools.shards.reading import Reading, read_batches
from tartools.show.serve.rowconditions import MAX_CONDITION_CHARS
from tartools.show.serve.rowindex import QuestionError
from tartools.stages.filtering.conditions import Filter
from tartools.stages.filtering.expression import Expression

EXPRESSION_SECONDS = 120.0  # after which the reading of samples is given up


def select_positions(text: str, urls: Sequence[str], reading: Reading, rows: int) -> Any:
    """Return the ascending positions of the samples of *urls* for which the expression *text* is true.

    They are an array of uint32. A sample on which the expression fails is left out, as by tarfilter --ignore-errors.
    Values come from columns of tables where these have them, else samples are read. *rows*: the number of all samples.
    Raises: QuestionError if *text* is no expression or over 4000 characters, if it takes more than 120 s
    (EXPRESSION_SECONDS, looked at after each batch), if samples can't be read, or if their number is not *rows*,
    because the data set has changed.
    """
    import numpy as np

    if len(text) > MAX_CONDITION_CHARS:
        raise QuestionError(f"this is longer than {MAX_CONDITION_CHARS} characters")
    until, positions, count = monotonic() + EXPRESSION_SECONDS, array("I"), 0
    try:
        condition = Filter(expression=Expression(text), lenient=True)
        reading = reading._replace(need=condition.need, columns=condition.columns())
        with closing(read_batches(urls, Account(lambda _: None), reading)) as batches:  # type: ignore[type-var]
            for batch in batches:
                flags = condition.flags(batch)
                positions.extend(count + number for number, flag in enumerate(flags) if flag)
                count += len(batch)
                if monotonic() > until:
                    raise QuestionError(
                        f"stopped after {EXPRESSION_SECONDS:.0f} s, at sample {count:,} of {rows:,}: use SQL over "
                        "columns, of a table that has them (tarindex -f)"
                    )
    except TarToolsError as error:
        raise QuestionError(str(error)) from None
    if count != rows:
        raise QuestionError("the data set has changed since it was indexed: start tarshow --serve again")
    return np.array(positions, np.uint32)
