"""Text and whole numbers, and the guess at payloads that no kind recognizes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

from tartools.errors import printable
from tartools.samples.filetypes import NUMBER_SUFFIXES, SOUND, TEXTS, type_of_file
from tartools.samples.kinds.kind import HEAD_BYTES, MAX_TEXT_COLUMNS, Description, PayloadKind
from tartools.tar import Member

MAX_TEXT_LINES = 12  # of a text that is described; longer ones are cut
NUMBER_TEXT = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
BEGINS_AS_NUMBER = re.compile(rb"[\s\d_+-]*")
DECLARED_ENCODINGS = {"html", "xml"}  # suffixes of texts that may say in what they are encoded
CHECKED_AS_JSON = {"json", "jsonl"}  # by `documents`


def describe_text(member: Member, head: bytes) -> Description:
    """Return the description of *member*: as text if *head* is UTF-8 without NUL, else by its magic number.

    *head*: the first `HEAD_BYTES` of the payload, or all of it.
    """
    return cut_text(head, whole=member.size <= HEAD_BYTES) or guess_type(head)


def cut_text(head: bytes, *, whole: bool) -> Description | None:
    """Return the description of the text that begins with *head*, cut to 12 lines.

    None if *head* is not UTF-8, or has a NUL. *whole*: True if *head* is all of it; False: a character that is cut at
    its end is no fault.
    If *whole*, one line of up to 100 characters, with a newline at its end or not, is "text: abc" or "number: -1.5", of
    the kind "text" or "number", with "abc" or "-1.5" as the value, its control characters escaped. Any other text is
    "text", of the kind "text", with its lines as `cut` returns them.
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=whole)
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    lines = text.removesuffix("\n").split("\n")
    if whole and len(lines) == 1 and len(lines[0]) <= MAX_TEXT_COLUMNS:
        kind, value = "number" if NUMBER_TEXT.fullmatch(lines[0]) else "text", printable(lines[0])
        return Description(f"{kind}: {value}", kind=kind, value=value)
    return Description("text", cut(lines, whole=whole), kind="text")


def cut(lines: Sequence[str], *, whole: bool) -> list[str]:
    """Return the first 12 of *lines*, each cut to 100 characters, and "…" if it is longer; control characters escaped.

    *whole*: True if *lines* are all lines: if they are more than 12, a last item says so, "… 3 more lines". False: a
    last item "…" is always added.
    """
    shown = [
        printable(line[:MAX_TEXT_COLUMNS]) + ("…" if len(line) > MAX_TEXT_COLUMNS else "")
        for line in lines[:MAX_TEXT_LINES]
    ]
    if not whole:
        shown.append("…")
    elif len(lines) > MAX_TEXT_LINES:
        shown.append(f"… {len(lines) - MAX_TEXT_LINES} more lines")
    return shown


def guess_type(head: bytes) -> Description:
    """Return the description of a file that begins with *head*: its type by these first bytes, else "binary".

    The kind is "sound" for a sound, and "" for any other file.
    """
    file_type = type_of_file(head)
    is_sound_file = file_type is not None and file_type.kind == SOUND
    return Description(file_type.brief if file_type else "binary", kind=SOUND if is_sound_file else "")


def number_mismatch(head: bytes, size: int) -> str:
    """Return why `int` refuses a payload of *size* bytes that begins with *head*; "" if it is a whole number.

    A number with more digits than `int` takes (4,300) counts as refused. "" also if *head* is not all of the payload,
    and has only digits, signs, underscores and white space.

    >>> number_mismatch(b"-5", 3), number_mismatch(b"1.5", 3), number_mismatch(b"an oak in autumn", 20)
    ('', "'1.5' is not a whole number", "'an oak in autumn...' is not a whole number")
    """
    try:
        if size > len(head) and BEGINS_AS_NUMBER.fullmatch(head):
            return ""
        int(head)
    except ValueError:
        text = head.decode(errors="replace")
        return f"{text + '...' * (size > len(head))!r} is not a whole number"
    return ""


def check_number(member: Member) -> None:
    """Raise ValueError if `int` refuses the payload of *member*: it is not a whole number, or has over 4,300 digits."""
    payload = member.read()
    if why := number_mismatch(payload, len(payload)):
        raise ValueError(why)


def check_encoding(member: Member) -> None:
    """Raise UnicodeDecodeError if the payload of *member* is not UTF-8."""
    member.read().decode()


NUMBER_KIND = PayloadKind(
    name="number",
    code="not-a-number",
    recognize=None,
    describe=None,
    checks=dict.fromkeys(NUMBER_SUFFIXES, check_number),
)
TEXT_KIND = PayloadKind(
    name="text",
    code="broken-text",
    recognize=None,
    describe=None,
    checks=dict.fromkeys(TEXTS - NUMBER_SUFFIXES - DECLARED_ENCODINGS - CHECKED_AS_JSON, check_encoding),
)
