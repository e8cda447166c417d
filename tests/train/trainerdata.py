"""A program for torchrun: transformers' Trainer over a dataset; prints what each rank trained in two epochs, as JSON.

trainerdata.py SHARD COUNT    SHARD has the numbers 0 to COUNT - 1 in the field cls
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from tartools.train import TableDataset, WebDataset

STEPS = 7  # of an epoch: 101 samples in batches of 8 on 2 ranks


def as_dict(sample: dict[str, Any]) -> dict[str, int]:
    return {"numbers": int(sample["cls"])}


class Model(torch.nn.Module):
    """A model that keeps the batches it has had."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.batches: list[list[int]] = []

    def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        self.batches.append(numbers.tolist())
        return {"loss": self.layer(numbers[:, None].float()).square().mean()}


def main() -> None:
    from transformers import Trainer, TrainingArguments  # where it is not installed, doctest imports this file

    url, count = sys.argv[1], int(sys.argv[2])
    stream = WebDataset(url, shuffle=20).map(as_dict)
    datasets: dict[str, tuple[Any, dict[str, Any]]] = {
        "table": (TableDataset(url, fields="cls", decode="basic", transform=as_row), {"num_train_epochs": 2}),
        "stream": (stream, {"max_steps": 2 * STEPS}),
        "stream of a length": (stream.with_length(count), {"num_train_epochs": 2}),
        "stream in a worker": (stream.with_length(count), {"num_train_epochs": 2, "dataloader_num_workers": 1}),
    }
    for kind, (data, options) in datasets.items():
        arguments = TrainingArguments(
            f"{url}.{kind}", save_strategy="no", use_cpu=True, report_to=[], learning_rate=1e-6, **options
        )
        model = Model()
        Trainer(model, arguments, train_dataset=data).train()
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, model.batches)
        if dist.get_rank() == 0:
            sys.stdout.write(f"ranks {json.dumps([kind, ranks])}\n")
    dist.destroy_process_group()


def as_row(row: tuple[int]) -> dict[str, int]:
    return {"numbers": row[0]}


if __name__ == "__main__":
    main()
