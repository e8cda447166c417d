"""Pictures of training: JPEGs by simplejpeg, bytes as Pillow's, and how pictures are resized."""

from __future__ import annotations

import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import DataLoader
from webdataset.autodecode import imagespecs

from tartools.errors import SampleError
from tartools.samples import decoding
from tartools.train import Resize, TableDataset, WebDataset, ZipDataset, loader, picture
from tartools.train.payloaddecoding import PictureDecoder
from tests.archives import encoded, ended_early
from tests.commands.test_zip import zipped
from tests.conftest import make_tar
from tests.tiers import also

HEIGHT, WIDTH = 150, 203


def photograph(height: int = HEIGHT, width: int = WIDTH, seed: int = 1, grain: int = 12) -> Image.Image:
    """Return a picture with soft colours, edges and some noise."""
    dice = np.random.default_rng(seed)
    colours = dice.integers(0, 256, (height // grain, width // grain, 3), np.uint8)
    soft = np.asarray(Image.fromarray(colours).resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    soft[height // 3 :, : width // 4] //= 2
    return Image.fromarray((soft + dice.integers(-6, 7, soft.shape)).clip(0, 255).astype(np.uint8))


PHOTOGRAPH = encoded(photograph(), "jpeg", quality=90)
DAMAGED = ended_early(PHOTOGRAPH)


@pytest.mark.parametrize("spec", ["rgb8", "l8", "rgba8", "torchrgb", "pil", *also(*sorted(imagespecs))])
def test_jpegs_are_decoded_as_by_pillow(spec: str) -> None:
    """Grey and in colours, of each kind of chroma, progressive, of CMYK; with and without simplejpeg."""
    decode, whole = PictureDecoder(spec), photograph()
    for mode, options in (
        *(("RGB", {"subsampling": kind, "progressive": kind == 1}) for kind in range(3)),
        ("RGB", {"keep_rgb": True}),
        *(("L", {}), ("CMYK", {})),
    ):
        data = encoded(whole.convert(mode), "jpeg", **options)
        found = decode(".jpg", data)
        with mock.patch.dict(sys.modules, {"simplejpeg": None}):
            wanted = decode(".jpg", data)
        assert type(found) is type(wanted) and getattr(found, "dtype", None) == getattr(wanted, "dtype", None)
        np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
    assert decode.by_pillow == 0


def test_simplejpeg_decodes_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image.Image, "load", mock.Mock(side_effect=AssertionError("Pillow decodes")))
    assert PictureDecoder("rgb8")(".jpg", PHOTOGRAPH).shape == (HEIGHT, WIDTH, 3)


def test_what_pillow_knows_of_a_picture_stays() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    found = PictureDecoder("pil")(".jpg", encoded(photograph(), "jpeg", exif=exif, dpi=(300, 300)))
    assert found.getexif()[0x0112] == 6 and found.info["dpi"] == (300, 300)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_simplejpeg_refuses_is_counted(workers: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert decoding.refusal_of_jpeg(PHOTOGRAPH) == "" and "Corrupt JPEG" in str(decoding.refusal_of_jpeg(DAMAGED))
    members = [("a.jpg", PHOTOGRAPH), ("b.jpg", DAMAGED), ("c.jpg", DAMAGED)]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    data = TableDataset(str(tmp_path / "a.tar"), ("__key__", "jpg"), "rgb8")
    batches = loader(data, 2, num_workers=workers, shuffle=False)
    for number in (1, 2):
        found = [item for batch in batches for item in batch[1]]
        assert all(map(np.array_equal, found, [np.asarray(picture(data, "pil")) for _, data in members]))
        assert data.chooser.by_pillow == 2 * number
    assert caplog.messages == ["Pillow decoded 2 JPEGs that simplejpeg refuses: tarcheck --decode names them"] * 2


@pytest.mark.parametrize("method", ["forkserver", *also("spawn")])
def test_workers_that_are_started_count_too(method: str, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.jpg", DAMAGED)]))
    data = TableDataset(str(tmp_path / "a.tar"), "jpg", "rgb8")
    assert len([*DataLoader(data, num_workers=1, multiprocessing_context=method)]) == 1
    assert data.chooser.by_pillow == 1


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_size_is_looked_at_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a header says 60,000 by 2,000 pixels; and one of two headers says it."""
    at = PHOTOGRAPH.index(b"\xff\xc0")
    large = PHOTOGRAPH[: at + 5] + struct.pack(">HH", 2_000, 60_000) + PHOTOGRAPH[at + 9 :]
    twice = large[:at] + large[at : at + 19] + PHOTOGRAPH[at:]
    decoding = mock.Mock(side_effect=ValueError)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", decoding)
    with pytest.raises(SampleError, match="this picture has 120,000,000 pixels, and 89,478,485 are allowed"):
        picture(large)
    with pytest.raises(OSError, match="broken data stream"):
        picture(twice)
    decoding.assert_not_called()


SIZES: dict[Any, tuple[int, int]] = {
    75: (75, 101),
    (90, 70): (90, 70),
    300: (300, 406),
    Resize(90, crop=64): (64, 64),
    Resize((80, 90), crop=(7, 8)): (7, 8),
    Resize(HEIGHT): (HEIGHT, WIDTH),
}


@pytest.mark.parametrize("resize", SIZES, ids=str)
def test_resized_as_pillow_does_it(resize: Any) -> None:
    """Bicubic; a value differs by 1 at most; in each form that webdataset's names stand for."""
    height, width = SIZES[resize]
    whole = np.asarray(picture(PHOTOGRAPH, "pil"))
    asked = resize if isinstance(resize, Resize) else Resize(resize)
    high, wide = asked.target_size(HEIGHT, WIDTH)
    wanted = np.asarray(Image.fromarray(whole).resize((wide, high), Image.Resampling.BICUBIC)).astype(int)
    top, left = round((high - height) / 2), round((wide - width) / 2)
    wanted = wanted[top : top + height, left : left + width]
    found = PictureDecoder("rgb8", resize=resize)(".jpg", PHOTOGRAPH)
    assert found.shape == (height, width, 3) and np.abs(found - wanted).max() <= 1
    forms: dict[str, Callable[[Any], Any]] = {
        "torchrgb8": lambda made: made.permute(1, 2, 0).numpy(),
        "rgb": lambda made: (made * 255).round(),
        "torchrgb": lambda made: (made.permute(1, 2, 0) * 255).round().numpy(),
        "pil": np.asarray,
        "rgba8": lambda made: made[..., :3],
    }
    for spec, back in forms.items():
        made = PictureDecoder(spec, resize=resize)(".jpg", PHOTOGRAPH)
        assert np.abs(back(made).astype(int) - found).max() <= (spec == "rgba8"), spec
    assert PictureDecoder("l8", resize=resize)(".jpg", PHOTOGRAPH).shape == (height, width)


def test_colours_do_not_come_out_of_what_is_transparent() -> None:
    clear = np.zeros((40, 40, 4), np.uint8)
    clear[:, :20] = (10, 200, 30, 255)
    clear[:, 20:] = (255, 0, 0, 0)
    found = PictureDecoder("rgba8", resize=(7, 7))(".png", encoded(Image.fromarray(clear)))
    seen = found[found[..., 3] > 0][:, :3].astype(int)
    assert len(seen) and np.abs(seen - (10, 200, 30)).max() < 40


def test_large_pictures_are_decoded_smaller_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    large = encoded(photograph(803, 1001, grain=60), "jpeg", quality=90)
    shapes = []
    decode = simplejpeg.decode_jpeg

    def noted(*args: Any, **options: Any) -> Any:
        shapes.append((made := decode(*args, **options)).shape)
        return made

    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    for side, decoded in ((50, 201), (100, 302), (130, 402), (150, 803), (900, 803)):
        found, wanted = (picture(large, "rgb8", Resize(side, None, scaled)) for scaled in (True, False))
        assert shapes[-2][0] == decoded >= min(3 * side, 803) and shapes[-1][0] == 803
        assert found.shape == wanted.shape
        assert np.square(found.astype(float) - wanted).mean() < 255**2 / 10**3.5  # a PSNR of 35 dB


def test_each_reader_resizes() -> None:
    members = [(f"{n}.jpg", encoded(photograph(60, 40 + n, n), "jpeg")) for n in range(3)]
    Path("a.tar").write_bytes(make_tar(members))
    Path("a.zip").write_bytes(zipped(members, zipfile.ZIP_STORED))
    wanted = torch.stack([picture(data, "torchrgb8", (32, 24)) for _, data in members])
    options: dict[str, Any] = {"fields": "jpg", "decode": "torchrgb8", "resize": (32, 24)}
    for data in (TableDataset("a.tar", **options), ZipDataset("a.zip", **options), WebDataset("a.tar", **options)):
        (batch,) = DataLoader(data, 3)
        assert torch.equal(batch[0], wanted)
    (batch,) = loader("a.tar", 3, shuffle=False, **options)
    assert torch.equal(batch[0], wanted)
    for number, sample in enumerate(WebDataset("a.tar").decode("torchrgb8", resize=Resize((32, 24)))):
        assert torch.equal(sample["jpg"], wanted[number])


def test_what_is_no_size() -> None:
    crops = Resize(3, crop=(1, "x")), Resize(20, crop=(4,))  # type: ignore[arg-type]
    for wrong in ("224", 2.5, (1, 2, 3), True, (224,), (), *crops):
        with pytest.raises(ValueError, match=r"^resize is the pixels of the shorter side, \(height, width\) or Resize"):
            PictureDecoder("rgb8", resize=wrong)
    with pytest.raises(ValueError, match=r"^resize=\(0, 4\) leaves no pixels"):
        PictureDecoder("rgb8", resize=(0, 4))
    for decode in (None, "basic", [bytes]):
        with pytest.raises(ValueError, match=r"^resize is for pictures: name their decoder too, as decode='torchrgb8'"):
            WebDataset(__file__, decode=decode, resize=4)
    with pytest.raises(SampleError, match="its 20 by 27 pixels have no centre of 24 by 24: crop less"):
        picture(PHOTOGRAPH, "rgb8", Resize(20, crop=24))


# ---- masks and depth: what a picture holds, and its resizing without new values ----

LABELS = np.array([[0, 1, 7, 200], [1, 1, 0, 3], [2, 2, 2, 2]], np.uint8)
DEEP = (LABELS.astype(np.uint16) * 300 + 7).astype(np.uint16)


def palette_png(labels: Any = LABELS) -> bytes:
    made = Image.fromarray(labels, "L").convert("P")
    made.putdata(labels.ravel().tolist())
    made.putpalette([value for number in range(256) for value in (255 - number, number, 90)])
    return encoded(made, "png")


@pytest.mark.filterwarnings("ignore:.*mode.* parameter is deprecated")
def test_raw_pictures_have_their_values() -> None:
    """Indexes of a palette, 16 bits, 1 bit, 2 and 4 bits of grey, colours: as arrays, tensors and Pillow's images."""
    bits = Image.fromarray(LABELS > 0)
    colours = np.stack([LABELS, LABELS + 1, LABELS + 2], -1)
    cases: list[tuple[bytes, Any]] = [
        (palette_png(), LABELS),
        (encoded(Image.fromarray(DEEP), "png"), DEEP),
        (encoded(Image.fromarray(DEEP), "tiff"), DEEP),
        (encoded(bits, "png"), (LABELS > 0).astype(np.uint8)),
        (encoded(Image.fromarray(LABELS), "png"), LABELS),
        (encoded(Image.fromarray(colours), "png"), colours),
        (encoded(Image.fromarray(LABELS.astype(np.float32) / 3), "tiff"), LABELS.astype(np.float32) / 3),
        (encoded(Image.fromarray(LABELS.astype(np.int32) - 9), "tiff"), LABELS.astype(np.int32) - 9),
        (few_bits(2), FEW[2]),
        (few_bits(4), FEW[4]),
    ]
    for data, values in cases:
        for field in (".png", ".mask.png"):
            found = PictureDecoder("raw")(field, data)
            assert found.dtype == values.dtype and np.array_equal(found, values)
        made = PictureDecoder("torchraw")(".png", data)
        assert made.dtype != torch.uint16
        assert np.array_equal(made.numpy() if made.ndim == 2 else made.permute(1, 2, 0).numpy(), values)
        assert np.array_equal(np.asarray(PictureDecoder("pilraw")(".png", data)), values)
    assert PictureDecoder("pilraw")(".png", palette_png()).mode == "P"


FEW = {2: np.array([[0, 1, 2, 3]] * 4, np.uint8), 4: np.array([[0, 5, 9, 15]] * 4, np.uint8)}


def few_bits(bits: int) -> bytes:
    """Return a PNG of grey with so many bits a pixel, which Pillow does not write."""
    rows = b""
    for row in FEW[bits]:
        number = 0
        for value in row.tolist():
            number = number << bits | value
        rows += b"\0" + number.to_bytes(len(row) * bits // 8, "big")
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 4, 4, bits, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    parts = (
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("spec", ["l8", "rgb8", "torchrgb8", "torchl8", "pil", "pill", "rgba8"])
def test_16_bits_are_never_clipped(spec: str) -> None:
    data = encoded(Image.fromarray(DEEP), "png")
    for decode in (PictureDecoder(spec), PictureDecoder(spec, resize=2)):
        with pytest.raises(
            SampleError, match="has 16 bits a pixel, and this decoder 8: 'raw' or 'torchraw' gives its va"
        ):
            decode(".png", data)
    with pytest.raises(
        SampleError, match=r"has 32 bits a pixel, and this decoder 8: 'raw' or 'torchraw' gives its values$"
    ):
        PictureDecoder(spec)(
            ".tiff" if spec == "l8" else ".png", encoded(Image.fromarray(LABELS / np.float32(3)), "tiff")
        )


def test_16_bits_as_fractions() -> None:
    data, wanted = encoded(Image.fromarray(DEEP), "png"), DEEP / np.float32(65535)
    assert np.allclose(PictureDecoder("l")(".png", data), wanted, atol=1e-7)
    assert np.allclose(PictureDecoder("torchl")(".png", data).numpy(), wanted, atol=1e-7)
    assert np.allclose(PictureDecoder("rgb")(".png", data), wanted[..., None].repeat(3, -1))
    assert np.allclose(PictureDecoder("torchrgba")(".png", data).numpy()[3], 1)
    large = encoded(Image.fromarray(np.full((40, 30), 40_000, np.uint16)), "png")
    found = PictureDecoder("torchrgb", resize=Resize(12, crop=10))(".png", large)
    assert found.shape == (3, 10, 10) and torch.allclose(found, torch.tensor(40_000 / 65535))


def test_colours_of_16_bits_are_refused_by_raw() -> None:
    values = (np.arange(27).reshape(3, 9) * 2400).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 3, 3, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    parts = (
        len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big") for kind, data in chunks
    )
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    with pytest.raises(SampleError, match="has colours of 16 bits, and Pillow decodes 8 of them"):
        picture(data, "raw")
    assert np.array_equal(picture(data, "rgb8"), (values.reshape(3, 3, 3) >> 8).astype(np.uint8))  # the higher 8


def test_a_decoder_that_decodes_no_pictures() -> None:
    with pytest.raises(ValueError, match=r"^decode='basic' decodes no pictures; name a decoder that does"):
        picture(PHOTOGRAPH, "basic")


@pytest.mark.parametrize("spec", ["raw", "torchraw", "pilraw", "l8", "torchl8", "rgb8", "torchrgb8", "pil", "rgba8"])
@pytest.mark.parametrize("size", [Resize(24), Resize((50, 90)), Resize((20, 30), crop=(11, 8)), Resize(17)], ids=str)
def test_nearest_makes_no_new_values(spec: str, size: Resize) -> None:
    """And takes the pixels that Pillow takes."""
    labels = np.random.default_rng(4).choice(np.array([0, 3, 200, 255], np.uint8), (31, 43))
    data = encoded(Image.fromarray(labels), "png")
    found = np.asarray(picture(data, spec, size._replace(nearest=True)))
    if found.ndim == 3:
        found = found[..., 0] if "torch" not in spec else found[0]
    high, wide = size.target_size(31, 43)
    whole = np.asarray(Image.fromarray(labels).resize((wide, high), Image.Resampling.NEAREST))
    top, left, height, width = size.crop_bounds(high, wide)
    assert np.array_equal(found, whole[top : top + height, left : left + width])
    assert {*np.unique(found)} <= {0, 3, 200, 255}


def test_resize_by_field() -> None:
    """Each field has its own size, others none; raw ones are never mixed, so masks lie on their pictures."""
    labels = np.zeros((60, 80), np.uint8)
    labels[:, 40:] = 200
    whole = np.zeros((60, 80, 3), np.uint8)
    whole[:, 40:] = 255
    depth = encoded(Image.fromarray(labels.astype(np.uint16) * 300), "png")
    members = [
        ("a.jpg", encoded(Image.fromarray(whole), "png")),
        ("a.mask.png", palette_png(labels)),
        ("a.depth.png", depth),
    ]
    Path("a.tar").write_bytes(make_tar(members))
    Path("a.zip").write_bytes(zipped(members, zipfile.ZIP_STORED))
    options: dict[str, Any] = {
        "fields": "jpg mask.png depth.png",
        "decode": {"jpg": "torchrgb8", "mask.png": "torchraw", "depth.png": "torchraw"},
        "resize": {"jpg": Resize(30), "Mask.png": Resize(30, nearest=True)},
    }
    for data in (TableDataset("a.tar", **options), ZipDataset("a.zip", **options), WebDataset("a.tar", **options)):
        photo, mask, deep = next(iter(DataLoader(data, None)))
        assert photo.shape == (3, 30, 40) and mask.shape == (30, 40) and deep.shape == (60, 80)
        assert torch.equal(mask == 200, photo[0] > 127) and {*mask.unique().tolist()} == {0, 200}
        assert int(deep.max()) == 60_000
    both = TableDataset("a.tar", "jpg mask.png", "torchrgb8", resize={"jpg;mask.png": 30})[0]
    assert [made.shape for made in both] == [(3, 30, 40)] * 2
    with pytest.raises(
        ValueError, match=r"resize names the field 'msk\.png', and the fields are depth\.png, jpg, mask\.png"
    ):
        TableDataset("a.tar", **options | {"resize": {"msk.png": 30}})
