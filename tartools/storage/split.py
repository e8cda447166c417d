r"""Archives that were cut into parts, as split(1) does it: their parts are found among inputs, and read as one shard.

    x.tar.gz.partaa  x.tar.gz.partab  x.tar.gz.partac     x.tar.gzaa ...     x.tgz-part-00 ...     x.tar.001 ...
    `------' `---''
    archive  mark token

Parts with one archive and one mark are one shard, whose URL is made here: "split:", NUL, archive and mark, and the
tokens in braces, in order. As no path has a NUL, no file has such a name, and nobody can type it. Each part is opened
when its turn comes, and read once, from end to end.

    split:\0dir/x.tar.gz.part{aa,ab,ac}

Tokens are letters or numbers. All have one length, or numbers have no leading zeros, or the length grows as split(1)
lets it grow, so that names stay sorted: yz is followed by zaaa, 89 by 9000.
"""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tartools import storage
from tartools.errors import StorageError, shown
from tartools.schemes import SPLIT_PREFIX
from tartools.storage.streams import Input, check_whole
from tartools.storage.url import Url, parts_of, split_url

if TYPE_CHECKING:
    from tartools.storage.checksums import HashedInput, ListedSums

# Archives that are cut are called tar or tgz. Without a mark, a token has two characters or more: x.tar.gz2 is no part.
PART_NAME = (
    r"(?P<archive>.*\.(?:tar|tgz)(?:\.(?:gz|bz2|xz|zst|lz4))?)"
    r"(?P<mark>[._-]part[._-]?(?=[0-9a-z])|[._-](?=[0-9a-z])|(?=[0-9a-z]{2}))"
    r"(?P<token>[0-9]{1,5}|99[0-9]{4}|[a-z]{2}|a[a-z]{2}|z[a-y][a-z]{2}|zz[a-y][a-z]{3})"
)
# suffixes of their own, which may follow .tar
NOT_TOKENS = frozenset(("asc", "br", "gz", "lz", "md", "xz", "zstd"))
MAX_TOKENS_SHOWN = 5
MIN_YEAR_DIGITS = 4
MIN_GROWING_CHARACTERS = 2  # of a token of split(1), which grow by 2 at a time


class SplitPart(NamedTuple):
    """A part of an archive: its `url`, which is `archive` + `mark` + `token` and perhaps a query.

    The URL d/x.tar.gz.partab has the archive d/x.tar.gz, the mark .part and the token ab.
    """

    url: Url
    archive: str
    mark: str
    token: str

    @property
    def prefix(self) -> str:
        """The URL up to the token."""
        return self.archive + self.mark


def parse_part(url: str) -> SplitPart | None:
    """Return *url* split into archive, mark and token if it is named like a part of an archive; None if it is not.

    Raises: UsageError for a URL that holds credentials, if *url* is plain text.

    >>> (parse_part("https://host/x.tar.gz.partab?sig=1") or ())[1:], parse_part("x-000001.tar"), parse_part("x.tar.gz")
    (('https://host/x.tar.gz', '.part', 'ab'), None, None)
    """
    part = _match_part_name(url)
    return None if part is None or part.token.lower() in NOT_TOKENS else part


def _match_part_name(url: str) -> SplitPart | None:
    """Return *url* split as the name of a part, even if its token is one of NOT_TOKENS; None if it has another form.

    x.tar.gz gives the archive x.tar, the mark . and the token gz: `split -a 2` may have made that, but hardly did.
    Raises: UsageError for a URL that holds credentials, if *url* is plain text.
    """
    url = Url(url)
    if url.scheme in ("-", "pipe"):
        return None
    folder, slash, base = url.name.rpartition("/")
    if not any(suffix in base[:-1].lower() for suffix in (".tar", ".tgz")):
        return None  # most names: compiling PART_NAME would take 3 ms of each start
    match = re.fullmatch(PART_NAME, base, re.IGNORECASE | re.DOTALL)
    return match and SplitPart(url, f"{folder}{slash}{match['archive']}", match["mark"], match["token"])


