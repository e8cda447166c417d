"""A command: a function whose signature declares its options, run with the words of a command line.

`command` makes a `Command` of a function: console scripts call it, tests drive it by `main`, and the man page is made
from it. Parsing checks and does not act: the function runs when all values are known.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from tartools.cli import process, progress
from tartools.cli.declare import REQUIRED, Declared, declarations_of, is_group, is_option, type_hints
from tartools.cli.options import About, Common, ShardOutputs
from tartools.cli.parse import parse
from tartools.errors import TarToolsError, UsageError, in_command, printable
from tartools.samples.account import Account

OUTPUTS = {"--output", "--html"}  # options that say where the data go
NO_THREAD = "can't start new thread"  # Python's message
PRINTING_OPTIONS = ("dry_run", "report_of")  # with one of these, a command that writes files prints


class Command:
    """A command: a function whose signature declares the options, run with the words of a command line.

    `main(arguments)` runs it and returns the exit status; calling the object runs it with `sys.argv` and ends the
    process. *function*: returns the exit status, None for 0; its parameters are options and `Group`s, and an `Account`
    if it wants one. *manual*: text of the help and the man page, with the summary as its first line.
    `complete(manual)`: returns the text with its tables filled in.

    Attributes:
      name: name of the command; several words ("tartools demo") for one without a script, which has no options of
        `Common`, draws no progress and prints no totals.
      summary: first line of the manual.
      trouble: exit status after an omission, and the least exit status after a failure.
      interspersed: True if options may follow arguments.
    """

    def __init__(
        self,
        function: Callable[..., int | None],
        manual: str,
        interspersed: bool = True,
        trouble: int = 1,
        name: str = "",
        complete: Callable[[str], str] = str,
    ) -> None:
        self.interspersed = interspersed
        self.trouble = trouble
        self.name = name or function.__name__
        self._common: dict[str, Any] = {"about": About} if name else {"common": Common, "about": About}
        self._manual = manual.strip("\n")
        self._complete = complete
        self.summary = self._manual.partition("\n")[0]
        self._function = function
        self._hints = {name: hint for name, hint in type_hints(function).items() if name != "return"}

    @property
    def manual(self) -> str:
        """The whole text of the help and the man page, without the options; *complete* has filled in its tables."""
        return self._complete(self._manual)

    @property
    def parameters(self) -> dict[str, Declared]:
        """The declared options and arguments by parameter name; options of a group by the name of their attribute.

        First the command's own, then `Common` (only if it has a script) and `About`.
        """
        defaults = self._function.__kwdefaults__ or {}
        parameter_names = self._function.__code__.co_varnames[: self._function.__code__.co_argcount]
        default_values = self._function.__defaults__ or ()
        defaults |= dict(
            zip(parameter_names[len(parameter_names) - len(default_values) :], default_values, strict=True)
        )
        options = (
            option
            for name, hint in {**self._hints, **self._common}.items()
            if is_group(hint) or is_option(hint)
            for option in declarations_of(hint, name, defaults.get(name, REQUIRED))
        )
        return {option.name: option for option in options}

    def __call__(self) -> NoReturn:
        """Run as a process with the arguments `sys.argv[1:]`: handle signals, and exit with the status."""
        process.run(lambda: self.main(sys.argv[1:]))

    def main(self, arguments: Sequence[str]) -> int:
        """Run with *arguments*, and return the exit status; 128 + N stands for signal N.

        Failures are printed on stderr, except a BrokenPipeError, which only gives the status of SIGPIPE; an exception
        that is a bug is raised.
        """
        return exit_status(self.name, lambda: self._dispatch(arguments), self.trouble)

    def _dispatch(self, arguments: Sequence[str]) -> int:
        """Run with *arguments*, or print the help or the version that they ask for; return the exit status.

        Raises: UsageError for wrong *arguments*; OSError if the help can't be printed; the errors of `_run`.
        """
        values = self._parse(arguments)
        if text := self._information(values):
            process.print_now(f"{text}\n")
            return 0
        with in_command():
            return self._run(values)

    def _parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that *arguments* give, or the environment sets, by parameter name.

        Raises: UsageError, with the message for the user, for wrong *arguments*.
        """
        try:
            return parse(arguments, self.parameters.values(), interspersed=self.interspersed)
        except ValueError as error:
            raise UsageError(f"{printable(str(error))} (see {self.name} --help)") from None

    def _information(self, values: dict[str, Any]) -> str:
        """Return the help or the version if *values* ask for one; "" for a run.

        The key "usage" asks for the short help, "help" for all of it, "version" for a line such as "tartools 1.2.3".
        """
        if values.keys() & {"usage", "help"}:
            from tartools.cli import typer_app

            print_help = typer_app.short_help_text if "usage" in values else typer_app.help_text
            return print_help(self.name, self.manual, self.parameters.values())
        if "version" in values:
            from importlib.metadata import version

            return f"tartools {version('tartools')}"
        return ""

    def _run(self, values: dict[str, Any]) -> int:
        """Call the function with the option *values*, draw progress, print totals; return the exit status.

        Unless --quiet, progress is drawn with --progress or if `is_shown_by_default`; totals are printed with
        --verbose. The lists of --sums are checked before, and written after the function and the checks of the account.
        The status is `trouble` if the run reported an omission, else the number that the function returned, 0 for None.
        Raises: the errors of the function, of these lists, and of the checks (an input has changed, no sample had a
        field); AssertionError if the counts of the account do not add up.
        """
        common = _values_of(Common, values)
        account = Account(lambda text: progress.print_message(self.name, text), common.quiet)
        arguments: dict[str, Any] = {}
        for name, hint in self._hints.items():
            if is_group(hint):
                arguments[name] = _values_of(hint, values)
            elif hint is Account:
                arguments[name] = account
            elif name in values:
                arguments[name] = values[name]
        begin = time.monotonic()
        draws_progress = (
            "common" in self._common
            and not common.quiet
            and (common.progress or progress.is_shown_by_default(self._output_url(values)))
        )
        outputs = [group for group in arguments.values() if isinstance(group, ShardOutputs)]
        checksums = [sums for group in outputs if (sums := group.checksums)]
        for sums in checksums:
            sums.check()
        with progress.progress(self.name, account, draws_progress):
            status = self._function(**arguments)
        account.check()
        for sums in checksums:
            sums.write()
        account.report_totals()
        if common.verbose:
            progress.print_totals(self.name, account, time.monotonic() - begin)
        return self.trouble if account.omissions else status or 0

    def _output_url(self, values: dict[str, Any]) -> str:
        """Return the URL of the first output option that has one of *values* or a default; "-" (stdout) if none has.

        Output options have a name in OUTPUTS. With an option that only prints (--dry-run, --summarize) it is
        "-" too; with --serve, which prints one line once the progress is over, /dev/null.
        """
        if values.get("serve"):
            return os.devnull
        if any(values.get(name) for name in PRINTING_OPTIONS):
            return "-"
        outputs = [option for option in self.parameters.values() if not OUTPUTS.isdisjoint(option.names)]
        return next((url for option in outputs if (url := values.get(option.name, option.default)) is not None), "-")


