"""`stream_map`: each result exactly once, in order if asked, whoever is lost; bounded; errors; an early end."""

from __future__ import annotations

import fcntl
import gzip
import multiprocessing
import os
import random
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import tartools
from tartools.errors import SampleError, StorageError, TruncatedError, UsageError
from tartools.storage.pool import Threads
from tartools.train import samples, stream_map
from tartools.train.mapwork import make_chunks
from tests.conftest import Result, Run, clean_environment, make_tar, start
from tests.processes import until
from tests.storage.objects.faults import FaultServer
from tests.tiers import exhaustive
from tests.train.losing import archive, lose_two
from tests.train.mapped import expected, failing, gated, mixed

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata calls it


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, run: Run) -> Path:
    """Return the current directory, with shards of all kinds."""
    Path("a.tar").write_bytes(archive(1, 100))
    Path("b.tar").write_bytes(archive(2, 45))
    Path("c.tgz").write_bytes(gzip.compress(archive(3, 30)))
    Path("none.tar").write_bytes(make_tar([]))
    assert run("tarindex", "b.tar", "a.tar", "-o", "t.parquet").status == 0
    return tmp_path


@pytest.fixture
def left() -> Callable[[], list[Any]]:
    """Return a function that says which threads and processes were begun in this test and have not ended."""
    before = {*threading.enumerate()}
    return lambda: [*({*threading.enumerate()} - before), *multiprocessing.active_children()]


MIXED = ["a.tar", "t.parquet", "none.tar", "c.tgz", "pipe:cat b.tar"]


@pytest.mark.parametrize("ordered", [True, False])
def test_each_result_comes_once(ordered: bool, left: Callable[[], list[Any]]) -> None:
    for urls in (MIXED, "a.tar", "none.tar", "t.parquet"):
        wanted = expected(list(samples(urls)))
        for workers, part in ((1, "1K"), (3, 10_000), (16, "50KB"), (4, "1GB")):
            found = list(stream_map(mixed, urls, workers=workers, chunk_size=part, ordered=ordered))
            assert found == wanted if ordered else sorted(map(repr, found)) == sorted(map(repr, wanted))
    assert left() == []


