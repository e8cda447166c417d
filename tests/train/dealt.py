"""A program for torchrun: iterates over loaders that accelerate has prepared, and prints what each rank got, as JSON.

dealt.py FOLDER    FOLDER has COUNT.tar for each of COUNTS, with the keys 0 to COUNT - 1 in the field cls
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tartools.train import StatefulSampler, TableDataset, WebDataset, loader, samples, stream_map

BATCH = 8
COUNTS = (96, 101)  # samples: whole batches, and a short one at the end
CONFIGURATIONS: list[dict[str, Any]] = [
    {},
    {"dispatch_batches": False},
    {"dispatch_batches": True},
    {"split_batches": True},
    {"dispatch_batches": False, "split_batches": True},
    {"even_batches": False},
    {"use_stateful_dataloader": True},
]


class Case(NamedTuple):
    """One loader for accelerate to prepare."""

    count: int
    workers: int
    kind: str
    options: dict[str, Any]


def number(sample: dict[str, Any]) -> int:
    return int(sample["cls"])


def one_tensor(sample: dict[str, Any]) -> torch.Tensor:
    return torch.tensor([int(sample["cls"])])


def numbers(batch: list[dict[str, Any]]) -> torch.Tensor:
    return torch.tensor([int(sample["cls"]) for sample in batch])


def make_loader(case: Case, folder: str) -> Any:
    """Return the loader of *case*, not prepared."""
    url = f"{folder}/{case.count}.tar"
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": case.workers}
    data = TableDataset(url, fields="cls", decode="basic")
    factories: dict[str, Callable[[], Any]] = {
        "loader": lambda: loader(data, **options),
        "map": lambda: DataLoader(data, shuffle=True, **options),
        "batch sampler": lambda: DataLoader(
            data, batch_sampler=StatefulSampler(data, batch_size=BATCH), num_workers=case.workers
        ),
        "sampler": lambda: DataLoader(data, sampler=StatefulSampler(data), **options),
        "WebDataset": lambda: DataLoader(WebDataset(url, shuffle=20).map(number), **options),
        "samples": lambda: DataLoader(samples(url), collate_fn=numbers, **options),
        "stream_map": lambda: DataLoader(stream_map(number, url, engine="threads", workers=1), **options),
    }
    return factories[case.kind]()


STREAMS = ("WebDataset", "samples", "stream_map")
KINDS = ("loader", "map", "batch sampler", "sampler", *STREAMS)


def cases(world: int) -> Iterator[Case]:
    """Yield the loaders to prepare for *world* ranks.

    Each kind meets each configuration, both counts, and workers under each class that deals. That is enough: kind and
    configuration alone decide which class of accelerate deals. Workers decide which process it deals in, and so whose
    stack we look at. The count matters where an epoch ends, which is after the dealing, and the same for all options
    but even_batches and split_batches; so the counts take turns, and these two have both.
    """
    for k, kind in enumerate(KINDS):
        for c, options in enumerate(CONFIGURATIONS):
            if options.get("split_batches") and BATCH % world:
                continue  # accelerate refuses these
            both = {"even_batches", "split_batches"} & {*options}
            for count in COUNTS if both else [COUNTS[(k + c) % 2]]:
                yield Case(count, 0, kind, options)
            if "dispatch_batches" in options and not both and kind != "stream_map":  # which has workers of its own
                is_dispatched_stream = options["dispatch_batches"] and kind in STREAMS  # drops samples of two workers
                yield Case(COUNTS[(k + c + 1) % 2], 1 if is_dispatched_stream else 2, kind, options)


def kept(batches: Any) -> list[int]:
    """Return the numbers in *batches*."""
    return [int(value) for batch in batches for value in (batch[0] if isinstance(batch, (list, tuple)) else batch)]


def main() -> None:
    from accelerate import Accelerator, DataLoaderConfiguration  # where it is not installed, doctest imports this file

    warnings.simplefilter("ignore")
    (folder,) = sys.argv[1:]
    world = int(os.environ["WORLD_SIZE"])
    for case in cases(world):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**case.options))
        prepared = accelerator.prepare(make_loader(case, folder))
        mine = [kept(prepared) for _ in range(2)]
        ranks: list[Any] = [None] * world
        dist.all_gather_object(ranks, mine)
        if dist.get_rank() == 0:
            epochs = [[epochs[n] for epochs in ranks] for n in range(2)]
            sys.stdout.write(json.dumps([*case, epochs]) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
