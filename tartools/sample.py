"""Members to samples, by the WebDataset rule: a sample is adjacent members that share a path up to the first dot.

Offers `group` (members to samples), `Sample`, and `encode` and `build` (values to samples).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping

from tartools import tar
from tartools.errors import SampleError
from tartools.tar import Member, Source, Special, Writer, padded, write_all

LARGE = 16 << 20  # bytes; the members of a larger sample go to scratch

Split = tuple[bytes, bytes]


def split_path(path: bytes) -> Split:
    """Return (key, field) of a member's path: before and after the first dot of its base name.

    Without a usable dot (none, first, or last) the field is empty and the key is all of the path.

    >>> split_path(b"train/n01/a.seg.png"), split_path(b"v1.2/README"), split_path(b"d/.hid.jpg"), split_path(b"e.")
    ((b'train/n01/a', b'seg.png'), (b'v1.2/README', b''), (b'd/.hid.jpg', b''), (b'e.', b''))
    """
    base = path.rfind(b"/") + 1
    dot = path.find(b".", base)
    if base < dot < len(path) - 1:
        return path[:dot], path[dot + 1 :]
    return path, b""


def join_path(key: bytes, field: bytes) -> bytes:
    """Return the path of the member that is *field* of the sample *key*; inverse of `split_path`."""
    return key + b"." + field if field else key


class Sample:
    """One sample: a key, and its members in the order of the archive. Treat it as immutable.

    As a mapping it goes from field to payload: `sample["jpg"]` is bytes. Names of fields compare without
    case where no exact one is there. Pickles by value; payloads that are ranges of files are read for that.

    *raw_key* is the key as it stands in the archive, *shard* the URL that the sample was read from.

    Holds: views into the input's buffers, of up to 1 MiB each; `own` frees them.
    """

    __slots__ = ("_members", "_span", "raw_key", "shard")

    def __init__(self, key: bytes, members: Iterable[Member] = (), shard: str = "") -> None:
        self.raw_key = key
        self.shard = shard
        self._members: list[Member] | tuple[Member, ...] | None = members if type(members) is list else tuple(members)
        self._span: tuple[Source, int, int] | None = None

    @classmethod
    def at(cls, key: bytes, source: Source, start: int, end: int, shard: str = "") -> Sample:
        """Return the sample whose members fill bytes *start* to *end* of *source*; they are parsed when asked for."""
        sample = cls(key, (), shard)
        sample._members, sample._span = None, (source, start, end)
        return sample

    @property
    def key(self) -> str:
        """The path up to the first dot of its base name; what is not UTF-8 is surrogate escapes (PEP 383)."""
        return self.raw_key.decode("utf-8", "surrogateescape")

    @property
    def members(self) -> tuple[Member, ...]:
        """The members, in the order of the archive."""
        members = self._members
        if members is None:
            assert self._span is not None
            members = tar.members_in(*self._span)
        if not isinstance(members, tuple):
            members = tuple(map(Member._make, members))
        self._members = members
        return members

    @property
    def grouped(self) -> bool:
        """Tell whether readers group by this key: not so for a lone member without a field."""
        return any(len(member.path) > len(self.raw_key) for member in self.members)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields, in the order of the archive."""
        return tuple(field_name(member) for member in self.members)

    @property
    def size(self) -> int:
        """Bytes in an archive: headers, payloads, padding."""
        if self._span is not None:
            return self._span[2] - self._span[1]
        return sum(member.stored for member in self.members)

    def member(self, field: str, *, verbatim: bool = False) -> Member | None:
        """Return the member of *field*: of that very spelling, or else (not if *verbatim*) of another case.

        Raises: SampleError if two are equally good.
        """
        found = [m for m in self.members if field_name(m) == field]
        if not found and not verbatim:
            found = [m for m in self.members if field_name(m).lower() == field.lower()]
        if len(found) > 1:
            raise SampleError(f"sample {self.key!r} has {len(found)} members for field {field!r}", url=self.shard)
        return found[0] if found else None

    def open(self, field: str) -> io.BufferedReader:
        """Return a seekable binary file over the payload of *field*, which is not held in memory if it is large."""
        return self._found(field).open()

    def __getitem__(self, field: str) -> bytes:
        return self._found(field).read()

    def get(self, field: str, default: bytes | None = None) -> bytes | None:
        """Return the payload of *field*, or *default*."""
        member = self.member(field)
        return default if member is None else member.read()

    def __contains__(self, field: object) -> bool:
        return isinstance(field, str) and self.member(field) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def keys(self) -> tuple[str, ...]:
        """The names of the fields; with `[]` this makes `dict(sample)` work."""
        return self.fields

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield (field, payload) in the order of the archive."""
        return ((field_name(member), member.read()) for member in self.members)

    def __len__(self) -> int:
        return len(self.members)

    def __repr__(self) -> str:
        return f"<Sample {self.key!r} {' '.join(self.fields)}>"

    def __reduce__(self) -> tuple[Callable[..., Sample], tuple[bytes, bytes, str]]:
        return unpickled, (self.raw_key, raw_bytes(self.members), self.shard)

    def with_members(self, members: Iterable[Member], key: bytes | None = None) -> Sample:
        """Return a sample of these *members* from the same shard, under *key* if one is given."""
        return Sample(self.raw_key if key is None else key, tuple(members), self.shard)

    def own(self) -> Sample:
        """Return this sample with its bytes copied out of the input's buffers; ranges of files stay ranges."""
        if self._span is None:
            return self.with_members(map(owned, self.members))
        source, start, end = self._span
        if isinstance(source, io.FileIO) or len(source) == end - start:
            return self
        return Sample.at(self.raw_key, bytes(memoryview(source)[start:end]), 0, end - start, self.shard)

    def write_to(self, writer: Writer) -> None:
        """Add the members to *writer*."""
        if self._members is None:
            assert self._span is not None
            writer.add_range(*self._span)
        else:
            writer.add(self._members)

    def _found(self, field: str) -> Member:
        member = self.member(field)
        if member is None:
            raise KeyError(field)
        return member


