r"""Run a command for each of many shards, on this machine or on a Ray cluster.

Sort 148 shards, each with its own command, several at a time:

  tarjob --spec '{000..147}' -- tarsort in-{}.tar -o out-{}.tar

Recognize the text of the pages in all shards, with a log; run it again to do whatever is missing:

  tarjob --spec 'pages-*.tar' --log log.jsonl -- \
    tarproc -c 'tesseract sample.png sample' {} -o text-{}

COMMAND runs once for each item, with {} replaced by the item. {.} is the item without its last suffix, {/} without its
directory, {/.} without both. If COMMAND contains none of these, the item becomes its last word. {} is replaced by the
item as it is. Where a shell reads the word again (after -c or --command, in pipe:, in --post), items may contain only
letters, digits and ._/:@%+=,- and any other item is refused; write "$TARJOB_ITEM" there, which every command finds in
its environment.

An item is done if its output exists, unless that is a file of 0 bytes, which a power cut may leave with other programs.
The output is the file given by -o of tarjob, with {} in it, or else the -o of COMMAND, unless that is just the item or
ends in /. After an interruption or a partial failure, run the same tarjob again to do whatever is missing. This relies
on outputs that appear only once they are complete, as with all tartools; other commands may leave half an output when
killed. tarsplit writes many shards: let -o of tarjob name the last one for each item. A command that fails but leaves
an output (tarproc -e skip) counts as done, unless --log has recorded the failure.

A failed item does not stop the others; it is retried up to --retries times. Retries and --redo replace outputs
(TARTOOLS_FORCE=1). The exit status is 0 only if all items are done. The stdout of a command is printed in
one piece after it has succeeded, up to 16 MiB. The end of its stderr goes to the log; if it fails, the last line is in
the message. Queries of URLs, which may be signatures, are removed from both. Processes that a command leaves in its
process group are killed.

The log has a line of JSON for each item when the run begins ("status": "waiting"), and another one when the item ends
("done" or "failed"). So --summarize also lists what an interrupted run has not done. A new log is readable only by you.

-p items run at a time; -p 0 is one per core, and the default is the same, up to 8. If COMMAND is one of tartools with
-p N, the default is at most the number of cores divided by N. With --engine ray, Ray decides: each item requests --cpus
cores, by default N. Every node needs tartools, COMMAND, and their credentials; tarjob sends none.

--only K/N does every N-th item, starting with the K-th, for schedulers that start many jobs. In a Slurm array:

  #SBATCH --array=1-8
  tarjob --spec '{000..147}' --only "$SLURM_ARRAY_TASK_ID/8" -- \
    tarsort in-{}.tar -o out-{}.tar

In an Indexed Job of Kubernetes, which counts from 0:

  sh -c 'tarjob --spec "{000..147}" \
    --only "$((JOB_COMPLETION_INDEX + 1))/8" -- \
    tarsort in-{}.tar -o out-{}.tar'

Examples:
  Sort 148 shards; run it again to do whatever is missing:
    tarjob --spec '{000..147}' -- tarsort in-{}.tar -o out-{}.tar
  Summarize a log: what is done, what failed and why, what is missing:
    tarjob --summarize log.jsonl
  Count the classes of ten shards:
    tarjob --spec '{0..9}' -- tar2tsv --no-header -f cls train-{}.tar | sort |
      uniq -c
  Print the commands, for another scheduler:
    tarjob --spec '{000..147}' --dry-run -- tarcat in-{}.tar \
      -o out-{}.tar.zst | parallel
"""

import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Literal

from tartools import cli, storage
from tartools.cli import Option, process
from tartools.errors import UsageError, printable, several, shown
from tartools.run import localjobs, tasks
from tartools.run import log as logs
from tartools.run.tasks import Task, TaskResult
from tartools.samples.account import Account, Jobs
from tartools.storage.expand import expand
from tartools.storage.url import Url

MAX_TIMEOUT_SECONDS = 1_000_000  # seconds; poll(2) takes 24 days
DAMAGE_PATTERN = r"\.t(?:ar|gz)\S*: at byte \d+: (?!this is not|the input is empty)"  # messages about damage


