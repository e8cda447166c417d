"""Values of the columns of other tables as fields of samples: their names, their payloads, and both packed as bytes."""

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

from tartools.errors import SampleError, several
from tartools.samples.account import Account
from tartools.samples.encoding import ENCODERS, split_codec, text_payload
from tartools.samples.filekeys import Dots, key_of_file
from tartools.samples.filetypes import suffix_of
from tartools.samples.sample import make_path
from tartools.samples.values import as_text, comma_advice, field_list
from tartools.tar import split_path

KEY_COLUMNS = ("__key__", "key")  # the column that has the keys, unless it is named


Words = Sequence[tuple[tuple[str, ...], str | None]]  # of a field specification: choices, and the new name or None


@lru_cache(1 << 16)
def name_of_field(name: str) -> bytes:
    """Return the field for the column *name*: this name as bytes, "seg.png" -> b"seg.png".

    Raises: SampleError if no field can have this name (empty, not printable, or with a slash), or no option could name
    it (`check_nameable`).
    """
    if not name or not name.isprintable():
        raise SampleError(f"not a name for a field: {name!r}")
    check_nameable(name)
    return split_path(make_path("key", name))[1]


def check_nameable(name: str) -> None:
    """Raise SampleError if *name*, of a column, has a blank, `:`, `;` or `=`: then no option could name the field."""
    if any(letter in name for letter in " :;="):
        reason = "blanks separate fields in options, ; and = give choices and new names, a colon begins a path in JSON"
        raise SampleError(f"not a name for a field: {name!r} ({reason}); rename the column")


class ChosenColumns(NamedTuple):
    """A choice of columns, and the fields that they become.

    `words`: the words of a field specification, each (names of columns, new name or None), where the first column that
    exists is taken: `image=jpg;png` is (("jpg", "png"), "image"); None: all columns.
    `excluded_names`: of columns that are never taken, compared as `fold` returns them.
    `fold`: returns a name in the form in which names are compared, such as lower case.
    `skip_underscored`: without words, leave out columns whose names begin with two underscores.
    """

    words: Words | None
    excluded_names: Sequence[str]
    fold: Callable[[str], str]
    skip_underscored: bool = True

    def choose(self, columns: Mapping[str, int]) -> list[tuple[int, str]]:
        """Return (index of the column, name of its field) for each chosen column; *columns*: index by name.

        They are in the order of the words, or without words of *columns*. The name is the new one of the word, else
        that in *columns*. An exact name goes before one that is equal after `fold`. A column of `excluded_names` is
        left out even if a word names it: then the next choice of this word counts.
        A word that names no column is skipped: `missing_words` lists these words. Raises: SampleError if two columns or
        words become one field, by names after `fold`.
        """
        dropped = set(map(self.fold, self.excluded_names))
        if self.words is None:
            hidden = "__" if self.skip_underscored else "\0"
            chosen = [(place, name) for name, place in columns.items() if not name.startswith(hidden)]
        else:
            folded = {self.fold(name): (place, name) for name, place in reversed(list(columns.items()))}
            chosen = []
            for choices, new in self.words:
                wanted = [c for c in choices if self.fold(c) not in dropped]
                pairs = ((columns[c], c) if c in columns else folded.get(self.fold(c)) for c in wanted)
                place, name = next((pair for pair in pairs if pair is not None), (-1, ""))
                if place >= 0:
                    chosen.append((place, new or name))
        names = {place: name for name, place in columns.items()}
        chosen = [(place, field) for place, field in chosen if self.fold(names[place]) not in dropped]
        fields = [self.fold(field) for _, field in chosen]
        for _, field in chosen:
            if fields.count(self.fold(field)) > 1:
                raise SampleError(f"there are two for the field {field!r} (-f 'new=old' renames one)")
        return chosen

    def missing_words(self, columns: Iterable[str]) -> list[str]:
        """Return the choices of the words that name none of *columns*: "jpg;png" for the word `image=jpg;png`.

        Names are compared as `fold` returns them. Empty if `words` is None.
        """
        names = {self.fold(name) for name in columns}
        return [";".join(choices) for choices, _ in self.words or () if not any(self.fold(c) in names for c in choices)]


