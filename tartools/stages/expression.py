"""Expressions over the fields of a sample: `int(cls) == 180`, `field('meta.json:width') > 500`.

They are evaluated by simpleeval: no attribute that begins with an underscore, no import, no assignment, and limits
on powers and lengths, so that an expression from elsewhere does no harm.
"""

from __future__ import annotations

import ast
from typing import Any

from tartools.errors import SampleError, TarToolsError, UsageError
from tartools.sample import Sample
from tartools.values import lookup, parse_column


class _AbsentError(Exception):
    """The sample at hand lacks a field that the expression asks for."""


class Expression:
    """An expression that is true of some samples.

    A name is the text of that field; `field('meta.json')` is one whose name is none in Python, and
    `field('meta.json:size.0')` a value inside JSON. `has('txt')` tells whether there is one. The functions are int,
    float, str, len, abs, min, max, round.

    *unseen* are the fields that it has asked for and that no sample had, *seen* those that samples had then.

    Raises: UsageError, when it is made, for what is no expression or holds what expressions can't.
    """

    def __init__(self, text: str, *, verbatim: bool = False) -> None:
        import simpleeval  # type: ignore[import-untyped]

        functions: dict[str, Any] = {f.__name__: f for f in (int, float, str, len, abs, min, max, round)}
        functions |= {"field": self._field, "has": self._has}
        self._text = text
        self._verbatim = verbatim
        self._evaluator: Any = simpleeval.EvalWithCompoundTypes(functions=functions, names=_Names(self))
        self._node = _parsed(text, self._evaluator)
        self._sample = Sample(b"")
        self._index = 0
        self.unseen: dict[str, None] = {}
        self.seen: dict[str, None] = {}
        self._found: set[str] = set()

    def matches(self, sample: Sample, index: int = 0) -> bool:
        """Tell whether the expression is true of *sample*, the *index*-th; not so if it lacks a field asked for.

        Raises: SampleError naming the sample if the expression fails on its values.
        """
        self._sample, self._index = sample, index
        try:
            return bool(self._evaluator.eval(self._text, self._node))
        except _AbsentError:
            return False
        except TarToolsError:
            raise
        except Exception as error:  # whatever a user's expression may do
            raise SampleError(f"sample {sample.key!r}: {self._text}: {error}", url=sample.shard) from error

    def lookup(self, name: str) -> tuple[Any] | None:
        """Return the value of the column *name* for the sample at hand, in a tuple; None if it has none."""
        found = lookup(self._sample, parse_column(name), self._index, verbatim=self._verbatim)
        if found is None and name not in self._found:
            self.unseen[name] = None
            self.seen.update(dict.fromkeys(self._sample.fields))
        elif found is not None and name not in self._found:
            self._found.add(name)
            self.unseen.pop(name, None)
        return found

    def _field(self, name: str) -> Any:
        found = self.lookup(name)
        if found is None:
            raise _AbsentError
        return found[0]

    def _has(self, name: str) -> bool:
        return self.lookup(name) is not None


class _Names:
    """The names in an expression, as simpleeval asks for them."""

    def __init__(self, expression: Expression) -> None:
        self._expression = expression

    def __getitem__(self, name: str) -> Any:
        found = self._expression.lookup(name)
        if found is None:
            raise _AbsentError
        return found[0]


def _parsed(text: str, evaluator: Any) -> ast.stmt:
    """Return *text* as a tree that *evaluator* can evaluate. Raises: UsageError."""
    try:
        node = ast.parse(text.strip(), mode="exec").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise UsageError(f"not an expression: {text!r}: {error}") from None
    if len(node) != 1 or not isinstance(node[0], ast.Expr):
        raise UsageError(f"not an expression: {text!r} (to compare, write ==)")
    for part in ast.walk(node[0].value):
        if isinstance(part, ast.expr) and type(part) not in evaluator.nodes:
            raise UsageError(f"{type(part).__name__} is not possible in an expression: {text!r}")
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id not in evaluator.functions:
            raise UsageError(f"there is no function {part.func.id!r}; there are: {' '.join(evaluator.functions)}")
    return node[0]
