"""List shards.

Prints the names of the shards at each URL, one per line, sorted by bytes; `tarls URL | tarcat -T -` reads them. Names
of shards end in .tar, .tgz, .tar.gz, .tar.bz2, .tar.xz, .tar.zst or .tar.lz4.

A URL of an object store or SSH server is a prefix: s3://bucket/train- lists all objects whose names begin with it,
even in directories. A local directory lists all files below it; without a URL, that is the current directory. Wildcards
and braces work as for all commands. Web servers can't be listed: an http: URL is one object.

--long prints size in bytes and modification time (UTC) before each name. --json prints one object per line with url,
size and modified. --brace prints numbered names as one pattern, such as train-{000000..000146}.tgz, which all commands
read.

--sums prints the checksum that a store keeps of each shard, without a download, for --check-sums of tarcheck and
tarcat: SHA-256 in the form of sha256sum, other algorithms in BSD form, with their names. The hub has SHA-256, Google
Cloud Storage MD5 or CRC32C; S3 has what the upload sent, or MD5 of objects that were sent in one request. Local files
are read. A shard without a checksum of all of its bytes is named on stderr, and the exit status is 1.

If the name of an object contains braces, it is printed as a pattern that matches only this object. A name that contains
a line feed is printed only with -0 or --json. A URL without any shard is an error.

Examples:
  List the shards of a training set:
    tarls s3://bucket/train/
  List a local folder and some remote objects, with sizes and times:
    tarls -l data 'gs://bucket/val-*.tgz'
  Save a short list of a large data set:
    tarls --brace s3://bucket/photos > photos.list
  Compare a downloaded copy with the hub's checksums:
    tarls --sums hf://datasets/org/set/ > sums.txt
    tarcheck --check-sums sums.txt 'copy/*.tar'
  Split all shards of a bucket anew:
    tarls s3://bucket/train/ | tarcat -T - | tarsplit -s 1e9 -o train
"""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option, process
from tartools.errors import StorageError, UsageError, shown
from tartools.samples.account import Account
from tartools.storage.expand import add_lists
from tartools.storage.listing import ls
from tartools.storage.names import escape_name, fold_numbers, is_literal
from tartools.storage.objects.contract import ListedObject
from tartools.storage.streams import write_lines
from tartools.storage.url import Url
from tartools.tar import compression

NO_CHECKSUM = "the store keeps no checksum of all of its bytes; download it, and use sha256sum"


class Prefixes(cli.Group):
    """Options for the prefixes to list.

    Attributes:
      urls: prefixes, directories or wildcards; without them and lists, the current directory.
      files_from: files with more of them, one per line (-T).
      null: names end with NUL, in these files and in the output.
      allow_pipe: these files may name commands, and, if they are on a server, local files and other servers.
    """

    urls: Annotated[
        list[str] | None,
        Option("[URL]...", "Prefixes, directories or wildcards; without any, the current directory."),
    ] = None
    files_from: Annotated[
        list[str] | None, Option("-T --files-from FILE", "Read more URLs from FILE, one per line.")
    ] = None
    null: Annotated[bool, Option("-0 --null", "Names end with NUL, not newline, in -T files and in the output.")] = (
        False
    )
    allow_pipe: cli.AllowPipe = False

    @property
    def end(self) -> str:
        """The character after each name: NUL with --null, otherwise a newline."""
        return "\0" if self.null else "\n"


class ListingOptions(cli.Group):
    """Options for the listing.

    Attributes:
      every: list all objects, not only shards (--all).
      long, json, brace, sums: the format, of which one may be chosen; if none, one URL per line.
    """

    every: Annotated[bool, Option("--all", "List every object, not only shards.")] = False
    long: Annotated[bool, Option("-l --long", "Print size and time before each name.")] = False
    json: Annotated[bool, Option("--json", "Print one JSON object per line.")] = False
    brace: Annotated[bool, Option("--brace", "Print numbered names as one pattern: a-{00..12}.tar.")] = False
    sums: Annotated[bool, Option("--sums", "Print the checksum that the store keeps of each shard.")] = False


