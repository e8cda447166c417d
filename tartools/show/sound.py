"""Sound for a person: how long it is and how it is stored, and a waveform."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tartools.tar import Member

if TYPE_CHECKING:
    import soundfile

KINDS = frozenset(("flac", "oga", "ogg", "opus", "wav"))  # not mp3, whose decoder writes to stderr itself
COLUMNS = 48  # of a waveform in a terminal
HEARD = 8192  # frames of a column that are looked at, so that an hour costs no more than a minute
BARS = "▁▂▃▄▅▆▇█"

# as libsndfile calls how samples are stored -> as people do
STORED = {
    "PCM_S8": "8 bit",
    "PCM_U8": "8 bit",
    "PCM_16": "16 bit",
    "PCM_24": "24 bit",
    "PCM_32": "32 bit",
    "FLOAT": "32 bit float",
    "DOUBLE": "64 bit float",
}

# what a file begins with -> what browsers call it
MEDIA = (
    (b"RIFF", "audio/wav"),
    (b"fLaC", "audio/flac"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"\xff", "audio/mpeg"),
)


class Sound(NamedTuple):
    """What a sound is, in words, and its *peaks* from 0 to 1, the loudest being 1; none if it is empty."""

    what: str
    peaks: Sequence[float]


def is_sound(kind: str, head: bytes) -> bool:
    """Tell whether a file that begins with *head*, of a field that ends in *kind*, is or should be a sound."""
    return kind in KINDS or _begins(head)


def _begins(head: bytes) -> bool:
    return head.startswith((b"fLaC", b"OggS")) or (head[:4] == b"RIFF" and head[8:12] == b"WAVE")


def read(member: Member, columns: int = COLUMNS) -> Sound:
    """Return what the sound *member* is, and the peak of each of so many *columns*, as far as it is heard.

    Holds: 8192 frames. Raises: ValueError if it does not begin as a sound that we read (libsndfile knows many
    formats that nobody tests), and what soundfile raises for what is damaged, RuntimeError mostly.
    """
    import soundfile

    with member.open() as file:
        head = file.read(12)
        if not _begins(head):
            raise ValueError("it does not begin as one")
        file.seek(0)
        with soundfile.SoundFile(file) as opened:
            seconds, channels = opened.frames / opened.samplerate, opened.channels
            stored = STORED.get(opened.subtype, opened.subtype.replace("_", " ").capitalize())
            what = f"{opened.format} {seconds:.2f} s, {opened.samplerate} Hz, {channels} channel{'s' * (channels > 1)}"
            return Sound(f"{what}, {stored}", peaks(opened, columns))


def peaks(opened: soundfile.SoundFile, columns: int) -> list[float]:
    """Return the peak of each of at most *columns* equal parts of *opened*, relative to the highest one."""
    import numpy as np

    columns = min(columns, opened.frames)
    found: list[float] = []
    for column in range(columns):
        begin, end = (opened.frames * edge // columns for edge in (column, column + 1))
        if opened.tell() != begin:
            opened.seek(begin)
        heard = opened.read(min(end - begin, HEARD), dtype="float32", always_2d=True)
        found.append(float(np.nan_to_num(np.abs(heard), posinf=1.0).max(initial=0.0)))
    highest = max(found, default=0.0)
    return [peak / highest if highest else 0.0 for peak in found]


def line(peaks: Sequence[float]) -> str:
    """Return *peaks* as one line of bars.

    >>> line([0.0, 0.5, 1.0])
    '▁▅█'
    """
    return "".join(BARS[min(int(peak * len(BARS)), len(BARS) - 1)] for peak in peaks)


def media_type(payload: bytes) -> str:
    """Return the media type (RFC 6838) of the sound that begins with *payload*; nothing for one we do not know."""
    if payload[4:8] == b"ftyp":
        return "audio/mp4"
    return next((kind for magic, kind in MEDIA if payload.startswith(magic)), "")
