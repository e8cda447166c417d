"""What indexes of other tools are made of: samples and members with their places, a shard at a time.

And where the files of an index go: beside each shard, or into one directory.
"""

from __future__ import annotations

import marshal
import os
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, takewhile
from operator import itemgetter
from typing import NamedTuple

from tartools import storage
from tartools.errors import SampleError, UsageError, printable, shown
from tartools.samples.account import Account
from tartools.samples.sample import join_path
from tartools.storage.checks import check_unchanged
from tartools.storage.url import Url
from tartools.tables import schema
from tartools.tar.header import padded

TAR = ".tar"


class IndexPlaces(NamedTuple):
    """The shards *urls*, the directory or prefix *folder* of the index ("" for beside the shards), and temporary files.

    With *force*, files that exist are replaced.
    """

    urls: Sequence[str]
    folder: str = ""
    force: bool = False
    tmpdir: str | None = None

    def beside(self, url: str, suffix: str) -> str:
        """Return the name of the file with *suffix* for the shard *url*.

        >>> IndexPlaces((), "").beside("s3://b/a.tar", ".idx"), IndexPlaces((), "index").beside("d/a.tar", ".idx")
        ('s3://b/a.idx', 'index/a.idx')
        """
        name = Url(url).name.removesuffix(TAR) + suffix
        return self.below(name.rpartition("/")[2]) if self.folder else name

    def below(self, name: str) -> str:
        """Return the URL of the file *name* in the directory of the index, which all shards share."""
        return (f"{self.folder}/" if self.folder and not self.folder.endswith("/") else self.folder) + name

    def all_beside(self, suffix: str) -> list[str]:
        """Return the names of all files with *suffix*. Raises: UsageError if two of them are the same."""
        names = [self.beside(url, suffix) for url in self.urls]
        first: dict[str, str] = {}
        for url, name in zip(self.urls, names, strict=True):
            other = first.setdefault(name, url)
            if other is not url:
                raise UsageError(f"{shown(other)} and {shown(url)} would have the same index {shown(name)}")
        return names

    def write(self, url: str, data: bytes) -> None:
        """Write the file *url* of the index. Raises: StorageError."""
        with storage.writing(url, self.force) as sink:
            sink.write(data)

    def together(self) -> IndexPlaces:
        """Return these places with the deepest directory that has all shards, if no other was named.

        Raises: UsageError if there is none.
        """
        if self.folder:
            return self
        names = [Url(url).name for url in self.urls]
        folders = [name.split("/")[:-1] for name in names]
        shared = takewhile(lambda each: len(set(each)) == 1, zip(*folders, strict=False))
        common = "".join(f"{each[0]}/" for each in shared)
        local = all(Url(url).is_local for url in self.urls)
        if (not local and common.count("/") < 3) or (not common and any(os.path.isabs(name) for name in names)):
            raise UsageError("the shards are in no common directory: name one for the index with -o DIR")
        return self._replace(folder=common or ".")


class IndexedMember(NamedTuple):
    """A member of a sample: its *field*, and the *size* bytes of its payload at *offset* of the shard."""

    field: bytes
    offset: int
    size: int


class IndexedSample(NamedTuple):
    """A sample: its *key*, bytes *begin* to *end* of the shard, and its *parts* in the order of the archive.

    A member without a field has no part.
    """

    key: bytes
    begin: int
    end: int
    parts: list[IndexedMember]

    def path(self, part: IndexedMember) -> bytes:
        """Return the name of the member *part*."""
        return join_path(self.key, part.field)

    def headers(self) -> Iterator[int]:
        """Yield the bytes of the headers of each part."""
        end = self.begin
        for part in self.parts:
            yield part.offset - end
            end = part.offset + padded(part.size)


class Shard(NamedTuple):
    """A shard: its *url*, its *size* in bytes, and its *rows*, which can be read once."""

    url: str
    size: int
    rows: Iterator[IndexedSample]


def shards(
    blocks: Iterable[bytes], versions: Mapping[str, str], account: Account, check: Callable[[str, IndexedSample], None]
) -> Iterator[Shard]:
    """Yield the shards that have these *versions*, in order, with the samples that *blocks* (of rows) have of them.

    The rows of one have to be read before the next shard is asked for. *check* is called with the URL and each row, and
    raises SampleError for one that the index can't hold. Samples without a field are left out, and reported in
    *account*, where all are counted. Holds: one block.
    Raises: SampleError, StorageError if a shard has another version at its end.
    """
    grouped = groupby(map(marshal.loads, blocks), itemgetter(0))
    name, found = next(grouped, ("", iter(())))
    for url, version in versions.items():
        rows = chain.from_iterable(map(_rows, found if url == name else ()))
        yield Shard(url, int(version.split()[0]), _listed(rows, url, version, account, check))
        if url == name:
            name, found = next(grouped, ("", iter(())))


def _listed(
    rows: Iterable[IndexedSample],
    url: str,
    version: str,
    account: Account,
    check: Callable[[str, IndexedSample], None],
) -> Iterator[IndexedSample]:
    lost, first = 0, b""
    for row in rows:
        check(url, row)
        account.samples_in += 1
        if row.parts:
            account.samples_out += 1
            yield row
        else:
            lost, first = lost + 1, first or row.key
    if lost:
        account.dropped += lost
        name = printable(first.decode("utf-8", "surrogateescape"))
        more = f" (and {lost - 1} more)" if lost > 1 else ""
        account.omit(f"{shown(url)}: not in the index, since its name has no field: {name}{more}")
    check_unchanged({url: version})


def _rows(
    block: tuple[str, list[bytes], bytes, bytes, dict[bytes, tuple[bytes, bytes]], object],
) -> Iterator[IndexedSample]:
    """Yield the rows of an unpacked *block*. Raises: SampleError for a sample that has a field twice."""
    url, keys, begins, ends, found, _ = block
    columns = [(field, array("q", offsets), array("q", sizes)) for field, (offsets, sizes) in found.items()]
    for number, (key, begin, end) in enumerate(zip(keys, array("q", begins), array("q", ends), strict=True)):
        parts = [IndexedMember(field, offsets[number], sizes[number]) for field, offsets, sizes in columns]
        for part in parts:
            if part.offset == schema.TWICE:
                raise refused(url, key, part.field, "is there twice in one sample, which an index can't say")
        parts = [part for part in parts if part.offset >= 0]
        if len(parts) > 1:
            parts.sort(key=lambda part: part.offset)
        yield IndexedSample(key, begin, end, parts)


def refused(url: str, key: bytes, field: bytes, why: str) -> SampleError:
    """Return the failure that the member *field* of the sample *key* of the shard *url* can't be in an index."""
    name = join_path(key, field).decode("utf-8", "surrogateescape")
    return SampleError(f"the member {name!r} {why}", url=url)


def text(url: str, path: bytes) -> str:
    """Return *path*, of the shard *url*, as text. Raises: SampleError if it is not UTF-8."""
    try:
        return path.decode()
    except UnicodeDecodeError:
        raise SampleError(f"the name {path!r} is not UTF-8, which this index needs", url=url) from None
