"""Types of the values in payloads, as pyarrow infers them from Python values, and how they are joined.

A type is the name of a plain type of `datasets` ("int64", "string", "image", "null" ...), a `ListType` or a
`StructType`. "json" stands for values of several types, of which no other type holds all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MIN_SIGNED, MAX_SIGNED = -(1 << 63), (1 << 63) - 1  # integers of Arrow
MAX_STRUCT_MEMBERS = 1000  # names in the objects of a field; if there are more, they are data
MIXED = "json"
NUMPY_NUMBERS = frozenset(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)) | {
    "float16",
    "float32",
    "float64",
}


@dataclass(frozen=True, slots=True)
class ListType:
    """The type of lists whose elements have the type *element*."""

    element: ValueType


@dataclass(frozen=True, slots=True)
class StructType:
    """The type of JSON objects with *members*: (name, type), in the order of the first object."""

    members: tuple[tuple[str, ValueType], ...]


ValueType = str | ListType | StructType


def type_of_value(value: Any) -> ValueType:
    """Return the type of *value*, from JSON; [] is a list of "null".

    Raises: ValueError for an integer that is no int64, and text that UTF-8 can't encode.

    >>> type_of_value({"a": [1, 2.5, None], "b": [1, "x"]})
    StructType(members=(('a', ListType(element='float64')), ('b', ListType(element='json'))))
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        if not MIN_SIGNED <= value <= MAX_SIGNED:
            raise ValueError("an integer has more than 64 bits")
        return "int64"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return type_of_text(value)
    if isinstance(value, list):
        return ListType(widest_type(map(type_of_value, value)))
    for name in value:
        type_of_text(name)
    return StructType(tuple((name, type_of_value(member)) for name, member in value.items()))


def type_of_text(text: str) -> ValueType:
    """Return "string". Raises: ValueError if *text* has half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("text has half of a surrogate pair") from None
    return "string"


def widest_type(types: Iterable[ValueType]) -> ValueType:
    """Return a type that holds the values of all *types*: "null" if there are none, MIXED if no other one does.

    Numbers are joined as by numpy: int64 and float64 to float64. Elements of lists, and members of objects, are joined,
    too; two different types of objects that have over 1,000 names together (MAX_STRUCT_MEMBERS) are MIXED.

    >>> widest_type(["null", "int64", "float64"]), widest_type(["int64", "string"])
    ('float64', 'json')
    """
    widest: ValueType = "null"
    for kind in types:
        widest = _join_two(widest, kind)
    return widest


def _join_two(first: ValueType, second: ValueType) -> ValueType:
    if second in (first, "null"):
        return first
    if first == "null":
        return second
    if isinstance(first, ListType) and isinstance(second, ListType):
        return ListType(_join_two(first.element, second.element))
    if isinstance(first, StructType) and isinstance(second, StructType):
        members = dict(first.members)
        for name, kind in second.members:
            members[name] = _join_two(members.get(name, kind), kind)
        return StructType(tuple(members.items())) if len(members) <= MAX_STRUCT_MEMBERS else MIXED
    if first in NUMPY_NUMBERS and second in NUMPY_NUMBERS:
        import numpy as np

        return np.promote_types(str(first), str(second)).name
    return MIXED


def conflict(first: ValueType, second: ValueType, path: str = "") -> str:
    """Return the first conflict of two types that Arrow does not merge, as text; "" if it merges them.

    It merges *first* and *second* if they are equal, one is null, or both are lists or objects whose common names have
    types that it merges; MIXED it never merges, nor a type that has MIXED inside. *path*: the name of the value, such
    as "json.a".

    >>> conflict(StructType((("a", "int64"),)), StructType((("a", "float64"), ("b", "bool"))), "json")
    'json.a: int64 and float64'
    """
    if MIXED in (first, second):
        return f"{path}: values of several types in a list"
    if first == second or "null" in (first, second):
        return next(filter(None, (_inner_conflict(kind, path) for kind in (first, second))), "")
    if isinstance(first, ListType) and isinstance(second, ListType):
        return conflict(first.element, second.element, f"{path}[]")
    if isinstance(first, StructType) and isinstance(second, StructType):
        members, second_members = dict(first.members), dict(second.members)
        pairs = (
            conflict(members.get(name, "null"), second_members.get(name, "null"), f"{path}.{name}")
            for name in {**members, **second_members}
        )
        return next(filter(None, pairs), "")
    return f"{path}: {type_name(first)} and {type_name(second)}"


def _inner_conflict(kind: ValueType, path: str) -> str:
    """Return a message about the first list in *kind* with values of several types, inside MIXED; "" without one.

    *kind*: not MIXED itself. *path*: the name of the value, such as "json.a", with which the message begins.
    """
    if isinstance(kind, ListType):
        return conflict(kind.element, "null", f"{path}[]")
    if isinstance(kind, StructType):
        return next(filter(None, (conflict(member, "null", f"{path}.{name}") for name, member in kind.members)), "")
    return ""


def misfit(column: ValueType, kind: ValueType, path: str = "") -> str:
    """Return why a column of type *column* does not take all values of type *kind*, as text; "" if it does.

    It takes null, its own type, numbers that numpy casts to its type as "safe" (int64 to float64, too), lists whose
    elements and objects whose members it takes; a member whose name the column lacks is a fault, unless it is null.
    Only the first fault is named. *path*: the name of the value, such as "json.a".

    >>> misfit("float64", "int64"), misfit("int64", "float64", "cls"), misfit(ListType("null"), ListType("int64"), "x")
    ('', 'cls: float64, not int64', 'x[]: int64, not null')
    """
    if kind in (column, "null"):
        return ""
    if isinstance(column, ListType) and isinstance(kind, ListType):
        return misfit(column.element, kind.element, f"{path}[]")
    if isinstance(column, StructType) and isinstance(kind, StructType):
        names = dict(column.members)
        faults = (
            misfit(names[name], member, f"{path}.{name}") if name in names else f"{path}.{name}: a new name"
            for name, member in kind.members
            if name in names or member != "null"
        )
        return next(filter(None, faults), "")
    if column in NUMPY_NUMBERS and kind in NUMPY_NUMBERS:
        import numpy as np

        if np.can_cast(str(kind), str(column), "safe"):
            return ""
    return f"{path}: {type_name(kind)}, not {type_name(column)}"


def type_name(kind: ValueType) -> str:
    """Return *kind* in a word, for a message: "int64", "mixed values" for MIXED, "a list" or "an object"."""
    if isinstance(kind, str):
        return "mixed values" if kind == MIXED else kind
    return "a list" if isinstance(kind, ListType) else "an object"
