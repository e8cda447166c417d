"""The second data set of tarjoin, B: an index by key of shards and tables of samples, or of files of rows.

The values to add for keys of the first data set, A, are in memory if they fit, else on disk.

 - `PartnersInMemory`: all of B in a dictionary.
 - `PartnersOnDisk`: B is sorted to a temporary file; a block of it is read for each key of A, in order if A is
   sorted.

A has any size and order, and is read once.
"""

from __future__ import annotations

import marshal
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain, count, islice, pairwise
from typing import Any, NamedTuple

from tartools import storage, tar
from tartools.errors import SampleError, TarFormatError, UsageError, several
from tartools.samples.account import MAX_KEYS_REMEMBERED, Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.columnfields import ChosenColumns, RowFormat
from tartools.samples.filekeys import Dots
from tartools.samples.sample import failure_of
from tartools.samples.unicodeforms import other_forms
from tartools.samples.values import blanks, field_list
from tartools.shards.reading import Reading, ShardStream, closing_upstream, read_batches
from tartools.stages.externalsort import external_sort, in_parts, unpack_block
from tartools.stages.samplefiles import Location, SampleFiles
from tartools.storage.scratch import scratch_file
from tartools.storage.streams import stream_file
from tartools.storage.url import Url
from tartools.tables.schema import is_table
from tartools.tar import Member, join_path, read_range, split_path
from tartools.tar.compression import split_packed, split_suffix
from tartools.tar.groups import Need

# keys of adjacent samples, and what B has for them
Pairs = Generator[tuple[Sequence[bytes], Sequence[Any]], None, None]

SAMPLE_NUMBER_BYTES = 8  # bytes of the number of a sample of B in a record
BLOCK_PLACE_BYTES = 120  # bytes of memory for the place of a block
MIN_BLOCK_RECORDS, MAX_BLOCK_RECORDS = 8, 1000  # records in a block
MAX_BLOCK_BYTES = 1 << 16  # bytes; no block is larger, unless one record is
SAMPLE_OVERHEAD_BYTES = (
    250  # bytes of memory for a sample in a dictionary beyond its own: three objects, slots in lists
)


def partners_of(batches: Pairs, memory: int, tmpdir: str | None) -> PartnersInMemory | PartnersOnDisk:
    """Read the second input (B); return an index of it: in memory if it fits into *memory* bytes, else in *tmpdir*.

    `batches`: (keys, values) of adjacent samples. Raises: SampleError if a key is there twice; the errors of *batches*.
    """
    numbers: dict[bytes, int] = {}
    stored_values: list[bytes] = []
    size = 0
    for keys, values in batches:
        before = len(stored_values)
        numbers.update(zip(keys, count(before), strict=False))
        stored_values += values
        if len(numbers) != len(stored_values):
            raise _first_repeated_key_error(list(numbers)[:before], keys)
        size += sum(map(len, keys)) + sum(map(len, values)) + SAMPLE_OVERHEAD_BYTES * len(keys)
        if size > memory:
            break
    else:
        return PartnersInMemory(numbers, stored_values)
    pairs = list(zip(numbers, stored_values, strict=True))
    del numbers, stored_values
    remaining = ((key, value) for keys, values in batches for key, value in zip(keys, values, strict=True))
    return PartnersOnDisk(chain(_pop_all(pairs), remaining), memory, tmpdir)


