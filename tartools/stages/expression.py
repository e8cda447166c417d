"""Expressions over the fields of a sample: `int(cls) == 180`, `field('meta.json:width') > 500`.

simpleeval evaluates them, so that an expression of unknown origin does no harm: it allows no attribute that begins with
an underscore, no import and no assignment, and limits powers and lengths.
"""

from __future__ import annotations

import ast
from typing import Any

from tartools.errors import SampleError, TarToolsError, UsageError
from tartools.samples.sample import Sample
from tartools.samples.values import lookup, parse_column


class _AbsentError(Exception):
    """The sample lacks a field that the expression uses."""


class Expression:
    """An expression that selects samples.

    A name is the text of that field. `field('meta.json')` is a field whose name is not a Python name,
    `field('meta.json:size.0')` a value inside JSON, `has('txt')` whether the sample has a field. The functions are int,
    float, str, len, abs, min, max, round.

    *unseen* are the fields that it has used and no sample had, *seen* the fields that samples had instead.

    Raises: UsageError on construction if the text is not an expression, or uses what expressions may not.
    """

    def __init__(self, text: str, *, verbatim: bool = False) -> None:
        import simpleeval  # type: ignore[import-untyped]

        functions: dict[str, Any] = {f.__name__: f for f in (int, float, str, len, abs, min, max, round)}
        functions |= {"field": self.__getitem__, "has": self._has}
        self._text = text
        self._verbatim = verbatim
        self._evaluator: Any = simpleeval.EvalWithCompoundTypes(functions=functions, names=self)
        self._node = _parsed(text, self._evaluator)
        self._sample = Sample(b"")
        self._index = 0
        self.unseen: dict[str, None] = {}
        self.seen: dict[str, None] = {}
        self._found: set[str] = set()

    def matches(self, sample: Sample, index: int = 0) -> bool:
        """Return whether the expression is true for *sample*, number *index*; False if it lacks a field that is used.

        Raises: SampleError, naming the sample, if the expression fails on its values.
        """
        self._sample, self._index = sample, index
        try:
            return bool(self._evaluator.eval(self._text, self._node))
        except _AbsentError:
            return False
        except TarToolsError:
            raise
        except Exception as error:  # a user's expression can raise anything
            raise SampleError(f"sample {sample.key!r}: {self._text}: {error}", url=sample.shard) from error

    def lookup(self, name: str) -> tuple[Any] | None:
        """Return the value of the column *name* of the current sample, in a tuple; None if it has none."""
        found = lookup(self._sample, parse_column(name), self._index, verbatim=self._verbatim)
        if found is None and name not in self._found:
            self.unseen[name] = None
            self.seen.update(dict.fromkeys(self._sample.fields))
        elif found is not None and name not in self._found:
            self._found.add(name)
            self.unseen.pop(name, None)
        return found

    def __getitem__(self, name: str) -> Any:  # how simpleeval looks up the names of an expression
        found = self.lookup(name)
        if found is None:
            raise _AbsentError
        return found[0]

    def _has(self, name: str) -> bool:
        return self.lookup(name) is not None


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
