"""tar2tfrecord, and tarcreate --tfrecord."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tfrecord.reader import tfrecord_loader
from tfrecord.writer import TFRecordWriter

from tartools.errors import how_to_install
from tests.conftest import Result, Run, has_end, make_tar, members_of, python

SAMPLES = [
    ("README", b"\x00 text\n"),
    ("d/a.JPG", b"\xff\xd8" * 900),
    ("d/a.cls", b"3\n"),
    ("d/a.jpg", b""),
    ("d/ü.json", b"{}"),
    ("d/ü.seg.png", b"\x89PNG" * 70),
]
# The message that TensorFlow's tutorial on tf.train.Example prints, and the first bytes of every file of TensorBoard.
TUTORIAL = (
    b"\nR\n\x11\n\x08feature0\x12\x05\x1a\x03\n\x01\x00\n\x11\n\x08feature1\x12\x05\x1a\x03\n\x01\x04"
    b"\n\x14\n\x08feature2\x12\x08\n\x06\n\x04goat\n\x14\n\x08feature3\x12\x08\x12\x06\n\x04[\xd3|?"
)
TENSORBOARD = bytes.fromhex("1800000000000000a37f4b22")


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of *data*, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def framed(record: bytes) -> bytes:
    """Return *record* as it stands in a file."""
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def field(number: int, payload: bytes) -> bytes:
    """Return a field of a message of protobuf, of up to 16,383 bytes."""
    size = len(payload)
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + length + payload


def example(*features: tuple[str, bytes]) -> bytes:
    """Return a tf.train.Example: *features* have names, and lists as messages."""
    return field(1, b"".join(field(1, field(1, name.encode()) + field(2, value)) for name, value in features))


def of_bytes(*values: bytes) -> bytes:
    return field(1, b"".join(field(1, value) for value in values))


def of_floats(*values: float) -> bytes:
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)) if values else b"")


def of_integers(*values: int) -> bytes:
    return field(3, field(1, bytes(values)) if values else b"")


def records_of(path: Path) -> list[dict[str, Any]]:
    """Return the features of the records in *path*, as another reader finds them."""
    return list(tfrecord_loader(str(path), None))


def test_golden_bytes() -> None:
    assert struct.pack("<Q", 24) + masked(struct.pack("<Q", 24)) == TENSORBOARD
    features = ("feature0", of_integers(0)), ("feature1", of_integers(4)), ("feature2", of_bytes(b"goat"))
    assert example(*features, ("feature3", of_floats(0.9876))) == TUTORIAL


def test_there_and_back(run: Run, shell: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(SAMPLES))
    assert run("tar2tfrecord", "a.tar", "-o", "a.tfrecord") == (0, b"", "")
    content = (tmp_path / "a.tfrecord").read_bytes()
    assert content.startswith(framed(example(("__key__", of_bytes(b"README")), ("", of_bytes(b"\x00 text\n"))))[:8])
    assert records_of(tmp_path / "a.tfrecord")[1:] == [
        {"__key__": b"d/a", "JPG": b"\xff\xd8" * 900, "cls": b"3\n", "jpg": b""},
        {"__key__": "d/ü".encode(), "json": b"{}", "seg.png": b"\x89PNG" * 70},
    ]
    back = run("tarcreate", "--tfrecord", "a.tfrecord")
    assert members_of(back.stdout) == SAMPLES and has_end(back.stdout)
    assert run("tar2tfrecord", stdin=back.stdout).stdout == content
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress(content))
    (tmp_path / "c.tfrecord").write_bytes(zlib.compress(content))
    for name in "bc":
        assert run("tarcreate", "--tfrecord", f"{name}.tfrecord").stdout == back.stdout
        assert shell(f"tarcreate --tfrecord - < {name}.tfrecord").stdout == back.stdout
    done = run(
        "tar2tfrecord", "-f", "image/encoded=JPG;png label=cls", "-x", "readme", "a.tar", "-o", "d.tfrecord", "-v"
    )
    warning, account = done.stderr.splitlines()
    assert warning == "tar2tfrecord: -x: no sample had the field readme; the fields were: JPG cls jpg json seg.png"
    assert account.startswith("tar2tfrecord: 3 samples in, 1 out, 2 left out, ")
    assert records_of(tmp_path / "d.tfrecord") == [
        {"__key__": b"d/a", "image/encoded": b"\xff\xd8" * 900, "label": b"3\n"}
    ]


def test_records_of_others(run: Run, tmp_path: Path) -> None:
    """Fields by names, kinds and numbers of values; keys; several files."""
    writer = TFRecordWriter(str(tmp_path / "1.tfrecord"))
    writer.write({
        "image/encoded": (b"\xff\xd8", "byte"),
        "image/class/label": (7, "int"),
        "image/object/bbox/xmin": ([0.1, 2.0, 1e-10], "float"),
        "frames": ([b"one", b""], "byte"),
        "score": (0.3, "float"),
        "ids": ([-1, 2**62], "int"),
        "image/filename": (b"n01", "byte"),
    })  # fmt: skip
    writer.close()
    empty = example(("none", of_floats()), ("x", of_bytes(b"1")), ("unset", b""), ("ends", of_floats(float("nan"))))
    (tmp_path / "2.tfrecord").write_bytes(framed(TUTORIAL) + framed(empty))
    done = run("tarcreate", "--tfrecord", "[12].tfrecord", "--key-template", "k{}", "-v")
    fields = [
        *(
            "frames.0=one",
            "frames.1=",
            "ids=[-1, 4611686018427387904]",
            "image.class.label=7",
            "image.encoded=\xff\xd8",
        ),
        *("image.filename=n01", "image.object.bbox.xmin=[0.1, 2.0, 1e-10]", "score=0.3"),
    ]
    assert members_of(done.stdout) == [
        *((f"k0.{name}", value.encode("latin-1")) for name, _, value in (each.partition("=") for each in fields)),
        *(("k1.feature0", b"0"), ("k1.feature1", b"4"), ("k1.feature2", b"goat"), ("k1.feature3", b"0.9876")),
        *(("k2.ends", b"NaN"), ("k2.x", b"1")),
    ]
    assert json.loads(dict(members_of(done.stdout))["k0.image.object.bbox.xmin"]) == [0.1, 2.0, 1e-10]
    told, account = done.stderr.splitlines()
    said = "2 features without a value are not fields (the first: 'none' of record 3 (2.tfrecord))"
    assert (done.status, told) == (0, f"tarcreate: {said}") and account.startswith("tarcreate: 3 samples in, 3 out, ")
    words = "__key__=image.filename jpg=IMAGE.encoded;image cls=image.class.label"
    chosen = run("tarcreate", "--tfrecord", "1.tfrecord", "-f", words)
    assert members_of(chosen.stdout) == [("n01.cls", b"7"), ("n01.jpg", b"\xff\xd8")]
    lost = run("tarcreate", "--tfrecord", "2.tfrecord", "-f", "x nope", "-o", "a.tar")
    assert lost.status == 1 and not (tmp_path / "a.tar").exists()
    assert lost.stderr.endswith(
        "no record had the feature nope; they were: feature0 feature1 feature2 feature3 ends x\n"
    )
    some = run("tarcreate", "-q", "--tfrecord", "2.tfrecord", "-f", "x", "-v")
    assert members_of(some.stdout) == [("000000001.x", b"1")]
    assert "tarcreate: 2 samples in, 1 out, 1 left out and reported, " in some.stderr


@pytest.mark.parametrize("size", [0x8B1F, 0x9C78, 0x88B1F], ids=["gzip", "zlib", "gzip, with its method"])
def test_lengths_that_begin_as_compressed_data(size: int, run: Run) -> None:
    made = run("tar2tfrecord", stdin=make_tar([("a.x", bytes(size - 100))]))
    (length,) = struct.unpack_from("<Q", made.stdout)
    made = run("tar2tfrecord", stdin=make_tar([("a.x", bytes(2 * size - 100 - length))]))
    assert struct.unpack_from("<Q", made.stdout) == (size,)
    assert [name for name, _ in members_of(run("tarcreate", "--tfrecord", "-", stdin=made.stdout).output())] == ["a.x"]


@pytest.mark.parametrize("options", [(), ("-f", "a")])
def test_a_record_without_a_value_is_left_out_and_reported(options: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    records = framed(example(("a", of_bytes(b"1")))) + framed(example(("a", of_bytes()))) + framed(b"")
    (tmp_path / "a.tfrecord").write_bytes(records)
    done = run("tarcreate", "-v", "--tfrecord", "a.tfrecord", *options)
    assert done.status == 1 and members_of(done.stdout) == [("000000000.a", b"1")]
    assert "2 records without a value for a field are left out (the first: the record at byte 30 of a.tf" in done.stderr
    assert "3 samples in, 1 out, 2 left out and reported" in done.stderr


A_KEY = ("__key__", of_bytes(b"k"))


def test_a_key_of_a_template_stays_in_its_folder(run: Run, tmp_path: Path) -> None:
    record = framed(example(("path", of_bytes(b"../../x")), ("txt", of_bytes(b"1"))))
    (tmp_path / "a.tfrecord").write_bytes(record)
    for option in (("--key-template", "{path}"), ("--key-column", "path")):
        said = run("tarcreate", "--tfrecord", "a.tfrecord", *option).failure()
        assert "the key '../../x' is absolute or contains '..'" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at byte 0: is empty: a TFRecord file has a record"),
        (make_tar(SAMPLES), "at byte 0: this is not a TFRecord file, or it is damaged"),
        (framed(b"\xff"), "at byte 0: a record that is not a tf.train.Example"),
        (framed(TUTORIAL) + framed(TUTORIAL + field(2, b"")), "at byte 100: a record that is not a tf.train.Example ("),
        (framed(example(("a/b", of_bytes(b"")), ("a.b", of_bytes(b"")))), "two features are for the field 'a.b'"),
        (framed(example(("a", of_bytes(b"1", b"2")), ("a.1", of_bytes(b"")))), "two features are for the field 'a.1'"),
        (framed(example(A_KEY, ("", of_bytes(b"1")), ("a", of_bytes(b"")))), "a feature without a name, and others"),
        (framed(example(("__key__", of_bytes(b"../k")), ("a", of_bytes(b"")))), "the key '../k' is absolute or"),
        (framed(example(("__key__", of_bytes(b"k.x")), ("a", of_bytes(b"")))), "would not read back"),
        (framed(example(A_KEY, ("a\0", of_bytes(b"")))), "would not read back"),
        (framed(example(A_KEY, ("a", of_bytes(b"")))) * 2, "two samples with the key 'k' side by side"),
        (struct.pack("<Q", 1 << 40) + masked(struct.pack("<Q", 1 << 40)), "at byte 0: a record of 1,099,511,627,776 b"),
    ],
)  # fmt: skip
def test_what_is_no_sample(content: bytes, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(content)
    assert message in run("tarcreate", "--tfrecord", "a.tfrecord", "-o", "a.tar").failure(lines=1)
    assert not (tmp_path / "a.tar").exists()


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.__key__", b"")], "sample 'a': a feature can't be called '__key__'"),
        ([("a.x", b"1"), ("a.x", b"2")], "sample 'a': it has the field 'x' twice"),
        ([("a.\udcff", b"")], "sample 'a': the name of a feature is UTF-8, and '\\udcff' is not"),
    ],
)
def test_what_an_example_cannot_hold(members: list[tuple[str, bytes]], message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    done = run("tar2tfrecord", "-q", "a.tar", "-o", "a.tfrecord")
    assert done.status == 1 and done.stderr.startswith(f"tar2tfrecord: a.tar: {message}")
    assert not (tmp_path / "a.tfrecord").exists()
    key = make_tar([("\udcff.x", b"1")])  # which a feature can hold
    assert members_of(run("tarcreate", "--tfrecord", "-", stdin=run("tar2tfrecord", stdin=key).stdout).stdout) == [
        ("\udcff.x", b"1")
    ]


WHOLE = framed(example(A_KEY, ("a", of_bytes(b"12")))) + framed(example(("b", of_integers(5))))


@pytest.mark.parametrize("form", ["plain", "gzip", "zlib"])
def test_damage(form: str, made: Callable[[str, bytes], Result]) -> None:
    """Cut at any byte but between two records, or with any byte changed: a failure that names the byte."""
    content = {"plain": WHOLE, "gzip": gzip.compress(WHOLE, mtime=0), "zlib": zlib.compress(WHOLE)}[form]
    status, whole, _ = made("--tfrecord", content)
    assert status == 0
    between = len(framed(example(A_KEY, ("a", of_bytes(b"12"))))) if form == "plain" else 0
    for cut in range(len(content)):
        status, found, said = made("--tfrecord", content[:cut])
        if cut and cut == between:
            assert (status, members_of(found), said) == (0, [("k.a", b"12")], "")
        else:
            place = f"{cut}: " if form == "plain" else ""
            assert (status, found) == (1, b"") and said.startswith(f"tarcreate: in: at byte {place}"), (cut, said)
    for at in range(len(content)):
        for bits in (0x01, 0x80):
            status, found, said = made("--tfrecord", content[:at] + bytes([content[at] ^ bits]) + content[at + 1 :])
            same = form != "plain"  # a header and the last byte have bits that mean nothing
            assert (status, found) == (1, b"") or (same and (status, found) == (0, whole)), at
            assert said.count("\n") == status and "Traceback" not in said, (at, said)
            assert not status or said.startswith("tarcreate: in: at byte "), (at, said)


@pytest.mark.parametrize("line", [["tarcreate", "--tfrecord", "a"], ["tar2tfrecord", "a"]], ids=["in", "out"])
@pytest.mark.parametrize("library", ["google.protobuf", "google_crc32c"])
def test_without_a_library(line: list[str], library: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(WHOLE)
    name, *arguments = line
    program = f"import sys; sys.modules[{library!r}] = None; from tartools.commands.{name} import {name}; {name}()"
    done = python(program, *arguments, folder=tmp_path)
    said = f"{name}: TFRecord files need protobuf and google-crc32c: {how_to_install('protobuf', 'google-crc32c')}\n"
    assert (done.status, done.stderr, done.stdout.strip(b"\0")) == (1, said, b"")


@pytest.mark.parametrize("form", ["", ".gzip", ".zlib"])
def test_files_of_tensorflow(form: str, run: Run, tmp_path: Path) -> None:
    """What TensorFlow 2.21.0 wrote by the program `tensorflow/write.txt`."""
    source = Path(__file__).parent / "tensorflow" / f"examples{form}.tfrecord"
    done = run("tarcreate", "--tfrecord", source)
    assert members_of(done.stdout) == [
        ("000000000.frames.0", b"one"),
        ("000000000.frames.1", b""),
        ("000000000.frames.2", b"\0two"),
        ("000000000.image.class.label", b"7"),
        ("000000000.image.class.text", "grün".encode()),
        ("000000000.image.encoded", b"\xff\xd8\xff\xe0" + bytes(range(256))),
        ("000000000.image.filename", b"n01"),
        ("000000000.image.format", b"jpeg"),
        ("000000000.image.object.bbox.xmin", b"[0.1, 0.25, 1.0]"),
        ("000000000.image.object.class.label", b"[-1, 0, 9223372036854775807, -9223372036854775808]"),
        ("000000001.image.class.label", b"300"),
        ("000000001.image.encoded", b""),
        ("000000001.image.filename", b"n02"),
        ("000000001.limits", b"[3.4028235e+38, 1e-45, Infinity, NaN, -0.0]"),
        ("000000001.score", b"0.3"),
    ]
    said = "tarcreate: 4 features without a value are not fields (the first: 'no floats' of record 2 ("
    assert done.status == 0 and done.stderr.startswith(said)
