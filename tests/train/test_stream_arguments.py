"""The arguments of webdataset's class, and a shuffle that mixes as its own does."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import webdataset
from torch.utils.data import DataLoader

from tartools.errors import SampleError, TarFormatError
from tartools.train import WebDataset
from tests.conftest import make_tar
from tests.tiers import also
from tests.train.test_stream import keys

# webdataset's own class leaves files open
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
CLASSES, EACH, WINDOW = 100, 200, 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the current directory: a, b and c have 10 samples each, and b is cut within its fifth."""
    for name in "abc":
        Path(f"{name}.tar").write_bytes(make_tar([(f"{name}{n}.txt", b"%d" % n) for n in range(10)]))
    Path("b.tar").write_bytes(Path("b.tar").read_bytes()[: 4 * 1024 + 513])
    return tmp_path


def of(name: str, count: int = 10) -> list[str]:
    return [f"{name}{n}" for n in range(count)]


# ---- handlers ----


def test_a_handler_goes_on_with_the_next_shard(folder: Path) -> None:
    urls = ["a.tar", "b.tar", "gone.tar", "c.tar"]
    data = WebDataset(urls, handler=webdataset.ignore_and_continue)
    with pytest.warns(UserWarning, match=r"there were 2 failures that handlers left out .*: gone\.tar: "):
        assert keys(data) == [*of("a"), *of("b", 4), *of("c")]
    with pytest.warns(UserWarning, match=r"there were 2 failures"):  # each epoch says its own
        keys(data)
    stopping = WebDataset(urls, handler=webdataset.ignore_and_stop)
    with pytest.warns(UserWarning, match=r"there was 1 failure that a handler left out .*: b\.tar: .*byte 4609"):
        assert keys(stopping) == [*of("a"), *of("b", 4)]
    with pytest.raises(TarFormatError, match=r"^b\.tar: .*byte 4609"):
        keys(WebDataset(["a.tar", "b.tar", "c.tar"]))


def test_a_handler_decides_about_decoding(folder: Path) -> None:
    seen: list[Exception] = []

    def note(error: Exception) -> bool:
        seen.append(error)
        return True

    def odd(text: bytes) -> int:
        if int(text) % 2 == 0:
            raise ValueError(f"{text.decode()} is even")
        return int(text)

    data = WebDataset("a.tar", fields="txt", transform=(odd,), handler=note)
    with pytest.warns(UserWarning, match="there were 5 failures .*8 is even"):
        assert [*data] == [(1,), (3,), (5,), (7,), (9,)]
    assert [type(error) for error in seen] == [ValueError] * 5
    staged = WebDataset("a.tar").to_tuple("txt").map(lambda item: odd(item[0]), handler=webdataset.ignore_and_continue)
    with pytest.warns(UserWarning, match=r"there were 5 failures .*8 is even"):
        assert [*staged] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize("handler", [None, webdataset.reraise_exception, webdataset.ignore_and_continue])
def test_what_a_transform_returns_does_not_depend_on_a_handler(handler: Any, folder: Path) -> None:
    count = len([*WebDataset("a.tar")])
    options: dict[str, Any] = {} if handler is None else {"handler": handler}
    for result in (None, {"a": 1}, 7):
        assert [*WebDataset("a.tar", transform=lambda _, result=result: result, **options)] == [result] * count


def test_what_a_decoder_raises_is_what_webdataset_raises_too(folder: Path) -> None:
    def fails(name: str, data: bytes) -> Any:
        raise ValueError("no such number")

    with pytest.raises(SampleError, match=r"^a\.tar: sample 'a0': field 'txt': .*no such number") as raised:
        keys(WebDataset("a.tar").decode(fails))
    assert isinstance(raised.value, webdataset.autodecode.DecodingError)
    data = WebDataset("a.tar").decode(fails, handler=webdataset.ignore_and_continue)
    with pytest.warns(UserWarning, match="there were 10 failures"):
        assert keys(data) == []


# ---- files ----


def test_files_are_selected_and_renamed(folder: Path) -> None:
    Path("d.tar").write_bytes(
        make_tar([("x/1.jpg", b"j"), ("x/1.seg.PNG", b"p"), ("x/2.jpg", b"J"), ("x/3.txt", b"t")])
    )
    picked = WebDataset("d.tar", select_files=lambda name: not name.endswith(".jpg"))
    assert [{*sample} for sample in picked] == [{"__key__", "__url__", "seg.png"}, {"__key__", "__url__", "txt"}]
    renamed = WebDataset("d.tar", rename_files=lambda name: name.replace("jpg", "jpeg"), fields="jpeg")
    with pytest.raises(SampleError, match=r"sample 'x/3': has no field 'jpeg'"):
        assert [*renamed]
    with pytest.raises(SampleError, match=r"^d\.tar: rename_files moves a file of 'x/1' to 'y/1\.jpg'"):
        keys(WebDataset("d.tar", rename_files=lambda name: name.replace("x/", "y/")))


