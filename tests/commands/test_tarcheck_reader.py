"""tarcheck --for: each claim about a reader is compared with that reader, datasets or webdataset, which loads the set.

The rule: without a finding every value comes out of the reader as it went in, streaming and not; with one, loading
fails, or a value is lost or changed. The neighbour of each faulty set, without the fault, has no finding.
"""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import json
import lzma
import math
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml

from tartools.stages.checking import datasetrules
from tartools.stages.checking.codes import CODES
from tartools.stages.checking.readers import READERS, UNDECODED_HERE, UNKNOWN
from tests.archives import npy
from tests.commands.conftest import Inside
from tests.conftest import Run, make_tar
from tests.storage.objects.fake_hf import Repository
from tests.storage.objects.hubserver import Hub
from tests.tiers import also, by_turns

Members = list[tuple[str, bytes]]
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)


def encode(value: Any, field: str) -> bytes:
    """Return *value* as the payload of *field*."""
    if isinstance(value, bytes):
        return value
    return json.dumps(value).encode() if field == "json" else str(value).encode()


def members(*samples: Mapping[str, Any], first: int = 0) -> Members:
    """Return the members of *samples*, field -> value, with keys from *first* on."""
    return [
        (f"{key:03d}.{field}", encode(value, field))
        for key, sample in enumerate(samples, first)
        for field, value in sample.items()
    ]


def decoded(stored: Sequence[tuple[str, bytes]]) -> list[tuple[str, dict[str, Any]]]:
    """Return (key, fields) of each sample in the members *stored*, with values as JSON, text, a number or bytes."""
    samples: list[tuple[str, dict[str, Any]]] = []
    readers: dict[str, Callable[[bytes], Any]] = {"json": json.loads, "txt": bytes.decode, "cls": int}
    readers |= {"npy": lambda payload: np.load(io.BytesIO(payload)).tolist()}
    for path, payload in stored:
        folder, slash, base = path.rpartition("/")
        key, _, field = base.partition(".")
        key = folder + slash + key
        if not field:
            continue
        value = readers.get(field.rpartition(".")[2].lower(), bytes)(payload)
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        samples[-1][1][field] = value
    return samples


def comparable(value: Any) -> Any:
    """Return *value* without names whose value is None, with numbers as float, so that equal ones compare equal."""
    if isinstance(value, dict):
        return {name: comparable(member) for name, member in value.items() if member is not None}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [comparable(member) for member in value]
    if isinstance(value, (bool, np.bool_)):
        return f"bool {value}"
    if isinstance(value, (int, float, np.number)):
        return "NaN" if math.isnan(value) else float(value)
    return value


def split_rows(loaded: Any) -> Rows:
    """Return the rows of a split, with pictures as they are stored."""
    import datasets

    for name, feature in loaded.features.items():
        if isinstance(feature, (datasets.Image, datasets.Video)):
            loaded = loaded.cast_column(name, type(feature)(decode=False))
    rows = list(loaded)
    for row in rows:
        for name, value in row.items():
            if isinstance(value, dict) and set(value) == {"bytes", "path"}:
                row[name] = value["bytes"]
    return rows


def is_lossless(stored: Members, rows: Rows | None) -> bool:
    """True if *rows* have all values of the samples *stored*, and the keys."""
    if rows is None:
        return False
    expected = [comparable({"__key__": key, **fields}) for key, fields in decoded(stored)]
    return [comparable({**row, "__url__": None}) for row in rows] == expected


