r"""How to install this, in one place: the sentences of README, man pages and docs are made from here by `make man`.

Until there is a release on the package index, they say what works in a clone. When there is one, set `PUBLISHED`, run
`make man`, and all pages say so. A line of a page that ends in `<!-- install EXTRAS -->` is made; so is, in a man page,
the quoted word of `.IR` after a line `.\" install EXTRAS`. EXTRAS are names of pyproject.toml with commas, or a dot for
none.
"""

from __future__ import annotations

import re

PUBLISHED = False  # True once `pip install tartools` finds a release
IMPORTED_EXTRAS = {"train", "ray"}  # extras for programs that import tartools, not for the commands
PAGE_LINE = re.compile(r"^.*(<!-- install ([\w,.]+) -->)$", re.MULTILINE)
MANUAL_LINE = re.compile(r'^(\.\\" install ([\w,.]+)\n\.IR )"[^"]*"', re.MULTILINE)


def requirement(extras: str, published: bool) -> str:
    """Return the requirement that pip and pipx install for *extras*, quoted for a shell.

    *extras*: names with commas, or "." for none. *published*: True: from the package index, 'tartools[train]' in
    quotes, or tartools; False: in a clone, '.[train]' in quotes, or a dot.
    """
    package = "tartools" if published else "."
    return package if extras == "." else f"'{package}[{extras}]'"


def install_sentence(extras: str, published: bool) -> str:
    """Return the Markdown sentence "Install: ..." that says how to install commands and library with *extras*.

    Only the library if one of *extras* is train or ray. *extras*: names with commas, or "." for none. *published*:
    True: from the package index, False: in a clone.
    """
    needed = requirement(extras, published)
    place = "" if published else "in a clone of tartools, "
    if IMPORTED_EXTRAS & {*extras.split(",")}:
        sentence = f"{place}`pip install {needed}`, into the environment in which you train."
    else:
        sentence = (
            f"{place}`pipx install {needed}` (or `uv tool install {needed}`) for the commands, "
            f"`pip install {needed}` into the environment in which you train."
        )
    return f"Install: {sentence}"


def with_install_lines(text: str, published: bool = PUBLISHED) -> str:
    """Return *text*, of a page in Markdown or roff, with each line about installation made anew.

    These lines are a line of Markdown that ends in `<!-- install EXTRAS -->`, and the quoted word of .IR after a
    comment of roff "install EXTRAS"; other text stays. *published*: True: install from the package index, False: in a
    clone.
    """
    text = PAGE_LINE.sub(lambda line: f"{install_sentence(line[2], published)} {line[1]}", text)
    return MANUAL_LINE.sub(lambda line: f'{line[1]}"{roff_command(line[2], published)}"', text)


def roff_command(extras: str, published: bool) -> str:
    """Return the command, in roff, that installs the commands with *extras*: "pipx install" and the requirement.

    *extras*: names with commas, or "." for none. *published*: True: from the package index, False: in a clone.
    """
    return "pipx install " + requirement(extras, published).replace("'", r"\(aq")
