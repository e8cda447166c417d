"""The contract of object stores of all protocols: objects that are read by ranges, listings, uploads.

A store is a module with a class of `Object` and the functions of `Store`. Each call is one attempt; retries, order and
memory are the business of `ranges`, `uploads` and `listing`. An attempt raises `retry.TransientError` for what may be
temporary, and StorageError for what is not.
"""

from typing import NamedTuple, Protocol

from tartools.errors import StorageError
from tartools.storage.streams import OutputStream


class NoPermissionError(StorageError):
    """The store does not permit this request; it may still permit others, such as a write."""


class Body(Protocol):
    """The bytes of a response, read as they come by `read` or `readinto`; `close` ends it, at the end or before."""

    def read(self, max_bytes: int, /) -> bytes:
        """Return up to *max_bytes* bytes, b"" at the end.

        Raises: TransientError if the connection is cut or silent; StorageError for what a retry does not help.
        """
        ...

    def readinto(self, buffer: memoryview, /) -> int:
        """Read up to `len(buffer)` bytes into *buffer*; return how many, 0 at the end.

        Raises: TransientError if the connection is cut or silent; StorageError for what a retry does not help.
        """
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Release the connection."""
        ...


class Reply(NamedTuple):
    """A response to `Object.get`.

    *body*: the bytes, from byte *start* of the object on.
    *start*: 0 if the server ignores ranges; else the first byte as the server states it, to be compared by the caller.
    *length*: the length of *body* in bytes, as the server states it; None if it does not.
    *size*: the size of the whole object in bytes; None if the server does not say it.
    *version*: the ETag or generation, a header line (web), a checksum or an mtime; it pins the object in later
    requests; "" if the server has none that changes with every byte.
    *is_framed*: False if *body* ends when the connection is closed, for whatever reason, so that it may be truncated.
    """

    body: Body
    start: int
    length: int | None
    size: int | None
    version: str
    is_framed: bool = True


class ListedObject(NamedTuple):
    """An object in a store, or a local file, as a listing or `Object.head` describes it.

    *url*: its URL.
    *size*: in bytes; None if unknown.
    *modified*: the time of its last change in seconds since 1970; None if unknown.
    *version*: the ETag, generation, checksum or mtime that pins the object in later requests; of a local file its mtime
        in ns; "" if the listing does not say it.
    *checksum*: "ALGORITHM:hexadecimal digits" of the whole content; "" if the listing does not say it.
    """

    url: str
    size: int | None
    modified: float | None
    version: str = ""
    checksum: str = ""


class Page(NamedTuple):
    """One page of a listing.

    *entries*: the objects; may be empty on any page.
    *next*: the token that requests the next page; "" on the last page.
    *is_sorted*: True if all pages are sorted by the UTF-8 bytes of the names.
    """

    entries: list[ListedObject]
    next: str  # "" at the end
    is_sorted: bool = True


class Object(Protocol):
    """One object of a store, which need not exist. `get`, `head`, `remove` are one attempt each: the caller retries."""

    @property
    def url(self) -> str:
        """The URL of the object, as the user gave it."""
        ...

    def get(self, start: int, end: int | None, version: str) -> Reply:
        """Request the bytes *start* to *end* (exclusive; None: to the last), of that *version* unless it is "".

        The response may begin at 0 instead: servers may ignore ranges. For a range behind the end the body is empty.
        Some stores (ais:, hf:, sftp:) can't ask for a version: the caller compares `Reply.version`.

        Raises: TransientError; StorageError if the object does not exist, can't be read, or the store says that it has
        another version now.
        """
        ...

    def head(self) -> ListedObject | None:
        """Return size, time, and in some stores version of the object, without reading it; None if it is missing.

        Raises: TransientError; NoPermissionError; StorageError if the server can't tell.
        """
        ...

    def remove(self) -> None:
        """Remove the object; it is no failure if it does not exist.

        Raises: TransientError; NoPermissionError; StorageError, also if nothing can be removed in this store.
        """
        ...

    def output(self, force: bool) -> OutputStream:
        """Return an output that makes the object at `commit`. It requests nothing before the first write.

        Unless *force*, `commit` fails if the object exists by then, as far as the store can tell. Raises: StorageError,
        UsageError if it can be seen at once that nothing can be written there.
        """
        ...


class Store(Protocol):
    """A module, such as `objects.s3`, for the URLs of some schemes: it has the functions `object_at` and `page`."""

    def object_at(self, url: str) -> Object:
        """Return the object *url*. Requests nothing. Raises: UsageError if *url* does not name an object."""
        ...

    def page(self, prefix: str, token: str, flat: bool) -> Page:
        """Return a page of the objects whose URLs begin with *prefix*.

        *token*: `Page.next` of the page before, "" for the first page. *flat*: only objects without a slash behind
        *prefix*.

        Raises: TransientError; StorageError, also if the store has no listings.
        """
        ...
