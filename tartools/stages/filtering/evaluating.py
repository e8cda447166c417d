"""Evaluate expressions of unknown origin so that they do no harm: no code of theirs runs, and each has limits.

Values are what JSON has. Nothing of an object can be reached but items and ALLOWED_METHODS. What a step would make
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
from tartools.samples.filetypes import FACT_FUNCTIONS

MAX_STEPS = 100_000  # of one evaluation
# characters that are made, characters that are read, items of lists: for one step
CHARS_MADE_PER_STEP, CHARS_READ_PER_STEP, ITEMS_PER_STEP = 100, 1000, 10
MAX_INTEGER_BITS = 1024  # of a whole number; floating point ends there too
MAX_NUMBER_CHARS = 4300  # characters of a text that is read as a number, as in Python
ALLOWED_METHODS: dict[type, tuple[str, ...]] = {
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
    **{ast.In: lambda part, container: part in container, ast.NotIn: lambda part, container: part not in container},
}
OPERATOR_HINTS = {ast.BitAnd: "; 'and' is for conditions", ast.BitOr: "; 'or' is for conditions"}


class LimitError(Exception):
    """An evaluation exceeds a limit: of steps, of the size of a number or text, or of processor time."""


class Evaluator:
    """Evaluates syntax trees of expressions, within limits of steps, sizes and time, by `evaluate`.

    `value_of(name)`: returns the value of a name that no loop of the expression defines.
    `functions`: those that expressions may call besides int, float, str, len, abs, min, max, round and match; they
    report their steps to `spend`.
    """

    def __init__(self, value_of: Callable[[str], Any], functions: Mapping[str, Callable[..., Any]]) -> None:
        self.functions: dict[str, Callable[..., Any]] = {
            "int": self._int,
            "float": self._float,
            "str": self._str,
            "len": len,
            "abs": abs,
        }
        self.functions |= {function.__name__: partial(self._choose, function) for function in (min, max)}
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
        self._loop_names: dict[str, Any] = {}  # names of loops
        self._steps_left = MAX_STEPS
        self._patterns: dict[str, Any] = {}  # compiled
        self._matching = 0.0  # seconds of the processor

    def evaluate(self, node: ast.expr) -> Any:
        """Return the value of the expression *node*, a tree of `expression.parse_expression`.

        Raises: LimitError; the errors of functions and `value_of`; any exception, for values of the wrong kind.
        """
        self._steps_left, self._loop_names, self._matching = MAX_STEPS, {}, 0.0
        return self._eval(node)

    def spend(self, steps: int) -> None:
        """Count *steps* of the current evaluation. Raises: LimitError if they are over MAX_STEPS, 100,000, in all."""
        self._steps_left -= steps
        if self._steps_left < 0:
            raise LimitError(f"it takes more than {MAX_STEPS:,} steps")

    def measure(self, value: Any) -> int:
        """Count the steps to read *value* with all items inside; return about how many characters it takes as text.

        Texts count their length. A number, or None, takes no step and counts 4,300 (MAX_NUMBER_CHARS). A list or object
        counts 20 for itself and each item inside, numbers, too, and the length of texts; names of an object are items.
        A step is 1,000 characters of a text, 10 items, or a list or object. Raises: LimitError if the evaluation takes
        over 100,000 steps then.
        """
        if isinstance(value, (str, bytes)):
            self.spend(len(value) // CHARS_READ_PER_STEP)
            return len(value)
        if not isinstance(value, (list, tuple, dict)):
            return MAX_NUMBER_CHARS
        size, waiting = 0, [value]
        while waiting:
            part = waiting.pop()
            if isinstance(part, (list, tuple, dict)):
                self.spend(1 + len(part) // ITEMS_PER_STEP)
                waiting.extend(part)
                if isinstance(part, dict):
                    waiting.extend(part.values())
            elif isinstance(part, (str, bytes)):
                self.spend(len(part) // CHARS_READ_PER_STEP)
                size += len(part)
            size += 20  # most numbers are shorter
        return size

    def _eval(self, node: ast.expr) -> Any:
        self._steps_left -= 1
        if self._steps_left < 0:
            self.spend(0)
        return self._nodes[type(node)](node)

    def _name(self, node: ast.Name) -> Any:
        return self._loop_names[node.id] if node.id in self._loop_names else self._value_of(node.id)

    def _item(self, node: ast.Attribute) -> Any:
        try:
            value = self._eval(node.value)
        except SampleError as error:
            if isinstance(node.value, ast.Name):
                error.message += f" ({dot_advice(node)})"
            raise
        if not isinstance(value, dict):
            raise TypeError(f".{node.attr} is for what has names inside, and this is {_type_words(value)}")
        return value[node.attr]

    def _all(self, nodes: Iterable[ast.expr | None]) -> Iterator[Any]:
        return (node and self._eval(node) for node in nodes)

    def _binary(self, node: ast.BinOp) -> Any:
        lhs, rhs, kind = self._eval(node.left), self._eval(node.right), type(node.op)
        if isinstance(lhs, int) and isinstance(rhs, int):
            _check_bits(kind, lhs, rhs)
        elif not (isinstance(lhs, Number) and isinstance(rhs, Number)):
            if kind is ast.Add and type(lhs) is type(rhs) and isinstance(lhs, (str, bytes, list, tuple)):
                self._count_output(lhs, len(lhs) + len(rhs))
            elif kind is ast.Mult and isinstance(lhs, (str, bytes, list, tuple)) and isinstance(rhs, int):
                self._count_output(lhs, len(lhs) * rhs)
            elif kind is ast.Mult and isinstance(rhs, (str, bytes, list, tuple)) and isinstance(lhs, int):
                self._count_output(rhs, len(rhs) * lhs)
            else:
                text, kinds = ast.unparse(node), f"{_type_words(lhs)} and {_type_words(rhs)}"
                raise TypeError(f"{text!r} needs numbers, and these are {kinds}{OPERATOR_HINTS.get(kind, '')}")
        return OPERATORS[kind](lhs, rhs)

    def _count_output(self, like: Any, size: int) -> None:
        """Count the steps to make a text or list of *size* characters or items, of the type of *like*.

        A step makes 100 characters (CHARS_MADE_PER_STEP) or 10 items (ITEMS_PER_STEP). Raises: LimitError if the
        evaluation takes over 100,000 steps then.
        """
        self.spend(max(size, 0) // (CHARS_MADE_PER_STEP if isinstance(like, (str, bytes)) else ITEMS_PER_STEP))

    def _condition(self, node: ast.BoolOp) -> Any:
        value, is_and = None, isinstance(node.op, ast.And)
        for part in node.values:
            value = self._eval(part)
            if bool(value) is not is_and:
                break
        return value

    def _comparison(self, node: ast.Compare) -> Any:
        lhs, value = self._eval(node.left), True
        for kind, part in zip(map(type, node.ops), node.comparators, strict=True):
            rhs = self._eval(part)
            self.measure(lhs)
            if not (isinstance(rhs, dict) and kind in (ast.In, ast.NotIn)):
                self.measure(rhs)
            try:
                value = OPERATORS[kind](lhs, rhs)
            except TypeError:
                comparison = f"{ast.unparse(node)!r} compares {_type_words(lhs)} with {_type_words(rhs)}"
                raise TypeError(f"{comparison}; int() and float() make numbers of texts") from None
            if not value:
                break
            lhs = rhs
        return value

    def _subscript(self, node: ast.Subscript) -> Any:
        value, key = self._eval(node.value), self._eval(node.slice)
        if isinstance(key, slice) and isinstance(value, (str, bytes, list, tuple)):
            self._count_output(value, len(range(*key.indices(len(value)))))
        self.measure(key)
        return value[key]

    def _loop(self, node: ast.ListComp | ast.GeneratorExp) -> list[Any]:
        results: list[Any] = []
        outer, self._loop_names = self._loop_names, dict(self._loop_names)
        self._inner(node, 0, results)
        self._loop_names = outer
        return results

    def _inner(self, node: ast.ListComp | ast.GeneratorExp, depth: int, results: list[Any]) -> None:
        loop = node.generators[depth]
        for item in self._eval(loop.iter):
            self.spend(1)
            if isinstance(loop.target, ast.Name):
                self._loop_names[loop.target.id] = item
            else:
                self._loop_names |= _unpack(loop.target.elts, item)  # type: ignore[attr-defined]  # as was checked
            if all(map(self._eval, loop.ifs)):
                if depth + 1 < len(node.generators):
                    self._inner(node, depth + 1, results)
                else:
                    results.append(self._eval(node.elt))

    def _call(self, node: ast.Call) -> Any:
        arguments = [*self._all(node.args)]
        keywords = {str(part.arg): self._eval(part.value) for part in node.keywords}
        if isinstance(node.func, ast.Name):
            return self.functions[node.func.id](*arguments, **keywords)
        assert isinstance(node.func, ast.Attribute)
        value, name = self._eval(node.func.value), node.func.attr
        if name not in ALLOWED_METHODS.get(type(value), ()):
            raise TypeError(f".{name}() is not for {_type_words(value)}")
        for argument in (*arguments, *keywords.values()):
            self.measure(argument)
        if isinstance(value, dict):
            self._count_output([], 0 if name == "get" else len(value))
            result = getattr(value, name)(*arguments, **keywords)
            return result if name == "get" else list(result)
        self.measure(value)
        if name == "replace" and len(arguments) > 1:
            self._count_output(value, len(value) + value.count(arguments[0]) * len(arguments[1]))
        elif "strip" in name and arguments:
            self._count_output(
                value, len(value) * (1 + len(arguments[0] or "") // CHARS_MADE_PER_STEP)
            )  # each is looked for in the other
        else:
            self._count_output([] if name == "split" else value, len(value))
        return getattr(value, name)(*arguments, **keywords)

    def _int(self, value: Any, *base: Any, **keywords: Any) -> int:
        return int(_require_short(value), *base, **keywords)

    def _float(self, value: Any) -> float:
        return float(_require_short(value))

    def _str(self, value: Any) -> str:
        if isinstance(value, (bytes, list, tuple, dict)):
            self._count_output("", 10 * self.measure(value))  # an escape has 10 characters at most
        return str(value)

    def _choose(self, function: Callable[..., Any], *values: Any, **keywords: Any) -> Any:
        self.measure(values)
        return function(*values, **keywords)

    def _round(self, value: Any, digits: Any = None) -> Any:
        if isinstance(digits, int) and abs(digits) > MAX_INTEGER_BITS:
            raise LimitError(f"it rounds to {digits} digits")
        return round(value, digits)

    def _match(self, pattern: str, text: str) -> bool:
        """True if the regular expression *pattern* matches anywhere in *text*.

        Raises: UsageError as `compile_pattern` says; LimitError for too many steps, for a text of over 2,000,000
        characters (MAX_MATCH_CHARS; fewer if *pattern* has groups), or if the matches of this evaluation take over 1 s
        of the processor (MATCH_SECONDS); TypeError if *pattern* or *text* is not text.
        """
        if not isinstance(pattern, str) or not isinstance(text, str):
            raise TypeError("match() takes a pattern and a text")
        compiled = self.compile_pattern(pattern)
        self.spend(len(text) // CHARS_READ_PER_STEP)
        if len(text) * (1 + pattern.count("(")) > MAX_MATCH_CHARS:
            raise LimitError(f"a text of {several(len(text), 'character')} is too long for {pattern[:60]!r}")
        begin = time.process_time()
        seconds_left = MATCH_SECONDS - self._matching
        try:
            if seconds_left > 0:
                return compiled.search(text, timeout=seconds_left) is not None
        except TimeoutError:
            pass
        finally:
            self._matching += time.process_time() - begin
        raise LimitError(f"{pattern[:60]!r} takes over {MATCH_SECONDS:g} s: avoid repeats in repeats")

    def check_pattern(self, pattern: str) -> None:
        """Raise UsageError unless *pattern* is a regular expression, within the limits of the size of one."""
        self._steps_left = MAX_STEPS  # more than one pattern may take
        self.compile_pattern(pattern)

    def compile_pattern(self, pattern: str) -> Any:
        """Return the regular expression *pattern* compiled, a `regex.Pattern`; counts the steps for a new one.

        Up to 100 are kept, from one evaluation to the next (MAX_CACHED_PATTERNS). Raises: UsageError if it is no
        regular expression, or `check_pattern_size` refuses it; LimitError for too many steps.
        """
        if pattern not in self._patterns:
            size = check_pattern_size(pattern)
            self.spend(200 + 5 * len(pattern) + size // 10)
            import regex  # re has no limit of time

            if len(self._patterns) == MAX_CACHED_PATTERNS:
                self._patterns.clear()
            try:
                self._patterns[pattern] = regex.compile(pattern)
            except (regex.error, RecursionError) as error:
                raise UsageError(f"not a regular expression: {pattern[:200]!r}: {error}") from None
        return self._patterns[pattern]


def dot_advice(node: ast.Attribute) -> str:
    """Return advice how to write *node*, such as jpg.width, in an expression.

    The first half, before the semicolon, is only there for a plain name, a dot and a function of FACT_FUNCTIONS.

    >>> dot_advice(ast.parse("jpg.width").body[0].value)
    "write width('jpg'); for a name with a dot write field('jpg.width')"
    """
    name = f"for a name with a dot write field({ast.unparse(node)!r})"
    if node.attr in FACT_FUNCTIONS and isinstance(node.value, ast.Name):
        return f"write {node.attr}({node.value.id!r}); {name}"
    return name


def _check_bits(kind: type, lhs: int, rhs: int) -> None:
    """Raise LimitError if *kind* of two whole numbers may have over 1,024 bits (MAX_INTEGER_BITS), or one of them has.

    *kind*: class of the operator, such as `ast.Mult`; *lhs*, *rhs*: the numbers on its left and right. Nothing is
    computed but an upper bound of the bits of a product, a power or a left shift; a sum may have 1,025.
    """
    bits = lhs.bit_length()
    if kind is ast.Mult:
        bits += rhs.bit_length()
    elif kind is ast.Pow:
        bits *= max(rhs, 1)
    elif kind is ast.LShift:
        bits += max(rhs, 0)
    if max(bits, rhs.bit_length() if kind is not ast.Pow else 0) > MAX_INTEGER_BITS:
        raise LimitError(f"it makes a whole number of more than {MAX_INTEGER_BITS:,} bits")


def _require_short(value: Any) -> Any:
    if isinstance(value, (str, bytes)) and len(value) > MAX_NUMBER_CHARS:
        raise ValueError(f"a text of {several(len(value), 'character')} is not a number")
    return value


def _unpack(names: list[Any], value: Any) -> dict[str, Any]:
    """Return name -> item of *value*, a text or list, for the loop variables *names*, which are `ast.Name` nodes.

    Raises: ValueError if *value* has another number of items, or is neither text nor list.
    """
    if not isinstance(value, (str, list, tuple)) or len(value) != len(names):
        raise ValueError(f"a loop has {several(len(names), 'name')} for {_type_words(value)}")
    return {name.id: item for name, item in zip(names, value, strict=True)}


def _type_words(value: Any) -> str:
    """Return words for the type of *value*, such as "a list", for a message."""
    names = {str: "text", dict: "a JSON object", list: "a list", tuple: "a list", type(None): "nothing"}
    return names.get(type(value)) or ("a number" if isinstance(value, Number) else type(value).__name__)


# ---- regular expressions ----

MATCH_SECONDS = 1.0  # seconds of the processor for the matches of one evaluation
MAX_PATTERN_CHARS = 10_000  # characters of a pattern
MAX_UNROLLED_CHARS = 100_000  # the same, once each repeat with a number is written out
MAX_MATCH_CHARS = 2_000_000  # characters of a text times groups of its pattern; a match may take 60 bytes for each
MAX_CACHED_PATTERNS = 100  # patterns

REPEAT_PATTERN = r"(?s)(?<=(.))\{\s*(\d*)\s*,?\s*(\d*)\s*\}"
REFUSED_NODES = (
    (r"\(\?[a-zA-Z0-9-]*x", "blanks and comments inside (?x)"),
    (r"\(\?(R|[+-]?\d|&|P>)", "a pattern inside itself"),
    (r"(?<!\\[pPN])\{[\d<=+, ]*[eids][<=,}:+\d ]", "approximate matching"),
)


def check_pattern_size(pattern: str) -> int:
    """Return an estimate of the size of the regular expression *pattern* once its repeats are written out.

    It is the length of *pattern*, and n more for each repeat {n} or {m,n} of a character or a set, which counts as one;
    a repeat of a group or of another repeat multiplies all that is before it.
    Raises: UsageError if that is over 100,000 (MAX_UNROLLED_CHARS), *pattern* itself over 10,000 characters
    (MAX_PATTERN_CHARS), or if it has blanks and comments by (?x), a pattern inside itself, or approximate matching.
    Whether *pattern* is valid otherwise is not checked.

    >>> check_pattern_size("n0[12]"), check_pattern_size("[0-9a-f]{8}-[0-9a-f]{4}")
    (6, 35)
    """
    size = len(pattern)
    for repeat in re.finditer(REPEAT_PATTERN, pattern[:MAX_PATTERN_CHARS]):
        max_count = max(int(number[:9] or 0) for number in (repeat[2], repeat[3]))
        # what follows a group, or another repeat, may repeat all that is before it
        size = size * max(max_count, 1) if repeat[1] in ")}*+?" else size + max_count
    if len(pattern) > MAX_PATTERN_CHARS or size > MAX_UNROLLED_CHARS:
        raise UsageError(
            f"a regular expression has at most {MAX_PATTERN_CHARS:,} characters, "
            f"and {MAX_UNROLLED_CHARS:,} once repeats are written out: {pattern[:60]!r}"
        )
    for refused, feature in REFUSED_NODES:
        if re.search(refused, pattern):
            raise UsageError(f"a regular expression may not have {feature}: {pattern[:60]!r}")
    return size
