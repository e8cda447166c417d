"""Plans of tarcreate: tables and recipes of the samples to make, and the samples that are made of them.

`samples` plans those of a table or a recipe, `jsonl.samples` those of JSON lines, `folder.plan_folder` those of a
folder; `build_samples` reads the files and URLs that they name. That is no stage, because stages open nothing.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from tartools import storage, tar
from tartools.errors import SampleError, StorageError, TarToolsError, UsageError, shown
from tartools.formats import textrows
from tartools.formats.textrows import parse_title
from tartools.samples.account import MAX_KEYS_REMEMBERED, Account
from tartools.samples.columnfields import ChosenColumns, check_nameable
from tartools.samples.encoding import text_payload
from tartools.samples.filekeys import Dots, sample_key
from tartools.samples.filetypes import BY_SUFFIX
from tartools.samples.rowchoice import RowChoice
from tartools.samples.sample import Sample, make_path
from tartools.samples.unicodeforms import to_nfc
from tartools.samples.values import PSEUDO_FIELDS, comma_advice, field_list, require_safe_key
from tartools.storage import origins
from tartools.storage.local import path_of
from tartools.storage.names import local_url
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import check_whole, chunks
from tartools.storage.url import Url
from tartools.tar import Member, split_path
from tartools.tar.compression import split_packed

TEXT_PREFIX = "text:"


class PlanOrigin(NamedTuple):
    """The origin of a plan, and how its paths and URLs are read.

    `name`: its URL. `base`: the folder of relative paths; "" for the current one. `allow_pipe`: True if it may name all
    inputs but stdin; if not, no plan names an archive that was split, a table no command, device or fifo, and a plan on
    a server only inputs on that server.
    """

    name: str
    base: str = ""
    allow_pipe: bool = False

    def failure(self, line: int, reason: str, column: str = "") -> SampleError:
        """Return the error "line 3, column jpg: REASON", with the URL of the plan; without the column if that is ""."""
        return SampleError(f"{describe_line(line, column)}: {reason}", url=self.name)

    def resolve(self, text: str, line: int, column: str = "") -> str:
        """Return the URL that *text*, of a recipe or in a *column* of a table, names; paths are relative to `base`.

        *line*, *column*: its place; *column* "" stands for a recipe, which on this machine may name commands.
        Raises: SampleError for stdin, and for an input that the plan may not name; UsageError for a text that is no
        URL, or has credentials.
        """
        try:
            url = Url(text)
            path = path_of(url) if url.is_local else ""
        except UsageError as error:
            raise UsageError(f"{describe_line(line, column)}: {error.message}", url=self.name) from None
        if url.scheme == "-":
            raise self.failure(line, "a member cannot be read from stdin; write ./- for a file of that name", column)
        kind = "table" if column else "recipe"
        if not self.allow_pipe and (why := origins.naming_error(url, self.name, kind, may_act=not column)):
            raise self.failure(line, f"{why} (--allow-pipe allows it, if you trust the plan)", column)
        return local_url(os.path.join(self.base, path)) if url.is_local else url

    def resolve_cell(self, text: str, line: int, column: str) -> str:
        """Return the URL that *text* in a cell of a table names; paths are relative to `base`.

        *line*, *column*: of the cell. Raises: UsageError for a text that is no URL, or has credentials; SampleError for
        stdin, and, unless `allow_pipe`, for an input that the plan may not name, a device, or a fifo.
        """
        url = self.resolve(text, line, column)
        if not self.allow_pipe and Url(url).is_local and _is_special(url):
            reason = f"{shown(text)} is not a regular file, and is not read without --allow-pipe"
            raise self.failure(line, reason, column)
        return url


def _is_special(url: str) -> bool:
    """True if the local file *url* is neither a regular file nor a directory; False if it can't be looked at."""
    try:
        mode = os.stat(path_of(url)).st_mode
    except (OSError, ValueError):
        return False  # which is told when it is looked at
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


PLAN_SUFFIXES = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}


def plan_format(name: str) -> str:
    """Return the format of the plan *name* by suffix: "tsv" (stdin too), "csv", "jsonl" (.ndjson too), else "recipe".

    The suffix of a codec behind it is ignored. Raises: UsageError for a URL with credentials.

    >>> [plan_format(name) for name in ("a?.CSV", "-", "https://host/a.jsonl?sig=x.y", "a.jsonl.gz")]
    ['csv', 'tsv', 'jsonl', 'jsonl']
    """
    if name == "-":
        return "tsv"
    return PLAN_SUFFIXES.get(split_packed(Url(name).name)[0].rpartition(".")[2].lower(), "recipe")


