"""Loose objects on a server, one by one, by `ObjectDataset` side by side, and as a shard; checkpoints.

The server, nginx, is 5 ms away for the objects and 30 ms for the checkpoint, with 85 MB/s a connection, by
`tests.storage.objects.delay`. `tests.bench.loading` runs these in forks. Each raises AssertionError if a value is not
the one that was stored, and returns a count (of objects, MB), and the seconds of wall and CPU that it took.
"""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.archives import entry
from tests.bench.data import write

SIZE = 100 << 10
NEAR, FAR, RATE = 0.005, 0.03, 85e6  # seconds, bytes a second
TENSORS, VALUES = 16, 16 << 20  # of the checkpoint: 1 GiB

Figures = dict[str, float]


def used() -> float:
    """Return the seconds of CPU of this process and of its children that have ended."""
    about = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in about)


def timed(count: float, work: Callable[[], object]) -> Figures:
    """Run *work*, and return what it took for *count* things."""
    before, begun = used(), time.perf_counter()
    work()
    return {"count": count, "wall": time.perf_counter() - begun, "cpu": used() - before}


@contextmanager
def behind(base: str, delay: float) -> Iterator[str]:
    """Give the address of a proxy to *base* that is *delay* seconds away."""
    command = [sys.executable, "-m", "tests.storage.objects.delay", "--to", base, "--delay", str(delay)]
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*command, "--rate", str(RATE)], **options) as proxy:  # type: ignore[call-overload]
        yield proxy.stdout.readline().strip()
        proxy.stdin.close()


@contextmanager
def servers_below(folder: Path) -> Iterator[dict[str, str]]:
    """Start the server of a folder in *folder*; give this folder, and the server's addresses, near and far."""
    from tests.storage.objects import servers

    files = folder / "files"
    files.mkdir()
    with servers.nginx(str(files)) as base, behind(base, NEAR) as near, behind(base, FAR) as far:
        yield {"files": str(files), "near": near, "far": far}


def command(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def made(files: Path, count: int) -> list[bytes]:
    """Return the values of *count* objects, which are there."""
    values = [random.Random(n).randbytes(SIZE) for n in range(count)]
    if not (files / "all.tar").exists():
        for n, data in enumerate(values):
            (files / f"{n:06d}.bin").write_bytes(data)
        with (files / "all.tar").open("wb") as shard:
            write(shard, (entry(b"%06d.bin" % n, data) for n, data in enumerate(values)))
    return values


def objects(place: dict[str, str], way: str, count: str) -> Figures:
    """Read *count* objects: "one" after the other (a tenth of them), "many" at once, or in a "shard" by its table."""
    from tartools.train import ObjectDataset, TableDataset

    files, number = Path(place["files"]), int(count)
    values = made(files, number)
    data: Any
    if way == "shard":
        table = files / "t.parquet"
        if not table.exists():
            subprocess.run([command("tarindex"), "-q", f"{place['near']}/all.tar", "-o", table], check=True)
        data = TableDataset(str(table), fields=("bin",))
        values_of: Callable[[list[Any]], list[bytes]] = lambda found: [value for (value,) in found]  # noqa: E731
    else:
        data = ObjectDataset(f"{place['near']}/{{000000..{number - 1:06d}}}.bin")
        values_of = list
    if way == "one":
        number = max(number // 10, 1)
        read: Callable[[], list[Any]] = lambda: [data[n] for n in range(number)]  # noqa: E731
    else:
        read = lambda: data.__getitems__(list(range(number)))  # noqa: E731
    if way != "one":
        read()  # connections are open, as in the middle of an epoch
    found: list[Any] = []
    figures = timed(number, lambda: found.extend(read()))
    assert values_of(found) == values[:number]
    return figures


def layer(number: int, values: int) -> Any:
    import torch

    return torch.randn(values, generator=torch.Generator().manual_seed(number))


def checkpoints(place: dict[str, str], who: str, way: str, scale: str) -> Figures:
    """Have *who*, "ours" or "tarcat", "read" or "write" a checkpoint of *scale* GiB; tarcat one member of its bytes."""
    import torch

    from tartools.train import checkpoint

    files, far, values = Path(place["files"]), place["far"], max(1, int(VALUES * float(scale)))
    if not (files / "a.tar").exists():
        torch.save({f"layer{n}": layer(n, values) for n in range(TENSORS)}, files / "a.pt")
        with (files / "a.tar").open("wb") as shard:
            write(shard, [entry(b"a.pt", (files / "a.pt").read_bytes())])
    size = (files / "a.pt").stat().st_size / 1e6
    if who == "tarcat":
        words = [f"{far}/a.tar", "-o", "/dev/null"] if way == "read" else [str(files / "a.tar"), "-o", f"{far}/b.tar"]
        return timed(size, lambda: subprocess.run([command("tarcat"), "-q", "--force", *words], check=True))
    if way == "read":
        found: dict[str, Any] = {}

        def load() -> None:
            with checkpoint.reader(f"{far}/a.pt") as file:
                found.update(torch.load(file, weights_only=True))

        figures = timed(size, load)
        assert torch.equal(found["layer7"], layer(7, values)) and len(found) == TENSORS
        return figures
    state = torch.load(files / "a.pt", weights_only=True)

    def save() -> None:
        with checkpoint.writer(f"{far}/b.pt") as file:
            torch.save(state, file)

    figures = timed(size, save)
    assert torch.equal(torch.load(files / "b.pt", weights_only=True)["layer7"], state["layer7"])
    return figures


LINES: dict[str, Callable[..., Figures]] = {"objects": objects, "checkpoint": checkpoints}
