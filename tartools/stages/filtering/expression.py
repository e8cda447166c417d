"""Expressions over the fields of a sample: `int(cls) == 180`, `field('meta.json:width') > 500`.

simpleeval evaluates them, so that an expression of unknown origin does no harm: it allows no attribute that begins with
an underscore, no import and no assignment, and limits powers and lengths. Regular expressions are bounded in time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from tartools.errors import SampleError, TarToolsError, UsageError
from tartools.samples.sample import Sample
from tartools.samples.values import Column, field_list, lookup, parse_column
from tartools.tar import Member

ASKS = ("field", "has", "size", "width", "height")  # functions that take the name of a field
PATIENCE = 1.0  # seconds of the processor for one match

Ask = tuple[str, str]  # what an expression asks of a sample: one of ASKS, and the name it is given
Described = Callable[[Member], tuple[Any, ...]]  # width and height of a picture, ..., and last what is wrong with it


class _AbsentError(Exception):
    """The sample lacks a value that the expression uses, which has this name."""


class SlowError(SampleError):
    """A regular expression takes too long."""


class Expression:
    """An expression that selects samples.

    A name is the text of that field; `key` is the key. `field('meta.json')` is a field whose name is not a Python name,
    `field('meta.json:size.0')` a value inside JSON, `has('txt')` whether the sample has a field, `size('jpg')` the
    bytes of its payload, `width('jpg')` and `height('jpg')` what its header says, as *described* finds it,
    `match('^n0', cls)` whether a regular expression matches anywhere in a text. The other functions are int, float,
    str, len, abs, min, max, round.

    *asks* are what it asks of a sample; None if the names are not all written out. *unseen* are the fields that it has
    used and no sample had, *seen* the fields that samples had instead.

    Raises: UsageError on construction if the text is not an expression, or uses what expressions may not.
    """

    def __init__(self, text: str, *, verbatim: bool = False, described: Described | None = None) -> None:
        import simpleeval  # type: ignore[import-untyped]

        functions: dict[str, Any] = {f.__name__: f for f in (int, float, str, len, abs, min, max, round)}
        functions |= {"field": self.__getitem__, "has": self._has, "size": self._size, "match": self._match}
        functions |= {"width": self._width, "height": self._height}
        self._text = text
        self._verbatim = verbatim
        self._described = described
        self._evaluator: Any = simpleeval.EvalWithCompoundTypes(functions=functions, names=self)
        self._node = _parsed(text, self._evaluator)
        self.asks = _asks(self._node)
        self._known: Mapping[Ask, Any] = {}
        self._read: Callable[[], Sample] = lambda: Sample(b"")
        self._index = 0
        self._columns: dict[str, Column] = {}
        self._patterns: dict[str, Any] = {}
        for pattern in _patterns(self._node):
            self._compiled(pattern)
        self.unseen: dict[str, None] = {}
        self.seen: dict[str, None] = {}
        self._found: set[str] = set()

    def matches(self, sample: Sample, index: int = 0) -> bool:
        """Return whether the expression is true for *sample*, number *index*; False if it lacks a field that is used.

        Raises: SampleError, naming the sample, if the expression fails on its values.
        """
        try:
            return self._evaluated(lambda: sample, index, {})
        except _AbsentError:
            return False

    def value(self, read: Callable[[], Sample], index: int, known: Mapping[Ask, Any], *, lenient: bool = False) -> bool:
        """Return whether the expression is true for the sample that *read* returns, number *index*.

        *known* has answers: they are not looked for in the sample; None is an answer too, for what it lacks. With
        *lenient* it is false if it fails on a sample, but not if a regular expression takes too long: whether one does
        depends on the machine.

        Raises: SampleError, naming the sample; what *read* raises.
        """
        try:
            return self._evaluated(read, index, known, lenient)
        except _AbsentError as absent:
            if lenient:
                return False
            sample = read()
            raise SampleError(
                f"sample {sample.key!r} has no {str(absent)!r}; its fields are: {field_list(sample.fields)}",
                url=sample.shard,
            ) from None
        except SampleError as error:
            if lenient and not isinstance(error, SlowError):
                return False
            raise

    def _evaluated(
        self, read: Callable[[], Sample], index: int, known: Mapping[Ask, Any], lenient: bool = False
    ) -> bool:
        self._read, self._index, self._known = read, index, known
        try:
            return bool(self._evaluator.eval(self._text, self._node))
        except (TarToolsError, _AbsentError):
            raise
        except Exception as error:  # a user's expression can raise anything
            if lenient:
                return False
            sample = read()
            raise SampleError(f"sample {sample.key!r}: {self._text}: {error}", url=sample.shard) from error

    def lookup(self, name: str) -> tuple[Any] | None:
        """Return the value of the column *name* of the current sample, in a tuple; None if it has none."""
        if ("field", name) in self._known:
            value = self._known["field", name]
            found = None if value is None else (value,)
        else:
            column = self._columns.get(name) or self._columns.setdefault(name, parse_column(name))
            found = lookup(self._read(), column, self._index, verbatim=self._verbatim)
        if name not in self._found:
            self._note(name, found is not None)
        return found

    def _note(self, name: str, found: bool) -> None:
        """Remember whether any sample had *name*."""
        if name not in self._found:
            if found:
                self._found.add(name)
                self.unseen.pop(name, None)
            elif not self._known:
                self.unseen[name] = None
                self.seen.update(dict.fromkeys(self._read().fields))

    def __getitem__(self, name: str) -> Any:  # how simpleeval looks up the names of an expression
        found = self.lookup("__key__" if name == "key" else name)
        if found is None:
            raise _AbsentError(name)
        return found[0]

    def _field(self, name: str) -> Any:
        found = self.lookup(name)
        if found is None:
            raise _AbsentError(name)
        return found[0]

    def _has(self, name: str) -> bool:
        if ("has", name) in self._known:
            return bool(self._known["has", name])
        if parse_column(name).path or name.startswith("__"):
            return self.lookup(name) is not None
        found = any(self._read().member(each, verbatim=self._verbatim) for each in parse_column(name).choices)
        self._note(name, found)
        return found

    def _member(self, name: str) -> Member:
        member = self._read().member(name, verbatim=self._verbatim)
        self._note(name, member is not None)
        if member is None:
            raise _AbsentError(name)
        return member

    def _size(self, name: str) -> int:
        if ("size", name) not in self._known:
            return self._member(name).size
        known = self._known["size", name]
        if known is None:
            raise _AbsentError(name)
        return int(known)

    def _width(self, name: str) -> int:
        return self._side("width", name, 0)

    def _height(self, name: str) -> int:
        return self._side("height", name, 1)

    def _side(self, side: str, name: str, number: int) -> int:
        known = self._known.get((side, name))
        if known is not None:
            return int(known)
        member = self._member(name)
        assert self._described is not None
        found = self._described(member)
        if found[number] is None:
            raise ValueError(f"{side}({name!r}): {found[-1] or 'no picture'}")
        return int(found[number])

    def _match(self, pattern: str, text: str) -> bool:
        try:
            return self._compiled(pattern).search(text, timeout=PATIENCE) is not None
        except TimeoutError:
            sample = self._read()
            raise SlowError(
                f"sample {sample.key!r}: {pattern!r} takes over {PATIENCE:g} s: avoid repeats in repeats",
                url=sample.shard,
            ) from None

    def _compiled(self, pattern: str) -> Any:
        """Return *pattern* compiled. Raises: UsageError if it is no regular expression."""
        if pattern not in self._patterns:
            import regex  # re has no limit of time

            try:
                self._patterns[pattern] = regex.compile(pattern)
            except (regex.error, RecursionError) as error:
                raise UsageError(f"not a regular expression: {pattern!r}: {error}") from None
        return self._patterns[pattern]


def _parsed(text: str, evaluator: Any) -> ast.stmt:
    """Return the syntax tree of *text*. Raises: UsageError if *evaluator* cannot evaluate it."""
    try:
        node = ast.parse(text.strip(), mode="exec").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(f"not an expression: {text!r}: {error}") from None
    if len(node) != 1 or not isinstance(node[0], ast.Expr):
        raise UsageError(f"not an expression: {text!r} (to compare, write ==)")
    for part in ast.walk(node[0].value):
        if isinstance(part, ast.expr) and type(part) not in evaluator.nodes:
            raise UsageError(f"{type(part).__name__} is not allowed in an expression: {text!r}")
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id not in evaluator.functions:
            raise UsageError(f"unknown function {part.func.id!r}; the functions are: {' '.join(evaluator.functions)}")
    return node[0]


def _calls(node: ast.stmt) -> list[tuple[str, list[ast.expr]]]:
    """Return the functions that *node* calls, each with its arguments."""
    calls = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return [(call.func.id, call.args) for call in calls if isinstance(call.func, ast.Name)]


def _asks(node: ast.stmt) -> list[Ask] | None:
    """Return what *node* asks of a sample; None if a name is computed."""
    calls = _calls(node)
    called = {name for name, _ in calls}
    names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} - called
    found = [("field", "__key__" if name == "key" else name) for name in sorted(names)]
    for function, arguments in calls:
        if function in ASKS:
            if len(arguments) != 1 or not isinstance(arguments[0], ast.Constant):
                return None
            found.append((function, str(arguments[0].value)))
    return list(dict.fromkeys(found))


def _patterns(node: ast.stmt) -> list[str]:
    """Return the regular expressions that *node* has written out."""
    first = [arguments[0] for name, arguments in _calls(node) if name == "match" and arguments]
    return [part.value for part in first if isinstance(part, ast.Constant) and isinstance(part.value, str)]