def test_no_chunk_is_smaller_than_a_sample() -> None:
    """Whoever takes `chunk_size` for a number of samples gets one, not a chunk for each byte."""
    assert 45 < len([*make_chunks(["b.tar"], ["b.tar"], 1)]) <= -(-Path("b.tar").stat().st_size // 1024)
    assert list(stream_map(mixed, "b.tar", workers=2, chunk_size=1)) == expected(list(samples("b.tar")))


def test_a_table_gives_the_order() -> None:
    table = tartools.Table("t.parquet").take(random.Random(3).sample(range(145), 70))
    wanted = expected([{"__key__": s.key, "__url__": s.shard, **s} for s in table])
    for engine in ("threads", "processes"):
        assert list(stream_map(mixed, table, engine=engine, workers=2, chunk_size="5K")) == wanted  # type: ignore[arg-type]


def test_fields_are_chosen_and_decoded(folder: Path) -> None:
    Path("n.tar").write_bytes(make_tar([(f"{n}.{field}", b"%d" % n) for n in range(6) for field in ("cls", "pyd")]))
    assert list(stream_map(tuple, "n.tar", fields="__key__ cls", decode="basic")) == [(str(n), n) for n in range(6)]
    with pytest.raises(SampleError, match=r"^n.tar: sample '0': field 'pyd': .*unpickled"):
        list(stream_map(dict, "n.tar", decode="basic"))


# ---- what is lost ----


def test_killed_processes_are_replaced(folder: Path) -> None:
    lose_two(folder, "processes", clean_environment(), ["a.tar", "b.tar"])


# ---- bounds ----


@pytest.mark.parametrize("ordered", [True, False])
def test_a_slow_consumer_bounds_what_is_made(ordered: bool) -> None:
    """When a result is taken, as many chunks are made as may be under way, and no more."""
    made: list[int] = []

    def noted(sample: dict[str, Any]) -> int:
        made.append(int(sample["__key__"][-4:]))
        return made[-1]

    table = tartools.Table("t.parquet").take(range(45))
    data = iter(stream_map(noted, table, workers=2, chunk_size=1, prefetch=3, ordered=ordered))
    for taken in range(45):
        next(data)
        until(lambda taken=taken: len(made) >= min(taken + 3, 45))
        assert len(made) <= taken + 3
    assert list(data) == [] and sorted(made) == [*range(45)]


# ---- errors ----


def failure(data: Any) -> tuple[list[Any], BaseException]:
    """Return the results of *data* before it fails, and how it fails."""
    found: list[Any] = []
    with pytest.raises((Exception, SystemExit)) as caught:
        for one in data:
            found.append(one)  # noqa: PERF402  # those before the failure
    return found, caught.value


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_an_error_names_the_sample_and_comes_behind_results(engine: Any, left: Callable[[], list[Any]]) -> None:
    kinds = {"raise": ValueError, "exit": SystemExit}
    if engine == "processes":
        kinds |= {"strange": RuntimeError, "result": Exception, "kill": RuntimeError}
    for how, kind in kinds.items():
        data = stream_map(partial(failing, how), ["b.tar"], engine=engine, workers=1, chunk_size="6K", retries=1)
        found, error = failure(data)
        before = [f"2/{n:04d}" for n in range(7)]
        assert isinstance(error, kind)
        assert found == before[: len(found)]
        if how == "kill":
            assert str(error) == "b.tar: chunk 2 of 15: killed by SIGKILL while a worker was at it, 2 times"
        else:
            assert found == before and "in sample '2/0007' of b.tar" in error.__notes__
        if how == "strange":
            assert "1 and 2" in str(error)
            assert any("mapped.StrangeError: 1 and 2" in note for note in error.__notes__)
    assert left() == []


def test_damage_is_an_error_behind_what_is_sound(folder: Path) -> None:
    whole = Path("b.tar").read_bytes()
    Path("cut.tar").write_bytes(whole[:30_000])
    for ordered in (True, False):
        found, error = failure(stream_map(mixed, ["a.tar", "cut.tar"], workers=3, chunk_size="5K", ordered=ordered))
        assert isinstance(error, TruncatedError) and str(error).startswith("cut.tar: at byte 3")
        if ordered:
            sound = expected(list(samples("a.tar")))
            assert found[: len(sound)] == sound
            behind = expected([sample | {"__url__": "cut.tar"} for sample in samples("b.tar")])
            assert 0 < len(found) - len(sound) < len(behind)
            assert found[len(sound) :] == behind[: len(found) - len(sound)]
    data = stream_map(mixed, ["a.tar", "b.tar"], workers=1, chunk_size="5K", prefetch=1)
    results = iter(data)
    next(results)
    os.remove("b.tar")
    found, error = failure(results)
    assert isinstance(error, StorageError) and str(error).startswith("b.tar: ")
    assert len(found) == len(expected(list(samples("a.tar")))) - 1


def test_a_shard_that_is_replaced_is_an_error(folder: Path) -> None:
    results = iter(stream_map(mixed, "a.tar", workers=1, chunk_size="5K", prefetch=1))
    next(results)
    Path("new.tar").write_bytes(archive(9, 100))
    os.replace("new.tar", "a.tar")
    assert str(failure(results)[1]) == "a.tar: was replaced since the epoch began"


def test_a_store(server: FaultServer) -> None:
    """Parts are read by ranges, of one version."""
    server.objects.update({"a.tar": Path("a.tar").read_bytes(), "c.tgz": Path("c.tgz").read_bytes()})
    urls = [server.url("s3", "a.tar"), server.url("http", "c.tgz")]
    data = stream_map(mixed, urls, workers=3, chunk_size="50K")
    wanted = expected(list(samples(urls)))
    assert list(data) == wanted
    assert len({request.start for request in server.requests if request.path.endswith("a.tar")}) > 3
    results = iter(stream_map(mixed, urls, workers=1, chunk_size="50K", prefetch=1))
    next(results)
    server.objects["a.tar"] = archive(9, 100)
    found, error = failure(results)
    assert str(error) == "s3://b/a.tar: was replaced since the epoch began"
    assert found == wanted[1 : len(found) + 1]


def test_what_can_not_be_done_is_said_at_once(folder: Path) -> None:
    os.mkfifo("fifo.tar")
    for options, kind, text in (
        ({"engine": "local"}, ValueError, "engine is one of 'threads', 'processes', 'ray', not 'local'"),
        ({"address": "x:1"}, ValueError, "address requires engine='ray'"),
        ({"workers": 0}, ValueError, "workers is 1 or more, not 0"),
        ({"retries": -1}, ValueError, "retries is 0 or more, not -1"),
        ({"chunk_size": 0}, ValueError, "chunk_size is 1 byte or more, not 0"),
        ({"source": []}, ValueError, "there are no shards to read"),
        ({"source": "-"}, UsageError, "stdin: workers can't share this"),
        ({"source": "fifo.tar"}, UsageError, "fifo.tar: workers can't share this"),
        ({"source": "gone.tar"}, StorageError, "gone.tar: "),
    ):
        with pytest.raises(kind, match=f"^{text}"):
            stream_map(**({"function": mixed, "source": "a.tar"} | options))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="define it at the top of a module"):
        list(stream_map(lambda sample: sample, "a.tar", engine="processes"))
    loader: Any = iter(DataLoader(stream_map(mixed, "a.tar"), batch_size=None, num_workers=1))
    with pytest.raises(RuntimeError, match="stream_map has workers of its own: give num_workers=0"):
        next(loader)
    loader._shutdown_workers()


