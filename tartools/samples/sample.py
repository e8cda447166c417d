"""`Sample`: adjacent members that share a key, which is their path up to the first dot (the rule of WebDataset).

`build` makes a sample from Python values. Many samples at once are a `batch.Batch`.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import overload

from tartools import tar
from tartools.errors import SampleError
from tartools.tar import Member, Source, Writer, join_path, read_range, split_path
from tartools.tar.keys import can_read_back

DICT_KEY, DICT_URL = "__key__", "__url__"  # names of the key and the shard in a sample that is a dict


def decode_name(raw: bytes) -> str:
    """Return *raw*, a path, key or field, as text; bytes that are not UTF-8 become surrogate escapes (PEP 383)."""
    return raw.decode("utf-8", "surrogateescape")


def failure_of(sample: Sample, message: str) -> SampleError:
    """Return the error for *sample*: its shard, "sample KEY", and *message*, which begins with `: `, `, ` or ` has`."""
    return SampleError(f"sample {sample.key!r}{message}", url=sample.shard)


class Sample:
    """One sample: a key, and its members in the order of the archive. Treat it as immutable.

    It is a mapping from field to payload, but without `values`: `sample["jpg"]` is bytes, or raises KeyError. If no
    field has exactly this name, one that differs only in case is taken; SampleError is raised if two match. It pickles
    by value, which reads payloads that are ranges of files.

    `raw_key` is the key as bytes of the archive, `shard` the URL that the sample was read from; "" if it was not read.

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
        """Return the sample *key* whose members fill bytes *start* to *end* of *source*. They are parsed on first use.

        *shard*: the URL that it was read from.
        """
        return sample_in_span(key, shard, None, source, start, end)

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
        """True if a member has a field, so that readers group by the key; False if each path is the key itself."""
        return any(len(member.path) > len(self.raw_key) for member in self.members)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, one for each member, in the order of the archive; "" for a member without one."""
        return tuple(field_name(member) for member in self.members)

    @property
    def size(self) -> int:
        """Bytes that the sample takes in an archive: headers, payloads, padding."""
        if self._span is not None:
            return self._span[2] - self._span[1]
        return sum(member.stored_size for member in self.members)

    def member(self, field: str, *, verbatim: bool = False) -> Member | None:
        """Return the member of *field*, or None. Case is ignored if no member matches exactly, unless *verbatim*.

        Raises: SampleError if two members match.
        """
        member = self._find(field, verbatim)
        return None if member is None else Member._make(member)

    def open(self, field: str) -> io.BufferedReader:
        """Return a seekable binary file over the payload of *field*. Large payloads are not held in memory.

        Case is ignored if no field matches exactly. Raises: KeyError if the sample lacks the field; SampleError if two
        members match. Reading from it raises StorageError if the file that has the payload has changed.
        """
        member = self.member(field)
        if member is None:
            raise self._missing_field_error(field)
        return member.open()

    def __getitem__(self, field: str) -> bytes:
        payload = self.get(field)
        if payload is None:
            raise self._missing_field_error(field)
        return payload

    def _missing_field_error(self, field: str) -> KeyError:
        """Return the error that the sample lacks *field*; its message lists the fields that the sample has."""
        return KeyError(f"sample {self.key!r} has no field {field!r}; its fields are: {' '.join(self.fields)}")

    @overload
    def get(self, field: str, default: bytes, *, verbatim: bool = ...) -> bytes: ...
    @overload
    def get(self, field: str, default: None = None, *, verbatim: bool = ...) -> bytes | None: ...
    def get(self, field: str, default: bytes | None = None, *, verbatim: bool = False) -> bytes | None:
        """Return the payload of *field*, or *default* if the sample lacks it.

        Case is ignored if no field matches exactly, unless *verbatim*. Raises: SampleError if two fields match;
        StorageError if the file that has the payload has changed.
        """
        member = self._find(field, verbatim)
        return default if member is None else read_range(member[1], member[3], member[3] + member[4])

    def __contains__(self, field: object) -> bool:
        return isinstance(field, str) and self._find(field, False) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields, one for each member, in the order of the archive, as `fields` has them."""
        return self.fields

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield (field, payload) for each member, read when it is reached, in the order of the archive.

        Raises: StorageError if a file has changed.
        """
        return ((field_name(member), member.read()) for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"<Sample {self.key!r} {' '.join(self.fields)}>"

    def __reduce__(self) -> tuple[Callable[..., Sample], tuple[bytes, bytes, int, int, str]]:
        raw = raw_bytes(self.members)
        return Sample.at, (self.raw_key, raw, 0, len(raw), self.shard)

    def with_members(self, members: Iterable[Member], key: bytes | None = None) -> Sample:
        """Return a sample of these *members* from the same shard, with the key *key*; None: the same key."""
        return Sample(self.raw_key if key is None else key, tuple(members), self.shard)

    def own(self) -> Sample:
        """Return a copy of this sample that holds no input buffer; ranges of files stay ranges.

        It may be the sample itself, if there is nothing to copy.
        """
        if self._span is None:
            return self.with_members(map(copy_member, self.members))
        source, start, end = self._span
        if isinstance(source, io.FileIO) or len(source) == end - start:
            return self
        return Sample.at(self.raw_key, bytes(memoryview(source)[start:end]), 0, end - start, self.shard)

    def write_to(self, writer: Writer) -> None:
        """Append the members to the archive of *writer*, in order.

        The bytes of a sample that was not changed are copied.
        """
        if self._span is not None:
            writer.add_range(*self._span)
        else:
            writer.add(self._members or ())

    def _raw_members(self) -> list[Member] | tuple[Member, ...]:
        """Return the members, possibly as plain tuples with the items of `Member`; they are parsed on first use."""
        if self._members is None:
            assert self._span is not None
            from tartools.tar.rescan import members_in

            self._members = members_in(*self._span)
        return self._members

    def _find(self, field: str, verbatim: bool) -> Member | None:
        """Return the member of *field*, possibly as a plain tuple; None if there is none.

        Case is ignored if no member matches exactly, unless *verbatim*. Raises: SampleError if two members match.
        """
        path = self.raw_key + ending_of_field(field)
        matches = [member for member in self._members or self._raw_members() if member[0] == path]
        if len(matches) == 1:
            return matches[0]
        if not matches and not verbatim:
            matches = [m for m in self.members if field_name(m).lower() == field.lower()]
        if len(matches) > 1:
            raise SampleError(f"sample {self.key!r} has {len(matches)} members for field {field!r}", url=self.shard)
        return matches[0] if matches else None


@lru_cache(1000)
def ending_of_field(field: str) -> bytes:
    """Return the end, after the key, of the paths of *field*: a dot and the field; b"" for the field "".

    For a field that can't be encoded: a NUL, which no path has.
    """
    try:
        return join_path(b"", field.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return b"\0"


def field_name(member: Member) -> str:
    """Return the field of *member* as text: its path after the key and a dot; "" if it has none."""
    return split_path(member.path)[1].decode("utf-8", "surrogateescape")


def copy_member(member: Member) -> Member:
    """Return *member* with its bytes copied out of the buffer; itself if it is a range of a file or has its own."""
    path, source, start, data, size, head = member
    if isinstance(source, io.FileIO) or (isinstance(source, bytes) and len(source) == member.end - start):
        return member
    if head is None:
        return Member(path, bytes(memoryview(source)[start : member.end]), 0, data - start, size)
    return Member(path, bytes(memoryview(source)[data : data + size]), 0, 0, size, head)


def raw_bytes(members: Iterable[Member]) -> bytes:
    """Return the bytes that *members* take in an archive: headers, payloads and padding, joined; no end of archive.

    Raises: StorageError if a file has changed.
    """
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.add(members)
    writer.flush()
    return sink.getvalue()


_bare = object.__new__


def sample_in_span(
    key: bytes, shard: str, members: list[Member] | None, source: Source, start: int, end: int
) -> Sample:
    """Return the sample *key* in bytes *start* to *end* of *source*; its *members* are parsed on first use if None.

    *shard*: the URL that it was read from.
    """
    sample = _bare(Sample)
    sample.raw_key, sample.shard, sample._members, sample._span = key, shard, members, (source, start, end)
    return sample


Value = object  # a value of a field: see `encoding.encode`


def build(fields: Mapping[str, Value]) -> Sample:
    """Return the sample with the key `fields["__key__"]` and a member for every other item, in order.

    Other names that begin with two underscores (`__url__`, which webdataset adds) are left out.

    Raises: SampleError for a key that is missing, empty or no str, a key or field that would not read back, a sample
    without fields, two fields whose names differ only in case, and a lone surrogate that `encode` refuses; TypeError if
    *fields* is no mapping, and, naming sample and field, for a value that cannot be encoded; ModuleNotFoundError
    without the package that encodes it.
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
                members.append(tar.new_member(make_path(key, field), payload))
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
    """Raise SampleError if the names of two *fields* differ only in case: readers, which ignore it, lose one.

    Names that begin with two underscores are ignored. *key*: of the sample, for the message.
    """
    first: dict[str, str] = {}
    for field in fields:
        same = first.setdefault(field.lower(), field)
        if same != field and not field.startswith("__"):
            fault = f"the fields {same!r} and {field!r}, which readers take for one, because they differ only in case"
            raise SampleError(f"sample {key!r} has {fault}")


def make_path(key: str, field: str) -> bytes:
    """Return the path of the member *field* of sample *key*, in bytes; a surrogate escape is the byte it stands for.

    Raises: SampleError if it would not read back as that key and field; UnicodeEncodeError for other lone surrogates.
    """
    raw = key.encode("utf-8", "surrogateescape"), field.encode("utf-8", "surrogateescape")
    path = join_path(*raw)
    if not can_read_back(*raw):
        raise SampleError(f"key {key!r} with field {field!r} would not read back: {path.decode('utf-8', 'replace')!r}")
    return path
