"""The Python names: read, write, TarWriter, Sample."""

from __future__ import annotations

import copy
import gc
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import threading
from collections.abc import ItemsView
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import tartools
from tartools.errors import ExistsError, SampleError, StorageError, TruncatedError, UsageError
from tests.conftest import Run, make_samples, make_tar, members_of, open_descriptors, python


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar(make_samples(100)))
    return path


def label(sample: tartools.Sample) -> tuple[str, bytes, int]:
    return sample.key, sample["cls"], len(sample["jpg"])


def expected(count: int) -> list[tuple[str, bytes, int]]:
    return [(f"{n:06d}", b"%d" % (n % 10), n * 37 % 3000) for n in range(count)]


def test_read_gives_the_samples_of_all_shards_in_order(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"a-{number:03d}.tar").write_bytes(make_tar(make_samples(10, 10 * number)))
    found = list(map(label, tartools.read(f"{tmp_path}/a-{{000..002}}.tar")))
    assert found == expected(30)
    assert list(map(label, tartools.read([f"{tmp_path}/a-00?.tar"]))) == found


def test_samples_go_through_a_pool(shard: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert list(pool.imap(label, tartools.read(str(shard)))) == expected(100)


def test_threads_read_side_by_side(shard: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda url: list(map(label, tartools.read(url))), [str(shard)] * 8)
        assert [*found] == [expected(100)] * 8


def test_dropping_the_iterator_half_way_closes_what_it_had_open(shard: Path, tmp_path: Path) -> None:
    before = open_descriptors()
    samples = tartools.read([str(shard), f"pipe:cat {shard}; echo $$ > {tmp_path}/pid; cat {shard}"])
    for _ in range(150):
        sample = next(samples)
    del samples
    gc.collect()
    assert sample["cls"] == b"9"
    assert open_descriptors() == before
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_large_member_is_opened_without_being_held(tmp_path: Path) -> None:
    payload = bytes(range(256)) * 100_000
    (tmp_path / "a.tar").write_bytes(make_tar([("v.mp4", payload), ("v.cls", b"1")]))
    for url in (f"{tmp_path}/a.tar", f"pipe:cat {tmp_path}/a.tar"):
        (sample,) = tartools.read(url)
        assert isinstance(sample.members[0].source, io.FileIO)
        with sample.open("mp4") as file:
            file.seek(-256, os.SEEK_END)
            assert file.read() == payload[-256:]
            file.seek(1000)
            assert file.read(5) == payload[1000:1005]
        assert sample["mp4"] == payload


def test_damage_is_raised_after_the_samples_before_it(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes()[:20_000])
    found: list[tuple[str, bytes, int]] = []
    with pytest.raises(TruncatedError, match=f"{shard}: at byte 20000: ") as caught:
        found.extend(map(label, tartools.read(str(shard))))
    assert found == expected(len(found)) and len(found) > 3
    assert (caught.value.url, caught.value.offset) == (str(shard), 20_000)


def test_members_without_data_are_counted_at_the_end(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("a.x", tarfile.SYMTYPE), ("b.x", tarfile.REGTYPE), ("c.x", tarfile.SYMTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "a"
            archive.addfile(member)
    with pytest.warns(UserWarning) as warned:
        assert [sample.key for sample in tartools.read(tmp_path / "a.tar")] == ["b"]
    first, more = [str(warning.message) for warning in warned]
    assert "a.x" in first and "symbolic link" in first
    assert more == "1 more such member not passed on"


def test_a_missing_shard_is_told_before_anything_is_read(shard: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        tartools.read([str(shard), "/no/such.tar"])


def test_write_takes_samples_that_were_read(shard: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    tartools.write((s for s in tartools.read(str(shard)) if s["cls"] == b"3"), str(out))
    assert [name for name, _ in members_of(out.read_bytes())] == [
        f"{n:06d}.{field}" for n in range(3, 100, 10) for field in ("cls", "jpg")
    ]


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"__key__": "a", "cls": object()}, TypeError, "'cls'"),
        ({"__key__": "a", "cls": {"no": "json field"}}, TypeError, "'cls'"),
        ({"__key__": "a", "seg.txt": [1]}, TypeError, r"'seg\.txt'"),
        ({"__key__": "a", "seg.txt": None}, TypeError, r"'seg\.txt'"),
        ({"__key__": "a", "json": {1, 2}}, TypeError, "'json'"),
        ({"__key__": "a", "meta.json": {"loss": float("nan")}}, TypeError, "'meta.json'"),
        ({"__key__": "a", "json": float("-inf")}, TypeError, "'json'"),
        ({"__key__": "a", "txt": "x\ud800"}, SampleError, r"sample 'a', field 'txt': .*'\\ud800'"),
        ({"__key__": "a", "json": ["\udfff"]}, SampleError, r"sample 'a', field 'json': .*'\\udfff'"),
        ({"__key__": "a\ud800", "txt": "x"}, SampleError, r"sample 'a\\ud800'"),
        ({"__key__": "a", "\ud800": "x"}, SampleError, r"sample 'a', field '\\ud800'"),
        ({"cls": "1"}, SampleError, "__key__"),
        ({"__key__": "", "cls": "1"}, SampleError, "__key__"),
        ({"__key__": 3, "cls": "1"}, SampleError, "__key__"),
        ({"__key__": "a", "__url__": "x"}, SampleError, "no fields"),
        *(
            ({"__key__": key, field: "1"}, SampleError, "would not read back")
            for key in ("a.b", "a/", "a\0b", ".a", "a")
            for field in (("cls", "") if key in ("a.b", "a/") else ("x/y", "x\0") if key == "a" else ("cls",))
        ),
    ],
)
def test_tarwriter_refuses_what_would_not_come_back(
    tmp_path: Path, fields: dict[str, object], error: type[Exception], message: str
) -> None:
    out = tmp_path / "out.tar"
    with pytest.raises(error, match=message), tartools.TarWriter(str(out)) as writer:
        writer.write(fields)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("count", "size"), [(7, None), (None, 20_000), (9, 20_000), (None, 1)])
