"""Videos: columns of length, size, rate of frames and codec, from the header, which FFmpeg reads (PyAV)."""

from __future__ import annotations

from tartools.errors import TarToolsError, printable
from tartools.samples.filetypes import VIDEO, VIDEOS
from tartools.samples.kinds.kind import PayloadKind
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


def measure_video(member: Member, _decode: bool) -> tuple[object, ...]:
    """Return the values of `VIDEO_FACTS` of the video *member*, by its header: its frames are not decoded.

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
                return *no_facts, "it has no video"
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


# No `recognize` and no `checks`: tarshow names the type of a video by its first bytes, and tarcheck decodes none.
VIDEO_KIND = PayloadKind(
    name=VIDEO,
    code="",
    recognize=None,
    describe=None,
    checks={},
    facts=VIDEO_FACTS,
    measure=measure_video,
    further_suffixes=VIDEOS,
)
