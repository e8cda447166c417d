"""Samples to a Parquet file that holds their payloads, as Hugging Face's `datasets` reads and writes such files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from tartools.errors import SampleError, in_units
from tartools.samples.account import Account
from tartools.samples.columnfields import Words
from tartools.samples.filetypes import PICTURES, SOUNDS, TEXTS, suffix_of
from tartools.samples.sample import Sample, failure_of, field_name
from tartools.samples.values import blanks, field_list, no_sample_has
from tartools.storage.streams import Sink
from tartools.tables import schema
from tartools.tables.tablewriter import SinkFile
from tartools.tar import Member

GROUP_BYTES, GROUP_ROWS = 32 << 20, 1 << 16  # of a row group, which ends with the sample that reaches one of them
PAGE_ROWS = 16  # after which pyarrow looks whether a page is full
LARGEST = (1 << 31) - (64 << 20)  # bytes of a payload; in a row group and a page, places are numbers of 31 bits
KEY = schema.KEY


class ParquetLayout(NamedTuple):
    """Which fields become columns, and of which type.

    *words* are (choices, new name or None), as a field specification has them; None for all fields. *binary* are
    columns of bytes, whatever they are called. Names compare without case unless *verbatim*.
    """

    words: Words | None = None
    binary: Sequence[str] = ()
    verbatim: bool = False


def kind_of(names: Iterable[str]) -> str:
    """Return what a column is that has the payloads of fields with these *names*: Image, Audio, string or binary.

    >>> kind_of(["seg.PNG"]), kind_of(["jpg", "png"]), kind_of(["cls"]), kind_of(["jpg", "txt"])
    ('Image', 'Image', 'string', 'binary')
    """
    suffixes = set(map(suffix_of, names))
    for kind, known in (("Image", PICTURES), ("Audio", SOUNDS), ("string", TEXTS)):
        if suffixes <= known:
            return kind
    return "binary"


def write_parquet(samples: Iterable[Sample], sink: Sink, account: Account, layout: ParquetLayout) -> None:
    """Write *samples* to *sink* as a Parquet file: a row each, in order, with `__key__` and a column for each field.

    Pictures and sounds are structs of bytes and path. Columns are those of *layout*; without words, those of the
    samples of the first row group, in the order of their members. Samples without a column are left out.
    Same samples, same bytes.

    Holds: a row group, which has 32 MiB of payloads and one more sample, several times: some 300 MB.
    Raises: SampleError for a sample that has no place in the columns; what *samples* raises; StorageError.
    """
    pa = schema.arrow()
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
                writer = writer or columns.writer(pa.PythonFile(file, "w"))
                writer.write_table(columns.taken())
        writer = writer or columns.writer(pa.PythonFile(file, "w"))
        if columns.rows:
            writer.write_table(columns.taken())
        columns.check(account)
        writer.close()
    except BaseException:
        file.close()
        raise
    account.bytes_out += file.written


class PayloadColumn(NamedTuple):
    """One column: its *name*, and what it is."""

    name: str
    kind: str

    @property
    def is_file(self) -> bool:
        """Whether it is a struct of bytes and path."""
        return self.kind in ("Image", "Audio")

    @property
    def feature(self) -> dict[str, str]:
        """What `datasets` calls its type."""
        return {"_type": self.kind} if self.is_file else {"dtype": self.kind, "_type": "Value"}

    @property
    def type(self) -> Any:
        """Its type in Arrow."""
        pa = schema.arrow()
        if self.is_file:
            return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        return pa.string() if self.kind == "string" else pa.binary()


class PayloadColumns:
    """The columns, and the *rows* that are held for the next row group, with *size* bytes of payloads."""

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
                    self._columns[name] = self._column(name, choices if new and kind_of([new]) == "binary" else [name])

    def _column(self, name: str, sources: Iterable[str]) -> PayloadColumn:
        """Return the new column *name*, for fields called *sources*. Raises: SampleError if it can be none."""
        if name.startswith("__") and name.endswith("__"):
            raise SampleError(f"no column of a field may be called {name!r}: -f 'new={name}' gives it another name")
        return PayloadColumn(name, "binary" if self._fold(name) in self._binary else kind_of(sources))

    def add(self, sample: Sample) -> bool:
        """Add a row for *sample*; tell whether it has a field for a column. Raises: SampleError."""
        try:
            key = sample.raw_key.decode()
        except UnicodeDecodeError:
            what = ": its key is not UTF-8, which Parquet needs; --rekey of tarcat gives new keys"
            raise failure_of(sample, what) from None
        found = self._all_of(sample) if self._layout.words is None else self._chosen_of(sample)
        row: dict[str, object] = {KEY: key}
        for column, member in found:
            if column.name in row:
                raise failure_of(sample, f": two members are for the column {column.name!r}; -f 'new=old' renames one")
            payload = self._payload(sample, column, member)
            row[column.name] = {"bytes": payload, "path": _text(sample, member.path)} if column.is_file else payload
            self.size += member.size
        if found:
            self.rows.append(row)
        return bool(found)

    def _all_of(self, sample: Sample) -> list[tuple[PayloadColumn, Member]]:
        """Return the members of *sample* with their columns. A new column comes behind that of the member before."""
        found: list[tuple[PayloadColumn, Member]] = []
        for member in sample.members:
            name = _text(sample, member.path[len(sample.raw_key) + 1 :])
            if name not in self._columns:
                self._check_new(sample, name)
                order = list(self._columns)
                order.insert(order.index(found[-1][0].name) + 1 if found else 0, name)
                known = self._columns | {name: self._column(name, [name])}
                self._columns = {each: known[each] for each in order}
            found.append((self._columns[name], member))
        return found

    def _check_new(self, sample: Sample, name: str) -> None:
        """Raise SampleError if there can be no column *name* for a field of *sample*."""
        if not name:
            what = ": its name has no dot, so it has no field, and no column; -f names the fields to write"
            raise failure_of(sample, what)
        if self._settled:
            every = " ".join([*self._columns, name])
            what = (
                f": it has the field {name!r}, which none of the {self._written:,} samples of the first row groups has"
            )
            raise failure_of(sample, f"{what}, and no column can be added now: name all of them, as -f '{every}'")

    def _chosen_of(self, sample: Sample) -> list[tuple[PayloadColumn, Member]]:
        """Return the members that the words choose, with their columns, in the order of the words."""
        found = []
        if self._unseen:
            self._seen.update(dict.fromkeys(map(field_name, sample.members)))
        for number, (choices, new) in enumerate(self._layout.words or ()):
            for choice in choices:
                member = sample.member(choice, verbatim=self._layout.verbatim)
                if member is not None:
                    self._unseen.pop(number, None)
                    found.append((self._columns[new or choice], member))
                    break
        return found

    def _payload(self, sample: Sample, column: PayloadColumn, member: Member) -> bytes:
        """Return the payload of *member* for *column*. Raises: SampleError."""
        if member.size > LARGEST:
            what = f"{member.name!r} has {in_units(member.size)}"
            raise failure_of(sample, f": {what}, and a value of a Parquet file at most {in_units(LARGEST)}")
        payload = member.read()
        if column.kind == "string":
            try:
                payload.decode()
            except UnicodeDecodeError as error:
                where = f"field {field_name(member)!r}: not UTF-8 text (byte {error.start})"
                raise failure_of(sample, f": {where}; --binary {column.name} stores bytes") from None
        return payload

    def writer(self, file: Any) -> Any:
        """Return what writes row groups of these columns to *file*. No column can be added after that."""
        import json

        pa = schema.arrow()
        self._settled = True
        columns = self._columns.values()
        lost = " ".join(name for name in self._binary if name not in map(self._fold, self._columns))
        if lost and columns:
            known = field_list(self._columns)
            raise SampleError(f"--binary: there is no column {lost}{blanks(lost)}; the columns are: {known}")
        features = {KEY: {"dtype": "string", "_type": "Value"}} | {each.name: each.feature for each in columns}
        texts = [each.name for each in columns if each.kind == "string"]
        packed = {KEY: "zstd"}
        for each in columns:
            packed |= (
                {f"{each.name}.bytes": "none", f"{each.name}.path": "zstd"} if each.is_file else {each.name: "zstd"}
            )
        return pa.parquet.ParquetWriter(
            file,
            pa.schema(
                [(KEY, pa.string()), *((each.name, each.type) for each in columns)],
                metadata={"huggingface": json.dumps({"info": {"features": features}}, ensure_ascii=False)},
            ),
            compression=packed,
            use_dictionary=texts,
            write_statistics=[KEY, *texts],
            write_page_checksum=True,
            write_batch_size=PAGE_ROWS,
        )

    def taken(self) -> Any:
        """Return the rows that are held as a table of Arrow, and drop them."""
        pa = schema.arrow()
        types = [(KEY, pa.string()), *((each.name, each.type) for each in self._columns.values())]
        found = pa.Table.from_pylist(self.rows, pa.schema(types))
        self._written += len(self.rows)
        self.rows, self.size = [], 0
        return found

    def check(self, account: Account) -> None:
        """Raise SampleError if there were samples, and none of them had a field for one of the words."""
        if self._unseen and account.samples_in:
            lost = " ".join(";".join((self._layout.words or ())[number][0]) for number in self._unseen)
            raise no_sample_has(lost, self._seen)


def _text(sample: Sample, name: bytes) -> str:
    """Return *name* as text. Raises: SampleError if it is not UTF-8."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise failure_of(sample, f": the name {name!r} is not UTF-8, which Parquet needs") from None
