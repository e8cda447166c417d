"""Samples to a TFRecord file, which `tfrecord.samples` reads back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tartools.errors import SampleError
from tartools.formats.neighbours import distinct
from tartools.formats.tfrecordmessage import KEY, MOST, example_class, head_of, masked_crc
from tartools.samples.account import Account
from tartools.samples.payloads import ChosenColumns
from tartools.samples.sample import Sample
from tartools.samples.values import blanks, field_list

LONGEST, FRAME = 4, 64  # bytes at most: of a character in UTF-8, and around a name and a payload


def records(samples: Iterable[Sample], account: Account, chosen: ChosenColumns) -> Iterator[bytes]:
    """Yield the bytes of a TFRecord file: a `tf.train.Example` for each of *samples*, in order, counted in *account*.

    It has a feature for each field that is *chosen*, and `__key__`; each is one value of bytes. They are sorted by
    name. A sample without such a field is left out.

    Holds: one sample, three times. Raises: SampleError for names that an Example can't have, for samples above 2 GiB,
    for two side by side with one key, and at the end, if no sample had a field that was asked for.
    """
    message = example_class()
    names: dict[tuple[str, ...], list[tuple[int, str]]] = {}  # of samples with these fields
    seen: dict[str, None] = {}
    for sample in distinct(samples):
        fields = sample.fields
        try:
            if fields not in names:
                names[fields] = features_of(fields, chosen)
                seen.update(dict.fromkeys(fields))
            found = names[fields]
            if not found:
                account.left_out += 1
                continue
            record = example(sample, found, message())
        except SampleError as error:
            raise SampleError(f"sample {sample.key!r}: {error.message}", url=sample.shard) from None
        account.samples_out += 1
        account.bytes_out += len(record)
        yield head_of(len(record))
        yield record
        yield masked_crc(record)
    if seen and (lost := " ".join(chosen.lost(seen))):
        raise SampleError(f"no sample had the field {lost}{blanks(lost)}; the fields were: {field_list(seen)}")


def features_of(fields: Sequence[str], chosen: ChosenColumns) -> list[tuple[int, str]]:
    """Return which of the *fields* of a sample are features, and their names. Raises: SampleError for a bad name."""
    places = {field: number for number, field in enumerate(fields)}
    if len(places) < len(fields):
        twice = next(field for field in fields if fields.count(field) > 1)
        raise SampleError(f"it has the field {twice!r} twice")
    found = chosen.of(places)
    for _, name in found:
        if name == KEY:
            raise SampleError(f"a feature can't be called {KEY!r}, which is that of the key: -f 'new=old' renames")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SampleError(f"the name of a feature is UTF-8, and {name!r} is not: -f 'new=old' renames") from None
    return found


def example(sample: Sample, features: Iterable[tuple[int, str]], message: Any) -> bytes:
    """Return *sample* as the bytes of a `tf.train.Example`, whose empty *message* is given. Raises: SampleError."""
    members = [(sample.members[place], name) for place, name in features]
    feature = message.features.feature
    feature[KEY].bytes_list.value.append(sample.raw_key)
    if sum(member.size + len(name) * LONGEST + FRAME for member, name in members) > MOST:
        raise SampleError("it has more than 2 GiB, and a tf.train.Example can't")
    for member, name in members:
        feature[name].bytes_list.value.append(member.read())
    return bytes(message.SerializeToString(deterministic=True))