def field_name(member: Member) -> str:
    """Return the field of *member* as text."""
    return split_path(member.path)[1].decode("utf-8", "surrogateescape")


def owned(member: Member) -> Member:
    """Return *member* in memory of its own; a range of a file as it is."""
    path, source, start, data, size, head = member
    if isinstance(source, io.FileIO) or (isinstance(source, bytes) and len(source) == member.end - start):
        return member
    if head is None:
        return Member(path, bytes(memoryview(source)[start : member.end]), 0, data - start, size)
    return Member(path, bytes(memoryview(source)[data : data + size]), 0, 0, size, head)


def raw_bytes(members: Iterable[Member]) -> bytes:
    """Return the bytes that *members* are in an archive, ranges of files read."""
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.add(members)
    writer.flush()
    return sink.getvalue()


def unpickled(key: bytes, raw: bytes, shard: str) -> Sample:
    """Return the sample whose members are *raw*."""
    return Sample.at(key, raw, 0, len(raw), shard)


def group(
    parts: Iterable[tar.Part],
    shard: str,
    scratch: Callable[[], io.FileIO],
    special: Callable[[Special], None],
) -> Iterator[Sample]:
    """Yield the samples of one shard from what `tar.read_members` yields; call *special* with what is none.

    A sample is yielded when the header that ends it has been read and is sound.

    Order: the archive's. Holds: one sample up to 16 MiB; a larger one goes to a file that *scratch* makes.
    """
    members: list[Member] = []
    key = prefix = b""
    length = 0  # of the prefix; 0: the next member begins a sample, whatever it is
    counted = held = 0  # members whose size is known, and the bytes of those in memory
    for part in parts:
        if not isinstance(part, list):
            if isinstance(part, Special):
                special(part)
            elif members and not (isinstance(part, tar.Ahead) and length and _belongs(part.path, prefix)):
                yield Sample(key, members, shard)
                members, length, counted, held = [], 0, 0, 0
            continue
        for member in part:
            path = member[0]
            if length and path.startswith(prefix) and path.find(b"/", length) < 0 and len(path) > length:
                members.append(member)
                continue
            if members:
                yield Sample(key, members, shard)
                counted = held = 0
            members = [member]
            key, field = split_path(path)
            prefix = key + b"."
            length = len(prefix) if field else 0
        held += sum(
            member[3] - member[2] + member[4] for member in members[counted:] if not isinstance(member[1], io.FileIO)
        )
        counted = len(members)
        if held > LARGE:
            members, held = spilled(members, scratch()), 0


