"""`tartools cache`: show the contents of the cache of remote objects, and remove it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import datetime

from tartools.cli.process import print_now
from tartools.errors import in_units, printable, shown

CACHE_USAGE = """\
usage: tartools cache [--clear [URL]]

List the objects in the cache that TARTOOLS_CACHE names: bytes kept, bytes of the object, last use, URL. With --clear,
remove the copies of URL, or of what is below it, or all of them.
"""


def main(words: Sequence[str]) -> int:
    """Run the command; return its exit status."""
    text = os.environ.get("TARTOOLS_CACHE", "")
    if words and (words[0] != "--clear" or len(words) > 2):
        sys.stderr.write(CACHE_USAGE)
        return 0 if words[0] in ("-h", "--help") else 2
    if not text:
        sys.stderr.write(
            "tartools cache: there is none; set TARTOOLS_CACHE to a folder and a size: /nvme/cache:500GB\n"
        )
        return 1
    from tartools.storage.objects.cache import cache_of

    cache = cache_of(text)
    if words:
        removed = cache.clear(*words[1:])
        sys.stderr.write(f"tartools cache: {in_units(removed)} removed\n")
        return 0
    entries = sorted(cache.entries(), key=lambda entry: -entry.used)
    for entry in entries:
        used = datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M") if entry.used else "never"
        print_now(f"{in_units(entry.stored_size):>9} {in_units(entry.size):>9}  {used}  {shown(entry.url)}\n")
    cached_bytes = sum(entry.stored_size for entry in entries)
    sys.stderr.write(
        f"tartools cache: {in_units(cached_bytes)} of {in_units(cache.budget)} in {printable(cache.folder)}\n"
    )
    return 0
