"""Names and passwords of servers in `$NETRC` or ~/.netrc."""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from typing import NamedTuple


class Login(NamedTuple):
    """A name and a password; "" where the file has none. The account stands for a missing name."""

    name: str
    password: str


def login_of(host: str) -> Login | None:
    """Return the login for *host* in the file `$NETRC`; if this is not set, in ~/.netrc.

    It is ~/_netrc if ~/.netrc does not exist or can't be read. The entry "default" counts for a host without one of its
    own. None if the file has neither, the entry is empty, or the file can't be read or parsed.
    """
    for name in [os.environ["NETRC"]] if "NETRC" in os.environ else ["~/.netrc", "~/_netrc"]:
        with suppress(OSError):
            path = os.path.expanduser(name)
            return _read_login(path, os.stat(path).st_mtime_ns, host)
    return None


@functools.cache
def _read_login(path: str, modified: int, host: str) -> Login | None:
    """Return the login for *host* in the file *path*, else the login in its entry "default"; None if it has neither.

    Also None if the entry is empty, or the file can't be parsed. *modified*: the file's mtime in ns, which makes the
    cached result of an older version unused. Raises: OSError.
    """
    from netrc import NetrcParseError, netrc

    try:
        entry = netrc(path).authenticators(host)
    except (NetrcParseError, UnicodeDecodeError):
        return None
    return Login(entry[0] or entry[1] or "", entry[2] or "") if entry and any(entry) else None
