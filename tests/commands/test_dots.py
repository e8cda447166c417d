"""--dots last: names with several dots are cut at the last one, in tars as in folders."""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest

import tartools
from tartools.errors import SampleError
from tests.archives import picture
from tests.commands.conftest import Inside
from tests.conftest import has_end, keys_in, make_tar, members_of
from tests.tiers import also

NAMES = [
    "v1.0/Track 2.0 (Clean).jpg",
    "v1.0/Track 2.0 (Clean).cls",
    "v1.0/Track 2.1.jpg",
    "v1.0/Track 2.1.cls",
    "v1.0/a.jpg",
    "v1.0/a.cls",
    "v1.0/img.2023.01.05.jpg",
    "v1.0/img.2023.01.05.cls",
    "v1.0/img.2023.01.06.jpg",
    "v1.0/img.2023.01.06.cls",
]


def contents(names: list[str]) -> list[tuple[str, bytes]]:
    """Return members with these *names*: pictures and classes that differ from each other."""
    return [
        (name, b"%d" % number if name.endswith("cls") else picture("JPEG", number + 1, 3))
        for number, name in enumerate(names)
    ]


def renamed(name: str) -> str:
    """Return *name* as it is to be, written in another way than the product has it."""
    folder, _, base = name.rpartition("/")
    *stem, field = base.split(".")
    return f"{folder}/{'_'.join(stem)}.{field}" if folder else f"{'_'.join(stem)}.{field}"


@pytest.fixture
def dotted(tmp_path: Path) -> list[tuple[str, bytes]]:
    """Make a.tar, whose names have several dots, and return the members that it should have."""
    members = contents(NAMES)
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    return [(renamed(name), data) for name, data in members]


LINES = {
    "plain": ["a.tar"],
    "ahead": ["-p", "2", "a.tar"],
    "fields": ["-f", "jpg cls", "a.tar"],
    "table": ["t.parquet"],
    "command": ["pipe:cat a.tar"],
    "compressed": ["a.tgz"],
}


@pytest.mark.parametrize("line", LINES)
def test_keys_end_at_the_last_dot(line: str, inside: Inside, dotted: list[tuple[str, bytes]], tmp_path: Path) -> None:
    assert inside("tarindex", "a.tar", "-o", "t.parquet").status == 0
    assert inside("tarcat", "-z", "a.tar", "-o", "a.tgz").status == 0
    done = inside("tarcat", "--dots", "last", *LINES[line])
    assert (done.status, done.stderr, members_of(done.stdout), has_end(done.stdout)) == (0, "", dotted, True)
    assert inside("tarcat", "--dots", "last", stdin=done.stdout).output() == done.stdout  # nothing is left to cut
    assert inside("tarcat", "--dots", "first", "a.tar").output() == (tmp_path / "a.tar").read_bytes()


def test_the_same_samples_as_from_the_folder(inside: Inside, dotted: list[tuple[str, bytes]], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar") as archive:
        archive.extractall(tmp_path / "folder", filter="data")
    made = inside("tarcreate", "--folder", "folder", "--dots", "last", "-o", "-").output()
    assert sorted(members_of(made)) == sorted(dotted)
    assert sorted(members_of(inside("tarcat", "--dots", "last", "a.tar").output())) == sorted(members_of(made))


def test_counts_and_options_are_of_the_new_samples(inside: Inside, dotted: list[tuple[str, bytes]]) -> None:
    done = inside("tarcat", "-v", "--dots", "last", "--skip", "1", "-c", "3", "--rekey", "{index}:{key}", "a.tar")
    assert keys_in(done.stdout) == ["0:v1.0/Track 2_1", "1:v1.0/a", "2:v1.0/img_2023_01_05"]
    done = inside("tarcat", "-v", "--dots", "last", "a.tar")
    assert done.stderr.startswith("tarcat: 5 samples in, 5 out, ")


def test_samples_in_python(inside: Inside, dotted: list[tuple[str, bytes]]) -> None:
    found = [
        (f"{sample.key}.{field}", data)
        for sample in tartools.read("a.tar", dots="last")
        for field, data in sample.items()
    ]
    assert found == dotted
    assert [sample.key for sample in tartools.read("a.tar", dots="first")] == [*("v1.0/Track 2", "v1.0/a", "v1.0/img")]
    with pytest.raises(ValueError, match="dots is 'first' or 'last', not 'middle'"):
        tartools.read("a.tar", dots="middle")  # type: ignore[call-overload]


def test_names_that_are_no_fields_stay(inside: Inside, tmp_path: Path) -> None:
    members = [(".hid.x.y", b"1"), ("plain", b"2"), ("d.1/plain", b"3"), ("e.", b"4"), ("a.seg.png", b"5")]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    found = members_of(inside("tarcat", "--dots", "last", "a.tar").output())
    assert found == [*members[:4], ("a_seg.png", b"5")]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_large_groups(format: int, inside: Inside, tmp_path: Path) -> None:
    """A whole shard may be one group up to the first dot, in several reads."""
    folder = "f" * (90 if format == tarfile.USTAR_FORMAT else 120)
    names = [f"{folder}/x.{number:04d}.{field}" for number in range(400) for field in ("cls", "bin")]
    members = [(name, name.encode() * 40) for name in names]
    (tmp_path / "a.tar").write_bytes(make_tar(members, format))
    for stdin in (b"", (tmp_path / "a.tar").read_bytes()):
        done = inside("tarcat", "--dots", "last", *([] if stdin else ["a.tar"]), stdin=stdin)
        assert members_of(done.stdout) == [(renamed(name), data) for name, data in members]
        assert (done.status, done.stderr) == (0, "")


@pytest.mark.parametrize("seed", [1, *also(2, 3, 4)])
def test_members_of_one_group_need_not_be_side_by_side(seed: int, inside: Inside, tmp_path: Path) -> None:
    """All that share the key up to the first dot are together, so those up to the last one are found in any order."""
    members = contents([f"img.{number}.{field}" for number in range(20) for field in ("cls", "jpg")])
    random.Random(seed).shuffle(members)
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    found = members_of(inside("tarcat", "--dots", "last", "a.tar").output())
    firsts = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in members))
    wanted = [(renamed(name), data) for first in firsts for name, data in members if name.rpartition(".")[0] == first]
    assert found == wanted