class PartnersInMemory:
    """An index in memory of B, the second input of tarjoin: *numbers* by key, of *values*. *example*: a key."""

    def __init__(self, numbers: dict[bytes, int], values: Sequence[bytes]) -> None:
        self.example = next(iter(numbers), None)
        self._numbers = numbers
        self._values = values
        self._marks = bytearray(len(values))

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return for each of *keys* its value in the second input, or None; mark the keys as looked up for `left`."""
        numbers = list(map(self._numbers.get, keys))
        marks, values = self._marks, self._values
        for number in numbers:
            if number is not None:
                marks[number] = 1
        return [None if number is None else values[number] for number in numbers]

    def has(self, key: bytes) -> bool:
        """True if the second input (B) has a sample with *key*. Unlike `find`, does not mark it as looked up."""
        return key in self._numbers

    @property
    def left(self) -> int:
        """Number of samples of the second input (B) whose keys `find` has not looked up so far."""
        return self._marks.count(0)


def _pop_all(pairs: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """Yield *pairs* in order, and remove each from the list, so that its memory is freed."""
    pairs.reverse()
    while pairs:
        yield pairs.pop()


def _first_repeated_key_error(before: list[bytes], keys: Sequence[bytes]) -> SampleError:
    """Return the error of the first of *keys* that is among *before*, the keys of earlier samples, or repeated."""
    numbers_by_key = {key: number for number, key in enumerate(before)}
    for number, key in enumerate(keys, len(before)):
        if numbers_by_key.setdefault(key, number) != number:
            return repeated_key_error(key, numbers_by_key[key], number)
    raise AssertionError("all keys are distinct")


class PartnersOnDisk:
    """An index on disk of B, the second input of tarjoin: *pairs* (key, value), sorted, in blocks of a file."""

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]], memory: int, tmpdir: str | None) -> None:
        self._count = 0
        self._memory = memory
        self._file = scratch_file(tmpdir)
        self._firsts: list[bytes] = []
        self._places: list[int] = [0]
        self._cached_block: tuple[int, list[bytes]] = -1, []  # a block
        self._write(external_sort(self._records(pairs), memory // 2, tmpdir))
        self._marks = bytearray((self._count + 7) // 8)  # which were asked for; a bit for each
        self.example = self._firsts[0] if self._firsts else None

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return for each of *keys* its value in the second input, or None; mark the keys as looked up for `left`."""
        return [self._value(key) for key in keys]

    def has(self, key: bytes) -> bool:
        """True if the second input (B) has a sample with *key*. Unlike `find`, does not mark it as looked up."""
        return self._record(key) is not None

    @property
    def left(self) -> int:
        """Number of samples of the second input (B) whose keys `find` has not looked up so far."""
        return self._count - int.from_bytes(self._marks, "little").bit_count()

    def _records(self, pairs: Iterable[tuple[bytes, bytes]]) -> Iterator[bytes]:
        for number, (key, value) in enumerate(pairs):
            self._count += 1
            yield key + b"\0" + number.to_bytes(SAMPLE_NUMBER_BYTES, "big") + value

    def _write(self, records: Iterator[bytes]) -> None:
        """Write sorted *records* in blocks, so few that the places of the blocks fit into a quarter of the memory."""
        first = list(islice(records, 1))  # now all are counted
        max_records = min(
            max(MIN_BLOCK_RECORDS, self._count * BLOCK_PLACE_BYTES * 4 // self._memory), MAX_BLOCK_RECORDS
        )
        last: tuple[bytes, int] | None = None
        for block in in_parts(chain(first, records), max_records, MAX_BLOCK_BYTES):
            for record in block:
                key = record[: record.index(b"\0")]
                number = int.from_bytes(record[len(key) + 1 : len(key) + 1 + SAMPLE_NUMBER_BYTES], "big")
                if last is not None and key == last[0]:
                    raise repeated_key_error(*last, number)
                last = key, number
            self._firsts.append(block[0][: block[0].index(b"\0")])
            data = marshal.dumps(block)
            self._file.write(data)
            self._places.append(self._places[-1] + len(data))

    def _value(self, key: bytes) -> bytes | None:
        """Return the value of *key* in the second input, or None; mark the key as looked up for `left`."""
        record = self._record(key)
        if record is None:
            return None
        begin = len(key) + 1
        number = int.from_bytes(record[begin : begin + SAMPLE_NUMBER_BYTES], "big")
        self._marks[number >> 3] |= 1 << (number & 7)
        return record[begin + SAMPLE_NUMBER_BYTES :]

    def _record(self, key: bytes) -> bytes | None:
        at = bisect_right(self._firsts, key) - 1
        if at < 0:
            return None
        begin = key + b"\0"
        block = self._block(at)
        number = bisect_left(block, begin)
        if number == len(block) or not block[number].startswith(begin):
            return None
        return block[number]

    def _block(self, number: int) -> list[bytes]:
        """Return the records of block *number*; the last block that was read is cached."""
        if self._cached_block[0] != number:
            data = read_range(self._file, self._places[number], self._places[number + 1])
            self._cached_block = number, unpack_block(data)
        return self._cached_block[1]


def repeated_key_error(key: bytes, first: int, second: int) -> SampleError:
    """Return the error that samples number *first* and *second* (from 0) of the second input both have *key*."""
    name = key.decode("utf-8", "surrogateescape")
    return SampleError(
        f"B has the key {name!r} twice, so what to add is not clear: its samples number {first + 1:,} and "
        f"{second + 1:,} (tarsort -u first keeps one of each key of shards; make a table without them)"
    )


# ---- reading B ----


ROW_FORMATS = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}
MIXED_SECOND_HINT = "B is shards and tables of samples, or files of rows (TSV, CSV, JSON lines, Parquet), not both"


