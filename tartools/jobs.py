"""Jobs: one command for many items. What is run for an item, what came of it, and what a log says about all.

Nothing here runs anything: `storage.programs` runs a command on this machine, `cluster` has Ray do so.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tartools.errors import StorageError, UsageError, several, shown
from tartools.storage.command import fill_all

PLACE = re.compile(r"\{/?\.?\}")  # {} {.} {/} {/.}
HARMLESS = re.compile(r"[\w@%+=:,./-]*")  # what means nothing to a shell
OUTPUT = re.compile(r"(?:--output=|-[0hiqrSvz]*o)(?=.)(.*)", re.DOTALL)  # as in -vox-{}.tar
OUTPUT_NEXT = re.compile(r"--output|-[0hiqrSvz]*o")
PARALLEL = re.compile(r"(?:--parallel=?|-[0hiqSvz]*p)([0-9]+)")  # as in -vp8
SHELLS = {"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"}
TO_SHELLS = {"flock", "runuser", "script", "su"}  # who give what follows -c to one
LINE_NEXT = re.compile(r"-[0-9A-Za-z]*c|--command")  # of a shell, as in -lc
LINE = re.compile(r"(?:--command=|--post=|(?:--output=|-[0hiqrSvz]*o)?pipe:)(?=.)", re.DOTALL)
LINE_OF_OURS = re.compile(r"-[0hiqSvz]*c|--command$")  # of tarproc, which may be behind it in one word
DONE, FAILED = "done", "failed"
Fill = Callable[[str, str], str]  # a word with places, and an item
BEGIN = b'{"item": "'  # of a record
LONGEST = 1e12  # seconds


class Task(NamedTuple):
    """What is run for one *item*: words, and the *output* that shows that it was done, "" if nobody knows.

    An output that is there stands for a task that is done, unless *force*, which has it replaced. Where it is
    *expected*, the task has failed if it is not there in the end.
    """

    item: str
    words: tuple[str, ...]
    output: str = ""
    force: bool = False
    expected: bool = False


class Ended(NamedTuple):
    """How a task ended: its exit *status* (negative: by that signal; None: nobody knows) and the *failure* in words.

    *seconds* are those of all *tries*, on *host*. *said* is the end of what it wrote to stderr, *printed* all that it
    wrote to stdout. *failure* is "" if it did not fail.
    """

    status: int | None
    failure: str = ""
    seconds: float = 0.0
    tries: int = 1
    host: str = ""
    said: str = ""
    printed: bytes = b""

    @property
    def last_words(self) -> str:
        """The last line of stderr that is not empty."""
        return next((line.strip() for line in reversed(self.said.splitlines()) if line.strip()), "")


def words_of(item: str) -> dict[str, str]:
    """Return what each place stands for, as in GNU parallel.

    >>> words_of("gs://b/train-01.tar.gz")["{/.}"]
    'train-01.tar'
    """
    base = item.rpartition("/")[2]
    bare = re.sub(r"\.[^/.]+$", "", item)
    return {"{}": item, "{.}": bare, "{/}": base, "{/.}": re.sub(r"\.[^/.]+$", "", base)}


def filled(word: str, item: str) -> str:
    r"""Return *word* with its places filled by *item*.

    Where the word has blanks, or anything else that means something to a shell, it may be a line for one: then the
    item is put in as one shell word, so that none of it is run.

    Raises: UsageError for an item that can't be put in so.

    >>> filled("out-{/.}.tar", "in/it's.tar"), filled("wc -c {}", "it's.tar")
    ("out-it's.tar", 'wc -c \'it\'"\'"\'s.tar\'')
    """
    if not PLACE.search(word):
        return word
    return put(word, item) if HARMLESS.fullmatch(PLACE.sub("", word)) else fill_all(word, words_of(item))


def line_filled(word: str, item: str) -> str:
    """Return *word*, a line for a shell, with its places filled by *item*; if it is a place alone, the item is that."""
    return put(word, item) if PLACE.fullmatch(word) or not PLACE.search(word) else fill_all(word, words_of(item))


def put(pattern: str, item: str) -> str:
    """Return *pattern* with its places filled by *item* as it is."""
    words = words_of(item)
    return PLACE.sub(lambda found: words[found[0]], pattern)


def tasks_of(items: Iterable[str], command: Sequence[str], output: str, *, force: bool) -> list[Task]:
    """Return a task for each of *items*: *command* with its places filled, or the item behind it if it has none.

    *output* is the pattern of what they are expected to write. If it is empty, it is what the command itself is told
    by -o, with a place in it. No item becomes part of a line that a shell runs but as one word; see `parts_of`.

    Raises: UsageError for two items with one output, and for a pattern that can't be looked at.
    """
    if not any(PLACE.search(word) for word in command):
        command = [*command, "{}"]
    pattern = output or output_in(command)
    if output and (not PLACE.search(output) or output.startswith("pipe:") or output.endswith("/")):
        raise UsageError(f"-o {output!r} can't show what is done: it needs a place like {{}}, and is to name an object")
    parts = parts_of(command, {output, told(command)} - {""})
    tasks = []
    owners: dict[str, str] = {}
    for item in items:
        name = put(pattern, item) if pattern else ""
        if name == item and not output:  # that of some program whose -o means something else
            name = ""
        if name in owners:
            both = (
                f"{shown(item)!r} and {shown(owners[name])!r}" if owners[name] != item else f"{shown(item)!r}, twice,"
            )
            raise UsageError(f"{both} would both write {shown(name)!r}")
        if name:
            owners[name] = item
        words = tuple(head + fill(rest, item) for head, rest, fill in parts)
        tasks.append(Task(item, words, name, force, bool(output)))
    if again := next((task.item for task in tasks if task.item in owners and owners[task.item] != task.item), None):
        raise UsageError(f"{shown(again)!r} is an item, and what {shown(owners[again])!r} writes: -s has to name fewer")
    return tasks


def parts_of(command: Sequence[str], outputs: Collection[str]) -> list[tuple[str, str, Fill]]:
    """Return for each word of *command* the part that stays, the rest, and what fills the places of that.

    A line for a shell is what follows an option like -c of a shell, of tarproc, or of what starts a shell for it, what
    follows --post, and what is written behind such an option in one word, or behind pipe:. The patterns of *outputs*
    get the item as it is, like all names of objects; what else may be a line, `filled` tells by its looks.

    >>> [(head, rest) for head, rest, fill in parts_of(["bash", "-lc", "./x-{}", "pipe:{}"], ()) if fill is line_filled]
    [('', './x-{}'), ('pipe:', '{}')]
    """
    parts: list[tuple[str, str, Fill]] = []
    shell = ours = line = False  # there was a shell, or tarproc; a line is what comes next
    for word in command:
        found = LINE.match(word) or (LINE_OF_OURS.match(word) if ours else None)
        if line and word[:1] not in ("-", "+"):  # as in bash -c -e LINE
            parts.append(("", word, line_filled))
            line = False
        elif found:
            parts.append((found[0], word[found.end() :], line_filled))
        else:
            named = OUTPUT.fullmatch(word)
            raw = word in outputs or (named and named[1] in outputs)
            parts.append(("", word, put if raw else line_filled if line else filled))
        line = line or word == "--post" or (ours and bool(LINE_OF_OURS.fullmatch(word)))
        line = line or (shell and bool(LINE_NEXT.fullmatch(word)))
        name = os.path.basename(word)
        shell, ours = shell or name in SHELLS | TO_SHELLS, ours or name == "tarproc"
    return parts


def told(command: Sequence[str]) -> str:
    """Return what is behind the -o or --output of *command*, if it has a place in it and is no `pipe:`; else ""."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        found = OUTPUT.fullmatch(word)
        pattern = following if OUTPUT_NEXT.fullmatch(word) else found[1] if found else ""
        if PLACE.search(pattern) and not pattern.startswith("pipe:"):
            return pattern
    return ""


