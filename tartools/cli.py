"""Command lines: one Typer application per command, shared options as types, errors to exit statuses.

`command` turns a function into a `Command`, which is what console scripts call, what the manual is made from, and
what tests drive by `main`. Parsing validates and does not act: Typer only gives back the values, and the function
runs after that. Parameters of the function are options by `Annotated` types; one annotated with a class made
by `NamedTuple` and marked `@group` stands for the options that are its fields.
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand

from tartools import process
from tartools.account import Account
from tartools.errors import TarToolsError, printable
from tartools.stages import report

USAGE = 2
MOST_BYTES = 1 << 63  # what the size of a file can be

_UNITS = {"": 1} | {
    unit + suffix: base ** (power + 1)
    for power, unit in enumerate("KMGTP")
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


def byte_size(text: str | int) -> int:
    """Return the bytes that *text* stands for: `1e9`, `500`, `64K`, `64KiB` (1024), `64KB` (1000), as in split(1).

    Raises: typer.BadParameter for anything else.

    >>> byte_size("64K"), byte_size("64KB"), byte_size("1.5e3")
    (65536, 64000, 1500)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:[eE]\d+)?)([KMGTPkmgtp]?(?:i?B)?)", str(text), re.ASCII)
    unit = found[2][:1].upper() + found[2][1:] if found else ""
    if not found or unit not in _UNITS or not 1 <= float(found[1]) * _UNITS[unit] <= MOST_BYTES:
        raise typer.BadParameter(f"not a number of bytes: {text!r}; write 1e9, 64K, 64KiB (1024) or 64KB (1000)")
    number = int(found[1]) if found[1].isdigit() else float(found[1])
    return int(number * _UNITS[unit])


def sample_slice(text: str) -> slice:
    """Return the slice `lo:hi:step`, as in Python but without negatives.

    Raises: typer.BadParameter for anything else.
    """
    found = re.fullmatch(r"(\d*):(\d*)(?::(\d*))?", text, re.ASCII)
    if not found or (found[3] and int(found[3]) == 0):
        raise typer.BadParameter(f"not a slice: {text!r}; write lo:hi or lo:hi:step, without negatives")
    return slice(*(int(number) if number else None for number in found.groups()))


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        sys.stdout.write(f"tartools {version('tartools')}\n")
        raise typer.Exit()


Group = TypeVar("Group", bound=type)
_GROUPS: set[type] = set()


def group(options: Group) -> Group:
    """Mark a NamedTuple as a group of options."""
    _GROUPS.add(options)
    return options


def workers(parallel: int) -> int:
    """Return the number of workers that -p asks for: 0 is one a core that this process may use."""
    if parallel:
        return parallel
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@group
class Common(NamedTuple):
    """The options of every command."""

    progress: Annotated[bool, typer.Option("--progress", help="Show progress even if nobody seems to watch.")] = False
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Show neither progress nor warnings.")] = False
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="End with one line of account on stderr.")] = False
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False


@group
class Inputs(NamedTuple):
    """The shards that are read, and how strictly."""

    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="[SHARD]...", help="Shards to read; none, or -, is stdin.")
    ] = None
    files_from: Annotated[
        list[str] | None,
        typer.Option("-T", "--files-from", metavar="FILE", help="Read more names of shards from FILE, one a line."),
    ] = None
    null: Annotated[bool, typer.Option("-0", "--null", help="Names in -T files end with NUL, not newline.")] = False
    lax: Annotated[bool, typer.Option("--lax", help="Accept shards that have no end-of-archive block.")] = False
    skip_special: Annotated[
        bool, typer.Option("--skip-special", help="Leave out links, devices and sparse members without a word.")
    ] = False

    @property
    def named(self) -> tuple[list[str], list[str], str]:
        """Patterns, file lists, and what separates the names in these: what `storage.expand` takes."""
        return self.inputs or [], self.files_from or [], "\0" if self.null else "\n"


Force = Annotated[bool, typer.Option("--force", envvar="TARTOOLS_FORCE", help="Replace what exists.")]
Gzip = Annotated[bool, typer.Option("-z", "--gzip", help="Compress by gzip; the name must not say otherwise.")]
Url = Annotated[
    str, typer.Option("-o", "--output", metavar="URL", help="Write to URL, which appears when it is complete.")
]


@group
class Output(NamedTuple):
    """The tar that is written."""

    url: Url = "-"
    force: Force = False
    gzip: Gzip = False


@group
class Fields(NamedTuple):
    """Which members of a sample are passed on."""

    fields: Annotated[
        list[str] | None,
        typer.Option("-f", "--fields", metavar="SPEC", help="Only these fields: words 'a;b' or 'new=a;b'."),
    ] = None
    exclude: Annotated[list[str] | None, typer.Option("-x", "--exclude", metavar="NAMES", help="Not these fields.")] = (
        None
    )
    verbatim: Annotated[bool, typer.Option("--verbatim", help="Compare names of fields with their case.")] = False


Count = Annotated[int | None, typer.Option("-c", "--count", metavar="N", min=0, help="Stop after N samples.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Which of the possible random orders.")]
Memory = Annotated[
    int, typer.Option("-M", "--memory", metavar="BYTES", parser=byte_size, help="Bytes that may wait in memory.")
]
Parallel = Annotated[int, typer.Option("-p", "--parallel", metavar="N", min=0, help="Workers; 0 is one a core.")]
TmpDir = Annotated[str | None, typer.Option("--tmpdir", metavar="DIR", help="Temporary files go here, not $TMPDIR.")]
Verbatim = Annotated[bool, typer.Option("--verbatim", help="Compare names with their case, take values as they are.")]