class RowOptions(NamedTuple):
    """Options for B, the second input of tarjoin, as a file of rows; None: the default.

    *form*: the argument of --format. *key*: name of the column with keys. *encoding*: encoding of text.
    *dots*: "first" or "last", the dot that ends a key if keys are names of files.
    """

    form: str | None = None
    key: str | None = None
    dots: Dots = None
    encoding: str | None = None


class PartnerFinder:
    """Finds samples of the second input by keys of the first, in the index *partners*; *second* makes their members."""

    def __init__(self, partners: PartnersInMemory | PartnersOnDisk, second: SecondRows | SecondShards) -> None:
        self.second = second
        self._partners = partners
        self._asked = 0
        self._lost = 0
        self._example = b""  # first key of A
        self._looked_up = 0  # keys of A that were looked up in other Unicode forms
        self._other_form: tuple[bytes, bytes] | None = None  # the first such key, and that in B

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return for each of *keys*, those of the next samples of the first input, its value in the second, or None."""
        values = self._partners.find(keys)
        if not self._asked and keys:
            self._example = keys[0]
        self._asked += len(keys)
        lost = values.count(None)
        if lost and self._other_form is None and self._looked_up < MAX_KEYS_REMEMBERED:
            self._find_other_form([key for key, value in zip(keys, values, strict=True) if value is None])
        self._lost += lost
        return values

    def _find_other_form(self, lost: Iterable[bytes]) -> None:
        """Note the first of *lost*, keys that the second input lacks, that it has in another Unicode form."""
        for key in lost:
            if not key.isascii():
                self._looked_up += 1
                for form in other_forms(key):
                    if self._partners.has(form):
                        self._other_form = key, form
                        return

    def checked(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches*, joined samples; then check the second input (B), so that a failure comes before the commit.

        Raises: SampleError if B lacks a chosen field in all joined samples; StorageError if a file of B has changed.
        """
        with closing_upstream(batches):
            yield from batches
        self.second.check()

    def tell(self, account: Account, left_out: bool) -> None:
        """Warn in *account*, after the join, of samples of the first (A) and second input (B) without a partner.

        Those of A only if they were *left_out* of the output. Warns, too, if B has a key of A in another Unicode form.
        If no sample of A had a partner, that is an omission if they were *left_out*, else a warning.
        """
        lost, unmatched = self._lost if left_out else 0, self._partners.left
        parts = []
        if lost:
            parts.append(f"{several(lost, 'sample')} of A had no partner in B (left out)")
        if unmatched:
            parts.append(f"{several(unmatched, 'sample')} of B had {'none' if lost else 'no partner'} in A")
        if parts:
            (account.warn_empty if lost and lost == self._asked else account.warn)(", ".join(parts))
        if self._other_form is not None:
            ours, theirs = (ascii(key.decode()) for key in self._other_form)
            account.warn(
                f"the key {ours} of A is {theirs} in B: they look the same, but one is in another Unicode form (macOS "
                "has NFD, others NFC), so they don't match"
            )
        if self._asked and self._lost == self._asked and (left_out or self._partners.example is not None):
            (account.omit if left_out else account.warn)(self._nothing_common())

    def _nothing_common(self) -> str:
        """Return the message for the case that no key of the first input (A) is in the second (B)."""
        example = self._partners.example
        if example is None:
            return "no key of A is in B, which has no samples"
        first, second = (key.decode("utf-8", "surrogateescape") for key in (self._example, example))
        advice = (
            " (--dots first or last says where a key ends that is the name of a file)" if split_path(example)[1] else ""
        )
        return f"no key of A is in B; the first is {first!r} in A, and {second!r} in B{advice}"


