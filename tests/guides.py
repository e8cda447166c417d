"""The code of guides, as a program has it: what workers import in a module, and what starts them below."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Sequence
from importlib import import_module, invalidate_caches
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from PIL import Image

from tests.conftest import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DEFINED = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


def blocks(page: str, *kinds: str) -> list[tuple[str, str]]:
    """Return kind and code of the blocks of the guide *page* that are of these kinds, in order."""
    found = BLOCK.findall((ROOT / f"docs/training/{page}.md").read_text())
    return [(kind, code) for kind, code in found if kind in kinds]


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


class ImageFolder:
    """What is asked of torchvision's: the files of a folder of classes, with the class of each."""

    def __init__(self, root: str) -> None:
        classes = sorted(path.name for path in Path(root).iterdir())
        self.samples = [(str(path), classes.index(path.parent.name)) for path in sorted(Path(root).glob("*/*"))]
        self.loader, self.target_transform = Image.open, None

    def __len__(self) -> int:
        return len(self.samples)
