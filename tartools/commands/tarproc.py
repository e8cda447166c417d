"""Run a command on every sample: xargs for shards.

The command runs in a fresh directory that holds the file sample.FIELD for each field of the sample ("sample" for a
member without a field) and sample.__key__ with its key. When the command ends, the files sample.FIELD are the new
sample, in the old order, new ones behind them by name; a changed sample.__key__ gives it another key. Any other file
is scratch. If none is left, the sample is left out, so that "rm sample.*" filters.

What the command prints goes to stderr, its stdin is empty. It finds TAR_KEY, TAR_INDEX (from 0) and TAR_SHARD in its
environment. What it leaves running is killed when it ends.

A command fails by a status other than 0. The output then ends before that sample, whatever -p is (-e abort), or does
without it (-e skip), or has it as it came (-e ignore).

Examples:
  tarproc -c 'gm mogrify -resize 256x256 sample.jpg' photos.tar > small.tar
  tarproc -p 0 -s ./features.sh 'train-{000..147}.tar' -o features.tar
  tarproc -c 'grep -q dog sample.txt || rm sample.*' photos.tar > dogs.tar
  tarproc -S -c 'for n in 0 1; do mkdir $n; cp sample.jpg $n; done' photos.tar > twice.tar
  tarproc -e skip --timeout 60 --add-log log -c 'tesseract sample.png sample' pages.tar > texts.tar
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, NamedTuple

import typer

from tartools import cli, shards, storage
from tartools.account import Account
from tartools.errors import UsageError
from tartools.stages import command, ordered, select
from tartools.storage import shell

LONGEST = 1_000_000  # seconds; poll(2) takes 24 days


@cli.group
class Work(NamedTuple):
    """What is run, and how."""

    line: Annotated[str | None, typer.Option("-c", "--command", metavar="CMD", help="Run CMD on each sample.")] = None
    script: Annotated[
        str | None, typer.Option("-s", "--script", metavar="FILE", help="Run the script FILE on each sample.")
    ] = None
    shell: Annotated[str, typer.Option("--shell", metavar="SHELL", help="What runs it.")] = "bash"
    parallel: cli.Parallel = 1
    unordered: Annotated[bool, typer.Option("--unordered", help="Write samples as they are done.")] = False
    errors: Annotated[
        command.Errors, typer.Option("-e", "--errors", help="When a command fails: stop, or leave its sample.")
    ] = command.Errors.abort
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.001, help="A command that takes longer is killed: it failed."
        ),
    ] = None
    first: Annotated[
        int | None, typer.Option("--count", metavar="N", min=0, help="Stop after the first N samples of the input.")
    ] = None


@cli.group
class Place(NamedTuple):
    """Where the files are, and which of them count."""

    subdirs: Annotated[bool, typer.Option("-S", "--subdirs", help="Each subdirectory is a sample of the output.")] = (
        False
    )
    base: Annotated[str, typer.Option("--base", metavar="NAME", help="Call the files NAME.FIELD.")] = "sample"
    log: Annotated[
        str | None, typer.Option("--add-log", metavar="FIELD", help="Add what the command prints as FIELD.")
    ] = None
    keep: Annotated[bool, typer.Option("--keepdir", help="Keep the directories, and say where they are.")] = False
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarproc(account: Account, source: cli.Inputs, output: cli.Output, work: Work, place: Place) -> None:
    """Run the command."""
    rules = rules_of(work, place)
    arguments = shell.shell_arguments(work.shell, work.line, work.script)
    urls = storage.expand(*source.named)
    storage.check_output(output.url, output.force, urls)
    samples = shards.read_samples(urls, account, shards.Reading(source.lax, source.skip_special))
    if work.first is not None:
        samples = select.count(samples, work.first)
    written = Account() if place.subdirs else account  # with -S, samples out are inputs that gave any
    with shell.Shells(
        arguments, tmpdir=place.tmpdir, timeout=work.timeout, keep=place.keep, logged=rules.log is not None
    ) as shells:
        if place.keep:
            account.say(f"the directories are kept in {os.fsdecode(shells.folder)}")
        tasks = command.laid_out(samples, shells.folder, rules, shells.log)
        workers, run = cli.workers(work.parallel), runner(shells, work)
        with closing(ordered.mapped(tasks, run, workers, shells.stop, unordered=work.unordered)) as finished:
            results = command.collected(finished, rules, account, shells.discard)
            shards.write_samples(results, output.url, written, force=output.force, gzip=output.gzip)
    if written is not account:
        account.written, account.bytes_out = written.samples_out, written.bytes_out


def runner(shells: shell.Shells, work: Work) -> Callable[[command.Task], str]:
    """Return what runs one task, and returns how that failed.

    Under `-e abort` nothing behind a failed task is begun: nobody will ask for it.
    """
    stops = work.errors is command.Errors.abort and not work.unordered
    failed: list[int] = []

    def run(task: command.Task) -> str:
        if failed and task.number > min(failed):
            return "was not run"
        failure = task.failure or shells.run(task.folder, task.environment)
        if failure and stops:
            failed.append(task.number)
        return failure

    return run


def rules_of(work: Work, place: Place) -> command.Rules:
    """Return the rules that the options give. Raises: UsageError."""
    if (work.line is None) == (work.script is None):
        raise UsageError("give what to run: either -c COMMAND or -s SCRIPT")
    if place.base in ("", ".", "..") or "/" in place.base:
        raise UsageError(f"--base {place.base!r} is no name for files")
    if place.log is not None and (not place.log or place.log.endswith((".", "/")) or "/" in place.log):
        raise UsageError(f"--add-log {place.log!r} is no name for a field")
    if work.timeout is not None and not work.timeout <= LONGEST:  # nor is it "nan"
        raise UsageError(f"--timeout {work.timeout:g} is no number of seconds up to {LONGEST:,}")
    log = os.fsencode(place.log) if place.log else None
    return command.Rules(os.fsencode(place.base), work.errors, place.subdirs, log, place.keep)
