"""Results and exceptions that can't be sent from workers end the run, with a sentence; loaders inside of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.train import ObjectDataset, TableDataset, WebDataset, ZipDataset, loader
from tests.commands.test_zip import zipped
from tests.conftest import make_tar
from tests.tiers import also

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),  # more workers than cores
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
]
COUNT = 11
TIMEOUT = 60.0  # seconds that torch waits for a batch: a hanging run fails


@pytest.fixture(autouse=True)
def shards(tmp_path: Path) -> Path:
    members = [(f"s{n:02d}.{field}", b"%d" % n) for n in range(COUNT) for field in ("cls", "txt")]
    Path("a.tar").write_bytes(make_tar(members))
    Path("a.zip").write_bytes(zipped(members))
    Path("objects").mkdir()
    for n in range(COUNT):
        Path(f"objects/{n:02d}").write_bytes(b"%d" % n)
    return tmp_path


def with_lambda(text: bytes, _: str = "") -> Any:
    """Return a function, of the sample 7."""
    return (lambda: text) if text == b"7" else text


def failing(text: bytes, _: str = "") -> Any:
    """Raise an exception of a local class, for the sample 7."""

    class LocalError(Exception):
        """Can't be pickled."""

    if text == b"7":
        raise LocalError("this one")
    return text


def as_items(data: Any) -> Any:
    return DataLoader(data, 4, num_workers=1, collate_fn=list, timeout=TIMEOUT)


def in_map(function: Any) -> Any:
    return WebDataset("a.tar").map(lambda sample: sample | {"cls": function(sample["cls"])})


Make = Callable[[Any], Any]
MAKES: dict[str, tuple[Make, str]] = {
    "loader": (
        lambda function: loader("a.tar", 4, fields="txt cls", transform=(None, function), collate_fn=list,
                                num_workers=1, timeout=TIMEOUT),
        "a.tar: sample 's07', field 'cls', with_lambda.<locals>.<lambda> of ",
    ),
    "TableDataset": (
        lambda function: as_items(TableDataset("a.tar", "txt cls", transform=(None, function))),
        "a.tar: sample 's07', field 'cls', ",
    ),
    "Subset": (
        lambda function: loader(Subset(TableDataset("a.tar", "txt cls", transform=(None, function)), range(5, 9)), 2,
                                num_workers=1, timeout=TIMEOUT, collate_fn=list),
        "a.tar: sample 's07', field 'cls', ",
    ),
    "ZipDataset": (
        lambda function: as_items(ZipDataset("a.zip", "cls", transform=(function,))),
        "a.zip: sample 's07', field 'cls', ",
    ),
    "ObjectDataset": (lambda function: as_items(ObjectDataset("objects", function)), "objects/07, "),
    "WebDataset": (
        lambda function: as_items(WebDataset("a.tar", fields="txt cls", transform=(None, function))),
        "a.tar: sample 's07', field 'cls', ",
    ),
    "WebDataset, map": (lambda function: as_items(in_map(function)), "a.tar: sample 's07', field 'cls', "),
    "WebDataset, StatefulDataLoader": (
        lambda function: StatefulDataLoader(in_map(function).listed(3), None, num_workers=1, timeout=TIMEOUT),
        "a.tar: sample 's07', field 'cls', ",
    ),
    "TableDataset, StatefulDataLoader": (
        lambda function: StatefulDataLoader(TableDataset("a.tar", "cls", transform=(function,)), 4, num_workers=1,
                                            collate_fn=list, timeout=TIMEOUT),
        "a.tar: sample 's07', field 'cls', ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MAKES)
def test_a_result_that_cannot_be_sent(name: str) -> None:
    make, said = MAKES[name]
    with pytest.raises(TypeError) as caught:
        list(make(with_lambda))
    message = str(caught.value)
    assert said in message and "can't be pickled, so the worker can't send it: " in message
    assert message.endswith("return tensors, arrays, numbers or texts, or make them in collate_fn, which workers call")


@pytest.mark.parametrize("name", MAKES)
def test_an_exception_that_cannot_be_sent(name: str) -> None:
    make, said = MAKES[name]
    with pytest.raises(RuntimeError) as caught:
        list(make(failing))
    message = str(caught.value)
    assert "LocalError: this one" in message
    assert message.endswith(
        "(failing.<locals>.LocalError can't be sent from a worker: define it at the top of a module)"
    )
    assert "map" in name or "WebDataset, S" in name or said.split(",")[0] in message


class Unsendable(Dataset[Any]):
    """A dataset of somebody, whose items are functions."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return {"number": index, "function": [lambda: index]}


def test_a_batch_of_any_dataset() -> None:
    data = loader(Unsendable(), 2, num_workers=1, collate_fn=list, timeout=TIMEOUT, worker_init_fn=print)
    with pytest.raises(TypeError, match=r"a batch, item 0, field 'function', item 0, Unsendable.__getitem__.<locals>"):
        list(data)


class Inner(IterableDataset[Any]):
    """Yields what a loader of ours gives in a worker of another one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def __iter__(self) -> Iterator[Any]:
        yield from self.make()


@pytest.mark.parametrize("workers", [1, *also(0, 2)])
@pytest.mark.parametrize("whole", [False, True], ids=["samples", "batches"])
def test_a_loader_in_a_worker_of_another(workers: int, whole: bool) -> None:
    """Its batches are those of a loader without workers, and can be sent on as they are."""

    def make() -> Any:
        batches = loader("a.tar", 4, shuffle=False)
        return batches if whole else (sample for batch in batches for sample in batch)

    expected = [sample["__key__"] for sample in TableDataset("a.tar")]
    batches = DataLoader(Inner(make), None, num_workers=workers, timeout=TIMEOUT if workers else 0)
    samples = [sample for batch in batches for sample in (batch if whole else [batch])]
    assert [sample["__key__"] for sample in samples] == expected * max(workers, 1) or workers == 2
    assert sorted(sample["__key__"] for sample in samples) == sorted(expected * max(workers, 1))
    assert {bytes(sample["cls"]) for sample in samples} == {b"%d" % n for n in range(COUNT)}


@pytest.mark.parametrize("name", ["sampler", "batch_sampler"])
def test_a_loader_takes_no_sampler(name: str) -> None:
    said = rf"^loader makes its own sampler, .* takes no {name}: give it shuffle, .*Dataset\(\.\.\.\), {name}="
    with pytest.raises(TypeError, match=said):
        loader("a.tar", 4, **{name: [1, 2]})