def _belongs(path: bytes, prefix: bytes) -> bool:
    """Tell whether *path* is a member of the sample whose key and a dot are *prefix*."""
    return path.startswith(prefix) and path.find(b"/", len(prefix)) < 0 and len(path) > len(prefix)


def spilled(members: list[Member], file: io.FileIO) -> list[Member]:
    """Return *members* with those in memory as ranges of *file*, to which they are written."""
    ranges: list[Member] = []
    for member in map(Member._make, members):
        if not isinstance(member.source, io.FileIO):
            start = file.tell()
            header = member.header
            write_all(file, header)
            write_all(file, memoryview(member.source)[member.data : member.data + member.size])
            write_all(file, bytes(padded(member.size) - member.size))
            member = Member(member.path, file, start, start + len(header), member.size)
        ranges.append(member)
    return ranges


Value = object  # what a field may be given as: see `encode`


def encode(field: str, value: Value) -> bytes:
    """Return *value* as the payload of *field*.

    Bytes stay as they are, text is UTF-8, numbers are their decimal digits, PIL images are encoded in the format
    that the last part of the field names (jpg, png, ...), and a field whose last part is json takes any JSON value.

    Raises: TypeError naming the field for anything else.
    """
    kind = field.rpartition(".")[2].lower()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if kind == "json":
        import json

        try:
            return json.dumps(value, ensure_ascii=False).encode()
        except TypeError as error:
            raise TypeError(f"field {field!r}: {error}") from None
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, (int, float)):
        return str(value).encode()
    if type(value).__module__.startswith("PIL."):
        return encode_picture(field, kind, value)
    raise TypeError(f"field {field!r}: cannot write a {type(value).__name__}; give bytes, str, a number or a PIL image")


def encode_picture(field: str, kind: str, picture: Value) -> bytes:
    """Return a PIL image in the format whose suffix is *kind*."""
    from PIL import Image

    formats = Image.registered_extensions()
    if "." + kind not in formats or not isinstance(picture, Image.Image):
        raise TypeError(f"field {field!r}: {kind!r} is no suffix of a picture format that Pillow writes")
    file = io.BytesIO()
    picture.save(file, formats["." + kind])
    return file.getvalue()


def build(fields: Mapping[str, Value]) -> Sample:
    """Return the sample that *fields* describe: `__key__`, and a value for every field, in this order.

    Other names that begin with two underscores (`__url__`, as webdataset adds) are left out.

    Raises: SampleError for a key or field that would not read back; TypeError for a value with no encoding.
    """
    key = fields.get("__key__")
    if not isinstance(key, str) or not key:
        raise SampleError("a sample needs a '__key__' that is a string with something in it")
    members = []
    for field, value in fields.items():
        if not field.startswith("__"):
            payload = encode(field, value)
            members.append(tar.new_member(checked_path(key, field), payload))
    if not members:
        raise SampleError(f"sample {key!r} has no fields, so that nothing of it would be written")
    return Sample(key.encode("utf-8", "surrogateescape"), tuple(members))


def checked_path(key: str, field: str) -> bytes:
    """Return the path of the member *field* of sample *key*.

    Raises: SampleError if it would not read back as that key and field.
    """
    raw = key.encode("utf-8", "surrogateescape"), field.encode("utf-8", "surrogateescape")
    path = join_path(*raw)
    if split_path(path) != raw or b"\0" in path or path.endswith(b"/"):
        raise SampleError(f"key {key!r} with field {field!r} would not read back: {path.decode('utf-8', 'replace')!r}")
    return path
