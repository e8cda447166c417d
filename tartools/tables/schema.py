"""Recognize a table by its magic; its columns, their types, and the names of shards in it.

A joined table lists samples whose fields are in several sets of shards. Set 1 has the columns `__shard__`,
`__version__`, `__begin__`, `__end__` and `__members__`; set 2 has `__shard_2__` and so on. Null means that the sample
has no part in that set. The parts of a sample, one after the other, are the members that a copy of it would have.

All data needed for reading is in columns, because SQL engines drop the metadata of a file. The type of a column of
values depends on all its values: a type of JSON, for lists and objects too, or text for values of several types.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from tartools import storage
from tartools.errors import StorageError, how_to_install
from tartools.storage.names import folder_of as folder_of  # noqa: PLC0414  # tables name their shards by it
from tartools.storage.names import relative_name as relative_name  # noqa: PLC0414
from tartools.storage.outputformats import PARQUET_MAGIC, is_table_name
from tartools.storage.url import Url

SHARD_COLUMN, VERSION_COLUMN, INDEX_COLUMN, KEY_COLUMN = "__shard__", "__version__", "__index__", "__key__"
BEGIN_COLUMN, END_COLUMN, MEMBERS_COLUMN = "__begin__", "__end__", "__members__"
ROW_GROUP_ROWS = 1 << 16  # rows
# offset of a field that a sample lacks, and of one that it has twice: which is not known
ABSENT_OFFSET, REPEATED_OFFSET = -1, -2
MAX_FIELDS_LISTED = 1000  # in `__members__`
MAX_DEPTH = 20  # lists and objects in each other; what is deeper becomes text
COPY_IT = " (a copy of the table on this machine may)"
MAX_OBJECT_NAMES = 1000  # in an object; one with more becomes text
MIN_INT64, MAX_INT64 = -(1 << 63), (1 << 63) - 1  # of int64


def is_table(url: str) -> bool:
    """True if *url* is a table: a Parquet file, by its magic; False for stdin, commands and fifos, which are not read.

    False, too, for a local file that is missing or can't be read, and for a directory: whoever opens it reports that.
    On a server, where a probe costs a request, it is False without a probe unless *url* has the name of a table.
    Raises: StorageError if the probe of an object fails; UsageError for a URL of no file or object, such as file:// of
    another host; OSError for a local file if too many files are open.
    """
    url = Url(url)
    if storage.plain_size(url) is None and not (is_table_name(url) and storage.is_stored_object(url)):
        return False
    from tartools.storage.checks import probe

    return probe(url).first == PARQUET_MAGIC


def check_pyarrow() -> None:
    """Raise StorageError if pyarrow is not installed; does not import it, which takes 0.3 s."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise _missing_error()


def import_arrow() -> Any:
    """Import pyarrow with `pyarrow.parquet`, and return it. Raises: StorageError if it can't be imported."""
    from tartools.tar.runs import limit_numpy_threads

    try:
        with limit_numpy_threads():
            import pyarrow
            import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise _missing_error() from error
    except ImportError as error:  # such as no memory for its libraries
        raise StorageError(f"pyarrow can't be imported: {error}") from error
    return pyarrow


def _missing_error() -> StorageError:
    return StorageError(f"Parquet files need pyarrow: {how_to_install('pyarrow')}")


@contextmanager
def value_errors(message: str, url: str) -> Iterator[None]:
    """Turn errors of Arrow about values, in the body of `with`, into a StorageError with *message* and *url*.

    These are ArrowException, ValueError and OverflowError; a lack of memory is raised as it is.
    """
    try:
        yield
    except (import_arrow().ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, MemoryError):
            raise
        raise StorageError(message, url=url) from None


def encode_texts(column: Any) -> Any:
    """Return *column*, of text or bytes, as an Arrow array of bytes, text in UTF-8; a null stays null.

    Raises: ArrowException for whole numbers and floats, and for other types that Arrow can't cast to bytes.
    """
    pa = import_arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == pa.string():  # the common case; `cast` takes 60 ms to import
        return column.view(pa.binary())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        raise pa.ArrowTypeError("no text")
    return column.cast(pa.large_binary())


def check_names(names: Iterable[str], folder: str) -> None:
    """Raise StorageError if a table in *folder* may not name one of the shards *names*, from `relative_name`.

    Raises: UsageError for a URL with credentials.
    """
    for name in names:
        if why := _refusal(name, folder):
            raise StorageError(why)


def resolve(name: str, folder: str) -> str:
    """Return the URL of the shard that a table in *folder* calls *name*: *name* itself if absolute or with a scheme.

    *folder*: put before any other name; ends in a slash, or is "". Raises: StorageError if the table may not name it:
    stdin, a command, an archive that was split; for a table on a server also a local file, another server, or a path
    with `..`. UsageError for a URL with credentials.
    """
    if why := _refusal(name, folder):
        from tartools.storage import origins

        raise StorageError(f"{why}{origins.is_from_server(folder) * COPY_IT}")
    return _shard_url(name, folder)


