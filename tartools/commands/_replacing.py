"""How tarsplit --force removes shards of an earlier run, which would mix with those of this one."""

from __future__ import annotations

from tartools import storage
from tartools.errors import StorageError, shown
from tartools.samples.account import Account
from tartools.shards.numbering import Numbering
from tartools.storage.url import Url

LOOKED_UP = 1000  # shards of an earlier run, where they can't be listed


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
