"""Shares of all keys, chosen by a hash: a key is on the same side in every run, on every machine, in any order.

The number of a key is the first 8 bytes, big-endian, of its BLAKE2b digest of 8 bytes. Divided by 2**64 it is a
fraction from 0 to 1, and a range LO:HI of fractions has the keys with LO <= fraction < HI. For groups of samples, the
number of their common value is taken in place of that of the key.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from math import gcd, lcm
from typing import NamedTuple

from tartools.errors import SampleError, UsageError
from tartools.samples.batch import Batch
from tartools.samples.digests import blake2b
from tartools.samples.sample import failure_of
from tartools.samples.values import INDEX_NAME, Column, field_list, make_getter, parse_column, path_advice
from tartools.tables.listed import texts_of_column

HASH_RANGE = 1 << 64
MAX_UNEVEN_PART = 5  # a part of whole groups may differ from its share by one of these parts of it without a warning
SHARE_TOLERANCE = 1000  # shares may differ from 1 in sum by one of these parts of it


def hash_key(key: bytes) -> int:
    """Return the hash of *key* as a number below 2**64: BLAKE2b of 8 bytes, big-endian.

    >>> hash_key(b"a") / HASH_RANGE
    0.25379361057584854
    """
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")


def make_key_hash(seed: int) -> Callable[[bytes], int]:
    """Return a function that returns the hash of a key as a number below 2**64, another one for each *seed*."""
    secret = blake2b(b"%d" % seed).digest()
    return lambda key: int.from_bytes(blake2b(key, digest_size=8, key=secret).digest(), "big")


def parse_value_column(text: str) -> Column:
    """Return the column that *text* describes, such as `cls` or `json:label.name`.

    Raises: UsageError if it describes none, or `__index__`, which depends on the order and is no value of a sample.
    """
    column = parse_column(text)
    if INDEX_NAME in column.choices:
        raise UsageError(f"{INDEX_NAME} is not a value of a sample: it depends on the order")
    return column


def values_of(
    batch: Batch, column: Column, numbers: Sequence[int] | None = None, *, verbatim: bool = False
) -> list[str]:
    """Return the value of *column* as text for each sample of *batch*, or for the samples with the indexes *numbers*.

    *numbers*: ascending; None: all. With *verbatim*, values are read from the samples only, case matters in names of
    fields, and a final newline stays. Raises: SampleError for one of these samples without a value, and for one of
    these (with *verbatim*: of all) with the field twice, or with a value that is damaged, not UTF-8, or not JSON as
    *column* needs; StorageError if it can't be read.
    """
    if verbatim:
        read = make_getter(column, verbatim=True)
        texts = [read(sample, 0) for sample in batch]
    else:
        try:
            texts = texts_of_column(batch, column)
        except SampleError:
            if numbers is None or len(numbers) == len(batch):
                raise
            read = make_getter(column)  # it may be about a sample whose value is not asked for
            texts = [read(batch[number], 0) for number in numbers]
    if numbers is not None and len(numbers) < len(texts):
        texts = [texts[number] for number in numbers]
    if None in texts:
        index = texts.index(None)
        sample = batch[index if numbers is None else numbers[index]]
        columns = batch.columns
        if columns is not None and columns.values(column.name) is not None:
            raise SampleError(f"sample {sample.key!r} has no value in {column.name}", url=columns.url)
        advice = path_advice(column.name, sample.fields)
        raise failure_of(
            sample,
            f" has no {column.name}{advice} (its fields: {field_list(sample.fields)}); "
            f"tarfilter --fields-present {column.choices[0]} leaves out such samples",
        )
    return texts  # type: ignore[return-value]


def bytes_of_value(value: str) -> bytes:
    """Return *value*, a text of `values_of`, as UTF-8, to hash and sort; lone surrogates are encoded, too."""
    return value.encode("utf-8", "surrogatepass")


def parse_ratio(text: str, maximum: int = 1) -> tuple[int, int]:
    """Return the number that *text* is, such as 0.9 or 1/3, as (numerator, denominator), not reduced.

    Raises: ValueError if it is no number from 0 to *maximum*, or has over 40 characters.

    >>> parse_ratio("0.25"), parse_ratio("1/3")
    ((25, 100), (1, 3))
    """
    over, slash, under = text.partition("/")
    integer_part, _, part = over.partition(".")
    digits, divisor = integer_part + part, under if slash else "1"
    if not (digits + divisor).isascii() or not digits.isdigit() or not divisor.isdigit() or len(text) > 40:
        raise ValueError(f"not a number from 0 to {maximum}: {text!r}")
    numerator, denominator = int(digits), int(divisor + "0" * len(part))  # exact, as no float is
    if numerator > denominator * maximum or not denominator:
        raise ValueError(f"not a number from 0 to {maximum}: {text!r}")
    return numerator, denominator


def parse_bound(text: str) -> int:
    """Return the lowest hash number (below or at 2**64) whose fraction of 2**64 is at least *text*, such as 0.9 or 1/3.

    Raises: ValueError if *text* is no number from 0 to 1.

    >>> parse_bound("0.5") == parse_bound("1/2") == HASH_RANGE // 2
    True
    """
    numerator, denominator = parse_ratio(text)
    return -(-numerator * HASH_RANGE // denominator)


def parse_span(text: str) -> range:
    """Return the range of hash numbers for the range of fractions *text*, `LO:HI`, LO included; 0 and 1 by default.

    Raises: ValueError if *text* is not two numbers from 0 to 1 with a colon, or no number is between them.

    >>> parse_span("0:0.5") == range(0, 1 << 63)
    True
    """
    low, colon, high = text.partition(":")
    if not colon:
        raise ValueError(f"not a range: {text!r}; write LO:HI, two numbers from 0 to 1, such as 0:0.9")
    numbers = range(parse_bound(low or "0"), parse_bound(high or "1"))
    if not numbers:
        raise ValueError(f"no key is in the range {text!r}: write the lower number first")
    return numbers


class Part(NamedTuple):
    """A part of a data set: its *name*, and its *weight*; it gets the weight's share of the sum of all weights."""

    name: str
    weight: int