def join_split_parts(urls: Sequence[Url], on_fault: Callable[[StorageError], object] | None = None) -> list[Url]:
    """Return *urls* with one URL in place of the parts of each archive that was split, at the place of the first.

    A first part without others stays as it is. `on_fault(error)`: called for each faulty archive with the StorageError
    that is else raised; its parts then stay in the result as URLs of their own, all at the place of the first. Names
    with large numbers without a first one, such as x.tar.2024, are no parts.

    Raises: StorageError if a part before the last one is missing, a part is there twice, parts of an archive have names
    of several kinds, or the archive is named beside its parts. That parts behind the last one are missing is not seen.
    """
    parts = [parse_part(url) if has_part_name(url) else None for url in urls]
    by_archive: dict[str, list[SplitPart]] = {}
    for part in parts:
        if part is not None:
            by_archive.setdefault(part.archive, []).append(part)
    by_archive = {
        archive: archive_parts for archive, archive_parts in by_archive.items() if not _has_years(archive_parts)
    }
    if not by_archive:
        return [*urls]
    for number, url in enumerate(urls):  # x.tar.gz is a part if x.tar.aa is
        if (
            parts[number] is None
            and (new_part := _match_part_name(url))
            and _has_first(by_archive.get(new_part.archive, ()), new_part)
        ):
            parts[number] = new_part
            by_archive[new_part.archive].append(new_part)
    names = {url.name for url in urls}
    joined: dict[str, list[Url]] = {}
    for archive, archive_parts in by_archive.items():
        try:
            joined[archive] = [_join_parts(archive_parts, whole_too=archive in names)]
        except StorageError as error:
            if on_fault is None:
                raise
            on_fault(error)
            joined[archive] = [part.url for part in archive_parts]
    result: list[Url] = []
    for url, part in zip(urls, parts, strict=True):
        is_part = part is not None and part.archive in by_archive
        result += joined.pop(part.archive, []) if part is not None and is_part else [url]
    return result


def _has_first(parts: Sequence[SplitPart], new_part: SplitPart) -> bool:
    """True if *parts* have the first part of the series that *new_part*, with a token of letters, may belong to.

    The first has the same mark and the token aa; or as many a as *new_part* has letters, if that begins with a. Letters
    may be in upper case.
    """
    first = "a" * max(len(new_part.token) if new_part.token[0] in "aA" else 2, 2)
    return any(part.mark == new_part.mark and part.token.lower() == first for part in parts)


def has_part_name(url: str) -> bool:
    """True if *url* may be named like a part, which `parse_part` decides; a quick check, for lists of many shards.

    True if *url* contains .tar or .tgz, in any case, but does not end in .tar, .tgz, .gz, .zst or .parquet, in lower
    case. A query counts, too: one that ends so gives False.
    """
    return not url.endswith((".tar", ".tgz", ".gz", ".zst", ".parquet")) and bool(re.search(r"\.t(?:ar|gz)", url, re.I))


def _has_years(parts: Sequence[SplitPart]) -> bool:
    """True if the tokens of *parts* are large numbers without a first one, such as years: these are no parts.

    That is, one is a number of MIN_YEAR_DIGITS or more, and none begins with 0 or has one character.
    """
    tokens = [part.token for part in parts]
    has_first = any(token.startswith("0") or len(token) == 1 for token in tokens)
    return not has_first and any(token.isdigit() and len(token) >= MIN_YEAR_DIGITS for token in tokens)


def _join_parts(parts: Sequence[SplitPart], *, whole_too: bool) -> Url:
    """Return one URL for *parts* of an archive; a first part alone stays as it is, since there may be no other.

    *whole_too*: True if the archive itself is an input, too. Raises: StorageError if it is, if a part before the last
    one is missing, one is named twice, or *parts* have several marks, or both numbers and letters as tokens.
    """
    first = parts[0]
    if whole_too:
        raise StorageError("both the archive and its parts are named: leave one of the two out", url=first.archive)
    kinds = {(part.mark, part.token.isdigit()): part for part in reversed(parts)}
    if len(kinds) > 1:
        names = " and ".join(shown(part.url).rpartition("/")[2] for part in reversed(kinds.values()))
        raise StorageError(
            f"its parts have names of two kinds, {names}: name those of one kind, {name_all_parts(first)}",
            url=first.archive,
        )
    grows = _has_growing_tokens([part.token.lower() for part in parts])
    numbered = _by_number(parts, _grown_number if grows else _number)
    begin = 1 if first.token.isdigit() and 0 not in numbered else 0
    missing = next(number for number in range(begin, len(parts) + begin + 1) if number not in numbered)
    if missing < max(numbered):
        raise _missing_part(numbered, missing, begin, _grown_token if grows else _token)
    if len(parts) == 1:
        return first.url
    ordered = [numbered[number] for number in sorted(numbered)]
    return split_url(first.prefix, [part.url[len(first.prefix) :] for part in ordered])


