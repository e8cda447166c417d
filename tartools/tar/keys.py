"""The key rule: how a member's path is split into the key of its sample and the field.

A path is a folder and a base name. The key ends at the first dot of the base name; the field is what follows it:

    v1.2/n01/a.seg.png
    └── key ───┘└ ending: the dot and the field, seg.png

A base name without a dot, or whose first dot is its first or last character, has no field: all of it is the key. This
is the rule of WebDataset. Adjacent members with the same key are a sample, if they have fields.

`split_path` decides it for one path, `Paths` for the headers of many by numpy. Two copies remain, which a test compares
with these: the reader's inner loop, where a call would be measurable, and the completions of shells, in sed. Who asks
for keys that end at the last dot gets groups that are cut again (`samples.lastdot`).
"""

from __future__ import annotations

from typing import Any

from tartools.tar.header import BLOCK

NAME_BYTES = 100  # of the name field in a header block
NO_STEM = bytes(BLOCK)  # no name in a header begins with this


def split_path(path: bytes) -> tuple[bytes, bytes]:
    """Return (key, field) of a member's path; the field is empty if the path has none.

    >>> split_path(b"train/n01/a.seg.png"), split_path(b"v1.2/README"), split_path(b"d/.hid.jpg"), split_path(b"e.")
    ((b'train/n01/a', b'seg.png'), (b'v1.2/README', b''), (b'd/.hid.jpg', b''), (b'e.', b''))
    """
    base = path.rfind(b"/") + 1
    dot = path.find(b".", base)
    if base < dot < len(path) - 1:
        return path[:dot], path[dot + 1 :]
    return path, b""


def join_path(key: bytes, field: bytes) -> bytes:
    """Return the path of the member *field* of sample *key*: "key.field", or *key* if *field* is empty.

    The inverse of `split_path`.
    """
    return key + b"." + field if field else key


def is_macos_metadata(path: bytes) -> bool:
    """True if *path* is a file that macOS adds: `._NAME` (AppleDouble, the attributes of NAME) or `.DS_Store`.

    Such members are no samples and end none: bsdtar on macOS puts one before each file, inside samples.

    >>> is_macos_metadata(b"d/._a.jpg"), is_macos_metadata(b".DS_Store"), is_macos_metadata(b"._d/a.jpg")
    (True, True, False)
    """
    base = path.rfind(b"/") + 1
    return path.startswith(b"._", base) or path[base:] == b".DS_Store"


def can_read_back(key: bytes, field: bytes) -> bool:
    """True if readers split the path of *key* and *field* into just these two, and do not skip the member.

    False also for a path with a NUL, or with a slash at its end. An empty path (both are empty) is not refused.

    >>> can_read_back(b"a", b"seg.png"), can_read_back(b"a.b", b"png"), can_read_back(b"._a", b"")
    (True, False, False)
    """
    path = join_path(key, field)
    is_safe = b"\0" not in path and not path.endswith(b"/")
    return split_path(path) == (key, field) and is_safe and not is_macos_metadata(path)


def stem_of(key: bytes, has_field: bool) -> bytes:
    """Return the bytes with which all paths of the sample *key* begin: the key and a dot.

    *has_field*: False if the path of the first member has no field; the sample has no further members then, and the
    result is `NO_STEM`, with which no path begins.
    """
    return key + b"." if has_field else NO_STEM


def has_stem(path: bytes, stem: bytes) -> bool:
    """True if *path* is a member of the sample with this *stem* (key and dot, from `stem_of`), and has a field."""
    return path.startswith(stem) and path.find(b"/", len(stem)) < 0 and len(path) > len(stem)


def field_offset(key: bytes) -> int:
    """Return the offset of the field in the paths of the sample *key*: b"a" -> 2, after the key and the dot."""
    return len(key) + 1


def field_from_ending(ending: bytes) -> bytes:
    """Return the field in *ending*, the end of a path after the key: b".jpg" -> b"jpg"; empty for an empty one.

    The inverse of `join_path(b"", field)`.
    """
    return ending[1:]


