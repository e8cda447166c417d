r"""The places `{}`, `{.}`, `{/}` and `{/.}` in the words of a command, and which of these words a shell reads again.

A place is replaced by the item as it is: no shell reads the words of COMMAND. But some words are code for a shell that
COMMAND starts, and there an item like `a;rm -rf ~` would be run. We do not parse that code to quote the item. In these
words we accept only items of characters that mean nothing to any shell (`check_item`):

    word                                                example
    ------------------------------------------------------------------------------------------------
    after -c, --command, --post, --wrap                 sh -c 'wc {}'; tarsplit --post 'up {}'
    behind --command=, --post=, --wrap=                 tarproc --command='wc {}'
    after options with a c, of a shell or tarproc       bash -lc 'wc {}'; tarproc -Sc 'wc {}'
    behind such a c                                     tarproc -c'wc {}'
    with pipe: in it                                    tarcat 'pipe:wc {}'
    after eval, ssh, parallel, watch: all words         ssh host wc {}

"After" is up to the first word that is not an option, which is included: `bash -c -e CODE`. The table finds too much
rather than too little: `wc -c {}` is in it. What is refused by mistake costs a message; what is run by mistake, data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tartools.errors import UsageError, concealed, shown

PLACEHOLDER = re.compile(r"\{/?\.?\}")  # {} {.} {/} {/.}
PLAIN = re.compile(r"[A-Za-z0-9._/:@%+=,-]+")  # means nothing to any shell
SHELLS = {
    *("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh"),
    *("flock", "runuser", "script", "sg", "su"),  # pass what follows -c to a shell
    "tarproc",
}
JOINERS = {"eval", "parallel", "ssh", "watch"}  # join all words behind them to one line for a shell
CODE_NEXT = re.compile(r"-c|--command|--post|--wrap")
CODE_BEHIND = re.compile(r"--(?:command|post|wrap)=.*", re.DOTALL)
SHELL_OPTIONS = re.compile(r"-[0-9A-Za-z]*c.*", re.DOTALL)


def replacements(item: str) -> dict[str, str]:
    """Return what replaces each place, as in GNU parallel.

    >>> replacements("gs://b/train-01.tar.gz")["{/.}"]
    'train-01.tar'
    """
    base = item.rpartition("/")[2]
    bare = re.sub(r"\.[^/.]+$", "", item)
    return {"{}": item, "{.}": bare, "{/}": base, "{/.}": re.sub(r"\.[^/.]+$", "", base)}


def fill(pattern: str, item: str) -> str:
    """Return *pattern* with its places replaced for *item*."""
    words = replacements(item)
    return PLACEHOLDER.sub(lambda found: words[found[0]], pattern)


def shell_code(command: Sequence[str]) -> list[str]:
    """Return the words of *command* that have a place and that a shell reads again, by the table above.

    >>> shell_code(["bash", "-lc", "wc {}", "{}"]), shell_code(["tarcat", "{}", "-o", "pipe:zstd > {}"])
    (['wc {}'], ['pipe:zstd > {}'])
    """
    code = []
    after_shell = after_joiner = is_next = False
    for word in command:
        options = after_shell and SHELL_OPTIONS.fullmatch(word)
        if is_next or after_joiner or options or "pipe:" in word or CODE_BEHIND.fullmatch(word):
            code.append(word)
        name = os.path.basename(word)
        is_next = (is_next and word[:1] in ("-", "+")) or bool(CODE_NEXT.fullmatch(word) or options)
        after_shell = after_shell or name in SHELLS
        after_joiner = after_joiner or name in JOINERS
    return [word for word in code if PLACEHOLDER.search(word)]


def check_item(item: str, code: Sequence[str]) -> None:
    """Raise UsageError if *item* can't be put safely into the words *code*, which a shell reads."""
    if code and not PLAIN.fullmatch(item):
        before, pipe, command = code[0].partition("pipe:")
        line = concealed(before) + (shown(pipe + command) if pipe else "")
        raise UsageError(
            f"a shell would read this item as code in {line!r}; items with characters other than "
            'A-Z a-z 0-9 ._/:@%+=,- are refused there: write "$TARJOB_ITEM" instead of {}',
            url=item or "''",
        )