class Folder:
    """The folder *path* of a data set, which datasets loads into caches beside it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._loads = 0

    def write(self, shards: Mapping[str, Members]) -> list[str]:
        """Write *shards*, by path, alone into the folder; return their paths for tarcheck."""
        shutil.rmtree(self.path, ignore_errors=True)
        for path, stored in shards.items():
            (self.path / path).parent.mkdir(parents=True, exist_ok=True)
            content = make_tar(stored)
            packed = {".gz": gzip.compress, "tgz": gzip.compress, "bz2": bz2.compress, ".xz": lzma.compress}
            (self.path / path).write_bytes(packed.get(path[-3:], bytes)(content))
        return [str(self.path / path) for path in shards]

    def add_card(self, card: str) -> None:
        """Write *card* as README.md."""
        (self.path / "README.md").write_text(f"{card}\n# A set\n")

    def load(self, streaming: bool) -> dict[str, Rows] | None:
        """Return the rows of each split from datasets; None if it fails."""
        import datasets

        cache = self.path.with_name(f"cache-{self._loads}")
        self._loads += 1
        try:
            loaded = datasets.load_dataset(str(self.path), streaming=streaming, cache_dir=str(cache))
            return {split: split_rows(rows) for split, rows in loaded.items()}
        except Exception:  # each library that it uses has its own
            return None
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    def outcomes(self, stored: Members, ways: Sequence[bool] = (False, True)) -> list[bool]:
        """Return whether datasets loads all values of *stored*, the shard of the split train: not streaming, and so."""
        return [is_lossless(stored, (self.load(streaming) or {}).get("train")) for streaming in ways]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return an empty folder for a data set."""
    return Folder(tmp_path / "set")


class Found(NamedTuple):
    """The report of tarcheck --for: its codes that are about the reader, the card, and all facts."""

    codes: set[str]
    card: str
    facts: dict[str, Any]


Check = Callable[..., Found]


@pytest.fixture
def check(inside: Inside) -> Check:
    """Return a function that runs tarcheck --for hf --json on shards, and checks the exit status."""

    def check(*arguments: str, reader: str = "hf") -> Found:
        done = inside("tarcheck", "--for", reader, "--json", *arguments)
        assert done.stderr == ""
        facts = json.loads(done.stdout)
        assert done.status == int(facts["errors"] + facts["warnings"] > 0)
        codes = {each["code"] for each in facts["findings"]}
        return Found({code for code in codes if code.startswith(("hf-", "reader-"))}, facts.get("card", ""), facts)

    return check


FIVE = [{"txt": f"text {n}", "cls": n} for n in range(5)]
PICTURES = [{"JPG": b"\xff\xd8\xff%d" % n, "seg.png": b"\x89PNG%d" % n, "bin": b"%d" % n} for n in range(6)]
JSON_FIVE = [{"json": {"a": n, "b": [n], "c": {"d": "x"}}} for n in range(5)]
ARRAYS = [{"npy": npy(range(n), "<f4")} for n in range(5)]
SOUND = {  # without the fault
    "fields": members(*FIVE),
    "a late sample without a field": members(*FIVE, {"cls": 7}),
    "pictures, upper case": members(*PICTURES),
    "JSON": members(*JSON_FIVE, {"json": {"a": None}}, {"json": {}}, {"json": {"b": [], "c": {"d": None}}}),
    "null, then a value": members({"json": {"a": None}}, {"json": {"a": 1}}, {"json": {"a": 2}}),
    "other names in the first five": members({"json": {"a": 1}}, {"json": {"b": [{"x": 1}, {"y": 2}]}}),
    "JSON constants": [*members(*([{"json": {"a": 1.5}}] * 5)), ("x.json", b'{"a": NaN}')],
    "JSON in UTF-16, with a mark": [("a.json", '{"a": 1}'.encode("utf-16")), ("b.json", b'\xef\xbb\xbf{"a": 2}')],
    "62 lists": [("a.json", b"[" * 62 + b"1" + b"]" * 62)],
    "arrays": members(*ARRAYS, {"npy": npy(range(9), "<f4")}),
    "smaller arrays": members(*[{"npy": npy([1.5], "<f8")}] * 5, {"npy": npy([2.5], "<f4")}),
    "numbers with signs and blanks": members(*FIVE, {"txt": "x", "cls": b" -1_0\n"}),
    "no field": [*members(*FIVE), ("README", b"x")],
    "folders": [("a/__x/1.cls", b"1"), ("./v1.0/2.cls", b"2")],
    "two suffixes that differ in case": [("a.TXT", b"1"), ("a.txt", b"2"), ("b.TXT", b"1"), ("b.txt", b"2")],
}


