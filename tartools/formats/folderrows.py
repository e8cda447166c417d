"""A folder with a table about its files, such as Hugging Face's metadata.csv, as planned samples.

A row names a file in a column. The sample of that file (the files with its key, see `folder`) gets the other columns of
the row as fields. The table can name no file but those in the folder: names are only compared with the files found.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from tartools.errors import SampleError, TarToolsError, printable, several, shown
from tartools.formats.folder import Folder, plan_folder
from tartools.formats.folderwrite import FILE_COLUMN
from tartools.formats.jsonl import compact_json
from tartools.formats.parquetvalues import FileInList
from tartools.formats.plan import PlannedMember, PlannedSample, group_parts
from tartools.formats.rowreading import JsonText, Row, convert_number_cells
from tartools.samples.account import Account
from tartools.samples.columnfields import ChosenColumns, Words, check_nameable, with_suffix
from tartools.samples.encoding import text_payload
from tartools.samples.filekeys import sample_key
from tartools.samples.rowchoice import RowKeys, key_text
from tartools.samples.sample import make_path
from tartools.samples.unicodeforms import to_nfc
from tartools.samples.values import as_text, comma_advice, field_list
from tartools.storage.names import local_url
from tartools.tar import join_path, split_path

FILE_COLUMNS = (FILE_COLUMN, "audio_filepath", "path")  # columns of file names, the first that a table has
FILE_COLUMN_END = f"_{FILE_COLUMN}"
GATHERED = "json"  # the field for all columns that no word of -f names
MAX_LISTED_NAMES = 10  # rows and files that a report names


class FolderTable(NamedTuple):
    """A table of rows about the files of a folder.

    `url`: its name. `rows`: its rows. `is_text`: True if all values are text, as in CSV.
    `file_column`: the column of file names; None: the first of `FILE_COLUMNS` that the table has. Columns that end in
        _file_name name files too. The main file of a row is the first that it names.
    `key_column`: the column of keys; None: `keys`, which makes keys of columns; if that is None too, `__key__`, or the
        keys of the files for a row without it.
    `words`: the columns that become fields, and their new names; a word `json`, if there is no such column, gathers all
        other columns in one field. None: all columns but those of file names and keys, and names that begin with two
        underscores.
    """

    url: str
    rows: list[Row]
    is_text: bool = False
    file_column: str | None = None
    key_column: str | None = None
    keys: RowKeys | None = None
    words: Words | None = None


def plan_folder_rows(folder: Folder, table: FolderTable, account: Account, skip_special: bool) -> list[PlannedSample]:
    """Return the samples of *folder* that a row of *table* names, in the order of the rows, with the row's fields.

    Rows whose main file is not in the folder, and files without a row, are left out and reported as omissions. In a
    sample, members are sorted by field. *skip_special*: True to leave out links and special files silently; False: they
    are an omission too.

    Holds: all rows and paths. Raises: SampleError, naming the row, for a row that names no file, or a further file that
    is not in the folder, two rows of one sample or key, a field twice, a value that can't be a payload, a column that
    is missing, and if no row that names a file has it in the folder; the errors of `plan_folder`.
    """
    planned = plan_folder(folder, account, skip_special)
    matcher = _Matcher(folder, planned, table)
    row_fields = _RowFields(table)
    samples: list[PlannedSample] = []
    keys: dict[bytes, str] = {}
    lost: list[str] = []
    for index, row in enumerate(table.rows):
        try:
            name, parts = matcher.parts_of(row, row_fields.file_columns(row))
            if parts is None:
                lost.append(f"{row.place} ({name!r})")
                continue
            sample = _add_fields(parts, row, index, table, row_fields)
        except TarToolsError as error:
            if error.url:
                raise
            raise SampleError(f"{row.place}: {error.message}", url=table.url) from None
        if (earlier := keys.setdefault(sample.key, row.place)) != row.place:
            text = os.fsdecode(sample.key)
            raise SampleError(f"{row.place}: the key {text!r} is that of {earlier} too", url=table.url)
        samples.append(sample)
    row_fields.check_words()
    if lost and not samples:
        raise SampleError(f"no file that a row names is in {shown(folder.path)}; the first: {lost[0]}", url=table.url)
    _report_omissions(lost, "row without a file", "rows without a file", table.url, account)
    _report_omissions(matcher.unused_files(), "file without a row", "files without a row", folder.path, account)
    return samples


def _report_omissions(names: Sequence[str], singular: str, plural: str, where: str, account: Account) -> None:
    """Report *names*, of rows of the table or files of the folder *where* that are left out, as one omission, if any.

    The message counts them and lists the first MAX_LISTED_NAMES. *singular*, *plural*: the noun for one name, and for
    several.
    """
    if names:
        listed = ", ".join(map(printable, names[:MAX_LISTED_NAMES]))
        rest = f" and {len(names) - MAX_LISTED_NAMES:,} more" if len(names) > MAX_LISTED_NAMES else ""
        account.omit(f"{shown(where)}: left out {several(len(names), singular, plural)}: {listed}{rest}")


class _Matcher:
    """Finds the samples of *folder* by the names of files in rows of *table*; *planned*: all samples of the folder.

    Call `parts_of` for each row, and then `unused_files`. A name may be in any Unicode form. It is relative to the
    folder of the table, if that is inside of *folder* and has the file there, or else to *folder*.
    """

    def __init__(self, folder: Folder, planned: Sequence[PlannedSample], table: FolderTable) -> None:
        self._base = local_url(os.path.join(folder.path, ""))
        self._samples = planned
        self._row_of: dict[int, str] = {}  # sample -> place of the row that has it
        self._extra: set[int] = set()  # samples with a file that is a further one of a row
        self._by_file: dict[str, int] = {}
        self._by_form: dict[str, str] = {}  # Unicode form NFC of a name -> the name
        for number, sample in enumerate(planned):
            for part in sample.parts:
                if part.url is not None:
                    name = self._path(part)
                    self._by_file[name] = number
                    if not name.isascii():
                        self._by_form[_nfc_of(name)] = name
        top, inside = os.path.abspath(folder.path), os.path.abspath(os.path.dirname(table.url) or ".")
        within = os.path.relpath(inside, top)
        self._bases = [""] if within == "." or within.startswith("..") else [within, ""]

    def _path(self, part: PlannedMember) -> str:
        """Return the path of the file of *part*, relative to the folder."""
        return str(part.url)[len(self._base) :]

    def parts_of(self, row: Row, columns: Sequence[str]) -> tuple[str, list[PlannedMember] | None]:
        """Return (name of the main file, members of its sample) for *row*; None as members if there is no such file.

        *columns*: the columns of the row that name files, the main one first. A further file that is in another sample
        than the main file is added, as the field NAME.SUFFIX for the column NAME_file_name. Raises: SampleError if an
        earlier row has the sample of the main file, or a further file is not there.
        """
        name = str(row.values[columns[0]])
        number = self._find_sample(name)
        if number is None:
            return name, None
        if (earlier := self._row_of.setdefault(number, row.place)) != row.place:
            raise SampleError(f"the file {name!r} is of the sample that {earlier} names too")
        parts = list(self._samples[number].parts)
        for column in columns[1:]:
            file = str(row.values[column])
            other_number = self._find_sample(file)
            if other_number is None:
                raise SampleError(f"column {column!r}: there is no file {file!r} in the folder")
            if other_number != number:
                self._extra.add(other_number)
                part = next(part for part in self._samples[other_number].parts if self._is_file(part, file))
                suffix = split_path(part.path)[1].rpartition(b".")[2]
                field = column.removesuffix(FILE_COLUMN_END).encode() + b"." + suffix
                parts.append(part._replace(path=join_path(self._samples[number].key, field)))
        return name, parts

    def _candidates(self, name: str) -> list[str]:
        """Return the paths that *name* may mean, relative to the folder, in the order in which they are tried.

        They are normalised: a/./b/../c.jpg is a/c.jpg; `..` stays at the begin alone. An absolute *name* stays
        absolute.
        """
        return [os.path.normpath(os.path.join(base, name)) for base in self._bases]

    def _find_sample(self, name: str) -> int | None:
        """Return the number of the planned sample with the file that the table calls *name*; None if none has it."""
        for path in self._candidates(name):
            if (file := self._name_in_folder(path)) is not None:
                return self._by_file[file]
        return None

    def _name_in_folder(self, path: str) -> str | None:
        """Return the path of the file with the name *path* in any Unicode form; None if there is none."""
        return path if path in self._by_file else self._by_form.get(_nfc_of(path))

    def _is_file(self, part: PlannedMember, name: str) -> bool:
        """True if *name*, of the table, names the file of *part*; False if *part* has no file."""
        return part.url is not None and self._path(part) in map(self._name_in_folder, self._candidates(name))

    def unused_files(self) -> list[str]:
        """Return the paths, relative to the folder, of all files in samples that no row has named so far.

        A row names a sample by any file in it.
        """
        rest = (s for n, s in enumerate(self._samples) if n not in self._row_of and n not in self._extra)
        return [self._path(part) for sample in rest for part in sample.parts if part.url is not None]


def _nfc_of(name: str) -> str:
    """Return *name* in Unicode form NFC, with surrogates for bytes that are not UTF-8."""
    return to_nfc(os.fsencode(name)).decode("utf-8", "surrogateescape")


class _RowFields:
    """Chooses columns of the rows of *table*: `file_columns`, with the names of files, and the fields, `fields_of`.

    Call these for each row, and then `check_words`. If a text table has a word for the field json, the rows of *table*
    are changed: cells that go to this field become numbers, if the whole column has numbers.
    Raises: SampleError if a table with rows has no column of file names, or lacks `file_column`, `key_column` or a
    column that `keys` needs.
    """

    def __init__(self, table: FolderTable) -> None:
        self._table = table
        names = {name: None for row in table.rows for name in row.values}
        self._names = list(names)
        self._files = [table.file_column] if table.file_column else [name for name in FILE_COLUMNS if name in names][:1]
        self._files += [name for name in names if name.endswith(FILE_COLUMN_END) and name not in self._files]
        key = table.key_column or "__key__"
        words = list(table.words) if table.words is not None else None
        self._gathered = next((w for w in words or () if w[0] == (GATHERED,) and GATHERED not in names), None)
        if words is not None and self._gathered is not None:
            words.remove(self._gathered)
        self._chosen = ChosenColumns(words, (*self._files, key), str.lower)
        self._by_names: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        if not self._files and table.rows:
            listed = ", ".join((*FILE_COLUMNS, f"*{FILE_COLUMN_END}"))
            columns = field_list(self._names)
            raise SampleError(
                f"no column of file names ({listed}); --file-column names it; the columns are: {columns}", url=table.url
            )
        needed = [name for name in (table.file_column, table.key_column) if name is not None and name not in names]
        needed += [name for name in (table.keys.columns if table.keys else ()) if name not in names]
        if needed and table.rows:
            raise SampleError(f"no column {needed[0]!r}; the columns are: {field_list(self._names)}", url=table.url)
        if self._gathered is not None and table.is_text:
            used_names = {
                self._names[at] for at, _ in self._chosen.choose({name: at for at, name in enumerate(self._names)})
            }
            convert_number_cells(
                table.rows, [name for name in self._names if name not in {*used_names, *self._files, key}]
            )

    def file_columns(self, row: Row) -> list[str]:
        """Return the columns in which *row* names files, the main one first; a column with an empty cell names none.

        Raises: SampleError if it names no file.
        """
        columns = [name for name in self._files if row.values.get(name)]
        if not columns:
            raise SampleError(f"it names no file in the column {self._files[0]!r}")
        return columns

    def fields_of(self, row: Row) -> list[tuple[str, Any]]:
        """Return (field, value) for the columns of *row* that become fields, in the order of `words` of the table.

        Without `words`: in the order of the row, without names that begin with two underscores. Columns of file names
        and the column of keys never become fields; a word that the row lacks is skipped. A word `json`, if no column
        has this name, adds at the end a dict of all columns left: no field, file name or key; its field is json, or the
        new name of the word. Raises: SampleError if two columns become one field.
        """
        names = tuple(row.values)
        if names not in self._by_names:
            chosen = self._chosen.choose({name: at for at, name in enumerate(names)})
            self._by_names[names] = [(names[at], field) for at, field in chosen]
        pairs = self._by_names[names]
        fields = [(field, row.values[name]) for name, field in pairs]
        if self._gathered is not None:
            used_names = {*(name for name, _ in pairs), *self._chosen.excluded_names}
            rest = {name: value for name, value in row.values.items() if name not in used_names}
            fields.append((self._gathered[1] or GATHERED, rest))
        return fields

    def check_words(self) -> None:
        """Raise SampleError if a word of -f names no column of the table, unless that has no rows."""
        if self._table.rows and (lost := " ".join(self._chosen.missing_words(self._names))):
            columns = field_list(self._names)
            raise SampleError(f"no column {lost}{comma_advice(lost)}; the columns are: {columns}", url=self._table.url)


def _add_fields(
    parts: Sequence[PlannedMember], row: Row, index: int, table: FolderTable, row_fields: _RowFields
) -> PlannedSample:
    """Return the sample of the files *parts* with the fields of *row*, number *index* (from 0) of *table*.

    Its members are sorted by field. Its key is the row's value in `key_column`, else what `keys` makes, else its
    `__key__`, else the key of the files. Raises: SampleError for a missing or bad key, a bad field, a field twice, a
    value that can't be a payload, or fields for a file without a suffix.
    """
    key = split_path(parts[0].path)[0]
    if table.key_column is not None or (table.keys is None and "__key__" in row.values):
        name = table.key_column or "__key__"
        key = sample_key(_key_text(row, name).encode("utf-8", "surrogateescape"))
    elif table.keys is not None:
        text = table.keys(index, lambda name: _key_text(row, name))
        key = sample_key(text.encode("utf-8", "surrogateescape"))
    members = [part._replace(path=make_path(os.fsdecode(key), os.fsdecode(split_path(part.path)[1]))) for part in parts]
    for field, value in row_fields.fields_of(row):
        members += row_members(os.fsdecode(key), field, value)
    members.sort(key=lambda part: split_path(part.path))
    fields = [split_path(part.path)[1] for part in members]
    if len(members) > len(set(fields)):
        twice = os.fsdecode(next(field for field in fields if fields.count(field) > 1))
        raise SampleError(
            f"a file and a column, or two columns, are for the field {twice!r} (-f 'new=old' renames one)"
        )
    samples = list(group_parts(members, table.url))
    if len(samples) > 1:  # a member without a field is a sample of its own
        name = os.fsdecode(members[0].path)
        raise SampleError(f"the file {name!r} has no suffix, so that no field of the row can join it: rename it")
    return samples[0]


def _key_text(row: Row, name: str) -> str:
    """Return the value of the column *name* of *row* as text for a key.

    Raises: SampleError if there is no value, or it is a list, an object, or bytes that are not UTF-8.
    """
    value = row.values.get(name)
    return key_text(None if isinstance(value, JsonText) else value, name)


def row_members(key: str, field: str, value: Any) -> list[PlannedMember]:
    """Return the members of the sample *key* for *value*, from a row, in the field *field*.

    Text is UTF-8, bytes are themselves, numbers are their digits, a bool is true or false; lists and objects are JSON
    in a field with the last part json (added unless it is there), and so is a `JsonText`, as it is written. Text,
    numbers and bools are compressed if *field* ends in the suffix of a codec. A list of `FileInList` has a member for
    each, in the field `FileInList.field`. Raises: SampleError for a field or a value that can't be stored.
    """
    check_nameable(field)
    if isinstance(value, list) and value and isinstance(value[0], FileInList):
        return [PlannedMember(make_path(key, file.field(field)), file.payload) for file in value]
    if isinstance(value, bytes):
        return [PlannedMember(make_path(key, field), value)]
    is_json = isinstance(value, (list, dict, JsonText))
    if is_json:
        field = with_suffix(field, "json")
    try:
        payload = (compact_json(value) if is_json else as_text(value)).encode()
    except UnicodeEncodeError:
        raise SampleError(f"column {field!r}: a lone surrogate can't be written as UTF-8") from None
    except TypeError:
        raise SampleError(f"column {field!r} has bytes, which JSON can't hold: -f names it as a field") from None
    path = make_path(key, field)
    return [PlannedMember(path, text_payload(path, payload))]
