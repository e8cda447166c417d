"""Which part of a training run this process is: rank and worker."""

from __future__ import annotations

import os


def this_rank() -> tuple[int, int]:
    """Return rank and number of ranks: of torch.distributed if it was initialised here, else of the environment."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def this_worker() -> tuple[int, int]:
    """Return number and count of the workers of a DataLoader; 0 of 1 outside of them."""
    from torch.utils.data import get_worker_info

    found = get_worker_info()
    return (0, 1) if found is None else (found.id, found.num_workers)
