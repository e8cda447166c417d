"""Clips of videos as tensors: which frames, of which size, read by ranges; and what is no video, or damaged."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

from tartools.errors import SampleError
from tartools.train import Resize, Sound, TableDataset, Video, WebDataset, loader
from tests.conftest import make_tar
from tests.media import make_sound, make_video
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

FORMS = {
    "mp4": ("mp4", "libx264"),
    "mov": ("mov", "libx264"),
    "mkv": ("matroska", "libx264"),
    "avi": ("avi", "rawvideo"),
}
GREY_STEP = 5  # of one frame of make_video to the next
COUNT = 7


def numbers_of(clip: torch.Tensor, first: int = 0) -> list[int]:
    """Return the numbers of the frames of *clip* by their grey, which repeats after 51: the ones from *first* on."""
    assert clip.dtype == torch.uint8 and clip.shape[1] == 3 and clip.is_contiguous()
    greys = (np.arange(first, first + 51) * GREY_STEP) % 256
    return [first + int(np.abs(greys - float(frame.float().mean())).argmin()) for frame in clip]


# ---- which frames ----


@pytest.mark.parametrize("suffix", FORMS)
def test_frames_by_place(suffix: str) -> None:
    """Also far ahead, in a video with few key frames, and with frames that are stored in another order."""
    video = make_video(50, 25, (64, 48), *FORMS[suffix])
    assert numbers_of(Video(frames=4).decode(video)) == [0, 1, 2, 3]
    assert numbers_of(Video(frames=4, at="middle").decode(video)) == [23, 24, 25, 26]
    assert numbers_of(Video(frames=5, at="spread").decode(video)) == [5, 15, 25, 35, 45]
    assert numbers_of(Video(frames=3, fps=5, at="middle").decode(video)) == [19, 24, 29]
    assert numbers_of(Video(frames=4, fps=50).decode(video)) == [0, 0, 1, 1]
    assert numbers_of(Video(frames=50).decode(video)) == [*range(50)]
    assert numbers_of(Video(frames=52).decode(video)) == [*range(50), 49, 49]
    begins = {numbers_of(Video(frames=3, at="random").decode(video, seed))[0] for seed in range(30)}
    assert len(begins) > 12 and min(begins) < 10 and 37 < max(begins) <= 47
    long = make_video(300, 25, (64, 48), *FORMS[suffix])
    for at, first in (("middle", 148), ("begin", 0)):
        assert numbers_of(Video(frames=4, at=at).decode(long), first) == [first + n for n in range(4)]
    spread = Video(frames=4, at="spread").decode(long)  # three seconds from one to the next: sought
    assert [numbers_of(spread[n : n + 1], first - 5)[0] for n, first in enumerate((37, 112, 187, 262))] == [
        37, 112, 187, 262,
    ]  # fmt: skip


def test_sizes() -> None:
    video = make_video(10, codec="libx264")
    sizes: dict[Any, tuple[int, int]] = {
        None: (48, 64),
        16: (16, 16),
        (20, 30): (20, 30),
        Resize(24): (24, 32),
        Resize(24, crop=(8, 10)): (8, 10),
    }
    for size, expected in sizes.items():
        clip = Video(frames=2, size=size).decode(io.BytesIO(video))
        assert (clip.shape, numbers_of(clip)) == ((2, 3, *expected), [0, 1])


def test_colours_and_rotation() -> None:
    """Three channels in the order of RGB; a telephone's video is turned as its header says."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        pixels = np.zeros((48, 64, 3), np.uint8)
        pixels[:24] = (200, 40, 40)  # red above
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    video = bytearray(file.getvalue())
    clip = Video(frames=1).decode(bytes(video))
    assert clip.shape == (1, 3, 48, 64)
    assert [round(int(value), -1) for value in clip[0, :, 10, 30]] == [200, 40, 40]
    matrix = video.index(b"tkhd") + 4 + 40
    turned = [(0, 1, 0), (-1, 0, 0), (48, 0, 1)]  # ISO/IEC 14496-12, 6.2.2: by 90 degrees, clockwise
    for at, row in enumerate(turned):
        for column, value in enumerate(row):
            scale = 1 << (30 if column == 2 else 16)
            place = matrix + 4 * (3 * at + column)
            video[place : place + 4] = (value * scale).to_bytes(4, "big", signed=True)
    clip = Video(frames=1).decode(bytes(video))
    assert clip.shape == (1, 3, 64, 48)
    assert clip[0, 0, 30, 40] > 150 and clip[0, 0, 30, 8] < 50  # what was above is on the right


