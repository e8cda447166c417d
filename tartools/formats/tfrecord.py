"""TFRecord files to samples and back: each record is a `tf.train.Example`, and each of its features a field.

A record stands in a file as its length (64 bits, little-endian), the CRC-32C of these 8 bytes, the record, and its
CRC-32C. Both sums are rotated and shifted ("masked"), as TensorFlow does.
"""

from __future__ import annotations

import functools
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from math import isfinite
from typing import Any, cast

from tartools import storage, tar
from tartools.errors import SampleError, StorageError, TarFormatError, TruncatedError, how_to_install, several, shown
from tartools.samples.account import Account
from tartools.samples.columnfields import ChosenColumns, EmptyRows, with_key_column
from tartools.samples.filekeys import Dots, sample_key
from tartools.samples.rowchoice import RowChoice, key_text
from tartools.samples.sample import Sample, failure_of, make_path
from tartools.samples.values import absent_field_error, comma_advice, field_list, require_safe_key
from tartools.storage.streams import Input, Stream, check_whole, stream_file
from tartools.tar.compression import Codec, DecompressedStream, Decompressor, PrependedStream, codec_of, first_bytes

LENGTH_STRUCT, CRC_STRUCT = struct.Struct("<Q"), struct.Struct("<I")
FRAME_HEAD_BYTES = LENGTH_STRUCT.size + CRC_STRUCT.size  # bytes before a record
MAX_MESSAGE_BYTES = (1 << 31) - 1  # bytes of a message of protobuf
BYTES_FEATURE, FLOATS_FEATURE = "bytes_list", "float_list"  # kinds of a feature
KEY_FEATURE = "__key__"  # the feature that has the key
MAX_UTF8_BYTES, FRAME_OVERHEAD_BYTES = 4, 64  # bytes at most: of a character in UTF-8, and around a name and a payload


def _zlib_reader() -> Decompressor:
    """Return a new decompressor of zlib streams, from isal."""
    from isal import igzip_lib

    return igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_ZLIB)


ZLIB_MAGICS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")  # of zlib with a window of 32 KiB: RFC 1950, 2.2
ZLIB_CODEC = Codec("zlib", ZLIB_MAGICS, (), _zlib_reader, zlib.compressobj, can_start=lambda data: len(data) > 1)


def samples(urls: Sequence[str], account: Account, choice: RowChoice, dots: Dots = None) -> Iterator[Sample]:
    """Yield the samples of TFRecord files, file by file, counted in *account*. Members are new: mode 0644, time 0.

    *choice*: the features that become fields, and the keys: the feature `key`; if it is None, `keys` makes them of the
    features that its template names; if that names none, the feature `__key__` has them, and in records without it
    `keys` makes them of the number of the record in all files, from 0. *dots*: where a key ends that is the name
    of a file: at its "first" or "last" dot; None: at its only dot, before a known suffix. Members are in the order of
    their names. Features without a value are no fields; *account* warns of them at the end. Records without any field
    are left out, and reported as an omission.

    Holds: one record, three times. Raises: SampleError for a record that is no sample, and for words of which no record
    had a feature; TarFormatError for a damaged file; StorageError, also if protobuf or google-crc32c is missing.
    """
    examples, empty_rows = Examples(choice, dots), EmptyRows("record")
    for url in urls:
        with closing(storage.open_read(url)) as stream:
            for at, record in read_records(open_records(stream, url), url):
                try:
                    sample = examples.make_sample(record, url)
                except SampleError as error:
                    raise SampleError(error.message, url=url, offset=at) from None
                account.bytes_in += len(record)
                account.samples_in += 1
                if sample is None:
                    empty_rows.add(account, f"the record at byte {at} of {shown(url)}")
                else:
                    yield sample
            check_whole(stream, url)
        account.shards_done += 1
    if examples.empty:
        message = several(
            examples.empty, "feature without a value is not a field", "features without a value are not fields"
        )
        account.warn(f"{message} (the first: {examples.first_empty})")
    empty_rows.report(account)
    examples.check_words()


def open_records(stream: Stream, url: str) -> io.BufferedReader:
    """Return the bytes of the TFRecord file in *stream*, the file *url*, decompressed if they are not plain.

    They are plain if the first length has its checksum, because a length may begin as compressed data do; else the
    magic number of zlib, gzip or another codec of shards decides. The caller closes *stream*. Raises: StorageError if
    the first bytes can't be read. Reading the rest raises it, too, and TarFormatError if compressed data are damaged.
    """
    head = first_bytes(stream, FRAME_HEAD_BYTES)
    records: Stream = PrependedStream(stream, head)
    if head[LENGTH_STRUCT.size :] != masked_crc(head[: LENGTH_STRUCT.size]):
        codec = ZLIB_CODEC if head.startswith(ZLIB_MAGICS) else codec_of(head)
        if codec is not None:
            records = DecompressedStream(records, codec, url)
    return stream_file(cast(Input, records), url, lambda: None)


