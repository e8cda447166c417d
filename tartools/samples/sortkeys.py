"""Sort keys: encode the values that samples are sorted by as bytes that sort like the values.

No encoding is a prefix of another. So their complements sort in reverse, and bytes appended to them only order equals.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Literal, NamedTuple

from tartools.errors import SampleError
from tartools.samples.sample import Sample
from tartools.samples.values import INDEX_NAME, Column, field_list, make_getter, path_advice

Kind = Literal["text", "int", "float", "version", "shuffle"]
End = Literal["first", "last"]

COMPLEMENT = bytes(range(255, -1, -1))
# prefix of a sort key; MISSING_FIRST and MISSING_LAST alone: the value is missing
MISSING_FIRST, HAS_VALUE, MISSING_LAST = b"\0", b"\1", b"\2"
# compiled when they are needed: most runs sort by text
INTEGER = rb"\s*([+-]?)([0-9]+)\s*"
FLOAT = rb"(?i)\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?)\s*"
VERSION_PATTERN = rb"([^0-9]*)([0-9]*)"
DOUBLE = Struct(">d")


class Order(NamedTuple):
    """The order to sort in.

    `column`: its values are compared. `kind`: as "text", "int", "float" or "version"; "shuffle": not these, but a hash
    of `seed` and position.
    `reverse`: the greatest first. `unique`: which one of equal samples is kept, "first" or "last"; None: all.
    `missing`: where samples without a value go, "first" or "last", even if `reverse`; None: they are an error.
    `verbatim`: True if names of fields are compared with case, and a final newline counts.
    """

    column: Column
    kind: Kind = "text"
    reverse: bool = False
    unique: End | None = None
    missing: End | None = None
    seed: int = 0
    verbatim: bool = False

    @property
    def by_key(self) -> bool:
        """True if samples are sorted by their keys: `kind` is not "shuffle", `__key__` the first choice of `column`."""
        return self.kind != "shuffle" and self.column.choices[0] == "__key__"

    @property
    def by_position(self) -> bool:
        """True if the order depends on the positions of samples in the input."""
        return self.kind == "shuffle" or INDEX_NAME in self.column.choices


def make_encoder(order: Order) -> Callable[[Sample, int], bytes]:
    """Return a function (sample, position in the input) -> sort key.

    The function raises SampleError if the value is not of its kind or not valid Unicode, is missing and `order.missing`
    is None, or its field occurs twice or can't be decoded; StorageError if the payload can't be read or unpacked. In a
    shuffle, and for keys as text or version, it raises nothing.
    """
    encode_key = make_key_encoder(order)
    if encode_key is not None:
        return lambda sample, position: encode_key(sample.raw_key, position, sample.shard)

    text, of_value = make_getter(order.column, verbatim=order.verbatim), make_value_encoder(order)

    def encode(sample: Sample, position: int) -> bytes:
        """Return the sort key of *sample*, number *position* of the input.

        Raises: SampleError if its value is not of its kind or not valid Unicode, is missing and `order.missing` is
        None, or its field occurs twice or can't be decoded; StorageError if the payload can't be read or unpacked.
        """
        return of_value(text(sample, position), sample.raw_key, sample.shard, lambda: sample.fields)

    return encode


def make_value_encoder(order: Order) -> Callable[[str | None, bytes, str, Callable[[], Iterable[str]]], bytes]:
    """Return a function (value or None, key of the sample, its shard, `fields()`: its fields) -> sort key.

    *order*: not a shuffle. The function raises SampleError if the value is not of its kind or not valid Unicode, or is
    missing (None) and `order.missing` is None.
    """

    def encode(value: str | None, key: bytes, shard: str, fields: Callable[[], Iterable[str]]) -> bytes:
        """Return the sort key for *value*, None if it is missing; `key`, `shard` and `fields()` are for messages.

        Raises: SampleError if it is missing and `order.missing` is None, not of its kind, or not valid Unicode.
        """
        if value is not None:
            try:
                return _encode_value(value.encode("utf-8", "surrogateescape"), order, key, shard)
            except UnicodeEncodeError as error:
                surrogate = error.object[error.start]
        elif order.missing is not None:
            return MISSING_FIRST if order.missing == "first" else MISSING_LAST
        name, column = key.decode("utf-8", "surrogateescape"), order.column.name
        if value is not None:
            raise SampleError(
                f"sample {name!r}: cannot sort by {column}: its text has the lone surrogate {surrogate!a}, which is "
                "not valid Unicode",
                url=shard,
            )
        raise SampleError(
            f"sample {name!r} has no {column} to sort by{path_advice(column, fields())} "
            f"(its fields: {field_list(fields())}); "
            "--missing first or --missing last says where such samples go",
            url=shard,
        )

    return encode


def require_values(records: Iterable[bytes], order: Order) -> Iterable[bytes]:
    """Return *records*, which begin with the sort keys of samples, such that reading to their end checks them.

    Raises, at the end: SampleError if `order.missing` is set, and no sample of one or more has the value to sort by.
    """
    return records if order.missing is None else _check_values(records, order)


def _check_values(records: Iterable[bytes], order: Order) -> Iterator[bytes]:
    """Yield *records*, which begin with sort keys; *order* has a `missing`.

    Raises, at the end: SampleError if all of one or more have the sort key of a missing value.
    """
    missing = MISSING_FIRST if order.missing == "first" else MISSING_LAST
    record = None
    records = iter(records)
    for record in records:
        yield record
        if not record.startswith(missing):
            break
    else:
        if record is not None:
            name = order.column.name
            raise SampleError(
                f"no sample had a value for {name} to sort by{path_advice(name)}; tarstat lists the fields"
            )
    yield from records


def make_key_encoder(order: Order) -> Callable[[bytes, int, str], bytes] | None:
    """Return a function (key, position, shard) -> sort key if *order* is by key or a shuffle; else None.

    The function raises SampleError if the key is not of the kind of *order*: "int" or "float".
    """
    if order.kind == "shuffle":
        hash_of = make_shuffle_key(order.seed)
        return lambda _key, position, _shard: apply_direction(hash_of(position), order)
    if not order.by_key:
        return None
    if order.kind == "text" and not order.reverse:
        return lambda key, _position, _shard: HAS_VALUE + text_bytes(key)
    return lambda key, _position, shard: _encode_value(key, order, key, shard)


def _encode_value(value: bytes, order: Order, key: bytes, shard: str) -> bytes:
    """Return the sort key for *value*, the text to sort by of the sample *key* in *shard*; *order* is no shuffle.

    Raises: SampleError, naming the sample, if *value* is not of the kind of *order*.
    """
    encoded = SORT_ENCODINGS[order.kind](value)
    if encoded is None:
        text, name = value[:60].decode("utf-8", "replace"), key.decode("utf-8", "surrogateescape")
        raise SampleError(
            f"sample {name!r}: cannot sort by {order.column.name} as {order.kind}: the value is {text!r}",
            url=shard,
        )
    return HAS_VALUE + apply_direction(encoded, order)


def apply_direction(encoded: bytes, order: Order) -> bytes:
    """Return the sort key *encoded*, its bytes complemented if *order* is reverse: then the greatest come first.

    *encoded*: one of several keys of which none is a prefix of another.
    """
    return encoded.translate(COMPLEMENT) if order.reverse else encoded


def text_bytes(value: bytes) -> bytes:
    r"""Return *value*, text, as a sort key: keys sort as the bytes of their values, and none is a prefix of another.

    >>> text_bytes(b"a\0b")
    b'a\x00\xffb\x00\x00'
    """
    return value.replace(b"\0", b"\0\xff") + b"\0\0"


def text_of_key(encoded: bytes) -> bytes:
    r"""Return the text that `text_bytes` encoded as *encoded*, without HAS_VALUE before it: b"a\0\0" -> b"a"."""
    return encoded[:-2].replace(b"\0\xff", b"\0")


def int_bytes(value: bytes) -> bytes | None:
    """Return *value*, a whole number as text, of any length, as bytes that sort like numbers; None if it is not one.

    It may have a sign, and white space around it, but no underscores.

    >>> int_bytes(b" -12 ") < int_bytes(b"-3") < int_bytes(b"0") == int_bytes(b"-00") < int_bytes(b"+010")
    True
    """
    match = re.fullmatch(INTEGER, value)
    if not match:
        return None
    digits = match[2].lstrip(b"0")
    return _encode_digits(digits).translate(COMPLEMENT) if match[1] == b"-" and digits else _encode_digits(digits)


def _encode_digits(digits: bytes) -> bytes:
    """Return decimal *digits* without leading zeros as bytes that sort as the numbers do: longer ones are greater."""
    count = len(digits)
    return (bytes([0x80 + count]) if count < 0x7F else b"\xff" + count.to_bytes(8, "big")) + digits


def float_bytes(value: bytes) -> bytes | None:
    """Return *value*, a number as text, as 8 bytes that sort like numbers; None if it is not one, and for NaN.

    Numbers that have the same nearest 64-bit float are equal.

    >>> float_bytes(b"-inf") < float_bytes(b"-1e-3") < float_bytes(b"-0") == float_bytes(b"0.0") < float_bytes(b".5")
    True
    """
    if not re.fullmatch(FLOAT, value):
        return None
    # Big-endian IEEE 754 sorts as bytes once the sign bit is set for positive numbers, and all bits are inverted for
    # negative ones.
    bits = DOUBLE.pack(float(value) + 0.0)  # + 0.0 turns -0.0 into 0.0
    return bits.translate(COMPLEMENT) if bits[0] & 0x80 else bytes([bits[0] | 0x80]) + bits[1:]


def version_bytes(value: bytes) -> bytes:
    """Return *value*, a version, as bytes that sort like `sort -V`, about: digits as numbers, before all other bytes.

    >>> sorted([b"a.", b"a10", b"a7", b"a007", b"a"], key=version_bytes)
    [b'a', b'a007', b'a7', b'a10', b'a.']
    """
    parts = []
    zeros = False
    for text, digits in re.findall(VERSION_PATTERN, value):
        # A number begins with byte 1 and the end with byte 0, so that both sort before any text; bytes of the text up
        # to 2 are escaped by 2 for that.
        parts.append(re.sub(rb"[\0-\2]", lambda match: b"\2" + match[0], text))
        if digits:
            parts.append(b"\1" + _encode_digits(digits.lstrip(b"0")))
            zeros = zeros or digits.startswith(b"0")
    parts.append(b"\0\0" + text_bytes(value) if zeros else b"\0\1")  # of equal numbers, leading zeros come first
    return b"".join(parts)


SORT_ENCODINGS: dict[str, Callable[[bytes], bytes | None]] = {
    "text": text_bytes,
    "int": int_bytes,
    "float": float_bytes,
    "version": version_bytes,
}


def make_shuffle_key(seed: int) -> Callable[[int], bytes]:
    """Return a function: position of a sample -> its sort key in the shuffle with this *seed*.

    The key is 8 bytes, a keyed hash of the position.
    """
    from tartools.samples.digests import blake2b

    key = blake2b(b"%d" % seed).digest()
    return lambda position: blake2b(position.to_bytes(8, "big"), digest_size=8, key=key).digest()
