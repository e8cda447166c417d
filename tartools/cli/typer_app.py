"""The help of a command, by a Typer application that is made from its declarations. `parse` reads command lines."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tartools.cli.declare import REQUIRED, Declared, type_hints
from tartools.cli.options import About

SHORT_EXAMPLES = 2  # examples that -h shows
FILLED_COLUMNS = 76  # of 80: Typer leaves two free on each side
FIRST_SENTENCE = re.compile(r".*?\.(?= |$)|.*")


def help_text(name: str, manual: str, declarations: Iterable[Declared]) -> str:
    """Return all the help of the command *name*: usage, *manual*, and the help of each option, shared ones last."""
    # Typer fills paragraphs, but for those behind a \b
    paragraphs = ("\b\n" + p if re.search(r"^ ", p, re.MULTILINE) else p for p in manual.split("\n\n"))
    return _render_help(name, "\n\n".join(paragraphs), sorted(declarations, key=lambda option: option.shared))


def short_help_text(name: str, manual: str, declarations: Iterable[Declared]) -> str:
    """Return help for two screens: usage, summary, the first sentence about each option, and the first two examples.

    Shared options are only named, except the output: they are the same in all commands; the options of `About` are left
    out. *manual*: begins with the summary; examples come after the line "Examples:".
    """
    explained: list[Declared] = []
    shared: list[Declared] = []
    for option in sorted(declarations, key=lambda option: option.shared):
        is_explained = not option.shared or not option.names or "--output" in option.names
        (explained if is_explained else shared).append(option)
    examples = re.split(r"^  (?=\S)", manual.partition("\nExamples:\n")[2], flags=re.MULTILINE)[1 : SHORT_EXAMPLES + 1]
    named = ", ".join(" ".join(option.names) for option in shared if option.name not in type_hints(About))
    also = textwrap.fill(f"Also, as in other commands: {named}.", FILLED_COLUMNS, break_on_hyphens=False)
    about = f"{name} --help says more." if " " in name else f"{name} --help and tartools man {name} explain everything."
    remaining = f"{also}\n{about}" if named else about
    epilog = "\b\nExamples:\n" + "".join(f"  {example.rstrip()}\n" for example in examples) + f"\n\b\n{remaining}"
    return _render_help(name, manual.partition("\n")[0], explained, epilog, is_short=True)


def _render_help(
    name: str, text: str, declarations: Iterable[Declared], epilog: str | None = None, is_short: bool = False
) -> str:
    """Return the help of the command *name* as Typer prints it: usage, *text*, arguments and options, *epilog*.

    *is_short*: only the first sentence about each option, and no --help. An argument `[-- WORD...]` is only in the
    usage.
    """

    def nothing(**_: Any) -> None: ...

    declarations = list(declarations)
    listed = [option for option in declarations if option.name != "help" and not option.option.behind]
    parameters = [_parameter(option, is_short) for option in listed]
    nothing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    nothing.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    application = typer.Typer(add_completion=False, rich_markup_mode=None)
    usage = [option.metavar for option in declarations if option.option.behind]
    settings = {"help_option_names": [] if is_short else ["--help"], "obj": usage}
    application.command(name, cls=_Application, help=text, epilog=epilog, context_settings=settings)(nothing)
    command = typer.main.get_command(application)
    return command.get_help(command.make_context(name, [], resilient_parsing=True))


def _parameter(option: Declared, is_short: bool) -> inspect.Parameter:
    """Return the parameter of a Python function that declares *option* to Typer.

    *is_short*: with only the first sentence of its help.
    """
    declaration: Any
    text = FIRST_SENTENCE.match(option.option.help)[0] if is_short else option.help  # type: ignore[index]
    if option.names:
        metavar = None if option.is_flag else option.metavar
        declaration = typer.Option(*option.names, help=text, metavar=metavar, show_default=False)
    else:
        declaration = typer.Argument(help=text, metavar=option.metavar)
    kind: Any = bool if option.is_flag else list[str] | None if option.repeats else str | None
    default = inspect.Parameter.empty if option.default is REQUIRED else False if option.is_flag else None
    annotation = Annotated[kind, declaration]
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


class _Application(TyperCommand):
    """A Typer command whose usage line ends with the words in the context's `obj`, such as `[-- COMMAND...]`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), *ctx.obj]
