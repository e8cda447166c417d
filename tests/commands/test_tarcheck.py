"""tarcheck: each kind of damage is found, with one code, and nothing in sound archives of any writer."""

from __future__ import annotations

import bz2
import contextlib
import errno
import gc
import gzip
import io
import json
import lzma
import os
import shutil
import struct
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies
from PIL import Image

from tartools.samples.filetypes import NUMBER_SUFFIXES
from tartools.stages.checking import walk as walking
from tartools.stages.checking.codes import CODES, NOTE
from tests.archives import BLOCK, END, data, encoded, ended_early, entry, header, long, npy, pax, sealed, wav
from tests.commands.conftest import Inside
from tests.conftest import Run, has_end, make_tar, members_of, python
from tests.shards.counted import PROGRAM

KEYS = [f"{n:04d}" for n in range(12)]


def picture(form: str = "JPEG") -> bytes:
    return encoded(Image.effect_noise((40, 30), 60).convert("RGB"), form)


JPEG = picture()
ARRAY = npy(range(9), "u1")
LARGE = encoded(Image.effect_noise((64, 64), 50), "JPEG")


PNG = picture("PNG")


def chunk(kind: bytes, payload: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png_with_text(size: int, kind: bytes = b"zTXt", at_end: bool = False) -> bytes:
    """Return a sound PNG with a compressed text, or profile, of *size* bytes before its pixels, or after them."""
    text = {b"iTXt": b"k\0\1\0\0\0"}.get(kind, b"k\0\0") + zlib.compress(bytes(size))
    at = len(PNG) - 12 if at_end else 33
    return PNG[:at] + chunk(kind, text) + PNG[at:]


def png_of_size(width: int, height: int) -> bytes:
    """Return the begin of a PNG of this size, whose pixels are missing."""
    return PNG[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)) + chunk(b"IDAT", b"")


def sample(key: str | bytes, **fields: bytes) -> bytes:
    """Return the members of one sample: txt and cls, or *fields*."""
    raw = key if isinstance(key, bytes) else key.encode()
    given = fields or {"txt": b"words", "cls": b"1"}
    return b"".join(entry(raw + b"." + field.encode(), payload) for field, payload in given.items())


SAMPLES = [sample(key) for key in KEYS]
SIZE = len(SAMPLES[0])
SOUND = b"".join(SAMPLES) + END


def with_one(member: bytes) -> bytes:
    """Return a sound archive with something behind its samples."""
    return b"".join(SAMPLES) + member + END


def changed(at: int, to: bytes, archive: bytes = SOUND) -> bytes:
    """Return *archive* with other bytes at *at*."""
    return archive[:at] + to + archive[at + len(to) :]


def field_of_all(field: str, payload: bytes, last: bytes) -> bytes:
    """Return an archive of samples with *field*, all but the *last* of them sound."""
    return b"".join(sample(key, **{field: payload}) for key in KEYS) + sample("last", **{field: last}) + END


def zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-c"], input=content, capture_output=True, check=True).stdout


GZIP, BZIP, XZ = gzip.compress(SOUND, mtime=0), bz2.compress(SOUND), lzma.compress(SOUND)
OTHERS = b"".join(sample(f"x{n}") for n in range(3)) + END

