"""Evaluate expressions of unknown origin so that they do no harm: no code of theirs runs, and each has limits.

Values are what JSON has. Nothing of an object can be reached but items and METHODS. What a step would make
is measured before it is made; what it reads is measured too, since a list can have one long list many times.
"""

from __future__ import annotations

import ast
import operator
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from numbers import Number
from typing import Any

from tartools.errors import SampleError, UsageError, several

STEPS = 100_000  # of one evaluation
MADE, READ, ITEMS = 100, 1000, 10  # characters that are made, characters that are read, items of lists: for one step
BITS = 1024  # of a whole number; floating point ends there too
DIGITS = 4300  # characters of a text that is read as a number, as in Python
METHODS: dict[type, tuple[str, ...]] = {
    str: (
        *("startswith", "endswith", "find", "count", "lower", "upper", "strip", "lstrip", "rstrip", "removeprefix"),
        *("removesuffix", "replace", "split", "isdigit", "isalpha", "isalnum", "isspace", "islower", "isupper"),
    ),
    dict: ("get", "keys", "values", "items"),
}

OPERATORS: dict[type, Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv},
    **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift},
    **{ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor},
    **{ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert},
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt},
    **{ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not},
    **{ast.In: lambda part, whole: part in whole, ast.NotIn: lambda part, whole: part not in whole},
}
WORDS = {ast.BitAnd: "; 'and' is for conditions", ast.BitOr: "; 'or' is for conditions"}


class LimitError(Exception):
    """An evaluation takes too many steps, or makes too large a number."""


