"""The command line of the benchmarks: `python -m tests.bench [WORK ...]`, from the project's root.

One line a work on stderr while it runs, one table on stdout at the end. The status is 1 if a command failed, and says
nothing about how long it took.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench.data import SETS
from tests.bench.measure import ROOT, Bench, Measured, installed
from tests.bench.starts import STARTS
from tests.bench.training import TRAINING
from tests.bench.works import WORKS as COMMANDS
from tests.bench.works import Goal, Line, Work

WORKS = COMMANDS | STARTS | TRAINING
GROUPS = {"training": TRAINING, "start-all": STARTS}  # name -> works that it stands for

HEADINGS = ("work", "ours", "s", "CPU s", "MB", "beside", "s", "CPU s", "MB", "ratio", "to reach", "reached", "")
RIGHT = (2, 3, 4, 6, 7, 8, 9, 10)  # columns of numbers


NONE = ("", "", "")  # no figures
UNITS = {"wall": "s", "memory": "MB"}
DECODING = "decoding alone"  # the line beside which others tell how much of their time is this


@dataclass(frozen=True)
class Row:
    """A row of the table: *beside* is a peer or a limit, *ratio* the figure that is to be at most *goal*."""

    measured: Measured
    beside: str = ""
    theirs: tuple[str, ...] = NONE
    ratio: float | None = None
    goal: Goal | None = None
    note: str = ""

    def cells(self, first: bool) -> tuple[str, ...]:
        """Return the cells as text; what is said of ours only in the *first* row of its work."""
        ours = self.measured.work.ours.name
        mine = (self.measured.work.name, ours, *figures(self.measured, ours)) if first else ("",) * 5
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        goal = told(self.goal) if self.goal else ""
        reached = "" if self.goal is None or self.ratio is None else "yes" if self.ratio <= self.goal.most else "NO"
        return (*mine, self.beside, *self.theirs, ratio, goal, reached, self.note)


def told(goal: Goal) -> str:
    """Return the limit of *goal* with its unit, if it has one."""
    return f"{goal.most:.3g}" if goal.beside else f"{goal.most:g} {UNITS[goal.figure]}"


def figures(measured: Measured, name: str) -> tuple[str, ...]:
    """Return seconds of wall and of CPU, and MB, of a line, as text."""
    if name not in measured.rounds:
        return NONE
    wall, cpu, memory = (measured.median(name, figure) for figure in ("wall", "cpu", "memory"))
    return (f"{wall:.3f}", f"{cpu:.3f}", f"{memory:.0f}" if memory else "")


def pace(measured: Measured, line: Line) -> str:
    """Return how many members a second *line* did, and the time of a sample, if its work is told so."""
    if not (line.of or line.told) or line.name not in measured.rounds:
        return ""
    wall, cpu = measured.median(line.name), measured.median(line.name, "cpu")
    if line.told:
        alone = measured.median(DECODING, "cpu") / cpu if DECODING in measured.rounds and line.name != DECODING else 0
        known = 0 < alone <= 1  # the CPU of workers that were not ended is not known
        return f"{1e3 / wall:,.0f} {line.told}/s" + (f", decoding is {alone:.0%} of the CPU time" if known else "")
    samples = measured.samples(line)
    return f"{samples * SETS[line.of].members / wall:,.0f} members/s, {wall / samples * 1e6:.2f} µs a sample"


def rows_of(measured: Measured) -> list[Row]:
    """Return the rows of a work: one for each peer, one for each goal that is not a peer's time, one for our pace."""
    work, ours = measured.work, measured.work.ours
    if measured.failure:
        return [Row(measured, note="FAILED")]
    rows = []
    for peer in work.peers:
        aims = {goal.figure: goal for goal in work.goals if goal.beside == peer.name}
        missing = measured.missing.get(peer.name)
        note = missing or pace(measured, peer)
        rows.append(
            Row(measured, peer.name, figures(measured, peer.name), measured.ratio(peer), aims.get("wall"), note)
        )
        if "size" in aims and not missing:
            note = "{:.1f} beside {:.1f} MB".format(*(measured.median(n, "size") / 1e6 for n in (ours.name, peer.name)))
            rows.append(Row(measured, f"{peer.name}, size", NONE, measured.ratio(peer, "size"), aims["size"], note))
        if "cpu" in aims and not missing:
            rows.append(Row(measured, f"{peer.name}, cpu", NONE, measured.ratio(peer, "cpu"), aims["cpu"]))
    limits = [goal for goal in work.goals if not goal.beside]
    rows += [Row(measured, "at most", NONE, measured.median(ours.name, goal.figure), goal) for goal in limits]
    if told_pace := pace(measured, ours):
        rows.append(Row(measured, "(ours)", note=told_pace))
    return rows


