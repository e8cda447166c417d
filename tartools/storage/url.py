"""A URL, parsed once, by the table of schemes."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from tartools.errors import StorageError, UsageError
from tartools.schemes import PROVIDER, QUERY, SCHEMES, SPLIT, SPLIT_PREFIX, STORES_PACKAGE, Scheme, scheme_record

if TYPE_CHECKING:
    from tartools.storage.objects.contract import Object

PIPE_PREFIX, FILE_PREFIX = "pipe:", "file:"
Name = str | os.PathLike[str]  # what a Python program gives as a path or a URL
_SCHEME = r"([A-Za-z][A-Za-z0-9+.-]*)://"  # patterns are compiled when they are needed
_URL_WITH_CREDENTIALS = r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#@]*:[^/?#@]*@"
_NEEDLESS_USER = r"(?:https?|s3|gs|ais|aws|gcp)://[^/?#]*@"  # where nobody needs a name: it may be a token
_PINNED_URL = r"\A(hf://datasets/[^/@]+/[^/@]+)@[0-9a-f]{40}(?=/)"
_SPLIT_ESCAPES = {",": "\x01", "{": "\x02", "}": "\x03"}  # in the query of a part
_PROVIDER_SUFFIX = r"\?provider=(ais|aws|gcp|azure|oci|ht)\Z"


class Url(str):
    """A URL or a path as the user wrote it, with its *scheme*: "" for a plain path, "-" for stdin or stdout.

    *store_object*: a cache of `objects.object_at`, None at first. `expand` makes URLs; functions that take a URL also
    take a plain string, and parse it.

    Raises: UsageError for a URL with a password, which would end up in process lists and logs, or with a user name
    where that may be a token: in http:, https:, s3:, gs:, ais:, aws: and gcp:. Queries and commands are not searched.

    >>> [Url(text).scheme for text in ("a:b.tar", "s3://b/a.tar", "pipe:cat a", "-")]
    ['', 's3', 'pipe', '-']
    """

    __slots__ = ("scheme", "store_object")

    scheme: str
    store_object: Object | None  # made and kept by `objects.object_at`

    def __new__(cls, text: str) -> Url:
        """Parse *text*; a `Url` is returned as it is. Raises: UsageError for a URL with a password or a token."""
        if isinstance(text, Url):
            return text
        scheme = _scheme_of(text)
        url = super().__new__(cls, text)
        url.scheme = scheme
        url.store_object = None
        return url

    def __reduce__(self) -> tuple[type[Url], tuple[str]]:
        """Return the class and its arguments, by which pickle makes the URL anew; `store_object` is None there."""
        return Url, (str(self),)

    @property
    def record(self) -> Scheme:
        """The record of the URL's scheme in the table of schemes; `UNKNOWN_SCHEME` if it has none."""
        return scheme_record(self.scheme)

    @property
    def is_local(self) -> bool:
        """True if it names a local file, which need not exist: a plain path or file:.

        False for stdin, stdout, and an archive that was split, also into local files.
        """
        return self.scheme in ("", "file")

    @property
    def is_stored(self) -> bool:
        """True if it is an object of a store or a web server, for which `storage.objects` has a module.

        Also if a `GOPEN_<SCHEME>` command reads it instead. False for hdfs:, webhdfs:, ftp: and ftps:.
        """
        return self.record.module.startswith(STORES_PACKAGE)

    @property
    def is_listed(self) -> bool:
        """True if its store lists objects, so that wildcards expand in its names. False for local files, too."""
        return self.record.is_listed

    @property
    def name(self) -> str:
        """The URL without its `query`."""
        return str(self)[: self._end]

    @property
    def query(self) -> str:
        """The end that is no part of the name: a query, or the provider of an ais: bucket; "" if there is none.

        In stores with a listing, but ais:, and in local paths a ? is part of the name.

        >>> [Url(text).query for text in ("ais://b/?.tar?provider=aws", "s3://b/a?x", "https://h/a.tar?x=1")]
        ['?provider=aws', '', '?x=1']
        """
        return str(self)[self._end :]

    @property
    def _end(self) -> int:
        """The index at which the name ends and the query begins."""
        question = self.record.question
        if question == QUERY:
            return len(self.partition("?")[0])
        provider = re.search(_PROVIDER_SUFFIX, self) if question == PROVIDER else None
        return provider.start() if provider else len(self)

    @property
    def read_command(self) -> str | None:
        """The command that reads the URL instead of us, from `GOPEN_<SCHEME>` in the environment, such as GOPEN_S3.

        It is a template, in which {} stands for the URL. None if that is not set, and for plain paths, stdin, `pipe:`
        URLs and archives that were split.
        """
        return os.environ.get(f"GOPEN_{self.scheme.upper()}") if self.scheme not in ("", "-", "pipe", SPLIT) else None

    def module(self, verb: str) -> str:
        """Return the name of the module of `storage` for this URL, such as "local" or "objects.s3".

        *verb*: "read" or "write". Raises: StorageError if the scheme is unknown, as it is in upper case, or to write an
        archive that was split.
        """
        if self.scheme in SCHEMES or (self.scheme == SPLIT and verb == "read"):
            return self.record.module
        if self.scheme.lower() in SCHEMES:
            raise StorageError(
                f"cannot {verb} {self.scheme}: URLs (write {self.scheme.lower()}: in lower case)", url=self
            )
        schemes = ", ".join(f"{name}:" for name in SCHEMES if name not in ("", "-"))
        raise StorageError(f"cannot {verb} {self.scheme}: URLs (supported are plain paths, {schemes})", url=self)


