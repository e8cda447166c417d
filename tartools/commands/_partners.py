"""The second data set of tarjoin, B: shards or a table of rows, to keys and what they add."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tartools import storage, tar
from tartools.errors import UsageError, several
from tartools.samples.account import Account, Phase
from tartools.samples.columnfields import ChosenColumns, PackedFields, RowFormat
from tartools.samples.sample import Batch, join_path
from tartools.shards.reading import Reading, closing_upstream
from tartools.shards.stream import ShardStream
from tartools.stages.joining.partners import Partners, partners_of
from tartools.storage.streams import stream_file
from tartools.storage.url import Url
from tartools.tar import Member
from tartools.tar.compression import is_table, split_packed

if TYPE_CHECKING:
    from tartools.commands._partnershards import SecondShards
    from tartools.tables.source import ParquetSource

FORMS = {"tsv": "tsv", "csv": "csv", "jsonl": "jsonl", "ndjson": "jsonl"}
MIXED = "B is shards and tables of samples, or files of rows (TSV, CSV, JSON lines, Parquet), not both"
Pairs = Generator[tuple[Sequence[bytes], Sequence[Any]], None, None]  # keys, and what B has for them


class SecondFields(NamedTuple):
    """What B adds: its columns or fields as *words* say, see `ChosenColumns`, without those *dropped*; the *key*."""

    words: Sequence[tuple[tuple[str, ...], str | None]] | None
    dropped: Sequence[str]
    fold: Callable[[str], str]
    key: str | None


class Second(NamedTuple):
    """B: its *urls*, its format, if it was given, and what is *wanted* of it."""

    urls: Sequence[str]
    form: str | None
    wanted: SecondFields


class FoundPartners:
    """The partners that *second*, B, has; what was found is counted."""

    def __init__(self, partners: Partners, second: SecondRows | SecondShards) -> None:
        self.second = second
        self._partners = partners
        self._asked = 0
        self._lost = 0
        self._example = b""  # first key of A

    def find(self, keys: Sequence[bytes]) -> Sequence[Any]:
        """As `Partners.find`."""
        found = self._partners.find(keys)
        if not self._asked and keys:
            self._example = keys[0]
        self._asked += len(keys)
        self._lost += found.count(None)
        return found

    def checked(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield *batches*; then check B, before an output is committed."""
        with closing_upstream(batches):
            yield from batches
        self.second.check()

    def tell(self, account: Account, left_out: bool) -> None:
        """Say how many samples of B had no partner, and of A, if those are *left_out*."""
        lost, left = self._lost if left_out else 0, self._partners.left
        parts = []
        if lost:
            parts.append(f"{several(lost, 'sample')} of A had no partner in B (left out)")
        if left:
            parts.append(f"{several(left, 'sample')} of B had {'none' if lost else 'no partner'} in A")
        if parts:
            (account.warn_empty if lost and lost == self._asked else account.warn)(", ".join(parts))
        if self._asked and self._lost == self._asked and self._partners.example is not None:
            first, second = (key.decode("utf-8", "surrogateescape") for key in (self._example, self._partners.example))
            account.warn(f"no key of A is in B; the first is {first!r} in A, and {second!r} in B")


