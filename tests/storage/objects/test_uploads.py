"""The engine of uploads, with a target in memory: what is sent, in which order, how much at once, what is dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tartools.errors import StorageError
from tartools.storage.objects import retry, uploads
from tartools.storage.objects.retry import TransientError
from tartools.storage.objects.uploads import Upload

PART = 10  # bytes
PATIENCE = 30.0  # seconds that a thread of a test waits for another, before it takes that for a failure


class Memory:
    """A target that keeps what it gets, and tells the order in which its requests ended."""

    url = "mem://o"

    def __init__(self, workers: int = 3) -> None:
        self.workers = workers
        self.said: list[str] = []
        self.parts: dict[int, tuple[int, bytes]] = {}
        self.made: bytes | None = None
        self.most = 0  # parts that were under way at once
        self.on_part: Callable[[int], object] = lambda number: None
        self.fails: dict[str, list[Exception]] = {}  # what the next requests of a kind raise
        self._under_way = 0
        self._lock = threading.Lock()

    def _say(self, what: str) -> None:
        with self._lock:
            if waiting := self.fails.get(what.partition(" ")[0]):
                self.said.append(f"{what} failed")
                raise waiting.pop(0)
            self.said.append(what)

    def put(self, data: bytearray) -> None:
        self._say("put")
        self.made = bytes(data)

    def begin(self) -> None:
        self._say("begin")

    def part(self, number: int, offset: int, data: bytearray) -> None:
        with self._lock:
            self._under_way += 1
            self.most = max(self.most, self._under_way)
        try:
            self.on_part(number)
            self._say(f"part {number}")
            self.parts[number] = offset, bytes(data)
        finally:
            with self._lock:
                self._under_way -= 1

    def complete(self, number: int, offset: int, data: bytearray) -> None:
        self._say(f"complete {number}")
        self.parts[number] = offset, bytes(data)
        self.made = b"".join(self.parts[n][1] for n in sorted(self.parts))

    def abort(self) -> None:
        self._say("abort")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MIN_PART_BYTES", PART)
    monkeypatch.setattr(retry, "FIRST_BACKOFF", 0.0)
    monkeypatch.setenv("TARTOOLS_TRIES", "3")


def text(size: int) -> bytes:
    """Return *size* bytes, no ten of which are equal to ten others of the first 2,560."""
    return bytes(at // 10 if at % 10 == 0 else at % 256 for at in range(size))


def begun(target: Memory, data: bytes) -> Upload:
    """Return an upload to *target* that *data* were written to."""
    upload = Upload(target)
    upload.write(data)
    return upload


def but_for_parts(target: Memory) -> list[str]:
    """Return what *target* was asked for, without parts: those may have been given up before they were sent."""
    return [said for said in target.said if not said.startswith("part")]


# ---- what is sent ----


@pytest.mark.parametrize("step", [1, 3, PART - 1, PART, PART + 1, 25, 1000])
@pytest.mark.parametrize("size", [0, 1, PART, PART + 1, 2 * PART - 1, 2 * PART, 2 * PART + 1, 7 * PART, 999])
def test_parts_are_numbered_and_where_they_belong(size: int, step: int) -> None:
    """What fits into a part is put as a whole."""
    target, data = Memory(), text(size)
    upload = Upload(target)
    for start in range(0, size, step):
        assert upload.write(data[start : start + step]) == len(data[start : start + step])
    assert target.said == [] or size > PART
    upload.commit()
    if size <= PART:
        assert (target.said, target.made) == (["put"], data)
        return
    count = -(-size // PART)
    assert target.parts == {n + 1: (n * PART, data[n * PART : (n + 1) * PART]) for n in range(count)}
    assert target.said[0] == "begin" and target.said[-1] == f"complete {count}"
    assert sorted(target.said[1:-1]) == sorted(f"part {n}" for n in range(1, count))
    assert target.made == data


def test_parts_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "LARGE_PARTS_FROM", 3)
    target, data = Memory(1), text(2 * PART + 3 * 2 * PART + 1)
    begun(target, data).commit()
    assert [len(part) for _, part in target.parts.values()] == [10, 10, 20, 20, 20, 1]
    assert [at for at, _ in target.parts.values()] == [0, 10, 20, 40, 60, 80]
    assert target.made == data


def test_the_largest_object(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [(16 << 20) * (1 + (number >= uploads.LARGE_PARTS_FROM)) for number in range(1, uploads.MAX_PARTS + 1)]
    assert sum(sizes) > 325e9
    assert sum(sizes[:1000]) > 25e9  # Swift takes no more parts
    monkeypatch.setattr(uploads, "MAX_PARTS", 4)
    target = Memory()
    upload = begun(target, text(4 * PART))
    with pytest.raises(StorageError, match="mem://o: an object can't have more than 30 bytes"):
        upload.write(b"1")
    upload.abort()
    assert target.said[-1] == "abort" and target.made is None
    target = Memory()
    upload = begun(target, text(4 * PART))
    upload.commit()
    assert target.made == text(4 * PART)


# ---- how much at once ----


def test_parts_are_sent_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers meet, which they do only if they all run at once; no further part waits for one of them."""
    target, meeting = Memory(3), threading.Barrier(3, timeout=PATIENCE)
    target.on_part = lambda number: meeting.wait()
    upload, held = Upload(target), list[int]()
    monkeypatch.setattr(upload, "_start", lambda work: (Upload._start(upload, work), held.append(upload._running)))
    upload.write(text(7 * PART))
    upload.commit()
    assert (target.made, target.most, max(held)) == (text(7 * PART), 3, 3)


