"""The failures a user can act on, each with the place where it happened.

    TarToolsError            1  base of all; printed as `NAME: URL: at byte N: what is wrong`
    ├─ StorageError          1  a URL cannot be opened, read, written or closed
    ├─ TarFormatError        1  the bytes are not a well-formed archive
    │  └─ TruncatedError     1  ... they end too early
    ├─ SampleError           1  a sound archive, but its members do not do as samples
    ├─ CommandError          1  a command that the user gave failed on a sample
    └─ UsageError            2  the command line cannot be carried out

The number is the exit status. Signals are not errors: `cli` turns them into statuses above 128.
An error of the system that none of these stands for is one line too. Any other exception is a bug and shows its
traceback.
"""

from __future__ import annotations

import re

_QUERY = re.compile(r"""(://[^\s'"?]*)\?[^\s'"]*""")
_LETTERS = ("file", "s3", "gs", "ais", "aws", "gcp")  # schemes in whose names a question mark is a letter
_PASSWORD = re.compile(r"""(://[^\s'"/@:]*):[^\s'"/@]*@""")


class TarToolsError(Exception):
    """A failure with its place: *url* as the user gave it, *offset* in bytes of the tar stream.

    `str()` gives one printable line; a query in the URL (which may be a signature) is never part of it.
    """

    status = 1

    def __init__(self, message: str, *, url: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.url = url
        self.offset = offset

    def __str__(self) -> str:
        place = f"{shown(self.url)}: " if self.url else ""
        if self.offset is not None:
            place += f"at byte {self.offset}: "
        return place + printable(self.message)


class StorageError(TarToolsError):
    """A URL cannot be opened, read, written or closed."""


class TarFormatError(TarToolsError):
    """The bytes are not a well-formed archive."""


class TruncatedError(TarFormatError):
    """The bytes end before the archive does."""


class SampleError(TarToolsError):
    """The archive is sound, but its members do not do as the samples that were asked for."""


class CommandError(TarToolsError):
    """A command that the user gave failed."""


class UsageError(TarToolsError):
    """The command line cannot be carried out."""

    status = 2


def printable(text: str) -> str:
    r"""Return *text* on one line, with control characters and undecodable bytes escaped.

    >>> printable("two\nlines\x1b[0m")
    'two\\nlines\\x1b[0m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def several(count: int, what: str, more: str = "") -> str:
    """Return *count* of *what*, or of *more* if that is not *what* with an s.

    >>> several(1, "shard"), several(1200, "shard"), several(2, "try", "tries")
    ('1 shard', '1,200 shards', '2 tries')
    """
    return f"{count:,} {what if count == 1 else more or what + 's'}"


def concealed(command: str) -> str:
    """Return *command* as messages show it: without the queries and passwords of the URLs in it.

    >>> concealed("curl -s 'https://me:secret@host/a.tar?signature=abc' | pv")
    "curl -s 'https://me:…@host/a.tar?…' | pv"
    """
    return printable(_PASSWORD.sub(r"\1:…@", _QUERY.sub(r"\1?…", command)))


def shown(url: str) -> str:
    """Return *url* as messages show it: "stdin" for -, a query (which may be a signature) replaced.

    >>> shown("https://host/a.tar?X-Amz-Signature=abc"), shown("s3://b/what?.tar")
    ('https://host/a.tar?…', 's3://b/what?.tar')
    """
    if url == "-":
        return "stdin"
    if url.startswith("pipe:"):
        return concealed(url)
    scheme, colon, rest = url.partition("://")
    if colon and scheme.lower() not in _LETTERS:
        path, query, _ = rest.partition("?")
        return printable(f"{scheme}://{path}{'?…' if query else ''}")
    return printable(url)
