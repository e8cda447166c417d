"""The Python of a guide, as a program has it: what workers import in a module, and what starts them below."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

DEFINED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def program(
    blocks: Sequence[str], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], list[CodeType]]:
    """Return the names that *blocks* define, in a module *name* in *folder*, and what is left of each block, to run.

    So functions cross to workers that are started, as they do from a script that has the rest below
    `if __name__ == "__main__":`.
    """
    trees = [ast.parse(block) for block in blocks]
    defined = [node for tree in trees for node in tree.body if isinstance(node, DEFINED)]
    (folder / f"{name}.py").write_text("\n".join(map(ast.unparse, defined)))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    invalidate_caches()
    names = import_module(name).__dict__
    rest = []
    for number, tree in enumerate(trees):
        tree.body = [node for node in tree.body if not isinstance(node, DEFINED)]
        rest.append(compile(tree, f"{name}, block {number}", "exec"))
    return names, rest
