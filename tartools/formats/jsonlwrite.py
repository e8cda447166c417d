"""Samples to JSON lines, which `jsonl.samples` reads back: text as strings, the rest in base64."""

from __future__ import annotations

import json
from binascii import b2a_base64
from collections.abc import Iterable, Iterator

from tartools.errors import SampleError
from tartools.formats.jsonl import BASE64, title
from tartools.formats.neighbours import distinct
from tartools.samples.account import Account
from tartools.samples.sample import Sample, field_name
from tartools.tar import Member


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
    payload = member.read()
    try:
        return (json.dumps(payload.decode(), ensure_ascii=False).encode(),)
    except UnicodeDecodeError:
        return b'{"%s": "' % BASE64.encode(), b2a_base64(payload, newline=False), b'"}'
