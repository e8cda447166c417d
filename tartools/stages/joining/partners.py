"""The second data set of tarjoin, B: shards and tables of samples, or files of rows, and its values for keys of A.

The values to add are found by an index of B: see `stages.joining.partnerindex`.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tartools import storage, tar
from tartools.errors import SampleError, TarFormatError, UsageError, several
from tartools.samples.account import MAX_KEYS_REMEMBERED, Account, Phase
from tartools.samples.batch import Batch
from tartools.samples.columnfields import ChosenColumns, RowFormat
from tartools.samples.filekeys import Dots
from tartools.samples.sample import failure_of
from tartools.samples.unicodeforms import other_forms
from tartools.samples.values import comma_advice, field_list
from tartools.shards.reading import Reading, ShardStream, close_at_end, read_batches
from tartools.stages.joining.partnerindex import Pairs, PartnersInMemory, PartnersOnDisk, index_partners
from tartools.stages.samplefiles import Location, SampleFiles
from tartools.storage.streams import stream_file
from tartools.storage.url import Url
from tartools.tables.schema import is_table
from tartools.tar import Member, join_path, split_path
from tartools.tar.compression import split_packed, split_suffix
from tartools.tar.groups import Need

ROW_FORMATS = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}
MIXED_SECOND_HINT = "B is shards and tables of samples, or files of rows (TSV, CSV, JSON lines, Parquet), not both"


class RowOptions(NamedTuple):
    """Options for B, the second input of tarjoin, as a file of rows; None: the option is not given.

    *form*: "tsv", "csv", "jsonl" or "parquet", or "tar" if B is no file of rows; None: by the names of the files, and
    for others by their content.
    *key*: name of the column with keys; None: `__key__`, or else `key`.
    *dots*: "first" or "last", the dot that ends a key if keys are names of files; None: a single dot before the suffix
    of a type.
    *encoding*: encoding of text; None: UTF-8.
    """

    form: str | None = None
    key: str | None = None
    dots: Dots = None
    encoding: str | None = None


class PartnerFinder:
    """Finds samples of the second input by keys of the first, in the index *partners*, and counts missing partners.

    *second*: the second input; its `members` takes values that `find` returns, if the index was made of its `batches`.
    Join by `find`, pass the joined samples through `check_after`, then call `report_unmatched`.
    """

    def __init__(self, partners: PartnersInMemory | PartnersOnDisk, second: SecondRows | SecondShards) -> None:
        self.second = second
        self._partners = partners
        self._key_count = 0
        self._unmatched_count = 0
        self._example = b""  # first key of A
        self._looked_up = 0  # keys of A that were looked up in other Unicode forms
        self._other_form: tuple[bytes, bytes] | None = None  # the first such key, and that in B

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """Return the value in the second input, or None, for each of *keys*, the keys of the next samples of the first.

        Keys and keys without a partner are counted for `report_unmatched`: ask for each sample once, in order.
        """
        values = self._partners.find(keys)
        if not self._key_count and keys:
            self._example = keys[0]
        self._key_count += len(keys)
        lost = values.count(None)
        if lost and self._other_form is None and self._looked_up < MAX_KEYS_REMEMBERED:
            self._find_other_form([key for key, value in zip(keys, values, strict=True) if value is None])
        self._unmatched_count += lost
        return values

    def _find_other_form(self, lost: Iterable[bytes]) -> None:
        """Note the first of *lost*, keys that the second input lacks, that it has in another Unicode form.

        Counts the keys that it looks up, which are not ASCII, in `_looked_up`.
        """
        for key in lost:
            if not key.isascii():
                self._looked_up += 1
                for form in other_forms(key):
                    if self._partners.has(form):
                        self._other_form = key, form
                        return

    def check_after(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches*, the joined samples; after the last, check the second input, B, before the commit.

        For rows nothing is checked. Raises, for shards: SampleError if a chosen field was in no joined sample of B, if
        there was any; StorageError if a file of B has changed; the errors of *batches*.
        """
        with close_at_end(batches):
            yield from batches
        self.second.check()

    def report_unmatched(self, account: Account, left_out: bool) -> None:
        """Warn in *account*, after the join, of samples of the first (A) and second input (B) without a partner.

        Samples of A are mentioned only if they were *left_out* of the output. Warns, too, if B has a key of A in
        another Unicode form. If A has samples, and none had a partner, that is an omission if they were *left_out*;
        else a warning, but none if B is empty.
        """
        lost, unmatched = self._unmatched_count if left_out else 0, self._partners.unused_count
        parts = []
        if lost:
            parts.append(f"{several(lost, 'sample')} of A had no partner in B (left out)")
        if unmatched:
            parts.append(f"{several(unmatched, 'sample')} of B had {'none' if lost else 'no partner'} in A")
        if parts:
            (account.warn_empty if lost and lost == self._key_count else account.warn)(", ".join(parts))
        if self._other_form is not None:
            ours, theirs = (ascii(key.decode()) for key in self._other_form)
            account.warn(
                f"the key {ours} of A is {theirs} in B: they look the same, but one is in another Unicode form (macOS "
                "has NFD, others NFC), so they don't match"
            )
        if (
            self._key_count
            and self._unmatched_count == self._key_count
            and (left_out or self._partners.example is not None)
        ):
            (account.omit if left_out else account.warn)(self._no_match_message())

    def _no_match_message(self) -> str:
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

    `rows`: options for B as files of rows. `chosen`: its columns or fields to add. `account`: gets warnings and
    omissions, no other counts.
    Holds: *memory* bytes; a larger index, and samples that are not in plain local files, are in unnamed files.
    Raises: SampleError if a key is in B twice; UsageError if *urls* has both shards and rows, or shards with options
    for rows; the errors of reading B; StorageError if a temporary file can't be written.
    """
    own = Account(account.say, account.quiet)
    account.progress.phase = Phase("reading B", account=own)
    own.progress.expected = storage.check_inputs(urls)
    source = make_second(urls, rows, chosen, own, reading)
    partners = index_partners(source.batches(), memory, reading.tmpdir)
    own.report_totals()
    account.omissions += own.omissions
    account.progress.phase = Phase("writing")
    return PartnerFinder(partners, source)


def check_no_rows(urls: Sequence[str]) -> None:
    """Raise UsageError if one of *urls*, tarjoin's first input, is named as a file of rows: see `row_format_of`."""
    for url in urls:
        if form := row_format_of(url):
            raise UsageError(f"A is shards or tables of samples, and this is {form} by its name: tarjoin A B", url=url)