def cells_of(all_measured: Sequence[Measured]) -> list[tuple[str, ...]]:
    """Return the rows of the table as text."""
    return [row.cells(first=number == 0) for measured in all_measured for number, row in enumerate(rows_of(measured))]


def plain(rows: Sequence[Sequence[str]]) -> str:
    """Return the table in aligned columns, without trailing blanks."""
    table = [HEADINGS, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(HEADINGS))]
    lines = []
    for row in table:
        padded = [
            cell.rjust(width) if column in RIGHT else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip() + "\n")
    return "".join(lines)


def markdown(rows: Sequence[Sequence[str]], about: dict[str, str], runs: int) -> str:
    """Return the table as Markdown, below a line that tells of the machine."""
    ruler = ["---:" if column in RIGHT else "---" for column in range(len(HEADINGS))]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in (HEADINGS, ruler, *rows)]
    told = ", ".join(f"{name} {value}" for name, value in about.items() if name != "date")
    return f"{about['date']}: {told}. Medians of {runs} rounds.\n\n{''.join(lines)}"


def machine() -> dict[str, str]:
    """Return the date, the machine, and the versions of what was compared."""
    from importlib import metadata

    about = {
        "date": time.strftime("%Y-%m-%d"),
        "cores": str(os.cpu_count()),
        platform.system(): platform.release(),
        "Python": platform.python_version(),
        "tartools": metadata.version("tartools"),
        "webdataset": metadata.version("webdataset"),
        "load": f"{os.getloadavg()[0]:.1f}",
    }
    for library in ("torch", "litdata", "mosaicml-streaming", "webshart"):
        if installed(library):
            about[library] = metadata.version(library)
    for program in ("bash", "cat", "tar", "bsdtar", "gzip", "pigz", "xargs"):
        if path := shutil.which(program):
            done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            found = re.search(r"\d+(\.\d+)+", done.stdout + done.stderr)
            about[program] = found[0] if found else "of no known version"
    return about


def figures_as_json(all_measured: Sequence[Measured], options: argparse.Namespace) -> str:
    """Return all figures of all rounds, in seconds, MB and bytes."""
    works = [
        {
            "work": each.work.name,
            "failure": each.failure,
            "missing": each.missing,
            "goals": [goal._asdict() for goal in each.work.goals],
            "ratios": {peer.name: each.ratio(peer) for peer in each.work.peers},
            "lines": [
                {
                    "name": line.name,
                    "line": line.line,
                    "samples": each.samples(line),
                    "rounds": [turn._asdict() for turn in each.rounds.get(line.name, ())],
                }
                for line in each.work.lines
            ],
        }
        for each in all_measured
    ]
    return json.dumps({"machine": machine(), "scale": options.scale, "works": works}, indent=1) + "\n"


def listing() -> str:
    """Return the works with their lines, as they are run, and what to reach."""
    lines = []
    for work in WORKS.values():
        lines.append(f"{work.name}{'  (only by name)' if work.by_name else ''}\n")
        for line in work.lines:
            beside = "" if line is work.ours else line.name
            goals = [f"{each.figure} <= {told(each)}" for each in work.goals if each.beside == beside]
            lines.append(f"    {line.line}{'  # ' if goals else ''}{', '.join(goals)}\n")
            if line.less:
                lines.append(f"        less the time of: {line.less}\n")
    return "".join(lines)


