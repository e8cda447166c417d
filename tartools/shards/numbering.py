"""Names of numbered shards: from a prefix or pattern to names, from a name to its number; and which of them exist."""

from collections.abc import Sequence

from tartools import storage
from tartools.errors import StorageError, UsageError, shown
from tartools.samples.account import Account
from tartools.storage.names import PERCENT, numbers_in
from tartools.storage.url import Url
from tartools.tar.compression import check_suffix, split_output

LOOKED_UP = 1000  # shards of an earlier run, where they can't be listed


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
    found = numbers_in(text)
    if len(found) > 1:
        raise UsageError(f"a pattern has one number, not {len(found)}: {text}")
    if found:
        fill, digits = found[0].groups(default="")
        if len(digits) > 2:
            raise UsageError(f"too many digits ({digits}) in the number of the pattern: {text}")
        sides = text[: found[0].start()], text[found[0].end() :]
        if found[0].re.pattern == PERCENT:  # in URLs a percent sign is %25
            sides = sides[0].replace("%%", "%"), sides[1].replace("%%", "%")
        return Numbering(sides[0], int(digits or 0), "0" if fill else " ", sides[1] + query)
    if Url(text).scheme != "pipe":
        check_suffix(text)
    base, suffix = split_output(text)
    suffix = suffix or (".tgz" if gzip else ".tar")
    return Numbering(base if not base or base.endswith("/") else base + "-", 6, "0", suffix + query)


def existing_shards(names: Numbering) -> dict[int, str]:
    """Return the shards that *names* can stand for and that exist, by number."""
    from tartools.storage.listing import between

    found = between(names.prefix, names.suffix)
    return {number: name for name in found if (number := names.number(name)) is not None}


def check_outputs(names: Numbering, start: int, old: dict[int, str], urls: Sequence[str], force: bool) -> None:
    """Raise StorageError if a shard in *old* exists and may not be replaced, or if an input could be overwritten.

    Not every store can be listed, so the first shard and the inputs are checked by name.
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
    anything: bool | None = None,
) -> None:
    """Remove the shards in *old* that would mix with those *written*; report each in *account*.

    They have numbers from the first that was written up to *until*, exclusive (None: all). If nothing was written, they
    stay; *anything* says whether something was, if not only *written* does. Those that can't be removed are omissions;
    so are those that stay because nothing was written.
    """
    rest = {number: name for number, name in old.items() if number >= written.start and number not in written}
    if written and not Url(names.prefix).is_local and not Url(names.prefix).is_listed:
        rest = unlisted(names, written.stop, account)
    for number in sorted(rest):
        if until is not None and number >= until:
            break
        try:
            if not (written if anything is None else anything):
                raise StorageError("nothing was written to replace it")
            storage.remove(rest[number])
        except StorageError as error:
            account.omit(f"{shown(rest[number])}: is of an earlier run, and stays: {error.message}")
        else:
            account.warn(f"{shown(rest[number])}: removed, because this run did not write it")


def unlisted(names: Numbering, number: int, account: Account) -> dict[int, str]:
    """Return the shards that exist from *number* on, up to the first that does not: where there are no listings."""
    found: dict[int, str] = {}
    if Url(names.prefix).scheme == "pipe":
        return found
    try:
        while len(found) < LOOKED_UP and storage.exists(name := names.name(number)):
            found[number] = name
            number += 1
    except StorageError as error:
        account.warn(f"shards of an earlier run may be left: {error}")
    return found
