"""Decode payloads to find those that are broken: pictures, JSON, arrays, sounds, text. All of each is read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator

from tartools.errors import TarToolsError, printable
from tartools.samples import decoding
from tartools.samples.encoding import without_codec
from tartools.samples.filetypes import NUMBER_SUFFIXES, PICTURES, TEXTS, suffix_of
from tartools.samples.payloads import parse_json, unpacked_member
from tartools.samples.pngtext import find_large_text
from tartools.samples.soundfiles import truncation
from tartools.show import sound
from tartools.show.text import array_header
from tartools.stages.checking.samples import Finding, number_mismatch
from tartools.tar import Member

ENCODED = {"html", "xml"}  # which may say in what they are encoded
ENCODINGS = {"utf-8-sig": "a byte order mark"}  # Python's name -> description
SOUND_FRAMES_IN_READ = 1 << 16  # frames of a sound that are decoded at a time


def is_decoded(field: str) -> bool:
    """Return whether `decode_payload` decodes payloads of *field*."""
    suffix = suffix_of(without_codec(field)[0])
    return suffix in PICTURES or suffix in DECODERS


def is_looked_at_whole(field: str) -> bool:
    """Return whether payloads of *field* are looked at whole without decoding."""
    return suffix_of(field) in NUMBER_SUFFIXES


def decode_payload(field: str, member: Member) -> Iterator[Finding]:
    """Decode *member* as the suffix of *field* says; yield findings: codes of `stages.checking.codes`, and reasons.

    A compressed one, such as json.gz, is unpacked first. "" is the code of a payload that is not decoded, because it
    would take too much memory.

    Holds: the decoded payload. Raises: TarToolsError if the payload can't be read.
    """
    inner, codec = without_codec(field)
    if codec is not None:
        try:
            member = unpacked_member(member)
        except ValueError as error:
            yield "broken-compressed", printable(str(error))[: decoding.MAX_ERROR_CHARS]
            return
    suffix = suffix_of(inner)
    if suffix in PICTURES:
        yield from _picture(member)
        return
    code, decoder = DECODERS.get(suffix, ("", None))
    if decoder is None:
        return
    try:
        yield from decoder(member) or ()
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # each library has its own
        yield code, printable(str(error) or type(error).__name__)[: decoding.MAX_ERROR_CHARS]


def _picture(member: Member) -> Iterator[Finding]:
    """Yield the findings about a picture."""
    header, broken, decoded = decoding.described(member, decode=True, strict=True)
    if broken is not None:
        yield "damaged-picture" if broken.startswith(decoding.STRICT_REFUSAL) else "broken-picture", broken
        return
    if not decoded:
        yield "", ""
    pixels = header.width * header.height if header else decoding.MAX_PILLOW_PIXELS + 1
    if pixels > decoding.MAX_PILLOW_PIXELS:
        yield "huge-picture", f"{header.width}x{header.height}" if header else ""
    elif header and pixels > decoding.MAX_PIXELS:
        yield "large-picture", f"{header.width}x{header.height}"
    with member.open() as file:
        large = find_large_text(file)
    if large is not None:
        yield "large-png-text", large.description


def _number(member: Member) -> None:
    payload = member.read()
    if why := number_mismatch(payload, len(payload)):
        raise ValueError(why)


def _json(member: Member) -> Iterator[Finding]:
    return _json_documents([member.read()])


def _json_lines(member: Member) -> Iterator[Finding]:
    with member.open() as file:
        yield from _json_documents(line for line in file if line.strip())


def _json_documents(documents: Iterable[bytes]) -> Iterator[Finding]:
    """Yield what some readers of JSON refuse in *documents*. Raises: ValueError if one is not JSON."""
    constants: list[str] = []
    encoding = ""
    for document in documents:
        parse_json(document, constants)
        detected = json.detect_encoding(document)
        encoding = encoding or ("" if detected == "utf-8" else detected)
    if constants:
        yield "json-constant", constants[0]
    if encoding:
        yield "json-encoding", ENCODINGS.get(encoding, encoding.upper())


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

    with member.open() as file:
        if reason := truncation(file, member.size):
            raise ValueError(reason)
    with member.open() as file, soundfile.SoundFile(file) as opened:
        frames = 0
        while count := len(opened.read(SOUND_FRAMES_IN_READ, dtype="float32")):
            frames += count
        if frames != opened.frames:
            raise ValueError(f"it has {frames:,} frames instead of {opened.frames:,}")


def _text(member: Member) -> None:
    member.read().decode()


Decoder = Callable[[Member], Iterable[Finding] | None]  # raises an exception for a broken payload
DECODERS: dict[str, tuple[str, Decoder]] = {
    **dict.fromkeys(TEXTS - ENCODED, ("broken-text", _text)),
    "json": ("broken-json", _json),
    "jsonl": ("broken-json", _json_lines),
    "npy": ("broken-array", _array),
    "npz": ("broken-array", _arrays),
    **dict.fromkeys(sound.DECODABLE_SOUNDS, ("broken-sound", _sound)),
    **dict.fromkeys(NUMBER_SUFFIXES, ("not-a-number", _number)),
}
