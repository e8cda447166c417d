"""Pictures as webdataset's decoders give them ("pil", "rgb8", "torchrgb"), decoded as `samples.pictures` does."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from tartools.samples import pictures


class PictureDecoder:
    """Decodes fields with one of *suffixes*, by default webdataset's, as *spec* says: a name of webdataset.

    Raises: ValueError for a name that webdataset does not have.
    """

    def __init__(self, spec: str, suffixes: Collection[str] | None = None) -> None:
        from webdataset.autodecode import IMAGE_EXTENSIONS, imagespecs

        if spec not in imagespecs:
            raise ValueError(f"no decoder is called {spec!r}; for pictures there are {', '.join(imagespecs)}")
        self._made, kind, mode = imagespecs[spec]
        self._floats, self._mode = kind == "float", mode.upper()
        self._suffixes = frozenset(IMAGE_EXTENSIONS if suffixes is None else suffixes)

    def __call__(self, field: str, data: bytes) -> Any:
        """Return the picture *data*; None if *field* is no picture. Raises: as `pictures.picture`."""
        if re.sub(r".*[.]", "", field).lower() not in self._suffixes:
            return None
        if self._made == "pil":
            return pictures.picture(data, self._mode)
        is_torch = self._made == "torch"
        found = pictures.array(data, self._mode, first=is_torch, floats=self._floats)
        if not is_torch:
            return found
        import torch

        return torch.from_numpy(found)


def decoders(decode: Any) -> list[Callable[..., Any]]:
    """Return the decoders that *decode* names: a name, a function, or several of these.

    Raises: TypeError for anything else; ValueError for another name.
    """
    several = [decode] if isinstance(decode, str) or callable(decode) else decode
    if not isinstance(several, (list, tuple)) or not all(isinstance(one, str) or callable(one) for one in several):
        raise TypeError(
            f"decode is 'pil', 'torchrgb8' or another name, a function, or a list of these, not {decode!r}; "
            "decode=() decodes text, numbers, JSON and arrays alone"
        )
    return [PictureDecoder(one) if isinstance(one, str) else one for one in several]
