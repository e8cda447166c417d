"""Names of numbered shards: from a prefix or pattern to names, from a name to its number; and which of them exist.

In the pattern of a data set in parts, `{part}` or `{cls}` stands for the part: `PartNames`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tartools import storage
from tartools.errors import StorageError, UsageError, shown
from tartools.samples.account import Account
from tartools.shards.writing import split_output
from tartools.storage.names import PERCENT_PATTERN, has_number, numbers_in
from tartools.storage.outputformats import SHARD_FORMAT, check_format
from tartools.storage.url import Url

MAX_SHARDS_PROBED = 1000  # shards of an earlier run, where they can't be listed
MAX_NAME_PART_BYTES = 200  # bytes of a part in a name; file systems allow 255 in all
UNUSABLE_CHARACTER = r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"  # also halves of characters, which are no text
IN_URLS = r"[A-Za-z0-9._@+=,-]+"  # what means the same in every URL, and in every command


class Numbering(NamedTuple):
    """Names of numbered shards: *prefix*, the number in at least *digits* digits, and *suffix*.

    `name(number)` gives a name, `number(name)` the number of one. `fill`: the character before shorter numbers, "0" or
    " ". If `digits` is None there is one name, *prefix*, for number 0; *suffix* has to be "" then.
    """

    prefix: str
    digits: int | None = None
    fill: str = ""
    suffix: str = ""

    def name(self, number: int) -> str:
        """Return the name of shard *number*, from 0 on; without `digits` the only name, for any number."""
        return self.prefix + ("" if self.digits is None else str(number).rjust(self.digits, self.fill)) + self.suffix

    def number(self, name: str) -> int | None:
        """Return the number that *name* has as the name of a shard; None if it is not one of these names.

        With the prefix "a-", 3 digits, "0" and ".tar": a-007.tar -> 7, a-1000.tar -> 1000, a-7.tar -> None.
        Without `digits`, 0 for the only name.
        """
        if self.digits is None:
            return 0 if name == self.prefix else None
        digits = name.removeprefix(self.prefix).removesuffix(self.suffix).strip(" ")
        if not digits.isascii() or not digits.isdigit() or self.name(int(digits)) != name:
            return None
        return int(digits)


def parse_numbering(text: str, gzip: bool) -> Numbering:
    """Return the numbering that *text* describes: a prefix, or a pattern with `%06d` or `{shard:06d}`.

    A prefix gets "-" (unless it is empty or ends in a slash), six digits, and `.tar` (`.tgz` with *gzip*) unless it
    names a suffix itself. `%6d` fills with blanks; `{shard}` has no least width; %% beside `%06d` is a percent sign.
    In a URL (http, https, file://) the number is `%06d`, with the 0, or in braces, and %% stays; it stands before the
    query.

    Raises UsageError for two numbers in one pattern, for a width of over 99 digits, or for a prefix that ends like
    another format, such as .zip.

    >>> parse_numbering("train", False).name(7), parse_numbering("d/", True).name(0)
    ('train-000007.tar', 'd/000000.tgz')
    >>> parse_numbering("train.tar.zst", False).name(7), parse_numbering("a-{shard:03d}.tar", False).name(7)
    ('train-000007.tar.zst', 'a-007.tar')
    """
    text, query = Url(text).name, Url(text).query
    numbers = numbers_in(text)
    if len(numbers) > 1:
        raise UsageError(f"a pattern has one number, not {len(numbers)}: {text}")
    if numbers:
        fill, digits = numbers[0].groups(default="")
        if len(digits) > 2:
            raise UsageError(f"too many digits ({digits}) in the number of the pattern: {text}")
        sides = text[: numbers[0].start()], text[numbers[0].end() :]
        if numbers[0].re.pattern == PERCENT_PATTERN:  # in URLs a percent sign is %25
            sides = sides[0].replace("%%", "%"), sides[1].replace("%%", "%")
        return Numbering(sides[0], int(digits or 0), "0" if fill else " ", sides[1] + query)
    if Url(text).scheme != "pipe":
        check_format(text, SHARD_FORMAT)
    base, suffix = split_output(text)
    suffix = suffix or (".tgz" if gzip else ".tar")
    return Numbering(base if not base or base.endswith("/") else base + "-", 6, "0", suffix + query)


class PartNames:
    """The names of the shards of each part, made of *pattern*, the option OUTPUT. *gzip*: the option -z.

    `word`: the word of the pattern, in braces, for which the name of a part is put ("part" for `{part}`); None if there
    are no parts. `single`: True if the pattern has a suffix but no number, so that each part has one shard. Any other
    pattern is read as by `parse_numbering`.

    Call `check(part)`, and then `numbering_of(part)`. The name of a part may be a value of a sample, which anybody may
    have written. After `check` it never names anything outside of the folder that the pattern names, nor a command, and
    no two parts get the same name.

    Raises: UsageError if the pattern lacks the part, or could give two parts one name; if *word* is "shard"; if the
    part stands for a bucket or a host; and for a pattern that `parse_numbering` refuses.
    """

    def __init__(self, pattern: str, word: str | None, gzip: bool) -> None:
        self.single = False
        self._mark = ""
        if word is None:
            self._numbering = parse_numbering(pattern, gzip)
            return
        self._pattern = Url(pattern)
        self._mark = f"{{{word}}}"
        before, mark, _ = self._pattern.name.partition(self._mark)
        if word == "shard":
            raise UsageError("{shard} in OUTPUT is a number; give the field another name, as in --by label=shard")
        if not mark:
            raise UsageError(
                f"OUTPUT needs {self._mark} where the name of the part goes, as in {self._mark}-{{shard:06d}}.tar",
                url=pattern,
            )
        if "://" in before and "/" not in before.partition("://")[2]:
            raise UsageError(f"{self._mark} can't stand for a bucket or a host", url=pattern)
        name = self._pattern.name
        self.single = not has_number(name) and split_output(name)[1] != ""
        self._numbering = Numbering(pattern) if self.single else parse_numbering(pattern, gzip)
        self._plain = not self._pattern.scheme
        self._leads = "/" not in before  # then a part could make the name that of a command or a store
        self._first = not before or self._pattern.scheme == "pipe"
        self._parts: dict[str, str] = {}  # as a file system may compare them -> part
        if not self.single:
            self._check_distance()

    def _check_distance(self) -> None:
        """Raise UsageError if digits of a part could be taken for digits of the number, as in {part}{shard}.

        They could if nothing, or only digits and blanks, stand between the two.
        """
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

    def numbering_of(self, part: str) -> Numbering:
        """Return the numbering of the shards of *part*: the pattern with its name in it; without parts, the pattern.

        The name is not checked: call `check` before.
        """
        names = self._numbering
        if not self._mark:
            return names
        prefix, suffix = (text.replace(self._mark, part) for text in (names.prefix, names.suffix))
        return names._replace(prefix=prefix, suffix=suffix)

    def check(self, part: str) -> None:
        """Raise ValueError, with the reason, if *part* can't be in a name, or is too similar to a part checked before.

        Two are too similar if they differ, and a file system may take them for one name (case, Unicode form, blanks
        around them). The same part is accepted again. Without parts, all is accepted.

        Refused are "" and blanks alone, ".", "..", a slash, control characters, lone surrogates, over 200 bytes; in a
        URL and a command all but letters of ASCII, digits and ._@+=,- ; in a path a colon, if no slash stands before
        the part; and "-" at its begin, if nothing stands before it, and in commands.
        """
        if not self._mark:
            return
        if not part.strip():
            raise ValueError("is empty")
        if part in (".", "..") or "/" in part:
            raise ValueError("would be another folder")
        if re.search(UNUSABLE_CHARACTER, part):
            raise ValueError("has control characters")
        if (size := len(part.encode())) > MAX_NAME_PART_BYTES:
            raise ValueError(f"has {size} bytes, and a name may have {MAX_NAME_PART_BYTES}")
        if not self._plain and not re.fullmatch(IN_URLS, part):
            raise ValueError("has other characters than letters, digits and ._@+=,- and OUTPUT is a URL")
        if self._plain and self._leads and ":" in part:
            raise ValueError("has a colon, and OUTPUT begins with it: write ./ before")
        if self._first and part.startswith("-"):
            raise ValueError("begins with -, and so would the name: write ./ before")
        from unicodedata import normalize

        similar = self._parts.setdefault(normalize("NFKC", part).casefold().strip(), part)
        if similar != part:
            raise ValueError(f"is too much like {similar!r}: some file systems can't distinguish the two")


def existing_shards(names: Numbering) -> dict[int, str]:
    """Return the existing shards whose names *names*, with digits, can make: number -> URL, sorted by name as text.

    Local ones are regular files. {} without digits, for a command, for a store that has no listings, and if there is
    no such folder. Raises: StorageError if a server fails; OSError for a folder that can't be read.
    """
    from tartools.storage.listing import names_between

    names_found = names_between(names.prefix, names.suffix)
    return {number: name for name in names_found if (number := names.number(name)) is not None}


def check_numbered(names: Numbering, start: int, old: dict[int, str], urls: Sequence[str], force: bool) -> None:
    """Raise StorageError if numbered shards can't be written: one exists (without *force*), or is an input of the run.

    `names`: names of the new shards. `start`: number of the first. `old`: number -> URL, from `existing_shards`.
    `urls`: the inputs. A shard in `old` and an input with such a name are refused whatever their numbers. Not every
    store can be listed, so the first shard is always checked by its name, too.
    Raises: StorageError, also if a name can't be written (see `check_output`); UsageError for the suffix of another
    format.
    """
    inputs = [url for url in urls if names.number(url) is not None]
    for name in (*old.values(), *inputs, names.name(start)):
        storage.check_output(name, force, urls, single=False)


def replace_set(
    names: Numbering,
    written: range,
    until: int | None,
    old: dict[int, str],
    account: Account,
    may_remove: bool | None = None,
) -> None:
    """Remove shards of an earlier run that readers would take for shards of this run; report each in *account*.

    `names`: names of the shards of both runs. `written`: numbers of the new shards. `old`: number -> URL of existing
    shards; if the store can't be listed, the names behind the last new one, if there is one, are probed instead.
    Shards from number `written.start` on that are not in `written` are removed; each gives a warning. `until`: end
    (exclusive) of the numbers to remove; later ones stay without a report; None: no end.
    `may_remove`: True: they are removed; False: they stay; None: they stay if `written` is empty. Each below `until`
    that stays, or can't be removed, is an omission (exit status 1).
    """
    leftovers = {number: name for number, name in old.items() if number >= written.start and number not in written}
    if written and not Url(names.prefix).is_local and not Url(names.prefix).is_listed:
        leftovers = probe_shards(names, written.stop, account)
    for number in sorted(leftovers):
        if until is not None and number >= until:
            break
        try:
            if not (written if may_remove is None else may_remove):
                raise StorageError("nothing was written to replace it")
            storage.remove(leftovers[number])
        except StorageError as error:
            account.omit(f"{shown(leftovers[number])}: is of an earlier run, and stays: {error.message}")
        else:
            account.warn(f"{shown(leftovers[number])}: removed, because this run did not write it")


def probe_shards(names: Numbering, number: int, account: Account) -> dict[int, str]:
    """Return number -> URL of the shards that exist from *number* on, up to the first gap, by a probe of each name.

    *names*: makes the names. For stores that can't be listed. At most `MAX_SHARDS_PROBED` shards; {} for a `pipe:` URL.
    A StorageError of a probe ends the search with a warning in *account*; the shards before it are returned.
    """
    present: dict[int, str] = {}
    if Url(names.prefix).scheme == "pipe":
        return present
    try:
        while len(present) < MAX_SHARDS_PROBED and storage.exists(name := names.name(number)):
            present[number] = name
            number += 1
    except StorageError as error:
        account.warn(f"shards of an earlier run may be left: {error}")
    return present
