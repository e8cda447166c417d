"""`python -m tests.bench peers`: starts the process of each row of each library, and writes tables as Markdown."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.beside.base import Library
from tests.bench.beside.libraries import LIBRARIES
from tests.bench.beside.rows import Answer
from tests.bench.beside.server import FarFiles
from tests.bench.beside.sets import EACH, FAULTS, FAULTY, make_damaged, make_many
from tests.bench.data import SETS, home, samples_in
from tests.bench.measure import ROOT

DELAY = 0.03  # seconds
MANY = {"1000": 1_000, "10000": 10_000}  # shards
PARTS = ("rates", "first", "resume", "damage")
TEXTS = 0.1  # of the texts of the other benchmarks
EXIT_TIMEOUT = 5  # seconds
PREPARATION = 15  # times the limit of a row
MAX_HANGS = 3  # rows at the limit one after the other: a library that does not work here need not take all the time
Tell = Callable[[str], None]


class Field:
    """Runs the rows of the libraries on sets below *folder*; *venvs* has an environment for each library in it."""

    def __init__(self, folder: Path, options: argparse.Namespace, tell: Tell) -> None:
        self._sets, self._options, self._tell = folder, options, tell
        self._made = Path(tempfile.mkdtemp(prefix="tartools-peers-", dir=folder))
        self.answers: dict[tuple[str, str], Answer] = {}
        self._scratch = Path(tempfile.mkdtemp(prefix="tp-"))  # a short name: Ray's sockets are in it
        self._half = samples_in("B16", options.scale * TEXTS) * 16 // 2
        self._hangs: dict[str, int] = {}  # of the last rows of a library

    def close(self) -> None:
        """Remove what was made for the libraries."""
        for place in (self._made, self._scratch):
            shutil.rmtree(place, ignore_errors=True)

    def python(self, key: str) -> str:
        """Return the interpreter that has the library: of its environment, or this one."""
        own = self._options.venvs / key / "bin" / "python" if self._options.venvs else Path()
        return str(own) if own.is_file() else sys.executable

    def version(self, key: str) -> str:
        """Return the version that is installed; "" for none."""
        program = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"
        words = [self.python(key), "-c", program, LIBRARIES[key].package]
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
        return done.stdout.strip()

    def ask(self, key: str, tasks: Sequence[dict[str, Any]]) -> list[Answer]:
        """Measure *tasks* in a process, and in another one the rest if it hangs or dies in one of them."""
        answers: list[Answer] = []
        while len(answers) < len(tasks):
            if self._hangs.get(key, 0) >= MAX_HANGS:
                answers.append({"error": f"hangs as in {MAX_HANGS} rows before", "slow": True, "said": ""})
                continue
            answers += self._ask_process(key, tasks[len(answers) :])
            self._hangs[key] = self._hangs.get(key, 0) + 1 if answers[-1].get("slow") else 0
        return answers

    def _ask_process(self, key: str, tasks: Sequence[dict[str, Any]]) -> list[Answer]:
        """Return the answers of a process, which ends with all that it started; the last one may be its end."""
        text = "".join(json.dumps(task | {"library": key, "seconds": self._options.seconds}) + "\n" for task in tasks)
        env = dict(os.environ, PYTHONPATH=str(ROOT), PYTHONUNBUFFERED="1", TMPDIR=str(self._scratch))
        answers: list[Answer] = []
        with subprocess.Popen(
            [self.python(key), "-m", "tests.bench.beside.rows"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
            env=env,
            start_new_session=True,
        ) as process:
            asking, telling = process.stdin, process.stdout
            assert asking is not None
            assert telling is not None
            slow = threading.Event()

            def stop() -> None:
                slow.set()
                end_session(process)

            for _ in tasks:
                patience = self._options.limit * (PREPARATION if tasks[0]["row"] == "prepare" else 1)
                limit = threading.Timer(patience, stop)
                limit.start()
                try:
                    if not answers:
                        asking.write(text)
                        asking.close()
                    line = telling.readline()
                except BrokenPipeError:
                    line = ""
                finally:
                    limit.cancel()
                if not line:
                    process.wait()
                    ended = f"over {patience:g} s" if slow.is_set() else f"status {process.returncode}"
                    answers.append({"error": ended, "slow": slow.is_set(), "said": ""})
                    break
                answers.append(json.loads(line))
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_TIMEOUT)
            end_session(process)
        return answers

    def task(self, key: str, row: str, urls: Sequence[str], place: str, **more: Any) -> dict[str, Any]:
        """Return a task for `ask`."""
        return {"row": row, "urls": list(urls), "place": str(self._made / f"{place}-{key}"), "batch": EACH} | more

    def measure(self, key: str, name: str, row: str, *arguments: Any, **more: Any) -> Answer:
        """Measure a row that the library has, in a process of its own."""
        kind = LIBRARIES[key]
        if name in kind.lacks:
            found: Answer = {"lacks": kind.lacks[name]}
        elif "error" in (prepared := self.answers.get((key, f"prepare-{arguments[1]}"), {})):
            found = dict(prepared)
        else:
            (found,) = self.ask(key, [self.task(key, row, *arguments, **more)])
        self.note(key, name, found)
        return found

    def note(self, key: str, name: str, found: Answer) -> None:
        """Keep an answer, and say so."""
        self.answers[key, name] = found
        said = next((found[each] for each in ("error", "lacks", "rate", "seconds", "good") if found.get(each)), "")
        self._tell(f"{LIBRARIES[key].name}: {name}: {str(said)[:150]}")

    def prepare(self, key: str, sets: dict[str, list[str]]) -> None:
        """Make indexes, or convert the samples, of all sets, by their names."""
        sets = {place: urls for place, urls in sets.items() if (key, f"prepare-{place}") not in self.answers}
        if sets and LIBRARIES[key].prepare is not Library.prepare:
            answers = self.ask(key, [self.task(key, "prepare", urls, place) for place, urls in sets.items()])
            for place, found in zip(sets, answers, strict=True):
                self.note(key, f"prepare-{place}", found)

    def rates(self, key: str, photos: list[str], texts: list[str], server: FarFiles) -> None:
        """Measure samples a second."""
        if hasattr(LIBRARIES[key], "over_http"):
            photos = on_server(photos, server)
        self.prepare(key, {"photos": photos, "texts": texts})
        self.measure(key, "order", "rate", photos, "photos", batch=64)
        self.measure(key, "random", "random", photos, "photos", batch=64)
        self.measure(key, "decoded", "rate", photos, "photos", batch=16, decoded=True)
        self.measure(key, "small", "rate", texts, "texts", batch=256)

    def first_batches(self, key: str, many: list[str], server: FarFiles) -> None:
        """Measure the first batch, of local shards and by HTTP."""
        sets = {f"many-{label}": many[: max(2, round(count * self._options.scale))] for label, count in MANY.items()}
        if f"first-http-{min(MANY)}" not in LIBRARIES[key].lacks:
            sets |= {f"{name}-http": on_server(urls, server) for name, urls in sets.items()}
        self.prepare(key, sets)
        for label in MANY:
            self.measure(key, f"first-{label}", "first", sets[f"many-{label}"], f"many-{label}")
            server.delay, before = DELAY, server.requests
            name = f"many-{label}-http"
            found = self.measure(key, f"first-http-{label}", "first", sets.get(name, []), name)
            found["requests"] = server.requests - before
            server.delay = 0.0

    def resumes(self, key: str, texts: list[str]) -> None:
        """Measure resuming in an epoch."""
        if "resume" in LIBRARIES[key].lacks:
            self.note(key, "resume", {"lacks": LIBRARIES[key].lacks["resume"]})
            return
        self.prepare(key, {"texts": texts})
        saved = self.measure(key, "save", "save", texts, "texts", half=self._half)
        if "error" in saved:
            self.note(key, "resume", saved)
        else:
            self.measure(key, "resume", "resume", texts, "texts")

    def damages(self, key: str) -> None:
        """Measure what is lost of each damaged set, and once more with the option that goes on."""
        kind, tasks = LIBRARIES[key], {}
        if "damage" in kind.lacks:
            return
        for fault, about in FAULTS.items():
            own = kind.about == "its own"
            urls = make_damaged(self._made / "damaged" / fault, "whole" if own else fault)
            for way in ("damage", "go on") if kind.goes_on else ("damage",):
                name, place = f"{way}-{fault}", f"damaged-{fault}-{way[:2]}"
                if own and not about.own_format:
                    self.note(key, name, {"lacks": ""})
                else:
                    more = {"go_on": way == "go on", "fault": fault, "batch": 1}
                    tasks[name] = self.task(key, "damage", urls, place, **more)
        for name, found in zip(tasks, self.ask(key, [*tasks.values()]), strict=True):
            self.note(key, name, found)


def on_server(urls: Sequence[str], server: FarFiles) -> list[str]:
    """Return the URLs of local shards on the server."""
    return [f"{server.base}/{Path(url).parent.name}/{Path(url).name}" for url in urls]


def end_session(process: subprocess.Popen[str]) -> None:
    """End a process and all that it started, but not what began a session of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def cell(found: Answer, form: Callable[[Answer], str]) -> str:
    """Return the text of a figure, or why there is none."""
    if "lacks" in found:
        return str(found["lacks"])
    if found.get("slow"):
        return f"{found['error']}" + (f" ({found['requests']:,})" if "requests" in found else "")
    return f"error: {short(found['error'])}" if "error" in found else form(found)


