"""The reader of ranges by itself: every byte at which it can be cut, how much it asks for at once, and its settings."""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest

import tartools
from tartools.errors import StorageError
from tartools.shards.numbering import parse_numbering
from tartools.storage.objects import ranges, retry
from tartools.storage.objects.contract import Body, Reply
from tartools.storage.objects.ranges import MAX_SHARED_RANGES, Pace, RangedInput
from tartools.storage.objects.retry import Attempts, TransientError
from tests.commands.test_damage import WHOLE
from tests.conftest import Run, make_samples, make_tar, python
from tests.storage.objects.faults import Fault, FaultServer
from tests.storage.objects.inside import OBJECT, Inside, look_ahead
from tests.storage.objects.sites import Site
from tests.tiers import by_turns

URL = "memory://object"
RANGE = 100
DATA = random.Random(0).randbytes(12 * RANGE + 34)
PATIENCE = 30.0  # seconds for other threads to do something that takes them none


class Memory:
    """An object in memory. What it is asked for is in *asked*; *most* is how much of it was under way at once."""

    url = URL
    changed = threading.Condition()

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[int] = []
        self.under_way = self.most = 0
        self.hold: Callable[[int], object] = lambda start: None  # called before the bytes from *start* on are given

    def get(self, start: int, end: int | None, version: str) -> Reply:
        assert version in ("", "1") and end is not None
        with self.changed:
            self.asked.append(start)
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            self.changed.notify_all()
        end = min(end, len(self.data))
        return Reply(MemoryBody(self, start, end), start, end - start, len(self.data), "1")

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Wait until *condition* holds, which depends on objects in memory; tell whether it does."""
        with self.changed:
            return bool(self.changed.wait_for(condition, PATIENCE))


class MemoryBody(Body):
    """The bytes *position* to *end* of an object in memory."""

    def __init__(self, source: Memory, position: int, end: int) -> None:
        self._source = source
        self._position = position
        self._end = end
        self._open = True

    def read(self, most: int, /) -> bytes:
        source, start = self._source, self._position
        if start < self._end:
            source.hold(start)
        self._position = min(self._end, start + most)
        return source.data[start : self._position]

    def close(self) -> None:
        with self._source.changed:
            self._source.under_way -= self._open
            self._open = False
            self._source.changed.notify_all()


def read(stream: RangedInput) -> bytes:
    """Return all of *stream*: what needs no thread is received where it is wanted."""
    parts, room = [], memoryview(bytearray(ranges.FIRST_READ_SIZE))
    while count := stream.readinto(room):
        parts.append(bytes(room[:count]))
    return b"".join(parts)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ranges be small, and pauses short."""
    monkeypatch.setattr(ranges, "RANGE_BYTES", RANGE)
    monkeypatch.setattr(retry, "FIRST_BACKOFF", 0.0)
    monkeypatch.setenv("TARTOOLS_TRIES", "2")


@pytest.mark.usefixtures("small")
def test_a_failure_is_no_end_the_next_time() -> None:
    """(A cut at any byte: `test_answers`.)"""

    def cut(start: int) -> None:
        if start >= RANGE:
            raise TransientError("the connection was dropped")

    source = Memory(DATA)
    source.hold = cut
    stream, room = RangedInput(source), memoryview(bytearray(RANGE))
    assert (stream.readinto(room), bytes(room)) == (RANGE, DATA[:RANGE])
    for _ in range(2):
        with pytest.raises(StorageError, match=rf"{URL}: at byte {RANGE}: the connection was dropped \(2 tries\)"):
            stream.readinto(room)


