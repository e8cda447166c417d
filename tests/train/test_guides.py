"""docs/training, docstrings and the example: all code runs, on a few pictures, without a store."""

from __future__ import annotations

import ast
import contextlib
import gc
import inspect
import io
import json
import re
import runpy
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import numpy
import pytest
import torch
import webdataset
from PIL import Image, ImageOps

import tartools
import tartools.train
from tests.archives import encoded
from tests.commands.test_zip import zipped
from tests.conftest import ROOT, Run, make_tar, start
from tests.guides import ImageFolder, blocks, program
from tests.media import make_sound, make_video
from tests.storage.objects import servers
from tests.storage.objects.faults import FaultServer
from tests.storage.objects.memory import Bucket
from tests.storage.objects.sites import environment
from tests.tiers import exhaustive

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # this machine may have two processors
]
PAGES = ("litdata", "streaming", "energon", "datasets", "pytorch")
THEIRS = ["datasets", *(name for name in ("litdata", "streaming") if find_spec(name))]  # heavy ones: where they are
COUNT = 16


def picture(number: int, form: str = "jpeg", size: tuple[int, int] = (32, 24)) -> bytes:
    """Return a picture whose red is *number*."""
    return encoded(Image.new("RGB", size, (number, 0, 0)), form)


PICTURES = [picture(10 * number) for number in range(COUNT)]


def codes(page: str, kind: str) -> list[str]:
    """Return the code of the blocks of *page* that are of this *kind*."""
    return [code for _, code in blocks(page, kind)]


def lay_out(page: str) -> None:
    """Write the files with which *page* begins, here."""
    if page == "datasets":
        rows = [{"image": {"bytes": data, "path": None}, "label": n % 2} for n, data in enumerate(PICTURES)]
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        datasets.Dataset.from_list(rows, features=features).to_parquet("photos.parquet")
    elif page == "energon":
        Path("data").mkdir()
        members = [(f"{n:02d}.{field}", data) for n, jpg in enumerate(PICTURES) for field, data in pair(n, jpg)]
        Path("data/train-000000.tar").write_bytes(make_tar(members))
    else:
        for number, data in enumerate(PICTURES):
            folder = Path("photos", ("cat", "dog")[number % 2] if page == "pytorch" else "")
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:02d}.jpg").write_bytes(data)


def pair(number: int, jpg: bytes) -> tuple[tuple[str, bytes], ...]:
    return ("jpg", jpg), ("cls", b"%d" % (number % 2))


def run_script(name: str, code: str) -> dict[str, Any]:
    """Run *code* as the script *name* here; return its names."""
    Path(name).write_text(code)
    return runpy.run_path(str(Path(name).resolve()), run_name="__main__")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hf"))
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_our_programs_run(page: str, shell: Run) -> None:
    lay_out(page)
    ran = 0
    for number, (kind, code) in enumerate(blocks(page, "sh", "python")):
        if kind == "sh":
            done = shell(f"set -eo pipefail\n{code}")
            assert done.status == 0, f"{code}\n{done.stderr}"
            continue
        names = run_script(f"script{number}.py", code)
        ran += 1
    assert ran == (1 if page == "pytorch" else len(blocks(page, "python"))) > 0
    table = tartools.Table("train.parquet")
    assert len(table) == COUNT
    stored = {sample["jpg"] for sample in table}
    assert (stored == {*PICTURES}) == (page != "litdata")  # whose program encodes them again
    assert {sample["cls"] for sample in table} == {b"0", b"1"}
    if "state" in names:
        names["loader"].load_state_dict(names["state"])


