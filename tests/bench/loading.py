"""The process that training is measured in: it has imported torch, and forks for each line, which takes a second.

    python -m tests.bench.loading < lines

Reads lines such as `table order 0 FOLDER`, `litdata random 0 FOLDER`, `webdataset order 2 FOLDER Pillow`: a library
of `peers`, the order, workers, a folder of shards; and those of `loose`. Writes one line of JSON for each: a count of
samples (or MB), and the seconds of wall and of CPU that they took; or an error.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shlex
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.bench import loose
from tests.bench.loose import used
from tests.bench.peers import READERS, Epoch, Task

BATCHES = {"A": 64, "B": 256}  # by the first letter of the folder
ONCE = (  # imported before the forks: these take seconds
    *("torch.utils.data", "pyarrow.parquet", "PIL.Image", "webdataset", "litdata", "streaming"),
    *("tartools.train.loading", "tartools.train.webdataset", "tartools.train.objects", "tartools.train.checkpoint"),
)
PATIENCE = 90  # seconds of a line and what it prepares


def counted(epoch: Epoch, seconds: float) -> tuple[int, float, float]:
    """Go through epochs until some *seconds* have passed; return samples, seconds, and CPU, from the first batch on."""
    begun, before, count = 0.0, 0.0, 0
    while True:
        for found in epoch():
            now = time.perf_counter()
            if begun:
                count += found
                if now - begun >= seconds:
                    return count, now - begun, used() - before
            else:
                begun, before = time.perf_counter(), used()
        if not begun:
            raise ValueError("there are no samples")


def loaded(words: list[str], seconds: float, tables: Path) -> dict[str, float]:
    """Measure a library."""
    library, way, workers, folder, *decoded = words
    place = Path(folder)
    batch = 16 if decoded else BATCHES.get(place.name[0], 64)
    epoch = READERS[library](Task(place, way, int(workers), "".join(decoded), batch, tables))
    gc.freeze()
    # CPU of workers is that of batches that nobody had, too: some 64 pictures
    count, wall, cpu = counted(epoch, 3 * seconds if decoded else seconds)
    before = used()
    del epoch
    gc.collect()  # ends the workers, whose CPU is known then
    return {"count": count, "wall": wall, "cpu": cpu + used() - before}


def apart(work: Callable[[], dict[str, float]]) -> dict[str, Any]:
    """Return what *work* returns in a fork, or its error."""
    answer, telling = os.pipe()
    if not (child := os.fork()):
        os.setpgid(0, 0)
        os.close(answer)
        signal.alarm(PATIENCE)
        try:
            told: dict[str, Any] = work()
        except BaseException as error:  # whatever a library raises
            told = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        os.write(telling, json.dumps(told).encode())
        os._exit(0)
    with contextlib.suppress(OSError):
        os.setpgid(child, child)
    os.close(telling)
    os.set_blocking(answer, False)  # its workers may have the pipe
    try:
        _, status = os.waitpid(child, 0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    with os.fdopen(answer, "rb") as file:
        text = file.read()
    if not text:
        return {"error": f"ended by signal {status & 127}" if status & 127 else f"status {status >> 8}"}
    found: dict[str, Any] = json.loads(text)
    return found


def serve(lines: Iterable[str], answers: Any, seconds: float) -> None:
    """Answer each of *lines*."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as servers:
        tempfile.tempdir = place  # MosaicML streaming leaves locks behind
        known: dict[str, str] = {}
        for line in lines:
            words = shlex.split(line)
            if words[0] in loose.LINES:
                if not known:
                    known.update(servers.enter_context(loose.servers_below(Path(place))))
                told = apart(lambda: loose.LINES[words[0]](known, *words[1:]))  # noqa: B023  # is called at once
            else:
                told = apart(lambda: loaded(words, seconds, Path(place)))  # noqa: B023
            answers.write(json.dumps(told) + "\n")
            answers.flush()


def main() -> None:
    """Serve stdin. What libraries print goes nowhere."""
    for name in ONCE:
        with contextlib.suppress(ImportError):
            import_module(name)
    answers = os.fdopen(os.dup(1), "w")
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    serve(sys.stdin, answers, float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)


if __name__ == "__main__":
    main()