def test_shardwriter_writes_what_tarsplit_does(run: Run, shard: Path, tmp_path: Path, count: int, size: int) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    with tartools.ShardWriter(tmp_path / "ours/a-%03d.tar", count, size) as writer:
        for sample in tartools.read(shard):
            writer.write({"__key__": sample.key, **sample})
    limits = [f"{option}{value}" for option, value in (("-n", count), ("-s", size)) if value]
    whole = tmp_path / "whole.tar"
    tartools.write(({"__key__": sample.key, **sample} for sample in tartools.read(shard)), whole)
    assert run("tarsplit", *limits, whole, "-o", "theirs/a-%03d.tar").status == 0
    found, other = ({path.name: path.read_bytes() for path in (tmp_path / x).iterdir()} for x in ("ours", "theirs"))
    assert found == other and len(found) > 4
    assert writer.shards == [f"{tmp_path}/ours/{name}" for name in sorted(found)]


@pytest.mark.parametrize("ending", ["del", "error", "abort"])
def test_a_series_that_is_not_closed_has_whole_shards_only(tmp_path: Path, ending: str) -> None:
    writer = tartools.ShardWriter(f"{tmp_path}/a", 2)
    for n in range(21):
        writer.write({"__key__": f"{n}", "cls": n})
    shards = writer.shards
    if ending == "error":
        with pytest.raises(ZeroDivisionError), writer:
            1 / 0  # noqa: B018
    elif ending == "abort":
        writer.abort()
    del writer
    gc.collect()
    assert len(shards) > 4 and sorted(map(str, tmp_path.iterdir())) == shards
    assert [s.key for s in tartools.read(shards)] == [str(n) for n in range(2 * len(shards))]
    with pytest.raises(StorageError, match=r"a-000000\.tar: .*exists"):
        tartools.ShardWriter(tmp_path / "a")
    with pytest.warns(UserWarning) as told, tartools.ShardWriter(tmp_path / "a", force=True) as new:
        new.write({"__key__": "a", "cls": 1})
        with pytest.raises(SampleError, match="two samples with the key 'a'"):
            new.write({"__key__": "a", "cls": 1})
        new.write({"__key__": "b", "cls": 1})
    rest = [f"{name}: removed, because this run did not write it" for name in shards[1:]]
    assert [str(one.message) for one in told] == rest
    assert [*map(str, tmp_path.iterdir())] == new.shards == [f"{tmp_path}/a-000000.tar"]
    assert [s.key for s in tartools.read(new.shards)] == ["a", "b"]


