"""Count the samples that the header of an MPEG-4 file lists, before FFmpeg reads it.

A sample here is a frame of video, or a piece of sound. The header is a tree of boxes: 4 bytes of size, 4 of type, and
the content. Its tables are run-length coded, so that a file of 5 kB may list a billion samples:

    ftyp | moov( trak( ... stsz: size of all, count | stsc: samples of a chunk | stco: chunks ) trak( ... ) ) | mdat
         | moof( traf( trun: count ) ) | mdat | moof( ... ) | mdat ...          of a fragmented file

FFmpeg holds 24 bytes or more for each. So whoever opens a payload counts them first. Boxes are found by their type
anywhere outside mdat, not by the tree: FFmpeg accepts them at many places.

Source: ISO/IEC 14496-12, 8.7 and 8.8.8.
"""

from __future__ import annotations

import re
import struct
from typing import IO

MAX_LISTED_SAMPLES = 5_000_000  # a day of video, which takes FFmpeg 200 MB
SCAN_BYTES = 1 << 20  # bytes of boxes that are held at a time
BOX_HEAD_BYTES = 24  # type and first numbers of the boxes below
MIN_PACKET_SAMPLES = 160  # samples of uncompressed sound that FFmpeg makes one packet of, at least
DATA_HANDLERS = {b"url ", b"alis"}  # of MOV, in the second hdlr of a track
COUNTED_BOXES = re.compile(rb"trak|hdlr|stts|stsz|stz2|stsc|stco|co64|trun|cmov")


class _Track:
    """The counts of one track, gathered from its boxes for `count_packets`.

    `samples`: the sum of the counts in stsz and stz2. `chunks`: the sum of the counts in stco and co64. The first
    `_Track` of a file is for boxes before any track; its `samples` also have the counts of every trun.
    `handlers`: types in hdlr, such as b"soun" for sound. `times`: (entries, duration of the first) of each stts.
    `chunk_tables`: byte at which the content of each stsc begins, the table of samples in a chunk.
    """

    def __init__(self) -> None:
        self.samples = self.chunks = 0
        self.handlers: list[bytes] = []
        self.times: list[tuple[int, int]] = []  # of each stts: entries, duration of the first
        self.chunk_tables: list[int] = []  # of each stsc: where its content begins

    def count_packets(self, file: IO[bytes]) -> int:
        """Return how many packets FFmpeg makes of the track in *file*, at most.

        These are its samples. Of uncompressed sound (handler "soun", one time of duration 1) 160 samples or more of a
        chunk are one packet: the result is `chunks` times 1 + the most samples in a chunk // 160. Only for such sound
        *file* is read, in which its tables are; it is left anywhere.
        """
        handlers = set(self.handlers) - DATA_HANDLERS
        if handlers != {b"soun"} or self.times != [(1, 1)]:
            return self.samples
        in_chunk = 0
        for position in self.chunk_tables:
            file.seek(position + 4)
            (entries,) = struct.unpack(">I", file.read(4).rjust(4, b"\0"))
            while entries > 0 and (table := file.read(min(entries, SCAN_BYTES // 12) * 12)):
                table = table[: len(table) // 12 * 12]
                entries = entries - len(table) // 12 if table else 0
                in_chunk = max(in_chunk, *(count for _, count, _ in struct.iter_unpack(">III", table)), 0)
        return self.chunks * (in_chunk // MIN_PACKET_SAMPLES + 1)


def check_listed_samples(file: IO[bytes], size: int) -> None:
    """Raise ValueError if the MPEG-4 *file* of *size* bytes lists over 5,000,000 samples, or has a compressed header.

    Of uncompressed sound, packets are counted in place of samples, as `_Track.count_packets` says. Holds: 1 MiB. Leaves
    *file* at its begin. Bytes of mdat, which has the samples, are not read; boxes behind one whose length is invalid
    are not counted, as FFmpeg does not read them.
    """
    tracks = [_Track()]
    position = 0
    while position + 8 <= size:
        file.seek(position)
        head = file.read(16)
        length, box_type = struct.unpack(">I4s", head[:8])
        if length == 1 and len(head) == 16:
            (length,) = struct.unpack(">Q", head[8:])
        end = position + length if length else size
        if end < position + 8:
            break  # FFmpeg ends here too
        if box_type != b"mdat":
            _scan(file, position, min(end, size), tracks)
        position = end
    listed = sum(track.count_packets(file) for track in tracks)
    if listed > MAX_LISTED_SAMPLES:
        raise ValueError(f"its header lists {listed:,} samples, and up to {MAX_LISTED_SAMPLES:,} are read")
    file.seek(0)


def _scan(file: IO[bytes], begin: int, end: int, tracks: list[_Track]) -> None:
    """Add the boxes of COUNTED_BOXES in bytes *begin* to *end* of *file* to *tracks*, each as `_count` does.

    A box is found by the letters of its type, wherever they are. Raises: ValueError for a compressed header (cmov), of
    which FFmpeg would hold any number of bytes.
    """
    while begin < end:
        file.seek(begin)
        part = file.read(min(SCAN_BYTES, end - begin) + BOX_HEAD_BYTES)
        for match in COUNTED_BOXES.finditer(part, 0, min(len(part), SCAN_BYTES + 3)):
            if match.start() < SCAN_BYTES:
                _count(match[0], part[match.end() : match.start() + BOX_HEAD_BYTES], begin + match.end(), tracks)
        begin += SCAN_BYTES


def _count(box_type: bytes, content: bytes, position: int, tracks: list[_Track]) -> None:
    """Add a box of COUNTED_BOXES to the last of *tracks*, as the attributes of `_Track` say; trak appends a new one.

    trun is added to the first track. *content*: the first 20 bytes behind the type, fewer at the end of the file;
    *position*: the byte of the file at which these begin. Raises: ValueError for cmov, a compressed header.
    """
    _, first, second, third, _ = struct.unpack(">5I", content.ljust(20, b"\0"))
    if box_type == b"cmov":
        raise ValueError("its header is compressed, and such files are not read")
    if box_type == b"trak":
        tracks.append(_Track())
    track = tracks[-1]
    if box_type in (b"stsz", b"stz2"):
        track.samples += second
    elif box_type == b"trun":
        tracks[0].samples += first
    elif box_type in (b"stco", b"co64"):
        track.chunks += first
    elif box_type == b"stsc":
        track.chunk_tables.append(position)
    elif box_type == b"stts":
        track.times.append((first, third))
    elif box_type == b"hdlr":
        track.handlers.append(content[8:12])