def with_key_column(words: Words | None, names: Sequence[str]) -> Words | None:
    """Return *words* and one for the column `__key__`, if *names* has it and no word makes a field `__key__`.

    The field of a word is its new name, or else its first choice that *names* has. The new word comes last; if none is
    added, *words* itself is returned. *words*: as in `ChosenColumns`; None, for all columns, stays None.
    """
    if words is None or "__key__" not in names:
        return words
    if any((new or next((c for c in choices if c in names), "")) == "__key__" for choices, new in words):
        return words
    return [*words, (("__key__",), None)]


def field_and_payload(name: str, value: object) -> tuple[str, bytes]:
    """Return the name of the field, and the payload, for *value* of the column *name*.

    Text is UTF-8, bytes are themselves, a number is its digits, a bool "true" or "false", None "null". A list of
    numbers is a NumPy array (`npy_payload`), other lists (an empty one too) and objects are JSON, with NaN as NaN: the
    name gets a last part `npy` or `json`, unless it has it (`with_suffix`). All but bytes are compressed if the name
    ends in gz and the like then.

    Raises: UnicodeEncodeError for text with a lone surrogate; TypeError for any other value, and for one inside a list
    or object that JSON does not have.

    >>> field_and_payload("score", 0.5), field_and_payload("meta", {"a": 1})
    (('score', b'0.5'), ('meta.json', b'{"a": 1}'))
    """
    if isinstance(value, bytes):
        return name, value
    if hasattr(value, "dtype") or (isinstance(value, (list, tuple)) and value):
        payload = npy_payload(value)
        if payload is not None:
            name = with_suffix(name, "npy")
            return name, text_payload(name, payload)
    text = as_text(value).encode()
    if isinstance(value, (list, tuple, dict)):
        name = with_suffix(name, "json")
    return name, text_payload(name, text)


def with_suffix(name: str, suffix: str) -> str:
    """Return *name* if its last part, but for the suffix of a codec, is *suffix* in any case; else `name.suffix`.

    *suffix*: in lower case. It is added at the very end, behind the suffix of a codec, too.

    >>> with_suffix("emb", "npy"), with_suffix("emb.npy.gz", "npy"), with_suffix("emb.gz", "npy")
    ('emb.npy', 'emb.npy.gz', 'emb.gz.npy')
    """
    return name if suffix_of(split_codec(name)[0]) == suffix else f"{name}.{suffix}"


def npy_payload(values: object) -> bytes | None:
    """Return *values*, lists of numbers or an array, as a .npy file.

    None if they are no real numbers (booleans are none), some need over 64 bits, rows differ in length, or whole
    numbers among others would lose digits as floats. Numbers of several types get numpy's common type: float64 if one
    is a float.
    """
    import numpy as np

    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        return None
    if array.dtype.kind not in "iuf":
        return None
    if isinstance(values, (list, tuple)):
        numbers: Any = values
        for _ in range(array.ndim - 1):
            numbers = list(chain.from_iterable(numbers))
        types = set(map(type, numbers))
        if bool in types or (array.dtype.kind == "f" and int in types and not all(map(_is_exact_float, numbers))):
            return None
    return ENCODERS["npy"](array)


def _is_exact_float(number: object) -> bool:
    """True unless *number* is an int that a float64 can't hold, such as 2**53 + 1."""
    return not isinstance(number, int) or int(float(number)) == number


