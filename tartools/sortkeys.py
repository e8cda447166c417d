"""What samples are sorted by, as bytes that compare as they are to be sorted.

No encoding is the beginning of another. So their complement sorts in reverse, and what is put behind them decides
only among equals.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from struct import Struct
from typing import Literal, NamedTuple

from tartools.errors import SampleError
from tartools.sample import Sample
from tartools.values import INDEX, Column, getter, told

Kind = Literal["text", "int", "float", "version", "shuffle"]
End = Literal["first", "last"]

COMPLEMENT = bytes(range(255, -1, -1))
FIRST, VALUE, LAST = b"\0", b"\1", b"\2"  # before the encoding; alone they stand for no value
INTEGER = re.compile(rb"\s*([+-]?)([0-9]+)\s*")
FLOAT = re.compile(rb"\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|inf(?:inity)?)\s*", re.IGNORECASE)
VERSION = re.compile(rb"([^0-9]*)([0-9]*)")
DOUBLE = Struct(">d")


class Order(NamedTuple):
    """What samples are sorted by: the value of *column* as *kind*, or by a hash of *seed* and position (shuffle).

    Of equal ones *unique* keeps one. *missing* says where samples without a value go, whether *reverse* or not.
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
        """Tell whether this brings samples of one key together."""
        return self.kind != "shuffle" and self.column.choices[0] == "__key__"

    @property
    def by_position(self) -> bool:
        """Tell whether this depends on how many samples come before one in the input."""
        return self.kind == "shuffle" or INDEX in self.column.choices


def encoder(order: Order) -> Callable[[Sample, int], bytes]:
    """Return the function that gives, for a sample and its position in the input, what it sorts by as bytes.

    That function raises SampleError if the sample has no such value or it is not of the kind.
    """
    encode_key = key_encoder(order)
    if encode_key is not None:
        return lambda sample, position: encode_key(sample.raw_key, position, sample.shard)

    text = getter(order.column, verbatim=order.verbatim)

    def encode(sample: Sample, position: int) -> bytes:
        value = text(sample, position)
        if value is not None:
            return _encoded(value.encode("utf-8", "surrogateescape"), order, sample.raw_key, sample.shard)
        if order.missing is None:
            raise SampleError(
                f"sample {sample.key!r} has no {order.column.name} to sort by (its fields: "
                f"{told(sample.fields)}); --missing first or --missing last says where such samples go",
                url=sample.shard,
            )
        return FIRST if order.missing == "first" else LAST

    return encode


def key_encoder(order: Order) -> Callable[[bytes, int, str], bytes] | None:
    """Return what `encoder` does, as a function of key, position and shard; None if *order* looks at more of a sample.

    That function raises SampleError if the key is not of the kind.
    """
    if order.kind == "shuffle":
        shuffled = _shuffled(order.seed)
        return lambda _key, position, _shard: directed(shuffled(position), order)
    if not order.by_key:
        return None
    if order.kind == "text" and not order.reverse:
        return lambda key, _position, _shard: VALUE + text_bytes(key)
    return lambda key, _position, shard: _encoded(key, order, key, shard)


def _encoded(value: bytes, order: Order, key: bytes, shard: str) -> bytes:
    """Return *value*, which the sample *key* sorts by. Raises: SampleError if it is not of the kind."""
    encoded = ENCODINGS[order.kind](value)
    if encoded is None:
        text, name = value[:60].decode("utf-8", "replace"), key.decode("utf-8", "surrogateescape")
        raise SampleError(
            f"sample {name!r}: cannot sort by {order.column.name} as {order.kind}, since here it is {text!r}",
            url=shard,
        )
    return VALUE + directed(encoded, order)


def directed(encoded: bytes, order: Order) -> bytes:
    """Return *encoded*, or its complement if *order* is reverse: its own inverse."""
    return encoded.translate(COMPLEMENT) if order.reverse else encoded


def decoder(order: Order) -> Callable[[bytes], bytes]:
    """Return the function that gives the text that the encoder made a sort key of."""
    if order.reverse:
        return lambda sort_key: directed(sort_key[1:], order)[:-2].replace(b"\0\xff", b"\0")
    return lambda sort_key: sort_key[1:-2].replace(b"\0\xff", b"\0")


def text_bytes(value: bytes) -> bytes:
    r"""Return *value*, in an encoding that sorts as its bytes do.

    >>> text_bytes(b"a\0b")
    b'a\x00\xffb\x00\x00'
    """
    return value.replace(b"\0", b"\0\xff") + b"\0\0"


def int_bytes(value: bytes) -> bytes | None:
    """Return the whole number of any length that *value* holds, sorted as numbers are; None if it holds none.

    >>> int_bytes(b" -12 ") < int_bytes(b"-3") < int_bytes(b"0") == int_bytes(b"-00") < int_bytes(b"+010")
    True
    """
    found = INTEGER.fullmatch(value)
    if not found:
        return None
    digits = found[2].lstrip(b"0")
    return _natural(digits).translate(COMPLEMENT) if found[1] == b"-" and digits else _natural(digits)


def _natural(digits: bytes) -> bytes:
    """Return the number of these decimal digits, which begin with no 0: the longer one is the greater."""
    count = len(digits)
    return (bytes([0x80 + count]) if count < 0x7F else b"\xff" + count.to_bytes(8, "big")) + digits


def float_bytes(value: bytes) -> bytes | None:
    """Return the number that *value* holds, sorted as numbers are; None if it holds none (NaN has no place).

    >>> float_bytes(b"-inf") < float_bytes(b"-1e-3") < float_bytes(b"-0") == float_bytes(b"0.0") < float_bytes(b".5")
    True
    """
    if not FLOAT.fullmatch(value):
        return None
    bits = DOUBLE.pack(float(value) + 0.0)  # of -0.0 this makes the 0.0 that it equals
    return bits.translate(COMPLEMENT) if bits[0] & 0x80 else bytes([bits[0] | 0x80]) + bits[1:]


def version_bytes(value: bytes) -> bytes:
    """Return *value*, sorted much as `sort -V` does: runs of digits as numbers, and before all other bytes.

    >>> sorted([b"a.", b"a10", b"a7", b"a007", b"a"], key=version_bytes)
    [b'a', b'a007', b'a7', b'a10', b'a.']
    """
    parts = []
    zeros = False
    for other, digits in VERSION.findall(value):
        parts.append(re.sub(rb"[\0-\2]", lambda found: b"\2" + found[0], other))
        if digits:
            parts.append(b"\1" + _natural(digits.lstrip(b"0")))
            zeros = zeros or digits.startswith(b"0")
    parts.append(b"\0\0" + text_bytes(value) if zeros else b"\0\1")  # of equal numbers, those with zeros come first
    return b"".join(parts)


ENCODINGS: dict[str, Callable[[bytes], bytes | None]] = {
    "text": text_bytes,
    "int": int_bytes,
    "float": float_bytes,
    "version": version_bytes,
}


def _shuffled(seed: int) -> Callable[[int], bytes]:
    """Return the function that gives each position its place in the shuffle of *seed*: a keyed hash."""
    from hashlib import blake2b

    key = blake2b(b"%d" % seed).digest()
    return lambda position: blake2b(position.to_bytes(8, "big"), digest_size=8, key=key).digest()
