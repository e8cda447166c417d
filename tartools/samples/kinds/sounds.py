"""Sounds: described by length, format and waveform, decoded by libsndfile; columns of length, rate and channels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING

from tartools.errors import TarToolsError, printable
from tartools.samples.filetypes import BRANDS, MAGIC_BYTES, SOUND, SOUNDS, suffix_of, type_of_file
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
SOUND_FACTS = (
    ("seconds", "float64"),
    ("rate", "int64"),
    ("channels", "int64"),
    ("format", "string"),
    ("broken", "string"),
)
BARS = "▁▂▃▄▅▆▇█"

# subtype of libsndfile -> description
SUBTYPE_NAMES = {
    "PCM_S8": "8 bit",
    "PCM_U8": "8 bit",
    "PCM_16": "16 bit",
    "PCM_24": "24 bit",
    "PCM_32": "32 bit",
    "FLOAT": "32 bit float",
    "DOUBLE": "64 bit float",
}


def is_sound(suffix: str, head: bytes) -> bool:
    """True if a payload that begins with *head*, in a field with this *suffix*, is or should be WAV, FLAC or Ogg.

    *suffix*: in lower case. FLAC after an ID3 tag is one by its suffix only.
    """
    return suffix in DECODABLE_SOUNDS or _begins_as_sound(head)


def _begins_as_sound(head: bytes) -> bool:
    """True if *head* is the begin of a WAV, FLAC or Ogg file, which are decoded here; False for FLAC after an ID3 tag.

    *head*: the first 16 bytes or more.
    """
    file_type = type_of_file(head)
    return file_type is not None and not DECODABLE_SOUNDS.isdisjoint(file_type.suffixes)


def describe_sound(member: Member, _head: bytes, _decode: bool) -> Description:
    """Return length, rate, channels and waveform of the sound *member* in words, or why it can't be read.

    "WAV 1.50 s, 44100 Hz, 1 channel, 16 bit"; ", silent" if it is, else the waveform is the line; neither if it has no
    frame. The kind is SOUND, or `BROKEN`, also for FLAC after an ID3 tag. Raises: TarToolsError if the payload can't be
    read.
    """
    try:
        what, column_peaks = read_sound(member)
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # the library does not document all its exceptions
        why = sound_fault(error)
        suffix = suffix_of(field_name(member))
        name = f"{printable(suffix.upper())[:MAX_TEXT_COLUMNS]} " if suffix in DECODABLE_SOUNDS else "sound "
        return Description(f"{name}that cannot be read: {why}", kind=BROKEN)
    if column_peaks and not any(column_peaks):
        what += ", silent"
    return Description(what, [line(column_peaks)] if any(column_peaks) else (), kind=SOUND)


def sound_fault(error: Exception) -> str:
    """Return the message of the *error* of a library for a bad sound, on one line of at most 100 characters.

    The name of our file is left out of it. It may be "".
    """
    why = re.sub(r"^(Error (opening <.*>|in \w+ file\.|:)[: ]*)+", "", str(error))
    return printable(why)[:MAX_TEXT_COLUMNS]


def measure_sound(member: Member, decode: bool) -> tuple[object, ...]:
    """Return the `SOUND_FACTS` of *member*, from its header; the last is the reason if it is broken, else None.

    The others are None if its header can't be read. With *decode*, WAV, FLAC and Ogg are decoded to find out whether
    they are whole, but not FLAC after an ID3 tag. Raises: TarToolsError if the payload can't be read, and for MPEG-4
    without PyAV.
    """
    facts: tuple[object, ...] = (None,) * (len(SOUND_FACTS) - 1)
    try:
        with member.open() as file:
            head = file.read(MAGIC_BYTES)
            file.seek(0)
            facts = _sound_facts(file, head, member.size)
        if decode and _begins_as_sound(head):
            check_sound(member)
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # each library has its own
        return *facts, (sound_fault(error) or "its header is damaged") if member.size else "it is empty"
    return *facts, None


def _sound_facts(file: IO[bytes], head: bytes, size: int) -> tuple[float, int, int, str]:
    """Return (seconds, rate, channels, format) of the sound *file* of *size* bytes, which begins with *head*.

    The format is "MP3", "MPEG-4", or the name in libsndfile, such as "WAV".
    *file*: at its begin. Raises: ValueError if it is no sound, or does not say how long it is; what the libraries raise
    for damage; TarToolsError for MPEG-4 without PyAV.
    """
    file_type = type_of_file(head)
    suffixes = () if file_type is None or file_type.kind != SOUND else file_type.suffixes
    if "mp3" in suffixes:
        from tartools.samples.mp3frames import measure_mp3, skip_id3_tags

        skip_id3_tags(file)
        is_flac = file.read(4) == b"fLaC"
        file.seek(0)
        if not is_flac:
            samples, rate, channels = measure_mp3(file)
            return samples / rate, rate, channels, "MP3"
    if "m4a" in suffixes or (file_type is not None and file_type.what == BRANDS[b""].what):
        return _mpeg4_sound_facts(file, size)
    if not suffixes:
        raise ValueError("its first bytes do not match any sound format")
    from tartools.samples.soundfiles import NO_LENGTH, has_known_length, open_by_soundfile

    with open_by_soundfile(file) as opened:
        if not has_known_length(opened):
            raise ValueError(NO_LENGTH)
        return opened.frames / opened.samplerate, opened.samplerate, opened.channels, str(opened.format)


def _mpeg4_sound_facts(file: IO[bytes], size: int) -> tuple[float, int, int, str]:
    """Return (seconds, rate, channels, "MPEG-4") of the sound in the MPEG-4 *file* of *size* bytes.

    *file*: at its begin. Raises: ValueError if it has no sound, or does not say how long it is; PyAV's errors for
    damage; TarToolsError without PyAV.
    """
    from tartools.samples.videos import open_video, stream_seconds

    with open_video(file, size) as opened:
        stream = next(iter(opened.streams.audio), None)
        if stream is None:
            raise ValueError("it has no sound")
        seconds = stream_seconds(opened, stream)
        if seconds is None:
            raise ValueError("its header does not say how long it is")
        return seconds, stream.rate, stream.channels, "MPEG-4"


def check_sound(member: Member) -> None:
    """Raise an exception if the sound *member* can't be decoded, or ends early.

    ValueError if WAV or Ogg is truncated, a page of Ogg is damaged, or another number of frames is decoded than the
    header says; what soundfile raises for other damage; StorageError if the file has changed.
    """
    from tartools.samples.soundfiles import open_by_soundfile, truncation

    with member.open() as file:
        if reason := truncation(file, member.size):
            raise ValueError(reason)
    with member.open() as file, open_by_soundfile(file) as opened:
        frames = 0
        while count := len(opened.read(SOUND_FRAMES_IN_READ, dtype="float32")):
            frames += count
        if frames != opened.frames:
            raise ValueError(f"it has {frames:,} frames instead of {opened.frames:,}")


def read_sound(member: Member, columns: int = TERMINAL_WAVEFORM_COLUMNS) -> tuple[str, Sequence[float]]:
    """Return (description in words, peaks) of the sound *member*: a peak for each of *columns* equal parts of it.

    The description: "WAV 1.50 s, 44100 Hz, 1 channel, 16 bit". Of each part the first 8192 frames are read. Peaks are
    from 0 to 1, the loudest being 1, all 0 if it is silent; there are fewer if the sound has fewer frames than
    *columns*.

    Holds: 8192 frames. Raises: ValueError if the first bytes are not those of WAV, FLAC or Ogg (libsndfile reads many
    formats that are hardly tested); what soundfile raises for a damaged file, mostly RuntimeError; StorageError if the
    file has changed.
    """
    from tartools.samples.soundfiles import open_by_soundfile

    with member.open() as file:
        head = file.read(MAGIC_BYTES)
        if not _begins_as_sound(head):
            raise ValueError("it does not begin as one")
        file.seek(0)
        with open_by_soundfile(file) as opened:
            seconds, channels = opened.frames / opened.samplerate, opened.channels
            stored = SUBTYPE_NAMES.get(opened.subtype, opened.subtype.replace("_", " ").capitalize())
            description = (
                f"{opened.format} {seconds:.2f} s, {opened.samplerate} Hz, {channels} channel{'s' * (channels > 1)}"
            )
            return f"{description}, {stored}", peaks(opened, columns)


def peaks(sound: soundfile.SoundFile, columns: int) -> list[float]:
    """Return the peak of each of *columns* equal parts of *sound*, relative to the highest one: from 0 to 1.

    Of a part its first 8192 frames are read (`FRAMES_PER_COLUMN`). If *sound* has fewer frames than *columns*, it has a
    part for each frame. All peaks are 0 if these frames are silent. NaN counts as 0, infinity
    as 1. Raises: what soundfile raises for a damaged file.
    """
    import numpy as np

    columns = min(columns, sound.frames)
    column_peaks: list[float] = []
    for column in range(columns):
        begin, end = (sound.frames * edge // columns for edge in (column, column + 1))
        if sound.tell() != begin:
            sound.seek(begin)
        frames = sound.read(min(end - begin, FRAMES_PER_COLUMN), dtype="float32", always_2d=True)
        column_peaks.append(float(np.nan_to_num(np.abs(frames), posinf=1.0).max(initial=0.0)))
    highest = max(column_peaks, default=0.0)
    return [peak / highest if highest else 0.0 for peak in column_peaks]


def line(peaks: Sequence[float]) -> str:
    """Return *peaks*, from 0 to 1, as one line of bars of eight heights, one for each peak.

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
    facts=SOUND_FACTS,
    measure=measure_sound,
    further_suffixes=SOUNDS - DECODABLE_SOUNDS,
)
