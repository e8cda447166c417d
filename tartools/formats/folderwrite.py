"""Samples to the files of a folder, and a table of their text beside them, as Hugging Face's `imagefolder` reads it.

    cats/1.jpg  cats/1.cls  cats/1.txt      cats/1.jpg           metadata.csv:  file_name,cls,txt
    cats/2.jpg  cats/2.cls  cats/2.txt  ─►  cats/2.jpg      and                 cats/1.jpg,0,a cat
                                                                                cats/2.jpg,0,another

`folder` and `folderrows` read both back. Names come from a shard, which may say anything: see `FolderNames`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tartools.errors import SampleError, several
from tartools.formats.folder import is_left_out
from tartools.formats.textwrite import make_line_maker
from tartools.samples.account import Account
from tartools.samples.filetypes import BY_SUFFIX, NUMBER_SUFFIXES, PICTURE, SOUND, TEXTS, VIDEO, suffix_of
from tartools.samples.payloads import parse_json
from tartools.samples.sample import Sample, failure_of, field_name
from tartools.samples.unicodeforms import to_nfc
from tartools.samples.values import PSEUDO_FIELDS, Column, comma_advice, field_list, make_getter, text_of
from tartools.storage.outputfolder import OutputFolder
from tartools.storage.streams import write_lines
from tartools.tar import Member, copy_payload, split_path

FILE_COLUMN = "file_name"  # of a table: the main file of a sample; others have names that end in _file_name
TABLE_NAME_SUFFIXES = ("csv", "jsonl")  # formats of tables of rows, by suffix
LISTED_KINDS = (PICTURE, SOUND, VIDEO)  # of files that a row names; the first kind that a sample has counts
NEW_NAMES_HINT = "tarcat --rekey gives new keys, -f 'new=old' new fields"


class FolderLayout(NamedTuple):
    """How samples become files of a folder.

    `class_column`: the value that names the folder of a sample; None: keys alone say where files are.
    `table`: name of the table of text and JSON fields, which ends in .csv or .jsonl, its format; None: these fields are
        files too.
    `verbatim`: True if names of fields are compared with case, and a final newline is part of a text.
    """

    class_column: Column | None = None
    table: str | None = None
    verbatim: bool = False


def write_sample_files(samples: Iterable[Sample], output: OutputFolder, account: Account, layout: FolderLayout) -> None:
    """Write the members of *samples* as files of *output*, in order; text goes to the table of *layout* if it has one.

    Without a table, the field that is the class of *layout* is not written: its value is the name of the folder.
    Samples, and bytes of files without the table, are counted in *account*, which warns of files that
    `tarcreate --folder` would leave out. The caller commits *output*.

    Holds: one sample; some 500 bytes for each file and each sample. Raises: SampleError for names that can't be files,
    two files of one name, two samples of one key, a sample without a class or without any file to write, and one that
    does not fit the table; StorageError.
    """
    writer = _FolderWriter(output, account, layout)
    if layout.table is None:
        for sample in samples:
            writer.add(sample)
    else:
        writer.names.add(layout.table.encode())
        with output.create(layout.table.encode()) as sink:
            write_lines(_table_lines(samples, writer, layout.table), sink)
    writer.warn_of_skipped()


def _table_lines(samples: Iterable[Sample], writer: _FolderWriter, table: str) -> Iterator[bytes]:
    """Yield the lines of the table called *table*, one for each of *samples*, whose files *writer* writes meanwhile.

    A CSV, by the suffix of *table*, has a header before them, and all its rows have the columns of the first; without
    samples the header is file_name. In JSON lines each row has its own columns. Raises: SampleError if a row of a CSV
    has other columns, and the errors of `_FolderWriter.add`.
    """
    is_csv = table.endswith(".csv")
    header: list[str] | None = None
    line = make_line_maker("csv", ())
    for sample in samples:
        row = writer.add(sample)
        if not is_csv:
            yield (
                "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {row[name]}" for name in row) + "}\n"
            ).encode()
            continue
        if header is None:
            header = list(row)
            yield line(header).encode()
        if row.keys() != set(header):
            odd = min(row.keys() ^ set(header))
            verb = "has" if odd in row else "lacks"
            message = f" {verb} {odd!r}, unlike the first one, and a CSV has a cell for all or none of a column"
            raise failure_of(sample, f"{message}: --rows metadata.jsonl can leave out values")
        yield line([row[name] for name in header]).encode()
    if is_csv and header is None:
        yield line([FILE_COLUMN]).encode()


class FolderNames:
    """The names of the files and folders of a folder: `add` refuses one that a file system would take for another.

    macOS and Windows take `A.jpg` and `a.jpg`, and two Unicode forms of one name, for one file; one file would replace
    another there, or two classes would become one.

    Holds: the names.
    """

    def __init__(self) -> None:
        self._first: dict[bytes, bytes] = {}  # name as such file systems compare it -> the name; folders end in a slash
        self._folders: set[bytes] = set()

    def add(self, path: bytes) -> None:
        """Add the file *path*, and the folders that it is in. Raises: SampleError if a name is taken."""
        end = path.rfind(b"/")
        if end >= 0 and path[:end] not in self._folders:
            at = 0
            while at >= 0:
                at = path.find(b"/", at + 1)
                if at >= 0 and path[:at] not in self._folders:
                    self._add_name(path[:at], b"/")
                    self._folders.add(path[:at])
        self._add_name(path, b"")

    def _add_name(self, path: bytes, end: bytes) -> None:
        """Add *path*, with *end* behind it: a slash for a folder. Raises: SampleError if the name is taken."""
        folded = fold_name(path)
        first = self._first.get(folded)
        if first is None:
            self._first[folded] = path + end
            return
        names = [name.removesuffix(b"/").decode("utf-8", "surrogateescape") for name in (first, path)]
        if first == path + end:
            reason = f"two files would be called {names[0]!r}"
        elif names[0] == names[1]:
            reason = f"{names[0]!r} would be a file and a folder"
        else:
            reason = f"{names[0]!r} and {names[1]!r} are one name on macOS and Windows"
        raise SampleError(f"{reason}: {NEW_NAMES_HINT}")


def fold_name(path: bytes) -> bytes:
    r"""Return *path* as file systems compare names that ignore case and the form of Unicode.

    >>> fold_name(b"A/b.JPG"), fold_name("E\u0301".encode()) == fold_name("\u00e9".encode()), fold_name(b"\xff")
    (b'a/b.jpg', True, b'\xff')
    """
    if path.isascii():
        return path.lower()
    text = to_nfc(path).decode("utf-8", "surrogateescape").casefold()
    return to_nfc(text.encode("utf-8", "surrogateescape"))


class _FolderWriter:
    """Writes the files of samples to *output*, as *layout* says, and counts samples and bytes in *account*.

    Call `add` for each sample, and then `warn_of_skipped`. `names`: the names of all files and folders so far.
    """

    def __init__(self, output: OutputFolder, account: Account, layout: FolderLayout) -> None:
        self.names = FolderNames()
        self._output = output
        self._account = account
        self._layout = layout
        self._keys: set[bytes] = set()
        self._left_out: list[str] = []  # the first name that `folder` leaves out
        self._left_out_count = 0
        column = layout.class_column
        self._class_of = None if column is None else make_getter(column, verbatim=layout.verbatim)

    def add(self, sample: Sample) -> dict[str, str]:
        """Write the files of *sample*; return its row: by column the text of a cell, or with JSON lines a JSON value.

        Without a table the row is empty, and the field that is the class is not written; with one, text and JSON fields
        are in the row, and are not written. Raises: SampleError for a name that can't be a file, or is taken, a key
        twice, a sample without a class or without any file, and what `_make_row` refuses; StorageError.
        """
        label = None if self._class_of is None else self._class_name(sample)
        members = self._members_to_write(sample)
        texts: list[Member] = []
        if self._layout.table is not None:
            texts = [member for member in members if suffix_of(field_name(member)) in TEXTS]
            members = [member for member in members if member not in texts]
        if not members:
            reason = " has text alone, and a row of a table needs a file" if texts else " has no other field"
            raise failure_of(sample, f"{reason}; its fields are: {field_list(sample.fields)}")
        paths = [path_in_folder(member.path, label) for member in members]
        try:
            self._add_names(sample, paths)
        except SampleError as error:
            raise failure_of(sample, f": {error.message}") from None
        for member, path in zip(members, paths, strict=True):
            with self._output.create(path) as sink:
                copy_payload(member, sink)
            self._account.bytes_out += member.size
        row = {} if self._layout.table is None else self._make_row(sample, members, paths, texts)
        self._account.samples_out += 1
        return row

    def warn_of_skipped(self) -> None:
        """Warn of files that `tarcreate --folder` would leave out, if there are any."""
        if self._left_out:
            end = f" and {several(self._left_out_count - 1, 'more file')}" if self._left_out_count > 1 else ""
            self._account.warn(
                f"{self._left_out[0]!r}{end} will be left out by tarcreate --folder, which skips such names"
            )

    def _class_name(self, sample: Sample) -> str:
        """Return the class of *sample*; the layout has a `class_column`.

        Raises: SampleError if it has none, has the field twice, or its value is not UTF-8 or can't name a folder.
        """
        assert self._class_of is not None
        assert self._layout.class_column is not None
        name, label = self._layout.class_column.name, self._class_of(sample, 0)
        if label is None:
            have = field_list(sample.fields)
            raise failure_of(sample, f" has no value for --class {name}{comma_advice(name)}; its fields are: {have}")
        if not label.isprintable() or "/" in label or is_left_out(label.encode(), True) or label in ("", ".", ".."):
            raise failure_of(sample, f": the class {label!r} can't be the name of a folder")
        return label

    def _members_to_write(self, sample: Sample) -> Sequence[Member]:
        """Return the members of *sample*, without the field that is its class, because its folder has that name.

        All members if there is a table, there are no classes, or the class is no field, but a value inside of a JSON
        field, or the key, shard, index or size of the sample.
        """
        column = self._layout.class_column
        if column is None or column.path or self._layout.table is not None:
            return sample.members
        for name in column.choices:
            if name in PSEUDO_FIELDS:  # each sample has a value
                break
            member = sample.member(name, verbatim=self._layout.verbatim)
            if member is not None:
                return [other_member for other_member in sample.members if other_member.path != member.path]
        return sample.members

    def _add_names(self, sample: Sample, paths: Sequence[bytes]) -> None:
        """Add the files *paths*, all of *sample*, to the names; count the files that `tarcreate --folder` leaves out.

        Raises: SampleError if a name is empty or taken, or if an earlier sample has the same key (checked unless the
        sample is one member without a field). The key is that of the written path, with the class's folder.
        """
        for path in paths:
            *folders, base = path.split(b"/")
            if not base:
                raise SampleError(f"a member without a name can't be a file ({NEW_NAMES_HINT})")
            self.names.add(path)
            if is_left_out(base, False) or any(is_left_out(folder, True) for folder in folders):
                self._left_out_count += 1
                self._left_out = self._left_out or [path.decode("utf-8", "surrogateescape")]
        if sample.grouped:
            key = split_path(paths[0])[0]
            if key in self._keys:
                raise SampleError(
                    "an earlier sample has the same key, and in a folder both would be one: tarsort joins the members "
                    "of a key, --rekey of tarcat gives new keys"
                )
            self._keys.add(key)

    def _make_row(
        self, sample: Sample, members: Sequence[Member], paths: Sequence[bytes], texts: Sequence[Member]
    ) -> dict[str, str]:
        """Return the row of *sample*: column -> the text of a cell, or for a table of JSON lines a JSON value.

        The layout has a table. The row has the names of its files, *members* at *paths*, and its *texts*. Raises:
        SampleError if a name or text is not UTF-8, a field is there twice or called as a column of names, or a JSON
        field is not JSON in a table of JSON lines.
        """
        is_json = self._layout.table is not None and self._layout.table.endswith(".jsonl")
        row: dict[str, str] = {}
        for column, at in file_columns([field_name(member) for member in members]).items():
            try:
                name = paths[at].decode()
            except UnicodeDecodeError:
                raise failure_of(sample, f": the name {members[at].name!r} is not UTF-8 ({NEW_NAMES_HINT})") from None
            row[column] = json.dumps(name, ensure_ascii=False) if is_json else name
        for member in texts:
            field = field_name(member)
            if field in row:
                raise failure_of(sample, f" has the field {field!r} twice")
            text = text_of(sample, field, member.read(), self._layout.verbatim)
            row[field] = json_value(sample, field, text) if is_json else text
        return row


def path_in_folder(path: bytes, label: str | None) -> bytes:
    """Return the path of the file for the member *path*, without empty parts and `.`.

    *label*: the class, which becomes the last folder unless it is that already; None: there are no classes.

    >>> path_in_folder(b"./a//b.jpg", None), path_in_folder(b"a/b.jpg", "cat"), path_in_folder(b"a/cat/b.jpg", "cat")
    (b'a/b.jpg', b'a/cat/b.jpg', b'a/cat/b.jpg')
    """
    parts = [part for part in path.split(b"/") if part not in (b"", b".")]
    if label is not None and parts[-2:-1] != [label.encode()]:
        parts.insert(len(parts) - 1, label.encode())
    return b"/".join(parts)


def file_columns(fields: Sequence[str]) -> dict[str, int]:
    """Return the columns of file names in a row, each with the index of its file in *fields*, the files of a sample.

    `file_name` is the main file: the first picture, else sound, else video, else file, if possible without a dot in its
    field. Other pictures, sounds or videos, if the main file is of their kind, are NAME_file_name, by which `datasets`
    loads them too; NAME: the field without its suffix, or all of it if that is empty or taken. Other files have no
    column. *fields*: at least one.

    >>> file_columns(["npy", "seg.png", "jpg", "depth.png"])
    {'file_name': 2, 'seg_file_name': 1, 'depth_file_name': 3}
    """
    kinds = [getattr(BY_SUFFIX.get(suffix_of(field)), "kind", "") for field in fields]
    ranks = [LISTED_KINDS.index(kind) if kind in LISTED_KINDS else len(LISTED_KINDS) for kind in kinds]
    main = min(range(len(fields)), key=lambda at: (ranks[at], "." in fields[at], at))
    columns = {FILE_COLUMN: main}
    for at, field in enumerate(fields):
        if at != main and kinds[at] == kinds[main] and kinds[at] in LISTED_KINDS:
            stem = field.rpartition(".")[0] or field
            stem = field if f"{stem}_{FILE_COLUMN}" in columns else stem
            columns[f"{stem}_{FILE_COLUMN}"] = at
    return columns


def json_value(sample: Sample, field: str, text: str) -> str:
    """Return *text*, of *field* of *sample*, as a JSON value on one line.

    With the suffix json, it is the value itself, without a byte order mark, its line breaks as blanks; with that of a
    class (cls) and a whole number of up to 18 digits, a number; any other text is a string.
    Raises: SampleError for a field with the suffix json that is not JSON.
    """
    suffix = suffix_of(field)
    if suffix in NUMBER_SUFFIXES and re.fullmatch(r"0|-?[1-9][0-9]{0,17}", text):
        return text
    if suffix != "json":
        return json.dumps(text, ensure_ascii=False)
    constants: list[str] = []
    try:
        parse_json(text.encode(), constants)
    except ValueError as error:
        raise failure_of(sample, f", field {field!r}: not JSON: {error}") from None
    if constants:
        raise failure_of(sample, f", field {field!r}: {constants[0]} is not JSON")
    return text.lstrip("\ufeff").translate({10: " ", 13: " "})  # outside of strings, which can't hold line breaks
