"""What tarshow says of arrays, sounds, numbers and the rest, through the installed command."""

from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile

from tests.archives import npy
from tests.conftest import Run, make_tar

RATE = 8000
BEATS = (np.sin(np.arange(2 * RATE) / 5) * np.repeat([0.3, 0.5, 0.0, 0.1], RATE // 2)).astype("float32")
LINE = "▅" * 12 + "█" * 12 + "▁" * 12 + "▂" * 12


def sound(format: str, subtype: str | None = None, data: np.ndarray = BEATS) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, data, RATE, format=format, subtype=subtype)
    return file.getvalue()


def said(run: Run, field: str, payload: bytes) -> list[str]:
    """Return the lines of tarshow on a sample with this *field*, without its key, its name and its size."""
    done = run("tarshow", stdin=make_tar([(f"a.{field}", payload)]))
    assert done.status == 0 and done.stderr in ("", "tarshow: broken: 1 of 1 sample: a\n")
    key, first, *rest, last = done.stdout.decode().removesuffix("\n").split("\n")
    assert (key, last) == ("a", "") and first.startswith(f"  {field}  {len(payload):,} B  ")
    return [first.partition(" B  ")[2], *(line.removeprefix("    ") for line in rest)]


@pytest.mark.parametrize(
    ("field", "payload", "what"),
    [
        ("wav", sound("WAV"), "WAV 2.00 s, 8000 Hz, 1 channel, 16 bit"),
        ("wav", sound("WAV", "FLOAT"), "WAV 2.00 s, 8000 Hz, 1 channel, 32 bit float"),
        ("flac", sound("FLAC", "PCM_24"), "FLAC 2.00 s, 8000 Hz, 1 channel, 24 bit"),
        ("bin", sound("FLAC"), "FLAC 2.00 s, 8000 Hz, 1 channel, 16 bit"),
        ("wav", sound("WAV", data=np.stack([BEATS, BEATS / 2], 1)), "WAV 2.00 s, 8000 Hz, 2 channels, 16 bit"),
    ],
)
def test_sounds_have_a_waveform(run: Run, field: str, payload: bytes, what: str) -> None:
    assert said(run, field, payload) == [what, LINE]


def test_a_long_sound_is_heard_in_places(run: Run) -> None:
    long = np.repeat(np.float32([0.3, 0.5]), 24 * 10_000)  # more than is looked at of a column
    what, line = said(run, "flac", sound("FLAC", data=long))
    assert what.startswith("FLAC 60.00 s") and line == "▅" * 24 + "█" * 24


def test_ogg(run: Run) -> None:
    what, line = said(run, "ogg", sound("OGG", "VORBIS"))
    assert what == "OGG 2.00 s, 8000 Hz, 1 channel, Vorbis"
    assert len(line) == 48 and line[18] == "█" and line[30] == "▁"


@pytest.mark.parametrize(
    ("field", "payload", "what"),
    [
        ("wav", sound("WAV", data=np.zeros(0)), "WAV 0.00 s, 8000 Hz, 1 channel, 16 bit"),
        ("wav", sound("WAV", data=np.zeros(RATE)), "WAV 1.00 s, 8000 Hz, 1 channel, 16 bit, silent"),
        ("wav", sound("WAV")[:30], "WAV that cannot be read: No 'data' chunk marker."),
        ("wav", b"no sound at all", "WAV that cannot be read: it does not begin as one"),
        ("flac", sound("FLAC")[:2000], "FLAC that cannot be read: flac decoder lost sync."),
        ("bin", b"OggS", "sound that cannot be read: Format not recognised."),
        ("mp3", b"\xff\xfb\x90\x00" + bytes(99), "sound, MP3"),
    ],
)
def test_sounds_without_a_waveform(run: Run, field: str, payload: bytes, what: str) -> None:
    assert said(run, field, payload) == [what]


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (npy([[3, 0], [255, 7]], "u1"), "array uint8 2x2, from 0 to 255"),
        (npy([-2, 300], ">i2"), "array big-endian int16 2, from -2 to 300"),
        (npy(0.25, "f4"), "array float32 scalar, from 0.25 to 0.25"),
        (npy([np.nan, 1e9, -1.23456], "f8"), "array float64 3, from -1.235 to 1e+09, 1 NaN"),
        (npy([np.nan], "f2"), "array float16 1, 1 NaN"),
        (npy([1, np.inf], "f2"), "array float16 2, from 1 to inf"),
        (npy([], "f4"), "array float32 0"),
        (npy([True], "?"), "array bool 1"),
        (npy([1j], "c8"), "array complex64 1"),
        (npy(["abc"], "U3"), "array <U3 1"),
        (npy([{}], "O", allow_pickle=True), "array of pickled objects (not opened) 1"),
        (npy([1, 2], "i4")[:-1], "array int32 2, but it has 7 bytes of data instead of 8"),
        (npy([1], "u1").replace(b"'|u1'", b"'|u3'") + bytes(2), "array uint24 1"),
    ],
)
def test_arrays_have_a_range(run: Run, payload: bytes, what: str) -> None:
    assert said(run, "npy", payload) == [what]


@pytest.mark.parametrize(
    ("field", "payload", "what"),
    [
        ("cls", b"7\n", "number: 7"),
        ("score", b"-1.5e-3", "number: -1.5e-3"),
        ("cls", b"7 8", "text: 7 8"),
        ("cls", "٣".encode(), "text: ٣"),  # a digit, but none that programs take
        ("mp4", b"\0\0\0\x20ftypisom" + bytes(9), "video, MP4"),
        ("mov", b"\0\0\0\x14ftypqt  " + bytes(9), "video, QuickTime"),
        ("mkv", b"\x1aE\xdf\xa3" + bytes(99), "video, Matroska or WebM"),
        ("avi", b"RIFF\x10\0\0\0AVI LIST", "video, AVI"),
    ],
)
def test_numbers_and_videos(run: Run, field: str, payload: bytes, what: str) -> None:
    assert said(run, field, payload) == [what]
