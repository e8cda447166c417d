"""Expressions over the fields of a sample: `int(cls) == 180`, `field('meta.json:width') > 500`.

They are Python's syntax for values, conditions, calls of given functions, and loops. An expression of unknown origin
does no harm: what may stand in one is said here, and `evaluating` has the limits of what it takes.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from tartools.errors import SampleError, TarToolsError, UsageError, option
from tartools.samples.encoding import split_codec
from tartools.samples.filetypes import FACT_FUNCTIONS
from tartools.samples.payloads import unpack_member
from tartools.samples.sample import Sample, failure_of, field_name
from tartools.samples.values import PSEUDO_FIELDS, Column, field_list, find_value, parse_column
from tartools.stages.filtering.evaluating import (
    ALLOWED_METHODS,
    CHARS_MADE_PER_STEP,
    CHARS_READ_PER_STEP,
    Evaluator,
    LimitError,
    dot_advice,
)
from tartools.tar import Member

HEADER_STEPS = 1000  # steps to look at the header of a picture, a sound or a video
MAX_CACHED_NAMES = 1000  # names of fields that are kept, and characters of each
MAX_VALUES_IN_MESSAGE = (
    12  # values of a field that are told where nothing matches, of at most MAX_VALUE_CHARS characters
)
MAX_VALUE_CHARS = 40

Ask = tuple[str, str]  # what an expression asks of a sample: one of FIELD_FUNCTIONS, and the name it is given
Measure = Callable[[str, Member], Any]  # name of a fact, such as "seconds", and payload -> the fact


class _AbsentError(Exception):
    """Raised when the sample lacks a value that the expression uses; its argument is the name."""


class ExcessError(SampleError):
    """The expression exceeds a limit on a sample. That is an error even where other errors count as false."""


class Expression:
    """An expression that selects samples: `matches` or `evaluate` give its truth.

    A name is the text of that field; `key` is the key. `field('meta.json')` is a field whose name is not a Python name,
    `field('meta.json:size.0')` a value inside JSON, `has('txt')` whether the sample has a field, `size('jpg')` the
    bytes of its payload, `width('jpg')`, `height('jpg')`, `seconds('flac')`, `rate('flac')` and `fps('mp4')` what its
    header says, `match('^n0', cls)` whether a regular expression matches anywhere in a text. The other functions are
    int, float, str, len, abs, min, max, round. `'jpg;webp'` is the first of these fields that the sample has.

    `verbatim`: case matters in names of fields. `measure(name, member)`: returns a fact of a payload, or raises
    ValueError; by default `kinds.fact_of`.
    `questions`: questions about a sample, as (function, name); None if names are computed. `unseen`: fields that the
    expression used and no sample had. `fields_seen`: fields that samples had instead. Both stay empty if names are
    computed, or if a table had answers for all samples.

    Raises: UsageError on construction if the text is not an expression, uses what expressions may not, or has a pattern
    that is no regular expression, or too long.
    """

    def __init__(self, text: str, *, verbatim: bool = False, measure: Measure | None = None) -> None:
        functions: dict[str, Callable[..., Any]] = {"field": self._field, "has": self._has, "size": self._size}
        functions |= {name: partial(self._fact, name) for name in FACT_FUNCTIONS}
        self._text = text
        self._verbatim = verbatim
        self._measure = measure or _measure
        self._evaluator = Evaluator(self._value, functions)
        self._node = parse_expression(text, self._evaluator.functions)
        self.questions = _find_questions(self._node)
        self._answers: Mapping[Ask, Any] = {}
        self._read: Callable[[], Sample] = lambda: Sample(b"")
        self._index = 0
        self._columns: dict[str, Column] = {}
        for pattern in _patterns(self._node):
            self._evaluator.check_pattern(pattern)
        self.unseen: dict[str, None] = {}
        self.fields_seen: dict[str, None] = {}
        self._names_present: set[str] = set()
        self._values: (
            dict[str, dict[Any, None] | None] | None
        ) = {}  # until a sample matches; None for more than MAX_VALUES_IN_MESSAGE

    def matches(self, sample: Sample, index: int = 0) -> bool:
        """True if the expression is true for *sample*; False if it is false, or uses a value that the sample lacks.

        `index`: number of the sample in the input, from 0. Raises: SampleError, naming the sample, if the expression
        fails on its values; ExcessError, a SampleError, if it exceeds a limit; UsageError for a name that is no column
        (`parse_column`), or if a pattern that it computes is no regular expression; StorageError if a file has changed.
        """
        try:
            return self._evaluate(lambda: sample, index, {})
        except _AbsentError:
            return False

    def evaluate(
        self, read: Callable[[], Sample], index: int, answers: Mapping[Ask, Any], *, lenient: bool = False
    ) -> bool:
        """True if the expression is true for the sample that `read()` returns, number *index* (from 0) of the input.

        `answers`: (function, field) -> result, used instead of the sample; None is the answer for a value or size that
        the sample lacks; a fact whose answer is None is measured from the sample. With *lenient*, the result is False
        if the expression fails on the sample or lacks a value; not if it exceeds a limit, which may depend on the
        machine: that is an ExcessError.

        Raises: ExcessError; SampleError, naming the sample, if it fails or lacks a value, unless *lenient*. With
        *lenient*, too: UsageError for a name that is no column (`parse_column`), or if a pattern that the expression
        computes is no regular expression; StorageError; the TarToolsErrors of *read*, except a SampleError.
        """
        try:
            return self._evaluate(read, index, answers, lenient)
        except _AbsentError as absent:
            if lenient:
                return False
            sample = read()
            advice = f" ({option('ignore-errors')} treats EXPR as false for such samples)"
            advice = self._dot_advice(str(absent)) or advice
            problem = f" has no {str(absent)!r}; its fields are: {field_list(sample.fields)}{advice}"
            raise failure_of(sample, problem) from None
        except SampleError as error:
            if lenient and not isinstance(error, ExcessError):
                return False
            raise

    def _evaluate(
        self, read: Callable[[], Sample], index: int, answers: Mapping[Ask, Any], lenient: bool = False
    ) -> bool:
        self._read, self._index, self._answers = read, index, answers
        try:
            is_true = bool(self._evaluator.evaluate(self._node))
        except (TarToolsError, _AbsentError, MemoryError):
            raise
        except (LimitError, RecursionError) as error:
            why = "too many parts are inside each other" if isinstance(error, RecursionError) else str(error)
            sample = read()
            raise ExcessError(
                f"sample {sample.key!r}: {self._text[:200]}: {why} (see --help)", url=sample.shard
            ) from None
        except Exception as error:  # a user's expression can raise anything
            if lenient:
                return False
            why = str(error.args[-1] if isinstance(error, OverflowError) else error)[:200] or type(error).__name__
            advice = _json_path_advice(self._node) if isinstance(error, (TypeError, AttributeError)) else ""
            sample = read()
            raise failure_of(sample, f": {self._text[:200]}: {why}{advice}") from error
        if is_true:
            self._values = None
        return is_true

    def _dot_advice(self, name: str) -> str:
        """Return advice if *name* stands before a dot and a word that is no method, as in meta.width; "" if not.

        It is the end of a message: the text of `dot_advice` in parentheses, after a blank.
        """
        methods = [method for names in ALLOWED_METHODS.values() for method in names]
        for part in ast.walk(self._node):
            if isinstance(part, ast.Attribute) and ast.unparse(part.value) == name and part.attr not in methods:
                return f" ({dot_advice(part)})"
        return ""

    def describe_values(self) -> str:
        """Return the end of a message, such as "; values of cls: '1', '2'", with the values that were looked up so far.

        Only of fields with up to 12 values (MAX_VALUES_IN_MESSAGE), all short; "" if there is none, or once a sample
        matched.
        """
        several = {name: values for name, values in (self._values or {}).items() if values}
        return "".join(f"; values of {name}: {', '.join(map(repr, values))}" for name, values in several.items())

    def lookup(self, name: str) -> tuple[Any] | None:
        """Return (value,) of the column *name* ("cls", "json:a.b") of the current sample; None if it has no value.

        The current sample is that of the running `matches` or `evaluate`; an answer of a table is taken first. The
        value is text, but in JSON, and for `__index__` and `__size__`, it keeps its type. It is recorded for messages.
        Raises: LimitError if reading it exceeds the steps of the evaluation; SampleError for a value that can't be
        read; StorageError if the file has changed; UsageError if `parse_column` refuses the name.
        """
        if ("field", name) in self._answers:
            value = self._answers["field", name]
            result = None if value is None else (value,)
        else:
            column = self._column(name)
            sample = self._read()
            if column.path:  # the JSON is read
                members = (sample.member(choice, verbatim=self._verbatim) for choice in column.choices)
                self._evaluator.spend(sum(member.size for member in members if member) // CHARS_MADE_PER_STEP)
            result = find_value(sample, column, self._index, verbatim=self._verbatim)
            if result is not None and isinstance(result[0], str):
                self._evaluator.spend(len(result[0]) // CHARS_READ_PER_STEP)
        if name not in self._names_present:
            self._record_presence(name, result is not None)
        if self._values is not None and result is not None and name not in PSEUDO_FIELDS:
            self._record_value(self._values, name, result[0])
        return result

    def _column(self, name: str) -> Column:
        if name not in self._columns:
            if len(self._columns) == MAX_CACHED_NAMES:
                self._columns.clear()
            self._columns[name] = parse_column(name)
        return self._columns[name]

    def _record_presence(self, name: str, is_present: bool) -> None:
        """Record in `unseen` and `fields_seen` that the current sample had *name*, if *is_present*, or not.

        Do nothing if names are computed, since there may be many, or once a sample had *name*; and record no absence if
        a table gave answers for the sample.
        """
        if name not in self._names_present and self.questions is not None:
            if is_present:
                self._names_present.add(name)
                self.unseen.pop(name, None)
            elif not self._answers:
                self.unseen[name] = None
                self.fields_seen.update(dict.fromkeys(self._read().fields))

    def _record_value(self, values: dict[str, dict[Any, None] | None], name: str, value: Any) -> None:
        """Add *value* to the distinct values of *name* in *values*, in place, for messages.

        Sets None instead, which stays, for over 12 values (MAX_VALUES_IN_MESSAGE), a text of over 40 characters
        (MAX_VALUE_CHARS), a value that is no text or number, and in an expression that computes names.
        """
        distinct = values.setdefault(name, {})
        if distinct is None or (isinstance(value, (str, int, float)) and value in distinct):
            return
        short = isinstance(value, (int, float)) or (isinstance(value, str) and len(value) <= MAX_VALUE_CHARS)
        if short and len(distinct) < MAX_VALUES_IN_MESSAGE and self.questions is not None:
            distinct[value] = None
        else:
            values[name] = None

    def _value(self, name: str) -> Any:
        return self._require("__key__" if name == "key" else name)

    def _field(self, name: str) -> Any:
        return self._require(_check_name(name))

    def _require(self, name: str) -> Any:
        result = self.lookup(name)
        if result is None:
            raise _AbsentError(name)
        return result[0]

    def _has(self, name: str) -> bool:
        if ("has", _check_name(name)) in self._answers:
            return bool(self._answers["has", name])
        column = self._column(name)
        if column.path or name.startswith("__"):
            return self.lookup(name) is not None
        is_present = any(self._read().member(choice, verbatim=self._verbatim) for choice in column.choices)
        self._record_presence(name, is_present)
        return is_present

    def _member(self, name: str) -> Member:
        members = (self._read().member(choice, verbatim=self._verbatim) for choice in self._column(name).choices)
        member = next(filter(None, members), None)
        self._record_presence(name, member is not None)
        if member is None:
            raise _AbsentError(name)
        return member

    def _size(self, name: str) -> int:
        if ("size", _check_name(name)) not in self._answers:
            return self._member(name).size
        size = self._answers["size", name]
        if size is None:
            raise _AbsentError(name)
        return int(size)

    def _fact(self, function: str, name: str) -> int | float:
        answer = self._answers.get((function, _check_name(name)))
        if answer is not None:
            return FACT_FUNCTIONS[function](answer)
        member = self._member(name)
        self._evaluator.spend(HEADER_STEPS)
        if split_codec(field_name(member))[1] is not None:
            self._evaluator.spend(member.size // CHARS_MADE_PER_STEP)
            member = unpack_member(member)
        try:
            return FACT_FUNCTIONS[function](self._measure(function, member))
        except ValueError as error:
            raise ValueError(f"{function}({name!r}): {error}") from None


def _check_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > MAX_CACHED_NAMES:
        raise TypeError(f"the name of a field is a text of at most {MAX_CACHED_NAMES:,} characters")
    return name


def _find_questions(node: ast.expr) -> list[Ask] | None:
    """Return the questions of *node* about a sample, as (function, field), each once; None if a name is computed.

    A plain name asks ("field", name), `key` for `__key__`; names of loops and of functions that are called ask nothing.
    None, too, if a function of FIELD_FUNCTIONS does not get one argument.
    """
    called = called_functions(node)
    names = (
        {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        - {name for name, _ in called}
        - loop_names(node)
    )
    questions = [("field", "__key__" if name == "key" else name) for name in sorted(names)]
    for function, arguments in called:
        if function in FIELD_FUNCTIONS:
            if len(arguments) != 1 or not isinstance(arguments[0], ast.Constant):
                return None
            questions.append((function, str(arguments[0].value)))
    return list(dict.fromkeys(questions))


def _patterns(node: ast.expr) -> list[str]:
    first = [arguments[0] for name, arguments in called_functions(node) if name == "match" and arguments]
    return [part.value for part in first if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def _measure(name: str, member: Member) -> Any:
    from tartools.samples.kinds import fact_of

    return fact_of(name, member)


# ---- what may stand in one ----


MAX_NESTING = 100  # parts inside each other
FIELD_FUNCTIONS = ("field", "has", "size", *FACT_FUNCTIONS)  # functions that take the name of a field
ALLOWED_NODES = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.ListComp, ast.GeneratorExp),
)
FOREIGN_OPERATORS = (  # operators of other languages, and ours
    *((r"&&", "and"), (r"\|\|", "or"), (r"!(?!=)", "not"), (r"<>", "!="), (r"===", "==")),
    *((r"\bAND\b", "and"), (r"\bOR\b", "or"), (r"\bNOT\b", "not")),
)
SEARCH_METHODS = ("contains", "search", "match", "fullmatch", "findall")  # of other libraries
RESERVED_WORDS = {*keyword.kwlist} - {
    "and",
    "or",
    "not",
    "in",
    "is",
    "if",
    "else",
    "for",
    "lambda",
    "True",
    "False",
    "None",
}


def parse_expression(text: str, functions: Iterable[str]) -> ast.expr:
    """Return the syntax tree of the expression *text*, which may call *functions*, by name, and ALLOWED_METHODS.

    Raises: UsageError if it is no expression, is nested over 100 levels deep (MAX_NESTING), or has something that
    expressions may not have, such as lambda, a dict or an unknown function.
    """
    try:
        body = ast.parse(text.strip(), mode="exec").body
    except (MemoryError, RecursionError):  # the stack of Python's parser is full
        raise UsageError(f"not an expression: it is nested over {MAX_NESTING} levels deep") from None
    except (SyntaxError, ValueError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        hint = _advise(text)
        raise UsageError(f"not an expression: {text!r}: {hint or why}") from None
    if len(body) != 1 or not isinstance(body[0], ast.Expr):
        is_comparison = len(body) == 1 and isinstance(body[0], ast.Assign)
        hint = "to compare, write ==" if is_comparison else _advise(text)
        raise UsageError(f"not an expression: {text!r}{f' ({hint})' if hint else ''}")
    node = body[0].value
    level: list[ast.AST] = [node]
    for _ in range(MAX_NESTING):
        level = [inner for part in level for inner in ast.iter_child_nodes(part)]
    if level:
        raise UsageError(f"not an expression: it is nested over {MAX_NESTING} levels deep")
    own, function_names = loop_names(node), tuple(functions)
    for part in ast.walk(node):
        if isinstance(part, ast.MatMult) or (isinstance(part, ast.expr) and not isinstance(part, ALLOWED_NODES)):
            raise UsageError(f"this is not allowed in an expression: {ast.unparse(part)}")
        if isinstance(part, ast.comprehension):
            _check_loop(part)
        if isinstance(part, ast.Call):
            _check_call(part, function_names, own)
    return node


def called_functions(node: ast.expr) -> list[tuple[str, list[ast.expr]]]:
    """Return (name, arguments) of each call of a function in the expression *node*; methods are left out.

    Arguments with a keyword are left out, too.
    """
    call_nodes = (part for part in ast.walk(node) if isinstance(part, ast.Call))
    return [(call.func.id, call.args) for call in call_nodes if isinstance(call.func, ast.Name)]


def loop_names(node: ast.expr) -> set[str]:
    """Return the names that loops in the expression *node* give to their items."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _advise(text: str) -> str:
    """Return advice about the likely mistake in *text*, which is no expression; "" if none is found.

    Mistakes: operators of other languages, `contains`, a field written with a dot or colon, a word reserved in Python.
    """
    import re

    plain = re.sub(r"""'[^']*'|"[^"]*\"""", "''", text)
    for pattern, word in FOREIGN_OPERATORS:
        if match := re.search(pattern, plain):
            return f"in place of {match[0]} write {word}"
    if match := re.search(r"\b([A-Za-z]\w*)\s+(?:(?:contains|i?like|I?LIKE)\b|=?~)", plain):
        return _search_advice(match[1])
    if match := re.search(r"\b([A-Za-z][\w.]*?)(?:\.(?!.*:)|:)([A-Za-z][\w.]*)", plain):
        return json_advice(match[1], match[2])
    if match := next((word for word in re.finditer(r"\b[a-z]+\b", plain) if word[0] in RESERVED_WORDS), None):
        return f"{match[0]} has a meaning in Python: as the name of a field write field('{match[0]}')"
    return ""


