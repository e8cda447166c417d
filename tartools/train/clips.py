"""Parts of sounds and videos: the common base of `Sound` and `Video`, which `decode=` gives by field.

They are no functions of bytes. A field with one is read as a file, by ranges where the payload is a range of a shard,
so that only the part is read; and it needs the seed of its sample if the part is drawn at random.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import IO, Any

from tartools.errors import SampleError
from tartools.samples.encoding import split_codec
from tartools.samples.payloads import unpack

CUT_PLACES = ("begin", "middle", "random")


class Clip:
    """The base of `Sound` and `Video`: says which part of a payload is decoded, and how. Subclasses have `decode`.

    `at`: where the part is: "begin", "middle" or "random" (`CUT_PLACES`), or "spread" for a `Video`
    """

    at: str

    def decode(self, file: bytes | IO[bytes], seed: int | None = None) -> Any:
        """Return the part of *file*, a payload or a file that can seek, decoded to the type that the subclass returns.

        *seed*: for a part at random; None draws one. Raises: SampleError if it can't be decoded.
        """
        raise NotImplementedError

    @property
    def is_random(self) -> bool:
        """True if the part depends on the seed of the sample."""
        return self.at == "random"

    @property
    def reads_part(self) -> bool:
        """True if less than all of the payload is read, so that `decode` is given a file where there is one.

        True here; a subclass may say otherwise.
        """
        return True

    def offset(self, spare: int, seed: int | None) -> int:
        """Return where the part begins, in units (samples of a sound, frames) from the begin of the whole.

        *spare*: how many units the whole has more than the part; if it is not above 0, the result is 0. Else `at` gives
        0 for "begin", half of *spare*, rounded down, for "middle", and for "random" a number from 0 to *spare*, drawn
        by *seed* (None: at random); it must not be "spread". The same *seed* gives the same fraction of *spare*: a
        sound and a video of one sample are cut at one time.
        """
        if self.at == "begin" or spare <= 0:
            return 0
        return spare // 2 if self.at == "middle" else int(Random(seed).random() * (spare + 1))

    def check_place(self, places: Sequence[str] = CUT_PLACES) -> None:
        """Raise ValueError unless `at` is one of *places*."""
        if self.at not in places:
            raise ValueError(f"at is {', '.join(map(repr, places[:-1]))} or {places[-1]!r}, not {self.at!r}")


def split_clips(decode: Any) -> tuple[dict[str, Clip], Any]:
    """Return ({field: its `Clip`}, the decoders that remain) of *decode*, an argument `decode=`.

    Fields of the clips become lower case; the decoders that remain are a dict without them, perhaps an empty one. If
    *decode* is no dict, there are no clips, and it is returned as it is. Raises: TypeError for a `Clip` that is not in
    a dict by field.
    """
    if isinstance(decode, Mapping):
        clips = {field.lower(): how for field, how in decode.items() if isinstance(how, Clip)}
        return clips, {field: how for field, how in decode.items() if not isinstance(how, Clip)}
    decoders = decode if isinstance(decode, (list, tuple)) else [decode]
    for clip in decoders:
        if isinstance(clip, Clip):
            kind = type(clip).__name__
            suffix = "mp4" if kind == "Video" else "flac"
            raise TypeError(f"{kind} is for a field: decode={{{suffix!r}: {kind}(...)}}")
    return {}, decode


def fields_by_range(clips: Mapping[str, Clip]) -> Iterable[str]:
    """Yield the fields of *clips* whose payloads are read in parts, from a file; compressed ones (mp4.gz) are not."""
    return (field for field, clip in clips.items() if clip.reads_part and split_codec(field)[1] is None)


def decode_clip(clip: Clip, field: str, payload: bytes | IO[bytes], seed: int | None) -> Any:
    """Return *payload* of *field*, bytes or a file, decoded by *clip* with *seed*; compressed bytes are unpacked first.

    *field* tells if they are: flac.gz. Raises: SampleError, ValueError or another exception if it can't be decoded.
    """
    if isinstance(payload, bytes) and split_codec(field)[1] is not None:
        payload = unpack(field, payload)
    return clip.decode(payload, seed)


def as_file(payload: bytes | IO[bytes]) -> tuple[IO[bytes], int]:
    """Return (a file at its begin, its size in bytes) for *payload*, bytes or a file that can seek.

    Raises: SampleError if it is empty.
    """
    file = io.BytesIO(payload) if isinstance(payload, bytes) else payload
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    if not size:
        raise SampleError("it is empty")
    return file, size
