"""Sounds to tensors by soundfile, whole or in part: `decode="torch"`, and `Sound` for a field."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tartools.errors import SampleError, TarToolsError, how_to_install
from tartools.samples.filetypes import MAGIC_BYTES, SOUND, SOUNDS, suffix_of, type_of_file
from tartools.samples.soundfiles import NO_LENGTH, has_known_length, open_by_soundfile, truncation
from tartools.train.clips import Clip, as_file

if TYPE_CHECKING:
    import soundfile
    import torch

TORCH_SOUNDS = SOUNDS - {"m4a"}  # suffixes that decode="torch" decodes; libsndfile does not know the other one
MAX_SOUND_BYTES = 1 << 30  # bytes of a decoded sound, or part; a small FLAC may have hours of silence
SOUND_BLOCK_FRAMES = 1 << 16  # frames that are decoded at a time
_LIBRARY_PREFIX = r"^(Error (opening <.*>|in \w+ file\.|:)[: ]*)+"  # the name of our file object


@dataclass(frozen=True)
class Sound(Clip):
    """The decoding of the sounds of a field, to (waveform, rate): a float32 tensor [channels, frames] and a number.

        data = tartools.train.TableDataset(
            "speech.tar", "flac txt", {"flac": tartools.train.Sound(rate=16000, mono=True, seconds=2.0, at="random")}
        )
        (waveform, rate), text = data[0]  # [1, 32000], 16000

    *rate*: frames a second, to which sounds of other rates are resampled (by soxr: the extra `sound`); None:
    as stored. *mono*: one channel, the mean of all. *seconds*: only so much is decoded, and read where payloads are
    read by ranges; a shorter sound comes whole, or with *pad* with zeros behind it. *at*: "begin", "middle" or
    "random", which depends on seed, epoch and sample alone, as random transforms do. WAV, FLAC, Ogg, Opus and MP3.

    Raises: ValueError for numbers that are not above 0, a *rate* that is not whole, infinite *seconds*, another *at*,
    and *pad* without *seconds*.
    """

    rate: int | None = None
    mono: bool = False
    seconds: float | None = None
    at: str = "begin"
    pad: bool = False

    def __post_init__(self) -> None:
        self.check_place()
        if self.rate is not None and (isinstance(self.rate, bool) or not isinstance(self.rate, int) or self.rate < 1):
            raise ValueError(f"rate is a whole number of frames a second, not {self.rate!r}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds is a number above 0, not {self.seconds!r}")
        if self.pad and self.seconds is None:
            raise ValueError("pad fills a sound up to seconds: give seconds, too")

    @property
    def is_random(self) -> bool:
        """True if the part depends on the seed of the sample: `seconds` is set, and `at` is "random"."""
        return self.seconds is not None and super().is_random

    @property
    def reads_part(self) -> bool:
        """True if `seconds` is set: then no more of the payload is read than that part needs."""
        return self.seconds is not None

    def decode(self, file: bytes | IO[bytes], seed: int | None = None) -> tuple[torch.Tensor, int]:
        """Return (waveform, rate) of the sound in *file*, bytes or an open file that can seek, which stays open.

        The waveform is a float32 tensor [channels, frames], the rate frames a second. *seed*: for `at="random"`; None
        draws.
        Raises: SampleError if it is no sound that can be decoded, is empty, has more than 1 GiB decoded, or soundfile
        is missing; if it is truncated, as far as the decoded part shows it (a WAV always); and if `seconds` is set and
        its header gives no length, unless `at` is "begin"; StorageError if it can't be read; TarToolsError without
        soxr, if it has to be resampled.
        """
        import torch

        frames, rate = self._frames(*as_file(file), seed)
        if self.mono and frames.shape[1] > 1:
            frames = frames.mean(axis=1, keepdims=True)
        if self.rate is not None and rate != self.rate:
            frames, rate = resample(frames, rate, self.rate), self.rate
        if self.seconds is not None:
            count = self._count(rate)
            frames = frames[:count]
            if self.pad and len(frames) < count:
                frames = np.concatenate([frames, np.zeros((count - len(frames), frames.shape[1]), frames.dtype)])
        return torch.from_numpy(np.ascontiguousarray(frames.T)), rate

    def _count(self, rate: int) -> int:
        """Return the number of frames in `seconds` at *rate*, at least 1."""
        return max(round((self.seconds or 0) * rate), 1)

    def _frames(self, file: IO[bytes], size: int, seed: int | None) -> tuple[np.ndarray[Any, Any], int]:
        """Return (frames, rate) of the part to decode of the sound *file*: float32, [frames, channels], as stored.

        *size*: bytes of the file. *seed*: for `at="random"`; None draws. If the sound has to be resampled, the part has
        one frame more than `seconds`. Raises: SampleError if it can't be decoded, or if `seconds` is set and its header
        gives no length, unless `at` is "begin"; StorageError if it can't be read.
        """
        try:
            with open_sound(file, size) as sound:
                begin, count = 0, sound.frames
                if self.seconds is not None:
                    spare = 0 if self.rate in (None, sound.samplerate) else 1  # resampling may round down
                    frames = self._count(sound.samplerate) + spare
                    if self.at != "begin" and not has_known_length(sound):
                        raise SampleError(f"{NO_LENGTH}: only at='begin' takes a part of it")
                    begin, count = self.offset(sound.frames - frames, seed), min(frames, sound.frames)
                return read_frames(sound, begin, count), sound.samplerate
        except (TarToolsError, MemoryError):
            raise
        except Exception as error:  # soundfile and its callbacks have several
            reason = re.sub(_LIBRARY_PREFIX, "", str(error)) or type(error).__name__
            raise SampleError(f"the sound can't be decoded: {reason}") from error


class SoundDecoder:
    """Decodes sounds whole, by the suffix of their field: a decoder of webdataset, for `decode="torch"`.

    Call it with a field and its bytes; it returns (waveform, rate), a float32 tensor [channels, frames] and frames a
    second, or None if the suffix of the field is not a sound's. Raises: SampleError if a sound can't be decoded.
    *suffixes*: of the fields that are sounds; None: those of `TORCH_SOUNDS`.
    *spec* ("torch") and *resize* have no effect: decoders of pictures have the same arguments.
    """

    def __init__(self, spec: str, suffixes: Collection[str] | None = None, resize: Any = None) -> None:
        self._suffixes = TORCH_SOUNDS if suffixes is None else suffixes

    @staticmethod
    def specs() -> dict[str, tuple[str, str, str]]:
        """Return a dict: name of a decoder -> (class, type of values, "") of its sounds.

        It has one name: "torch" -> ("torch", "float", "").
        """
        return {"torch": ("torch", "float", "")}

    def __call__(self, field: str, data: bytes) -> Any:
        """Return the sound *data* as (waveform, rate); None if the suffix of *field* is not a sound's.

        The waveform is a float32 tensor [channels, frames], the rate frames a second. Raises: SampleError if it can't
        be decoded.
        """
        return Sound().decode(data) if suffix_of(field) in self._suffixes else None

    def decode(self, data: bytes) -> Any:
        """Return the sound *data* as (waveform, rate): a float32 tensor [channels, frames], and frames a second.

        Raises: SampleError if it can't be decoded.
        """
        return Sound().decode(data)


@contextmanager
def open_sound(file: IO[bytes], size: int) -> Iterator[soundfile.SoundFile]:
    """Open the sound in *file* of *size* bytes, at its begin, by soundfile, and close it at the end of the block.

    Raises: SampleError unless it begins as WAV, FLAC, Ogg or MP3, since libsndfile reads many formats that are hardly
    tested, and for a truncated WAV; the errors of `open_by_soundfile`.
    """
    head = file.read(MAGIC_BYTES)
    file.seek(0)
    file_type = type_of_file(head)
    if file_type is None or file_type.kind != SOUND or TORCH_SOUNDS.isdisjoint(file_type.suffixes):
        raise SampleError("it does not begin as a WAV, FLAC, Ogg or MP3 sound")
    if head[:1] == b"R" and (reason := truncation(file, size)):
        raise SampleError(reason)
    with open_by_soundfile(file) as sound:
        yield sound


def read_frames(sound: soundfile.SoundFile, begin: int, count: int) -> np.ndarray[Any, Any]:
    """Return *count* frames of the open *sound* from frame *begin* on: float32, [frames, channels].

    They are fewer if the header does not say how many there are, and libsndfile ends before without an error.
    Raises: SampleError if the header says how many, and fewer than *count* can be read, as of a truncated file; if it
    does not say how many, and libsndfile fails before *count*, as at the end; and for more than 1 GiB decoded
    (MAX_SOUND_BYTES); soundfile's errors for other damage.
    """
    import soundfile

    is_count_known = has_known_length(sound)
    frame_bytes = 4 * sound.channels
    too_long = SampleError(
        f"it has more than {MAX_SOUND_BYTES >> 30} GiB decoded: take a part, as by tartools.train.Sound(seconds=10)"
    )
    if is_count_known and count * frame_bytes > MAX_SOUND_BYTES:
        raise too_long
    if begin:
        sound.seek(begin)
    blocks, total = [], 0
    while total < count:
        # a header may claim any length: memory is taken for frames that are there
        try:
            block = sound.read(min(count - total, SOUND_BLOCK_FRAMES), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            if is_count_known:
                raise
            advice = "so that its end can't be read: ffmpeg -i IN OUT writes one that does"
            raise SampleError(f"{NO_LENGTH}, {advice}") from None
        if not len(block):
            break
        blocks.append(block)
        total += len(block)
        if total * frame_bytes > MAX_SOUND_BYTES:
            raise too_long
    if is_count_known and total < count:
        raise SampleError(f"it is truncated or damaged: it has {begin + total:,} frames instead of {sound.frames:,}")
    return np.concatenate(blocks) if blocks else np.zeros((0, sound.channels), np.float32)


def resample(frames: np.ndarray[Any, Any], rate: int, new_rate: int) -> np.ndarray[Any, Any]:
    """Return *frames*, float32 [frames, channels] at *rate* frames a second, resampled to *new_rate*, in the same form.

    Raises: TarToolsError without soxr.
    """
    try:
        import soxr
    except ImportError:
        raise TarToolsError(
            f"resampling from {rate} to {new_rate} frames a second needs soxr, which is not installed: "
            f"{how_to_install('soxr')} (or the extra sound)"
        ) from None
    resampled: np.ndarray[Any, Any] = soxr.resample(frames, rate, new_rate)
    return resampled