class Evaluator:
    """Evaluates expressions.

    *value_of* returns the value of a name that is none of the expression's own, *functions* are what it may call
    besides int, float, str, len, abs, min, max, round and match; they `spend` what they cost.
    """

    def __init__(self, value_of: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions: dict[str, Callable[..., Any]] = {
            "int": self._int,
            "float": self._float,
            "str": self._str,
            "len": len,
            "abs": abs,
        }
        self.functions |= {each.__name__: partial(self._choosing, each) for each in (min, max)}
        self.functions |= {"round": self._round, **functions, "match": self._match}
        self._nodes: dict[type, Callable[[Any], Any]] = {
            **{ast.Constant: lambda node: node.value, ast.Name: self._name, ast.Attribute: self._item},
            ast.UnaryOp: lambda node: OPERATORS[type(node.op)](self._eval(node.operand)),
            **{ast.BinOp: self._binary, ast.BoolOp: self._condition, ast.Compare: self._comparison},
            ast.IfExp: lambda node: self._eval(node.body if self._eval(node.test) else node.orelse),
            **{ast.Call: self._call, ast.Subscript: self._subscript, ast.List: lambda node: [*self._all(node.elts)]},
            ast.Slice: lambda node: slice(*self._all([node.lower, node.upper, node.step])),
            **{
                ast.Tuple: lambda node: (*self._all(node.elts),),
                ast.ListComp: self._loop,
                ast.GeneratorExp: self._loop,
            },
        }
        self._value_of = value_of
        self._own: dict[str, Any] = {}  # names of loops
        self._left = STEPS
        self._patterns: dict[str, Any] = {}  # compiled
        self._matching = 0.0  # seconds of the processor

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of *node*, of `expression.parsed_expression`.

        Raises: LimitError; what functions and *value_of* raise; any exception, for values of the wrong kind.
        """
        self._left, self._own, self._matching = STEPS, {}, 0.0
        return self._eval(node)

    def spend(self, steps: int) -> None:
        """Count *steps*. Raises: LimitError if they are too many."""
        self._left -= steps
        if self._left < 0:
            raise LimitError(f"it takes more than {STEPS:,} steps")

    def read(self, value: Any) -> int:
        """Count that *value* is read, with all that is inside. Return the characters that it takes, written out."""
        if isinstance(value, (str, bytes)):
            self.spend(len(value) // READ)
            return len(value)
        if not isinstance(value, (list, tuple, dict)):
            return DIGITS
        size, waiting = 0, [value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, (list, tuple, dict)):
                self.spend(1 + len(part) // ITEMS)
                waiting.extend(part)
                if isinstance(part, dict):
                    waiting.extend(part.values())
            elif isinstance(part, (str, bytes)):
                self.spend(len(part) // READ)
                size += len(part)
            size += 20  # most numbers are shorter
        return size

    def _eval(self, node: ast.expr) -> Any:
        self._left -= 1
        if self._left < 0:
            self.spend(0)
        return self._nodes[type(node)](node)

    def _name(self, node: ast.Name) -> Any:
        return self._own[node.id] if node.id in self._own else self._value_of(node.id)

    def _item(self, node: ast.Attribute) -> Any:
        try:
            value = self._eval(node.value)
        except SampleError as error:
            if isinstance(node.value, ast.Name):
                error.message += f" (for a name with a dot write field({ast.unparse(node)!r}))"
            raise
        if not isinstance(value, dict):
            raise TypeError(f".{node.attr} is for what has names inside, and this is {_kind(value)}")
        return value[node.attr]

    def _all(self, nodes: Iterable[ast.expr | None]) -> Iterator[Any]:
        return (node and self._eval(node) for node in nodes)

    def _binary(self, node: ast.BinOp) -> Any:
        left, right, kind = self._eval(node.left), self._eval(node.right), type(node.op)
        if isinstance(left, int) and isinstance(right, int):
            _check_bits(kind, left, right)
        elif not (isinstance(left, Number) and isinstance(right, Number)):
            if kind is ast.Add and type(left) is type(right) and isinstance(left, (str, bytes, list, tuple)):
                self._make(left, len(left) + len(right))
            elif kind is ast.Mult and isinstance(left, (str, bytes, list, tuple)) and isinstance(right, int):
                self._make(left, len(left) * right)
            elif kind is ast.Mult and isinstance(right, (str, bytes, list, tuple)) and isinstance(left, int):
                self._make(right, len(right) * left)
            else:
                text, kinds = ast.unparse(node), f"{_kind(left)} and {_kind(right)}"
                raise TypeError(f"{text!r} needs numbers, and these are {kinds}{WORDS.get(kind, '')}")
        return OPERATORS[kind](left, right)

    def _make(self, like: Any, size: int) -> None:
        """Count that a text or list *like* this one is made, of *size* characters or items."""
        self.spend(max(size, 0) // (MADE if isinstance(like, (str, bytes)) else ITEMS))

    def _condition(self, node: ast.BoolOp) -> Any:
        value, wanted = None, isinstance(node.op, ast.And)
        for part in node.values:
            value = self._eval(part)
            if bool(value) is not wanted:
                break
        return value

    def _comparison(self, node: ast.Compare) -> Any:
        left, value = self._eval(node.left), True
        for kind, part in zip(map(type, node.ops), node.comparators, strict=True):
            right = self._eval(part)
            self.read(left)
            if not (isinstance(right, dict) and kind in (ast.In, ast.NotIn)):
                self.read(right)
            try:
                value = OPERATORS[kind](left, right)
            except TypeError:
                what = f"{ast.unparse(node)!r} compares {_kind(left)} with {_kind(right)}"
                raise TypeError(f"{what}; int() and float() make numbers of texts") from None
            if not value:
                break
            left = right
        return value

    def _subscript(self, node: ast.Subscript) -> Any:
        value, key = self._eval(node.value), self._eval(node.slice)
        if isinstance(key, slice) and isinstance(value, (str, bytes, list, tuple)):
            self._make(value, len(range(*key.indices(len(value)))))
        self.read(key)
        return value[key]

    def _loop(self, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
        found: list[Any] = []
        outer, self._own = self._own, dict(self._own)
        self._inner(node, 0, found)
        self._own = outer
        return found

    def _inner(self, node: ast.ListComp | ast.GeneratorExp, depth: int, found: list[Any]) -> None:
        loop = node.generators[depth]
        for item in self._eval(loop.iter):
            self.spend(1)
            if isinstance(loop.target, ast.Name):
                self._own[loop.target.id] = item
            else:
                self._own |= _unpacked(loop.target.elts, item)  # type: ignore[attr-defined]  # as was checked
            if all(map(self._eval, loop.ifs)):
                if depth + 1 < len(node.generators):
                    self._inner(node, depth + 1, found)
                else:
                    found.append(self._eval(node.elt))

    def _call(self, node: ast.Call) -> Any:
        arguments = [*self._all(node.args)]
        named = {str(part.arg): self._eval(part.value) for part in node.keywords}
        if isinstance(node.func, ast.Name):
            return self.functions[node.func.id](*arguments, **named)
        assert isinstance(node.func, ast.Attribute)
        value, name = self._eval(node.func.value), node.func.attr
        if name not in METHODS.get(type(value), ()):
            raise TypeError(f".{name}() is not for {_kind(value)}")
        for argument in (*arguments, *named.values()):
            self.read(argument)
        if isinstance(value, dict):
            self._make([], 0 if name == "get" else len(value))
            found = getattr(value, name)(*arguments, **named)
            return found if name == "get" else list(found)
        self.read(value)
        if name == "replace" and len(arguments) > 1:
            self._make(value, len(value) + value.count(arguments[0]) * len(arguments[1]))
        elif "strip" in name and arguments:
            self._make(value, len(value) * (1 + len(arguments[0] or "") // MADE))  # each is looked for in the other
        else:
            self._make([] if name == "split" else value, len(value))
        return getattr(value, name)(*arguments, **named)

    def _int(self, value: Any, *base: Any, **named: Any) -> int:
        return int(_short(value), *base, **named)

    def _float(self, value: Any) -> float:
        return float(_short(value))

    def _str(self, value: Any) -> str:
        if isinstance(value, (bytes, list, tuple, dict)):
            self._make("", 10 * self.read(value))  # an escape has 10 characters at most
        return str(value)

    def _choosing(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        self.read(values)
        return function(*values, **named)

    def _round(self, value: Any, digits: Any = None) -> Any:
        if isinstance(digits, int) and abs(digits) > BITS:
            raise LimitError(f"it rounds to {digits} digits")
        return round(value, digits)

    def _match(self, pattern: str, text: str) -> bool:
        """Tell whether *pattern* matches anywhere in *text*. Raises: UsageError; LimitError."""
        if not isinstance(pattern, str) or not isinstance(text, str):
            raise TypeError("match() takes a pattern and a text")
        compiled = self.compiled(pattern)
        self.spend(len(text) // READ)
        if len(text) * (1 + pattern.count("(")) > REMEMBERED:
            raise LimitError(f"a text of {several(len(text), 'character')} is too long for {pattern[:60]!r}")
        begin = time.process_time()
        left = PATIENCE - self._matching
        try:
            if left > 0:
                return compiled.search(text, timeout=left) is not None
        except TimeoutError:
            pass
        finally:
            self._matching += time.process_time() - begin
        raise LimitError(f"{pattern[:60]!r} takes over {PATIENCE:g} s: avoid repeats in repeats")

    def compiled(self, pattern: str) -> Any:
        """Return *pattern* compiled. Raises: UsageError if it is no regular expression, or exceeds a limit."""
        if pattern not in self._patterns:
            size = check_size(pattern)
            self.spend(200 + 5 * len(pattern) + size // 10)
            import regex  # re has no limit of time

            if len(self._patterns) == KEPT:
                self._patterns.clear()
            try:
                self._patterns[pattern] = regex.compile(pattern)
            except (regex.error, RecursionError) as error:
                raise UsageError(f"not a regular expression: {pattern[:200]!r}: {error}") from None
        return self._patterns[pattern]


def _check_bits(kind: type, left: int, right: int) -> None:
    """Raise LimitError if an operator of this *kind* would make too large a number of *left* and *right*."""
    bits = left.bit_length()
    if kind is ast.Mult:
        bits += right.bit_length()
    elif kind is ast.Pow:
        bits *= max(right, 1)
    elif kind is ast.LShift:
        bits += max(right, 0)
    if max(bits, right.bit_length() if kind is not ast.Pow else 0) > BITS:
        raise LimitError(f"it makes a whole number of more than {BITS:,} bits")


def _short(value: Any) -> Any:
    if isinstance(value, (str, bytes)) and len(value) > DIGITS:
        raise ValueError(f"a text of {several(len(value), 'character')} is not a number")
    return value


def _unpacked(names: list[Any], value: Any) -> dict[str, Any]:
    """Return the items of *value* by *names*, one each."""
    if not isinstance(value, (str, list, tuple)) or len(value) != len(names):
        raise ValueError(f"a loop has {several(len(names), 'name')} for {_kind(value)}")
    return {name.id: item for name, item in zip(names, value, strict=True)}


def _kind(value: Any) -> str:
    """Return what *value* is, for a message."""
    names = {str: "text", dict: "a JSON object", list: "a list", tuple: "a list", type(None): "nothing"}
    return names.get(type(value)) or ("a number" if isinstance(value, Number) else type(value).__name__)


# ---- regular expressions ----

PATIENCE = 1.0  # seconds of the processor for the matches of one evaluation
LONGEST = 10_000  # characters of a pattern
UNROLLED = 100_000  # the same, once each repeat with a number is written out
REMEMBERED = 2_000_000  # characters of a text times groups of its pattern; a match may take 60 bytes for each
KEPT = 100  # patterns

REPEAT = r"(?s)(?<=(.))\{\s*(\d*)\s*,?\s*(\d*)\s*\}"
REFUSED = (
    (r"\(\?[a-zA-Z0-9-]*x", "blanks and comments inside (?x)"),
    (r"\(\?(R|[+-]?\d|&|P>)", "a pattern inside itself"),
    (r"(?<!\\[pPN])\{[\d<=+, ]*[eids][<=,}:+\d ]", "approximate matching"),
)


def check_size(pattern: str) -> int:
    """Return about how long *pattern* is once its repeats are written out, which is at least as long as it will be.

    Raises: UsageError if that is too much, or it has what takes time or memory without a limit.

    >>> check_size("n0[12]"), check_size("[0-9a-f]{8}-[0-9a-f]{4}")
    (6, 35)
    """
    size = len(pattern)
    for found in re.finditer(REPEAT, pattern[:LONGEST]):
        most = max(int(number[:9] or 0) for number in (found[2], found[3]))
        # what follows a group, or another repeat, may repeat all that is before it
        size = size * max(most, 1) if found[1] in ")}*+?" else size + most
    if len(pattern) > LONGEST or size > UNROLLED:
        raise UsageError(
            f"a regular expression has at most {LONGEST:,} characters, and {UNROLLED:,} once repeats are written out: "
            f"{pattern[:60]!r}"
        )
    for refused, what in REFUSED:
        if re.search(refused, pattern):
            raise UsageError(f"a regular expression may not have {what}: {pattern[:60]!r}")
    return size
