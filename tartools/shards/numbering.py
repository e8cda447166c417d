"""Names of numbered shards: from a prefix or pattern to names, and from a name to its number."""

import re

from tartools.errors import UsageError
from tartools.storage.url import Url
from tartools.tar.compression import TABLE, check_suffix, is_table_name, split_suffix

_PERCENT = r"(?<!%)%(0?)(\d*)d"
_ZEROS = r"%(0)([1-9])d"
_BRACES = r"\{shard(?::(0?)(\d*)d?)?\}"


class Numbering:
    """Names made of *prefix*, a number of at least *digits* digits (with *fill* before), and *suffix*."""

    def __init__(self, prefix: str, digits: int, fill: str, suffix: str) -> None:
        self.prefix = prefix
        self.digits = digits
        self.fill = fill
        self.suffix = suffix

    def name(self, number: int) -> str:
        """Return the name of shard *number*."""
        return self.prefix + str(number).rjust(self.digits, self.fill) + self.suffix

    def number(self, name: str) -> int | None:
        """Return the number in *name*; None if it is not one of these names."""
        digits = name.removeprefix(self.prefix).removesuffix(self.suffix).strip(" ")
        if not digits.isascii() or not digits.isdigit() or self.name(int(digits)) != name:
            return None
        return int(digits)


def parse_numbering(text: str, gzip: bool) -> Numbering:
    """Return the numbering that *text* describes: a prefix, or a pattern with `%06d` or `{shard:06d}`.

    A prefix gets six digits, and `.tar` (`.tgz` with *gzip*) unless it names a suffix itself.
    In the URL of a web server the number is `%06d`, with the 0, or in braces, and stands before the query.

    Raises UsageError for two numbers in one pattern, for too many digits, or for a prefix that ends in .zip.

    >>> parse_numbering("train", False).name(7), parse_numbering("d/", True).name(0)
    ('train-000007.tar', 'd/000000.tgz')
    >>> parse_numbering("train.tar.zst", False).name(7), parse_numbering("a-{shard:03d}.tar", False).name(7)
    ('train-000007.tar.zst', 'a-007.tar')
    """
    text, query = Url(text).name, Url(text).query
    encoded = text.startswith(("http://", "https://"))  # there %20 is a blank
    found = []
    if "%" in text or "{" in text:
        found = [*re.finditer(_ZEROS if encoded else _PERCENT, text), *re.finditer(_BRACES, text)]
    if len(found) > 1:
        raise UsageError(f"a pattern has one number, not {len(found)}: {text}")
    if found:
        fill, digits = found[0].groups(default="")
        if len(digits) > 2:
            raise UsageError(f"too many digits ({digits}) in the number of the pattern: {text}")
        sides = text[: found[0].start()], text[found[0].end() :]
        if found[0].re.pattern == _PERCENT:  # in URLs a percent sign is %25
            sides = sides[0].replace("%%", "%"), sides[1].replace("%%", "%")
        return Numbering(sides[0], int(digits or 0), "0" if fill else " ", sides[1] + query)
    if Url(text).scheme != "pipe":
        check_suffix(text)
    base, suffix = (text[: -len(TABLE)], TABLE) if is_table_name(text) else split_suffix(text)
    suffix = suffix or (".tgz" if gzip else ".tar")
    return Numbering(base if not base or base.endswith("/") else base + "-", 6, "0", suffix + query)
