"""Pictures are turned in training if `exif=True`, as Pillow's `exif_transpose` does; by default they are not."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from tartools.samples.orientation import turn_array
from tartools.train import Resize, TableDataset, WebDataset, ZipDataset, loader, picture
from tests.archives import photograph
from tests.commands.test_zip import zipped
from tests.conftest import make_tar
from tests.tables.test_media_facts import turned_picture
from tests.tiers import also

ORIENTATIONS = [1, 6, *also(2, 3, 4, 5, 7, 8)]
SPECS = ["rgb8", "torchrgb8", "pil", "l", "torchrgba", *also("l8", "torchl8", "rgba8", "torchrgb", "pill", "pilrgba")]


def upright_file(data: bytes) -> bytes:
    """Return the picture *data* with its pixels turned by Pillow, and without an orientation, as a PNG."""
    file = io.BytesIO()
    with Image.open(io.BytesIO(data)) as opened:
        upright = ImageOps.exif_transpose(opened)
        upright.info.clear()
        upright.save(file, "PNG")
    return file.getvalue()


def same(value: Any, expected: Any) -> None:
    assert type(value) is type(expected)
    if isinstance(value, Image.Image):
        assert (value.mode, value.size) == (expected.mode, expected.size)
    else:
        assert value.dtype == expected.dtype and value.shape == expected.shape
    assert np.array_equal(np.asarray(value), np.asarray(expected))


@pytest.mark.parametrize("orientation", ORIENTATIONS)
@pytest.mark.parametrize("spec", SPECS)
def test_values_are_those_of_the_upright_picture(spec: str, orientation: int) -> None:
    """By simplejpeg, by Pillow, and of PNG; whole, resized, and cropped after turning."""
    pictures = [turned_picture(orientation), turned_picture(orientation, "PNG", late=orientation == 6)]
    for data in pictures:
        upright = upright_file(data)
        for resize in (None, 24, (20, 30), Resize(24, crop=(24, 20)), Resize((7, 9), nearest=True)):
            expected = picture(upright, spec, resize)
            same(picture(data, spec, resize, exif=True), expected)
            with mock.patch.dict(sys.modules, {"simplejpeg": None}):
                same(picture(data, spec, resize, exif=True), expected)
    if orientation == 6:
        assert np.asarray(picture(pictures[0], "rgb8")).shape == (60, 80, 3)  # as it is stored


@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_turning_equals_exif_transpose(orientation: int) -> None:
    whole = photograph(2)
    exif = Image.Exif()
    exif[0x0112] = orientation
    whole.info["exif"] = exif.tobytes()
    expected = np.asarray(ImageOps.exif_transpose(whole))
    assert np.array_equal(turn_array(np.asarray(whole), orientation), expected)
    assert np.array_equal(turn_array(np.asarray(whole)[..., 0], orientation), expected[..., 0])
    assert turn_array(np.asarray(whole), orientation).flags.c_contiguous


def test_a_turned_picture_of_pillow_is_not_turned_again() -> None:
    for form in ("JPEG", "PNG", "WEBP", "TIFF"):
        data = turned_picture(6, form)
        once = picture(data, "pil", exif=True)
        assert once.size == (60, 80)
        assert ImageOps.exif_transpose(once).size == (60, 80)


@pytest.mark.parametrize("mode", ["P", "1", "I;16", "L"])
def test_stored_values_are_turned(mode: str) -> None:
    values = np.arange(35, dtype=np.uint16 if mode == "I;16" else np.uint8).reshape(5, 7)
    stored = Image.fromarray(values) if mode in ("I;16", "L") else Image.fromarray(values % 2 * 255).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    stored.save(file, "PNG", exif=exif.tobytes())
    plain = np.asarray(picture(file.getvalue(), "raw"))
    for spec in ("raw", "torchraw", "pilraw"):
        assert np.array_equal(np.asarray(picture(file.getvalue(), spec, exif=True)), np.rot90(plain, -1)), spec


def test_scaled_jpegs_are_turned_and_as_large_as_wanted() -> None:
    exif = Image.Exif()
    exif[0x0112] = 8
    file = io.BytesIO()
    photograph(3, 800, 600).save(file, "JPEG", exif=exif.tobytes())
    for size in (40, (64, 40)):
        scaled = picture(file.getvalue(), "rgb8", Resize(size, scaled=True), exif=True)
        whole = picture(file.getvalue(), "rgb8", Resize(size), exif=True)
        assert scaled.shape == whole.shape
        assert np.abs(scaled.astype(int) - whole).mean() < 8


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    members = [(f"{number}.jpg", turned_picture(number)) for number in (1, 6)]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    (tmp_path / "a.zip").write_bytes(zipped(members))
    return tmp_path


def test_every_dataset_takes_exif(shard: Path) -> None:
    url, arguments = str(shard / "a.tar"), {"fields": ("jpg",), "decode": "torchrgb8"}
    for exif, shape in ((True, (3, 80, 60)), (False, (3, 60, 80))):
        datasets = [
            TableDataset(url, exif=exif, **arguments),
            WebDataset(url, exif=exif, **arguments),
            WebDataset(url).decode("torchrgb8", exif=exif).to_tuple("jpg"),
            ZipDataset(str(shard / "a.zip"), exif=exif, **arguments),
            loader(url, 1, exif=exif, shuffle=False, num_workers=0, **arguments).dataset,
        ]
        for data in datasets:
            rows = list(data) if isinstance(data, WebDataset) else [data[0], data[1]]
            assert [tuple(row[0].shape) for row in rows] == [(3, 60, 80), shape], data
    resized = loader(url, 2, exif=True, resize=Resize((40, 30)), shuffle=False, **arguments)
    (batch,) = resized
    assert torch.as_tensor(batch[0]).shape == (2, 3, 40, 30)


def test_exif_needs_a_decoder_of_pictures(shard: Path) -> None:
    url = str(shard / "a.tar")
    for decode in (None, "basic"):
        with pytest.raises(ValueError, match="exif is for pictures: name their decoder too"):
            TableDataset(url, decode=decode, exif=True)
    with pytest.raises(ValueError, match="give exif to the dataset: this is a TableDataset already"):
        loader(TableDataset(url), 2, exif=True)


def test_metadata_that_cannot_be_read_turn_nothing() -> None:
    data = turned_picture(6)
    broken = data.replace(b"Exif\0\0MM", b"Exif\0\0XX").replace(b"Exif\0\0II", b"Exif\0\0XX")
    assert broken != data
    assert picture(broken, "rgb8", exif=True).shape == (60, 80, 3)
