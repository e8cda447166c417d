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
from tartools.cli.declare import REQUIRED, Declared, declared, hints, is_group, is_option
from tartools.cli.options import Common
from tartools.cli.parse import parse
from tartools.errors import TarToolsError, UsageError, in_command, printable
from tartools.samples.account import Account

OUTPUTS = {"--output", "--html"}  # options that say where the data go
NO_THREAD = "can't start new thread"  # what Python says
PRINTING = ("dry_run", "report_of")  # what makes a command that writes files print


class Command:
    """A command: its *name*, *summary* (one line), *manual* (all its text, which begins with that) and *parameters*.

    *trouble* is its exit status after a failure or an omission.
    """

    def __init__(
        self, function: Callable[..., int | None], manual: str, interspersed: bool = True, trouble: int = 1
    ) -> None:
        self.interspersed = interspersed
        self.trouble = trouble
        self.name = function.__name__
        self.manual = manual.strip("\n")
        self.summary = self.manual.partition("\n")[0]
        self._function = function
        self._hints = {name: hint for name, hint in hints(function).items() if name != "return"}

    @property
    def parameters(self) -> dict[str, Declared]:
        """The options and arguments by their names in Python, as declared; those of all commands are the last."""
        defaults = self._function.__kwdefaults__ or {}
        places = self._function.__code__.co_varnames[: self._function.__code__.co_argcount]
        given = self._function.__defaults__ or ()
        defaults |= dict(zip(places[len(places) - len(given) :], given, strict=True))
        every = (
            one
            for name, hint in {**self._hints, "common": Common}.items()
            if is_group(hint) or is_option(hint)
            for one in declared(hint, name, defaults.get(name, REQUIRED))
        )
        return {one.name: one for one in every}

    def __call__(self) -> NoReturn:
        """Run as a process: arguments from `sys.argv`, signals as they should be, exit."""
        process.run(lambda: self.main(sys.argv[1:]))

    def main(self, arguments: Sequence[str]) -> int:
        """Run with *arguments*, and return the exit status; 128 + N stands for signal N."""
        return exit_status(self.name, lambda: self._answer(arguments), self.trouble)

    def _answer(self, arguments: Sequence[str]) -> int:
        given = self._parse(arguments)
        if about := self._about(given):
            process.print_now(f"{about}\n")
            return 0
        with in_command():
            return self._run(given)

    def _parse(self, arguments: Sequence[str]) -> dict[str, Any]:
        """Return the values of the options that are given. Raises: UsageError."""
        try:
            return parse(arguments, self.parameters.values(), interspersed=self.interspersed)
        except ValueError as error:
            raise UsageError(f"{printable(str(error))} (see {self.name} --help)") from None

    def _about(self, given: dict[str, Any]) -> str:
        """Return what *given* asks for instead of a run, "" if nothing: the help, or the version."""
        if "help" in given:
            from tartools.cli import typer_app

            return typer_app.help_text(self.name, self.manual, self.parameters.values())
        if "version" in given:
            from importlib.metadata import version

            return f"tartools {version('tartools')}"
        return ""

    def _run(self, given: dict[str, Any]) -> int:
        common = _values_of(Common, given)
        account = Account(lambda text: progress.say(self.name, text), common.quiet)
        arguments: dict[str, Any] = {}
        for name, hint in self._hints.items():
            if is_group(hint):
                arguments[name] = _values_of(hint, given)
            elif hint is Account:
                arguments[name] = account
            elif name in given:
                arguments[name] = given[name]
        begin = time.monotonic()
        shown = not common.quiet and (common.progress or progress.is_wanted(self._output(given)))
        with progress.progress(self.name, account, shown):
            status = self._function(**arguments)
        account.check()
        account.settle()
        if common.verbose:
            progress.summary(self.name, account, time.monotonic() - begin)
        return self.trouble if account.omissions else status or 0

    def _output(self, given: dict[str, Any]) -> str:
        """Return the URL to which the data go, by the options that are *given*; "-" is stdout."""
        if any(given.get(name) for name in PRINTING):
            return "-"
        outputs = [one for one in self.parameters.values() if not OUTPUTS.isdisjoint(one.names)]
        return next((url for one in outputs if (url := given.get(one.name, one.default)) is not None), "-")


def exit_status(name: str, work: Callable[[], int], trouble: int = 1) -> int:
    """Return the exit status of *work*: what it returns, or that of the failure that it raises, which is printed.

    *name* begins the message; *trouble* is the least status of a failure; 128 + N stands for signal N.
    """
    try:
        status = work()
        return process.SIGNALLED + process.came[0] if process.came else status
    except BrokenPipeError:
        return process.SIGNALLED + signal.SIGPIPE
    except (KeyboardInterrupt, process.Interrupted) as error:
        return process.SIGNALLED + getattr(error, "number", signal.SIGINT)
    except Exception as error:
        if (message := _said_of(error)) is None:
            raise
        if os.environ.get("TARTOOLS_DEBUG") == "1":
            import traceback

            traceback.print_exc()
        progress.say(name, message)
        return max(error.status, trouble) if isinstance(error, TarToolsError) else trouble


def _said_of(error: Exception) -> str | None:
    """Return what is said of a failure; None if it is a bug."""
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


def _values_of(group: Any, given: dict[str, Any]) -> Any:
    """Return the *group* with those of its options that are *given*."""
    return group(**{name: given[name] for name in hints(group) if name in given})


def command(
    manual: str | None, *, interspersed: bool = True, trouble: int = 1
) -> Callable[[Callable[..., int | None]], Command]:
    """Return a decorator that makes a function the command of its name, with *manual* as its help and man page.

    Unless *interspersed*, what follows the first argument is an argument too, whatever it looks like. *trouble* is the
    exit status after a failure or an omission. If all is well it is what the function returns; None is 0.
    """
    return lambda function: Command(function, manual or "", interspersed, trouble)
