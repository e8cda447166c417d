"""Which inputs a file may name: one rule for lists, plans, recipes and tables (docs/trust.md).

    file that names the input         command, stdin   local file   server of the file   other server
    list or recipe on this machine    yes              yes          -                    yes
    table on this machine             no               yes          -                    yes
    any of them on a server           no               no           yes                  no

Whoever wrote a file on a server is a stranger: what it names must not run a command, read a local file, or make this
machine connect to a host that the user did not name. A file from stdin or from a command (pipe:) is the user's own.
Object stores of one kind are one server, whatever the bucket, if requests go to the same endpoint.
"""

from __future__ import annotations

import re

from tartools.errors import shown
from tartools.schemes import SPLIT
from tartools.storage.url import Url


def is_from_server(url: str) -> bool:
    """True if the file *url* comes from a server, so that strangers may have written it.

    That is any URL but a plain path, file:, stdin ("-") and pipe:, also one of an unknown scheme.

    >>> [is_from_server(url) for url in ("https://h/list", "list.txt", "-", "pipe:ls")]
    [True, False, False, False]
    """
    return not Url(url).is_local and Url(url).scheme not in ("-", "pipe")


def server_of(url: str) -> str:
    """Return a text for the server that requests for *url* go to: its store, or scheme and host; "" for plain paths.

    After the scheme come user, host and port, as *url* has them, in small letters. Two URLs on servers are on one
    server if these texts are equal. "" also for stdin; for file: and pipe: the text means nothing.

    >>> server_of("s3://b/a.tar") == server_of("s3://c/a.tar"), server_of("https://h:80/a?x"), server_of("a.tar")
    (True, 'https://h:80', '')
    >>> server_of("sftp://h/a.tar") == server_of("sftp://g/a.tar")
    False
    """
    scheme, record = Url(url).scheme, Url(url).record
    if record.is_one_server:
        return record.module
    host = re.match(r"[^/?#]*", url.partition("://")[2])
    return f"{scheme}://{host[0].lower()}" if host and "://" in url else ""


def naming_error(name: str, file: str, kind: str, *, may_act: bool) -> str:
    """Return the reason why *file* may not name the input *name*, as a phrase for a message; "" if it may.

    A file on a server may name inputs on this server only; one on this machine anything, but commands and stdin only if
    *may_act*; none an archive that was split, as one. *kind*: the word for *file* in the message, such as "list".
    *may_act*: True if a file of this kind on this machine may name commands and stdin. Raises: UsageError for a URL
    with credentials.

    >>> naming_error("pipe:cat a", "s3://b/list", "list", may_act=True)
    'a list on a server may not name a command: pipe:cat …'
    """
    url = Url(name)
    if url.scheme == SPLIT:
        return f"a {kind} may not name an archive that was split as one"
    target = {"-": "stdin", "pipe": f"a command: {shown(name)}"}.get(url.scheme, "")
    if not is_from_server(file):
        return f"a {kind} may not name {target}" if target and not may_act else ""
    if url.is_local:
        target = f"a local file: {shown(name)}"
    elif not target and server_of(url) != server_of(file):
        target = f"another server: {shown(name)}"
    return target and f"a {kind} on a server may not name {target}"