class Items(cli.Group):
    """Options for the items to work on.

    Attributes:
      spec: pattern of items, with braces or wildcards (--spec).
      files_from: files with more items, one per line (-T); one of *spec* and *files_from* must be given.
      null: items in these files end with NUL.
      allow_pipe: items in these files may name commands.
      only: "K/N": part K of N, from 1; None: all items.
    """

    spec: Annotated[str | None, Option("--spec ITEMS", "Items: '{000..147}', or a wildcard such as 'in-*.tar'.")] = None
    files_from: Annotated[
        list[str] | None, Option("-T --files-from FILE", "Read more items from FILE, one per line.")
    ] = None
    null: Annotated[bool, Option("-0 --null", "Items in -T files end with NUL, not newline.")] = False
    allow_pipe: cli.AllowPipe = False
    only: Annotated[str | None, Option("--only K/N", "Split the items into N parts and do only part K, from 1.")] = None


class Policy(cli.Group):
    """Options for the test that an item is done, and for failed items.

    Attributes:
      output: pattern of the output, with {} for the item; "": the one of -o in the command. An item is done if its
        output exists, is not empty, and *log* does not say that it failed.
      redo: run finished items again, and replace their outputs.
      retries: number of retries of a failed item.
      timeout: seconds after which a command is killed; None: never.
      fail_fast: start no more items after a failure.
      log: file to append outcomes to; None: none.
    """

    output: Annotated[str, Option("-o --output PATTERN", "An item is done if this exists; {} stands for the item.")] = (
        ""
    )
    redo: Annotated[bool, Option("--redo", "Do finished items again, and replace their outputs.")] = False
    retries: Annotated[int, Option("--retries N", "Retry a failed item up to N times.", minimum=0)] = 0
    timeout: Annotated[
        float | None, Option("--timeout SECONDS", "Kill a command that takes longer; its item fails.", minimum=0.001)
    ] = None
    fail_fast: Annotated[bool, Option("--fail-fast", "Start no more items after the first failure.")] = False
    log: Annotated[str | None, Option("--log FILE", "Append the outcome of each item to FILE, as lines of JSON.")] = (
        None
    )


class Resources(cli.Group):
    """Options for where commands run, and how many at a time.

    Attributes:
      jobs: items at a time; 0: one per core; None: cores / -p of the command, up to 8; on Ray what it has room for.
      engine: "local", "ray", or None to decide by the other options.
      address: of the Ray cluster; None: RAY_ADDRESS, or one on this machine.
      cpus: cores for an item on Ray; None: -p of the command, else 1.
    """

    jobs: Annotated[
        int | None,
        Option(
            "-p -j --parallel --jobs N",
            "Items at a time; 0 means one per core.",
            minimum=0,
            default="cores / -p of COMMAND, up to 8",
        ),
    ] = None
    engine: Annotated[
        Literal["local", "ray"] | None,
        Option("--engine", "This machine, or Ray.", default="ray with --address, --cpus or RAY_ADDRESS; else local"),
    ] = None
    address: Annotated[str | None, Option("--address ADDRESS", "Address of the Ray cluster, as for ray.init.")] = None
    cpus: Annotated[
        float | None, Option("--cpus N", "Cores that an item needs on Ray.", minimum=0.001, default="-p of COMMAND")
    ] = None


DryRun = Annotated[bool, Option("--dry-run", "Print the commands that would run, one per line, for a shell.")]
ReportOf = Annotated[str | None, Option("--summarize LOG", "Summarize a log that --log wrote.")]