@pytest.mark.parametrize("name", SOUND)
def test_datasets_loads_what_passes(name: str, check: Check, folder: Folder) -> None:
    (path,) = folder.write({"train-0.tar": SOUND[name]})
    found = check(path)
    assert found.codes == set()
    assert folder.outcomes(SOUND[name]) == [True, True]
    folder.add_card(found.card)
    assert folder.outcomes(SOUND[name]) == [True, True]


FAULTS: dict[str, tuple[str, Members, bool]] = {  # the code, the set, and whether its card mends it
    "fields that differ": ("hf-first-samples", members(*FIVE[:2], {"cls": 1}), True),
    "fields that differ in case": ("hf-first-samples", members(FIVE[0], {"TXT": "x", "cls": 1}), True),
    "keys with dots": (
        "hf-first-samples",
        [(f"img.{n}.{field}", b"1") for n in range(2) for field in ("cls", "txt")] + [("b.1.cls", b"1")],
        True,
    ),
    "no samples": ("hf-first-samples", [("README", b"x")], False),
    "a late field": ("hf-late-field", members(*FIVE, {"txt": "x", "cls": 1, "json": {"a": 1}}), True),
    "a late field in capitals": ("hf-late-field", members(*FIVE, {"TXT": "x", "cls": 1}), True),
    "a late key with a dot": ("hf-late-field", [*members(*FIVE), ("v1.5.txt", b"x")], True),
    "numbers and text": ("hf-first-types", members({"json": {"a": 1}}, {"json": {"a": "x"}}), True),
    "whole numbers and others": ("hf-first-types", members({"json": 1}, {"json": 1.5}), True),
    "a list of several types": ("hf-first-types", members({"json": ["cat", 0.5]}), True),
    "a late number": ("hf-late-type", members(*JSON_FIVE, {"json": {"a": 1.5}}), True),
    "a late text": ("hf-late-type", members(*JSON_FIVE, {"json": {"b": ["x"]}}), True),
    "a late name": ("hf-late-type", members(*JSON_FIVE, {"json": {"a": 1, "new": 1}}), True),
    "null, late a number": ("hf-late-type", members(*[{"json": {"a": None}}] * 5, {"json": {"a": 1}}), True),
    "an empty list, late a number": ("hf-late-type", members(*[{"json": []}] * 5, {"json": [1]}), True),
    "an array of two dimensions": ("hf-late-type", members(*ARRAYS, {"npy": npy([[1.0]], "<f4")}), True),
    "a larger array": ("hf-late-type", members(*ARRAYS, {"npy": npy([1e100], "<f8")}), True),
    "not a number": ("reader-stops", members(*FIVE, {"txt": "x", "cls": b"cat"}), False),
    "an empty number": ("reader-stops", members(*FIVE, {"txt": "x", "cls": b""}), False),
    "more than 64 bits": ("reader-stops", members(*FIVE, {"txt": "x", "cls": 1 << 63}), False),
    "more than 64 bits in JSON": ("reader-stops", members({"json": [1 << 63]}), False),
    "half of a surrogate pair": ("reader-stops", members({"json": b'{"\\ud800": 1}'}), False),
    "63 lists": ("reader-stops", [("a.json", b"[" * 63 + b"1" + b"]" * 63)], False),
    "broken JSON": ("reader-stops", members(*JSON_FIVE, {"json": b"{"}), False),
    "text in Latin-1": ("reader-stops", members(*FIVE, {"txt": b"\xe4", "cls": 1}), False),
    "broken gzip": ("reader-stops", [("a.json.gz", b"{}")], False),
    "a cut array": ("reader-stops", members(*ARRAYS, {"npy": npy(range(9), "<f4")[:-1]}), False),
    "an array of another machine": ("reader-stops", members({"npy": npy([1.0], ">f4")}), False),
    "an array of complex numbers": ("reader-stops", members({"npy": npy([1.0], "<c8")}), False),
    "a reserved field": ("reader-stops", [("a.txt", b"x"), ("a.__url__", b"y")], False),
    "a name that is skipped": ("reader-skips", [*members(*FIVE), ("x/__a.cls", b"1"), ("x/__a.txt", b"x")], False),
}


