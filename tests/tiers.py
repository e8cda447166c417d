"""The two tiers of the tests: the plain one proves each law, the exhaustive one proves it everywhere.

    pytest                 the plain tier: what a change needs
    pytest -m exhaustive   the rest: each byte, each scheme, all pairs of options, more seeds, real starts

A test that is in the exhaustive tier alone has the mark `exhaustive`; so may single parameters: `also(2, 3)`. A test
that tries many values of one kind takes `thorough` (see `in_both`) and tries a few or all of them. Where a test runs
for each of several schemes, archives or ways, and the law is not about these, `by_turns` has one of them in the plain
tier, the next one for the next test.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import pytest

exhaustive = pytest.mark.exhaustive
in_both = pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=exhaustive)], ids=["few", "all"])


def also(*values: object) -> list[object]:
    """Return *values* as parameters of the exhaustive tier: `parametrize("seed", [1, *also(2, 3)])`."""
    return [pytest.param(value, marks=exhaustive) for value in values]


def by_turns(*names: str) -> pytest.MarkDecorator:
    """Mark a test, or a module, whose parameters (or fixtures with parameters) *names* take turns in the plain tier.

    Of the tests that differ in the named parameters alone, one is in the plain tier. Which one moves on with each value
    of the other parameters, so that each pair of an own value and a turning one comes up where there are enough.
    """
    return pytest.mark.by_turns(*names)


def take_turns(items: Sequence[pytest.Item]) -> None:
    """Mark those of *items* as exhaustive whose turn it is not."""
    turning = [item for item in items if list(item.iter_markers("by_turns"))]
    values: dict[tuple[str, str], dict[int, int]] = {}  # by function and parameter: the numbers of the values
    for item in turning:
        for name, value in parameters(item).items():
            known = values.setdefault((function(item), name), {})
            known.setdefault(id(value), len(known))
    for item in turning:
        names = {name for mark in item.iter_markers("by_turns") for name in mark.args}
        found = {name: values[function(item), name][id(value)] for name, value in parameters(item).items()}
        assert names & set(found) or not found, f"{item.nodeid} has none of {sorted(names)}"
        turn = zlib.crc32(function(item).encode()) + sum(number for name, number in found.items() if name not in names)
        if any(found[name] != turn % len(values[function(item), name]) for name in names & set(found)):
            item.add_marker("exhaustive")


def function(item: pytest.Item) -> str:
    """Return what the tests of one function have in common."""
    return item.nodeid.partition("[")[0]


def parameters(item: pytest.Item) -> dict[str, object]:
    """Return the values of the parameters of *item* (their `indices` count the tests, not the values)."""
    spec = getattr(item, "callspec", None)
    return dict(spec.params) if spec else {}
