"""The digests of the payloads of samples with the same fields, for comparisons of samples."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from tartools.samples.fieldcolumns import Combination
from tartools.samples.values import payload_digests


def digest_columns(same: Combination, size: int) -> tuple[list[bytes], list[Sequence[bytes]]]:
    """Return (fields, columns): names of the fields of the samples *same*, and for each a column of payload digests.

    Fields are in the order of their bytes. A column has one BLAKE2b digest of *size* bytes a sample. A field that the
    samples have several times is there as often, with as many columns, in which the digests of each sample are sorted.
    Raises: StorageError if a file has changed.
    """
    fields = [field.encode("utf-8", "surrogateescape") for field in same.fields]
    order = sorted(range(len(fields)), key=fields.__getitem__)
    columns: list[Sequence[bytes]] = [payload_digests(same.columns[number].members, size) for number in order]
    fields.sort()
    if same.has_repeated_field:
        rows = (sorted(zip(fields, row, strict=True)) for row in zip(*columns, strict=True))
        columns = list(zip(*(map(itemgetter(1), row) for row in rows), strict=True))
    return fields, columns