@pytest.mark.parametrize("name", FAULTS)
def test_datasets_fails_on_what_is_found_or_changes_it(name: str, check: Check, folder: Folder) -> None:
    code, stored, is_mended = FAULTS[name]
    (path,) = folder.write({"train-0.tar": stored})
    found = check(path)
    assert found.codes == {code}
    assert False in folder.outcomes(stored)
    assert check("--ignore", code, path).codes == set()
    folder.add_card(found.card)
    assert (folder.outcomes(stored) == [True, True]) == is_mended


@pytest.mark.filterwarnings("ignore")
def test_readers_tear_or_refuse_samples_that_tarcheck_always_reports(check: Check, folder: Folder) -> None:
    torn = [*members(*FIVE), ("a.cls", b"1"), ("b.txt", b"x"), ("b.cls", b"1"), ("a.txt", b"x")]
    (url,) = folder.write({"train-0.tar": torn})
    found = check(url)
    assert [each["code"] for each in found.facts["findings"]] == ["torn-sample"]
    rows = (folder.load(False) or {})["train"]
    assert [(row["__key__"], row["cls"], row["txt"]) for row in rows[5:]] == [
        ("a", 1, None),
        ("b", 1, "x"),
        ("a", None, "x"),
    ]
    assert [sample["__key__"] for sample in samples_of_webdataset(url) or ()][5:] == ["a", "b", "a"]
    for fields, code, is_loaded in ((("txt", "txt"), "field-twice", False), (("TXT", "txt"), "case-twice", True)):
        (url,) = folder.write({"train-0.tar": [(f"a.{field}", b"x") for field in fields]})
        assert code in {each["code"] for each in check(url).facts["findings"]}
        assert (folder.load(False) is not None, samples_of_webdataset(url)) == (is_loaded, None)


VALUES: list[Any] = [1, 2.5, "x", True, None, {"a": 1}, {"a": None}, {"a": {}}, {"b": {"c": "x"}}, [], [1], ["x", None]]
VALUES += [[{"a": 1}], {"a": [[1]]}, [1, "x"], {"a": [2.5]}, {}, -7, {"a": 1, "b": {"c": None}}, [[], [1]]]


@pytest.mark.parametrize("first", [5, *also(*(n for n in range(len(VALUES)) if n != 5))])
def test_each_pair_of_types_is_loaded_unchanged_or_found(first: int, check: Check, folder: Folder) -> None:
    for value in VALUES:
        for copies in (1, 5):
            stored = members(*[{"json": VALUES[first]}] * copies, {"json": value})
            (path,) = folder.write({"train-0.tar": stored})
            found = check(path)
            assert (found.codes == set()) == (folder.outcomes(stored, [False]) == [True]), (VALUES[first], value)
            folder.add_card(found.card)
            assert folder.outcomes(stored, [copies > 1]) == [True], (VALUES[first], value)


# ---- names ----