def _has_growing_tokens(tokens: Sequence[str]) -> bool:
    """True if *tokens*, of one kind, grow as the suffixes of split(1) do.

    That is, they have several lengths, and are letters, or numbers of which one has a leading zero.
    """
    has_zeros = any(token.startswith("0") and len(token) > 1 for token in tokens)
    return len({*map(len, tokens)}) > 1 and (has_zeros or not tokens[0].isdigit())


def _by_number(parts: Sequence[SplitPart], number_of: Callable[[str], int]) -> dict[int, SplitPart]:
    """Return *parts* by the number that *number_of* gives their tokens, in lower case.

    Raises: StorageError for a number that two parts have.
    """
    numbered: dict[int, SplitPart] = {}
    for part in parts:
        number = number_of(part.token.lower())
        if number in numbered:
            raise StorageError(f"part {part.token!r} is named twice", url=part.archive)
        numbered[number] = part
    return numbered


def _number(token: str) -> int:
    """Return the number of a *token* of digits, or of lower-case letters: aa is 0, ab 1, ba 26."""
    if token.isdigit():
        return int(token)
    number = 0
    for letter in token:
        number = number * 26 + ord(letter) - ord("a")
    return number


def _grown_number(token: str) -> int:
    """Return the number of a *token* whose length grows with the number, as split(1) lets it grow.

    A token whose length does not fit is read as a plain number, or as letters of which aa is 0.

    >>> [_grown_number(token) for token in ("aa", "yz", "zaaa", "00", "89", "9000", "990000")]
    [0, 649, 650, 0, 89, 90, 990]
    """
    base, last = (10, "9") if token.isdigit() else (26, "z")
    level = len(token) - len(token.lstrip(last))
    if len(token) != MIN_GROWING_CHARACTERS + 2 * level:  # of another kind: another one is missing, or has its number
        return _number(token)
    return sum(_count_at_level(base, earlier) for earlier in range(level)) + _number(token[level:])


def _count_at_level(base: int, level: int) -> int:
    """Return how many tokens begin with exactly *level* of the last digit: aa to yz at 0, zaaa to zyzz at 1.

    *base*: 10 for digits, 26 for letters.
    """
    count: int = (base - 1) * base ** (MIN_GROWING_CHARACTERS - 1 + level)
    return count


def _grown_token(number: int, like: str) -> str:
    """Return the token for *number* among tokens that grow; *like*: one of them, which tells digits and case.

    >>> [_grown_token(number, "aa") for number in (0, 649, 650)], _grown_token(90, "00")
    (['aa', 'yz', 'zaaa'], '9000')
    """
    base, last, level = (10, "9", 0) if like.isdigit() else (26, "z", 0)
    while number >= (count := _count_at_level(base, level)):
        number, level = number - count, level + 1
    first = "0" if like.isdigit() else "A" if like.isupper() else "a"
    return (last.upper() if like.isupper() else last) * level + _token(number, first * (MIN_GROWING_CHARACTERS + level))


def _missing_part(
    numbered: dict[int, SplitPart], missing: int, begin: int, token_of: Callable[[int, str], str]
) -> StorageError:
    """Return the error that part number *missing* is not among the inputs; *numbered*: the parts that are, by number.

    *begin*: number of the first part, 0 or 1. `token_of(number, like)`: returns the token for *number*, of the form of
    *like*.
    """
    tokens = [numbered[number].token for number in sorted(numbered)]
    part = numbered[min(numbered)]
    token = token_of(missing, part.token)
    listed = ", ".join(tokens[:MAX_TOKENS_SHOWN] + ["…"] * (len(tokens) > MAX_TOKENS_SHOWN))
    order = "the first part" if missing == begin else "a part"
    what = f"this is part {tokens[0]!r}" if len(tokens) == 1 else f"these are the parts {listed}"
    by_itself = f" (an archive by itself is read from stdin: < {shown(part.url)})" if part.url.is_local else ""
    return StorageError(
        f"{what} of an archive that was split, and {order}, {token!r}, is missing: "
        f"name all parts, {name_all_parts(part)}{by_itself}",
        url=part.archive,
    )


