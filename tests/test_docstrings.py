"""The names in docstrings exist: those in backquotes somewhere, those between asterisks among the parameters."""

from __future__ import annotations

import ast
import builtins
import importlib
import keyword
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.test_structure import MODULES, PACKAGE, nodes_of, parsed

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
QUOTED = re.compile(r"(?<!`)(`{1,2})([A-Za-z_]\w*(?:\.\w+)*)(?:\([\w, ]*\))?\1(?!`)")
STARRED = re.compile(r"(?<![\w*\\/.])\*([A-Za-z_]\w*)\*(?![\w*])")
SIGNATURE = re.compile(r"`\w+\(([\w, ]+)\)`")  # of a function that the docstring describes
FILE = re.compile(r"[\w.]+\.(css|gz|html|jpg|js|md|parquet|png|py|toml)")
LIBRARIES = {"PIL", "compression", "datasets", "numpy", "pyarrow", "ray", "regex", "tf", "torch", "webdataset"}
FOREIGN = {  # names in other programs, which are not looked up
    *("ssh", "sh", "eval", "rowid", "contains"),  # programs, a builtin of shells, SQLite, other languages
    *("open_clip_train", "ShardListDataset", "index_paths", "fn"),  # open_clip, WIDS, DALI
    *("autodecode", "tariterators", "with_epoch", "rng"),  # webdataset
    *("ImageFolder", "target_transform", "imagefolder"),  # torchvision, datasets
    *("preexec_fn", "to_numpy", "fill_null", "enable_read_range"),  # subprocess, pyarrow, AIStore
    *("RAY_ADDRESS", "SSL_CERT_FILE", "OLDPWD"),  # variables of the environment
}
NAMED_TUPLE = {"_asdict", "_fields", "_make", "_replace"}


class Documented(NamedTuple):
    """A docstring. `place`: "storage/url.py Url.parse". `parameters`: names that it may put between asterisks."""

    place: str
    text: str
    parameters: set[str]


class Module(NamedTuple):
    """The names in a module.

    `identifiers`: all of them. `bound`: those of the module itself. `members`, `bases`: of its classes, by their names.
    `texts`: its strings.
    """

    identifiers: set[str]
    bound: set[str]
    members: dict[str, set[str]]
    bases: dict[str, list[str]]
    texts: set[str]


def parameters_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    return {inner.arg for inner in ast.walk(function.args) if isinstance(inner, ast.arg)}


def fields_of(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(inner.target) for inner in node.body if isinstance(inner, ast.AnnAssign)}


def own_parameters(node: ast.AST) -> set[str]:
    """Return the parameters of a function; of a class its fields, and the parameters of its methods."""
    if isinstance(node, ast.ClassDef):
        return fields_of(node).union(*(parameters_of(inner) for inner in node.body if isinstance(inner, FUNCTION)))
    return parameters_of(node) if isinstance(node, FUNCTION) else set()


def outer_parameters(node: ast.AST) -> set[str]:
    """Return the parameters that docstrings inside of *node* may name: of a function, of a class's constructor."""
    if isinstance(node, ast.ClassDef):
        methods = [inner for inner in node.body if isinstance(inner, FUNCTION)]
        return fields_of(node).union(*(parameters_of(inner) for inner in methods if inner.name == "__init__"))
    return own_parameters(node)


def docstrings(path: str, tree: ast.Module) -> Iterator[Documented]:
    """Yield the docstrings in *tree*, the module's first."""

    def visit(node: ast.AST, names: Sequence[str], outer: set[str]) -> Iterator[Documented]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, FUNCTION | ast.ClassDef):
                place = f"{path} {'.'.join((*names, child.name))}"
                yield Documented(place, ast.get_docstring(child) or "", outer | own_parameters(child))
                yield from visit(child, (*names, child.name), outer | outer_parameters(child))
            elif isinstance(child, ast.stmt):  # no expression contains a definition
                yield from visit(child, names, outer)

    yield Documented(path, ast.get_docstring(tree) or "", set())
    yield from visit(tree, (), set())


