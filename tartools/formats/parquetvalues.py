"""Columns of Parquet files as payloads of fields: bytes, text, pictures and sounds, and lists of these."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from tartools.errors import SampleError
from tartools.samples.filetypes import BY_SUFFIX, MAGIC_BYTES, suffix_of, type_of_file
from tartools.samples.values import as_text
from tartools.tables import schema


class FileInList(NamedTuple):
    """A picture, sound or bytes in a list: its *payload*, its *path* or None, and its *number* in the list, from 0.

    Nulls in the list are no files, but have a number.
    """

    payload: bytes
    path: bytes | None
    number: int

    def field(self, name: str) -> str:
        """Return the field for this file of the column *name*: with its number, and a suffix of *name* or the file.

        The suffix of *name* stays at the end if it is in `BY_SUFFIX`. Else the file's is added: the suffix of its path
        if that is in `BY_SUFFIX`, else a suffix of its type by the first bytes; none if they show no type.

        >>> FileInList(b"GIF89a", b"d/a.PNG", 1).field("images"), FileInList(b"GIF89a", None, 0).field("images")
        ('images.1.png', 'images.0.gif')
        >>> FileInList(b"?", None, 0).field("images"), FileInList(b"?", None, 2).field("view.jpg")
        ('images.0', 'view.2.jpg')
        """
        stem, dot, suffix = name.rpartition(".")
        if suffix.lower() in BY_SUFFIX:
            return f"{stem}{dot}{self.number}.{suffix}"
        by_path = suffix_of(os.fsdecode(self.path or b""))
        kind = type_of_file(self.payload[:MAGIC_BYTES])
        suffixes = (by_path,) if by_path in BY_SUFFIX else kind.suffixes if kind else ()
        return ".".join((name, str(self.number), *suffixes[:1]))


FileList = list[FileInList]


def plain_column(column: Any) -> Any:
    """Return *column*, a `pyarrow.Array`, with its stored values, without an extension type or a dictionary."""
    pa = schema.import_arrow()
    column = column.storage if isinstance(column, pa.ExtensionArray) else column
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def is_bytes_type(kind: Any) -> bool:
    """True if the Arrow type *kind* is binary, large_binary, binary_view or fixed_size_binary."""
    is_a = schema.import_arrow().types
    tests = is_a.is_binary, is_a.is_large_binary, is_a.is_binary_view, is_a.is_fixed_size_binary
    return any(test(kind) for test in tests)


def is_file_type(kind: Any) -> bool:
    """True if *kind*, an Arrow type, is a picture or sound as `datasets` has them: a struct of `bytes` and `path`."""
    return bool(schema.import_arrow().types.is_struct(kind)) and {part.name for part in kind} == {"bytes", "path"}


def is_list_type(kind: Any) -> bool:
    """True if *kind*, an Arrow type, is list, large_list or fixed_size_list."""
    is_a = schema.import_arrow().types
    return any(test(kind) for test in (is_a.is_list, is_a.is_large_list, is_a.is_fixed_size_list))


def is_list_of_files(kind: Any) -> bool:
    """True if *kind*, an Arrow type, is a list of pictures, sounds or bytes."""
    return is_list_type(kind) and bool(is_bytes_type(kind.value_type) or is_file_type(kind.value_type))


def has_bytes(kind: Any) -> bool:
    """True if *kind*, an Arrow type, is bytes, or has bytes in it at any depth."""
    return is_bytes_type(kind) or any(has_bytes(kind.field(at).type) for at in range(kind.num_fields))


def column_payloads(column: Any, name: str, row: int) -> Sequence[Any]:
    """Return the payload of each row of *column*, a `pyarrow.Array` from the column *name* of a Parquet file.

    It is bytes (also of a picture or sound; text as UTF-8, numbers and dates as text, true and false, lists and objects
    as JSON), a list of `FileInList` for a list of pictures, sounds or bytes, or None for null. *row*: the number of the
    first row, for errors.

    Raises: SampleError, with the row as its offset, for a picture or sound that is only a path; SampleError for bytes
    at any other depth, which JSON can't hold.
    """
    column = plain_column(column)
    kind = column.type
    if is_list_of_files(kind):
        lists = enumerate(column.to_pylist(), row)
        return [None if files is None else _list_files(files, name, number) for number, files in lists]
    if is_file_type(kind):
        parts = {
            part_type.name: encode_column(part, name) for part_type, part in zip(kind, column.flatten(), strict=True)
        }
        pairs = enumerate(zip(parts["bytes"], parts["path"], strict=True), row)
        return [require_bytes(payload, path, name, number) for number, (payload, path) in pairs]
    return encode_column(column, name)


def _list_files(files: Sequence[Any], name: str, row: int) -> FileList:
    """Return *files*, a list of bytes or of dicts with bytes and path in row *row* of the column *name*, without nulls.

    Raises: SampleError, with the row as its offset, if one is only a path.
    """
    listed = []
    for number, file in enumerate(files):
        payload, path = (file["bytes"], file["path"]) if isinstance(file, dict) else (file, None)
        raw = path.encode() if isinstance(path, str) else path
        if require_bytes(payload, raw, name, row) is not None:
            listed.append(FileInList(payload, raw, number))
    return listed


def require_bytes(payload: bytes | None, path: bytes | None, name: str, row: int) -> bytes | None:
    """Return *payload*, of a picture or sound in row *row* of the column *name*; None if that and *path* are None.

    Raises: SampleError, with the row as its offset, if there is only a path.
    """
    if payload is None and path is not None:
        where = path.decode("utf-8", "replace")
        reason = f"the column {name!r} has only the path {where!r}, not the bytes of that file"
        raise SampleError(f"{reason}; a TSV with a column @{name} has tarcreate read files", offset=row)
    return payload


def encode_column(column: Any, name: str) -> Sequence[bytes | None]:
    """Return the payload of each row of *column*, a `pyarrow.Array` called *name* without files or lists of files.

    None for null. Bytes are as they are, text is UTF-8, numbers and dates are text, true and false, lists and objects
    are JSON. Raises: SampleError for bytes inside of lists or objects.
    """
    column = plain_column(column)
    is_a, kind = schema.import_arrow().types, column.type
    if is_bytes_type(kind) or is_a.is_string(kind) or is_a.is_large_string(kind) or is_a.is_string_view(kind):
        return schema.encode_texts(column).to_pylist()  # type: ignore[no-any-return]
    check_no_bytes(kind, name)
    return [None if value is None else as_text(value).encode() for value in schema.plain_values(column)]


def check_no_bytes(kind: Any, name: str) -> None:
    """Raise SampleError if *kind*, the Arrow type of the column *name*, has bytes inside of lists or objects.

    JSON can't hold these. *kind* must not be bytes itself.
    """
    if has_bytes(kind):
        reason = f"the column {name!r} has bytes inside of lists or objects, which JSON can't hold"
        raise SampleError(f"{reason}; -f chooses other columns ({kind})")
