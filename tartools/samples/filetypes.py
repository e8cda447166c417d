"""Types of payloads, by the suffix of the field and by the first bytes: one table for all commands."""

import re
from typing import NamedTuple

from tartools.tar.compression import CODECS

MAGIC_BYTES = 16  # bytes of a payload that `type_of_file` looks at

# facts of payloads that expressions have functions for, and their types: `seconds('flac')`
FACT_FUNCTIONS: dict[str, type[int] | type[float]] = {
    "width": int,
    "height": int,
    "seconds": float,
    "rate": int,
    "fps": float,
}

PICTURE, SOUND, VIDEO, ARRAY, OTHER = "picture", "sound", "video", "array", "other"

# as webdataset and Hugging Face's datasets decode them
NUMBER_SUFFIXES = frozenset(("cls", "cls2", "id", "index", "inx"))
TEXTS = NUMBER_SUFFIXES | {
    "caption",
    "csv",
    "html",
    "json",
    "jsonl",
    "label",
    "md",
    "text",
    "tsv",
    "txt",
    "xml",
    "yaml",
}
PICKLES = frozenset(("pickle", "pkl", "pyd"))


def suffix_of(field: str) -> str:
    """Return the last part of *field*, in lower case; all of it if it has no dot.

    >>> suffix_of("seg.PNG"), suffix_of("cls")
    ('png', 'cls')
    """
    return field.rpartition(".")[2].lower()


class FileType(NamedTuple):
    """A type of files, as its first bytes or the suffix of its field show it.

    `what`: its name with an article. `kind`: PICTURE (one that Pillow decodes itself), SOUND, VIDEO, ARRAY or OTHER.
    `suffixes`: of fields with such payloads. `briefly`: its name in tarshow, if that is not `what`.
    `magics`: first bytes, one of which each such file has; empty for RIFF and MPEG-4, which have theirs further on.
    """

    what: str
    kind: str
    suffixes: tuple[str, ...] = ()
    magics: tuple[bytes, ...] = ()
    briefly: str = ""

    @property
    def brief(self) -> str:
        """The name of the type in tarshow, without an article."""
        return self.briefly or re.sub("^an? ", "", self.what)


# frames of layer III; ISO/IEC 11172-3, 2.4.1.3
_MP3 = tuple(b"\xff" + bytes([second]) for second in (0xE2, 0xE3, 0xF2, 0xF3, 0xFA, 0xFB))
_PICKLE = tuple(b"\x80" + bytes([version]) for version in range(2, 6))

