"""Pictures, sounds and compressed fields that other programs made: each is decoded, or called broken, for a reason."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image, ImageFile, PngImagePlugin

from tartools.errors import SampleError
from tartools.samples import decoding, pixels, pngtext
from tartools.samples.kinds import decode_payload
from tartools.samples.payloads import parse_json, unpack
from tartools.samples.soundfiles import page_checksum, truncation
from tartools.tar import Member, new_member
from tests.archives import encoded
from tests.conftest import Run, make_tar
from tests.tiers import exhaustive

PIXELS = Image.effect_noise((40, 30), 60).convert("RGB")
PNG = encoded(PIXELS, "PNG")
FIRST_CHUNK, LAST_CHUNK = 33, len(PNG) - 12  # after IHDR; of IEND


def chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def compressed(kind: bytes, text: bytes) -> bytes:
    """Return a chunk of compressed text, or a profile."""
    return chunk(kind, {b"iTXt": b"k\0\1\0\0\0"}.get(kind, b"k\0\0") + zlib.compress(text))


def with_chunks(*chunks: bytes, at: int = FIRST_CHUNK) -> bytes:
    return PNG[:at] + b"".join(chunks) + PNG[at:]


LARGE_TEXT = {
    "zTXt": with_chunks(compressed(b"zTXt", bytes((1 << 20) + 1))),
    "iTXt": with_chunks(compressed(b"iTXt", bytes(2 << 20))),
    "iCCP": with_chunks(compressed(b"iCCP", bytes(2 << 20))),
    "after the pixels": with_chunks(compressed(b"zTXt", bytes(2 << 20)), at=LAST_CHUNK),
    "on both sides": with_chunks(compressed(b"iCCP", bytes(2 << 20)))[:-12]
    + compressed(b"iTXt", bytes(2 << 20))
    + PNG[-12:],
    "65 texts of 1 MiB": with_chunks(*[chunk(b"tEXt", b"k\0" + b"x" * (1 << 20))] * 65),
}
SMALL_TEXT = {
    "none": PNG,
    "zTXt": with_chunks(compressed(b"zTXt", bytes(1 << 20))),
    "tEXt": with_chunks(chunk(b"tEXt", b"k\0" + b"x" * (2 << 20))),
    "plain iTXt": with_chunks(chunk(b"iTXt", b"k\0\0\0\0\0" + b"x" * (2 << 20))),
    "iCCP": with_chunks(compressed(b"iCCP", bytes(1 << 20))),
    "damaged zTXt": with_chunks(chunk(b"zTXt", b"k\0\0garbage")),
}


def member(field: str, payload: bytes) -> Member:
    return new_member(f"a.{field}".encode(), payload)


def opens_with_pillow(payload: bytes) -> bool:
    try:
        with Image.open(io.BytesIO(payload)) as picture:
            picture.load()
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("name", LARGE_TEXT)
def test_pngs_with_text_that_pillow_refuses_are_decoded(name: str) -> None:
    payload = LARGE_TEXT[name]
    assert not opens_with_pillow(payload)
    png = member("png", payload)
    assert decoding.picture_state(png, decode=True) == (("PNG", 40, 30, "RGB", 1), None, True)
    assert decoding.picture_header(png) == ("PNG", 40, 30, "RGB", 1)
    assert decoding.decode_reduced(png, 40, 30).tobytes() == PIXELS.tobytes()
    assert decoding.likeness(png) == decoding.likeness(member("png", PNG))
    assert pixels.decode_picture(payload, "RGB").tobytes() == PIXELS.tobytes()
    assert pixels.decode_to_array(payload, "RGB").tobytes() == PIXELS.tobytes()
    assert [code for code, _ in decode_payload("png", png)] == ["large-png-text"]
    assert not opens_with_pillow(payload)  # its limits are as before


@pytest.mark.parametrize("name", SMALL_TEXT)
def test_text_that_pillow_reads_stays_in_the_picture(name: str) -> None:
    payload = SMALL_TEXT[name]
    assert opens_with_pillow(payload)
    assert pngtext.find_large_text(io.BytesIO(payload)) is None
    assert list(decode_payload("png", member("png", payload))) == []
    with Image.open(io.BytesIO(payload)) as picture:
        assert pixels.decode_picture(payload, "RGB").info == picture.info


def test_the_orientation_in_a_small_text_is_used_beside_a_large_one() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    raw = exif.tobytes()
    text = b"\nexif\n%8d\n" % len(raw) + raw.hex().encode() + b"\n"
    small = chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))
    payload = with_chunks(small, compressed(b"zTXt", bytes(2 << 20)))
    assert decoding.decode_reduced(member("png", payload), 40, 40).size == (30, 40)


@exhaustive
def test_the_sum_of_all_text_is_judged_as_pillow_does() -> None:
    for kind in (b"zTXt", b"tEXt", b"iTXt"):
        text = bytes(1 << 20) if kind == b"zTXt" else b"x" * (1 << 20)
        plain = chunk(kind, (b"k\0" if kind == b"tEXt" else b"k\0\0\0\0\0") + text)
        part = compressed(kind, text) if kind == b"zTXt" else plain
        for count in (63, 64, 65):
            payload = with_chunks(*[part] * count)
            refused = pngtext.find_large_text(io.BytesIO(payload)) is not None
            assert refused != opens_with_pillow(payload), (kind, count)
            assert pixels.decode_picture(payload, "RGB").tobytes() == PIXELS.tobytes()


@exhaustive
def test_any_size_of_text_is_judged_as_pillow_does() -> None:
    for kind in (b"zTXt", b"iTXt", b"iCCP", b"tEXt"):
        for size in (0, 1, 1000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20):
            for filling in (b"\0", b"text ", zlib.compress(bytes(999))):
                text = (filling * size)[:size]
                part = chunk(kind, b"k\0" + text) if kind == b"tEXt" else compressed(kind, text)
                for at in (FIRST_CHUNK, LAST_CHUNK):
                    payload = with_chunks(part, at=at)
                    refused = pngtext.find_large_text(io.BytesIO(payload)) is not None
                    assert refused != opens_with_pillow(payload), (kind, size, filling[:5], at)


@exhaustive
def test_a_png_cut_at_any_byte_is_never_a_failure_of_ours() -> None:
    payload = with_chunks(compressed(b"zTXt", bytes(2 << 20)), chunk(b"tEXt", b"k\0v"))
    for end in range(0, len(payload), 5):
        state = decoding.picture_state(member("png", payload[:end]), decode=True)
        assert state.broken is None or "MAX_TEXT" not in state.broken, end


def test_the_limits_of_pillow_stay_those_of_the_user() -> None:
    """In a fresh process: what commands, tables and training do leaves no global of Pillow changed."""
    script = """