def samples(
    file: io.BufferedReader, form: str, plan: PlanOrigin, choice: RowChoice, dots: Dots = None
) -> Iterable[PlannedSample]:
    """Return the samples that *file*, a plan of *form* "tsv", "csv" or "recipe", describes; payloads are not read yet.

    A list for a recipe, and for a table that names URLs, so that these can be checked first; else an iterator.
    *plan*: its name, and how paths are resolved. *choice*: the columns of a table that become fields, and its keys.
    *dots*: the dot that ends a key of a table that is a file name, "first" or "last"; None: the only one, before a
    known suffix. Raises: SampleError for a recipe without a member, a bad header, line, key or cell; UsageError for a
    bad URL; the errors of reading *file*. For rows the iterator raises them. A table without rows has no samples.
    """
    if form == "recipe":
        textrows.check_no_utf16(file, plan.name)
        parsed = list(group_parts(plan_recipe(textrows.text_lines(file, "\n"), plan), plan.name))
        if not parsed:
            raise SampleError("the plan is empty: it names no member", url=plan.name)
        return parsed
    line, header, below = textrows.read_table(file, form, plan.name, "plan")
    try:
        key_at, columns = choose_plan_columns(parse_header(header, plan, line), choice)
    except SampleError as error:
        raise error if error.url else plan.failure(line, error.message) from None
    places = {name: place for place, name in enumerate(header)}

    def key_of(index: int, cells: Sequence[bytes]) -> str:
        """Return the key of row *index*, which has these *cells*. Raises: SampleError if it can't be a key."""
        if key_at is not None:
            return _decode_path(sample_key(cells[key_at], dots))
        return require_safe_key(choice.keys(index, lambda name: _decode_path(cells[places[name]])))

    key_column = "" if key_at is None else header[key_at]
    planned = plan_table(columns, _rows_of_text(below, columns, plan.name), plan, key_of, key_column)
    return list(planned) if any(column.reads for _, column in columns) else planned


# ---- tables ----


