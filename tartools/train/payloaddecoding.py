"""Payloads to values: pictures, decoded and resized, sounds, and text, numbers, JSON and arrays.

Decoders are those of webdataset. What would unpickle is refused, because whoever wrote the shards could run code.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from tartools.errors import SampleError
from tartools.samples import pixels
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import NUMBER_SUFFIXES, PICTURE, SOUND, suffix_of
from tartools.samples.payloads import unpack
from tartools.train.ranks import SharedNumbers
from tartools.train.sounddecoding import TORCH_SOUNDS, SoundDecoder

PICKLE_SUFFIXES = ("pyd", "pickle", "pkl", "pth", "pt")  # what others unpickle
MAX_VALUE_BYTES_IN_MESSAGE = 50  # bytes of a value in a message
MIN_SCALED_RATIO = 3  # so many times the height and width that are wanted has a JPEG that is decoded smaller, at least
# decoders of pictures as they are stored, in addition to webdataset's: class and type of the result, mode
RAW_DECODERS = {
    "raw": ("numpy", "stored", ""),
    "torchraw": ("torch", "stored", ""),
    "pilraw": ("pil", "stored", ""),
}
AS_FILE = "file"  # of a dict of decoders: a field is a file that can seek
WORKERS_COUNTED_APART = 32  # that count for themselves, or nearly so


class Resize(NamedTuple):
    """The size that pictures get, by torch in the worker: bicubic with antialias, or by nearest neighbour.

        tartools.train.Resize(224)  # the shorter side becomes 224 pixels, the other keeps the ratio
        tartools.train.Resize((224, 320))  # height and width
        tartools.train.Resize(256, crop=224)  # then the centre, 224 by 224; or crop=(height, width)
        tartools.train.Resize(224, nearest=True)  # no new values, for masks: each pixel is the nearest one of before

    *scaled*: JPEGs that are six times as high and wide as *size* asks for, or more, are decoded smaller (if simplejpeg
    is installed), to at least three times that: pictures of 12 megapixels in 0.4 of the time. For 480 photographs of
    500 pixels, made 40 pixels high, the PSNR against decoding in full was at least 30 dB, and 49 in the median.
    Pictures as RGBA are resized by Pillow, not *scaled*, unless *nearest*; it weighs colours by how opaque they are.
    Values are checked by `parse_resize`, not here.
    """

    size: int | tuple[int, int]
    crop: int | tuple[int, int] | None = None
    scaled: bool = False
    nearest: bool = False

    def target_size(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) after resizing and before cropping, for a picture of *height* by *width* pixels.

        The longer side is rounded down, to at least 1: `Resize(224)` makes (224, 298) of 480 by 640. If `size` is
        (height, width), that is returned.
        """
        if not isinstance(self.size, int):
            return self.size
        short, long = sorted((height, width))
        longer_side = max(self.size * long // short, 1)
        return (self.size, longer_side) if height <= width else (longer_side, self.size)

    def apply(self, picture: Any, size: tuple[int, int] | None = None) -> Any:
        """Return *picture*, a tensor [height, width] or [height, width, channels], resized and cropped; its type stays.

        *size*: (height, width) before cropping, if it does not follow from *picture*, because that was decoded smaller;
        not used with `nearest`.
        Raises: SampleError if the crop is larger than the resized picture.
        """
        import torch

        grey = picture.ndim == 2
        planes = (picture[..., None] if grey else picture).permute(2, 0, 1)[None]
        size = size or self.target_size(*picture.shape[:2])
        if self.nearest:
            rows, columns = map(torch.from_numpy, self.nearest_pixels(*picture.shape[:2]))
            return picture[rows][:, columns]
        if size != tuple(picture.shape[:2]):
            planes = torch.nn.functional.interpolate(planes, size, mode="bicubic", antialias=True)
        top, left_edge, high, wide = self.crop_bounds(*size)
        planes = planes[..., top : top + high, left_edge : left_edge + wide]
        return planes[0, 0] if grey else planes[0].permute(1, 2, 0)

    def crop_bounds(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return (top, left, height, width) of the crop in the centre of a resized picture of *height* by *width*.

        Without a crop it is the whole picture. Raises: SampleError if the crop is higher or wider than the picture.
        """
        if self.crop is None:
            return 0, 0, height, width
        high, wide = (self.crop, self.crop) if isinstance(self.crop, int) else self.crop
        if high > height or wide > width:
            raise SampleError(f"its {height} by {width} pixels have no centre of {high} by {wide}: crop less")
        return round((height - high) / 2), round((width - wide) / 2), high, wide

    def nearest_pixels(self, height: int, width: int) -> tuple[Any, Any]:
        """Return (rows, columns) of the source that are nearest to the pixels of the resized and cropped picture.

        Both are arrays of int64, with an item for each row, or column, of the result: `picture[rows][:, columns]` is
        it.
        *height*, *width*: those of the source. Raises: SampleError if the crop is larger than the resized picture.
        """
        import numpy as np

        size = self.target_size(height, width)
        top, left_edge, high, wide = self.crop_bounds(*size)
        rows = ((np.arange(top, top + high) + 0.5) * height / size[0]).astype(np.int64)
        columns = ((np.arange(left_edge, left_edge + wide) + 0.5) * width / size[1]).astype(np.int64)
        return rows, columns


def parse_resizes(resize: Any) -> Resize | dict[str, Resize | None] | None:
    """Return *resize*, a size or a dict of sizes by field, with each size as a `Resize`; None stays None.

    A size is pixels of the shorter side, (height, width), or a `Resize`; None in a dict: as stored. Names of fields may
    be joined by ";": {"JPG;png": 224} gives both, in lower case. Raises: ValueError for any other value, and for sides
    below 1 pixel.
    """
    if not isinstance(resize, Mapping):
        return parse_resize(resize)
    return {name.lower(): parse_resize(size) for names, size in resize.items() for name in names.split(";")}


def parse_resize(size: Any) -> Resize | None:
    """Return *size* as a `Resize`: pixels of the shorter side, (height, width), or a `Resize`; None for None.

    A list of two is a pair, but not in a `Resize`. Raises: ValueError for another value or crop, and sides below 1.
    """
    if size is None:
        return None
    resize = size if isinstance(size, Resize) else Resize(tuple(size) if isinstance(size, list) else size)
    for lengths in (resize.size, 1 if resize.crop is None else resize.crop):
        sides = lengths if isinstance(lengths, tuple) else (lengths,) * 2
        if len(sides) != 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
            raise ValueError(f"resize is the pixels of the shorter side, (height, width) or Resize(...), not {size!r}")
        if min(sides) < 1:
            raise ValueError(f"resize={size!r} leaves no pixels")
    return resize


class PictureDecoder:
    """Decodes pictures: call it with a field and its bytes, as a decoder of webdataset, or `decode` with the bytes.

    *spec*: a name of webdataset, such as "pil" or "torchrgb8", or one in `RAW_DECODERS`. It says what a picture
    becomes: by "pil…" a PIL image, by "torch…" a tensor [channels, height, width], else an array [height, width,
    channels]; by "…l", "…l8" and for grey by "…raw" both are [height, width]. Tensors and arrays are uint8 with 8 in
    the name, of the stored type with "raw", else float32 from 0 to 1. A call returns None for another field.
    *suffixes*: of the fields that are pictures, in lower case; None: webdataset's list: jpg, png and many more.
    *resize*: pixels of the shorter side, (height, width), or a `Resize`; or a dict of these by field; None: as stored.
    `upright`: at first False; set it to True to turn pictures as their EXIF data say, before they are resized

    Raises: KeyError for another *spec*; ValueError for another *resize*.
    """

    @staticmethod
    def specs() -> dict[str, tuple[str, str, str]]:
        """Return a dict: name of a decoder -> (class, type of values, mode) of its pictures.

        "torch" -> ("torch", "float", "rgb"). Classes are "numpy", "torch" and "pil"; types "uint8", "float", "stored"
        if the name has "raw" in it, and None for other PIL images; modes those of Pillow in lower case, "" for the mode
        in which each picture is stored.
        """
        from webdataset.autodecode import imagespecs

        return {**imagespecs, **RAW_DECODERS}

    def __init__(self, spec: str, suffixes: Collection[str] | None = None, resize: Any = None) -> None:
        from webdataset.autodecode import IMAGE_EXTENSIONS

        self._array_kind, kind, mode = self.specs()[spec]
        self._floats, self._mode = kind == "float", mode.upper()
        self._suffixes = frozenset(IMAGE_EXTENSIONS if suffixes is None else suffixes)
        self._resize = parse_resizes(resize)
        self.upright = False
        self._refused = SharedNumbers(WORKERS_COUNTED_APART)  # one of them for each worker, by its process

    @property
    def by_pillow(self) -> int:
        """The number of JPEGs that simplejpeg refused, so that Pillow got them, here and in workers; about, if many."""
        return sum(self._refused.numbers)

    def _refuse(self) -> None:
        """Count a JPEG that simplejpeg refused, in the shared counter of this process."""
        self._refused.numbers[os.getpid() % WORKERS_COUNTED_APART] += 1

    def __call__(self, field: str, data: bytes) -> Any:
        """Return the picture *data*, decoded and resized; None if the suffix of *field* is not a picture's.

        *field*: "jpg", "seg.png"; capitals, and a dot in front, do not count. Raises: SampleError for another format,
        too many pixels, fewer than the crop, or more bits of grey than fit; what Pillow raises for damage.
        """
        if re.sub(r".*[.]", "", field).lower() not in self._suffixes:
            return None
        return self.decode(data, field.lstrip(".").lower())

    def decode(self, data: bytes, field: str = "") -> Any:
        """Return the picture *data*, decoded and resized; *field* (lower case) chooses the size if sizes are by field.

        If *field* has none there, the picture keeps its size. Raises: SampleError for another format, too many pixels,
        fewer than the crop, or more bits of grey than fit; what Pillow raises for damage.
        """
        resize = self._resize.get(field) if isinstance(self._resize, dict) else self._resize
        if not self._mode:
            return self._decode_stored(data, resize)
        if resize is not None:
            return self._decode_resized(data, resize)
        if self._array_kind == "pil":
            return pixels.decode_picture(data, self._mode, self._refuse, self.upright)
        is_torch = self._array_kind == "torch"
        array = pixels.decode_to_array(
            data, self._mode, first=is_torch, floats=self._floats, on_refusal=self._refuse, upright=self.upright
        )
        if not is_torch:
            return array
        import torch

        return torch.from_numpy(array)

    def _decode_stored(self, data: bytes, resize: Resize | None) -> Any:
        """Return the picture *data* with its stored values, which may be labels, in the class of this decoder.

        Arrays are [height, width] or [height, width, channels], tensors [height, width] or [channels, height, width].
        With a palette the values are its indexes, of 1 bit 0 and 1; unsigned numbers of 16 bits become int32 in
        tensors. *resize*: the size, by nearest neighbour even if it does not say so; None: as stored.
        Raises: SampleError for another format, too many pixels, fewer than the crop, or a PNG or TIFF with colours of
        16 bits; what Pillow raises for damage.
        """
        import numpy as np

        picture = pixels.stored_picture(data, self.upright)
        if self._array_kind == "pil" and resize is None:
            return picture
        values = np.array(picture, np.uint8 if picture.mode == "1" else None)
        if resize is not None:
            rows, columns = resize.nearest_pixels(*values.shape[:2])
            values = values[rows][:, columns]
        if self._array_kind == "pil":
            from PIL import Image

            resized = Image.fromarray(values)
            if picture.mode == "P":
                resized.putpalette(picture.getpalette() or [])
            return resized
        if self._array_kind == "numpy":
            return values
        import torch

        if values.dtype.kind == "u" and values.dtype.itemsize > 1:
            values = values.astype(np.int32)  # torch can do little with uint16
        tensor = torch.from_numpy(values)
        return tensor.permute(2, 0, 1).contiguous() if tensor.ndim == 3 else tensor

    def _decode_resized(self, data: bytes, resize: Resize) -> Any:
        """Return the picture *data*, resized by *resize*, in the class, type and layout of this decoder.

        Raises: SampleError for another format, too many pixels, fewer than the crop, or more bits of grey than fit;
        what Pillow raises for damage.
        """
        import torch

        tensor = torch.from_numpy(self._resize_to_array(data, resize))
        if self._array_kind == "pil":
            from PIL import Image

            return Image.fromarray(tensor.contiguous().numpy())
        if self._array_kind == "torch" and tensor.ndim == 3:
            tensor = tensor.permute(2, 0, 1)
        tensor = tensor.contiguous()
        if self._floats and tensor.dtype == torch.uint8:
            tensor = tensor.to(torch.float32).div_(255)
        return tensor if self._array_kind == "torch" else tensor.numpy()

    def _resize_to_array(self, data: bytes, resize: Resize) -> Any:
        """Return the picture *data* resized: an array [height, width, channels], or [height, width] for the mode "L".

        It is of uint8; for 16 bits of grey, if this decoder gives floats, of float32 from 0 to 1. Raises:
        SampleError for another format, too many pixels, fewer than the crop, or more bits of grey than fit; what Pillow
        raises for damage.
        """
        import numpy as np
        import torch

        if self._floats and pixels.has_16_bit_grey(data):
            fractions = torch.from_numpy(pixels.decode_to_array(data, self._mode, floats=True, upright=self.upright))
            return resize.apply(fractions).clamp_(0, 1).numpy()  # bicubic overshoots
        if self._mode == "RGBA" and not resize.nearest:  # Pillow weighs colours by how opaque they are
            picture = pixels.decode_picture(data, self._mode, self._refuse, self.upright)
            high, wide = resize.target_size(picture.height, picture.width)
            return resize.apply(torch.from_numpy(np.array(picture.resize((wide, high))))).numpy()
        full_size: list[tuple[int, int]] = []

        def min_size_of(height: int, width: int) -> tuple[int, int]:
            """Note the size before cropping in `full_size`; return three times it, the least size for decoding a JPEG.

            Sizes are (height, width); *height* and *width* are those of the picture as stored, or turned upright.
            """
            full_size[:] = [resize.target_size(height, width)]
            return MIN_SCALED_RATIO * full_size[0][0], MIN_SCALED_RATIO * full_size[0][1]

        array = pixels.decode_to_array(
            data,
            self._mode,
            min_size=min_size_of if resize.scaled else None,
            on_refusal=self._refuse,
            upright=self.upright,
        )
        return resize.apply(torch.from_numpy(array), *full_size).numpy()


# kind of payload (`samples.kinds`) -> class of its decoders, each of which has a name of `specs`
DECODERS: dict[str, type[PictureDecoder | SoundDecoder]] = {PICTURE: PictureDecoder, SOUND: SoundDecoder}


def named_decoders(name: str, resize: Any = None) -> list[PictureDecoder | SoundDecoder]:
    """Return the decoders called *name*: one, but for "torch" two, of pictures and of sounds, in this order.

    *resize*: pixels of the shorter side, (height, width), or a `Resize`; or a dict of these by field; None: as stored.
    Raises: ValueError for an unknown name, or another size.
    """
    specs = {kind: decoder.specs() for kind, decoder in DECODERS.items()}
    if named := [decoder(name, None, resize) for kind, decoder in DECODERS.items() if name in specs[kind]]:
        return named
    choices = "; ".join(f"for {kind}s there are {', '.join(names)}" for kind, names in specs.items())
    raise ValueError(f"no decoder is called {name!r}; {choices}")


class FieldDecoder(NamedTuple):
    """Decodes one *field*: by *function* of its bytes, by *decoder*, or if both are None to a file in memory (BytesIO).

    Call it with a field and its bytes; it returns None for another field. A compressed field, such as jpg.gz, has the
    name of what is inside (jpg) in `field`, in lower case: `decompress_field` comes before.
    """

    field: str
    function: Callable[[bytes], Any] | None
    decoder: PictureDecoder | SoundDecoder | None

    @classmethod
    def of(cls, field: str, spec: Any, resize: Any) -> Any:
        """Return the decoder of *field*. *spec*: the name of a decoder, "file", or a function of the payload's bytes.

        "basic", and a *spec* that is neither a name nor a function, is returned unchanged: the caller has to look. Of
        two decoders of one name ("torch") a field of a sound gets that of sounds.
        *resize*: pixels of the shorter side, (height, width), or a `Resize`; or a dict of these by field; None: as
        stored; not looked at for a function. Raises: ValueError for an unknown name, or another size.
        """
        if spec == "basic" or not (isinstance(spec, str) or callable(spec)):
            return spec  # which is no decoder of a field
        inner = split_codec(field.lower())[0]
        if callable(spec):
            return cls(inner, spec, None)
        sizes = parse_resizes(resize)
        resize = sizes.get(field.lower()) if isinstance(sizes, dict) else sizes
        if spec == AS_FILE:
            return cls(inner, None, None)
        decoders = named_decoders(spec, resize)
        return cls(inner, None, decoders[-1] if suffix_of(inner) in TORCH_SOUNDS else decoders[0])

    def __call__(self, field: str, data: bytes) -> Any:
        """Return *data* of *field*, in lower case, decoded; None if *field* is not `field`, so that other decoders try.

        A dot in front of *field* does not count. Raises: the errors of the function, or of the decoder (SampleError).
        """
        if field.lstrip(".") != self.field:
            return None
        if self.function is not None:
            return self.function(data)
        return io.BytesIO(data) if self.decoder is None else self.decoder.decode(data)


def picture_decoders(decoders: Iterable[Any]) -> list[PictureDecoder]:
    """Return the picture decoders among *decoders*, in order, also the `decoder` of each `FieldDecoder`."""
    candidates = (decoder.decoder if isinstance(decoder, FieldDecoder) else decoder for decoder in decoders)
    return [decoder for decoder in candidates if isinstance(decoder, PictureDecoder)]


def make_decoders(decode: Any, resize: Any = None, exif: bool = False) -> list[Callable[..., Any]]:
    """Return the decoders for *decode*, in order, each a function of a field and its bytes; "basic" adds none.

    A decoder returns the value, or None for a field that it does not decode.
    *decode*: the name of a decoder ("pil"), a function of a field and its bytes, a list or tuple of these, or a dict by
    field of names, "file" (a file in memory) and functions of bytes.
    *resize*: pixels of the shorter side, (height, width), or a `Resize`; or a dict of these by field; None: as stored.
    *exif*: True turns pictures as their EXIF data say.
    Raises: TypeError for another *decode*; ValueError for an unknown name or another size, and for *resize* or *exif*
    without a decoder of pictures.
    """
    if isinstance(decode, Mapping):
        decode = [FieldDecoder.of(field, spec, resize) for field, spec in decode.items()]
    several = [decode] if isinstance(decode, str) or callable(decode) else decode
    if not isinstance(several, (list, tuple)) or not all(
        isinstance(decoder, str) or callable(decoder) for decoder in several
    ):
        raise TypeError(
            f"decode is 'pil', 'torchrgb8' or another name, a function, a list of these, or a dict of them by field, "
            f"not {decode!r}; "
            "decode='basic' decodes text, numbers, JSON and arrays alone"
        )
    handlers: list[Any] = []
    for decoder in several:
        if decoder != "basic":
            handlers += named_decoders(decoder, resize) if isinstance(decoder, str) else [decoder]
    if resize is not None and not picture_decoders(handlers):
        raise ValueError("resize is for pictures: name their decoder too, as decode='torchrgb8'")
    if exif and not picture_decoders(handlers):
        raise ValueError("exif is for pictures: name their decoder too, as decode='torchrgb8'")
    for decoder in picture_decoders(handlers) if exif else ():
        decoder.upright = True
    return handlers


def make_decoder(decode: Any, resize: Any = None, exif: bool = False) -> Any:
    """Return webdataset's Decoder with the decoders *decode*; None if *decode* and *resize* are None, and not *exif*.

    It makes a dict of decoded fields of a sample, a dict. It decompresses fields such as txt.zst first, unpickles
    nothing of itself, and decodes text, numbers, JSON and arrays, too.
    *decode*: the name of a decoder ("pil"), a function of a field and its bytes, a list or tuple of these, or a dict by
    field of names, "file" (a file in memory) and functions of bytes.
    *resize*: pixels of the shorter side, (height, width), or a `Resize`; or a dict of these by field; None: as stored.
    *exif*: True turns pictures as their EXIF data say.
    Raises: TypeError for another *decode*; ValueError for an unknown name or another size, and for *resize* or *exif*
    without a decoder of pictures.
    """
    from webdataset.autodecode import Decoder

    if decode is None and resize is None and not exif:
        return None
    return Decoder(
        make_decoders(() if decode is None else decode, resize, exif), pre=[decompress_field], post=[decode_basic]
    )


def picture(data: bytes, decode: str = "torchrgb8", resize: Any = None, exif: bool = False) -> Any:
    """Return the JPEG, PNG or other picture *data*, decoded and resized: for pipelines other than ours.

    *decode*: name of a decoder, by default that of a uint8 tensor [3, height, width]. *resize*: pixels of the shorter
    side, (height, width), or a `Resize`; None: as stored. *exif*: True turns it as its EXIF data say.
    Raises: SampleError for another format, too many pixels, fewer than the crop, or more bits of grey than fit; what
    Pillow raises for damage; ValueError for another name or size.
    """
    return _picture_decoder(decode, parse_resize(resize), exif).decode(data)


@lru_cache
def _picture_decoder(decode: str, resize: Resize | None, exif: bool) -> PictureDecoder:
    """Return the picture decoder named *decode* with *resize*; *exif*: it turns pictures as their EXIF data say.

    The same decoder for the same arguments: cached. Raises: ValueError for a name of no decoder of pictures.
    """
    decoders = picture_decoders(make_decoders(decode, resize, exif))
    if not decoders:
        raise ValueError(f"decode={decode!r} decodes no pictures; name a decoder that does, as decode='torchrgb8'")
    return decoders[0]


def decompress_field(key: str, data: bytes) -> Any:
    """Decompress *data*, of the field *key*; a handler for webdataset's Decoder, which calls it before its decoders.

    Returns webdataset's Continue, with the decompressed data and the field without the suffix of the codec, which are
    decoded next: ".txt.gz" -> ".txt"; None unless *key* ends in gz, bz2, xz, zst or lz4, in lower or upper case.
    Webdataset's own handler does so for gz alone.
    Raises: ValueError if *data* is empty, not compressed so, damaged, or has more than 1 GiB; StorageError if there is
    too little memory, or for zstd that needs a window above 128 MiB.
    """
    from webdataset.autodecode import Continue

    field = key.removeprefix(".")
    inner, codec = split_codec(field)
    return None if codec is None else Continue(f".{inner}", unpack(field, data))


def decode_basic(key: str, data: bytes) -> Any:
    """Decode *data*, of the field *key*, by webdataset's basic handlers: text, whole numbers, JSON, arrays and others.

    txt -> str, cls -> int, json -> its value, npy -> array, npz -> dict of arrays; None for others, and in upper case.
    Raises: SampleError for pickles (in any case), and for text where a number should be; else the handlers' errors.
    """
    from webdataset.autodecode import basichandlers

    suffix = re.sub(r".*[.]", "", key).lower()
    if suffix in PICKLE_SUFFIXES:
        raise SampleError(
            "this would be unpickled, and could run any code; read it with a function of your own, as "
            'decode=[handle_extension("pyd", pickle.loads)]'
        )
    try:
        return basichandlers(key, data)
    except ValueError:
        if suffix not in NUMBER_SUFFIXES:
            raise
        raise SampleError(
            f"{data[:MAX_VALUE_BYTES_IN_MESSAGE].decode(errors='replace')!r} is not a whole number, "
            "and this field is decoded as one: "
            f'store the number of the class, or take the text, decode=[handle_extension("{suffix}", bytes.decode)]'
        ) from None
