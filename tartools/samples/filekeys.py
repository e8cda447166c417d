"""Keys made of the names of files, in folders and in columns of tables."""

from __future__ import annotations

import os
from typing import Literal

from tartools.errors import SampleError
from tartools.samples.filetypes import BY_SUFFIX, TEXTS
from tartools.samples.values import require_safe_key
from tartools.tar.keys import can_read_back, split_path

Dots = Literal["first", "last"] | None  # which dot of a file's name ends the key; None: the last, before a known suffix


def replace_early_dots(path: bytes) -> bytes:
    """Return the path *path* with _ for each dot of its base name but the last, so that its key ends there.

    Names that begin with a dot stay as they are: they have no field. A name that ends in a dot has none either.

    >>> [replace_early_dots(path) for path in (b"v1.0/img.2023.01.05.jpg", b".hid.jpg", b"a.jpg")]
    [b'v1.0/img_2023_01_05.jpg', b'.hid.jpg', b'a.jpg']
    """
    at = path.rfind(b"/") + 1
    stem, dot, field = path[at:].rpartition(b".")
    return path if path[at : at + 1] == b"." else path[:at] + stem.replace(b".", b"_") + dot + field


def key_of_file(name: bytes, dots: Dots = None) -> bytes:
    """Return the key of the sample to which the file *name* belongs; *name* itself if no dot ends the key.

    *dots*: the dot that ends the key, "first" or "last"; with "last" the dots before it become _, also in a
    name that ends in a dot. None: a name with one dot and the suffix of a known type loses both; names with other dots
    stay, because it is not clear where the key ends.

    >>> key_of_file(b"d/n01_1.JPEG"), key_of_file(b"22.05"), key_of_file(b"a.1.jpg"), key_of_file(b".hid.jpg")
    (b'd/n01_1', b'22.05', b'a.1.jpg', b'.hid.jpg')
    >>> key_of_file(b"a.1.jpg", "first"), key_of_file(b"a.1.jpg", "last")
    (b'a', b'a_1')
    """
    key, field = split_path(name)
    if dots == "first":
        return key
    if dots == "last":
        return split_path(replace_early_dots(name))[0]
    return key if is_type_suffix(os.fsdecode(field)) else name


def sample_key(name: bytes | None, dots: Dots = None) -> bytes:
    """Return the key for *name*, a key or the name of a file from a column.

    *dots*: the dot that ends the key in the name of a file, "first" or "last"; None: a single dot before a known
    suffix.
    Raises: SampleError if *name* is None, or the key is empty, unsafe to unpack (absolute, or with a part `..`), or
    would not read back, such as one with a dot in its last part.
    """
    if name is None:
        raise SampleError("the key is null")
    key = key_of_file(name, dots)
    text = require_safe_key(key.decode("utf-8", "surrogateescape"))
    if not can_read_back(key, b"x"):
        reason = f"the key {text!r} would not read back; its last part may have no dot"
        raise SampleError(f"{reason} (--dots first or last says where the key ends)")
    return key


def is_type_suffix(suffix: str) -> bool:
    """True if files of a known type end in a dot and *suffix*, in upper or lower case: jpg, flac, txt ..."""
    return suffix.lower() in BY_SUFFIX or suffix.lower() in TEXTS
