"""Check samples as another library reads them: names that it skips, payloads that it can't decode, types of values.

`READERS` has the libraries of tarcheck --for. The rules are those of webdataset's `tariterators` and `autodecode`, and
of the module `webdataset` of Hugging Face's datasets, which is a copy with changes. The tests run both.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools.errors import StorageError, printable
from tartools.samples.filetypes import suffix_of
from tartools.samples.payloads import MAX_ERROR_CHARS, parse_json, unpack
from tartools.samples.sample import decode_name
from tartools.stages.checking.codes import Place
from tartools.stages.checking.valuetypes import (
    NUMPY_NUMBERS,
    ListType,
    StructType,
    ValueType,
    type_of_text,
    type_of_value,
)
from tartools.stages.summary import MAX_EXTREMES, MAX_FIRST_SAMPLES, Summary
from tartools.tar.keys import join_path

if TYPE_CHECKING:
    from tartools.samples.fieldcolumns import Combination, FieldColumn
    from tartools.stages.checking.samples import Rows

MAX_ARROW_DEPTH = 62  # lists and objects inside each other that datasets writes to its cache
UNKNOWN = "unknown"  # the type of values that are not decoded here
RESERVED_FIELDS = frozenset(("__key__", "__url__"))
TEXT_SUFFIXES = ("txt", "text", "transcript")
INTEGER_SUFFIXES = ("cls", "cls2", "index", "inx", "id")
DOCUMENT_SUFFIXES = ("json", "jsn")
UNDECODED_HERE = ("ten", "tb", "mp", "msg", "cbor", "pth")  # their decoders run code, or need other libraries
IMAGE_SUFFIXES = """blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib h5 hdf png apng jp2
    j2k jpc jpf jpx j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr pbm pgm ppm pnm psd bw rgb rgba
    sgi ras tga icb vda vst webp wmf emf xbm xpm"""
AUDIO_SUFFIXES = """aiff au avr caf flac htk svx mat4 mat5 mpc2k ogg paf pvf raw rf64 sd2 sds ircam voc w64 wav nist
    wavex wve xi mp3 opus"""
VIDEO_SUFFIXES = "mkv mp4 avi mpeg mov"
MESH_SUFFIXES = "glb ply stl"
COLUMN_TYPES = {  # suffix -> type of the column; of suffixes in two lists the later one
    suffix: name
    for name, suffixes in (
        ("image", IMAGE_SUFFIXES),
        ("audio", AUDIO_SUFFIXES),
        ("video", VIDEO_SUFFIXES),
        ("mesh", MESH_SUFFIXES),
    )
    for suffix in suffixes.split()
}

Decoder = Callable[[bytes], Any]  # returns the type of a payload; raises an exception if it can't be decoded


class FirstSample(NamedTuple):
    """One of the first samples of an input.

    `byte`: its offset in the shard, or its table row. `key`: its key. `types`: (field, type of the value), in the order
    of the archive; the type is UNKNOWN if the value can't be decoded, or is not decoded here.
    """

    byte: int
    key: str
    types: tuple[tuple[str, ValueType], ...]


@dataclass(frozen=True)
class ReaderRules:
    """A library that reads shards.

    `name`: of the library, for messages. `decoders`: suffix -> function that returns the type of a payload, or raises
    an exception. `codecs`: suffixes of fields that are decompressed. `skips`: matches paths of members that are
    skipped, though they have a field.
    `plain_types`: suffix -> type of fields without a decoder; other suffixes are "binary". Empty if values need not
    have the same type in all samples.
    """

    name: str
    decoders: Mapping[str, Decoder]
    codecs: frozenset[str]
    skips: re.Pattern[bytes]
    plain_types: Mapping[str, ValueType] = field(default_factory=dict)

    @property
    def is_typed(self) -> bool:
        """True if a field has one type in all samples, so that types are compared."""
        return bool(self.plain_types)

    def decoder(self, name: str) -> tuple[Decoder | None, bool]:
        """Return (decoder of the field *name*, True if the payload is decompressed before it is decoded).

        The decoder is None for a field that is not decoded, but perhaps decompressed. `json.gz` has the decoder of
        `json`, and True, if `codecs` has gz.
        """
        last = suffix_of(name)
        is_packed = last in self.codecs
        return self.decoders.get(suffix_of(name.rpartition(".")[0]) if is_packed else last), is_packed

    def plain_type(self, name: str) -> ValueType:
        """Return the type of the field *name*, whose payloads are not decoded: by its suffix, "binary" for most."""
        return self.plain_types.get(suffix_of(name), "binary")


def text_type(payload: bytes) -> ValueType:
    """Return the type of *payload*, a text: "string". Raises: UnicodeDecodeError if it is not UTF-8."""
    return type_of_text(payload.decode())


def arrow_json_type(payload: bytes) -> ValueType:
    """Return the type of *payload*, JSON, as a column of Arrow.

    Raises: ValueError if it is not JSON, nested over 62 levels deep (MAX_ARROW_DEPTH), has an integer that is no
    int64, or text with half of a surrogate pair.
    """
    try:
        kind = type_of_value(parse_json(payload))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if _depth(kind) > MAX_ARROW_DEPTH:
        raise ValueError("it is nested too deeply")
    return kind


def _depth(kind: ValueType) -> int:
    """Return how deep *kind* is nested: the most lists and objects around a value in it; 0 for a plain type."""
    if isinstance(kind, ListType):
        return 1 + _depth(kind.element)
    if isinstance(kind, StructType):
        return 1 + max((_depth(member) for _, member in kind.members), default=0)
    return 0


def arrow_integer_type(payload: bytes) -> ValueType:
    """Return the type of *payload*, a number in digits: "int64". Raises: ValueError if it is no integer of 64 bits.

    The bits include the sign; int() of Python reads the digits: blanks around, a sign, and _ between them are allowed.
    """
    return type_of_value(int(payload))


def array_type(payload: bytes) -> ValueType:
    """Return the type of *payload*, a .npy file, as a column of Arrow.

    Raises: ValueError, or another exception of numpy.
    """
    return type_of_array(read_npy(payload))


def archive_type(payload: bytes) -> ValueType:
    """Return the type of *payload*, a .npz file, as a column of Arrow: a `StructType` with a name for each array.

    Raises: ValueError, or another exception of numpy or zipfile; AttributeError if it has a member that is no array.
    """
    return StructType(tuple((name, type_of_array(array)) for name, array in read_npz(payload).items()))


def read_npy(payload: bytes) -> Any:
    """Return the array in *payload*, a .npy file. Raises: ValueError, or another exception of numpy."""
    from numpy.lib import format as npy

    return npy.read_array(io.BytesIO(payload), allow_pickle=False)


def read_npz(payload: bytes) -> dict[str, Any]:
    """Return the arrays in *payload*, a .npz file, by name; bytes of other members.

    Raises: ValueError, or another exception of numpy or zipfile.
    """
    import numpy as np

    archive = np.load(io.BytesIO(payload), allow_pickle=False)
    if isinstance(archive, np.ndarray):
        raise ValueError("it is a .npy file")
    return dict(archive)


def type_of_array(array: Any) -> ValueType:
    """Return the type of *array*, of numpy, as a column of Arrow: one `ListType` inside another for each dimension.

    In a dimension of length 0, unless it is the last, is one list of "null": shapes (0, 3) and (0, 3, 4) give
    ListType(ListType("null")). An array without dimensions has the plain type. Raises: ValueError if Arrow does not
    have the type, or for an array with dimensions in the other byte order.
    """
    dtype = array.dtype
    kind: ValueType = {"b": "bool", "U": "string", "S": "binary"}.get(dtype.kind, dtype.name)
    if (kind == dtype.name and kind not in NUMPY_NUMBERS) or (array.ndim and not dtype.isnative):
        raise ValueError(f"Arrow has no arrays of {dtype}")
    for length in reversed((1, *array.shape[:-1]) if array.ndim else ()):
        kind = ListType(kind) if length else ListType("null")
    return kind


_UNTYPED: dict[str, Decoder] = {  # of webdataset
    **dict.fromkeys(TEXT_SUFFIXES, bytes.decode),
    **dict.fromkeys(INTEGER_SUFFIXES, int),
    **dict.fromkeys(DOCUMENT_SUFFIXES, parse_json),
    "npy": read_npy,
    "npz": read_npz,
}
READERS = {
    "hf": ReaderRules(
        "datasets",
        {
            **dict.fromkeys(TEXT_SUFFIXES, text_type),
            **dict.fromkeys(INTEGER_SUFFIXES, arrow_integer_type),
            **dict.fromkeys(DOCUMENT_SUFFIXES, arrow_json_type),
            "npy": array_type,
            "npz": archive_type,
        },
        frozenset(("gz", "bz2", "xz")),
        re.compile(rb"(?:.*/)?__[^/]*$", re.DOTALL),
        COLUMN_TYPES | dict.fromkeys((*UNDECODED_HERE, "zst", "lz4"), UNKNOWN),
    ),
    "webdataset": ReaderRules("webdataset", _UNTYPED, frozenset(("gz",)), re.compile(rb"__[^/]*__(?:$|/)", re.DOTALL)),
}


def check_as_reader(rows: Rows, summary: Summary, reader: ReaderRules) -> None:
    """Add findings about the samples *rows*, as *reader* reads them, to *summary*.

    Samples without a field are left out. Codes: "reader-skips", "reader-stops". If `reader.is_typed`, the types of the
    values, and the first samples, are added, too. Raises: StorageError if a payload can't be read, or a compressed one
    needs too much memory.
    """
    for group in rows.combinations:
        if group.fields == ("",):
            continue  # the check of names has found them, and no reader reads them
        begins = rows.begins if len(group) == len(rows.keys) else [rows.begins[n] for n in group.numbers]
        check_combination(group, begins, rows.shard, summary, reader)


def check_combination(
    group: Combination, begins: Sequence[int], shard: int, summary: Summary, reader: ReaderRules
) -> None:
    """Add findings about *group*, samples of input number *shard* with the same fields, to *summary*.

    *begins*: for each sample its byte in the shard, in a table its row. *reader*: the library whose rules are checked;
    if `reader.is_typed`, types of values, and the first samples of the input, are added, too. Codes: "reader-skips",
    "reader-stops". Raises: StorageError if a payload can't be read, or a compressed one needs too much memory.
    """

    def place(number: int, detail: str) -> Place:
        return Place(shard, begins[number], decode_name(group.keys[number]), detail)

    skipped = skipped_samples(group, reader)
    for number in skipped:
        summary.note("reader-skips", place(number, reader.name))
    types: list[tuple[str, list[ValueType | None]]] = []
    for column in group.columns:
        if column.name in RESERVED_FIELDS:
            for number in range(len(group)):
                summary.note("reader-stops", place(number, f"{column.name}: a name that {reader.name} uses itself"))
        types.append((column.name, types_of_column(column, place, summary, reader)))
    if not reader.is_typed:
        return
    for name, column_types in types:
        add_types(name, column_types, skipped, place, summary)
    numbers = [number for number in range(min(len(group), MAX_FIRST_SAMPLES + len(skipped))) if number not in skipped]
    summary.add_first_samples(
        shard,
        [
            FirstSample(
                begins[number],
                decode_name(group.keys[number]),
                tuple((name, column_types[number] or UNKNOWN) for name, column_types in types),
            )
            for number in numbers[:MAX_FIRST_SAMPLES]
        ],
    )


def skipped_samples(group: Combination, reader: ReaderRules) -> set[int]:
    """Return the indexes in *group* of samples whose first member *reader* skips by its name."""
    if b"__" not in b"\n".join(group.keys):
        return set()
    field = group.fields[0].encode("utf-8", "surrogateescape")
    return {number for number, key in enumerate(group.keys) if reader.skips.match(join_path(key, field))}


def types_of_column(
    column: FieldColumn, place: Callable[[int, str], Place], summary: Summary, reader: ReaderRules
) -> list[ValueType | None]:
    """Return the type of each payload of *column*; None, and a finding in *summary*, if *reader* can't decode it.

    `plain_type` for payloads that are neither decompressed nor decoded, "binary" for those only decompressed; but
    UNKNOWN for those that a reader without types decompresses or decodes. The code is "reader-stops".
    `place(number, detail)`: returns the place of a finding about sample *number* of the column. Raises: StorageError if
    a payload can't be read, or a compressed one needs too much memory.
    """
    decoder, is_packed = reader.decoder(column.name)
    if decoder is None and not is_packed:
        return [reader.plain_type(column.name)] * len(column)
    types: list[ValueType | None] = []
    for number, payload in enumerate(map(bytes, column.payloads())):
        try:
            content = unpack(column.name, payload) if is_packed else payload
            kind = decoder(content) if decoder else "binary"
            types.append(kind if reader.is_typed else UNKNOWN)
        except (MemoryError, StorageError):
            raise
        except Exception as error:  # numpy does not document all of them
            types.append(None)
            reason = printable(str(error))[:MAX_ERROR_CHARS]
            summary.note("reader-stops", place(number, f"{column.name}: {reason}"))
    return types


def add_types(
    name: str,
    types: Sequence[ValueType | None],
    skipped: set[int],
    place: Callable[[int, str], Place],
    summary: Summary,
) -> None:
    """Add the *types* of field *name*, one for each sample, to *summary*; None does not count.

    *skipped*: indexes of samples that do not count, either. `place(number, detail)`: returns the place of sample
    *number*; it is called for the first 20 samples of each type.
    """
    numbers: dict[ValueType, list[int]] = {}
    for number, kind in enumerate(types):
        if kind is not None and number not in skipped:
            numbers.setdefault(kind, []).append(number)
    for kind, indexes in numbers.items():
        summary.add_type(name, kind, len(indexes), [place(number, "") for number in indexes[:MAX_EXTREMES]])