def read_second(
    urls: Sequence[str],
    rows: RowOptions,
    chosen: ChosenColumns,
    account: Account,
    reading: Reading,
    memory: int,
) -> PartnerFinder:
    """Read the second input (B) of tarjoin from *urls*; return the finder of its samples by key.

    `rows`: options for B as files of rows. `chosen`: its columns or fields to add. `account`: gets warnings, no counts.
    Holds: *memory* bytes. Raises: SampleError if a key is in B twice; the errors of reading B.
    """
    own = Account(account.say, account.quiet)
    account.progress.phase = Phase("reading B", account=own)
    own.progress.expected = storage.check_inputs(urls)
    source = source_of(urls, rows, chosen, own, reading)
    partners = partners_of(source.batches(), memory, reading.tmpdir)
    own.settle()
    account.omissions += own.omissions
    account.progress.phase = Phase("writing")
    return PartnerFinder(partners, source)


def check_no_rows(urls: Sequence[str]) -> None:
    """Raise UsageError if one of *urls*, tarjoin's first input, is named as a file of rows (.tsv, .csv, .jsonl)."""
    for url in urls:
        if form := form_by_name(url):
            raise UsageError(f"A is shards or tables of samples, and this is {form} by its name: tarjoin A B", url=url)


def form_by_name(url: str) -> str | None:
    """Return the format of rows that the name *url* shows: tsv, csv or jsonl; None for any other name, or a command."""
    name = Url(url).name.lower() if Url(url).scheme != "pipe" else ""
    return ROW_FORMATS.get(split_packed(name)[0].rpartition(".")[2])


def source_of(
    urls: Sequence[str], rows: RowOptions, chosen: ChosenColumns, account: Account, reading: Reading
) -> SecondRows | SecondShards:
    """Return a reader of the second input, *urls*: `SecondShards` of shards and tables of samples, or `SecondRows`.

    *rows*: for files of rows. *chosen*: columns or fields to add. Raises: UsageError for both, or *rows* for shards.
    """
    forms = [rows.form or form_by_name(url) or ("parquet" if is_table(url) else "tar") for url in urls]
    for number, url in enumerate(urls if rows.key is None and not rows.form else ()):
        if forms[number] == "parquet" and lists_samples(url, chosen):
            forms[number] = "tar"
    if all(form == "tar" for form in forms):
        for option, value in (("--key-column", rows.key), ("--dots", rows.dots), ("--encoding", rows.encoding)):
            if value is not None:
                raise UsageError(f"{option} is for rows, but these are samples, which have their own keys", url=urls[0])
        return SecondShards(urls, chosen._replace(hidden=False), account, reading)
    if "tar" in forms:
        raise UsageError(MIXED_SECOND_HINT, url=urls[forms.index("tar")])
    return SecondRows(urls, forms, rows, chosen, account)


def lists_samples(url: str, chosen: ChosenColumns) -> bool:
    """True if the Parquet file *url* is a table of samples whose fields have what *chosen* asks for, rather than rows.

    False if it lacks columns of a table, or if a chosen word is one of its columns and no field.
    """
    from tartools.tables import source

    with source.open_parquet(url) as table:
        if any(name not in table.names for name in source.REQUIRED_COLUMNS):
            return False
        columns = set(map(chosen.fold, table.names))
        fields = set(map(chosen.fold, table.fields or ()))
        words = [set(map(chosen.fold, choices)) for choices, _ in chosen.words or ()]
        return table.fields is None or not any(word & columns and not word & fields for word in words)


class SecondRows:
    """Reads the second input as files of rows, each with its form ("tsv" ...); *account* counts the bytes read."""

    def __init__(
        self, urls: Sequence[str], forms: Sequence[str], rows: RowOptions, chosen: ChosenColumns, account: Account
    ) -> None:
        self.files = list(zip(urls, forms, strict=True))
        self._account = account
        self._encoding = rows.encoding
        self.format = RowFormat(rows.key, chosen, len(urls) == 1, rows.dots)

    def batches(self) -> Pairs:
        """Yield (keys, values) of adjacent rows: values are payloads of the `single` field, else packed fields."""
        for url, form in self.files:
            yield from self.read(url, form)
            self._account.shards_done += 1

    def read(self, url: str, form: str) -> Pairs:
        """Yield what `batches` does, of *url* alone, which has the format *form*: tsv, csv, jsonl or parquet."""
        if form == "parquet":
            from tartools.formats import parquetread
            from tartools.tables import source

            with source.open_parquet(url, buffer=parquetread.buffer_of(url)) as table:
                yield from parquetread.field_rows(table, self.format)
        else:
            from tartools.formats import textrows
            from tartools.formats.encodings import recoded

            with stream_file(ShardStream(url, self._account), url) as file:
                text = recoded(file, self._encoding, url)
                yield from textrows.packed_rows(text, form, url, self.format)
            self._account.check()

    def single(self) -> bytes | None:
        """Return the name of the only field to add, if values of `batches` are its payloads; else None."""
        return self.format.single

    def members(self, key: bytes, packed: bytes) -> list[Member]:
        """Return the members to add to the sample *key*: *packed* is the value of its row in `batches`."""
        single = self.format.single
        fields = marshal.loads(packed) if single is None else [(single, packed)]  # noqa: S302  # from our own process
        return [tar.new_member(join_path(key, field), payload) for field, payload in fields]

    def check(self) -> None:
        """Do nothing: all rows have been read to their end."""


