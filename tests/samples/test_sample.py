"""Samples: the key rule, grouping, what a sample offers, making one from values; their sort keys as bytes."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tartools.errors import SampleError
from tartools.samples import filetypes, sortkeys
from tartools.samples import sample as samples
from tartools.samples.batch import Batch
from tartools.samples.columnfields import field_and_payload
from tartools.samples.encoding import encode
from tartools.samples.sample import Sample, build
from tartools.storage.scratch import scratch_file
from tartools.tar import (
    ContiguousGroups,
    Parsed,
    ScatteredGroup,
    Special,
    grouping,
    join_path,
    new_member,
    read_members,
    reader,
    split_path,
)
from tartools.tar.groups import Need
from tests.archives import END, Trickle, entry, file_stream, header, picture
from tests.conftest import Run, make_tar

KEYS = [
    (b"a.jpg", b"a", b"jpg"),
    (b"a.seg.png", b"a", b"seg.png"),
    (b"train/n01/a.seg.png", b"train/n01/a", b"seg.png"),
    (b"data.v1.2/img.jpg", b"data.v1.2/img", b"jpg"),
    (b"./x.jpg", b"./x", b"jpg"),
    (b"../up.jpg", b"../up", b"jpg"),
    (b"/abs.jpg", b"/abs", b"jpg"),
    (b"a.b/c.d.e.jpg", b"a.b/c", b"d.e.jpg"),
    (b"a..x", b"a", b".x"),
    (b"a.x.", b"a", b"x."),
    (b"README", b"README", b""),
    (b"dir/NOEXT", b"dir/NOEXT", b""),
    (b"v1.2/README", b"v1.2/README", b""),
    (b".hidden", b".hidden", b""),
    (b"dir/.hid.jpg", b"dir/.hid.jpg", b""),
    (b"._a.jpg", b"._a.jpg", b""),
    (b"e.", b"e.", b""),
    (b"d/.", b"d/.", b""),
    (b"a._meta", b"a", b"_meta"),
    (b"__index__/x.jpg", b"__index__/x", b"jpg"),
    (b"x.JPG", b"x", b"JPG"),
    (b"\xe9.jpg", b"\xe9", b"jpg"),
]


@pytest.mark.parametrize(("path", "key", "field"), KEYS, ids=[repr(k[0])[2:-1] for k in KEYS])
def test_the_key_rule(path: bytes, key: bytes, field: bytes) -> None:
    assert split_path(path) == (key, field)
    assert join_path(key, field) == path


def grouped(*paths: bytes, step: int = 1 << 30) -> list[list[bytes]]:
    """Return how members of these *paths* group."""
    archive = b"".join(entry(path, b"x" * 10) for path in paths) + END
    both = []
    for need in Need:
        parts = read_members(Trickle(archive, step), url="a", scratch=scratch_file, need=need)
        both.append([[member.path for member in sample.members] for sample in samples_of(parts)])
    assert all(paths == both[0] for paths in both)
    return both[0]


def samples_of(parts: Iterable[Parsed]) -> list[Sample]:
    """Return the samples that a reader found."""
    return [
        sample for part in parts if isinstance(part, (ContiguousGroups, ScatteredGroup)) for sample in Batch(part, "a")
    ]


@settings(deadline=None)
@given(
    st.lists(st.text("abA_./", min_size=1, max_size=5).map(lambda t: t.rstrip("/") or "a"), max_size=12),
    st.sampled_from([1 << 30, 100]),
)
@example(["a", "a", "a.x", "a", "a.y", "a.x.y", "a..z", "a.X", "A.x", "ab.x", "d/a.x", "e/a.x"], 1 << 30)
@example([".a.x", ".a.y", "a.x", "._a.x", "a.y", "e.x", "e.", "e.x", "e.y", "a.x", "a.d/b.x", "a.x", "a.y", "a.x"], 100)
def test_grouping_agrees_with_the_key_rule(paths: list[str], step: int) -> None:
    raw = [path.encode() for path in paths]
    expected: list[list[bytes]] = []
    for path in raw:
        if path.rpartition(b"/")[2].startswith(b"._"):  # metadata of macOS
            continue
        key, field = split_path(path)
        last = split_path(expected[-1][-1]) if expected else (b"", b"")
        if expected and field and last[1] and last[0] == key:
            expected[-1].append(path)
        else:
            expected.append([path])
    assert grouped(*raw, step=step) == expected


def test_an_end_of_archive_ends_a_sample_and_a_link_does_not() -> None:
    archive = entry(b"a.x") + header(b"a.link", kind=b"2") + entry(b"a.y") + END + entry(b"a.z") + END
    parts = list(read_members(Trickle(archive), url="a", scratch=scratch_file))
    assert [sample.fields for sample in samples_of(parts)] == [("x", "y"), ("z",)]
    assert [part.name for part in parts if isinstance(part, Special)] == ["a.link"]


def test_a_sample_of_many_members_goes_to_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "MAX_GROUP_IN_MEMORY", 5000)
    monkeypatch.setattr(reader, "BUFFER_BYTES", 4096)
    monkeypatch.setattr(reader, "MAX_CARRY_BYTES", 2000)
    content = [(f"a.f{n}", bytes([n]) * 1000) for n in range(20)]
    archive = make_tar([*content, ("b.x", b"2")])
    made: list[io.FileIO] = []

    def scratch() -> io.FileIO:
        made.append(scratch_file())
        return made[-1]

    first, second = samples_of(read_members(Trickle(archive, 3000), url="a", scratch=scratch))
    assert [(m.name, m.read()) for m in first.members] == content
    assert samples.raw_bytes((*first.members, *second.members)) == archive[: 21 * 1536 - 512]
    assert made
    for file in made:
        file.close()


SAMPLE = build({"__key__": "d/a", "jpg": b"JJ", "Cls": 7, "cls.json": {"a": [1, "ä"]}})


def test_a_sample_is_a_mapping_of_its_fields() -> None:
    assert (SAMPLE.key, SAMPLE.raw_key, SAMPLE.fields) == ("d/a", b"d/a", ("jpg", "Cls", "cls.json"))
    assert dict(SAMPLE) == {"jpg": b"JJ", "Cls": b"7", "cls.json": '{"a": [1, "ä"]}'.encode()}
    assert list(SAMPLE.items()) == list(dict(SAMPLE).items())
    assert (SAMPLE["cls"], SAMPLE["CLS"], SAMPLE.get("nope"), SAMPLE.get("nope", b"-")) == (b"7", b"7", None, b"-")
    assert "jpg" in SAMPLE
    assert "nope" not in SAMPLE
    assert 3 not in SAMPLE
    assert len(SAMPLE) == 3
    assert SAMPLE.open("jpg").read() == b"JJ"
    for read in (SAMPLE.__getitem__, SAMPLE.open):
        with pytest.raises(KeyError, match=r"sample 'd/a' has no field 'nope'; its fields are: jpg Cls cls\.json"):
            read("nope")
    assert repr(SAMPLE) == "<Sample 'd/a' jpg Cls cls.json>"


def test_exact_names_go_before_those_of_another_case() -> None:
    sample = Sample(b"a", (new_member(b"a.JPG", b"1"), new_member(b"a.jpg", b"2"), new_member(b"a.Cls", b"3")))
    assert (sample["jpg"], sample["JPG"]) == (b"2", b"1")
    assert sample.member("cls", verbatim=True) is None
    with pytest.raises(SampleError, match="'a' has 2 members for field 'Jpg'"):
        sample["Jpg"]
    twice = Sample(b"a", (new_member(b"a.x", b"1"), new_member(b"a.x", b"2")))
    with pytest.raises(SampleError, match="2 members"):
        twice["x"]


def test_size_is_what_it_takes_in_an_archive() -> None:
    assert SAMPLE.size == len(samples.raw_bytes(SAMPLE.members)) == 6 * 512
    raw = samples.raw_bytes(SAMPLE.members)
    assert Sample.at(b"d/a", b"j" * 512 + raw, 512, 512 + len(raw)).size == len(raw)


@pytest.mark.parametrize(
    ("paths", "expected"), [((b"a.x",), True), ((b"a",), False), ((b".h.x",), False), ((b"e.",), False)]
)
def test_only_samples_with_fields_are_grouped(paths: tuple[bytes, ...], expected: bool) -> None:
    key = split_path(paths[0])[0]
    assert Sample(key, tuple(new_member(path, b"") for path in paths)).grouped is expected


def test_owned_samples_hold_no_buffers_and_ranges_stay(tmp_path: Path) -> None:
    raw = samples.raw_bytes(SAMPLE.members)
    buffer = bytearray(b"j" * 512 + raw + bytes(1 << 20))
    view = Sample.at(b"d/a", buffer, 512, 512 + len(raw), "s")
    for own in (view.own(), view.with_members(view.members).own(), SAMPLE.own()):
        assert dict(own) == dict(SAMPLE)
        assert all(isinstance(m.source, bytes) and len(m.source) <= len(raw) for m in own.members)
        assert samples.raw_bytes(own.members) == raw
    with file_stream(tmp_path / "a.tar", raw) as stream:
        assert stream.file is not None
        ranged = Sample.at(b"d/a", stream.file, 0, len(raw))
        assert ranged.own() is ranged


@pytest.mark.parametrize("where", ["memory", "span", "file"])
def test_samples_pickle_by_value(where: str, tmp_path: Path) -> None:
    raw = samples.raw_bytes(SAMPLE.members)
    with file_stream(tmp_path / "a.tar", raw) as stream:
        assert stream.file is not None
        sample = {
            "memory": SAMPLE.with_members(SAMPLE.members),
            "span": Sample.at(b"d/a", raw, 0, len(raw)),
            "file": Sample.at(b"d/a", stream.file, 0, len(raw)),
        }[where]
        sample.shard = "s.tar"
        again = pickle.loads(pickle.dumps(sample))
    assert (again.raw_key, again.shard, dict(again)) == (b"d/a", "s.tar", dict(SAMPLE))
    assert samples.raw_bytes(again.members) == raw


def test_keys_that_are_not_utf8_survive() -> None:
    sample = Sample(b"\xe9", (new_member(b"\xe9.\xe8", b"1"),))
    assert (sample.key, sample.fields) == ("\udce9", ("\udce8",))
    assert build({"__key__": sample.key, sample.fields[0]: b"1"}).members[0].path == b"\xe9.\xe8"
    assert pickle.loads(pickle.dumps(sample)).raw_key == b"\xe9"


VALUES = [
    ("jpg", b"\xff", b"\xff"),
    ("jpg", bytearray(b"a"), b"a"),
    ("jpg", memoryview(b"a"), b"a"),
    ("cls", "3", b"3"),
    ("txt", "ä", "ä".encode()),
    ("cls", 3, b"3"),
    ("x", 0.1, b"0.1"),
    ("json", {"a": 1}, b'{"a": 1}'),
    ("meta.JSON", [1, None, "ä"], '[1, null, "ä"]'.encode()),
    ("json", "text", b'"text"'),
    ("json", b"{}", b"{}"),
]


@pytest.mark.parametrize(("field", "value", "payload"), VALUES)
def test_values(field: str, value: object, payload: bytes) -> None:
    assert encode(field, value) == payload


FLOATS = np.arange(6, dtype=">f4").reshape(2, 3).T  # neither little-endian nor in one piece
WRITTEN = [  # field, value, what webdataset's decoder makes of it
    ("npy", FLOATS, [FLOATS]),
    ("a.npy.gz", [1, 2], [np.array([1, 2])]),
    ("npz", {"a": FLOATS, "b": np.int8(3)}, [FLOATS, np.int8(3)]),
    ("npz", FLOATS, [FLOATS]),
    ("npz", {"file": np.int8(1), "allow_pickle": np.int8(2), "compression": np.int8(3)}, [*map(np.int8, (1, 2, 3))]),
    ("ten", [FLOATS, np.zeros((2, 0, 1), "u1"), [7]], [FLOATS, np.zeros((2, 0, 1), "u1"), np.array([7])]),
    ("tb", FLOATS, [FLOATS]),
    ("mp", {"a": [FLOATS, np.float32(0.5)]}, {"a": [FLOATS.tolist(), 0.5]}),
    ("json.gz", {"a": FLOATS, "n": np.int64(3)}, {"a": FLOATS.tolist(), "n": 3}),
    ("cls", np.int64(3), 3),
    ("cls.gz", np.array(4), 4),
    ("txt", np.float64(0.5), "0.5"),
]


@pytest.mark.parametrize(("field", "value", "expected"), WRITTEN)
def test_arrays_and_what_holds_them_are_read_by_webdataset(field: str, value: Any, expected: Any) -> None:
    from webdataset.autodecode import Decoder

    found = Decoder([])({"__key__": "a", field: encode(field, value)})[field]
    arrays = list(found.values()) if field == "npz" else found if isinstance(found, list) else [found]
    if not isinstance(expected, list):
        assert found == expected
        return
    assert len(arrays) == len(expected)
    for one, other in zip(arrays, expected, strict=True):
        assert (one.dtype.name, one.shape) == (np.asarray(other).dtype.name, np.asarray(other).shape)
        assert np.array_equal(one, other)
    assert encode(field, value) == encode(field, value)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ([1, 2], "int64"), ([1, 0.5], "float64"), ([[1, 2], [3, 0.5]], "float64"), ([2**53, 0.5], "float64"),
        ([2**53 + 1, 0.5], None), ([[2**53 + 1], [0.5]], None), ([2**63 + 1, -1], None),
        ([True, 2], None), ([[True, False], [1, 2]], None), ([2**63 + 1], "uint64"), ([], None), ([[1], [2, 3]], None),
    ],
)  # fmt: skip
def test_lists_of_a_row_become_arrays_if_no_digit_is_lost(value: list[Any], dtype: str | None) -> None:
    name, payload = field_and_payload("x", value)
    assert name == ("x.json" if dtype is None else "x.npy")
    if dtype is None:
        assert json.loads(payload) == value
    else:
        array = np.load(io.BytesIO(payload))
        assert (array.dtype.name, array.tolist()) == (dtype, value)


def test_arrays_and_objects_in_compressed_fields_are_compressed() -> None:
    name, payload = field_and_payload("x.npy.gz", [1, 2])
    assert name == "x.npy.gz" and np.load(io.BytesIO(gzip.decompress(payload))).tolist() == [1, 2]
    name, payload = field_and_payload("x.json.gz", {"a": 1})
    assert (name, gzip.decompress(payload)) == ("x.json.gz", b'{"a": 1}')
    assert field_and_payload("x.gz", {"a": 1}) == ("x.gz.json", b'{"a": 1}')


REFUSED = [
    ("npy", np.array([object()]), "Object arrays cannot be saved"),
    ("npz", {"a": np.array([{}])}, "'a' is an array of objects"),
    ("ten", np.zeros(2, "u4"), "unsupported array type"),
    ("mp", object(), "cannot write values of type object"),
    ("jpg", np.zeros((3, 4, 5)), "no picture"),
    ("seg.x", np.zeros((3, 4)), "fields of arrays are npy, npz and ten"),
    ("seg.cls", Image.new("L", (1, 1)), "Pillow writes no picture format with the suffix 'cls'$"),
]


@pytest.mark.parametrize(("field", "value", "message"), REFUSED)
def test_what_a_format_does_not_have_is_refused_by_field(field: str, value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^field '{field}': .*{message}"):
        encode(field, value)


RED = Image.new("RGB", (3, 2), "red")


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("png", RED, "PNG"),
        ("seg.PNG", RED, "PNG"),
        ("jpg", RED, "JPEG"),
        ("webp", RED, "WEBP"),
        ("png", np.arange(18, dtype="u1").reshape(2, 3, 3), "PNG"),
    ],
)
def test_pictures_are_encoded_as_the_field_says(field: str, value: Any, kind: str) -> None:
    with Image.open(io.BytesIO(encode(field, value))) as found:
        assert (found.format, found.size) == (kind, (3, 2))
        assert kind != "PNG" or np.array_equal(np.asarray(found), np.asarray(value))


def test_built_samples_keep_the_order_and_skip_names_with_underscores() -> None:
    sample = build({"__url__": "u", "z": b"1", "__key__": "k", "a": "2", "__x": 3})
    assert sample.fields == ("z", "a")
    with pytest.raises(TypeError, match=r"^a sample is a dict of __key__ and fields, .*, not list$"):
        build([])  # type: ignore[arg-type]
    assert json.loads(build({"__key__": "k", "json": {"z": 1}})["json"]) == {"z": 1}


FORMS = {"jpg": "JPEG", "jpe": "JPEG", "tif": "TIFF", "jp2": "JPEG2000", "pgm": "PPM", "pbm": "PPM", "pnm": "PPM"}


def test_all_commands_know_the_same_pictures(run: Run, tmp_path: Path) -> None:
    suffixes = sorted(filetypes.PICTURES)
    modes = {"pbm": "1", "pgm": "L", "pnm": "L"}
    pictures = [picture(FORMS.get(suffix, suffix.upper()), 9, 7, modes.get(suffix, "RGB")) for suffix in suffixes]
    (tmp_path / "a.tar").write_bytes(make_tar([(f"a.{s}", p) for s, p in zip(suffixes, pictures, strict=True)]))
    shown = run("tarshow", "a.tar").stdout.decode().splitlines()[1:]
    assert [line.split()[0] for line in shown if " 9x7 " in line] == suffixes
    assert run("tar2parquet", "a.tar", "-o", "a.parquet").status == 0
    assert [one.name for one in pq.read_schema(tmp_path / "a.parquet") if pa.types.is_struct(one.type)] == suffixes
    done = run("tarcheck", "--decode", "--json", "a.tar")
    assert not {"suffix-lies", "broken-picture"} & set(json.loads(done.stdout)["findings"]), done.stdout
    cut = make_tar([(f"a.{s}", p[:20]) for s, p in zip(suffixes, pictures, strict=True)])
    found = run("tarcheck", "--decode", "--json", stdin=cut)
    assert found.stdout.count(b'"broken-picture"') >= 1
    fields = {suffix for suffix in suffixes if f'"{suffix}: '.encode() in found.stdout}
    assert fields == set(suffixes)


# ---- sort keys: they compare as the values do, backwards too, and none is the beginning of another ----


def plain_version(value: bytes) -> list[tuple[int, int, bytes]]:
    """Return *value* as what versions compare by: digits as numbers before other bytes, the end before all."""
    return [
        (1, int(part), b"") if part.isdigit() else (2, 0, bytes([part[0]]))
        for part in re.findall(rb"[0-9]+|[^0-9]", value)
    ]


def plain(kind: str, value: bytes) -> object:
    """Return what *value* compares by, in the words of Python."""
    if kind == "version":
        return plain_version(value)
    return value if kind == "text" else {"int": int, "float": float}[kind](value)


SORTED = {
    "text": st.binary(max_size=6),
    "int": st.one_of(st.integers(-300, 300), st.integers()).map(lambda n: b"%d" % n),
    "float": st.floats(allow_nan=False).map(lambda x: repr(x).encode()),
    "version": st.text("a.\0\x01\x020179", max_size=6).map(lambda s: s.encode()),
}


@pytest.mark.parametrize("kind", SORTED)
@settings(deadline=None)
@given(st.data())
def test_encodings_keep_the_order(kind: str, data: st.DataObject) -> None:
    one, two = data.draw(SORTED[kind]), data.draw(SORTED[kind])
    first, second = (sortkeys.SORT_ENCODINGS[kind](value) for value in (one, two))
    assert first is not None
    assert second is not None
    if plain(kind, one) < plain(kind, two):  # type: ignore[operator]
        assert first < second
    elif plain(kind, one) == plain(kind, two) and kind != "version":
        assert first == second
    if first != second:
        assert not first.startswith(second)
        complements = first.translate(sortkeys.COMPLEMENT), second.translate(sortkeys.COMPLEMENT)
        assert (first < second) == (complements[0] > complements[1])
