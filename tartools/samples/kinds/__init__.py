"""Kinds of payloads: who describes, checks and measures a picture, a sound, a video, an array, JSON, text and numbers.

`PAYLOAD_KINDS` is the table that commands look up: tarshow describes a payload by the first kind that recognizes it;
tarcheck --decode decodes one by the suffix of its field; tarindex --facts, tarstat --hours and the functions of
expressions (`seconds('flac')`) ask for facts. To add a kind, write a
module with a `PayloadKind` (`arrays` is the shortest one), and put that into the table.

Nothing is executed or unpickled. Libraries are imported by the functions that need them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tartools.errors import TarToolsError, printable
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import MAGIC_BYTES, SOUND, is_picture, suffix_of, type_of_file
from tartools.samples.kinds.arrays import ARRAY_KIND
from tartools.samples.kinds.documents import JSON_KIND, JSON_LIMIT
from tartools.samples.kinds.kind import BROKEN, HEAD_BYTES, MAX_TEXT_COLUMNS, Description, Finding, PayloadKind
from tartools.samples.kinds.pictures import PICTURE_KIND
from tartools.samples.kinds.sounds import SOUND_KIND, is_sound
from tartools.samples.kinds.texts import NUMBER_KIND, TEXT_KIND, describe_text, guess_type
from tartools.samples.kinds.videofacts import VIDEO_KIND
from tartools.samples.payloads import MAX_ERROR_CHARS, unpack_member
from tartools.samples.sample import field_name
from tartools.tar import Member

# The order in which they are asked whether they recognize a payload: an array in a field jpg is described as an array,
# and a sound there as a broken picture.
PAYLOAD_KINDS = (ARRAY_KIND, PICTURE_KIND, SOUND_KIND, VIDEO_KIND, JSON_KIND, NUMBER_KIND, TEXT_KIND)
KIND_BY_SUFFIX = {suffix: kind for kind in PAYLOAD_KINDS for suffix in kind.checks}
MEASURED_BY_SUFFIX = {
    suffix: kind for kind in PAYLOAD_KINDS if kind.facts for suffix in (*kind.checks, *kind.further_suffixes)
}


def kind_of_field(field: str) -> PayloadKind | None:
    """Return the kind that has a check for payloads of *field*, by its suffix.

    None if no kind has: for types such as mp3, mp4 and html, unknown suffixes, and compressed fields such as json.gz.
    """
    return KIND_BY_SUFFIX.get(suffix_of(field))


def measured_kind(field: str) -> PayloadKind | None:
    """Return the kind that has facts about payloads of *field*, by its suffix.

    These are pictures, sounds and videos. None if no kind has, as for text, and for compressed fields such as wav.gz.
    """
    return MEASURED_BY_SUFFIX.get(suffix_of(field))


def has_length(field: str) -> bool:
    """True if payloads of *field* have a length in seconds, by its suffix: sounds and videos, not compressed."""
    kind = measured_kind(field)
    return kind is not None and "seconds" in dict(kind.facts)


def length_of(field: str, member: Member, *, decode: bool = False) -> tuple[float | None, str | None]:
    """Return (seconds, None) for the sound or video *member* of *field*; (seconds or None, reason) for a bad one.

    A bad one is broken, or its header does not say how long it is; the reason is in words.
    *field*: one for which `has_length` is True. *decode*: WAV, FLAC and Ogg are decoded to find out whether they are
    whole. Raises: TarToolsError if it can't be read, or for a video or MPEG-4 sound without PyAV.
    """
    kind = measured_kind(field)
    assert kind is not None
    assert kind.measure is not None
    facts = dict(zip(dict(kind.facts), kind.measure(member, decode), strict=True))
    seconds, broken = facts["seconds"], facts["broken"]
    if not isinstance(seconds, float):
        return None, str(broken or "its header does not say how long it is")
    return seconds, None if broken is None else str(broken)


def fact_of(name: str, member: Member) -> object:
    """Return the fact called *name*, such as "seconds", of *member*.

    Its kind is that of its field; if that has no such fact, that of its first bytes; if that has none either, it is
    tried as a picture, for the facts of pictures.
    Raises: ValueError if it is of no kind with this fact, or if its header can't be read or does not state it;
    TarToolsError if it can't be read, or for a video or MPEG-4 sound without PyAV.
    """
    kind = measured_kind(field_name(member))
    if kind is None or name not in dict(kind.facts):
        file_type = type_of_file(_suffix_and_magic(member)[1])
        kinds = [candidate for candidate in PAYLOAD_KINDS if name in dict(candidate.facts)]
        kind = next((k for k in kinds if file_type is not None and k.name == file_type.kind), None)
        if kind is None and PICTURE_KIND in kinds:
            kind = PICTURE_KIND  # of a format that Pillow may know
    if kind is None or kind.measure is None:
        owners = " or a ".join(candidate.name for candidate in PAYLOAD_KINDS if name in dict(candidate.facts))
        raise ValueError(f"it is not a {owners}")
    facts = dict(zip(dict(kind.facts), kind.measure(member, False), strict=True))
    if facts[name] is None:
        raise ValueError(str(facts["broken"] or f"its header has no {name}"))
    return facts[name]


def describe(member: Member, *, decode: bool = False) -> Description:
    """Return the description of *member*, as the first of `PAYLOAD_KINDS` that recognizes its suffix or first bytes.

    So a sound in a field jpg is a broken picture. A member that none recognizes is text, or of a type that its first
    bytes show, or "binary". With *decode*, a picture is decoded to find out whether it is broken; otherwise only its
    header is read, for callers that draw it, and so find out themselves. For a member of up to 1 MiB in a compressed
    field, such as json.gz, the content is described.
    An empty member is "empty", of the kind `BROKEN` if its suffix is that of a picture, or of WAV, FLAC or Ogg.

    Holds: 64 KiB of the member; as a whole, JSON up to 1 MiB, an array up to 16 MiB, and the content of a compressed
    field up to 1 GiB; with *decode*, the decoded picture. Raises: TarToolsError if the payload can't be read.
    """
    with member.open() as file:
        head = file.read(HEAD_BYTES)
    field = field_name(member)
    suffix = suffix_of(field)
    codec = split_codec(field)[1]
    if codec is not None and 0 < member.size <= JSON_LIMIT:
        return _describe_packed(member, codec.name, decode=decode)
    kind = next((kind for kind in PAYLOAD_KINDS if kind.recognize is not None and kind.recognize(suffix, head)), None)
    if not head:
        return Description("empty", kind=BROKEN if kind is not None and kind.is_media else "")
    if kind is None or kind.describe is None:
        return describe_text(member, head)
    return kind.describe(member, head, decode)


def _describe_packed(member: Member, codec: str, *, decode: bool) -> Description:
    """Return the description of the content of the compressed *member*, or the reason why it can't be unpacked.

    It begins with *codec*, the name of the compression: "gzip, text: a". The kind of a picture, a sound or a video is
    "", as it is not drawn or played. *decode*: True to decode a picture, to find out whether it is broken.
    Raises: TarToolsError if the payload can't be read.
    """
    try:
        content = describe(unpack_member(member), decode=decode)
    except ValueError as error:
        return Description(
            f"{codec} data that cannot be unpacked: {printable(str(error))[:MAX_TEXT_COLUMNS]}", kind=BROKEN
        )
    is_media = any(kind.is_media and kind.name == content.kind for kind in PAYLOAD_KINDS)  # nobody draws or plays it
    return Description(f"{codec}, {content.what}", content.lines, "" if is_media else content.kind, content.value)


def may_be_sound(member: Member) -> bool:
    """True if *member* is a sound, by its first bytes, or should be WAV, FLAC or Ogg, by the suffix of its field."""
    suffix, head = _suffix_and_magic(member)
    return is_sound(suffix, head) or guess_type(head).kind == SOUND


def may_be_picture(member: Member) -> bool:
    """True if *member* is or should be a picture, by its first bytes or by the suffix of its field.

    BMP and PNM are recognized by the suffix only.
    """
    return is_picture(*_suffix_and_magic(member))


def _suffix_and_magic(member: Member) -> tuple[str, bytes]:
    """Return (suffix of the field of *member*, in lower case; its first 16 bytes, or all if it has fewer)."""
    with member.open() as file:
        return suffix_of(field_name(member)), file.read(MAGIC_BYTES)


def is_decoded(field: str) -> bool:
    """True if `decode_payload` has a check for payloads of *field*, by its suffix, compressed or not."""
    return kind_of_field(split_codec(field)[0]) is not None


def is_number_field(field: str) -> bool:
    """True if *field* holds whole numbers, by its suffix, not compressed; tarcheck looks at them without --decode."""
    return kind_of_field(field) is NUMBER_KIND


def decode_payload(field: str, member: Member) -> Iterator[Finding]:
    """Decode *member* as the suffix of *field* says; yield findings, (code, reason), for damage and oddities.

    A code is a key of `stages.checking.codes.CODES`, or "" for a payload that is not decoded, because it would take too
    much memory. Damage that stops the decoding is the last finding. A compressed payload, such as that of json.gz, is
    unpacked first: if that fails, the only finding is "broken-compressed". Nothing else is yielded for a suffix that no
    kind has a check for (`is_decoded`).

    Holds: the decoded payload. Raises: TarToolsError if the payload can't be read.
    """
    inner, codec = split_codec(field)
    if codec is not None:
        try:
            member = unpack_member(member)
        except ValueError as error:
            yield "broken-compressed", printable(str(error))[:MAX_ERROR_CHARS]
            return
    kind = kind_of_field(inner)
    if kind is None:
        return
    try:
        yield from kind.checks[suffix_of(inner)](member) or ()
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # each library has its own
        yield kind.code, printable(str(error) or type(error).__name__)[:MAX_ERROR_CHARS]
