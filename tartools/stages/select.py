"""Stages that select samples and fields, and rename keys."""

import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from tartools import tar
from tartools.errors import SampleError, UsageError
from tartools.samples.account import Account
from tartools.samples.keytemplates import parse_template
from tartools.samples.sample import Sample, failure_of, make_path
from tartools.samples.values import absent_field_error, field_list, require_safe_key, text_of
from tartools.tar import join_path, split_path
from tartools.tar.compression import split_suffix

Item = TypeVar("Item")  # a sample, or what stands for one


class Word(NamedTuple):
    """One word of a field specification: `a;b;c` or `new=a;b`.

    `choices`: names of fields, of which the first that a sample has is taken. `new`: the new name of the field, None to
    keep it. `str(word)`: its text.
    """

    choices: tuple[str, ...]
    new: str | None

    def __str__(self) -> str:
        return f"{self.new}={';'.join(self.choices)}" if self.new else ";".join(self.choices)


def parse_words(specs: Sequence[str] | None) -> list[Word]:
    """Return the words in *specs*, separated by blanks; [] if None. Raises: UsageError for an empty name.

    >>> parse_words(["jpg;png", "label=cls"])[1]
    Word(choices=('cls',), new='label')
    """
    words = []
    for text in " ".join(specs or ()).split():
        new, equals, names = text.rpartition("=")
        choices = tuple(names.split(";"))
        if not all(choices) or (equals and not new):
            raise UsageError(f"not a field specification: {text!r}; write a, a;b, or new=a;b")
        words.append(Word(choices, new if equals else None))
    return words


def parse_choices(specs: Sequence[str] | None, option: str) -> list[tuple[str, ...]]:
    """Return the alternative fields of each word in *specs*: ['jpg;png cls'] gives [(jpg, png), (cls,)]; [] for None.

    *option*: its name, for the message. Raises: UsageError for a word like new=old, since this option renames no field,
    for an empty name, and if there are no words.
    """
    words = parse_words(specs)
    if specs is not None and (not words or any(word.new for word in words)):
        raise UsageError(f"{option} takes names of fields, in quotes: 'jpg cls', or 'jpg;png' for either")
    return [word.choices for word in words]


def take_first(samples: Iterable[Item], max_count: int) -> Iterator[Item]:
    """Yield the first *max_count* of *samples*, all if there are fewer; read no further; 0: read nothing."""
    if max_count:
        for number, sample in enumerate(samples, 1):
            yield sample
            if number == max_count:
                return


def take_slice(samples: Iterable[Item], chosen: slice, account: Account) -> Iterator[Item]:
    """Yield the samples whose numbers, from 0, are in the slice *chosen*, which has no negatives; read no further.

    Counts the samples that it reads and does not yield, up to the last number in *chosen*, as left out in *account*.
    Reads nothing if *chosen* is empty.
    """
    numbers = range(*chosen.indices(sys.maxsize))
    last = numbers[-1] if numbers else -1
    for number, sample in enumerate(samples if numbers else ()):
        if number in numbers:
            yield sample
        else:
            account.left_out += 1
        if number == last:
            return


