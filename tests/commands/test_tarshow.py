"""tarshow, through the installed command."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.archives import npy, picture
from tests.conftest import BIN, Run, make_samples, make_tar
from tests.media import make_video
from tests.processes import on_terminal

# the header of one of 16383 x 16383 pixels, in the lossless form (VP8L): 14 bits each, less one
HUGE_WEBP = b"RIFF\x26\0\0\0WEBPVP8L\x19\0\0\0\x2f" + (0x3FFE | 0x3FFE << 14).to_bytes(4, "little") + bytes(21)


def header(words: str, data: bytes = b"", version: int = 1) -> bytes:
    """Return a .npy file whose header has these *words*."""
    text = (words + "\n").encode()
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def test_block_a_sample(run: Run) -> None:
    archive = make_tar([("d/a.cls", b"5\n"), ("d/a.jpg", picture("JPEG")), ("d/b.txt", b"one\ntwo\n"), ("README", b"")])
    size = len(picture("JPEG"))
    assert run("tarshow", stdin=archive).output().decode() == (
        f"d/a\n  cls    2 B  number: 5\n  jpg  {size} B  JPEG 50x37 RGB\n\n"
        "d/b\n  txt  8 B  text\n    one\n    two\n\nREADME\n  -  0 B  empty\n\n"
    )


# ---- what fields are ----

RATE = 8000
BEATS = (np.sin(np.arange(2 * RATE) / 5) * np.repeat([0.3, 0.5, 0.0, 0.1], RATE // 2)).astype("float32")
UNKNOWN = "array whose header cannot be read: descr is not a valid dtype descriptor: '|u3'"
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
        ("png", picture("PNG", mode="L"), "PNG 50x37 L"),
        ("seg.PNG", picture("PNG", mode="1"), "PNG 50x37 1"),
        ("webp", picture("WEBP"), "WEBP 50x37 RGB"),
        ("bin", picture("GIF", mode="P"), "GIF 50x37 P"),
        ("jpg", b"no picture", "a broken picture: its first bytes do not match any picture format"),
        ("png", picture("PNG")[:20], "a broken picture"),
        ("webp", HUGE_WEBP, "a picture with too many pixels to be decoded"),
        (
            "npy",
            header("{'descr': '>i2', 'fortran_order': True, 'shape': (), }", bytes(2), 2),
            "array big-endian int16 scalar",
        ),
        ("npy", header("__import__('os').system('touch gotcha')"), "array whose header cannot be read"),
        ("npy", header("[" * 5000), "array whose header cannot be read"),
        ("npy", b"\x93NUMPY", "array whose header cannot be read"),
        ("json", b"3", "JSON: 3"),
        ("json", b"{nope", "not JSON (Expecting property name"),
        ("json", b"[" * 200_000, "not JSON ("),
        ("pth", b"PK\x03\x04" + bytes(20), "zip archive"),
        ("pyd", b"\x80\x04\x95" + bytes(9), "pickle, not opened"),
        ("bin", bytes(range(256)), "binary"),
        ("txt", b"\xff\xfe", "binary"),
    ],
)
def test_what_fields_are(run: Run, tmp_path: Path, field: str, payload: bytes, what: str) -> None:
    assert said(run, field, payload)[0].startswith(what)
    assert not (tmp_path / "gotcha").exists()


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
        ("npy", npy([[3, 0], [255, 7]], "u1"), "array uint8 2x2, from 0 to 255"),
        ("npy", npy([-2, 300], ">i2"), "array big-endian int16 2, from -2 to 300"),
        ("npy", npy(0.25, "f4"), "array float32 scalar, from 0.25 to 0.25"),
        ("npy", npy([np.nan, 1e9, -1.23456], "f8"), "array float64 3, from -1.235 to 1e+09, 1 NaN"),
        ("npy", npy([np.nan], "f2"), "array float16 1, 1 NaN"),
        ("npy", npy([1, np.inf], "f2"), "array float16 2, from 1 to inf"),
        ("npy", npy([], "f4"), "array float32 0"),
        ("npy", npy([True], "?"), "array bool 1"),
        ("npy", npy([1j], "c8"), "array complex64 1"),
        ("npy", npy(["abc"], "U3"), "array <U3 1"),
        ("npy", npy([{}], "O", allow_pickle=True), "array of pickled objects (not opened) 1"),
        ("npy", npy([1, 2], "i4")[:-1], "array int32 2, but it has 7 bytes of data instead of 8"),
        ("npy", npy([1], "u1").replace(b"'|u1'", b"'|u3'") + bytes(2), UNKNOWN),
        ("cls", b"7\n", "number: 7"),
        ("score", b"-1.5e-3", "number: -1.5e-3"),
        ("cls", b"7 8", "text: 7 8"),
        ("cls", "٣".encode(), "text: ٣"),  # a digit, but none that programs take
        ("mp4", make_video(30), "video, MP4, 1.20 s, 64x48, 25 frames/s, mpeg4"),
        ("bin", make_video(50, 10, (32, 32), "mov"), "video, QuickTime, 5.00 s, 32x32, 10 frames/s, mpeg4"),
        (
            "mkv",
            make_video(30, form="matroska", codec="libvpx"),
            "video, Matroska or WebM, 1.20 s, 64x48, 25 frames/s, vp8",
        ),
        ("avi", make_video(30, form="avi"), "video, AVI, 1.20 s, 64x48, 25 frames/s, mpeg4"),
        (
            "mp4",
            make_video(30)[:2000],  # its header, at the end, is cut
            "video, MP4, that cannot be read: it has neither video nor sound: it may be cut",
        ),
        (
            "mkv",
            b"\x1aE\xdf\xa3" + bytes(99),
            "video, Matroska or WebM, that cannot be read: Invalid data found when processing input",
        ),
    ],
)
def test_what_is_told_in_one_line(run: Run, field: str, payload: bytes, what: str) -> None:
    """Sounds without a waveform, the range of arrays, numbers, videos."""
    assert said(run, field, payload) == [what]


# ---- samples ----


def test_json_is_pretty_and_cut(run: Run) -> None:
    shown = run("tarshow", stdin=make_tar([("a.json", json.dumps({"n": [1, "ä"]}).encode())])).stdout.decode()
    assert shown.endswith('JSON\n    {\n      "n": [\n        1,\n        "ä"\n      ]\n    }\n\n')
    long = run("tarshow", stdin=make_tar([("a.json", json.dumps(list(range(100))).encode())])).stdout.decode()
    assert "… 90 more lines" in long and len(long.splitlines()) < 20


def test_text_is_cut(run: Run) -> None:
    archive = make_tar([("a.txt", b"x" * 500), ("b.txt", b"line\n" * 40), ("c.txt", "ä".encode() * 100_001)])
    lines = run("tarshow", stdin=archive).stdout.decode().splitlines()
    assert max(map(len, lines)) < 120
    assert "    … 28 more lines" in lines and lines[-2] == "    …"


def test_control_characters_are_escaped(run: Run) -> None:
    archive = make_tar([("a\x1b[2J.t\x07xt", b"\x1b]0;title\x07\r\t\xe2\x80\xae")])
    shown = run("tarshow", stdin=archive).stdout.decode()
    assert shown == "a\\x1b[2J\n  t\\x07xt  15 B  text: \\x1b]0;title\\x07\\r\\t\\u202e\n\n"


def test_count_may_be_none_or_more_than_there_are(run: Run) -> None:
    archive = make_tar(make_samples(10))
    assert run("tarshow", "-c", 0, stdin=archive) == (0, b"", "")
    assert run("tarshow", "-c", 99, stdin=archive).stdout.count(b"\n\n") == 10


def test_fields(run: Run) -> None:
    archive = make_tar([("a.cls", b"1"), ("a.JPG", b"x"), ("b.jpg", b"y")])
    assert run("tarshow", "-f", "cls", "-v", stdin=archive).stdout == b"a\n  cls  1 B  number: 1\n\n"
    assert b"cls" not in run("tarshow", "-x", "cls", stdin=archive).stdout
    assert run("tarshow", "-f", "jpg", "--verbatim", stdin=archive).stdout.startswith(b"b\n")
    wrong = run("tarshow", "-f", "nope", stdin=archive)
    assert wrong.status == 1 and "no sample had the field nope; the fields were: cls JPG jpg" in wrong.stderr


@pytest.mark.parametrize(
    ("environment", "codes"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, False)],
)
def test_a_terminal_gets_bold_keys(tmp_path: Path, environment: dict[str, str], codes: bool) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1")]))
    shown = on_terminal([BIN / "tarshow", "a.tar"], tmp_path, env=environment).stdout
    assert (b"\x1b[1ma\x1b[0m" in shown) == codes and b"number: 1" in shown