def read_records(file: io.BufferedReader, url: str) -> Iterator[tuple[int, bytes]]:
    """Yield (byte at which its frame begins, record) for each record in *file*, which is not compressed.

    Raises: TarFormatError, naming *url* and byte, if a checksum differs, or a record has 2 GiB or more; TruncatedError
    if the file ends in a record, or is empty; the errors of reading *file*.
    """
    at = 0
    while head := file.read(FRAME_HEAD_BYTES):
        if len(head) < FRAME_HEAD_BYTES:
            raise TruncatedError("ends in the length of a record", url=url, offset=at + len(head))
        if head[LENGTH_STRUCT.size :] != masked_crc(head[: LENGTH_STRUCT.size]):
            reason = (
                "the checksum of a record's length differs" if at else "this is not a TFRecord file, or it is damaged"
            )
            raise TarFormatError(reason, url=url, offset=at)
        (length,) = LENGTH_STRUCT.unpack_from(head)
        if length > MAX_MESSAGE_BYTES:
            raise TarFormatError(f"a record of {length:,} bytes; an Example has at most 2 GiB", url=url, offset=at)
        record, crc = file.read(length), file.read(CRC_STRUCT.size)
        if len(crc) < CRC_STRUCT.size:
            end = at + FRAME_HEAD_BYTES + len(record) + len(crc)
            raise TruncatedError(f"ends in a record of {length:,} bytes", url=url, offset=end)
        if crc != masked_crc(record):
            raise TarFormatError(f"the checksum of a record of {length:,} bytes differs", url=url, offset=at)
        yield at, record
        at += FRAME_HEAD_BYTES + length + CRC_STRUCT.size
    if not at:
        raise TruncatedError("is empty: a TFRecord file has a record", url=url, offset=0)


class Examples:
    """Makes samples of records, one after the other: `make_sample` for each record, and then `check_words`.

    *choice*: the features that become fields, and the keys, as `samples` says; a field that a word gives no new name
    has the name of the word's first choice. *dots*: where a key ends that is the name of a file: at its "first" or
    "last" dot; None: at its only dot, before a known suffix.
    `empty`: count of features without a value. `first_empty`: the place of the first one, for a message; "" if none.
    Raises: StorageError if protobuf or google-crc32c is not installed.
    """

    def __init__(self, choice: RowChoice, dots: Dots) -> None:
        check_protobuf()
        from google.protobuf.message import DecodeError
        from google.protobuf.unknown_fields import UnknownFieldSet

        self._message, self._bad, self._unknown = example_class(), DecodeError, UnknownFieldSet
        self._choice, self._dots = choice, dots
        words = choice.words
        self._words = None if words is None else [(choices, new or choices[0]) for choices, new in words]
        self._fold: Callable[[str], str] = str if words is None else str.lower
        self._chosen: dict[tuple[str, ...], list[tuple[int, str]]] = {}  # of records with these fields
        self._seen: dict[str, None] = {}
        self._index = -1
        self.empty = 0
        self.first_empty = ""

    def make_sample(self, record: bytes, url: str) -> Sample | None:
        """Return the sample made of *record*, an Example; None if it has none of the chosen fields.

        Call it once for each record of all files, in order: it counts them, for keys that are made of the number of a
        record. It counts features without a value in `empty`. *url*: the file.

        Raises: SampleError if the record is no Example, or can't be a sample: no or a bad key, two features for one
        field, a name that no field can have.
        """
        self._index += 1
        values = self._fields(self._features(record), url)
        names = tuple(values)
        if names not in self._chosen:
            self._seen.update(dict.fromkeys(names))
            has_keys = self._choice.key is not None or self._choice.keys.columns
            words = self._words if has_keys else with_key_column(self._words, names)
            dropped = [self._choice.key or KEY_FEATURE, KEY_FEATURE] if has_keys else ()
            chosen = ChosenColumns(words, dropped, self._fold, skip_underscored=False)
            self._chosen[names] = chosen.choose({name: n for n, name in enumerate(names)})
        key = self._key(values)
        fields: dict[str, bytes] = {}
        for place, name in self._chosen[names]:
            if name == KEY_FEATURE:
                key = sample_key(values[names[place]], self._dots).decode("utf-8", "surrogateescape")
            else:
                fields[name] = values[names[place]]
        if len(fields) > 1 and "" in fields:
            raise SampleError(f"the sample {key!r} has a feature without a name, and others")
        if not fields:
            return None
        members = [tar.new_member(make_path(key, name), fields[name]) for name in sorted(fields)]
        return Sample(key.encode("utf-8", "surrogateescape"), members, url)

    def _key(self, values: dict[str, bytes]) -> str:
        """Return the key that the choice gives a record: from its column of keys, else by its template.

        A feature `__key__`, which takes precedence over a template without columns, is not looked at. *values*:
        payloads by field. Raises: SampleError for a missing or bad key, and if a feature that the template names is
        missing or is not UTF-8.
        """
        if self._choice.key is not None:
            name = self._choice.key_in(values)
            return sample_key(values[str(name)], self._dots).decode("utf-8", "surrogateescape")
        if self._choice.keys.columns:
            self._choice.key_in(values)
        return require_safe_key(self._choice.keys(self._index, lambda name: key_text(values[name], name)))

    def _features(self, record: bytes) -> Any:
        """Return a mapping of the features in *record*: name -> `tf.train.Feature`.

        Raises: SampleError if it is no Example.
        """
        try:
            example = self._message.FromString(record)
        except self._bad:
            raise SampleError("a record that is not a tf.train.Example") from None
        if len(self._unknown(example)) or len(self._unknown(example.features)):
            raise SampleError("a record that is not a tf.train.Example (it may be a SequenceExample)")
        return example.features.feature

    def _fields(self, features: Any, url: str) -> dict[str, bytes]:
        """Return the payloads of *features* by field, sorted by the name of the feature; count empty features.

        A field has the name of its feature, with dots in place of slashes; several bytes are fields NAME.0, NAME.1 and
        so on, as `feature_payloads` makes them. *url*: the file, for `first_empty`. Raises: SampleError if two features
        are for one field.
        """
        values_by_field: dict[str, bytes] = {}
        for name in sorted(features):
            feature = features[name]
            kind = feature.WhichOneof("kind")
            values = getattr(feature, kind).value if kind else ()
            if not len(values):
                self.empty += 1
                self.first_empty = self.first_empty or f"{name!r} of record {self._index + 1} ({shown(url)})"
                continue
            for field, payload in feature_payloads(name.replace("/", "."), kind, values):
                if field in values_by_field:
                    raise SampleError(f"two features are for the field {field!r}")
                values_by_field[field] = payload
        return values_by_field

    def check_words(self) -> None:
        """Raise SampleError if there is a word for which no record had a feature with a value; case is ignored."""
        if lost := " ".join(ChosenColumns(self._words, (), str.lower).missing_words(self._seen)):
            raise SampleError(
                f"no record had the feature {lost}{comma_advice(lost)}; they were: {field_list(self._seen)}"
            )


