"""Checksums of shards: made while outputs are written, and compared while inputs are read.

A list of checksums is a file as sha256sum writes it, or its BSD form, which names the algorithm:

    5891b5b5…be03  train-000000.tar
    MD5 (train-000001.tar) = b1946ac9…4184

A checksum is that of the stored bytes, so of the compressed file if the shard is compressed. Names in a list are
relative to its folder if both can be moved together, so that `sha256sum -c` works in that folder.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from tartools import storage
from tartools.errors import StorageError, UsageError, shown
from tartools.storage.local import canonical_name
from tartools.storage.names import folder_of, relative_name
from tartools.storage.outputformats import OutputFormat
from tartools.storage.streams import Input, Sink
from tartools.storage.url import Url, drop_commit, parts_of

if TYPE_CHECKING:
    from hashlib import _Hash

SUMS_FORMAT = OutputFormat("checksums", ("sha256",), "", ("txt", "md5"))
WRITTEN_ALGORITHM = "SHA256"
# The best first: if a list has several checksums of a shard, the first that it has is compared. BLAKE2b is what b2sum
# makes; the others have a command of their name.
HASH_NAMES = {
    "SHA512": "sha512",
    "SHA384": "sha384",
    "SHA256": "sha256",
    "SHA224": "sha224",
    "BLAKE2B": "blake2b",
    "SHA1": "sha1",
    "MD5": "md5",
    "CRC32": "",  # of zlib: S3 has it of what other programs upload
}
ALGORITHM_OF_HEX_LENGTH = {128: "SHA512", 96: "SHA384", 64: "SHA256", 56: "SHA224", 40: "SHA1", 32: "MD5"}
PLAIN_LINE = r"(\\?)([0-9A-Fa-f]{32,128}) [ *](.+)"
TAGGED_LINE = r"(\\?)([A-Za-z0-9-]+) ?\((.+)\) ?= ?([0-9A-Fa-f]+)"
ESCAPED_CHARACTERS = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}  # in names, as sha256sum has them
DRAIN_BYTES = 1 << 20


class Checksum(NamedTuple):
    """A checksum: the *algorithm*, such as "SHA256", and the *digest* in lower-case hexadecimal digits."""

    algorithm: str
    digest: str


class ChecksumError(StorageError):
    """The bytes of a shard have another checksum than the list says."""


def checksum_line(name: str, checksum: Checksum) -> str:
    r"""Return the line for the file *name*, without a newline: sha256sum's form for SHA-256, else the BSD form.

    A line whose name has a backslash or a line break, which are escaped, begins with a backslash.

    >>> checksum_line("a\n.tar", Checksum("SHA256", "ab12")), checksum_line("a.tar", Checksum("MD5", "ab12"))
    ('\\ab12  a\\n.tar', 'MD5 (a.tar) = ab12')
    """
    escaped = "".join(ESCAPED_CHARACTERS.get(character, character) for character in name)
    mark = "\\" if escaped != name else ""
    if checksum.algorithm == WRITTEN_ALGORITHM:
        return f"{mark}{checksum.digest}  {escaped}"
    return f"{mark}{checksum.algorithm} ({escaped}) = {checksum.digest}"


def parse_line(line: str) -> tuple[str, Checksum] | None:
    """Return the name and the checksum that *line* of a list has, in either form; None if it is no such line.

    The BSD form names the algorithm, which may be one that is not in HASH_NAMES; in the other it follows from the
    number of digits: 64 are SHA256, 128 SHA512. Escapes in the name are undone.

    >>> parse_line("MD5 (a b.tar) = AB12"), parse_line("hello")
    (('a b.tar', Checksum(algorithm='MD5', digest='ab12')), None)
    """
    if match := re.fullmatch(TAGGED_LINE, line, re.DOTALL):
        mark, algorithm, name, digest = match.groups()
        algorithm = algorithm.upper().replace("SHA-", "SHA").replace("SHA2-", "SHA")
    elif match := re.fullmatch(PLAIN_LINE, line, re.DOTALL):
        mark, digest, name = match.groups()
        algorithm = ALGORITHM_OF_HEX_LENGTH.get(len(digest), "")
    if match is None or not algorithm:
        return None
    if mark:
        name = re.sub(r"\\([\\nr])", lambda escape: {"n": "\n", "r": "\r"}.get(escape[1], "\\"), name)
    return name, Checksum(algorithm, digest.lower())


# ---- outputs ----


class HashedSink:
    """Passes bytes on to *sink*, the open output *url*, and computes their SHA-256; `record` adds it to *sums*."""

    def __init__(self, sums: OutputSums, url: str, sink: Sink) -> None:
        from hashlib import sha256  # loads OpenSSL: 3 ms of a start

        self._sums, self._url, self._sink = sums, url, sink
        self._hash = sha256()

    def write(self, data: bytes | bytearray | memoryview, /) -> None:
        """Pass all of *data* on to the sink, and add it to the checksum. Raises: the errors of the sink."""
        self._hash.update(data)
        self._sink.write(data)

    def record(self) -> None:
        """Add the checksum to the list: to be called once the output has appeared under its name."""
        self._sums.add(self._url, Checksum(WRITTEN_ALGORITHM, self._hash.hexdigest()))


class OutputSums:
    """The list of the SHA-256 of all outputs of a run, to be written to *url* once all of them have appeared.

    Call `check` and, for each output, `check_output` first. Write each output to the sink of `hash_sink`, and call that
    sink's `record` once the output has appeared; at the end `write` the list. *force*: replace an existing file.
    """

    def __init__(self, url: str, force: bool) -> None:
        self.url = url
        self._force = force
        self._lines: list[str] = []

    def check(self) -> None:
        """Check the list's file before anything is read or written.

        Raises: StorageError if it exists (unless *force*) or can't be written by its name (`checks.check_output`);
        UsageError for stdout, an empty name, a number such as %06d in it, or the suffix of another format: "sha256",
        "txt", "md5", unknown suffixes and none are fine.
        """
        if self.url == "-":
            raise UsageError("--sums takes the name of a file, because stdout is for data")
        storage.check_output(self.url, self._force, (), form=SUMS_FORMAT)

    def check_output(self, url: str) -> None:
        """Raise UsageError if the output *url* is the list itself, or a command, whose output has no name.

        /dev/null may be both.
        """
        if Url(url).scheme == "pipe":
            raise UsageError("a command has no name that --sums could list; write to a file or an object", url=url)
        if url != "/dev/null" and canonical_name(url) == canonical_name(self.url):
            raise UsageError("--sums names an output", url=url)

    def hash_sink(self, url: str, sink: Sink) -> HashedSink:
        """Return a sink that passes the bytes of the output *url* on to *sink*, and computes their SHA-256."""
        return HashedSink(self, url, sink)

    def add(self, url: str, checksum: Checksum) -> None:
        """Add the *checksum* of the output *url*, under its name relative to the folder of the list.

        `relative_name` makes the name: "a.tar" or "b/a.tar" in or below that folder; elsewhere, a URL on a server
        stays, without its query, and a local path becomes "../a.tar", or absolute.
        """
        self._lines.append(checksum_line(relative_name(Url(url).name, folder_of(self.url)), checksum))

    def write(self) -> None:
        """Write the list, sorted by name; its file appears when it is complete. Nothing if no checksum was added.

        Raises: StorageError, also if the file exists by now (unless *force*).
        """
        if not self._lines:  # as of a run that only prints
            return
        lines = sorted(self._lines, key=lambda line: line.partition("  ")[2])
        with storage.open_sink(self.url, self._force) as sink:
            sink.write("".join(f"{line}\n" for line in lines).encode("utf-8", "surrogateescape"))


# ---- inputs ----


class ListedSums:
    """The checksums in the list *url*, with which shards are compared while they are read.

    A shard is found in the list by its path or URL, relative to the folder of the list or to the current directory, or
    else by its base name, if only one name has that: so a copy in another folder or store is found as well. If a name
    has several checksums, the one of the best algorithm counts, the last of equal ones. `require` and `unmatched_names`
    take an archive that was split as its parts; all other methods take the URL of one part.

    Read the input that `hash_input` returns to its end, then give its checksum to `compare`; `compare_all` does both.
    `mismatches`: shard -> message, of shards that were compared and are not as listed; `check` raises the first.

    Raises: StorageError if the list can't be read, has no checksums, or has a line that is neither a checksum with a
    name, nor blank, nor a comment that begins with #; UsageError if *url* or a name in the list holds credentials.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.mismatches: dict[str, str] = {}
        # name in the list -> checksum, by path or URL from the list's folder, from the current one, and by base name
        self._by_key: tuple[dict[str, dict[str, Checksum]], ...] = ({}, {}, {})
        self._folder = folder_of(url)
        lines = storage.read_content(url).decode("utf-8", "surrogateescape").split("\n")
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            parsed = parse_line(line.removesuffix("\r"))
            if parsed is None:
                raise StorageError(f"line {number} is not a checksum and a name, as sha256sum writes them", url=url)
            self._add(*parsed)
        if not self._by_key[0]:
            raise StorageError("this list has no checksums", url=url)

    def _add(self, name: str, checksum: Checksum) -> None:
        is_relative = not Url(name).scheme and not name.startswith("/")
        keys = (
            canonical_name(self._folder + name if is_relative else name),
            canonical_name(name),
            name.rpartition("/")[2],
        )
        for mapping, key in zip(self._by_key, keys, strict=True):
            checksums = mapping.setdefault(key, {})
            checksums[name] = _stronger_checksum(checksum, checksums.get(name))

    def _find(self, url: str) -> tuple[str, Checksum] | None:
        """Return the name that the list has for the shard *url*, and its checksum.

        None if no name matches, or several with different checksums; of equal ones, such as those of a.tar and ./a.tar,
        the first name is returned.
        """
        name = drop_commit(Url(url).name)
        for mapping, key in zip(
            self._by_key, (canonical_name(name), canonical_name(name), name.rpartition("/")[2]), strict=True
        ):
            checksums = mapping.get(key, {})
            if len(set(checksums.values())) == 1:
                return next(iter(checksums.items()))
        return None

    def checksum_of(self, url: str) -> Checksum | None:
        """Return the checksum that the list has for the shard *url*; None if it has none, or several names match.

        Raises: StorageError if it is of an algorithm that can't be computed here, such as CRC32C.
        """
        _, checksum = self._find(url) or ("", None)
        if checksum is not None and checksum.algorithm not in HASH_NAMES:
            algorithms = ", ".join(HASH_NAMES)
            raise StorageError(
                f"{checksum.algorithm} of {shown(url)} can't be compared; possible are {algorithms}", url=self.url
            )
        return checksum

    def unmatched_names(self, urls: Sequence[str]) -> list[str]:
        """Return the names in the list that stand for none of the shards *urls*, each once, in the order of the list.

        Names of one file, such as a.tar and ./a.tar, stand for none, and are together.
        """
        names = {match[0] for url in urls for part in parts_of(url) if (match := self._find(part))}
        return [name for checksums in self._by_key[1].values() for name in checksums if name not in names]

    def require(self, urls: Sequence[str]) -> None:
        """Raise StorageError unless the list has a checksum that can be computed here for each of the shards *urls*."""
        for part in (part for url in urls for part in parts_of(url)):
            if self.checksum_of(part) is None:
                raise StorageError(f"this list has no checksum of {shown(part)}", url=self.url)

    def hash_input(self, url: str, stream: Input) -> HashedInput | None:
        """Return an input that reads *stream*, the stored bytes of *url*, and computes their checksum, for `compare`.

        None if the list has no checksum of *url*, or several names match; nothing is read yet.

        Raises: StorageError for an algorithm that can't be computed.
        """
        checksum = self.checksum_of(url)
        return None if checksum is None else HashedInput(stream, checksum.algorithm)

    def compare(self, url: str, checksum: Checksum) -> None:
        """Compare the *checksum* of the bytes of the shard *url* with the list; add a difference to `mismatches`.

        *checksum*: of the algorithm that the list has for *url*, as the input of `hash_input` computes it. Does nothing
        if the list has none for *url*. Raises: StorageError for an algorithm that can't be computed.
        """
        listed = self.checksum_of(url)
        if listed is not None and listed != checksum:
            self.mismatches[url] = (
                f"{listed.algorithm} is {checksum.digest}, not {listed.digest} as in {shown(self.url)}"
            )

    def compare_all(self, url: str, stream: Input) -> None:
        """Read *stream*, all bytes of *url*, to its end, and add a difference from the list to `mismatches`.

        Reads nothing if the list has no checksum of *url*. The caller closes *stream*. Raises: StorageError if it can't
        be read, or the algorithm can't be computed.
        """
        if hashed := self.hash_input(url, stream):
            hashed.drain()
            self.compare(url, hashed.checksum)

    def check(self) -> None:
        """Raise ChecksumError for the first shard in `mismatches`, with its message; do nothing if there is none."""
        for url, message in self.mismatches.items():
            raise ChecksumError(f"{message}: copy or download the shard again", url=url)


