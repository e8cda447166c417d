"""The log of jobs: a line of JSON for each task when a run begins, and when it has ended; and a report of it.

Queries of URLs, which may be signatures, do not get into a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from tartools.errors import StorageError, redacted, several, shown
from tartools.run.tasks import Task, TaskResult, redact_signatures
from tartools.storage.names import fold_numbers

DONE, FAILED, WAITING = "done", "failed", "waiting"
RECORD_START = b'{"item": "'  # of a record
MAX_TASK_SECONDS = 1e12  # seconds
SLOWEST_SHOWN = 3  # items that a report names
MAX_LINES_NOT_DONE = 20  # of a report; items that count up are one line
ITEM_DIGEST_DIGITS = 16  # of a digest

Key = tuple[str, str, str]


def record_key(task: Task) -> Key:
    """Return the key of *task* in a log: (item, output, digest), item and output without queries and user info of URLs.

    "?…" and "…@" take the place of these. The digest is the first 16 hexadecimal digits of the SHA-256 of item and
    output as they are, with a NUL between; "" if nothing was left out.
    """
    item, output = redacted(task.item), redact_signatures(task.output, task)
    if (item, output) == (task.item, task.output):
        return item, output, ""
    from hashlib import sha256

    secret = f"{task.item}\0{task.output}".encode("utf-8", "surrogatepass")
    return item, output, sha256(secret).hexdigest()[:ITEM_DIGEST_DIGITS]


def make_start_records(
    tasks: Iterable[Task], todo: Sequence[Task], records: Mapping[Key, Mapping[str, Any]], time: float
) -> bytes:
    """Return the lines with which a run begins its log: "waiting" for tasks of *todo* that the log does not have.

    *tasks*: all tasks; *todo*: those to run; *records*: the last record of each in the log so far; *time*: in seconds
    since 1970. A task that waits in the log, and is not in *todo* any more, is done: it gets a line "done", with 0
    tries. Order: that of *tasks*; b"" if there are no lines.
    """
    waiting = {record_key(task) for task in todo}
    lines = []
    for task in tasks:
        key = record_key(task)
        if key in waiting and key not in records:
            lines.append(_encode_record(key, {"status": WAITING}, time))
        elif key not in waiting and key in records and records[key]["status"] == WAITING:
            lines.append(encode_result(task, TaskResult(None, tries=0), time))
    return b"".join(lines)


def _encode_record(key: Key, entry: dict[str, Any], time: float) -> bytes:
    """Return the line of a log for the record *entry* of the task with *key*, at *time* in seconds since 1970.

    A JSON object with "item", the items of *entry*, "time", "output", and "query" (the digest) if that is not ""; then
    a newline.
    """
    import json

    item, output, digest = key
    entry = {"item": item, **entry, "time": round(time, 3), "output": output}
    return json.dumps(entry | ({"query": digest} if digest else {})).encode() + b"\n"


def encode_result(task: Task, result: TaskResult, time: float) -> bytes:
    """Return the line of a log for *task*, which ended with *result* at *time*, in seconds since 1970.

    A JSON object: "status" is "failed" or "done"; "exit", "failure", "seconds", "tries", "host" and "stderr" are of
    *result*; the rest is as in `_encode_record`.
    """
    entry = {
        "status": FAILED if result.failure else DONE,
        "exit": result.status,
        "failure": result.failure,
        "seconds": round(result.seconds, 3),
        "tries": result.tries,
        "host": result.host,
        "stderr": result.stderr,
    }
    return _encode_record(record_key(task), entry, time)


def parse_log(log: bytes, name: str) -> dict[Key, dict[str, Any]]:
    """Return the last record of each task in *log*, the content of the file *name*, by (item, output, digest).

    The key is as of `record_key`; a record is the JSON of its line, as of `encode_result`. "waiting" records count only
    for tasks without another one. Skips empty lines, and a line that was cut, which a killed run leaves. Raises:
    StorageError for any other line that is no record.
    """
    records: dict[Key, dict[str, Any]] = {}
    if not log:
        return records
    import json

    for number, line in enumerate(log.split(b"\n"), 1):
        try:
            entry = json.loads(line)
        except ValueError:
            if line.startswith(RECORD_START) or RECORD_START.startswith(line):
                continue
            entry = None
        if not _is_record(entry):
            raise StorageError(f"line {number} is not a record of tarjob --log", url=name)
        key = entry["item"], entry["output"], entry.get("query", "")
        if entry["status"] != WAITING or key not in records:
            records[key] = entry
    return records


def _is_record(entry: object) -> bool:
    """True if *entry*, a line of a log as JSON, is a dict with all values that a report needs, of the right types.

    A record that is "waiting" needs only "item" and "output"; "seconds" must be below 10**12; "status" may be any text.
    """
    if not isinstance(entry, dict):
        return False
    texts = [entry.get("item"), entry.get("output"), entry.get("status"), entry.get("query", "")]
    if entry.get("status") == WAITING:
        return all(isinstance(text, str) for text in texts)
    texts += [entry.get(name) for name in ("failure", "host", "stderr")]
    seconds, tries = entry.get("seconds"), entry.get("tries")
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(seconds, (int, float))
        and abs(seconds) < MAX_TASK_SECONDS  # false for NaN
        and isinstance(tries, int)
    )


def report_of_log(records: Collection[dict[str, Any]]) -> list[str]:
    """Return a report of *records*, the last one of each task, as lines for the user, not ended by newlines.

    It has counts ("3 items: 2 done, 1 failed, 4 tries" is the first line), times, hosts, the 3 slowest items, all
    failed items with the reason, and waiting items ("not done") in up to 20 lines. A status other than "done" and
    "waiting" counts as failed. Records with 0 tries do not count for times and hosts. Texts of the log are not escaped.
    """
    waiting_records = [record for record in records if record["status"] == WAITING]
    failed_records = [record for record in records if record["status"] not in (DONE, WAITING)]
    ended_records = [record for record in records if record["status"] != WAITING and record["tries"]]  # how they ended
    items, tries = (
        several(len(records), "item"),
        several(sum(record["tries"] for record in ended_records), "try", "tries"),
    )
    done_count = len(records) - len(failed_records) - len(waiting_records)
    waiting_note = f", {len(waiting_records)} not done" if waiting_records else ""
    lines = [f"{items}: {done_count} done, {len(failed_records)} failed{waiting_note}, {tries}"]
    if ended_records:
        seconds = sorted(record["seconds"] for record in ended_records)
        median, longest = seconds[len(seconds) // 2], seconds[-1]
        hosts = Counter(record["host"] for record in ended_records).most_common()
        lines.append(f"{sum(seconds):.1f} s in all; an item {median:.1f} s (median), {longest:.1f} s at most")
        lines.append("hosts: " + ", ".join(f"{host} {count}" for host, count in hosts))
        slowest = sorted(ended_records, key=lambda record: -record["seconds"])[:SLOWEST_SHOWN]
        lines += [f"slowest: {shown(record['item'])}: {record['seconds']:.1f} s" for record in slowest]
    for record in failed_records:
        last_line = TaskResult(None, stderr=record["stderr"]).last_line
        lines.append(f"failed: {shown(record['item'])}: {record['failure']}{': ' if last_line else ''}{last_line}")
    left_items = [*fold_numbers(shown(record["item"]) for record in waiting_records)]
    lines += [f"not done: {items}" for items in left_items[:MAX_LINES_NOT_DONE]]
    if len(left_items) > MAX_LINES_NOT_DONE:
        lines.append(f"not done: {len(left_items) - MAX_LINES_NOT_DONE:,} more lines; the log has all")
    return lines
