"""Facts about pictures, sounds and videos: columns of tarindex --facts, functions of expressions, hours of tarstat."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from PIL import Image, ImageOps

from tartools.samples.mp3frames import measure_mp3
from tests.archives import photograph
from tests.commands.conftest import Inside
from tests.conftest import BIN, make_tar, python
from tests.media import make_sound, make_video
from tests.processes import on_terminal
from tests.tiers import also

SOUND = ("seconds", "rate", "channels", "format", "broken")
VIDEO = ("seconds", "width", "height", "fps", "codec", "broken")
PICTURE = ("width", "height", "format", "mode", "broken", "upright_width", "upright_height")
JUNK = b"nothing that has a header"


def turned_picture(orientation: int, form: str = "JPEG", *, late: bool = False) -> bytes:
    """Return a picture of 80 by 60 pixels whose EXIF data say *orientation*; in PNG, if *late*, after the pixels."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    photograph(1).save(file, form, exif=exif.tobytes())
    data = file.getvalue()
    if late:
        begin = data.index(b"eXIf") - 4
        end = begin + 12 + int.from_bytes(data[begin : begin + 4], "big")
        tail = data.index(b"IEND") - 4
        data = data[:begin] + data[end:tail] + data[begin:end] + data[tail:]
    return data


@pytest.fixture
def samples(tmp_path: Path) -> list[tuple[str, bytes]]:
    """Write a.tar: two sound samples, one whose payloads are junk, one with an empty sound; return its members."""
    members = [
        *(("a.jpg", turned_picture(1)), ("a.flac", make_sound(1.5, "FLAC")), ("a.mp4", make_video(50))),
        *(("b.jpg", turned_picture(6)), ("b.flac", make_sound(2.5, "FLAC", 22050, 2))),
        ("b.mp4", make_video(45, 30, (32, 16), codec="libx264")),
        *(("c.jpg", JUNK), ("c.flac", JUNK), ("c.mp4", JUNK)),
        *(("d.flac", b""), ("d.mp4", make_video(50)[:2000])),
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    return members


def columns_of(path: Path, field: str, names: tuple[str, ...]) -> list[tuple[Any, ...]]:
    table = pq.read_table(path)
    return list(zip(*(table[f"{field}.{name}"].to_pylist() for name in names), strict=True))


def test_columns_have_the_facts_and_null_where_a_payload_is_damaged(
    inside: Inside, samples: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    path = tmp_path / "t.parquet"
    assert columns_of(path, "jpg", PICTURE) == [
        (80, 60, "JPEG", "RGB", None, 80, 60),
        (80, 60, "JPEG", "RGB", None, 60, 80),
        (None, None, None, None, "its first bytes do not match any picture format", None, None),
        (None,) * 7,
    ]
    no_sound = "its first bytes do not match any sound format"
    assert columns_of(path, "flac", SOUND) == [
        (1.5, 16000, 1, "FLAC", None),
        (2.5, 22050, 2, "FLAC", None),
        (None, None, None, None, no_sound),
        (None, None, None, None, "it is empty"),
    ]
    assert columns_of(path, "mp4", VIDEO) == [
        (2.0, 64, 48, 25.0, "mpeg4", None),
        (1.5, 32, 16, 30.0, "h264", None),
        (None, None, None, None, None, "its first bytes do not match any video format"),
        (None, None, None, None, None, "Invalid data found when processing input"),
    ]
    types = {name: str(pq.read_schema(path).field(name).type) for name in ("flac.seconds", "flac.rate", "mp4.fps")}
    assert types == {"flac.seconds": "double", "flac.rate": "int64", "mp4.fps": "double"}


def test_pictures_alone_are_as_before(inside: Inside, samples: list[tuple[str, bytes]], tmp_path: Path) -> None:
    inside("tarindex", "--pictures", "a.tar", "-o", "p.parquet").output()
    names = pq.read_schema(tmp_path / "p.parquet").names
    assert [name for name in names if "." in name] == [f"jpg.{name}" for name in PICTURE[:5]]
    message = inside("tarindex", "--facts", "--pictures", "a.tar", "-o", "x.parquet").failure(2)
    assert "--facts has the columns of --pictures, and more: give one of them" in message
    inside("tarindex", "--facts", "p.parquet", "-o", "x.parquet").failure(2, lines=1)
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    inside("tarindex", "--facts", "t.parquet", "-o", "x.parquet").output()


@pytest.mark.parametrize(
    ("form", "suffix", "rate"),
    [("WAV", "wav", 8000), ("FLAC", "flac", 44100), ("OGG", "ogg", 16000), ("MP3", "mp3", 48000)],
)
def test_sounds_of_all_formats(form: str, suffix: str, rate: int, inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(f"a.{suffix}", make_sound(3.25, form, rate, 2))]))
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    assert columns_of(tmp_path / "t.parquet", suffix, SOUND) == [(3.25, rate, 2, form, None)]


