"""Compression: by magic number in, by suffix out; damage and cuts are failures with the place in the file."""

from __future__ import annotations

import io
import os
import random
import zlib
from pathlib import Path

import pytest

from tartools.errors import TarFormatError, TruncatedError, UsageError
from tartools.shards.writing import codec_for
from tartools.tar import compression
from tartools.tar.compression import (
    CODECS,
    Codec,
    CompressedSink,
    StoredBytes,
    codec_of,
    decompress_stream,
    head_of,
    split_suffix,
)
from tests.archives import Trickle
from tests.conftest import make_samples, make_tar

TAR = make_tar(make_samples(12))
PEERS = {"gzip": "gzip", "bzip2": "bz2", "xz": "lzma", "zstd": "backports.zstd", "lz4": "lz4.frame"}
each_codec = pytest.mark.parametrize("codec", CODECS, ids=[codec.name for codec in CODECS])


def compress(codec: Codec, content: bytes) -> bytes:
    file = io.BytesIO()
    sink = CompressedSink(file, codec.compressor())
    for start in range(0, len(content), 5000):
        sink.write(memoryview(content)[start : start + 5000])
    sink.finish()
    return file.getvalue()


def read(content: bytes, step: int = 1 << 30, room: int = 4096) -> bytes:
    """Return *content* decompressed, read *step* bytes at a time into *room* bytes."""
    stream = decompress_stream(StoredBytes(Trickle(content, step)), "a.tgz")
    view = memoryview(bytearray(room))
    parts = []
    while count := stream.readinto(view):
        parts.append(bytes(view[:count]))
    return b"".join(parts)


@each_codec
@pytest.mark.parametrize(("step", "room"), [(1 << 30, 1 << 18), (1, 4096), (7, 100), (1000, 1)])
def test_what_is_written_is_read(codec: Codec, step: int, room: int) -> None:
    content = TAR if room > 1 else TAR[:3000]
    assert read(compress(codec, content), step, room) == content


@each_codec
def test_what_others_write_is_read(codec: Codec) -> None:
    assert read(pytest.importorskip(PEERS[codec.name]).compress(TAR)) == TAR


@each_codec
@pytest.mark.parametrize("content", [b"", b"x", bytes(3 << 20)], ids=["nothing", "a byte", "3 MiB of zeros"])
def test_lengths(codec: Codec, content: bytes) -> None:
    assert read(compress(codec, content)) == content


@each_codec
def test_equal_input_is_equal_output(codec: Codec) -> None:
    assert compress(codec, TAR) == compress(codec, TAR)


@each_codec
@pytest.mark.parametrize("step", [1 << 30, 1, 100])
def test_streams_behind_one_another_are_one(codec: Codec, step: int) -> None:
    assert read(compress(codec, TAR[:700]) + compress(codec, b"") + compress(codec, TAR[700:]), step) == TAR


@each_codec
def test_a_cut_at_any_byte_is_a_failure(codec: Codec) -> None:
    whole = compress(codec, os.urandom(300) + bytes(1000))
    for cut in range(len(codec.magic[0]), len(whole)):
        with pytest.raises((TruncatedError, TarFormatError)) as raised:
            read(whole[:cut])
        assert raised.value.url == "a.tgz"
        assert raised.value.offset is not None
        assert raised.value.offset <= cut


