"""Headers of ordinary pictures are read without Pillow, and are what Pillow says; all others are left to Pillow."""

from __future__ import annotations

import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from tartools.samples import decoding
from tartools.samples.pictureheaders import HEADER_BYTES, PNG_SIGNATURE, plain_header
from tartools.tar import Member, new_member
from tests.archives import encoded
from tests.conftest import BIN, make_tar
from tests.tiers import also

NOISE = Image.effect_noise((37, 21), 60)
EXIF = Image.Exif()
EXIF[0x0112] = 6
TEXT = PngImagePlugin.PngInfo()
TEXT.add_text("Software", "a program")
LONG_TEXT = PngImagePlugin.PngInfo()
LONG_TEXT.add_text("k", "x" * HEADER_BYTES)
PROFILE = b"\0" * 40
ORDINARY = {
    "RGB JPEG": encoded(NOISE.convert("RGB"), "JPEG"),
    "grey JPEG": encoded(NOISE, "JPEG"),
    "CMYK JPEG": encoded(NOISE.convert("CMYK"), "JPEG"),
    "progressive JPEG": encoded(NOISE.convert("RGB"), "JPEG", progressive=True),
    "JPEG with a profile, a comment, dots per inch": encoded(
        NOISE.convert("RGB"), "JPEG", icc_profile=PROFILE, comment=b"a comment", dpi=(72, 72)
    ),
    "JPEG with restarts": encoded(NOISE.convert("RGB"), "JPEG", restart_marker_rows=1),
    **{f"{mode} PNG": encoded(NOISE.convert(mode), "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")},
    "small palette PNG": encoded(NOISE.quantize(3), "PNG", bits=2),
    "PNG with text and dots per inch": encoded(NOISE, "PNG", pnginfo=TEXT, dpi=(72, 72)),
}
LEFT_TO_PILLOW = {
    "JPEG with EXIF": encoded(NOISE, "JPEG", exif=EXIF),
    "JPEG with a large profile": encoded(NOISE, "JPEG", icc_profile=bytes(HEADER_BYTES)),
    "several pictures in a JPEG": encoded(NOISE, "MPO", save_all=True, append_images=[NOISE]),
    "PNG with a profile": encoded(NOISE, "PNG", icc_profile=PROFILE),
    "PNG with EXIF": encoded(NOISE, "PNG", exif=EXIF),
    "PNG with a long text": encoded(NOISE, "PNG", pnginfo=LONG_TEXT),
    "GIF": encoded(NOISE, "GIF"),
    "WebP": encoded(NOISE, "WEBP"),
    "text": b"no picture",
    "nothing": b"",
    "JPEG padded with FF": b"\xff\xd8\xff" + encoded(NOISE, "JPEG")[2:],
    "a JPEG of no pixels": encoded(NOISE, "JPEG").replace(b"\x08\0\x15\0\x25", b"\x08\0\0\0\x25"),
}


def member(payload: bytes) -> Member:
    return new_member(b"a.jpg", payload)


def state_by_pillow(payload: bytes, with_orientation: bool, monkeypatch: pytest.MonkeyPatch) -> decoding.PictureState:
    """Return what Pillow alone says of the picture *payload*."""
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "plain_header", lambda _head, _with_orientation: None)
        return decoding.picture_state(member(payload), with_orientation=with_orientation)


@pytest.mark.parametrize("with_orientation", [False, True])
@pytest.mark.parametrize("name", ORDINARY)
def test_headers_of_ordinary_pictures_are_as_pillow_has_them(
    name: str, with_orientation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = ORDINARY[name]
    header = plain_header(payload[:HEADER_BYTES], with_orientation)
    assert (header is None) == (with_orientation and "PNG" in name)  # which may have it behind the pixels
    by_pillow = state_by_pillow(payload, with_orientation, monkeypatch)
    assert header in (None, by_pillow.header)
    assert decoding.picture_state(member(payload), with_orientation=with_orientation) == by_pillow
    assert decoding.picture_header(member(payload)) == by_pillow.header


@pytest.mark.parametrize("name", LEFT_TO_PILLOW)
def test_pillow_is_asked_about_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = LEFT_TO_PILLOW[name]
    assert plain_header(payload[:HEADER_BYTES]) is None
    assert decoding.picture_state(member(payload)) == state_by_pillow(payload, False, monkeypatch)


def changed(payload: bytes, count: int) -> Iterator[bytes]:
    """Yield *count* pictures that differ from *payload* in its header: in a byte, two bytes or their number."""
    dice = random.Random(len(payload))
    end = max(payload.find(b"\xff\xda") + 16, payload.find(b"IDAT") + 8, 64)
    for _ in range(count):
        data = bytearray(payload)
        for _ in range(dice.choice((1, 1, 2))):
            data[dice.randrange(end)] = dice.choice((0, 1, 8, 0xFF, 0xD8, 0xDA, 0xE1, dice.randrange(256)))
        begin = dice.randrange(end)
        change = dice.randrange(8)
        if change == 0:
            del data[begin : begin + dice.randrange(1, 9)]
        elif change == 1:
            data[begin:begin] = dice.randbytes(dice.randrange(1, 9))
        elif change == 2:
            del data[begin:]
        yield bytes(data) if dice.randrange(2) else with_checksums(bytes(data))


def with_checksums(png: bytes) -> bytes:
    """Return *png* with the checksum of each chunk before the pixels that its content has; the same for no PNG."""
    parts, position = [png[:8]], 8
    while png.startswith(PNG_SIGNATURE) and png[position + 4 : position + 8] not in (b"IDAT", b""):
        end = position + 8 + int.from_bytes(png[position : position + 4], "big")
        parts += [png[position:end], zlib.crc32(png[position + 4 : end]).to_bytes(4, "big")]
        position = end + 4
    return b"".join([*parts, png[position:]])


@pytest.mark.parametrize("count", [40, *also(2000)])
@pytest.mark.parametrize("name", ORDINARY)
def test_a_damaged_header_is_what_pillow_makes_of_it(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = 0
    for payload in changed(ORDINARY[name], count):
        for with_orientation in (False, True):
            header = plain_header(payload[:HEADER_BYTES], with_orientation)
            if header is not None:
                plain += 1
                assert decoding.PictureState(header, None, False) == state_by_pillow(
                    payload, with_orientation, monkeypatch
                ), payload[:1000].hex()
    assert plain > 0  # else nothing was compared


def test_a_part_of_a_header_is_left_to_pillow() -> None:
    for payload in ORDINARY.values():
        ends = [n for n in range(len(payload)) if plain_header(payload[:n]) is not None]
        assert ends == list(range(ends[0], len(payload)))  # all of the header is needed, and nothing behind it


def test_counting_ordinary_pictures_needs_no_pillow(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(
        make_tar([("a.jpg", ORDINARY["RGB JPEG"]), ("b.png", ORDINARY["P PNG"]), ("c.jpg", ORDINARY["CMYK JPEG"])])
    )
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['PIL'] = None\n")
    done = subprocess.run(
        [sys.executable, str(BIN / "tarstat"), "a.tar"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"pictures jpg: 2 JPEG, width 37, height 21\n" in done.stdout
    assert b"pictures png: 1 PNG, width 37, height 21\n" in done.stdout
