"""The help of a command, by a Typer application that is made from its declarations. `parse` reads command lines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tartools.cli.declare import REQUIRED, Declared


def help_text(name: str, manual: str, every: Iterable[Declared]) -> str:
    """Return the help of the command *name*, which has the options *every*: usage, *manual*, and what options say."""

    def nothing(**_: Any) -> None: ...

    every = sorted(every, key=lambda one: one.shared)
    parameters = [_parameter(one) for one in every if one.name != "help" and not one.option.behind]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    nothing.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    usage = [one.metavar for one in every if one.option.behind]
    settings = {"help_option_names": ["-h", "--help"], "obj": usage}
    # Typer fills paragraphs, but for those behind a \b
    paragraphs = ("\b\n" + p if re.search(r"^ ", p, re.MULTILINE) else p for p in manual.split("\n\n"))
    application.command(name, cls=_Application, help="\n\n".join(paragraphs), context_settings=settings)(nothing)
    command = typer.main.get_command(application)
    return command.get_help(command.make_context(name, [], resilient_parsing=True))


def _parameter(one: Declared) -> inspect.Parameter:
    """Return the parameter that declares *one* to Typer."""
    declaration: Any
    if one.names:
        metavar = None if one.flag else one.metavar
        declaration = typer.Option(*one.names, help=one.help, metavar=metavar, show_default=False)
    else:
        declaration = typer.Argument(help=one.help, metavar=one.metavar)
    kind: Any = bool if one.flag else list[str] | None if one.repeats else str | None
    default = inspect.Parameter.empty if one.default is REQUIRED else False if one.flag else None
    annotation = Annotated[kind, declaration]
    return inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class _Application(TyperCommand):
    """A Typer command: *obj* of its context ends the usage."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), *ctx.obj]