NAMES = [  # paths of shards in a folder
    "train-0.tar test-0.tar",
    "train-0.tar train-1.tar.gz val-0.tar dev-1.tar",
    "data/train-00000-of-00002.tar data/train-00001-of-00002.tar data/extra-00000-of-00001.tar",
    "0.tar 1.tar",
    "latest-0.tar contest.tar Train-1.tar",
    "train/0.tar test/b.tar",
    "x/my-train/0.tar y/z.eval/0.tar",
    "photos-train-0.tar photos_test.tar",
    "x.tar y.tar.bz2 z.tar.xz",
    "train-[a].tar train-b.tar",
    "data/0.tar data/1.tar",
]
BAD_NAMES = [  # and the codes of the findings
    ("train-0.tar more-0.tar", "hf-split"),
    ("drive-test-0.tar drive-0.tar", "hf-split"),
    ("train-val-0.tar train-1.tar", "hf-split"),
    ("train-train-0.tar", "hf-split"),
    ("data/train-00000-of-00001.tar data/foo.tar", "hf-split"),
    ("data/my-set-00000-of-00001.tar", "hf-split"),
    ("train/0.tar test-9.tar", "hf-split"),
    ("train-1.tar train-1-more.tar x.tar", "hf-split"),
    ("x.tgz", "hf-name"),
    ("a.tar b.TAR", "hf-name"),
    ("a.tar b", "hf-name"),
    ("a.tar .b.tar", "hf-name"),
    ("a.tar __x/b.tar .y/b.tar", "hf-name"),
    ("train.json.tar", "hf-name"),
    ("train-0.wav.tar train-1.wav.tar", "hf-name"),
]
BAD_NAMES += [
    (f"train.{suffix}.tar", "hf-name") for suffix in ("parquet", "arrow", "jsonl", "csv", "tsv", "txt", "webp", "xml")
]


def named_shards(folder: Folder, names: str) -> tuple[list[str], list[str]]:
    """Write a shard with one sample, its path, for each of *names*; return paths for tarcheck, and these keys."""
    paths = names.split()
    return folder.write({path: [(f"{number}.txt", path.encode())] for number, path in enumerate(paths)}), paths


def loaded_paths(folder: Folder, streaming: bool) -> dict[str, list[str]]:
    """Return the texts of the samples of each split, as datasets loads the folder; {} if it fails."""
    loaded = folder.load(streaming) or {}
    return {split: [row.get("txt") or "" for row in rows] for split, rows in loaded.items()}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("names", NAMES)
@by_turns("streaming")
def test_splits_are_those_of_datasets(names: str, streaming: bool, check: Check, folder: Folder) -> None:
    urls, paths = named_shards(folder, names)
    found = check(*reversed(urls))
    assert found.codes == set()
    loaded = loaded_paths(folder, streaming)
    indexes = datasetrules.splits_of(paths)
    assert loaded == {split: [paths[n] for n in numbers] for split, numbers in indexes.items()}
    assert list(loaded) == list(indexes)
    folder.add_card(found.card)
    with_card = loaded_paths(folder, streaming)
    assert {split: sorted(names) for split, names in with_card.items()} == {k: sorted(v) for k, v in loaded.items()}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("names", "code"), BAD_NAMES)
@by_turns("streaming")
def test_names_that_datasets_does_not_load_once_are_found(
    names: str, code: str, streaming: bool, check: Check, folder: Folder
) -> None:
    urls, paths = named_shards(folder, names)
    found = check(*urls)
    assert found.codes == {code}
    assert sorted(path for each in loaded_paths(folder, streaming).values() for path in each) != sorted(paths)
    if code == "hf-split":
        folder.add_card(found.card)
        loaded = loaded_paths(folder, streaming)
        assert sorted(path for each in loaded.values() for path in each) == sorted(paths)


def test_the_first_shard_of_the_last_split_decides(check: Check, folder: Folder) -> None:
    """The order in which shards are named makes no difference: on the hub they have none."""
    late = members({"cls": 1}, first=1)
    shards = {"train-0.tar": members(*FIVE), "test-1.tar": late, "test-0.tar": members({"txt": "x"})}
    urls = folder.write(shards)
    found = check(*urls)
    assert found.codes == {"hf-late-field"} and check(*reversed(urls)).card == found.card
    loaded = folder.load(False)
    assert loaded is not None and set(loaded["train"][0]) == {"txt", "__key__", "__url__"}
    folder.add_card(found.card)
    loaded = folder.load(True)
    assert loaded is not None and is_lossless(shards["train-0.tar"], loaded["train"])
    assert is_lossless(shards["test-0.tar"] + late, loaded["test"])