def drop_commit(url: str) -> str:
    """Return *url* without the commit that `expand` has put in place of a revision; any other URL as it is.

    A commit, 40 hex digits, that the user wrote is dropped, too.

    >>> drop_commit(f"hf://datasets/org/set@{'7' * 40}/a.tar"), drop_commit("hf://datasets/org/set@dev/a.tar")
    ('hf://datasets/org/set/a.tar', 'hf://datasets/org/set@dev/a.tar')
    """
    return re.sub(_PINNED_URL, r"\1", url) if url.startswith("hf:") else url


def split_url(prefix: str, ends: Sequence[str]) -> Url:
    """Return the URL of an archive that was split; each part is *prefix* and one of *ends*, in their order.

    *ends*: the tokens of the parts, each with the query of its URL, if that has one.
    """
    escaped = (re.sub("[,{}]", lambda found: _SPLIT_ESCAPES[found[0]], end) for end in ends)
    return Url(f"{SPLIT_PREFIX}{prefix}{{{','.join(escaped)}}}")


def parts_of(url: str) -> list[Url]:
    """Return the URLs of the parts of *url*, in order, if `split_url` made it; [*url*] for any other URL.

    Raises: UsageError for a URL that holds credentials.

    >>> parts_of(split_url("https://h/x.tar.", ["001?a,b", "002"])), parts_of("a.tar")
    (['https://h/x.tar.001?a,b', 'https://h/x.tar.002'], ['a.tar'])
    """
    if not url.startswith(SPLIT_PREFIX):
        return [Url(url)]
    characters = {escape: character for character, escape in _SPLIT_ESCAPES.items()}
    prefix, _, ends = url.removeprefix(SPLIT_PREFIX).rpartition("{")
    plain = (
        re.sub("[\x01-\x03]", lambda found: characters[found[0]], end) for end in ends.removesuffix("}").split(",")
    )
    return [Url(prefix + end) for end in plain]


def bucket_and_name(url: str) -> tuple[str, str]:
    """Return bucket and name of the object *url*; the name may be empty, and includes any `?`.

    >>> bucket_and_name("s3://b/d/a?.tar")
    ('b', 'd/a?.tar')
    """
    bucket, _, name = url.partition("://")[2].partition("/")
    return bucket, name


def name_of(name: Name) -> str:
    """Return a path or URL that a Python program gives, as text.

    Raises: TypeError if it is neither text nor a Path (or another os.PathLike of text), or is a Path made of a URL,
    which has lost a slash.

    >>> from pathlib import Path
    >>> name_of(Path("sets/a.tar"))
    'sets/a.tar'
    """
    if isinstance(name, str):
        return name
    text = os.fspath(name) if isinstance(name, os.PathLike) else name
    if not isinstance(text, str):
        raise TypeError(f"a path or a URL is text or a pathlib.Path, not {type(name).__name__}")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/[^/]", text):
        raise TypeError(f"a Path can't be a URL, because it makes one slash of two: give {text!r} as text")
    return text


def names_of(names: Name | Iterable[Name]) -> list[str]:
    """Return one path or URL, or several, that a Python program gives, as a list of texts.

    Raises: TypeError if one is neither text nor a Path, or is a Path made of a URL.
    """
    if isinstance(names, str | os.PathLike) or not isinstance(names, Iterable):
        return [name_of(names)]
    return [*map(name_of, names)]


def _scheme_of(text: str) -> str:
    """Return the scheme of *text*: "" for a plain path, "-" for stdin or stdout, else the word before the colon.

    A word before :// is a scheme; one before a colon alone is part of a plain path, unless it is "pipe" or "file". The
    URLs that `split_url` makes have the scheme "split".

    Raises: UsageError for a URL with a password, or with a user name where that may be a token.
    """
    if text == "-":
        return "-"
    if text.startswith(SPLIT_PREFIX):
        return SPLIT
    if text.startswith((PIPE_PREFIX, FILE_PREFIX)):
        return text[:4]
    match = re.match(_SCHEME, text) if "://" in text else None
    if not match:
        return ""
    if re.match(_URL_WITH_CREDENTIALS, text):
        raise UsageError(f"a {match[1]} URL with a password in it is refused; see tartools(7) for credentials")
    if re.match(_NEEDLESS_USER, text, re.IGNORECASE):
        raise UsageError(
            f"a {match[1]} URL with a user name or token in it is refused; see tartools(7) for credentials"
        )
    return match[1]


@cache
def load_module(module: str) -> object:
    """Import and return the module of `tartools.storage` with the name *module*, such as "local" or "objects.s3"."""
    name = f"tartools.storage.{module}"
    __import__(name)  # what import_module does, without importing importlib: 0.3 ms of each start
    return sys.modules[name]
