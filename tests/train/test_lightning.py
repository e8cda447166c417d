"""Lightning: an epoch that was resumed goes on to its end, and each epoch has other samples, whatever its options."""

from __future__ import annotations

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
from tests.train.test_frameworks import COUNT, needed, numbered_tar

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
    needed("lightning")
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
            parts = batch.values() if isinstance(batch, dict) else [batch]
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


@pytest.mark.parametrize("workers", [0])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_runs_are_those_that_were_not_stopped(kind: str, workers: int) -> None:
    """A checkpoint while batches are trained, as a killed run has left it; in the first epoch, the second, between."""
    make, lightning = KINDS[kind], import_module("lightning.pytorch.callbacks")
    whole = fit(make(workers), max_epochs=2)
    steps = len(whole) // 2
    assert len(whole) == 2 * steps and whole[:steps] != whole[steps:]
    every = [f"{n:03d}" for n in range(COUNT)]
    assert steps == STEPS and all(sorted(chain(*part)) == every for part in (whole[:steps], whole[steps:]))
    between = [steps] * (kind == "loader")  # where a StatefulDataLoader has nothing left, and Lightning ends the run
    for stop in (1, 4, steps - 1, *between, steps + 1, steps + 3):
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
