"""The log of jobs: a line of JSON for each task that ended, and the report that sums a log up."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tartools.errors import StorageError, several, shown
from tartools.run.tasks import Task, TaskResult

DONE, FAILED = "done", "failed"
BEGIN = b'{"item": "'  # of a record
LONGEST = 1e12  # seconds


def record(task: Task, result: TaskResult, time: float) -> bytes:
    """Return the line of a log that says how *task* ended, at *time* in seconds since 1970."""
    entry = {
        "item": task.item,
        "status": FAILED if result.failure else DONE,
        "exit": result.status,
        "failure": result.failure,
        "seconds": round(result.seconds, 3),
        "tries": result.tries,
        "host": result.host,
        "time": round(time, 3),
        "output": task.output,
        "stderr": result.stderr,
    }
    return json.dumps(entry).encode() + b"\n"


def last_records(log: bytes, name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last record of each item and output in *log*, the content of the file *name*.

    Skips a line that was cut, which a killed run leaves. Raises: StorageError for any other line that is no record.
    """
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for number, line in enumerate(log.split(b"\n"), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            if line.startswith(BEGIN) or BEGIN.startswith(line):
                continue
            entry = None
        if not _is_record(entry):
            raise StorageError(f"line {number} is not a record of tarjob --log", url=name)
        records[entry["item"], entry["output"]] = entry
    return records


def _is_record(entry: object) -> bool:
    """Tell whether *entry* has what a report needs."""
    if not isinstance(entry, dict):
        return False
    texts = [entry.get(name) for name in ("item", "output", "status", "failure", "host", "stderr")]
    seconds, tries = entry.get("seconds"), entry.get("tries")
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(seconds, (int, float))
        and abs(seconds) < LONGEST  # false for NaN
        and isinstance(tries, int)
    )


@dataclass
class Report:
    """The sum of a log. *seconds* has those of each item, ascending; *failed* and *slowest* are records."""

    done: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tries: int = 0
    hosts: Counter[str] = field(default_factory=Counter)
    slowest: list[dict[str, Any]] = field(default_factory=list)


def report_of(records: Iterable[dict[str, Any]], slowest: int = 3) -> Report:
    """Return the sum of *records*, with the *slowest* few."""
    report = Report()
    for each in records:
        report.done += each["status"] == DONE
        if each["status"] != DONE:
            report.failed.append(each)
        report.seconds.append(each["seconds"])
        report.tries += each["tries"]
        report.hosts[each["host"]] += 1
        report.slowest.append(each)
    report.slowest = sorted(report.slowest, key=lambda each: -each["seconds"])[:slowest]
    report.seconds.sort()
    return report


def report_lines(report: Report) -> list[str]:
    """Return *report* as text: numbers, times, hosts, the slowest items, the failed items and why."""
    ended = report.done + len(report.failed)
    items, tries = several(ended, "item"), several(report.tries, "try", "tries")
    lines = [f"{items}: {report.done} done, {len(report.failed)} failed, {tries}"]
    if ended:
        middle, last = report.seconds[ended // 2], report.seconds[-1]
        lines.append(f"{sum(report.seconds):.1f} s in all; an item {middle:.1f} s (median), {last:.1f} s at most")
        lines.append("hosts: " + ", ".join(f"{host} {count}" for host, count in report.hosts.most_common()))
        lines += [f"slowest: {shown(each['item'])}: {each['seconds']:.1f} s" for each in report.slowest]
    for each in report.failed:
        last_line = TaskResult(None, stderr=each["stderr"]).last_line
        lines.append(f"failed: {shown(each['item'])}: {each['failure']}{': ' if last_line else ''}{last_line}")
    return lines
