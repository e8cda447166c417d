"""Measure an MP3 file by the headers of its frames; nothing is decoded.

libsndfile could, but its decoder of MP3 (mpg123) writes warnings about damaged files to stderr. A file is

    ID3v2 tag | frame | frame | ... | tags

A frame has a header of 4 bytes, which says its size, and 1152 or 576 samples. The first one may be silent and have a
Xing, Info or VBRI header with the number of frames, and LAME's numbers of samples to be cut at both ends; without it
all headers are read.

Source: ISO/IEC 11172-3, 2.4.1.3 and 2.4.2.3; ID3v2.4.0, 3.1; LAME's mp3 info tag, revision 1.
"""

from __future__ import annotations

from typing import IO, NamedTuple

MAX_SYNC_BYTES = 1 << 16  # bytes before the first frame that are searched for it
FIRST_FRAME_BYTES = 200  # of the first frame: its headers
BITRATES = {  # kbit/s of layer III by (MPEG-1 or not), from index 1 on
    True: (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    False: (8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
SAMPLE_RATES = (44100, 48000, 32000)
RATE_DIVISORS = {3: 1, 2: 2, 0: 4}  # version field -> MPEG-1, 2, 2.5; 1 is reserved


class Mp3Frame(NamedTuple):
    """The header of a frame: `size` in bytes, header included, `samples` of one channel, `rate` in Hz, `channels`.

    `side_bytes`: bytes of the frame before a Xing header.
    """

    size: int
    samples: int
    rate: int
    channels: int
    side_bytes: int


class Mp3Facts(NamedTuple):
    """The number of `samples` of an MP3 file (of one channel), `rate` in Hz, and `channels`."""

    samples: int
    rate: int
    channels: int


def parse_mp3_frame(head: bytes) -> Mp3Frame | None:
    """Return the header at the begin of *head*, the first bytes of a frame; None if it is no valid one of layer III.

    None, too, for fewer than 4 bytes, and for a frame of free format, whose header states no size.
    """
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE6 != 0xE2:
        return None
    version, bitrate, rate = head[1] >> 3 & 3, head[2] >> 4, head[2] >> 2 & 3
    if version not in RATE_DIVISORS or bitrate in (0, 15) or rate == 3:
        return None
    is_first, channels = version == 3, 1 if head[3] >> 6 == 3 else 2
    samples, hertz = 1152 if is_first else 576, SAMPLE_RATES[rate] // RATE_DIVISORS[version]
    size = samples // 8 * BITRATES[is_first][bitrate - 1] * 1000 // hertz + (head[2] >> 1 & 1)
    side_bytes = (17, 32) if is_first else (9, 17)
    return Mp3Frame(size, samples, hertz, channels, 4 + side_bytes[channels - 1])


def measure_mp3(file: IO[bytes]) -> Mp3Facts:
    """Return length, rate and channels of the MP3 *file*, which is at its begin. Raises: ValueError if it has no frame.

    If its first frame says how many there are, that counts, less the samples to be cut at both ends, so that a
    truncated file has its former length. Else frames of one rate are counted up to the first bytes that are none,
    such as a tag or damage; a truncated last frame counts in full. Leaves *file* anywhere.
    """
    position = _first_frame(file)
    file.seek(position)
    head = file.read(FIRST_FRAME_BYTES)
    first = parse_mp3_frame(head)
    assert first is not None
    listed = _listed_samples(head, first)
    if listed is not None:
        return Mp3Facts(listed, first.rate, first.channels)
    samples, frame = 0, first
    while frame is not None and frame.rate == first.rate:
        samples += frame.samples
        position += frame.size
        file.seek(position)
        frame = parse_mp3_frame(file.read(4))  # type: ignore[assignment]
    return Mp3Facts(samples, first.rate, first.channels)


def skip_id3_tags(file: IO[bytes]) -> int:
    """Return the offset behind the ID3v2 tags at the begin of *file*, 0 without, and leave *file* there.

    *file*: at its begin. If a tag is truncated, the offset may lie behind the end of *file*.
    """
    begin = 0
    while (head := file.read(10))[:3] == b"ID3" and len(head) == 10:
        size = head[6] << 21 | head[7] << 14 | head[8] << 7 | head[9]  # 7 bits in each byte
        begin += 10 + size + (10 if head[5] & 0x10 else 0)
        file.seek(begin)
    file.seek(begin)
    return begin


def _first_frame(file: IO[bytes]) -> int:
    """Return the byte at which the first frame of *file* begins: one that another frame, a tag or the end follows.

    The other frame has the same rate; tags are ID3v1 and APE. *file*: at its begin. Leaves *file* anywhere. Raises:
    ValueError if none begins in the 64 KiB after the ID3v2 tags.
    """
    begin = skip_id3_tags(file)
    data = file.read(MAX_SYNC_BYTES)
    at = data.find(b"\xff")
    while at >= 0:
        frame = parse_mp3_frame(data[at : at + 4])
        if frame is not None:
            file.seek(begin + at + frame.size - 1)
            tail = file.read(5)  # the frame's last byte, and what follows
            next_frame = parse_mp3_frame(tail[1:])
            if (next_frame is not None and next_frame.rate == frame.rate) or (
                tail and tail[1:4] in (b"", b"TAG", b"APE")
            ):
                return begin + at
        at = data.find(b"\xff", at + 1)
    raise ValueError("no frame of MP3 begins in its first 64 KiB")


def _listed_samples(head: bytes, frame: Mp3Frame) -> int | None:
    """Return the number of samples in the file that its first *frame* states; None if it states none.

    Samples that a tag of LAME or FFmpeg behind a Xing or Info header says to cut at both ends are not counted.
    *head*: the first bytes of that frame, 200 if there are so many.
    """
    if head[36:40] == b"VBRI":
        return int.from_bytes(head[50:54], "big") * frame.samples
    tag = head[frame.side_bytes :]
    if tag[:4] not in (b"Xing", b"Info") or len(tag) < 12 or not tag[7] & 1:
        return None
    samples = int.from_bytes(tag[8:12], "big") * frame.samples
    flags = tag[7]
    lame = 12 + 4 * (flags >> 1 & 1) + 100 * (flags >> 2 & 1) + 4 * (flags >> 3 & 1)
    if tag[lame : lame + 4] in (b"LAME", b"Lavf", b"Lavc"):
        ends = int.from_bytes(tag[lame + 21 : lame + 24], "big")
        samples -= (ends >> 12) + (ends & 0xFFF)
    return max(samples, 0)