def test_shardwriter_without_samples_and_with_wrong_limits(tmp_path: Path) -> None:
    with tartools.ShardWriter(tmp_path / "a") as writer:
        pass
    assert writer.shards == [] == os.listdir(tmp_path)
    for limits in ({"max_count": 0}, {"max_size": 0}):
        with pytest.raises(ValueError, match="is 1 or more, not 0"):
            tartools.ShardWriter(tmp_path / "a", **limits)
    for name in ("a-%d.parquet", "a.zip"):
        with pytest.raises(UsageError):
            tartools.ShardWriter(tmp_path / name)


def test_a_shard_that_could_not_get_its_name_is_not_followed_by_others(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="could not be completed before; no later one is") as raised:  # noqa: SIM117
        with tartools.ShardWriter(tmp_path / "a", max_count=1) as writer:
            for number in range(12):
                with suppress(ExistsError):
                    writer.write({"__key__": f"{number}", "txt": "x"})
                if number == 1:
                    (tmp_path / "a-000001.tar").touch()
    assert raised.value.url == str(tmp_path / "a-000001.tar")
    assert writer.shards == [str(tmp_path / "a-000000.tar")]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-000000.tar", "a-000001.tar"]
    assert (tmp_path / "a-000001.tar").stat().st_size == 0


def test_a_write_that_failed_half_way_cannot_be_committed(tmp_path: Path) -> None:
    source, out = tmp_path / "a.tar", tmp_path / "out.tar"
    source.write_bytes(make_tar([("a.bin", bytes(3 << 20)), ("b.bin", b"1")]))
    large, small = tartools.read(str(source))
    os.truncate(source, 1 << 20)
    writer = tartools.TarWriter(str(out))
    with pytest.raises(StorageError, match="became shorter"):
        writer.write(large)
        writer.write(small)  # what was added is written when the next piece begins
    with pytest.raises(StorageError, match="earlier write failed"):
        writer.close()
    assert os.listdir(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("ending", ["sys.exit(0)", "del samples; os._exit(0)"])
def test_a_fork_that_ends_leaves_what_its_parent_reads_alone(tmp_path: Path, ending: str) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(3000)))
    program = f"""
import os, sys, tartools
samples = tartools.read("pipe:cat a.tar")
first = next(samples)
if not os.fork():
    {ending}
os.wait()
print(len([first, *samples]))
"""
    assert python(program, folder=tmp_path).output() == b"3000\n"


def test_kept_samples_keep_no_files_open(tmp_path: Path) -> None:
    names = []
    for number in range(200):
        names.append(str(tmp_path / f"{number:03d}.tar"))
        Path(names[-1]).write_bytes(make_tar([(f"{number}.txt", b"%d" % number)]))
    before = open_descriptors()
    kept = list(tartools.read(names))
    assert open_descriptors() == before
    assert [sample["txt"] for sample in kept] == [b"%d" % number for number in range(200)]
    assert [dict(sample) for sample in pickle.loads(pickle.dumps(kept))] == [dict(sample) for sample in kept]
    assert copy.deepcopy(kept[7].members[0]).read() == b"7"


