"""Search samples by words, as the filter of the page of `tarshow --html` does: in keys, texts, or one field."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tartools.samples.filetypes import ARRAYS, PICTURES, SOUNDS, VIDEOS, suffix_of
from tartools.samples.payloads import unpack_member
from tartools.samples.sample import Sample, field_name

MAX_SEARCHED_BYTES = 1 << 20  # of a text; of longer ones the beginning is searched
NO_TEXTS = PICTURES | SOUNDS | VIDEOS | ARRAYS  # suffixes of fields that are not searched


def search_words(query: str) -> list[str]:
    """Return the words of *query*, in small letters, without quotes; blanks in double quotes do not end a word.

    Quotes that are not closed last to the end of *query*.

    >>> search_words('Oak "cls=sea lion"')
    ['oak', 'cls=sea lion']
    """
    return [word.lower().replace('"', "") for word in re.findall(r'(?:[^\s"]|"[^"]*"?)+', query)]


def has_words(sample: Sample, words: Sequence[str]) -> bool:
    """True if *sample* has each of *words*, in its key or a text, ignoring case; True without words.

    *words*: from `search_words`, in small letters. `field=part` is a word for a part of the text of a field,
    `field==value` for all of it; as any word, it is also found as it is in the key or in the text of another field.
    Texts are what `texts_of` yields. Raises: StorageError if a payload can't be read.
    """
    missing = [word for word in words if word not in sample.key.lower()]
    for field, value in texts_of(sample) if missing else ():
        missing = [word for word in missing if not _is_in(word, field, value)]
        if not missing:
            break
    return not missing


def texts_of(sample: Sample) -> Iterator[tuple[str, str]]:
    """Yield (field, text) for each member of *sample* that may be text, decompressed, both in small letters.

    These are all but pictures, sounds, videos and arrays, by their suffixes. Only the first 1 MiB (MAX_SEARCHED_BYTES)
    of a text is yielded; bytes that are not UTF-8 become replacement characters. Members that can't be decompressed are
    skipped. Raises: StorageError if a payload can't be read.
    """
    for member in sample.members:
        if suffix_of(field_name(member)) in NO_TEXTS:
            continue
        try:
            with unpack_member(member).open() as file:
                payload = file.read(MAX_SEARCHED_BYTES)
        except ValueError:  # it can't be decompressed
            continue
        yield field_name(member).lower(), payload.decode(errors="replace").lower()


def _is_in(word: str, field: str, value: str) -> bool:
    """True if *word* is in *value*, the text of *field*; if it is a condition on this field, True if that holds.

    A condition is `field=part`: *value* has the part; or `field==text`: it is this text, but for a final newline.
    """
    name, equals, part = word.partition("=")
    if equals and name == field:
        return value.removesuffix("\n") == part[1:] if part.startswith("=") else part in value
    return word in value
