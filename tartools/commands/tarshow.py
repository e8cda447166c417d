"""Show samples to a person.

Writes one block a sample: its key, and for each field the size and what it is. Pictures are told by format, size
and mode, arrays by dtype and shape, sound by length; JSON and text are shown, cut where they are long. A picture
that is damaged says so in its place. Nothing is unpickled, and control characters are escaped.

With -c, reading ends with the header that ends the last sample shown.

Examples:
  tarshow -c 2 small.tar
  tarshow -f 'cls json' 'train-*.tar' | less
  curl -s https://host/photos.tgz | tarshow -c 1
"""

from __future__ import annotations

import os

from tartools import cli, shards, storage
from tartools.account import Account
from tartools.show import text
from tartools.stages import select


@cli.command(__doc__)
def tarshow(account: Account, source: cli.Inputs, wanted: cli.Fields, first: cli.Count = None) -> None:
    """Run the command."""
    urls = storage.expand(*source.named)
    samples = shards.read_samples(urls, account, shards.Reading(source.lax, source.skip_special))
    if wanted.fields or wanted.exclude:
        words, dropped = select.parse_words(wanted.fields or ()), " ".join(wanted.exclude or ()).split()
        samples = select.fields(samples, words, dropped, account, verbatim=wanted.verbatim)
    if first is not None:
        samples = select.count(samples, first)
    bold = colourful()
    with shards.closing_upstream(samples), storage.writing("-") as sink:
        for sample in samples:
            sink.write(text.block(sample, bold=bold).encode())
            account.samples_out += 1


def colourful() -> bool:
    """Tell whether stdout is a terminal whose user has nothing against escape codes (https://no-color.org)."""
    return os.isatty(1) and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
