"""Videos are opened so that nothing in them is a request to FFmpeg: no other file, no server, no memory."""

from __future__ import annotations

import io
import resource
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import av
import pytest

from tartools.errors import TarToolsError
from tartools.samples.mp4boxes import MAX_LISTED_SAMPLES, SCAN_BYTES, check_listed_samples
from tartools.samples.videos import open_video
from tests.conftest import python
from tests.media import make_sound, make_video

OPEN = """
import io, sys
from tartools.samples.videos import open_video
for path in sys.stdin.read().split():
    with open(path, "rb") as file:
        data = file.read()
    try:
        with open_video(io.BytesIO(data), len(data), decode=True) as opened:
            print(path, sum(1 for _ in opened.decode(video=0)))
    except ValueError as error:
        print(path, "refused:", error)
"""


def open_bytes(data: bytes, *, decode: bool = False) -> av.container.InputContainer:
    return open_video(io.BytesIO(data), len(data), decode=decode)


@pytest.mark.parametrize(
    ("form", "codec"),
    [
        ("mp4", "mpeg4"),
        ("mp4", "libx264"),
        ("mov", "libx264"),
        ("matroska", "libx264"),
        ("webm", "libvpx"),
        ("avi", "mpeg4"),
        ("flv", "flv"),
        ("mpeg", "mpeg1video"),
    ],
)
def test_a_header_says_size_and_rate_and_frames_can_be_decoded(form: str, codec: str) -> None:
    data = make_video(50, 25, (64, 48), form, codec)
    with open_bytes(data) as opened:
        stream = opened.streams.video[0]
        assert (stream.width, stream.height, stream.average_rate) == (64, 48, 25)
        assert opened.duration == pytest.approx(2e6, abs=1e5)  # MPEG says where the last frame begins
    with open_bytes(data, decode=True) as opened:
        assert sum(1 for _ in opened.decode(video=0)) == 50


@pytest.mark.parametrize("form", ["mp4", "matroska", "avi", "flv"])
def test_tags_that_are_not_utf8_are_no_error(form: str) -> None:
    data = make_video(5, form=form, codec="flv" if form == "flv" else "mpeg4")
    assert b"Lavf" in data  # the encoder's name
    with open_bytes(data.replace(b"Lavf", b"\xff\xfe\xe9f")) as opened:
        assert opened.streams.video[0].width == 64 and opened.duration


@pytest.mark.parametrize("data", [b"", b"no video", b"RIFF....WAVE", b"\x89PNG\r\n\x1a\n" + bytes(20), make_sound(1)])
def test_other_bytes_are_no_video(data: bytes) -> None:
    with pytest.raises(ValueError, match="its first bytes do not match any video format"):
        open_bytes(data)


