"""Whether a payload can be decoded: pictures, JSON, arrays, sounds, text. All of it is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

from tartools.errors import TarToolsError, printable
from tartools.samples import decoding
from tartools.samples.filetypes import NUMBERS, PICTURES, TEXTS
from tartools.show import sound
from tartools.show.text import array_header
from tartools.stages.checking.samples import no_number
from tartools.tar import Member

ENCODED = {"html", "xml"}  # which may say in what they are encoded
BLOCK = 1 << 16  # frames of a sound that are decoded at a time


def is_decoded(suffix: str) -> bool:
    """Tell whether `why_broken` finds more about payloads with *suffix* than their first bytes say."""
    return suffix in PICTURES or (suffix in LOOKS and suffix not in NUMBERS)


def why_broken(suffix: str, member: Member) -> tuple[str, str] | None:
    """Return a code of `stages.checking.codes` and why *member* can't be decoded as *suffix* says; None if it can.

    Holds: the decoded payload. Raises: TarToolsError if the payload can't be read.
    """
    if suffix in PICTURES:
        why = decoding.described(member, decode=True, strict=True)[1]
        if why is None:
            return None
        return "damaged-picture" if why.startswith(decoding.REFUSED) else "broken-picture", why
    code, look = LOOKS.get(suffix, ("", None))
    if look is None:
        return None
    try:
        look(member)
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # each library has its own
        return code, printable(str(error) or type(error).__name__)[: decoding.MESSAGE]
    return None


def _number(member: Member) -> None:
    payload = member.read()
    if why := no_number(payload, len(payload)):
        raise ValueError(why)


def _lines(member: Member) -> None:
    with member.open() as file:
        for line in file:
            if line.strip():
                json.loads(line)


def _array(member: Member) -> None:
    with member.open() as file:
        shape, dtype = array_header(file)
        left, size = member.size - file.tell(), math.prod(shape) * dtype.itemsize
        if left != size and not dtype.hasobject:  # a pickle, which is not opened
            raise ValueError(f"it has {left:,} bytes of data instead of {size:,}")


def _arrays(member: Member) -> None:
    from zipfile import ZipFile

    with member.open() as file, ZipFile(file) as archive:
        bad = archive.testzip()
        if bad is not None:
            raise ValueError(f"{bad} is damaged")


def _sound(member: Member) -> None:
    import soundfile

    with member.open() as file, soundfile.SoundFile(file) as opened:
        frames = 0
        while count := len(opened.read(BLOCK, dtype="float32")):
            frames += count
        if frames != opened.frames:
            raise ValueError(f"it has {frames:,} frames instead of {opened.frames:,}")


LOOKS: dict[str, tuple[str, Callable[[Member], object]]] = {
    **dict.fromkeys(TEXTS - ENCODED, ("broken-text", lambda member: member.read().decode())),
    "json": ("broken-json", lambda member: json.loads(member.read())),
    "jsonl": ("broken-json", _lines),
    "npy": ("broken-array", _array),
    "npz": ("broken-array", _arrays),
    **dict.fromkeys(sound.KINDS, ("broken-sound", _sound)),
    **dict.fromkeys(NUMBERS, ("not-a-number", _number)),
}
