"""tarsort by key: members of one key become one sample, wherever they are."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.conftest import Run, has_end, make_samples, make_tar, members_of


def test_members_of_one_key_become_one_sample(run: Run, tmp_path: Path) -> None:
    (tmp_path / "images.tar").write_bytes(make_tar([("b.jpg", b"B"), ("a.jpg", b"A"), ("README", b"1")]))
    (tmp_path / "labels.tar").write_bytes(
        make_tar([("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"t"), ("README", b"2"), ("a", b"lone")])
    )
    done = run("tarsort", "-v", "images.tar", "labels.tar")
    assert done.status == 0
    assert [name for name, _ in members_of(done.stdout)] == [
        *("README", "README", "a.jpg", "a.cls", "a.txt", "a", "b.jpg", "b.cls")
    ]
    assert "8 samples in, 5 out, 3 joined," in done.stderr
    other = run("tarsort", "-v", "-s", "txt", "--missing", "last", "images.tar", "labels.tar")
    assert "8 samples in, 8 out," in other.stderr


def test_many_parts_of_one_sample(run: Run, tmp_path: Path) -> None:
    for number in range(150):
        payload = bytes([number]) * (3 if number else 2_000_000)
        (tmp_path / f"{number:03d}.tar").write_bytes(make_tar([(f"a.{number}", payload), (f"b{number:03d}.x", b"1")]))
    done = run("tarsort", "-v", "*.tar")
    assert "300 samples in, 151 out, 149 joined" in done.stderr
    found = members_of(done.stdout)
    assert [name for name, _ in found[:150]] == [f"a.{number}" for number in range(150)]
    assert [len(payload) for _, payload in found[:150]] == [2_000_000] + 149 * [3]


def test_a_field_twice_is_a_failure_unless_one_is_chosen(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.tar").write_bytes(make_tar([("z.jpg", b"0"), ("a.jpg", b"1"), ("a.cls", b"1"), ("b", b"1")]))
    (tmp_path / "two.tar").write_bytes(make_tar([("a.cls", b"2"), ("a.txt", b"2"), ("b", b"2"), ("z.jpg", b"9")]))
    failed = run("tarsort", "one.tar", "two.tar", "-o", "out.tar")
    assert failed.status == 1
    assert "'a'" in failed.stderr
    assert "'cls' twice (from one.tar and two.tar)" in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert sorted(os.listdir(tmp_path)) == ["one.tar", "two.tar"]
    first = run("tarsort", "-v", "-u", "first", "one.tar", "two.tar")
    assert members_of(first.stdout) == [("a.jpg", b"1"), ("a.cls", b"1"), ("a.txt", b"2"), ("b", b"1"), ("z.jpg", b"0")]
    assert "6 samples in, 3 out, 2 left out, 1 joined" in first.stderr
    last = run("tarsort", "-v", "-u", "last", "one.tar", "two.tar")
    assert members_of(last.stdout) == [("a.jpg", b"1"), ("a.cls", b"2"), ("a.txt", b"2"), ("b", b"2"), ("z.jpg", b"9")]
    assert "6 samples in, 3 out, 2 left out, 1 joined" in last.stderr


def test_a_field_twice_in_one_sample(run: Run) -> None:
    archive = make_tar([("a.jpg", b"1"), ("a.jpg", b"2"), ("a.cls", b"3")])
    failed = run("tarsort", stdin=archive)
    assert (failed.status, failed.stdout) == (1, b"")
    assert "'jpg' twice (from stdin)" in failed.stderr
    assert members_of(run("tarsort", "-u", "last", stdin=archive).stdout) == [("a.jpg", b"2"), ("a.cls", b"3")]
    assert members_of(run("tarsort", "-S", "shuffle", stdin=archive).stdout) == members_of(archive)


def test_ten_shards_with_the_same_keys(run: Run, shell: Run, tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}.tar").write_bytes(make_tar(make_samples(20)))
    failed = run("tarsort", "{0..9}.tar")
    assert failed.status == 1
    assert not has_end(failed.stdout)
    assert re.search(r"'000000'.*twice \(from 0\.tar and 1\.tar\).*--rekey", failed.stderr)
    done = shell("tarcat --rekey '{index:09d}' {0..9}.tar | tarsort -v")
    assert done.status == 0
    assert "200 samples in, 200 out" in done.stderr
    kept = run("tarsort", "-v", "-u", "first", "{0..9}.tar")
    assert members_of(kept.stdout) == make_samples(20)
    assert "200 samples in, 20 out, 180 left out" in kept.stderr


def test_keys_as_numbers(run: Run) -> None:
    archive = make_tar([("10.x", b"1"), ("9.x", b"2"), ("09.x", b"3"), ("10.y", b"4")])
    done = run("tarsort", "-S", "int", stdin=archive)
    assert [name for name, _ in members_of(done.stdout)] == ["9.x", "09.x", "10.x", "10.y"]
    kept = run("tarsort", "-v", "-S", "int", "-u", "first", stdin=archive)
    assert [name for name, _ in members_of(kept.stdout)] == ["9.x", "10.x", "10.y"]
    assert "4 samples in, 2 out, 1 left out, 1 joined" in kept.stderr
