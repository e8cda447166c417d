"""What a sample is for a person who trains: chosen fields, decoded, and nothing unpickled."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import soundfile
from PIL import Image
from torch.utils.data import Subset
from webdataset.autodecode import ImageHandler, handle_extension, imagespecs

import tartools
from tartools.errors import SampleError, StorageError
from tartools.tar import member
from tartools.tar.compression import CODECS, Codec
from tartools.train import TableDataset, WebDataset, ZipDataset, loader, stream_map
from tartools.train.fieldchooser import FieldChooser
from tartools.train.payloaddecoding import PictureDecoder
from tests.archives import encoded, npy, wav
from tests.conftest import Run, make_tar, python
from tests.storage.objects.faults import FaultServer
from tests.tiers import also

ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


def chosen(sample: Any, fields: Any = None, decode: Any = None, transform: Any = None) -> Any:
    return FieldChooser(fields, decode, transform)(sample)


def png() -> bytes:
    return encoded(Image.new("RGB", (3, 2), (255, 0, 0)), "png")


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
    assert chosen(sample, "png cls", "basic")[0] == sample["png"]
    assert chosen(sample, "cls", [handle_extension("cls", lambda data: data + b"!")]) == (b"7!",)


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name)
def test_compressed_fields_are_decoded(codec: Codec, tmp_path: Path) -> None:
    """As they are without compression, by loader's chooser and by WebDataset; a decoder gets what is inside."""
    contents = {"png": png(), "cls": b"7", "txt": b"hello", "json": b'{"a": [1]}', "npy": npy(ARRAY), "bin": b"raw"}
    suffix = codec.suffixes[-1].removeprefix(".tar")
    members = []
    for field, data in contents.items():
        compressor = codec.compressor()
        members += [(f"a.{field}", data), (f"a.in.{field}{suffix}", compressor.compress(data) + compressor.flush())]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    (one,) = tartools.read(str(tmp_path / "a.tar"))
    whole = chosen(one, decode="rgb8")
    (streamed,) = WebDataset(str(tmp_path / "a.tar")).decode("rgb8")
    for found in (whole, streamed):
        for field in contents:
            np.testing.assert_array_equal(found[f"in.{field}{suffix}"], found[field])
    name = f"in.txt{suffix}"
    assert chosen(one, name, {name: bytes.upper}) == (b"HELLO",)
    assert chosen(one, name, {name: "file"})[0].read() == b"hello"
    assert chosen(one) == chosen(one, decode=None) and chosen(one)[name] == one[name]
    chooser = FieldChooser(name, "basic", classes={name: ["bye", "hello"]})
    assert chooser(one) == (1,)


