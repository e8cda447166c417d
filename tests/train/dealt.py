"""A program for torchrun: iterates over loaders that accelerate has prepared, and prints what each rank got, as JSON.

dealt.py FOLDER COUNT...    FOLDER has COUNT.tar, with the keys 0 to COUNT - 1 in the field cls
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tartools.train import StatefulSampler, TableDataset, WebDataset, loader, samples, stream_map

BATCH = 8
DEFAULTS: list[dict[str, Any]] = [{}, {"dispatch_batches": False}]
CONFIGURATIONS: list[dict[str, Any]] = [
    *DEFAULTS,
    {"dispatch_batches": True},
    {"split_batches": True},
    {"dispatch_batches": False, "split_batches": True},
    {"even_batches": False},
    {"use_stateful_dataloader": True},
]


def number(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def one_tensor(sample: dict[str, Any]) -> torch.Tensor:
    return torch.tensor([int(sample["cls"])])


def numbers(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(sample["cls"]) for sample in batch])


def loaders(url: str, workers: int) -> dict[str, Callable[[], Any]]:
    """Return functions that make loaders over *url*, by what they are."""
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers}
    data = TableDataset(url, fields="cls", decode="basic")
    made: dict[str, Callable[[], Any]] = {
        "loader": lambda: loader(data, **options),
        "map": lambda: DataLoader(data, shuffle=True, **options),
        "batch sampler": lambda: DataLoader(
            data, batch_sampler=StatefulSampler(data, batch_size=BATCH), num_workers=workers
        ),
        "sampler": lambda: DataLoader(data, sampler=StatefulSampler(data), **options),
        "WebDataset": lambda: DataLoader(WebDataset(url, shuffle=20).map(number), **options),
        "samples": lambda: DataLoader(samples(url), collate_fn=numbers, **options),
    }
    if not workers:
        made["stream_map"] = lambda: DataLoader(stream_map(number, url, engine="threads", workers=1), **options)
    return made


def kept(batches: Any) -> list[int]:
    """Return the numbers in *batches*."""
    return [int(value) for batch in batches for value in (batch[0] if isinstance(batch, (list, tuple)) else batch)]


def main() -> None:
    from accelerate import Accelerator, DataLoaderConfiguration  # where it is not installed, doctest imports this file

    warnings.simplefilter("ignore")
    folder, *counts = sys.argv[1:]
    world = int(os.environ["WORLD_SIZE"])
    for count in counts:
        for workers in (0, 2):
            for kind, make in loaders(f"{folder}/{count}.tar", workers).items():
                for options in DEFAULTS if workers else CONFIGURATIONS:
                    if options.get("split_batches") and BATCH % world:
                        continue  # accelerate refuses these
                    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
                    prepared = accelerator.prepare(make())
                    mine = [kept(prepared) for _ in range(2)]
                    ranks: list[Any] = [None] * world
                    dist.all_gather_object(ranks, mine)
                    if dist.get_rank() == 0:
                        epochs = [[epochs[n] for epochs in ranks] for n in range(2)]
                        sys.stdout.write(json.dumps([int(count), workers, kind, options, epochs]) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