def output_in(command: Sequence[str]) -> str:
    """Return the pattern of the one output that *command* is told by -o or --output; "" if nobody knows one.

    That of tarsplit, and what ends in "/", begins the names of many.

    >>> output_in(["tarcat", "in-{}.tar", "-o", "out-{}.tar"]), output_in(["tarcat", "--output=x.tar", "{}"])
    ('out-{}.tar', '')
    """
    pattern = told(command)
    return "" if pattern.endswith("/") or tool(command)[0] == "tarsplit" else pattern


def tool(command: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the name of the program that *command* runs, and its words; that of `python -m tartools NAME` is NAME."""
    name = os.path.basename(command[0])
    if name.startswith("python") and tuple(command[1:3]) == ("-m", "tartools"):
        return command[3] if len(command) > 3 else "", command[3:]
    return name, command


def workers_in(command: Sequence[str], ours: Iterable[str]) -> int | None:
    """Return the workers that *command* asks for by -p if it is one of *ours*, 0 for all cores; None if it is not.

    >>> workers_in(["tarproc", "-vp", "16", "-c", "true"], ["tarproc"]), workers_in(["mkdir", "-p", "7"], ["tarproc"])
    (16, None)
    """
    name, command = tool(command)
    if name not in ours:
        return None
    for word, following in zip(command, [*command[1:], ""], strict=True):
        found = PARALLEL.fullmatch(word + following if word.endswith(("p", "--parallel")) else word)
        if found:
            return int(found[1])
    return 1


def shell_line(task: Task) -> str:
    r"""Return the line that does *task* in a shell; one that knows $'...', as bash does, if it holds a newline.

    >>> shell_line(Task("a", ("echo", "a b", "it's\n")))
    "echo 'a b' $'it\\'s\\n'"
    """
    return ("TARTOOLS_FORCE=1 " if task.force else "") + " ".join(map(_quoted, task.words))


def _quoted(word: str) -> str:
    """Return *word* for a shell, on one line."""
    if "\n" not in word:
        return shlex.quote(word)
    return "$'" + word.replace("\\", r"\\").replace("'", r"\'").replace("\n", r"\n") + "'"


def part_of(tasks: Sequence[Task], part: str | None) -> Sequence[Task]:
    """Return the K-th of N parts of *tasks* for *part* "K/N", from 1 on: every N-th task. Raises: UsageError."""
    if part is None:
        return tasks
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", part, re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--only {part!r} is no part: write K/N with K from 1 to N")
    return tasks[int(found[1]) - 1 :: int(found[2])]


# ---- the log ----


def record(task: Task, ended: Ended, time: float) -> bytes:
    """Return the line of a log that says how *task* ended, at *time* in seconds since 1970."""
    said = {
        "item": task.item,
        "status": FAILED if ended.failure else DONE,
        "exit": ended.status,
        "failure": ended.failure,
        "seconds": round(ended.seconds, 3),
        "tries": ended.tries,
        "host": ended.host,
        "time": round(time, 3),
        "output": task.output,
        "stderr": ended.said,
    }
    return json.dumps(said).encode() + b"\n"


def last_records(log: bytes, name: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the last record of each item and output in *log*, the content of the file *name*.

    A line that was cut, which a killed run leaves, is passed over. Raises: StorageError for one that is none of ours.
    """
    records: dict[tuple[str, str], dict[str, Any]] = {}
    for number, line in enumerate(log.split(b"\n"), 1):
        try:
            said = json.loads(line)
        except ValueError:
            if line.startswith(BEGIN) or BEGIN.startswith(line):
                continue
            said = None
        if not _is_record(said):
            raise StorageError(f"line {number} is no record of a job", url=name)
        records[said["item"], said["output"]] = said
    return records


def _is_record(said: object) -> bool:
    """Tell whether *said* has what a report is made of."""
    if not isinstance(said, dict):
        return False
    texts = [said.get(name) for name in ("item", "output", "status", "failure", "host", "stderr")]
    seconds, tries = said.get("seconds"), said.get("tries")
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(seconds, (int, float))
        and abs(seconds) < LONGEST  # nor is it NaN
        and isinstance(tries, int)
    )