def test_two_names_for_one_key_are_an_error(inside: Inside, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("a.b.c.jpg", b"1"), ("a.b_c.cls", b"2")]))
    (tmp_path / "b.tar").write_bytes(make_tar([("a.b.jpg", b"1"), ("a_b.cls", b"2")]))
    said = inside("tarcat", "--dots", "last", "a.tar", "-o", "o.tar").failure()
    assert said == (
        "tarcat: a.tar: sample 'a': cut at the last dot, a.b.c and a.b_c would both have the key 'a_b_c'; rename one "
        "of them\n"
    )
    assert "two samples with the key 'a_b' side by side" in inside("tarcat", "--dots", "last", "b.tar").stderr
    assert not (tmp_path / "o.tar").exists()
    with pytest.raises(SampleError, match="would both have the key 'a_b_c'"):
        list(tartools.read("a.tar", dots="last"))


def test_a_table_can_not_list_new_names(inside: Inside, dotted: list[tuple[str, bytes]]) -> None:
    said = inside("tarcat", "--dots", "last", "a.tar", "-o", "o.parquet").failure(2)
    assert "--dots last excludes an OUTPUT that ends in .parquet" in said
    assert inside("tarindex", "a.tar", "-o", "t.parquet").status == 0
    said = inside("tarcheck", "--dots", "last", "t.parquet").failure(2)
    assert (
        said == "tarcheck: t.parquet: --dots last is for shards, and this is a table: name the shards that it lists\n"
    )


def test_a_check_of_the_new_names(inside: Inside, dotted: list[tuple[str, bytes]]) -> None:
    assert b"dotted-name" in inside("tarcheck", "a.tar").stdout
    assert b"--fix --dots last, or tarcat --dots last, cuts names at the last dot" in inside("tarcheck", "a.tar").stdout
    done = inside("tarcheck", "--dots", "last", "a.tar")
    assert done.status == 0 and b"samples: 5\nerrors: 0\nwarnings: 0\nnotes: 0\n" in done.stdout
    done = inside("tarcheck", "--fix", "--dots", "last", "a.tar", "-o", "o.tar")
    assert (done.status, done.stderr, members_of(Path("o.tar").read_bytes())) == (0, "", dotted)
    assert inside("tarcheck", "o.tar").stdout.count(b"dotted") == 0


def test_repairs_beside_damage(inside: Inside, dotted: list[tuple[str, bytes]], tmp_path: Path) -> None:
    """A shard with damage is read header by header; the samples that are whole have the new names."""
    content = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(content[: content.index(b"v1.0/img.2023.01.06.jpg") + 700])
    done = inside("tarcheck", "--fix", "--dots", "last", "--expect", "jpg cls", "cut.tar", "-o", "o.tar")
    found = members_of((tmp_path / "o.tar").read_bytes())
    assert done.status == 1 and found and found == dotted[: len(found)]
    assert len(found) in (6, 8)


def test_a_key_that_returns_is_told(inside: Inside, tmp_path: Path) -> None:
    """By its new name; names that only share what is before the first dot are no reason for a warning."""
    (tmp_path / "a.tar").write_bytes(make_tar(contents(["a.1.cls", "b.1.cls", "a.2.cls", "b.1.jpg"])))
    done = inside("tarcat", "--dots", "last", "a.tar")
    assert keys_in(done.stdout) == ["a_1", "b_1", "a_2"]  # b_1 twice, as separate samples
    assert done.stderr.startswith("tarcat: a.tar: the key 'b_1' comes back after other samples")
