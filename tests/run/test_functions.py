"""Functions over samples and shards: map_samples, map_shards on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import tartools
from tartools.errors import SampleError, StorageError, TruncatedError, UsageError, how_to_install
from tartools.run import functions, ray
from tests.conftest import Result, has_end, make_samples, make_tar, members_of, start
from tests.processes import PATIENCE

WORKERS = pytest.mark.parametrize("workers", [1, 3])


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = tmp_path / "a.tar"
    path.write_bytes(make_tar(make_samples(100)))
    return str(path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.tar"


def same(sample: tartools.Sample) -> tartools.Sample:
    return sample


def written(samples: Iterable[dict[str, object]], path: Path) -> bytes:
    """Return the shard that `TarWriter` makes of *samples*."""
    with tartools.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)
    return path.read_bytes()


def program(tmp_path: Path, text: str) -> Result:
    """Run a program in *tmp_path*, from a file, since processes that it spawns look for that."""
    (tmp_path / "program.py").write_text(text)
    try:
        return start(sys.executable, "-W", "error", "program.py", folder=tmp_path, timeout=PATIENCE)
    finally:
        (tmp_path / "program.py").unlink()


# ---- what a function makes of samples ----


@WORKERS
def test_samples_of_all_shards_come_in_their_order(tmp_path: Path, out: Path, workers: int) -> None:
    def twice(sample: tartools.Sample) -> dict[str, object]:
        return {"__key__": sample.key, "cls": int(sample["cls"]) * 2, "shard": os.path.basename(sample.shard)}

    for number in range(3):
        (tmp_path / f"in-{number}.tar").write_bytes(make_tar(make_samples(10, 10 * number)))
    assert tartools.map_samples(twice, f"{tmp_path}/in-{{0..2}}.tar", str(out), workers=workers) == 30
    expected = [{"__key__": f"{n:06d}", "cls": n % 10 * 2, "shard": f"in-{n // 10}.tar"} for n in range(30)]
    assert out.read_bytes() == written(expected, tmp_path / "expected.tar")


def none(sample: tartools.Sample) -> None:
    return None


def odd(sample: tartools.Sample) -> tartools.Sample | None:
    return sample if int(sample.key) % 2 else None


def copies(sample: tartools.Sample) -> list[dict[str, object]]:
    return [{"__key__": f"{sample.key}/{n}", "cls": n} for n in range(int(sample["cls"]) % 3)]


def yielded(sample: tartools.Sample) -> Iterator[dict[str, object] | tartools.Sample]:
    yield from copies(sample)
    yield sample


@WORKERS
@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (none, []),
        (odd, [f"{n:06d}" for n in range(1, 100, 2)]),
        (copies, [f"{n:06d}/{k}" for n in range(100) for k in range(n % 10 % 3)]),
        (yielded, [f"{n:06d}{end}" for n in range(100) for end in [f"/{k}" for k in range(n % 10 % 3)] + [""]]),
    ],
    ids=["none", "filter", "list", "generator"],
)
def test_a_sample_becomes_none_or_many(
    shard: str, out: Path, workers: int, function: functions.OfSample, expected: list[str]
) -> None:
    assert tartools.map_samples(function, shard, str(out), workers=workers) == len(expected)
    assert has_end(out.read_bytes())
    assert list(dict.fromkeys(name.partition(".")[0] for name, _ in members_of(out.read_bytes()))) == expected


# ---- failures ----


def at_42(sample: tartools.Sample) -> tartools.Sample:
    if sample.key == "000042":
        raise KeyError("no such label")
    return sample


def late_at_42(sample: tartools.Sample) -> Iterator[tartools.Sample]:
    yield at_42(sample)


@WORKERS
@pytest.mark.parametrize("function", [at_42, late_at_42])
def test_an_exception_names_the_sample_and_leaves_nothing(
    shard: str, out: Path, workers: int, function: functions.OfSample
) -> None:
    with pytest.raises(KeyError, match="no such label") as caught:
        tartools.map_samples(function, shard, str(out), workers=workers)
    assert caught.value.__notes__ == [f"in sample '000042' of {shard}"]
    assert os.listdir(out.parent) == ["a.tar"]


def test_the_name_of_a_shard_in_a_note_has_no_signature(tmp_path: Path, out: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(50)))
    with pytest.raises(KeyError) as caught:
        tartools.map_samples(at_42, f"pipe:cat {tmp_path}/a.tar # https://host/a.tar?signature=abc", str(out))
    (note,) = caught.value.__notes__
    assert "of pipe:cat … a.tar" in note and "abc" not in note


def test_an_exception_waits_for_calls_that_are_under_way(shard: str, out: Path) -> None:
    begun, failing = threading.Event(), threading.Event()
    ended: list[str] = []

    def work(sample: tartools.Sample) -> None:
        if sample.key == "000000":
            assert begun.wait(60)
            failing.set()
            raise KeyError(sample.key)
        if sample.key == "000001":
            begun.set()
            assert failing.wait(60)
            time.sleep(0.2)  # in which the other thread would have returned
            ended.append(sample.key)

    before = set(threading.enumerate())
    with pytest.raises(KeyError):
        tartools.map_samples(work, shard, str(out), workers=2)
    assert ended == ["000001"] and set(threading.enumerate()) <= before


@WORKERS
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "returned bool"),
        ("a string", "returned str"),
        ([1], "returned int"),
        ([None], "returned NoneType"),
        ({"__key__": "a", "cls": object()}, "'cls'"),
    ],
)
def test_what_is_no_sample_is_refused(shard: str, out: Path, workers: int, value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        tartools.map_samples(lambda _: value, shard, str(out), workers=workers)  # type: ignore[arg-type, return-value]
    assert caught.value.__notes__ == [f"in sample '000000' of {shard}"]
    assert not out.exists()


@WORKERS
def test_damage_and_equal_keys_leave_nothing(shard: str, out: Path, workers: int) -> None:
    with pytest.raises(SampleError, match="side by side"):
        tartools.map_samples(lambda _: {"__key__": "a", "cls": 1}, shard, str(out), workers=workers)
    Path(shard).write_bytes(Path(shard).read_bytes()[:20_000])
    with pytest.raises(TruncatedError, match=f"{shard}: at byte 20000"):
        tartools.map_samples(same, shard, str(out), workers=workers)
    assert os.listdir(out.parent) == ["a.tar"]


def test_outputs_are_looked_at_before_anything_is_read(shard: str, out: Path) -> None:
    called: list[str] = []

    def count(sample: tartools.Sample) -> None:
        called.append(sample.key)

    out.write_bytes(b"precious")
    with pytest.raises(StorageError, match="already exists"):
        tartools.map_samples(count, shard, str(out))
    with pytest.raises(StorageError, match="also the input"):
        tartools.map_samples(count, shard, shard, force=True)
    with pytest.raises(StorageError, match="No such file"):
        tartools.map_samples(count, [shard, "/no/such.tar"], str(out), force=True)
    assert (called, out.read_bytes()) == ([], b"precious")
    tartools.map_samples(odd, shard, str(out), force=True)
    assert len(members_of(out.read_bytes())) == 100


def test_options_of_read_and_tarwriter_are_passed_on(tmp_path: Path, out: Path) -> None:
    (tmp_path / "a.cls").write_text("1")
    (tmp_path / "b.cls").symlink_to("a.cls")
    subprocess.run(["tar", "-cf", "x.tar", "a.cls", "b.cls"], cwd=tmp_path, check=True)
    with pytest.warns(UserWarning, match="symbolic link"):
        tartools.map_samples(same, f"{tmp_path}/x.tar", str(out))
    assert tartools.map_samples(same, f"{tmp_path}/x.tar", str(out), skip_special=True, force=True) == 1
    (tmp_path / "x.tar").write_bytes(make_tar(make_samples(1))[:1536])
    with pytest.warns(UserWarning, match="without an end-of-archive"):
        tartools.map_samples(same, f"{tmp_path}/x.tar", f"{tmp_path}/y.tgz", lax=True, gzip=True)
    assert (tmp_path / "y.tgz").read_bytes()[:2] == b"\x1f\x8b"


def test_an_empty_list_has_no_samples(out: Path) -> None:
    """It does not stand for stdin, as no names on a command line do."""
    assert list(tartools.read([])) == []
    assert tartools.map_samples(same, [], str(out)) == 0
    assert has_end(out.read_bytes()) and members_of(out.read_bytes()) == []


# ---- who calls, and how much is under way ----


@pytest.mark.parametrize("workers", [1, 2])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, out: Path, workers: int) -> None:
    big = tmp_path / "big.tar"
    big.write_bytes(make_tar([(f"{n:03d}.bin", bytes([n]) * (1 << 20)) for n in range(100)]))
    tracemalloc.start()
    try:
        tartools.map_samples(same, str(big), str(out), workers=workers)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert out.read_bytes() == big.read_bytes()
    assert peak < (4 * functions.SAMPLES_PER_WORKER * workers) << 20


def test_threads_are_used_and_an_executor_stays_open(shard: str, out: Path) -> None:
    names: set[str] = set()

    def note(sample: tartools.Sample) -> None:
        names.add(threading.current_thread().name)

    tartools.map_samples(note, shard, str(out))
    assert names == {threading.current_thread().name}
    names.clear()
    tartools.map_samples(note, shard, str(out), workers=2, force=True)
    assert names <= {"tartools_0", "tartools_1"}
    names.clear()
    with ThreadPoolExecutor(1, "mine") as pool:
        tartools.map_samples(note, shard, str(out), workers=pool, force=True)
        assert pool.submit(int, "7").result() == 7
    assert names == {"mine_0"}


PROCESSES = """
import multiprocessing, os
from concurrent.futures import ProcessPoolExecutor
import tartools

