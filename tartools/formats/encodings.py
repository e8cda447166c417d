"""Text in other encodings than UTF-8: which encodings are likely, and files of rows as UTF-8."""

import codecs
import io
from collections.abc import Iterable
from typing import NamedTuple

from tartools.errors import SampleError

READ_BYTES = 1 << 18  # of a file that are decoded at once
MIN_COMMON_SHARE = 0.7  # of the characters that are not ASCII


class _Candidate(NamedTuple):
    """An encoding that a text may have, and the characters that are common in it.

    `name`: of the encoding, as Python has it. `double`: True if each common character is two bytes; False: one byte.
    `common`: ranges of the first bytes of these characters.
    """

    name: str
    double: bool
    common: tuple[range, ...]


_CANDIDATES = (  # by the level 1 of their character sets: other characters are rare
    _Candidate("gbk", True, (range(0xA3, 0xA4), range(0xB0, 0xD8))),
    _Candidate("cp932", True, (range(0x81, 0x98),)),
    _Candidate("big5", True, (range(0xA4, 0xC7),)),
    _Candidate("cp949", True, (range(0xB0, 0xC9),)),
    _Candidate("cp1252", False, (range(0xC0, 0x100),)),
    _Candidate("cp1251", False, (range(0xC0, 0x100),)),
    _Candidate("cp866", False, (range(0x80, 0xB0), range(0xE0, 0xF2))),
    _Candidate("cp437", False, (range(0x80, 0xA6),)),
)
MAX_ASCII_SHARE = {"cp1252": 1.0, "cp437": 1.0}  # of the letters; words in other alphabets have no ASCII letters


def parse_encoding(name: str) -> str:
    """Return *name*, the value of an option, if Python has a text encoding of this name. Raises: ValueError if not.

    >>> parse_encoding("gbk")
    'gbk'
    """
    try:
        "a".encode(name).decode(name)
    except (LookupError, UnicodeError):
        raise ValueError(f"not an encoding: {name!r}; write gbk, shift_jis, big5, cp949, latin-1, utf-16 ...") from None
    return name


def guess_encodings(texts: Iterable[bytes]) -> list[str]:
    """Return the names of the encodings in which most non-ASCII characters of *texts* are common; the likeliest first.

    Most: at least 70%. *texts*: not UTF-8, all in one encoding. Only encodings in `_CANDIDATES` are tried, and one in
    which the share of ASCII letters is unlikely (`_common_share`) is left out. Empty if none fits.

    >>> guess_encodings(["书法/颜".encode("gbk")]), guess_encodings(["テスト".encode("cp932")])
    (['gbk'], ['cp932', 'cp866', 'cp437'])
    >>> guess_encodings(["café".encode("latin-1")]), guess_encodings(["Привет".encode("cp1251")])
    (['cp1252'], ['cp1251'])
    """
    data = b"\n".join(texts)
    shares = [(_common_share(data, candidate), candidate.name) for candidate in _CANDIDATES]
    likely = [pair for pair in shares if pair[0] >= MIN_COMMON_SHARE]
    return [name for _, name in sorted(likely, key=lambda pair: -pair[0])]


def _common_share(data: bytes, candidate: _Candidate) -> float:
    """Return the share of common characters among the non-ASCII characters of *data*, decoded by *candidate*.

    0.0 if it can't be decoded, has only ASCII characters, or has ASCII letters in a wrong share: above half of all
    letters in cp1251 and cp866, below half, or no letters, in cp1252. In the other encodings any share is right.
    """
    try:
        text = data.decode(candidate.name)
    except UnicodeDecodeError:
        return 0.0
    letters = [char for char in text if char.isalpha()]
    ascii_share = sum(map(str.isascii, letters)) / max(len(letters), 1)
    # Most bytes are a letter of any one-byte encoding. Western words have a few letters with accents among ASCII ones;
    # Cyrillic words have none.
    if not candidate.double and ascii_share > MAX_ASCII_SHARE.get(candidate.name, 0.5):
        return 0.0
    if candidate.name == "cp1252" and ascii_share < 0.5:
        return 0.0
    encoded = [char.encode(candidate.name) for char in text if not char.isascii()]
    common = [c for c in encoded if len(c) == 1 + candidate.double and any(c[0] in span for span in candidate.common)]
    return len(common) / max(len(encoded), 1)


class Utf8File(io.RawIOBase):
    """The text of *file*, which is in *encoding*, as a raw file of UTF-8 bytes. Messages name *url*.

    Reading raises SampleError, with the line (from 1), for bytes that are not of this encoding. Closing it leaves
    *file* open.
    """

    def __init__(self, file: io.BufferedIOBase, encoding: str, url: str) -> None:
        self._file, self._encoding, self._url = file, encoding, url
        self._decoder = codecs.getincrementaldecoder(encoding)("strict")
        self._data = b""
        self._line = 1
        self._ended = False

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, view: memoryview, /) -> int:  # type: ignore[override]
        """Write the next bytes in UTF-8, up to `len(view)`, to *view*; return their count, 0 at the end.

        There may be fewer before the end, too. Raises: SampleError, with the line, for bytes that are not of the
        encoding; the errors of reading the file.
        """
        while not self._data and not self._ended:
            data = self._file.read(READ_BYTES)
            self._ended = not data
            try:
                text = self._decoder.decode(data, self._ended)
            except UnicodeDecodeError as error:
                line = self._line + error.object[: error.start].decode(self._encoding, "ignore").count("\n")
                raise SampleError(f"line {line}: not {self._encoding} text", url=self._url) from None
            self._line += text.count("\n")
            self._data = text.encode("utf-8", "surrogatepass")
        count = min(len(view), len(self._data))
        view[:count], self._data = self._data[:count], self._data[count:]
        return count


def read_as_utf8(file: io.BufferedReader, encoding: str | None, url: str) -> io.BufferedReader:
    """Return *file*, whose text is of *encoding*, as a file of UTF-8; if *encoding* is None, *file* itself.

    Reading raises SampleError, with the line of *url*, for bytes that are not of this encoding. The caller closes
    *file*.
    """
    return file if encoding is None else io.BufferedReader(Utf8File(file, encoding, url), READ_BYTES)


def utf16_advice(head: bytes) -> str:
    """Return the message for text that begins with *head* if it is UTF-16 or UTF-32; "" for other text.

    Text without a byte order mark counts as UTF-16 if every other one of the first 4 bytes, and no other one, is 0; as
    UTF-32 it never does. Fewer than 4 bytes count only with a mark.

    >>> utf16_advice("a,b".encode("utf-16"))
    'this is UTF-16 text, not UTF-8: --encoding utf-16 reads it'
    """
    name = ""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        name = "utf-32"
    elif head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        name = "utf-16"
    elif len(head) >= 4 and head[1] == head[3] == 0 < min(head[0], head[2]):
        name = "utf-16-le"
    elif len(head) >= 4 and head[0] == head[2] == 0 < min(head[1], head[3]):
        name = "utf-16-be"
    return name and f"this is {name[:6].upper()} text, not UTF-8: --encoding {name} reads it"


def encoding_advice(texts: Iterable[bytes]) -> str:
    r"""Return advice for a message: the --encoding that may read *texts*, which are not UTF-8, or that one is needed.

    >>> encoding_advice([b"caf\xe9"])
    '--encoding cp1252 reads it as such'
    """
    names = guess_encodings(texts)
    return f"--encoding {names[0]} reads it as such" if names else "--encoding NAME says which encoding it has"
