"""tarindex --for: the files that other tools read, by these tools where they install, else by their grammar."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import re
import sqlite3
import struct
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.archives import END, entry, header
from tests.commands.conftest import Inside
from tests.conftest import Run, make_samples, make_tar, python
from tests.properties.test_model import Members, samples_of
from tests.tiers import by_turns

FORMATS = ("dali", "wids", "openclip", "webshart", "energon")
FILES = {  # of the shards d/a.tar and d/b.tar
    "dali": ["d/a.idx", "d/b.idx"],
    "wids": ["d/shardindex.json"],
    "openclip": ["d/sizes.json"],
    "webshart": ["d/a.json", "d/b.json"],
    "energon": [
        *(f"d/.nv-meta/{name}" for name in (".info.json", "index.sqlite", "index.uuid", "split.yaml")),
        *("d/a.tar.idx", "d/b.tar.idx"),
    ],
}
NEEDED = pytest.mark.skipif(importlib.util.find_spec("wids") is None, reason="wids is not installed")


def files_in(folder: Path) -> list[str]:
    """Return the names of the files below *folder*."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def sets(seed: int) -> tuple[Members, Members]:
    """Return the members of two shards: several folders, fields that are missing, empty and large payloads."""
    draw = random.Random(seed)
    found: tuple[Members, Members] = ([], [])
    for number in range(60):
        key = f"{draw.choice(['a', 'b.c/d', 'n' * 40])}/{number:03d}"
        fields = [field for field in ("jpg", "cls", "seg.png", "json") if draw.random() < 0.7] or ["cls"]
        draw.shuffle(fields)
        found[number % 2].extend(
            (f"{key}.{field}", draw.randbytes(draw.choice([0, 1, 512, 513, 90_000]))) for field in fields
        )
    return found


def put(folder: Path, seed: int, change: Callable[[str], str] = str, kind: int = tarfile.PAX_FORMAT) -> list[Members]:
    """Write the shards d/a.tar and d/b.tar; return their members."""
    (folder / "d").mkdir()
    shards = [[(change(name), data) for name, data in members] for members in sets(seed)]
    for name, members in zip("ab", shards, strict=True):
        (folder / f"d/{name}.tar").write_bytes(make_tar(members, kind))
    return shards


def places(shard: Path) -> dict[str, tuple[int, int, int]]:
    """Return where tarfile finds each member: its headers, its payload, its size."""
    with tarfile.open(shard) as archive:
        return {info.name: (info.offset, info.offset_data, info.size) for info in archive if info.isreg()}


def grouped(members: Members) -> list[tuple[str, dict[str, bytes]]]:
    """Return the samples of *members*."""
    return [(sample.key, dict(sample.fields)) for sample in samples_of(members)]


def accented(name: str) -> str:
    return name.replace("n", "ñ").replace("cls", "clś")


@pytest.mark.parametrize("change", [str, accented])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_dali(kind: int, change: Callable[[str], str], run: Run, tmp_path: Path) -> None:
    """A line `v1.2 SAMPLES`, then for each sample `EXTENSION OFFSET SIZE NAME` of each of its components."""
    shards = put(tmp_path, 1, change, kind)
    assert run("tarindex", "--for", "dali", "d/a.tar", "d/b.tar") == (0, b"", "")
    assert files_in(tmp_path) == sorted([*FILES["dali"], "d/a.tar", "d/b.tar"])
    for name, members in zip("ab", shards, strict=True):
        data, where = (tmp_path / f"d/{name}.tar").read_bytes(), places(tmp_path / f"d/{name}.tar")
        first, *lines = (tmp_path / f"d/{name}.idx").read_text().split("\n")
        samples = grouped(members)
        assert first == f"v1.2 {len(samples)}" and lines.pop() == ""
        for line, (key, fields) in zip(lines, samples, strict=True):
            words = line.split(" ")
            components = [words[n : n + 4] for n in range(0, len(words), 4)]
            assert [component[0] for component in components] == [*fields]
            for extension, offset, size, filename in components:
                assert filename == f"{key}.{extension}"
                assert (int(offset), int(size)) == where[filename][1:] and int(offset) % 512 == 0
                assert data[int(offset) : int(offset) + int(size)] == fields[extension]