@dataclass
class Report:
    """What a log says in all: numbers of items, seconds of all tries, tries by host, and how items failed."""

    done: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    tries: int = 0
    hosts: Counter[str] = field(default_factory=Counter)
    slowest: list[dict[str, Any]] = field(default_factory=list)


def report_of(records: Iterable[dict[str, Any]], slowest: int = 3) -> Report:
    """Return the sum of *records*, with so many of the *slowest*."""
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
    """Return what a person reads of *report*: numbers, times, hosts, the slowest items, those that failed and why."""
    ended = report.done + len(report.failed)
    items, tries = several(ended, "item"), several(report.tries, "try", "tries")
    lines = [f"{items}: {report.done} done, {len(report.failed)} failed, {tries}"]
    if ended:
        middle, last = report.seconds[ended // 2], report.seconds[-1]
        lines.append(f"{sum(report.seconds):.1f} s in all; an item {middle:.1f} s (median), {last:.1f} s at most")
        lines.append("hosts: " + ", ".join(f"{host} {count}" for host, count in report.hosts.most_common()))
        lines += [f"slowest: {shown(each['item'])}: {each['seconds']:.1f} s" for each in report.slowest]
    for each in report.failed:
        words = Ended(None, said=each["stderr"]).last_words
        lines.append(f"failed: {shown(each['item'])}: {each['failure']}{': ' if words else ''}{words}")
    return lines