def test_mpeg4_sounds_are_read_by_pyav(inside: Inside, tmp_path: Path) -> None:
    import av

    file = io.BytesIO()
    with av.open(file, "w", format="ipod") as container:
        stream = container.add_stream("aac", rate=16000, layout="mono")
        for number in range(47):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate, frame.pts = 16000, 1024 * number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    members = [("a.m4a", file.getvalue()), ("b.m4a", make_video(5)), ("c.m4a", JUNK)]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    first, *rest = columns_of(tmp_path / "t.parquet", "m4a", SOUND)
    assert first == (pytest.approx(3, abs=0.1), 16000, 1, "MPEG-4", None)
    assert rest == [(None, None, None, None, why) for why in ("it has no sound", rest[1][-1])]
    assert rest[1][-1] == "its first bytes do not match any sound format"


def test_decode_finds_sounds_that_end_early(inside: Inside, tmp_path: Path) -> None:
    whole = {suffix: make_sound(2, form) for suffix, form in (("wav", "WAV"), ("flac", "FLAC"), ("ogg", "OGG"))}
    members = [(f"a.{suffix}", data) for suffix, data in whole.items()]
    members += [(f"b.{suffix}", data[:-900]) for suffix, data in whole.items()]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    inside("tarindex", "--facts", "--decode", "a.tar", "-o", "t.parquet").output()
    for suffix in whole:
        sound, broken = columns_of(tmp_path / "t.parquet", suffix, SOUND)
        assert sound[-1] is None and sound[0] == 2.0
        assert broken[-1], suffix


def test_a_sound_that_does_not_say_its_length(inside: Inside, tmp_path: Path) -> None:
    flac = bytearray(make_sound(1, "FLAC"))
    flac[21] &= 0xF0
    flac[22:26] = bytes(4)  # STREAMINFO: number of samples unknown
    (tmp_path / "a.tar").write_bytes(make_tar([("a.flac", bytes(flac))]))
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    assert columns_of(tmp_path / "t.parquet", "flac", SOUND) == [
        (None, None, None, None, "its header does not say how long it is")
    ]


def test_flac_behind_an_id3_tag_is_flac(inside: Inside, tmp_path: Path) -> None:
    data = b"ID3\4\0\0\0\0\2\1" + bytes(257) + make_sound(1, "FLAC")
    (tmp_path / "a.tar").write_bytes(make_tar([("a.flac", data), ("a.mp3", data)]))
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    for field in ("flac", "mp3"):
        assert columns_of(tmp_path / "t.parquet", field, SOUND) == [(1.0, 16000, 1, "FLAC", None)]


@pytest.mark.parametrize("rate", [44100, *also(8000, 11025, 12000, 16000, 22050, 24000, 32000, 48000)])
@pytest.mark.parametrize("channels", [1, 2])
def test_mp3_is_measured_as_libsndfile_does(rate: int, channels: int) -> None:
    data = make_sound(2.21, "MP3", rate, channels)
    with soundfile.SoundFile(io.BytesIO(data)) as opened:
        assert measure_mp3(io.BytesIO(data)) == (opened.frames, rate, channels)
    tagged = b"ID3\4\0\0\0\0\2\1" + bytes(257) + data + b"TAG" + bytes(125)
    assert measure_mp3(io.BytesIO(tagged)) == measure_mp3(io.BytesIO(data))
    first = data.index(b"Info") if b"Info" in data[:200] else data.index(b"Xing")
    plain = measure_mp3(io.BytesIO(data[:first] + b"----" + data[first + 4 :]))  # all frames are counted
    assert 0 <= plain.samples - 2.21 * rate < 3 * 1152 + 1