def read(second: Second, account: Account, reading: Reading, memory: int) -> FoundPartners:
    """Read B, and return what finds partners in it. Holds: *memory* bytes. Raises what `partners_of` raises."""
    own = Account(account.say, account.quiet)
    account.phase = Phase("reading B", account=own)
    own.expected = storage.check_inputs(second.urls)
    source = source_of(second.urls, second.form, second.wanted, own, reading)
    tmpdir = reading.tmpdir

    def sort(records: Iterable[bytes]) -> Iterator[bytes]:
        from tartools.stages.sorting.externalsort import external_sort

        return external_sort(records, memory // 2, tmpdir)

    partners = partners_of(source.batches(), memory, sort, tmpdir)
    own.settle()
    account.omissions += own.omissions
    account.phase = Phase("writing")
    return FoundPartners(partners, source)


def check_shards(urls: Sequence[str]) -> None:
    """Raise UsageError if one of *urls*, of A, is a file of rows by its name."""
    for url in urls:
        if form := form_by_name(url):
            raise UsageError(f"A is shards or tables of samples, and this is {form} by its name: tarjoin A B", url=url)


def form_by_name(url: str) -> str | None:
    """Return the format of the rows in *url*, by its name: tsv, csv or jsonl; None if it is another name."""
    name = Url(url).name.lower() if Url(url).scheme != "pipe" else ""
    return FORMS.get(split_packed(name)[0].rpartition(".")[2])


def form_of(url: str) -> str:
    """Return the format of *url*, by its name, or its first bytes for Parquet: tsv, csv, jsonl, parquet or tar."""
    return form_by_name(url) or ("parquet" if is_table(url) else "tar")


def source_of(
    urls: Sequence[str], form: str | None, wanted: SecondFields, account: Account, reading: Reading
) -> SecondRows | SecondShards:
    """Return B, which *urls* have, as *form* says. Raises: UsageError if they are shards and rows."""
    forms = [form or form_of(url) for url in urls]
    both = zip(forms, urls, strict=True)
    kinds = ["tar" if name == "parquet" and not form and lists_samples(url, wanted) else name for name, url in both]
    if all(kind == "tar" for kind in kinds):
        if wanted.key is not None:
            raise UsageError("--key-column names a column, but samples have their own keys", url=urls[0])
        from tartools.commands._partnershards import SecondShards

        return SecondShards(urls, wanted.words, ChosenColumns(*wanted[:3], hidden=False), account, reading)
    if "tar" in kinds:
        raise UsageError(MIXED, url=urls[kinds.index("tar")])
    return SecondRows(urls, kinds, wanted, account)


def lists_samples(url: str, wanted: SecondFields) -> bool:
    """Tell whether the Parquet file *url* lists samples whose fields are *wanted*, and not columns of its own."""
    from tartools.tables import source

    with parquet(url) as table:
        if any(name not in table.names for name in source.NEEDED):
            return False
        columns = {wanted.fold(name) for name in table.names}
        fields = {wanted.fold(name) for name in table.fields or ()}
        words = [{wanted.fold(choice) for choice in choices} for choices, _ in wanted.words or ()]
        rows = table.fields is not None and any(word & columns and not word & fields for word in words)
        return wanted.key is None and not rows


@contextmanager
def parquet(url: str) -> Iterator[ParquetSource]:
    """Give the Parquet file *url*."""
    from tartools.storage import seekable
    from tartools.tables import source

    repeatable = storage.is_repeatable(url) and not Url(url).read_command
    with source.opened_any(url, None if repeatable else seekable.copied(storage.open_read(url))) as table:
        yield table


class SecondRows:
    """B is files of rows: *urls*, with the format of each. *account* gets the bytes that are read."""

    def __init__(self, urls: Sequence[str], forms: Sequence[str], wanted: SecondFields, account: Account) -> None:
        self._files = list(zip(urls, forms, strict=True))
        self._account = account
        self._packed = PackedFields()
        chosen = ChosenColumns(wanted.words, wanted.dropped, wanted.fold)
        self._format = RowFormat(wanted.key, chosen, self._packed, len(urls) == 1)

    def batches(self) -> Pairs:
        """Yield keys and packed fields of adjacent rows."""
        account = self._account
        for url, form in self._files:
            if form == "parquet":
                from tartools.tables import fieldrows as columnvalues

                with parquet(url) as table:
                    yield from columnvalues.batches(table, self._format)
            else:
                from tartools.formats import textfields

                with stream_file(ShardStream(url, account, forks=True), url) as file:
                    yield from textfields.batches(file, form, url, self._format)
                account.check()
            account.shards_done += 1

    def single(self) -> bytes | None:
        """Return the field that is added, if what `batches` yields is the payload of one."""
        return self._packed.names[0] if self._packed.single else None

    def members(self, key: bytes, packed: bytes) -> list[Member]:
        """Return the members for what `batches` yields."""
        return [tar.new_member(join_path(key, field), payload) for field, payload in self._packed.unpack(packed)]

    def check(self) -> None:
        """Do nothing: all rows are held, or were read to their end."""
