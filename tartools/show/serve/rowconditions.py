"""Conditions of samples, from the page: words, facets, and one condition of SQL, as a WHERE over the rows of the index.

What a person types as SQL is parsed by DuckDB, and must be one condition: comparisons of columns and constants, and
functions of a list. Subqueries, table functions and settings are refused before anything runs, and so are functions
that make long texts, since DuckDB's limit of memory does not count these.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tartools.show.serve.rowindex import ROWS_TABLE, IndexColumn, QuestionError, RowIndex, quoted_name

MAX_CONDITION_CHARS = 4000  # of SQL or of an expression
MAX_WORDS = 32
ALLOWED_CLASSES = frozenset(
    ("CONSTANT", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "OPERATOR", "FUNCTION", "CAST", "CASE", "BETWEEN")
)
# Functions that make nothing much longer than their arguments, and read nothing else.
# fmt: off
ALLOWED_FUNCTIONS = frozenset((
    "+", "-", "*", "/", "//", "%", "&", "|", "~", "<<", ">>", "~~", "!~~", "~~*", "!~~*", "~~~", "^@", "abs", "ceil",
    "ceiling", "floor", "round", "trunc", "sign", "sqrt", "cbrt", "ln", "log", "log2", "log10", "exp", "pow",
    "power", "mod", "greatest", "least", "xor", "bit_count", "lower", "upper", "lcase", "ucase", "trim", "ltrim",
    "rtrim", "length", "len", "strlen", "char_length", "contains", "starts_with", "ends_with", "prefix", "suffix",
    "position", "strpos", "instr", "substring", "substr", "left", "right", "split_part", "regexp_matches",
    "regexp_full_match", "regexp_extract", "like_escape", "ilike_escape", "not_like_escape", "not_ilike_escape",
    "nullif", "ifnull", "isnan", "isinf", "isfinite", "list_contains", "array_contains", "list_has", "array_has",
    "array_length", "struct_extract", "array_extract", "list_extract", "element_at", "year", "month", "day", "hour",
    "date_part", "date_trunc", "hamming", "hamming_distance", "hex", "md5", "hash", "unicode", "ascii",
    "octet_length",
))
# fmt: on


class Condition(NamedTuple):
    """A condition as SQL, with the values of its parameters (?), in order; by default the one that all samples meet."""

    sql: str = "TRUE"
    parameters: tuple[object, ...] = ()

    @property
    def is_all(self) -> bool:
        """True for the condition that all samples meet."""
        return self.sql == "TRUE"


def join_conditions(conditions: Sequence[Condition]) -> Condition:
    """Return the condition that all *conditions* are met; the one that all samples meet if there are none."""
    real = [condition for condition in conditions if not condition.is_all]
    if not real:
        return Condition()
    sql = " AND ".join(f"({condition.sql})" for condition in real)
    return Condition(sql, tuple(value for condition in real for value in condition.parameters))


def words_condition(words: str, index: RowIndex) -> Condition:
    """Return the condition that each of *words* occurs in one of `index.text_columns`, ignoring case.

    *words*: separated by blanks, quoted as in a shell; if a quote lacks its end, or the last character is a backslash,
    quotes and backslashes are plain characters. Without words, all samples meet the condition.
    Where `column` is a column of *index*, `column==value` means that its value, as text, is exactly this, and
    `column=part` that it contains this part, ignoring case.
    Raises: QuestionError for over 32 words (MAX_WORDS), or if there is no column of text to search for a plain word.
    """
    try:
        texts = shlex.split(words)
    except ValueError:  # a quote without its other one
        texts = words.split()
    if len(texts) > MAX_WORDS:
        raise QuestionError(f"more than {MAX_WORDS} words")
    return join_conditions([_word_condition(text, index) for text in texts])


def _word_condition(word: str, index: RowIndex) -> Condition:
    """Return the condition for *word*, one word of a search: it occurs in one of `index.text_columns`.

    Case is ignored. `column==value` and `column=part` are about the one column, if *index* has it: its value as text is
    exactly this, or contains this part, ignoring case. Raises: QuestionError for another word if there is no column of
    text to search.
    """
    name, is_whole, value = word.partition("==")
    if is_whole and name in index.columns:
        return Condition(f"CAST({index.columns[name].sql} AS VARCHAR) = ?", (value,))
    name, is_part, value = word.partition("=")
    if is_part and name in index.columns:
        return Condition(f"contains(lower(CAST({index.columns[name].sql} AS VARCHAR)), lower(?))", (value,))
    texts = index.text_columns
    if not texts:
        raise QuestionError("there is no text to search: the table has neither keys nor columns of text")
    sql = " OR ".join(f"contains(lower({column.sql}), lower(?))" for column in texts)
    return Condition(sql, (word,) * len(texts))


def facet_conditions(facets: Sequence[Mapping[str, Any]], index: RowIndex) -> Condition:
    """Return the condition that all *facets* are met.

    A facet is an object of the page: {"broken": true or false}, {"missing": field}, {"column", "value"} (null, too) or
    {"column", "from", "to"}, numbers, the second exclusive. Raises: QuestionError for another form, an unknown column
    or field, a range of a column that has no numbers, or "broken" if *index* does not say which payloads are.
    """
    return join_conditions([_facet_condition(facet, index) for facet in facets])


def _facet_condition(facet: Mapping[str, Any], index: RowIndex) -> Condition:
    """Return the condition of one *facet*: broken or sound samples, a missing field, a value, or a range of numbers.

    Its forms are {"broken": true or false}, {"missing": field}, {"column", "value"} and {"column", "from", "to"}; a
    value may be null; a range is from "from" to below "to". A field is missing if no set has it. Raises: QuestionError
    for another form, an unknown column or field, a range of a column that has no numbers, or "broken" if *index* does
    not say which payloads are.
    """
    if "broken" in facet:
        condition = broken_condition(index)
        return condition if facet["broken"] else Condition(f"NOT ({condition.sql})")
    if "missing" in facet:
        sizes = [quoted for field, quoted in _size_columns(index) if field == facet["missing"]]
        if not sizes:
            raise QuestionError(f"no sample has the field {str(facet['missing'])[:60]!r}")
        return Condition(" AND ".join(f"{quoted} IS NULL" for quoted in sizes))
    column = find_column(index, facet.get("column"))
    if "value" in facet:
        if facet["value"] is None:
            return Condition(f"{column.sql} IS NULL")
        return Condition(f"{column.sql} = ?", (_plain_value(facet["value"]),))
    low, high = (_plain_value(facet.get(name)) for name in ("from", "to"))
    if column.type != "number" or not all(isinstance(bound, (int, float)) for bound in (low, high)):
        raise QuestionError("a facet has a value, or numbers from and to, or a missing field")
    return Condition(f"{column.sql} >= ? AND {column.sql} < ?", (low, high))


def broken_condition(index: RowIndex) -> Condition:
    """Return the condition that a payload of a sample is broken: one of the columns of faults is not null.

    Raises: QuestionError if *index* has no such columns.
    """
    if not index.has_faults:
        raise QuestionError("nothing is known of broken samples: start tarshow --serve --decode")
    return Condition(" OR ".join(f"{column.sql} IS NOT NULL" for column in index.fault_columns))


def _size_columns(index: RowIndex) -> Iterator[tuple[str, str]]:
    """Yield (field, quoted name of the column of its sizes) of all fields of *index*, in all sets.

    A field of several sets comes once for each.
    """
    for field in index.fields:
        yield field.name, quoted_name(field.size_column)


def find_column(index: RowIndex, name: object) -> IndexColumn:
    """Return the column *name* of *index*. Raises: QuestionError if there is none."""
    column = index.columns.get(name) if isinstance(name, str) else None
    if column is None:
        raise QuestionError(f"there is no column {str(name)[:60]!r}")
    return column


def _plain_value(value: object) -> object:
    if value is not None and not isinstance(value, (str, int, float, bool)):
        raise QuestionError("a value is a text, a number or a truth value")
    return value


def sort_clause(sort: Sequence[Mapping[str, Any]], index: RowIndex) -> str:
    """Return the ORDER BY clause for *sort*, with a blank before it; "" if *sort* is empty.

    *sort*: {"column": name, "descending": true or false} for each column, the most important first; ascending without
    "descending". Nulls come last, equal samples in the order of the data set. Raises: QuestionError for an unknown
    column.
    """
    parts = [
        f"{find_column(index, part.get('column')).sql} {'DESC' if part.get('descending') else 'ASC'} NULLS LAST"
        for part in sort
    ]
    return f" ORDER BY {', '.join([*parts, 'rowid'])}" if parts else ""


def sql_condition(text: str, index: RowIndex) -> Condition:
    """Return the condition *text*, in SQL, after a check; the one that all samples meet if *text* is blank.

    Names of columns are not checked. Raises: QuestionError if it is not one condition of allowed parts and functions
    (see `_check_allowed`), or longer than 4000 characters (MAX_CONDITION_CHARS).
    """
    if len(text) > MAX_CONDITION_CHARS:
        raise QuestionError(f"this is longer than {MAX_CONDITION_CHARS} characters")
    if not text.strip():
        return Condition()
    statement, template = _parse(text, index), _parse("TRUE", index)
    node, plain = statement["node"], template["node"]
    condition = node.pop("where_clause", None)
    plain.pop("where_clause", None)
    if condition is None or node != plain:
        raise QuestionError("write one condition, as behind WHERE: no UNION, GROUP BY, ORDER BY or LIMIT")
    _check_allowed(condition)
    return Condition(f"{text}\n")  # the line ends a comment


def _parse(text: str, index: RowIndex) -> Any:
    """Return the statement of a query with the condition *text*, as DuckDB parses it: JSON. Nothing of it runs.

    Raises: QuestionError if it is not SQL, or several statements.
    """
    query = f"SELECT 1 FROM {ROWS_TABLE} WHERE ({text}\n)"  # noqa: S608  # parsed, not run
    parsed = json.loads(index.ask("SELECT CAST(json_serialize_sql(?) AS VARCHAR)", [query])[0][0])
    if parsed.get("error"):
        raise QuestionError(str(parsed.get("error_message", "this is not SQL")))
    if len(parsed["statements"]) != 1:
        raise QuestionError("write one condition, as behind WHERE")
    return parsed["statements"][0]


def _check_allowed(part: Any) -> None:
    """Raise QuestionError if *part*, of a condition as DuckDB parses it (JSON), has a class or a function not allowed.

    Allowed are `ALLOWED_CLASSES` and `ALLOWED_FUNCTIONS`.
    """
    if isinstance(part, list):
        for element in part:
            _check_allowed(element)
    elif isinstance(part, dict):
        kind = part.get("class")
        if isinstance(kind, str) and kind not in ALLOWED_CLASSES:
            raise QuestionError(f"a condition may not have a {kind.lower().replace('_', ' ')}")
        name = part.get("function_name")
        if isinstance(name, str) and name.lower() not in ALLOWED_FUNCTIONS:
            raise QuestionError(f"the function {name} is not allowed in a condition")
        for element in part.values():
            _check_allowed(element)