def test_damaged_mp3_says_nothing_on_stderr(tmp_path: Path) -> None:
    data = make_sound(20, "MP3")
    noise = np.random.default_rng(1).bytes(3000)
    tagged = b"\xff\xf3\x16\xc0".ljust(21, b"\0") + b"Xing"  # one frame, cut behind the name of its tag
    half, noisy = data[: len(data) // 2], data[:2000] + noise + data[5000:]
    damaged = [half, noisy, data[:100], noise, b"\xff\xfb", b"ID3", tagged]
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n}.mp3", part) for n, part in enumerate(damaged)]))
    line = [sys.executable, "-m", "tartools", "tarindex", "--facts", "a.tar", "-o", "t.parquet"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, check=True)  # from its file descriptors
    assert (done.stdout, done.stderr) == (b"", b"")
    rows = columns_of(tmp_path / "t.parquet", "mp3", SOUND)
    assert [row[0] for row in rows[:-1]] == [20.0, 20.0, None, None, None, None]
    assert [row[-1] is None for row in rows[:-1]] == [True, True, False, False, False, False]


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, *also(2, 4, 5, 7, 8)])
def test_upright_sizes_are_those_of_pillow(form: str, orientation: int, inside: Inside, tmp_path: Path) -> None:
    pictures = {"a": turned_picture(orientation, form)}
    if form == "PNG":
        pictures["late"] = turned_picture(orientation, form, late=True)
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{key}.png", data) for key, data in pictures.items()]))
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    sizes = columns_of(tmp_path / "t.parquet", "png", ("width", "height", "upright_width", "upright_height"))
    for size, data in zip(sizes, pictures.values(), strict=True):
        with Image.open(io.BytesIO(data)) as opened:
            assert size == (*opened.size, *ImageOps.exif_transpose(opened).size)