def _rows_of_text(
    batches: Iterable[textrows.TextRows], columns: Sequence[tuple[int, PlanColumn]], url: str
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (line, cells) for each row in *batches*. Raises: SampleError, naming *url*, if a payload is not UTF-8.

    Payloads are the cells of *columns*, (index, column), that are not URLs. Other cells may be any bytes.
    """
    texts = {place: column.title for place, column in columns if not column.reads}
    for batch in batches:
        batch.check_text(texts, url)
        yield from zip(batch.lines, batch.cells, strict=True)


class PlanColumn(NamedTuple):
    """A column of a table that is a plan.

    `field`: the field that it fills. `reads`: True if its cells are URLs to read the payloads from.
    `ignored`: True for one of `PSEUDO_FIELDS`, such as `__key__`. `title`: its name in the header: @jpg if the field
        jpg is read from URLs.
    """

    field: str
    reads: bool
    ignored: bool
    title: str


def parse_header(cells: Sequence[str], plan: PlanOrigin, line: int) -> list[PlanColumn]:
    """Return a `PlanColumn` for each of *cells*, the header on this *line* of *plan*.

    Raises: SampleError for an invalid field name, two columns for one field or `__key__`, or a header without a field.
    """
    columns = [PlanColumn(*parse_title(cell), cell in PSEUDO_FIELDS, cell) for cell in cells]
    fields = [column.field for column in columns if not column.ignored]
    for field in fields:
        try:
            if not field:
                raise SampleError("a column of the header has no name")
            if not field.isprintable():
                raise SampleError(f"not a field name: {field!r}; is this a plan?")
            check_nameable(field)
            make_path("key", field)
        except SampleError as error:
            raise plan.failure(line, error.message) from None
        if fields.count(field) > 1:
            raise plan.failure(line, f"two columns of the header are for the field {field!r}")
    if not fields:
        raise plan.failure(line, "the header names no field")
    if cells.count("__key__") > 1:
        raise plan.failure(line, "two columns of the header are __key__")
    return columns


def choose_plan_columns(
    columns: Sequence[PlanColumn], choice: RowChoice
) -> tuple[int | None, list[tuple[int, PlanColumn]]]:
    """Return (index of the key column or None, [(index, column)] of the columns that become fields) by *choice*.

    The columns have their new names as `field`, in the order of the words, else of *columns*. `ignored` ones are left
    out; the key column can be a field only if it names files to read. Raises: SampleError for a word that names none of
    the other columns (case is ignored), a key without its column, and two columns for one field.
    """
    titles = [column.title for column in columns]
    key = choice.key_in(titles)
    key_at = None if key is None else titles.index(key)
    fields = {  # a file may be a field and, by its name, the key
        column.field: place
        for place, column in enumerate(columns)
        if not column.ignored and (place != key_at or column.reads)
    }
    chosen = ChosenColumns(choice.words, (), str if choice.words is None else str.lower, skip_underscored=False)
    if lost := " ".join(chosen.missing_words(fields)):
        raise SampleError(f"no column {lost}{comma_advice(lost)}; the columns are: {field_list(titles)}")
    return key_at, [(place, columns[place]._replace(field=field)) for place, field in chosen.choose(fields)]


def plan_table(
    columns: Sequence[tuple[int, PlanColumn]],
    rows: Iterable[tuple[int, list[bytes]]],
    plan: PlanOrigin,
    key_of: Callable[[int, Sequence[bytes]], str],
    key_column: str,
) -> Iterator[PlannedSample]:
    """Yield the samples that *rows*, (line, cells), describe. *key_of*: (index of the row, cells) -> its key.

    *columns*: (index of the cell, column) for each field. An empty cell is an empty field; in a column that is read
    from URLs, the sample lacks the field. *key_column*: for messages; "" if no column has the keys.

    Raises: SampleError, naming the line, for a bad key, an input that *plan* may not name, a sample without a field, or
    with the key of the one before; UsageError for a cell that should be a URL and is none; the errors of *rows*.
    """
    last_key, last_line = "", 0
    for index, (line, cells) in enumerate(rows):
        try:
            key = key_of(index, cells)
            parts = [
                _plan_cell(make_path(key, column.field), cells[place], column, plan, line)
                for place, column in columns
                if cells[place] or not column.reads
            ]
        except SampleError as error:
            raise error if error.url else plan.failure(line, error.message, key_column) from None
        if key == last_key:
            reason = f"the key {key!r} is that of line {last_line} too, and readers would take both for one sample"
            raise plan.failure(line, reason, key_column)
        last_key, last_line = key, line
        if not parts:
            raise plan.failure(line, f"the sample {key!r} has no field, so an archive cannot hold it")
        yield PlannedSample(_encode_path(key), tuple(parts))


def _plan_cell(path: bytes, cell: bytes, column: PlanColumn, plan: PlanOrigin, line: int) -> PlannedMember:
    """Return the member *path* for a *cell* of *column*: the cell is the payload, or the URL to read it from.

    A cell that is the payload is compressed if *path* ends in the suffix of a codec, as .txt.gz. Raises: SampleError,
    naming *plan* and *line*, for an input that the plan may not name; UsageError for a bad URL.
    """
    if not column.reads:
        return PlannedMember(path, text_payload(path, cell))
    return PlannedMember(
        path, url=plan.resolve_cell(_decode_path(cell), line, column.title), line=line, column=column.title
    )


# ---- recipes ----


def plan_recipe(lines: Iterable[str], plan: PlanOrigin) -> Iterator[PlannedMember]:
    """Yield the members of a recipe: lines `NAME SOURCE`, such as "a.txt text:hello". Blank lines are skipped.

    SOURCE, up to the end of the line, is `text:` and the payload itself, which is compressed for a NAME such as
    a.txt.gz, or a path or URL. Raises: SampleError, naming the line, for a bad name, a missing source, text that is not
    UTF-8, stdin, and an input that *plan* may not name; UsageError for a bad URL.
    """
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\n").removesuffix("\r").lstrip(" \t")
        if not line:
            continue
        name, *sources = re.split(r"[ \t]+", line, maxsplit=1)
        source = sources[0] if sources else ""
        if not source:
            raise plan.failure(number, f"a line of a recipe is NAME SOURCE; SOURCE is missing: {line!r}")
        if name.endswith("/") or "\0" in name:
            raise plan.failure(number, f"not a member name: {name!r}")
        try:
            require_safe_key(name)
        except SampleError as error:
            raise plan.failure(number, error.message) from None
        if source.startswith(TEXT_PREFIX):
            textrows.check_utf8(_encode_path(source), f"line {number}", plan.name)
            yield PlannedMember(
                _encode_path(name), text_payload(_encode_path(name), _encode_path(source.removeprefix(TEXT_PREFIX)))
            )
        else:
            yield PlannedMember(_encode_path(name), url=plan.resolve(source, number), line=number)


# ---- samples ----


def group_parts(parts: Iterable[PlannedMember], name: str) -> Iterator[PlannedSample]:
    """Yield a `PlannedSample` for adjacent *parts* with one key; a part without a field is a sample of its own.

    Raises: SampleError, naming *name*, the plan, if a sample would have a field twice.
    """
    last, joins = b"", False  # key of the open sample, and whether another part can join it
    group: list[PlannedMember] = []
    for part in parts:
        key, field = split_path(part.path)
        if group and not (joins and field and key == last):
            yield _make_planned_sample(last, group, name)
            group = []
        group.append(part)
        last, joins = key, bool(field)
    if group:
        yield _make_planned_sample(last, group, name)


def _make_planned_sample(key: bytes, parts: list[PlannedMember], name: str) -> PlannedSample:
    """Return the sample *key* of *parts*. Raises: SampleError, naming *name*, the plan, if two have one path."""
    if len(parts) > 1 and len({part.path for part in parts}) < len(parts):
        raise SampleError(f"the sample {key.decode('utf-8', 'surrogateescape')!r} would have a field twice", url=name)
    return PlannedSample(key, tuple(parts))


def _encode_path(text: str) -> bytes:
    """Return *text* as bytes of a path or cell: UTF-8, with surrogates as the bytes that they stand for."""
    return text.encode("utf-8", "surrogateescape")


def _decode_path(data: bytes) -> str:
    """Return *data* as text: bytes that are not UTF-8 become surrogates."""
    return data.decode("utf-8", "surrogateescape")


# ---- planned samples to samples ----


MAX_READ_BYTES = 1 << 20  # of a local file that is read into memory
MAX_URL_BYTES = 4096  # of a path, or of a URL in a cell
MAX_PAYLOAD_IN_MEMORY = 16 << 20  # bytes; larger payloads of other URLs go to a scratch file


class PlannedMember(NamedTuple):
    """A member to make: its `path`, and its `payload`, both bytes, or the `url` to read that from.

    `url`: None if `payload` is the payload. `line` (from 1), `column`: where the plan names the URL; `column` is "" in
    a recipe; 0 and "" without a URL, and for a folder.
    """

    path: bytes
    payload: bytes = b""
    url: str | None = None
    line: int = 0
    column: str = ""


class PlannedSample(NamedTuple):
    """A sample to make: its `key`, bytes, and `parts`, a `PlannedMember` for each of its members, in order."""

    key: bytes
    parts: tuple[PlannedMember, ...]


def describe_line(line: int, column: str) -> str:
    """Return the place in a plan for messages: "line 3, column jpg", or "line 3" if *column* is ""."""
    return f"line {line}, column {column}" if column else f"line {line}"


def add_plan_place(error: TarToolsError, part: PlannedMember, name: str, advice: str = "") -> StorageError:
    """Return a StorageError like *error*, of reading *part*, with its place in the plan *name*, and *advice*.

    *advice*: text to put behind the place, with its own separator; "" for none.
    """
    return StorageError(
        f"{error.message} ({shown(name)}: {describe_line(part.line, part.column)}{advice})",
        url=error.url,
        offset=error.offset,
    )


def warn_of_file_names(planned: Iterable[PlannedSample], account: Account, name: str) -> Iterator[PlannedSample]:
    """Yield *planned* unchanged; warn if the first sample reads no file, but a payload looks like the name of one.

    Then an @ was probably forgotten in the header. *name*: of the plan, for the warning by *account*.
    """
    first = True
    for sample in planned:
        if first and all(part.url is None for part in sample.parts):
            for part in sample.parts:
                if suffix := _suffix_of_file_name(part.payload):
                    field = _decode_path(split_path(part.path)[1])
                    example = _decode_path(part.payload)
                    reason = f"no column is read from files, but {field!r} has names of files: {example!r}"
                    account.warn(
                        f"{shown(name)}: {reason}; call it '@{suffix}' to read them, and write --key-column @{suffix} "
                        "if their names are the keys"
                    )
                    break
        first = False
        yield sample


def _suffix_of_file_name(text: bytes) -> str:
    """Return the suffix of *text*, b"d/a.JPG" -> "jpg", if it is one of `BY_SUFFIX` and this may be a file's name.

    Else "": for a text of several lines, or of MAX_URL_BYTES or more.
    """
    _, dot, suffix = text.rpartition(b".")
    name = _decode_path(suffix).lower()
    return name if dot and name in BY_SUFFIX and b"\n" not in text and len(text) < MAX_URL_BYTES else ""


def warn_of_other_forms(samples: Iterable[Sample], account: Account) -> Iterator[Sample]:
    """Yield *samples*; warn once of a key that equals an earlier one except for its Unicode form (NFC, NFD).

    Holds: the first MAX_KEYS_REMEMBERED keys that are not ASCII; later ones are compared with none.
    """
    keys: dict[bytes, bytes] = {}  # by their form NFC
    is_reported = False
    for sample in samples:
        key = sample.raw_key
        if not key.isascii() and not is_reported and len(keys) < MAX_KEYS_REMEMBERED:
            first_form = keys.setdefault(to_nfc(key), key)
            if is_reported := first_form != key:
                account.warn(
                    f"the keys {first_form.decode()!a} and {key.decode()!a} look the same, but one is in another "
                    "Unicode form (macOS has NFD, others NFC), so these are two samples"
                )
        yield sample


def build_samples(planned: Iterable[PlannedSample], account: Account, name: str = "") -> Iterator[Sample]:
    """Yield the samples that the plan *name* has *planned*, in order: their payloads are read now.

    Members are new: mode 0644, owner and time 0. Samples and bytes are counted in *account*, as read.
    Holds: one sample; payloads above MAX_READ_BYTES are ranges of local files, of other URLs those above
    MAX_PAYLOAD_IN_MEMORY go to scratch. Raises: StorageError if a URL cannot be read, as `build_member` does.
    """
    for key, parts in planned:
        members = [build_member(part, name) for part in parts]
        account.bytes_in += sum(member.size for member in members)
        account.samples_in += 1
        yield Sample(key, members)


def build_member(part: PlannedMember, name: str = "") -> Member:
    """Return the member for *part* of the plan *name*; its payload is read now.

    Raises: StorageError if its URL cannot be read, with the place in the plan if `part.line` says it.
    """
    if part.url is None:
        return tar.new_member(part.path, part.payload)
    try:
        payload = storage.read_small(part.url, MAX_READ_BYTES)
        return _large_member(part, part.url) if payload is None else tar.new_member(part.path, payload)
    except StorageError as error:
        if not part.line:
            raise
        raise add_plan_place(error, part, name) from error


def _large_member(part: PlannedMember, url: str) -> Member:
    """Return the member for *part*, whose payload is all bytes of *url*, a large local file or any other URL.

    The payload is a range of a local file above MAX_READ_BYTES, else a copy (`join_chunks`). Raises: StorageError.
    """
    with closing(storage.open_read(url)) as stream:
        file = stream.file
        if file is not None and (size := os.fstat(file.fileno()).st_size) > MAX_READ_BYTES:
            return Member(part.path, file, 0, 0, size, tar.encode_header(part.path, size))
        source = join_chunks(chunks(stream))
        check_whole(stream, url)
    size = os.fstat(source.fileno()).st_size if isinstance(source, io.FileIO) else len(source)
    return Member(part.path, source, 0, 0, size, tar.encode_header(part.path, size))


def join_chunks(chunks: Iterable[bytes | memoryview]) -> bytearray | io.FileIO:
    """Return the bytes of *chunks*: a bytearray, or above MAX_PAYLOAD_IN_MEMORY an open scratch file, at its end."""
    buffer, scratch = bytearray(), None
    for chunk in chunks:
        buffer += chunk
        if scratch is None and len(buffer) > MAX_PAYLOAD_IN_MEMORY:
            scratch = scratch_file()
        if scratch is not None:
            scratch.write(buffer)
            buffer.clear()
    return buffer if scratch is None else scratch
