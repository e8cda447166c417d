"""The expressions of -S: tarfilter and tarfirst have them."""

from __future__ import annotations

from tartools.stages.filtering.expression import Expression
from tartools.tar import Member


def expression(text: str, verbatim: bool) -> Expression:
    """Return the expression *text*, which can look at headers of pictures. Raises: UsageError."""
    return Expression(text, verbatim=verbatim, described=_described)


def _described(member: Member) -> tuple[object, ...]:
    from tartools.show import decoding

    return decoding.facts(member, decode=False)
