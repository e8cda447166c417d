"""Open videos with PyAV so that a payload can make FFmpeg read nothing but itself, in bounded memory.

FFmpeg knows hundreds of formats, and some are lists of other files or URLs (HLS, DASH, concat, SDP). So the format is
chosen here, by the first bytes, from five that hold what they show; no other one is tried. Whatever a file of these
still names (a reference in MOV) is not opened: no protocol is allowed, and FFmpeg's function that opens files is
replaced by one that refuses. A header of a few kilobytes that lists a billion frames is refused before it is read.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import IO, TYPE_CHECKING, Any

from tartools.errors import TarToolsError, how_to_install
from tartools.samples.filetypes import MAGIC_BYTES, SOUND, VIDEO, type_of_file
from tartools.samples.mp4boxes import check_listed_samples

if TYPE_CHECKING:
    from collections.abc import Mapping

    from av.container import InputContainer
    from av.stream import Stream
    from PIL.Image import Image

    from tartools.tar import Member

# name of a type in `filetypes` -> FFmpeg's demuxer
DEMUXERS = {
    "an MPEG-4 file": "mov",
    "a Matroska video": "matroska",
    "an AVI video": "avi",
    "a Flash video": "flv",
    "an MPEG video": "mpeg",
}
MICROSECONDS = 1_000_000  # of a second: the unit of FFmpeg's lengths of files
DURATION_TAG = re.compile(r"(\d{1,6}):(\d\d):(\d\d(?:\.\d{1,9})?)$")  # of Matroska, for one stream
MAX_FRAME_PIXELS = 89_478_485  # of a frame that FFmpeg's decoders accept; as of pictures
# decoders without which the size of a frame is not known; all others are off while only a header is read
HEADER_DECODERS = "mpeg4,msmpeg4v1,msmpeg4v2,msmpeg4,h261,h263,cavs,flv,vp6,vp6f,vp6a"


def open_video(file: IO[bytes], size: int, *, decode: bool = False) -> InputContainer:
    """Open the video, or the MPEG-4 sound, in *file* of *size* bytes by PyAV; close it after use.

    Without *decode*, its header can be read, and packets, but frames of most codecs can't be decoded.

    *file*: at its begin. Raises: ValueError if its first bytes are not those of a format in `DEMUXERS`, for an MPEG-4
    header that lists more than 5,000,000 samples or is compressed, and if FFmpeg asks for another file that it names;
    PyAV's errors, which are ValueError, OSError and the like, for damage; TarToolsError without PyAV.
    """
    try:
        import av
    except ImportError as error:
        if not isinstance(error, ModuleNotFoundError):
            raise TarToolsError(f"PyAV can't be loaded: {error}") from None
        how = f"{how_to_install('av')} (or the extra video)"
        raise TarToolsError(f"videos and MPEG-4 sounds need PyAV, which is not installed: {how}") from None
    file_type = type_of_file(file.read(MAGIC_BYTES))
    file.seek(0)
    if file_type is None or file_type.kind not in (VIDEO, SOUND) or file_type.what not in DEMUXERS:
        raise ValueError("its first bytes do not match any video format")
    demuxer = DEMUXERS[file_type.what]
    if demuxer == "mov":
        check_listed_samples(file, size)
    options = {"format_whitelist": demuxer, "protocol_whitelist": "", "max_pixels": str(MAX_FRAME_PIXELS)}
    if not decode:
        options["codec_whitelist"] = HEADER_DECODERS
    # tags that are not UTF-8 are no error; PyAV 19 has no parameter for this: it keeps such bytes as surrogates
    tags: Any = {} if int(av.__version__.partition(".")[0]) >= 19 else {"metadata_errors": "replace"}
    video: InputContainer = av.open(file, "r", format=demuxer, options=options, io_open=_refuse_file, **tags)
    return video


def first_frame(member: Member) -> Image | None:
    """Return the first frame of the video *member* as an RGB picture of Pillow; None if it has no frame.

    None, too, for a file with only sound. Raises: TarToolsError without PyAV; StorageError if the payload can't be
    read; ValueError, OSError and other errors of PyAV if it is no video, or damaged.
    """
    with member.open() as file, open_video(file, member.size, decode=True) as opened:
        frame = next(opened.decode(video=0), None) if opened.streams.video else None
        return None if frame is None else frame.to_image()  # type: ignore[no-untyped-call]


def reduced_frame(member: Member, width: int, height: int) -> Image | None:
    """Return the first frame of the video *member*, reduced to fit into *width* by *height* pixels.

    Its proportions stay; a smaller frame keeps its size. None if it has no frame. Raises: TarToolsError without PyAV;
    StorageError if the payload can't be read; ValueError, OSError and other errors of PyAV if it is no video, or
    damaged.
    """
    picture = first_frame(member)
    if picture is not None:
        picture.thumbnail((width, height))
    return picture


def stream_length(video: InputContainer, stream: Stream) -> Fraction | None:
    """Return the seconds of *stream* of *video* by its header, or by the tag that Matroska has for it.

    If neither states them: `file_length`, which may be None, if this is the only stream; else None, as another may be
    longer.
    """
    if stream.duration and stream.time_base is not None:
        return Fraction(stream.duration * stream.time_base)
    if tag := DURATION_TAG.match(stream.metadata.get("DURATION", "")):
        hours, minutes, seconds = tag.groups()
        return int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)
    return file_length(video) if len(video.streams) == 1 else None


def file_length(video: InputContainer) -> Fraction | None:
    """Return the length of *video* in seconds, about as its longest stream; None if its header has none, or 0."""
    return Fraction(video.duration, MICROSECONDS) if video.duration else None


def stream_seconds(video: InputContainer, stream: Stream) -> float | None:
    """Return the seconds of *stream* of *video*, as `stream_length`, or else of the file; None if neither is stated."""
    length = stream_length(video, stream) or file_length(video)
    return None if length is None else float(length)


def _refuse_file(url: str, flags: int, options: Mapping[str, str]) -> IO[bytes]:
    """Raise ValueError: FFmpeg asks for the file *url*, which the payload names."""
    raise ValueError("it names another file, which is not opened")