@cli.command(__doc__, interspersed=False)
def tarjob(
    account: Account,
    items: Items,
    policy: Policy,
    resources: Resources,
    words: Annotated[list[str] | None, Option("COMMAND...", "The command to run for each item.")] = None,
    dry_run: DryRun = False,
    report_of: ReportOf = None,
) -> None:
    """Run a command for each of *items* that is not done yet; print their outputs, log and count the results.

    *policy*: when an item is done, retries, log. *resources*: where commands run, and how many at a time. *words*: the
    command, with places for the item. *dry_run*: print the commands only. *report_of*: log to summarize instead;
    then none of these options may be given. Each failed item is an omission, and the items that --fail-fast leaves out
    are one. Raises: TarToolsError, such as UsageError for impossible options.
    """
    if report_of is not None:
        if words or dry_run or (items, policy, resources) != (Items(), Policy(), Resources()):
            raise UsageError("--summarize reads a log and runs nothing: it takes no other options")
        print_report(report_of, account)
        return
    command = require_command(words or [], items, policy, resources)
    logged = log_content(policy.log)
    records = logs.parse_log(logged, policy.log or "")
    patterns = [items.spec] if items.spec else []
    names = expand(patterns, items.files_from or [], "\0" if items.null else "\n", items.allow_pipe, join=False)
    every = tasks.take_part(tasks.make_tasks(names, command, policy.output, force=policy.redo), items.only)
    todo = localjobs.tasks_to_do(every, records, redo=policy.redo)
    jobs = account.progress.jobs = Jobs(len(every), len(every) - len(todo))
    if dry_run:
        with storage.open_sink("-") as sink:
            sink.write(process.printable_lines(b"".join(os.fsencode(tasks.shell_line(task)) + b"\n" for task in todo)))
        return
    if every and not todo:
        account.warn(
            f"nothing to do: {several(len(every), 'item was', 'items were')} done before (--redo does them again)"
        )
    log = storage.open_append(policy.log)
    if logged and not logged.endswith(b"\n"):
        log.write(b"\n")  # ends a line that was cut
    if policy.log:
        log.write(logs.make_start_records(every, todo, records, time.time()))
        log.sync()

    def record(task: Task, result: TaskResult) -> None:
        if policy.log:
            log.write(logs.encode_result(task, result, time.time()))
            log.sync()

    try:
        if todo:
            print_results(run_todo(todo, policy, resources, command, account, record), account, policy, record)
    except (KeyboardInterrupt, process.Interrupted) as error:
        if getattr(error, "number", signal.SIGINT) == signal.SIGINT:  # a user at the keyboard
            goes_on = "; the same command line does the rest" if policy.output else ""
            account.warn(f"{jobs.skipped + jobs.done} of {several(len(every), 'item')} done{goes_on}")
        raise
    if remaining := len(todo) - jobs.done - jobs.failed:
        account.omit(f"{several(remaining, 'item was', 'items were')} not begun, because of --fail-fast")


def print_report(name: str, account: Account) -> None:
    """Print a report of the log *name*; count each item in it that is not done in `account.omissions`.

    Raises: StorageError if it can't be read, or is no log.
    """
    records = logs.parse_log(storage.read_content(name), name).values()
    with storage.open_sink("-") as sink:
        sink.write("".join(f"{printable(line)}\n" for line in logs.report_of_log(records)).encode())
    account.omissions += sum(each["status"] != logs.DONE for each in records)


def require_command(words: Sequence[str], items: Items, policy: Policy, resources: Resources) -> list[str]:
    """Return COMMAND, the *words*. Raises: UsageError if it or the items are missing, or for impossible options.

    These are --timeout above 1,000,000 seconds, an empty --address, and --address or --cpus with --engine local.
    """
    if not items.spec and not items.files_from:
        raise UsageError("no items given: use --spec ('{000..147}', 's3://bucket/in-*.tar') or -T FILE")
    if not words:
        raise UsageError("no command given: put it after the options, or after --")
    if policy.timeout is not None and policy.timeout > MAX_TIMEOUT_SECONDS:
        raise UsageError(f"--timeout {policy.timeout:g} is not a number of seconds up to {MAX_TIMEOUT_SECONDS:,}")
    if resources.address == "":
        raise UsageError("--address is empty (a variable of the shell may not be set)")
    if resources.engine == "local" and (resources.address or resources.cpus):
        raise UsageError("--address and --cpus are for --engine ray")
    return list(words)


def log_content(log: str | None) -> bytes:
    """Return the content of *log*, a regular local file; b"" for any other URL, a missing file, a fifo, and None.

    Raises: StorageError for a directory, and a file that can't be read.
    """
    is_file = log and Url(log).is_local and storage.exists(log) and storage.is_repeatable(log)
    return storage.read_content(log) if log and is_file else b""


