"""Count many samples with the same fields at once."""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import chain

from tartools.samples.combinations import text
from tartools.samples.distribution import Distribution
from tartools.samples.sample import Batch
from tartools.stages.statistics.counting import LONGEST, FieldKinds, count_classes
from tartools.stages.statistics.totals import FieldStatistics, Statistics
from tartools.tar import BLOCK, ContiguousGroups, Member

BATCHES = 16  # of about 1 MiB each


class Together:
    """Collects batches whose samples have the same fields, and adds their counts to *found*.

    The counts are those of `count_batch`, with up to *listed* keys. Samples with pictures are not counted here.
    Holds: sizes and classes of up to BATCHES batches, not their buffers.
    """

    def __init__(self, found: Statistics, kinds: FieldKinds, listed: int) -> None:
        self._found = found
        self._kinds = kinds
        self._listed = max(listed, 1)
        self._behind: Sequence[bytes] = ()  # the fields of all samples, each with its dot
        self._names: list[str] = []
        self._begin()

    def _begin(self) -> None:
        self._batches = 0
        self._keys: list[bytes] = []
        self._shards: dict[str, list[int]] = {}
        self._sizes: list[list[list[int]]] = [[] for _ in self._behind]  # of each field, of each batch
        self._classes: list[list[list[bytes]]] = [[] for _ in self._behind]

    def take(self, batch: Batch) -> bool:
        """Collect *batch* and return True, if all its samples have the same fields, and their payloads are in memory.

        Else `flush`, and count it by `count_batch`.
        """
        groups = batch.groups
        if groups is None or isinstance(groups.source, io.FileIO) or len(batch.shards) > 1:
            return False
        if groups.alike is not None:
            behind = groups.alike.behind
        elif len(groups.keys) == 1 and groups.members and self._batches:  # between two buffers
            behind = [path[len(groups.keys[0]) :] for path, *_ in groups.members]
        else:
            return False
        if behind != self._behind:
            self.flush()
            self._behind, self._names = behind, [text(each[1:]) for each in behind]
            self._begin()
        if len(set(behind)) < len(behind) or any(map(self._kinds.pictures, self._names)):
            return False
        for number, name in enumerate(self._names):
            sizes, payloads = column(groups, number, self._kinds.classes(name))
            self._sizes[number].append(sizes)
            self._classes[number].append([payload for payload in payloads if len(payload) <= LONGEST])
        self._keys += groups.keys[: self._listed - len(self._keys)]
        known = self._shards.setdefault(batch.shard, [0, 0])
        known[0] += len(batch)
        known[1] += groups.starts[-1] - groups.starts[0]
        self._batches += 1
        if self._batches == BATCHES:
            self.flush()
        return True

    def flush(self) -> None:
        """Add the counts of what was collected."""
        if not self._batches:
            return
        count, size = map(sum, zip(*self._shards.values(), strict=True))
        fields: dict[str, FieldStatistics] = {}
        found = Statistics(count, first=text(self._keys[0]), listed=self._listed, shards=self._shards, fields=fields)
        for name, batches, classes in zip(self._names, self._sizes, self._classes, strict=True):
            sizes = list(chain.from_iterable(batches))
            field = fields[name] = FieldStatistics(count, count, sizes=Distribution.of(sizes))
            found.payloads += field.sizes.total
            found.padding += sum([-size % BLOCK for size in sizes])
            if self._kinds.classes(name):
                short = list(chain.from_iterable(classes))
                field.long = count - len(short)
                field.classes = count_classes(short)
        found.members = count * len(fields)
        found.headers = size - found.payloads - found.padding
        combination = "/".join(fields)
        found.combinations = {combination: count}
        found.keys = {combination: list(enumerate(map(text, self._keys)))}
        self._found.add(found)
        self._begin()


def column(groups: ContiguousGroups, number: int, read: bool) -> tuple[list[int], list[bytes]]:
    """Return the sizes of member *number* of all *groups*, which have the same fields, and if *read* its payloads."""
    alike, source = groups.alike, groups.source
    if alike is None:
        assert groups.members is not None  # of a single group
        size = groups.members[number][4]
        return [size], [Member._make(groups.members[number]).read()] if read else []
    assert not isinstance(source, io.FileIO)
    return alike.sizes[:, number].tolist(), list(map(bytes, alike.payloads(source, number))) if read else []