def select_fields(
    samples: Iterable[Sample],
    words: Sequence[Word],
    dropped: Sequence[str],
    account: Account,
    *,
    verbatim: bool = False,
) -> Iterator[Sample]:
    """Yield *samples* with only the members that *words* select (all if empty), without the fields *dropped*.

    A word selects every member of the first of its fields that the sample has and *dropped* does not name, and renames
    it to `new`, if given; a field that words select under several names comes under each. Case is ignored unless
    *verbatim*. Members keep their order. A sample without a member left is left out, and counted so in *account*.
    Adds a check to `account.watched`: if there were samples, it raises SampleError if none had a field of some word
    that is not *dropped*, and warns if none had one of the fields *dropped*. It may be called before the end, where a
    later stage stops.

    Raises: SampleError if a renamed member would get the name of another selected one, or one that would not read back.
    """
    fold: Callable[[str], str] = str if verbatim else str.lower
    unwanted = {fold(name): name for name in dropped}
    unseen = dict.fromkeys(words)
    chosen: dict[tuple[str, ...], list[tuple[int, str | None]]] = {}  # of samples with these fields

    def check() -> None:
        names = dict.fromkeys(name for names in chosen for name in names)
        if unseen and names:
            raise absent_field_error(" ".join(map(str, unseen)), names)
        folded_names = {*map(fold, names)}
        if names and (absent := " ".join(name for folded, name in unwanted.items() if folded not in folded_names)):
            account.warn(f"-x: {absent_field_error(absent, names)}")
        account.watched.remove(check)

    account.watched.append(check)
    for sample in samples:
        names = sample.fields
        if names not in chosen:
            chosen[names] = _choose_fields(names, words, unwanted, fold, unseen)
            new_names = [new or names[at] for at, new in chosen[names]]
            for _, new in chosen[names]:
                if new is not None and new_names.count(new) > 1:
                    twice = make_path(sample.key, new).decode("utf-8", "replace")
                    raise SampleError(f"sample {sample.key!r} would get two members {twice!r}")
        if chosen[names]:
            members, key = sample.members, sample.key
            yield sample.with_members(
                members[at] if new is None else tar.rename_member(members[at], make_path(key, new))
                for at, new in chosen[names]
            )
        else:
            account.left_out += 1


def _choose_fields(
    names: Sequence[str],
    words: Sequence[Word],
    unwanted: Container[str],
    fold: Callable[[str], str],
    unseen: dict[Word, None],
) -> list[tuple[int, str | None]]:
    """Return (index, new name or None) of each of *names*, the fields of a sample, that *words* select.

    The index is that in *names*; without *words*, all fields are selected. A field that two words select under
    different names comes twice. `fold`: makes names equal that count as one. `unwanted`: folded names to drop.
    `unseen`: words that no sample had so far; words that match are removed.
    """
    folded = [fold(name) for name in names]
    if not words:
        return [(at, None) for at, name in enumerate(folded) if name not in unwanted]
    targets: dict[str, dict[str | None, None]] = {}
    for word in words:
        folded_choices = (fold(choice) for choice in word.choices)
        match = next((name for name in folded_choices if name in folded and name not in unwanted), None)
        if match is not None:
            targets.setdefault(match, {})[word.new] = None
            unseen.pop(word, None)
    return [(at, new) for at, name in enumerate(folded) for new in targets.get(name, ())]


def select_by_specs(
    samples: Iterator[Sample],
    specs: Sequence[str] | None,
    excluded: Sequence[str] | None,
    account: Account,
    *,
    verbatim: bool = False,
) -> Iterator[Sample]:
    """Return *samples* with only the fields that *specs* select, without *excluded* ones; members keep their order.

    *specs*: texts of words (`a`, `a;b`, `new=a`). *excluded*: texts of names. Both are separated by blanks; without
    any, *samples* is returned as it is. Case is ignored unless *verbatim*. Samples without a member left are counted as
    left out in *account*. Raises: UsageError for a bad word; the iterator raises SampleError if a renamed member would
    get the name of another one, or one that would not read back. `account.check()` raises SampleError if there were
    samples, and none has a field of some word that is not *excluded*; it warns of *excluded* fields that none has.
    """
    if not (specs or excluded):
        return samples
    words, dropped = parse_words(specs), " ".join(excluded or ()).split()
    return select_fields(samples, words, dropped, account, verbatim=verbatim)


def rekey(samples: Iterable[Sample], template: str, *, verbatim: bool = False) -> Iterator[Sample]:
    """Yield *samples* with new keys: *template* with {index}, {key}, {shard} and text fields ({cls}) filled in.

    {index} is the number of the sample, from 0; {shard} the name of its file without its suffix as a shard, such as
    .tar.gz. Names of fields compare without case unless *verbatim*. Raises, once the iteration begins: UsageError for a
    bad template; SampleError for a field that is missing, there twice or no text, for a new key that would not read
    back, and for one made of fields that is absolute or has a part `..`; StorageError if a file has changed.
    """
    make = make_rekeyer(template, verbatim=verbatim)
    for index, sample in enumerate(samples):
        yield make(sample, index=index)