@each_codec
@pytest.mark.parametrize("step", [1 << 30, 100])
def test_damage_in_the_middle_and_in_checksums_is_a_failure(codec: Codec, step: int) -> None:
    content = os.urandom(2000)
    whole = compress(codec, content)
    for at in (len(whole) // 2, len(whole) - 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        with pytest.raises(TarFormatError) as raised:
            read(bytes(damaged), step)
        assert raised.value.url == "a.tgz"
        assert raised.value.offset is not None
        assert raised.value.offset <= len(whole)


@each_codec
@pytest.mark.parametrize("tail", [b"x", b"garbage" * 100, b"\0\0x"])
@pytest.mark.parametrize("step", [1 << 30, 3])
def test_garbage_behind_compressed_data_is_a_failure(codec: Codec, tail: bytes, step: int) -> None:
    whole = compress(codec, TAR)
    with pytest.raises(TarFormatError, match=f"not {codec.name} data") as raised:
        read(whole + tail, step)
    assert raised.value.offset is not None
    assert len(whole) <= raised.value.offset < len(whole + tail)


@each_codec
@pytest.mark.parametrize("step", [1 << 30, 10])
def test_zeros_behind_compressed_data_where_the_format_has_them(codec: Codec, step: int) -> None:
    padded = compress(codec, TAR) + bytes(20_000)
    if codec.padded:
        assert read(padded, step) == TAR
        assert read(padded + padded, step) == TAR + TAR
    else:
        with pytest.raises(TarFormatError):
            read(padded, step)


@pytest.mark.parametrize("flags", range(32))
def test_every_header_of_gzip(flags: int) -> None:
    """RFC 1952, 2.3: text, checksum, extra, name and comment. The library loses its place in one in parts."""
    header = bytearray(b"\x1f\x8b\x08" + bytes([flags]) + bytes(6))
    if flags & 4:
        header += b"\x0c\0" + b"RA\x08\0" + bytes(8)
    if flags & 8:
        header += b"a name.tar\0"
    if flags & 16:
        header += b"what it is\0"
    if flags & 2:
        header += (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little")
    compressed = bytes(header) + compress(CODECS[0], TAR)[10:]
    for step in (1, 7, 10, 11, 13, 25, 30, 40, 1 << 20):
        assert read(compressed, step) == TAR
        assert read(compressed + compressed, step) == TAR + TAR
    for end in range(1, len(header)):
        with pytest.raises(TruncatedError if end > 3 else TarFormatError):
            read(compressed + compressed[:end], 1 << 20)


def test_a_header_of_gzip_without_end() -> None:
    compressed = b"\x1f\x8b\x08\x08" + bytes(6) + b"n" * (4 << 20)
    with pytest.raises(TarFormatError):
        read(compressed, 1 << 16)


def test_frames_to_skip() -> None:
    zstd = next(codec for codec in CODECS if codec.name == "zstd")
    skipped = b"\x5f\x2a\x4d\x18" + (300).to_bytes(4, "little") + bytes(300)
    data = compress(zstd, TAR)
    assert read(skipped + data[:0] + data + skipped) == TAR


@each_codec
def test_what_comes_before_a_failure_does_not_depend_on_the_room(codec: Codec) -> None:
    whole = bytearray(compress(codec, random.Random(1).randbytes(400_000) + bytes(400_000)))
    whole[200_000] ^= 0x55
    found = set()
    for room in (1000, 1 << 17, 1 << 20):
        stream, got = decompress_stream(StoredBytes(Trickle(bytes(whole))), "a.tgz"), b""
        view = memoryview(bytearray(room))
        with pytest.raises(TarFormatError) as raised:
            while count := stream.readinto(view):
                got += bytes(view[:count])
        found.add((got, str(raised.value)))
    assert len(found) == 1


@each_codec
def test_what_is_compressed_is_known_by_the_head_of_the_file(codec: Codec, tmp_path: Path) -> None:
    for content in (TAR, compress(codec, TAR)):
        (tmp_path / "a").write_bytes(content + content)
        for start in (0, len(content)):
            with io.FileIO(tmp_path / "a") as file:
                assert (codec_of(head_of(file, start)) is not None) == (content != TAR)
                assert file.tell() == 0
    assert not any(map(codec_of, (b"", b"BZh9", b"\x1f", b"\xfd7zXZ")))


def test_a_plain_stream_stays_as_it_is() -> None:
    for step in (1, 4, 1 << 30):
        assert read(TAR, step) == TAR
    for short in (b"", b"\x1f", b"BZh9"):
        assert read(short) == short


def test_a_name_that_begins_like_bzip2_is_a_name() -> None:
    plain = make_tar([("BZh9.jpg", b"x")])
    assert codec_of(plain[: compression.MAX_COMPRESSION_MAGIC_BYTES]) is None


@pytest.mark.parametrize(
    ("url", "stem", "suffix"),
    [("d.x/a.tar.gz", "d.x/a", ".tar.gz"), ("a.b.TGZ", "a.b", ".TGZ"), ("a.tar", "a", ".tar"), ("a.zip", "a.zip", "")],
)
def test_splitting_suffixes(url: str, stem: str, suffix: str) -> None:
    assert split_suffix(url) == (stem, suffix)


@pytest.mark.parametrize(
    ("url", "gzip", "name"),
    [
        ("a.tar", False, None),
        ("a", False, None),
        ("-", True, "gzip"),
        ("a", True, "gzip"),
        ("a.tgz", False, "gzip"),
        ("a.tgz", True, "gzip"),
        ("A.TAR.GZ", False, "gzip"),
        ("a.tar.bz2", False, "bzip2"),
        ("a.tar.xz", False, "xz"),
        ("a.tar.zst", False, "zstd"),
        ("a.tar.lz4", False, "lz4"),
        ("a.gz", True, "gzip"),
        ("s3://b/a.tar.zst", False, "zstd"),
        ("https://h/a.tgz?signature=a.tar", False, "gzip"),
        ("ais://b/a.tar.lz4?provider=aws", False, "lz4"),
        ("pipe:gzip > a.tgz", False, None),
        ("pipe:cat > a.tar", True, "gzip"),
    ],
)
def test_the_suffix_of_an_output_decides(url: str, gzip: bool, name: str | None) -> None:
    codec = codec_for(url, gzip)
    assert (codec.name if codec else None) == name


@pytest.mark.parametrize("url", ["a.gz", "d/a.ZST", "https://h/a.lz4?x=a.tar"])
def test_a_tar_without_its_suffix_would_not_be_compressed(url: str) -> None:
    with pytest.raises(UsageError, match=r"a tar is compressed if its name ends in \.tar\."):
        codec_for(url, False)


@pytest.mark.parametrize("url", ["a.tar", "a.tar.zst", "a.tar.xz"])
def test_gzip_under_another_suffix_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="-z"):
        codec_for(url, True)