def test_lax_leaves_out_what_is_no_sample(folder: Path) -> None:
    members = [("LICENSE", b"MIT"), ("__meta__/info.json", b"{}"), ("x/1.jpg", b"j")]
    Path("d.tar").write_bytes(make_tar(members))
    assert keys(WebDataset("d.tar", lax=True)) == ["x/1"] == keys(webdataset.WebDataset("d.tar", shardshuffle=False))
    assert len(keys(WebDataset("d.tar"))) == 3
    Path("d.tar").write_bytes(make_tar([("x/._1.jpg", b"mac"), *members]))
    assert keys(WebDataset("d.tar", lax=True)) == ["x/1"]


# ---- names of shards ----


def test_names_as_webdataset_has_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keys(WebDataset("a.tar::c.tar")) == [*of("a"), *of("c")]
    monkeypatch.setenv("DATA", str(folder / "none"))
    monkeypatch.setenv("WDS_DATA", str(folder))
    assert keys(WebDataset("${DATA}/{a,c}.tar")) == [*of("a"), *of("c")]
    with pytest.raises(ValueError, match=r"^\$\{NOWHERE\}/a\.tar needs WDS_NOWHERE in the environment$"):
        WebDataset("${NOWHERE}/a.tar")
    assert keys(WebDataset("pipe:cat a.tar")) == of("a")


# ---- shards, ranks and workers ----


def test_seeds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards alone are shuffled by one; and it may be that of the environment."""
    orders = []
    for seed in range(8):
        found = keys(WebDataset("{a,c}.tar", shardshuffle=100, seed=seed))
        assert found in ([*of("a"), *of("c")], [*of("c"), *of("a")])
        orders.append(found[0])
    assert {*orders} == {"a0", "c0"}
    monkeypatch.setenv("WDS_SEED", "5")
    assert keys(WebDataset("a.tar", shuffle=10)) == keys(WebDataset("a.tar", shuffle=10, seed=5))
    assert keys(WebDataset("a.tar", shuffle=10)) != keys(WebDataset("a.tar", shuffle=10, seed=0))


def test_splitters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert 0 < len(keys(WebDataset("{a,c}.tar", nodesplitter=webdataset.split_by_node))) < 20
    assert keys(WebDataset("{a,c}.tar", nodesplitter=None)) == [*of("a"), *of("c")]
    with pytest.raises(TypeError, match="give each rank the shards that it reads"):
        WebDataset("a.tar", nodesplitter=lambda urls: urls)
    with pytest.raises(ValueError, match="always dealt to workers"):
        WebDataset("a.tar", workersplitter=None)
    resampled = WebDataset("a.tar", workersplitter=None, mode="resampled").with_epoch(25)
    assert len(keys(resampled)) == 25


def test_the_other_arguments(folder: Path) -> None:
    assert keys(islice(WebDataset("a.tar", repeat=True), 25)) == [*of("a"), *of("a"), *of("a", 5)]
    assert keys(WebDataset("a.tar", detshuffle=True, url_to_name=len, verbose=True)) == of("a")
    with pytest.raises(TypeError, match="WebDataset has no argument 'shufle'"):
        WebDataset("a.tar", shufle=100)
    with pytest.raises(ValueError, match="mode is 'resampled' or None, not 'once'"):
        WebDataset("a.tar", mode="once")
    with pytest.raises(ValueError, match="a batch has 1 sample or more, not 0"):  # which gave no sample
        WebDataset("a.tar").batched(0)
    Path("none.tar").write_bytes(make_tar([]))
    assert keys(WebDataset("none.tar")) == keys(WebDataset("none.tar", empty_check=False)) == []
    with pytest.raises(ValueError, match=r"no samples for reader 0 of 1 \(empty_check=True\)"):
        keys(WebDataset("none.tar", empty_check=True))


# ---- mixing ----


def mixed(classes: Sequence[int]) -> float:
    """Return how many classes there are in 64 samples on end, on average."""
    windows = range(0, len(classes) - WINDOW, WINDOW)
    return sum(len({*classes[first : first + WINDOW]}) for first in windows) / len(windows)


@pytest.fixture(scope="module")
def sorted_classes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return 20 shards of 20,000 samples, sorted by 100 classes."""
    folder = tmp_path_factory.mktemp("sorted")
    names = [f"{number:06d}.cls" for number in range(CLASSES * EACH)]
    urls = []
    for shard in range(20):
        urls.append(str(folder / f"{shard:02d}.tar"))
        first = shard * 1000
        members = [(name, b"%d" % (n // EACH)) for n, name in enumerate(names[first : first + 1000], first)]
        Path(urls[-1]).write_bytes(make_tar(members))
    return urls


@pytest.mark.parametrize("case", [(1000, 4), *also((1000, 0), (100, 0), (100, 4), (5000, 0), (5000, 4))])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores
def test_shuffle_mixes_as_webdatasets_does(case: tuple[int, int], sorted_classes: list[str]) -> None:
    (size, workers), found = case, []
    for data in (
        webdataset.WebDataset(sorted_classes, shardshuffle=False).shuffle(size, seed=1),
        WebDataset(sorted_classes).shuffle(size, seed=1),
    ):
        loader = DataLoader(data.to_tuple("cls"), batch_size=None, num_workers=workers)
        found.append([int(item[0]) for item in loader])
    theirs, ours = found
    assert sorted(theirs) == sorted(ours)
    assert mixed(ours) > 0.95 * mixed(theirs)
