"""The record of a kind of payload, and the values that its functions return."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tartools.tar import Member

# code of `stages.checking.codes`, and reason; "" is the code of a payload that is not decoded
Finding = tuple[str, str]
Check = Callable[[Member], Iterable[Finding] | None]  # raises any exception for a broken payload

HEAD_BYTES = 1 << 16  # bytes of a payload that are read to describe it
MAX_TEXT_COLUMNS = 100  # characters of a line of a description; longer ones are cut
BROKEN = "broken"  # kind of the description of a broken picture, sound or video, or of damaged compressed data


class Description(NamedTuple):
    """The description of a payload in words.

    `what`: one line. `lines`: of its contents, cut; may be empty.
    `kind`: "picture", "sound", "video", "text" or "number" if it is one, as far as it was read; `BROKEN` for a picture,
    a sound, a video or compressed data that could not be read; else "". `value`: the whole text if it is short, else
    "".
    """

    what: str
    lines: Sequence[str] = ()
    kind: str = ""
    value: str = ""


class PayloadKind(NamedTuple):
    """A kind of payload, and the functions that handle it.

    `name`: a noun, as in "the picture can't be decoded".
    `code`: tarcheck's code for a payload that can't be decoded; "" if `checks` is empty.
    `recognize(suffix, head)`: True if the suffix of a field and the first bytes of a payload mean this kind; None: no
    payload is recognized.
    `describe(member, head, decode)`: returns the description of a member that is recognized. *head*: its first 64 KiB;
    *decode*: a picture is decoded, to find out whether it is broken. None: described as text.
    `checks`: by suffix, the function that decodes a whole member: it returns findings, or None, and raises any
    exception if the member is broken. No two kinds have one suffix.
    `is_media`: True if an empty one that `recognize` knows by its suffix is counted as broken, and one inside
    compressed data is neither drawn nor played.
    `facts`: (name, type) of each table column for a field with such a suffix; the column "broken" has the reason if a
    payload can't be read, else None. Empty if the kind has none.
    `measure(member, decode)`: returns the values of `facts`; the member is decoded only with *decode*, and not even
    then if it is a video, MP3 or MPEG-4: there only headers are read.
    None if `facts` is empty.
    `further_suffixes`: of fields that it measures, besides those of `checks`.
    """

    name: str
    code: str
    recognize: Callable[[str, bytes], bool] | None
    describe: Callable[[Member, bytes, bool], Description] | None
    checks: Mapping[str, Check]
    is_media: bool = False
    facts: Sequence[tuple[str, str]] = ()
    measure: Callable[[Member, bool], Sequence[object]] | None = None
    further_suffixes: Collection[str] = ()