# name -> code, shards, options
DAMAGE: dict[str, tuple[str, list[bytes], list[str]]] = {
    "cut in a payload": ("cut-shard", [SOUND[: 5 * SIZE + BLOCK + 2]], []),
    "cut in a header": ("cut-shard", [SOUND[: 5 * SIZE + 100]], []),
    "cut in the padding": ("cut-shard", [SOUND[: 6 * SIZE - 100]], []),
    "cut in the first zero block": ("no-end", [SOUND[: 12 * SIZE + 100]], []),
    "no end": ("no-end", [SOUND[: 12 * SIZE]], []),
    "cut between members of a sample": ("no-end", [SOUND[: 5 * SIZE + SIZE // 2]], []),
    "0 bytes": ("empty-shard", [SOUND, b""], []),
    "a page of HTML": ("not-tar", [SOUND, b"<!doctype html>" + b"x" * 2000], []),
    "a pointer of Git LFS": ("not-tar", [SOUND, b"version https://git-lfs.github.com/spec/v1\nsize 9\n"], []),
    "a short page of HTML": ("not-tar", [SOUND, b"<html><body>No such key</body></html>"], []),
    "a short text": ("not-tar", [SOUND, b"hello world"], []),
    "a header of a first member": ("bad-header", [changed(5 * SIZE + 3, b"~")], []),
    "a header of a second member": ("bad-header", [changed(5 * SIZE + SIZE // 2 + 3, b"~")], []),
    "the first header": ("bad-header", [changed(3, b"~")], []),
    "the last header": ("bad-header", [changed(12 * SIZE - SIZE // 2 + 3, b"~")], []),
    "a hole of zeros in a payload and a header": ("archive-after-end", [changed(5 * SIZE, bytes(SIZE))], []),
    "bytes lost": ("bad-header", [SOUND[: 5 * SIZE + 700] + SOUND[7 * SIZE + 300 :]], []),
    "a size that is not a number": (
        "bad-size",
        [changed(5 * SIZE, sealed(header(b"0005.txt", 5, size_field=b"zzzzzzzzzzz\0")))],
        [],
    ),
    "pax records": ("bad-extended", [with_one(entry(b"x", b"99 path=q\n", b"x") + sample("q"))], []),
    "a header of pax records": (
        "bad-header",
        [with_one(changed(3, b"~", pax((b"path", b"q.txt"))) + entry(b"wrong.txt", b"1") + sample("r"))],
        [],
    ),
    "a header of a long name": (
        "bad-header",
        [with_one(changed(30, b"~", long(b"d/" * 90 + b"q.txt")) + entry(b"d/" * 50, b"1") + sample("r"))],
        [],
    ),
    "garbage behind the end": ("garbage-after-end", [SOUND + b"garbage!" * 100], []),
    "a byte behind the end": ("garbage-after-end", [SOUND + b"!"], []),
    "cat a b": ("archive-after-end", [SOUND + OTHERS], []),
    "gzip, cut": ("cut-compressed", [GZIP[:-20]], []),
    "bzip2, cut": ("cut-compressed", [BZIP[:-20]], []),
    "xz, cut": ("cut-compressed", [XZ[:-20]], []),
    "gzip, its check": ("bad-compressed", [changed(len(GZIP) - 6, b"~~", GZIP)], []),
    "bzip2, its check": ("bad-compressed", [changed(12, b"~~", BZIP)], []),
    "xz, its check": ("bad-compressed", [changed(len(XZ) - 40, b"~~", XZ)], []),
    "gzip, garbage behind": ("garbage-after-compressed", [GZIP + b"garbage"], []),
    "no samples": ("no-samples", [SOUND, bytes(10240)], []),
    "a symbolic link": ("link", [with_one(header(b"z.txt", kind=b"2", link=b"0001.txt"))], []),
    "a hard link": ("link", [with_one(header(b"z.txt", kind=b"1", link=b"0001.txt"))], []),
    "a fifo": ("device", [with_one(header(b"z.txt", kind=b"6"))], []),
    "a device": ("device", [with_one(header(b"z.txt", kind=b"3"))], []),
    "a sparse file": ("sparse", [with_one(pax((b"GNU.sparse.major", b"1")) + entry(b"z.txt", b"1"))], []),
    "a part of another volume": ("volume", [with_one(entry(b"z.txt", b"1", b"M"))], []),
    "members apart": (
        "torn-sample",
        [SAMPLES[0] + entry(b"z.txt", b"1") + b"".join(SAMPLES[1:]) + entry(b"z.cls", b"1") + END],
        [],
    ),
    "all members apart": (
        "torn-sample",
        [b"".join(entry(f"{key}.{field}".encode(), b"1") for field in ("txt", "cls") for key in KEYS) + END],
        [],
    ),
    "members in two shards": (
        "split-sample",
        [with_one(entry(b"z.txt", b"1")), b"".join(sample(f"x{n}") for n in range(9)) + entry(b"z.cls", b"1") + END],
        [],
    ),
    "a key twice": ("key-twice", [with_one(SAMPLES[3])], []),
    "a key in two shards": ("key-in-two-shards", [SOUND, OTHERS[: -len(END)] + SAMPLES[3] + END], []),
    "a field twice": ("field-twice", [with_one(sample("z") + entry(b"z.txt", b"2"))], []),
    "fields that differ in case": ("case-twice", [with_one(sample("z") + entry(b"z.TXT", b"2"))], []),
    "a field that is missing": ("missing-field", [with_one(sample("z", txt=b"1"))], []),
    "a field that is expected": ("missing-field", [with_one(b"")], ["--expect", "txt jpg;png"]),
    "a field too many": ("unexpected-field", [with_one(sample("z") + entry(b"z.more", b"1"))], []),
    "many fields": (
        "many-fields",
        [b"".join(entry(b"k%d.f%d" % (n, n), b"1") for n in range(1001)) + END],
        ["--expect", ";".join(f"f{n}" for n in range(1001))],
    ),
    "an empty field": ("empty-field", [with_one(sample("z", txt=b"", cls=b"1"))], []),
    "a PNG called jpg": ("suffix-lies", [field_of_all("jpg", JPEG, picture("PNG"))], []),
    "garbage called jpg": ("suffix-lies", [field_of_all("jpg", JPEG, b"garbage")], []),
    "a picture called txt": ("suffix-lies", [field_of_all("txt", b"words", JPEG)], []),
    "a word called cls": ("not-a-number", [field_of_all("cls", b"1\n", b"autumn")], []),
    "a long word called cls": ("not-a-number", [field_of_all("cls", b"1_0", b"red oaks in autumn")], ["--decode"]),
    "a long number and a word": ("not-a-number", [field_of_all("a.id", b"7" * 40, b"7" * 40 + b" oaks")], ["--decode"]),
    "a dot in a key": ("dotted-name", [with_one(sample("z") + entry(b"z.1.txt", b"1"))], []),
    "several samples of one key": (
        "several-samples",
        [b"".join(entry(b"22.%02d.%s" % (n, field), b"1") for n in range(9) for field in (b"txt", b"id")) + END],
        [],
    ),
    "clips of one key": (
        "several-samples",
        [b"".join(entry(b"v%d.clip%03d.txt" % (v, n), b"1") for v in range(4) for n in range(20)) + END],
        [],
    ),
    "a dotted field in place of an expected one": (
        "missing-field",
        [b"".join(sample(key, **{"seg.txt": b"M", "cls": b"1"}) for key in KEYS) + END],
        ["--expect", "txt cls"],
    ),
    "capitals": ("upper-case", [with_one(sample("z", TXT=b"1", cls=b"1"))], []),
    "a path to above": ("unsafe-path", [with_one(sample("../z"))], []),
    "an absolute path": ("unsafe-path", [with_one(sample("/etc/z"))], []),
    "a newline in a key": ("control-character", [with_one(sample("z\nz"))], []),
    "a key in Latin-1": ("not-utf-8", [with_one(sample(b"\xe9"))], []),
    "a key in another Unicode form": (
        "unicode-form",
        [with_one(sample("caf\u00e9") + sample("cafe\u0301") + sample("z\u00e9"))],
        [],
    ),
    "a field in another Unicode form": (
        "unicode-form",
        [b"".join(sample(key, **{"\u00e9": b"1", "e\u0301": b"2"}) for key in KEYS) + END],
        [],
    ),
    "a name without a dot": ("no-field", [with_one(entry(b"README", b"1"))], []),
    "a hidden file": ("hidden-file", [with_one(entry(b"d/.hidden.txt", b"1"))], []),
    "a metadata file of macOS": ("macos-metadata", [with_one(entry(b"._z.txt", b"1"))], []),
    "a key of underscores": ("reserved-name", [with_one(sample("__meta__/z"))], []),
    "a pickle": ("pickle", [b"".join(sample(key, pkl=b"\x80\4N.") for key in KEYS) + END], []),
    "a large payload": (
        "size-outlier",
        [b"".join(sample(f"{n}", txt=b"1") for n in range(200)) + sample("z", txt=bytes(1 << 17)) + END],
        [],
    ),
    "a small payload beside empty ones": (
        "size-outlier",
        [b"".join(sample(f"{n}", txt=bytes(0 if n < 30 else 5000)) for n in range(1000)) + sample("z", txt=b"1") + END],
        ["--ignore", "empty-field"],
    ),
    "a small shard": (
        "shard-size",
        [b"".join(sample(f"{shard}{n:02}") for n in range(1 if shard in (2, 5) else 30)) + END for shard in range(6)],
        [],
    ),
    "a cut JPEG": ("broken-picture", [field_of_all("jpg", JPEG, JPEG[: len(JPEG) // 2])], ["--decode"]),
    "a JPEG that ends in the middle": (
        "damaged-picture",
        [field_of_all("jpg", LARGE, ended_early(LARGE))],
        ["--decode"],
    ),
    "a PNG with a large text": ("large-png-text", [field_of_all("png", PNG, png_with_text(1 << 21))], ["--decode"]),
    "a picture of 200 million pixels": (
        "huge-picture",
        [field_of_all("png", PNG, png_of_size(20000, 10000))],
        ["--decode"],
    ),
    "a picture of 90 million pixels": (
        "large-picture",
        [field_of_all("png", PNG, png_of_size(10000, 9000))],
        ["--decode"],
    ),
    "a cut payload of gzip": (
        "broken-compressed",
        [field_of_all("json.gz", gzip.compress(b"[1]"), gzip.compress(b"[1]")[:-9])],
        ["--decode"],
    ),
    "JSON in gzip": (
        "broken-json",
        [field_of_all("json.gz", gzip.compress(b"[1]"), gzip.compress(b"[1"))],
        ["--decode"],
    ),
    "NaN in JSON": ("json-constant", [field_of_all("json", b"{}", b'{"a": NaN}')], ["--decode"]),
    "NaN in JSON lines": ("json-constant", [field_of_all("jsonl", b"{}\n", b"{}\n[-Infinity]\n")], ["--decode"]),
    "a byte order mark": ("json-encoding", [field_of_all("json", b"{}", b"\xef\xbb\xbf{}")], ["--decode"]),
    "JSON": ("broken-json", [field_of_all("json", b"{}", b'{"a": ')], ["--decode"]),
    "a short array": ("broken-array", [field_of_all("npy", ARRAY, ARRAY[:-1])], ["--decode"]),
    "a sound without its header": ("broken-sound", [field_of_all("wav", wav(90), wav(90)[:20])], ["--decode"]),
    "text that is not UTF-8": ("broken-text", [field_of_all("txt", b"1", b"caf\xe9")], ["--decode"]),
}
if shutil.which("zstd"):
    DAMAGE["zstd, cut"] = ("cut-compressed", [zstd(SOUND)[:-20]], [])
    DAMAGE["zstd, its check"] = ("bad-compressed", [changed(40, b"~~~~", zstd(SOUND))], [])


def written(folder: Path, shards: list[bytes]) -> list[str]:
    """Write *shards*; return their names."""
    names = [f"s{number}.tar" for number in range(len(shards))]
    for name, content in zip(names, shards, strict=True):
        (folder / name).write_bytes(content)
    return names


Check = Callable[..., dict[str, Any]]


@pytest.fixture
def check(inside: Inside) -> Check:
    """Return a function that runs tarcheck --json; it checks the exit status, and that nothing else is said."""

    def check(*arguments: str, stdin: bytes = b"") -> dict[str, Any]:
        done = inside("tarcheck", "--json", *arguments, stdin=stdin)
        found: dict[str, Any] = json.loads(done.stdout)
        heavy = any(each["weight"] != NOTE for each in found["findings"])
        assert (done.status, done.stderr) == (int(heavy), "")
        return found

    return check


@pytest.mark.parametrize("name", DAMAGE)
def test_each_damage_has_one_code(name: str, check: Check, tmp_path: Path) -> None:
    code, shards, options = DAMAGE[name]
    names = written(tmp_path, shards)
    found = check(*options, *names)
    assert [each["code"] for each in found["findings"]] == [code], found
    (finding,) = found["findings"]
    assert finding["places"] and {place["shard"] for place in finding["places"]} <= {*names}
    assert finding["weight"] == CODES[code].weight and finding["count"] >= 1
    if code == "shard-size":  # the last has what was left
        assert [place["shard"] for place in finding["places"]] == [names[2]]
    if len(shards) == 1:
        assert check(*options, stdin=shards[0])["findings"][0]["places"][0]["byte"] == finding["places"][0]["byte"]


@pytest.mark.parametrize("place", [0, 20, 59])
def test_a_sample_that_is_not_plain_in_one_part_of_a_large_shard(place: int, tmp_path: Path) -> None:
    keys = [f"{number:04d}" for number in range(60)]
    samples = [sample(key) for key in keys]
    head, end = samples[place][: SIZE // 2], samples[place][SIZE // 2 :]
    samples[place] = head + header(b"folder/", kind=b"5") + end  # its shard is read again, header by header
    names = written(tmp_path, [b"".join(samples) + END, OTHERS, b"".join(map(sample, "uvw")) + END])
    for workers in (1, 3):
        tarcheck = f"pieces {8 * SIZE}", "tarcheck", "-p", workers
        report = python(PROGRAM, *tarcheck, "--json", *names, folder=tmp_path)
        forks = int(report.stderr)
        assert report.status == 0 and json.loads(report.stdout)["findings"] == [] and (forks > 3) == (workers > 1)
        done = python(PROGRAM, *tarcheck, "--fix", "--drop-duplicates", "-o", f"{workers}.tar", *names, folder=tmp_path)
        assert done.status == 0 and done.stdout.startswith(b"shards: 3\nsamples: 66\nerrors: 0\n")
        content = (tmp_path / f"{workers}.tar").read_bytes()
        all_keys = [*keys, "x0", "x1", "x2", *"uvw"]
        assert [name for name, _ in members_of(content)] == [f"{k}.{f}" for k in all_keys for f in ("txt", "cls")]


KEPT = {name for name, (code, _, _) in DAMAGE.items() if CODES[code].is_saved}
LOST = {name for name, (code, _, _) in DAMAGE.items() if CODES[code].weight != NOTE and name != "many fields"} - KEPT


@pytest.mark.parametrize("name", sorted(LOST))
def test_what_is_fixed_passes_and_has_every_whole_sample(name: str, inside: Inside, tmp_path: Path) -> None:
    code, shards, options = DAMAGE[name]
    names = written(tmp_path, shards)
    done = inside("tarcheck", *options, "--fix", "-o", "out.tar", "-v", *names)
    fixed = (tmp_path / "out.tar").read_bytes()
    inside("tarcheck", *options, "out.tar").output()
    assert has_end(fixed)
    *told, account = done.stderr.splitlines()
    saved = {"archive-after-end", "torn-sample", "split-sample"}
    assert done.status == int(code not in saved), done
    assert bool(told) == (code not in saved)
    assert all(line.startswith("tarcheck: s") for line in told)
    content = b"".join(shards)
    members = members_of(fixed)
    if name != "a field that is expected":  # of which none is whole
        for whole in SAMPLES:
            if whole in content:
                assert set(members_of(whole + END)) <= set(members), whole[:8]
    assert len(members) == len({name for name, _ in members}) and " samples in" in account


@pytest.mark.parametrize("name", sorted(KEPT))
def test_samples_that_only_some_readers_refuse_are_kept_by_fix(name: str, inside: Inside, tmp_path: Path) -> None:
    _, shards, options = DAMAGE[name]
    names = written(tmp_path, shards)
    assert inside("tarcheck", *options, "--fix", "-o", "out.tar", *names)[::2] == (0, "")
    assert members_of((tmp_path / "out.tar").read_bytes()) == [member for each in shards for member in members_of(each)]


def test_keys_that_differ_only_in_their_unicode_form_are_found_in_other_shards(check: Check, tmp_path: Path) -> None:
    nfd, between, nfc = "a\u0323\u0307", "\u1ea1\u0307", "\u1ea1\u0307z"
    names = written(tmp_path, [sample(nfd) + END, sample("b") + sample(between) + sample(nfc) + END])
    (finding,) = check(*names)["findings"]
    assert (finding["code"], finding["weight"], finding["count"]) == ("unicode-form", "warning", 1)
    assert finding["places"] == [{"shard": "s0.tar", "byte": 0, "key": nfd, "what": f"also at byte {SIZE} of s1.tar"}]


INTENDED = {  # fields of each sample, and options
    "parts of a picture": (["png", "seg.png", "json"], []),
    "two sides": (["left.jpg", "right.jpg"], []),
    "frames": (["0.txt", "1.txt", "2.txt", "cls"], []),
    "frames alone, named": (["0.txt", "1.txt"], ["--expect", "0.txt 1.txt"]),
    "compressed fields": (["txt.gz", "json.gz", "a.1.txt"], []),
    "versions of a file": (["v1.tar.txt", "txt"], []),
}


@pytest.mark.parametrize("name", INTENDED)
def test_fields_with_dots_that_are_intended_are_no_finding(name: str, check: Check, tmp_path: Path) -> None:
    fields, options = INTENDED[name]
    payloads = {"jpg": JPEG, "png": PNG, "gz": gzip.compress(b"1")}
    samples = [sample(key, **{field: payloads.get(field.rpartition(".")[2], b"1") for field in fields}) for key in KEYS]
    assert check(*options, *written(tmp_path, [b"".join(samples) + END]))["findings"] == []


def test_pictures_of_several_formats_are_one_field(check: Check, run: Run, tmp_path: Path) -> None:
    """Formats that stand for each other; a mask beside its picture does not."""
    forms = [("jpg", JPEG)] * 12 + [("jpeg", JPEG)] * 8 + [("webp", picture("WEBP"))]
    samples = [sample(f"{n:02}", **{form: payload, "cls": b"1"}) for n, (form, payload) in enumerate(forms)]
    (name,) = written(tmp_path, [b"".join(samples) + END])
    found = check("--decode", name)
    assert found["expected"] == ["cls", "jpg;jpeg;webp"]
    assert [(each["code"], each["weight"], each["count"]) for each in found["findings"]] == [
        ("unexpected-field", "note", 9)
    ]
    assert run("tarcheck", "--decode", "--fix", name, "-o", "fixed.tar")[::2] == (0, "")
    assert members_of((tmp_path / "fixed.tar").read_bytes()) == members_of((tmp_path / name).read_bytes())
    masks = [sample(f"{n:02}", **({"jpg": JPEG, "png": PNG} if n else {"jpg": JPEG})) for n in range(20)]
    found = check(*written(tmp_path, [b"".join(masks) + END]))
    assert (found["expected"], [each["code"] for each in found["findings"]]) == (["jpg", "png"], ["missing-field"])


ENDS, LOSES, SPLITS, ALL = "ends with an error", "loses samples", "reads a sample as several", "reads all there is"
WEBDATASET = {  # damage -> what webdataset is seen to do
    "cut in a payload": ENDS,
    "cut in a header": ALL,
    "no end": ALL,
    "0 bytes": ENDS,
    "a page of HTML": ENDS,
    "a header of a first member": LOSES,
    "the first header": ENDS,
    "a size that is not a number": LOSES,
    "garbage behind the end": ALL,
    "cat a b": LOSES,
    "gzip, cut": ENDS,
    "gzip, garbage behind": ALL,
    "no samples": ALL,
    "a symbolic link": ALL,
    "a fifo": ALL,
    "a part of another volume": ALL,
    "a sparse file": ALL,
    "members apart": SPLITS,
    "members in two shards": SPLITS,
    "a key twice": SPLITS,
    "a key in two shards": SPLITS,
    "a field twice": ENDS,
    "fields that differ in case": ENDS,
    "a field that is missing": ALL,
    "a field too many": ALL,
    "an empty field": ALL,
    "a word called cls": ALL,
    "a dot in a key": ALL,
    "capitals": ALL,
    "a path to above": ALL,
    "a newline in a key": ALL,
    "a name without a dot": LOSES,
    "a key of underscores": LOSES,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", WEBDATASET)
def test_webdataset_loses_or_splits_only_what_is_found(name: str, check: Check, tmp_path: Path) -> None:
    import webdataset

    _, shards, options = DAMAGE[name]
    names = written(tmp_path, shards)
    found = check(*options, *names)
    gc.freeze()
    assert found["findings"][0]["code"] == DAMAGE[name][0]
    urls = [str(tmp_path / name) for name in names]
    keys = None
    try:
        keys = [each["__key__"] for each in webdataset.WebDataset(urls, shardshuffle=False, empty_check=False)]
    except (ValueError, tarfile.ReadError):
        pass
    gc.collect()  # the files that it leaves open must not be found during another test
    gc.unfreeze()
    does = ENDS
    if keys is not None:
        does = SPLITS if len(set(keys)) < len(keys) else LOSES if len(keys) < found["samples"] else ALL
    assert WEBDATASET[name] == does


def test_webdataset_decodes_numbers() -> None:
    from webdataset.autodecode import basichandlers, decoders

    for field in decoders:
        taken = None
        with contextlib.suppress(Exception):  # each decoder has its own
            taken = basichandlers(field, b"12")
        assert (field in NUMBER_SUFFIXES) == (taken == 12 and field not in ("json", "jsn")), field
    with pytest.raises(ValueError, match="invalid literal"):
        basichandlers("cls", b"autumn")


TINY = make_tar([("a.cls", b"1"), ("b.cls", b"2")])
NEEDED = 5 * BLOCK


def test_a_cut_at_any_byte_is_found_and_fixed(inside: Inside, tmp_path: Path) -> None:
    def main(archive: bytes, *options: str) -> tuple[int, dict[str, Any]]:
        """Return the status of tarcheck on *archive*, and its findings."""
        done = inside("tarcheck", "--json", *options, *written(tmp_path, [archive]), short=True)
        return done.status, json.loads(done.stdout)

    zipped = gzip.compress(TINY, mtime=0)
    cuts = sorted({at + by for at in range(0, NEEDED, BLOCK) for by in (-1, 0, 1, 100)} - {-1})
    for archive in [*(TINY[:cut] for cut in cuts), *(zipped[:cut] for cut in range(0, len(zipped), 3))]:
        status, found = main(archive)
        assert (status, found["errors"]) == (1, 1), len(archive)
        (place,) = found["findings"][0]["places"]
        assert place["byte"] <= len(archive)
        assert main(archive, "--expect", "cls", "--fix", "--force", "-o", "out.tar")[0] == 1
        whole = [members_of(TINY)[n] for n in range(2) if archive.startswith(TINY[: (2 * n + 1) * BLOCK + 1])]
        if archive[:2] != zipped[:2]:
            assert members_of(Path("out.tar").read_bytes()) == whole
        assert main(Path("out.tar").read_bytes())[0] == 0
    for cut in (NEEDED, NEEDED + 1, NEEDED + BLOCK, 10239):
        assert main(TINY[:cut])[0] == 0


def test_members_are_brought_together(run: Run, tmp_path: Path) -> None:
    names = written(tmp_path, DAMAGE["members in two shards"][1])
    done = run("tarcheck", "--fix", "-o", "fixed-{shard:02d}.tar", "-v", *names)
    assert done.status == 0 and "1 joined" in done.stderr
    first, second = (members_of((tmp_path / f"fixed-{number:02d}.tar").read_bytes()) for number in range(2))
    assert [name for name, _ in first] == [f"{key}.{field}" for key in KEYS for field in ("txt", "cls")]
    assert second[-2:] == [("z.txt", b"1"), ("z.cls", b"1")] and len(second) == 20


def test_unique_keeps_the_first(run: Run, tmp_path: Path) -> None:
    other = sample(KEYS[3], txt=b"others", cls=b"9") + sample("z") + entry(b"z.txt", b"second")
    written(tmp_path, [with_one(other)])
    done = run("tarcheck", "--fix", "--drop-duplicates", "-o", "out.tar", "-v", "s0.tar")
    assert (done.status, "1 left out" in done.stderr) == (0, True)
    assert members_of((tmp_path / "out.tar").read_bytes()) == members_of(with_one(sample("z")))
    said = run("tarcheck", "--fix", "-o", "other.tar", "s0.tar")
    assert said.status == 1 and said.stderr.splitlines() == [
        f"tarcheck: s0.tar: at byte {12 * SIZE}: sample '0003' is not written: an earlier sample has this key, at byte "
        f"{3 * SIZE} (--drop-duplicates drops this one)",
        f"tarcheck: s0.tar: at byte {13 * SIZE}: sample 'z' is not written: field-twice (txt)",
    ]


def test_a_sound_shard_is_copied_byte_by_byte(run: Run, tmp_path: Path) -> None:
    archive = make_tar([(f"{n}.txt", b"1") for n in range(30)])
    (tmp_path / "s.tar").write_bytes(archive)
    assert run("tarcheck", "--fix", "-o", "out.tar", "s.tar")[::2] == (0, "")
    assert (tmp_path / "out.tar").read_bytes() == archive
    assert run("tarcheck", "--fix", "-o", "again.tar", stdin=gzip.compress(archive)).status == 0
    assert (tmp_path / "again.tar").read_bytes() == archive


@given(random=strategies.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_chance_damages_is_found_and_fixed(random: Random, run: Run, tmp_path: Path) -> None:
    """Headers are damaged, blocks lost, shards cut, samples repeated and torn: whole samples stay, in their bytes."""
    samples = [sample(f"k{n:03}", txt=b"%d" % n * random.randrange(1, 900), cls=b"%d" % n) for n in range(25)]
    broken: set[int] = set()
    shards = []
    for low, high in ((0, 12), (12, 25)):
        parts = samples[low:high]
        for number in random.sample(range(low, high), 3):
            part = parts[number - low]
            if number not in broken:
                at = random.choice([0, len(part) - 2 * BLOCK]) + random.randrange(BLOCK - 200)
                parts[number - low] = changed(at, bytes([part[at] ^ 0x5A]), part)
                broken.add(number)
        extra = [samples[n] for n in random.sample(range(low, high - 1), random.randrange(2)) if n not in broken]
        shards.append(b"".join([*parts, *extra]) + random.choice([END, END + b"!!", b""]))
    names = written(tmp_path, shards)
    checked = run("tarcheck", "-p", str(random.randrange(1, 3)), *names)
    assert checked.status == 1
    done = run("tarcheck", "--fix", "--force", "-o", "out.tar", *names)
    assert (done.status, done.stdout) == (1, checked.stdout)
    assert run("tarcheck", "--expect", "txt cls", "out.tar").status == 0
    members = set(members_of((tmp_path / "out.tar").read_bytes()))
    for number, whole in enumerate(samples):
        assert members.issuperset(members_of(whole + END)) or number in broken, number
    assert members <= {member for each in samples for member in members_of(each + END)}


def test_all_codes_are_tested() -> None:
    elsewhere = "missing-shard", "split-part", "missing-part", "foreign-prefix", "checksum-differs", "no-checksum"
    others = {code for code in CODES if "table" in code or code.startswith(("hf-", "reader-")) or code in elsewhere}
    assert {code for code, _, _ in DAMAGE.values()} == {*CODES} - others
    assert len(CODES) > 30


def test_counts_are_exact_and_places_are_the_first(check: Check, tmp_path: Path) -> None:
    few = [sample(f"f{n:05}", txt=b"1") for n in range(1200)]
    many = [sample(f"m{n:05}") for n in range(1500)]
    (tmp_path / "s.tar").write_bytes(b"".join([*many[:500], *few, *many[500:], many[7], many[8]]) + END)
    found = {each["code"]: each for each in check("s.tar")["findings"]}
    assert {code: each["count"] for code, each in found.items()} == {"missing-field": 1200, "key-twice": 2}
    assert [place["key"] for place in found["missing-field"]["places"]] == [f"f{n:05}" for n in range(1000)]
    assert [place["key"] for place in found["key-twice"]["places"]] == ["m00007", "m00008"]


@pytest.mark.parametrize(
    "line",
    [
        "tar -cf {} --sort=name raw",
        "tar -cf {} --sort=name --format=v7 raw",
        "tar -cf {} --sort=name --format=oldgnu -b 1 raw",
        "tar -czf {} --sort=name raw",
        "bsdtar -cf {} raw/*",
        "cd raw; bsdtar -cf ../{} --format=ustar ./*",
    ],
)
def test_nothing_is_found_in_archives_of_tar_and_bsdtar(line: str, check: Check, shell: Run, tmp_path: Path) -> None:
    if not shutil.which(line.replace("cd raw; ", "").split()[0]):
        pytest.skip("this tar is not installed")
    (tmp_path / "raw").mkdir()
    for n in range(20):
        (tmp_path / f"raw/{n:03}.jpg").write_bytes(JPEG)
        (tmp_path / f"raw/{n:03}.json").write_text('{"a": [1, 2]}')
        (tmp_path / f"raw/{n:03}.cls").write_text(f"{n}\n")
    assert shell(line.format("s.tar")).status == 0
    found = check("--decode", "--expect", "jpg json cls", "s.tar")
    assert (found["findings"], found["samples"]) == ([], 20)


def test_nothing_is_found_in_archives_of_webdataset(check: Check, tmp_path: Path) -> None:
    import numpy as np
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "s.tar")) as writer:
        for n in range(20):
            array = np.arange(n + 1, dtype=np.float32)
            writer.write({"__key__": f"{n:03}", "jpg": JPEG, "json": {"n": n}, "cls": n, "npy": array, "txt": "é"})
    found = check("--decode", "--expect", "jpg json cls npy txt", "s.tar")
    assert (found["findings"], found["samples"]) == ([], 20)


def test_arrays_whose_header_is_in_utf_8_are_sound(check: Check, tmp_path: Path) -> None:
    import numpy as np
    from numpy.lib import format as numpy_format

    file = io.BytesIO()
    numpy_format.write_array(file, np.zeros(3, [("é", "<i4")]), version=(3, 0))
    archives = [sample("a", npy=payload) + END for payload in (file.getvalue(), file.getvalue()[:-1])]
    sound, cut = (check("--decode", name)["findings"] for name in written(tmp_path, archives))
    assert sound == [] and [each["code"] for each in cut] == ["broken-array"]


def test_lax_and_skip_special(check: Check, tmp_path: Path) -> None:
    names = written(tmp_path, [SOUND[: 12 * SIZE], with_one(header(b"z.txt", kind=b"2", link=b"a"))])
    assert [each["code"] for each in check("--lax", names[0])["findings"]] == []
    assert [each["code"] for each in check("--skip-special", names[1])["findings"]] == []


def test_a_missing_file_is_a_finding_and_the_others_are_checked(check: Check, run: Run, tmp_path: Path) -> None:
    names = written(tmp_path, [with_one(entry(b"README", b"1")), OTHERS])
    (tmp_path / "loop.tar").symlink_to("loop.tar")
    (tmp_path / "dir.tar").mkdir()
    found = check("-p", "2", names[0], "nope.tar", "loop.tar", "dir.tar", names[1])
    assert found["samples"] == 16 and found["shards"] == 5
    missing, other = found["findings"]
    assert (missing["code"], missing["count"], other["code"]) == ("missing-shard", 3, "no-field")
    assert [place["shard"] for place in missing["places"]] == ["nope.tar", "loop.tar", "dir.tar"]
    assert missing["places"][0]["what"] == "No such file or directory"
    assert run("tarcheck", "nope.tar", "no.tar") == (1, b"", "tarcheck: nope.tar: No such file or directory\n")
    done = run("tarcheck", "--fix", "-o", "f%d.tar", "nope.tar", names[1])
    assert (done.status, done.stderr) == (1, "tarcheck: nope.tar: No such file or directory\n")
    assert not (tmp_path / "f0.tar").exists() and (tmp_path / "f1.tar").read_bytes() == OTHERS + bytes(10240 - 7168)


def test_findings_that_do_not_matter(check: Check, run: Run, tmp_path: Path) -> None:
    samples = [sample("a", jpg=JPEG, cls=b"1"), sample("b", jpg=picture("PNG"), cls=b"2"), sample("c", jpg=JPEG)]
    garbage = sample("d", jpg=b"garbage", cls=b"oak")
    names = written(tmp_path, [b"".join([*samples, garbage]) + END])
    codes = ["suffix-lies", "not-a-number", "missing-field"]
    assert sorted(each["code"] for each in check(*names)["findings"]) == sorted(codes)
    assert check("--ignore", " ".join(codes), *names)["findings"] == []
    done = run("tarcheck", "--decode", "--ignore", ",".join(codes), "--fix", "-o", "out.tar", *names)
    assert (done.status, done.stderr.count("\n")) == (1, 1)
    assert "sample 'd' is not written: broken-picture" in done.stderr
    assert members_of((tmp_path / "out.tar").read_bytes()) == members_of(b"".join(samples) + END)
    cut = written(tmp_path, [SOUND[: 5 * SIZE + 100]])
    assert "not written: cut-shard" in run("tarcheck", "--ignore", "cut-shard", "--fix", "-o", "c.tar", *cut).stderr


def test_a_payload_is_not_read_whole(check: Check, tmp_path: Path) -> None:
    """Of a payload in a file only the first bytes are looked at: 4 GiB are as fast as one."""
    with (tmp_path / "s.tar").open("wb") as file:
        file.write(header(b"a.jpg", 1 << 32))
        file.write(JPEG)
        file.seek(BLOCK + (1 << 32))
        file.write(entry(b"a.cls", b"1") + END)
    assert check("s.tar")["findings"] == []
    assert data(b"") == b""


@pytest.mark.parametrize("other", [b"", sample("z")])
def test_of_a_field_twice_the_first_is_kept_beside_any_samples(other: bytes, inside: Inside, tmp_path: Path) -> None:
    twice = entry(b"y.txt", b"1") + entry(b"y.txt", b"2") + entry(b"y.cls", b"1")
    (tmp_path / "s.tar").write_bytes(sample("x") + twice + sample("z") + other + END)
    inside("tarcheck", "--fix", "--drop-duplicates", "--ignore", "field-twice", "s.tar", "-o", "o.tar")
    assert (tmp_path / "o.tar").read_bytes().rstrip(b"\0") == (
        sample("x") + entry(b"y.txt", b"1") + entry(b"y.cls", b"1") + sample("z")
    ).rstrip(b"\0")


def test_a_failing_disk_is_reported_with_the_shard(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.tar").write_bytes(changed(3, b"~", sample("a")) + sample("b") + END)

    def fail(self: Any, count: int, position: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(walking.Walk, "read", fail)
    assert inside("tarcheck", "s.tar").failure(1) == "tarcheck: s.tar: Input/output error\n"


def test_much_damage_is_passed_over_in_small_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind each damaged header the next one is near: less than 50 times the archive is read, not a MiB each time."""
    archive = b"".join(changed(3, b"~", sample(f"{n}")) for n in range(1000)) + END
    (tmp_path / "s.tar").write_bytes(archive)
    read = walking.Walk.read
    counts: list[int] = []

    def counting(self: Any, position: int, count: int) -> bytes:
        found = read(self, position, count)
        counts.append(len(found))
        return found

    monkeypatch.setattr(walking.Walk, "read", counting)
    with (tmp_path / "s.tar").open("rb", buffering=0) as file:
        codes = [each.code for each in walking.Walk(file) if isinstance(each, walking.ShardFinding)]
    assert codes == ["bad-header"] * 1000
    assert sum(counts) < 50 * len(archive)
