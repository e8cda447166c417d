"""Queries: which samples a person asked for, in which order. Their positions are kept in memory, for some queries."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import blake2b
from time import perf_counter
from typing import Any

from tartools.show.serve.rowconditions import (
    Condition,
    facet_conditions,
    join_conditions,
    sort_clause,
    sql_condition,
    words_condition,
)
from tartools.show.serve.rowindex import ROWS_TABLE, QuestionError, RowIndex
from tartools.tables import schema

MAX_QUERIES = 64  # that are kept
MAX_POSITION_BYTES = 256 << 20  # bytes of the positions of all queries that are kept
CHOSEN_TABLE = "chosen"  # the samples for which an expression is true, in SQL
MATCHES = f"rowid IN (SELECT position FROM {CHOSEN_TABLE})"  # noqa: S608
LANGUAGES = ("sql", "expression")


def position_table(positions: Any) -> dict[str, Any]:
    """Return {CHOSEN_TABLE: Arrow table of the array *positions*}: the table that the condition `MATCHES` names.

    It has one column, "position".
    """
    pa = schema.import_arrow()
    return {CHOSEN_TABLE: pa.table({"position": pa.array(positions)})}


Select = Callable[[str], Any]  # expression -> ascending positions of the samples for which it is true


class Query:
    """The samples of a query of the page, in an order; made by `Queries`, which sets the attributes.

    `request`: the parts of the query, as `parse_request` returns them
    `id`: a digest of these, by which the page names the query
    `chosen`: ascending positions of the samples for which an expression is true; None without an expression
    `condition`: the condition that the samples meet; with `chosen`, it names the table of these
    `positions`: positions of the samples in the data set, in the order of the query, an array of uint32; None stands
        for all samples in the order of the data set
    `samples`: number of the samples
    `seconds`: time that the query took
    `facets`: the facets of the samples, as `count_facets` returns them; None before they were asked for
    """

    def __init__(self, request: Mapping[str, Any], condition: Condition, chosen: Any) -> None:
        self.request = request
        self.condition = condition
        self.chosen = chosen
        self.positions: Any = None
        self.samples = 0
        self.seconds = 0.0
        self.facets: list[dict[str, Any]] | None = None
        self.id = blake2b(json.dumps(request, sort_keys=True).encode(), digest_size=12).hexdigest()

    @property
    def size(self) -> int:
        """The bytes that `positions` and `chosen` take in memory."""
        return sum(array.nbytes for array in (self.positions, self.chosen) if array is not None)

    @property
    def tables(self) -> dict[str, Any]:
        """The Arrow tables that `condition` names, by name; {} without an expression."""
        return {} if self.chosen is None else position_table(self.chosen)

    @property
    def sample_condition(self) -> tuple[Condition, dict[str, Any]]:
        """(condition, tables): a condition met by exactly the samples of this query, and its Arrow tables by name."""
        if self.condition.is_all or self.positions is None:
            return self.condition, self.tables
        return Condition(MATCHES), position_table(self.positions)

    def page(self, begin: int, end: int) -> list[int]:
        """Return the positions, in the data set, of samples *begin* to *end* (exclusive) of this query, in its order.

        Fewer where the samples end.
        """
        begin, end = max(begin, 0), min(end, self.samples)
        if begin >= end:
            return []
        return list(range(begin, end)) if self.positions is None else self.positions[begin:end].tolist()


class Queries:
    """The queries of *index*: `make` returns the one for a question, `find` one that is kept. Threads may share it.

    The last 64 used are kept (MAX_QUERIES), with `Query.size` of 256 MiB in all (MAX_POSITION_BYTES); the last one in
    any case. `select(text)`: returns the ascending positions of the samples for which the expression *text* is true, an
    array of uint32; raises QuestionError.
    """

    def __init__(self, index: RowIndex, select: Select) -> None:
        self._index = index
        self._select = select
        self._kept: OrderedDict[str, Query] = OrderedDict()  # least recently used first
        self._lock = threading.Lock()

    def find(self, query_id: str) -> Query | None:
        """Return the query *query_id*, which becomes the last one used; None if it is not kept any more."""
        with self._lock:
            query = self._kept.get(query_id)
            if query is not None:
                self._kept.move_to_end(query_id)
            return query

    def make(self, question: Mapping[str, Any]) -> Query:
        """Return the query for *question*, a JSON object of the page; its keys are listed at `parse_request`.

        An equal one that is kept is returned again. Raises: QuestionError for a wrong question, or one that takes too
        long.
        """
        request = parse_request(question)
        conditions = [
            words_condition(request.get("words", ""), self._index),
            facet_conditions(request.get("facets", ()), self._index),
        ]
        is_expression = request.get("language") == "expression"
        where = request.get("where", "")
        order = sort_clause(request.get("sort", ()), self._index)
        if where and not is_expression:
            conditions.append(sql_condition(where, self._index))
        query = Query(request, Condition(), None)
        existing = self.find(query.id)
        if existing is not None:
            return existing
        started = perf_counter()
        if where and is_expression:
            query.chosen = self._select(where)
            conditions.append(Condition(MATCHES))
        query.condition = join_conditions(conditions)
        self._number(query, order)
        query.seconds = perf_counter() - started
        self._keep(query)
        return query

    def _number(self, query: Query, order: str) -> None:
        """Set `positions` and `samples` of *query*. *order*: an ORDER BY clause; "" for the order of the data set.

        `positions` stays None if these are all samples in that order. Raises: QuestionError if DuckDB takes too long.
        """
        import numpy as np

        if query.condition.is_all and not order:
            query.samples = self._index.rows
            return
        sql = f"SELECT CAST(rowid AS UINTEGER) AS position FROM {ROWS_TABLE} WHERE {query.condition.sql}{order}"  # noqa: S608
        with self._index.cursor(sql, query.condition.parameters, query.tables) as cursor:
            query.positions = np.ascontiguousarray(cursor.fetchnumpy()["position"], np.uint32)
        query.samples = len(query.positions)

    def _keep(self, query: Query) -> None:
        """Keep *query*, and drop the least recently used ones beyond the limits; *query* itself stays in any case."""
        with self._lock:
            self._kept[query.id] = query
            while len(self._kept) > 1 and (
                len(self._kept) > MAX_QUERIES
                or sum(kept_query.size for kept_query in self._kept.values()) > MAX_POSITION_BYTES
            ):
                self._kept.popitem(last=False)


def parse_request(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a query that *question*, a JSON object of the page, has, without null, empty and blank ones.

    "words": words to search, a text, as for `words_condition`
    "where": a condition
    "language": that of "where": "sql" (the default) or "expression" (of tarfilter -S); left out without "where"
    "facets", "sort": lists of up to 100 objects, as for `facet_conditions` and `sort_clause`
    Raises: QuestionError for other types, longer lists, or another language. Other names are ignored.
    """
    types = {"words": str, "where": str, "language": str, "facets": list, "sort": list}
    request: dict[str, Any] = {}
    for name, type_ in types.items():
        value = question.get(name)
        if value is not None and not isinstance(value, type_):
            raise QuestionError(f"{name} is not a {type_.__name__}")
        if isinstance(value, list) and not (len(value) <= 100 and all(isinstance(part, dict) for part in value)):
            raise QuestionError(f"{name} is a list of up to 100 objects")
        if value and (not isinstance(value, str) or value.strip()):
            request[name] = value
    if request.setdefault("language", "sql") not in LANGUAGES:
        raise QuestionError(f"language is one of {' '.join(LANGUAGES)}")
    if "where" not in request:
        del request["language"]
    return request
