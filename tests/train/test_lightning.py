"""Lightning: an epoch that was resumed goes on to its end, and each epoch has other samples, whatever its options."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tartools.train import StatefulSampler, TableDataset, WebDataset, loader
from tests.conftest import make_tar
from tests.tiers import exhaustive
from tests.train.test_frameworks import COUNT, numbered_tar, skip_without

pytestmark = [exhaustive, pytest.mark.filterwarnings("ignore")]
BATCH = 8
STEPS = 13  # of an epoch


def table() -> TableDataset:
    return TableDataset("a.tar", fields="__key__", decode="basic")


def keys(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def stream() -> WebDataset:
    return WebDataset("{0..7}.tar", shuffle=20, seed=3).map(keys)


KINDS: dict[str, Callable[[int], Any]] = {
    "loader": lambda workers: loader(table(), BATCH, seed=3, num_workers=workers),
    "sampler": lambda workers: StatefulDataLoader(
        table(), batch_sampler=StatefulSampler(table(), 3, batch_size=BATCH), num_workers=workers
    ),
    # with a length: of loaders that have none Lightning takes a batch ahead, which its checkpoint counts
    "stream": lambda workers: StatefulDataLoader(stream().with_length(COUNT), batch_size=BATCH, num_workers=workers),
}


@pytest.fixture(autouse=True)
def _shards() -> None:
    skip_without("lightning")
    Path("a.tar").write_bytes(numbered_tar(COUNT))
    for number in range(8):
        names = [f"{n:03d}.cls" for n in range(COUNT) if n % 8 == number]
        Path(f"{number}.tar").write_bytes(make_tar([(name, b"1") for name in names]))


def fit(data: Any, checkpoint: str | None = None, validation: Any = None, **options: Any) -> list[list[str]]:
    """Train on *data*, from *checkpoint* on. Return the keys of each batch, those of several loaders together."""
    lightning: Any = import_module("lightning")
    batches: list[list[str]] = []

    class Model(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            parts = [part for part in batch.values() if part] if isinstance(batch, dict) else [batch]
            found = [part[0] if isinstance(part[0], (list, tuple)) else part for part in parts]
            batches.append([*chain.from_iterable(found)])
            return self.layer(torch.ones(1, 1)).mean()

        def validation_step(self, batch: Any, index: int) -> None:
            pass

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "barebones": False}
    trainer = lightning.Trainer(accelerator="cpu", devices=1, **quiet | {"enable_checkpointing": False} | options)
    trainer.fit(Model(), data, validation, ckpt_path=checkpoint)
    return batches


@pytest.mark.parametrize(
    ("kind", "workers"), [(kind, workers) for kind in KINDS for workers in (0, 2 if kind != "stream" else 1)]
)
def test_resumed_runs_are_those_that_were_not_stopped(kind: str, workers: int) -> None:
    """A checkpoint while batches are trained, as a killed run has left it; in the first epoch, the second, between."""
    make, lightning = KINDS[kind], import_module("lightning.pytorch.callbacks")
    whole = fit(make(workers), max_epochs=2)
    steps = len(whole) // 2
    assert len(whole) == 2 * steps and whole[:steps] != whole[steps:]
    every = [f"{n:03d}" for n in range(COUNT)]
    assert steps == STEPS and all(sorted(chain(*part)) == every for part in (whole[:steps], whole[steps:]))
    between = [steps] * (kind == "loader")  # where a StatefulDataLoader has nothing left, and Lightning ends the run
    stops = (1, 4, steps - 1, *between, steps + 1, steps + 3) if not workers else (4, *between, steps + 3)
    for stop in stops:
        saving = lightning.ModelCheckpoint("saved", filename="{step}", every_n_train_steps=stop, save_top_k=-1)
        options: dict[str, Any] = {"max_epochs": 2, "callbacks": [saving], "enable_checkpointing": True}
        assert fit(make(workers), **options) == whole
        assert fit(make(workers), f"saved/step={stop}.ckpt", max_epochs=2) == whole[stop:], stop


@pytest.mark.parametrize("kind", ["loader", "stream"])
def test_each_epoch_has_other_samples(kind: str) -> None:
    batches = fit(KINDS[kind](0), max_epochs=3, limit_train_batches=4)
    parts = [tuple(chain(*batches[n : n + 4])) for n in (0, 4, 8)]
    assert len(batches) == 12 and len({*map(frozenset, parts)}) == 3
    plain = fit(DataLoader(stream(), batch_size=BATCH), max_epochs=3)  # for which nothing sets the epoch
    epochs = [tuple(chain(*plain[n : n + STEPS])) for n in range(0, 3 * STEPS, STEPS)]
    assert len({*epochs}) == 3 and len({*map(frozenset, epochs)}) == 1


def test_validation_between() -> None:
    whole = fit(KINDS["loader"](0), max_epochs=2)
    checked = fit(KINDS["loader"](0), None, KINDS["loader"](0), max_epochs=2, val_check_interval=4, limit_val_batches=2)
    assert checked == whole


def stop_and_resume(make: Callable[[], Any], stop: int, **options: Any) -> list[list[str]]:
    """Return the batches after the checkpoint of step *stop*, of a run that goes on from there."""
    lightning = import_module("lightning.pytorch.callbacks")
    saving = lightning.ModelCheckpoint("saved", filename="{step}", every_n_train_steps=stop, save_top_k=-1)
    fit(make(), max_epochs=2, callbacks=[saving], enable_checkpointing=True)
    return fit(make(), f"saved/step={stop}.ckpt", **options)


@pytest.mark.parametrize(("mode", "steps"), [("min_size", 5), ("max_size_cycle", STEPS), ("max_size", STEPS)])
def test_several_loaders(mode: str, steps: int) -> None:
    """Each has its state in the checkpoint, also the shorter one when it has begun again, and the one that was left.

    Lightning sets the epoch of a shorter loader that begins again as that of the longer one, so after a resume it may
    have other orders in the epochs to come.
    """
    utilities = import_module("lightning.pytorch.utilities")
    Path("short.tar").write_bytes(make_tar([(f"s{n:02d}.cls", b"1") for n in range(40)]))

    def make() -> Any:
        short = loader("short.tar", BATCH, fields="__key__", decode="basic", seed=4)
        return utilities.CombinedLoader({"long": KINDS["loader"](0), "short": short}, mode)

    def split(batches: list[list[str]]) -> tuple[list[list[str]], Counter[str]]:
        """Return the keys of the longer loader by batch, and the counts of those of the shorter one."""
        long = [[key for key in batch if key[0] != "s"] for batch in batches]
        return long, Counter(key for batch in batches for key in batch if key[0] == "s")

    whole = fit(make(), max_epochs=2)
    assert len(whole) == 2 * steps and whole[:steps] != whole[steps:]
    for stop in (3, steps - 1, steps, steps + 2):
        resumed, expected = stop_and_resume(make, stop, max_epochs=2), whole[stop:]
        if mode == "min_size":
            assert resumed == expected, stop
            continue
        left = (steps if stop < steps else 2 * steps) - stop  # steps of this epoch
        counts = split(resumed[left:])[1].values()
        assert split(resumed)[0] == split(expected)[0], stop
        if mode == "max_size_cycle":
            assert stop == steps or resumed[:left] == expected[:left], stop
            assert all(2 <= count <= 4 for count in counts), stop
        else:  # no checkpoint says that the shorter one has ended: it begins again
            assert stop != 3 or resumed[:left] == expected[:left]
            assert {*counts} <= {1}, stop


def test_max_steps() -> None:
    whole = fit(KINDS["loader"](0), max_epochs=2)
    assert fit(KINDS["loader"](0), max_epochs=2, max_steps=4) == whole[:4]
    assert stop_and_resume(lambda: KINDS["loader"](0), 4, max_epochs=2, max_steps=10) == whole[4:10]


@pytest.mark.parametrize("when", ["step", "epoch"])
def test_a_run_that_max_steps_has_ended_goes_on(when: str) -> None:
    """From a checkpoint of a step at its place; from one of the epoch's end with the next epoch, as torch's loader."""
    module = import_module("lightning.pytorch.callbacks")
    plain: Any = DataLoader([f"{n:03d}" for n in range(COUNT)], BATCH)
    whole = fit(KINDS["loader"](0), max_epochs=2)
    resumed = {}
    for name, make in {"loader": lambda: KINDS["loader"](0), "torch": lambda: plain}.items():
        saving = module.ModelCheckpoint("ended", filename=name, **{"every_n_train_steps": 4} if when == "step" else {})
        fit(make(), max_epochs=2, max_steps=4, callbacks=[saving], enable_checkpointing=True)
        resumed[name] = fit(make(), f"ended/{name}.ckpt", max_epochs=2)
    assert resumed["loader"] == whole[4 if when == "step" else STEPS :]
    assert len(resumed["torch"]) == len(resumed["loader"])
