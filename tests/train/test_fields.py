"""What a sample is for a person who trains: chosen fields, decoded, and nothing unpickled."""

from __future__ import annotations

import gzip
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from webdataset.autodecode import handle_extension

import tartools
from tartools.errors import SampleError
from tartools.train.fields import Chooser, chosen
from tests.conftest import make_tar

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (255, 0, 0)).save(file, "png")
    return file.getvalue()


@pytest.fixture
def sample(tmp_path: Path) -> tartools.Sample:
    members = [("a/b.PNG", png()), ("a/b.cls", b"7"), ("a/b.txt.gz", gzip.compress(b"hello")), ("a/b.npy", npy(ARRAY))]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    (found,) = tartools.read(str(tmp_path / "a.tar"))
    return found


def test_bytes(sample: tartools.Sample) -> None:
    whole = chosen(sample)
    assert whole == {
        "__key__": "a/b",
        "__url__": sample.shard,
        **{field.lower(): payload for field, payload in sample.items()},
    }
    assert list(whole) == ["__key__", "__url__", "png", "cls", "txt.gz", "npy"]
    assert chosen(sample, ("jpg;png", "cls")) == chosen(whole, "jpg;PNG cls") == (whole["png"], b"7")
    assert chosen(sample, "__key__ cls") == ("a/b", b"7")


def test_decoded(sample: tartools.Sample) -> None:
    picture, number, text, array = chosen(sample, "png cls txt.gz npy", "pil")
    assert picture.size == (3, 2) and (number, text) == (7, "hello")
    np.testing.assert_array_equal(array, ARRAY)
    whole = chosen(sample, decode="rgb8")
    assert whole["png"].shape == (2, 3, 3) and whole["cls"] == 7 and whole["__key__"] == "a/b"
    assert chosen(sample, "png cls", ())[0] == sample["png"]
    assert chosen(sample, "cls", [handle_extension("cls", lambda data: data + b"!")]) == (b"7!",)


def test_transformed(sample: tartools.Sample) -> None:
    assert chosen(sample, "cls txt.gz", (), lambda pair: pair[::-1]) == ("hello", 7)
    assert chosen(sample, "cls txt.gz", (), (lambda number: number + 1, None)) == (8, "hello")
    assert chosen(sample, decode=(), transform=len) == 6
    with pytest.raises(ValueError, match="one for each"):
        Chooser("cls", None, [None, None])
    with pytest.raises(ZeroDivisionError) as failure:
        chosen(sample, "cls", (), lambda _: 1 / 0)
    assert failure.value.__notes__ == [f"{sample.shard}: sample 'a/b': the transform failed"]


def test_what_is_not_there(sample: tartools.Sample) -> None:
    with pytest.raises(SampleError) as failure:
        chosen(sample, "jpg;jpeg")
    have = " ".join(sample.fields).lower()
    assert str(failure.value) == f"{sample.shard}: sample 'a/b': has no field 'jpg' or 'jpeg'; its fields are: {have}"
    with pytest.raises(SampleError, match="has two fields 'cls'"):
        chosen(tartools.Sample(sample.raw_key, [*sample.members, sample.members[1]._replace(path=b"a/b.CLS")]))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("this was unpickled",)


@pytest.mark.parametrize("field", ["pyd", "pickle", "pkl", "PTH", "pt", "pyd.gz", "x.pyd"])
def test_nothing_is_unpickled(field: str) -> None:
    data = pickle.dumps(Bomb())
    raw = {"__key__": "k", "__url__": "a.tar", field: gzip.compress(data) if field.endswith("gz") else data}
    assert chosen(raw) == raw
    for fields in (None, (field,)):
        with pytest.raises(SampleError, match="unpickled") as failure:
            chosen(raw, fields, ["pil"])
        assert str(failure.value).startswith(f"a.tar: sample 'k': field '{field}': this would be unpickled")


def test_arrays_of_objects_are_refused() -> None:
    file = io.BytesIO()
    objects = np.array([Bomb()])
    np.savez(file, a=objects)
    for field, data in (("npy", npy(objects)), ("npz", file.getvalue())):
        with pytest.raises(SampleError, match=f"sample 'k': field '{field}': ValueError: Object arrays"):
            chosen({"__key__": "k", "__url__": "a.tar", field: data}, decode=())


def test_what_is_asked_for_by_name_is_unpickled() -> None:
    raw = {"__key__": "k", "__url__": "a.tar", "pyd": pickle.dumps([1])}
    assert chosen(raw, "pyd", handle_extension("pyd", pickle.loads)) == ([1],)
    with pytest.raises(SampleError, match="field 'cls': ValueError: invalid literal"):
        chosen({"__key__": "k", "__url__": "a.tar", "cls": b"x"}, "cls", ())
