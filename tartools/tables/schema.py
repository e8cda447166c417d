"""What a table is, by its name and its first bytes; its columns, their types, and the names of shards in it.

Everything that reading relies on is a column, because SQL engines drop the metadata of a file. The type of a column of
values is known only when all values are: JSON's, for lists and objects too, or text for values of several kinds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from tartools import storage
from tartools.errors import StorageError, how_to_install
from tartools.storage.url import Url, unpinned

SHARD, VERSION, INDEX, KEY = "__shard__", "__version__", "__index__", "__key__"
BEGIN, END, MEMBERS = "__begin__", "__end__", "__members__"
MAGIC, SUFFIX = b"PAR1", ".parquet"
ROW_GROUP = 1 << 16  # rows
ABSENT, TWICE = -1, -2  # offset of a field that a sample lacks, and of one that it has twice: which is not known
MOST_FIELDS = 1000  # in `__members__`
DEEPEST = 20  # lists and objects in each other; what is deeper becomes text
COPY_IT = " (a copy of the table on this machine may)"
MOST_NAMES = 1000  # in an object; one with more becomes text
LEAST, GREATEST = -(1 << 63), (1 << 63) - 1  # of int64


def is_table_name(url: str) -> bool:
    """Tell whether the output *url* is to be a table that lists samples, not a shard that holds them.

    >>> is_table_name("s3://b/good.parquet"), is_table_name("pipe:cat > good.parquet")
    (True, False)
    """
    return SUFFIX in url.lower() and Url(url).scheme != "pipe" and Url(url).name.lower().endswith(SUFFIX)


def is_table(url: str) -> bool:
    """Tell whether *url* is a table, by its first bytes; stdin, commands and fifos are not looked into: False.

    On a server, where a look costs a request, only what has the name of a table can be one. Raises: StorageError.
    """
    url = Url(url)
    if storage.plain_size(url) is None and not (is_table_name(url) and storage.is_far(url)):
        return False
    from tartools.storage.checks import look

    return look(url).first == MAGIC


def check_pyarrow() -> None:
    """Raise StorageError if there is no pyarrow, without importing it, which takes 0.3 s."""
    from importlib.util import find_spec

    if find_spec("pyarrow") is None:
        raise _missing()


def arrow() -> Any:
    """Return pyarrow, with `pyarrow.parquet` imported. Raises: StorageError, which says what to install."""
    from tartools.tar.runs import one_thread

    try:
        with one_thread():
            import pyarrow
            import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise _missing() from error
    except ImportError as error:  # such as no memory for its libraries
        raise StorageError(f"pyarrow can't be imported: {error}") from error
    return pyarrow


def _missing() -> StorageError:
    return StorageError(f"Parquet files need pyarrow: {how_to_install('pyarrow')}")


@contextmanager
def unfit(what: str, url: str) -> Iterator[None]:
    """Turn what Arrow raises for values of other types into a StorageError: *what* is wrong with the table *url*."""
    try:
        yield
    except (arrow().ArrowException, ValueError, OverflowError) as error:
        if isinstance(error, MemoryError):
            raise
        raise StorageError(what, url=url) from None


def raw(column: Any) -> Any:
    """Return *column*, of text or bytes, as an array of bytes. Raises: ArrowException if it is neither."""
    pa = arrow()
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if column.type == pa.string():  # the common case; `cast` takes 60 ms to import
        return column.view(pa.binary())
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        raise pa.ArrowTypeError("no text")
    return column.cast(pa.large_binary())


def folder_of(url: str) -> str:
    """Return the directory or prefix that the table *url* is in, with its last slash; "" for stdin and commands.

    >>> folder_of("s3://b/sets/train.parquet"), folder_of("train.parquet")
    ('s3://b/sets/', '')
    """
    name = "" if Url(url).scheme in ("-", "pipe") else Url(url).name
    return name[: name.rfind("/") + 1]


def relative(shard: str, folder: str) -> str:
    """Return the name of *shard* in a table in *folder*: relative where both can be moved together.

    >>> relative("s3://b/sets/a.tar", "s3://b/sets/"), relative("s3://b/a.tar", "sets/")
    ('a.tar', 's3://b/a.tar')
    """
    inside = unpinned(shard).removeprefix(unpinned(folder))
    if len(inside) < len(unpinned(shard)) and not os.path.isabs(inside):  # as behind two slashes
        return inside
    if not Url(shard).is_local or "://" in shard:
        return shard
    path = shard.removeprefix("file:")
    if folder and not Url(folder).is_local:
        return os.path.abspath(path)
    inside = os.path.relpath(path, folder or ".")
    return path if os.path.isabs(path) and inside.startswith("..") else inside


def check_names(names: Iterable[str], folder: str) -> None:
    """Raise StorageError if one of *names*, as `relative` gives them, can't be read from a table in *folder*."""
    for name in names:
        if why := _refusal(name, folder):
            raise StorageError(why)


