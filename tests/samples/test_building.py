"""What a sample can't be made of: the message names key and field, and what to do."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tartools
from tartools.errors import SampleError
from tartools.samples.sample import build


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("jpg", Image.new("RGBA", (2, 2)), r"cannot write mode RGBA as JPEG \(picture.convert\('RGB'\) makes one"),
        ("png", Image.new("F", (2, 2)), "cannot write mode F as PNG"),
        ("jpg", np.zeros((2, 2, 4), np.uint8), "cannot write mode RGBA as JPEG"),
        ("jpg", io.BytesIO(b"1"), r"cannot write a file, BytesIO; give its bytes: value.read\(\)"),
        ("npy", object(), ""),
        ("json", {"a": object()}, "cannot write values of type object"),
        ("txt.gz", io.StringIO("1"), "cannot write a file, StringIO"),
    ],
)
def test_a_value_that_cannot_be_written_is_named(field: str, value: object, said: str, tmp_path: Path) -> None:
    for make in (build, lambda sample: tartools.write([sample], tmp_path / "a.tar")):
        with pytest.raises(TypeError, match=f"^sample 'n01', (field )?'?{field.removesuffix('.gz')}?.*{said}"):
            make({"__key__": "n01", "cls": 1, field: value})
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize("fields", [("JPG", "jpg"), ("cls", "seg.PNG", "Seg.png")])
def test_fields_that_differ_only_in_case_are_refused(fields: tuple[str, ...]) -> None:
    with pytest.raises(SampleError, match=f"sample 'n01' has the fields '{fields[-2]}' and '{fields[-1]}', which"):
        build({"__key__": "n01"} | dict.fromkeys(fields, b"1"))
    assert len(build({"__key__": "n01", "jpg": b"1", "jpeg": b"2", "__URL__": "", "__url__": ""}).members) == 2