def _token(number: int, like: str) -> str:
    """Return the token for *number* in the form of the token *like*.

    Letters have the length and the case of *like*; digits have its length if it begins with 0, else no leading zeros.
    """
    if like.isdigit():
        return str(number).zfill(len(like) if like.startswith("0") else 1)
    letters = ""
    for _ in like:
        number, digit = divmod(number, 26)
        letters = chr(ord("a") + digit) + letters
    return letters.upper() if like.isupper() else letters


def name_all_parts(part: SplitPart) -> str:
    """Return words for a message that name all parts of the archive of *part*.

    They are a wildcard in quotes, such as 'x.tar.gz.part*'. Where wildcards do not expand, as in https:, they are the
    URL of *part* and "and the others", with advice.
    """
    if part.url.is_local or part.url.is_listed:
        return f"'{shown(part.prefix)}*'"
    return f"{shown(part.url)} and the others (wildcards do not expand there; braces and -T do)"


def archive_of(url: str) -> str:
    """Return the URL of the archive that was split, without a query, if `join_split_parts` made *url*; else *url*.

    >>> archive_of(split_url("d/x.tar.gz.part", ["aa", "ab"])), archive_of("d/x.tar.gz.partaa")
    ('d/x.tar.gz', 'd/x.tar.gz.partaa')
    """
    part = parse_part(parts_of(url)[0]) if url.startswith(SPLIT_PREFIX) else None
    return part.archive if part else url


def shard_pattern(url: str) -> str:
    """Return a pattern of the parts for messages, if `join_split_parts` made *url*; else *url*.

    It is the URL up to the token, and *, also where wildcards do not expand, as in https:.

    >>> shard_pattern(split_url("d/x.tar.gz.part", ["aa", "ab"])), shard_pattern("a.tar")
    ('d/x.tar.gz.part*', 'a.tar')
    """
    part = parse_part(parts_of(url)[0]) if url.startswith(SPLIT_PREFIX) else None
    return f"{part.prefix}*" if part else url


def split_part_advice(url: str) -> str:
    """Return advice on how to read a split archive if *url* is named like one part of it, else "".

    >>> split_part_advice("s3://b/x.tar.gz.partab")
    "this is part 'ab' of an archive that was split; name all parts: 's3://b/x.tar.gz.part*'"
    >>> split_part_advice("x-000001.tar"), split_part_advice("x.tar.gz")
    ('', '')
    """
    part = parse_part(url) if has_part_name(url) else None
    if part is None:
        return ""
    return f"this is part {part.token!r} of an archive that was split; name all parts: {name_all_parts(part)}"


# ---- reading ----


def open_read(url: str) -> "SplitInput":
    """Return the bytes of all parts of *url*, one after the other, as one stream. The first part is opened now.

    Raises: StorageError, with the URL of the part, or UsageError if it can't be opened.
    """
    return SplitInput(parts_of(url))


