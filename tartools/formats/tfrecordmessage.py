"""What TFRecord files are made of: records, each in a frame with its length and checksums, and `tf.train.Example`.

A record is its length (64 bits, little-endian), the CRC-32C of these 8 bytes, the record, and its CRC-32C. Both sums
are rotated and shifted ("masked"), as TensorFlow does.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

from tartools.errors import StorageError, how_to_install

LENGTH, CRC = struct.Struct("<Q"), struct.Struct("<I")
HEAD = LENGTH.size + CRC.size  # bytes before a record
MOST = (1 << 31) - 1  # bytes of a message of protobuf
BYTES, FLOATS, INTEGERS = "bytes_list", "float_list", "int64_list"  # the kinds of a feature
KEY = "__key__"  # the feature that has the key


def check_installed() -> None:
    """Raise StorageError if the libraries are missing, without importing them."""
    from importlib.util import find_spec

    try:
        found = find_spec("google.protobuf") and find_spec("google_crc32c")
    except ModuleNotFoundError:  # there is no google at all
        found = None
    if found is None:
        advice = how_to_install("protobuf", "google-crc32c")
        raise StorageError(f"TFRecord files need protobuf and google-crc32c: {advice}")


def masked_crc(data: bytes) -> bytes:
    """Return the masked CRC-32C of *data*, as it stands in a file.

    >>> masked_crc(LENGTH.pack(24)).hex()  # the first bytes of every file of TensorBoard
    'a37f4b22'
    """
    import google_crc32c

    crc = google_crc32c.value(data)
    return CRC.pack(((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def head_of(length: int) -> bytes:
    """Return what stands before a record of *length* bytes."""
    packed = LENGTH.pack(length)
    return packed + masked_crc(packed)


@functools.cache
def example_class() -> Any:
    """Return the class of `tf.train.Example`, the message that TensorFlow's example.proto and feature.proto describe.

    Its pool is its own: TensorFlow, in the same program, has these names in the default one.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    kind = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="tartools/example.proto", package="tensorflow", syntax="proto3")

    def message(name: str, *fields: tuple[str, Any, Any, str | None]) -> Any:
        found = file.message_type.add(name=name)
        for number, (field, label, type_, type_name) in enumerate(fields, 1):
            found.field.add(name=field, number=number, label=label, type=type_, type_name=type_name)
        return found

    one, many, whole = kind.LABEL_OPTIONAL, kind.LABEL_REPEATED, kind.TYPE_MESSAGE
    message("BytesList", ("value", many, kind.TYPE_BYTES, None))
    message("FloatList", ("value", many, kind.TYPE_FLOAT, None))
    message("Int64List", ("value", many, kind.TYPE_INT64, None))
    feature = message(
        "Feature",
        (BYTES, one, whole, ".tensorflow.BytesList"),
        (FLOATS, one, whole, ".tensorflow.FloatList"),
        (INTEGERS, one, whole, ".tensorflow.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    features = message("Features", ("feature", many, whole, ".tensorflow.Features.FeatureEntry"))
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=one, type=kind.TYPE_STRING)
    entry.field.add(name="value", number=2, label=one, type=whole, type_name=".tensorflow.Feature")
    message("Example", ("features", one, whole, ".tensorflow.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tensorflow.Example"))