# ---- in training ----


@pytest.fixture
def videos(_here: None) -> list[str]:
    keys = [f"{number}" for number in range(COUNT)]
    members = [
        (f"{key}.{field}", payload)
        for number, key in enumerate(keys)
        for field, payload in (("mp4", make_video(20 + 5 * number, codec="libx264")), ("cls", key.encode()))
    ]
    Path("a.tar").write_bytes(make_tar(members))
    return keys


def begins_of(batches: Any) -> dict[int, int]:
    found: dict[int, int] = {}
    for clips, labels in batches:
        assert clips.shape == (len(labels), 4, 3, 24, 24)
        for clip, label in zip(clips, map(int, labels), strict=True):
            first, *others = numbers_of(clip)
            assert others == [first + 1, first + 2, first + 3] and label not in found
            found[label] = first
    return found


def test_clips_at_random_follow_seed_epoch_and_sample(videos: list[str]) -> None:
    part = {"mp4": Video(frames=4, size=24, at="random")}
    options: dict[str, Any] = {"fields": "mp4 cls", "decode": part, "seed": 5}
    data = loader("a.tar", 3, **options)
    first, second = begins_of(data), begins_of(data)
    assert sorted(first) == [*map(int, videos)] and first != second
    assert begins_of(loader("a.tar", 2, num_workers=2, **options)) == first
    stream = WebDataset("a.tar", shuffle=4, seed=5).decode(part).to_tuple("mp4", "cls").batched(2)
    assert begins_of(stream) == first
    stopped = loader("a.tar", 3, **options)
    had = begins_of([next(iter(stopped))])
    resumed = loader("a.tar", 2, num_workers=2, **options)
    resumed.load_state_dict(stopped.state_dict())
    assert had | begins_of(resumed) == first and len(had) == 3


def test_clips_of_different_sizes_say_what_to_write() -> None:
    members = [(f"{n}.mp4", make_video(9, size=size)) for n, size in enumerate(((64, 48), (48, 64)))]
    Path("a.tar").write_bytes(make_tar(members))
    advice = r"write decode=\{'mp4': tartools.train.Video\(frames=8, size=224\)\}$"
    with pytest.raises(
        SampleError, match=rf"^field 'mp4' has shapes \[8, 3, 48, 64\] and \[8, 3, 64, 48\] .*: {advice}"
    ):
        next(iter(loader("a.tar", 2, shuffle=False, fields="mp4", decode={"mp4": Video()})))
    (clips,) = next(iter(loader("a.tar", 2, fields="mp4", decode={"mp4": Video(frames=8, size=224)})))
    assert clips.shape == (2, 8, 3, 224, 224)


