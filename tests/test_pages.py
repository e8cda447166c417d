"""The pages by task, and those that people search for: their lines run as printed; README is short."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy
import pytest
from PIL import Image

import tartools
from tests.archives import encoded
from tests.conftest import ROOT, Run, keys_in, make_tar, members_of, start
from tests.tiers import exhaustive

README_LINES, FIRST_LINES = 120, 40
PAGES = ("look", "make", "check", "choose", "order", "process", "move", "train", "damaged", "progress", "many-shards")
PRINTED = {  # page -> a part of what its lines print
    "look": "     20 circle\n     20 square\n     20 triangle\n",
    "make": "__key__\ttxt\ncircle/01\tround, red\nsquare/01\tcorners\n",
    "check": "errors: 0\nwarnings: 0\n",
    "choose": "20\n",
    "order": "shuffled-000003.tar\nsmall-000000.tar\n",
    "process": "__key__\tbytes\ncircle/00\t",
    "move": "equal: 60\nadded: 0\nremoved: 0\nchanged: 0\n",
    "train": "",
    "damaged": "status 1\n4 items: 3 done, 1 failed, 4 tries\n",
    "progress": "tarsort: 60 samples in, 60 out, ",
    "many-shards": "4 shards, 256000 bytes\ntrain-{000000..000003}.tar\n",
}


def code_of(page: str, kind: str = "sh") -> list[str]:
    """Return the blocks of docs/PAGE.md that are of this kind."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", (ROOT / f"docs/{page}.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `tartools demo shapes` makes."""
    folder = tmp_path_factory.mktemp("demo")
    assert start(sys.executable, "-m", "tartools", "demo", folder / "shapes").status == 0
    return folder / "shapes"


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page_run_in_the_demo(page: str, shapes: Path, shell: Run, tmp_path: Path) -> None:
    shutil.copytree(shapes, tmp_path, dirs_exist_ok=True)
    done = shell("set -eo pipefail\n" + "\n".join(code_of(page)))
    assert done.status == 0, done.stderr
    assert PRINTED[page] in done.stdout.decode()
    if page == "damaged":
        assert len(keys_in((tmp_path / "saved.tar").read_bytes())) == 7
        assert len(keys_in((tmp_path / "good.tar").read_bytes())) == 45
        assert "in/train-000001.tar: at byte 30000: " in done.stderr


def test_the_check_of_an_epoch_holds(shapes: Path, tmp_path: Path) -> None:
    shutil.copytree(shapes, tmp_path, dirs_exist_ok=True)
    (program,) = code_of("hangs", "python")
    start(sys.executable, "-c", program, folder=tmp_path).output()


def test_pages_lead_on() -> None:
    """Each page ends with the next step; that of the benchmarks is all figures."""
    pages = {path for folder in ("docs", "docs/training") for path in (ROOT / folder).glob("*.md")}
    for page in pages - {ROOT / "docs/benchmarks.md"}:
        last = page.read_text().rstrip().rpartition("\n\n")[2]
        assert re.search(r"Next:\s[^\]]*\[", last), page


def test_readme_is_short_and_begins_with_its_two_commands() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES
    first = "\n".join(lines[:FIRST_LINES])
    assert [
        len(re.findall(rf"^{line}", first, re.MULTILINE)) for line in (r"python3 -m venv ", r"\.venv/bin/pip ")
    ] == [
        1,
        1,
    ]


# ---- known-sets.md: data sets as they are published, in small ----


def picture(number: int) -> bytes:
    return encoded(Image.new("RGB", (40 + number, 30), (20 * number, 9, 9)))


def lay_out_known_sets() -> None:
    """Write a few files of each data set in the current directory."""
    classes = [(f"{w}.tar", make_tar([(f"{w}_{n}.JPEG", picture(n)) for n in range(3)])) for w in ("n014", "n015")]
    Path("ILSVRC2012_img_train.tar").write_bytes(make_tar(classes))
    pictures = [(f"ILSVRC2012_val_{n:08d}.JPEG", picture(n)) for n in (1, 2, 3)]
    Path("ILSVRC2012_img_val.tar").write_bytes(make_tar(pictures))
    Path("ILSVRC2012_validation_ground_truth.txt").write_text("490\n361\n171\n")
    for shard in range(2):
        facts = [(f"{shard:05d}{n:04d}", {"similarity": 0.2 + n / 5, "width": 40 + n}) for n in range(3)]
        members = [
            member
            for key, fact in facts
            for member in ((f"{key}.jpg", picture(1)), (f"{key}.json", json.dumps(fact).encode()))
        ]
        Path(f"{shard:05d}.tar").write_bytes(make_tar(members))
    Path("cv/clips").mkdir(parents=True)
    rows = [f'speaker{n % 5}\tcommon_voice_en_{n}.mp3\tHe said "no", {n}.\t2' for n in range(20)]
    Path("cv/train.tsv").write_text("\n".join(["client_id\tpath\tsentence\tup_votes", *rows, ""]))
    for n in range(21):
        Path(f"cv/clips/common_voice_en_{n}.mp3").write_bytes(b"ID3" + bytes(50))
    for speaker, chapter in ((19, 198), (26, 495)):
        folder = Path(f"LibriSpeech/train-clean-100/{speaker}/{chapter}")
        folder.mkdir(parents=True)
        names = [f"{speaker}-{chapter}-{n:04d}" for n in range(2)]
        (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(f"{name} NORTHANGER ABBEY\n" for name in names))
        for name in names:
            (folder / f"{name}.flac").write_bytes(b"fLaC" + bytes(40))
    masks = [(f"./sa_{n}.json", json.dumps({"image": {"width": 40 + n}}).encode()) for n in (1, 2)]
    Path("sa_000000.tar").write_bytes(make_tar([*((f"./sa_{n}.jpg", picture(n)) for n in (1, 2)), *masks]))
    Path("val2017").mkdir()
    for n in (139, 285):
        Path(f"val2017/{n:012d}.jpg").write_bytes(picture(1))
    images = [{"id": n, "file_name": f"{n:012d}.jpg"} for n in (139, 285)]
    boxes = [{"image_id": 285, "category_id": 3, "bbox": [4, 4, 9, 9]}]
    coco = {"images": images, "annotations": boxes, "categories": [{"id": 3, "name": "car"}]}
    Path("instances_val2017.json").write_text(json.dumps(coco))


def test_known_sets(shell: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if b"GNU tar" not in subprocess.run(["tar", "--version"], capture_output=True, check=True).stdout:
        pytest.skip("tar is not GNU tar")
    monkeypatch.chdir(tmp_path)
    lay_out_known_sets()
    out = shell("set -eo pipefail\n" + "\n".join(code_of("known-sets")))
    assert out.status == 0, out.stderr
    imagenet = {sample.key: sample for sample in tartools.read("imagenet-000000.tar")}
    assert sorted(imagenet) == [f"{w}/{w}_{n}" for w in ("n014", "n015") for n in range(3)]
    assert [*imagenet] != sorted(imagenet)  # they are shuffled
    sample = imagenet["n015/n015_2"]
    assert (sample["jpg"], sample["cls"], sample["cls.txt"]) == (picture(2), b"1", b"n015")
    assert [sample["cls"] for sample in tartools.read("imagenet-val.tar")] == [b"490", b"361", b"171"]
    boxes = json.loads([*tartools.read("coco.tar")][1]["json"])["annotations"]
    assert boxes == [{"category_id": 3, "bbox": [4, 4, 9, 9], "category": "car"}]
    assert [sample.key for sample in tartools.read("similar.parquet")] == [
        f"0000{shard}000{n}" for shard in (0, 1) for n in (1, 2)
    ]
    voices = {part: {s["speaker.txt"] for s in tartools.read(f"voice-{part}-000000.tar")} for part in ("train", "val")}
    assert len(voices["train"] | voices["val"]) == 5 and not voices["train"] & voices["val"]
    first = next(iter(tartools.read("voice.tar")))
    assert (first.key, first["txt"]) == ("common_voice_en_0", b'He said "no", 0.')
    libri = [(sample.key, sample["txt"]) for sample in tartools.read("libri.tar")]
    assert libri[0] == ("19/198/19-198-0000", b"NORTHANGER ABBEY") and len(libri) == 4
    names = [name for name, _ in members_of(Path("sorted/sa_000000.tar").read_bytes())]
    assert names == ["./sa_1.jpg", "./sa_1.json", "./sa_2.jpg", "./sa_2.json"]
    assert out.stdout.decode().endswith("./sa_1\t41\n./sa_2\t42\n")


# ---- converting.md: what has a reader in Python ----


def write_arrow() -> None:
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"text": ["one", "two"], "label": [3, 4]}), "rows.parquet")


