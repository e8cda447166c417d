"""Videos: described by length, size, rate of frames and codec, from the header, which FFmpeg reads (PyAV)."""

from __future__ import annotations

from tartools.errors import TarToolsError, printable
from tartools.samples.filetypes import VIDEO, VIDEOS, type_of_file
from tartools.samples.kinds.kind import BROKEN, Description, PayloadKind
from tartools.samples.payloads import MAX_ERROR_CHARS
from tartools.tar import Member

VIDEO_FACTS = (
    ("seconds", "float64"),
    ("width", "int64"),
    ("height", "int64"),
    ("fps", "float64"),
    ("codec", "string"),
    ("broken", "string"),
)
NO_VIDEO_STREAM = "it has no video"  # why a file of a video format that has only sounds has no facts


def begins_as_video(_suffix: str, head: bytes) -> bool:
    """True if a payload that begins with *head* is a video; a suffix alone does not make one.

    Videos are MPEG-4 (unless its brand is a sound's or a picture's), Matroska, AVI, Flash and MPEG.
    """
    file_type = type_of_file(head)
    return file_type is not None and file_type.kind == VIDEO


def describe_video(member: Member, head: bytes, _decode: bool) -> Description:
    """Return the format of the video *member*, and its length, size, rate and codec, as far as its header says.

    "video, MP4, 12.50 s, 640x480, 25 frames/s, h264". *head*: its first bytes, which `begins_as_video` accepts. The
    kind is VIDEO if it has a video stream, "" if it has only sound, `BROKEN` if its header can't be read or lists
    neither. Without PyAV only the format is returned, and the kind is "". Raises: TarToolsError if the payload can't be
    read.
    """
    file_type = type_of_file(head)
    assert file_type is not None
    try:
        import av  # noqa: F401
    except ImportError:
        return Description(file_type.brief)
    seconds, width, height, rate, codec, broken = measure_video(member, False)
    if broken == NO_VIDEO_STREAM:
        return Description(f"{file_type.brief}, without a video stream")
    if broken is not None:
        return Description(f"{file_type.brief}, that cannot be read: {broken}", kind=BROKEN)
    facts = [
        "" if seconds is None else f"{seconds:.2f} s",
        f"{width}x{height}" if width and height else "",
        "" if rate is None else f"{rate:.4g} frames/s",
        str(codec or ""),
    ]
    return Description(", ".join([file_type.brief, *filter(None, facts)]), kind=VIDEO)


def measure_video(member: Member, _decode: bool) -> tuple[object, ...]:
    """Return the values of `VIDEO_FACTS` of the video *member*, by its header: its frames are not decoded.

    They are about its first video stream; a value that the header lacks is None. The last is None, or says why it is
    broken, empty or without a video stream: then all others are None.
    Raises: TarToolsError if the payload can't be read, or without PyAV.
    """
    from tartools.samples.videos import open_video, stream_seconds

    no_facts = (None,) * (len(VIDEO_FACTS) - 1)
    if not member.size:
        return *no_facts, "it is empty"
    try:
        with member.open() as file, open_video(file, member.size) as opened:
            stream = next(iter(opened.streams.video), None)
            if stream is None:
                return (
                    *no_facts,
                    NO_VIDEO_STREAM if opened.streams.audio else "it has neither video nor sound: it may be cut",
                )
            rate = stream.average_rate or stream.guessed_rate
            return (
                stream_seconds(opened, stream),
                stream.width or None,
                stream.height or None,
                None if rate is None else float(rate),
                None if stream.codec_context is None else stream.codec_context.codec.canonical_name,
                None,
            )
    except (TarToolsError, MemoryError):
        raise
    except Exception as error:  # PyAV has many
        why = getattr(error, "strerror", None) or str(error)
        return *no_facts, printable(str(why))[:MAX_ERROR_CHARS]


# No `checks`: tarcheck decodes no video.
VIDEO_KIND = PayloadKind(
    name=VIDEO,
    code="",
    recognize=begins_as_video,
    describe=describe_video,
    checks={},
    is_media=True,
    facts=VIDEO_FACTS,
    measure=measure_video,
    further_suffixes=VIDEOS,
)