def test_training_goes_on_after_a_stop(here: Path, shell: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    lay_out("pytorch")
    (_, line), (_, code) = blocks("pytorch", "sh", "python")
    assert shell(line).status == 0
    Path("guide_of_pytorch.py").write_text(code)
    monkeypatch.syspath_prepend(here)
    program: Any = import_module("guide_of_pytorch")
    save = program.saved
    places: list[tuple[int, int]] = []

    def saved(state: Any) -> None:
        save(state)
        places.append((state["loader"]["epoch"], state["loader"]["done"]))
        if len(places) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(program, "saved", saved)
    with pytest.raises(KeyboardInterrupt):
        program.main()
    assert places == [(0, 8)]
    program.main()
    assert places == [(0, 8), (0, 16), (1, 8), (1, 16)]


@pytest.mark.parametrize("page", PAGES)
def test_every_program_starts_workers_below_its_guard(page: str) -> None:
    for _, code in blocks(page, "py", "python"):  # theirs too
        assert ast.unparse(ast.parse(code).body[-1]).startswith("if __name__ == '__main__':"), code


def test_no_guide_gives_a_lambda_to_workers() -> None:
    pages = [path.stem for path in (ROOT / "docs/training").glob("*.md")]
    found = [code for page in pages for _, code in blocks(page, "py", "python") if "num_workers" in code]
    assert len(found) > 10
    assert [code for code in found if re.search(r"\blambda\b", code)] == []


@pytest.mark.filterwarnings("ignore")  # of theirs
@pytest.mark.parametrize("page", THEIRS)
def test_what_stands_beside_ours_runs(page: str) -> None:
    """Of those of the others that are installed, which a run of the benchmark has all of; here without a store."""
    lay_out("energon" if page == "datasets" else page)
    for path in Path().glob("data/*.tar"):
        path.rename(path.name)
    names: dict[str, Any] = {}
    for number, (_, code) in enumerate(blocks(page, "py")):
        names = run_script(f"theirs{number}.py", code.replace("s3://bucket/train", "train").replace("/nvme", "local"))
    pictures = names["pictures"]
    assert len(pictures) == 4 and (page != "datasets" or isinstance(pictures[0], Image.Image))


# ---- webdataset.md, fields.md, order.md ----


@pytest.fixture
def shards() -> list[str]:
    """Return four shards in the current directory."""
    for shard in range(4):
        members = [
            (f"{number:06d}.{field}", data)
            for number in range(50 * shard, 50 * shard + 50)
            for field, data in (("jpg", picture(number)), ("cls", b"%d" % (number % 10)), ("json", b'{"width": 32}'))
        ]
        Path(f"train-{shard:06d}.tar").write_bytes(make_tar(members))
    return [f"train-{shard:06d}.tar" for shard in range(4)]


def test_joined(
    shell: Run, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duckdb_command: Any
) -> None:
    assert len(shards) == 4
    names, rest = program(codes("joined", "python"), "page_joined", tmp_path, monkeypatch)
    parts = iter(rest)
    said = ""
    for kind, code in blocks("joined", "sh", "python"):
        if kind == "python":
            exec(next(parts), names)
            continue
        done = shell(f"set -eo pipefail\n{code}", env=duckdb_command)
        assert done.status == 0, f"{code}\n{done.stderr}"
        said += done.stdout.decode()
    members = [word for word in said.split() if word.startswith("000000.")]
    assert members == ["000000.jpg", "000000.cls", "000000.json", "000000.emb.txt"] * 2  # of both tables
    names.clear()
    gc.collect()


@pytest.mark.parametrize(("page", "count"), [("webdataset", 13), ("fields", 3), ("order", 2)])
def test_every_block_runs(
    page: str, count: int, run: Run, shards: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("tarindex", *shards, "-o", "train.parquet").status == 0
    names, rest = program(codes(page, "python"), f"page_{page}", tmp_path, monkeypatch)
    try:
        assert len(rest) >= count
        for block in rest:
            exec(block, names)
    finally:
        names.clear()  # functions of the page refer to it: only now workers of loaders can end
        gc.collect()


def flipped(picture: Any) -> Any:
    return picture[:, ::-1].copy()


@pytest.mark.filterwarnings("ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves them
def test_what_stands_beside_them_runs_with_webdataset(shards: list[str]) -> None:
    names: dict[str, Any] = {"wds": webdataset, "json": json, "url": shards[0], "urls": shards, "keep": bool}
    names["augment"] = flipped
    assert len(codes("webdataset", "py")) == 7
    for block in codes("webdataset", "py"):
        exec(compile(block, block.strip().splitlines()[0], "exec"), names)
        assert next(iter(names.popitem()[1]))
    gc.collect()


# ---- dataflux.md, aistore.md, cortx.md ----


def ours(page: str, kind: str) -> list[str]:
    """Return the code of *kind* on *page* that is ours."""
    found = codes(page, kind)
    theirs = re.compile(r"dataflux|aistore|cortx_pytorch|AISIterDataset")
    assert len([block for block in found if theirs.search(block)]) >= (kind == "python") * 2
    return [block for block in found if not theirs.search(block)]


Ran = Callable[..., tuple[list[dict[str, Any]], list[str]]]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Return a function that runs our Python of a page, one block after the other.

    It returns the names that each leaves, and what is printed. Options are names of buckets, and what stands for them.
    """

    def ran(page: str, **replaced: str) -> tuple[list[dict[str, Any]], list[str]]:
        found = ours(page, "python")
        for name, other in replaced.items():
            found = [block.replace(f"://{name}/", f"://{other}/") for block in found]
        names, rest = program(found, f"page_{page}", tmp_path, monkeypatch)
        left, printed = [], io.StringIO()
        for block in rest:
            with contextlib.redirect_stdout(printed):
                exec(block, names)
            left.append(dict(names))
        return left, printed.getvalue().splitlines()

    return ran


def test_dataflux(server: FaultServer, ran: Ran) -> None:
    made = {f"train/{n % 3}/{n}.png": picture(n, "png") for n in range(70)}
    server.objects.update(made)
    left, printed = ran("dataflux", bucket="b")
    assert (left[0]["name"], left[0]["size"]) == ("gs://b/train/0/0.png", len(made["train/0/0.png"]))
    assert printed[:70] == [f"{len(made[name])} bytes" for name in sorted(made)]
    assert [line.partition("]")[0] for line in printed[70:72]] == [
        "torch.Size([64, 24, 32, 3",
        "torch.Size([6, 24, 32, 3",
    ]
    numbers = sorted(int(re.sub(r"\D", "", line)) for line in printed[72:])
    assert numbers == [35, 35, 35, 35]  # each of two workers has half, in each of two epochs
    assert torch.equal(left[3]["model"].weight, left[3]["read_state_dict"]["weight"])
    assert "checkpoints/epoch0.ckpt" in server.objects and "checkpoints/step-100/.metadata" in server.objects
    assert len(left) == 5


def test_aistore(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> None:
    with servers.aistore() as proxy:
        for name, value in environment("ais", proxy.base).items():
            monkeypatch.setenv(name, value)
        for bucket in ("bucket1", "aws:bucket2"):
            held = proxy.buckets[bucket] = Bucket()
            held.objects |= {f"train/{bucket[-1]}-{n}": b"%d" % n for n in range(5)} | {"other": b"x"}
        left, printed = ran("aistore")
        urls = [f"ais://bucket1/train/1-{n}" for n in range(5)] + [f"aws://bucket2/train/2-{n}" for n in range(5)]
        assert [url for url, _ in left[0]["dataset"].objects] == urls
        assert printed == ["10 objects", *urls]
        assert (left[0]["url"], left[0]["content"]) == (urls[-1], b"4")
        assert (left[2]["url"], left[2]["data"]) == (urls[-1], b"4")


TORCHVISION = """
from types import SimpleNamespace
from tests.guides import ImageFolder
datasets = SimpleNamespace(ImageFolder=ImageFolder)
"""


def test_cortx(server: FaultServer, ran: Ran, shell: Run, tmp_path: Path) -> None:
    for n in range(10):
        path = tmp_path / "imagenet-val" / str(n % 2) / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(n, "png"))
    (block,) = ours("cortx", "sh")
    line = block.replace("testbucket", "b").replace("-s 1e8", "-s 15e3")
    shell(f"set -euo pipefail\n{line}").output()
    shards = [name for name in server.objects if name.endswith(".tar")]
    assert len(shards) > 1
    (tmp_path / "torchvision.py").write_text(TORCHVISION)  # also for workers that are started
    left, printed = ran("cortx", testbucket="b")
    values = [(round(float(x[0, 0, 0]) * 255), int(y)) for x, y in left[0]["dataset"]]
    assert sorted(values) == [(n, n % 2) for n in range(10)]
    assert [line.partition("]")[0] for line in printed if "Size" in line][:2] == ["torch.Size([10, 3, 224, 224"] * 2
    assert left[1]["table"] == "s3://b/packed/val.parquet" and "packed/val-000000.tar" in server.objects
    for name in ("dataloader", "dataset"):
        found = [
            (round(float(x[0, 0, 0]) * 255), int(y))
            for images, labels in left[2 if name == "dataloader" else 3][name]
            for x, y in zip(images, labels, strict=True)
        ]
        assert sorted(found) == [(n, n % 2) for n in range(10)]


# ---- zip.md, mixtures.md, preprocessing.md ----


def test_zip_files(shell: Run) -> None:
    members = [("cats/1.png", 1), ("cats/2.png", 2), ("dogs/1.png", 3), ("dogs/2.png", 4)]
    Path("photos.zip").write_bytes(zipped([(name, picture(value, "png", (5, 4))) for name, value in members]))
    found: list[list[tuple[int, int]]] = []
    for kind, block in blocks("zip", "sh", "python"):
        if kind == "sh":
            assert shell(f"set -eu\n{block}").status == 0
            continue
        names: dict[str, Any] = {"__name__": "page"}
        exec(compile(block, "zip.md", "exec"), names)
        if "loader" in names:
            pairs = [
                (round(float(p[0, 0, 0]) * 255), int(c)) for x, y in names["loader"] for p, c in zip(x, y, strict=True)
            ]
            found.append(sorted(pairs))
    assert found == [[(1, 0), (2, 0), (3, 1), (4, 1)]] * 4
    assert len(blocks("zip", "sh")) >= 2


def test_mixtures(shell: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for number, source in enumerate(("photos", "drawings", "scans")):
        Path(source).mkdir()
        for n in range((20, 12, 5)[number]):
            drawn = picture(0, "jpeg", ((32, 64, 128)[n % 3], (40, 100)[n % 2]))
            Path(source, f"{number}{n:02d}.jpg").write_bytes(drawn)
    for kind, code in blocks("mixtures", "sh", "python"):
        if kind == "sh":
            assert shell(f"set -eo pipefail\n{code}").status == 0
        else:
            run_script("mixtures_of_guide.py", code)
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[2]) for line in lines] == [40, 37, 36, 37, 37, 37, 37, 37, 37]


def test_masks(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program trains, and each mask lies on its picture, whatever part of them was cut and mirrored."""
    (code,) = codes("masks", "python")
    with tartools.TarWriter("train-000.tar") as writer:
        for number in range(8):
            labels = Image.new("P", (48, 40), 0)
            labels.putpalette([200, 0, 0, 0, 0, 90])
            labels.paste(1, (5 + number, 3, 30, 30))
            photo = Image.fromarray(numpy.asarray(labels) * 255).convert("RGB")
            files = [io.BytesIO(), io.BytesIO()]
            photo.save(files[0], "png")
            labels.save(files[1], "png")
            writer.write({"__key__": str(number), "jpg": files[0].getvalue(), "mask.png": files[1].getvalue()})
    Path("guide_of_masks.py").write_text(code)
    monkeypatch.syspath_prepend(here)
    program: Any = import_module("guide_of_masks")
    program.main()
    runs = [[*program.batches()] for _ in range(2)]
    for pictures, masks in runs[0]:
        assert pictures.shape == (4, 3, 24, 24) and {*masks.unique().tolist()} == {0, 1}
        edge = (pictures[:, 0] > 0.1) & (pictures[:, 0] < 0.9)  # which bicubic mixes
        assert torch.equal((pictures[:, 0] > 0.5)[~edge], (masks == 1)[~edge]) and edge.float().mean() < 0.2
    assert all(torch.equal(a, b) for one, other in zip(*runs, strict=True) for a, b in zip(one, other, strict=True))


def test_sound(shell: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("no", "yes"):
        Path("recordings", name).mkdir(parents=True)
        for number in range(1, 5):
            sound = make_sound(number, "FLAC", (16_000, 22_050)[number % 2], 2)
            Path("recordings", name, f"{number}.flac").write_bytes(sound)
    for number, (kind, code) in enumerate(blocks("sound", "sh", "python")):
        if kind == "sh":
            assert shell(f"set -eo pipefail\n{code}").status == 0
        else:
            names = run_script(f"sound{number}.py", code)
    assert (names["waveform"].shape, names["rate"]) == ((1, 32_000), 16_000)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["(4, 1, 32000) [16000, 16000, 16000, 16000] torch.int64"] * 2
    lengths = [length for line in lines[2:] for length in json.loads(f"[{line.replace('] [', '],[')}]")[0]]
    assert len(lines) == 4 and sorted(lengths) == sorted([22_050, 32_000, 66_150, 64_000] * 2)


def test_video(shell: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("left", "right"):
        Path("videos", name).mkdir(parents=True)
        for number in range(1, 5):
            size = (64, 48) if number % 2 else (48, 64)
            Path("videos", name, f"{number}.mp4").write_bytes(make_video(5 * number, size=size))
    for number, (kind, code) in enumerate(blocks("video", "sh", "python")):
        if kind == "sh":
            assert shell(f"set -eo pipefail\n{code}").status == 0
        else:
            names = run_script(f"video{number}.py", code)
    assert names["clip"].shape == (4, 3, 48, 64)
    assert capsys.readouterr().out.splitlines() == ["(4, 8, 3, 32, 32) torch.uint8 torch.int64"] * 2


def test_text(shell: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The blocks of the second run are those that the first one had behind its last state."""
    words = ["the", "a", "cat", "dog", "mat", "sat", "saw", "on", "and", "ran"]
    stories = [" ".join(words[(n * n + k * (n + 3)) % 10] for k in range(5 + n % 40)) for n in range(80)]
    Path("stories.jsonl").write_text("".join(json.dumps({"text": story, "n": 1}) + "\n" for story in stories))
    for number, (kind, code) in enumerate(blocks("text", "sh", "python")):
        if kind == "sh":
            assert shell(f"set -eo pipefail\n{code}").status == 0
            continue
        run_script(f"text{number}.py", code)
        if "blocks.pt" in code:
            first = capsys.readouterr().out.splitlines()
            run_script(f"text{number}.py", code)
            again = capsys.readouterr().out.splitlines()
            last = len(first) // 3 * 3
            assert last > 6 and again == first[last:] and len({*first}) > 6
            assert all(line.startswith("(4, 32) ") for line in first[:-1])
    from tokenizers import Tokenizer

    trained = Tokenizer.from_file("tokenizer.json")
    assert [trained.decode(trained.encode(story).ids) for story in stories] == stories
    lines = capsys.readouterr().out.splitlines()
    count = sum(len(trained.encode(story).ids) + 1 for story in stories)
    assert lines and 0 <= count - int(lines[-1].split()[0]) < 2 * 32  # of two workers, each drops a last one


@exhaustive
def test_preprocessing(shards: list[str]) -> None:
    code = codes("preprocessing", "python")
    assert len(code) == 2
    Path("program.py").write_text("".join(code))
    assert start(sys.executable, "program.py").output() == b""


# ---- docstrings ----

LOCAL = {"s3://bucket/": "bucket/", "gs://bucket/": "bucket/", "{000..147}": "{000..001}", "range(148)": "range(2)"}
LOCAL |= {', engine="ray"': "", "run/model.pt": "run.pt"}  # tests of Ray are in modules of their own


def examples() -> list[Any]:
    """Return (name, code) of all public names that have examples."""
    public = [getattr(tartools, name) for name in tartools.__all__]
    public += [getattr(tartools.train, name) for name in tartools.train.__all__]
    found = []
    for value in public:
        name, text = value.__name__, inspect.getdoc(value) or ""
        code = "\n".join(textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", f"{text}\n", re.MULTILINE))
        found += [pytest.param(code, id=name)] if code else []
    return found


@pytest.fixture
def names(run: Run) -> dict[str, Any]:
    """Return the names that the examples use, in a folder with what they read."""
    for where in ("bucket/train", "photos/one"):
        Path(where).mkdir(parents=True)
        for n in range(3):
            Path(where, f"{n:04d}.jpg").write_bytes(picture(n))
    for shard in ("train-000", "train-001", "in-000", "in-001"):
        fields = ("cls", b"1"), ("jpg", picture(7)), ("score", b"0.7")
        Path(f"{shard}.tar").write_bytes(
            make_tar([(f"{shard}/{n:02d}.{field}", data) for n in range(60) for field, data in fields])
        )
    assert run("tarindex", "-f", "score", "train-{000..001}.tar", "-o", "bucket/train.parquet").status == 0
    assert run("tar2zip", "train-000.tar", "-o", "bucket/photos.zip").status == 0
    Path("films.tar").write_bytes(make_tar([("a.mp4", make_video(30)), ("a.cls", b"1")]))
    Path("stories.tar").write_bytes(make_tar([(f"{n}.txt", b"once upon a time") for n in range(9)]))
    Path("speech.tar").write_bytes(make_tar([("a.flac", make_sound(3, "FLAC", 8000)), ("a.txt", b"hello")]))
    data = tartools.train.TableDataset("train-{000..001}.tar", table="train.parquet")
    loader = tartools.train.loader("train.parquet", 64, fields=("jpg;png", "cls"), decode="torchrgb8")
    torch.save(loader.state_dict(), "loader.pt")
    return {
        "__name__": "examples", "tartools": tartools, "torch": torch, "numpy": numpy, "wds": webdataset, "Image": Image,
        "ImageOps": ImageOps, "ImageFolder": ImageFolder, "model": torch.nn.Linear(2, 2), "data": data, "decode": len,
        "label": str, "augment": numpy.array, "picture": Image.new("RGB", (4, 4)),
        "flipped": lambda sample: {"__key__": sample.key, "cls": "1"},
    }  # fmt: skip


@pytest.mark.parametrize("code", examples())
def test_the_examples_run(code: str, names: dict[str, Any]) -> None:
    for far, near in LOCAL.items():
        code = code.replace(far, near)
    exec(compile(code, "<docstring>", "exec"), names)


# ---- the example that the README names: it goes on after it was killed as if nothing had happened ----


EXAMPLE = str(ROOT / "examples/train_shapes.py")
FEW = ("--pictures", "128", "--epochs", "2", "--save-every", "3")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., list[str]]]:
    """Return a function that runs the example here, and returns the lines that it prints."""

    def trained(folder: Path, *options: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [EXAMPLE, str(folder), *FEW, *options])
        runpy.run_path(EXAMPLE, run_name="__main__")
        found = capsys.readouterr()
        assert found.err == ""
        return found.out.splitlines()

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums of floats depend on it
    yield trained
    torch.set_num_threads(threads)


def killed(folder: Path) -> list[str]:
    """Return the lines that the example prints until it is killed after five batches."""
    done = start(sys.executable, EXAMPLE, folder, *FEW, "--kill-after", 5, env={"OMP_NUM_THREADS": "1"})
    assert (done.status, done.stderr) == (-signal.SIGKILL, "")
    return done.stdout.decode().splitlines()


def test_a_run_that_was_killed_ends_as_one_that_was_not(trained: Callable[..., list[str]], tmp_path: Path) -> None:
    whole = trained(tmp_path / "a")
    assert len(whole) == 9
    for epoch in (whole[:4], whole[4:8]):
        keys = [key for line in epoch for key in line.split(": ")[1].split(",")]
        assert sorted(keys) == [f"{n:09d}" for n in range(128)]
    assert whole[0] != whole[4]
    assert killed(tmp_path / "b") == whole[:5]
    again = trained(tmp_path / "b", "--workers", "1")
    assert again == whole[3:]  # from the checkpoint after three batches on, in the middle of an epoch
    assert re.fullmatch(r"of 32 pictures that it has not seen, it names \d+; sum of weights [-\d.]+", again[-1])
    shards = [{path.name: path.read_bytes() for path in (tmp_path / name).glob("*.tar")} for name in "ab"]
    assert shards[0] == shards[1] and len(shards[0]) == 2