class EmptyRows:
    """Counts the rows of a table without any field, which become no sample: `add` each, then `report` all.

    *kind*: the noun for a row in the report, such as "row" or "line".
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._count = 0
        self._first = ""

    def add(self, account: Account, place: str) -> None:
        """Count a row, at *place* (for the report), as dropped by *account*."""
        account.dropped += 1
        self._count += 1
        self._first = self._first or place

    def report(self, account: Account) -> None:
        """Report the rows, if there were any, as one omission of *account*: how many, and the place of the first."""
        if self._count:
            kind = self._kind
            rows_text = several(
                self._count, f"{kind} without a value for a field is", f"{kind}s without a value for a field are"
            )
            account.omit(f"{rows_text} left out (the first: {self._first})")


class RowFormat:
    """How the rows of tables become samples.

    *key*: the column that has the keys; None: one of `KEY_COLUMNS`. *chosen*: the columns that become fields.
    *is_only_file*: True if all rows are in one file. *dots*: the dot that ends a key that is the name of a file,
    "first" or "last"; None: a single dot before the suffix of a known type.
    `single`: the name of the field, as bytes, if the reader packs rows with one field as only its payload; the reader
    sets it before the first row. None: packed rows are the fields, as `pack_row` packs them.
    """

    def __init__(self, key: str | None, chosen: ChosenColumns, is_only_file: bool, dots: Dots = None) -> None:
        self.key = key
        self.dots = dots
        self.chosen = chosen
        self.is_only_file = is_only_file
        self.single: bytes | None = None


def key_column(names: Sequence[str], key: str | None, url: str) -> int:
    """Return the index in *names* of the column *key*; if *key* is None, of `__key__`, or else of `key`.

    Raises: SampleError, with *url*, if there is no such column, or two have its name.
    """
    for name in (key,) if key is not None else KEY_COLUMNS:
        if names.count(name) > 1:
            raise SampleError(f"two columns are called {name!r}", url=url)
        if name in names:
            return names.index(name)
    reason = f"no column {key!r}"
    if key is None:
        reason = "no column '__key__' or 'key' (--key-column COLUMN names another)"
    raise SampleError(f"{reason}; the columns are: {field_list(names)}", url=url)


def check_words(columns: Sequence[str], rows: RowFormat, url: str) -> None:
    """Raise SampleError, with *url*, if a word of -f that *rows* has names none of *columns*, the names in a table."""
    if lost := " ".join(rows.chosen.missing_words(columns)):
        raise SampleError(f"no column {lost}{comma_advice(lost)}; the columns are: {field_list(columns)}", url=url)


def check_keys(keys: Sequence[bytes]) -> None:
    """Raise SampleError if one of *keys* is empty, or has a NUL; the `offset` of the error is the index of that key."""
    if b"" in keys or b"\0" in b"".join(keys):
        number = next(number for number, key in enumerate(keys) if not key or b"\0" in key)
        fault = "has a NUL, which no name in an archive can have" if keys[number] else "is empty"
        raise SampleError(f"the key {fault}", offset=number)


def keys_of_files(keys: list[bytes], dots: Dots) -> list[bytes]:
    """Return *keys*, each of them that is the name of a file cut at the dot that ends its key.

    *dots*: that dot, "first" or "last", where the dots before it become _; None: a single dot before the suffix of a
    type of `is_type_suffix`.
    """
    return [key_of_file(key, dots) for key in keys] if b"." in b"".join(keys) else keys


def pack_row(key: object, fields: Iterable[tuple[str, object]], dots: Dots) -> tuple[bytes, bytes]:
    """Return (key, packed fields) of a row: the key as bytes, *fields* as a marshalled list of (field, payload), bytes.

    *fields*: (name of the column, value); one whose value is None is left out. *dots*: the dot that ends a key that is
    the name of a file, "first" or "last"; None: a single dot before the suffix of a known type.
    Raises: SampleError for a key that is null, empty or has a NUL, a bad name, a lone surrogate, or one field twice;
    TypeError for a value that JSON does not have.
    """
    if key is None:
        raise SampleError("the key is null")
    name = "key"
    packed_fields = []
    try:
        raw = field_and_payload("", key)[1]
        for name, value in fields:
            if value is not None:
                field, payload = field_and_payload(name, value)
                packed_fields.append((name_of_field(field), payload))
    except UnicodeEncodeError:
        raise SampleError(f"{name!r}: a lone surrogate can't be written as UTF-8") from None
    check_keys([raw])
    raw = key_of_file(raw, dots)
    if len(dict(packed_fields)) < len(packed_fields):
        raise SampleError(f"two columns are for one field (sample {raw.decode('utf-8', 'replace')!r})")
    return raw, marshal.dumps(packed_fields)
