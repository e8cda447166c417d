"""Arrays of numpy: described by dtype, shape and range of values. Pickles that they may hold are not opened."""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING, Any

from tartools.errors import TarToolsError, printable
from tartools.samples.filetypes import ARRAY
from tartools.samples.kinds.kind import MAX_TEXT_COLUMNS, Description, PayloadKind
from tartools.tar import Member

if TYPE_CHECKING:
    import numpy

ARRAY_LIMIT = 16 << 20  # bytes; longer arrays are shown without their range of values
NPY_MAGIC = b"\x93NUMPY"  # numpy.lib.format, "Format Version 1.0"


def _begins_as_array(_suffix: str, head: bytes) -> bool:
    """True if *head*, the first bytes of a payload, are the first bytes of a .npy file."""
    return head.startswith(NPY_MAGIC)


def array_header(file: IO[bytes]) -> tuple[tuple[int, ...], numpy.dtype[Any]]:
    """Return (shape, dtype) in the header of the .npy *file*, and leave it at its data, which may be pickles.

    *file*: at its begin. Raises: ValueError, and what else numpy raises for a header that can't be read.
    """
    from numpy.lib import format as npy

    first = npy.read_magic(file) == (1, 0)  # 3.0 is 2.0 with names in UTF-8
    try:
        shape, _, dtype = npy.read_array_header_1_0(file) if first else npy.read_array_header_2_0(file)
    except (MemoryError, RecursionError):  # the header is short: this is of Python's parser, whose stack is full
        raise ValueError("it is nested too deeply") from None
    if not all(length >= 0 for length in shape) or max((*shape, math.prod(shape))) >= 1 << 63:
        raise ValueError("its shape is not one that an array can have")
    return shape, dtype


def describe_array(member: Member, _head: bytes, _decode: bool) -> Description:
    """Return dtype, shape and range of values of the .npy file *member* in words, or why it is broken.

    "array float32 3x224x224, from 0 to 1"; the kind is "". The range is left out above 16 MiB, for an array without
    items, and for all types but integers and floats. Whether the data have the size that the header states is found out
    for numbers and bool only. Pickles that it may hold are not opened. Raises: TarToolsError if the payload can't be
    read.
    """
    with member.open() as file:
        try:
            shape, dtype = array_header(file)
        except (TarToolsError, MemoryError):
            raise
        except Exception as error:  # numpy does not document all of them
            return Description(f"array whose header cannot be read: {printable(str(error))[:MAX_TEXT_COLUMNS]}")
        what = f"array {dtype_in_words(dtype)} {'x'.join(map(str, shape)) or 'scalar'}"
        if dtype.kind not in "biufc":
            return Description(what)
        size, expected = member.size - file.tell(), math.prod(shape) * dtype.itemsize
        if size != expected:
            return Description(f"{what}, but it has {size:,} bytes of data instead of {expected:,}")
        if size and size <= ARRAY_LIMIT and dtype.kind in "iuf":
            what += range_in_words(file.read(), dtype)
    return Description(what)


def range_in_words(data: bytes, dtype: numpy.dtype[Any]) -> str:
    """Return ", from MIN to MAX, COUNT NaN" for the numbers in *data*, an array of *dtype*.

    A part is left out if it is about no number: ", 3 NaN", ", from 0 to 9", "". Floats have 4 significant digits.
    """
    import numpy as np

    values = np.frombuffer(data, dtype)
    unknown = int(np.isnan(values).sum())
    values = values[~np.isnan(values)] if unknown else values
    form = ".4g" if dtype.kind == "f" else ""
    known = f", from {values.min():{form}} to {values.max():{form}}" if values.size else ""
    return known + (f", {unknown:,} NaN" if unknown else "")


def dtype_in_words(dtype: numpy.dtype[Any]) -> str:
    """Return a description of *dtype*: its name, its fields, or "of pickled objects (not opened)".

    "float32", "big-endian int16", "[('x', '<f4')]"; texts, dates and raw bytes as numpy writes them: "<U5".
    """
    if dtype.kind in "biufc":
        return ("big-endian " if dtype.str[0] == ">" else "") + dtype.name
    return (
        "of pickled objects (not opened)"
        if dtype.kind == "O"
        else printable(str(dtype.descr if dtype.names else dtype.str))[:MAX_TEXT_COLUMNS]
    )


def check_array(member: Member) -> None:
    """Raise an exception if the header of the .npy file *member* can't be read, or states another size.

    Of an array of pickled objects, or with fields of them, only the header is checked.
    """
    with member.open() as file:
        shape, dtype = array_header(file)
        size, expected = member.size - file.tell(), math.prod(shape) * dtype.itemsize
        if size != expected and not dtype.hasobject:  # a pickle, which is not opened
            raise ValueError(f"it has {size:,} bytes of data instead of {expected:,}")


def check_archive_of_arrays(member: Member) -> None:
    """Raise an exception if the .npz file *member* is no zip archive, or a file in it can't be unpacked without damage.

    The files in it are not read as arrays.
    """
    from zipfile import ZipFile

    with member.open() as file, ZipFile(file) as archive:
        damaged = archive.testzip()
        if damaged is not None:
            raise ValueError(f"{damaged} is damaged")


ARRAY_KIND = PayloadKind(
    name=ARRAY,
    code="broken-array",
    recognize=_begins_as_array,
    describe=describe_array,
    checks={"npy": check_array, "npz": check_archive_of_arrays},
)
