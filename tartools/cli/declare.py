"""Light declarations of options, which annotate the parameters of a command's function.

    Count = Annotated[int | None, Option("-c --count N", "Stop after N samples.", minimum=0)]

declares an option as a type: of a parameter of a command's function, or of an attribute of a `Group`. Its default is
the parameter's. Command lines are parsed from these alone (`parse`); help is printed by Typer, which takes longer to
import than most runs take (`typer_app`).

Modules that declare options do not import `annotations` from `__future__`: their annotations are values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Annotated, Any, Literal, dataclass_transform, get_origin, get_type_hints

REQUIRED = ...  # the default of an option that has none
MAX_OPTION_DIGITS = 30  # digits


class Option:
    """The declaration of an option or argument: `Option("-c --count N", "Stop after N samples.", minimum=0)`.

    Attributes:
      names: the words of *spelling* that begin with a hyphen; () for an argument.
      metavar: the other words of *spelling*: the placeholder of the value.
      help: its sentence in the help.
      minimum: least value of a number, or None; not checked if there is a *parser*.
      parser: makes the value from the text, and raises ValueError with the reason if it can't; None: the type says how.
      envvar: environment variable that sets a flag if it is 1 or another word for true.
      default: text about the default in the help, where the default value itself does not say it.
      aliases: other names (in the parameter with blanks between them) that are accepted, but not shown in any help:
        those of older tools.
      behind: True for an argument spelled `[-- WORD...]`, which takes all words after `--`, unchanged.
    """

    def __init__(
        self,
        spelling: str,
        help: str,
        *,
        minimum: float | None = None,
        parser: Callable[[str], Any] | None = None,
        envvar: str = "",
        default: str = "",
        aliases: str = "",
    ) -> None:
        words = spelling.split()
        self.names = tuple(word for word in words if word.startswith("-"))
        self.metavar = " ".join(words[len(self.names) :])
        self.help = help
        self.minimum = minimum
        self.parser = parser
        self.envvar = envvar
        self.default = default
        self.aliases = aliases.split()
        self.behind = spelling.startswith("[--")


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Group:
    """Options that belong together: each annotated attribute is an option, its value in the class the default.

    An option without a value in the class is required. Subclass it, and annotate a parameter of a command's function
    with the subclass. The function then gets an instance, which has the values given on a command line; for other
    options it has the default of the class. *shared*: marks groups that many commands have: help and man pages list
    their options last; each subclass says it anew. Instances with equal values are equal; none is hashable.
    """

    shared = False

    def __init_subclass__(cls, shared: bool = False) -> None:
        cls.shared = shared

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, n) == getattr(other, n) for n in type_hints(type(self)))

    def __hash__(self) -> int:
        raise TypeError("options are not hashable")


class Declared:
    """An option or argument of one command. Properties are computed on access: a run needs few of them.

    Attributes:
      name: name of the parameter or attribute in Python.
      option: its `Option` declaration.
      type: its annotated type, such as `int | None`.
      default: its default; REQUIRED if it has none.
      shared: True if it belongs to a shared `Group`.
    """

    __slots__ = ("default", "name", "option", "shared", "type")

    def __init__(self, name: str, hint: Any, default: Any, shared: bool) -> None:
        self.name = name
        self.option: Option = hint.__metadata__[0]
        self.type: Any = hint.__origin__
        self.default = default
        self.shared = shared

    @property
    def names(self) -> tuple[str, ...]:
        """Its names on the command line, such as ("-c", "--count"); () for an argument."""
        return self.option.names

    @property
    def is_flag(self) -> bool:
        """True if it takes no value: its type is bool."""
        return self.type is bool

    @property
    def kind(self) -> Any:
        """The type of a value, without None: a class, `list[str]` or a Literal."""
        types = getattr(self.type, "__args__", ()) if get_origin(self.type) not in (list, Literal) else ()
        return next((member for member in types if member is not NoneType), self.type)

    @property
    def repeats(self) -> bool:
        """True if it may be given several times; the values then make a list."""
        return get_origin(self.kind) is list

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that are allowed as its value, if the type is a Literal; () if there is no such limit."""
        return tuple(self.kind.__args__) if get_origin(self.kind) is Literal else ()

    def value(self, text: str) -> Any:
        """Convert *text* from the command line to the value of the option, or to one of them if it repeats.

        The parser of the `Option` makes it, if there is one, and alone checks it; else the type: an int, a float, or
        *text* as it is. Not for a flag. Raises: ValueError with the reason: the parser refuses it, it is no number,
        below the minimum, or none of the choices.
        """
        option, kind = self.option, self.kind
        if option.parser:
            return option.parser(text)
        if kind is int or kind is float:
            parsed = whole_number(text) if kind is int else finite_number(text)
            if option.minimum is not None and parsed < option.minimum:
                raise ValueError(f"{text} is less than {option.minimum:g}")
            return parsed
        if self.choices and text not in self.choices:
            raise ValueError(f"{text!r} is not one of {', '.join(self.choices)}")
        return text

    @property
    def metavar(self) -> str:
        """The placeholder of its value in help: of its `Option`, else its choices, as "a|b", else its name in capitals.

        "" for a flag.
        """
        return "" if self.is_flag else self.option.metavar or "|".join(self.choices) or self.name.upper()

    @property
    def help(self) -> str:
        """Its sentence in the help, followed by the minimum, the default and the environment variable, if any."""
        return " ".join((self.option.help, *self._remarks()))

    def _remarks(self) -> Iterator[str]:
        """Yield the sentences that follow the help: about the minimum, the default and the environment variable.

        Such as "At least 1.", "Default: 256M.", "Environment: TARTOOLS_FORCE."; nothing about one that the option does
        not have, a minimum of 0, and, unless the `Option` has a text for it, the default of a flag, None and "".
        """
        if self.option.minimum:
            yield f"At least {self.option.minimum:g}."
        if self.option.default:
            yield f"Default: {self.option.default}."
        elif not self.is_flag and self.default not in (None, "", REQUIRED):
            yield f"Default: {self.default}."
        if self.option.envvar:
            yield f"Environment: {self.option.envvar}."