class SplitInput(Input):
    """The bytes of *parts*, one after the other. Each is opened when its turn comes, and closed at its end.

    `is_framed`: False after the last part if its server does not state where it ends, so that it may be truncated; else
    True. `place` and `describe` say in which part a byte is.

    Raises: StorageError or UsageError if the first part can't be opened.
    """

    def __init__(self, parts: Sequence[Url]) -> None:
        self._parts = parts
        self._sizes: list[int] = []  # of the parts that were read to their ends
        self._count = 0  # bytes read of the part that is open
        self._cancelled = False
        self._has_failed = False  # at the end of a part
        self._stream: Input | None = storage.open_read(parts[0])
        self._sums: ListedSums | None = None
        self._hashed: HashedInput | None = None
        self.is_framed = True

    def compare_with(self, sums: "ListedSums") -> None:
        """Compare each part, at its end, with its checksum in *sums*, whose `mismatches` get the differences.

        To be called before anything is read. A part for which *sums* has no checksum is not compared. Raises:
        StorageError if the algorithm of the first part can't be computed; for a later part `readinto` raises it.
        """
        self._sums = sums
        assert self._stream is not None
        self._stream = self._hashed_stream(self._stream)

    def _hashed_stream(self, stream: Input) -> Input:
        """Return the *stream* of the next part, as one that computes its checksum if that is to be compared.

        Raises: StorageError for an algorithm that can't be computed.
        """
        self._hashed = None if self._sums is None else self._sums.hash_input(self._parts[len(self._sizes)], stream)
        return self._hashed or stream

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; return how many, 0 at the end of the last part and after `close`.

        Raises: StorageError, with the URL of the part, also for one whose server does not tell where it ends, if others
        follow, and after `cancel`; for a checksum that can't be computed with the URL of the list; UsageError if the
        next part can't be opened. After an error at the end of a part, each further call raises StorageError.
        """
        while self._stream is not None:
            if count := self._stream.readinto(view):
                self._count += count
                return count
            self._has_failed = True
            self._next_part()
            self._has_failed = False
        if self._has_failed:
            raise StorageError("reading has failed before", url=self._parts[len(self._sizes) - 1])
        return 0

    def _next_part(self) -> None:
        """Compare the checksum of the part that has ended, close it, and open the next one, if there is one.

        A difference is added to `mismatches` of the checksums. Raises: StorageError if the part may be truncated and
        others follow, the next can't be opened (or UsageError) or compared, or `cancel` was called.
        """
        assert self._stream is not None
        number = len(self._sizes)
        if number + 1 < len(self._parts):
            check_whole(self._stream, self._parts[number])
        if self._sums is not None and self._hashed is not None:
            self._sums.compare(self._parts[number], self._hashed.checksum)
        self.is_framed = bool(getattr(self._stream, "is_framed", True))
        self._stream.close()
        self._stream = None
        self._sizes.append(self._count)
        self._count = 0
        if self._cancelled:
            raise StorageError("reading was cancelled", url=self._parts[number])
        if number + 1 < len(self._parts):
            self._stream = self._hashed_stream(storage.open_read(self._parts[number + 1]))

    def describe(self, offset: int | None) -> str:
        """Return a phrase for a message: the part that has byte *offset* of the whole, and the byte in it.

        Such as "byte 7 of x.tar.partab". None: the end of the bytes that were read. If the byte is the end of the last
        part, and all were read, "; is a part behind 'ac' missing?" follows; if *offset* is 0, and the token of the
        first part is a number above 0, "; is a part before '002' missing?".
        """
        part, byte = self.place(offset)
        before, behind = parse_part(self._parts[0]), parse_part(self._parts[-1])
        question = ""
        if part is self._parts[-1] and self._stream is None and byte == self._sizes[-1] and behind:
            question = f"; is a part behind {behind.token!r} missing?"
        elif offset == 0 and before and before.token.isdigit() and int(before.token):
            question = f"; is a part before {before.token!r} missing?"
        return f"byte {byte} of {shown(part)}{question}"

    def place(self, offset: int | None) -> tuple[Url, int]:
        """Return the part that has byte *offset* of the whole, and the byte in it.

        None: the end of the bytes that were read. Bytes that are not read yet count as those of the last part begun.
        """
        sizes = [*self._sizes, self._count][: len(self._parts)]
        if offset is None:
            offset = sum(sizes)
        for part, size in zip(self._parts, sizes, strict=False):
            if offset < size or part is self._parts[len(sizes) - 1]:
                return part, offset
            offset -= size
        raise AssertionError

    def cancel(self) -> bool:
        """Make a `readinto` in another thread return soon; return True if that is possible.

        If a part ends meanwhile, also the last one, `readinto` raises StorageError in place of opening the next one.
        """
        self._cancelled = True
        stream = self._stream
        return stream is None or stream.cancel()

    def close(self) -> None:
        """Close the open part."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