def make_rekeyer(template: str, more_numbers: Sequence[str] = (), *, verbatim: bool = False) -> Callable[..., Sample]:
    """Return a function that gives a sample a new key, made from *template*.

    The template has {key}, {shard}, {index} and names of text fields, compared without case unless *verbatim*; formats
    of numbers as in {index:06}. {shard} is the name of the sample's file without its suffix as a shard, such as
    .tar.gz. The function takes the sample and keywords: `index`, and *more_numbers*, names of numbers that the template
    may use, too.

    Raises: UsageError for a bad template; the function, too, if a number is not given or does not fit its format. The
    function raises SampleError for a key that would not read back (empty, or with a dot in its base name), a field that
    is missing, there twice, damaged or no text, and a key made of fields that is absolute or has a part `..`;
    StorageError if the file of the sample has changed.
    """
    numbers = ("index", *more_numbers)
    try:
        format_text, fields = parse_template(template, (*numbers, "key", "shard"))
    except ValueError as error:
        raise _bad_template(template, numbers) from error
    if any(not name or name.isdigit() for name in fields.values()):
        raise _bad_template(template, numbers)

    def rename_sample(sample: Sample, **values: object) -> Sample:
        shard = split_suffix(base_name(sample.shard))[0]
        values.update((name, _text_field(sample, field, verbatim)) for name, field in fields.items())
        try:
            text = format_text.format(key=sample.key, shard=shard, **values)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            raise _bad_template(template, numbers) from error
        try:
            key = (require_safe_key(text) if fields else text).encode("utf-8", "surrogateescape")
        except SampleError as error:
            raise failure_of(sample, f": {error.message}") from None
        return with_key(sample, key)

    return rename_sample


def _bad_template(template: str, numbers: Sequence[str]) -> UsageError:
    names = ", ".join(f"{{{name}}}" for name in (*numbers, "key", "shard", "FIELD"))
    return UsageError(f"not a template for keys: {template!r}; it may use {names}")


def _text_field(sample: Sample, field: str, verbatim: bool) -> str:
    """Return the payload of *field* of *sample* as text, unpacked, without a final newline.

    *verbatim*: compare names of fields with case; the newline is removed all the same.

    Raises: SampleError if the field is missing, there twice, damaged, or not UTF-8; StorageError if the file of the
    sample has changed, or as `unpack` says.
    """
    payload = sample.get(field, verbatim=verbatim)
    if payload is None:
        have = field_list(sample.fields)
        raise failure_of(sample, f" has no field {field!r}, which --rekey names; its fields are: {have}")
    return text_of(sample, field, payload, verbatim=False)


def base_name(url: str) -> str:
    """Return the last part of the path of *url*, without a query, which may be a signature.

    >>> base_name("data/what?.tar"), base_name("https://host/b/a.tar?X-Amz-Signature=a/b")
    ('what?.tar', 'a.tar')
    """
    if "://" in url and not url.startswith("file:"):
        url = url.partition("?")[0]
    return url.rpartition("/")[2]


def with_key(sample: Sample, key: bytes) -> Sample:
    """Return *sample* with the key *key*, its members renamed. Raises: SampleError if it would not read back.

    So a key may not be empty, have a NUL byte, end in a slash, or have a dot in its last part; without fields this may
    begin or end with one. Raises: StorageError if the file of a member has changed.
    """
    members = []
    for member in sample.members:
        field = split_path(member.path)[1]
        path = join_path(key, field)
        if not key or b"\0" in key or split_path(path) != (key, field) or path.endswith(b"/"):
            why = "; its last part may have no dot" if b"." in key[key.rfind(b"/") + 1 :] else ""
            name = key.decode("utf-8", "replace")
            raise failure_of(sample, f" cannot have the key {name!r}: it would not read back{why}")
        members.append(tar.rename_member(member, path))
    return sample.with_members(members, key)