def resolved(name: str, folder: str) -> str:
    """Return the URL of the shard *name* in a table in *folder*. Raises: StorageError for one it may not name."""
    if why := _refusal(name, folder):
        from tartools.storage import origins

        raise StorageError(f"{why}{origins.is_from_server(folder) * COPY_IT}")
    return _shard_url(name, folder)


def _refusal(name: str, folder: str) -> str:
    """Return why a table in *folder* may not name the shard *name*; "" if it may."""
    from tartools.storage import origins

    if ".." in name.split("/") and origins.is_from_server(folder):
        return "a table on a server may not name a shard by '..'"
    return origins.naming_error(_shard_url(name, folder), folder, "table", may_act=False)


def _shard_url(name: str, folder: str) -> str:
    return name if Url(name).scheme or os.path.isabs(name) else folder + name


# ---- columns that tartools needs ----


def own_types() -> dict[str, Any]:
    """Return the types of columns of unified rows, in order, but for members and values: see `inputs`."""
    pa = arrow()
    return {SHARD: pa.int32(), INDEX: pa.uint64(), KEY: pa.string(), BEGIN: pa.uint64(), END: pa.uint64()}


def place_type() -> Any:
    """Return the type of a place in `__members__`."""
    pa = arrow()
    return pa.struct([("offset", pa.uint64()), ("size", pa.uint64())])


def is_place(found: Any) -> bool:
    """Tell whether *found* is the type of a place, whatever the types of its numbers."""
    return arrow().types.is_struct(found) and [field.name for field in found] == ["offset", "size"]


def members_column(fields: Sequence[str]) -> list[tuple[str, Any]]:
    """Return name and type of the column of places of *fields*; nothing without one: Parquet has no empty structs."""
    return [(MEMBERS, arrow().struct([(field, place_type()) for field in fields]))] if fields else []


def fields_of(found: Any) -> list[str]:
    """Return the fields that samples have by the unified schema *found*."""
    return [field.name for field in found.field(MEMBERS).type] if MEMBERS in found.names else []


# ---- types of values ----


def named_type(name: str) -> Any:
    """Return the type of a column of facts that *name* says: an alias of Arrow's, "digest", or "colours"."""
    pa = arrow()
    sizes = {"digest": 16, "colours": 48}
    return pa.binary(sizes[name]) if name in sizes else pa.type_for_alias(name)


class _MixedError(Exception):
    """Values that no type but text holds."""


def json_type(values: Sequence[Any]) -> Any:
    """Return the type of a column of *values* of JSON: null without any, text for values of several kinds.

    It does not depend on how values are cut into blocks: `joined_type` of the types of blocks is that of the whole.

    >>> print(json_type([1, None, 2.5]), json_type([[1], []]), json_type([{"a": 1}, {"b": True}]), json_type([1, True]))
    double list<item: int64> struct<a: int64, b: bool> string
    """
    try:
        return _type_of(values, 0)
    except _MixedError:
        return arrow().string()


def _type_of(values: Sequence[Any], depth: int) -> Any:
    found = arrow().null()
    types = set(map(type, values))
    for each in types - {type(None)}:
        alike = values if len(types) == 1 else [value for value in values if type(value) is each]
        found = _joined(found, _type_of_alike(alike, each, depth))
    return found


def _type_of_alike(values: Sequence[Any], each: type, depth: int) -> Any:
    """Return the type of *values*, which are all of type *each*."""
    pa = arrow()
    if each not in (list, dict):
        if each is int and (min(values) < LEAST or max(values) > GREATEST):
            raise _MixedError
        return {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}[each]
    if depth == DEEPEST:
        raise _MixedError
    if each is list:
        return pa.list_(_type_of([*chain.from_iterable(values)], depth + 1))
    names = dict.fromkeys(chain.from_iterable(values))
    if len(names) > MOST_NAMES or not all(map(_encodable, names)):
        raise _MixedError
    return pa.struct([(name, _type_of([value.get(name) for value in values], depth + 1)) for name in names])