def _search_advice(field: str) -> str:
    """Return advice how to look for a part of the text of *field* in an expression."""
    return f"to look for a part of a text write 'part' in {field}, or match('p[ae]rt', {field})"


def json_advice(field: str, path: str) -> str:
    """Return advice how to write, in an expression, the value at *path* inside the JSON of *field*.

    >>> json_advice("json", "class")
    "a value inside JSON is field('json:class')"
    """
    return f"a value inside JSON is field('{field}:{path}')"


def _json_path_advice(node: ast.expr) -> str:
    """Return advice for the first part of *node* such as json['class'], json.width or cls.lower; "" if there is none.

    It is the end of a message: the text of `json_advice` in parentheses, after a blank.
    """
    for part in ast.walk(node):
        if not isinstance(part, ast.Subscript | ast.Attribute) or not isinstance(part.value, ast.Name):
            continue
        name = part.attr if isinstance(part, ast.Attribute) else getattr(part.slice, "value", None)
        if isinstance(name, str):
            return f" ({json_advice(part.value.id, name)})"
    return ""


def _check_loop(loop: ast.comprehension) -> None:
    targets = loop.target.elts if isinstance(loop.target, (ast.Tuple, ast.List)) else [loop.target]
    if loop.is_async or not all(isinstance(target, ast.Name) for target in targets):
        raise UsageError(f"not an expression: a loop has plain names, not {ast.unparse(loop.target)}")


