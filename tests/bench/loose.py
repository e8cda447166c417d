"""What loose objects on a server take: one by one, by `Objects` with requests side by side, and as a shard.

    python -m tests.bench.loose [COUNT]

1,000 objects of 100 KiB, and a checkpoint of 268 MB beside tarcat. The server, nginx, is 5 ms away for the objects and
30 ms for the checkpoint, with 85 MB/s a connection, by `tests.storage.objects.delay`. Raises AssertionError if a value
is not the one that was stored.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import tartools
from tartools.train import Objects, TableDataset, checkpoint
from tests.conftest import make_tar
from tests.storage.objects import servers

SIZE, ROUNDS = 100 << 10, 3
NEAR, FAR, RATE = 0.005, 0.03, 85e6  # seconds, bytes a second
TENSORS, VALUES = 16, 4 << 20  # of the checkpoint: 256 MiB


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def best(work: Callable[[], object]) -> float:
    """Return the seconds of the best of a few rounds."""
    return min(seconds(work) for _ in range(ROUNDS))


@contextmanager
def behind(base: str, delay: float) -> Iterator[str]:
    """Give the address of a proxy to *base* that is *delay* seconds away."""
    command = [sys.executable, "-m", "tests.storage.objects.delay", "--to", base, "--delay", str(delay)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--rate", str(RATE)], **options) as proxy:  # type: ignore[call-overload]
        yield proxy.stdout.readline().strip()
        proxy.stdin.close()


def objects(files: Path, base: str, count: int) -> None:
    """Print what *count* objects take."""
    made = [random.Random(n).randbytes(SIZE) for n in range(count)]
    for n, data in enumerate(made):
        (files / f"{n:06d}.bin").write_bytes(data)
    (files / "all.tar").write_bytes(make_tar([(f"{n:06d}.bin", data) for n, data in enumerate(made)]))
    with behind(base, NEAR) as near:
        data = Objects(f"{near}/{{000000..{count - 1:06d}}}.bin")
        few = max(count // 10, 1)
        one = seconds(lambda: [data[n] for n in range(few)]) * count / few
        assert data.__getitems__(range(count)) == made
        several = best(lambda: data.__getitems__(range(count)))
        table = files / "t.parquet"
        subprocess.run([Path(sys.executable).parent / "tarindex", f"{near}/all.tar", "-o", table], check=True)
        shard = TableDataset(tartools.Table(str(table)), fields=("bin",))
        assert [found for (found,) in shard.__getitems__(range(count))] == made
        packed = best(lambda: shard.__getitems__(range(count)))
    print(f"{count} objects of 100 KiB, {NEAR * 1e3:.0f} ms a request")  # noqa: T201
    print(f"one by one: {one:.2f} s (of {few} objects)")  # noqa: T201
    print(f"Objects: {several:.2f} s, {one / several:.1f} times as fast")  # noqa: T201
    print(f"TableDataset of a shard: {packed:.2f} s, {several / packed:.1f} times as fast as Objects")  # noqa: T201


def checkpoints(files: Path, base: str) -> None:
    """Print what a checkpoint takes, beside tarcat of as many bytes."""
    state = {f"layer{n}": torch.randn(VALUES) for n in range(TENSORS)}
    torch.save(state, files / "a.pt")
    with (files / "a.pt").open("rb") as file:
        (files / "a.tar").write_bytes(make_tar([("a.pt", file.read())]))

    def load() -> None:
        with checkpoint.reader(f"{far}/a.pt") as file:
            assert torch.equal(torch.load(file, weights_only=True)["layer7"], state["layer7"])

    def save(url: str) -> None:
        with checkpoint.writer(url) as file:
            torch.save(state, file)

    tarcat = str(Path(sys.executable).parent / "tarcat")
    with behind(base, FAR) as far:
        reading = best(load), best(lambda: subprocess.run([tarcat, f"{far}/a.tar", "-o", "/dev/null"], check=True))
        put = [tarcat, str(files / "a.tar"), "--force", "-o", f"{far}/b.tar"]
        writing = best(lambda: save(f"{far}/b.pt")), best(lambda: subprocess.run(put, check=True))
    size = (files / "a.pt").stat().st_size
    for name, (ours, beside) in (("read", reading), ("written", writing)):
        speed = f"{ours:.2f} s ({size / ours / 1e6:.0f} MB/s)"
        print(f"checkpoint of {size / 1e6:.0f} MB {name}: {speed}; tarcat {beside:.2f} s")  # noqa: T201


def main() -> None:
    """Start the server, and measure."""
    with tempfile.TemporaryDirectory() as folder, servers.nginx(folder) as base:
        objects(Path(folder), base, int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
        checkpoints(Path(folder), base)
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors, {socket.gethostname()}")  # noqa: T201


if __name__ == "__main__":
    main()
