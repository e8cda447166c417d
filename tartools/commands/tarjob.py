r"""Run a command for each of many shards, here or on a Ray cluster.

COMMAND is run once for each item of SPEC, with {} replaced by the item. {.} is the item without its last suffix, {/}
without its directory, {/.} without both. A command without any of these gets the item as its last word. No shell reads
COMMAND, unless it is one: bash -c '... {}'. In a line for a shell the item is quoted, or refused where quotes would not
help; bash -c '... "$1"' _ {} takes any. Such a line is a word that has anything in it which means something to a shell,
what follows -c of a shell or of tarproc, or --post, and the command of a pipe:. But {} alone may be a line by itself.
An item that begins with - may be an option to COMMAND, as with xargs: write './*.tar', or -- before it.

What a command writes by -o shows whether its item is done: a tarjob that was interrupted, or of which some items
failed, is run again as it is, and does what is missing. The output is what -o of tarjob names, with {} in it, or else
what the command's own -o does, unless that is just the item, or ends in /. A directory shows nothing. The -o of
tarsplit begins the names of many shards; there -o of tarjob has to name one, say the last that is made of an item, or
all is done again. This holds for outputs that appear whole or not at all, as those of all tartools do. Of a command
that writes in place, what a killed run leaves looks done. And a command may fail and leave an output (tarproc -e skip
does); only --log remembers that, and has it done again.

Each item is tried 1 + --retries times; another try replaces what the one before has written, by TARTOOLS_FORCE=1, as
--redo does. The log gets a line for each try when it ends; under Ray, one when the last has ended. Other items go on
when one has failed; the exit status is 0 only if all are done. What a command prints on stdout is printed in one piece
when it has succeeded, up to 16 MiB, in the order in which they end; its stderr is in the log, and its last line in the
message if it failed. What it leaves running in its process group is killed when it ends. When tarjob is stopped, so is
all that its commands have begun; what has left its session and its parents, as daemons do, survives --timeout.

-j items are worked on at a time. If COMMAND is one of tartools with -p N, that is by default the number of cores
divided by N. Under --engine ray, which is the default with --address, --cpus or RAY_ADDRESS, Ray decides that: each
item asks for --cpus cores, by default N. Every node needs tartools, COMMAND, and in its environment what they need
(credentials of stores): nothing of ours is sent there.

--only K/N is for those who start many: every N-th item from the K-th on. In a Slurm array:

  #SBATCH --array=1-8
  tarjob -s '{000..147}' --only "$SLURM_ARRAY_TASK_ID/8" -- tarsort in-{}.tar -o out-{}.tar

and in an Indexed Job of Kubernetes, which counts from 0:

  sh -c 'tarjob -s "{000..147}" --only "$((JOB_COMPLETION_INDEX + 1))/8" -- tarsort in-{}.tar -o out-{}.tar'

Examples:
  tarjob -s '{000..147}' -- tarsort in-{}.tar -o out-{}.tar
  tarjob -s 'pages-*.tar' --log log.jsonl -- tarproc -c 'tesseract sample.png sample' {} -o text-{}
  tarjob --report log.jsonl
  tarjob -s '{0..9}' -- tar2tsv --noheader -f cls train-{}.tar | sort | uniq -c
  tarjob -s '{000..147}' --dry-run -- tarcat in-{}.tar -o out-{}.tar.zst | parallel
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tartools import cli, jobs, running, storage
from tartools.account import Account, Jobs
from tartools.errors import UsageError, printable, several, shown
from tartools.jobs import Ended, Task
from tartools.stages import report
from tartools.storage import programs

LONGEST = 1_000_000  # seconds; poll(2) takes 24 days


class Engine(StrEnum):
    """Who runs the commands."""

    local = "local"
    ray = "ray"


@cli.group
class Items(NamedTuple):
    """What there is to do."""

    spec: Annotated[
        str | None, typer.Option("-s", "--spec", metavar="ITEMS", help="The items: braces, or a wildcard of shards.")
    ] = None
    files_from: Annotated[
        list[str] | None,
        typer.Option("-T", "--files-from", metavar="FILE", help="Read more items from FILE, one a line."),
    ] = None
    null: Annotated[bool, typer.Option("-0", "--null", help="Items in -T files end with NUL, not newline.")] = False
    only: Annotated[str | None, typer.Option("--only", metavar="K/N", help="Do the K-th of N parts of them.")] = None


@cli.group
class Rules(NamedTuple):
    """When an item is done, and what is done about others."""

    output: Annotated[
        str, typer.Option("-o", "--output", metavar="PATTERN", help="What shows that an item is done, with {} in it.")
    ] = ""
    redo: Annotated[bool, typer.Option("--redo", help="Do again what is done, and replace it.")] = False
    retries: Annotated[int, typer.Option("--retries", metavar="N", min=0, help="Try N times more if it fails.")] = 0
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Stop a command that takes longer: it failed."),
    ] = None
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Start no more once an item has failed.")] = False
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Go on past failed items, as it does anyway.")] = (
        False
    )
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Add a line of JSON to FILE for each item that ends.")
    ] = None


@cli.group
class Place(NamedTuple):
    """Where commands run, and how many at a time."""

    jobs: Annotated[int | None, typer.Option("-j", "--jobs", metavar="N", min=1, help="Items at a time.")] = None
    engine: Annotated[Engine | None, typer.Option("--engine", help="Who runs them: this machine, or Ray.")] = None
    address: Annotated[
        str | None, typer.Option("--address", metavar="ADDRESS", help="The Ray cluster, as in ray.init.")
    ] = None
    cpus: Annotated[
        float | None, typer.Option("--cpus", metavar="N", min=0.001, help="Cores that an item needs, for Ray.")
    ] = None


DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run, one shell command a line.")]
ReportOf = Annotated[str | None, typer.Option("--report", metavar="LOG", help="Sum up the file that --log wrote.")]


@cli.command(__doc__, interspersed=False)
def tarjob(
    account: Account,
    items: Items,
    rules: Rules,
    place: Place,
    words: Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", help="What to run.")] = None,
    dry_run: DryRun = False,
    report_of: ReportOf = None,
) -> None:
    """Run the command."""
    if report_of is not None:
        if words or dry_run or (items, rules, place) != (Items(), Rules(), Place()):
            raise UsageError("--report reads a log and runs nothing: it takes no other options")
        summed = jobs.report_of(jobs.last_records(storage.content(report_of), report_of).values())
        with storage.writing("-") as sink:
            sink.write("".join(f"{printable(line)}\n" for line in jobs.report_lines(summed)).encode())
        account.omissions += len(summed.failed)
        return
    command = checked(words or [], items, rules, place)
    names = storage.expand([items.spec] if items.spec else [], items.files_from or [], "\0" if items.null else "\n")
    tasks = jobs.part_of(jobs.tasks_of(names, command, rules.output, force=rules.redo), items.only)
    account.jobs = Jobs(len(tasks))
    logged = written(rules.log)
    tasks = running.missing(tasks, jobs.last_records(logged, rules.log or ""), redo=rules.redo)
    account.jobs.skipped = account.jobs.total - len(tasks)
    if dry_run:
        with storage.writing("-") as sink:
            for task in tasks:
                sink.write(os.fsencode(jobs.shell_line(task)) + b"\n")
        return
    log = storage.appended(rules.log)
    if logged and not logged.endswith(b"\n"):
        log.write(b"\n")  # behind a line that was cut

    def note(task: Task, ended: Ended) -> None:
        if rules.log:
            log.write(jobs.record(task, ended, report.now()))

    with closing(engine(tasks, rules, place, command, account, note)) as ends, storage.writing("-") as printed:
        for task, ended in ends:
            if ended is None:
                continue
            if ended.printed:
                printed.write(ended.printed)
            note(task, ended)
            book(task, ended, account, rules)
    if left := len(tasks) - account.jobs.done - account.jobs.failed:
        account.omit(f"{several(left, 'item was', 'items were')} not begun, because of --fail-fast")


def checked(words: Sequence[str], items: Items, rules: Rules, place: Place) -> list[str]:
    """Return COMMAND. Raises: UsageError for options that exclude each other."""
    if not items.spec and not items.files_from:
        raise UsageError("there are no items: -s names them ('{000..147}', 's3://bucket/in-*.tar'), or -T FILE")
    if not words:
        raise UsageError("there is no command: give it behind the options, or behind --")
    if rules.fail_fast and rules.keep_going:
        raise UsageError("--fail-fast and --keep-going exclude each other")
    if rules.timeout is not None and not rules.timeout <= LONGEST:  # nor is it "nan"
        raise UsageError(f"--timeout {rules.timeout:g} is no number of seconds up to {LONGEST:,}")
    if place.cpus is not None and not place.cpus < math.inf:  # nor is it "nan"
        raise UsageError(f"--cpus {place.cpus:g} is no number of cores")
    if place.address == "":
        raise UsageError("--address is empty (a variable of the shell may not be set)")
    if place.engine is Engine.local and (place.address or place.cpus):
        raise UsageError("--address and --cpus are for --engine ray")
    return list(words)


def written(log: str | None) -> bytes:
    """Return what *log* holds, if there is such a file."""
    is_file = log and storage.is_file(log) and storage.is_there(log) and storage.is_repeatable(log)
    return storage.content(log) if log and is_file else b""


def engine(
    tasks: Sequence[Task], rules: Rules, place: Place, command: Sequence[str], account: Account, told: running.Told
) -> running.Done:
    """Return what has *tasks* done, and yields each as it ends; *told* hears of tries that others follow, not on Ray.

    Raises: UsageError for a program that is not there.
    """
    if not tasks:
        return nothing()
    asked = jobs.workers_in(command, {path.stem for path in Path(__file__).parent.glob("tar*.py")})
    on_ray = place.address or place.cpus or os.environ.get("RAY_ADDRESS")
    if place.engine is Engine.ray or (place.engine is None and on_ray):
        from tartools import cluster

        return cluster.there(
            tasks,
            account,
            address=place.address,
            cpus=place.cpus or (1 if asked is None else asked),
            most=place.jobs,
            retries=rules.retries,
            timeout=rules.timeout,
            fail_fast=rules.fail_fast,
        )
    if not jobs.PLACE.search(command[0]):
        programs.check_program(command[0])
    cores = 1 if asked is None else cli.workers(asked)
    wanted = min(place.jobs or max(1, cli.workers(0) // cores), max(1, len(tasks)))
    workers = min(wanted, programs.at_most())
    if workers < wanted:
        account.warn(f"the limit of open files (ulimit -n) allows {several(workers, 'item')} at a time, not {wanted}")
    return running.here(
        tasks,
        account.jobs,
        workers,
        retries=rules.retries,
        timeout=rules.timeout,
        fail_fast=rules.fail_fast,
        told=told,
    )


def nothing() -> running.Done:
    """Return what ends nothing."""
    yield from ()


def book(task: Task, ended: Ended, account: Account, rules: Rules) -> None:
    """Count *task*, and report it if it failed."""
    if not ended.failure:
        account.jobs.done += 1
        return
    account.jobs.failed += 1
    tries = f" after {ended.tries} tries" if ended.tries > 1 else ""
    words = f": {ended.last_words}" if ended.last_words else ""
    there = not rules.log and task.output and storage.is_there(task.output)
    kept = f" (its output is there; without --log, the next run will take it for done: {shown(task.output)})"
    account.omit(f"{shown(task.item)}: {ended.failure}{tries}{words}{kept if there else ''}")