def feature_payloads(field: str, kind: str, values: Any) -> Iterator[tuple[str, bytes]]:
    """Yield (field, payload) for the *values*, at least one, of a feature of this *kind*, whose field is *field*.

    *kind*: "bytes_list", "float_list" or "int64_list". One value is the payload: bytes as they are, a number as text.
    Several bytes are FIELD.0, FIELD.1 and so on; several numbers are a JSON list. A float is written with as many
    digits as tell it from others of 32 bits.
    """
    if kind == BYTES_FEATURE:
        for number, value in enumerate(values):
            yield f"{field}.{number}" if len(values) > 1 else field, value
        return
    texts = list(map(_float_text, values) if kind == FLOATS_FEATURE else map(str, values))
    yield field, (texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]").encode()


def _float_text(value: float) -> str:
    """Return *value*, of 32 bits, as text; NaN and infinities as Python's JSON writes them.

    >>> _float_text(0.10000000149011612), _float_text(float("-inf"))
    ('0.1', '-Infinity')
    """
    if not isfinite(value):
        return json.dumps(value)
    import numpy as np

    return str(np.float32(value))


# ---- samples to records ----


def make_frames(samples: Iterable[Sample], account: Account, chosen: ChosenColumns) -> Iterator[bytes]:
    """Yield the bytes of a TFRecord file, in pieces: a `tf.train.Example` for each of *samples*, in order.

    An Example has a feature for each field that is *chosen*, and `__key__`, sorted by name; each is one value of bytes.
    A sample without any chosen field is left out. *account* counts samples as written or left out, and the bytes of
    records without their frames. The caller calls `check_protobuf` before.

    Holds: one sample, three times. Raises: SampleError for names that an Example can't have, for a field twice, for
    samples above 2 GiB, and at the end, for a word of *chosen* that no sample had a field for, if there were samples;
    the errors of *samples*; StorageError if a payload can't be read.
    """
    message = example_class()
    names: dict[tuple[str, ...], list[tuple[int, str]]] = {}  # of samples with these fields
    all_fields: dict[str, None] = {}
    for sample in samples:
        fields = sample.fields
        try:
            if fields not in names:
                names[fields] = choose_features(fields, chosen)
                all_fields.update(dict.fromkeys(fields))
            features = names[fields]
            if not features:
                account.left_out += 1
                continue
            record = encode_example(sample, features, message())
        except SampleError as error:
            raise failure_of(sample, f": {error.message}") from None
        account.samples_out += 1
        account.bytes_out += len(record)
        length = LENGTH_STRUCT.pack(len(record))
        yield from (length, masked_crc(length), record, masked_crc(record))
    if all_fields and (lost := " ".join(chosen.missing_words(all_fields))):
        raise absent_field_error(lost, all_fields)


