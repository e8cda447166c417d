"""Names of numbered shards: what a prefix or pattern stands for, and what number a name has."""

from __future__ import annotations

import re
from typing import NamedTuple

from tartools.compression import split_suffix
from tartools.errors import UsageError
from tartools.storage.names import split_query

_PERCENT = re.compile(r"(?<!%)%(0?)(\d*)d")
_ZEROS = re.compile(r"%(0)([1-9])d")
_BRACES = re.compile(r"\{shard(?::(0?)(\d*)d?)?\}")


class Numbering(NamedTuple):
    """Names made of *prefix*, a number of at least *digits* digits (with *fill* before), and *suffix*."""

    prefix: str
    digits: int
    fill: str
    suffix: str

    def name(self, number: int) -> str:
        """Return the name of shard *number*."""
        return self.prefix + str(number).rjust(self.digits, self.fill) + self.suffix

    def number(self, name: str) -> int | None:
        """Return the number whose name *name* is; None if it is no such name."""
        digits = name.removeprefix(self.prefix).removesuffix(self.suffix).strip(" ")
        if not digits.isascii() or not digits.isdigit() or self.name(int(digits)) != name:
            return None
        return int(digits)


def parse_numbering(text: str, gzip: bool) -> Numbering:
    """Return the numbering that *text* describes: a prefix, or a pattern with `%06d` or `{shard:06d}`.

    A prefix gets six digits, and `.tar` (`.tgz` with *gzip*) unless it names a suffix itself.
    Raises: UsageError for two numbers, or none where there should be one.

    In the URL of a web server a number is `%06d`, with the 0, or in braces, and stands before the query.

    >>> parse_numbering("train", False).name(7), parse_numbering("d/", True).name(0)
    ('train-000007.tar', 'd/000000.tgz')
    >>> parse_numbering("train.tar.zst", False).name(7), parse_numbering("a-{shard:03d}.tar", False).name(7)
    ('train-000007.tar.zst', 'a-007.tar')
    """
    text, query = split_query(text)
    encoded = text.startswith(("http://", "https://"))  # there %20 is a blank
    found = [*(_ZEROS if encoded else _PERCENT).finditer(text), *_BRACES.finditer(text)]
    if len(found) > 1:
        raise UsageError(f"a pattern for shards has one number: {text}")
    if found:
        fill, digits = found[0].groups(default="")
        if len(digits) > 2:
            raise UsageError(f"a number of {digits} digits is in no name: {text}")
        sides = text[: found[0].start()], text[found[0].end() :]
        if found[0].re is _PERCENT:  # in URLs a percent sign is %25
            sides = sides[0].replace("%%", "%"), sides[1].replace("%%", "%")
        return Numbering(sides[0], int(digits or 0), "0" if fill else " ", sides[1] + query)
    base, suffix = split_suffix(text)
    suffix = suffix or (".tgz" if gzip else ".tar")
    return Numbering(base if not base or base.endswith("/") else base + "-", 6, "0", suffix + query)