UNGUARDED = """
from tartools.train import stream_map
list(stream_map(len, "a.tar", engine="processes", workers=1))
"""
LEFT = """
import multiprocessing
if __name__ == "__main__":
    from tartools.train import stream_map
    for engine in ("threads", "processes"):
        globals()[engine] = iter(stream_map(len, "a.tar", engine=engine, workers=2, chunk_size="5K"))
        next(globals()[engine])
    print(*(process.pid for process in multiprocessing.active_children()))
"""


def program(text: str) -> Result:
    Path("program.py").write_text(text)
    return start(sys.executable, "program.py")


@exhaustive
def test_a_program_without_a_guard_is_told_so() -> None:
    done = program(UNGUARDED)
    assert done.status == 1
    assert "RuntimeError: a worker process could not start: ended with status 1. It imports the main" in done.stderr


# ---- an early end ----


@exhaustive
def test_a_program_that_ends_leaves_nothing() -> None:
    numbers = program(LEFT).output().decode().split()
    assert len(numbers) == 2
    assert not [number for number in numbers if Path(f"/proc/{number}").exists()]


def test_closing_ends_what_runs(folder: Path, monkeypatch: pytest.MonkeyPatch, left: Callable[[], list[Any]]) -> None:
    """Whatever a process is at is ended; in a thread the call that runs ends, and no other begins."""
    table = tartools.Table("t.parquet").take(range(40))
    options: Any = {"chunk_size": 1, "prefetch": 9}
    with Path("gate").open("w") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        results: Any = iter(stream_map(partial(gated, "gate"), table, engine="processes", workers=2, **options))
        next(results)
        until(lambda: list(folder.glob("gate-at-*")))
        results.close()
    assert left() == []

    made: list[str] = []
    begun, go_on = threading.Event(), threading.Event()
    close = Threads.close

    def closed(threads: Threads[Any, Any]) -> None:
        go_on.set()
        close(threads)

    def waiting(sample: dict[str, Any]) -> str:
        made.append(sample["__key__"])
        if len(made) > 1:
            begun.set()
            go_on.wait(60)
        return made[-1]

    results = iter(stream_map(waiting, table, workers=1, **options))
    next(results)
    assert begun.wait(60)
    monkeypatch.setattr(Threads, "close", closed)
    results.close()
    assert left() == [] and made == ["2/0000", "2/0001"]


# ---- where it is ----


def test_a_state_goes_on_with_the_next_result() -> None:
    def make(urls: Any = ("a.tar", "t.parquet"), **options: Any) -> Any:
        return stream_map(mixed, [*urls], workers=2, **({"chunk_size": "30K"} | options))

    whole = list(make())
    for count in (0, 1, 9, 10, 11, 60, len(whole) - 1, len(whole)):
        data = make()
        results = iter(data)
        assert list(islice(results, count)) == whole[:count]
        again = make()
        again.load_state_dict(data.state_dict())
        assert list(again) == whole[count:]
        assert list(again) == whole  # the next epoch
        results.close()
    data = make()
    assert list(data) == whole
    begun = data.state_dict()
    begun_with = {name: make([name]).state_dict()["data"] for name in ("a.tar", "t.parquet")}
    for other in (make(chunk_size="31K"), make(["a.tar"])):
        with pytest.raises(ValueError, match="the state of other shards"):
            other.load_state_dict(begun)
    for name in ("a.tar", "t.parquet"):  # another one of this name
        sound = Path(name).read_bytes()
        if name == "t.parquet":
            tartools.Table(name).take(slice(None, None, -1)).write(name, force=True)
        else:
            Path(name).write_bytes(sound + bytes(512))
        with pytest.raises(ValueError, match="the state of other shards"):
            make([name]).load_state_dict({"data": begun_with[name], "next": [0, 0]})
        Path(name).write_bytes(sound)
    with pytest.raises(ValueError, match="use ordered=True"):
        make(ordered=False).state_dict()


def test_ranks_share_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = expected(list(samples(MIXED[:4])))
    monkeypatch.setenv("WORLD_SIZE", "3")
    found = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        found.append(list(stream_map(mixed, MIXED[:4], workers=2, chunk_size="10K")))
    assert all(found) and sorted(map(repr, chain(*found))) == sorted(map(repr, wanted))


def test_loaders_batch_and_go_on() -> None:
    def make() -> Any:
        return StatefulDataLoader(stream_map(len, "a.tar", workers=2, chunk_size="10K"), batch_size=8)

    whole = [batch.tolist() for batch in make()]
    assert sum(map(len, whole)) == 100
    loader = make()
    begun = iter(loader)
    assert [next(begun).tolist() for _ in range(5)] == whole[:5]
    state = loader.state_dict()
    loader = make()
    loader.load_state_dict(state)
    assert [batch.tolist() for batch in loader] == whole[5:]
    assert [batch.tolist() for batch in DataLoader(stream_map(len, "a.tar"), batch_size=8)] == whole