@cli.command(__doc__)
def tarls(account: Account, prefixes: Prefixes, form: ListingOptions) -> None:
    """Print the shards, or with --all all objects, at each of *prefixes*, in the format *form*.

    One line each, but with --brace for several. Raises: UsageError, also if options exclude each other; StorageError,
    also if there is none at one of *prefixes*.
    """
    if form.long + form.json + form.brace + form.sums > 1:
        raise UsageError("--long, --json, --brace and --sums exclude each other")
    urls = add_lists(prefixes.urls or [], prefixes.files_from or [], prefixes.end, prefixes.allow_pipe) or [""]
    entries = (entry for url in urls for entry in shards_at(url, form.every, account))
    with storage.open_sink("-") as sink:
        lines = format_entries(entries, form, prefixes.end, account)
        encoded = (line.encode("utf-8", "surrogateescape") for line in lines)
        write_lines(map(process.printable_lines, encoded) if os.isatty(1) else encoded, sink)


def shards_at(url: str, every: bool, account: Account) -> Iterator[ListedObject]:
    """Yield the shards at *url*, or with *every* all objects there; count them in *account*.

    A shard is an object with the suffix of a tar archive, compressed or not. It counts objects yielded
    (`progress.objects`), shards (`shards_done`) and bytes (`bytes_in`). Raises: StorageError, at the end, if there is
    none; the errors of `ls`.
    """
    progress = account.progress
    before = progress.objects = progress.objects or 0
    for entry in ls(url):
        shard = compression.split_suffix(Url(entry.url).name)[1] != ""
        if shard or every:
            progress.objects += 1
            account.shards_done += shard
            account.bytes_in += entry.size or 0
            yield entry
    if progress.objects == before:
        subject = "nothing is" if every else "no shard is"
        raise StorageError(
            f"{subject} listed under this{'' if every else '; --all lists every object'}", url=url or "."
        )


def format_entries(entries: Iterator[ListedObject], form: ListingOptions, end: str, account: Account) -> Iterator[str]:
    """Yield the lines of the listing of *entries* in the format *form*, each with *end* after it.

    A line is the URL; with -l size, time and URL ("-" if unknown); with --json url, size and modified (null if
    unknown); with --sums as in a list of checksums; with --brace a line may stand for several entries.
    These are left out, and reported to *account* as omissions: a name that contains *end* (but not with --json and
    --sums, which escape line breaks), and with --sums an entry without a checksum.
    With --brace, and without any of these options, a URL that `expand` would take for a pattern is escaped. Raises: the
    errors of *entries* and `checksum_lines`.
    """
    if form.sums:
        yield from (line + end for line in checksum_lines(entries, account))
        return
    if form.json:
        import json

        for url, size, modified, *_ in entries:
            yield json.dumps({"url": url, "size": size, "modified": format_time(modified)}) + end
        return
    one_line_entries = (entry for entry in entries if is_one_line(entry.url, end, account))
    if form.long:
        for url, size, modified, *_ in one_line_entries:
            yield f"{'-' if size is None else size:>15}  {format_time(modified) or '-':20}  {url}{end}"
        return
    urls = (escape_name(entry.url) for entry in one_line_entries)
    for text in fold_numbers(urls, is_literal) if form.brace else urls:
        yield text + end


def checksum_lines(entries: Iterator[ListedObject], account: Account) -> Iterator[str]:
    """Yield the line of each of *entries* in a list of checksums, in order; report an entry without one as an omission.

    A local file is read for its checksum; of an object it is the one that the store keeps. Lines have no end of line.
    Requests and reads are concurrent. Raises: StorageError if one fails; the errors of *entries*.
    """
    from tartools.storage.checksums import checksum_line
    from tartools.storage.objects import requests_at_once
    from tartools.storage.objects.storedsums import stored_checksum
    from tartools.storage.pool import Threads, call_in_window

    with closing(
        call_in_window(entries, Threads(requests_at_once(), stored_checksum), requests_at_once())
    ) as checksums:
        for entry, checksum_of in checksums:
            checksum = checksum_of()
            if checksum is None:
                account.omit(f"{shown(entry.url)}: {NO_CHECKSUM}")
            else:
                yield checksum_line(entry.url, checksum)


def is_one_line(url: str, end: str, account: Account) -> bool:
    """True if the name *url* does not contain *end*; otherwise report it as an omission, and return False."""
    if end in url:
        account.omit(
            f"{url}: not listed, as its name holds {'a line feed; -0' if end != chr(0) else 'NUL; --json'} lists it"
        )
    return end not in url


def format_time(seconds: float | None) -> str | None:
    """Return the time *seconds* after 1970 in UTC, like 1970-01-01T00:00:00Z; None if it is unknown or out of range."""
    if seconds is None:
        return None
    try:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return None