def test_an_archive_in_parts_is_not_joined(check: Check, folder: Folder) -> None:
    (url,) = folder.write({"train.tar": members(*FIVE)})
    content = Path(url).read_bytes()
    for name, part in (("aa", content[:3000]), ("ab", content[3000:])):
        Path(f"{url}.{name}").write_bytes(part)
    Path(url).unlink()
    assert check(f"{url}.aa", f"{url}.ab").codes == {"hf-name"}
    assert folder.load(False) is folder.load(True) is None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("suffix", ["zst", "lz4"])
def test_shards_that_tarfile_does_not_decompress(suffix: str, inside: Inside, check: Check, folder: Folder) -> None:
    import webdataset

    (plain,) = folder.write({"x.tar": members(*FIVE)})
    assert inside("tarcat", plain, "-o", f"set/train.tar.{suffix}").status == 0
    Path(plain).unlink()
    url = f"{plain[:-5]}train.tar.{suffix}"
    gc.freeze()
    if suffix == "lz4" or sys.version_info < (3, 14):  # which has zstd
        assert folder.load(False) is folder.load(True) is None
        with pytest.raises(tarfile.ReadError):
            list(webdataset.WebDataset(url, shardshuffle=False))
    gc.collect()  # webdataset leaves the file open
    gc.unfreeze()
    for reader in READERS:
        assert check(url, reader=reader).codes == {"reader-codec"}


def test_lists_of_suffixes_are_those_of_datasets() -> None:
    from datasets.packaged_modules.webdataset.webdataset import WebDataset

    lists = {
        "image": WebDataset.IMAGE_EXTENSIONS,
        "audio": WebDataset.AUDIO_EXTENSIONS,
        "video": WebDataset.VIDEO_EXTENSIONS,
        "mesh": WebDataset.MESH_EXTENSIONS,
    }
    expected = {suffix: name for name, suffixes in lists.items() for suffix in suffixes}
    types = READERS["hf"].plain_types
    assert {suffix: types[suffix] for suffix in types if types[suffix] != UNKNOWN} == expected
    assert {*WebDataset.DECODERS} == {*READERS["hf"].decoders, *UNDECODED_HERE}


def test_the_card_has_the_columns_that_datasets_infers(check: Check, folder: Folder) -> None:
    """Of sounds only the column: its encoder is another library."""
    import datasets

    value = {"a": [1], "b": {"c": [[{"d": None}]], "e f": "x"}, "é": [], "null": {}, "on": [{}], "2": True}
    fields = {"jpg": b"x", "a.FLAC": b"x", "mp4": b"x", "glb": b"x", "gz": gzip.compress(b"x"), "1.bin": b"x"}
    arrays = {f"{n}.npy": npy(shape, kind) for n, (shape, kind) in enumerate((([1], "u1"), ([[1.5]], "<f2")))}
    stored = members(
        {"json": value, "jsn": b"[[1.5]]", "cls": 1, **fields, **arrays, "yes": b"", "xml.xz": lzma.compress(b"")}
    )
    (url,) = folder.write({"train-0.tar": stored})
    features = datasets.load_dataset("webdataset", data_files=[url], split="train", streaming=True).features
    card = yaml.safe_load(check(url).card.removeprefix("---\n").removesuffix("---\n"))
    assert datasets.Features._from_yaml_list(card["dataset_info"]["features"]) == features
    assert card["configs"] == [{"config_name": "default", "data_files": [{"split": "train", "path": "train-*.tar"}]}]