TYPES = (
    FileType("a JPEG picture", PICTURE, ("jpg", "jpeg", "jpe"), (b"\xff\xd8\xff",)),
    FileType("a PNG picture", PICTURE, ("png",), (b"\x89PNG\r\n\x1a\n",)),
    FileType("a GIF picture", PICTURE, ("gif",), (b"GIF87a", b"GIF89a")),
    FileType("a BMP picture", PICTURE, ("bmp",), (b"BM",)),
    FileType("a TIFF picture", PICTURE, ("tif", "tiff"), (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    FileType("a PNM picture", PICTURE, ("pbm", "pgm", "pnm", "ppm"), tuple(b"P%d" % n for n in range(1, 8))),
    FileType("a JPEG 2000 picture", PICTURE, ("jp2",), (b"\0\0\0\x0cjP", b"\xff\x4f\xff\x51")),
    FileType("a numpy array", ARRAY, ("npy",), (b"\x93NUMPY",)),
    FileType("a zip archive", OTHER, ("zip",), (b"PK\x03\x04", b"PK\x05\x06")),
    FileType("a zip archive", ARRAY, ("npz",), (b"PK\x03\x04", b"PK\x05\x06")),
    FileType("an MP3 sound", SOUND, ("mp3",), (b"ID3", *_MP3), "sound, MP3"),
    FileType("a FLAC sound", SOUND, ("flac",), (b"fLaC", b"ID3")),
    FileType("an Ogg sound", SOUND, ("oga", "ogg", "opus"), (b"OggS",)),
    FileType("a Matroska video", VIDEO, ("mkv", "webm"), (b"\x1aE\xdf\xa3",), "video, Matroska or WebM"),
    FileType("a Flash video", VIDEO, (), (b"FLV\x01",), "video, Flash"),
    FileType("an MPEG video", VIDEO, (), (b"\0\0\1\xba",), "video, MPEG"),
    *(FileType(f"{row.name} data", OTHER, (suffix_of(row.suffixes[-1]),), row.magic) for row in CODECS),
    FileType("a PDF", OTHER, (), (b"%PDF-",)),
    FileType("an HDF5 file", OTHER, (), (b"\x89HDF\r\n\x1a\n",), "HDF5"),
    FileType("a file of tensors", OTHER, (), (b"~TenBin~",), "tensors"),
    FileType("a Parquet file", OTHER, (), (b"PAR1",), "Parquet"),
    FileType("an SQLite database", OTHER, (), (b"SQLite format 3\0",), "SQLite database"),
    FileType("a pickle", OTHER, (), _PICKLE, "pickle, not opened"),
)
_MPEG4 = "an MPEG-4 file"
RIFFS = {  # kind of RIFF file, at byte 8
    b"WEBP": FileType("a WebP picture", PICTURE, ("webp",)),
    b"WAVE": FileType("a WAV sound", SOUND, ("wav",)),
    b"AVI ": FileType("an AVI video", VIDEO, ("avi",), (), "video, AVI"),
}
BRANDS = {  # brand of an MPEG-4 file, at byte 8 (ISO/IEC 14496-12, 4.3); "" is any other
    b"avif": FileType(_MPEG4, PICTURE, ("avif",), (), "AVIF picture"),
    b"heic": FileType(_MPEG4, OTHER, ("heic",), (), "HEIC picture"),
    b"M4A ": FileType(_MPEG4, SOUND, ("m4a",), (), "sound, MPEG-4"),
    b"qt  ": FileType(_MPEG4, VIDEO, ("mov",), (), "video, QuickTime"),
    b"": FileType(_MPEG4, VIDEO, ("m4v", "mp4"), (), "video, MP4"),
}
BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"wide", b"skip", b"styp")  # of MPEG-4, at byte 4, behind the size
LARGE_BOXES = (b"moov", b"mdat")  # may have 16 MiB or more; of another box the first byte is 0, which text never has

# first suffix of a type of files -> Content-Type for a browser (RFC 6838): never markup, nor pictures with scripts
CONTENT_TYPES = {
    "jpg": "image/jpeg",
    "png": "image/png",
    "gif": "image/gif",
    "bmp": "image/bmp",
    "webp": "image/webp",
    "avif": "image/avif",
    "mp3": "audio/mpeg",
    "flac": "audio/flac",
    "oga": "audio/ogg",
    "wav": "audio/wav",
    "m4a": "audio/mp4",
    "mkv": "video/webm",
    "avi": "video/x-msvideo",
    "mov": "video/quicktime",
    "m4v": "video/mp4",
}
BY_SUFFIX = {suffix: row for row in (*TYPES, *RIFFS.values(), *BRANDS.values()) for suffix in row.suffixes}
PICTURES, SOUNDS, VIDEOS, ARRAYS = (
    frozenset(suffix for suffix, row in BY_SUFFIX.items() if row.kind == kind)
    for kind in (PICTURE, SOUND, VIDEO, ARRAY)
)
# text, perhaps
_SHORT_TEXT_MAGICS = tuple(magic for row in TYPES for magic in row.magics if len(magic) < 3 and magic.isalnum())


def is_picture_field(field: str) -> bool:
    """True if *field* holds pictures, by its suffix, not compressed: "seg.PNG"."""
    return suffix_of(field) in PICTURES


def type_of_file(head: bytes) -> FileType | None:
    """Return the type of a file that begins with *head*, its first 16 bytes or more; None if it is not known.

    MPEG-4 by one of BOXES at byte 4, below 16 MiB unless it is one of LARGE_BOXES: MP4 if BRANDS does not have its
    brand; RIFF by its kind at byte 8: None for a kind that RIFFS does not have. Otherwise the first in TYPES that has
    these first bytes: "a zip archive" for zip and npz, MP3 for sounds with ID3.

    >>> type_of_file(b"GIF89a...").what, type_of_file(b"RIFF....WAVEfmt ").suffixes, type_of_file(b"hello")
    ('a GIF picture', ('wav',), None)
    """
    if head[4:8] in BOXES and (head[:1] == b"\0" or head[4:8] in LARGE_BOXES):
        return BRANDS.get(head[8:12] if head[4:8] == b"ftyp" else b"", BRANDS[b""])
    if head[:4] in (b"RIFF", b"RF64"):
        return RIFFS.get(head[8:12])
    return next((row for row in TYPES if head.startswith(row.magics)), None)


def is_picture(suffix: str, head: bytes) -> bool:
    """True if a payload with the first bytes *head*, in a field with this *suffix*, is or should be a picture.

    *suffix*: in lower case. BMP and PNM are recognized by the suffix only: text may begin with the same two letters.
    """
    file_type = type_of_file(head)
    return suffix in PICTURES or (
        file_type is not None and file_type.kind == PICTURE and not head.startswith(_SHORT_TEXT_MAGICS)
    )