def _refusal(name: str, folder: str) -> str:
    """Return why a table in *folder* may not name the shard *name*, in words for the message; "" if it may.

    Raises: UsageError for a URL with credentials.
    """
    from tartools.storage import origins

    if ".." in name.split("/") and origins.is_from_server(folder):
        return "a table on a server may not name a shard by '..'"
    return origins.naming_error(_shard_url(name, folder), folder, "table", may_act=False)


def _shard_url(name: str, folder: str) -> str:
    return name if Url(name).scheme or os.path.isabs(name) else folder + name


# ---- columns that tartools needs ----


def name_in_set(column: str, number: int) -> str:
    """Return the name that *column*, such as `__shard__`, has for set *number* of a joined table; 1 is the first set.

    >>> name_in_set("__shard__", 1), name_in_set("__shard__", 2)
    ('__shard__', '__shard_2__')
    """
    return column if number == 1 else f"{column[:-2]}_{number}__"


def sets_in(columns: Collection[str]) -> range:
    """Return the numbers of the sets of shards in a table with these *columns*; one set if it is not a joined table.

    >>> sets_in(["__shard__", "__shard_2__", "__end_2__"])
    range(1, 3)
    """
    number = 1
    while name_in_set(SHARD_COLUMN, number + 1) in columns:
        number += 1
    return range(1, number + 1)


def location_columns(columns: Collection[str]) -> list[str]:
    """Return the existing *columns* that locate and verify samples.

    The key is first, then the extents in each set, then the members in each set.
    """
    members = [name_in_set(MEMBERS_COLUMN, number) for number in sets_in(columns)]
    return [name for name in (KEY_COLUMN, *extent_columns(columns), *members) if name in columns]


def extent_columns(columns: Collection[str]) -> list[str]:
    """Return the existing *columns* of extents, set by set: shard, version, begin and end, in this order."""
    names = (SHARD_COLUMN, VERSION_COLUMN, BEGIN_COLUMN, END_COLUMN)
    names_of_sets = [name_in_set(name, number) for number in sets_in(columns) for name in names]
    return [name for name in names_of_sets if name in columns]


def own_types(sets: Iterable[int] = (1,)) -> dict[str, Any]:
    """Return name -> Arrow type of the columns that all unified rows have, in order: shard, index, key, begin, end.

    *sets*: numbers of the sets of shards; for each set after the first, its shard, begin and end follow.
    """
    pa = import_arrow()
    types = {
        SHARD_COLUMN: pa.int32(),
        INDEX_COLUMN: pa.uint64(),
        KEY_COLUMN: pa.string(),
        BEGIN_COLUMN: pa.uint64(),
        END_COLUMN: pa.uint64(),
    }
    of_sets = (SHARD_COLUMN, BEGIN_COLUMN, END_COLUMN)
    return types | {name_in_set(name, number): types[name] for number in sets for name in of_sets}


def place_type() -> Any:
    """Return the Arrow type of an extent in `__members__`: a struct of offset and size of a payload, both uint64."""
    pa = import_arrow()
    return pa.struct([("offset", pa.uint64()), ("size", pa.uint64())])


def is_place(kind: Any) -> bool:
    """True if the Arrow type *kind* is a struct of offset and size, of any types."""
    return import_arrow().types.is_struct(kind) and [field.name for field in kind] == ["offset", "size"]


def members_column(fields: Sequence[str], number: int = 1) -> list[tuple[str, Any]]:
    """Return [(name, Arrow type)] of the column of the extents of *fields* in set *number*.

    The type is a struct with a `place_type` for each field. [] without fields: Parquet has no empty structs.
    """
    column = name_in_set(MEMBERS_COLUMN, number)
    return [(column, import_arrow().struct([(field, place_type()) for field in fields]))] if fields else []


def fields_in_set(unified_schema: Any, number: int) -> list[str]:
    """Return the fields of samples in set *number* in the unified schema *unified_schema*; [] if it lists none."""
    column = name_in_set(MEMBERS_COLUMN, number)
    return [field.name for field in unified_schema.field(column).type] if column in unified_schema.names else []


def fields_of(unified_schema: Any) -> list[str]:
    """Return the fields that the columns of members in *unified_schema* list, in all sets of shards, each once.

    [] without such columns.
    """
    sets = sets_in(unified_schema.names)
    return list(dict.fromkeys(field for number in sets for field in fields_in_set(unified_schema, number)))