def test_fields_of_unknown_type_give_no_features(check: Check, folder: Folder) -> None:
    (url,) = folder.write({"train-0.tar": members({"cls": 1, "pth": b"x"})})
    found = check(url)
    assert (found.codes, yaml.safe_load(found.card.strip("-\n"))["configs"][0]["config_name"]) == (set(), "default")
    assert "# no features: the types of these fields are not known: pth\n" in found.card
    assert "features:\n" not in found.card


# ---- webdataset ----


WEBDATASET_FAULTS = {
    "not a number": ("reader-stops", members(*FIVE, {"cls": b"cat"})),
    "broken JSON": ("reader-stops", members({"json": b"{"})),
    "JSON in capitals": ("reader-stops", members({"JSON": b"{"})),
    "text in Latin-1": ("reader-stops", members({"transcript": b"\xe4"})),
    "broken gzip": ("reader-stops", members({"json.gz": b"{}"})),
    "a cut array": ("reader-stops", members({"npy": npy(range(9), "<f4")[:-1]})),
    "a broken archive": ("reader-stops", members({"npz": b"PK\x03\x04"})),
    "a reserved field": ("reader-stops", [("a.txt", b"x"), ("a.__key__", b"y")]),
    "a name that is skipped": ("reader-skips", [*members(*FIVE), ("__x__/a.cls", b"1")]),
}
WEBDATASET_SOUND = {
    **{
        name: SOUND[name]
        for name in ("fields", "JSON", "JSON in UTF-16, with a mark", "arrays", "pictures, upper case")
    },
    "fields that differ": members({"cls": 1}, {"txt": "x"}, {"json": 1}, {"json": "x"}),
    "packed": members({"json.gz": gzip.compress(b"{}"), "json.xz": b"x"}),
    "underscores": [("__a.cls", b"1"), ("x/__b__/c.cls", b"1")],
}


def samples_of_webdataset(url: str) -> list[dict[str, Any]] | None:
    """Return the samples that webdataset decodes; None if it stops."""
    import webdataset

    gc.freeze()
    try:
        return list(webdataset.WebDataset(url, shardshuffle=False).decode())
    except (ValueError, webdataset.autodecode.DecodingError):
        return None
    finally:
        gc.collect()  # it leaves files open
        gc.unfreeze()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WEBDATASET_FAULTS)
def test_webdataset_fails_on_what_is_found_or_skips_it(name: str, check: Check, folder: Folder) -> None:
    code, stored = WEBDATASET_FAULTS[name]
    (url,) = folder.write({"a.tar": stored})
    found = check(url, reader="webdataset")
    assert (found.codes, found.card) == ({code}, "")
    samples = samples_of_webdataset(url)
    assert samples is None if code == "reader-stops" else samples is not None and len(samples) < found.facts["samples"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WEBDATASET_SOUND)
def test_webdataset_decodes_what_passes(name: str, check: Check, folder: Folder) -> None:
    (url,) = folder.write({"a.tar": WEBDATASET_SOUND[name]})
    assert check(url, reader="webdataset").codes == set()
    samples = samples_of_webdataset(url)
    assert samples is not None
    assert [sample["__key__"] for sample in samples] == [key for key, _ in decoded(WEBDATASET_SOUND[name])]


# ---- with other inputs and options ----


def test_the_card_ends_the_report_and_is_a_field_of_json(check: Check, run: Run, folder: Folder) -> None:
    urls = folder.write({"train-0.tar": members(*FIVE), "val-0.tar": members(*FIVE[:1], first=9)})
    card = check(*urls).card
    out = run("tarcheck", "--for", "hf", *urls).output().decode()
    assert out == run("tarcheck", *urls).output().decode() + card
    assert "card" not in json.loads(run("tarcheck", "--for", "webdataset", "--json", *urls).stdout)
    assert "card" not in json.loads(run("tarcheck", "--json", *urls).stdout)


