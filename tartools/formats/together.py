"""Lines of TSV made of many samples at once, where these have the same fields and no value needs an escape."""

from __future__ import annotations

import io
from collections.abc import Sequence

from tartools.samples.sample import Batch, behind_key
from tartools.samples.values import PSEUDO, Column


def joined(batch: Batch, columns: Sequence[Column], verbatim: bool) -> bytes | None:
    """Return the lines of the samples of *batch*, or None if they have to be made one by one.

    Each sample has exactly one member for each of *columns*, and the values are UTF-8 text in which nothing is escaped.
    """
    groups = batch.groups
    if groups is None or groups.alike is None or isinstance(groups.source, io.FileIO):
        return None
    cells: list[Sequence[bytes | bytearray]] = []
    for column in columns:
        if column.choices == ("__key__",):
            cells.append(groups.keys)
            continue
        name, behind = column.choices[0], groups.alike.behind
        if column.path or name in PSEUDO or behind.count(behind_key(name)) != 1:
            return None
        found = groups.alike.payloads(groups.source, behind.index(behind_key(name)))
        cells.append(found if verbatim else [payload.removesuffix(b"\n") for payload in found])
    lines = b"\n".join(map(b"\t".join, zip(*cells, strict=True))) + b"\n"
    tabs = (len(cells) - 1) * len(batch)
    if lines.count(b"\n") != len(batch) or lines.count(b"\t") != tabs or b"\\" in lines or b"\r" in lines:
        return None
    try:
        lines.decode()
    except UnicodeDecodeError:
        return None
    return lines