def parse_parts(text: str) -> tuple[Part, ...]:
    """Return the parts in *text*, such as `train:0.9,val:0.1` or, in percent, `train:90,val:10`.

    Shares are in percent if one is over 1. Weights are whole numbers without a common divisor. The last part gets the
    remainder, because digits of shares such as 0.333 end somewhere. White space around a part is ignored. Raises:
    ValueError for another form, a share of 0, a name twice, shares whose sum differs from 1 (or 100) by over a
    thousandth of it, or that leave nothing for the last part.

    >>> parse_parts("train:0.9,val:0.1")
    (Part(name='train', weight=9), Part(name='val', weight=1))
    >>> [part.weight for part in parse_parts("a:0.333,b:0.333,c:0.333")]
    [333, 333, 334]
    >>> parse_parts("train:90,val:10") == parse_parts("train:0.9,val:0.1")
    True
    """
    names, ratios = [], []
    for word in text.split(","):
        name, colon, share = word.strip().rpartition(":")
        if not colon or not name:
            raise ValueError(
                f"not a part and its share: {word!r}; write NAME:SHARE,NAME:SHARE, as in train:0.9,val:0.1"
            )
        names.append(name)
        ratios.append(parse_ratio(share, maximum=100))
        if not ratios[-1][0]:
            raise ValueError(f"the part {name!r} has the share 0; leave it out")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two parts have the name {twice!r}")
    total = lcm(*(denominator for _, denominator in ratios))
    weights = [numerator * total // denominator for numerator, denominator in ratios]
    sums = 100 if max(weights) > total else 1  # in percent
    total *= sums
    last = total - sum(weights[:-1])
    if abs(sum(weights) - total) * SHARE_TOLERANCE > total or last <= 0:
        raise ValueError(f"the shares sum to {sum(weights) * sums / total:.6g}, not to {sums}")
    divisor = gcd(*weights[:-1], last)
    return tuple(Part(name, weight // divisor) for name, weight in zip(names, [*weights[:-1], last], strict=True))


def upper_bounds(weights: Sequence[int]) -> list[int]:
    """Return the upper bound of each part, if parts with these *weights* divide the range from 0 to 2**64 in order.

    Bounds are exclusive, rounded up to whole numbers; the last is 2**64.

    >>> [bound / HASH_RANGE for bound in upper_bounds([1, 1, 2])]
    [0.25, 0.5, 1.0]
    """
    total = sum(weights)
    return [-(-before * HASH_RANGE // total) for before in accumulate(weights)]


def apportion(count: int, parts: Sequence[Part]) -> list[int]:
    """Return how many of *count* samples each of *parts* gets: its share, rounded down or up.

    Parts with the largest remainders are rounded up, of equal remainders the first.

    >>> apportion(5, parse_parts("a:0.5,b:0.25,c:0.25")), apportion(1, parse_parts("a:0.1,b:0.9"))
    ([3, 1, 1], [0, 1])
    """
    total = sum(part.weight for part in parts)
    counts = [count * part.weight // total for part in parts]
    by_rest = sorted(range(len(parts)), key=lambda number: -(count * parts[number].weight % total))
    for number in by_rest[: count - sum(counts)]:
        counts[number] += 1
    return counts


def share_text(part: int, total: int) -> str:
    """Return *part* of *total* in percent, with at most one decimal place.

    >>> share_text(1, 8), share_text(1, 10), share_text(0, 0)
    ('12.5%', '10%', '0%')
    """
    return f"{100 * part / (total or 1):.1f}".removesuffix(".0") + "%"


def compare_shares(parts: Sequence[Part], counts: Mapping[str, int]) -> tuple[list[str], list[str]]:
    """Compare *counts*, the samples of each part by name, with the shares of *parts*; a part not in *counts* has 0.

    Return two lists of messages: the first has one for each part, the second only the messages of the parts with over a
    fifth more or fewer samples than their share.

    >>> compare_shares(parse_parts("a:0.75,b:0.25"), {"a": 9, "b": 1})[1]
    ['b: 10% of the samples, its share is 25%']
    """
    total, weights = sum(counts.values()), sum(part.weight for part in parts)
    messages, uneven = [], []
    for name, weight in parts:
        count = counts.get(name, 0)
        message = f"{name}: {share_text(count, total)} of the samples, its share is {share_text(weight, weights)}"
        messages.append(message)
        if abs(count * weights - total * weight) * MAX_UNEVEN_PART > total * weight:
            uneven.append(message)
    return messages, uneven