def choose_features(fields: Sequence[str], chosen: ChosenColumns) -> list[tuple[int, str]]:
    """Return (index in *fields*, feature name) for each field that *chosen* takes.

    Order: of the words of *chosen*, or else of *fields*. The field "" is a feature called "". Raises: SampleError if
    *fields* has a name twice, or two fields are for one feature, and for a name of a feature that is not UTF-8, or is
    `KEY_FEATURE`.
    """
    places = {field: number for number, field in enumerate(fields)}
    if len(places) < len(fields):
        twice = next(field for field in fields if fields.count(field) > 1)
        raise SampleError(f"it has the field {twice!r} twice")
    features = chosen.choose(places)
    for _, name in features:
        if name == KEY_FEATURE:
            raise SampleError(
                f"a feature can't be called {KEY_FEATURE!r}, which is that of the key: -f 'new=old' renames"
            )
        try:
            name.encode()
        except UnicodeEncodeError:
            raise SampleError(f"the name of a feature is UTF-8, and {name!r} is not: -f 'new=old' renames") from None
    return features


def encode_example(sample: Sample, features: Iterable[tuple[int, str]], message: Any) -> bytes:
    """Return *sample* as the bytes of a `tf.train.Example`.

    *features*: (index of the member, name of its feature); `__key__`, the key, is added. *message*: an empty Example,
    which is filled.
    Raises: SampleError for a sample that may have more than MAX_MESSAGE_BYTES; StorageError if a payload can't be read.
    """
    members = [(sample.members[place], name) for place, name in features]
    feature = message.features.feature
    feature[KEY_FEATURE].bytes_list.value.append(sample.raw_key)
    if (
        sum(member.size + len(name) * MAX_UTF8_BYTES + FRAME_OVERHEAD_BYTES for member, name in members)
        > MAX_MESSAGE_BYTES
    ):
        raise SampleError("it has more than 2 GiB, and a tf.train.Example can't")
    for member, name in members:
        feature[name].bytes_list.value.append(member.read())
    return bytes(message.SerializeToString(deterministic=True))


# ---- records and messages ----


def check_protobuf() -> None:
    """Raise StorageError if protobuf or google-crc32c is not installed; does not import them."""
    from importlib.util import find_spec

    try:
        spec = find_spec("google.protobuf") and find_spec("google_crc32c")
    except ModuleNotFoundError:  # there is no google at all
        spec = None
    if spec is None:
        advice = how_to_install("protobuf", "google-crc32c")
        raise StorageError(f"TFRecord files need protobuf and google-crc32c: {advice}")


def masked_crc(data: bytes) -> bytes:
    """Return the masked CRC-32C of *data*, in the 4 bytes that a TFRecord file has for it; needs google-crc32c.

    >>> masked_crc(LENGTH_STRUCT.pack(24)).hex()  # the first bytes of every file of TensorBoard
    'a37f4b22'
    """
    import google_crc32c

    crc = google_crc32c.value(data)
    return CRC_STRUCT.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


EXAMPLE_PROTO = """
name: "tartools/example.proto" package: "tensorflow" syntax: "proto3"
message_type { name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type { name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type { name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature" oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type: TYPE_MESSAGE type_name: ".tensorflow.Int64List" oneof_index: 0 }
}
message_type {
  name: "Features"
  field {
    name: "feature" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE type_name: ".tensorflow.Features.FeatureEntry"
  }
  nested_type {
    name: "FeatureEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".tensorflow.Feature" }
  }
}
message_type {
  name: "Example" field { name: "features" number: 1 type: TYPE_MESSAGE type_name: ".tensorflow.Features" }
}
"""


@functools.cache
def example_class() -> Any:
    """Return the class of `tf.train.Example`, the message that TensorFlow's example.proto and feature.proto describe.

    It needs protobuf: `check_protobuf` raises if that is not installed. It is in a descriptor pool of its own:
    TensorFlow, in the same program, has these names in the default one.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

    pool = descriptor_pool.DescriptorPool()
    pool.Add(text_format.Parse(EXAMPLE_PROTO, descriptor_pb2.FileDescriptorProto()))
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