def short(error: str) -> str:
    """Return the first line of an error, at most 90 characters."""
    line = error.strip().splitlines()[0].replace("|", "\\|")
    return f"`{line[:90]}`"


def loss(found: Answer, readable: int, usual: int) -> str:
    """Return what a library loses of a damaged set, and how it says so: it has *usual* complaints of a whole one."""
    if "good" not in found:
        return cell(found, str)
    lost = max(0, readable - found["good"])
    told = [f"**{lost}**" if lost else "0"]
    told += [f"{found[name]} {name}" for name in ("wrong", "again") if found[name]]
    how = "error" if found["error"] else "warning" if complaints(found["said"]) > usual else ""
    if how:
        names = f"{FAULTY:02d}." in found["error"] + found["said"]
        told.append(how if names else f"{how} that names no shard")
    elif lost or found["wrong"]:
        told.append("silent")
    return ", ".join(told)


def complaints(said: str) -> int:
    """Return how often a library warns in what it printed."""
    return len(re.findall(f"warn|error|fail|skip|{FAULTY:02d}[.]tar", said, re.IGNORECASE))


def lines(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown."""
    ruler = ["---"] + ["---:" if len(heading) < 12 else "---" for heading in headings[1:]]
    return "".join("| " + " | ".join(row) + " |\n" for row in (headings, ruler, *rows)) + "\n"


def tables(field: Field, versions: dict[str, str], parts: Sequence[str]) -> str:
    """Return the tables of *parts*, and a line for each library that is not installed."""
    there = {key: f"{LIBRARIES[key].name} {version}" for key, version in versions.items() if version}
    found = {key: {name: each for (owner, name), each in field.answers.items() if owner == key} for key in there}
    text = ""
    if "rates" in parts:
        rows = [(there[key], LIBRARIES[key].about, *rate_cells(found[key])) for key in there]
        text += lines(("", "reads", "in order", "random", "small", "decoded", "MB"), rows)
    if "first" in parts:
        rows = [(there[key], *first_cells(found[key])) for key in there]
        headings = ("1,000", "10,000", "1,000 by HTTP (requests)", "10,000 by HTTP (requests)", "index or copy")
        text += lines(("", *headings), rows)
    if "resume" in parts:
        rows = [(there[key], cell(found[key]["resume"], resumption)) for key in there]
        text += lines(("", "resume in mid-epoch"), rows)
    if "damage" in parts:
        faults = [(fault, about) for fault, about in FAULTS.items() if fault != "whole"]
        rows = []
        for key, title in there.items():
            if "damage" in LIBRARIES[key].lacks:
                continue
            for way in ("damage", "go on") if LIBRARIES[key].goes_on else ("damage",):
                option = f", `{LIBRARIES[key].goes_on}=`" if way == "go on" else ""
                usual = complaints(found[key][f"{way}-whole"].get("said", ""))
                cells = [loss(found[key][f"{way}-{fault}"], each.readable, usual) for fault, each in faults]
                rows.append((title + option, *cells))
        text += lines(("", *(f"{each.about}: of {each.readable}" for _, each in faults)), rows)
    absent = [f"{LIBRARIES[key].name} ({LIBRARIES[key].package})" for key, version in versions.items() if not version]
    return text + (f"Not installed: {', '.join(absent)}.\n" if absent else "")


def rate_cells(found: dict[str, Answer]) -> list[str]:
    """Return samples a second, and MB."""
    rates = [cell(found[name], lambda each: f"{each['rate']:,.0f}") for name in ("order", "random", "small", "decoded")]
    return [*rates, cell(found["order"] if "rate" in found["order"] else found["decoded"], held)]


def held(found: Answer) -> str:
    """Return MB."""
    return f"{found['memory']:,.0f}"


def first_cells(found: dict[str, Answer]) -> list[str]:
    """Return seconds, and requests by HTTP."""
    local = [cell(found[f"first-{label}"], lambda each: f"{each['seconds']:.2f}") for label in MANY]
    far = [cell(found[f"first-http-{label}"], "{0[seconds]:.2f} ({0[requests]:,})".format) for label in MANY]
    index = found.get("prepare-many-10000")
    return [*local, *far, cell(index, lambda each: f"{each['seconds']:.1f}") if index else ""]


def resumption(found: Answer) -> str:
    """Return how soon the first sample came after resuming, and whether the rest of the epoch was the same."""
    wrong = "exact" if found["exact"] else f"{found['lost']} lost, {found['again']} again of {found['of']}"
    if not found["exact"] and not found["lost"] and not found["again"]:
        wrong = "the same samples in another order"
    return f"{found['seconds']:.2f} s, {wrong}"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench peers", description="Our loaders beside others.")
    parser.add_argument("--venvs", type=Path, metavar="DIR", help="has environments of libraries: DIR/litdata, ...")
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(LIBRARIES)}")
    parser.add_argument("--rows", default=",".join(PARTS), help="which (%(default)s)")
    place = Path(tempfile.gettempdir()) / "tartools-bench"
    parser.add_argument("--data", type=Path, default=place, metavar="DIR", help="where shards are kept (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="smaller sets, to try it out: 0.01")
    parser.add_argument("-s", "--seconds", type=float, default=1.0, help="of a rate (%(default)s)")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of a row (%(default)s)")
    options = parser.parse_args(arguments)
    options.venvs = options.venvs and options.venvs.absolute()
    options.rows = options.rows.split(",")
    if unknown := [part for part in options.rows if part not in PARTS]:
        parser.error(f"no rows are called {' or '.join(unknown)}; there are {', '.join(PARTS)}")
    options.only = options.only.split(",") if options.only else [*LIBRARIES]
    if unknown := [key for key in options.only if key not in LIBRARIES]:
        parser.error(f"no library is called {' or '.join(unknown)}; there are {', '.join(LIBRARIES)}")
    return options


def make_set(folder: Path, scale: float, name: str) -> list[str]:
    """Return the shards of a set, which is made if it is not there."""
    path = home(folder, scale) / SETS[name].path
    if not path.exists():
        subprocess.run([sys.executable, "-m", "tests.bench.data", str(folder), str(scale), name], check=True, cwd=ROOT)
    return sorted(str(each) for each in path.iterdir())


def many_shards(folder: Path, scale: float, tell: Tell) -> list[str]:
    """Return the many shards, which are made if they are not there."""
    count = max(2, round(MANY["10000"] * scale))
    if not folder.exists():
        tell(f"making {folder}")
        make_many(folder, count)
    return [str(folder / f"{number:06d}.tar") for number in range(count)]


def main(arguments: Sequence[str], tell: Tell) -> int:
    """Measure, and write the tables; the status is 1 if a library of ours failed."""
    options = parse(arguments)
    folder = options.data.absolute()
    place = home(folder, options.scale)
    place.mkdir(parents=True, exist_ok=True)
    photos = make_set(folder, options.scale, "PHOTOS") if "rates" in options.rows else []
    texts = make_set(folder, options.scale * TEXTS, "B16") if {"rates", "resume"} & {*options.rows} else []
    many = many_shards(place / "many", options.scale, tell) if "first" in options.rows else []
    field = Field(place, options, tell)
    versions = {key: field.version(key) for key in options.only}
    try:
        with FarFiles(place) as server:
            for key in [key for key in versions if versions[key]]:
                parts = {
                    "rates": lambda: field.rates(key, photos, texts, server),  # noqa: B023  # is called at once
                    "first": lambda: field.first_batches(key, many, server),  # noqa: B023
                    "resume": lambda: field.resumes(key, texts),  # noqa: B023
                    "damage": lambda: field.damages(key),  # noqa: B023
                }
                for part in options.rows:
                    parts[part]()
        sys.stdout.write(about_machine() + tables(field, versions, options.rows))
    finally:
        field.close()
    failed = [
        name
        for (key, name), each in field.answers.items()
        if LIBRARIES[key].package == "tartools" and "error" in each and not name.startswith(("damage", "go on"))
    ]
    return 1 if failed else 0


def about_machine() -> str:
    """Return a line about the machine."""
    date, load = time.strftime("%-d %B %Y"), os.getloadavg()[0]
    cores = os.cpu_count()
    return (
        f"{date}: {cores} cores, Linux {platform.release()}, Python {platform.python_version()}, load {load:.1f}.\n\n"
    )