def listed_fields(table_schema: Any, number: int) -> list[str] | None:
    """Return the fields that samples may have in set *number* of a table with *table_schema*; None if unknown.

    They are unknown without a column of members of the right type, if it lists 1,000 (MAX_FIELDS_LISTED) or more, since
    not all may be listed, and if a name has U+FFFD, which stands for bytes that are not UTF-8.
    """
    column = name_in_set(MEMBERS_COLUMN, number)
    if column not in table_schema.names:
        return None
    kind = table_schema.field(table_schema.names.index(column)).type
    if not import_arrow().types.is_struct(kind) or not all(is_place(field.type) for field in kind):
        return None
    fields = [field.name for field in kind]
    return fields if len(fields) < MAX_FIELDS_LISTED and "\ufffd" not in "".join(fields) else None


# ---- types of values ----


def named_type(name: str) -> Any:
    """Return the Arrow type that *name* stands for in a `rows.Fact`: an alias of Arrow, "digest" or "colours".

    "digest" is 16 bytes, "colours" 48. *name* is not "", by which the values decide the type. Raises: ValueError for
    any other name.
    """
    pa = import_arrow()
    sizes = {"digest": 16, "colours": 48}
    return pa.binary(sizes[name]) if name in sizes else pa.type_for_alias(name)


class _MixedError(Exception):
    """Raised for values or types that only a column of text can hold, such as values of several types."""


def json_type(values: Sequence[Any]) -> Any:
    """Return the Arrow type for a column of JSON *values*: null if all are None, text for values of several types.

    Whole numbers and floats together are floats. The type is text, too, for a whole number above 64 bits, lists and
    objects more than 20 deep (MAX_DEPTH), objects with more than 1,000 names in all, and a name with half of a
    surrogate pair. An object without names is a struct without fields, which needs `stored_type`.
    It does not depend on blocks: `join_types` of the types of all blocks is the type of all values.

    >>> print(json_type([1, None, 2.5]), json_type([[1], []]), json_type([{"a": 1}, {"b": True}]), json_type([1, True]))
    double list<item: int64> struct<a: int64, b: bool> string
    """
    try:
        return _type_of(values, 0)
    except _MixedError:
        return import_arrow().string()


def _type_of(values: Sequence[Any], depth: int) -> Any:
    """Return the Arrow type that can hold all JSON *values*; null if there are none but None.

    *depth*: the number of lists and objects around the values; 0 for the values of a column. For an object without
    names it is a struct without fields. Raises: _MixedError if only text can: several types but whole numbers and
    floats, a whole number above 64 bits, lists and objects more than 20 deep (MAX_DEPTH), or objects with more than
    1,000 names in all or a name with half of a surrogate pair.
    """
    joined = import_arrow().null()
    types = set(map(type, values))
    for python_type in types - {type(None)}:
        values_of_type = values if len(types) == 1 else [value for value in values if type(value) is python_type]
        joined = _join_types(joined, _type_of_one_kind(values_of_type, python_type, depth))
    return joined


def _type_of_one_kind(values: Sequence[Any], python_type: type, depth: int) -> Any:
    """Return the Arrow type of *values*, at least one, all of the type *python_type*, *depth* lists or objects deep.

    *python_type*: bool, int, float, str, list or dict. Raises: _MixedError if only text can hold them: a whole number
    above 64 bits, lists or objects that are too deep or hold values of several types, or objects with too many names.
    """
    pa = import_arrow()
    if python_type not in (list, dict):
        if python_type is int and (min(values) < MIN_INT64 or max(values) > MAX_INT64):
            raise _MixedError
        return {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}[python_type]
    if depth == MAX_DEPTH:
        raise _MixedError
    if python_type is list:
        return pa.list_(_type_of([*chain.from_iterable(values)], depth + 1))
    names = dict.fromkeys(chain.from_iterable(values))
    if len(names) > MAX_OBJECT_NAMES or not all(map(_is_encodable, names)):
        raise _MixedError
    return pa.struct([(name, _type_of([value.get(name) for value in values], depth + 1)) for name in names])


def _is_encodable(name: str) -> bool:
    """True if *name*, from JSON, can be encoded as UTF-8; False if it contains half of a surrogate pair."""
    return name.isascii() or name == name.encode("utf-8", "replace").decode()


def join_types(first: Any, second: Any) -> Any:
    """Return an Arrow type for the values of both types: the same, a number, lists or objects of these, or text.

    *first*, *second*: Arrow types; equal ones give the same; null and another type give the other. Two other integers
    give int64 if both are signed, else float64, as do other numbers. Types of objects are joined name by name. For all
    else, at any depth, and for more than 1,000 names, the whole type is text. `pyarrow.unify_schemas` is not used: it
    gives int64 for uint64 and int64, which can't hold all values.
    """
    try:
        return _join_types(first, second)
    except _MixedError:
        return import_arrow().string()


