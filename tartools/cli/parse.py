"""The ordinary command line, parsed from the declarations without Typer.

Whatever is not ordinary (an unknown option, `--help`, a bad or missing value, an option given twice) is not judged: it
goes to Typer, so that errors and help have one voice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tartools.cli.declare import REQUIRED, Declared


def parse(arguments: Sequence[str], every: Iterable[Declared], *, interspersed: bool = True) -> dict[str, Any] | None:
    """Return the values that *arguments* give to the options of a command, by name; None if Typer is to look at them.

    *every* are the options and arguments of the command. Options that are not given are left out. Unless
    *interspersed*, what follows the first argument is an argument too.
    """
    every = list(every)
    arguments, behind = apart(arguments, every)
    every = [one for one in every if not one.option.behind]
    named = {name: one for one in every for name in (*one.names, *one.option.aliases)}
    try:
        given, words = _options(arguments, named, interspersed)
        _environment(given, every)
        _arguments(given, words, [one for one in every if not one.names])
    except ValueError:
        return None
    if not given.get("version") and any(one.default is REQUIRED and one.name not in given for one in every):
        return None
    return given | behind


def apart(arguments: Sequence[str], every: Iterable[Declared]) -> tuple[Sequence[str], dict[str, Any]]:
    """Return *arguments* before the first `--`, and the value of that of *every* which takes the words behind it.

    If none does, or there is no `--`, these are all *arguments*, and no value.
    """
    for one in every:
        if one.option.behind and "--" in arguments:
            at = list(arguments).index("--")
            return arguments[:at], {one.name: list(arguments[at + 1 :])}
    return arguments, {}


def respelled(arguments: Sequence[str], every: Iterable[Declared]) -> list[str]:
    """Return *arguments* with the options of *every* that have aliases under their own names."""
    own = {alias: one.names[-1] for one in every for alias in one.option.aliases}
    found: list[str] = []
    for at, word in enumerate(arguments):
        if word == "--":
            return [*found, *arguments[at:]]
        name, equals, value = word.partition("=")
        found.append(own.get(name, name) + equals + value)
    return found


def _options(
    arguments: Sequence[str], named: Mapping[str, Declared], interspersed: bool
) -> tuple[dict[str, Any], list[str]]:
    given: dict[str, Any] = {}
    words: list[str] = []
    waiting = list(reversed(arguments))
    while waiting:
        word = waiting.pop()
        if word == "--":
            break
        if word[:1] != "-" or word == "-":
            words.append(word)
            if not interspersed:
                break
        elif word[:2] == "--":
            name, equals, text = word.partition("=")
            if equals:
                waiting.append(text)
            _take(given, named, name, waiting, attached=equals != "")
        else:
            for at, letter in enumerate(word[1:], 2):
                rest = word[at:]
                if not _is_flag(named, f"-{letter}") and rest:
                    waiting.append(rest)
                    rest = ""
                _take(given, named, f"-{letter}", waiting)
                if not rest:
                    break
    return given, words + waiting[::-1]


def _is_flag(named: Mapping[str, Declared], name: str) -> bool:
    if name not in named:
        raise ValueError
    return named[name].flag


def _take(
    given: dict[str, Any], named: Mapping[str, Declared], name: str, waiting: list[str], attached: bool = False
) -> None:
    """Add the value of the option *name* to *given*: of a flag True, of others the next of the *waiting* words."""
    if _is_flag(named, name):
        if attached:
            raise ValueError
        value: Any = True
    elif waiting:
        value = named[name].value(waiting.pop())
    else:
        raise ValueError
    one = named[name]
    if one.name not in given:
        given[one.name] = [value] if one.repeats else value
    elif one.repeats:
        given[one.name].append(value)
    else:
        raise ValueError


def _environment(given: dict[str, Any], every: Iterable[Declared]) -> None:
    """Add the flags that environment variables set."""
    for one in every:
        text = os.environ.get(one.option.envvar) if one.option.envvar and one.name not in given else None
        if text == "1":
            given[one.name] = True
        elif text:
            raise ValueError


def _arguments(given: dict[str, Any], words: list[str], places: Sequence[Declared]) -> None:
    """Add the *words* that are no options: all to an argument that repeats, at most one to another."""
    if not words:
        return
    if not places or (len(words) > 1 and not places[0].repeats):
        raise ValueError
    given[places[0].name] = words if places[0].repeats else words[0]
