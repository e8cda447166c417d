"""List shards.

Writes the names of the shards at each URL, one a line, sorted by bytes, so that `tarls URL | tarcat -T -` reads them.
A shard is what has a name that ends like one: .tar, .tgz, .tar.gz, .tar.bz2, .tar.xz, .tar.zst or .tar.lz4.

A URL of s3:, gs: or ais: is a prefix: s3://bucket/train- stands for all objects whose names begin so, in directories
too. A local directory stands for all files below it; none is the current one. Wildcards match as they do for all
commands, braces stand for several URLs. Web servers are not listed: an http: URL is one object.

--long writes size in bytes and time of the last change (UTC) before the name, --json an object a line: url, size,
modified. --brace writes names that count up as one, as in train-{000000..000146}.tgz, which all commands read.

An object with braces in its name is written as a pattern that only it matches. A name with a line feed in it is only
written with -0 or --json. If there is no shard at a URL, that is a failure.

Examples:
  tarls s3://bucket/train/
  tarls -l data 'gs://bucket/val-*.tgz'
  tarls --brace s3://bucket/photos > photos.list
  tarls s3://bucket/train/ | tarcat -T - | tarsplit -s 1e9 -o train
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import typer

from tartools import cli, compression, storage
from tartools.account import Account
from tartools.errors import StorageError, UsageError
from tartools.stages import table
from tartools.storage.braces import folded, quoted
from tartools.storage.expand import is_there, named
from tartools.storage.names import split_query
from tartools.storage.stores import Listed


@cli.group
class Places(NamedTuple):
    """What is listed."""

    urls: Annotated[
        list[str] | None,
        typer.Argument(metavar="[URL]...", help="Prefixes, directories, patterns; none is the current directory."),
    ] = None
    files_from: Annotated[
        list[str] | None,
        typer.Option("-T", "--files-from", metavar="FILE", help="Read more URLs from FILE, one a line."),
    ] = None
    null: Annotated[
        bool, typer.Option("-0", "--null", help="Names end with NUL, not newline, those in -T files too.")
    ] = False

    @property
    def end(self) -> str:
        """What a name ends with."""
        return "\0" if self.null else "\n"


@cli.group
class Layout(NamedTuple):
    """Which objects are listed, and how."""

    every: Annotated[bool, typer.Option("--all", help="List every object, whatever its name.")] = False
    long: Annotated[bool, typer.Option("-l", "--long", help="Write size and time before each name.")] = False
    json: Annotated[bool, typer.Option("--json", help="Write one JSON object a line.")] = False
    brace: Annotated[bool, typer.Option("--brace", help="Write names that count up as one: a-{00..12}.tar.")] = False


@cli.command(__doc__)
def tarls(account: Account, places: Places, layout: Layout) -> None:
    """Run the command."""
    if layout.long + layout.json + layout.brace > 1:
        raise UsageError("--long, --json and --brace exclude each other")
    urls = named(places.urls or [], places.files_from or [], places.end) or [""]
    entries = (entry for url in urls for entry in shards_at(url, layout.every, account))
    with storage.writing("-") as sink:
        lines = written(entries, layout, places.end, account)
        table.write_lines((line.encode("utf-8", "surrogateescape") for line in lines), sink)


def shards_at(url: str, every: bool, account: Account) -> Iterator[Listed]:
    """Yield the shards at *url*, or *every* object there, and count them. Raises: StorageError if there is none."""
    account.listed = account.listed or 0
    before = account.listed
    for entry in storage.ls(url):
        shard = compression.split_suffix(split_query(entry.url)[0])[1] != ""
        if shard or every:
            account.listed += 1
            account.shards_done += shard
            account.bytes_in += entry.size or 0
            yield entry
    if account.listed == before:
        what = "nothing is" if every else "no shard is"
        raise StorageError(f"{what} listed under this{'' if every else '; --all lists every object'}", url=url or ".")


def written(entries: Iterator[Listed], layout: Layout, end: str, account: Account) -> Iterator[str]:
    """Yield what is written of *entries*, each piece with its *end*. Names that can't be told from two are omitted."""
    if layout.json:
        for url, size, modified in entries:
            yield json.dumps({"url": url, "size": size, "modified": moment(modified)}) + end
        return
    whole = (entry for entry in entries if is_one_line(entry.url, end, account))
    if layout.long:
        for url, size, modified in whole:
            yield f"{'-' if size is None else size:>15}  {moment(modified) or '-':20}  {url}{end}"
        return
    urls = (quoted(entry.url) for entry in whole)
    for text in folded(urls, is_there) if layout.brace else urls:
        yield text + end


def is_one_line(url: str, end: str, account: Account) -> bool:
    """Tell whether *url* reads back where names end with *end*; report it if not."""
    if end in url:
        account.omit(
            f"{url}: not listed, as its name holds {'a line feed; -0' if end != chr(0) else 'NUL; --json'} lists it"
        )
    return end not in url


def moment(seconds: float | None) -> str | None:
    """Return the time *seconds* after 1970 in UTC, as ISO 8601 has it; None if it is not known, or no such time."""
    if seconds is None:
        return None
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return None
