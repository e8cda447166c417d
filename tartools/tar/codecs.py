"""Kinds of compression, as one table. A codec is one entry; its library is imported when a stream needs it."""

from collections.abc import Callable
from typing import Protocol

LONGEST_NAME = 1 << 16  # bytes of a name or comment in a gzip header; a longer one is taken for damage


class Decompressor(Protocol):
    """What the libraries' incremental decompressors have in common: the interface of `bz2.BZ2Decompressor`."""

    @property
    def eof(self) -> bool: ...  # noqa: D102
    @property
    def needs_input(self) -> bool: ...  # noqa: D102
    @property
    def unused_data(self) -> bytes: ...  # noqa: D102
    def decompress(self, data: bytes, max_length: int = -1) -> bytes: ...  # noqa: D102


class Compressor(Protocol):
    """What the libraries' incremental compressors have in common."""

    def compress(self, data: bytes | bytearray | memoryview, /) -> bytes: ...  # noqa: D102
    def flush(self) -> bytes: ...  # noqa: D102


class Codec:
    """One kind of compression.

    If it is *padded*, zeros may follow each compressed stream (gzip on tapes). *begins* tells whether bytes are enough
    to start the decompressor.
    """

    def __init__(
        self,
        name: str,
        magic: tuple[bytes, ...],
        suffixes: tuple[str, ...],
        decompressor: Callable[[], Decompressor],
        compressor: Callable[[], Compressor],
        padded: bool = False,
        begins: Callable[[bytes], bool] = bool,
    ) -> None:
        self.name = name
        self.magic = magic
        self.suffixes = suffixes
        self.decompressor = decompressor
        self.compressor = compressor
        self.padded = padded
        self.begins = begins


def _gzip_reader() -> Decompressor:
    from isal import igzip_lib

    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP)


def _gzip_begins(data: bytes) -> bool:
    """Return whether *data* holds a whole gzip header (RFC 1952, 2.3): isal loses its position in a partial one.

    A header whose name does not end counts as whole; decompressing it then reports the damage.
    """
    if len(data) < 10:
        return False
    flags, at = data[3], 10
    if flags & 4:  # FEXTRA
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):  # FNAME, FCOMMENT: up to a zero
        if flags & flag and at <= len(data):
            end = data.find(0, at)
            at = end + 1 if end >= 0 else at + LONGEST_NAME
    at += flags & 2  # FHCRC, two bytes
    return at <= len(data)


def _gzip_writer() -> Compressor:
    from isal import isal_zlib

    return isal_zlib.compressobj(level=2, wbits=31)  # the header holds no time: same input, same bytes


def _bzip2_reader() -> Decompressor:
    import bz2

    return bz2.BZ2Decompressor()


def _bzip2_writer() -> Compressor:
    import bz2

    return bz2.BZ2Compressor()


def _xz_reader() -> Decompressor:
    import lzma

    return lzma.LZMADecompressor()


def _xz_writer() -> Compressor:
    import lzma

    return lzma.LZMACompressor()


def _zstd_reader() -> Decompressor:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        from backports import zstd
    return zstd.ZstdDecompressor()  # type: ignore[no-any-return,unused-ignore]


def _zstd_writer() -> Compressor:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]  # Python 3.14
    except ImportError:
        from backports import zstd
    # with a checksum, as zstd(1), to detect damage; level 1 is twice as fast as 3, and no larger than gzip -6
    parameter = zstd.CompressionParameter
    return zstd.ZstdCompressor(options={parameter.checksum_flag: 1, parameter.compression_level: 1})  # type: ignore[no-any-return,unused-ignore]


def _lz4_reader() -> Decompressor:
    from lz4 import frame

    return frame.LZ4FrameDecompressor()  # type: ignore[no-any-return,unused-ignore]


class _Lz4Writer:
    """lz4's compressor, which needs a call to begin a frame."""

    def __init__(self) -> None:
        from lz4 import frame

        self._lz4 = frame.LZ4FrameCompressor(content_checksum=True)
        self._begun = False

    def compress(self, data: bytes | bytearray | memoryview, /) -> bytes:
        begin = b"" if self._begun else self._lz4.begin()
        self._begun = True
        return begin + bytes(self._lz4.compress(data))

    def flush(self) -> bytes:
        return self.compress(b"") + bytes(self._lz4.flush())


# RFC 1952; bzip2's stream header followed by that of a block or of the end; xz file format 2.1.1; RFC 8878, 3.1 (zstd,
# with skippable frames); lz4 frame format.
_SKIPPABLE = tuple(bytes([0x50 + i]) + b"\x2a\x4d\x18" for i in range(16))
_BZIP2 = tuple(b"BZh%d" % level + block for level in range(1, 10) for block in (b"1AY&SY", b"\x17rE8P\x90"))
CODECS = (
    Codec("gzip", (b"\x1f\x8b\x08",), (".tgz", ".tar.gz"), _gzip_reader, _gzip_writer, True, _gzip_begins),
    Codec("bzip2", _BZIP2, (".tar.bz2",), _bzip2_reader, _bzip2_writer),
    Codec("xz", (b"\xfd7zXZ\0",), (".tar.xz",), _xz_reader, _xz_writer, True),
    Codec("zstd", (b"\x28\xb5\x2f\xfd", *_SKIPPABLE), (".tar.zst",), _zstd_reader, _zstd_writer),
    Codec("lz4", (b"\x04\x22\x4d\x18",), (".tar.lz4",), _lz4_reader, _Lz4Writer),
)
SUFFIXES = (*(suffix for codec in CODECS for suffix in codec.suffixes), ".tar")
MAGIC = 10  # bytes of the longest magic number


def is_shortage(error: Exception) -> bool:
    """Tell whether *error*, which a decompressor raised, says that there is too little memory."""
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(
        word in text for word in ("allocat", "not enough memory", "unable to create")
    )


def zstd_window(head: bytes) -> int:
    """Return the bytes of the window that the zstd frame that begins with *head* needs (RFC 8878, 3.1.1.1).

    0 if *head* does not tell.

    >>> zstd_window(bytes.fromhex("28b52ffd0090")) >> 20
    256
    """
    if len(head) < 6 or head[4] & 0x20:  # of a single segment: all of the frame is the window
        return 0
    base = 1 << (10 + (head[5] >> 3))
    return base + (base >> 3) * (head[5] & 7)


def codec_of(head: bytes) -> Codec | None:
    """Return the codec whose magic number *head* begins with; None if it has none."""
    for codec in CODECS:
        if head.startswith(codec.magic):
            return codec
    return None
