"""States of datasets and samplers: plain dicts, lists, numbers and texts, with a version, checked when they are loaded.

So `torch.load` reads them back with its defaults, which unpickle no classes, and so do JSON and
torch.distributed.checkpoint. A state comes from a file that somebody else may have written: it has numbers of shards,
never their names, and each value is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tartools.errors import UsageError

STATE_VERSION_KEY = "version"  # its key in a state
STATE_VERSION = 1
State = dict[str, Any]


class StateError(UsageError, ValueError):
    """A state is malformed, or belongs to another class, other data or another order; a ValueError, too."""


def make_state(values: Mapping[str, Any]) -> State:
    """Return a state of this version with *values*, made plain by `plain_value`.

    Raises: TypeError for a value of a class that has no plain form, such as an array.

    >>> make_state({"epoch": np.int64(3), "shard": (1, "a")})
    {'version': 1, 'epoch': 3, 'shard': [1, 'a']}
    """
    return {STATE_VERSION_KEY: STATE_VERSION, **plain_value(values)}


def plain_value(value: Any) -> Any:
    """Return a copy of *value* of plain dicts, lists, numbers, texts, bools and None; keys of dicts become texts.

    Converted are mappings, lists and tuples (to lists), numpy's numbers, bools and texts, and subclasses of numbers and
    texts. Raises: TypeError for a value of another class, such as an array or bytes. Other scalars of numpy, such as
    dates, are not refused: they become the object that numpy has for them.
    """
    if isinstance(value, Mapping):
        return {str(name): plain_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_value(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if value is not None:
        raise TypeError(f"a state holds no {type(value).__name__}")
    return None


def check_state(state: Any, owner: str, checks: Mapping[str, Callable[[Any], bool]]) -> None:
    """Raise StateError unless *state* is a dict with a version that we read, and all values that *checks* demand.

    *checks*: name -> function that returns True for a valid value. *owner*: whose state it should be, for the message,
    as "an ObjectStream". A state without a version is one of version 1; further names in it are not looked at.
    """
    if not isinstance(state, dict) or not {*checks} <= {*state}:
        raise StateError(f"this is not a state of {owner}")
    version = state.get(STATE_VERSION_KEY, STATE_VERSION)
    if not is_count(version) or version > STATE_VERSION:
        raise StateError(
            f"this state has version {version!r}, and this tartools reads versions up to {STATE_VERSION}: "
            "use the tartools that made it, or a later one"
        )
    for name, is_valid in checks.items():
        if not is_valid(state[name]):
            raise StateError(f"this state of {owner} is damaged: its {name!r} is {short_repr(state[name])}")


def short_repr(value: Any) -> str:
    """Return the `repr` of *value*; if it has over 100 characters, the first 97 and "..."."""
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


def is_count(value: Any) -> bool:
    """True if *value* is a whole number from 0 to 2**63 - 1, and no bool."""
    return type(value) is int and 0 <= value < 1 << 63


def is_integer(value: Any) -> bool:
    """True if *value* is an int of any size, negative too, and no bool."""
    return type(value) is int


def is_bool(value: Any) -> bool:
    """True if *value* is True or False."""
    return isinstance(value, bool)


def is_text(value: Any) -> bool:
    """True if *value* is a str, and of no subclass."""
    return type(value) is str


def is_list(value: Any, *checks: Callable[[Any], bool]) -> bool:
    """True if *value* is a list or tuple of as many items as *checks*, and each item passes the check at its place."""
    right = isinstance(value, (list, tuple)) and len(value) == len(checks)
    return right and all(is_valid(item) for is_valid, item in zip(checks, value, strict=True))


def is_list_of(value: Any, is_valid: Callable[[Any], bool]) -> bool:
    """True if *value* is a list or tuple whose items all pass *is_valid*."""
    return isinstance(value, (list, tuple)) and all(map(is_valid, value))


def is_reader(value: Any) -> bool:
    """True if *value* is a `ReaderId` as a list: [number, readers], with number below readers."""
    return is_list(value, is_count, is_count) and value[0] < value[1]