def write_hdf5() -> None:
    with import_module("h5py").File("data.h5", "w") as file:
        file["images"], file["labels"] = numpy.zeros((2, 3, 4)), numpy.array([3, 4])


def write_lmdb() -> None:
    with import_module("lmdb").open("data.lmdb") as database, database.begin(write=True) as transaction:
        for key in (b"a.1", b"b"):
            transaction.put(key, picture(1))


def write_mds() -> None:
    with import_module("streaming").MDSWriter(out="mds-folder", columns={"image": "jpeg", "label": "int"}) as writer:
        for label in (3, 4):
            writer.write({"image": Image.open(io.BytesIO(picture(1))), "label": label})


def row_of(number: int) -> dict[str, object]:
    return {"image": Image.open(io.BytesIO(picture(1))), "label": 3 + number}


def write_litdata() -> None:
    import_module("litdata").optimize(
        fn=row_of, inputs=[0, 1], output_dir="litdata-folder", num_workers=1, chunk_bytes="1MB"
    )


# those that no extra installs are imported by name: what tests import is in pyproject.toml
WRITERS = {  # name of the shards -> the package, and what writes its files
    "arrow": ("datasets", write_arrow),
    "hdf5": ("h5py", write_hdf5),
    "lmdb": ("lmdb", write_lmdb),
    "mds": ("streaming", write_mds),
    "litdata": ("litdata", write_litdata),
}


@exhaustive  # importing the libraries of others takes long
@pytest.mark.parametrize("name", [name for name, (package, _) in WRITERS.items() if find_spec(package)])
@pytest.mark.filterwarnings("ignore")  # of theirs
def test_what_has_a_reader_becomes_shards(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    WRITERS[name][1]()
    (program,) = [code for code in code_of("converting", "python") if f'ShardWriter("{name}"' in code]
    start(sys.executable, "-c", program, folder=tmp_path, env={"HF_HOME": str(tmp_path)}).output()
    samples = [*tartools.read(f"{name}-000000.tar")]
    assert len(samples) == 2
    assert name == "lmdb" or [sample["cls"] for sample in samples] == [b"3", b"4"]
    with tarfile.open(f"{name}-000000.tar") as file:
        assert len(file.getnames()) == sum(len(sample) for sample in samples)


def test_parquet_needs_no_program(tmp_path: Path, shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_arrow()
    (line,) = re.findall(r"`(tarcreate --parquet rows.*?)`", (ROOT / "docs/converting.md").read_text())
    shell(line).output()
    assert [sample["txt"] for sample in tartools.read("rows.tar")] == [b"one", b"two"]