EXPRESSIONS = {
    "seconds('flac') > 2": "b",
    "seconds('mp4') == 2": "a",
    "rate('flac') == 16000": "a",
    "fps('mp4') == 30": "b",
    "fps('avi;mp4') < 30": "a",
    "width('mp4') * height('mp4') > 600": "a",
    "seconds('wav;flac') < 2 and width('jpg;png') == 80": "a",
}


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expressions_ask_for_facts(
    expression: str, inside: Inside, samples: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    chosen = {}
    for name in ("a.tar", "t.parquet"):
        line = ["tarfilter", "-S", expression, "--ignore-errors", name]
        chosen[name] = inside(*line, "-o", "o.tar", "--force").output() + (tmp_path / "o.tar").read_bytes()
    assert chosen["a.tar"] == chosen["t.parquet"]
    keys = [name.partition(".")[0] for name, _ in samples]
    expected = make_tar([member for member, key in zip(samples, keys, strict=True) if key in EXPRESSIONS[expression]])
    assert chosen["a.tar"] == expected


FAULTS = {
    "seconds('flac') > 1": "sample 'c': {}: seconds('flac'): its first bytes do not match any sound format",
    "seconds('jpg') > 1": "sample 'a': {}: seconds('jpg'): it is not a sound or a video",
    "fps('flac') > 1": "sample 'a': {}: fps('flac'): it is not a video",
    "rate('mp4') > 1": "sample 'a': {}: rate('mp4'): it is not a sound",
    "width('flac') > 1": "sample 'a': {}: width('flac'): its first bytes do not match any picture format",
    "seconds('wav') > 1": "sample 'a' has no 'wav'; its fields are: jpg flac mp4",
    "seconds(flac) > 1": "seconds(flac): the name of a field has quotes here: seconds('flac')",
}


@pytest.mark.parametrize("expression", FAULTS)
def test_what_is_wrong_with_an_expression(
    expression: str, inside: Inside, samples: list[tuple[str, bytes]], tmp_path: Path
) -> None:
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    for name in ("a.tar", "t.parquet"):
        done = inside("tarfilter", "-S", expression, name, "-o", "o.tar")
        assert done.status in (1, 2) and FAULTS[expression].format(expression) in done.stderr
        assert not (tmp_path / "o.tar").exists()


def test_without_pyav_sounds_and_pictures_are_measured_and_videos_name_the_extra(tmp_path: Path) -> None:
    (tmp_path / "sounds.tar").write_bytes(make_tar([("a.flac", make_sound(1, "FLAC")), ("a.jpg", turned_picture(1))]))
    (tmp_path / "videos.tar").write_bytes(make_tar([("a.mp4", make_video(5))]))
    program = "import sys; sys.modules['av'] = None\nfrom tartools.commands.{} import {}; {}()"
    index, select = (program.format(name, name, name) for name in ("tarindex", "tarfilter"))
    python(index, "-p", 1, "--facts", "sounds.tar", "-o", "s.parquet", folder=tmp_path).output()
    assert columns_of(tmp_path / "s.parquet", "flac", SOUND) == [(1.0, 16000, 1, "FLAC", None)]
    why = "videos and MPEG-4 sounds need PyAV, which is not installed: "
    lines = {index: ["-p", 1, "--facts"], select: ["--ignore-errors", "-S", "seconds('mp4') > 0"]}
    for code, options in lines.items():
        done = python(code, *options, "videos.tar", "-o", "v.parquet", folder=tmp_path)
        assert done.status == 1 and why in done.stderr and "(or the extra video)" in done.stderr
        assert not (tmp_path / "v.parquet").exists()


HOURS = """\
hours flac: 0.0011, 2 members, each 1.50 to 2.50 seconds, median 1.50
broken flac: 2, first c (its first bytes do not match any sound format)
broken flac in: c
broken flac in: d
hours mp4: 0.0010, 2 members, each 1.50 to 2.00 seconds, median 1.50
broken mp4: 2, first c (its first bytes do not match any video format)
broken mp4 in: c
broken mp4 in: d
"""


def test_tarstat_adds_up_hours(inside: Inside, samples: list[tuple[str, bytes]], tmp_path: Path) -> None:
    """From shards, by two workers, from the columns of a table, and from a table without columns."""
    inside("tarindex", "--facts", "a.tar", "-o", "t.parquet").output()
    inside("tarindex", "a.tar", "-o", "plain.parquet").output()
    (tmp_path / "b.tar").write_bytes((tmp_path / "a.tar").read_bytes())
    for line in (["a.tar"], ["-p", "2", "a.tar"], ["t.parquet"], ["--decode", "a.tar"]):
        lines = inside("tarstat", "--hours", *line).output().decode().splitlines(keepends=True)
        assert "".join(line for line in lines if line.startswith(("hours", "broken flac", "broken mp4"))) == HOURS
    done = inside("tarstat", "--hours", "plain.parquet")
    assert done.status == 0 and HOURS.splitlines()[0] in done.stdout.decode()
    assert b"hours" not in inside("tarstat", "a.tar").output()  # only if they are asked for
    fields = json.loads(inside("tarstat", "--hours", "--json", "a.tar", "b.tar", "-p", "2").output())["fields"]
    lengths = {field["field"]: field["lengths"] for field in fields if "lengths" in field}
    assert lengths["flac"] == {
        **{"count": 4, "hours": 8 / 3600, "seconds": 8.0, "min": 1.5, "median": 1.5, "max": 2.5},
        **{"broken": 4, "broken_in": "c", "why": "its first bytes do not match any sound format"},
        "broken_keys": ["c", "d", "c", "d"],
    }
    assert lengths["mp4"]["seconds"] == 7.0 and lengths.keys() == {"flac", "mp4"}


def test_hours_of_nothing_are_a_warning(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.cls", b"1")]))
    done = inside("tarstat", "--hours", "a.tar")
    assert done.status == 0
    assert (
        done.stderr == "tarstat: no field holds sounds or videos, by its last part, so there are no hours to add up\n"
    )


def test_hours_on_a_terminal(samples: list[tuple[str, bytes]], tmp_path: Path) -> None:
    done = on_terminal([BIN / "tarstat", "--hours", "a.tar"], tmp_path)
    assert done.status == 0
    screen = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode() + done.stderr)
    assert re.search(r"Lengths flac +count +hours +min +median +max", screen)
    assert re.search(r"2 +0\.001 +1\.50 s +1\.50 s +2\.50 s", screen)
