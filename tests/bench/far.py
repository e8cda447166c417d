"""What random samples of a server take, one after the other and by a table: `tarcat t.parquet` and `tartools.Table`.

    python -m tests.bench.far

The server is 30 ms away, by `tests.storage.objects.delay`. Prints seconds, and the bytes that were asked for beside
those of the samples. Raises AssertionError if a sample is not the one that is in the shard.
"""

from __future__ import annotations

import os
import random
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq

import tartools
from tests.bench.data import photos, write
from tests.storage.objects.delay import serve
from tests.storage.objects.faults import FaultServer

COUNT, SAMPLES = 4000, 1000  # in the shard, and of these at random
ALONE = 50  # samples that are read one after the other
DELAY, RATE = 0.03, 85e6  # seconds, bytes a second


def seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def asked(server: FaultServer) -> int:
    """Return the bytes that were asked for since the last time."""
    ranges = [request.headers.get("range", "") for request in server.asked("GET", "a.tar")]
    server.requests.clear()
    return sum(1 - eval(span.removeprefix("bytes=")) for span in ranges)  # 0-99 is minus 99


def measure(server: FaultServer, folder: Path, far: str) -> None:
    """Print what samples at random take."""
    shard = folder / "a.tar"
    with shard.open("wb") as file:
        write(file, photos(COUNT))
    server.objects["a.tar"] = shard.read_bytes()
    table = folder / "t.parquet"
    run(f"tarindex {far}/b/a.tar -o {table}")
    rows = pq.read_table(table)
    order = random.Random(1).sample(range(COUNT), SAMPLES)
    pq.write_table(rows.take(order), folder / "some.parquet")
    sizes = rows.column("__end__").to_numpy() - rows.column("__begin__").to_numpy()
    wanted = int(sizes[order].sum())
    opened = tartools.Table(str(table))
    opened[0]
    one = seconds(lambda: [opened[n] for n in order[:ALONE]]) / ALONE * SAMPLES
    asked(server)
    by_command = seconds(lambda: run(f"tarcat {folder}/some.parquet -o {folder}/out.tar"))
    brought = asked(server)
    held: list[tartools.Sample] = []
    by_table = seconds(lambda: held.extend(opened[order]))
    keys = rows.column("__key__").to_pylist()
    with tartools.open(str(shard)) as file:
        for n, sample, copied in zip(order, held, tartools.read(str(folder / "out.tar")), strict=True):
            begin = rows.column("__members__")[n]["jpg"]["offset"].as_py()
            file.seek(begin)
            assert sample.key == copied.key == keys[n]
            assert sample["jpg"] == copied["jpg"] == file.read(len(sample["jpg"]))
    print(f"{SAMPLES} samples of {wanted / SAMPLES / 1e3:.0f} kB, {DELAY * 1e3:.0f} ms a request")  # noqa: T201
    print(f"one after the other: {one:.1f} s (of {ALONE} samples)")  # noqa: T201
    for name, took in (("tarcat t.parquet", by_command), ("Table[[...]]", by_table)):
        print(f"{name}: {took:.2f} s, {one / took:.1f} times as fast")  # noqa: T201
    print(f"bytes asked for: {brought / wanted:.3f} times those of the samples")  # noqa: T201


def run(line: str) -> None:
    subprocess.run(
        shlex.split(line), check=True, env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    )


def main() -> None:
    """Start the server, and measure."""
    with (
        FaultServer() as server,
        socket.create_server(("127.0.0.1", 0), backlog=256) as listening,
        tempfile.TemporaryDirectory() as folder,
    ):
        host, _, port = server.base.removeprefix("http://").partition(":")
        threading.Thread(target=serve, args=(listening, (host, int(port)), DELAY, RATE), daemon=True).start()
        measure(server, Path(folder), f"http://127.0.0.1:{listening.getsockname()[1]}")
        listening.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    main()