import io
from PIL import Image, ImageFile, PngImagePlugin
from tartools.samples import decoding, pixels
from tartools.tar import new_member
def limits():
    return Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK, PngImagePlugin.MAX_TEXT_MEMORY, \\
        ImageFile.LOAD_TRUNCATED_IMAGES, ImageFile.MAXBLOCK
before = limits()
file = io.BytesIO()
Image.new("RGB", (8, 8)).save(file, "PNG")
member = new_member(b"a.png", file.getvalue())
decoding.picture_header(member); decoding.picture_state(member, True); decoding.decode_reduced(member, 8, 8)
decoding.likeness(member); decoding.picture_facts(member, True); pixels.decode_to_array(file.getvalue(), "RGB")
assert limits() == before, (limits(), before)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def large_png(width: int, height: int) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return PNG[:8] + header + chunk(b"IDAT", b"")


def test_our_limit_is_the_same_before_and_after_a_header_was_read() -> None:
    payload = large_png(20_000, 10_000)
    for _ in range(2):
        with pytest.raises(SampleError, match="200,000,000 pixels, and 89,478,485 are allowed"):
            pixels.decode_picture(payload, "RGB")
        with pytest.raises(decoding.TooLargeError):
            decoding.decode_reduced(member("png", payload), 64, 64)
        assert decoding.picture_state(member("png", payload), decode=True) == (
            ("PNG", 20_000, 10_000, "1", 1),
            None,
            False,
        )
        assert decoding.picture_header(member("png", payload))[:3] == ("PNG", 20_000, 10_000)
    assert Image.MAX_IMAGE_PIXELS == decoding.MAX_PIXELS == 89_478_485
    assert PngImagePlugin.MAX_TEXT_CHUNK == pngtext.MAX_CHUNK_BYTES
    assert PngImagePlugin.MAX_TEXT_MEMORY == pngtext.MAX_TEXT_BYTES
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


