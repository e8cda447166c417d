"""What a dataset gives, as the fields of a sample: files as they are, pictures, labels and arrays encoded."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from tartools import storage
from tartools.errors import SampleError, TarToolsError
from tartools.formats.build import local_url
from tartools.samples.encoding import encode, encode_picture, text_payload, unpacked
from tartools.samples.filetypes import suffix_of
from tartools.samples.sample import Sample, build

KEEP, ENCODINGS = "keep", ("jpg", "png", "webp")
OPTIONS = {"jpg": {"quality": 95}, "webp": {"quality": 95}}
MODES = {"jpg": ("L", "RGB", "CMYK"), "webp": ("RGB", "RGBA")}  # others become RGB; of png all that it can hold


class Encoded(Dataset[Any]):
    """The samples of *dataset*, as *kind* says: "keep", or the format of pictures. Sample n has the key n, in 9 digits.

    An item is a failure, as a value, if it can't be read or encoded: so it crosses from a worker as it is.
    """

    def __init__(self, dataset: Any, kind: str = KEEP) -> None:
        if kind not in (KEEP, *ENCODINGS):
            raise ValueError(f"encode is 'keep', {', '.join(map(repr, ENCODINGS))}; not {kind!r}")
        self.dataset = dataset
        self.kind = kind

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample | TarToolsError:
        try:
            fields = (self._original(index) if self.kind == KEEP else None) or self._fields(self.dataset[index])
            return build({"__key__": f"{index:09d}", **fields})
        except Exception as error:
            text = str(error) if isinstance(error, TarToolsError) else f"{type(error).__name__}: {error}"
            return SampleError(f"item {index} of the dataset: {text}")

    def _original(self, index: int) -> dict[str, bytes] | None:
        """Return the fields of item *index* if it is a file that the dataset names, else None."""
        found = file_of(self.dataset, index)
        if found is None:
            return None
        path, label = found
        suffix = os.path.splitext(path)[1][1:].lower()
        if not suffix:
            return None
        name, value = self._labelled(label, {suffix})
        return {suffix: storage.content(local_url(os.fspath(path), "")), name: value}

    def _fields(self, item: Any) -> dict[str, bytes]:
        """Return the fields of *item*, a dict, or a picture and its label. Raises: TypeError."""
        if isinstance(item, Mapping):
            named = (self._named(name, value) for name, value in item.items() if not name.startswith("__"))
            return dict(named)
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise TypeError(f"an item is a dict, or a picture and its label; not {type(item).__name__}")
        kind = self._kind(item[0])
        if kind in ("cls", "json"):
            raise TypeError(f"the first of two is a picture, an array or text; not {type(item[0]).__name__}")
        name, value = self._labelled(item[1], {kind})
        return {kind: self._payload(kind, item[0]), name: value}

    def _labelled(self, label: Any, others: set[str]) -> tuple[str, bytes]:
        """Return the field of *label* and its payload; the name begins with label. where *others* have it."""
        kind = self._kind(label)
        return f"label.{kind}" if kind in others else kind, self._payload(kind, label)

    def _named(self, name: str, value: Any) -> tuple[str, bytes]:
        """Return the field *name* of a dict and its payload; a suffix is added to a name that does not say the kind."""
        kind = self._kind(value)
        if kind == "bin":
            return name, self._payload(kind, value)
        last = suffix_of(unpacked(name)[0])
        suffixes = {"jpg": (*ENCODINGS, "jpeg", "tif", "tiff"), "npy": ("npy",), "json": ("json",)}
        is_picture = kind in ENCODINGS
        if kind in ("cls", "txt") or last in suffixes["jpg" if is_picture else kind]:
            return name, text_payload(name, self._payload(last if is_picture else kind, value))
        return f"{name}.{kind}", self._payload(kind, value)

    def _kind(self, value: Any) -> str:
        """Return the suffix that says what *value* is."""
        value = plain(value)
        if type(value).__module__.startswith("PIL."):
            return "png" if self.kind == KEEP else self.kind
        if isinstance(value, np.ndarray):
            is_picture = value.dtype == np.uint8 and (value.ndim == 2 or (value.ndim == 3 and value.shape[2] == 3))
            return self.kind if is_picture and self.kind != KEEP else "npy"
        if isinstance(value, int):
            return "cls"
        if isinstance(value, (str, float)):
            return "txt"
        if isinstance(value, (dict, list)):
            return "json"
        if isinstance(value, (bytes, bytearray)):
            return "bin"
        raise TypeError(f"cannot write a {type(value).__name__}")

    def _payload(self, kind: str, value: Any) -> bytes:
        """Return *value* as a payload. Raises: TypeError for arrays of objects, and for what Pillow can't write."""
        value = plain(value)
        if kind == "npy":
            file = io.BytesIO()
            try:
                np.save(file, value, allow_pickle=False)
            except ValueError as error:
                raise TypeError(f"cannot write this array: {error}") from None
            return file.getvalue()
        if isinstance(value, np.ndarray):
            from PIL import Image

            value = Image.fromarray(value)
        if type(value).__module__.startswith("PIL."):
            name = "jpg" if kind == "jpeg" else kind
            if name in MODES and value.mode not in MODES[name]:
                value = value.convert("RGB")
            return encode_picture(kind, kind, value, **OPTIONS.get(name, {}))
        return encode(kind, int(value) if isinstance(value, bool) else value)


def plain(value: Any) -> Any:
    """Return tensors as arrays, and what has no dimension as a Python value."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return value.item()
    return value


def file_of(dataset: Any, index: int) -> tuple[str, Any] | None:
    """Return path and label of item *index* if *dataset* lists them, as torchvision's `ImageFolder` does, else None.

    Of a `Subset` it is the dataset below. The label is what `target_transform` makes of it.
    """
    while isinstance(dataset, Subset):
        dataset, index = dataset.dataset, dataset.indices[index]
    listed = getattr(dataset, "samples", None) or getattr(dataset, "imgs", None)
    if not isinstance(listed, (list, tuple)) or not hasattr(dataset, "loader") or len(listed) != len(dataset):
        return None
    path, label = listed[index]
    transform = getattr(dataset, "target_transform", None)
    return os.fspath(path), label if transform is None else transform(label)
