"""Where the files of an index go: beside each shard, or into one directory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from tartools.errors import UsageError, shown
from tartools.storage.url import Url

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
