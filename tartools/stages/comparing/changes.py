"""Two data sets, as sorted records of their samples, to what differs between them. Keys pair their samples.

If a key occurs several times, the first sample with it in A is compared with the first in B, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tartools.stages.combinations import text
from tartools.stages.comparing.sides import NUMBER, fields_in

NONE = b"\xff" * NUMBER  # in place of a position
ADDED, REMOVED, CHANGED, REORDERED = "+", "-", "~", ">"


class Change(NamedTuple):
    """What differs: the *kind*, the *key*, the *position* in B (unless it is not there), and which *fields* differ.

    A field that only A has begins with -, one that only B has with +.
    """

    kind: str
    key: bytes
    position: bytes = b""
    fields: tuple[str, ...] = ()


class Counts:
    """How many samples of A and B are *equal*, *added* ... *fields* counts changed samples for each field.

    *repeated* are the samples of A, and of B, whose key an earlier sample of the same side has.
    """

    def __init__(self) -> None:
        self.equal = self.added = self.removed = self.changed = self.reordered = 0
        self.repeated = [0, 0]
        self.fields: dict[str, int] = {}

    @property
    def differ(self) -> bool:
        """Whether anything differs."""
        return bool(self.added or self.removed or self.changed or self.reordered)


class _Side:
    """The sorted *records* of one side: the one to be compared next, in parts. *key* is None at the end."""

    __slots__ = ("_last", "_records", "content", "key", "position", "repeated")

    def __init__(self, records: Iterator[bytes]) -> None:
        self._records = records
        self._last: bytes | None = None
        self.key: bytes | None = None
        self.repeated = 0
        self.next()

    def next(self) -> None:
        """Go to the next record."""
        record = next(self._records, None)
        if record is None:
            self.key = None
            return
        end = record.index(b"\0\0") + 2
        self.key = record[:end]
        self.position = record[end : end + NUMBER]
        self.content = record[end + NUMBER :]
        if self.key == self._last:
            self.repeated += 1
        self._last = self.key


def decoded(key: bytes) -> bytes:
    """Return the key that `sortkeys.text_bytes` encoded as *key*."""
    return key[:-2].replace(b"\0\xff", b"\0")


def changes(
    left: Iterator[bytes], right: Iterator[bytes], counts: Counts, pair: Callable[[bytes], object]
) -> Iterator[Change]:
    """Yield what differs between the sorted records *left*, of A, and *right*, of B, in the order of keys.

    Adds to *counts*, and calls *pair* with the position in A, the position in B and the key of all samples that both
    have, together in bytes: what `reordered` takes.
    """
    a, b = _Side(left), _Side(right)
    while a.key is not None or b.key is not None:
        if b.key is not None and (a.key is None or b.key < a.key):
            counts.added += 1
            yield Change(ADDED, decoded(b.key), b.position)
            b.next()
            continue
        assert a.key is not None
        if a.key != b.key:
            counts.removed += 1
            yield Change(REMOVED, decoded(a.key))
            a.next()
            continue
        pair(a.position + b.position + a.key)
        if a.content == b.content:
            counts.equal += 1
        else:
            counts.changed += 1
            fields = differing(a.content, b.content)
            for field in fields:
                counts.fields[field] = counts.fields.get(field, 0) + 1
            yield Change(CHANGED, decoded(a.key), b.position, fields)
        a.next()
        b.next()
    counts.repeated = [a.repeated, b.repeated]


def differing(left: bytes, right: bytes) -> tuple[str, ...]:
    """Return the fields that differ between the contents *left* and *right* of two records."""
    a, b = by_field(left), by_field(right)
    unlike = (field for field in sorted({*a, *b}) if a.get(field) != b.get(field))
    return tuple([("" if field in a and field in b else "-" if field in a else "+") + text(field) for field in unlike])


def by_field(content: bytes) -> dict[bytes, list[bytes]]:
    """Return the digests of each field in the *content* of a record: several if a sample has it several times."""
    found: dict[bytes, list[bytes]] = {}
    for field, digest in fields_in(content):
        found.setdefault(field, []).append(digest)
    return found


def reordered(
    pairs: Iterable[bytes], sort: Callable[[Iterable[bytes]], Iterator[bytes]], counts: Counts
) -> Iterator[Change]:
    """Yield the samples that come after another sample in B than in A, in the order of B; adds to *counts*.

    Only samples that both have count: *pairs* are what `changes` told of them. *sort* sorts any number of records.
    """

    def after() -> Iterator[bytes]:
        last = NONE
        for pair in sort(pairs):
            yield pair[NUMBER : 2 * NUMBER] + last + pair[2 * NUMBER :]
            last = pair[NUMBER : 2 * NUMBER]

    last = NONE
    for record in sort(after()):
        if record[NUMBER : 2 * NUMBER] != last:
            counts.reordered += 1
            yield Change(REORDERED, decoded(record[2 * NUMBER :]), record[:NUMBER])
        last = record[:NUMBER]
