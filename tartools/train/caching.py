"""`cache=` of the datasets: `TARTOOLS_CACHE` for this process and its workers, however they are started."""

from __future__ import annotations

import os

from tartools.storage.objects.cache import cache_of


class CacheSetting:
    """Has this process, and each that it is sent to, keep what it reads of remote objects in *cache*: FOLDER:SIZE.

    None changes nothing. Raises: UsageError.
    """

    def __init__(self, cache: str | None) -> None:
        if cache is not None:
            cache_of(cache)
        self.__setstate__({"cache": cache})

    def __setstate__(self, state: dict[str, str | None]) -> None:
        self.cache = state["cache"]
        if self.cache is not None:
            os.environ["TARTOOLS_CACHE"] = self.cache