def type_hints(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function or an option class as types, by name.

    A class has the annotations of its bases too, before its own. The result of a function has the name "return".
    `Annotated` stays. Raises: NameError if an annotation is a string with a name that does not exist.
    """
    annotations: dict[str, Any] = {}
    for base in reversed(getattr(owner, "__mro__", (owner,))):
        annotations |= getattr(base, "__annotations__", {})  # of a class, its own
    if any(isinstance(hint, str) for hint in annotations.values()):
        return get_type_hints(owner, include_extras=True)
    return annotations


def is_group(hint: Any) -> bool:
    """True if *hint* is a class of options (`Group`)."""
    return isinstance(hint, type) and issubclass(hint, Group)


def is_option(hint: Any) -> bool:
    """True if *hint* declares an option: `Annotated[type, Option(...)]`."""
    return get_origin(hint) is Annotated and isinstance(hint.__metadata__[0], Option)


def declarations_of(hint: Any, name: str, default: Any) -> Iterator[Declared]:
    """Yield the declaration of the parameter *name* with annotation *hint*, or of each option if *hint* is a group.

    *default*: default of the parameter; options of a group have theirs in the class.
    """
    if is_group(hint):
        for option, inner in type_hints(hint).items():
            yield Declared(option, inner, getattr(hint, option, REQUIRED), hint.shared)
    else:
        yield Declared(name, hint, default, False)


# ---- from words on a command line to values: each raises ValueError with its reason ----


def whole_number(text: str) -> int:
    """Convert *text* to an int, as `int` does; `1e3` is a whole number too. Raises: ValueError for any other text.

    A number with an exponent or a point is below 10**30 (MAX_OPTION_DIGITS).

    >>> whole_number("12"), whole_number("1e3"), whole_number("2.5e1")
    (12, 1000, 25)
    """
    try:
        return int(text)
    except ValueError:
        pass
    from decimal import Decimal, InvalidOperation

    try:
        number = Decimal(text)
        if number.is_finite() and number.adjusted() < MAX_OPTION_DIGITS and number == number.to_integral_value():
            return int(number)
    except InvalidOperation:
        pass
    raise ValueError(f"not a whole number: {text!r}")


def finite_number(text: str) -> float:
    """Convert *text* to a float, as `float` does. Raises: ValueError if it is no number, infinite or NaN."""
    try:
        parsed = float(text)
    except ValueError:
        parsed = math.nan
    if not math.isfinite(parsed):
        raise ValueError(f"not a number: {text!r}")
    return parsed


def sample_slice(text: str) -> slice:
    """Convert `lo:hi` or `lo:hi:step` to a slice, as in Python but without negative numbers; each may be left out.

    So "5:" is slice(5, None), "::2" is slice(None, None, 2). Raises: ValueError for any other text, and for step 0.
    """
    numbers = text.split(":")
    if len(numbers) in (2, 3) and all(n == "" or (n.isascii() and n.isdigit()) for n in numbers):
        bounds = [int(n) if n else None for n in numbers]
        if len(bounds) == 2 or bounds[2] != 0:
            return slice(*bounds)
    raise ValueError(f"not a slice: {text!r}; write lo:hi or lo:hi:step, without negatives")
