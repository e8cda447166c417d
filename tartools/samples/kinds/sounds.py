"""Sounds: described by length, format and waveform, decoded by libsndfile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tartools.errors import TarToolsError, printable
from tartools.samples.filetypes import MAGIC_BYTES, SOUND, SOUNDS, suffix_of, type_of_file
from tartools.samples.kinds.kind import BROKEN, MAX_TEXT_COLUMNS, Description, PayloadKind
from tartools.samples.sample import field_name
from tartools.tar import Member

if TYPE_CHECKING:
    import soundfile

# libsndfile does not know the one, and its decoder of the other writes to stderr
DECODABLE_SOUNDS = SOUNDS - {"m4a", "mp3"}
TERMINAL_WAVEFORM_COLUMNS = 48  # of a waveform in a terminal
FRAMES_PER_COLUMN = 8192  # frames of a column that are read, so that an hour takes no longer than a minute
SOUND_FRAMES_IN_READ = 1 << 16  # frames of a sound that are decoded at a time
BARS = "▁▂▃▄▅▆▇█"

# subtype of libsndfile -> description
STORED = {
    "PCM_S8": "8 bit",
    "PCM_U8": "8 bit",
    "PCM_16": "16 bit",
    "PCM_24": "24 bit",
    "PCM_32": "32 bit",
    "FLOAT": "32 bit float",
    "DOUBLE": "64 bit float",
}


def is_sound(suffix: str, head: bytes) -> bool:
    """True if a payload that begins with *head*, in a field with this *suffix*, is or should be a sound."""
    return suffix in DECODABLE_SOUNDS or _begins(head)


def _begins(head: bytes) -> bool:
    """True if *head* is the begin of a WAV, FLAC or Ogg file, which are decoded here."""
    file_type = type_of_file(head)
    return file_type is not None and not DECODABLE_SOUNDS.isdisjoint(file_type.suffixes)


def describe_sound(member: Member, _head: bytes, _decode: bool) -> Description:
    """Return length, rate, channels and waveform of the sound *member* in words, or why it can't be read."""
    try:
        what, column_peaks = read_sound(member)
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # the library does not document all its exceptions
        why = re.sub(
            r"^(Error (opening <.*>|in \w+ file\.|:)[: ]*)+", "", str(error)
        )  # without the name of our file object
        suffix = suffix_of(field_name(member))
        name = f"{printable(suffix.upper())[:MAX_TEXT_COLUMNS]} " if suffix in DECODABLE_SOUNDS else "sound "
        return Description(f"{name}that cannot be read: {printable(why)[:MAX_TEXT_COLUMNS]}", kind=BROKEN)
    if column_peaks and not any(column_peaks):
        what += ", silent"
    return Description(what, [line(column_peaks)] if any(column_peaks) else (), kind=SOUND)


def check_sound(member: Member) -> None:
    """Raise an exception if the sound *member* can't be decoded, or ends early."""
    import soundfile

    from tartools.samples.soundfiles import truncation

    with member.open() as file:
        if reason := truncation(file, member.size):
            raise ValueError(reason)
    with member.open() as file, soundfile.SoundFile(file) as opened:
        frames = 0
        while count := len(opened.read(SOUND_FRAMES_IN_READ, dtype="float32")):
            frames += count
        if frames != opened.frames:
            raise ValueError(f"it has {frames:,} frames instead of {opened.frames:,}")


def read_sound(member: Member, columns: int = TERMINAL_WAVEFORM_COLUMNS) -> tuple[str, Sequence[float]]:
    """Return (description, peaks) of the sound *member*: the peaks of its first 8192 frames in each of *columns* parts.

    Peaks are from 0 to 1, the loudest being 1; there are none if it is empty.

    Holds: 8192 frames. Raises: ValueError if the first bytes are not those of WAV, FLAC or Ogg (libsndfile reads many
    formats that are hardly tested); what soundfile raises for a damaged file, mostly RuntimeError.
    """
    import soundfile

    with member.open() as file:
        head = file.read(MAGIC_BYTES)
        if not _begins(head):
            raise ValueError("it does not begin as one")
        file.seek(0)
        with soundfile.SoundFile(file) as opened:
            seconds, channels = opened.frames / opened.samplerate, opened.channels
            stored = STORED.get(opened.subtype, opened.subtype.replace("_", " ").capitalize())
            description = (
                f"{opened.format} {seconds:.2f} s, {opened.samplerate} Hz, {channels} channel{'s' * (channels > 1)}"
            )
            return f"{description}, {stored}", peaks(opened, columns)


def peaks(opened: soundfile.SoundFile, columns: int) -> list[float]:
    """Return the peak of each of at most *columns* equal parts of *opened*, relative to the highest one."""
    import numpy as np

    columns = min(columns, opened.frames)
    column_peaks: list[float] = []
    for column in range(columns):
        begin, end = (opened.frames * edge // columns for edge in (column, column + 1))
        if opened.tell() != begin:
            opened.seek(begin)
        frames = opened.read(min(end - begin, FRAMES_PER_COLUMN), dtype="float32", always_2d=True)
        column_peaks.append(float(np.nan_to_num(np.abs(frames), posinf=1.0).max(initial=0.0)))
    highest = max(column_peaks, default=0.0)
    return [peak / highest if highest else 0.0 for peak in column_peaks]


def line(peaks: Sequence[float]) -> str:
    """Return *peaks* as one line of bars.

    >>> line([0.0, 0.5, 1.0])
    '▁▅█'
    """
    return "".join(BARS[min(int(peak * len(BARS)), len(BARS) - 1)] for peak in peaks)


SOUND_KIND = PayloadKind(
    name=SOUND,
    code="broken-sound",
    recognize=is_sound,
    describe=describe_sound,
    checks=dict.fromkeys(DECODABLE_SOUNDS, check_sound),
    is_media=True,
)