class Paths:
    """The paths in *headers*, rows of 512 uint8, as arrays with a row for each header; prefixes are not read.

    `names`: the paths, as rows of uint8, filled up with zeros to the length of the longest.
    `ends`: lengths of the paths. `lengths`: lengths of their keys.
    `bases`: the index at which the base name begins. `keyed`: True if the path has a field.
    `hidden`: True if the base name begins with a dot, and for a path of 100 bytes that ends in a slash.
    `plain`: True if the path is not empty, and only zeros follow it. All else is right only for plain paths.
    """

    def __init__(self, headers: Any) -> None:
        import numpy as np

        # columns in which all names are zero are cut, since the time below is that of the columns
        used = np.bitwise_or.reduce(headers.view("u8")[:, : NAME_BYTES // 8 + 1], axis=0).tobytes()[:NAME_BYTES]
        width = len(used.rstrip(b"\0")) or 1
        self.names = np.ascontiguousarray(headers[:, :width])
        columns = np.ascontiguousarray(self.names.T)  # to reduce many short rows takes longer than few long columns
        nonzero = columns != 0
        self.ends = ends = nonzero.sum(axis=0, dtype=np.uint8).astype(np.int64)
        self.plain = nonzero[0] & ~(nonzero[1:] > nonzero[:-1]).any(axis=0)
        order = np.arange(width, dtype=np.uint8)[:, None]
        self.bases = np.zeros(len(headers), np.int64)
        slashes = columns == ord("/")
        dots = columns == ord(".")
        if slashes.any():
            self.bases = (slashes * (order + np.uint8(1))).max(axis=0).astype(np.int64)
            dots &= order >= self.bases
        first = np.where(dots, order, np.uint8(NAME_BYTES)).min(axis=0).astype(np.int64)
        self.hidden = first == self.bases
        self.keyed = (first > self.bases) & (first < ends - 1)
        self.lengths = np.where(self.keyed, first, ends)

    def first_path(self) -> bytes:
        """Return the first path; there must be one."""
        return bytes(self.names[0, : self.ends[0]])

    def paths(self, low: int, high: int) -> list[bytes]:
        """Return the paths with the indexes *low* to *high* (exclusive)."""
        paths: list[bytes] = self.names[low:high].view(f"S{self.names.shape[1]}").ravel().tolist()
        return paths

    def keys(self, indexes: Any) -> list[bytes]:
        """Return the keys of the paths at *indexes*, an array."""
        import numpy as np

        lengths = self.lengths[indexes]
        size = int(lengths[0]) if len(lengths) else 0
        if size and (lengths == size).all():  # numpy cuts them faster than the loop below
            keys: list[bytes] = np.ascontiguousarray(self.names[indexes, :size]).view(f"S{size}").ravel().tolist()
            return keys
        data, width = self.names.tobytes(), self.names.shape[1]
        ends = (indexes * width + lengths).tolist()
        return [data[at:end] for at, end in zip((indexes * width).tolist(), ends, strict=True)]

    def fields(self) -> Any:
        """Return the field of each path, as rows of uint8 filled up with zeros.

        There must be a path, and all must be plain and keyed.
        """
        import numpy as np

        begins = self.lengths + 1
        if (begins == begins[0]).all():
            return self.names[:, int(begins[0]) :]
        columns = begins[:, None] + np.arange(int((self.ends - begins).max()))
        within = self.names[np.arange(len(begins))[:, None], np.minimum(columns, self.names.shape[1] - 1)]
        return np.where(columns < self.ends[:, None], within, 0)

    def share_key(self, low: int, others: Any) -> bool:
        """True if each path from index *low* on has the same key as its partner; *others*: indexes of the partners.

        The array *others* has one index for each path from *low* on. All these paths and partners must have a field.
        """
        import numpy as np

        lengths = self.lengths[low:]
        if not (lengths == self.lengths[others]).all():
            return False
        width = int(lengths.max(initial=0))
        differ = self.names[low:, :width] != self.names[others, :width]
        if (lengths != width).any():
            differ &= np.arange(width) < lengths[:, None]
        return not bool(differ.any())

    def group_begins(self, count: int) -> Any:
        """Return an array of the indexes, among the first *count* paths, at which a group begins.

        These are 0, and the index of each path that has no field, follows one without, or has another key than the one
        before.
        """
        import numpy as np

        names, lengths = self.names[:count], self.lengths[:count]
        keyed = self.keyed[1:count] & self.keyed[: count - 1] & (lengths[1:] == lengths[:-1])
        columns = np.ascontiguousarray(names.T)
        differ = (columns[:, 1:] != columns[:, :-1]) & (np.arange(len(columns))[:, None] <= lengths[1:])
        return np.concatenate(([0], (~keyed | differ.any(axis=0)).nonzero()[0] + 1))

    def common_endings(self, begins: Any) -> list[bytes] | None:
        """Return the ends of a group's paths after the key, [b".jpg", b".cls"]; None if not all groups have the same.

        *begins*: an array of two or more indexes at which groups begin; the group at the last index is not compared.
        """
        import numpy as np

        low, high, group_size = int(begins[0]), int(begins[-1]), int(begins[1] - begins[0])
        if not (np.diff(begins) == group_size).all():
            return None
        lengths = self.lengths[low:high].reshape(-1, group_size)
        widths = self.ends[low:high].reshape(-1, group_size) - lengths
        if not (widths == widths[0]).all():
            return None
        endings, same_lengths = [], (lengths == lengths[0, 0]).all()
        for number, width in enumerate(widths[0].tolist()):
            names, first = self.names[low + number : high : group_size], int(lengths[0, number])
            if same_lengths:
                ending_bytes = names[:, first : first + width]
            else:
                ending_bytes = np.take_along_axis(names, lengths[:, number : number + 1] + np.arange(width), axis=1)
            if not (ending_bytes == ending_bytes[0]).all():
                return None
            endings.append(ending_bytes[0].tobytes())
        return endings
