"""The rules by which Hugging Face's datasets loads a folder of shards: names of splits, first samples, types.

datasets finds the shards of each split by their names (`data_files.py`), then takes columns and their types from the
first five samples of one shard: the first of the last split. It casts all other values to these types, and drops other
fields. A card, README.md beside the shards, can name the splits and the columns instead: `DatasetCard`.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tartools.stages.checking.across import DOUBTFUL_PREFIX, note_tally
from tartools.stages.checking.codes import Place
from tartools.stages.checking.readers import RESERVED_FIELDS, UNKNOWN, FirstSample, ReaderRules
from tartools.stages.checking.valuetypes import MIXED, ValueType, conflict, misfit, widest_type
from tartools.storage.url import Url, drop_commit, parts_of

if TYPE_CHECKING:
    from tartools.stages.checking.checked import InputsToCheck
    from tartools.stages.summary import Summary

SPLIT_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SEPARATOR = "[-._ 0-9]"
_SHARDED = re.compile(r"data/([^/]*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
_SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
_SHARD_NAME = re.compile(r".*\.tar(\..+)?", re.DOTALL)
OTHER_MODULES = ("parquet", "arrow", "jsonl", "json", "csv", "tsv", "txt", "wav", "webp", "xml")  # preferred to tar
UNREAD_CODECS = (".zst", ".zstd", ".lz4")
HUB_PREFIX = re.compile(r"hf://datasets/[^/]+/[^/]+/")


class Shard(NamedTuple):
    """A shard of the data set: number of the input, path in the repository, and number of files that it is in."""

    number: int
    path: str
    parts: int = 1


@dataclass
class DatasetCard:
    """The contents of the card of a data set on Hugging Face.

    `splits`: name -> patterns of the paths of its shards; empty if datasets loads no shard by its name (stdin).
    `features`: (field, type) of each column, without RESERVED_FIELDS. `unknown`: the fields whose type is not known,
    and "..." if there are further fields; if not empty, *features* can't be written to a card.
    """

    splits: dict[str, list[str]]
    features: list[tuple[str, ValueType]]
    unknown: list[str]


def note_codecs(summary: Summary, inputs: InputsToCheck, reader: ReaderRules) -> None:
    """Add the finding "reader-codec" to *summary* for each shard that is zstd or lz4 by its name.

    Python's tarfile can't decompress lz4, nor zstd before Python 3.14. The suffixes are UNREAD_CODECS, in any case.
    *reader*: the library that the finding names.
    """
    for number, url in enumerate(inputs.urls):
        name = Url(url).name
        if number not in inputs.tables and name.lower().endswith(UNREAD_CODECS):
            summary.note("reader-codec", Place(number, -1, "", reader.name))


def note_dataset(summary: Summary, inputs: InputsToCheck) -> DatasetCard:
    """Add findings about the data set of all *inputs*, as datasets loads it, to *summary*; return the card for it.

    *summary*: of a check of all *inputs* by the rules of `READERS["hf"]`, which notes types and first samples.
    """
    shards = repository_shards(inputs)
    readable = note_names(summary, shards)
    splits = splits_of([shard.path for shard in readable])
    note_splits(summary, readable, splits)
    first = next(iter(inputs.tables), 0)
    if readable:
        last_split = [*splits.values()][-1] if splits else range(len(readable))
        first = readable[last_split[0]].number
    note_values(summary, first)
    names = named_splits(readable, splits)
    features = [
        (name, widest_type(types)) for name, types in ordered_types(summary, first) if name not in RESERVED_FIELDS
    ]
    unknown = [name for name, kind in features if kind == UNKNOWN]
    if summary.many_combinations:
        unknown.append("...")
    return DatasetCard(names, features, unknown)


# ---- names ----


def repository_shards(inputs: InputsToCheck) -> list[Shard]:
    """Return the shards among *inputs* that have a name, sorted by number, with their paths in the repository.

    The repository of shards on the hub is their data set; of all others it is the deepest folder that holds them, or
    the one above if that is `data`: d/data/a.tar and d/data/b.tar have the paths data/a.tar and data/b.tar. An archive
    in parts has the path of its first part. Tables, missing shards, stdin and commands are left out.
    """
    shards: list[Shard] = []
    outside: list[Shard] = []
    for number, url in enumerate(inputs.urls):
        if number in inputs.tables or number in inputs.missing or Url(url).scheme in ("-", "pipe"):
            continue
        parts = parts_of(url)
        name = drop_commit(parts[0].name)
        if match := HUB_PREFIX.match(name):
            shards.append(Shard(number, name[match.end() :], len(parts)))
        else:
            outside.append(Shard(number, posixpath.normpath(name) if parts[0].is_local else name, len(parts)))
    folders = [shard.path.split("/")[:-1] for shard in outside]
    common = 0
    while folders and all(folder[: common + 1] == folders[0][: common + 1] for folder in folders):
        if common == len(folders[0]):
            break
        common += 1
    if common and folders[0][common - 1] == "data":
        common -= 1
    shards += [shard._replace(path="/".join(shard.path.split("/")[common:])) for shard in outside]
    return sorted(shards)


def note_names(summary: Summary, shards: Sequence[Shard]) -> list[Shard]:
    """Add a finding to *summary* for each of *shards* that datasets does not load, by its name; return the others.

    It does not load hidden files (the name or a folder begins with a dot, or a folder with __), names without the
    suffix .tar, which others may follow, and archives in several parts. The code is "hf-name".
    """
    loaded = []
    for shard in shards:
        *folders, base = shard.path.split("/")
        fault = ""
        if shard.parts > 1:
            fault = "it is in parts, and datasets does not join them"
        elif any(folder.startswith((".", "__")) for folder in folders) or base.startswith("."):
            fault = "names that begin with a dot, and folders that begin with __, are hidden"
        elif not _SHARD_NAME.fullmatch(base):
            fault = "it does not end in .tar, .tar.gz, .tar.bz2 or .tar.xz"
        if fault:
            summary.note("hf-name", Place(shard.number, -1, "", fault))
        else:
            loaded.append(shard)
    return loaded


def splits_of(paths: Sequence[str]) -> dict[str, list[int]]:
    """Return split -> indexes of its *paths*, in the order in which datasets has them; an index may come twice.

    Names such as `data/train-00000-of-00010.tar` count alone; else folders that are named like a split; else names of
    files (SPLIT_KEYWORDS). Without any, all paths are in the split train; {} without paths.

    >>> splits_of(["val-1.tar", "train-1.tar", "more.tar", "train-0.tar"]), splits_of(["a.tar"])
    ({'train': [3, 1], 'validation': [0]}, {'train': [0]})
    """
    order = sorted(range(len(paths)), key=paths.__getitem__)
    sharded: dict[str, list[int]] = {}
    for index in order:
        if match := _SHARDED.fullmatch(paths[index]):
            sharded.setdefault(match[1], []).append(index)
    if sharded:
        usual_splits = [split for split in SPLIT_KEYWORDS if split in sharded]
        return {split: sharded[split] for split in [*usual_splits, *sorted(sharded.keys() - usual_splits)]}
    for patterns in (folder_patterns, file_patterns):
        splits = {
            split: [
                index
                for keyword in keywords
                for pattern in patterns(keyword)
                for index in order
                if pattern.fullmatch(paths[index])
            ]
            for split, keywords in SPLIT_KEYWORDS.items()
        }
        if any(splits.values()):
            return {split: indexes for split, indexes in splits.items() if indexes}
    return {"train": order} if order else {}


def folder_patterns(keyword: str) -> list[re.Pattern[str]]:
    """Return the patterns of paths in a folder that *keyword* names, in the order in which datasets tries them.

    They match a whole path. For "train": train/a.tar, train-old/a.tar, my-train/a.tar, my-train-old/a.tar, in folders
    or not.
    """
    names = (keyword, f"{keyword}{_SEPARATOR}[^/]*", f"[^/]*{_SEPARATOR}{keyword}")
    return [
        re.compile(f"(?:.*/)?{name}/.*", re.DOTALL) for name in (*names, f"[^/]*{_SEPARATOR}{keyword}{_SEPARATOR}[^/]*")
    ]


def file_patterns(keyword: str) -> list[re.Pattern[str]]:
    """Return the patterns of paths of files that *keyword* names, in the order in which datasets tries them.

    They match a whole path. For "train": train-0.tar or train.tar, then my-train-0.tar, in folders or not.
    """
    return [re.compile(f"(?:.*/)?{start}{keyword}{_SEPARATOR}[^/]*", re.DOTALL) for start in ("", f"[^/]*{_SEPARATOR}")]


def note_splits(summary: Summary, shards: Sequence[Shard], splits: Mapping[str, Sequence[int]]) -> None:
    """Add findings to *summary* about *shards* in no split or twice, and split names that datasets refuses.

    Also for each split whose shards datasets reads as another format, such as JSON, because their names have that
    suffix, too. *splits*: indexes of *shards* by split. Codes: "hf-split"; "hf-name" for another format.
    """
    counts = Counter(index for indexes in splits.values() for index in indexes)
    for index, shard in enumerate(shards):
        names = [split for split, indexes in splits.items() if index in indexes]
        if not names:
            summary.note("hf-split", Place(shard.number, -1, "", f"in none of {' '.join(splits)}"))
        elif counts[index] > 1:
            summary.note("hf-split", Place(shard.number, -1, "", f"read {counts[index]} times: {' '.join(names)}"))
        elif not _SPLIT_NAME.fullmatch(names[0]):
            summary.note("hf-split", Place(shard.number, -1, "", f"no name for a split: {names[0]}"))
    for indexes in splits.values():
        suffixes = [shards[index].path.rpartition("/")[2].lower().split(".")[1:] for index in indexes]
        for module in OTHER_MODULES:
            if sum(names.count(module) for names in suffixes) >= len(suffixes):
                place = Place(shards[indexes[0]].number, -1, "", f"read as {module}, the other suffix of its name")
                summary.note("hf-name", place, len(set(indexes)))
                break


def named_splits(shards: Sequence[Shard], splits: Mapping[str, Sequence[int]]) -> dict[str, list[str]]:
    """Return split -> patterns of its *shards*. Each shard is in one split, and matches one pattern.

    *splits*: indexes of *shards* as datasets finds them. A shard that is not in exactly one, or in one whose name is
    refused, is in a split named after its file, up to .tar, without the number at its end, and with _ for characters
    that are not of words: a-b-07.tar in a_b, v2-en-1-of-9.tar in v2_en, 7.tar in train.
    """
    counts = Counter(index for indexes in splits.values() for index in indexes)
    paths: dict[str, list[str]] = {}
    for split, indexes in splits.items():
        for index in indexes:
            if counts[index] == 1 and _SPLIT_NAME.fullmatch(split):
                paths.setdefault(split, []).append(shards[index].path)
    placed = {path for names in paths.values() for path in names}
    for path in sorted({shard.path for shard in shards} - placed):
        stem = path.rpartition("/")[2].partition(".tar")[0]
        name = re.sub(r"\W+", "_", re.sub(r"(?:[-_. ]*\d+(?:-of-\d+)?)?$", "", stem)).strip("_")
        paths.setdefault(name or "train", []).append(path)
    everything = [path for names in paths.values() for path in names]
    return {split: patterns_of(names, everything) for split, names in paths.items()}


def patterns_of(paths: Sequence[str], everything: Sequence[str]) -> list[str]:
    """Return patterns, with * for numbers, that match each of *paths* once and no other path of *everything*.

    If there are none, the paths themselves, in which characters of patterns are escaped.

    >>> patterns_of(["train-0.tar", "train-1.tar"], ["train-0.tar", "train-1.tar", "test-0.tar"])
    ['train-*.tar']
    """
    escaped = [re.sub(r"[*?[]", r"[\g<0>]", path) for path in paths]
    patterns = [*dict.fromkeys(re.sub(r"[0-9]+", "*", path) for path in escaped)]
    compiled = [re.compile(_regular_expression(pattern), re.DOTALL) for pattern in patterns]
    matches = Counter(path for pattern in compiled for path in everything if pattern.fullmatch(path))
    return patterns if matches == Counter(paths) else escaped


def _regular_expression(pattern: str) -> str:
    """Return *pattern*, in which * stands for any characters but / and [c] for c, as a regular expression."""
    return "".join(
        "[^/]*" if part == "*" else re.escape(part[1] if len(part) > 1 else part)
        for part in re.findall(r"\[[*?[]\]|.", pattern, re.DOTALL)
    )


# ---- fields and types ----


def note_values(summary: Summary, first: int) -> None:
    """Add findings to *summary* about samples that do not fit the fields and types of the first ones of input *first*.

    If there are no first samples, or their fields differ ("hf-first-samples"), or their types can't be merged
    ("hf-first-types"), that is the only finding; else `note_later_samples` compares all samples with them.
    """
    samples = summary.first_samples.get(first, [])
    if not samples:
        summary.note("hf-first-samples", Place(first, -1, "", "no samples"))
        return
    names = [name for name, _ in samples[0].types]
    for sample in samples[1:]:
        own_names = [name for name, _ in sample.types]
        if set(own_names) != set(names):
            detail = f"has {' '.join(own_names)}, but {samples[0].key} has {' '.join(names)}"
            summary.note("hf-first-samples", Place(first, sample.byte, sample.key, detail))
            return
    columns = first_columns(summary, first, samples)
    if columns is not None:
        note_later_samples(summary, columns)


def note_later_samples(summary: Summary, columns: Mapping[str, ValueType]) -> None:
    """Add findings to *summary* about samples with fields that *columns* lack, or other types of values.

    *columns*: field -> type; values of a field whose type is UNKNOWN are not compared. A missing field gives no
    finding. Types of a field after the first 1,000 count as other types. Codes: "hf-late-field", "hf-late-type".
    """
    for combination, tally in list(summary.combinations.items()):
        if combination and tally.count > 0:
            for name in combination.removeprefix(DOUBTFUL_PREFIX).split("/"):
                if name not in columns:
                    note_tally(summary, "hf-late-field", tally, name)
    for name, column in columns.items():
        for kind, tally in summary.types.get(name, {}).items():
            if kind is None:
                detail = f"{name}: more than 1,000 types; the others are not compared"
            else:
                detail = misfit(column, kind, name) if column != UNKNOWN else ""  # type: ignore[arg-type]
            if detail:
                note_tally(summary, "hf-late-type", tally, detail)


def first_columns(summary: Summary, first: int, samples: Sequence[FirstSample]) -> dict[str, ValueType] | None:
    """Return field -> type that datasets takes from *samples*, the first of input *first*, which have equal fields.

    *samples*: at least one. The type is UNKNOWN if it is so in a sample. None, and one finding in *summary*,
    "hf-first-types", if their types can't be merged.
    """
    columns: dict[str, ValueType] = dict.fromkeys((name for name, _ in samples[0].types), "null")
    is_merged = True
    for sample in samples:
        for name, kind in sample.types:
            detail = "" if UNKNOWN in (kind, columns[name]) else conflict(columns[name], kind, name)
            if detail and is_merged:
                summary.note("hf-first-types", Place(first, sample.byte, sample.key, detail))
                is_merged = False
            columns[name] = UNKNOWN if UNKNOWN in (kind, columns[name]) else widest_type((columns[name], kind))
    return columns if is_merged else None


def ordered_types(summary: Summary, first: int) -> list[tuple[str, list[ValueType]]]:
    """Return (field, types of its values) of all samples; the fields of the first sample of input *first* come first.

    The others follow, sorted by name. Fields without a type are left out. MIXED stands for all types of a field after
    its first 1,000.
    """
    samples = summary.first_samples.get(first, [])
    names = [name for name, _ in samples[0].types] if samples else []
    return [
        (name, [MIXED if kind is None else kind for kind in summary.types[name]])  # type: ignore[misc]
        for name in [*names, *sorted(summary.types.keys() - names)]
        if summary.types.get(name)
    ]
