"""The parser of command lines, made from the declarations; its error messages are Typer's.

Typer itself takes longer to import than most runs take; it prints help (`typer_app`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tartools.cli.declare import REQUIRED, Declared

# letter -> the long options that it stands for in our commands; several only for letters of the package tarproc
LETTERS = {
    "-0": ("--null",),
    "-C": ("--directory",),
    "-M": ("--memory",),
    "-S": ("--select", "--sort-type", "--subdirs"),
    "-T": ("--files-from",),
    "-c": ("--count", "--command"),
    "-e": ("--errors",),
    "-f": ("--fields",),
    "-i": ("--interactive",),
    "-j": ("--parallel",),
    "-k": ("--key",),
    "-l": ("--long",),
    "-n": ("--samples",),
    "-o": ("--output",),
    "-p": ("--parallel",),
    "-q": ("--quiet",),
    "-r": ("--reverse",),
    "-s": ("--sort-key", "--size", "--script"),
    "-u": ("--unique",),
    "-v": ("--verbose",),
    "-x": ("--exclude",),
    "-z": ("--gzip",),
}
# letter -> options that people mean by it, the best one first: it has such a meaning in head, sort, split, make, grep,
# xargs or tar, or in other commands of ours
LETTERS_ELSEWHERE = {
    "-P": ("--parallel",),
    "-R": ("--sort-type",),
    "-V": ("--version",),
    "-b": ("--size",),
    "-e": ("--select",),
    "-f": ("--equal", "--classes"),
    "-i": ("--index",),
    "-k": ("--sort-key", "--key-column"),
    "-l": ("--samples",),
    "-n": ("--count", "--sort-type", "--dry-run"),
    "-o": ("--html",),
    "-p": ("--workers",),
    "-s": ("--spec",),
    "-u": ("--drop-duplicates", "--update"),
    "-x": ("--exclude-files",),
}
MIN_SIMILARITY = 0.7  # of 1: equal names
# values of environment variables
TRUE_WORDS, FALSE_WORDS = {"1", "on", "t", "true", "y", "yes"}, {"", "0", "f", "false", "n", "no", "off"}


class UnknownOptionError(ValueError):
    """No option has this name. *message*: says so to the user.

    *word*: the argument that the name is in, if that has one-letter options, such as -xf; else "".
    """

    def __init__(self, message: str, word: str) -> None:
        super().__init__(message)
        self.word = word


def parse(arguments: Sequence[str], declarations: Iterable[Declared], *, interspersed: bool = True) -> dict[str, Any]:
    """Return the values that *arguments* give to the options of a command, by parameter name.

    With `-h`, `--help` or `--version`, return only the first one given, {"usage": True}, "help" or "version": wrong
    values, and missing or surplus arguments, are no errors then. *declarations*: the options and arguments of the
    command. `Declared.value` makes the values of options; an argument is the word itself; an option or argument that
    repeats has a list of them. A flag is True, also if its environment variable sets it. Options that are not given are
    left out. The words after the first `--` are the list of an argument spelled `[-- WORD...]`, if there is one. Unless
    *interspersed*, all words after the first argument are arguments too. Raises: ValueError with the message for the
    user: an unknown option, a wrong value or none, an option given twice that does not repeat, a required one that is
    missing, too many arguments.
    """
    declarations = list(declarations)
    values: dict[str, Any] = {}
    last_argument = next((option for option in declarations if option.option.behind and "--" in arguments), None)
    if last_argument:
        at = list(arguments).index("--")
        values[last_argument.name] = list(arguments[at + 1 :])
        arguments = arguments[:at]
    options_by_name = {name: option for option in declarations for name in (*option.names, *option.option.aliases)}
    try:
        occurrences, words = _split_arguments(arguments, options_by_name, interspersed)
    except UnknownOptionError as error:
        is_word = len(error.word) > len("-r") and not error.word[2:].isdigit()  # -resize, but not -n5
        if is_word and any(option.option.behind for option in declarations):
            what = f"No such option: {error.word} (write a COMMAND with options after --, or in quotes after -c)"
            raise ValueError(what) from None
        raise
    options = [option for option, _ in occurrences]
    if twice := next((option for option in options if not option.repeats and options.count(option) > 1), None):
        raise ValueError(f"Invalid value: {'/'.join(twice.names)} is given twice")
    if about := next((option.name for option in options if option.name in ("usage", "help", "version")), ""):
        return {about: True}  # even if a required option is missing
    for option, text in occurrences:
        value = True if option.is_flag else _parse_value(option, text)
        if option.repeats:
            values.setdefault(option.name, []).append(value)
        else:
            values[option.name] = value
    place = next((option for option in declarations if not option.names and not option.option.behind), None)
    max_words = 0 if place is None else len(words) if place.repeats else 1
    if place and words:
        values[place.name] = words if place.repeats else words[0]
    for option in declarations:
        if option.default is REQUIRED and option.name not in values:
            raise ValueError(
                f"Missing option {_quoted_names(option)}." if option.names else f"Missing argument {option.metavar!r}."
            )
    values |= {
        option.name: True
        for option in declarations
        if option.option.envvar and option.name not in values and _is_set(option)
    }
    if beyond := words[max_words:]:
        raise ValueError(f"Got unexpected extra argument(s) ({' '.join(beyond)})")
    return values


def _split_arguments(
    arguments: Sequence[str], options_by_name: Mapping[str, Declared], interspersed: bool
) -> tuple[list[tuple[Declared, str]], list[str]]:
    """Split *arguments* into (option, text of its value) pairs and the other words, both in order.

    *options_by_name*: option by each of its names and aliases. *interspersed*: False: all that follows the first other
    word, options and -- too, are other words. All words after -- are other words. The text of a flag is "". Raises:
    UnknownOptionError; ValueError if a value is missing, or given to a flag.
    """
    occurrences: list[tuple[Declared, str]] = []
    words: list[str] = []
    remaining = list(reversed(arguments))
    while remaining:
        word = remaining.pop()
        if word == "--":
            break
        if word[:1] != "-" or word == "-":
            words.append(word)
            if not interspersed:
                break
        elif word[:2] == "--":
            name, equals, text = word.partition("=")
            option = _find_option(options_by_name, name)
            if option.is_flag and equals:
                raise ValueError(f"Option {_name_for_message(option, name)!r} does not take a value.")
            occurrences.append((option, text if option.is_flag or equals else _take_value(option, name, remaining)))
        else:
            for at, letter in enumerate(word[1:], 2):
                option = _find_option(options_by_name, f"-{letter}", word)
                occurrences.append(
                    (option, "" if option.is_flag else word[at:] or _take_value(option, f"-{letter}", remaining))
                )
                if not option.is_flag:
                    break
    return occurrences, words + remaining[::-1]


def _find_option(options_by_name: Mapping[str, Declared], name: str, word: str = "") -> Declared:
    """Return the option called *name*. Raises: UnknownOptionError, with *word*, and the options that may be meant.

    *word*: the argument, if *name* is one of the letters in it.
    """
    if name in options_by_name:
        return options_by_name[name]
    if len(name) == len("-c"):
        raise UnknownOptionError(f"No such option: {name}{_letter_hint(options_by_name, name)}", word)
    possible = similar_names(
        name, [spelling for spelling, option in options_by_name.items() if spelling in option.names]
    )
    what = f"No such option: {name}" + (f" (Possible options: {', '.join(possible)})" if possible else "")
    raise UnknownOptionError(what, word)


def _letter_hint(options_by_name: Mapping[str, Declared], letter: str) -> str:
    """Return the end of the message that a command has no *letter*: the option that has its meaning here, or elsewhere.

    "" if no command has the letter, and none here has a meaning that it has in other programs.

    >>> from tartools.commands import load
    >>> options = {name: one for one in load("tarshow").parameters.values() for name in one.names}
    >>> _letter_hint(options, "-n"), _letter_hint(options, "-k"), _letter_hint(options, "-b")
    ('; here it is -c --count N', '; elsewhere it is --key, and there is no such option here', '')
    """
    ours = LETTERS.get(letter, ())
    for name in (*ours, *LETTERS_ELSEWHERE.get(letter, ())):
        if (option := options_by_name.get(name)) and name in option.names:  # no alias
            return f"; here it is {_spelling(option)}"
    return f"; elsewhere it is {' or '.join(ours)}, and there is no such option here" if ours else ""


def _spelling(option: Declared) -> str:
    """Return the names of *option* and its placeholder, separated by blanks, as help shows them.

    >>> from tartools.commands import load
    >>> _spelling(next(one for one in load("tarcat").parameters.values() if "--count" in one.names))
    '-c --count N'
    """
    return " ".join((*option.names, option.metavar)).rstrip()


def _take_value(option: Declared, name: str, remaining: list[str]) -> str:
    """Remove the next word from *remaining*, which is in reverse order, and return it as the value of *option*.

    Raises: ValueError if there is none; *name*: the option as it was typed.
    """
    if not remaining:
        raise ValueError(f"Option {_name_for_message(option, name)!r} requires an argument.")
    return remaining.pop()


def _name_for_message(option: Declared, name: str) -> str:
    """Return the name of *option* for a message: *name* as typed, or the last of its names if *name* is an alias."""
    return name if name in option.names else option.names[-1]


def _quoted_names(option: Declared) -> str:
    """Return the quoted names of *option* for a message, separated by slashes: "'-c' / '--count'"."""
    return " / ".join(map(repr, option.names))


def _parse_value(option: Declared, text: str) -> Any:
    """Return the value of *option* for *text*. Raises: ValueError whose message names the option."""
    try:
        return option.value(text)
    except ValueError as error:
        raise ValueError(f"Invalid value for {_quoted_names(option)}: {error}") from None


def _is_set(option: Declared) -> bool:
    """True if the environment variable of the flag *option* sets it: it is one of TRUE_WORDS, in any case.

    False if it is not set, or one of FALSE_WORDS. Blanks around the word are ignored. Raises: ValueError, whose message
    names the option, for any other word.
    """
    text = os.environ.get(option.option.envvar, "").strip()
    if text.lower() not in TRUE_WORDS | FALSE_WORDS:
        accepted = ", ".join(sorted(TRUE_WORDS | FALSE_WORDS))
        raise ValueError(
            f"Invalid value for {_quoted_names(option)}: {text!r} is not a valid boolean. Recognized values: {accepted}"
        )
    return text.lower() in TRUE_WORDS


def similar_names(name: str, options: Iterable[str]) -> list[str]:
    """Return the names in *options* that resemble *name*, sorted: a letter or the end is missing or wrong.

    That is, they begin with *name*, or `difflib` gives a ratio of 0.7 or more (MIN_SIMILARITY) for what follows the
    hyphens. Names have their hyphens, as "--count". Names of one letter are never similar: too many of them would be.

    >>> similar_names("--ratio", ["--version", "--verbatim"]), similar_names("--coun", ["--count"])
    ([], ['--count'])
    """
    from difflib import SequenceMatcher

    if len(name) <= len("--"):
        return []
    return sorted(
        option
        for option in options
        if len(option) > len("-c")
        and (option.startswith(name) or SequenceMatcher(None, name[2:], option[2:]).ratio() >= MIN_SIMILARITY)
    )