def test_damaged_compression_is_an_error_that_names_the_field(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.txt.zst", b"no"), ("a.label.gz", gzip.compress(b"x")[:-3])]))
    (one,) = tartools.read(str(tmp_path / "a.tar"))
    for field, options in (("txt.zst", {}), ("label.gz", {"classes": {"label.gz": ["x"]}})):
        with pytest.raises(SampleError, match=f"sample 'a'.*{field}"):
            FieldChooser(field, "basic", **options)(one)


def none(_: Any) -> Any:
    return next(iter(()))


def test_transformed(sample: tartools.Sample) -> None:
    assert chosen(sample, "cls txt.gz", "basic", lambda pair: pair[::-1]) == ("hello", 7)
    assert chosen(sample, "cls txt.gz", "basic", (lambda number: number + 1, None)) == (8, "hello")
    assert chosen(sample, decode="basic", transform=len) == 6
    with pytest.raises(ValueError, match="one for each"):
        FieldChooser("cls", None, [None, None])
    with pytest.raises(ZeroDivisionError) as failure:
        chosen(sample, "cls", "basic", lambda _: 1 / 0)
    assert failure.value.__notes__ == [f"{sample.shard}: sample 'a/b': the transform failed"]
    for transform in (none, (None, none)):  # who iterates would take it for the end
        with pytest.raises(RuntimeError, match="sample 'a/b': the transform raised StopIteration"):
            chosen(sample, "cls txt.gz", None, transform)


def test_what_is_not_there(sample: tartools.Sample) -> None:
    with pytest.raises(SampleError) as failure:
        chosen(sample, "jpg;jpeg")
    have = " ".join(sample.fields).lower()
    assert str(failure.value) == f"{sample.shard}: sample 'a/b': has no field 'jpg' or 'jpeg'; its fields are: {have}"
    with pytest.raises(SampleError, match="has two fields 'cls'"):
        chosen(tartools.Sample(sample.raw_key, [*sample.members, sample.members[1]._replace(path=b"a/b.CLS")]))


@pytest.mark.parametrize("fields", [None, "cls __key__"])
@pytest.mark.parametrize("name", ["__key__", "__URL__", "__x__"])
def test_a_field_does_not_take_the_place_of_the_key(name: str, fields: str | None, run: Run) -> None:
    members = [(f"a/{n}.{field}", b"7") for n in range(3) for field in ("cls", name)[: 1 + (n == 1)]]
    Path("a.tar").write_bytes(make_tar(members))
    with zipfile.ZipFile("a.zip", "w") as file:
        for path, data in members:
            file.writestr(path, data)
    assert run("tarindex", "a.tar", "-o", "a.parquet").status == 0
    message = re.escape(f"sample 'a/1': has a field {name!r}, and names that begin with __ are those of the key")
    for made in (
        lambda: [*loader("a.parquet", 3, fields=fields, shuffle=False)],
        lambda: [*loader("a.parquet", 2, fields=fields, shuffle=False)],
        lambda: TableDataset("a.parquet", fields)[1],
        lambda: [*WebDataset("a.tar", fields=fields)],
        lambda: [*WebDataset("a.parquet", fields=fields)],
        lambda: ZipDataset("a.zip", fields)[1],
        lambda: [*stream_map(str, "a.tar", fields=fields)],
    ):
        with pytest.raises(SampleError, match=message):
            made()
    assert run("tarcat", "-x", name, "a.tar", "-o", "b.tar").status == 0
    assert [sample["cls"] for sample in WebDataset("b.tar")] == [b"7"] * 3


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
            chosen({"__key__": "k", "__url__": "a.tar", field: data}, decode="basic")


def test_what_is_asked_for_by_name_is_unpickled() -> None:
    raw = {"__key__": "k", "__url__": "a.tar", "pyd": pickle.dumps([1])}
    assert chosen(raw, "pyd", handle_extension("pyd", pickle.loads)) == ([1],)


MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # those of more bits are in test_pictures


@pytest.mark.filterwarnings("ignore:Palette images with Transparency")
@pytest.mark.parametrize("spec", sorted(imagespecs))
def test_pictures_are_what_webdataset_makes(spec: str) -> None:
    """Of all modes of Pillow with up to 8 bits; also of a picture that is converted in several bands."""
    theirs, ours = ImageHandler(spec), PictureDecoder(spec)
    draw = np.random.default_rng(1)
    for mode in MODES:
        made = Image.fromarray(draw.integers(0, 256, (41, 29, 4), np.uint8), "RGBA").convert(
            "RGB" if mode in ("CMYK", "YCbCr") else "L" if mode in ("PA", "LA") else "RGBA"
        )
        file = io.BytesIO()
        made.convert(mode).save(file, "tiff" if mode in ("CMYK", "YCbCr", "PA") else "png")
        for band in (1 << 20, 29 * 7):
            with mock.patch("tartools.samples.pixels.BAND_PIXELS", band):
                found, wanted = ours(".png", file.getvalue()), theirs(".png", file.getvalue())
            assert type(found) is type(wanted) and getattr(found, "dtype", None) == getattr(wanted, "dtype", None)
            assert not isinstance(found, Image.Image) or found.mode == wanted.mode
            np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
    assert ours("cls", b"7") is None


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n{} loop\n"


@pytest.mark.parametrize("decode", ["pil", "rgb8", "torchrgb", ["l8"]])
def test_no_program_is_run_for_a_picture(decode: Any) -> None:
    """Pillow would have Ghostscript run it, for ever."""
    raw = {"__key__": "k", "__url__": "a.tar", "jpg": EPS}
    with pytest.raises(
        SampleError, match=r"^a.tar: sample 'k': field 'jpg': this is not a picture that is decoded here"
    ):
        chosen(raw, "jpg", decode)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("decode", ["pil", "rgb8", "torchrgb"])
def test_pictures_of_too_many_pixels(decode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = {"__key__": "k", "__url__": "a.tar", "png": png()}
    for most in (5, 2):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(SampleError, match=r"field 'png': .*6 pixels"):
            chosen(raw, "png", decode)
    for enough in (6, None):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", enough)
        chosen(raw, "png", decode)


def test_a_picture_of_many_pixels_takes_the_memory_of_its_array() -> None:
    """One bit a pixel, in 11 kB. What decoding takes is measured in a process of its own."""
    program = """
import io, resource, numpy, torch, webdataset
from PIL import Image
from tartools.train.fieldchooser import FieldChooser
file = io.BytesIO()
Image.new("1", (9400, 9400)).save(file, "png")
assert len(file.getvalue()) < 20_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
FieldChooser("png", "torchrgb8")({"__key__": "k", "__url__": "", "png": file.getvalue()})
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 // 9400**2)
"""
    assert int(python(program).output()) <= 4


def test_decoders_by_field() -> None:
    raw = {"__key__": "k", "__url__": "a.tar", "png": png(), "seg.png": png(), "x": b"\x01\x02", "cls": b"7"}
    found = chosen(raw, None, {"seg.png": "l8", "png": "torchrgb8", "x": list})
    assert (found["png"].shape, found["seg.png"].shape, found["x"], found["cls"]) == ((3, 2, 3), (2, 3), [1, 2], 7)
    found = chosen(raw, "x seg.png cls", {"X": "file", "seg.png": len})
    assert (found[0].seek(1), found[0].read(), found[1], found[2]) == (1, b"\x02", len(png()), 7)


def test_a_field_as_a_file_is_read_as_it_is_asked_for() -> None:
    """A second of a long sound: by number little is read; from a stream it is there already."""
    sound = bytearray(wav(1 << 22))
    sound[-16_000:] = b"\x01\x02" * 8_000
    Path("a.tar").write_bytes(make_tar([("a.wav", bytes(sound)), ("a.txt", b"a"), ("b.wav", wav(9)), ("b.txt", b"b")]))
    options: dict[str, Any] = {"fields": "txt wav", "decode": {"wav": "file"}, "transform": [None, last_second]}
    with mock.patch("tartools.tar.member.read_range", wraps=member.read_range) as reading:
        batches = list(loader("a.tar", 2, shuffle=False, collate_fn=list, **options))
    read = sum(call.args[2] - call.args[1] for call in reading.call_args_list)
    assert read < 16_000 + 4 * io.DEFAULT_BUFFER_SIZE  # 128 KiB from Python 3.14 on, 8 before
    first = (8_000, 0x0201 / (1 << 15))
    assert batches == [[("a", first), ("b", (9, 0.0))]] == [[*WebDataset("a.tar", **options)]]
    assert [*loader("a.tar", 2, shuffle=False, collate_fn=list, num_workers=1, **options)] == batches


@pytest.mark.parametrize("scheme", ["s3", "gs", *also("http", "ais")])
def test_a_field_of_a_store_is_read_by_ranges(scheme: str, server: FaultServer) -> None:
    """A second of a long sound, and a frame of a long video, of shards in a store: little is fetched."""
    sound, video = bytearray(wav(1 << 22)), avi([picture("blue")] * 4 + [picture("red")])
    sound[-16_000:] = b"\x01\x02" * 8_000
    members = [("a.wav", bytes(sound)), ("a.txt", b"a"), ("b.wav", wav(9)), ("b.txt", b"b"), ("v.avi", video)]
    server.objects["a.tar"] = make_tar([*members, ("v.txt", b"v"), ("w.wav", bytes(sound)), ("w.txt", b"w")])
    url = server.url(scheme, "a.tar")
    options: dict[str, Any] = {"decode": {"wav": "file"}, "transform": [None, last_second]}
    data = TableDataset(url, "txt wav", **options)
    frames = TableDataset(data.table, "avi txt", {"avi": "file", "txt": bytes.decode}, [last_frame, None])
    server.requests.clear()
    first = (8_000, 0x0201 / (1 << 15))
    assert data.__getitems__([3, 0, 1]) == [("w", first), ("a", first), ("b", (9, 0.0))] and data[-1] == ("w", first)
    assert frames[2] == ((254, 0, 0), "v")
    starts = [request.start for request in server.requests if request.method == "GET"]
    assert None not in starts and 0 < len(starts) < 60  # of up to 256 KiB, where a range begins small
    with pytest.raises(SampleError, match="sample 'v': has no field 'wav'; its fields are: avi txt"):
        data[2]
    (batch,) = loader(Subset(data, [3, 0]), 2, shuffle=False, collate_fn=list, num_workers=1)
    assert batch == [("w", first), ("a", first)]
    server.objects["a.tar"] += bytes(512)
    with pytest.raises(StorageError, match=r"a.tar: .*was replaced since the table was made"):
        data[0]


def picture(colour: str) -> bytes:
    return encoded(Image.new("RGB", (64, 48), colour), "jpeg") + bytes(
        2_000_000
    )  # what follows the picture is not read


def avi(frames: list[bytes]) -> bytes:
    """Return a video of *frames*, which are JPEGs: Motion JPEG in RIFF, of which only chunks matter here."""
    chunks = b"".join(b"00dc" + len(one).to_bytes(4, "little") + one + bytes(len(one) % 2) for one in frames)
    movie = b"LIST" + (len(chunks) + 4).to_bytes(4, "little") + b"movi" + chunks
    return b"RIFF" + (len(movie) + 4).to_bytes(4, "little") + b"AVI " + movie


def last_frame(file: Any) -> tuple[int, ...]:
    """Return the colour of the last frame, found from chunk to chunk, without reading the others."""
    at, size = file.seek(24), 0
    while len(head := file.read(8)) == 8:
        at, size = at + 8, int.from_bytes(head[4:], "little")
        at = file.seek(at + size + size % 2)
    file.seek(at - size - size % 2)
    found: tuple[int, ...] = Image.open(io.BytesIO(file.read(size))).getpixel((0, 0))  # type: ignore[assignment]
    return found


def last_second(file: Any) -> tuple[int, float]:
    with soundfile.SoundFile(file) as opened:
        opened.seek(max(opened.frames - 8_000, 0))
        values = opened.read()
        return len(values), float(values.max())


def test_what_is_no_decoder() -> None:
    for wrong in (True, 5, [7], {"jpg": 7}):
        with pytest.raises(TypeError, match=r"^decode is 'pil', 'torchrgb8' or another name, a function"):
            FieldChooser(decode=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^no decoder is called 'PIL'; for pictures there are .*torchrgb8, .*, pil, "):
        FieldChooser(decode="PIL")


def test_what_cannot_be_decoded_says_what_to_do() -> None:
    raw = {"__key__": "k", "__url__": "a.tar", "cls": b"autumn", "json": b"{"}
    number = (
        "a.tar: sample 'k': field 'cls': 'autumn' is not a whole number, and this field is decoded as one: store the "
    )
    with pytest.raises(SampleError, match=re.escape(number)) as failure:
        chosen(raw, "cls", "basic")
    with pytest.raises(SampleError, match=re.escape(number)):
        chosen(raw, None, "torchrgb8")
    assert str(failure.value).endswith('take the text, decode=[handle_extension("cls", bytes.decode)]')
    assert chosen(raw, "cls", [handle_extension("cls", bytes.decode)]) == ("autumn",)
    with pytest.raises(SampleError, match=r"field 'json': JSONDecodeError: .* [(]tarcheck --decode lists"):
        chosen(raw, "json", "basic")