def label(sample):
    assert os.getpid() != int(os.environ["OWNER"])
    if sample.key == "000042" and "FAIL" in os.environ:
        raise ValueError("bad label")
    yield sample
    yield {"__key__": sample.key + "/again", "cls": sample["cls"]}

def half(shard, output):
    assert os.getpid() != int(os.environ["OWNER"])
    tartools.map_samples(list_of_odd, shard, output)

def list_of_odd(sample):
    return [sample] if int(sample.key) % 2 else []

if __name__ == "__main__":
    os.environ["OWNER"] = str(os.getpid())
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        print(tartools.map_samples(label, "a.tar", "out.tar", workers=pool))
        print(tartools.map_shards(half, [("a.tar", "half.tar")], workers=pool))
    os.environ["FAIL"] = "1"
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        try:
            tartools.map_samples(label, "a.tar", "fail.tar", workers=pool)
        except ValueError as error:
            print(error, error.__notes__)
"""


def test_processes_work_too(shard: str, out: Path) -> None:
    assert program(out.parent, PROCESSES).output().decode().splitlines() == [
        "200",
        "['half.tar']",
        "bad label [\"in sample '000042' of a.tar\"]",
    ]
    assert sorted(os.listdir(out.parent)) == ["a.tar", "half.tar", "out.tar"]
    keys = list(dict.fromkeys(name.partition(".")[0] for name, _ in members_of(out.read_bytes())))
    assert keys == [f"{n:06d}{end}" for n in range(100) for end in ("", "/again")]
    assert len(members_of((out.parent / "half.tar").read_bytes())) == 100


INTERRUPTED = """
import os, signal, threading
import tartools

