"""What may stand in an expression: Python's syntax for values, conditions, calls of given functions, and loops."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from tartools.errors import UsageError

NESTED = 100  # parts inside each other
NAMING = ("field", "has", "size", "width", "height")  # functions that take the name of a field
METHODS: dict[type, tuple[str, ...]] = {
    str: (
        *("startswith", "endswith", "find", "count", "lower", "upper", "strip", "lstrip", "rstrip", "removeprefix"),
        *("removesuffix", "replace", "split", "isdigit", "isalpha", "isalnum", "isspace", "islower", "isupper"),
    ),
    dict: ("get", "keys", "values", "items"),
}
ALLOWED = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp),
)
OTHERS = (  # operators of other languages, and ours
    *((r"&&", "and"), (r"\|\|", "or"), (r"!(?!=)", "not"), (r"<>", "!="), (r"===", "==")),
    *((r"\bAND\b", "and"), (r"\bOR\b", "or"), (r"\bNOT\b", "not")),
)


def parsed(text: str, functions: Iterable[str]) -> ast.expr:
    """Return the syntax tree of the expression *text*, which may call *functions*. Raises: UsageError if it is none."""
    try:
        body = ast.parse(text.strip(), mode="exec").body
    except (MemoryError, RecursionError):  # the stack of Python's parser is full
        raise UsageError(f"not an expression: it is nested over {NESTED} levels deep") from None
    except (SyntaxError, ValueError) as error:
        raise UsageError(f"not an expression: {text!r}: {_hint(text) or error}") from None
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        raise UsageError(f"not an expression: {text!r} (to compare, write ==)")
    node = body[0].value
    level: list[ast.AST] = [node]
    for _ in range(NESTED):
        level = [inner for part in level for inner in ast.iter_child_nodes(part)]
    if level:
        raise UsageError(f"not an expression: it is nested over {NESTED} levels deep")
    own, known = own_names(node), tuple(functions)
    for part in ast.walk(node):
        if isinstance(part, ast.MatMult) or (isinstance(part, ast.expr) and not isinstance(part, ALLOWED)):
            raise UsageError(f"{type(part).__name__} is not allowed in an expression: {text!r}")
        if isinstance(part, ast.comprehension):
            _check_loop(part)
        if isinstance(part, ast.Call):
            _check_call(part, known, own)
    return node


def calls(node: ast.expr) -> list[tuple[str, list[ast.expr]]]:
    """Return the functions that *node* calls, each with its arguments."""
    found = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return [(call.func.id, call.args) for call in found if isinstance(call.func, ast.Name)]


def own_names(node: ast.expr) -> set[str]:
    """Return the names that loops in *node* give to their items."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _hint(text: str) -> str:
    """Return what to write where *text* has an operator of another language; "" if it has none."""
    import re

    plain = re.sub(r"""'[^']*'|"[^"]*\"""", "''", text)
    for pattern, word in OTHERS:
        if found := re.search(pattern, plain):
            return f"in place of {found[0]} write {word}"
    return ""


def _check_loop(loop: ast.comprehension) -> None:
    targets = loop.target.elts if isinstance(loop.target, (ast.Tuple, ast.List)) else [loop.target]
    if loop.is_async or not all(isinstance(target, ast.Name) for target in targets):
        raise UsageError(f"not an expression: a loop has plain names, not {ast.unparse(loop.target)}")


def _check_call(call: ast.Call, functions: tuple[str, ...], own: set[str]) -> None:
    """Raise UsageError unless *call* is one of *functions* or METHODS; *own* are the names of loops."""
    called, methods = call.func, [name for names in METHODS.values() for name in names]
    if any(keyword.arg is None for keyword in call.keywords):
        raise UsageError(f"** is not allowed in an expression: {ast.unparse(call)}")
    if isinstance(called, ast.Attribute):
        if called.attr not in methods:
            raise UsageError(f".{called.attr}() is not allowed in an expression; these are: {' '.join(methods)}")
        return
    if not isinstance(called, ast.Name):
        raise UsageError(f"not a function: {ast.unparse(called)}")
    if called.id not in functions:
        raise UsageError(f"unknown function {called.id!r}; the functions are: {' '.join(functions)}")
    if called.id in NAMING and len(call.args) == 1:
        base = name = call.args[0]
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Name) and base.id not in own:
            field = ast.unparse(name)
            raise UsageError(f"{called.id}({field}): the name of a field has quotes here: {called.id}('{field}')")