def run_todo(
    todo: Sequence[Task],
    policy: Policy,
    resources: Resources,
    command: Sequence[str],
    account: Account,
    on_retry: localjobs.OnRetry,
) -> localjobs.Results:
    """Run *todo* on this machine or on Ray, and yield (task, result) for each as it ends, in no certain order.

    *policy*: retries, time limit, whether to go on after a failure. *resources*: where, and how many at a time.
    *command*: the words of COMMAND; if it is one of tartools, its -p says how many cores an item needs. *on_retry*:
    called with the task and the result of a failed try that will be repeated, but not on Ray. Items that are not begun
    because of --fail-fast are not yielded. Raises: UsageError if the program does not exist on this machine (not
    checked on Ray, or if its name has {}), or Ray is not installed; StorageError if its cluster can't be reached.
    """
    commands = os.listdir(os.path.dirname(__file__))
    cores = tasks.parse_workers(command, {name.removesuffix(".py") for name in commands if name.startswith("tar")})
    on_ray = resources.address or resources.cpus or os.environ.get("RAY_ADDRESS")
    if resources.engine == "ray" or (resources.engine is None and on_ray):
        from tartools.run import ray

        cpus = resources.cpus or (1 if cores is None else cores)
        with ray.open_ray_engine(account, resources.address, cpus, policy.retries, policy.timeout) as (engine, room):
            max_jobs = min(
                resources.jobs or ray.MAX_TASKS_IN_FLIGHT, ray.MAX_TASKS_IN_FLIGHT
            )  # Ray starts all the tasks that it gets
            jobs, at_once = account.progress.jobs, min(max_jobs, room)
            yield from localjobs.run_tasks(todo, engine, at_once, jobs, fail_fast=policy.fail_fast, window=max_jobs)
        return
    if not tasks.PLACEHOLDER.search(command[0]):
        localjobs.check_program(command[0])
    at_once = concurrent_items(resources.jobs, cores, len(todo), account)
    with localjobs.open_local_engine(at_once, policy.retries, policy.timeout, on_retry) as engine:
        yield from localjobs.run_tasks(todo, engine, at_once, account.progress.jobs, fail_fast=policy.fail_fast)


def concurrent_items(jobs: int | None, cores: int | None, count: int, account: Account) -> int:
    """Return how many items run at a time on this machine: at most *count*.

    *jobs*: -p of tarjob; 0: one per core; None: cores here divided by *cores*, at least 1, up to 8. *cores*: cores that
    each item uses; 0: all; None: one. The limit of open files may reduce the number; *account* gets a warning then.
    """
    item_limit = min(cli.count_workers(jobs), count)
    if jobs is None:
        workers_per_item = 1 if cores is None else cli.count_workers(cores)
        item_limit = min(item_limit, max(1, cli.count_workers(0) // workers_per_item))
    allowed = min(item_limit, localjobs.max_commands_at_once())
    if allowed < item_limit:
        account.warn(
            f"the limit of open files (ulimit -n) allows {several(allowed, 'item')} at a time, not {item_limit}"
        )
    return allowed


def print_results(results: localjobs.Results, account: Account, policy: Policy, record: localjobs.OnRetry) -> None:
    """Print the stdout of each task in *results* as it ends; count it in `account.progress.jobs`, report a failed one.

    *record*: called with each task and its result, for the log. *policy*: whether there is a log, for the report. A
    failed item is an omission. *results* are closed at the end. Raises: StorageError if stdout can't be written; the
    errors of *results*.
    """
    with closing(results), storage.open_sink("-") as sink:
        for task, result in results:
            if result.stdout:
                sink.write(result.stdout)
            account.progress.jobs.done += not result.failure
            account.progress.jobs.failed += bool(result.failure)
            record(task, result)
            if not result.failure:
                continue
            tries = f" after {result.tries} tries" if result.tries > 1 else ""
            last_line = f": {result.last_line}" if result.last_line else ""
            if re.search(DAMAGE_PATTERN, last_line):
                last_line += " (tarcheck --fix recovers the intact samples)"
            output_note = ""
            if not policy.log and task.output and storage.exists(task.output):
                output = printable(tasks.redact_signatures(task.output, task))
                output_note = f" (its output exists; without --log, the next run will take it for done: {output})"
            account.omit(f"{shown(task.item)}: {result.failure}{tries}{last_line}{output_note}")