def test_a_sound_and_a_video_are_cut_at_one_time() -> None:
    """Both have twenty seconds: parts of one second begin at the same fraction of what is left out."""
    times = (np.arange(160_000) // 8).astype(np.int16)  # a frame of sound has its millisecond
    file = io.BytesIO()
    import soundfile

    soundfile.write(file, times, 8000, format="WAV")
    Path("a.tar").write_bytes(make_tar([("k.mp4", make_video(500, codec="libx264")), ("k.wav", file.getvalue())]))
    part: Any = {"mp4": Video(frames=25, at="random"), "wav": Sound(seconds=1, at="random")}
    data = TableDataset("a.tar", "mp4 wav", part)
    for epoch in range(5):
        data.set_epoch(epoch)
        clip, (waveform, _) = data[0]
        seconds = float(waveform[0, 0]) * 32768 / 1000
        assert abs(numbers_of(clip[:1], max(round(seconds * 25) - 20, 0))[0] - seconds * 25) <= 1


@pytest.mark.parametrize("scheme", ["s3", *also("gs", "http", "ais")])
def test_a_clip_is_fetched_alone(scheme: str, server: FaultServer) -> None:
    video = make_video(300, size=(160, 120), form="avi", codec="rawvideo")
    assert len(video) > 8_000_000
    server.objects["a.tar"] = make_tar([("a.avi", video), ("a.cls", b"1")])
    data = TableDataset(server.url(scheme, "a.tar"), "avi cls", {"avi": Video(frames=2, at="middle")})
    server.requests.clear()
    assert numbers_of(data[0][0], 130) == [149, 150]
    ranges = [request.headers.get("range", "") for request in server.requests if request.method == "GET"]
    ends = [re.fullmatch(r"bytes=(\d+)-(\d+)", text) for text in ranges]
    assert None not in ends and 0 < len(ends) < 40
    assert sum(int(end[2]) - int(end[1]) for end in ends if end) < len(video) / 3


# ---- what can't be decoded ----


def test_damage_names_sample_and_field() -> None:
    whole = make_video(100, form="matroska")
    fragmented = make_video(100, options={"movflags": "frag_keyframe+empty_moov"})
    broken = {
        "k": (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/hostname\n", "first bytes do not match any video"),
        "l": (b"ffconcat version 1.0\nfile /etc/hostname\n", "first bytes do not match any video"),
        "m": (b"", "it is empty"),
        "n": (whole[: len(whole) // 2], "truncated or damaged: no frame after 1"),
        "p": (fragmented[: len(fragmented) // 2], "truncated or damaged: no frame after 1"),
        "q": (make_video(100)[:-900], "the video can't be decoded: "),  # its index is at its end
        "o": (make_sound(1), "first bytes do not match any video|it has no pictures"),
    }
    for key, (payload, reason) in broken.items():
        Path("a.tar").write_bytes(make_tar([(f"{key}.mp4", payload)]))
        for data in (
            TableDataset("a.tar", "mp4", {"mp4": Video(frames=4, at="spread")}),
            WebDataset("a.tar").decode({"mp4": Video(frames=4, at="spread")}),
        ):
            with pytest.raises(SampleError, match=rf"^a\.tar: sample '{key}': field 'mp4': .*({reason})"):
                next(iter(data))
    assert numbers_of(Video(frames=2, at="begin").decode(whole)) == [0, 1]


def test_without_pyav_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    Path("a.tar").write_bytes(make_tar([("k.mp4", make_video(3))]))
    with pytest.raises(
        SampleError,
        match=r"field 'mp4': videos .*PyAV, which is not installed: .*pip install av \(or the extra video\)$",
    ):
        TableDataset("a.tar", "mp4", {"mp4": Video()})[0]


def test_arguments() -> None:
    wrong: list[dict[str, Any]] = [
        *({"frames": 0}, {"frames": True}, {"frames": 2.0}, {"at": "end"}, {"fps": 0}, {"fps": -1}, {"size": 0}),
        *({"size": "x"}, {"size": (1, 2, 3)}, {"fps": 2, "at": "spread"}),
    ]
    for arguments in wrong:
        with pytest.raises(ValueError, match=r"^(frames is|at is 'begin', 'middle', 'random' or|fps is|resize)"):
            Video(**arguments)
    with pytest.raises(TypeError, match=r"^Video is for a field: decode=\{'mp4': Video\(\.\.\.\)\}"):
        TableDataset("a.tar", "mp4", Video())
