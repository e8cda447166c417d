"""The types of columns of values, which are known only when all values are.

While rows are collected, the type of a column is its *kind*: "int", "double", "bool", "string", ("list", kind),
("struct", {name: kind}), None as long as all values are null, or "text" for values of several kinds, which are written
as JSON. It does not depend on how the rows are cut into blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from tartools.tables import schema

Kind = Any
SCALARS = {bool: "bool", float: "double", str: "string"}
DEEPEST = 20  # lists and objects in each other; what is deeper becomes text
MOST_NAMES = 1000  # in an object; one with more becomes text
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1  # of int64


def kind_of(values: Sequence[Any], depth: int = 0) -> Kind:
    """Return the kind of a column of *values*.

    >>> kind_of([1, None, 2.5]), kind_of([[1], []]), kind_of([{"a": 1}, {"b": True}]), kind_of([1, True])
    ('double', ('list', 'int'), ('struct', {'a': 'int', 'b': 'bool'}), 'text')
    """
    kind: Kind = None
    types = set(map(type, values))
    for each in types - {type(None)}:
        alike = values if len(types) == 1 else [value for value in values if type(value) is each]
        kind = wider(kind, _kind_of_alike(alike, each, depth))
    return kind


def _kind_of_alike(values: Sequence[Any], each: type, depth: int) -> Kind:
    """Return the kind of *values*, which are all of type *each*."""
    if each is int:
        return "int" if min(values) >= LEAST and max(values) <= GREATEST else "text"
    if each not in (list, dict):
        return SCALARS[each]
    if depth == DEEPEST:
        return "text"
    if each is list:
        return _nested("list", kind_of([*chain.from_iterable(values)], depth + 1))
    names = dict.fromkeys(chain.from_iterable(values))
    if len(names) > MOST_NAMES or not all(map(_encodable, names)):
        return "text"
    return _nested("struct", {name: kind_of([value.get(name) for value in values], depth + 1) for name in names})


def _encodable(name: str) -> bool:
    """Tell whether *name*, of JSON, can be written as UTF-8: it may hold half of a surrogate pair."""
    return name.isascii() or name == name.encode("utf-8", "replace").decode()


def _nested(name: str, inner: Kind) -> Kind:
    """Return the kind of lists or objects with what is of kind *inner* in them."""
    return "text" if "text" in (inner.values() if name == "struct" else (inner,)) else (name, inner)


def wider(one: Kind, other: Kind) -> Kind:
    """Return the kind of a column that has values of the kinds *one* and *other*."""
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, str) or isinstance(other, str):
        return "double" if one in ("int", "double") and other in ("int", "double") else "text"
    if one[0] != other[0]:
        return "text"
    if one[0] == "list":
        return _nested("list", wider(one[1], other[1]))
    names = {**one[1], **other[1]}
    if len(names) > MOST_NAMES:
        return "text"
    return _nested("struct", {name: wider(one[1].get(name), other[1].get(name)) for name in names})


def arrow_type(kind: Kind) -> Any:
    """Return the type of a column of *kind* in a table. Without values, and for objects without names, it is text.

    Besides the kinds above there are "uint", "digest" of 16 bytes and "colours" of 48.
    """
    pa = schema.arrow()
    if not _storable(kind):
        return pa.string()
    if isinstance(kind, tuple) and kind[0] == "list":
        return pa.list_(arrow_type(kind[1]))
    if isinstance(kind, tuple):
        return pa.struct([(name, arrow_type(inner)) for name, inner in kind[1].items()])
    numbers = {"int": pa.int64(), "uint": pa.uint64(), "double": pa.float64(), "bool": pa.bool_()}
    sizes = {"digest": 16, "colours": 48}
    return pa.binary(sizes[kind]) if kind in sizes else numbers.get(kind, pa.string())


def _storable(kind: Kind) -> bool:
    """Tell whether Parquet can hold *kind*: no object in it may be without names."""
    if not isinstance(kind, tuple):
        return True
    inner: Mapping[str, Kind] = {"": kind[1]} if kind[0] == "list" else kind[1]
    return bool(inner) and all(map(_storable, inner.values()))


def column(values: Sequence[Any], type_: Any) -> Any:
    """Return *values* as a column of *type_*, a type of Arrow; what is not text goes into a column of text as JSON.

    A whole number that a double can't hold exactly is rounded; half of a surrogate pair in JSON becomes "?".
    """
    pa = schema.arrow()
    if pa.types.is_string(type_):
        values = [
            value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for value in values
        ]
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return pa.array([_fitting(value, type_) for value in values], type_)


def _fitting(value: Any, type_: Any) -> Any:
    """Return *value* in a form that pyarrow takes for *type_*."""
    types = schema.arrow().types
    if value is None:
        return None
    if types.is_floating(type_):
        return float(value)
    if types.is_string(type_):
        return value.encode("utf-8", "replace").decode()
    if types.is_list(type_):
        return [_fitting(each, type_.value_type) for each in value]
    if types.is_struct(type_):
        return {name: _fitting(each, type_.field(name).type) for name, each in value.items()}
    return value
