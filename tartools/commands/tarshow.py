"""Show samples to a person.

Writes one block a sample: its key, and for each field the size and what it is. Pictures are told by format, size
and mode, arrays by dtype and shape, sound by length; JSON and text are shown, cut where they are long. A picture
that is damaged says so in its place. Nothing is unpickled, and control characters are escaped.

On a terminal the pictures are seen too, side by side as far as they fit, by the means that --pictures names: the
protocols of kitty, iTerm2 and sixel, or half blocks, which are text in colours. Which one is chosen from the
environment; where that is wrong, the variable TARTOOLS_PICTURES can say it for all runs. What is piped is plain text,
unless --pictures is given.

With -i, samples are shown one at a time, and keys turn the pages: space, n and right go on, p, b and left go back,
g goes to the first, q ends, ? shows this. Keys are read from the terminal even if the samples come by stdin. The last
1,000 samples, or 256 MiB of them, are kept to go back to.

With --html, all of that is one page for a browser, which needs no network and no other file: a contact sheet with
classes, sizes, a filter (words, or field=value) and sounds that can be played: those of a sample up to 2 MiB, of all
samples up to 24 MiB. It takes the first 200 samples unless -c or --sample says otherwise.

With -c, reading ends with the header that ends the last sample shown. With --sample, everything is read, and some
samples are drawn, each as likely as any other; --seed draws others.

Examples:
  tarshow -c 2 small.tar
  tarshow -f 'cls json' 'train-*.tar' | less
  tarshow --pictures blocks small.tar | less -R
  curl -s https://host/photos.tgz | tarshow -i
  tarshow --html sheet.html --sample 500 'train-*.tar'
"""

from __future__ import annotations

import os
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import typer

from tartools import cli, shards, storage
from tartools.account import Account
from tartools.errors import UsageError, shown
from tartools.show import pager, sheet, terminal
from tartools.stages import reservoir, select
from tartools.storage import keyboard


class Pictures(StrEnum):
    """How pictures are drawn."""

    auto = "auto"
    kitty = "kitty"
    iterm = "iterm"
    sixel = "sixel"
    blocks = "blocks"
    none = "none"


WORKERS = 4  # threads that decode pictures, two of them each
SHEET = 200  # samples on a page, unless the user says how many


@cli.group
class Sheet(NamedTuple):
    """The page that is written, and the samples that are drawn."""

    url: Annotated[
        str | None, typer.Option("--html", metavar="FILE", help="Write a page for a browser, which needs nothing else.")
    ] = None
    force: cli.Force = False
    drawn: Annotated[
        int | None, typer.Option("--sample", metavar="N", min=1, help="Show N samples, drawn evenly from all.")
    ] = None
    seed: cli.Seed = 0


@cli.command(__doc__)
def tarshow(
    account: Account,
    source: cli.Inputs,
    wanted: cli.Fields,
    contact: Sheet,
    first: cli.Count = None,
    pictures: Annotated[
        Pictures, typer.Option("--pictures", help="How pictures are drawn; auto is what the terminal knows.")
    ] = Pictures.auto,
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Show one sample at a time; keys turn the pages.")
    ] = False,
) -> None:
    """Run the command."""
    if interactive and not os.isatty(1):
        raise UsageError("-i shows samples on a terminal, and stdout is none")
    if interactive and os.environ.get("TERM") == "dumb":
        raise UsageError("-i fills the screen, which this terminal cannot (TERM is dumb)")
    if interactive and contact.url is not None:
        raise UsageError("-i and --html do not go together")
    if contact.url is not None and pictures is not Pictures.auto:
        raise UsageError("--pictures is about terminals; the page of --html has pictures of its own")
    urls = storage.expand(*source.named)
    if contact.url is not None:
        storage.check_output(contact.url, contact.force, urls)
        if first is None and contact.drawn is None:
            first = SHEET
    ranges = interactive or contact.drawn is not None
    samples = shards.read_samples(urls, account, shards.Reading(source.lax, source.skip_special, ranges=ranges))
    if wanted.fields or wanted.exclude:
        words, dropped = select.parse_words(wanted.fields or ()), " ".join(wanted.exclude or ()).split()
        samples = select.fields(samples, words, dropped, account, verbatim=wanted.verbatim)
    if first is not None:
        samples = select.count(samples, first)
    if contact.drawn is not None:
        samples = reservoir.drawn(samples, contact.drawn, contact.seed, account)
    if contact.url is not None:
        from tartools.show import page

        title = shown(urls[0]) + (f" and {len(urls) - 1:,} more" if urls[1:] else "")
        with shards.closing_upstream(samples), storage.writing(contact.url, contact.force) as sink:
            account.samples_out = page.write(samples, sink, title, min(cli.workers(0), WORKERS), first)
        return
    if interactive:
        with shards.closing_upstream(samples), keyboard.taken_over() as keys:
            pager.browse(samples, keys, partial(terminal.screen, pictures), account)
        return
    screen = terminal.screen(pictures)
    with shards.closing_upstream(samples), storage.writing("-") as sink:
        for drawn, count in sheet.rows(samples, screen):
            sink.write(drawn.encode())
            account.samples_out += count