def slow(sample):
    if sample.key == "000050":
        os.kill(os.getpid(), signal.SIGINT)
    return {"__key__": f"{sample.key}-{os.urandom(8).hex()}", "cls": 1}

def work(shard, output):
    tartools.map_samples(slow, shard, output)

endless = "pipe:while cat a.tar; do :; done"
try:
    %s
except KeyboardInterrupt:
    print("interrupted", [t.name for t in threading.enumerate()])
"""


@pytest.mark.parametrize(
    "call",
    [
        "tartools.map_samples(slow, endless, 'out.tar')",
        "tartools.map_samples(slow, endless, 'out.tar', workers=2)",
        "tartools.map_shards(work, [('b.tar', 'done.tar'), (endless, 'out.tar')], workers=1)",
    ],
    ids=["samples", "threads", "shards"],
)
def test_an_interrupt_ends_what_would_never_end(shard: str, out: Path, call: str) -> None:
    (out.parent / "b.tar").write_bytes(make_tar(make_samples(10)))
    assert program(out.parent, INTERRUPTED % call) == (0, b"interrupted ['MainThread']\n", "")
    assert sorted(os.listdir(out.parent)) == ["a.tar", "b.tar"] + ["done.tar"] * ("done" in call)


# ---- shards ----


class Work:
    """A function over shards: copies, unless the shard is one of *bad*; remembers its *calls*."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.bad: set[str] = set()

    def __call__(self, source: str, output: str) -> None:
        self.calls.append((source, output))
        if source in self.bad:
            raise ValueError(f"{source} is bad")
        tartools.map_samples(same, source, output, force=True)


@pytest.fixture
def pairs(tmp_path: Path) -> list[tuple[str, str]]:
    for n in range(20):
        (tmp_path / f"in-{n:02d}.tar").write_bytes(make_tar(make_samples(5, 5 * n)))
    return [(f"in-{n:02d}.tar", f"out-{n:02d}.tar") for n in range(20)]


