"""Display samples in a readable form.

Prints each sample as a block: its key, then each field with its size and a summary. For a picture it is the format,
size and mode, for an array dtype and shape, for a sound its length, for a video length, size and codec (if PyAV is
installed: the extra video). JSON and text are printed, and shortened if they are long. Pictures are decoded; truncated
or damaged ones are marked as broken. At the end the first keys of broken samples, and of samples without a field that
most have, are listed on stderr. Nothing is unpickled, and control characters are escaped.

On a terminal, pictures and the first frames of videos are drawn, as many side by side as fit. --graphics says how: by
the protocols of kitty, iTerm2 or sixel, or as half blocks, which are coloured text. auto decides by environment
variables; if it is wrong, set TARTOOLS_PICTURES. A terminal gets about two screens; -c shows more. Output to a pipe or
file is plain text of all samples, unless --graphics is given.

-i shows one sample at a time. Keys: space, n or right for the next, p, b or left for the previous, Home for the first,
End for the last, a number and Enter for the sample with that number, / for the next sample that has some words in its
key or its texts, g for a grid of several samples and back, q to quit, ? for help. Keys are read from the terminal even
if the samples come from stdin. The last 10,000 samples, or 256 MiB of them, can be shown again.

--html writes a contact sheet: one HTML file that needs no network, with pictures, sounds and videos to play (up to 2
and 8 MiB per sample, 24 MiB in all), a filter, and the counts of classes and sizes. It reads everything, decodes all
pictures to find broken ones, and shows 200 samples drawn at random, as a message on stderr says. --random N changes
that number. -c N reads and shows only the first N. --large puts pictures of up to 1,024 pixels on the page, instead of
384. Videos have a still if PyAV is installed (the extra video).

The filter of the page, and / of -i, accept words, field=part for a part of a value, and field==value for a whole value.
Words with blanks are quoted: "cls=sea lion".

--serve shows all samples, of shards or of a table of up to some ten million rows, in a browser: a grid or a list,
search, sorting, facets, and samples to choose. It prints an address, http://127.0.0.1:PORT/?token=..., and serves until
Ctrl-C ends it; only who has the token is answered. Shards are indexed first; their texts and JSON become columns. For
large or remote data sets, make a table once (tarindex -f) and serve that. --facts adds columns about pictures, sounds
and videos in shards, as tarindex --facts does, and --decode decodes all pictures to find broken ones; a table has these
columns if tarindex made them. The page saves lists of keys and tables, in the browser; nothing is written on this
machine but a scratch file in --tmpdir. Needs the extra view (duckdb, pyarrow).

In the page's search, words are looked for in keys and texts; field==value is a whole value, field=part a part of one. A
condition is SQL over columns, as behind WHERE (cls = 3 AND "jpg.width" < 200), or an expression as tarfilter -S takes
it. It can read columns only.

-c stops reading after N samples. --random reads everything and shows N samples, each equally likely; another --seed
selects others.

Examples:
  Show two samples:
    tarshow -c 2 small.tar
  Read the labels and metadata of many samples:
    tarshow -f 'cls json' 'train-*.tar' | less
  Show pictures in a pager:
    tarshow --graphics blocks small.tar | less -R
  Browse a remote archive, one sample at a time:
    curl -s https://host/photos.tgz | tarshow -i
  Make a contact sheet of 500 random samples:
    tarshow --html sheet.html --random 500 'train-*.tar'
  Search and choose among all samples, in a browser:
    tarshow --serve 'train-*.tar'
  The same on a server that you reach by ssh -L 8000:localhost:8000 server:
    tarshow --serve --port 8000 train.parquet
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Annotated, Literal

from tartools import cli, storage
from tartools.cli import Option, process
from tartools.errors import TarToolsError, UsageError, several, shown
from tartools.samples.account import Account
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, close_at_end, read_samples
from tartools.show import sheet, terminal
from tartools.show.sections import MAX_PLACES_LISTED
from tartools.show.statreport import flaw_lines
from tartools.stages import select, shuffle
from tartools.stages.summary import Summary
from tartools.storage.outputformats import HTML
from tartools.tar.groups import Need

DECODING_THREADS = 4  # threads that decode pictures, two of them each
MAX_COUNTED_BYTES = 64 << 20  # bytes of local files that are read to count their samples


class PageOptions(cli.Group):
    """Options for the page and for samples drawn at random.

    Attributes:
      url: the page to write (--html), or None.
      force: replace it.
      drawn: number of samples to draw from all (--random).
      seed: of the draw.
      large: larger pictures on the page.
    """

    url: Annotated[str | None, Option("--html FILE", "Write a page for a browser: one file, no network needed.")] = None
    force: cli.Force = False
    drawn: Annotated[int | None, Option("--random N", "Show N samples drawn at random from all.", minimum=1)] = None
    seed: cli.Seed = 0
    large: Annotated[bool, Option("--large", "Put pictures of up to 1,024 pixels on the page, not 384.")] = False


class Service(cli.Group):
    """Options for the page that a server on this machine shows.

    Attributes:
      serve: show all samples in a browser (--serve).
      port: of the server; None takes a free one.
      facts, decode: index shards with columns of facts about payloads, from headers or decoded.
    """

    serve: Annotated[bool, Option("--serve", "Show all samples in a browser: search, sort, choose.")] = False
    port: Annotated[
        int | None, Option("--port N", "Port of --serve, on 127.0.0.1.", minimum=0, default="a free one")
    ] = None
    facts: Annotated[bool, Option("--facts", "Columns of facts about pictures, sounds and videos.")] = False
    decode: Annotated[bool, Option("--decode", "For --serve: decode all pictures, to find broken ones.")] = False


@cli.command(__doc__)
def tarshow(
    account: Account,
    source: cli.Inputs,
    field_choice: cli.Fields,
    page_options: PageOptions,
    service: Service,
    first: cli.Count = None,
    pictures: Annotated[
        Literal["auto", "kitty", "iterm", "sixel", "blocks", "none"],
        Option("--graphics", "How to draw pictures; auto detects what the terminal supports."),
    ] = "auto",
    interactive: Annotated[
        bool, Option("-i --interactive", "Show one sample at a time; page with the keyboard.")
    ] = False,
    tmpdir: cli.TmpDir = None,
) -> None:
    """Show *first* samples of *source* (None: all; on a terminal two screens, on a page 200). Raises: TarToolsError."""
    check_usage(page_options, pictures, interactive)
    check_service(service, page_options, field_choice, first, interactive or pictures != "auto")
    urls = source.urls()
    if service.serve:
        serve_page(urls, Reading(source.strictness, tmpdir=tmpdir), service, account)
        return
    if page_options.url is not None:
        storage.check_output(page_options.url, page_options.force, urls, form=HTML)
    keeps_samples = interactive or page_options.url is not None or page_options.drawn is not None
    reading = Reading(source.strictness, Need.FIELDS if keeps_samples else Need.PAYLOADS, tmpdir)

    def read(account: Account, reading: Reading) -> Iterator[Sample]:
        """Return the samples to show (for --html all); called again, with another *reading*, only to count them."""
        samples = read_samples(urls, account, reading)
        samples = select.select_by_specs(
            samples, field_choice.fields, field_choice.exclude, account, verbatim=field_choice.verbatim
        )
        if first is not None and page_options.url is None:
            samples = select.take_first(samples, first)
        if page_options.drawn is not None and page_options.url is None:
            samples = shuffle.draw_samples(samples, page_options.drawn, page_options.seed, account)
        return samples

    def total() -> int | None:
        """Return the number of samples that `read` yields, if it is quickly counted; None if not, or with --random."""
        places = reading.with_need(Need.PLACES)
        return None if page_options.drawn else count_quickly(urls, lambda account: read(account, places))

    samples = read(account, reading)
    with close_at_end(samples):
        if page_options.url is not None:
            title = shown(urls[0]) + (f" and {len(urls) - 1:,} more" if urls[1:] else "")
            page_of_samples(samples, page_options.url, page_options, title, first, account)
        elif interactive:
            from tartools.show import pager

            with terminal.take_over() as keys:
                pager.Pager(samples, keys, partial(terminal.detect_screen, pictures), account, total()).run()
        else:
            screen = terminal.detect_screen(pictures)
            two_screens = os.isatty(1) and first is None and page_options.drawn is None
            if print_samples(samples, screen, account, 2 * screen.rows - 2 if two_screens else sys.maxsize):
                warn_of_more(total(), account)


def check_usage(page_options: PageOptions, pictures: str, interactive: bool) -> None:
    """Raise UsageError for --html with -i or --graphics, --large without --html, and -i without a capable terminal.

    *pictures*: the value of --graphics. The terminal is the one on stdout; TERM=dumb is not capable.
    """
    if interactive and not os.isatty(1):
        raise UsageError("-i needs a terminal on stdout")
    if interactive and os.environ.get("TERM") == "dumb":
        raise UsageError("-i needs a terminal that it can clear (TERM is dumb)")
    if interactive and page_options.url is not None:
        raise UsageError("-i and --html exclude each other")
    if page_options.url is not None and pictures != "auto":
        raise UsageError("--graphics is for terminals; leave it out with --html")
    if page_options.large and page_options.url is None:
        raise UsageError("--large needs --html FILE")


def check_service(
    service: Service, page_options: PageOptions, field_choice: cli.Fields, first: int | None, is_on_terminal: bool
) -> None:
    """Raise UsageError if --serve and an option that excludes it are given, or its own options without it.

    It excludes --html, --random, -c (*first*), -f, -x, -i and --graphics. *is_on_terminal*: True if -i, or --graphics
    with another value than auto, is given. Its own options are --port, --facts and --decode.
    """
    if not service.serve:
        if service.port is not None or service.facts or service.decode:
            raise UsageError("--port, --facts and --decode need --serve")
        return
    options = {
        "--html": page_options.url,
        "--random": page_options.drawn,
        "-c": first,
        "-f": field_choice.fields,
        "-x": field_choice.exclude,
        "-i and --graphics": is_on_terminal or None,
    }
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} excludes --serve, whose page shows all samples and fields")


def warn_of_more(total: int | None, account: Account) -> None:
    """Warn that there are more samples than *account* has as written: how many, by *total*, unless that is None.

    Samples that were read and not written are counted in *account* as left out.
    """
    account.left_out = account.samples_in - account.samples_out
    message = "there are more samples" if total is None else several(total - account.samples_out, "more sample")
    account.warn(f"{message}: see them with -c N, -i or --html FILE")


def serve_page(urls: Sequence[str], reading: Reading, service: Service, account: Account) -> None:
    """Serve the page of all samples of *urls* as *service* says, until a signal ends it; print its address first.

    Raises: StorageError without DuckDB; TarToolsError for inputs that can't be read in parts, or are damaged.
    """
    from tartools.show.serve import rowindex
    from tartools.show.serve.server import open_server
    from tartools.show.serve.textfacts import TextFacts
    from tartools.tables.facts import PICTURE_COLUMNS_ONLY

    rowindex.check_duckdb()
    measured = "all" if service.facts else PICTURE_COLUMNS_ONLY if service.decode else ""
    facts = TextFacts((), measured=measured, decoded=service.decode)
    workers = cli.implicit_workers(), cli.count_workers(0)
    with open_server(urls, reading, facts, service.port or 0, workers, account) as server:
        account.warn(f"{several(server.samples, 'sample')}: open this address in a browser; Ctrl-C ends it")
        process.print_now(f"{server.address}\n")
        server.serve_forever()


def page_of_samples(
    samples: Iterator[Sample], url: str, page_options: PageOptions, title: str, first: int | None, account: Account
) -> None:
    """Write an HTML page of *samples* to *url*, with the *title*; warn if it does not show all, or some are broken.

    *page_options*, *first*: how many samples are read, and drawn of these; without -c and --random, 200 are drawn of
    all. Counts the samples in *account*. Raises: TarToolsError.
    """
    from tartools.show.html import page

    drawn = page.DEFAULT_SAMPLES_ON_PAGE if first is None and page_options.drawn is None else page_options.drawn
    choice = page.Choice(first, drawn, page_options.seed)
    side = page.LARGE_VIEW_PIXELS if page_options.large else page.TILE_PIXELS
    with storage.open_sink(url, page_options.force) as sink:
        overview = page.write_page(
            samples, sink, title, choice, side, min(cli.count_workers(0), DECODING_THREADS), account
        )
        account.check()
    if overview.shown_count < overview.counts.samples or overview.has_more:
        account.warn(f"{shown(url)}: {overview.choice_text} (use --random N or -c N to choose differently)")
    if overview.broken.count:
        noun = several(overview.broken.count, "broken picture or sound", "broken pictures or sounds")
        account.warn(f"{shown(url)}: {noun}, listed on the page, the first in {overview.broken.first[0]}")


def print_samples(samples: Iterator[Sample], screen: terminal.Screen, account: Account, max_count: int) -> bool:
    """Write *samples* to stdout as *screen* shows them, a row at a time, up to *max_count* lines; then warn of flaws.

    Flaws: broken samples, and samples without a field that most have. Return True if there are more samples. The first
    row is written in any case. Counts the samples written in *account*. Raises: TarToolsError.
    """
    printed, has_more, summary = 0, False, Summary(MAX_PLACES_LISTED)

    def note(sample: Sample, broken: bool) -> None:
        """Count the fields of *sample*, and whether it is broken."""
        summary.add_combination("/".join(sample.fields), 1, [(summary.samples, sample.key)])
        summary.samples += 1
        if broken:
            summary.note("broken", sample.key)

    with storage.open_sink("-") as sink:
        for drawn, count, lines in sheet.draw_rows(samples, screen, note):
            printed += lines
            has_more = account.samples_out > 0 and printed > max_count
            if has_more:
                break
            sink.write(drawn.encode())
            account.samples_out += count
    account.check()
    for line in flaw_lines(summary):
        account.warn(line)
    return has_more


def count_quickly(urls: Sequence[str], read: Callable[[Account], Iterator[Sample]]) -> int | None:
    """Return the number of samples that *read* yields; None if that would take long, or fails.

    It takes long unless all *urls* are regular local files, and *read* gets through at most 64 MiB of archives,
    decompressed and with payloads that it skips.
    """
    if any(storage.plain_size(url) is None for url in urls):
        return None
    account, number = Account(say=lambda _text: None), 0
    try:
        with close_at_end(samples := read(account)):
            for _ in samples:
                number += 1
                if account.unpacked > MAX_COUNTED_BYTES:
                    return None
    except TarToolsError:
        return None  # reading the samples raises this again
    return number
