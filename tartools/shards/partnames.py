"""Names of the shards of each part of a data set: a pattern in which `{part}` or `{cls}` stands for the part.

The name of a part may be a value of a sample, which anybody may have written. It never names anything outside of the
folder that the pattern names, nor a command, and no two parts get the same name.
"""

from __future__ import annotations

import re

from tartools.errors import UsageError
from tartools.shards.numbering import Numbering, parse_numbering
from tartools.storage.names import has_number
from tartools.storage.url import Url
from tartools.tar.compression import split_output

LONGEST = 200  # bytes of a part in a name; file systems allow 255 in all
CONTROL = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"  # also halves of characters, which are no text
IN_URLS = r"[A-Za-z0-9._@+=,-]+"  # what means the same in every URL, and in every command


class Single(Numbering):
    """One name, without a number."""

    def __init__(self, name: str) -> None:
        super().__init__(name, 0, "", "")

    def name(self, _number: int) -> str:
        """Return the name."""
        return self.prefix

    def number(self, name: str) -> int | None:
        """Return 0; None if *name* is another one."""
        return 0 if name == self.prefix else None


class PartNames:
    """The names that *pattern* stands for; *word* in braces is the part. *gzip* is that of -z.

    A pattern with a suffix, but no number, is one name for each part: `single`. Any other is read as by
    `parse_numbering`.

    Raises: UsageError if the pattern lacks the part, or could give two parts one name.
    """

    def __init__(self, pattern: str, word: str, gzip: bool) -> None:
        self._pattern = Url(pattern)
        self._mark = f"{{{word}}}"
        before, found, _ = self._pattern.name.partition(self._mark)
        if word == "shard":
            raise UsageError("{shard} in OUTPUT is a number; give the field another name, as in --by label=shard")
        if not found:
            raise UsageError(
                f"OUTPUT needs {self._mark} where the name of the part goes, as in {self._mark}-{{shard:06d}}.tar",
                url=pattern,
            )
        if "://" in before and "/" not in before.partition("://")[2]:
            raise UsageError(f"{self._mark} can't stand for a bucket or a host", url=pattern)
        name = self._pattern.name
        self.single = not has_number(name) and split_output(name)[1] != ""
        self._numbering = Single(pattern) if self.single else parse_numbering(pattern, gzip)
        self._plain = not self._pattern.scheme
        self._leads = "/" not in before  # then a part could make the name that of a command or a store
        self._first = not before or self._pattern.scheme == "pipe"
        self._parts: dict[str, str] = {}  # as a file system may compare them -> part
        if not self.single:
            self._check_distance()

    def _check_distance(self) -> None:
        """Raise UsageError if digits of a part could be taken for digits of the number, as in {part}{shard}."""
        prefix, suffix = self._numbering.prefix, self._numbering.suffix
        between = []
        if self._mark in prefix:
            between.append(prefix.rpartition(self._mark)[2])
        if self._mark in suffix:
            between.append(suffix.partition(self._mark)[0])
        if not all(text.strip("0123456789 ") for text in between):
            raise UsageError(
                f"{self._mark} stands beside the number, so that two parts could have one name; write a sign between",
                url=self._pattern,
            )

    def of(self, part: str) -> Numbering:
        """Return the names of the shards of *part*."""
        names = self._numbering
        prefix, suffix = (text.replace(self._mark, part) for text in (names.prefix, names.suffix))
        return Single(prefix) if self.single else Numbering(prefix, names.digits, names.fill, suffix)

    def check(self, part: str) -> None:
        """Raise ValueError, with the reason, if *part* can't be in a name, or is too much like another one."""
        if not part.strip():
            raise ValueError("is empty")
        if part in (".", "..") or "/" in part:
            raise ValueError("would be another folder")
        if re.search(CONTROL, part):
            raise ValueError("has control characters")
        if (size := len(part.encode())) > LONGEST:
            raise ValueError(f"has {size} bytes, and a name may have {LONGEST}")
        if not self._plain and not re.fullmatch(IN_URLS, part):
            raise ValueError("has other characters than letters, digits and ._@+=,- and OUTPUT is a URL")
        if self._plain and self._leads and ":" in part:
            raise ValueError("has a colon, and OUTPUT begins with it: write ./ before")
        if self._first and part.startswith("-"):
            raise ValueError("begins with -, and so would the name: write ./ before")
        from unicodedata import normalize

        other = self._parts.setdefault(normalize("NFKC", part).casefold().strip(), part)
        if other != part:
            raise ValueError(f"is too much like {other!r}: some file systems would not tell the two apart")