def test_findings_do_not_depend_on_workers_compression_or_stdin(inside: Inside, folder: Folder) -> None:
    shards = {
        f"train-{n}.tar": members(
            *({"txt": str(k), "json": {"a": k if n < 2 else "x"}} for k in range(300)), first=300 * n
        )
        for n in range(4)
    }
    urls = folder.write(shards)
    done = inside("tarcheck", "--for", "hf", "-p", "1", *urls)
    assert done.status == 1 and b"error hf-late-type: 600: " in done.stdout
    assert b"in: " + urls[2].encode() + b", byte 0, key 600, json.a: string, not int64\n" in done.stdout
    assert inside("tarcheck", "--for", "hf", "-p", "4", *urls).stdout == done.stdout
    packed = folder.write({f"{path}.gz": stored for path, stored in shards.items()})
    assert inside("tarcheck", "--for", "hf", *packed).stdout == done.stdout.replace(b".tar", b".tar.gz")
    stdin = make_tar([member for stored in shards.values() for member in stored])
    done = inside("tarcheck", "--for", "hf", "--json", stdin=stdin)
    facts = json.loads(done.stdout)
    assert [each["count"] for each in facts["findings"] if each["code"].startswith("hf-")] == [600]
    assert facts["card"].startswith("---\ndataset_info:\n  features:\n  - name: txt\n")


def test_rows_of_a_table_are_checked_in_their_order(inside: Inside, check: Check, folder: Folder) -> None:
    (url,) = folder.write({"train-0.tar": members(*FIVE, {"txt": "x", "json": 1})})
    assert inside("tarindex", url, "-o", "t.parquet").status == 0
    assert check("t.parquet").codes == {"hf-late-field"} and "configs" not in check("t.parquet").card
    assert inside("tarsort", "-r", "t.parquet", "-o", "r.parquet").status == 0
    assert check("r.parquet").codes == {"hf-first-samples"}


def test_a_damaged_shard_is_checked_as_far_as_it_goes(inside: Inside, folder: Folder) -> None:
    (url,) = folder.write({"train-0.tar": members(*FIVE, {"txt": "x", "cls": 1, "bin": b"x"}, {"txt": "x", "cls": 2})})
    content = Path(url).read_bytes()
    Path(url).write_bytes(content[: content.index(b"006.cls") + 512])
    codes = [each["code"] for each in json.loads(inside("tarcheck", "--for", "hf", "--json", url).stdout)["findings"]]
    assert {"cut-shard", "hf-late-field"} <= set(codes) and folder.load(False) is None


def test_paths_on_the_hub_are_those_of_the_data_set(inside: Inside, run: Run, tmp_path: Path) -> None:
    shards = {f"shards/{part}-{n}.tar": make_tar(members(*FIVE, first=9 * n)) for part in ("train",) for n in range(2)}
    shards["shards/test-0.tar"] = make_tar(members(*FIVE, first=90))
    with Hub() as hub:
        hub.data_sets["org/set"] = Repository()
        hub.data_sets["org/set"].objects |= shards
        done = run("tarcheck", "--for", "hf", "hf://datasets/org/set/shards/*.tar", env=hub.env(tmp_path))
    assert hub.errors == []
    assert '  - split: train\n    path: "shards/train-*.tar"\n  - split: test\n' in done.output().decode()


@pytest.mark.parametrize("options", ["--fix -o out.tar", "--dots last"])
def test_options_that_change_samples_are_refused(options: str, run: Run, folder: Folder) -> None:
    (url,) = folder.write({"train-0.tar": members(*FIVE)})
    done = run("tarcheck", "--for", "hf", *options.split(), url)
    assert (done.status, done.stdout) == (2, b"")
    assert "--for is about shards as they are: run it on the output of --fix, or of tarcat --dots last" in done.stderr


def test_all_codes_are_tested() -> None:
    tested = {code for code, _, _ in FAULTS.values()} | {code for _, code in BAD_NAMES} | {"reader-codec"}
    assert tested == {code for code in CODES if code.startswith(("hf-", "reader-"))}
