"""Clips of videos to tensors by PyAV: `Video` for a field.

Frames are numbered by time: number n is the frame that is shown n / rate seconds after the first one, so that videos of
variable rate have clips of the same speed. To reach a frame, FFmpeg goes to the key frame before it and decodes from
there. So of a long video only the index, and the pieces from a key frame to the frames of the clip, are read:

    | key . . . . | key . . . . | key . . . . | key . . . . |
                    ^^^^^^^^^^ read for frames 8 and 9 (and the index, at the begin or end of the file)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any

from tartools.errors import SampleError, TarToolsError
from tartools.samples.videos import file_length, open_video, stream_length
from tartools.train.clips import CUT_PLACES, Clip, as_file
from tartools.train.payloaddecoding import Resize, parse_resize

if TYPE_CHECKING:
    import torch

SPREAD = "spread"  # a place besides CUT_PLACES: frames of all parts of the video
MIN_SEEK_SECONDS = Fraction(1)  # a frame so far ahead is sought; one nearer is reached by decoding
MAX_MISSING_FRAMES = 2  # at the end of a video; more than that was cut off


@dataclass(frozen=True)
class Video(Clip):
    """The decoding of the videos of a field, to clips: uint8 tensors [frames, channels, height, width].

        data = tartools.train.TableDataset(
            "films.tar", "mp4 cls", {"mp4": tartools.train.Video(frames=8, size=224, at="random")}
        )
        clip, label = data[0]  # [8, 3, 224, 224]

    *frames*: in the clip; a shorter video repeats its last one, or with "spread" several. *size*: a number of pixels
    makes the shorter side so long, and cuts the longer one to a square in the centre; (height, width), or a `Resize` as
    for pictures; None: as stored.
    *at*: where the clip is, "begin", "middle" or "random", which depends on seed, epoch and sample alone, as random
    transforms do; or "spread", for frames at even distances from all of the video. *fps*: frames a second, which leaves
    out or repeats some; None: each one. Where payloads are read by ranges, little more than the clip is read. MP4, MOV,
    Matroska, WebM, AVI, MPEG and Flash, by PyAV (the extra `video`).

    Raises: ValueError for numbers that are not above 0, another *size* or *at*, and *fps* with `at="spread"`.
    """

    frames: int = 8
    size: int | tuple[int, int] | Resize | None = None
    at: str = "begin"
    fps: float | None = None

    def __post_init__(self) -> None:
        self.check_place((*CUT_PLACES, SPREAD))
        if isinstance(self.frames, bool) or not isinstance(self.frames, int) or self.frames < 1:
            raise ValueError(f"frames is how many a clip has, not {self.frames!r}")
        if self.fps is not None and (not 0 < self.fps < math.inf or self.at == SPREAD):
            raise ValueError(f"fps is a number above 0, and not for at='spread', not {self.fps!r}")
        parse_resize(self.size)

    def decode(self, file: bytes | IO[bytes], seed: int | None = None) -> torch.Tensor:
        """Return the clip of the video in *file*, bytes or an open file that can seek.

        The clip is a uint8 tensor [frames, channels, height, width], with 3 channels, RGB. *seed*: for `at="random"`;
        None draws one.
        Raises: SampleError if it is no video that can be decoded, its part for the clip is damaged or truncated, or its
        header lacks the frame rate or a length that is needed; TarToolsError without PyAV; MemoryError.
        """
        import torch

        try:
            with open_video(*as_file(file), decode=True) as container:
                if not container.streams.video:
                    raise SampleError("it has no pictures")
                stream = container.streams.video[0]
                stream.codec_context.thread_count = 1  # workers are processes
                numbers = self._numbers(container, stream, seed)
                return torch.stack([*map(self._picture, frames_at(container, stream, numbers))])
        except (TarToolsError, MemoryError):
            raise
        except Exception as error:  # PyAV has many
            raise SampleError(f"the video can't be decoded: {error}") from error

    def _numbers(self, container: Any, stream: Any, seed: int | None) -> list[int]:
        """Return the ascending numbers of the frames of the clip; some may come twice, or lie behind the last frame.

        Number n is the frame n / rate seconds after the first one.
        *container*, *stream*: of PyAV. *seed*: for `at="random"`; None draws one. Raises: SampleError if the header
        lacks the length, unless `at` is "begin", or the frame rate, if it has the length or `fps` is set.
        """
        total = frame_count(container, stream)
        step = Fraction(1) if self.fps is None else frame_rate(stream) / Fraction(self.fps).limit_denominator(1000)
        if total is None and self.at != "begin":
            raise SampleError("its header does not say how long it is: only at='begin' takes a clip of it")
        if self.at == SPREAD:
            return [(2 * number + 1) * (total or 0) // (2 * self.frames) for number in range(self.frames)]
        offsets = [math.floor(number * step) for number in range(self.frames)]
        begin = self.offset((total or 0) - offsets[-1] - 1, seed)
        return [begin + offset for offset in offsets]

    def _picture(self, frame: Any) -> torch.Tensor:
        """Return *frame* of PyAV as a uint8 tensor [channels, height, width], RGB, upright, in the size of the clip."""
        import numpy as np
        import torch

        pixels = frame.to_ndarray(format="rgb24")
        # telephones store frames as the sensor lies, and how to turn them
        turned = np.rot90(pixels, round(getattr(frame, "rotation", 0) / 90) % 4)
        picture = torch.from_numpy(np.ascontiguousarray(turned))
        if self.size is not None:
            resize = Resize(self.size, crop=self.size) if isinstance(self.size, int) else parse_resize(self.size)
            assert resize is not None
            picture = resize.apply(picture)
        return picture.permute(2, 0, 1).contiguous()


def frame_rate(stream: Any) -> Fraction:
    """Return the frames a second of PyAV's video *stream*, as a Fraction.

    It is the average rate, else the one that PyAV guesses. Raises: SampleError if its header does not say them, or says
    0 or less.
    """
    rate = stream.average_rate or stream.guessed_rate
    if not rate or rate <= 0:
        raise SampleError("its header does not say how many frames a second it has")
    return Fraction(rate)


def frame_count(container: Any, stream: Any) -> int | None:
    """Return the number of frames of PyAV's *stream*, by its length or its *container*'s, and its frame rate.

    It is at least 1; None if neither length is in the header. Raises: SampleError if a length is there and the frame
    rate is not.
    """
    seconds = stream_length(container, stream) or file_length(container)  # its sound may be longer
    return None if seconds is None else max(round(seconds * frame_rate(stream)), 1)


def frames_at(container: Any, stream: Any, numbers: Sequence[int]) -> Iterator[Any]:
    """Yield the frame of *stream* with each of the ascending *numbers*; beyond the end the last one.

    Number n is the frame that is shown n / rate seconds after the first, by the frame rate of *stream*, a video stream
    of the PyAV *container*. Raises: SampleError if there are no frames; if the last one is over 2 frames
    (MAX_MISSING_FRAMES) before both the number asked for and the end that the stream's length says; or if the frame
    rate is unknown; PyAV's errors for damage.
    """
    rate, tick, start = frame_rate(stream), stream.time_base, stream.start_time or 0
    length = stream_length(container, stream)
    margin = 1 / (2 * rate)  # times are rounded to ticks
    frames, position, min_seek = container.decode(stream), Fraction(0), MIN_SEEK_SECONDS
    current = following = None
    for number in numbers:
        time = number / rate
        if time - position > min_seek:
            container.seek(start + int(time / tick), stream=stream)
            frames, current, following = container.decode(stream), None, None
        has_sought = current is None
        while True:
            frame = next(frames, None) if following is None else following
            if frame is None:
                break
            at = position + 1 / rate if frame.pts is None else (frame.pts - start) * tick
            if at > time + margin:
                following = frame
                break
            current, following, position = frame, None, at
            if has_sought:  # a video with few key frames: decode on rather than from one of them again
                min_seek, has_sought = max(MIN_SEEK_SECONDS, time - at), False
        shown = following if current is None else current
        if shown is None:
            raise SampleError("it has no frame that can be decoded")
        missing = min(time, time if length is None else length) - position - margin
        if following is None and length is not None and missing > MAX_MISSING_FRAMES / rate:
            raise SampleError(f"it is truncated or damaged: no frame after {float(position):.2f} seconds")
        yield shown