def row_format_of(url: str) -> str | None:
    """Return the format of rows that the name *url* shows: tsv, csv or jsonl; None for any other name, or a command.

    Case and a suffix of a compression, as in `rows.csv.gz`, are ignored; `.ndjson` is jsonl, too.
    """
    name = Url(url).name.lower() if Url(url).scheme != "pipe" else ""
    return ROW_FORMATS.get(split_packed(name)[0].rpartition(".")[2])


def make_second(
    urls: Sequence[str], rows: RowOptions, chosen: ChosenColumns, account: Account, reading: Reading
) -> SecondRows | SecondShards:
    """Return a reader of the second input, *urls*: `SecondShards` of shards and tables of samples, or `SecondRows`.

    *rows*: options for files of rows. *chosen*: columns or fields to add. *account*: counts bytes and samples read.
    *reading*: how shards are read. A Parquet file has rows if `rows.key` is given or `rows.form` is "parquet"; without
    both `lists_samples` decides.
    Raises: UsageError if *urls* has both, or for shards with a key column, dots or an encoding in *rows*;
    TarFormatError or StorageError if a file whose format has to be found can't be read.
    """
    forms = [rows.form or row_format_of(url) or ("parquet" if is_table(url) else "tar") for url in urls]
    for number, url in enumerate(urls if rows.key is None and not rows.form else ()):
        if forms[number] == "parquet" and lists_samples(url, chosen):
            forms[number] = "tar"
    if all(form == "tar" for form in forms):
        for option, value in (("--key-column", rows.key), ("--dots", rows.dots), ("--encoding", rows.encoding)):
            if value is not None:
                raise UsageError(f"{option} is for rows, but these are samples, which have their own keys", url=urls[0])
        return SecondShards(urls, chosen._replace(skip_underscored=False), account, reading)
    if "tar" in forms:
        raise UsageError(MIXED_SECOND_HINT, url=urls[forms.index("tar")])
    return SecondRows(urls, forms, rows, chosen, account)


