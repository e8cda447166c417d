"""Where a pattern such as `train-%06d.tar` or `train-{shard:06d}.tar` has its number."""

from __future__ import annotations

import re

from tartools.storage.url import Url

PERCENT = r"(?<!%)%(0?)(\d*)d"
_ZEROS = r"%(0)([1-9])d"
_BRACES = r"\{shard(?::(0?)(\d*)d?)?\}"


def numbers_in(text: str) -> list[re.Match[str]]:
    """Return where numbers stand in the pattern *text*, which has no query."""
    encoded = text.startswith(("http://", "https://", "file://"))  # there %20 is a blank
    if "%" in text or "{" in text:
        return [*re.finditer(_ZEROS if encoded else PERCENT, text), *re.finditer(_BRACES, text)]
    return []


def has_number(url: str) -> bool:
    """Tell whether *url* is a pattern with a number.

    >>> has_number("a-%06d.tar"), has_number("a.tar")
    (True, False)
    """
    return bool(numbers_in(Url(url).name))
