"""Which samples meet all conditions, on keys, fields and values: of samples, or of the columns of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tartools.errors import several
from tartools.samples.account import Account
from tartools.samples.sample import Batch, Sample
from tartools.samples.values import INDEX, PSEUDO, as_text, field_list
from tartools.tables.listed import ListedBatch, TableColumns, keys_of, known

if TYPE_CHECKING:
    from tartools.stages.filtering.expression import Ask, Expression

SIDES = ("width", "height")


class Filter:
    """Tells of samples, in the order in which they come, whether they meet all conditions.

    Of the keys: they are in *keys*, and the number that a function gives them is in a range, for each of *numbers*.
    Each of *words*, alternatives, has a field that the sample has. *expression* is true; with *lenient* it is false for
    a sample on which it fails, and otherwise that is a failure. With *invert*, those that do not meet them all.
    """

    def __init__(
        self,
        *,
        keys: set[bytes] | None = None,
        numbers: Sequence[tuple[Callable[[bytes], int], range]] = (),
        words: Sequence[tuple[str, ...]] = (),
        expression: Expression | None = None,
        lenient: bool = False,
        invert: bool = False,
    ) -> None:
        self._keys = keys
        self._numbers = numbers
        self._words = words
        self._expression = expression
        self._lenient = lenient
        self._invert = invert
        self._index = 0
        self._chosen = 0
        self._lost_keys = set(keys or ())
        self._lost_words = set(words)
        self._seen: dict[str, None] = {}

    @property
    def by_key(self) -> bool:
        """Whether keys are all that is looked at."""
        return not self._words and self._expression is None

    @property
    def asks(self) -> list[Ask] | None:
        """What it asks of a sample besides its key; None if that is not known."""
        asked: list[Ask] = [("has", name) for choices in self._words for name in choices]
        if self._expression is None:
            return asked
        return None if self._expression.asks is None else asked + self._expression.asks

    @property
    def reads(self) -> bool:
        """Whether it looks into payloads."""
        return self.asks is None or any(how not in ("has", "size") for how, _ in self.asks)

    def columns(self, verbatim: bool) -> list[str]:
        """Return the names of the columns of a table that may answer; *verbatim* only takes what is in payloads."""
        names = ["__key__"]
        for how, name in self.asks or ():
            if how in SIDES:
                names.append(f"{name}.{how}")
            elif name in PSEUDO or (how in ("has", "field") and not verbatim):
                names.append(name)
        return list(dict.fromkeys(names))

    def flags(self, batch: Batch) -> list[bool]:
        """Return whether each of the next samples, those of *batch*, meets the conditions.

        Raises: SampleError, naming the sample, if the expression fails on it.
        """
        flags = self._of_keys(keys_of(batch) if self._keys is not None or self._numbers else (), len(batch))
        if not self.by_key:
            first = self._index
            answers = self._answers(batch.columns, first) if isinstance(batch, ListedBatch) else {}
            reads: Iterator[Callable[[], Sample]] = (partial(_same, sample) for sample in batch)
            if isinstance(batch, ListedBatch) and self.asks is not None and answers.keys() >= set(self.asks):
                reads = (partial(batch.__getitem__, number) for number in range(len(batch)))
            for number, (read, flag) in enumerate(zip(reads, flags, strict=True)):
                if flag:
                    known = {ask: found[number] for ask, found in answers.items()} if answers else {}
                    flags[number] = all(self._has_one(choices, read, known) for choices in self._words) and (
                        self._expression is None
                        or self._expression.value(read, first + number, known, lenient=self._lenient)
                    )
        return self._turned(flags)

    def of_keys(self, keys: Sequence[bytes]) -> list[bool]:
        """Return whether each of the next samples, which have *keys*, meets the conditions, which are all on keys."""
        return self._turned(self._of_keys(keys, len(keys)))

    def _answers(self, columns: TableColumns, first: int) -> dict[Ask, Sequence[Any]]:
        found = {ask: answers_of(columns, ask) for ask in self.asks or ()}
        if ("field", INDEX) in found:
            found["field", INDEX] = range(first, first + len(columns))
        return {ask: answers for ask, answers in found.items() if answers is not None}

    def _turned(self, flags: list[bool]) -> list[bool]:
        self._index += len(flags)
        if self._invert:
            flags = [not flag for flag in flags]
        self._chosen += sum(flags)
        return flags

    def _of_keys(self, keys: Sequence[bytes], count: int) -> list[bool]:
        flags = [True] * count
        if self._keys is not None:
            wanted = self._keys
            flags = [key in wanted for key in keys]
            self._lost_keys.difference_update(keys)
        for number_of, span in self._numbers:
            flags = [flag and number_of(key) in span for key, flag in zip(keys, flags, strict=True)]
        return flags

    def _has_one(self, choices: tuple[str, ...], read: Callable[[], Sample], known: dict[Ask, Any]) -> bool:
        found = any(known["has", name] if ("has", name) in known else name in read() for name in choices)
        if self._lost_words:
            if found:
                self._lost_words.discard(choices)
            elif not known:
                self._seen.update(dict.fromkeys(read().fields))
        return found

    def warn(self, account: Account) -> None:
        """Tell *account* if nothing was chosen, and which keys and fields that were asked for no sample had."""
        told = []
        if self._lost_keys:
            first = min(self._lost_keys).decode("utf-8", "surrogateescape")
            told.append(
                f"no sample had {len(self._lost_keys)} of the {len(self._keys or ())} keys; the first is {first!r}"
            )
        fields = {";".join(choices) for choices in self._lost_words}
        seen = dict(self._seen)
        if self._expression is not None and self._lenient:
            fields |= {name for name in self._expression.unseen if ("has", name) not in (self._expression.asks or ())}
            seen |= self._expression.seen
        if fields and seen:
            told.append(f"no sample had {' '.join(sorted(fields))}; the fields were: {field_list(seen)}")
        if self._index and not self._chosen:
            values = self._expression.hint() if self._expression is not None else ""
            account.warn_empty("; ".join([f"none of {several(self._index, 'sample')} was chosen", *told]) + values)
        else:
            for text in told:
                account.warn(text)


def _same(sample: Sample) -> Sample:
    return sample


def answers_of(columns: TableColumns, ask: Ask) -> Sequence[Any] | None:
    """Return what *columns* say to *ask*, for each row, None where the sample lacks it; None if they do not say.

    A field is text, a value inside JSON and one that only the table has keep their types.
    """
    how, name = ask
    if ";" in name or "=" in name:
        return None
    if how == "field" or (how == "has" and (":" in name or name in PSEUDO or columns.lacks(name))):
        found = known(columns, name)
        if found is None or how == "has":
            return found and [value is not None for value in found]
        if ":" in name or name in PSEUDO or columns.lacks(name):
            return found
        return [value if value is None or isinstance(value, str) else as_text(value) for value in found]
    if how in SIDES:
        return columns.values(f"{name}.{how}") if _alone(columns, name) is not None else None
    if columns.lacks(name):
        return [None] * len(columns)
    places = _alone(columns, name)
    if places is None:
        return None
    offsets, sizes = places
    if (offsets < -1).any():  # a field that a sample has twice
        return None
    if how == "has":
        return (offsets >= 0).tolist()  # type: ignore[no-any-return]
    return [size if offset >= 0 else None for offset, size in zip(offsets.tolist(), sizes.tolist(), strict=True)]


def _alone(columns: TableColumns, name: str) -> tuple[Any, Any] | None:
    """Return offsets and sizes of the field *name*; None if they are not known, or another differs only in case."""
    found = columns.members()
    if found is None:
        return None
    fields, offsets, sizes = found
    if name not in fields or [field.lower() for field in fields].count(name.lower()) > 1:
        return None
    at = fields.index(name)
    return offsets[:, at], sizes[:, at]