def _check_call(call: ast.Call, functions: tuple[str, ...], own: set[str]) -> None:
    """Raise UsageError unless *call* calls one of *functions*, by name, or a method of ALLOWED_METHODS, without **.

    A function that takes the name of a field needs it in quotes, unless it is one of *own*, the names of loops.
    """
    called, methods = call.func, [name for names in ALLOWED_METHODS.values() for name in names]
    if any(keyword.arg is None for keyword in call.keywords):
        raise UsageError(f"** is not allowed in an expression: {ast.unparse(call)}")
    if isinstance(called, ast.Attribute):
        if called.attr not in methods:
            words = ast.unparse(called.value), ast.unparse(call.args[-1]) if call.args else ""
            searched = next((word for word in words if word.isidentifier() and word != "re"), "txt")
            advice = _search_advice(searched) if called.attr in SEARCH_METHODS else f"these are: {' '.join(methods)}"
            raise UsageError(f".{called.attr}() is not allowed in an expression; {advice}")
        return
    if not isinstance(called, ast.Name):
        raise UsageError(f"not a function: {ast.unparse(called)}")
    if called.id not in functions:
        raise UsageError(f"unknown function {called.id!r}; the functions are: {' '.join(functions)}")
    if called.id in FIELD_FUNCTIONS and len(call.args) == 1:
        base = name = call.args[0]
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Name) and base.id not in own:
            field = ast.unparse(name)
            raise UsageError(f"{called.id}({field}): the name of a field has quotes here: {called.id}('{field}')")
