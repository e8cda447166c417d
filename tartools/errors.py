"""The failures that a user can act on, each with the URL and the byte where it happened.

    TarToolsError            1  base of all; printed as `NAME: URL: at byte N: what is wrong`
    ├─ StorageError          1  a URL cannot be opened, read, written or closed
    │  ├─ NotFoundError      1  ... because its server has no such object
    │  ├─ ChangedError       1  ... because it has changed since it was first read
    │  └─ ExistsError        1  ... because it exists, and is not to be replaced
    ├─ TarFormatError        1  the bytes are not a well-formed archive
    │  └─ TruncatedError     1  ... they end too early
    ├─ SampleError           1  the archive is sound, but its samples are not what was asked for
    ├─ CommandError          1  a command that the user gave failed on a sample
    └─ UsageError            2  the command line cannot be carried out

The number is the exit status. Signals are not errors: `cli` turns them into statuses above 128.
Other errors of the operating system are printed as one line too. Any other exception is a bug and shows its traceback.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tartools.schemes import QUERY, SPLIT_PREFIX, scheme_record

_URL_QUERY = r"""(://[^\s'"?]*)\?[^\s'"]*"""  # compiled when it is needed
_SIGNED_QUERY = r"(?i)\?(?=\S*(?:sig|signature)=)"
# the second line of a message from another process, which ends with the traceback there; compiled when it is needed
_QUOTED_TRACEBACK = r'[^\n]*\n(?:\w+ )?Traceback \(most recent call last\):\n  File "'
MAX_FILE_BYTES = 1 << 63  # the largest size a file can have
_USER_INFO = r"""(://)[^\s'"/]+@(?=[^\s'"])"""  # up to the last @, so that a password with one is hidden, too


class TarToolsError(Exception):
    """A failure, with a *message* in words, the *url* as the user gave it, and the *offset* in bytes of the tar stream.

    *url*: "" for none. *offset*: in a file that is no tar, such as a table, the byte of the file; None: not given.
    `str()` gives one printable line, "URL: at byte N: message" (a traceback of another process, which a library puts
    there, keeps its lines). It hides query and user info of *url*, which may be secret, but nothing in *message*: put
    URLs into it with `shown`. `status`: the exit status of a command that fails with it.
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
        if "\n" in self.message and re.match(_QUOTED_TRACEBACK, self.message):
            return place + "\n".join(map(printable, self.message.split("\n")))
        return place + printable(self.message)


class StorageError(TarToolsError):
    """A URL cannot be opened, read, written or closed; also if a command for it fails, or a package is missing."""


class NotFoundError(StorageError):
    """An object, or a file on a server, does not exist. As far as the server says, its bucket does.

    A missing local file is a plain StorageError.
    """


class ChangedError(StorageError):
    """The data have changed since they were first read, or were removed."""


class ExistsError(StorageError):
    """The output *url* exists already, and is not to be replaced."""

    def __init__(self, url: str) -> None:
        super().__init__(f"already exists; {option('force')} replaces it", url=url)


class TarFormatError(TarToolsError):
    """The bytes are not a well-formed archive, table, record file or compressed file."""


class TruncatedError(TarFormatError):
    """The bytes end before the archive, table, record or compressed data do."""


class SampleError(TarToolsError):
    """The input is sound, but a sample or row lacks a requested field, or has an unsuitable key, name or value."""


class CommandError(TarToolsError):
    """The command of tarproc failed on a sample, or its shell is missing; other commands fail with StorageError."""


class UsageError(TarToolsError):
    """The options or arguments are invalid, or contradict each other or the inputs."""

    status = 2


_in_command = False


@contextmanager
def in_command() -> Iterator[None]:
    """Make `is_command` true while the block runs; after it, also after an error, as it was before.

    Messages then name options as command lines do, and this process may fork.
    """
    global _in_command  # noqa: PLW0603
    before, _in_command = _in_command, True
    try:
        yield
    finally:
        _in_command = before


def is_command() -> bool:
    """True if this process runs one of our commands, in a block of `in_command`; False in a user's program."""
    return _in_command


def option(name: str) -> str:
    """Return the option *name* as users of this process write it: `--name` in a command, `name=True` in Python.

    >>> option("skip-special")
    'skip_special=True'
    """
    return f"--{name}" if _in_command else f"{name.replace('-', '_')}=True"


def printable(text: str) -> str:
    r"""Return *text* on one line; characters that are not printable are escaped: line breaks, controls, surrogates.

    >>> printable("two\nlines\x1b[0m")
    'two\\nlines\\x1b[0m'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def several(count: int, singular: str, plural: str = "") -> str:
    """Return *count* and its noun: *singular* if it is 1, else *plural*, which is *singular* with an s if it is "".

    >>> several(1, "shard"), several(1200, "shard"), several(2, "try", "tries")
    ('1 shard', '1,200 shards', '2 tries')
    """
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def in_units(size: float) -> str:
    """Return *size*, in bytes, with a unit from B to TB (a kB is 1000 bytes), to one decimal, but whole bytes.

    >>> in_units(999), in_units(21_370_880)
    ('999 B', '21.4 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < (1000 if unit == "B" else 999.95) or unit == "TB":  # 999.95 would round to 1000.0
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def byte_size(text: str) -> int:
    """Convert *text* to a number of bytes, as split(1) does: `1e9`, `500`, `64K`, `64KiB` (1024), `64KB` (1000).

    A fraction of a byte is dropped. Raises: ValueError for any other text, less than one byte, or more than 2**63.

    >>> byte_size("64K"), byte_size("64KB"), byte_size("1.5e3")
    (65536, 64000, 1500)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)(?:([KMGTPkmgtp])(iB|B)?)?", text, re.ASCII)
    if match:
        base, power = (1000 if match[3] == "B" else 1024), " KMGTP".index((match[2] or " ").upper())
        factor = base**power
        if 1 <= float(match[1]) * factor <= MAX_FILE_BYTES:
            return int((int(match[1]) if match[1].isdigit() else float(match[1])) * factor)
    raise ValueError(f"not a number of bytes: {text!r}; write 1e9, 64K, 64KiB (1024) or 64KB (1000)")


def concealed(command: str) -> str:
    """Return *command* for a message, on one line, with the queries and user info of its URLs replaced by "…".

    >>> concealed("curl -s 'https://me:secret@host/a.tar?signature=abc' | pv")
    "curl -s 'https://…@host/a.tar?…' | pv"
    """
    return printable(without_secrets(command))


def without_secrets(text: str) -> str:
    """Return *text* with "?…" in place of the query, and "…@" of the user info, of each URL; it keeps line breaks.

    A query is all from the first ? of a URL, even where ? may be a part of the name, as in s3:. User info is all before
    the last @ in front of the first slash.

    >>> without_secrets("https://me:a@b?@host/x?sig=1 s3://b/c@d")
    'https://…@host/x?… s3://b/c@d'
    """
    return re.sub(_URL_QUERY, r"\1?…", re.sub(_USER_INFO, r"\1…@", text))


def how_to_install(*packages: str) -> str:
    """Return the shell command that installs *packages* for this Python, for a message.

    By pipx if that made this environment, else by pip, or by uv if pip is missing, such as
    "/usr/bin/python3 -m pip install ray".
    """
    import os
    import shlex
    import sys
    from importlib.util import find_spec

    words = ["pipx", "inject", os.path.basename(sys.prefix)]
    if not os.path.exists(f"{sys.prefix}/pipx_metadata.json"):
        python = sys.executable or "python3"
        by_pip = find_spec("pip") is not None
        words = [python, "-m", "pip", "install"] if by_pip else ["uv", "pip", "install", "--python", python]
    return shlex.join([*words, *packages])


def shown(url: str) -> str:
    """Return *url* for a message: "stdin" for -; `?…` replaces a query, which may be a signature, `…@` user info.

    It is one line, escaped as by `printable`. A ? that is a part of the name stays, as in `redacted`. For an archive
    that was split it is the pattern of its parts, such as "x.tar.*". For a command (pipe:), only its first word (… if
    it has unusual characters) and the last name of a shard are kept, since the rest may contain a password or a token.

    >>> shown("https://host/a.tar?X-Amz-Signature=abc"), shown("s3://b/what?.tar")
    ('https://host/a.tar?…', 's3://b/what?.tar')
    >>> shown("pipe:curl -H 'Authorization: Bearer abc' https://host/train-7.tar?abc")
    'pipe:curl … train-7.tar'
    """
    if url.startswith(SPLIT_PREFIX):
        return f"{shown(url.removeprefix(SPLIT_PREFIX).rpartition('{')[0])}*"
    if url.startswith("pipe:"):
        first = re.match(r"pipe:\s*([\w./+-]+)(?=\s|\Z)", url)
        names = re.findall(r"(?<![\w.=:@-])[\w.-]+\.(?:tar(?:\.\w+)?|tgz)(?![\w/.:@-])", url)
        word = first[1] if first else ""
        rest = url[first.end() :].strip() if first else url
        return " ".join([f"pipe:{word}" if word else "pipe:…"] + ["…"] * bool(word and rest) + names[-1:])
    return "stdin" if url == "-" else printable(redacted(url))


def redacted(url: str) -> str:
    """Return *url* with `?…` in place of a query and `…@` in place of user info; also for each URL in a pipe: command.

    A ? that is a part of the name, as in s3:, stays, unless a signature follows it, or it is in a command. Unlike
    `shown` it keeps commands, and escapes nothing.

    >>> redacted("https://TOKEN@host/a.tar?X-Amz-Signature=abc"), redacted("s3://b/what?@.tar")
    ('https://…@host/a.tar?…', 's3://b/what?@.tar')
    """
    if url.startswith("pipe:"):
        return without_secrets(url)
    scheme, colon, rest = url.partition("://")
    if not colon:
        return url
    # a signature is pasted even where ? is part of a name, such as the SAS of a blob
    if scheme_record(scheme.lower()).question == QUERY or ("?" in rest and re.search(_SIGNED_QUERY, rest)):
        path, query, _ = rest.partition("?")
        rest = f"{path}{'?…' if query else ''}"
    host, slash, path = rest.partition("/")
    return f"{scheme}://{'…@' if '@' in host else ''}{host.rpartition('@')[2]}{slash}{path}"