# ---- trouble ----


def test_no_more_is_sent_after_an_error() -> None:
    target = Memory(1)
    target.fails["part"] = [StorageError("no")]
    upload = Upload(target)
    with pytest.raises(StorageError):
        upload.write(text(100 * PART))
    for _ in range(2):
        with pytest.raises(StorageError, match="no"):
            upload.write(text(2 * PART))
    with pytest.raises(StorageError, match="no"):
        upload.commit()
    assert target.said == ["begin", "part 1 failed"]


def test_an_error_in_a_thread_is_no_less_than_one_here() -> None:
    target = Memory()
    target.fails["complete"] = [ZeroDivisionError()]
    upload = begun(target, text(2 * PART))
    with pytest.raises(ZeroDivisionError):
        upload.commit()
    upload.abort()
    assert target.said[-1] == "abort"


# ---- giving up ----


def test_an_abort_waits_for_the_parts_under_way() -> None:
    target, sending, going = Memory(2), threading.Semaphore(0), threading.Event()

    def send(number: int) -> None:
        sending.release()
        going.wait(PATIENCE)

    target.on_part = send
    upload = begun(target, text(3 * PART))
    for _ in range(2):
        assert sending.acquire(timeout=PATIENCE)
    ending = threading.Thread(target=upload.abort)
    ending.start()
    ending.join(0.05)
    assert target.said == ["begin"]
    going.set()
    ending.join(PATIENCE)
    assert sorted(target.said[1:3]) == ["part 1", "part 2"] and target.said[3:] == ["abort"]


def test_an_abort_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer one request may still answer the one that drops what it has."""
    monkeypatch.setattr(uploads, "ABORT_SECONDS", 0.2)
    target, going = Memory(), threading.Event()
    target.on_part = lambda number: going.wait(PATIENCE)
    upload = begun(target, text(2 * PART))
    upload.abort()
    assert target.said == ["begin", "abort"]
    going.set()


def test_a_begin_that_ends_after_the_abort_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "ABORT_SECONDS", 0.2)
    beginning, going, dropped = threading.Event(), threading.Event(), threading.Event()

    class Slow(Memory):
        def begin(self) -> None:
            beginning.set()
            going.wait(PATIENCE)
            super().begin()

        def abort(self) -> None:
            super().abort()
            dropped.set()

    target = Slow()
    upload = Upload(target)
    writing = threading.Thread(target=lambda: upload.write(text(2 * PART)), daemon=True)
    writing.start()
    assert beginning.wait(PATIENCE)
    upload.abort()
    assert target.said == []
    going.set()
    assert dropped.wait(PATIENCE)
    writing.join(PATIENCE)
    assert but_for_parts(target) == ["begin", "abort"] and target.parts == {}


def test_an_abort_ends_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_BACKOFF", 2 * PATIENCE)
    monkeypatch.setattr(uploads, "ABORT_SECONDS", 4 * PATIENCE)
    target, failed = Memory(), threading.Event()

    def fail(number: int) -> None:
        failed.set()
        raise TransientError("busy")

    target.on_part = fail
    upload = begun(target, text(2 * PART))
    assert failed.wait(PATIENCE)
    upload.abort()
    assert target.said == ["begin", "abort"]


@pytest.mark.parametrize(
    ("errors", "tried"),
    [
        ([TransientError("busy")], ["abort failed", "abort"]),
        ([TransientError("busy")] * 9, ["abort failed"] * 4),
        ([StorageError("no")] * 9, ["abort failed"]),
    ],
    ids=["passes", "lasts", "refused"],
)
def test_an_abort_that_fails(errors: list[Exception], tried: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing: it is not what went wrong."""
    monkeypatch.setattr(uploads, "time", SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic))
    target = Memory(1)
    target.fails["abort"] = errors
    upload = begun(target, text(2 * PART))
    upload.abort()
    assert but_for_parts(target) == ["begin", *tried]


class _Interrupted(BaseException):
    """What a signal raises, wherever the main thread is."""


@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_signal_while_a_thread_is_started(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work is not begun any more, or else it is dropped."""
    target = Memory()
    upload = Upload(target)
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        if place == "behind":
            start(thread)
        raise _Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(_Interrupted):
            upload.write(text(2 * PART))
    upload.abort()
    assert target.said in ([], ["begin", "abort"])
    assert target.said == [] or place == "behind"


def test_an_abort_when_the_interpreter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12.1 starts no threads then."""
    target = Memory(1)
    upload = begun(target, text(2 * PART))

    def no_more(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    upload.abort()
    assert but_for_parts(target) == ["begin", "abort"]
