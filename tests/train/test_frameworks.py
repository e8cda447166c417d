"""In the frameworks that people train with, each sample comes once an epoch, also over a kill and a resume."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from tartools.errors import UsageError
from tartools.train import StatefulSampler, TableDataset, WebDataset, frameworks, loader, samples
from tests.conftest import ROOT, make_tar
from tests.tiers import exhaustive
from tests.train import dealt
from tests.train.conftest import be_rank

COUNT = 101
RAY = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600"}
LONGEST_RUN = 600  # seconds of a program
GRACE = 10  # seconds for the ranks that are left when one was killed
KILLED_AT = 11  # a step of the second epoch, two steps after a checkpoint
PAGE = (ROOT / "docs/training/frameworks.md").read_text()
SECTION = re.compile(r"^## (.+?)\n\n```python\n(.*?)^```\n\nStart it with `(.+?)`", re.MULTILINE | re.DOTALL)
PROGRAMS = {title: (code, command) for title, code, command in SECTION.findall(PAGE)}
PACKAGES = {
    "Lightning": ["lightning"],
    "Fabric": ["lightning"],
    "accelerate": ["accelerate"],
    "Hugging Face Trainer": ["transformers", "accelerate"],
    "Composer": ["composer"],
    "Ray Train": ["ray", "fsspec", "pandas", "pyarrow", "requests"],  # ray alone is not ray[train], which needs these
    "ignite": ["ignite"],
}
# Replaces print in each process: what is printed of a step is added to a file of its rank, and a step may kill.
SITE = """
import builtins, os, re, signal
def noting(*values, print=print, **options):
    print(*values, **options)
    line = " ".join(map(str, values))
    if found := re.match(r"rank (\\d+) step (\\d+):", line):
        file = os.open(f"{os.environ['NOTES']}/{found[1]}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, (line + "\\n").encode())
        os.close(file)
        if found[2] == os.environ.get("KILLED_AT"):
            os.kill(os.getpid(), signal.SIGKILL)
builtins.print = noting
"""


def skip_without(*packages: str) -> None:
    """Skip the test if one of *packages* is not installed."""
    for package in packages:
        if find_spec(package) is None:
            pytest.skip(f"needs {package}: pip install 'tartools[test-frameworks]'")


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


class Numbers(Dataset[int]):
    """The numbers below *count*."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


def numbered_tar(count: int) -> bytes:
    return make_tar([(f"{n:03d}.cls", b"%d" % n) for n in range(count)])


# ---- what frameworks ask of a loader ----


@pytest.fixture
def dealers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that deals as accelerate's does, without its padding."""
    module = types.ModuleType("accelerate.data_loader")
    code = """
class BatchSamplerShard:
    def __init__(self, inner, number, count):
        self.inner, self.number, self.count = inner, number, count
    def __len__(self):
        return len(self.inner)
    def __iter__(self):
        yield from (batch for n, batch in enumerate(self.inner) if n % self.count == self.number)
class IterableDatasetShard(BatchSamplerShard):
    pass
class DataLoaderDispatcher(BatchSamplerShard):
    def __iter__(self):
        yield from self.inner
"""
    exec(compile(code, module.__name__, "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_a_framework_deals_is_not_dealt_before(world: int, dealers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.tar").write_bytes(numbered_tar(COUNT))
    table = TableDataset("a.tar", fields="cls", decode="basic")
    every = list(range(COUNT))

    def deal(kind: str, make: Any) -> list[Any]:
        items = []
        for number in range(world):
            be_rank(monkeypatch, number, world)
            items += list(getattr(dealers, kind)(make(), number, world))
        return items

    batches = deal("BatchSamplerShard", lambda: StatefulSampler(table, batch_size=8))
    assert sorted(row for batch in batches for row in batch) == every
    assert sorted(deal("BatchSamplerShard", lambda: StatefulSampler(table))) == every
    for make in (lambda: WebDataset("a.tar", shuffle=9), lambda: samples("a.tar")):
        assert sorted(int(sample["cls"]) for sample in deal("IterableDatasetShard", make)) == every
    be_rank(monkeypatch, 0, world)
    read_for_all = list(dealers.DataLoaderDispatcher(DataLoader(WebDataset("a.tar"), None, num_workers=1), 0, 1))
    assert len(read_for_all) == COUNT
    assert len(dealers.BatchSamplerShard(StatefulSampler(table, batch_size=8), 0, world)) == 13
    alone = []
    for number in range(world):  # no framework deals here
        be_rank(monkeypatch, number, world)
        alone.append(len(list(WebDataset("a.tar"))))
    assert sum(alone) == COUNT and len(alone) == world


@pytest.mark.filterwarnings("error")
def test_several_workers_of_a_dispatcher_are_a_warning(dealers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """accelerate drops samples after a short batch that is not the last one."""
    Path("a.tar").write_bytes(numbered_tar(COUNT))
    be_rank(monkeypatch, 0, 2)
    data = DataLoader(WebDataset("a.tar"), None, num_workers=2)
    with pytest.raises(UserWarning, match=r"drops samples of a stream that 2 workers read: use num_workers=1, or disp"):
        list(dealers.DataLoaderDispatcher(data, 0, 1))
    assert 0 < len(list(data)) < COUNT  # not dispatched: the samples of rank 0


def test_a_part_of_one_rank_is_not_dealt_again(dealers: Any) -> None:
    sampler = StatefulSampler(range(9), rank=0, world_size=2)
    with pytest.raises(ValueError, match=r"the part of rank 0 of 2, and accelerate would deal it .* again: leave"):
        list(dealers.BatchSamplerShard(sampler, 0, 2))


def test_a_loader_has_the_sampler_that_frameworks_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    be_rank(monkeypatch, 1, 2)
    data = loader(Numbers(21), 4, seed=5, collate_fn=list)
    sampler: Any = data.sampler
    assert isinstance(sampler, DistributedSampler) and isinstance(data.batch_sampler, DistributedSampler)
    first = list(data)
    sampler.set_epoch(0)
    assert list(sampler) == [row for batch in first for row in batch]
    assert (len(sampler), sampler.total_size) == (11, 21)  # of the rank, rounded up; of all
    data.batch_sampler.sampler.set_epoch(0)  # type: ignore[union-attr]
    assert list(data) == first and data.epoch == 1
    with pytest.raises(TypeError, match=r"orders a dataset, not a RankSampler.*use_distributed_sampler=False"):
        StatefulSampler(sampler, batch_size=4)


def test_the_length_is_that_of_the_epoch() -> None:
    """Loops count on with the number of a checkpoint, up to the length."""
    data = loader(Numbers(50), 4, collate_fn=list)
    assert len(data) == 13 and len(list(islice(data, 5))) == 5
    state = data.state_dict()
    assert len(data) == 13 and state["steps"] == 5
    for size, length in ((4, 13), (10, 8)):  # five steps, and those that are left
        resumed = loader(Numbers(50), size, collate_fn=list)
        resumed.load_state_dict(state)
        assert len(resumed) == length and len(list(resumed)) == length - 5
        assert resumed.state_dict()["steps"] == 0 and len(resumed) == -(-50 // size)
    del state["steps"]  # as tartools 0.2 has made them
    resumed = loader(Numbers(50), 4, collate_fn=list)
    resumed.load_state_dict(state)
    assert len(resumed) == 13 and len(list(resumed)) == 8


def test_epochs_are_counted_from_0_in_each_process() -> None:
    """Fabric sets the epoch by how often it has iterated in this process."""
    orders = [StatefulSampler(range(20), seed=1, batch_size=3) for _ in range(2)]
    whole = [list(orders[0]) for _ in range(4)]
    orders[0].set_epoch(2)
    assert list(islice(orders[0], 3)) == whole[2][:3]
    orders[1].load_state_dict(orders[0].state_dict())
    for epoch, expected in enumerate((whole[2][3:], whole[3])):
        orders[1].sampler.set_epoch(epoch)
        assert list(orders[1]) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["loader", "WebDataset"])
def test_an_epoch_that_was_left_is_not_begun_again(kind: str, workers: int) -> None:
    for number in range(8):
        Path(f"{number}.tar").write_bytes(make_tar([(f"{number}{n:03d}.cls", b"1") for n in range(6)]))
    if kind == "loader":
        data: Any = loader("{0..7}.tar", 4, fields="__key__", decode="basic", num_workers=workers)
    else:
        stream = WebDataset("{0..7}.tar", shuffle=20, fields="__key__")
        data = DataLoader(stream, batch_size=4, num_workers=workers)

    def keys(count: int | None = None) -> list[str]:
        return [key for batch in islice(iter(data), count) for key in batch[0]]

    parts = [keys(3) for _ in range(4)]
    assert len({tuple(part) for part in parts}) == 4 and len({key for part in parts for key in part}) > 24
    epochs = [keys() for _ in range(3)]
    assert all(len(epoch) == len({*epoch}) == 48 for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) == 3
    (data if kind == "loader" else stream).set_epoch(0)
    assert keys(3) == parts[0]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_one_iteration_have_one_epoch(persistent: bool) -> None:
    """Also of two iterations at the same time: each of them has each sample once."""
    for number in range(8):
        Path(f"{number}.tar").write_bytes(make_tar([(f"{number}{n:03d}.cls", b"1") for n in range(6)]))
    stream = WebDataset("{0..7}.tar", shuffle=True, fields="__key__")
    data = DataLoader(stream, batch_size=4, num_workers=3, persistent_workers=persistent)
    for _ in range(3):
        pairs = [data, data] if not persistent else [data]
        batches = [*zip(*pairs, strict=True)]
        for part in zip(*batches, strict=True):
            assert len({key for batch in part for key in batch[0]}) == 48


@pytest.mark.parametrize("world", [1, 2])
def test_a_stream_has_the_state_that_composer_asks_for(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks the dataset for its state after so many samples, on all ranks, and saves what rank 0 answers."""
    Path("a.tar").write_bytes(numbered_tar(COUNT))
    states: list[Any] = []
    monkeypatch.setattr(frameworks, "gather_from_ranks", lambda state: states.append(state) or states)
    first, rest, following = [], [], []
    for rank in range(world):
        be_rank(monkeypatch, rank, world)
        data = WebDataset("a.tar", shuffle=9).map(key)
        first += islice(data, 20)
        saved = json.dumps(data.state_dict(20 * world, True))
    for rank in range(world):
        be_rank(monkeypatch, rank, world)
        data = WebDataset("a.tar", shuffle=9).map(key)
        data.load_state_dict(json.loads(saved))
        rest += data
        states.clear()
        between = WebDataset("a.tar", shuffle=9).map(key)
        between.load_state_dict(data.state_dict(0, True))
        following += between
    every = [f"{n:03d}" for n in range(COUNT)]
    assert sorted(first + rest) == every == sorted(following)
    in_workers = WebDataset("a.tar")
    list(DataLoader(in_workers, None, num_workers=1))
    with pytest.raises(UsageError, match=r"Composer resumes a WebDataset without workers only: give .* num_workers=0"):
        in_workers.state_dict(0, True)


# ---- accelerate deals ----


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def torchrun(world: int, *arguments: object) -> list[str]:
    """Return the command that starts a program in *world* processes."""
    options = ["--nproc-per-node", world, "--master-addr", "127.0.0.1", "--master-port", free_port()]
    return [sys.executable, "-m", "torch.distributed.run", *map(str, [*options, *arguments])]


def environment(**values: str) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [values.pop("PYTHONPATH", ""), str(ROOT), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"} | RAY | values


@exhaustive
@pytest.mark.parametrize("world", [1, 2, 3])
def test_accelerate_deals_each_sample(world: int, tmp_path: Path) -> None:
    """In each configuration; where accelerate fills the last batches, samples come twice, as it says."""
    skip_without("accelerate")
    for count in dealt.COUNTS:
        (tmp_path / f"{count}.tar").write_bytes(numbered_tar(count))
    command = torchrun(world, ROOT / "tests/train/dealt.py", tmp_path)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    cases = []
    for line in done.stdout.splitlines():
        *case, epochs = json.loads(line)
        count, workers, kind, options = dealt.Case(*case)
        cases.append((count, workers, kind, options))
        for ranks in epochs:
            rows = [row for rank in ranks for row in rank]
            assert {*rows} == {*range(count)}, (line[:80], len({*rows}))
            exact = kind == "loader" or (options.get("even_batches") is False and kind in ("map", "sampler"))
            most = 0 if exact else 8 * world * max(workers, 1) - 1
            assert len(rows) <= count + most, (line[:80], len(rows))
        assert epochs[0] != epochs[1] or kind in ("samples", "stream_map"), line[:80]  # which do not shuffle
    assert cases == [*dealt.cases(world)]


@exhaustive
def test_the_trainer_deals_each_sample_of_a_dataset(tmp_path: Path) -> None:
    """A dataset that is given as train_dataset, and not as a loader: accelerate fills the last batches."""
    skip_without("transformers", "accelerate")
    (tmp_path / "a.tar").write_bytes(numbered_tar(COUNT))
    command = torchrun(2, ROOT / "tests/train/trainerdata.py", tmp_path / "a.tar", COUNT)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line.removeprefix("ranks ")) for line in done.stdout.splitlines() if line.startswith("ranks")]
    assert len(results) == 4
    for kind, ranks in results:
        epochs = [[number for rank in ranks for batch in rank[n : n + 7] for number in batch] for n in (0, 7)]
        for epoch in epochs:
            assert {*epoch} == {*range(COUNT)} and len(epoch) <= 2 * 7 * 8, (kind, len({*epoch}))
        assert epochs[0] != epochs[1] and all(len(rank) == 14 for rank in ranks), kind


# ---- the programs of the page ----


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes that *pid* and its children have started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended
    below = {pid}
    while more := {child for child, parent in parents.items() if parent in below} - below:
        below |= more
    yield from below - {pid}


def run_program(folder: Path, command: str, notes: Path, **values: str) -> int:
    """Run the program in *folder*, with what its ranks print in files of *notes*. Return its status.

    If a rank was killed and the others still wait for it, they are killed, too.
    """
    notes.mkdir()
    arguments = command.split()[1:]
    words = [sys.executable, *arguments]
    if command.startswith("torchrun"):
        words = torchrun(2, *arguments[2:])
    if command.startswith("composer"):
        words = [sys.executable, "-m", "composer.cli", "--master_port", str(free_port()), *arguments]
    values |= {"NOTES": str(notes), "MASTER_PORT": str(free_port()), "PYTHONPATH": str(folder / "site")}
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(words, cwd=folder, env=environment(**values), stdout=log, stderr=log)
        last = f"step {values.get('KILLED_AT')}:"
        begin, killed = time.monotonic(), False
        try:
            while process.poll() is None and time.monotonic() < begin + LONGEST_RUN:
                if killed:
                    return -signal.SIGKILL
                killed = any(last in path.read_text() for path in notes.iterdir())
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE if killed else 1)
            return -signal.SIGKILL if process.returncode is None else process.returncode
        finally:
            for child in [*descendants(process.pid), process.pid]:
                try:
                    os.kill(child, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()


def steps_in(notes: Path) -> dict[tuple[int, int], list[str]]:
    """Return the keys of each (rank, step)."""
    found = {}
    for path in notes.iterdir():
        for line in path.read_text().splitlines():
            place, _, keys = line.partition(":")
            found[int(path.name), int(place.split()[3])] = keys.split()
    return found


@exhaustive
@pytest.mark.parametrize("title", PROGRAMS)
def test_the_programs_go_on_after_kill(title: str, tmp_path: Path) -> None:
    """Each key once an epoch, over the killed run and the one that goes on."""
    code, command = PROGRAMS[title]
    assert len(code.splitlines()) <= 40
    skip_without(*PACKAGES.get(title, []))
    every = numbered_tar(COUNT)
    (tmp_path / "train-0.tar").write_bytes(every[: 60 * 1024] + bytes(1024))
    (tmp_path / "train-1.tar").write_bytes(every[60 * 1024 :])
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE)
    assert run_program(tmp_path, command, tmp_path / "killed", KILLED_AT=str(KILLED_AT))
    log = (tmp_path / "log").read_text()
    killed = steps_in(tmp_path / "killed")
    assert max((step for _, step in killed), default=0) in (KILLED_AT, KILLED_AT + 1), log[-3000:]
    assert run_program(tmp_path, command, tmp_path / "resumed") == 0, (tmp_path / "log").read_text()[-3000:]
    resumed = steps_in(tmp_path / "resumed")
    first = min(step for _, step in resumed)
    assert first in (KILLED_AT - 1, KILLED_AT - 4)  # after the last checkpoint; Ray may not have kept that yet
    steps = {place: keys for place, keys in killed.items() if place[1] < first} | resumed
    assert {*steps} == {(rank, step) for rank in range(2) for step in range(1, 15)}
    for epoch in (range(1, 8), range(8, 15)):
        keys = Counter(key for (_, step), batch in steps.items() if step in epoch for key in batch)
        assert keys == Counter(f"{n:03d}" for n in range(COUNT))
    assert [steps[0, n] for n in range(1, 8)] != [steps[0, n] for n in range(8, 15)]