def lists_samples(url: str, chosen: ChosenColumns) -> bool:
    """True if the Parquet file *url* is a table of samples, by its columns, rather than rows of values.

    False if it lacks columns of a table, and if it lists the fields of its samples and a word of *chosen* names one of
    its columns, but no field. Raises: TarFormatError if it is damaged or no Parquet file; StorageError.
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
    """Reads the second input (B) as files of rows.

    *urls*, *forms*: the files, and the format of each: "tsv", "csv", "jsonl" or "parquet". *rows*: where their keys
    are. *chosen*: the columns that become fields. *account*: counts files read by `batches`, and bytes read of text.
    `files`: (URL, format) of each. `format`: a `RowFormat`, how rows become fields.

    Read all of `batches` first, then call `members` for each value to add.
    """

    def __init__(
        self, urls: Sequence[str], forms: Sequence[str], rows: RowOptions, chosen: ChosenColumns, account: Account
    ) -> None:
        self.files = list(zip(urls, forms, strict=True))
        self._account = account
        self._encoding = rows.encoding
        self.format = RowFormat(rows.key, chosen, len(urls) == 1, rows.dots)

    def batches(self) -> Pairs:
        """Yield (keys, values) of adjacent rows of all files.

        Values are for `members`: payloads of the only field, if `single` returns its name, else packed fields. Raises:
        the errors of reading rows, such as SampleError for a file without the column of keys.
        """
        for url, form in self.files:
            yield from self.read(url, form)
            self._account.shards_done += 1

    def read(self, url: str, form: str) -> Pairs:
        """Yield (keys, values) of adjacent rows of *url* alone: payloads of the `single` field, else packed fields.

        *form*: its format: tsv, csv, jsonl or parquet. Raises: SampleError for a column of keys or of a chosen word
        that is missing, and for a bad row; TarFormatError for a damaged file; StorageError.
        """
        if form == "parquet":
            from tartools.formats import parquetread
            from tartools.tables import source

            with source.open_parquet(url, buffer=parquetread.column_buffer_bytes(url)) as table:
                yield from parquetread.field_rows(table, self.format)
        else:
            from tartools.formats import textrows
            from tartools.formats.encodings import read_as_utf8

            with stream_file(ShardStream(url, self._account), url) as file:
                text = read_as_utf8(file, self._encoding, url)
                yield from textrows.read_packed_rows(text, form, url, self.format)
            self._account.check()

    def single(self) -> bytes | None:
        """Return the name of the only field to add, if values of `batches` are its payloads; else None.

        It is set once the first values have been read.
        """
        return self.format.single

    def members(self, key: bytes, packed: bytes) -> list[Member]:
        """Return the members to add to the sample *key*: *packed* is the value of its row in `batches`."""
        single = self.format.single
        fields = marshal.loads(packed) if single is None else [(single, packed)]  # noqa: S302  # from our own process
        return [tar.new_member(join_path(key, field), payload) for field, payload in fields]

    def check(self) -> None:
        """Do nothing, for the interface of `SecondShards`: rows are checked when they are read."""


class SecondShards:
    """Reads the second input (B) as shards and tables of samples, *urls*; *chosen*: the fields to add.

    Read all of `batches` first, call `members` for each value to add, and `check` after the join. Samples that are not
    in plain local files are copied to one unnamed file in `reading.tmpdir`. *account*: counts samples and bytes read.
    *reading*: how shards are read.
    """

    def __init__(self, urls: Sequence[str], chosen: ChosenColumns, account: Account, reading: Reading) -> None:
        self.urls = urls
        self._account = account
        self._reading = reading.with_need(Need.FIELDS)
        self.chosen = chosen
        self._keys_alone = chosen.words is not None and not chosen.words
        self._files = SampleFiles(reading.tmpdir)
        self._fields: dict[tuple[str, ...], list[tuple[int, bytes]]] = {}  # of samples with these: which, for which

    def batches(self) -> Pairs:
        """Yield (keys, values) of adjacent samples: a value is a packed `Location`, for `members`.

        If `chosen.words` is empty (not None), so that keys alone are compared, each value is b"", not for `members`.
        Raises: the errors of reading B; StorageError if the scratch file can't be written.
        """
        account = self._account
        with close_at_end(sample_batches := read_batches(self.urls, account, self._reading)):
            for batch in self._explain_errors(sample_batches):
                if self._keys_alone:
                    yield batch.keys, [b""] * len(batch)
                else:
                    yield batch.keys, self._places(batch)
        account.check()

    def _explain_errors(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches* of the second input; the message of a TarFormatError says how to read it as rows.

        Only of an error before the first batch, in a file whose name has no suffix of a shard.
        """
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
        """Return the packed `Location` of each sample of *batch*: in a plain file, or copied to a temporary one.

        Raises: StorageError if a file has changed, or the temporary one can't be written.
        """
        shard_and_bounds = self._files.location_of(batch)
        if shard_and_bounds is None:
            return [self._files.store(sample).pack() for sample in batch]
        shard, bounds = shard_and_bounds
        return [Location(start, end, shard).pack() for start, end in pairwise(bounds)]

    def single(self) -> bytes | None:
        """Return None: values are locations of samples, not payloads of one field."""
        return None

    def members(self, key: bytes, location: bytes) -> list[Member]:
        """Return the chosen members of the sample at *location*, renamed for the sample *key* that gets them.

        *location*: the packed `Location` that `batches` yielded for this key. A chosen field that it lacks is skipped.
        They are in the order of the archive. Raises: SampleError if it has a field twice, or two of the chosen ones get
        one name; StorageError if a file has changed.
        """
        sample = self._files.sample(key, Location.unpack(location))
        members, names = sample.members, sample.fields
        if names not in self._fields:
            if len(set(names)) < len(names):
                raise failure_of(sample, f" has a field twice; its fields are: {field_list(names)}")
            try:
                chosen = self.chosen.choose({name: number for number, name in enumerate(names)})
            except SampleError as error:
                raise failure_of(sample, f": {error.message}") from None
            self._fields[names] = [(at, name.encode("utf-8", "surrogateescape")) for at, name in sorted(chosen)]
        return [tar.rename_member(members[at], join_path(key, field)) for at, field in self._fields[names]]

    def check(self) -> None:
        """Raise StorageError if a file has changed; SampleError if one of the chosen fields was in no joined sample.

        One of the alternatives of a word (a;b) is enough. Call it after the join; fields are not checked if no sample
        was joined.
        """
        self._files.check()
        fields_seen = list(dict.fromkeys(name for names in self._fields for name in names))
        if fields_seen and (lost := " ".join(self.chosen.missing_words(fields_seen))):
            raise SampleError(
                f"no sample of B that was joined had {lost}{comma_advice(lost)}; the fields: {field_list(fields_seen)}"
            )