def made() -> list[str]:
    return sorted(name for name in os.listdir() if not name.startswith("in-"))


@pytest.mark.parametrize("workers", [1, 3, None])
def test_shards_are_made_and_not_made_again(pairs: list[tuple[str, str]], workers: int | None) -> None:
    work = Work()
    assert tartools.map_shards(work, iter(pairs), workers=workers) == [output for _, output in pairs]
    assert sorted(work.calls) == pairs and made() == [output for _, output in pairs]
    for source, output in pairs:
        assert Path(source).read_bytes() == Path(output).read_bytes()
    assert tartools.map_shards(work, pairs, workers=workers) == []
    Path("out-07.tar").unlink()
    Path("out-03.tar").unlink()
    work.calls.clear()
    assert tartools.map_shards(work, pairs, workers=workers) == ["out-03.tar", "out-07.tar"]
    assert sorted(work.calls) == [pairs[3], pairs[7]]
    work.calls.clear()
    assert tartools.map_shards(work, pairs, workers=workers, redo=True) == [output for _, output in pairs]
    assert sorted(work.calls) == pairs


@pytest.mark.parametrize("workers", [1, 3])
def test_others_are_done_when_some_fail(pairs: list[tuple[str, str]], workers: int) -> None:
    work = Work()
    work.bad = {"in-05.tar", "in-11.tar"}
    with pytest.raises(ExceptionGroup, match=r"^2 of 20 shards failed: out-05.tar, out-11.tar$") as caught:
        tartools.map_shards(work, pairs, workers=workers)
    assert [(type(e), str(e), e.__notes__) for e in caught.value.exceptions] == [
        (ValueError, "in-05.tar is bad", ["in the call for out-05.tar"]),
        (ValueError, "in-11.tar is bad", ["in the call for out-11.tar"]),
    ]
    assert made() == [output for source, output in pairs if source not in work.bad]
    work.bad.pop()
    work.calls.clear()
    with pytest.raises(ExceptionGroup, match=r"^1 of 2 shards failed"):
        tartools.map_shards(work, pairs, workers=workers)
    assert sorted(source for source, _ in work.calls) == ["in-05.tar", "in-11.tar"]
    work.bad.clear()
    assert len(tartools.map_shards(work, pairs, workers=workers)) == 1
    assert made() == [output for _, output in pairs]


def test_a_message_names_few_of_many_that_failed(pairs: list[tuple[str, str]]) -> None:
    work = Work()
    work.bad = {source for source, _ in pairs}
    with pytest.raises(ExceptionGroup) as caught:
        tartools.map_shards(work, pairs, workers=2)
    assert caught.value.message == "20 of 20 shards failed: out-00.tar, out-01.tar, out-02.tar, ..."
    assert len(caught.value.exceptions) == 20


def test_one_exception_for_all_is_told_once(pairs: list[tuple[str, str]]) -> None:
    broken = RuntimeError("the pool is broken")

    def fail(source: str, output: str) -> None:
        raise broken

    with pytest.raises(ExceptionGroup, match=r"^20 of 20 ") as caught:
        tartools.map_shards(fail, pairs, workers=1)
    assert caught.value.exceptions == (broken,) and len(broken.__notes__) == 20