def beside_version(work: Work, commands: Path) -> Work:
    """Return *work* with the same commands of another version, in the folder *commands*, as its only peer."""
    there = f"PATH={shlex.quote(str(commands))}:$PATH; "
    line = replace(work.ours, name="before", line=there + work.ours.line, needs="tartools")  # options may be new
    if line.less:
        line = replace(line, less=there + line.less)
    goals = tuple(Goal(1.1, "before", figure) for figure in ("wall", "cpu"))
    return replace(work, peers=(line,), goals=goals)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Time our commands beside their peers.")
    parser.add_argument(
        "works",
        nargs="*",
        metavar="WORK",
        help="which; without any, all but the longest, starts and training; start-all, training: all of these",
    )
    parser.add_argument("-s", "--seconds", type=float, default=1.0, help="of a line of training (%(default)s)")
    parser.add_argument("-n", "--runs", type=int, default=5, help="rounds, after one to warm up (%(default)s)")
    place = Path(tempfile.gettempdir()) / "tartools-bench"
    parser.add_argument("--data", type=Path, default=place, metavar="DIR", help="where archives are kept (%(default)s)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where outputs go (memory, or else beside the archives)"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="smaller data sets, to try it out: 0.01")
    parser.add_argument(
        "--before",
        type=Path,
        metavar="DIR",
        help="time the commands in this folder, of another version, in place of other programs: VENV/bin",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="the table as Markdown")
    form.add_argument("--json", action="store_true", help="all figures of all rounds")
    form.add_argument("--list", action="store_true", help="show the works, run nothing")
    return parser


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """Return what *arguments* ask for. Exits with status 2 if that can't be done."""
    options = parser().parse_args(arguments)
    options.works = [work for name in options.works for work in GROUPS.get(name, (name,))]
    if unknown := [name for name in options.works if name not in WORKS]:
        parser().error(f"no work is called {' or '.join(unknown)}; there are {', '.join(WORKS)}")
    if options.runs < 1 or not 0 < options.scale <= 1:
        parser().error("there is at least one round, and --scale is above 0 and at most 1")
    if options.out and not options.out.is_dir():
        parser().error(f"--out: {options.out} is no directory")
    if options.before and not (options.before / "tarcat").is_file():
        parser().error(f"--before: no tarcat is in {options.before}")
    return options


def main(arguments: Sequence[str]) -> int:
    """Run the works that are asked for; return the exit status."""
    for ending in (signal.SIGTERM, signal.SIGHUP):  # they would leave the outputs there
        if signal.getsignal(ending) is not signal.SIG_IGN:  # nohup
            signal.signal(ending, lambda number, _: sys.exit(128 + number))
    if arguments[:1] == ["peers"]:
        from tests.bench.beside import table

        return table.main(arguments[1:], tell)
    options = parsed(arguments)
    if options.list:
        sys.stdout.write(listing())
        return 0
    chosen = [WORKS[name] for name in options.works] or [work for work in WORKS.values() if not work.by_name]
    if options.before:
        chosen = [beside_version(work, options.before.absolute()) for work in chosen if not work.ours.told]
    # As an installer does; where PYTHONDONTWRITEBYTECODE is set, each start of a command would compile all it imports.
    compileall.compile_dir(ROOT / "tartools", quiet=2)
    bench = Bench(options.data, options.scale, options.runs, tell, options.out, options.seconds)
    done = []
    with closing(bench):
        for number, work in enumerate(chosen, 1):
            start = time.monotonic()
            done.append(bench.measure(work))
            result = done[-1].failure or f"{work.name}: {done[-1].median(work.ours.name):.3f} s"
            tell(f"[{number}/{len(chosen)}] {result} ({time.monotonic() - start:.0f} s)")
    if options.json:
        sys.stdout.write(figures_as_json(done, options))
    elif options.markdown:
        sys.stdout.write(markdown(cells_of(done), machine(), options.runs))
    else:
        sys.stdout.write(plain(cells_of(done)))
    return 1 if any(each.failure for each in done) else 0


def tell(line: str) -> None:
    """Say *line* about progress."""
    sys.stderr.write(f"bench: {line}\n")


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