READ_BY_WIDS = """
import json, sys, types, typing
for name in ("torch", "torch.distributed", "torch.utils", "torch.utils.data"):  # of PyTorch wids needs names only
    module = sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules.get(name.rpartition(".")[0], module), name.rpartition(".")[2], module)
module.Dataset, module.Sampler = types.new_class("Dataset", (typing.Generic[typing.TypeVar("T")],)), object
import wids
data = wids.ShardListDataset(sys.argv[1], cache_dir=sys.argv[2], transformations=[])
for number in range(len(data)):
    sample = data[number]
    fields = {name: value.read().hex() for name, value in sample.items() if name.startswith(".")}
    print(json.dumps([sample["__key__"], sample["__shard__"], fields]))
"""


@NEEDED
@pytest.mark.parametrize("output", [None, "d", "elsewhere"])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@by_turns("kind")
def test_wids(kind: int, output: str | None, run: Run, tmp_path: Path) -> None:
    shards = put(tmp_path, 2, kind=kind)
    assert run("tarindex", "--for", "wids", *(["-o", output] if output else []), "d/a.tar", "d/b.tar") == (0, b"", "")
    index = f"{output or 'd'}/shardindex.json"
    told = json.loads((tmp_path / index).read_text())
    base = "../d/" if output == "elsewhere" else ""
    assert told == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "shardlist": [
            {
                "url": f"{base}{name}.tar",
                "nsamples": len(grouped(members)),
                "filesize": (tmp_path / f"d/{name}.tar").stat().st_size,
            }
            for name, members in zip("ab", shards, strict=True)
        ],
    }
    found = [json.loads(row) for row in python(READ_BY_WIDS, index, "cache", folder=tmp_path).stdout.splitlines()]
    expected = [
        [key, f"d/{shard}.tar", {f".{field}": data.hex() for field, data in fields.items()}]
        for shard, members in zip("ab", shards, strict=True)
        for key, fields in grouped(members)
    ]
    assert [[key, os.path.normpath(shard), fields] for key, shard, fields in found] == expected


BLANK = "has a blank in its name, which DALI's index can't hold\n"
LONG = "can't read: it reads 100 bytes of the plain header"
NO_FIELD = "has no field, but wids treats it as a sample"


@pytest.mark.parametrize(
    ("form", "name", "why"),
    [
        *(("dali", name, BLANK) for name in ("a b.cls", "a.b c", "a\tb.cls", "a\nb.cls", "x/ y/a.cls")),
        *(("wids", name, LONG) for name in ("k" * 100 + ".cls", "d" * 60 + "/" + "k" * 60 + ".cls", "ü.cls", "0.ü")),
        *(("wids", name, NO_FIELD) for name in (".hidden", "a.b/README")),
    ],
)
def test_names_that_are_seen_in_another_way(form: str, name: str, why: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([("0.cls", b"1"), (name, b"2")], tarfile.PAX_FORMAT))
    said = run("tarindex", "--for", form, "a.tar").failure(lines=1)
    about = f"tarindex: a.tar: the member {name!r} "
    assert said == about + why if form == "dali" else said.startswith(f"{about}has ") and why in said
    assert files_in(tmp_path) == ["a.tar"]


@NEEDED
def test_names_that_wids_reads(run: Run, tmp_path: Path) -> None:
    """Names that are not ASCII, in plain headers, and members without a dot, which it passes over."""
    members = [("ä.cls", b"1"), ("README", b"no"), ("ü.cls", b"2"), ("k" * 96 + ".cls", b"3")]
    (tmp_path / "a.tar").write_bytes(make_tar(members, tarfile.GNU_FORMAT))
    said = run("tarindex", "--for", "wids", "a.tar").failure()
    assert said == "tarindex: a.tar: not in the index, since its name has no field: README\n"
    read = python(READ_BY_WIDS, "shardindex.json", "cache", folder=tmp_path).stdout
    found = [json.loads(row) for row in read.splitlines() if row.startswith(b"[")]
    assert [(key, fields) for key, _, fields in found] == [
        (name.removesuffix(".cls"), {".cls": data.hex()}) for name, data in members if name != "README"
    ]


def size_by_open_clip(shards: list[Path]) -> int:
    """Return the number of samples as `open_clip_train.data.get_dataset_size` looks it up."""
    sizes = json.loads((shards[0].parent / "sizes.json").read_text())
    return sum(int(sizes[shard.name]) for shard in shards)


