"""What a store of objects gives, whatever its protocol: objects that are read by ranges, listings, uploads.

A store is one module with one class of `Object` and the functions of `Store`. Each request here is one try; that it
is tried again, in which order, and how much of it is held, is the business of `ranges`, `uploads` and `listing`.
A try raises `tries.Passing` for what may pass, and StorageError for what will not.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tartools.errors import StorageError
from tartools.storage.names import scheme_of
from tartools.storage.streams import Output
from tartools.storage.tries import persist


class NoPermission(StorageError):  # noqa: N818  # a StorageError, and read as a word
    """The store does not let us look, which need not mean that it does not let us write."""


class Body(Protocol):
    """The bytes of an answer, as they come."""

    def read(self, most: int, /) -> bytes:
        """Return up to *most* bytes, b"" at the end. Raises: Passing if the connection was cut or said nothing."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Reply(NamedTuple):
    """An answer to `Object.get`: *body* begins at byte *start* of an object of *size* bytes.

    *length* is what the server says *body* has. *version* pins the object (an ETag, a generation) in the requests
    that follow; "" if the server gives none that is sure to change with every byte. *size* and *length* are None
    where the server does not say. If it is not *framed*, *body* ends with the connection, whoever has closed that.
    """

    body: Body
    start: int
    length: int | None
    size: int | None
    version: str
    framed: bool = True


class Listed(NamedTuple):
    """An object in a store: its URL, bytes, and seconds since 1970 of its last change; None where nobody says."""

    url: str
    size: int | None
    modified: float | None


class Page(NamedTuple):
    """One answer of a listing: objects in the order of their names as UTF-8 bytes, and what asks for the next page."""

    entries: list[Listed]
    next: str  # "" at the end


class Object(Protocol):
    """One object of a store, be it there or not."""

    @property
    def url(self) -> str:
        """Its URL, as the user gave it."""
        ...

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Ask for the bytes *start* to *end* (exclusive; None is all), of that *version* unless "".

        An answer may begin at 0 instead: servers may ignore ranges. A range behind the end is an empty body.

        Raises: Passing; StorageError if the object is not there, is not ours to read, or has another version now.
        """
        ...

    def head(self) -> Listed | None:
        """Return what is known of the object without reading it; None if it is not there.

        Raises: Passing; NoPermission if nobody may know; StorageError if nobody can.
        """
        ...

    def output(self, force: bool) -> Output:
        """Return an output that makes the object at `commit`, and asks nothing of the store before it is written to.

        Unless *force*, its `commit` refuses if the object exists then, as far as the store can say so.
        """
        ...


class Store(Protocol):
    """A module for the URLs of some schemes.

    *STARTS_ANYWHERE*: a listing may begin behind any name, so several can run side by side.
    """

    STARTS_ANYWHERE: bool

    def opened(self, url: str) -> Object:
        """Return the object *url*. Asks the store nothing. Raises: UsageError for what is no name of an object."""
        ...

    def page(self, prefix: str, token: str, after: str, flat: bool) -> Page:
        """Return a page of the objects whose URL begins with *prefix*; *token* is `Page.next` of the page before.

        Only those whose URL is greater than *after*, if that is given. With *flat*, only those without a slash
        behind *prefix*. Raises: Passing; StorageError, also where the store can't be listed.
        """
        ...


def store_of(scheme: str) -> Store:
    """Return the store of the URLs of *scheme*, one of `names.REMOTE`. Imports its library: up to 0.2 seconds."""
    if scheme == "s3":
        from tartools.storage import s3

        return s3
    if scheme == "gs":
        from tartools.storage import gs

        return gs
    if scheme in ("ais", "aws", "gcp"):
        from tartools.storage import ais

        return ais
    from tartools.storage import web

    return web


def object_of(url: str) -> Object:
    """Return the object *url* of the store that its scheme names."""
    return store_of(scheme_of(url)).opened(url)


def is_there(url: str) -> bool:
    """Tell whether there is an object *url*; if we may not know, we say no: the store will tell at the end."""
    try:
        return persist(object_of(url).head, url) is not None
    except NoPermission:
        return False
