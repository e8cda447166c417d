"""The log of tarjob and its report: the functions alone."""

from __future__ import annotations

import json

import pytest

from tartools.errors import StorageError
from tartools.run import log as logs
from tartools.run.tasks import Task, TaskResult


def test_the_last_record_of_an_item_counts() -> None:
    task = Task("ä\udcff\n", ("true",), "out")
    lines = logs.record(task, TaskResult(1, "failed", stderr="x"), 0) + logs.record(task, TaskResult(0), 1)
    assert lines.count(b"\n") == 2
    (said,) = logs.last_records(lines, "log").values()
    assert (said["item"], said["status"], said["time"]) == (task.item, "done", 1)


@pytest.mark.parametrize("length", range(1, 60, 7))
def test_a_record_that_was_cut_is_passed_over(length: int) -> None:
    one = logs.record(Task("a", ("true",)), TaskResult(0), 0)
    two = logs.record(Task("b", ("true",)), TaskResult(0), 0)
    assert set(logs.last_records(one + two[:length], "log")) == {("a", "", "")}
    assert set(logs.last_records(two[:length] + b"\n" + one, "log")) == {("a", "", "")}


def altered(old: str, new: str) -> bytes:
    """Return a record with *new* in place of *old*."""
    line = logs.record(Task("a", ("true",)), TaskResult(0), 0).decode()
    assert old in line
    return line.replace(old, new).encode()


@pytest.mark.parametrize(
    "line",
    [
        *(b"hello", b"[]", b'{"other": 1}', b"1", b'{"item": "a"}'),
        *(altered('"tries": 1', f'"tries": {value}') for value in ("null", '"x"', "1e999", "[]", "0.5")),
        *(altered('"seconds": 0', f'"seconds": {value},"x":0') for value in ("NaN", "1e999", "-Infinity", '"x"')),
        altered('"seconds": 0', f'"seconds": {"9" * 400},"x":0'),
        altered('"item": "a"', '"item": 7'),
        altered('"output": ""', '"output": []'),
        altered('"host": ""', '"host": null'),
    ],
)
def test_what_is_no_log(line: bytes) -> None:
    good = logs.record(Task("a", ("true",)), TaskResult(0), 0)
    with pytest.raises(StorageError, match="log: line 2 is not a record of tarjob --log"):
        logs.last_records(good + line + b"\n", "log")


def test_a_report() -> None:
    def record(item: str, seconds: float, failure: str = "", said: str = "") -> dict[str, object]:
        return json.loads(logs.record(Task(item, ("x",)), TaskResult(1, failure, seconds, 2, "here", said), 0))

    records = [
        record("a", 1),
        record("b", 5, "was ended by SIGKILL", "one\n last \n\n"),
        record("c", 2),
        record("d", 0),
    ]
    assert logs.report(records) == [
        "4 items: 3 done, 1 failed, 8 tries",
        "8.0 s in all; an item 2.0 s (median), 5.0 s at most",
        "hosts: here 4",
        "slowest: b: 5.0 s",
        "slowest: c: 2.0 s",
        "slowest: a: 1.0 s",
        "failed: b: was ended by SIGKILL: last",
    ]
    assert logs.report([]) == ["0 items: 0 done, 0 failed, 0 tries"]
