"""Samples to JSON lines, which `jsonl.samples` reads back: text as strings, the rest in base64 or by reference."""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator

from tartools import storage
from tartools.errors import SampleError, UsageError
from tartools.formats.jsonl import BASE64, URL, title
from tartools.formats.neighbours import distinct
from tartools.samples.account import Account
from tartools.samples.places import begin_of, payloads_of
from tartools.samples.sample import Batch, Sample, field_name
from tartools.samples.values import blanks, field_list
from tartools.tar import Member

BEGIN = "__begin__"  # the column of a table that says where samples are


class Reference(bytes):
    """The JSON of a place, as the source of a member that stands for the payload there."""

    __slots__ = ()


def lines(samples: Iterable[Sample], account: Account) -> Iterator[bytes]:
    """Yield a line for each of *samples*, in order, counted in *account*: an object of its key, then its fields.

    Holds: one sample. Raises: SampleError for a name that is not UTF-8, two members of one name, and two samples side
    by side with one key.
    """
    for sample in distinct(samples):
        yield line(sample)
        account.samples_out += 1


def line(sample: Sample) -> bytes:
    """Return *sample* as a JSON object on a line. Raises: SampleError; see `lines`."""
    parts = [b'{"__key__": ', _quoted(sample, sample.key)]
    seen: set[str] = set()
    for member in sample.members:
        field = field_name(member)
        if field in seen:
            raise SampleError(f"the sample {sample.key!r} has the field {field!r} twice", url=sample.shard)
        seen.add(field)
        parts += b", ", _quoted(sample, title(field)), b": ", *_value(member)
    parts.append(b"}\n")
    return b"".join(parts)


def _quoted(sample: Sample, name: str) -> bytes:
    try:
        return json.dumps(name, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise SampleError(
            f"sample {sample.key!r}: {name!r} is not UTF-8, so JSON cannot hold it (--rekey of tarcat gives new keys, "
            "-f 'new=old' new names)",
            url=sample.shard,
        ) from None


def _value(member: Member) -> tuple[bytes, ...]:
    """Return the pieces of the JSON of the payload of *member*."""
    if isinstance(member.source, Reference):
        return (member.source,)
    payload = member.read()
    try:
        return (json.dumps(payload.decode(), ensure_ascii=False).encode(),)
    except UnicodeDecodeError:
        return b'{"%s": "' % BASE64.encode(), b2a_base64(payload, newline=False), b'"}'


def check_places(urls: Iterable[str]) -> None:
    """Raise UsageError if no part of one of *urls* can be read alone: of stdin, commands, fifos and other servers."""
    for url in urls:
        if not storage.is_far(url) and storage.plain_size(url) is None:
            raise UsageError("--refer: this can't be read in parts; copy it to a file or object first", url=url)


def referring(batches: Iterable[Batch], names: str, account: Account, *, verbatim: bool = False) -> Iterator[Sample]:
    """Yield the samples of *batches*, counted in *account*, with references for the fields *names* as payloads.

    *names* are separated by blanks; case is ignored unless *verbatim*. Batches of a table have the column `BEGIN`.

    Raises: SampleError for a sample that is not in one piece; at the end, if no sample had one of these fields.
    """
    fold = str if verbatim else str.lower
    unseen = {fold(name): name for name in names.split()}
    wanted = set(unseen)
    seen: dict[str, None] = {}
    for batch in batches:
        begins = None if batch.columns is None else batch.columns.values(BEGIN)
        for number, sample in enumerate(batch):
            begin = begin_of(sample, batch, number) if begins is None else begins[number]
            members = []
            for member, data in payloads_of(sample, begin):
                field = field_name(member)
                if unseen:
                    seen[field] = None
                    unseen.pop(fold(field), None)
                members.append(_referred(member, sample.shard, data) if fold(field) in wanted else member)
            account.samples_in += 1
            yield sample.with_members(members)
    if unseen and seen:
        lost = " ".join(unseen.values())
        raise SampleError(f"no sample had the field {lost}{blanks(lost)}; the fields were: {field_list(seen)}")


def _referred(member: Member, shard: str, data: int) -> Member:
    place = Reference(json.dumps({URL: str(shard), "offset": data, "size": member.size}).encode())
    return Member(member.path, place, 0, 0, len(place), member.header)