def exit_status(name: str, work: Callable[[], int], trouble: int = 1) -> int:
    """Call *work*; return its exit status. Print its failure, if it raises one, and return the failure's status.

    *name* begins the message, which follows a traceback if TARTOOLS_DEBUG is 1. The status is *trouble*, or that of a
    `TarToolsError` if it is higher. 128 + N stands for signal N, also if *work* returned after the signal had come, and
    128 + SIGPIPE for a BrokenPipeError; they print nothing. An exception that is a bug is raised again.
    """
    try:
        status = work()
        return process.SIGNAL_STATUS_BASE + process.received_signals[0] if process.received_signals else status
    except BrokenPipeError:
        return process.SIGNAL_STATUS_BASE + signal.SIGPIPE
    except (KeyboardInterrupt, process.Interrupted) as error:
        return process.SIGNAL_STATUS_BASE + getattr(error, "number", signal.SIGINT)
    except Exception as error:
        if (message := _message_of(error)) is None:
            raise
        if os.environ.get("TARTOOLS_DEBUG") == "1":
            import traceback

            traceback.print_exc()
        progress.print_message(name, message)
        return max(error.status, trouble) if isinstance(error, TarToolsError) else trouble


def _message_of(error: Exception) -> str | None:
    """Return the message for a failure that is the user's or the system's; None for any other exception: a bug.

    None unless it is a `TarToolsError`, a MemoryError, an OSError, or the RuntimeError that no thread can be started.
    """
    if isinstance(error, TarToolsError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, RuntimeError) and str(error) == NO_THREAD:
        return f"{NO_THREAD}: no more processes or memory are allowed (see ulimit -a)"
    if isinstance(error, OSError):
        place = f"{printable(str(error.filename))}: " if error.filename else ""
        return f"{place}{error.strerror or error}"
    return None


def _values_of(group: Any, values: dict[str, Any]) -> Any:
    """Return an instance of the option class *group* with its options among *values*; others keep their defaults."""
    return group(**{name: values[name] for name in type_hints(group) if name in values})


def command(
    manual: str | None,
    *,
    interspersed: bool = True,
    trouble: int = 1,
    name: str = "",
    complete: Callable[[str], str] = str,
) -> Callable[[Callable[..., int | None]], Command]:
    """Return a decorator that makes a function the `Command` of its name, with *manual* as its help and man page.

    *manual*: the docstring of the module, None for none. *interspersed*: if False, all words after the first argument
    are arguments, even if they begin with a hyphen. *trouble*: exit status after an omission, and the least after a
    failure; otherwise it is the number that the function returns, 0 for None. *name*: for a command without a script,
    such as "tartools demo"; "": the name of the function. `complete(manual)`: returns the manual with its tables filled
    in; called when the manual is shown.
    """
    return lambda function: Command(function, manual or "", interspersed, trouble, name, complete)
