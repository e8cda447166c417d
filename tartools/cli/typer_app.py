"""The Typer application of a command, made from its declarations: it explains (help) and judges (usage errors).

Only what `parse` does not take comes here. Values are made by the same functions as there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tartools.cli.declare import REQUIRED, Declared
from tartools.cli.parse import apart, respelled
from tartools.errors import UsageError, printable

ALIKE = 0.7  # of 1, at which two names are the same


def option_values(
    name: str, arguments: Sequence[str], manual: str, every: Iterable[Declared], *, interspersed: bool = True
) -> dict[str, Any] | int:
    """Return the values that *arguments* give to the options *every*, by name, or the status after `--help`.

    *manual* is the text of the help. Options that are not given are left out.

    Raises:
        UsageError: With what is wrong about the command line.
        BrokenPipeError: If stdout was closed while the help was printed.
    """
    given: dict[str, Any] | None = None

    def values(**options: Any) -> None:
        nonlocal given
        given = {name: value for name, value in options.items() if not (value is None or value is False or value == [])}

    def version(wanted: bool) -> None:
        nonlocal given
        if wanted:  # whatever else is missing
            given = {"version": True}
            raise typer.Exit

    every = sorted(every, key=lambda one: one.shared)
    arguments, behind = apart(arguments, every)
    parameters = [_parameter(one, version) for one in every if not one.option.behind]
    values.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    values.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    application = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    usage = [one.metavar for one in every if one.option.behind]
    settings = {"help_option_names": ["-h", "--help"], "allow_interspersed_args": interspersed, "obj": usage}
    # Typer fills paragraphs, but for those behind a \b
    paragraphs = ("\b\n" + p if re.search(r"^ ", p, re.MULTILINE) else p for p in manual.split("\n\n"))
    application.command(name, cls=_Application, help="\n\n".join(paragraphs), context_settings=settings)(values)
    try:
        status = application(respelled(arguments, every), prog_name=name, standalone_mode=False)
    except typer.TyperException as error:
        if possible := getattr(error, "possibilities", None):
            error.possibilities = near(getattr(error, "option_name", ""), possible)  # type: ignore[attr-defined]
        message = getattr(error, "format_message", error.__str__)()
        raise UsageError(f"{printable(message)} (see {name} --help)") from None
    except SystemExit:  # Typer exits when stdout was closed while it printed the help
        raise BrokenPipeError from None
    return status or 0 if given is None else given if given.get("version") else given | behind


def near(name: str, options: Iterable[str]) -> list[str]:
    """Return those of *options* that may have been meant by *name*: a letter is missing or wrong, or the end is.

    >>> near("--ratio", ["--version", "--verbatim"]), near("--coun", ["--count"]), near("--file", ["--files-from"])
    ([], ['--count'], ['--files-from'])
    """
    from difflib import SequenceMatcher

    word = name.lstrip("-")
    return [
        option
        for option in options
        if option.startswith(name) or SequenceMatcher(None, word, option.lstrip("-")).ratio() >= ALIKE
    ]


def _parameter(one: Declared, version: Callable[[bool], None]) -> inspect.Parameter:
    """Return the parameter that declares *one* to Typer, which calls *version* for `--version`."""
    option, default = one.option, inspect.Parameter.empty if one.default is REQUIRED else None
    declaration: Any
    if one.name == "version":
        declaration = typer.Option(*option.names, help=one.help, is_eager=True, callback=version)
    elif one.flag:
        declaration = typer.Option(*option.names, help=one.help, envvar=option.envvar or None, show_envvar=False)
    elif option.names:
        parser = None if one.repeats else _judged(one)
        declaration = typer.Option(*option.names, help=one.help, metavar=one.metavar, parser=parser)
    else:
        declaration = typer.Argument(help=one.help, metavar=one.metavar)
    kind: Any = bool if one.flag else list[str] | None if one.repeats else str | None
    return inspect.Parameter(
        one.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=False if one.flag else default,
        annotation=Annotated[kind, declaration],
    )


def _judged(one: Declared) -> Callable[[str], Any]:
    """Return what makes the value of *one*, with errors as Typer has them."""

    def value(text: str) -> Any:
        try:
            return one.value(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return value


class _Application(TyperCommand):
    """A Typer command that refuses an option given twice, unless it adds up. *obj* of its context ends the usage."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), *ctx.obj]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option in order:
            if order.count(option) > 1 and option.nargs == 1 and not getattr(option, "multiple", False):
                raise typer.BadParameter(f"{'/'.join(option.opts)} is given twice")
        return super().parse_args(ctx, args)
