"""Payloads that the tests make: pictures, arrays and sounds, as files."""

from __future__ import annotations

import io
import wave
from typing import Any


def encoded(picture: Any, form: str = "PNG", **options: Any) -> bytes:
    """Return *picture*, of Pillow, as a file of this format."""
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def npy(values: Any, kind: str | None = None, **options: Any) -> bytes:
    """Return an array of *values* as numpy writes it."""
    import numpy as np

    file = io.BytesIO()
    np.save(file, np.asarray(values, kind), **options)
    return file.getvalue()


def wav(frames: int, channels: int = 1) -> bytes:
    """Return so many *frames* of silence, of 16 bits, 8,000 a second."""
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(2)
        opened.setframerate(8000)
        opened.writeframes(bytes(2 * channels * frames))
    return file.getvalue()
