"""Samples to a Parquet file that holds their payloads, as Hugging Face's `datasets` reads and writes such files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tartools.errors import SampleError, in_units
from tartools.samples.account import Account
from tartools.samples.columnfields import Words
from tartools.samples.filetypes import PICTURES, SOUNDS, TEXTS, suffix_of
from tartools.samples.sample import Sample, failure_of, field_name
from tartools.samples.values import absent_field_error, comma_advice, field_list
from tartools.storage.streams import Sink
from tartools.tables import schema
from tartools.tables.schema import KEY_COLUMN
from tartools.tables.tablewriter import SinkFile
from tartools.tar import Member

GROUP_BYTES, GROUP_ROWS = 32 << 20, 1 << 16  # of a row group, which ends with the sample that reaches one of them
PAGE_ROWS = 16  # after which pyarrow looks whether a page is full
# bytes of a payload; in a row group and a page, places are numbers of 31 bits
MAX_PAYLOAD_BYTES = (1 << 31) - (64 << 20)


class ParquetLayout(NamedTuple):
    """The columns of a Parquet file, and their types.

    `words`: (choices, new name or None) for each word of a field specification: image=jpg;png is (("jpg", "png"),
        "image"); without a new name each choice is a column of its own. None: all fields, one column for each name,
        compared with case.
    `binary`: names of columns that are bytes, although their `column_kind` may be another.
    `verbatim`: True if names in `words` and `binary` are compared with case.
    """

    words: Words | None = None
    binary: Sequence[str] = ()
    verbatim: bool = False


def column_kind(names: Iterable[str]) -> str:
    """Return the kind of a column for fields with these *names*, at least one: Image, Audio, string or binary.

    It is binary unless the suffixes of all names, in any case, are of pictures, of sounds, or of text.

    >>> column_kind(["seg.PNG"]), column_kind(["jpg", "png"]), column_kind(["cls"]), column_kind(["jpg", "txt"])
    ('Image', 'Image', 'string', 'binary')
    """
    suffixes = set(map(suffix_of, names))
    for kind, kind_suffixes in (("Image", PICTURES), ("Audio", SOUNDS), ("string", TEXTS)):
        if suffixes <= kind_suffixes:
            return kind
    return "binary"


def write_parquet(samples: Iterable[Sample], sink: Sink, account: Account, layout: ParquetLayout) -> None:
    """Write *samples* to *sink* as a Parquet file: a row each, in order, with `__key__` and a column for each field.

    Pictures and sounds are structs of bytes and path, the path of the member; text is a string, other fields are
    binary. The kind of a column is that of its name, or, if a new name is binary by `column_kind`, that of its choices.
    Columns are those of *layout*; if its `words` are None, those of the samples of the first row group, in the order of
    their members. Samples without a field for any column are left out. Samples written and left out, and the bytes of
    the file, are counted in *account*. Same samples, same bytes. The caller commits *sink*.

    Holds: a row group several times, some 300 MB: it ends with the sample by which it has GROUP_BYTES of payloads, or
    GROUP_ROWS. Raises: SampleError for a sample that does not fit the columns or has a member without a field, for a
    word that no sample has a field for, and for a name in `binary` that is no column; the errors of *samples*;
    StorageError, also without pyarrow.
    """
    pa = schema.import_arrow()
    file = SinkFile(sink)
    columns = PayloadColumns(layout)
    writer: Any = None
    try:
        for sample in samples:
            if columns.add(sample):
                account.samples_out += 1
            else:
                account.left_out += 1
            if columns.size >= GROUP_BYTES or len(columns.rows) >= GROUP_ROWS:
                writer = writer or columns.make_writer(pa.PythonFile(file, "w"))
                writer.write_table(columns.take_table())
        writer = writer or columns.make_writer(pa.PythonFile(file, "w"))
        if columns.rows:
            writer.write_table(columns.take_table())
        columns.check_words(account)
        writer.close()
    except BaseException:
        file.close()
        raise
    account.bytes_out += file.written


class PayloadColumn(NamedTuple):
    """One column of the file: its *name*, and its *kind*: "Image", "Audio", "string" or "binary"."""

    name: str
    kind: str

    @property
    def is_file(self) -> bool:
        """True if the column is a struct of bytes and path: pictures and sounds."""
        return self.kind in ("Image", "Audio")

    @property
    def feature(self) -> dict[str, str]:
        """The type of the column for Hugging Face: {"_type": "Image"}, or {"_type": "Value", "dtype": KIND}."""
        return {"_type": self.kind} if self.is_file else {"dtype": self.kind, "_type": "Value"}

    @property
    def type(self) -> Any:
        """The type of the column in Arrow: binary, string, or a struct of bytes (binary) and path (string)."""
        pa = schema.import_arrow()
        if self.is_file:
            return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.string() if self.kind == "string" else pa.binary()


class PayloadColumns:
    """The columns of *layout*, and the rows for the next row group.

    Call `add` for each sample, `make_writer` once, before the first `take_table`, and `take_table` for each row group;
    at the end `check_words`. If the `words` of *layout* are None, samples add columns until `make_writer` is called.
    `rows`: for each sample that was added since the last `take_table`, a dict: column -> value, with `__key__`.
    `size`: bytes of their payloads.
    Raises: SampleError for a word of *layout* that can't be a column.
    """

    def __init__(self, layout: ParquetLayout) -> None:
        self._fold = str if layout.verbatim else str.lower
        self._layout = layout
        self._binary = dict.fromkeys(map(self._fold, layout.binary))
        self._columns: dict[str, PayloadColumn] = {}
        self._settled = layout.words is not None  # no more columns
        self._unseen = dict.fromkeys(range(len(layout.words or ())))  # numbers of words that no sample had a field for
        self._seen: dict[str, None] = {}  # fields
        self._written = 0  # rows
        self.rows: list[dict[str, object]] = []
        self.size = 0
        for choices, new in layout.words or ():
            for name in [new] if new else choices:
                if name not in self._columns:
                    self._columns[name] = self._make_column(
                        name, choices if new and column_kind([new]) == "binary" else [name]
                    )

    def _make_column(self, name: str, sources: Iterable[str]) -> PayloadColumn:
        """Return the new column *name*, of the kind of fields called *sources*; binary if the layout names it so.

        Raises: SampleError for a name that begins and ends with two underscores.
        """
        if name.startswith("__") and name.endswith("__"):
            raise SampleError(f"no column of a field may be called {name!r}: -f 'new={name}' gives it another name")
        return PayloadColumn(name, "binary" if self._fold(name) in self._binary else column_kind(sources))

    def add(self, sample: Sample) -> bool:
        """Add a row for *sample*, and return True; return False, without a row, if it has no field for any column.

        A column that it has no field for stays null. If the layout names no words, a new field adds a column until
        `make_writer` is called; later it is an error. Raises: SampleError for a key, name or text that is not UTF-8, a
        payload of more than MAX_PAYLOAD_BYTES, two fields for one column, and, without words, a member without a field
        or a field that can't be a column; StorageError if a payload can't be read.
        """
        try:
            key = sample.raw_key.decode()
        except UnicodeDecodeError:
            reason = ": its key is not UTF-8, which Parquet needs; --rekey of tarcat gives new keys"
            raise failure_of(sample, reason) from None
        pairs = self._pair_all(sample) if self._layout.words is None else self._pair_chosen(sample)
        row: dict[str, object] = {KEY_COLUMN: key}
        for column, member in pairs:
            if column.name in row:
                raise failure_of(sample, f": two members are for the column {column.name!r}; -f 'new=old' renames one")
            payload = self._payload(sample, column, member)
            row[column.name] = (
                {"bytes": payload, "path": _decode_name(sample, member.path)} if column.is_file else payload
            )
            self.size += member.size
        if pairs:
            self.rows.append(row)
        return bool(pairs)

    def _pair_all(self, sample: Sample) -> list[tuple[PayloadColumn, Member]]:
        """Return (column, member) for each member of *sample*. A new column follows the previous member's column.

        The new column of a first member becomes the first of all.
        Raises: SampleError if no column can be added: as `_check_new` and `_make_column` say; or a name is not UTF-8.
        """
        pairs: list[tuple[PayloadColumn, Member]] = []
        for member in sample.members:
            name = _decode_name(sample, member.path[len(sample.raw_key) + 1 :])
            if name not in self._columns:
                self._check_new(sample, name)
                order = list(self._columns)
                order.insert(order.index(pairs[-1][0].name) + 1 if pairs else 0, name)
                columns = self._columns | {name: self._make_column(name, [name])}
                self._columns = {column: columns[column] for column in order}
            pairs.append((self._columns[name], member))
        return pairs

    def _check_new(self, sample: Sample, name: str) -> None:
        """Raise SampleError if no column *name* can be added for *sample*: it is "", or `make_writer` was called."""
        if not name:
            fault = ": its name has no dot, so it has no field, and no column; -f names the fields to write"
            raise failure_of(sample, fault)
        if self._settled:
            every = " ".join([*self._columns, name])
            fault = (
                f": it has the field {name!r}, which none of the {self._written:,} samples of the first row groups has"
            )
            raise failure_of(sample, f"{fault}, and no column can be added now: name all of them, as -f '{every}'")

    def _pair_chosen(self, sample: Sample) -> list[tuple[PayloadColumn, Member]]:
        """Return (column, member) for each word, in their order: the first of its choices that *sample* has.

        A word without any choice in *sample* is skipped. Raises: SampleError if two members match a choice, which can
        be if names are compared without case.
        """
        pairs = []
        if self._unseen:
            self._seen.update(dict.fromkeys(map(field_name, sample.members)))
        for number, (choices, new) in enumerate(self._layout.words or ()):
            for choice in choices:
                member = sample.member(choice, verbatim=self._layout.verbatim)
                if member is not None:
                    self._unseen.pop(number, None)
                    pairs.append((self._columns[new or choice], member))
                    break
        return pairs

    def _payload(self, sample: Sample, column: PayloadColumn, member: Member) -> bytes:
        """Return the payload of *member* for *column*.

        Raises: SampleError if it has more than MAX_PAYLOAD_BYTES, or is not UTF-8 for a column of the kind string;
        StorageError if it can't be read.
        """
        if member.size > MAX_PAYLOAD_BYTES:
            size_text = f"{member.name!r} has {in_units(member.size)}"
            raise failure_of(
                sample, f": {size_text}, and a value of a Parquet file at most {in_units(MAX_PAYLOAD_BYTES)}"
            )
        payload = member.read()
        if column.kind == "string":
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                where = f"field {field_name(member)!r}: not UTF-8 text (byte {error.start})"
                raise failure_of(sample, f": {where}; --binary {column.name} stores bytes") from None
        return payload

    def make_writer(self, file: Any) -> Any:
        """Return a `ParquetWriter` of these columns to *file*, a file of pyarrow. No column can be added after that.

        Raises: SampleError if there are columns, and one that the layout calls binary is not among them.
        """
        import json

        pa = schema.import_arrow()
        self._settled = True
        columns = self._columns.values()
        lost = " ".join(name for name in self._binary if name not in map(self._fold, self._columns))
        if lost and columns:
            names = field_list(self._columns)
            raise SampleError(f"--binary: there is no column {lost}{comma_advice(lost)}; the columns are: {names}")
        features = {KEY_COLUMN: {"dtype": "string", "_type": "Value"}} | {c.name: c.feature for c in columns}
        texts = [c.name for c in columns if c.kind == "string"]
        packed = {KEY_COLUMN: "zstd"}
        for c in columns:
            packed |= {f"{c.name}.bytes": "none", f"{c.name}.path": "zstd"} if c.is_file else {c.name: "zstd"}
        return pa.parquet.ParquetWriter(
            file,
            pa.schema(
                [(KEY_COLUMN, pa.string()), *((c.name, c.type) for c in columns)],
                metadata={"huggingface": json.dumps({"info": {"features": features}}, ensure_ascii=False)},
            ),
            compression=packed,
            use_dictionary=texts,
            write_statistics=[KEY_COLUMN, *texts],
            write_page_checksum=True,
            write_batch_size=PAGE_ROWS,
        )

    def take_table(self) -> Any:
        """Return the rows added since the last call as a `pyarrow.Table`, and drop them here.

        It has `__key__` and all columns of the file, with null where a row has no value.
        """
        pa = schema.import_arrow()
        types = [(KEY_COLUMN, pa.string()), *((column.name, column.type) for column in self._columns.values())]
        table = pa.Table.from_pylist(self.rows, pa.schema(types))
        self._written += len(self.rows)
        self.rows, self.size = [], 0
        return table

    def check_words(self, account: Account) -> None:
        """Raise SampleError if none of the samples had a field for one of the words.

        Nothing is raised if *account* counts no sample as read.
        """
        if self._unseen and account.samples_in:
            lost = " ".join(";".join((self._layout.words or ())[number][0]) for number in self._unseen)
            raise absent_field_error(lost, self._seen)


def _decode_name(sample: Sample, name: bytes) -> str:
    """Return *name*, of a member of *sample*, as text. Raises: SampleError if it is not UTF-8."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise failure_of(sample, f": the name {name!r} is not UTF-8, which Parquet needs") from None