def _join_types(first: Any, second: Any) -> Any:
    pa = import_arrow()
    is_a, both = pa.types, (first, second)
    if first == second or is_a.is_null(second):
        return first
    if is_a.is_null(first):
        return second
    if all(map(is_a.is_signed_integer, both)):
        return pa.int64()
    if all(is_a.is_integer(kind) or is_a.is_floating(kind) for kind in both):
        return pa.float64()
    if all(map(is_a.is_list, both)):
        return pa.list_(_join_types(first.value_type, second.value_type))
    if not all(map(is_a.is_struct, both)):
        raise _MixedError
    types = {field.name: field.type for field in first}
    for field in second:
        types[field.name] = _join_types(types.get(field.name, field.type), field.type)
    if len(types) > MAX_OBJECT_NAMES:
        raise _MixedError
    return pa.struct(list(types.items()))


def stored_type(kind: Any) -> Any:
    """Return the type in Parquet for *kind*: text for null, and for types with an empty object, which Parquet lacks.

    A null type inside of a list or object becomes text there; an empty object at any depth makes the whole type text.
    """
    try:
        return _stored_or_raise(kind)
    except _MixedError:
        return import_arrow().string()


def _stored_or_raise(kind: Any) -> Any:
    pa = import_arrow()
    if pa.types.is_list(kind):
        return pa.list_(_stored_or_raise(kind.value_type))
    if not pa.types.is_struct(kind):
        return pa.string() if pa.types.is_null(kind) else kind
    if not kind.num_fields:
        raise _MixedError
    return pa.struct([(field.name, _stored_or_raise(field.type)) for field in kind])


def column_of(values: Sequence[Any], type_: Any) -> Any:
    """Return *values* as an Arrow array of *type_*; in a column of text, other values become text by `as_text`.

    *type_*: one that can hold all values, such as `json_type` of them. None becomes null. A whole number that a double
    can't hold exactly is rounded; half of a surrogate pair in JSON becomes "?".
    """
    pa = import_arrow()
    if pa.types.is_string(type_):
        from tartools.samples.values import as_text

        values = [None if value is None else as_text(value) for value in values]
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return pa.array([_convert_value(value, type_) for value in values], type_)


def _convert_value(value: Any, type_: Any) -> Any:
    """Return *value*, from JSON, converted so that pyarrow accepts it for the Arrow type *type_*.

    An int becomes a float for a type of floats, half of a surrogate pair "?" in text; inside of lists and objects too.
    """
    types = import_arrow().types
    if value is None:
        return None
    if types.is_floating(type_):
        return float(value)
    if types.is_string(type_):
        return value.encode("utf-8", "replace").decode()
    if types.is_list(type_):
        return [_convert_value(element, type_.value_type) for element in value]
    if types.is_struct(type_):
        return {name: _convert_value(element, type_.field(name).type) for name, element in value.items()}
    return value


def plain_values(column: Any) -> Sequence[Any]:
    """Return the values of *column*, an Arrow array, as str, int, float, bool, list or dict; None for null.

    Bytes are written in hex. A column of floats below 64 bits has the numbers with the fewest digits (not inside lists
    or objects). Anything else is text: a column of timestamps, or of a type in ns, as Arrow writes them; dates, times
    and durations otherwise, and all inside lists and objects, as `str` of the Python value ("1 day, 0:00:00"), or as
    Arrow writes them if Python can't hold one; decimals as `str`. A map is a list of [key, value].

    Raises: UnicodeDecodeError for strings that are not UTF-8; ValueError or OverflowError for a time that Python can't
    hold in a map or a list of fixed length.
    """
    pa = import_arrow()
    is_a = pa.types
    if is_a.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if is_a.is_floating(kind) and not is_a.is_float64(kind):
        column = column.cast(pa.float32()).cast(pa.string()).cast(pa.float64())
    elif is_a.is_timestamp(kind) or getattr(kind, "unit", "") == "ns":  # Python has no nanoseconds
        column = column.cast(pa.string())
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError) as error:  # such as the year 10,000
        if isinstance(error, UnicodeDecodeError):
            raise
        values = column.cast(_times_as_text(kind)).to_pylist()
    if is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind) or is_a.is_string(kind):
        return values
    return list(map(_json_value, values))


def _times_as_text(kind: Any) -> Any:
    """Return the Arrow type *kind* with text in place of dates, times and durations, inside lists and objects too.

    Maps and lists of fixed length stay as they are.
    """
    pa = import_arrow()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_times_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(member.name, _times_as_text(member.type)) for member in kind])
    return pa.string() if pa.types.is_temporal(kind) else kind


def _json_value(value: Any) -> Any:
    """Return *value* as JSON has it: bytes in hex, and text for types that JSON lacks; in lists and objects too.

    A tuple becomes a list. NaN and infinite floats stay.
    """
    if isinstance(value, dict):
        return {name: _json_value(element) for name, element in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_json_value, value))
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