def _stronger_checksum(first: Checksum, second: Checksum | None) -> Checksum:
    """Return the checksum of the better algorithm, by the order of HASH_NAMES.

    The first if *second* is None, if both have the same algorithm, or if neither can be computed here.
    """
    if second is None or second.algorithm not in HASH_NAMES:
        return first
    order = [*HASH_NAMES, first.algorithm]
    return second if order.index(second.algorithm) < order.index(first.algorithm) else first


class Crc32:
    """A CRC-32 with the methods `update` and `hexdigest` of a hash of hashlib."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """Add *data* to the checksum."""
        from zlib import crc32

        self._value = crc32(data, self._value)

    def hexdigest(self) -> str:
        """Return the checksum of all data, 8 hexadecimal digits."""
        return f"{self._value:08x}"


def _new_hash(algorithm: str) -> _Hash | Crc32:
    """Return a new hash, with `update` and `hexdigest`, for *algorithm*, one of HASH_NAMES such as "SHA256"."""
    if algorithm == "CRC32":
        return Crc32()
    import hashlib

    return hashlib.new(HASH_NAMES[algorithm], usedforsecurity=False)


class HashedInput(Input):
    """An input that reads the open *stream* and computes the checksum of the bytes read so far: `checksum`.

    *algorithm*: one of HASH_NAMES, such as "SHA256". It has no `file` and no descriptor, so that nobody skips bytes or
    reads past it. `close` closes the stream.
    """

    def __init__(self, stream: Input, algorithm: str) -> None:
        self._stream = stream
        self._algorithm = algorithm
        self._hash = _new_hash(algorithm)

    @property
    def is_framed(self) -> bool:
        """False if the server does not state where *stream* ends, so that it may be truncated unnoticed; else True."""
        return bool(getattr(self._stream, "is_framed", True))

    @property
    def checksum(self) -> Checksum:
        """The checksum of the bytes that were read so far."""
        return Checksum(self._algorithm, self._hash.hexdigest())

    def readinto(self, view: memoryview, /) -> int:
        """Read up to `len(view)` bytes; return how many, 0 at the end. Raises: StorageError."""
        count = self._stream.readinto(view)
        self._hash.update(view[:count])
        return count

    def drain(self) -> None:
        """Read the rest of the stream, to its end, into the checksum. Raises: StorageError."""
        buffer = memoryview(bytearray(DRAIN_BYTES))
        while self.readinto(buffer):
            pass

    def cancel(self) -> bool:
        """Make a `readinto` in another thread return soon; return True if that is possible."""
        return self._stream.cancel()

    def close(self) -> None:
        """Close the stream."""
        self._stream.close()