# ---- sounds ----


def wav(samples: bytes, data_size: int | None = None, extra: bytes = b"") -> bytes:
    """Return a WAV of 16 bits whose header says *data_size*."""
    size = len(samples) if data_size is None else data_size
    form = b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    body = form + extra + b"data" + struct.pack("<I", size) + samples
    return b"RIFF" + struct.pack("<I", min(4 + len(body), 0xFFFFFFFF)) + b"WAVE" + body


SAMPLES = bytes(range(256)) * 400
STREAM_SIZES = (0, 0xFFFFFFFF, 0x7FFFFFFF, 0x7FFFF000, 0x7FFFFFFF - 36)  # of ffmpeg and sox, to a pipe


def broken_sound(payload: bytes, field: str = "wav") -> str:
    """Return the reason why a sound is broken; "" if it is not."""
    findings = list(decode_payload(field, member(field, payload)))
    assert [code for code, _ in findings] in ([], ["broken-sound"])
    return findings[0][1] if findings else ""


def test_wav_files_that_are_cut_or_have_a_header_alone_are_broken() -> None:
    whole = wav(SAMPLES)
    assert broken_sound(whole) == ""
    assert broken_sound(wav(SAMPLES, extra=b"LIST" + struct.pack("<I", 3) + b"abc\0")) == ""
    for end in (44, 46, 40_000, len(whole) - 1):
        assert "truncated" in broken_sound(whole[:end]), end
    for size in STREAM_SIZES:
        assert broken_sound(wav(SAMPLES, size)) == ""
        assert broken_sound(wav(b"", size)) == "it has no samples"
    assert broken_sound(wav(b"")) == "it has no samples"


def ogg(subtype: str) -> bytes:
    import numpy as np
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(48_000) / 20) / 2, 16_000, format="OGG", subtype=subtype)
    return file.getvalue()


@pytest.mark.parametrize(("subtype", "field"), [("VORBIS", "ogg"), ("OPUS", "opus")])
def test_ogg_files_that_are_cut_or_damaged_are_broken(subtype: str, field: str) -> None:
    whole = ogg(subtype)
    assert broken_sound(whole, field) == ""
    assert broken_sound(whole + ogg(subtype), field) == ""  # chained
    for end in (30, len(whole) // 2, len(whole) - 1):
        assert "truncated" in broken_sound(whole[:end], field), end
    last = whole.rindex(b"OggS")
    assert "last page" in broken_sound(whole[:last], field)
    flipped = whole[: last - 9] + bytes([whole[last - 9] ^ 1]) + whole[last - 8 :]
    assert "checksum" in broken_sound(flipped, field)
    pages = [at for at in range(len(whole)) if whole.startswith(b"OggS", at)]
    if len(pages) > 3:
        assert "missing" in broken_sound(whole[: pages[2]] + whole[pages[3] :], field)


@exhaustive
@pytest.mark.parametrize(("subtype", "field"), [("VORBIS", "ogg"), ("OPUS", "opus")])
def test_any_cut_and_any_flipped_byte_of_ogg_is_seen(subtype: str, field: str) -> None:
    whole = ogg(subtype)
    for at in range(1, len(whole)):
        assert at < 4 or truncation(io.BytesIO(whole[:at]), at), at
        flipped = whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        assert at < 4 or truncation(io.BytesIO(flipped), len(flipped)), at


def test_the_checksum_of_ogg_is_that_of_its_definition() -> None:
    """RFC 3533, 6: polynomial 0x04c11db7, from 0, no bits reversed."""
    page = bytes(range(256))
    crc = 0
    for byte in page:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ (0x04C11DB7 if crc & 1 << 31 else 0)) & 0xFFFFFFFF
    assert page_checksum(page) == crc


