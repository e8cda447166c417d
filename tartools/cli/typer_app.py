"""The help of a command, by a Typer application that is made from its declarations. `parse` reads command lines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tartools.cli.declare import REQUIRED, Declared


def help_text(name: str, manual: str, declarations: Iterable[Declared]) -> str:
    """Return the help of the command *name* with these *declarations*: usage, *manual*, and the help of each option."""

    def nothing(**_: Any) -> None: ...

    declarations = sorted(declarations, key=lambda option: option.shared)
    parameters = [_parameter(option) for option in declarations if option.name != "help" and not option.option.behind]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    nothing.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    usage = [option.metavar for option in declarations if option.option.behind]
    settings = {"help_option_names": ["-h", "--help"], "obj": usage}
    # Typer fills paragraphs, but for those behind a \b
    paragraphs = ("\b\n" + p if re.search(r"^ ", p, re.MULTILINE) else p for p in manual.split("\n\n"))
    application.command(name, cls=_Application, help="\n\n".join(paragraphs), context_settings=settings)(nothing)
    command = typer.main.get_command(application)
    return command.get_help(command.make_context(name, [], resilient_parsing=True))


def _parameter(option: Declared) -> inspect.Parameter:
    """Return the parameter that declares *option* to Typer."""
    declaration: Any
    if option.names:
        metavar = None if option.flag else option.metavar
        declaration = typer.Option(*option.names, help=option.help, metavar=metavar, show_default=False)
    else:
        declaration = typer.Argument(help=option.help, metavar=option.metavar)
    kind: Any = bool if option.flag else list[str] | None if option.repeats else str | None
    default = inspect.Parameter.empty if option.default is REQUIRED else False if option.flag else None
    annotation = Annotated[kind, declaration]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class _Application(TyperCommand):
    """A Typer command: *obj* of its context ends the usage."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), *ctx.obj]
