"""List the cached remote objects, or remove them.

The cache is in the folder that TARTOOLS_CACHE names, with its size: /nvme/cache:500GB. Prints a line for each object:
bytes in the cache, bytes of the object, time of the last use, URL.

Examples:
  List what is in the cache:
    tartools cache
  Remove the copies of objects below one prefix:
    tartools cache --clear s3://bucket/train/
  Empty the cache:
    tartools cache --clear
"""

import os
import sys
from datetime import datetime
from typing import Annotated

from tartools import cli
from tartools.cli.process import print_now
from tartools.errors import UsageError, in_units, printable, shown


@cli.command(__doc__, name="tartools cache")
def cache(
    *,
    url: Annotated[str | None, cli.Option("[URL]", "With --clear: an object, or the folder of several.")] = None,
    clear: Annotated[bool, cli.Option("--clear", "Remove the cached copies of URL, or all of them.")] = False,
) -> int:
    """Print the cached objects, one a line, the last used first, or with *clear* remove copies; return the exit status.

    *url*: the object or folder to remove; None: all. A line on stderr says how many bytes are cached or removed. The
    status is 1 if TARTOOLS_CACHE is not set. Raises: UsageError for a *url* without *clear*, and if TARTOOLS_CACHE is
    no folder with a size, or its folder belongs to another user; OSError.
    """
    if url is not None and not clear:
        raise UsageError("URL goes with --clear (see tartools cache --help)")
    text = os.environ.get("TARTOOLS_CACHE", "")
    if not text:
        sys.stderr.write(
            "tartools cache: no cache is configured; set TARTOOLS_CACHE to a folder and a size: /nvme/cache:500GB\n"
        )
        return 1
    from tartools.storage.objects.cache import cache_of

    object_cache = cache_of(text)
    if clear:
        removed = object_cache.clear(*([] if url is None else [url]))
        sys.stderr.write(f"tartools cache: {in_units(removed)} removed\n")
        return 0
    entries = sorted(object_cache.entries(), key=lambda entry: -entry.last_read)
    for entry in entries:
        used = datetime.fromtimestamp(entry.last_read).strftime("%Y-%m-%d %H:%M") if entry.last_read else "never"
        print_now(f"{in_units(entry.stored_size):>9} {in_units(entry.size):>9}  {used}  {shown(entry.url)}\n")
    cached_bytes = sum(entry.stored_size for entry in entries)
    sys.stderr.write(
        f"tartools cache: {in_units(cached_bytes)} of {in_units(object_cache.budget)} "
        f"in {printable(object_cache.folder)}\n"
    )
    return 0