# ---- compressed fields and JSON: one answer in all commands ----


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_compressed_fields_are_looked_into_by_all_commands(
    suffix: str, pack: Callable[[bytes], bytes], run: Run, tmp_path: Path
) -> None:
    samples = [
        (f"{n}.{field}.{suffix}", pack(payload))
        for n in (2, 1)
        for field, payload in (("txt", b"text %d\n" % n), ("json", b'{"n": %d}' % n))
    ]
    (tmp_path / "a.tar").write_bytes(make_tar(samples))
    values = run("tar2tsv", "-f", f"txt.{suffix} n=json.{suffix}:n", "a.tar").output().decode()
    assert values.splitlines()[1:] == ["2\ttext 2\t2", "1\ttext 1\t1"]
    order = run("tarsort", "-s", f"json.{suffix}:n", "-S", "int", "a.tar").output()
    assert run("tar2tsv", "-f", f"json.{suffix}:n", stdin=order).output().splitlines()[1:] == [b"1\t1", b"2\t2"]
    chosen = run("tarfilter", "-S", f"field('json.{suffix}:n') == 1 and field('txt.{suffix}') == 'text 1'", "a.tar")
    assert b"1.txt" in chosen.output() and b"2.txt" not in chosen.stdout
    assert "text: text 2" in run("tarshow", "-c", "1", "a.tar").output().decode()
    assert json.loads(run("tarcheck", "--json", "--decode", "a.tar").output())["findings"] == []


def test_json_with_a_byte_order_mark_has_one_answer_in_all_commands(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        make_tar([("1.json", b'\xef\xbb\xbf{"n": 1}'), ("2.json", '{"n": 2}'.encode("utf-16"))])
    )
    assert run("tar2tsv", "-f", "json:n", "a.tar").output().splitlines()[1:] == [b"1\t1", b"2\t2"]
    assert run("tarfilter", "-S", "field('json:n') > 0", "a.tar", "-o", "b.tar").output() == b""
    (finding,) = json.loads(run("tarcheck", "--json", "--decode", "a.tar").output())["findings"]
    assert (finding["code"], finding["weight"]) == ("json-encoding", "note")
    assert [place["what"] for place in finding["places"]] == ["json: a byte order mark", "json: UTF-16"]


def test_a_compressed_payload_has_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tartools.samples.payloads.MAX_UNPACKED_BYTES", 1 << 20)
    assert len(unpack("txt.gz", gzip.compress(bytes(1 << 20)))) == 1 << 20
    with pytest.raises(ValueError, match="more than"):
        unpack("txt.gz", gzip.compress(bytes((1 << 20) + 1)))
    for payload in (b"text", gzip.compress(b"text")[:-5], gzip.compress(b"text") + b"garbage"):
        with pytest.raises(ValueError, match=r"gzip|bytes after"):
            unpack("txt.gz", payload)
    with pytest.raises(ValueError, match="nested"):
        parse_json(b"[" * 1_000_000)


def test_fields_that_nothing_decodes_are_named(run: Run, tmp_path: Path) -> None:
    fields = {"heic": b"\0\0\0\x18ftypheic", "svg": b"<svg/>", "mp4": b"\0\0\0\x18ftypmp42", "safetensors": b"\x08"}
    members = [(f"a.{field}", payload) for field, payload in fields.items()]
    members += [("a.jpg", encoded(PIXELS, "JPEG")), ("a.cls", b"1"), ("a.png", large_png(10_000, 9_000))]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for options, undecoded in (
        (["--decode"], ["heic", "mp4", "png", "safetensors", "svg"]),
        ([], ["heic", "jpg", "mp4", "png", "safetensors", "svg"]),
    ):
        assert json.loads(run("tarcheck", "--json", *options, "a.tar").stdout)["undecoded"] == undecoded
