"""Plans of tarcreate: read a table, a recipe or a folder, and say which samples to make of it.

`from_table`, `from_recipe` and `from_folder` give planned samples; `tartools.formats.build` makes them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from tartools.errors import SampleError, StorageError, concealed, printable
from tartools.formats.build import PlannedMember, PlannedSample, local_url
from tartools.samples.account import Account
from tartools.samples.sample import checked_path, join_path
from tartools.samples.values import PSEUDO, checked_key
from tartools.storage.local import path_of
from tartools.storage.url import Url
from tartools.tar import split_path

TEXT = "text:"


class Plan(NamedTuple):
    """The origin of a plan, and how to read it.

    *name* is its URL, for messages. Relative paths are relative to *base*. Commands in tables are refused unless
    *allow_pipe*.
    """

    name: str
    base: str = ""
    allow_pipe: bool = False

    def failure(self, line: int, what: str) -> SampleError:
        """Return the failure of *line*."""
        return SampleError(f"line {line}: {what}", url=self.name)

    def source(self, text: str, line: int) -> str:
        """Return the URL that *text* names; local paths are relative to the base. Raises: SampleError for stdin."""
        url = Url(text)
        if url.scheme == "-":
            raise self.failure(line, "a member cannot be read from stdin; write ./- for a file of that name")
        return local_url(path_of(url), self.base) if url.is_local else url


# ---- tables ----


class PlanColumn(NamedTuple):
    """A column of a table: the *field* that it fills, with the contents of its URL if *reads*; or it is *ignored*."""

    field: str
    reads: bool
    ignored: bool


def read_header(cells: Sequence[str], plan: Plan, line: int) -> list[PlanColumn]:
    """Return the columns that the header *cells* name.

    Raises: SampleError for an invalid field name, two columns for one field, or a header without a field.
    """
    columns = [PlanColumn(cell.removeprefix("@"), cell.startswith("@"), cell in PSEUDO) for cell in cells]
    fields = [column.field for column in columns if not column.ignored]
    for field in fields:
        try:
            if not field:
                raise SampleError("a column of the header has no name")
            if not field.isprintable():
                raise SampleError(f"not a field name: {field!r}; is this a plan?")
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
    columns: Sequence[PlanColumn], rows: Iterable[tuple[int, list[str]]], plan: Plan, template: str, key_at: int | None
) -> Iterator[PlannedSample]:
    """Yield the samples that *rows*, (line, cells), describe. Cell *key_at* is the key; if None, *template* makes it.

    An empty cell is an empty field; in a column that is read from URLs, the sample lacks the field.

    Raises: SampleError, naming the line, for a bad key or URL, or a sample without a field.
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
            raise plan.failure(line, f"the sample {key!r} has no field, so an archive cannot hold it")
        yield PlannedSample(_bytes(key), tuple(parts))


def _cell(path: bytes, cell: str, column: PlanColumn, plan: Plan, line: int) -> PlannedMember:
    if not column.reads:
        return PlannedMember(path, _bytes(cell))
    url = plan.source(cell, line)
    if Url(url).scheme == "pipe" and not plan.allow_pipe:
        raise plan.failure(line, f"a command in a table is not run without --allow-pipe: {concealed(cell)}")
    return PlannedMember(path, url=url)


# ---- recipes ----


def from_recipe(lines: Iterable[str], plan: Plan) -> Iterator[PlannedSample]:
    """Yield the samples of a recipe: lines `NAME SOURCE`, where adjacent NAMEs of one key are one sample.

    SOURCE is `text:` and the payload itself, or a path or URL. Empty lines are skipped.

    Raises: SampleError, naming the line.
    """
    return grouped(_recipe_parts(lines, plan), plan.name)


def _recipe_parts(lines: Iterable[str], plan: Plan) -> Iterator[PlannedMember]:
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\n").removesuffix("\r").lstrip(" \t")
        if not line:
            continue
        name, *rest = re.split(r"[ \t]+", line, maxsplit=1)
        source = rest[0] if rest else ""
        if not source:
            raise plan.failure(number, f"a line of a recipe is NAME SOURCE; SOURCE is missing: {line!r}")
        if name.endswith("/") or "\0" in name:
            raise plan.failure(number, f"not a member name: {name!r}")
        try:
            checked_key(name)
        except SampleError as error:
            raise plan.failure(number, error.message) from None
        if source.startswith(TEXT):
            yield PlannedMember(_bytes(name), _bytes(source.removeprefix(TEXT)))
        else:
            yield PlannedMember(_bytes(name), url=plan.source(source, number))


# ---- folders ----


def from_folder(folder: str, class_field: str | None, account: Account | None) -> list[PlannedSample]:
    """Return the samples in the tree of files below *folder*, sorted by the bytes of key and field.

    The key of a file is its path relative to *folder*. With *class_field*, samples (but not files without a field) get
    a field of that name with the name of their directory. Symbolic links and special files are left out and reported
    to *account*, unless it is None.

    Holds: all paths. Raises: StorageError for a directory that cannot be read; SampleError if a field occurs twice.
    """
    files, others = list_tree(folder)
    if others and account:
        path, kind = others[0]
        more = f"; nor are {len(others) - 1} more such files" if len(others) > 1 else ""
        account.omit(f"{printable(path)}: a {kind} is not followed and not stored{more} (--skip-special accepts that)")
    parts = [PlannedMember(path, url=local_url(os.fsdecode(path), folder)) for path in files]
    if class_field is not None:
        top = os.path.basename(os.path.abspath(folder))
        keys = {key for key, field in map(split_path, files) if field}
        for key in keys:
            label = os.path.basename(os.path.dirname(key)) or os.fsencode(top)
            parts.append(PlannedMember(join_path(key, os.fsencode(class_field)), label))
    parts.sort(key=lambda part: split_path(part.path))
    return list(grouped(parts, folder))


def list_tree(folder: str) -> tuple[list[bytes], list[tuple[str, str]]]:
    """Return the paths of the files below *folder*, relative to it, and (path, kind) of links and special files.

    Order: the files in none, the others by path. Raises: StorageError for a directory that cannot be read.
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


def grouped(parts: Iterable[PlannedMember], name: str) -> Iterator[PlannedSample]:
    """Yield a sample for adjacent *parts* with one key; a part without a field is a sample of its own.

    Raises: SampleError if two members have one name.
    """
    alone = 0

    def together(part: PlannedMember) -> tuple[bytes, int]:
        nonlocal alone
        key, field = split_path(part.path)
        alone += not field
        return key, 0 if field else alone

    for (key, _), found in groupby(parts, together):
        planned = PlannedSample(key, tuple(found))
        paths = {part.path for part in planned.parts}
        if len(paths) < len(planned.parts):
            raise SampleError(
                f"the sample {planned.key.decode('utf-8', 'surrogateescape')!r} would have a field twice", url=name
            )
        yield planned


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