class SecondShards:
    """Reads the second input as shards and tables; copies samples that are not in plain local files to one file."""

    def __init__(self, urls: Sequence[str], chosen: ChosenColumns, account: Account, reading: Reading) -> None:
        self.urls = urls
        self._account = account
        self._reading = reading.only(Need.FIELDS)
        self.chosen = chosen
        self._keys_alone = chosen.words is not None and not chosen.words
        self._files = SampleFiles(reading.tmpdir)
        self._fields: dict[tuple[str, ...], list[tuple[int, bytes]]] = {}  # of samples with these: which, for which

    def batches(self) -> Pairs:
        """Yield (keys, values) of adjacent samples: a value is a packed `Location`, b"" if no field is to be added."""
        account = self._account
        with closing_upstream(sample_batches := read_batches(self.urls, account, self._reading)):
            for batch in self._explain_errors(sample_batches):
                if self._keys_alone:
                    yield batch.keys, [b""] * len(batch)
                else:
                    yield batch.keys, self._places(batch)
        account.check()

    def _explain_errors(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches* of the second input; if that seems to be no shard, its error says how to read it as rows."""
        read = False
        try:
            for batch in batches:
                read = True
                yield batch
        except TarFormatError as error:
            if read or split_suffix(error.url)[1]:
                raise
            help = f"{error.message} (--format tsv, csv or jsonl reads B as rows)"
            raise TarFormatError(help, url=error.url, offset=error.offset) from error

    def _places(self, batch: Batch) -> list[bytes]:
        """Return the packed `Location` of each sample of *batch*: in a plain file, or copied to a temporary one."""
        shard_and_bounds = self._files.location_of(batch)
        if shard_and_bounds is None:
            return [self._files.store(sample).pack() for sample in batch]
        shard, bounds = shard_and_bounds
        return [Location(start, end, shard).pack() for start, end in pairwise(bounds)]

    def single(self) -> bytes | None:
        """Return None: the values of `batches` are locations, not payloads."""
        return None

    def members(self, key: bytes, location: bytes) -> list[Member]:
        """Return the chosen members of the sample at *location*, renamed for the sample *key* that gets them.

        *location*: the packed `Location` that `batches` yielded for this key. A chosen field that it lacks is skipped.
        Raises: SampleError if it has a field twice, or two of the chosen ones get one name.
        """
        sample = self._files.sample(key, Location.unpack(location))
        members, names = sample.members, sample.fields
        if names not in self._fields:
            if len(set(names)) < len(names):
                raise failure_of(sample, f" has a field twice; its fields are: {field_list(names)}")
            try:
                chosen = self.chosen.of({name: number for number, name in enumerate(names)})
            except SampleError as error:
                raise failure_of(sample, f": {error.message}") from None
            self._fields[names] = [(at, name.encode("utf-8", "surrogateescape")) for at, name in sorted(chosen)]
        return [tar.renamed(members[at], join_path(key, field)) for at, field in self._fields[names]]

    def check(self) -> None:
        """Raise SampleError if no joined sample had a field that was asked for; StorageError if a file has changed."""
        self._files.check()
        fields_seen = list(dict.fromkeys(name for names in self._fields for name in names))
        if fields_seen and (lost := " ".join(self.chosen.lost(fields_seen))):
            raise SampleError(
                f"no sample of B that was joined had {lost}{blanks(lost)}; the fields: {field_list(fields_seen)}"
            )
