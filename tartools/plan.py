"""Plans: what tells which samples to make.

A plan is a table (`from_table`), a recipe (`from_recipe`) or a tree of files (`from_folder`); each gives `Planned`
samples, for `tartools.sources.build`.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from tartools.account import Account
from tartools.errors import SampleError, StorageError, concealed, printable
from tartools.sample import checked_path, join_path
from tartools.sources import Part, Planned, local
from tartools.storage.local import path_of
from tartools.storage.names import scheme_of
from tartools.tar import split_path
from tartools.values import PSEUDO

TEXT = "text:"


class Plan(NamedTuple):
    """Where a plan came from, and how it is read: relative paths from *base* on.

    *name* is its URL, for messages. Commands in tables are only run if *allow_pipe*.
    """

    name: str
    base: str = ""
    allow_pipe: bool = False

    def failure(self, line: int, what: str) -> SampleError:
        """Return the failure of *line*."""
        return SampleError(f"line {line}: {what}", url=self.name)

    def source(self, text: str, line: int) -> str:
        """Return the URL that *text* names: with a local path from the base on, which stays a path."""
        scheme = scheme_of(text)
        if scheme == "-":
            raise self.failure(line, "stdin is no source of a member; write ./- for a file of that name")
        return local(path_of(text), self.base) if scheme in ("", "file") else text


def checked_key(key: str) -> str:
    """Return *key* if a sample may have it.

    Raises: SampleError for one that would lead out of the folder in which an archive is unpacked.
    """
    if not key:
        raise SampleError("the key is empty")
    if key.startswith("/") or ".." in key.split("/"):
        raise SampleError(f"the key {key!r} is absolute or holds '..', and would lead out of a folder")
    return key


# ---- tables ----


class Cells(NamedTuple):
    """What a column of a table is: the *field* it fills, from a source if *reads*; neither if it is *ignored*."""

    field: str
    reads: bool
    ignored: bool


def read_header(cells: Sequence[str], plan: Plan, line: int) -> list[Cells]:
    """Return what the columns are that the header *cells* name.

    Raises: SampleError for a name that is no field's, two columns for one field, or no field at all.
    """
    columns = [Cells(cell.removeprefix("@"), cell.startswith("@"), cell in PSEUDO) for cell in cells]
    fields = [column.field for column in columns if not column.ignored]
    for field in fields:
        try:
            if not field:
                raise SampleError("a column of the header has no name")
            if not field.isprintable():
                raise SampleError(f"this is no name of a field: {field!r}; is this a plan?")
            checked_path("key", field)
        except SampleError as error:
            raise plan.failure(line, error.message) from None
        if fields.count(field) > 1:
            raise plan.failure(line, f"two columns of the header are for the field {field!r}")
    if not fields:
        raise plan.failure(line, "the header names no field")
    if cells.count("__key__") > 1:
        raise plan.failure(line, "two columns of the header are __key__")
    return columns


def from_table(
    columns: Sequence[Cells], rows: Iterable[tuple[int, list[str]]], plan: Plan, template: str, key_at: int | None
) -> Iterator[Planned]:
    """Yield the samples that *rows*, (line, cells), describe; the cell *key_at* is the key, else *template* makes it.

    A sample lacks the field of an empty cell if the column reads it; otherwise that field is empty.

    Raises: SampleError naming the line for a key or source that is refused, or a sample without a field.
    """
    for index, (line, cells) in enumerate(rows):
        try:
            key = checked_key(template.format(index, index=index) if key_at is None else cells[key_at])
            parts = [
                _cell(checked_path(key, column.field), cell, column, plan, line)
                for column, cell in zip(columns, cells, strict=True)
                if not column.ignored and (cell or not column.reads)
            ]
        except SampleError as error:
            raise error if error.url else plan.failure(line, error.message) from None
        if not parts:
            raise plan.failure(line, f"the sample {key!r} has no field, and an archive cannot hold such a one")
        yield Planned(_bytes(key), tuple(parts))


def _cell(path: bytes, cell: str, column: Cells, plan: Plan, line: int) -> Part:
    if not column.reads:
        return Part(path, _bytes(cell))
    url = plan.source(cell, line)
    if scheme_of(url) == "pipe" and not plan.allow_pipe:
        raise plan.failure(line, f"a command in a table is not run without --allow-pipe: {concealed(cell)}")
    return Part(path, url=url)


# ---- recipes ----


def from_recipe(lines: Iterable[str], plan: Plan) -> Iterator[Planned]:
    """Yield the samples of a recipe: lines `NAME SOURCE`, where adjacent NAMEs of one key are one sample.

    SOURCE is `text:` with the payload itself, or a path or URL. Empty lines are passed over.

    Raises: SampleError naming the line.
    """
    return grouped(_recipe_parts(lines, plan), plan.name)


def _recipe_parts(lines: Iterable[str], plan: Plan) -> Iterator[Part]:
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\n").removesuffix("\r").lstrip(" \t")
        if not line:
            continue
        name, *rest = re.split(r"[ \t]+", line, maxsplit=1)
        source = rest[0] if rest else ""
        if not source:
            raise plan.failure(number, f"a line of a recipe is NAME SOURCE, and here is no SOURCE: {line!r}")
        if name.endswith("/") or "\0" in name:
            raise plan.failure(number, f"not a name for a member: {name!r}")
        try:
            checked_key(name)
        except SampleError as error:
            raise plan.failure(number, error.message) from None
        if source.startswith(TEXT):
            yield Part(_bytes(name), _bytes(source.removeprefix(TEXT)))
        else:
            yield Part(_bytes(name), url=plan.source(source, number))


# ---- folders ----


def from_folder(folder: str, class_field: str | None, account: Account | None) -> list[Planned]:
    """Return the samples in the tree of files below *folder*, sorted by the bytes of key and field.

    The key of a file is its path from *folder* on. With *class_field*, samples (but not files without a field)
    get a field of that name that holds the name of their directory. What is neither file nor directory is reported
    to *account*, if there is one; symbolic links are not followed.

    Holds: all paths. Raises: StorageError for what can't be listed; SampleError for a field that is there twice.
    """
    files, others = list_tree(folder)
    if others and account:
        path, kind = others[0]
        more = f"; nor are {len(others) - 1} more such files" if len(others) > 1 else ""
        account.omit(f"{printable(path)}: a {kind} is not followed and not stored{more} (--skip-special accepts that)")
    parts = [Part(path, url=local(os.fsdecode(path), folder)) for path in files]
    if class_field is not None:
        top = os.path.basename(os.path.abspath(folder))
        keys = {key for key, field in map(split_path, files) if field}
        for key in keys:
            label = os.path.basename(os.path.dirname(key)) or os.fsencode(top)
            parts.append(Part(join_path(key, os.fsencode(class_field)), label))
    parts.sort(key=lambda part: split_path(part.path))
    return list(grouped(parts, folder))


def list_tree(folder: str) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Return the files below *folder*, from there on, and (path, kind) of what is neither file nor directory.

    In no order. Raises: StorageError for a directory that can't be read.
    """
    files: list[bytes] = []
    others: list[tuple[str, str]] = []
    waiting = [b""]
    while waiting:
        inside = waiting.pop()
        where = os.path.join(os.fsencode(folder), inside) if inside else os.fsencode(folder)
        try:
            with os.scandir(where) as entries:
                for entry in entries:
                    path = os.path.join(inside, entry.name)
                    mode = entry.stat(follow_symlinks=False).st_mode
                    if stat.S_ISDIR(mode):
                        waiting.append(path)
                    elif stat.S_ISREG(mode):
                        files.append(path)
                    else:
                        others.append((os.fsdecode(entry.path), _kind(mode)))
        except OSError as error:
            raise StorageError(error.strerror or str(error), url=os.fsdecode(where)) from error
    return files, sorted(others)


def _kind(mode: int) -> str:
    kinds = ((stat.S_ISLNK, "symbolic link"), (stat.S_ISFIFO, "fifo"), (stat.S_ISSOCK, "socket"))
    return next((kind for test, kind in kinds if test(mode)), "device")


def grouped(parts: Iterable[Part], name: str) -> Iterator[Planned]:
    """Yield the samples that adjacent *parts* of one key make, each part without a field being one of its own.

    Raises: SampleError for two members of one name.
    """
    alone = 0

    def together(part: Part) -> tuple[bytes, int]:
        nonlocal alone
        key, field = split_path(part.path)
        alone += not field
        return key, 0 if field else alone

    for (key, _), found in groupby(parts, together):
        planned = Planned(key, tuple(found))
        paths = {part.path for part in planned.parts}
        if len(paths) < len(planned.parts):
            raise SampleError(
                f"the sample {planned.key.decode('utf-8', 'surrogateescape')!r} would have a field twice", url=name
            )
        yield planned


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
