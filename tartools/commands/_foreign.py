"""The options of commands that read names and text of other programs."""

from typing import Annotated, Literal

from tartools.cli import Option
from tartools.formats.encodings import parse_encoding

Dots = Annotated[
    Literal["first", "last"] | None,
    Option(
        "--dots",
        "Which dot of the name of a file ends the key.",
        default="first in a folder; in a column, the only one",
    ),
]
Encoding = Annotated[
    str | None,
    Option(
        "--encoding NAME",
        "Encoding of text, or of names in zip files: gbk, shift_jis, latin-1, utf-16 ...",
        parser=parse_encoding,
        default="UTF-8",
    ),
]