def test_a_damaged_video_raises_an_error_of_pyav() -> None:
    data = make_video(50)
    with pytest.raises(ValueError, match="Invalid data"):
        open_bytes(data[: len(data) // 2])  # without moov, which is at the end


def playlist(target: str) -> bytes:
    return f"#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2.0,\n{target}\n#EXT-X-ENDLIST\n".encode()


def with_reference(data: bytes, target: bytes) -> bytes:
    """Return the MOV *data*, whose samples are said to be in the file *target*: an alias in dref."""
    name = target.rpartition(b"/")[2]
    alias = bytearray(150)
    struct.pack_into(">HH", alias, 4, 150, 2)
    alias[10:38] = bytes([4]) + b"disk".ljust(27, b"\0")
    alias[50:114] = bytes([len(name)]) + name.ljust(63, b"\0")
    struct.pack_into(">hh", alias, 130, 1, 1)
    for kind, text in ((2, target), (18, target), (-1, b"")):
        alias += struct.pack(">hH", kind, len(text)) + text + b"\0" * (len(text) % 2)
    entry = struct.pack(">I4sI", 12 + len(alias), b"alis", 0) + alias
    begin = data.index(b"dref") - 4
    (size,) = struct.unpack_from(">I", data, begin)
    dref = struct.pack(">I4sII", 16 + len(entry), b"dref", 0, 1) + entry
    grown = bytearray(data[:begin] + dref + data[begin + size :])
    for parent in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
        at = grown.index(parent) - 4
        struct.pack_into(">I", grown, at, struct.unpack_from(">I", grown, at)[0] + len(dref) - size)
    return bytes(grown)


def test_no_payload_makes_ffmpeg_open_a_file_or_a_server(tmp_path: Path) -> None:
    """strace sees all files: ours opens none that a payload names, and PyAV alone does, for the same bytes."""
    assert shutil.which("strace")
    (tmp_path / "secret.mp4").write_bytes(make_video(50))
    shutil.copy(tmp_path / "secret.mp4", tmp_path / "other-secret.mp4")
    secret = str(tmp_path / "secret.mp4")
    payloads = {
        "hls": playlist("secret.mp4"),
        "http": playlist("http://127.0.0.1:9/secret.mp4"),
        "concat": b"ffconcat version 1.0\nfile other-secret.mp4\n",
        "absolute": b"ffconcat version 1.0\nfile " + secret.encode() + b"\n",
        "sdp": b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 9 RTP/AVP 96\n"
        b"a=rtpmap:96 H264/90000\n",
        "dref": with_reference(make_video(50, form="mov"), secret.encode()),
    }
    for name, data in payloads.items():
        (tmp_path / name).write_bytes(data)
    control = "import av\nwith av.open(open('concat', 'rb')) as opened: print(len(opened.streams))\n"
    control += "with av.open(open('dref', 'rb'), options={'enable_drefs': '1', 'use_absolute_path': '1'}) as opened:\n"
    control += "    print(len(opened.streams))\n"
    calls, text = {}, {}
    for name, program in (("ours", OPEN), ("control", control)):
        line = ["strace", "-f", "-qq", "-e", "trace=open,openat,connect,socket,execve", "-o", name + ".calls"]
        done = subprocess.run(
            [*line, sys.executable, "-c", program],
            cwd=tmp_path,
            input="\n".join(payloads),
            capture_output=True,
            text=True,
            check=True,
        )
        text[name], calls[name] = done.stdout, (tmp_path / f"{name}.calls").read_text()
    assert '"secret.mp4"' in calls["control"] and '"other-secret.mp4"' in calls["control"]  # by reference, and concat
    assert "secret" not in calls["ours"] and "connect(" not in calls["ours"] and "socket(" not in calls["ours"]
    why = "refused: its first bytes do not match any video format"
    assert text["ours"].splitlines() == [*(f"{name} {why}" for name in list(payloads)[:-1]), "dref 0"]


def with_counts(data: bytes, counts: dict[bytes, tuple[int, int]]) -> bytes:
    """Return *data* with numbers of 4 bytes put into boxes: type -> (bytes after the type, number)."""
    changed = bytearray(data)
    for box, (offset, number) in counts.items():
        struct.pack_into(">I", changed, data.index(box) + 4 + offset, number)
    return bytes(changed)


def bombs(count: int) -> dict[str, bytes]:
    """Return two files of 5 kB that list *count* frames: by tables, and as a fragment."""
    whole = make_video(5, codec="libx264")
    tables = with_counts(whole, {b"stsz": (4, 1), b"stsc": (12, count), b"stts": (8, count)})
    tables = with_counts(tables, {b"stsz": (8, count)})
    fragments = make_video(5, codec="libx264", options={"movflags": "frag_keyframe+empty_moov"})
    fragments = with_counts(with_counts(fragments, {b"trun": (0, 0)}), {b"trun": (4, count)})
    return {"tables": tables, "fragments": fragments}


@pytest.mark.parametrize("kind", ["tables", "fragments"])
def test_a_header_that_lists_very_many_frames_is_refused_in_little_memory(kind: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="its header lists 80,000,000 samples, and up to 5,000,000 are read"):
        open_bytes(bombs(80_000_000)[kind])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB; FFmpeg takes 2 to 5 GB
    open_bytes(bombs(1000)[kind]).close()


def test_boxes_are_counted_wherever_they_are_but_in_mdat() -> None:
    data = bombs(80_000_000)["tables"]
    moov = data[data.index(b"moov") - 4 :]
    shifted = b"\0\0\0\x10ftypisom\0\0\0\0" + struct.pack(">I4s", SCAN_BYTES + 8, b"free") + bytes(SCAN_BYTES)
    for size in range(SCAN_BYTES - 40 - moov.index(b"stsz"), SCAN_BYTES + 10 - moov.index(b"stsz")):
        file = io.BytesIO(struct.pack(">I4s", size + 8, b"free") + bytes(size) + moov)
        with pytest.raises(ValueError, match="80,000,000"):
            check_listed_samples(file, len(file.getvalue()))
    for head in (shifted, struct.pack(">I4sQ", 1, b"mdat", 16)):
        with pytest.raises(ValueError, match="80,000,000"):
            check_listed_samples(io.BytesIO(head + moov), len(head + moov))
    inside = struct.pack(">I4s", 8 + len(moov), b"mdat") + moov
    check_listed_samples(io.BytesIO(inside), len(inside))
    check_listed_samples(io.BytesIO(struct.pack(">I", 0) + inside[4:]), len(inside))  # up to the end
    with pytest.raises(ValueError, match="compressed"):
        check_listed_samples(io.BytesIO(moov.replace(b"mvhd", b"cmov")), len(moov))


def test_an_hour_of_uncompressed_sound_is_no_bomb() -> None:
    """Its samples are as many as those that are refused, but FFmpeg makes packets of them."""
    moov = io.BytesIO()
    with av.open(moov, "w", format="mov") as container:
        stream = container.add_stream("pcm_s16le", rate=48000, layout="mono")
        frame = av.AudioFrame(format="s16", layout="mono", samples=48000)
        frame.sample_rate = 48000
        for second in range(120):
            frame.pts = 48000 * second
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert MAX_LISTED_SAMPLES < 48000 * 120
    with open_bytes(moov.getvalue()) as opened:
        assert opened.duration == 120_000_000


def test_an_error_while_the_payload_is_read_is_not_lost() -> None:
    class Changed(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            if self.tell() > 1000:
                raise TarToolsError("the file became shorter while it was read")
            return super().read(size)

    data = make_video(50)
    with pytest.raises(TarToolsError, match="the file became shorter"):
        open_video(Changed(data), len(data), decode=True)


def test_without_pyav_the_message_says_how_to_install_it(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(make_video(5))
    program = "import sys; sys.modules['av'] = None\n" + OPEN
    done = python(program, stdin=b"a.mp4", folder=tmp_path)
    assert done.status == 1
    assert (
        "videos and MPEG-4 sounds need PyAV, which is not installed: " in done.stderr
        and "av (or the extra" in done.stderr
    )