def bound_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that *statements* bind: definitions, assignments, imports."""
    names = set()
    for node in statements:
        if isinstance(node, FUNCTION | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        else:
            names |= bound_names([inner for inner in ast.iter_child_nodes(node) if isinstance(inner, ast.stmt)])
    return names


def members_of(node: ast.ClassDef) -> set[str]:
    """Return the methods, fields, slots and attributes of `self` that the class *node* defines."""
    names = bound_names(node.body)
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            names |= {inner.attr} if getattr(inner.value, "id", "") == "self" else set()
        elif isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            names.add(inner.value)
    return names


def name_of_base(base: ast.expr) -> str:
    """Return the name of the base class *base*: "dict" for `dict[Key, Value]`."""
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def names_in(path: Path) -> Module:
    """Return the names in the module at *path*."""
    identifiers: set[str] = set()
    for node in nodes_of(path):
        for field in ("id", "attr", "arg", "name", "asname", "module"):
            if isinstance(value := getattr(node, field, None), str):
                identifiers.update(value.split("."))
    texts = {node.value for node in nodes_of(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    classes = [node for node in nodes_of(path) if isinstance(node, ast.ClassDef)]
    bases = {node.name: [name_of_base(base) for base in node.bases] for node in classes}
    members = {node.name: members_of(node) for node in classes}
    return Module(identifiers, bound_names(parsed(path).body), members, bases, texts)


class Names:
    """The names in all modules of *folder*, to look up those in docstrings."""

    def __init__(self, folder: Path, paths: Sequence[Path]) -> None:
        self.modules = {path.relative_to(folder).as_posix(): names_in(path) for path in paths}
        self.members: dict[str, set[str]] = {}  # of classes
        self.bases: dict[str, list[str]] = {}
        self.bound: dict[str, set[str]] = {}  # in modules and packages
        for place, module in self.modules.items():
            for name, members in module.members.items():
                self.members[name] = self.members.get(name, set()) | members
                self.bases[name] = module.bases[name]
            *folders, name = (folder.name, *Path(place).with_suffix("").parts)
            for outer, inner in zip(folders, [*folders[1:], name], strict=True):
                self.bound.setdefault(outer, set()).add(inner)
            on_demand = module.texts if name == "__init__" else set()  # the names of what a package imports later
            name = folders[-1] if name == "__init__" else name
            self.bound[name] = self.bound.get(name, set()) | module.bound | on_demand
        self.public = set().union(*self.members.values(), *(module.bound for module in self.modules.values()))
        self.texts = set().union(*(module.texts for module in self.modules.values()))

    def members_of(self, name: str) -> set[str] | None:
        """Return the members of the class *name* and of its bases; None if one of these is not known."""
        if name in ("NamedTuple", "Protocol", "Generic", "Enum"):
            return NAMED_TUPLE
        if name not in self.members:
            return set(dir(vars(builtins)[name])) if name in vars(builtins) else None
        inherited = [self.members_of(base) for base in self.bases[name] if base != name]
        return None if None in inherited else self.members[name].union(*filter(None, inherited))

    def has_first(self, name: str, module: Module) -> bool:
        """True if *name*, without a dot, is known in a docstring of *module*: there, or public anywhere."""
        if name in module.identifiers or name in vars(builtins) or keyword.iskeyword(name):
            return True
        if name in self.texts and (name.isupper() or re.fullmatch(r"__\w+__", name)):  # a variable, a column
            return True
        return not name.startswith("_") and (name in self.public or name in self.bound)

    def has(self, name: str, place: str) -> bool:
        """True if the dotted *name* in a docstring of the module *place* exists."""
        module, (outer, *others) = self.modules[place], re.sub(r"_\d+__$", "__", name).split(".")
        if FILE.fullmatch(name) or outer in FOREIGN | LIBRARIES or name in module.texts:
            return True
        if outer in sys.stdlib_module_names and outer not in self.bound:
            return in_standard_library(name)
        known = self.has_first(outer, module)
        for inner in others:
            if inner in self.bound.get(outer, ()):
                pass
            elif outer in self.bound and (outer not in module.identifiers or outer == PACKAGE.name):
                known = False
            elif (members := self.members_of(outer)) is not None:
                known &= inner in members
            else:  # of an object whose class is not known here
                known &= inner in module.identifiers | self.public
            outer = inner
        return known

    def missing(self, place: str, tree: ast.Module) -> list[str]:
        """Return "PLACE: `name`" for the names in docstrings of the module *place* that are nowhere."""
        return [
            f"{documented.place}: {match[0]}"
            for documented in docstrings(place, tree)
            for match in QUOTED.finditer(documented.text)
            if match[2] not in documented.parameters and not self.has(match[2], place)
        ]


def in_standard_library(name: str) -> bool:
    """True if the dotted *name* is a module, or an attribute in one."""
    first, *others = name.split(".")
    value = importlib.import_module(first)
    for number, inner in enumerate(others, 1):
        if not hasattr(value, inner):
            try:
                importlib.import_module(".".join((first, *others[:number])))
            except ImportError:
                return False
        value = getattr(value, inner)
    return True


def no_parameters(place: str, tree: ast.Module) -> list[str]:
    """Return "PLACE: *name*" for the names between asterisks that are no parameters."""
    lines = []
    for documented in docstrings(place, tree):
        described = {name for names in SIGNATURE.findall(documented.text) for name in re.findall(r"\w+", names)}
        names = [name for name in STARRED.findall(documented.text) if name not in documented.parameters | described]
        lines += [f"{documented.place}: *{name}*" for name in names]
    return lines


def test_the_names_that_docstrings_quote_exist() -> None:
    names = Names(PACKAGE, MODULES)
    trees = zip(names.modules, map(parsed, MODULES), strict=True)
    assert [line for place, tree in trees for line in names.missing(place, tree)] == []


def test_the_names_between_asterisks_are_parameters() -> None:
    trees = [(path.relative_to(PACKAGE).as_posix(), parsed(path)) for path in MODULES]
    assert [line for place, tree in trees for line in no_parameters(place, tree)] == []


def test_names_that_do_not_exist_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner/other.py").write_text("class Other(dict):\n    x: int\n\n\ndef _private(): ...\n")
    (folder / "one.py").write_text(
        '''def f(a, *, b):
    """`a` `f` `Other` `Other.x` `Other.items` `inner.other` `os.path.join()` `None` `x` *a* *b* `--b` `b > 1`."""
    def g(c):
        """*a* *c* `Other.y` `_private` `other.nothing` `os.no_such_name` `older` *older*."""


class C:
    """*d* *e* `e` `g(h)`: *h*."""
    def __init__(self, d): ...
    def m(self, e):
        """*d* *e* `C.m` `C.n`."""
    def n(self):
        """*d* *e*."""
'''
    )
    paths = [folder / "inner/other.py", folder / "one.py"]
    names, tree = Names(folder, paths), parsed(folder / "one.py")
    wrong = ["Other.y", "_private", "other.nothing", "os.no_such_name", "older"]
    assert names.missing("one.py", tree) == [f"one.py f.g: `{name}`" for name in wrong]
    assert no_parameters("one.py", tree) == ["one.py f.g: *older*", "one.py C.n: *e*"]