@pytest.mark.parametrize("change", [str, accented])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_openclip(kind: int, change: Callable[[str], str], run: Run, tmp_path: Path) -> None:
    """Sizes are the numbers of samples that webdataset, which open_clip reads with, makes of each shard."""
    put(tmp_path, 7, change, kind)
    shards = [tmp_path / "d/a.tar", tmp_path / "d/b.tar"]
    run("tarindex", "--for", "openclip", "d/a.tar", "d/b.tar").output()
    assert files_in(tmp_path) == ["d/a.tar", "d/b.tar", "d/sizes.json"]
    sizes = json.loads((tmp_path / "d/sizes.json").read_text())
    program = "import sys, webdataset\n"
    program += "for path in sys.argv[1:]: print(sum(1 for _ in webdataset.WebDataset(path, shardshuffle=False)))"
    numbers = python(program, *shards).output().split()
    counts = {path.name: int(number) for path, number in zip(shards, numbers, strict=True)}
    assert sizes == counts
    assert size_by_open_clip(shards) == sum(counts.values()) and size_by_open_clip(shards[1:]) == counts["b.tar"]


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["0.cls", "__meta__/1.cls"], "the member '__meta__/1.cls' has a name that open_clip passes over"),
        (["0.cls", "e."], "the member 'e.' has no field, but open_clip treats it as a sample"),
        (["0.jpg", "0.JPG"], "the member '0.jpg' differs from another one in case alone; open_clip makes two samples"),
    ],
)
def test_what_open_clip_counts_in_another_way(names: list[str], why: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(name, b"1") for name in names]))
    assert run("tarindex", "--for", "openclip", "a.tar").failure(lines=1).startswith(f"tarindex: a.tar: {why}")
    assert files_in(tmp_path) == ["a.tar"]


