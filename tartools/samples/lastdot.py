"""Cut names of members at their last dot: for shards whose keys contain dots, such as `img.2023.01.jpg`.

The reader groups members by the rule of WebDataset, which cuts names at the first dot (`tar.keys`). So all members
whose names have the same last-dot key are in one of its groups, and each group is cut again here:

    Track 2.0 (Clean).mp3  ─┐                       ┌─ Track 2_0 (Clean).mp3
    Track 2.0 (Clean).txt   ├─ key `Track 2`, ─────►┤  Track 2_0 (Clean).txt      two samples
    Track 2.1.mp3          ─┘  three fields         └─ Track 2_1.mp3

Dots before the last one become underscores, as with `tarcreate --folder --dots last`: so the new names read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from tartools import tar
from tartools.samples.batch import Batch
from tartools.samples.filekeys import replace_early_dots
from tartools.samples.sample import Sample, failure_of
from tartools.tar import Member, split_path


def is_last_dot(dots: str) -> bool:
    """True if *dots*, an argument of Python functions, is "last". Raises: ValueError unless it is "first" or "last"."""
    if dots not in ("first", "last"):
        raise ValueError(f"dots is 'first' or 'last', not {dots!r}")
    return dots == "last"


def cut_at_last_dot(batch: Batch) -> Iterator[Batch]:
    """Yield the samples of *batch* with keys that end at the last dot of their names; *batch* itself if all do.

    If some don't, each sample is in a batch of its own; dots of the base name before the last become underscores. Names
    that begin with a dot stay. Order: that of the archive, of the first members. Raises: SampleError if two names of
    one sample that differ in dots and underscores would get one key.
    """
    if not any("." in field for same in batch.combinations() for field in same.fields):
        yield batch
        return
    bounds = batch.bounds()
    for sample, begin in zip(batch, bounds or repeat(None), strict=False):
        for part, at in cut_sample(sample, begin):
            yield Batch.from_sample(part, at)


def cut_sample(sample: Sample, begin: int | None = None) -> Iterator[tuple[Sample, int | None]]:
    """Yield (sample, byte at which it begins) for the samples that *sample* becomes if names are cut at the last dot.

    Order: that of their first members. Dots of a base name before the last become underscores. If the key stays,
    *sample* itself is yielded. *begin*: the byte of the shard at which *sample* begins, if it is in one piece there;
    None: all bytes are None. Raises: SampleError if two names that differ in dots and underscores would get one key.
    """
    members_by_key: dict[bytes, list[Member]] = {}
    names: dict[bytes, bytes] = {}  # key -> the part of the name from which it was made
    begins: dict[bytes, int | None] = {}
    for member in sample.members:
        path = replace_early_dots(member.path)
        key = split_path(path)[0]
        name = member.path[: len(key)]
        if names.setdefault(key, name) != name:
            both = " and ".join(part.decode("utf-8", "replace") for part in (names[key], name))
            new = key.decode("utf-8", "replace")
            raise failure_of(
                sample, f": cut at the last dot, {both} would both have the key {new!r}; rename one of them"
            )
        members_by_key.setdefault(key, []).append(tar.rename_member(member, path))
        begins.setdefault(key, begin)
        if begin is not None:
            begin += member.stored_size
    if [*members_by_key] == [sample.raw_key]:
        yield sample, begins[sample.raw_key]
        return
    for key, members in members_by_key.items():
        yield sample.with_members(members, key), begins[key]
