"""The parser of command lines, made from the declarations; it says what is wrong in the words of Typer.

Typer itself takes longer to import than most runs take; it prints help (`typer_app`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tartools.cli.declare import REQUIRED, Declared

ALIKE = 0.7  # of 1, at which two names are the same
ON, OFF = {"1", "on", "t", "true", "y", "yes"}, {"", "0", "f", "false", "n", "no", "off"}  # environment variables


class UnknownOptionError(ValueError):
    """There is no such option. *word* is the argument, if it has several letters of options."""

    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.word = word


def parse(arguments: Sequence[str], every: Iterable[Declared], *, interspersed: bool = True) -> dict[str, Any]:
    """Return the values that *arguments* give to the options of a command, by name; of `--help` or `--version` only it.

    *every* are the options and arguments of the command. Options that are not given are left out. Unless
    *interspersed*, what follows the first argument is an argument too. Raises: ValueError with what is wrong.
    """
    every = list(every)
    given: dict[str, Any] = {}
    behind = next((one for one in every if one.option.behind and "--" in arguments), None)
    if behind:
        at = list(arguments).index("--")
        given[behind.name] = list(arguments[at + 1 :])
        arguments = arguments[:at]
    named = {name: one for one in every for name in (*one.names, *one.option.aliases)}
    try:
        found, words = _taken_apart(arguments, named, interspersed)
    except UnknownOptionError as error:
        if len(error.word) > len("-r") and any(one.option.behind for one in every):
            what = f"No such option: {error.word} (a COMMAND with options stands behind --, or in quotes behind -c)"
            raise ValueError(what) from None
        raise
    options = [one for one, _ in found]
    if twice := next((one for one in options if not one.repeats and options.count(one) > 1), None):
        raise ValueError(f"Invalid value: {'/'.join(twice.names)} is given twice")
    if about := next((one.name for one in options if one.name in ("help", "version")), ""):
        return {about: True}  # whatever else is missing
    for one, text in found:
        value = True if one.flag else _judged(one, text)
        if one.repeats:
            given.setdefault(one.name, []).append(value)
        else:
            given[one.name] = value
    place = next((one for one in every if not one.names and not one.option.behind), None)
    most = 0 if place is None else len(words) if place.repeats else 1
    if place and words:
        given[place.name] = words if place.repeats else words[0]
    for one in every:
        if one.default is REQUIRED and one.name not in given:
            raise ValueError(f"Missing option {_spelled(one)}." if one.names else f"Missing argument {one.metavar!r}.")
    given |= {one.name: True for one in every if one.option.envvar and one.name not in given and _is_set(one)}
    if beyond := words[most:]:
        raise ValueError(f"Got unexpected extra argument(s) ({' '.join(beyond)})")
    return given


def _taken_apart(
    arguments: Sequence[str], named: Mapping[str, Declared], interspersed: bool
) -> tuple[list[tuple[Declared, str]], list[str]]:
    """Return the options in *arguments*, each with the text of its value, and the other words."""
    found: list[tuple[Declared, str]] = []
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
            one = _known(named, name)
            if one.flag and equals:
                raise ValueError(f"Option {_own(one, name)!r} does not take a value.")
            found.append((one, text if one.flag or equals else _following(one, name, waiting)))
        else:
            for at, letter in enumerate(word[1:], 2):
                one = _known(named, f"-{letter}", word)
                found.append((one, "" if one.flag else word[at:] or _following(one, f"-{letter}", waiting)))
                if not one.flag:
                    break
    return found, words + waiting[::-1]


def _known(named: Mapping[str, Declared], name: str, word: str = "") -> Declared:
    """Return the option *name*, one letter of *word* if that is given. Raises: UnknownOptionError."""
    if name in named:
        return named[name]
    possible = near(name, [each for each, one in named.items() if each in one.names])
    if name == "-n" and "--count" in named:  # head and tail call it so
        possible = [_spelling(named["--count"])]
    what = f"No such option: {name}" + (f" (Possible options: {', '.join(possible)})" if possible else "")
    raise UnknownOptionError(what, word)


def _spelling(one: Declared) -> str:
    """Return the names of the option *one*, as help shows them.

    >>> from tartools.commands import load
    >>> _spelling(next(one for one in load("tarcat").parameters.values() if "--count" in one.names))
    '-c --count'
    """
    return " ".join(one.names)


def _following(one: Declared, name: str, waiting: list[str]) -> str:
    """Return the next of the *waiting* words as the value of the option *one*."""
    if not waiting:
        raise ValueError(f"Option {_own(one, name)!r} requires an argument.")
    return waiting.pop()


def _own(one: Declared, name: str) -> str:
    """Return *name*; in place of an alias that of the option."""
    return name if name in one.names else one.names[-1]


def _spelled(one: Declared) -> str:
    return " / ".join(map(repr, one.names))


def _judged(one: Declared, text: str) -> Any:
    try:
        return one.value(text)
    except ValueError as error:
        raise ValueError(f"Invalid value for {_spelled(one)}: {error}") from None


def _is_set(one: Declared) -> bool:
    """Tell whether the environment variable of the flag *one* sets it."""
    text = os.environ.get(one.option.envvar, "").strip()
    if text.lower() not in ON | OFF:
        known = ", ".join(sorted(ON | OFF))
        raise ValueError(
            f"Invalid value for {_spelled(one)}: {text!r} is not a valid boolean. Recognized values: {known}"
        )
    return text.lower() in ON


def near(name: str, options: Iterable[str]) -> list[str]:
    """Return those of *options* that may have been meant by *name*, sorted: a letter or the end is missing or wrong.

    Of one letter there are too many alike.

    >>> near("--ratio", ["--version", "--verbatim"]), near("--coun", ["--count"]), near("--file", ["--files-from"])
    ([], ['--count'], ['--files-from'])
    """
    from difflib import SequenceMatcher

    if len(name) <= len("--"):
        return []
    return sorted(
        option
        for option in options
        if len(option) > len("-c")
        and (option.startswith(name) or SequenceMatcher(None, name[2:], option[2:]).ratio() >= ALIKE)
    )
