"""Epochs over shards on a server, with the cache and without: `tartools.train` and tarcat.

    python -m tests.bench.cached

The server, nginx, is 30 ms away, with 85 MB/s a connection. Each line is a process; prints its seconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.data import pictures, write
from tests.bench.loose import FAR, behind
from tests.storage.objects import servers

SHARDS, COUNT = 4, 1600  # and samples of each: 82 MB
STREAM = """
import tartools.train, torch
data = tartools.train.WebDataset({urls!r}, decode={decode!r})
for batch in torch.utils.data.DataLoader(data, batch_size=None, num_workers=2): pass
"""
LOADER = """
import tartools.train
for batch in tartools.train.loader({urls!r}, 64, fields="jpg", table={table!r}, num_workers=2): pass
"""


def seconds(code: str, cache: str) -> float:
    """Return how long a process with *code* takes."""
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"TARTOOLS_CACHE": cache})
    return time.perf_counter() - begun


def measure(folder: Path, near: list[str], far: list[str]) -> None:
    """Print what epochs take."""
    works = {
        "tarcat": ("import subprocess; subprocess.run(['tarcat', *{urls!r}, '-o', '/dev/null'], check=True)", ""),
        "WebDataset": (STREAM, ""),
        "WebDataset, decoded": (STREAM, "rgb8"),
        "loader, shuffled": (LOADER, ""),
    }
    for number, (name, (code, decode)) in enumerate(works.items()):
        cache = f"{folder}/cache-{number}:100GB"
        took = {}
        for way, urls, kept in (
            ("local", near, ""),
            ("local", near, ""),
            ("no cache", far, ""),
            ("first epoch", far, cache),
            ("second epoch", far, cache),
        ):
            table = f"{folder}/{'near' if urls is near else 'far'}.parquet"
            took[way] = seconds(code.format(urls=urls, table=table, decode=decode or None), kept)
        first, rate = took["first epoch"] / took["no cache"], took["local"] / took["second epoch"]
        print(f"{name}: {', '.join(f'{way} {each:.2f} s' for way, each in took.items())}")  # noqa: T201
        print(f"    first epoch {first:.2f} x no cache, second epoch {rate:.2f} x the rate of local files")  # noqa: T201


def main() -> None:
    """Start the server, and measure."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "files").mkdir()
        near = [str(folder / f"files/{number}.tar") for number in range(SHARDS)]
        for path in near:
            with open(path, "wb") as file:
                write(file, pictures(COUNT))
        with servers.nginx(str(folder / "files")) as base, behind(base, FAR) as far:
            urls = [f"{far}/{number}.tar" for number in range(SHARDS)]
            for name, each in (("near", near), ("far", urls)):
                subprocess.run(["tarindex", "-o", f"{folder}/{name}.parquet", *each], check=True)
            measure(folder, near, urls)


if __name__ == "__main__":
    main()
