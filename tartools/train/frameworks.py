"""Support for frameworks: accelerate and transformers deal samples to ranks on their own.

All other frameworks ask `loader.sampler` whether it is torch's DistributedSampler, and leave the loader as it is then.
accelerate asks nobody. It makes another DataLoader of the dataset and the sampler, of which it gives each rank a part:

    BatchSamplerShard(batch_sampler)    every n-th batch that each rank's sampler gives
    IterableDatasetShard(dataset)       a part of the samples that each rank's stream gives
    DataLoaderDispatcher(loader)        rank 0 reads for all

`loader` avoids that by an attribute (`PREPARED_ATTRIBUTE`): it keeps its state, and no sample comes twice to fill a
last batch. Streams and samplers in a DataLoader of the user's own find out that they are dealt
(`is_dealt_by_framework`), and are those of one rank then.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from types import FrameType
from typing import Any

PREPARED_ATTRIBUTE = "_is_accelerate_prepared"  # private: the tests with the real package guard it
DISPATCHER_CLASS = "DataLoaderDispatcher"
DEALER_CLASSES = {  # classes by module
    "accelerate.data_loader": {"BatchSamplerShard", "IterableDatasetShard", DISPATCHER_CLASS},
    "transformers.trainer_pt_utils": {"IterableDatasetShard"},
}


def is_dealt_by_framework() -> bool:
    """True if the caller is iterated over by an object of a framework that deals samples or batches to ranks.

    If a sampler or dataset dealt them too, n ranks would get one sample in n. Frameworks wrap what they deal without
    a word to it, so their frame anywhere on the stack is the only trace. A forked worker has the stack of its parent:
    it is True there, too; in one that is spawned it is False.
    """
    return _dealing_class() is not None


def warn_of_dispatched_workers(workers: int) -> None:
    """Warn if accelerate's rank 0 reads for all ranks from several *workers*: it drops samples then.

    *workers*: number of processes of the loader; up to 1 there is no warning. Each worker ends with a short batch. The
    dispatcher joins a batch for each rank and splits them evenly, and drops the remainder unless it is the end of the
    epoch, which a short batch of the first worker to end is not.
    """
    if workers > 1 and _dealing_class() == DISPATCHER_CLASS:
        warnings.warn(
            f"accelerate's dispatch_batches drops samples of a stream that {workers} workers read: use num_workers=1, "
            "or dispatch_batches=False, or do not prepare this DataLoader",
            stacklevel=2,
        )


def _dealing_class() -> str | None:
    """Return the name of the innermost class on the stack that is in `DEALER_CLASSES`; None if there is none."""
    if not any(module in sys.modules for module in DEALER_CLASSES):
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        names = DEALER_CLASSES.get(frame.f_globals.get("__name__", ""), set())
        if (name := frame.f_code.co_qualname.partition(".")[0]) in names:
            return name
        frame = frame.f_back
    return None


def iterate_for_accelerate(loader: Any, batches: Iterator[Any], is_at_end: Callable[[], bool]) -> Iterator[Any]:
    """Yield *batches* of *loader*, their tensors on accelerate's device; register the loader with accelerate meanwhile.

    It is registered from the first batch on, until the iteration ends, is closed or fails.
    *loader*: gets the attributes that accelerate asks loaders for: `end_of_dataloader`, since it steps the optimizer
    after the last batch, and `remainder`, -1: no batch was filled up.
    `is_at_end()`: returns True once the last batch of the epoch came.
    """
    state, utils = import_module("accelerate.state"), import_module("accelerate.utils")
    gradients, device = state.GradientState(), state.PartialState().device
    loader.end_of_dataloader, loader.remainder = False, -1
    gradients._add_dataloader(loader)
    try:
        for batch in batches:
            loader.end_of_dataloader = is_at_end()
            yield utils.send_to_device(batch, device)
    finally:
        gradients._remove_dataloader(loader)


def gather_from_ranks(value: Any) -> list[Any]:
    """Return the list of each rank's *value*, by rank of torch.distributed; [*value*] if that is not initialised.

    All ranks must call this, and all get the same list. *value*: can be pickled.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values
