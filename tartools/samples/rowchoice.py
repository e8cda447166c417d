"""The fields and keys that the rows of tables become: which columns, under which names, and the source of the keys."""

from collections.abc import Callable, Collection
from typing import NamedTuple, Self

from tartools.errors import SampleError, UsageError
from tartools.samples.columnfields import Words
from tartools.samples.keytemplates import parse_template
from tartools.samples.values import as_text, field_list

INDEX_NAMES = ("", "0", "index")  # of the number of a row in a template


class RowKeys:
    """A callable that makes keys of rows by *template*: {}, {0} or {index} is the row's number, {NAME} a column's text.

    It is called with the row's number and a function that returns the text of a column. `columns`: the names of the
    columns that it needs, each once. Raises: UsageError for a bad template; the call: only what that function raises.

    >>> RowKeys("{split}/{:03d}")(7, lambda column: {"split": "train"}[column])
    'train/007'
    """

    def __init__(self, template: str) -> None:
        self._template = template
        try:
            self._text, self._fields = parse_template(template, INDEX_NAMES)
            if any(name.isdigit() for name in self._fields.values()):
                raise ValueError(template)
            self(0, lambda _: "x")
        except (KeyError, IndexError, ValueError, AttributeError, TypeError):
            raise UsageError(
                f"not a template for keys: {template!r}; write '{{:09d}}', 'name-{{index}}' or '{{COLUMN}}'"
            ) from None
        self.columns = tuple(dict.fromkeys(self._fields.values()))

    def __call__(self, index: int, text_of_column: Callable[[str], str]) -> str:
        """Return the key of the row number *index*; *text_of_column* returns the text of a column by its name."""
        values = {name: text_of_column(column) for name, column in self._fields.items()}
        return self._text.format(index, index=index, **values)


class RowChoice(NamedTuple):
    """The fields and keys that rows of a table become.

    `words`: columns that become fields, and their new names (-f), as in `ChosenColumns`; None: all.
    `key`: the column of the keys, which is no field; None: `__key__`, if there is such a column, unless the template of
    `keys` names columns.
    `keys`: makes the keys of rows where no column has them.
    """

    words: Words | None
    key: str | None
    keys: RowKeys

    def with_named_key(self) -> Self:
        """Return this choice, in which a word that renames one column to `__key__` is replaced by this column as `key`.

        Only the first such word counts; a word with alternatives is none. Without one, the choice itself.
        """
        key_word = next((word for word in self.words or () if word[1] == "__key__" and len(word[0]) == 1), None)
        if key_word is None or self.words is None:
            return self
        return self._replace(words=[word for word in self.words if word is not key_word], key=key_word[0][0])

    def key_in(self, names: Collection[str]) -> str | None:
        """Return the column of keys, one of *names*; None if `keys` makes the keys.

        It makes them if no column has them, or if `key` is None and the template names columns.

        *names*: of all columns of the table. Raises: SampleError if it lacks `key`, or, if `key` is None, a column that
        the template names.
        """
        needed = self.keys.columns if self.key is None else (self.key,)
        if lost := [name for name in needed if name not in names]:
            raise SampleError(f"no column {lost[0]!r}, which the key is made of; the columns are: {field_list(names)}")
        if self.key is None and self.keys.columns:
            return None
        name = self.key or "__key__"
        return name if name in names else None


def key_text(value: object, name: str) -> str:
    """Return *value*, of the column *name*, as text for a key: a number by its digits, a bool as true or false.

    *value*: a value of JSON, or bytes. Strings, and bytes in UTF-8, are taken as they are.
    Raises: SampleError if it is None, a list, an object (a dict), or bytes that are not UTF-8; TypeError for any other
    type, such as a date.
    """
    try:
        value = value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        value = None
    if value is None or isinstance(value, (list, dict)):
        raise SampleError(f"the column {name!r} has no text for the key")
    return as_text(value)