def test_a_function_that_writes_nothing_has_failed(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        tartools.map_shards(lambda *_: None, pairs[:1])
    (error,) = caught.value.exceptions
    assert isinstance(error, StorageError)
    assert str(error) == "out-00.tar: the function returned without writing this output"


def test_what_somebody_made_meanwhile_is_left_alone(pairs: list[tuple[str, str]]) -> None:
    def first_makes_second(source: str, output: str) -> None:
        assert output == "out-00.tar"
        for name in ("out-00.tar", "out-01.tar"):
            tartools.map_samples(same, source, name)

    assert tartools.map_shards(first_makes_second, pairs[:2], workers=1) == ["out-00.tar", "out-01.tar"]


def test_a_directory_is_not_made(pairs: list[tuple[str, str]]) -> None:
    """Who writes files into one may have been stopped before the last."""

    def unpack(source: str, output: str) -> None:
        os.makedirs(output, exist_ok=True)
        Path(output, str(len(os.listdir(output)))).touch()

    for times in (1, 2):
        assert tartools.map_shards(unpack, [("in-00.tar", "out")], workers=1) == ["out"]
        assert len(os.listdir("out")) == times


def test_outputs_may_be_paths(pairs: list[tuple[str, str]]) -> None:
    work = Work()
    assert tartools.map_shards(work, [(source, Path(output)) for source, output in pairs]) == [o for _, o in pairs]
    assert sorted(work.calls) == pairs


def test_a_pool_that_breaks_meanwhile(pairs: list[tuple[str, str]]) -> None:
    """Calls that it does not take have failed as those that it has lost."""

    class Breaking(ThreadPoolExecutor):
        taken = 0

        def submit(self, fn: Callable[..., object], /, *args: object, **kwargs: object) -> Future[object]:  # type: ignore[override]
            self.taken += 1
            if self.taken > 2:
                raise BrokenExecutor("a process was killed")
            return super().submit(fn, *args, **kwargs)

    with Breaking(1) as pool, pytest.raises(ExceptionGroup, match=r"^1 of 3 shards failed: out-02.tar$") as caught:
        tartools.map_shards(Work(), pairs[:3], workers=pool)
    assert [type(error) for error in caught.value.exceptions] == [BrokenExecutor]
    assert made() == ["out-00.tar", "out-01.tar"]


def test_inputs_are_whatever_the_function_takes(pairs: list[tuple[str, str]]) -> None:
    def join(sources: list[str], output: str) -> None:
        tartools.map_samples(same, sources, output)

    halves = [[source for source, _ in pairs[:10]], [source for source, _ in pairs[10:]]]
    tartools.map_shards(join, [(half, f"half-{n}.tar") for n, half in enumerate(halves)])
    assert [len(members_of(Path(f"half-{n}.tar").read_bytes())) for n in range(2)] == [100, 100]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "slurm"}, "engine must be 'local' or 'ray', not 'slurm'"),
        ({"address": "127.0.0.1:6379"}, "address requires engine='ray'"),
        ({"engine": "ray", "workers": ThreadPoolExecutor(1)}, "an executor requires engine='local'"),
        ({"workers": 0}, "workers must be 1 or more, not 0"),
        ({"engine": "ray", "workers": 0}, "workers must be 1 or more, not 0"),
        ({"engine": "ray", "workers": -1}, "workers must be 1 or more, not -1"),
        ({}, "two of the pairs have the output 'out-00.tar'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    pairs: list[tuple[str, str]], options: dict[str, object], message: str
) -> None:
    work = Work()
    with pytest.raises(ValueError, match=message):
        tartools.map_shards(work, pairs + [("in-99.tar", "out-00.tar")] * (not options), **options)  # type: ignore[arg-type]
    assert work.calls == []


def test_a_node_without_the_directory_says_so(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    ray.prepare_worker(gone, "s3://bucket/out.tar")
    ray.prepare_worker(gone, "/out.tar")
    with pytest.raises(StorageError, match=f"^out.tar: {os.uname().nodename} has no directory {gone}, to which "):
        ray.prepare_worker(gone, "out.tar")
    os.mkdir("there")
    ray.prepare_worker(str(tmp_path / "there"), "out.tar")
    assert os.getcwd() == str(tmp_path / "there")


def test_without_ray_it_says_what_to_install(pairs: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=re.escape(how_to_install("ray"))):
        tartools.map_shards(Work(), pairs, engine="ray")


@pytest.mark.parametrize("workers", [1, 3])
def test_samples_on_which_the_function_fails(workers: int, tmp_path: Path) -> None:
    """They are left out, replaced, or end the run, as on_error says; what a generator gave before is not kept."""
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(5)))
    failed: list[str] = []

    def work(sample: tartools.Sample) -> Iterator[tartools.Sample]:
        yield sample
        if sample.key in ("000001", "000003"):
            raise ValueError(f"no {sample.key}")

    def on_error(sample: tartools.Sample, error: Exception) -> dict[str, object] | None:
        failed.append(str(error))
        return {"__key__": "made", "txt": "instead"} if sample.key == "000003" else None

    def written(**options: object) -> int:
        return tartools.map_samples(
            work, tmp_path / "a.tar", tmp_path / "b.tar", workers=workers, force=True, **options
        )

    with pytest.raises(ValueError, match="no 000001"):
        written()
    assert written(on_error=on_error) == 4
    assert [sample.key for sample in tartools.read(tmp_path / "b.tar")] == ["000000", "000002", "made", "000004"]
    assert failed == ["no 000001", "no 000003"]

    def stop(sample: tartools.Sample, error: Exception) -> None:
        raise error

    with pytest.raises(ValueError, match="no 000001"):
        written(on_error=stop)
