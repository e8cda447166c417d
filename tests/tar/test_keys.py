"""The key rule, by all who apply it, on the same names."""

from __future__ import annotations

import subprocess
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tartools.cli.completions import FIELDS_SCRIPT
from tartools.samples.batch import Batch
from tartools.samples.sample import Sample
from tartools.storage.scratch import scratch_file
from tartools.tables.bulk import bulk_from_buffer
from tartools.tar import ContiguousGroups, Member, join_path, read_members, split_path
from tartools.tar.keys import NAME_BYTES, Paths, can_read_back, field_from_ending, field_offset, has_stem, stem_of
from tartools.train.slices import dicts
from tests.archives import END, Trickle, entry
from tests.conftest import make_tar
from tests.tar.test_runs import both, joined

FOLDERS = st.sampled_from([b"", b"d/", b"v1.2/", b"imagenet-1.0/train.x/", "ü.é/".encode(), b"\xff/", b".git/", b"./"])
BASES = st.one_of(
    st.sampled_from([b"a", b"a.jpg", b"a.seg.png", b".a.b", b"a.", b"a..b", b"a.JPG", b"...", b"a b.c d", b"a.\xff"]),
    st.text("ab.", min_size=1, max_size=6).map(str.encode),
    st.text(".xy", min_size=60, max_size=79).map(str.encode),
    st.binary(min_size=1, max_size=5).filter(lambda name: not set(name) & set(b"\0/") and name[:2] != b"._"),
)
NAMES = st.tuples(FOLDERS, BASES).map(b"".join)


def by_the_rule(path: bytes) -> tuple[bytes, bytes]:
    """Return (key, field) of *path*, as tartools(7) words it."""
    *folders, base = path.split(b"/")
    stem, _, field = base.partition(b".")
    return (b"/".join([*folders, stem]), field) if stem and field else (path, b"")


def groups_of(names: list[bytes]) -> list[list[bytes]]:
    """Return adjacent *names* of one sample; a name without a field is alone."""
    numbered = [(key, number * (not field)) for number, (key, field) in enumerate(map(by_the_rule, names), 1)]
    return [[names[n] for n, _ in group] for _, group in groupby(enumerate(numbered), lambda one: one[1])]


@settings(deadline=None)
@given(NAMES)
def test_one_path(path: bytes) -> None:
    key, field = split_path(path)
    assert (key, field) == by_the_rule(path)
    assert join_path(key, field) == path and can_read_back(key, field)
    assert path[field_offset(key) :] == field == field_from_ending(path[len(key) :])
    assert has_stem(path, stem_of(key, bool(field))) == bool(field)


@settings(deadline=None)
@given(st.lists(NAMES, min_size=1, max_size=12))
def test_the_paths_of_many_headers(names: list[bytes]) -> None:
    headers = np.frombuffer(b"".join(entry(name) for name in names), np.uint8).reshape(-1, 512)
    paths = Paths(headers)
    assert paths.plain.all() and paths.paths(0, len(names)) == names and paths.first_path() == names[0]
    found = [key for key, _ in map(by_the_rule, names)]
    assert paths.keys(np.arange(len(names))) == found
    assert paths.keyed.tolist() == [bool(field) for _, field in map(by_the_rule, names)]
    assert paths.group_begins(len(names)).tolist() == [n for n, (_, first) in enumerate(marked(names)) if first]
    keyed = [name for name in names if by_the_rule(name)[1]]
    if keyed:
        some = Paths(headers[paths.keyed])
        assert [bytes(row).rstrip(b"\0") for row in some.fields()] == [by_the_rule(name)[1] for name in keyed]
        same = all(by_the_rule(name)[0] == by_the_rule(keyed[0])[0] for name in keyed)
        assert some.share_key(0, np.zeros(len(keyed), int)) == same


def marked(names: list[bytes]) -> list[tuple[bytes, bool]]:
    """Return *names*, each with whether a sample begins with it."""
    return [(name, number == 0) for group in groups_of(names) for number, name in enumerate(group)]


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, st.integers(1, 4)), min_size=1, max_size=8))
def test_members_are_grouped_alike_by_all_readers(several: list[tuple[bytes, int]]) -> None:
    names = [name + b"x" * n for name, count in several for n in range(count) if len(name) + n <= NAME_BYTES]
    expected = groups_of(names)
    archive = b"".join(entry(name, b"1") for name in names) + END
    for found in both(lambda: Trickle(archive)):
        assert [[member[0] for member in group[3]] for group in joined(found)[:-1]] == expected
    (part,) = (
        p for p in read_members(Trickle(archive), url="a", scratch=scratch_file) if isinstance(p, ContiguousGroups)
    )
    wanted = [[by_the_rule(name)[1].decode("utf-8", "surrogateescape").lower() for name in group] for group in expected]
    if not any(len({*fields}) < len(fields) or field.startswith("__") for fields in wanted for field in fields):
        samples = list(dicts(Batch(part, "a.tar")))
        assert [list(sample)[2:] for sample in samples] == wanted
        assert [sample["__key__"].encode("utf-8", "surrogateescape") for sample in samples] == part.keys
    for combination in Batch(part, "a.tar").combinations():
        columns = [map(Member._make, column.members) for column in combination.columns]
        for number, key, *row in zip(combination.numbers, combination.keys, *columns, strict=True):
            fields = [field.encode("utf-8", "surrogateescape") for field in combination.fields]
            assert [by_the_rule(member.path) for member in row] == [(key, field) for field in fields]
            assert Sample(key, row).fields == combination.fields and [m.path for m in row] == expected[number]


@settings(deadline=None)
@example([b"a.jpg", b"d/a.JPG"])
@given(st.lists(NAMES, min_size=1, max_size=30))
def test_samples_of_all_names_with_fields_are_read_in_bulk(names: list[bytes]) -> None:
    samples: dict[bytes, dict[str, bytes]] = {}
    for name in names:
        key, field = by_the_rule(name)
        text = field.decode("utf-8", "surrogateescape").lower()
        if field and not text.startswith("__"):
            samples.setdefault(key, {}).setdefault(text, name)
    if samples:
        pieces = [b"".join(entry(name, name) for name in fields.values()) for fields in samples.values()]
        found = bulk_from_buffer(b"".join(pieces), np.array(list(map(len, pieces))))
        assert found is not None and found.keys == [*samples]
        for number, fields in enumerate(samples.values()):
            for column, field in enumerate(found.fields):
                payload = list(found.payloads(column))[number]
                assert payload == fields.get(field, b"")
                assert (found.offsets[column, number] >= 0) == (field in fields)


@pytest.mark.parametrize("names", [["a.jpg", "d.e/b.seg.png", "d/.hid.x", "e.", "c", "f..g", "v1.2/h.cls", "i.j k"]])
def test_the_fields_that_shells_complete(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(name, b"1") for name in names]))
    line = ["sh", "-c", FIELDS_SCRIPT, "fields", "a.tar"]
    found = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.split()
    fields = {by_the_rule(name.encode())[1].decode() for name in names} - {""}
    assert sorted(found) == sorted(field for field in fields if " " not in field)  # only harmless names
