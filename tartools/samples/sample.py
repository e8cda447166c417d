"""`Sample`: adjacent members that share a key, which is their path up to the first dot (the rule of WebDataset).

`Batch` is adjacent samples as the reader finds them; `build` makes a sample from Python values.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, islice, repeat
from typing import TypeVar, overload

from tartools import tar
from tartools.errors import SampleError
from tartools.tar import ContiguousGroups, Member, ScatteredGroup, Source, Writer, join_path, read_range, split_path
from tartools.tar.keys import reads_back

Label = TypeVar("Label")

DICT_KEY, DICT_URL = "__key__", "__url__"  # names of the key and the shard in a sample that is a dict


def failure_of(sample: Sample, message: str) -> SampleError:
    """Return the error for *sample*, in its shard; *message* follows its name, so it begins with `: ` or ` has`."""
    return SampleError(f"sample {sample.key!r}{message}", url=sample.shard)


class Sample:
    """One sample: a key, and its members in the order of the archive. Treat it as immutable.

    It is a mapping from field to payload: `sample["jpg"]` is bytes. If no field has exactly this name, one that differs
    only in case is taken. It pickles by value, which reads payloads that are ranges of files.

    *raw_key* is the key as bytes of the archive, *shard* the URL that the sample was read from.

    Holds: buffers of the input, of up to 1 MiB each, or its file; `own` frees the buffers.
    """

    __slots__ = ("_members", "_span", "raw_key", "shard")

    def __init__(self, key: bytes, members: Iterable[Member] = (), shard: str = "") -> None:
        self.raw_key = key
        self.shard = shard
        self._members: list[Member] | tuple[Member, ...] | None = members if type(members) is list else tuple(members)
        self._span: tuple[Source, int, int] | None = None

    @classmethod
    def at(cls, key: bytes, source: Source, start: int, end: int, shard: str = "") -> Sample:
        """Return the sample whose members fill bytes *start* to *end* of *source*. They are parsed on first use."""
        return _sample(key, shard, None, source, start, end)

    @property
    def key(self) -> str:
        """The key as text; bytes that are not UTF-8 are surrogate escapes (PEP 383)."""
        return self.raw_key.decode("utf-8", "surrogateescape")

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, in the order of the archive."""
        members = self._raw_members()
        if not isinstance(members, tuple):
            members = self._members = tuple(map(Member._make, members))
        return members

    @property
    def grouped(self) -> bool:
        """Whether readers group by this key; False for a lone member without a field."""
        return any(len(member.path) > len(self.raw_key) for member in self.members)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the archive."""
        return tuple(field_name(member) for member in self.members)

    @property
    def size(self) -> int:
        """Bytes that the sample takes in an archive: headers, payloads, padding."""
        if self._span is not None:
            return self._span[2] - self._span[1]
        return sum(member.stored for member in self.members)

    def member(self, field: str, *, verbatim: bool = False) -> Member | None:
        """Return the member of *field*, or None. Case is ignored if no member matches exactly, unless *verbatim*.

        Raises: SampleError if two members match.
        """
        member = self._find(field, verbatim)
        return None if member is None else Member._make(member)

    def open(self, field: str) -> io.BufferedReader:
        """Return a seekable binary file over the payload of *field*. Large payloads are not held in memory."""
        member = self.member(field)
        if member is None:
            raise self._without(field)
        return member.open()

    def __getitem__(self, field: str) -> bytes:
        payload = self.get(field)
        if payload is None:
            raise self._without(field)
        return payload

    def _without(self, field: str) -> KeyError:
        return KeyError(f"sample {self.key!r} has no field {field!r}; its fields are: {' '.join(self.fields)}")

    @overload
    def get(self, field: str, default: bytes, *, verbatim: bool = ...) -> bytes: ...
    @overload
    def get(self, field: str, default: None = None, *, verbatim: bool = ...) -> bytes | None: ...
    def get(self, field: str, default: bytes | None = None, *, verbatim: bool = False) -> bytes | None:
        """Return the payload of *field*, or *default*. Fields are found as by `member`."""
        member = self._find(field, verbatim)
        return default if member is None else read_range(member[1], member[3], member[3] + member[4])

    def __contains__(self, field: object) -> bool:
        return isinstance(field, str) and self._find(field, False) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def keys(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the archive."""
        return self.fields

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield (field, payload) in the order of the archive."""
        return ((field_name(member), member.read()) for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"<Sample {self.key!r} {' '.join(self.fields)}>"

    def __reduce__(self) -> tuple[Callable[..., Sample], tuple[bytes, bytes, int, int, str]]:
        raw = raw_bytes(self.members)
        return Sample.at, (self.raw_key, raw, 0, len(raw), self.shard)

    def with_members(self, members: Iterable[Member], key: bytes | None = None) -> Sample:
        """Return a sample of these *members* from the same shard, with another *key* if given."""
        return Sample(self.raw_key if key is None else key, tuple(members), self.shard)

    def own(self) -> Sample:
        """Return this sample with its bytes copied, so that it holds no input buffer; ranges of files stay ranges."""
        if self._span is None:
            return self.with_members(map(owned, self.members))
        source, start, end = self._span
        if isinstance(source, io.FileIO) or len(source) == end - start:
            return self
        return Sample.at(self.raw_key, bytes(memoryview(source)[start:end]), 0, end - start, self.shard)

    def write_to(self, writer: Writer) -> None:
        """Add the members to *writer*."""
        if self._span is not None:
            writer.add_range(*self._span)
        else:
            writer.add(self._members or ())

    def _raw_members(self) -> list[Member] | tuple[Member, ...]:
        """Return the members, possibly as plain tuples; parse them on first use."""
        if self._members is None:
            assert self._span is not None
            from tartools.tar.rescan import members_in

            self._members = members_in(*self._span)
        return self._members

    def _find(self, field: str, verbatim: bool) -> Member | None:
        """Return the member of *field*, possibly as a plain tuple. As `member`."""
        path = self.raw_key + behind_key(field)
        matches = [member for member in self._members or self._raw_members() if member[0] == path]
        if len(matches) == 1:
            return matches[0]
        if not matches and not verbatim:
            matches = [m for m in self.members if field_name(m).lower() == field.lower()]
        if len(matches) > 1:
            raise SampleError(f"sample {self.key!r} has {len(matches)} members for field {field!r}", url=self.shard)
        return matches[0] if matches else None


@lru_cache(1000)
def behind_key(field: str) -> bytes:
    """Return the end of the paths of *field*, after the key; a NUL, which no path has, if *field* cannot be encoded."""
    try:
        return join_path(b"", field.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return b"\0"


def field_name(member: Member) -> str:
    """Return the field of *member* as text."""
    return split_path(member.path)[1].decode("utf-8", "surrogateescape")


def owned(member: Member) -> Member:
    """Return *member* with its bytes copied to exact size; a range of a file is returned unchanged."""
    path, source, start, data, size, head = member
    if isinstance(source, io.FileIO) or (isinstance(source, bytes) and len(source) == member.end - start):
        return member
    if head is None:
        return Member(path, bytes(memoryview(source)[start : member.end]), 0, data - start, size)
    return Member(path, bytes(memoryview(source)[data : data + size]), 0, 0, size, head)


def raw_bytes(members: Iterable[Member]) -> bytes:
    """Return the bytes of *members* in an archive."""
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.add(members)
    writer.flush()
    return sink.getvalue()


_bare = object.__new__


class Batch:
    """Adjacent samples from one reader call: contiguous *groups* in one source, or one other sample.

    Groups hold lists of members, arrays of members (all samples have the same fields), or extents alone. Tables have
    subclasses: `ListedBatch` holds rows of a table, and reads shards when members are asked for.
    *shard* is the URL that they were read from; if they come from several, one URL for each is given. Of a sample that
    is not contiguous in memory, *offset* is the byte of the shard at which it begins; None if it is not in one piece.
    `Sample` objects are made on demand. Holds: the source.
    """

    __slots__ = ("_lone", "_shards", "groups", "keys", "offset", "shard")

    def __init__(self, content: ContiguousGroups | ScatteredGroup | Sample, shard: str | Sequence[str]) -> None:
        self.shard = shard if isinstance(shard, str) else ""
        self._shards = None if isinstance(shard, str) else shard
        self.groups: ContiguousGroups | None = None
        self.offset: int | None = None
        if isinstance(content, ContiguousGroups):
            self.groups, self.keys = content, content.keys
            return
        if isinstance(content, ScatteredGroup):
            self.offset = content.offset
            content = Sample(content.key, content.members, self.shard)
        self._lone, self.keys = content, [content.raw_key]

    @classmethod
    def of(cls, sample: Sample) -> Batch:
        """Return a batch of *sample* alone."""
        return cls(sample, sample.shard)

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[Sample]:
        if self.groups is None:
            return iter((self[0],))
        source, keys, starts, members, firsts, alike = self.groups
        if alike is not None:
            members, firsts = alike.members(source, keys), alike.firsts()
        shards = repeat(self.shard) if self._shards is None else self._shards
        lists = repeat(None) if members is None else map(members.__getitem__, map(slice, firsts, [*firsts[1:], None]))
        return map(_sample, keys, shards, lists, repeat(source), starts, islice(starts, 1, None))

    def __getitem__(self, number: int) -> Sample:
        if self.groups is None:
            return self._lone
        source, keys, starts, *_ = self.groups
        shard = self.shard if self._shards is None else self._shards[number]
        return _sample(keys[number], shard, None, source, starts[number], starts[number + 1])

    @property
    def shards(self) -> Sequence[str]:
        """The URLs of the shards that the samples were read from: one for all of them, or one for each."""
        return (self.shard,) if self._shards is None else self._shards

    def fitting(self, first: int, room: int) -> int:
        """Return the number of samples, from number *first* on, that fit into *room* bytes of an archive."""
        if self.groups is None:
            return int(self[0].size <= room)
        from bisect import bisect_right

        starts = self.groups.starts
        return bisect_right(starts, starts[first] + room, first) - 1 - first

    def weight(self, first: int, last: int) -> int:
        """Return the bytes of memory that hold samples *first* to *last* (exclusive)."""
        return self[0].size if self.groups is None else self.groups.starts[last] - self.groups.starts[first]

    def apart(self, labels: Sequence[Label], skipped: Label | None = None) -> Iterator[tuple[Label, Batch, int, int]]:
        """Yield (label, batch, first, last) for each run of equal *labels*, except for the label *skipped*.

        *labels* has one for each sample; a run is samples *first* to *last* (exclusive) of the batch.
        """
        for first, last, label in runs_of_labels(labels):
            if label != skipped:
                yield label, self, first, last

    def write_to(self, writer: Writer, first: int, last: int) -> None:
        """Add samples number *first* to *last* (exclusive) to *writer*."""
        if self.groups is None:
            self[0].write_to(writer)
        else:
            writer.add_range(self.groups.source, self.groups.starts[first], self.groups.starts[last])


def runs_of_labels(labels: Iterable[Label]) -> Iterator[tuple[int, int, Label]]:
    """Yield begin, end (exclusive) and value of each run of equal *labels*.

    >>> list(runs_of_labels([True, True, False]))
    [(0, 2, True), (2, 3, False)]
    """
    first = 0
    for label, same in groupby(labels):
        last = first + sum(1 for _ in same)
        yield first, last, label
        first = last


def _sample(key: bytes, shard: str, members: list[Member] | None, source: Source, start: int, end: int) -> Sample:
    sample = _bare(Sample)
    sample.raw_key, sample.shard, sample._members, sample._span = key, shard, members, (source, start, end)
    return sample


Value = object  # a value of a field: see `encoding.encode`


def build(fields: Mapping[str, Value]) -> Sample:
    """Return the sample with the key `fields["__key__"]` and a member for every other item, in order.

    Other names that begin with two underscores (`__url__`, which webdataset adds) are left out.

    Raises: SampleError for a key or field that would not read back, and for two fields whose names differ only in case;
    TypeError, naming sample and field, for a value that cannot be encoded.
    """
    from tartools.samples.encoding import encode

    if not hasattr(fields, "get"):
        raise TypeError(f"a sample is a dict of __key__ and fields, or one that was read, not {type(fields).__name__}")
    key = fields.get(DICT_KEY)
    if not isinstance(key, str) or not key:
        raise SampleError("a sample needs a '__key__': a string that is not empty")
    members = []
    for field, value in fields.items():
        if not field.startswith("__"):
            try:
                payload = encode(field, value)
                members.append(tar.new_member(checked_path(key, field), payload))
            except UnicodeEncodeError as error:
                raise SampleError(
                    f"sample {key!r}, field {field!r}: the lone surrogate {error.object[error.start]!a} can't be "
                    "written as UTF-8"
                ) from None
            except TypeError as error:
                raise TypeError(f"sample {key!r}, {error}") from None
    if not members:
        raise SampleError(f"sample {key!r} has no fields, so nothing would be written")
    _check_case(key, fields)
    return Sample(key.encode("utf-8", "surrogateescape"), tuple(members))


def _check_case(key: str, fields: Iterable[str]) -> None:
    """Raise SampleError if the names of two *fields* differ only in case: readers, which ignore it, lose one."""
    first: dict[str, str] = {}
    for field in fields:
        same = first.setdefault(field.lower(), field)
        if same != field and not field.startswith("__"):
            fault = f"the fields {same!r} and {field!r}, which readers take for one, because they differ only in case"
            raise SampleError(f"sample {key!r} has {fault}")


def checked_path(key: str, field: str) -> bytes:
    """Return the path of the member *field* of sample *key*.

    Raises: SampleError if it would not read back as that key and field.
    """
    raw = key.encode("utf-8", "surrogateescape"), field.encode("utf-8", "surrogateescape")
    path = join_path(*raw)
    if not reads_back(*raw):
        raise SampleError(f"key {key!r} with field {field!r} would not read back: {path.decode('utf-8', 'replace')!r}")
    return path
