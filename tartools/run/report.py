"""The report of a log of jobs: what is done, what failed and why, what is left to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tartools.errors import several, shown
from tartools.run.log import DONE, WAITING
from tartools.run.tasks import TaskResult


@dataclass
class Report:
    """The sum of a log. *seconds* has those of each item, ascending; *failed*, *waiting* and *slowest* are records."""

    done: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tries: int = 0
    hosts: Counter[str] = field(default_factory=Counter)
    slowest: list[dict[str, Any]] = field(default_factory=list)


def report_of(records: Iterable[dict[str, Any]], slowest: int = 3) -> Report:
    """Return the sum of *records*, with the *slowest* few."""
    report = Report()
    for each in records:
        if each["status"] == WAITING:
            report.waiting.append(each)
            continue
        report.done += each["status"] == DONE
        if each["status"] != DONE:
            report.failed.append(each)
        if not each["tries"]:  # its end was not seen
            continue
        report.seconds.append(each["seconds"])
        report.tries += each["tries"]
        report.hosts[each["host"]] += 1
        report.slowest.append(each)
    report.slowest = sorted(report.slowest, key=lambda each: -each["seconds"])[:slowest]
    report.seconds.sort()
    return report


def report_lines(report: Report) -> list[str]:
    """Return *report* as text: numbers, times, hosts, the slowest items, the failed items and why, those not done."""
    ended = report.done + len(report.failed)
    items, tries = several(ended + len(report.waiting), "item"), several(report.tries, "try", "tries")
    waiting = f", {len(report.waiting)} not done" if report.waiting else ""
    lines = [f"{items}: {report.done} done, {len(report.failed)} failed{waiting}, {tries}"]
    if report.seconds:
        middle, last = report.seconds[len(report.seconds) // 2], report.seconds[-1]
        lines.append(f"{sum(report.seconds):.1f} s in all; an item {middle:.1f} s (median), {last:.1f} s at most")
        lines.append("hosts: " + ", ".join(f"{host} {count}" for host, count in report.hosts.most_common()))
        lines += [f"slowest: {shown(each['item'])}: {each['seconds']:.1f} s" for each in report.slowest]
    for each in report.failed:
        last_line = TaskResult(None, stderr=each["stderr"]).last_line
        lines.append(f"failed: {shown(each['item'])}: {each['failure']}{': ' if last_line else ''}{last_line}")
    lines += [f"not done: {shown(each['item'])}" for each in report.waiting]
    return lines
