"""A filter of samples: conditions on keys, fields and values, which come from samples or from table columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tartools.samples.account import Account
from tartools.samples.batch import Batch, SampleColumns
from tartools.samples.filekeys import key_of_file
from tartools.samples.filetypes import FACT_FUNCTIONS
from tartools.samples.sample import Sample
from tartools.samples.values import INDEX_NAME, PSEUDO_FIELDS, Column, as_text, field_list
from tartools.stages import shares
from tartools.tables.listed import column_names, values_without_reading
from tartools.tar.groups import Need

if TYPE_CHECKING:
    from tartools.stages.filtering.expression import Ask, Expression


class Filter:
    """Chooses the samples that meet all given conditions: `flags` and `flags_of_keys` return a flag for each sample.

    Pass the whole input, in order: the filter numbers the samples for the expression, and counts them for `warn`.

    `keys`: the key is among these; None: any key. `numbers`: for each (function, range), the function's number for the
    key is in the range; with `group`, the number for the value of that column, as bytes. `words`: of each tuple of
    alternatives, the sample has a field. `expression`: is true for the sample; one on which it fails is an error, or,
    with `lenient`, does not meet it; None: no such condition.
    `invert`: choose the samples that fail a condition. `verbatim`: for names of fields case matters, and
    final newlines of values stay.
    """

    def __init__(
        self,
        *,
        keys: set[bytes] | None = None,
        numbers: Sequence[tuple[Callable[[bytes], int], range]] = (),
        group: Column | None = None,
        verbatim: bool = False,
        words: Sequence[tuple[str, ...]] = (),
        expression: Expression | None = None,
        lenient: bool = False,
        invert: bool = False,
    ) -> None:
        self._keys = keys
        self._numbers = numbers
        self._group = group
        self._verbatim = verbatim
        self._words = words
        self._expression = expression
        self._lenient = lenient
        self._invert = invert
        self._index = 0
        self._chosen = 0
        self._absent_keys = set(keys or ())
        self._absent_words = set(words)
        self._fields_seen: dict[str, None] = {}

    @property
    def is_by_key(self) -> bool:
        """True if all conditions are on keys, so that `flags_of_keys` can be called."""
        return not self._words and self._expression is None and self._group is None

    @property
    def questions(self) -> list[Ask] | None:
        """The questions of `words` and the expression about a sample, as (function, field): ("has", "txt").

        The expression `key` asks ("field", "__key__"). `group` asks nothing. None if the expression computes names of
        fields.
        """
        questions: list[Ask] = [("has", name) for choices in self._words for name in choices]
        if self._expression is None:
            return questions
        return None if self._expression.questions is None else questions + self._expression.questions

    @property
    def need(self) -> Need:
        """The parts of each sample that the reader has to provide: its place if all conditions are on keys, or more.

        Its fields for `words`, has() and size(); its payloads for `group` and all other expressions, also for `key`.
        """
        if self.is_by_key:
            return Need.PLACES
        asks_payloads = (
            self._group is not None
            or self.questions is None
            or any(how not in ("has", "size") for how, _ in self.questions)
        )
        return Need.PAYLOADS if asks_payloads else Need.FIELDS

    def columns(self) -> list[str]:
        """Return the names of the table columns that may answer the conditions without the sample.

        `__key__` is always the first. With `verbatim`, the columns of `group`, and those with values of fields, are
        left out; those with facts, such as `jpg.width`, and pseudo-fields stay. The columns of members, which answer
        "has" and "size", are not among them. If the expression computes names, it has no columns.
        """
        verbatim = self._verbatim
        names = ["__key__", *(column_names([self._group]) if self._group is not None and not verbatim else ())]
        for how, name in self.questions or ():
            if how in FACT_FUNCTIONS:
                names.append(f"{name}.{how}")
            elif name in PSEUDO_FIELDS or (how in ("has", "field") and not verbatim):
                names.append(name)
        return list(dict.fromkeys(names))

    def flags(self, batch: Batch) -> list[bool]:
        """Return a flag for each sample of *batch*, the next samples of the input: True if the filter chooses it.

        Raises: SampleError, naming the sample, if the expression fails on it (unless `lenient`), if two members match a
        name of `words`, or if it meets all other conditions and its value of the group is missing or can't be read;
        ExcessError, even if `lenient`, and UsageError as `Expression.evaluate` says; StorageError if a file has changed
        or values in columns are invalid.
        """
        flags = self._key_flags(batch.keys if self._keys is not None or self._numbers else (), len(batch))
        if not self.is_by_key:
            first = self._index
            columns = batch.columns
            answers = {} if columns is None else self._answers(columns, first)
            # `reads` return the sample when it is needed. If columns have all answers, one is read only for a message;
            # otherwise samples are read as the batch is iterated, many at a time.
            reads: Iterator[Callable[[], Sample]] = (partial(_identity, sample) for sample in batch)
            if columns is not None and self.questions is not None and answers.keys() >= set(self.questions):
                reads = (partial(batch.__getitem__, number) for number in range(len(batch)))
            for number, (read, flag) in enumerate(zip(reads, flags, strict=True)):
                if flag:
                    row_answers = {ask: column[number] for ask, column in answers.items()} if answers else {}
                    # not by a generator, which would not ask for the words behind the first that is missing
                    has_words = [self._has_one(choices, read, row_answers) for choices in self._words]
                    flags[number] = all(has_words) and (
                        self._expression is None
                        or self._expression.evaluate(read, first + number, row_answers, lenient=self._lenient)
                    )
            if self._group is not None and any(flags):
                self._clear_flags_of_groups(batch, flags, self._group)
        return self._invert_and_count(flags)

    def _clear_flags_of_groups(self, batch: Batch, flags: list[bool], group: Column) -> None:
        """Set *flags* to False, in place, for samples whose value of *group* has a number out of range.

        A sample whose flag is False needs no value. Raises: SampleError for another one without a value, or with one
        that can't be read.
        """
        chosen = [number for number, flag in enumerate(flags) if flag]
        values = shares.values_of(batch, group, chosen, verbatim=self._verbatim)
        for number, value in zip(chosen, map(shares.bytes_of_value, values), strict=True):
            flags[number] = all(number_of(value) in span for number_of, span in self._numbers)

    def flags_of_keys(self, keys: Sequence[bytes]) -> list[bool]:
        """Return a flag for each of *keys*, the keys of the next samples of the input: True if the filter chooses it.

        Only for a filter whose conditions are all on keys.
        """
        return self._invert_and_count(self._key_flags(keys, len(keys)))

    def _answers(self, columns: SampleColumns, first: int) -> dict[Ask, Sequence[Any]]:
        columns_by_ask = {ask: read_answers(columns, ask) for ask in self.questions or ()}
        if ("field", INDEX_NAME) in columns_by_ask:
            columns_by_ask["field", INDEX_NAME] = range(first, first + len(columns))
        return {ask: answers for ask, answers in columns_by_ask.items() if answers is not None}

    def _invert_and_count(self, flags: list[bool]) -> list[bool]:
        self._index += len(flags)
        if self._invert:
            flags = [not flag for flag in flags]
        self._chosen += sum(flags)
        return flags

    def _key_flags(self, keys: Sequence[bytes], count: int) -> list[bool]:
        flags = [True] * count
        if self._keys is not None:
            chosen_keys = self._keys
            flags = [key in chosen_keys for key in keys]
            self._absent_keys.difference_update(keys)
        for number_of, span in self._numbers if self._group is None else ():
            flags = [flag and number_of(key) in span for key, flag in zip(keys, flags, strict=True)]
        return flags

    def _has_one(self, choices: tuple[str, ...], read: Callable[[], Sample], answers: dict[Ask, Any]) -> bool:
        is_present = any(
            answers["has", name] if ("has", name) in answers else read().member(name, verbatim=self._verbatim)
            for name in choices
        )
        if self._absent_words:
            if is_present:
                self._absent_words.discard(choices)
            elif not answers:
                self._fields_seen.update(dict.fromkeys(read().fields))
        return is_present

    def warn(self, account: Account) -> None:
        """Warn in *account*, once all samples have been tested, if none was chosen, or some key or field was in none.

        The keys are `keys`; the fields are `words`, and those of the expression, but not if it asks with has() whether
        they are there. A sample is not asked for fields once a condition on its key has failed, so that a field that
        only such samples have is mentioned. Without samples, there is no warning that none was chosen. Fields are not
        mentioned if columns of a table had the answers for all samples; fields of the expression only with `lenient`.
        """
        messages = []
        if self._absent_keys:
            absent = min(self._absent_keys)
            first, stem = (name.decode("utf-8", "surrogateescape") for name in (absent, key_of_file(absent)))
            advice = "" if stem == first else f" (keys have no suffix: {stem!r})"
            messages.append(
                f"no sample had {len(self._absent_keys)} of the {len(self._keys or ())} keys; the first is {first!r}"
                f"{advice}"
            )
        fields = {";".join(choices) for choices in self._absent_words}
        fields_seen = dict(self._fields_seen)
        if self._expression is not None and self._lenient:
            fields |= {
                name for name in self._expression.unseen if ("has", name) not in (self._expression.questions or ())
            }
            fields_seen |= self._expression.fields_seen
        if fields and fields_seen:
            messages.append(f"no sample had {' '.join(sorted(fields))}; the fields were: {field_list(fields_seen)}")
        if self._index and not self._chosen:
            values = self._expression.describe_values() if self._expression is not None else ""
            account.warn_empty("; ".join([f"no samples selected (of {self._index:,})", *messages]) + values)
        else:
            for text in messages:
                account.warn(text)


def _identity(sample: Sample) -> Sample:
    return sample


def read_answers(columns: SampleColumns, ask: Ask) -> Sequence[Any] | None:
    """Return the answers to *ask* from *columns* of a table, one a row; None if no column has them.

    None also if only the samples tell: "has" and "size" of a field that a row has twice; these and facts, if the name
    differs from the name of another field only in case.
    `ask`: (function, field), the function one of `expression.FIELD_FUNCTIONS`. "has" is answered by booleans; else an
    answer is None where the sample lacks the field, or its fact is unknown. The value of a field is text; values inside
    JSON, and of columns that are no fields, keep their types. A choice such as `jpg;png`, or a name with =, has no
    column. Raises: StorageError for invalid values in columns.
    """
    how, name = ask
    if ";" in name or "=" in name:
        return None
    if how == "field" or (how == "has" and (":" in name or name in PSEUDO_FIELDS or columns.lacks_field(name))):
        values = values_without_reading(columns, name)
        if values is None or how == "has":
            return values and [value is not None for value in values]
        if ":" in name or name in PSEUDO_FIELDS or columns.lacks_field(name):
            return values
        return [value if value is None or isinstance(value, str) else as_text(value) for value in values]
    if how in FACT_FUNCTIONS:
        return columns.values(f"{name}.{how}") if _member_columns(columns, name) is not None else None
    if columns.lacks_field(name):
        return [None] * len(columns)
    places = _member_columns(columns, name)
    if places is None:
        return None
    offsets, sizes = places
    if (offsets < -1).any():  # a field that a sample has twice
        return None
    if how == "has":
        return (offsets >= 0).tolist()  # type: ignore[no-any-return]
    return [size if offset >= 0 else None for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]


def _member_columns(columns: SampleColumns, name: str) -> tuple[Any, Any] | None:
    """Return (offsets, sizes) of the payloads of the field *name* in the table rows *columns*.

    Arrays of int64, one item a row. An offset is -1 where the sample lacks the field, below that where it has the field
    twice. None if the table lists no members, or none of that name (case matters), or if another name differs only in
    case. Raises: StorageError for invalid values.
    """
    members = columns.members()
    if members is None:
        return None
    fields, offsets, sizes = members
    if name not in fields or [field.lower() for field in fields].count(name.lower()) > 1:
        return None
    column = fields.index(name)
    return offsets[:, column], sizes[:, column]