class _OnceEach(TyperCommand):
    """A Typer command that refuses an option given twice, unless it adds up."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if order.count(option) > 1 and option.nargs == 1 and not getattr(option, "multiple", False):
                raise typer.BadParameter(f"{'/'.join(option.opts)} is given twice")
        return super().parse_args(ctx, args)


class Command:
    """A command of the toolbox: *name*, *summary* (its first line), *manual* (all its text), *parameters*."""

    def __init__(self, function: Callable[..., None], manual: str, interspersed: bool = True) -> None:
        self._interspersed = interspersed
        self.name = function.__name__
        self.manual = inspect.cleandoc(manual)
        self.summary = self.manual.partition("\n")[0]
        self._function = function
        self._hints = get_type_hints(function, include_extras=True) | {"common": Common}
        self._hints.pop("return", None)
        self._defaults = {name: parameter.default for name, parameter in inspect.signature(function).parameters.items()}
        self.parameters: dict[str, inspect.Parameter] = {}
        for name, hint in self._hints.items():
            if hint in _GROUPS:
                for option, inner in get_type_hints(hint, include_extras=True).items():
                    self._declare(option, inner, hint._field_defaults[option])
            elif hint is not Account:
                self._declare(name, hint, self._defaults[name])

    def _declare(self, name: str, hint: object, default: object) -> None:
        kind = inspect.Parameter.KEYWORD_ONLY
        self.parameters[name] = inspect.Parameter(name, kind, default=default, annotation=hint)

    def __call__(self) -> NoReturn:
        """Run as a process: arguments from `sys.argv`, signals as they should be, exit."""
        gc.set_threshold(50_000)  # importing what remote URLs need makes many objects and no garbage: 30 ms less
        process.run(lambda: self.main(sys.argv[1:]))

    def main(self, arguments: Sequence[str]) -> int:
        """Run with *arguments*, and return the exit status; 128 + N stands for signal N."""
        try:
            values = self._parse(arguments)
            if isinstance(values, int):
                sys.stdout.flush()
                return values
            status = self._run(values)
            return process.SIGNALLED + process.came[0] if process.came else status
        except TarToolsError as error:
            return self._failed(str(error), error.status)
        except typer.TyperException as error:
            message = getattr(error, "format_message", error.__str__)()
            return self._failed(f"{printable(message)} (see {self.name} --help)", USAGE)
        except BrokenPipeError:
            return process.SIGNALLED + signal.SIGPIPE
        except (KeyboardInterrupt, process.Interrupted) as error:
            return process.SIGNALLED + getattr(error, "number", signal.SIGINT)
        except OSError as error:
            return self._failed(f"{printable(str(error.filename or 'error'))}: {error.strerror or error}", 1)

    def _parse(self, arguments: Sequence[str]) -> dict[str, Any] | int:
        """Return the values of the options; the exit status if there is nothing left to do."""
        given: dict[str, Any] = {}

        def values(**options: object) -> None:
            given.update(options)

        values.__signature__ = inspect.Signature(list(self.parameters.values()))  # type: ignore[attr-defined]
        values.__annotations__ = {name: p.annotation for name, p in self.parameters.items()}
        application = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        application.command(
            self.name,
            cls=_OnceEach,
            help=help_text(self.manual),
            context_settings={
                "help_option_names": ["-h", "--help"],
                "allow_interspersed_args": self._interspersed,
            },
        )(values)
        try:
            status = application(list(arguments), prog_name=self.name, standalone_mode=False)
        except SystemExit:  # Typer's way to say that stdout was closed while it printed the help
            raise BrokenPipeError from None
        return given or status or 0

    def _run(self, given: dict[str, Any]) -> int:
        common = Common(*(given[option] for option in Common._fields))
        account = Account(partial(report.say, self.name), common.quiet)
        arguments = {}
        for name, hint in self._hints.items():
            if hint in _GROUPS:
                arguments[name] = hint(*(given[option] for option in hint._fields))
            else:
                arguments[name] = account if hint is Account else given[name]
        del arguments["common"]
        begin = report.clock()
        with report.progress(self.name, account, not common.quiet and (common.progress or report.wanted())):
            self._function(**arguments)
        account.settle()
        if common.verbose:
            report.summary(self.name, account, report.clock() - begin)
        return 1 if account.omissions else 0

    def _failed(self, message: str, status: int) -> int:
        if os.environ.get("TARTOOLS_DEBUG") == "1":
            traceback.print_exc()
        report.say(self.name, message)
        return status


def command(manual: str | None, *, interspersed: bool = True) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that makes a function the command of its name, with *manual* as its help and man page.

    Unless *interspersed*, what follows the first argument is an argument too, whatever it looks like.
    """
    return partial(Command, manual=manual or "", interspersed=interspersed)


def help_text(manual: str) -> str:
    """Return *manual* with its indented paragraphs marked as such for Typer, which would fill them."""
    paragraphs = re.split(r"\n\n", manual)
    return "\n\n".join("\b\n" + p if re.search(r"^ ", p, re.MULTILINE) else p for p in paragraphs)