def test_shards_that_open_clip_would_not_find(run: Run, tmp_path: Path) -> None:
    for name in ("x/a.tar", "x/b.tar", "y/a.tar", "y/c.tar"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(make_tar(make_samples(2)))
    line = ("tarindex", "--for", "openclip")
    said = run(*line, "x/a.tar", "y/c.tar").failure(2)
    assert "x/a.tar and y/c.tar are in different directories, and open_clip looks beside the first shard: name" in said
    assert "x/a.tar and y/a.tar have one name, by which open_clip looks up sizes" in run(
        *line, "-o", "x", "x/a.tar", "y/a.tar"
    ).failure(2)
    assert "x/a.tar is named twice, and openclip would not tell its samples apart" in run(
        *line, "x/a.tar", "x/a.tar"
    ).failure(2)
    run(*line, "-o", "x", "x/a.tar", "y/c.tar").output()
    assert json.loads((tmp_path / "x/sizes.json").read_text()) == {"a.tar": 2, "c.tar": 2}


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("change", [str, accented])
@by_turns("change")
def test_webshart(change: Callable[[str], str], apart: bool, run: Run, tmp_path: Path) -> None:
    webshart = pytest.importorskip("webshart")
    shards = put(tmp_path, 3, change)
    folder = ["-o", "index"] if apart else []
    assert run("tarindex", "--for", "webshart", *folder, "d/a.tar", "d/b.tar") == (0, b"", "")
    source = {"metadata": str(tmp_path / "index")} if apart else {}
    data = webshart.discover_dataset(str(tmp_path / "d"), **source)
    assert data.num_shards == 2
    for number, (name, members) in enumerate(zip("ab", shards, strict=True)):
        told = json.loads((tmp_path / ("index" if apart else "d") / f"{name}.json").read_text())
        where = places(tmp_path / f"d/{name}.tar")
        assert [told[word] for word in ("path", "filesize")] == [
            f"{name}.tar",
            (tmp_path / f"d/{name}.tar").stat().st_size,
        ]
        assert told["files"] == {
            member: {"offset": offset, "length": size} for member, (_, offset, size) in where.items()
        }
        assert [*told["files"]] == [member for member, _ in members]
        shard = data.open_shard(number)
        read = {member: bytes(shard.read_file(n)) for n, member in enumerate(shard.filenames())}
        assert read == dict(members)


def test_an_index_on_a_full_disk(shell: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar([(f"{n:05d}.cls", b"1") for n in range(5000)]))
    said = shell("ulimit -f 100; tarindex --for energon a.tar").failure(lines=1)
    assert re.fullmatch(r"tarindex: \S+: the index can't be written there: .+\n", said)
    assert not (tmp_path / ".nv-meta").exists()


@pytest.mark.parametrize("change", [str, accented])
@pytest.mark.parametrize("kind", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_energon(kind: int, change: Callable[[str], str], run: Run, tmp_path: Path) -> None:
    """SHARD.tar.idx, index.sqlite, .info.json and split.yaml, as Energon's documents and its own queries have them."""
    shards = put(tmp_path, 4, change, kind)
    assert run("tarindex", "--for", "energon", "d/a.tar", "d/b.tar") == (0, b"", "")
    assert files_in(tmp_path) == sorted([*FILES["energon"], "d/a.tar", "d/b.tar"])
    meta = tmp_path / "d/.nv-meta"
    counts = [len(grouped(members)) for members in shards]
    assert json.loads((meta / ".info.json").read_text()) == {"shard_counts": {"a.tar": counts[0], "b.tar": counts[1]}}
    split = yaml.safe_load((meta / "split.yaml").read_text())
    assert split == {"split_parts": {"train": ["a.tar", "b.tar"], "val": [], "test": []}, "exclude": []}
    samples, pieces = [], []
    for number, (name, members) in enumerate(zip("ab", shards, strict=True)):
        data, where = (tmp_path / f"d/{name}.tar").read_bytes(), places(tmp_path / f"d/{name}.tar")
        raw = (tmp_path / f"d/{name}.tar.idx").read_bytes()
        offsets = struct.unpack(f"<{len(raw) // 8}Q", raw)
        assert len(offsets) == counts[number] + 1
        for index, (key, fields) in enumerate(grouped(members)):
            names = [f"{key}.{field}" for field in fields]
            assert offsets[index] == where[names[0]][0]
            assert offsets[index + 1] == where[names[-1]][1] + (where[names[-1]][2] + 511) // 512 * 512
            alone = io.BytesIO(data[offsets[index] : offsets[index + 1]] + bytes(1024))
            with tarfile.open(fileobj=alone) as archive:
                assert archive.getnames() == names
            samples.append((number, key, index, offsets[index], offsets[index + 1] - offsets[index]))
            pieces += [(number, index, field, *where[f"{key}.{field}"][1:]) for field in fields]
    base = sqlite3.connect(f"file:{meta / 'index.sqlite'}?mode=ro&immutable=1", uri=True)
    assert base.execute("SELECT * FROM samples").fetchall() == samples
    order = "ORDER BY tar_file_id, sample_index, content_byte_offset"
    assert base.execute(f"SELECT * FROM sample_parts {order}").fetchall() == pieces
    columns = {
        table: [row[1] for row in base.execute(f"PRAGMA table_info({table})")] for table in ("samples", "sample_parts")
    }
    assert columns == {
        "samples": ["tar_file_id", "sample_key", "sample_index", "byte_offset", "byte_size"],
        "sample_parts": ["tar_file_id", "sample_index", "part_name", "content_byte_offset", "content_byte_size"],
    }
    indexes = {row[0] for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert indexes > {"idx_samples_by_tar_and_idx", "idx_sample_parts_seq", "idx_sample_parts_full"}
    base.close()


def test_an_energon_set_is_named_by_its_content(run: Run, tmp_path: Path) -> None:
    names = set()
    for seed in (1, 1, 2):
        (tmp_path / "a.tar").write_bytes(make_tar(sets(seed)[0]))
        assert run("tarindex", "--for", "energon", "--force", "a.tar") == (0, b"", "")
        names.add((tmp_path / ".nv-meta/index.uuid").read_text())
    assert len(names) == 2 and all(len(name) == 36 for name in names)


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        (["0.cls", "1.cls"], ["1.jpg"], "b.tar: the key '1' is there twice in the data set"),
        (["0.cls"], ["0.jpg"], "b.tar: the key '0' is there twice in the data set"),
        (["0.cls", "1.cls", "0.jpg"], ["2.cls"], "a.tar: the key '0' is there twice in the data set"),
        (["0.cls"], ["__meta__/1.cls"], "b.tar: the member '__meta__/1.cls' has a name that Energon passes over"),
        (["0.cls", "e."], ["1.cls"], "a.tar: the member 'e.' has no field, but Energon treats it as a sample"),
        (["0.cls"], ["README"], "b.tar: has no samples, and Energon accepts no shard without one"),
    ],
)
def test_what_energon_does_not_take(first: list[str], last: list[str], why: str, run: Run, tmp_path: Path) -> None:
    for name, members in (("a", first), ("b", last)):
        (tmp_path / f"{name}.tar").write_bytes(make_tar([(member, b"1") for member in members]))
    said = run("tarindex", "--for", "energon", "a.tar", "b.tar").failure()
    assert said.splitlines()[-1].startswith(f"tarindex: {why}")
    assert not {"b.tar.idx", ".nv-meta/index.sqlite", ".nv-meta/.info.json"} & {*files_in(tmp_path)}


@pytest.mark.parametrize(
    ("shards", "options", "why"),
    [
        (["d/a.tar"], ["-o", "e"], "d/a.tar is not below the directory of the index"),
        (["d/a.tgz"], [], "Energon needs a name that ends in .tar"),
        (["d/{x}.tar"], [], "Energon needs a name that ends in .tar, without braces"),
    ],
)
def test_names_that_energon_would_not_find(
    shards: list[str], options: list[str], why: str, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / shards[0]).write_bytes(make_tar(make_samples(1)))
    assert why in run("tarindex", "--for", "energon", *options, *shards).failure(2)
    assert files_in(tmp_path) == shards


@pytest.mark.usefixtures("many_parts")
@pytest.mark.parametrize("name", FORMATS)
def test_the_same_files_by_any_number_of_processes(name: str, inside: Inside, tmp_path: Path) -> None:
    members = [member for n in range(700) for member in ((f"{n:05d}.bin", b"1"), (f"{n:05d}.cls", b"%d" % n))]
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.tar").write_bytes(make_tar(members))
    (tmp_path / "d/b.tar").write_bytes(make_tar([(f"b{n}", data) for n, data in members[:60]]))
    found = []
    for parallel in ("1", "3"):
        assert inside("tarindex", "--for", name, "--force", "-p", parallel, "d/a.tar", "d/b.tar") == (0, b"", "")
        found.append({path: (tmp_path / path).read_bytes() for path in FILES[name]})
    assert found[0] == found[1] and files_in(tmp_path) == sorted([*FILES[name], "d/a.tar", "d/b.tar"])


@pytest.mark.parametrize("name", FORMATS)
def test_files_that_exist(name: str, run: Run, tmp_path: Path) -> None:
    put(tmp_path, 5)
    for file in FILES[name]:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"old")
        said = run("tarindex", "--for", name, "d/a.tar", "d/b.tar").failure()
        assert said.startswith(f"tarindex: {file}: ") and "--force" in said
        assert files_in(tmp_path) == sorted([file, "d/a.tar", "d/b.tar"])
        (tmp_path / file).unlink()
    for file in FILES[name]:
        (tmp_path / file).write_bytes(b"old")
    assert run("tarindex", "--for", name, "--force", "d/a.tar", "d/b.tar") == (0, b"", "")
    assert all((tmp_path / file).read_bytes() != b"old" for file in FILES[name])