@pytest.mark.parametrize("ahead", [False, True], ids=["one", "ahead"])
@pytest.mark.usefixtures("small")
def test_any_size_from_any_byte(ahead: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if ahead:
        look_ahead(monkeypatch)
    for size in (0, 1, 99, 100, 101, 199, 200, 201, 1000):
        for start in {0, 1, 50, 100, 150, size - 1, size} & set(range(size + 1)):
            for first in (1, 7, 100, 1000):
                source = Memory(DATA[:size])
                assert read(RangedInput(source, start, first)) == DATA[start:size], (size, start, first)
                if start < size:
                    known = RangedInput(source, start, first, size, "1")
                    assert read(known) == DATA[start:size]


# ---- how much at once ----


@pytest.mark.parametrize("setting", ["", "1", "2", "3", "16"])
@pytest.mark.usefixtures("small")
def test_as_many_ranges_as_are_allowed(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the first range is given until there are so many requests under way as there may be."""
    monkeypatch.setenv("TARTOOLS_READAHEAD", setting)
    look_ahead(monkeypatch)
    allowed = int(setting or 8)
    source = Memory(DATA * 4)
    source.hold = lambda start: start < RANGE or source.wait_for(lambda: source.most >= allowed)
    assert read(RangedInput(source)) == source.data
    assert source.most == allowed
    assert sorted(source.asked) == list(range(0, len(source.data), RANGE))


@pytest.mark.parametrize("granted", range(6))
@pytest.mark.usefixtures("small")
def test_without_memory_for_a_range_no_range_is_passed_over(granted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range is received later, without a thread; the budget of all inputs is given back."""
    look_ahead(monkeypatch)
    buffers = iter(range(granted))

    def allocate(size: int) -> bytearray:
        if size == RANGE and next(buffers, None) is None:
            raise MemoryError
        return bytearray(size)

    monkeypatch.setattr(ranges, "bytearray", allocate, raising=False)
    source = Memory(DATA * 4)
    assert read(RangedInput(source)) == source.data
    held = 0
    while ranges.budget.acquire(blocking=False):
        held += 1
    for _ in range(held):
        ranges.budget.release()
    assert held == ranges.MAX_SHARED_RANGES


@pytest.mark.parametrize("allowed", [1, 5])
@pytest.mark.usefixtures("small")
def test_more_at_once_where_the_network_is_slow(allowed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TARTOOLS_READAHEAD", str(allowed))
    source = Memory(DATA * 3)
    source.hold = lambda start: time.sleep(0.01)
    assert read(RangedInput(source)) == source.data
    assert source.most == allowed
    assert source.asked[:2] == [0, RANGE]


@pytest.mark.usefixtures("small")
def test_many_shards_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reads its first range itself; of the next ones all together get no more than there is memory for."""
    assert MAX_SHARED_RANGES * (8 << 20) == 256 << 20
    monkeypatch.setattr(ranges, "budget", threading.Semaphore(11))
    look_ahead(monkeypatch)
    sources = [Memory(DATA) for _ in range(4)]
    streams = [RangedInput(source) for source in sources]
    room = memoryview(bytearray(RANGE))
    for stream in streams:
        assert stream.readinto(room) == RANGE
        assert stream.readinto(room[:1]) == 1  # of the second range, and now the others are asked for
    asked = 4 + 11 + 2  # two do without: the second range, too, they receive themselves
    assert sources[0].wait_for(lambda: sum(len(source.asked) for source in sources) == asked)
    assert not ranges.budget.acquire(blocking=False)
    assert [read(stream) for stream in streams] == [DATA[RANGE + 1 :]] * 4
    for stream in streams:
        stream.close()
    assert [ranges.budget.acquire(blocking=False) for _ in range(12)] == [True] * 11 + [False]


@pytest.mark.usefixtures("small")
def test_who_stops_asks_for_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "budget", threading.Semaphore(8))
    look_ahead(monkeypatch)
    source = Memory(DATA * 4)
    going = threading.Event()
    source.hold = lambda start: start < 3 * RANGE or going.wait(PATIENCE)
    stream = RangedInput(source)
    room = memoryview(bytearray(RANGE))
    assert [stream.readinto(room) for _ in range(3)] == [RANGE] * 3
    assert source.wait_for(lambda: source.under_way >= 6)
    stream.close()
    asked = len(source.asked)
    going.set()
    assert source.wait_for(lambda: source.under_way == 0)
    assert len(source.asked) == asked <= 11
    assert [ranges.budget.acquire(blocking=False) for _ in range(9)] == [True] * 8 + [False]
    with pytest.raises(StorageError, match="stopped"):
        stream.readinto(room)


# ---- settings ----


BAD = {
    "TARTOOLS_TRIES": ("0", "-1", "101", "1.5", "x", "nan", " "),
    "TARTOOLS_TIMEOUT": ("0", "-1", "3601", "1e9", "inf", "nan", "x", "1s"),
    "TARTOOLS_READAHEAD": ("0", "-1", "17", "2.5", "x", "1e1"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_that_are_none(name: str, inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("s3", "http"):
        for value in BAD[name]:
            inside.environ(**{name: value})
            done = inside.copy(scheme)
            assert (done.status, done.data) == (2, None), (value, done)
            assert re.fullmatch(rf"tarcat: {name} is a number [^\n]+{re.escape(value)}'\n", done.stderr)
    assert inside.server.requests == []
    monkeypatch.setenv(name, "")
    assert inside.copy("http") == (0, WHOLE, "")


@pytest.mark.parametrize(("setting", "number"), [("1", 1), ("2", 2), ("4", 4), ("", 5)])
def test_as_many_tries_as_are_allowed(setting: str, number: int, inside: Inside) -> None:
    inside.environ(TARTOOLS_TRIES=setting)
    for scheme in ("s3", "gs", "ais", "http"):
        inside.server.faults = [Fault(OBJECT, dropped=True, times=number - 1)]
        assert inside.copy(scheme) == (0, WHOLE, "")
        inside.starts()
        inside.server.faults = [Fault(OBJECT, dropped=True, times=None)]
        done = inside.copy(scheme)
        assert inside.starts() == [0] * number
        assert done.stderr.endswith(f"the connection was dropped ({number} {'tries' if number > 1 else 'try'})\n")


def test_settings_of_a_process(faulty: FaultServer, run: Run) -> None:
    """A server that takes a fifth of a second for each range is asked for one after the other."""
    data = make_tar([(f"{n}.bin", bytes(9 << 20)) for n in range(4)])
    faulty.objects[OBJECT] = data
    faulty.faults = [Fault(OBJECT, method="GET", trickle=(1 << 20, 0.03), times=None)]
    url = faulty.url("http", OBJECT)
    assert run("tarcat", url, env=faulty.env | {"TARTOOLS_READAHEAD": "1"}) == (0, data, "")
    times = sorted(request.at for request in faulty.asked("GET"))
    assert len(times) == 5
    assert all(later - sooner > 0.2 for sooner, later in itertools.pairwise(times))


# ---- How many ranges are requested at once, by a clock of the test's own ----


MOST = 8


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], float]], Iterator[int]]:
    """Give the window after each range, for which the reader waits as long as it is told for a window."""
    now = 0.0
    monkeypatch.setattr("tartools.storage.objects.ranges.time.monotonic", lambda: now)

    def run(seconds: Callable[[int], float]) -> Iterator[int]:
        nonlocal now
        found = Pace(MOST)
        while True:
            waited = seconds(found.window)
            now += waited + READING
            found.record_wait(waited)
            found.record(waited, WORK)
            yield found.window

    return run


READING, WORK = 0.01, 0.001  # seconds a range


def test_a_slow_network_and_a_slow_reader(windows: Callable[[Callable[[int], float]], Iterator[int]]) -> None:
    found = windows(lambda window: 0.1 / window)
    assert [next(found) for _ in range(4)] == [1, 2, 4, MOST]
    assert {next(found) for _ in range(640)} == {MOST}
    found = windows(lambda _: READING / 2)
    assert {next(found) for _ in range(640)} == {1}


# ---- What several processes, careless programs and odd names do to remote URLs ----


TAR = make_tar(make_samples(5))

FORKING = """
import gc, os, signal, sys, tartools
from tartools.storage.objects import gs, http, s3
from tartools.storage.objects.ranges import MAX_SHARED_RANGES, budget
signal.alarm(60)
file = tartools.open(sys.argv[1])
begin = file.read(100)
wrong = 0
budget.acquire()  # as for a range that is read ahead; a child begins with all, and gives back none
file.raw._input._stores.append(memoryview(bytearray(8 << 20)))
locks = [module._lock[os.getpid()] for module in (gs, http, s3) if module._lock[os.getpid()].acquire()]
for child in range(2):
    if not (pid := os.fork()):
        rest = file.read()
        file.close()
        gc.collect()
        left = sum(budget.acquire(blocking=False) for _ in range(99))
        os._exit(0 if left == MAX_SHARED_RANGES and begin + rest == open(sys.argv[2], "rb").read() else 3)
    wrong += os.waitpid(pid, 0)[1]
[lock.release() for lock in locks]  # as of threads that make clients
assert begin + file.read() == open(sys.argv[2], "rb").read()
sys.exit(wrong != 0)
"""


@by_turns("site")
def test_a_file_that_was_opened_before_a_fork_is_read_in_each_process(site: Site, tmp_path: os.PathLike[str]) -> None:
    data = os.urandom(3_000_000)
    site.put("a.bin", data)
    path = os.path.join(tmp_path, "a.bin")
    with open(path, "wb") as file:
        file.write(data)
    python(FORKING, site.url("a.bin"), path, env=site.env).output()


@pytest.mark.parametrize("size", [10, 1_000_000])
def test_a_file_of_which_a_write_failed_does_not_appear(
    size: int, tmp_path: os.PathLike[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = os.path.join(tmp_path, "a")
    file = tartools.open(path, "wb")
    file.write(b"x" * 200_000)

    def full(data: object) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(file._pending.writer.sink, "write", full)
        with pytest.raises(MemoryError):
            for _ in range(20_000):
                file.write(b"y" * size)
    with pytest.raises(StorageError, match="earlier write"):
        file.close()
    assert file.closed
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["S3://bucket/a.tar", "HTTP://127.0.0.1:1/a.tar"])
def test_a_scheme_is_written_in_small_letters(name: str, run: Run) -> None:
    said = run("tarcat", name).failure(lines=1)
    assert f"(write {name.partition(':')[0].lower()}: in lower case)" in said


@pytest.mark.parametrize("column", ["@txt", "plan"])
def test_data_of_which_nobody_says_how_long_they_are_are_refused(column: str, faulty: FaultServer, run: Run) -> None:
    faulty.objects["a.tsv"] = b"__key__\ttxt\n" + b"".join(b"%d\tx\n" % n for n in range(9000))
    fault = Fault("a.tsv", no_range=True, framing="close", cut=30_000, times=None)
    faulty.faults = [fault]
    url = faulty.url("http", "a.tsv")
    if column == "plan":
        done = run("tarcreate", "-o", "out.tar", url, env=faulty.env)
    else:
        done = run("tarcreate", "-o", "out.tar", stdin=f"__key__\t@txt\na\t{url}\n".encode(), env=faulty.env)
    assert fault.played
    assert (done.status, done.stderr.count("\n")) == (1, 1)
    assert "state the length" in done.stderr
    with pytest.raises(StorageError, match="state the length"):
        tartools.open(url).read()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("http://h/my%20data/train", "http://h/my%20data/train-000007.tar"),
        ("http://h/my%20data/t-%03d.tar", "http://h/my%20data/t-007.tar"),
        ("https://h/t.tgz?signature=a%2Fb", "https://h/t-000007.tgz?signature=a%2Fb"),
        ("ais://b/t?provider=aws", "ais://b/t-000007.tar?provider=aws"),
        ("s3://b/50%20d", "s3://b/50                   7"),
    ],
)
def test_names_of_shards_are_those_of_urls(text: str, name: str) -> None:
    assert parse_numbering(text, False).name(7) == name
    assert parse_numbering(text, False).number(name) == 7


def test_a_server_that_asks_for_too_much_patience() -> None:
    assert Attempts("s3://b/a").record_failure(TransientError("busy", 310)) == 310
    with pytest.raises(StorageError, match="asks for a retry in 311 seconds"):
        Attempts("s3://b/a").record_failure(TransientError("busy", 311))
