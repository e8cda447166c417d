r"""Run a command on every sample: xargs for shards.

The command runs in a new directory with a file sample.FIELD for each field of the sample ("sample" for a member without
a field), and the key in the file sample.__key__. When the command ends, the files sample.FIELD become the new sample:
first the old fields in their order, then new ones by name. A changed sample.__key__ changes the key. Other
files are ignored. If no file sample.FIELD is left, the sample is left out: "rm sample.*" filters.

The output of the command goes to stderr; with several workers, each line begins with the key of its sample. Its stdin
is empty. Its environment has TAR_KEY, TAR_INDEX (from 0) and TAR_SHARD. Processes that it leaves behind are killed.

CMD is a line for the shell. The arguments after -- are a program and its arguments, which are not interpreted by a
shell: blanks, quotes, "$" and "*" in them are ordinary characters.

A command fails if its exit status is not 0. With -e abort (the default), the output then ends before that sample, at
any -p, and tarproc fails. With -e skip the sample is left out, with -e ignore it is written unchanged; tarproc
continues, reports it, and ends with status 1. --report lists such samples in a table: __key__, __shard__, failure (such
as "ended with status 3"), and last_line, the last line that the command printed.

Examples:
  Make all photos smaller:
    tarproc -c 'gm mogrify -resize 256x256 sample.jpg' photos.tar > small.tar
  The same, without a shell:
    tarproc photos.tar -o small.tar -- gm mogrify -resize 256x256 sample.jpg
  Run a script on every sample, with one worker per core:
    tarproc -p 0 -s ./features.sh 'train-{000..147}.tar' -o features.tar
  Keep only the samples whose text mentions a dog:
    tarproc -c 'grep -q dog sample.txt || rm sample.*' photos.tar > dogs.tar
  Make two samples from each one:
    tarproc -S -c 'for n in 0 1; do mkdir $n; cp sample.jpg $n; done' \
      photos.tar > twice.tar
  Leave out pictures that fail, and list them:
    tarproc -e skip --report failed.tsv \
      -c 'gm mogrify -resize 256x256 sample.jpg' photos.tar > small.tar
  Recognize text, at most a minute a page, and keep the messages:
    tarproc -e skip --timeout 60 --add-log log \
      -c 'tesseract sample.png sample' pages.tar > texts.tar
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Annotated

from tartools import cli, storage
from tartools.cli import Option
from tartools.errors import CommandError, UsageError, several, shown
from tartools.run.directories import DirectoryOptions, Errors, Outcome, SampleDirectories, SampleTask, path_text
from tartools.run.results import OnFailure, collect_samples, last_log_line
from tartools.run.shells import Shells, shell_arguments
from tartools.samples.account import Account, Phase
from tartools.samples.sample import Sample
from tartools.shards.reading import Reading, read_samples
from tartools.shards.writing import write_samples
from tartools.stages import select
from tartools.storage.outputformats import TSV
from tartools.storage.pool import Threads, call_in_window

DEFAULT_SHELL = "bash"
MAX_COMMAND_SECONDS = 1_000_000  # seconds; poll(2) takes 24 days
MAX_SAMPLES_UNDER_WAY = 1000  # samples whose command runs, or has ended and waits for an earlier one


class CommandOptions(cli.Group):
    """Options for the command to run.

    Attributes:
      line, script, words: the command, given by -c, by -s, or after `--`; the other two are None.
      shell: program that runs *line*.
      parallel: workers; 0: one per core.
      unordered: write samples as they finish.
      errors: if the command fails: "abort" (stop), "skip" (leave the sample out) or "ignore" (write it unchanged).
      timeout: seconds after which it is killed, and has failed; None: never.
      report: file for a list of failed samples, or None.
      first: samples to read at most (--count); None: all.
    """

    line: Annotated[str | None, Option("-c --command CMD", "Run CMD for each sample.")] = None
    script: Annotated[str | None, Option("-s --script FILE", "Run the script FILE for each sample.")] = None
    words: Annotated[
        list[str] | None, Option("[-- COMMAND...]", "Run the program COMMAND with its arguments for each sample.")
    ] = None
    shell: Annotated[str, Option("--shell SHELL", "Shell that runs CMD.")] = DEFAULT_SHELL
    parallel: cli.Parallel = 1
    unordered: Annotated[bool, Option("--unordered", "Write samples as they finish, in any order.")] = False
    errors: Annotated[
        Errors, Option("-e --errors", "If CMD fails: stop, leave the sample out, or write it unchanged.")
    ] = "abort"
    timeout: Annotated[
        float | None,
        Option("--timeout SECONDS", "Kill CMD if it takes longer, and count it as failed.", minimum=0.001),
    ] = None
    report: Annotated[
        str | None, Option("--report FILE", "List the failed samples, why, and the last line printed, as TSV.")
    ] = None
    first: Annotated[int | None, Option("--count N", "Stop after the first N samples of the input.", minimum=0)] = None


class Directory(cli.Group):
    """Options for the directory of a sample.

    Attributes:
      subdirs: each subdirectory becomes a sample (-S).
      base: name of the files before the field.
      log: field that gets the output of the command, or None.
      keep: do not remove the directories.
      tmpdir: where they are made; None: in the default folder.
    """

    subdirs: Annotated[
        bool, Option("-S --subdirs", "Make a sample from each subdirectory that CMD leaves: one in, any number out.")
    ] = False
    base: Annotated[str, Option("--base NAME", "Name the files NAME.FIELD.")] = "sample"
    log: Annotated[str | None, Option("--add-log FIELD", "Store the output of CMD in the sample, as FIELD.")] = None
    keep: Annotated[bool, Option("--keep-dir", "Keep the directories, and print their paths.", aliases="--keepdir")] = (
        False
    )
    tmpdir: cli.TmpDir = None


@cli.command(__doc__)
def tarproc(
    account: Account, source: cli.Inputs, output: cli.Output, work: CommandOptions, directory: Directory
) -> None:
    """Run a command on each sample of *source* and write the samples that it leaves to *output*.

    *work*: the command, and what happens if it fails. *directory*: the files that it finds and leaves. Raises:
    TarToolsError.
    """
    options = directory_options(work, directory)
    arguments = shell_arguments(work.shell, command_line(work), work.script)
    urls = source.urls()
    cli.check_outputs({"-o": output.url, "--report": work.report}, output.force, urls, {"--report": TSV})
    samples = read_samples(urls, account, Reading(source.strictness))
    if work.first is not None:
        samples = select.take_first(samples, work.first)
        account.progress.phase = Phase("", work.first, lambda: account.samples_done)
    written = Account() if directory.subdirs else account  # with -S, samples out are inputs that gave any
    with closing(SampleDirectories(options, directory.tmpdir)) as folders:
        if directory.keep:
            account.say(f"the directories are kept in {os.fsdecode(folders.folder)}")
        with (
            failure_report(work.report, output.force) as on_failure,
            closing(process_samples(samples, arguments, folders, work, account, on_failure)) as results,
        ):
            write_samples(results, output.destination, written)
    if written is not account:
        account.progress.written, account.bytes_out = written.samples_out, written.bytes_out


@contextmanager
def failure_report(url: str | None, force: bool) -> Iterator[OnFailure]:
    """Yield a function that adds a failed sample to the table *url*, which appears when the block ends normally.

    It takes the task and the reason. The table is TSV: __key__, __shard__, failure (the reason), last_line (printed by
    the command). *url*: None: the function does nothing. *force*: replace an existing table. Raises: StorageError if it
    can't be written.
    """
    if url is None:
        yield lambda task, why: None
        return
    from tartools.formats.textwrite import make_line_maker

    columns = ("__key__", "__shard__", "failure", "last_line")
    line = make_line_maker("tsv", columns)
    with storage.open_sink(url, force) as sink:

        def add(values: Sequence[str]) -> None:
            sink.write(line(values).encode("utf-8", "surrogateescape"))

        add(columns)
        yield lambda task, why: add((path_text(task.key), shown(task.shard), why, last_log_line(task)))


def process_samples(
    samples: Iterator[Sample],
    arguments: Sequence[str],
    folders: SampleDirectories,
    work: CommandOptions,
    account: Account,
    on_failure: OnFailure,
) -> Generator[Sample, None, None]:
    """Yield the samples that the shell command *arguments* makes of *samples*, in order unless --unordered.

    *folders*: makes the directories. *on_failure*: called with a failed task, and why, whatever -e says. *account*:
    counts samples left out and dropped. Raises: CommandError if a command fails, and -e says to stop; the errors of
    *samples* and `account.check`.
    """
    workers = cli.count_workers(work.parallel)
    with closing(Shells(arguments, folders, keyed=workers > 1, timeout=work.timeout)) as shells:
        tasks, threads = folders.write(samples), Threads(workers, make_runner(shells, work), shells.stop)
        window = max(MAX_SAMPLES_UNDER_WAY, workers)
        with closing(call_in_window(tasks, threads, window, ordered=not work.unordered, max_calls=2 * workers)) as run:
            try:
                yield from collect_samples(((task, outcome()) for task, outcome in run), folders, account, on_failure)
            except CommandError as error:
                error.message += relative_path_advice(work, folders.options.base)
                raise
    if 0 < account.samples_in == account.left_out:
        place = "a subdirectory with " if folders.options.subdirs else ""
        name = os.fsdecode(folders.options.base)
        count = several(account.left_out, "sample")
        account.warn_empty(f"{count}, all left out: no command left {place}a file {name}.FIELD")
    account.check()


def command_line(work: CommandOptions) -> str | None:
    """Return the command line for the shell; None if a script is given. Words after `--` are quoted: exec -- ls 'a b'.

    Raises: UsageError if there is no word after `--`, for a program without a slash that is not in PATH, and for a
    --shell other than bash with such words.
    """
    if work.words is None:
        return work.line
    if not work.words:
        raise UsageError("no command after --")
    if work.shell != DEFAULT_SHELL:
        raise UsageError("--shell is for -c: no shell reads the words after --")
    import shlex
    import shutil

    if "/" not in work.words[0] and shutil.which(work.words[0]) is None:  # else relative to the sample?
        raise UsageError(f"there is no program {work.words[0]!r}")

    return f"exec -- {shlex.join(work.words)}"


def relative_path_advice(work: CommandOptions, base: bytes) -> str:
    """Return advice, to end a message, if a word of the command is a relative path of a file that exists; "" if not.

    "; each sample has a directory of its own: write /home/me/fix.py for fix.py". The command runs in the directory of a
    sample, whose files are named *base*, a dot and the field: words that begin so are no such paths. A script, and a
    line with an open quote, have none.
    """
    import shlex

    lexer = shlex.shlex(work.line or "", posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = work.words or list(lexer)
    except ValueError:  # an open quote, perhaps of a here-document
        words = []
    prefix = os.fsdecode(base) + "."
    relative = (word for word in words if not os.path.isabs(word) and not word.startswith(prefix))
    if path := next((word for word in relative if os.path.isfile(word)), ""):
        return f"; each sample has a directory of its own: write {shlex.quote(os.path.abspath(path))} for {path}"
    return ""


def make_runner(shells: Shells, work: CommandOptions) -> Callable[[SampleTask], Outcome]:
    """Return a function that runs the command for one task in *shells*, and returns its outcome.

    A task that has a failure is not run: that is its outcome. With `-e abort`, unless --unordered, no task with a
    greater number than a failed one is begun, since its result is not needed: the failure is then "was not run".
    """
    stops = work.errors == "abort" and not work.unordered
    failed: list[int] = []

    def run(task: SampleTask) -> Outcome:
        if failed and task.number > min(failed):
            return Outcome("was not run")
        outcome = Outcome(task.failure) if task.failure else shells.run(task)
        if outcome.failure and stops:
            failed.append(task.number)
        return outcome

    return run


def directory_options(work: CommandOptions, directory: Directory) -> DirectoryOptions:
    """Return the options for sample directories, from the options of the command.

    Raises: UsageError for invalid ones, --report with `-e abort`, and unless exactly one of -c, -s and `--` is given.
    """
    if [work.line, work.script, work.words].count(None) != 2:
        raise UsageError("give what to run: either -c COMMAND, or -s SCRIPT, or -- and the words of a command")
    if work.report is not None and work.errors == "abort":
        raise UsageError("--report needs -e skip or -e ignore: by itself tarproc stops at the first failed sample")
    if directory.base in ("", ".", "..") or "/" in directory.base:
        raise UsageError(f"--base {directory.base!r} can't be the name of a file")
    if directory.log is not None and (not directory.log or directory.log.endswith((".", "/")) or "/" in directory.log):
        raise UsageError(f"--add-log {directory.log!r} can't be the name of a field")
    if work.timeout is not None and work.timeout > MAX_COMMAND_SECONDS:
        raise UsageError(f"--timeout {work.timeout:g} is not a number of seconds up to {MAX_COMMAND_SECONDS:,}")
    log = os.fsencode(directory.log) if directory.log else None
    base, is_reported = os.fsencode(directory.base), work.report is not None
    return DirectoryOptions(base, work.errors, directory.subdirs, log, directory.keep, is_reported)