def _encodable(name: str) -> bool:
    """Tell whether *name*, of JSON, can be written as UTF-8: it may hold half of a surrogate pair."""
    return name.isascii() or name == name.encode("utf-8", "replace").decode()


def joined_type(one: Any, other: Any) -> Any:
    """Return a type that holds the values of both types: the same, a number, lists or objects of such, or text.

    `pyarrow.unify_schemas` says the same of the types that `json_type` finds. Of others it promises what can't be kept:
    int64 for uint64 and int64.
    """
    try:
        return _joined(one, other)
    except _MixedError:
        return arrow().string()


def _joined(one: Any, other: Any) -> Any:
    pa = arrow()
    is_a, both = pa.types, (one, other)
    if one == other or is_a.is_null(other):
        return one
    if is_a.is_null(one):
        return other
    if all(map(is_a.is_signed_integer, both)):
        return pa.int64()
    if all(is_a.is_integer(each) or is_a.is_floating(each) for each in both):
        return pa.float64()
    if all(map(is_a.is_list, both)):
        return pa.list_(_joined(one.value_type, other.value_type))
    if not all(map(is_a.is_struct, both)):
        raise _MixedError
    types = {field.name: field.type for field in one}
    for field in other:
        types[field.name] = _joined(types.get(field.name, field.type), field.type)
    if len(types) > MOST_NAMES:
        raise _MixedError
    return pa.struct(list(types.items()))


def stored_type(found: Any) -> Any:
    """Return the type that Parquet has for *found*: text for null, and for objects one of which has no names."""
    try:
        return _stored(found)
    except _MixedError:
        return arrow().string()


def _stored(found: Any) -> Any:
    pa = arrow()
    if pa.types.is_list(found):
        return pa.list_(_stored(found.value_type))
    if not pa.types.is_struct(found):
        return pa.string() if pa.types.is_null(found) else found
    if not found.num_fields:
        raise _MixedError
    return pa.struct([(field.name, _stored(field.type)) for field in found])


def column_of(values: Sequence[Any], type_: Any) -> Any:
    """Return *values* as a column of *type_*; what is not text goes into a column of text as `as_text` makes it.

    A whole number that a double can't hold exactly is rounded; half of a surrogate pair in JSON becomes "?".
    """
    pa = arrow()
    if pa.types.is_string(type_):
        from tartools.samples.values import as_text

        values = [None if value is None else as_text(value) for value in values]
    try:
        return pa.array(values, type_)
    except (pa.ArrowInvalid, UnicodeEncodeError):
        return pa.array([_fitting(value, type_) for value in values], type_)


def _fitting(value: Any, type_: Any) -> Any:
    """Return *value* in a form that pyarrow takes for *type_*."""
    types = arrow().types
    if value is None:
        return None
    if types.is_floating(type_):
        return float(value)
    if types.is_string(type_):
        return value.encode("utf-8", "replace").decode()
    if types.is_list(type_):
        return [_fitting(each, type_.value_type) for each in value]
    if types.is_struct(type_):
        return {name: _fitting(each, type_.field(name).type) for name, each in value.items()}
    return value


def plain_values(column: Any) -> Sequence[Any]:
    """Return the values of *column* as str, int, float, bool, list or dict; None for null.

    Bytes are written in hex. A single-precision number is the one with the fewest digits. Anything else (dates,
    decimals) is the text that Arrow makes of it.

    Raises: UnicodeDecodeError for strings that are not UTF-8.
    """
    pa = arrow()
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
        values = column.cast(_worded(kind)).to_pylist()
    if is_a.is_integer(kind) or is_a.is_floating(kind) or is_a.is_boolean(kind) or is_a.is_string(kind):
        return values
    return list(map(_simple, values))


def _worded(kind: Any) -> Any:
    """Return the type *kind* with text in place of times and dates."""
    pa = arrow()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_worded(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _worded(each.type)) for each in kind])
    return pa.string() if pa.types.is_temporal(kind) else kind


def _simple(value: Any) -> Any:
    """Return *value* as something that JSON can hold."""
    if isinstance(value, dict):
        return {name: _simple(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return list(map(_simple, value))
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, int, float)) else str(value)
