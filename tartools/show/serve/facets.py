"""Facets: how often values occur in the samples of a query, histograms of numbers, and fields that are missing."""

from __future__ import annotations

import math
from typing import Any

from tartools.show.serve.queries import Query
from tartools.show.serve.rowconditions import broken_condition
from tartools.show.serve.rowindex import ROWS_TABLE, IndexColumn, RowIndex, quoted_name

MAX_VALUES_SHOWN = 50  # of a facet
BINS = 24  # of a histogram
MAX_BINNED_NUMBER = 1e300  # the difference of two such numbers is finite
MAX_FACETS = 64


def count_facets(index: RowIndex, query: Query) -> list[dict[str, Any]]:
    """Return the facets of the samples of *query* as JSON; they are counted once and kept in `query.facets`.

    Each is an object with a "kind": "values" or "histogram" of a "column", as `value_facet` and `bin_facet` return
    them, for the first 64 columns of the index (MAX_FACETS) that have a `facet`; then "missing" with "fields", as
    `count_missing` returns them, if there are any; and "broken" with a "count" of samples, also 0, if the index says
    which payloads are broken. Raises: QuestionError if DuckDB takes too long.
    """
    if query.facets is None:
        facets: list[dict[str, Any]] = []
        for column in [column for column in index.columns.values() if column.facet][:MAX_FACETS]:
            count = value_facet if column.facet == "values" else bin_facet
            facets.append(count(index, query, column))
        if missing := count_missing(index, query):
            facets.append({"kind": "missing", "fields": missing})
        if index.has_faults:
            broken = _ask(index, query, f"count(*) FILTER (WHERE {broken_condition(index).sql})")[0][0]
            facets.append({"kind": "broken", "count": broken})
        query.facets = facets
    return query.facets


def _ask(
    index: RowIndex, query: Query, select: str, clauses: str = "", parameters: tuple[object, ...] = ()
) -> list[Any]:
    """Return the rows of the answer to SELECT *select* FROM the samples of *query*, with *clauses* at the end.

    *select*, *clauses*: SQL. *parameters*: a value for each ? in *select*. Raises: QuestionError if DuckDB takes too
    long, or too much memory.
    """
    condition, tables = query.sample_condition
    sql = f"SELECT {select} FROM {ROWS_TABLE} WHERE {condition.sql} {clauses}"  # noqa: S608
    return index.ask(sql, (*parameters, *condition.parameters), tables)


def value_facet(index: RowIndex, query: Query, column: IndexColumn) -> dict[str, Any]:
    """Return the facet of *column*: {"column": its name, "kind": "values", "values", "others"}.

    "values" are the 50 most frequent ones (MAX_VALUES_SHOWN) as {"value", "count"}, the most frequent first; a "value"
    of None stands for the samples without one. "others" is the number of samples that these do not count. Raises:
    QuestionError if DuckDB takes too long.
    """
    grouped = f"GROUP BY ALL ORDER BY count(*) DESC, {column.sql} LIMIT {MAX_VALUES_SHOWN}"
    rows = _ask(index, query, f"{column.sql}, count(*)", grouped)
    values = [{"value": value, "count": count} for value, count in rows]
    uncounted = query.samples - sum(count for _, count in rows)
    return {"column": column.name, "kind": "values", "values": values, "others": uncounted}


def bin_facet(index: RowIndex, query: Query, column: IndexColumn) -> dict[str, Any]:
    """Return the facet of the numbers in *column*: {"column": its name, "kind": "histogram", "bins", "missing"}.

    A bin is {"from", "to", "count"}, and counts values from its "from" to below its "to", but for rounding; there are
    up to 24 (BINS), none if no sample has a number from -1e300 to 1e300 (MAX_BINNED_NUMBER). "missing" is the number of
    samples without one. Raises: QuestionError if DuckDB takes too long.
    """
    value = f"CAST({column.sql} AS DOUBLE)"
    number = f"CASE WHEN abs({value}) <= {MAX_BINNED_NUMBER} THEN {value} END"
    low, high, count = _ask(index, query, f"min({number}), max({number}), count({number})")[0]
    facet: dict[str, Any] = {"column": column.name, "kind": "histogram", "bins": [], "missing": query.samples - count}
    if not count:
        return facet
    edges = bin_edges(low, high, column.is_integer)
    width = (edges[-1] - edges[0]) / (len(edges) - 1)
    place = f"least(greatest(CAST(floor(({number} - ?) / ?) AS BIGINT), 0), {len(edges) - 2})"
    rows = _ask(index, query, f"{place} AS bin, count({number})", "GROUP BY ALL", (edges[0], width))
    counts = dict(rows)
    facet["bins"] = [{"from": edges[n], "to": edges[n + 1], "count": counts.get(n, 0)} for n in range(len(edges) - 1)]
    return facet


def bin_edges(low: float, high: float, is_integer: bool) -> list[float]:
    """Return the edges of the bins of a histogram from *low* to *high*, of equal width; the last is above *high*.

    There are 1 to 24 bins (BINS). *is_integer*: True for whole numbers: then edges are ints, unless *low* or *high* is
    2**53 or more from 0: floats, which need not be whole. One bin for numbers that are equal, or nearly.

    >>> bin_edges(0, 3, True), bin_edges(1, 100, True)[:3], bin_edges(5.0, 5.0, False)[0]
    ([0, 1, 2, 3, 4], [1, 6, 11], 5.0)
    >>> bin_edges(0.0, 0.0, False)
    [0.0, 5e-324]
    """
    if is_integer and abs(low) < 1 << 53 and abs(high) < 1 << 53:
        first, last = int(low), int(high) + 1
        step = max(1, -(-(last - first) // BINS))
        return [*range(first, last, step), first + -(-(last - first) // step) * step]
    above = math.nextafter(high, math.inf)
    width = (above - low) / BINS
    if above - low <= abs(low) * 1e-9 or not width:  # only zeros: a 24th of the least number is 0
        return [low, above]
    return [*(low + width * n for n in range(BINS)), above]


def count_missing(index: RowIndex, query: Query) -> list[dict[str, Any]]:
    """Return [{"field": name, "count": samples without it}] for the fields that some sample of *query* lacks.

    In the order of `index.fields`; [] if none is lacking, or the index has no fields. With several sets, a sample lacks
    a field that it has in no set. Raises: QuestionError if DuckDB takes too long.
    """
    columns: dict[str, list[str]] = {}
    for field in index.fields:
        columns.setdefault(field.name, []).append(quoted_name(field.size_column))
    if not columns:
        return []
    tests = [" AND ".join(f"{column} IS NULL" for column in names) for names in columns.values()]
    counts = _ask(index, query, ", ".join(f"count(*) FILTER (WHERE {test})" for test in tests))[0]
    return [{"field": field, "count": count} for field, count in zip(columns, counts, strict=True) if count]