def test_names_that_no_field_has(shard: Path) -> None:
    sample = next(tartools.read(str(shard)))
    assert "\ud800" not in sample and sample.get("\ud800") is None


def test_threads_that_share_a_writer_write_whole_samples(tmp_path: Path) -> None:
    writer = tartools.TarWriter(str(tmp_path / "out.tar"))

    def work(number: int) -> None:
        for n in range(200):
            writer.write({"__key__": f"{number}-{n:03d}", "bin": b"%d" % number * (n * 997 % 200_000), "cls": n})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))
    finally:
        sys.setswitchinterval(interval)
    writer.close()
    found = [(s.key, int(s["cls"]), len(s["bin"])) for s in tartools.read(str(tmp_path / "out.tar"))]
    assert len(found) == 800
    for number in range(4):  # each thread's samples are in its order
        mine = [row for row in found if row[0][0] == str(number)]
        assert mine == [(f"{number}-{n:03d}", n, n * 997 % 200_000) for n in range(200)]


def test_close_while_a_thread_writes_is_an_error_and_commits_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    inside, go_on = threading.Event(), threading.Event()

    class Slow(dict[str, object]):
        def items(self) -> ItemsView[str, object]:
            inside.set()
            go_on.wait(60)
            return super().items()

    writer = tartools.TarWriter(str(out))
    writer.write({"__key__": "a", "cls": 1})
    raised: list[Exception] = []

    def work() -> None:
        try:
            writer.write(Slow({"__key__": "b", "cls": 2}))
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(60)
    with pytest.raises(StorageError, match="while a thread was writing"):
        writer.close()
    go_on.set()
    thread.join()
    assert [type(error) for error in raised] == [ValueError]
    writer.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("output", ["out.tar", "-", "fifo"])
@pytest.mark.parametrize("form", ["samples", "bytes"])
def test_a_writer_belongs_to_its_process(tmp_path: Path, form: str, output: str) -> None:
    program = f"""
import os, sys, tartools
if {form == "bytes"}:
    writer, (one, other, last) = tartools.open({output!r}, "wb"), (b"one ", b"no ", b"two")
else:
    writer = tartools.TarWriter({output!r})
    one, other, last = ({{"__key__": key, "cls": number}} for number, key in enumerate("abc"))
writer.write(one)
if not os.fork():
    for call in (lambda: writer.write(other), writer.close):
        try:
            call()
        except RuntimeError as error:
            assert "belongs to the process" in str(error)
        else:
            print("no error", file=sys.stderr)
    if {form != "bytes"} and os.fork():
        writer.abort()
    sys.exit()
os.wait()
assert not os.path.exists("out.tar")
writer.write(last)
writer.close()
"""
    os.mkfifo(tmp_path / "fifo")
    fifo = subprocess.Popen(["cat", "fifo"], cwd=tmp_path, stdout=subprocess.PIPE) if output == "fifo" else None
    out = python(program, folder=tmp_path).output()
    written = out if output == "-" else fifo.communicate()[0] if fifo else (tmp_path / output).read_bytes()
    assert written == b"one two" if form == "bytes" else members_of(written) == [("a.cls", b"0"), ("c.cls", b"2")]


@pytest.mark.parametrize("count", [10, 3000])
def test_an_iterator_that_has_begun_belongs_to_its_process(tmp_path: Path, count: int) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(count)))
    program = """
import os, sys, tartools
new, samples = tartools.read("a.tar"), tartools.read(["a.tar", "a.tar"])
keys = [next(samples).key]
if not os.fork():
    assert [sample.key for sample in new][:1] == keys
    try:
        next(samples)
    except RuntimeError as error:
        assert "another process" in str(error)
        sys.exit(0)
    sys.exit(1)
if os.wait()[1]:
    sys.exit("no error")
keys += [sample.key for sample in samples]
print(len(keys), keys == 2 * [sample.key for sample in new])
"""
    assert python(program, folder=tmp_path) == (0, b"%d True\n" % (2 * count), "")