@pytest.mark.parametrize("name", FORMATS)
def test_damage_and_what_no_index_can_say(name: str, run: Run, tmp_path: Path) -> None:
    whole = make_tar(make_samples(20))
    twice = make_tar([("0.cls", b"1"), ("1.cls", b"1"), ("1.jpg", b""), ("1.cls", b"2")])
    apart = entry(b"a.jpg") + header(b"d/", kind=b"5") + entry(b"a.cls") + END
    for content, why in (
        (apart, "a.tar: sample 'a', with 'jpg', is not in one piece with its own headers"),
        (whole[:9000], "a.tar: at byte "),
        (whole[:1024] + b"x" + whole[1025:], "a.tar: at byte 1024: header checksum does not match"),
        (twice, "a.tar: the member '1.cls' is there twice in one sample, which an index can't say"),
    ):
        (tmp_path / "a.tar").write_bytes(content)
        assert run("tarindex", "--for", name, "a.tar").failure(lines=1).startswith(f"tarindex: {why}")
        assert files_in(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("name", FORMATS)
def test_shards_that_cannot_be_read_in_parts(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_bytes(make_tar(make_samples(3)))
    subprocess.run("gzip -c b.tar > a.tar", shell=True, cwd=tmp_path, check=True)
    said = run("tarindex", "--for", name, "a.tar").failure()
    assert said.startswith("tarindex: a.tar: is compressed, so it can't be read in parts; tarcat a.tgz")
    assert files_in(tmp_path) == ["a.tar", "b.tar"]
    for output in ("-", "pipe:cat", "index.parquet"):
        assert "must be a directory or a prefix" in run("tarindex", "--for", name, "-o", output, "b.tar").failure(2)
    for shards in (["-"], ["pipe:cat b.tar"]):
        done = run("tarindex", "--for", name, "-o", "d", *shards, stdin=b"")
        assert done.status in (1, 2) and done.stderr.count("\n") == 1
        assert files_in(tmp_path) == ["a.tar", "b.tar"]


def test_samples_without_a_field(run: Run, tmp_path: Path) -> None:
    members = [("0.cls", b"1"), ("README", b"a"), ("LICENSE", b"b"), ("1.cls", b"2")]
    (tmp_path / "a.tar").write_bytes(make_tar(members))
    for name in FORMATS:
        first, account = run("tarindex", "-v", "--for", name, "a.tar").failure().splitlines()
        assert first == "tarindex: a.tar: not in the index, since its name has no field: README (and 1 more)"
        assert account.startswith("tarindex: 4 samples in, 2 out, 2 left out and reported, ")
    assert (tmp_path / "a.idx").read_text() == "v1.2 2\ncls 512 1 0.cls\ncls 3584 1 1.cls\n"
    assert [*json.loads((tmp_path / "a.json").read_text())["files"]] == ["0.cls", "1.cls"]


@pytest.mark.parametrize("name", FORMATS)
def test_an_empty_shard(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a.tar").write_bytes(make_tar([]))
    (tmp_path / "d/b.tar").write_bytes(make_tar(make_samples(2)))
    done = run("tarindex", "--for", name, "d/a.tar", "d/b.tar")
    if name in ("dali", "energon"):
        assert done.status == 1 and done.stderr.startswith("tarindex: d/a.tar: has no samples, and ")
        assert not {*FILES[name]} & {*files_in(tmp_path)}
    else:
        assert (done.status, done.stderr) == (0, "")
        told = json.loads((tmp_path / FILES[name][0]).read_text())
        if name == "openclip":
            assert told == {"a.tar": 0, "b.tar": 2}
        else:
            assert told.get("files") == {} or [shard["nsamples"] for shard in told["shardlist"]] == [0, 2]


def test_two_shards_of_one_name(run: Run, tmp_path: Path) -> None:
    for folder in "xy":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.tar").write_bytes(make_tar([(f"{folder}.cls", b"1")]))
    for name, suffix in (("dali", "idx"), ("webshart", "json")):
        done = run("tarindex", "--for", name, "-o", "i", "x/a.tar", "y/a.tar")
        assert done.status == 2 and f"x/a.tar and y/a.tar would have the same index i/a.{suffix}" in done.stderr
        assert f"have the same index x/a.{suffix}" in run("tarindex", "--for", name, "x/a.tar", "x/a.tar").failure(2)
        assert run("tarindex", "--for", name, "x/a.tar", "y/a.tar") == (0, b"", "")
        assert {f"x/a.{suffix}", f"y/a.{suffix}"} < {*files_in(tmp_path)}
    assert "a.tar is named twice" in run("tarindex", "--for", "wids", "x/a.tar", "y/a.tar", "x/a.tar").failure(2)
    assert run("tarindex", "--for", "energon", "x/a.tar", "y/a.tar") == (0, b"", "")
    assert json.loads((tmp_path / ".nv-meta/.info.json").read_text())["shard_counts"] == {"x/a.tar": 1, "y/a.tar": 1}


@pytest.mark.parametrize("name", FORMATS)
def test_tables_have_no_index(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(1)))
    assert run("tarindex", "a.tar", "-o", "t.parquet") == (0, b"", "")
    what = "Energon needs a name that ends in .tar" if name == "energon" else "this is a table, and an index is made of"
    assert what in run("tarindex", "--for", name, "-o", ".", "t.parquet").failure(2)
    assert files_in(tmp_path) == ["a.tar", "t.parquet"]


def test_no_temporary_files_are_left(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "a.tar").write_bytes(make_tar(make_samples(9)))
    (tmp_path / "b.tar").write_bytes(make_tar(make_samples(9)))
    for shards, status in (["a.tar"], 0), (["a.tar", "b.tar"], 1):  # their keys are the same
        assert run("tarindex", "--for", "energon", "--force", "--tmpdir", "t", *shards).status == status
        assert [*(tmp_path / "t").iterdir()] == [*tmp_path.glob(".*.tmp")] == []
