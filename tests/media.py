"""Sounds and videos of a known length, made by soundfile and PyAV."""

from __future__ import annotations

import io
from collections.abc import Mapping

import av
import numpy as np
import soundfile


def make_sound(seconds: float, form: str = "WAV", rate: int = 16000, channels: int = 1) -> bytes:
    """Return a sine of 440 Hz as a file of *form*: WAV, FLAC, OGG or MP3."""
    wave = 0.3 * np.sin(2 * np.pi * 440 / rate * np.arange(round(seconds * rate)))
    file = io.BytesIO()
    with soundfile.SoundFile(file, "w", rate, channels, format=form) as sound:
        for begin in range(0, len(wave), rate):  # libsndfile's stack overflows if it writes minutes of Ogg at once
            sound.write(np.stack([wave[begin : begin + rate]] * channels, 1))
    return file.getvalue()


def make_video(
    frames: int,
    rate: int = 25,
    size: tuple[int, int] = (64, 48),
    form: str = "mp4",
    codec: str = "mpeg4",
    options: Mapping[str, str] | None = None,
    first_grey: int = 0,
) -> bytes:
    """Return a video of *frames*, each of another grey and *size* (width, height); *form* is FFmpeg's container.

    The first frame is *first_grey*, each next one 5 lighter, from 255 on again from 0.
    """
    file = io.BytesIO()
    with av.open(file, "w", format=form, options=dict(options or {})) as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for number in range(frames):
            pixels = np.full((size[1], size[0], 3), (first_grey + number * 5) % 256, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()
