"""Which part of a training run this process is: rank and worker."""

from __future__ import annotations

import os


def this_rank() -> tuple[int, int]:
    """Return rank and number of ranks: of torch.distributed if it was initialised here, else of the environment.

    There, RANK and WORLD_SIZE count together; without one of them there is one rank. Raises: ValueError, naming the
    variable, if one is not a whole number, or if RANK is not below WORLD_SIZE: such a rank would read nothing.
    """
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return 0, 1
    rank, world = map(_number_in, ("RANK", "WORLD_SIZE"))
    if not 0 <= rank < world:
        raise ValueError(f"the environment has RANK={rank} and WORLD_SIZE={world}: ranks are 0 to WORLD_SIZE - 1")
    return rank, world


def _number_in(variable: str) -> int:
    """Return the number that *variable* of the environment is. Raises: ValueError."""
    text = os.environ[variable]
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"the environment has {variable}={text}, which is not a whole number") from None


def this_worker() -> tuple[int, int]:
    """Return number and count of the workers of a DataLoader; 0 of 1 outside of them."""
    from torch.utils.data import get_worker_info

    found = get_worker_info()
    return (0, 1) if found is None else (found.id, found.num_workers)
